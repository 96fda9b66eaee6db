//! Calls that a person allows, or does not.

mod kept;

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use kept::{calls, copy, kinds, says};
use mynah::{
    Engine, Event, Message, OnUncertain, Resume, Tool, ToolCall, ToolMode, ToolOutcome, Tools,
    kept_call,
    log::{Log, MemoryLog},
    testing::{Script, Scripted, crash_everywhere},
};
use serde_json::{Value, json};

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
        assert_eq!(kept_call(&log, &run).await?.waiting, Some(result));
    }
    let engine = calls(["c0"])?.tool(pick().manual());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    engine.resume(&log, &run).approve("c0").await?;
    assert_eq!(kept_call(&log, &run).await?.waiting, None);
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
    let decide = |resume: Resume, call: &ToolCall| match &*call.id {
        "c0" => resume.approve("c0"),
        "c1" => resume.reject("c1", "too dear"),
        id => resume.tool_result(id, "mine"),
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
    let waiting = engine.resume(&log, &*run).await?;
    assert_eq!(kept_call(&log, &run).await?.waiting, Some(waiting));
    assert_eq!(engine.resume(&log, &*run).approve("c0").await?.text(), "done");
    Ok(())
}

#[tokio::test]
async fn what_a_person_allowed_once_is_not_run_by_a_replay() -> mynah::Result<()> {
    // Whether the tool waits for leave by itself, or the call says so for all of them.
    for (make, mode) in
        [(Tool::manual as fn(Tool) -> Tool, ToolMode::Auto), (|tool| tool, ToolMode::Manual)]
    {
        let (log, ran) = (MemoryLog::new(), Arc::new(AtomicU32::new(0)));
        let counter = Arc::clone(&ran);
        let pick = Tool::new("pick", "", json!({})).handler(move |arguments: Value, _| {
            counter.fetch_add(1, Relaxed);
            async { arguments }
        });
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
