//! Calls that ask a person and continue with the answer, and results with images.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, Ordering},
};

use mynah::{
    Approval, Engine, Image, Message, Metadata, OnUncertain, Part, Result, Role, Session, Tool,
    ToolOutcome, Tools,
    log::{Fact, Log, MemoryLog, RunStatus},
    replay_run, restore_session,
    testing::{Scripted, crash_everywhere},
};
use serde_json::{Value, json};

fn calls(ids: &[&str]) -> Value {
    let mut events: Vec<Value> =
        ids.iter().map(|id| json!({"tool_call": {"id": id, "name": "book"}})).collect();
    events.push(json!({"finish": "tool_calls"}));
    events.into()
}

fn says(text: &str) -> Value {
    json!([{"text": text}, {"finish": "stop"}])
}

/// Asks for a seat and then for a meal, and counts how often it runs.
fn book(runs: &Arc<AtomicU32>) -> Tool {
    let runs = Arc::clone(runs);
    Tool::new("book", "", json!({})).handler(move |_, context| {
        runs.fetch_add(1, Ordering::Relaxed);
        async move {
            let ask = |question: &str, state: Value| {
                ToolOutcome::ask_and_continue(question, Metadata::new(), state)
            };
            match context.continuation() {
                None => ask("Which seat?", json!({"flight": 7})),
                Some(past) => match (&past.answer, past.state.get("seat")) {
                    (None, _) => ask("Which seat?", past.state.clone()),
                    (Some(seat), None) => {
                        ask("Which meal?", json!({"flight": past.state["flight"], "seat": seat}))
                    }
                    (Some(meal), Some(seat)) => {
                        json!({"flight": past.state["flight"], "seat": seat, "meal": meal}).into()
                    }
                },
            }
        }
    })
}

#[tokio::test]
async fn a_call_that_asks_continues_with_the_answer_in_another_process() -> Result<()> {
    let runs = Arc::default();
    let script = [calls(&["c0"]), says("Booked.")];
    let engine = Engine::new(Scripted::new(script)?).tool(book(&runs));
    let log = Arc::new(MemoryLog::new());
    let waiting = engine.chat("go").record(&log).await?;
    assert_eq!(waiting.pending_question.as_deref(), Some("Which seat?"));
    let run = waiting.run_id.clone().unwrap();
    // Each resumption reads the records and nothing else.
    let waiting = engine.resume(&log, &*run).answer("12A").await?;
    assert_eq!(waiting.pending_question.as_deref(), Some("Which meal?"));
    let done = engine.resume(&log, &*run).answer("soup").await?;
    assert_eq!(done.text(), "Booked.");
    assert_eq!(runs.load(Ordering::Relaxed), 3);
    let roles: Vec<Role> = done.thread.messages.iter().map(|message| message.role()).collect();
    assert_eq!(roles, [Role::User, Role::Assistant, Role::Tool, Role::Assistant]);
    let result: Value = serde_json::from_str(&done.thread.messages.get(2).unwrap().text()).unwrap();
    assert_eq!(result, json!({"flight": 7, "seat": "12A", "meal": "soup"}));

    for tools in [Tools::Recorded, Tools::All] {
        assert_eq!(engine.replay(&log, &*run).replay_tools(tools).await?.status, "equal");
    }
    assert_eq!(replay_run(&log, &*run).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn a_call_with_edited_arguments_keeps_them_when_it_asks_and_continues() -> Result<()> {
    let given = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&given);
    let pay =
        Tool::new("pay", "", json!({})).approval(Approval::Ask).handler(move |args, context| {
            seen.lock().unwrap().push(args);
            async move {
                match context.continuation() {
                    None => {
                        ToolOutcome::ask_and_continue("Which account?", Metadata::new(), json!({}))
                    }
                    Some(_) => "paid".into(),
                }
            }
        });
    let asks = json!([{"tool_call": {"id": "c0", "name": "pay", "arguments": {"euros": 700}}}, {"finish": "tool_calls"}]);
    let engine = Engine::new(Scripted::new([asks, says("Done.")])?).tool(pay);
    let log = Arc::new(MemoryLog::new());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap();
    let asked = engine.resume(&log, &*run).approve_with("c0", json!({"euros": 7})).await?;
    assert_eq!(asked.pending_question.as_deref(), Some("Which account?"));
    let done = engine.resume(&log, &*run).answer("the second").await?;
    assert_eq!(*given.lock().unwrap(), [json!({"euros": 7}), json!({"euros": 7})]);
    let result = done.thread.messages.get(2).unwrap().text().into_owned();
    assert!(result.starts_with("paid\n\n[A person changed the arguments"), "{result}");
    assert_eq!(replay_run(&log, &*run).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn of_two_calls_that_ask_each_gets_its_own_answer() -> Result<()> {
    let runs = Arc::default();
    let script = [calls(&["c0", "c1"]), says("Both booked.")];
    let engine = Engine::new(Scripted::new(script)?).tool(book(&runs));
    let log = Arc::new(MemoryLog::new());
    let mut result = engine.chat("go").record(&log).await?;
    let run = result.run_id.clone().unwrap();
    let mut asked = Vec::new();
    for answer in ["1A", "soup", "1B", "rice"] {
        asked.push(result.pending_tool_call_id.clone().unwrap());
        result = engine.resume(&log, &*run).answer(answer).await?;
    }
    assert_eq!(asked, ["c0", "c0", "c1", "c1"]);
    assert_eq!(runs.load(Ordering::Relaxed), 6, "a call runs again only with its answer");
    assert_eq!(result.text(), "Both booked.");
    let results = result.thread.messages.iter().filter(|message| message.role() == Role::Tool);
    let read: Vec<Value> =
        results.map(|message| serde_json::from_str(&message.text()).unwrap()).collect();
    assert_eq!(read[0]["meal"], "soup");
    assert_eq!(read[1]["meal"], "rice");
    assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    Ok(())
}

/// A tool that asks within its call, one that asks the conversation, one that needs approval and one that halts.
fn desk(calls: &[&str]) -> Result<Engine> {
    let tool = |name: &str| Tool::new(name, "", json!({}));
    let seat = tool("seat").idempotent(3).handler(async |_, context: mynah::ToolContext| {
        match context.continuation() {
            None => ToolOutcome::ask_and_continue("Which seat?", Metadata::new(), json!({})),
            Some(past) => json!({"seat": past.answer}).into(),
        }
    });
    let ask = tool("ask").idempotent(3).handler(async |_, _| ToolOutcome::ask("Anything else?"));
    let pay = tool("pay").idempotent(3).approval(Approval::Ask).handler(async |_, _| "paid");
    let stop = tool("stop").idempotent(3).handler(async |_, _| ToolOutcome::halt("closed", "now"));
    let mut asked: Vec<Value> =
        calls.iter().map(|name| json!({"tool_call": {"id": name, "name": name}})).collect();
    asked.push(json!({"finish": "tool_calls"}));
    let model = Scripted::new([asked.into(), says("Done.")])?;
    Ok(Engine::new(model).tools([seat, ask, pay, stop]))
}

fn texts(result: &mynah::ChatResult) -> Vec<String> {
    let messages = result.thread.messages.iter().skip(2);
    messages.map(|message| message.text().into_owned()).collect()
}

#[tokio::test]
async fn a_call_that_asks_does_not_take_the_approval_of_another() -> Result<()> {
    for calls in [["seat", "pay"], ["pay", "seat"]] {
        let (engine, log) = (desk(&calls)?, MemoryLog::new());
        let asked = engine.chat("go").record(&log).run_id("r").await?;
        assert_eq!(asked.pending_question.as_deref(), Some("Which seat?"));
        let waiting = engine.resume(&log, "r").answer("12A").await?;
        let names: Vec<String> =
            waiting.manual_tool_calls().into_iter().map(|call| call.name).collect();
        assert_eq!(names, ["pay"]);
        let done = engine.resume(&log, "r").approve("pay").await?;
        assert_eq!(texts(&done), [r#"{"seat":"12A"}"#, "paid", "Done."]);
        assert_eq!(engine.replay(&log, "r").await?.status, "equal");
        assert_eq!(replay_run(&log, "r").await?.status, "equal");
        let check = crash_everywhere(|| desk(&calls).unwrap(), "go").answer("12A").approve_all();
        assert!(check.await.records > 10);
    }
    Ok(())
}

#[tokio::test]
async fn a_session_asks_for_the_approval_after_the_answer() -> Result<()> {
    let (engine, log) = (desk(&["seat", "pay"])?, Arc::new(MemoryLog::new()));
    let (session, _) = engine.start(Session::from("go").with_id("s")).record(&log).await?;
    let (session, _) = engine.reply(&session, "12A").record(&log).await?;
    let names: Vec<&str> =
        session.pending_tool_calls().iter().map(|call| call.name.as_str()).collect();
    assert_eq!(names, ["pay"]);
    assert_eq!(restore_session(&log, "s").await?.session, session);
    Ok(())
}

#[tokio::test]
async fn a_question_that_ends_the_turn_is_asked_after_one_within_a_call() -> Result<()> {
    for calls in [["ask", "seat", "pay"], ["seat", "ask", "pay"]] {
        let (engine, log) = (desk(&calls)?, MemoryLog::new());
        let asked = engine.chat("go").record(&log).run_id("r").await?;
        assert_eq!(asked.pending_question.as_deref(), Some("Which seat?"));
        let asked = engine.resume(&log, "r").answer("12A").await?;
        assert_eq!(asked.pending_question.as_deref(), Some("Anything else?"));
        let done = engine.resume(&log, "r").answer("no").await?;
        let read = texts(&done);
        assert!(read.contains(&r#"{"seat":"12A"}"#.to_owned()), "{read:?}");
        assert_eq!(read[3..], ["Anything else?", "no", "Done."], "{read:?}");
        assert_eq!(engine.replay(&log, "r").await?.status, "equal");
        crash_everywhere(|| desk(&calls).unwrap(), "go").answer("12A").await;
    }
    Ok(())
}

#[tokio::test]
async fn a_tool_that_halts_beside_a_question_halts_after_the_answer() -> Result<()> {
    let (engine, log) = (desk(&["seat", "stop"])?, MemoryLog::new());
    let asked = engine.chat("go").record(&log).run_id("r").await?;
    assert_eq!(asked.pending_question.as_deref(), Some("Which seat?"));
    let done = engine.resume(&log, "r").answer("12A").await?;
    assert_eq!(done.halted_reason.as_str(), "closed");
    assert_eq!(texts(&done), [r#"{"seat":"12A"}"#, "now"]);
    assert_eq!(engine.replay(&log, "r").await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn a_process_that_dies_in_a_continued_call_leaves_it_in_doubt_with_its_state() -> Result<()> {
    let runs = Arc::default();
    let script = || [calls(&["c0"]), says("Booked.")];
    let engine = Engine::new(Scripted::new(script())?).tool(book(&runs));
    let log = Arc::new(MemoryLog::new());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap();
    engine.resume(&log, &*run).answer("12A").await?;
    let done = engine.resume(&log, &*run).answer("soup").await?;
    assert_eq!(done.text(), "Booked.");

    // The same run as a process left it that died after the last attempt was announced.
    let records = log.read(&run, 1, usize::MAX).await?;
    let is_third = |fact: &Fact| matches!(fact, Fact::ToolScheduled { attempt: 3, .. });
    let cut = records
        .iter()
        .position(|record| record.fact().unwrap().is_some_and(|fact| is_third(&fact)));
    let fork = mynah::fork_run(&log, &*run, cut.unwrap() as u64 + 1).await?.run_id;
    let engine = Engine::new(Scripted::new([says("Booked.")])?).tool(book(&runs));
    let stopped = engine.resume(&log, &*fork).await?;
    assert_eq!(log.run(&fork).await?.unwrap().status, RunStatus::Suspended, "{stopped:?}");
    let done = engine.resume(&log, &*fork).on_uncertain(OnUncertain::Rerun).await?;
    let result: Value = serde_json::from_str(&done.thread.messages.get(2).unwrap().text()).unwrap();
    assert_eq!(result, json!({"flight": 7, "seat": "12A", "meal": "soup"}));
    Ok(())
}

#[tokio::test]
async fn a_result_with_images_reaches_the_model_and_its_record() -> Result<()> {
    let script = [calls(&["c0"]), says("A cat.")];
    let image = || Image::from_base64("aGk=", "image/png");
    let tool = Tool::new("book", "", json!({}))
        .handler(move |_, _| async move { vec![Part::text("a photo"), Part::image(image())] });
    let engine = Engine::new(Scripted::new(script)?).tool(tool);
    let log = Arc::new(MemoryLog::new());
    let done = engine.chat("look").record(&log).await?;
    let expected = Message::tool_parts("c0", [Part::text("a photo"), Part::image(image())]);
    assert_eq!(**done.thread.messages.get(2).unwrap(), expected);
    let run = done.run_id.unwrap();
    assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    assert_eq!(replay_run(&log, &*run).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn a_result_with_parts_that_are_no_result_is_refused() -> Result<()> {
    let script = [calls(&["c0"]), says("Oh.")];
    let tool = Tool::new("book", "", json!({}))
        .handler(async |_, _| vec![Part::Refusal { text: "no".to_owned() }]);
    let engine = Engine::new(Scripted::new(script)?).tool(tool);
    let done = engine.chat("look").await?;
    let text = done.thread.messages.get(2).unwrap().text().into_owned();
    assert!(text.contains("neither text nor images"), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_process_may_die_anywhere_in_a_call_that_asks_twice() {
    let engine = || {
        let runs = Arc::default();
        let tool = book(&runs).idempotent(3);
        Engine::new(Scripted::new([calls(&["c0", "c1"]), says("Booked.")]).unwrap()).tool(tool)
    };
    crash_everywhere(engine, "go").answer("soup").await;
}

#[tokio::test]
async fn a_call_of_a_session_continues_where_that_is_recorded() -> Result<()> {
    let engine = || -> Result<Engine> {
        let script = [calls(&["c0"]), says("Booked."), says("You are welcome.")];
        Ok(Engine::new(Scripted::new(script)?).tool(book(&Arc::default())))
    };
    let (log, kept) = (Arc::new(MemoryLog::new()), engine()?);
    let (session, _) = kept.start(Session::from("go").with_id("s")).record(&log).await?;
    assert_eq!(session.pending_question(), Some("Which seat?"));
    let (session, _) = kept.reply(&session, "12A").record(&log).await?;
    assert_eq!(session.pending_question(), Some("Which meal?"));
    let session = restore_session(&log, "s").await?.session;
    let (session, result) = kept.reply(&session, "soup").record(&log).await?;
    assert_eq!(result.text(), "Booked.");
    let read = session.thread.messages.get(2).unwrap().text().into_owned();
    assert!(read.contains("soup"), "{read}");
    assert_eq!(restore_session(&log, "s").await?.session, session);
    let (_, result) = kept.reply(&session, "thanks").record(&log).await?;
    assert_eq!(result.text(), "You are welcome.");

    // Without a record there is no state to continue with: the model reads the answer.
    let plain = engine()?;
    let (session, _) = plain.start("go").await?;
    assert_eq!(session.pending_question(), Some("Which seat?"));
    let (session, result) = plain.reply(&session, "12A").await?;
    assert_eq!(result.text(), "Booked.");
    let heard = session.thread.messages.iter().any(|message| message.text() == "12A");
    assert!(heard, "the answer is a message");
    Ok(())
}
