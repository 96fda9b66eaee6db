//! Calls that a person allows, or does not.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use mynah::{
    Approval, ChatResult, Decision, Engine, Event, Message, OnUncertain, ReplayStatus, Tool,
    ToolCall, ToolMode, ToolOutcome, Tools,
    log::{Fact, Hash, Log, MemoryLog},
    recorded_call, replay_run,
    testing::{Script, Scripted, collect, crash_everywhere},
};
use serde_json::{Value, json};

use crate::kept::{calls, copy, kinds, says};

#[tokio::test]
async fn another_process_knows_what_a_run_waits_for() -> mynah::Result<()> {
    let ask = Tool::new("pick", "", json!({})).handler(async |_, _| ToolOutcome::ask("Which?"));
    let pick = || Tool::new("pick", "", json!({})).handler(async |_, _| "picked");
    let wanted = |id: &str, x: u8| {
        let raw = format!(r#"{{"x":{x}}}"#);
        json!({"id": id, "name": "pick", "arguments": {"x": x}, "raw_arguments": raw})
    };
    let both = json!([wanted("c0", 0), wanted("c1", 1)]);
    let question = calls(["c0"])?.tool(ask);
    let (some, all) =
        (calls(["c0", "c1"])?.tool(pick().manual()), calls(["c0", "c1"])?.tool(pick()));
    let log = MemoryLog::new();
    for (chat, told, expected) in [
        (question.chat("go"), "pending_question", json!("Which?")),
        (some.chat("go"), "manual_tool_calls", both.clone()),
        (all.chat("go").mode(ToolMode::Manual), "manual_tool_calls", both),
    ] {
        let result = chat.record(&log).await?;
        let run = result.run_id.clone().unwrap_or_default();
        let refused = some.resume(&log, &run).await.expect_err("it waits");
        assert_eq!((refused.reason(), &refused.metadata()[told]), ("invalid_status", &expected));
        assert_eq!(recorded_call(&log, &run).await?.result, Some(result));
    }
    let engine = calls(["c0"])?.tool(pick().manual());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    engine.resume(&log, &run).approve("c0").await?;
    assert_eq!(recorded_call(&log, &run).await?.waiting(), None);
    Ok(())
}

#[tokio::test]
async fn a_person_is_not_asked_about_a_call_whose_arguments_do_not_fit() -> mynah::Result<()> {
    let pay = |approval| {
        let schema = json!({"type": "object", "properties": {"euros": {"type": "integer"}}});
        let tool = Tool::new("pay", "", schema).handler(async |_, _| "paid");
        tool.approval(approval)
    };
    let call =
        |euros: Value| Script::new().tool_call("c0", "pay", json!({"euros": euros})).call_tools();
    let model = || {
        Scripted::play([call(json!("seven")), call(json!(7)), Script::new().text("Paid.").stop()])
    };
    for engine in [
        Engine::new(model()).tool(pay(Approval::Ask)),
        Engine::new(model()).tool(pay(Approval::Never)).approval(|_, _| Approval::Ask),
    ] {
        let log = MemoryLog::new();
        let waiting = engine.chat("pay").record(&log).run_id("k").await?;
        assert_eq!(waiting.manual_tool_calls()[0].arguments, json!({"euros": 7}));
        let refused =
            waiting.thread.messages.iter().find(|message| message.tool_call_id().is_some());
        let refused = refused.map(|message| message.text().into_owned()).unwrap_or_default();
        assert!(refused.contains("invalid_arguments: /euros"), "{refused}");
        assert_eq!(engine.resume(&log, "k").approve("c0").await?.text(), "Paid.");
        assert_eq!(replay_run(&log, "k").await?.status, ReplayStatus::Equal);
        engine.replay(&log, "k").await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_a_person_approves_is_run_and_what_they_reject_is_not() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let pick =
        Tool::new("pick", "", json!({})).manual().handler(async |arguments: Value, _| arguments);
    let engine = calls(["c0", "c1", "c2"])?.tool(pick);
    let waiting = engine.chat("go").record(&log).await?;
    let run = waiting.run_id.unwrap_or_default();
    let resume = || engine.resume(&log, &*run);
    let before = log.head(&run).await?;
    let missing = resume().approve("c0").await.expect_err("two calls are not answered");
    assert_eq!(
        (missing.reason(), &missing.metadata()["missing_tool_calls"]),
        ("invalid_status", &json!(["c1", "c2"]))
    );
    let unknown = resume().approve("c9").await.expect_err("no such call");
    assert_eq!(unknown.reason(), "unknown_tool_call_id");
    let twice = resume().approve("c0").reject("c0", "").await.expect_err("named twice");
    assert_eq!(twice.reason(), "unknown_tool_call_id");
    assert_eq!(log.head(&run).await?, before, "nothing was written");

    let done = resume().tool_result("c2", "mine").reject("c1", "too dear").approve("c0").await?;
    let told = done.thread.messages.iter().filter(|message| message.tool_call_id().is_some());
    let expected = [
        Message::tool_result("c0", r#"{"x":0}"#),
        Message::tool_error("c1", r#"{"error":"a person rejected the call: too dear"}"#),
        Message::tool_result("c2", "mine"),
    ];
    assert_eq!(told.map(|message| (**message).clone()).collect::<Vec<_>>(), expected);
    assert_eq!(done.text(), "done");
    for tools in [Tools::All, Tools::Recorded] {
        assert_eq!(engine.replay(&log, &*run).replay_tools(tools).await?.status, "equal");
    }
    Ok(())
}

#[tokio::test]
async fn an_approved_call_is_not_run_twice_unasked_whenever_its_process_dies() -> mynah::Result<()>
{
    let engine = || {
        let calls = ["c0", "c1", "c2"]
            .iter()
            .fold(Script::new(), |script, id| script.tool_call(*id, "pick", json!({"x": id})));
        let pick = Tool::new("pick", "", json!({})).manual();
        let script = [calls.call_tools(), Script::new().text("done").stop()];
        Engine::new(Scripted::play(script))
            .tool(pick.handler(async |arguments: Value, _| arguments))
    };
    let decide = |call: &ToolCall| match &*call.id {
        "c0" => Decision::Approve,
        "c1" => Decision::Reject("too dear".to_owned()),
        _ => Decision::Result(json!("mine")),
    };
    let check = || crash_everywhere(engine, "go").decide(decide);
    // After its announcement, and before its outcome.
    assert_eq!(check().await.uncertain, 2);
    assert_eq!(check().on_uncertain(OnUncertain::Rerun).await.uncertain, 0);

    let (log, engine) = (MemoryLog::new(), engine());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let resume = engine.resume(&log, &*run).tool_result("c2", "mine").reject("c1", "too dear");
    resume.approve("c0").await?;
    let kinds = kinds(&log, &run).await;
    let scheduled = kinds.iter().position(|kind| kind == "tool_scheduled").expect("it was run");
    let log = copy(&log, &run, scheduled as u64 + 1).await;
    let engine = engine.adapter(Scripted::new([says("done")])?);
    // A queue that repeats its job does not know that the process died: that is no second decision.
    let repeated = engine.resume(&log, &*run).approve("c0").await.expect_err("it may have run");
    assert_eq!(repeated.reason(), "invalid_status");
    assert!(repeated.message().contains("call c0 was approved before"), "{repeated}");
    let waiting = engine.resume(&log, &*run).await?;
    assert_eq!(recorded_call(&log, &run).await?.result, Some(waiting));
    assert_eq!(engine.resume(&log, &*run).approve("c0").await?.text(), "done");
    Ok(())
}

#[tokio::test]
async fn a_second_approval_of_a_call_that_runs_names_the_process_that_holds_the_run()
-> mynah::Result<()> {
    let log = MemoryLog::new();
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let pick = Tool::new("pick", "", json!({})).manual().handler(move |_: Value, _| {
        _ = begun.send(());
        async { std::future::pending::<String>().await }
    });
    let engine = calls(["c0"])?.tool(pick);
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let first = tokio::spawn(engine.resume(&log, &*run).approve("c0").into_future());
    begins.recv().await.expect("the call runs");
    let second = engine.resume(&log, &*run).approve("c0").await.expect_err("it runs");
    assert_eq!(second.reason(), "leased", "{second}");
    assert!(!second.message().contains("died"), "{second}");
    // Who only asks does not know whether that process lives.
    let asked = engine.resume(&log, &*run).approve("c0").check().await.expect_err("it runs");
    assert!(asked.message().contains("it is running, or the process died"), "{asked}");
    first.abort();
    Ok(())
}

#[tokio::test]
async fn rerun_tools_runs_what_is_idempotent_and_needed_no_approval() -> mynah::Result<()> {
    let as_idempotent = |tool: Tool| tool.idempotent(1);
    for (make, is_approved, reruns) in [
        (as_idempotent as fn(Tool) -> Tool, false, 1),
        (|tool| tool, false, 0),
        (|tool: Tool| tool.idempotent(1).approval(Approval::Ask), true, 0),
    ] {
        let (log, ran) = (MemoryLog::new(), Arc::new(AtomicU32::new(0)));
        let pick = counted(&ran);
        let engine = calls(["c0"])?.tool(make(pick));
        let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
        if is_approved {
            engine.resume(&log, &*run).approve("c0").await?;
        }
        engine.replay(&log, &*run).rerun_tools().await?;
        assert_eq!(ran.load(Relaxed), 1 + reruns, "approved: {is_approved}");
        engine.replay(&log, &*run).rerun_tool("pick").await?;
        assert_eq!(ran.load(Relaxed), 2 + reruns, "a tool that is named");
    }
    Ok(())
}

#[tokio::test]
async fn what_a_person_allowed_once_is_not_run_by_a_replay() -> mynah::Result<()> {
    // Whether the tool itself asks for approval, or the call asks for all of them.
    for (make, mode) in
        [(Tool::manual as fn(Tool) -> Tool, ToolMode::Auto), (|tool| tool, ToolMode::Manual)]
    {
        let (log, ran) = (MemoryLog::new(), Arc::new(AtomicU32::new(0)));
        let pick = counted(&ran);
        let engine = calls(["c0"])?.tool(make(pick));
        let waiting = engine.chat("go").mode(mode).record(&log).await?;
        let run = waiting.run_id.unwrap_or_default();
        assert_eq!(engine.resume(&log, &*run).approve("c0").await?.text(), "done");
        for tools in [Tools::All, Tools::Recorded] {
            assert_eq!(engine.replay(&log, &*run).replay_tools(tools).await?.status, "equal");
        }
        assert_eq!(ran.load(Relaxed), 1, "{mode:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_tool_without_a_handler_cannot_be_approved() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let engine = calls(["c0"])?.tool(Tool::new("pick", "", json!({})).manual());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let error = engine.resume(&log, &*run).approve("c0").await.expect_err("nothing to run");
    assert_eq!(error.metadata()["field"], "approve");
    Ok(())
}

#[tokio::test]
async fn an_approved_call_may_ask_a_person() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let pick =
        Tool::new("pick", "", json!({})).manual().handler(async |_, _| ToolOutcome::ask("Sure?"));
    let engine = calls(["c0"])?.tool(pick);
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let asked = engine.resume(&log, &*run).approve("c0").await?;
    assert_eq!(asked.pending_question.as_deref(), Some("Sure?"));
    let done = engine.resume(&log, &*run).answer("yes").await?;
    assert_eq!((done.text().as_ref(), done.steps.len()), ("done", 2));
    assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn a_run_that_is_ended_in_an_approved_call_keeps_the_step_before_it() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let hang = Tool::new("pick", "", json!({}))
        .manual()
        .handler(async |_, _| std::future::pending::<Value>().await);
    let engine = calls(["c0"])?.tool(hang);
    let waiting = engine.chat("go").record(&log).await?;
    let run = waiting.run_id.clone().unwrap_or_default();
    let mut stream = engine.resume(&log, &*run).approve("c0").stream().started().await?;
    let cancel = stream.cancel_handle();
    let mut ended = None;
    while let Some(event) = futures_util::StreamExt::next(&mut stream).await.transpose()? {
        match event {
            Event::ToolExecutionStarted { .. } => cancel.cancel(),
            Event::ChatCompleted { result } => ended = Some(result),
            _ => {}
        }
    }
    let ended = ended.expect("it was ended");
    assert_eq!((ended.halted_reason.as_str(), ended.steps.len()), ("cancelled", 1));
    assert_eq!(ended.steps[0].response, waiting.steps[0].response);
    assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    Ok(())
}

/// A tool that counts how often it ran, and gives its arguments back.
fn counted(ran: &Arc<AtomicU32>) -> Tool {
    let ran = Arc::clone(ran);
    Tool::new("pick", "", json!({})).handler(move |arguments: Value, _| {
        ran.fetch_add(1, Relaxed);
        async { arguments }
    })
}

/// The tool messages of a conversation.
fn results(result: &ChatResult) -> Vec<Message> {
    let messages = result.thread.messages.iter();
    messages.filter(|said| said.tool_call_id().is_some()).map(|said| (**said).clone()).collect()
}

const DENIED: &str = r#"{"error":"tool error (pick): denied: the call is not permitted"}"#;

#[tokio::test]
async fn a_tool_that_asks_waits_and_the_engine_runs_what_is_approved() -> mynah::Result<()> {
    let (log, ran) = (MemoryLog::new(), Arc::new(AtomicU32::new(0)));
    let engine = calls(["c0", "c1"])?.tool(counted(&ran).approval(Approval::Ask));
    let waiting = engine.chat("go").record(&log).await?;
    let run = waiting.run_id.clone().unwrap_or_default();
    assert_eq!((waiting.manual_tool_calls().len(), ran.load(Relaxed)), (2, 0));
    let done = engine.resume(&log, &*run).approve("c0").reject("c1", "").await?;
    assert_eq!((done.text().as_ref(), ran.load(Relaxed)), ("done", 1));
    for tools in [Tools::All, Tools::Recorded] {
        assert_eq!(engine.replay(&log, &*run).replay_tools(tools).await?.status, "equal");
    }
    assert_eq!(
        (replay_run(&log, &*run).await?.status, ran.load(Relaxed)),
        (ReplayStatus::Equal, 1)
    );

    let nothing_runs = Tool::new("pick", "", json!({})).approval(Approval::Ask);
    let refused = calls(["c0"])?.tool(nothing_runs).chat("go").await.expect_err("no handler");
    assert!(refused.to_string().contains("no handler"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn a_denied_call_is_answered_at_once_and_never_run() -> mynah::Result<()> {
    let (log, ran) = (MemoryLog::new(), Arc::new(AtomicU32::new(0)));
    let engine = calls(["c0", "c1"])?.tool(counted(&ran).approval(Approval::Deny));
    let done = engine.chat("go").record(&log).await?;
    assert_eq!(results(&done), ["c0", "c1"].map(|id| Message::tool_error(id, DENIED)));
    assert_eq!((done.text().as_ref(), done.steps[0].tool_results.len()), ("done", 2));
    let run = done.run_id.unwrap_or_default();
    assert!(!kinds(&log, &run).await.contains(&"tool_scheduled".to_owned()));
    assert_eq!(engine.replay(&log, &*run).replay_tools(Tools::All).await?.status, "equal");
    assert_eq!(replay_run(&log, &*run).await?.status, "equal");

    // Regardless of the policy and a person's decision.
    let engine = calls(["c0"])?.tool(counted(&ran).approval(Approval::Deny));
    let engine = engine.approval(|_, _| Approval::Never);
    let waiting = engine.chat("go").mode(ToolMode::Manual).record(&log).await?;
    let resume = engine.resume(&log, waiting.run_id.unwrap_or_default()).approve("c0");
    assert_eq!(results(&resume.await?), [Message::tool_error("c0", DENIED)]);
    assert_eq!(ran.load(Relaxed), 0);
    Ok(())
}

#[tokio::test]
async fn a_policy_decides_about_each_call_and_a_replay_does_not_ask_it() -> mynah::Result<()> {
    let (log, ran, asked) =
        (MemoryLog::new(), Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&asked);
    let by_amount = move |call: &ToolCall, tool: &Tool| {
        count.fetch_add(1, Relaxed);
        assert_eq!(tool.name(), "pick");
        match call.arguments["x"].as_u64() {
            Some(0) => Approval::Deny,
            Some(1) => Approval::Ask,
            _ => Approval::Never,
        }
    };
    let bare = calls(["c0", "c1", "c2"])?.tool(counted(&ran));
    let engine = bare.clone().approval(by_amount);
    let waiting = engine.chat("go").record(&log).await?;
    let run = waiting.run_id.clone().unwrap_or_default();
    let ids: Vec<_> = waiting.manual_tool_calls().into_iter().map(|call| call.id).collect();
    assert_eq!((ids, ran.load(Relaxed), asked.load(Relaxed)), (vec!["c1".to_owned()], 1, 3));
    let expected = [Message::tool_error("c0", DENIED), Message::tool_result("c2", r#"{"x":2}"#)];
    assert_eq!(results(&waiting), expected);

    let refused = bare.resume(&log, &*run).approve("c1").await.expect_err("the policy is missing");
    assert!(refused.to_string().contains("the run has code for approval"), "{refused}");
    assert_eq!(engine.resume(&log, &*run).approve("c1").await?.text(), "done");
    for engine in [&engine, &bare, &bare.clone().approval(|_, _| Approval::Never)] {
        let replayed = engine.replay(&log, &*run).replay_tools(Tools::All).await?;
        assert_eq!((replayed.status, asked.load(Relaxed)), (ReplayStatus::Equal, 3));
    }
    assert_eq!(replay_run(&log, &*run).await?.status, "equal");

    // A policy of the call comes before the engine's.
    let engine = calls(["c0"])?.tool(counted(&ran)).approval(|_, _| Approval::Deny);
    let done = engine.chat("go").approval(|_, _| Approval::Never).await?;
    assert_eq!(results(&done), [Message::tool_result("c0", r#"{"x":0}"#)]);
    assert_eq!(engine.spec().expect_err("a function").metadata()["field"], "approval");
    Ok(())
}

#[tokio::test]
async fn a_policy_cannot_permit_a_call_for_which_its_tool_asks() -> mynah::Result<()> {
    let (log, ran) = (MemoryLog::new(), Arc::new(AtomicU32::new(0)));
    let asks = counted(&ran).approval(Approval::Ask);
    let policies = [Approval::Never, Approval::Ask, Approval::Deny];
    for (policy, waits) in policies.into_iter().zip([1, 1, 0]) {
        let engine = calls(["c0"])?.tool(asks.clone()).approval(move |_, _| policy);
        let result = engine.chat("go").record(&log).await?;
        assert_eq!(result.manual_tool_calls().len(), waits, "{policy:?}");
        let run = result.run_id.unwrap_or_default();
        assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
        assert_eq!(replay_run(&log, &*run).await?.status, "equal");
    }
    assert_eq!(ran.load(Relaxed), 0);
    // The program permits it by name.
    let engine = calls(["c0"])?.tool(asks.approval(Approval::Never));
    engine.approval(|_, _| Approval::Never).chat("go").await?;
    assert_eq!(ran.load(Relaxed), 1);
    Ok(())
}

#[tokio::test]
async fn a_policy_that_panics_permits_nothing() -> mynah::Result<()> {
    let ran = Arc::new(AtomicU32::new(0));
    let engine = calls(["c0"])?.tool(counted(&ran)).approval(|_, _| panic!("no idea"));
    assert_eq!(results(&engine.chat("go").await?), [Message::tool_error("c0", DENIED)]);
    assert_eq!(ran.load(Relaxed), 0);
    Ok(())
}

/// A tool that asks, takes a number, and gives its arguments back.
fn asks(description: &str) -> Tool {
    let schema = json!({"type": "object", "properties": {"x": {"type": "integer"}}});
    Tool::new("pick", description, schema)
        .approval(Approval::Ask)
        .handler(async |arguments: Value, _| arguments)
}

const EDITED: &str =
    "{\"x\":7}\n\n[A person changed the arguments of this call before it ran, to {\"x\":7}]";

#[tokio::test]
async fn a_call_runs_with_the_arguments_that_a_person_put_in_place_of_the_models()
-> mynah::Result<()> {
    let log = MemoryLog::new();
    let engine = calls(["c0", "c1"])?.tool(asks(""));
    let waiting = engine.chat("go").record(&log).await?;
    let run = waiting.run_id.unwrap_or_default();
    let resume = || engine.resume(&log, &*run).approve("c1");
    let before = log.head(&run).await?;
    let unfit = resume().approve_with("c0", json!({"x": "many"})).await.expect_err("no number");
    assert_eq!(unfit.reason(), "invalid_arguments");
    let twice = resume().approve_with("c1", json!({"x": 7})).reject("c0", "");
    assert_eq!(twice.await.expect_err("named twice").reason(), "unknown_tool_call_id");
    assert_eq!(log.head(&run).await?, before, "nothing was written");

    let events = collect(resume().approve_with("c0", json!({"x": 7})).stream()).await?;
    let ran = events.iter().find_map(|event| match event {
        Event::ToolExecutionStarted { id, arguments, .. } if id == "c0" => Some(arguments),
        _ => None,
    });
    assert_eq!(ran, Some(&json!({"x": 7})));
    let Some(Event::ChatCompleted { result: done }) = events.last() else { panic!("no result") };
    let expected = [Message::tool_result("c0", EDITED), Message::tool_result("c1", r#"{"x":1}"#)];
    assert_eq!(results(done), expected);
    let asked = done.thread.messages.iter().find_map(|said| said.tool_calls().next().cloned());
    assert_eq!(asked.map(|call| call.arguments), Some(json!({"x": 0})), "the model's call stays");

    let records = log.read(&run, 1, 100).await?;
    let edited = records.iter().find_map(|record| match record.fact().ok()?? {
        Fact::Resumed { edited, .. } => Some(edited),
        _ => None,
    });
    assert_eq!(edited, Some(vec![("c0".to_owned(), r#"{"x":7}"#.to_owned())]));
    for replay in [engine.replay(&log, &*run), engine.replay(&log, &*run).rerun_tool("pick")] {
        assert_eq!(replay.await?.status, "equal");
    }
    assert_eq!(replay_run(&log, &*run).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn a_call_in_doubt_keeps_the_arguments_that_a_person_gave_it() -> mynah::Result<()> {
    let script = || Script::new().tool_call("c0", "pick", json!({"x": 0})).call_tools();
    let engine = || {
        Engine::new(Scripted::play([script(), Script::new().text("done").stop()])).tool(asks(""))
    };
    let check =
        || crash_everywhere(engine, "go").decide(|_| Decision::ApproveWith(json!({"x": 7})));
    assert_eq!(check().await.uncertain, 2);
    assert_eq!(check().on_uncertain(OnUncertain::Rerun).await.uncertain, 0);

    let (log, engine) = (MemoryLog::new(), engine());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    engine.resume(&log, &*run).approve_with("c0", json!({"x": 7})).await?;
    let kinds = kinds(&log, &run).await;
    let scheduled = kinds.iter().position(|kind| kind == "tool_scheduled").expect("it was run");
    let log = copy(&log, &run, scheduled as u64 + 1).await;
    let engine = engine.adapter(Scripted::new([says("done")])?);
    let waiting = engine.resume(&log, &*run).await?;
    assert_eq!(waiting.uncertain_tool_calls()[0].arguments, json!({"x": 7}));
    let done = engine.resume(&log, &*run).approve("c0").await?;
    assert_eq!(results(&done), [Message::tool_result("c0", EDITED)]);
    assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn an_approval_does_not_count_for_a_tool_that_changed_since_it_was_asked_for()
-> mynah::Result<()> {
    let log = MemoryLog::new();
    let engine = calls(["c0"])?.tool(asks("picks"));
    let changed = calls(["c0"])?.adapter(Scripted::new([says("done")])?).tool(asks("drops all"));
    let chat = engine.chat("go").record(&log).run_id("r");
    let started = chat.start_or_resume().await?;
    let call = started.result().manual_tool_calls().remove(0);
    let recorded = recorded_call(&log, "r").await?.digests["c0"];
    assert_eq!(started.digest(&call), Some(recorded));

    let before = log.head("r").await?;
    let resume = || changed.resume(&log, "r").allow_changed_engine();
    let stale = resume().approve("c0").await.expect_err("another tool");
    assert_eq!(
        (stale.reason(), &stale.metadata()["recorded_digest"]),
        ("approval_stale", &json!(recorded))
    );
    let edited = resume().approve_with("c0", json!({"x": 7})).await.expect_err("another tool");
    let old = resume().approve_digest("c0", recorded).await.expect_err("another tool");
    assert_eq!((edited.reason(), old.reason()), ("approval_stale", "approval_stale"));
    let other = engine.resume(&log, "r").approve_digest("c0", Hash([0; 32]));
    assert_eq!(other.await.expect_err("another digest").reason(), "approval_stale");
    assert_eq!(log.head("r").await?, before, "nothing was written");

    let digest = stale.metadata()["digest"].as_str().expect("a digest").parse::<Hash>()?;
    assert_eq!(resume().approve_digest("c0", digest).await?.text(), "done");
    Ok(())
}

#[tokio::test]
async fn an_approval_does_not_pass_to_a_changed_tool_when_the_process_dies() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let engine = calls(["c0"])?.tool(asks("picks"));
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    engine.resume(&log, &*run).approve("c0").await?;
    let kinds = kinds(&log, &run).await;
    let resumed = kinds.iter().position(|kind| kind == "resumed").expect("it was approved") as u64;
    let model = || Scripted::new([says("done")]);
    // Before and after the call was announced.
    for (last, rerun) in [(resumed + 1, OnUncertain::Suspend), (resumed + 2, OnUncertain::Rerun)] {
        let log = copy(&log, &run, last).await;
        let resume = || {
            engine
                .clone()
                .adapter(model().unwrap_or_default())
                .resume(&log, &*run)
                .on_uncertain(rerun)
        };
        let other = resume().tools([asks("drops all")]).allow_changed_engine();
        assert_eq!(other.await.expect_err("another tool").reason(), "approval_stale");
        assert_eq!(resume().await?.text(), "done");
    }
    Ok(())
}
