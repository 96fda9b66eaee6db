//! Calls that start a run under an id of their own, or attach to the run that has it.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt as _;
use mynah::{
    Budget, Engine, Event, Options, Request, Response, Result, RunId, Session, Thread, Tool,
    ToolOutcome,
    log::{Log, MAINTENANCE, MemoryLog, Prune, RunFilter, Warrant},
    testing::{self, Scripted},
};
use serde_json::{Value, json};

use crate::{
    kept::{copy, kinds, logs, says, talker},
    param::Param as _,
};

#[tokio::test]
async fn a_finished_run_gives_its_recorded_result_and_events_again() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    for log in logs(folder.path()) {
        let (engine, model, ran) = rolls(0)?;
        let live = testing::collect(engine.chat("go").record(&log).run_id("k").stream()).await?;
        let first = chat(&log, &engine).await?;
        assert_eq!((first.text().as_ref(), first.run_id.as_deref()), ("done", Some("k")));
        assert_eq!(Some(&Event::ChatCompleted { result: Box::new(first) }), live.last());
        let again = testing::collect(engine.chat("go").record(&log).run_id("k").stream()).await?;
        assert_eq!(again, live);
        let quiet = engine.chat("go").record(&log).run_id("k").emit_text_deltas(false).stream();
        let quiet = testing::collect(quiet).await?;
        assert!(!testing::names(&quiet).contains(&"text_delta"));
        assert_eq!((model.model_calls().len(), ran.load(Ordering::Relaxed)), (2, 1));
        assert_eq!(log.runs(RunFilter::new()).await?.runs.len(), 1);
    }
    Ok(())
}

#[tokio::test]
async fn an_id_leaves_room_for_those_of_the_runs_that_continue_its_own() -> Result<()> {
    let log = MemoryLog::new();
    let engine = talker(1)?;
    let chat = |length: usize| engine.chat("go").record(&log).run_id("x".repeat(length));
    let refused = chat(245).await.expect_err("too long");
    assert!(
        refused.to_string().ends_with("it has 245 bytes; the id of a run has 1 to 244"),
        "{refused}"
    );
    assert_eq!(chat(244).await?.run_id.map(|id| id.len()), Some(244));
    let refused = engine.resume(&log, "").await.expect_err("no id");
    assert!(refused.to_string().contains("no run with an empty id"), "{refused}");
    Ok(())
}

#[tokio::test]
async fn an_id_that_cannot_be_read_or_typed_is_refused() -> Result<()> {
    let log = MemoryLog::new();
    let engine = talker(2)?;
    for (id, why) in [
        ("  ", "\"  \" is blank"),
        ("a\0b", "has the control character U+0000"),
        ("a\nb", "has the control character U+000A"),
        ("\u{1b}[2J", "has the control character U+001B"),
    ] {
        let refused = engine.chat("go").record(&log).run_id(id).await.expect_err("no id");
        assert!(refused.to_string().contains(why), "{refused}");
        let refused = engine.chat("go").record(&log).run_id(id).enqueue().await;
        assert!(refused.is_err(), "{id:?}");
        engine.chat("go").record(&log).run_id("k").await?;
        let refused = mynah::fork_run(&log, "k", 3).run_id(id).await.expect_err("no id");
        assert!(refused.to_string().contains(why), "{refused}");
    }
    assert_eq!(log.runs(RunFilter::new()).await?.runs.len(), 1);
    Ok(())
}

#[tokio::test]
async fn every_recorded_call_returns_the_id_of_its_run_which_leads_back_to_it() -> Result<()> {
    let log = MemoryLog::new();
    let engine = talker(4)?;
    let generated = engine.generate("go").record(&log).run_id("g").await?;
    let stepped = engine.step("go").record(&log).run_id(RunId::from("s")).await?;
    let chatted = engine.chat("go").record(&log).await?;
    let (_, turn) = engine.start("go").record(&log).await?;
    let ids = [generated.run_id.clone(), stepped.run_id, chatted.run_id, turn.run_id];
    assert_eq!(ids[..2], [Some("g".into()), Some("s".into())]);
    for id in ids {
        let id = id.expect("a recorded call");
        assert_eq!(log.run(&id).await?.map(|run| run.run_id), Some(id.clone()));
        assert_eq!(
            engine.replay(&log, &id).await?.records,
            log.head(&id).await?.map_or(0, |head| head.seq)
        );
    }
    // It is a member of the response's JSON, and none if nothing was recorded.
    let stored = json!(generated);
    assert_eq!(stored["run_id"], "g");
    assert_eq!(serde_json::from_value::<Response>(stored)?, generated);
    assert_eq!(json!(talker(1)?.generate("go").await?).get("run_id"), None);
    Ok(())
}

#[tokio::test]
async fn a_run_that_died_after_any_record_is_resumed_and_comes_to_the_same() -> Result<()> {
    let log = MemoryLog::new();
    let (engine, ..) = rolls(0)?;
    let live = testing::collect(engine.chat("go").record(&log).run_id("k").stream()).await?;
    let kinds = kinds(&log, "k").await;
    for cut in 1..kinds.len() {
        let answered = kinds[..cut].iter().filter(|kind| *kind == "assistant_completed").count();
        let log = copy(&log, "k", cut as u64).await;
        let (engine, model, _) = rolls(answered)?;
        let observed = Arc::new(Mutex::new(Vec::new()));
        let observe = Arc::clone(&observed);
        let chat = engine.chat("go").record(&log).run_id("k");
        let chat = chat.on_event(move |event| observe.lock().expect("a list").push(event.clone()));
        let resumed = testing::collect(chat.stream()).await?;
        // An observer sees what the stream has: each recorded piece once, and then the new ones.
        let observed = std::mem::take(&mut *observed.lock().expect("a list"));
        assert_eq!(testing::text(&observed), testing::text(&live), "cut at {cut}");
        assert_eq!(testing::names(&resumed), testing::names(&live), "cut at {cut}");
        assert_eq!(resumed.last(), live.last(), "cut at {cut}");
        assert_eq!(model.model_calls().len(), 2 - answered, "cut at {cut}");
        assert_eq!(engine.replay(&log, "k").await?.status, "equal", "cut at {cut}");
    }
    Ok(())
}

#[tokio::test]
async fn a_run_that_waits_gives_its_suspended_result() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    for log in logs(folder.path()) {
        let asks = json!([{"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"}]);
        let model = Scripted::new([asks, says("done")])?;
        let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("Sure?"));
        let engine = Engine::new(model.clone()).tool(ask);
        let waiting = chat(&log, &engine).await?;
        assert_eq!(chat(&log, &engine).await?, waiting);
        assert_eq!(waiting.pending_question.as_deref(), Some("Sure?"));
        let done = engine.resume(&log, "k").answer("yes").await?;
        assert_eq!((chat(&log, &engine).await?, model.model_calls().len()), (done, 2));
    }
    Ok(())
}

#[tokio::test]
async fn a_run_in_use_is_refused_with_its_holder() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    for log in logs(folder.path()) {
        let slow = json!([{"text": "a"}, {"delay_ms": 5_000}, {"text": "b"}, {"finish": "stop"}]);
        let engine = Engine::new(Scripted::new([slow])?);
        let mut running = engine.chat("go").record(&log).run_id("k").stream();
        while !matches!(running.next().await, Some(Ok(Event::TextDelta { .. }))) {}
        let poll = tokio::spawn(async move { while running.next().await.is_some() {} });
        let error = chat(&log, &engine).await.expect_err("it is in use");
        assert_eq!(error.reason(), "leased");
        assert!(error.metadata()["owner"].is_string());
        let is_linux = cfg!(target_os = "linux");
        let told = error.to_string().contains("held by another call in this process");
        assert_eq!(told, is_linux, "{error}");
        poll.abort();
    }
    Ok(())
}

#[tokio::test]
async fn of_concurrent_starts_one_asks_the_model_and_the_others_get_its_result_or_its_lease()
-> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    for log in logs(folder.path()) {
        let model = Scripted::new([says("done"), says("twice")])?;
        let engine = Engine::new(model.clone());
        let starts = (0..4).map(|_| {
            let (log, engine) = (Arc::clone(&log), engine.clone());
            tokio::spawn(async move { chat(&log, &engine).await })
        });
        for started in futures_util::future::join_all(starts).await {
            match started.expect("a task") {
                Ok(result) => assert_eq!(result.text(), "done"),
                Err(error) => assert_eq!(error.reason(), "leased"),
            }
        }
        assert_eq!(model.model_calls().len(), 1);
    }
    Ok(())
}

#[tokio::test]
async fn another_input_under_the_same_id_is_refused_with_what_differs() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    for log in logs(folder.path()) {
        let engine = talker(1)?;
        let turns = |limit| Options::new().max_turns(limit);
        let call = |text: &str| engine.chat(text).record(&log).run_id("k").options(turns(3));
        call("go").await?;
        for (other, path) in [
            (call("stop"), "thread.messages.0.content"),
            (call("go").options(turns(4)), "about.options.max_turns"),
            (call("go").budget(Budget::new().max_turns(1)), "about.options.budget"),
        ] {
            let error = other.await.expect_err("another input");
            assert_eq!((error.reason(), &error.metadata()["run_id"]), ("run_exists", &json!("k")));
            assert_eq!(error.metadata()["diff"][0]["path"], path);
            assert!(error.to_string().contains(path), "{error}");
        }
        let step = engine.step("go").record(&log).run_id("k").options(turns(3)).await;
        assert_eq!(step.expect_err("another call").metadata()["diff"][0]["path"], "extent");
        let params = engine.clone().param("temperature", 0.5).chat("go").options(turns(3));
        let params = params.record(&log).run_id("k").await.expect_err("other params");
        assert_eq!(params.metadata()["diff"][0]["path"], "about.params.temperature");
        // Neither is a part of the input.
        let other = talker(1)?.model("other").tool(Tool::new("new", "", json!({})).manual());
        let other = other.chat("go").options(turns(3)).halt_when("test", |_| true).request_id("r");
        assert_eq!(other.record(&log).run_id("k").await?.text(), "said 0");
    }
    Ok(())
}

#[tokio::test]
async fn a_single_call_and_a_step_attach_as_well() -> Result<()> {
    let log = MemoryLog::new();
    let (engine, model, ran) = rolls(0)?;
    let step = || engine.step("go").record(&log).run_id("step");
    assert_eq!(step().await?, step().await?);
    let mut request = Request::from(Thread::from("go"));
    request.tools = vec![Tool::new("pick", "", json!({})).spec().clone()];
    let generate = |request: &Request| engine.generate(request.clone()).record(&log).run_id("one");
    assert_eq!(generate(&request).await?, generate(&request).await?);
    assert_eq!((model.model_calls().len(), ran.load(Ordering::Relaxed)), (2, 1));
    request.tools = vec![Tool::new("pick", "another", json!({})).spec().clone()];
    let error = generate(&request).await.expect_err("another tool of the request");
    assert_eq!(error.metadata()["diff"][0]["path"], "about.tools.1.description");
    Ok(())
}

#[tokio::test]
async fn a_run_that_its_provider_refused_is_continued_by_the_next_call() -> Result<()> {
    let log = MemoryLog::new();
    let down = json!([{"preflight_error": "authentication_failed"}]);
    let model = Scripted::new([down, says("fine")])?;
    let engine = Engine::new(model.clone());
    let refused = chat(&log, &engine).await.expect_err("a refusal");
    assert_eq!(refused.reason(), "authentication_failed");
    assert_eq!(chat(&log, &engine).await?.run_id.as_deref(), Some("k~2"));
    assert_eq!(chat(&log, &engine).await?.text(), "fine");
    assert_eq!(model.model_calls().len(), 2);
    Ok(())
}

#[tokio::test]
async fn an_id_that_no_run_can_have_is_refused() -> Result<()> {
    let log = MemoryLog::new();
    let engine = talker(3)?;
    let unrecorded = engine.chat("go").run_id("k").stream();
    assert_eq!(unrecorded.refusal().map(|error| error.reason()), Some("invalid_options"));
    for id in ["", &"x".repeat(300), MAINTENANCE] {
        let error = engine.chat("go").record(&log).run_id(id).await.expect_err("no such id");
        assert_eq!(error.reason(), "invalid_options", "{id}");
    }
    chat(&log, &engine).await?;
    Prune::before(i64::MAX).perform(&log, &Warrant::new("ann", "age", 0)).await?;
    assert_eq!(chat(&log, &engine).await.expect_err("a pruned run").reason(), "pruned");
    // A turn of a session is another call.
    let (session, _) = engine.start(Session::from("go")).record(&log).await?;
    let run = session.last_run.expect("a run").run_id;
    let error = engine.chat("go").record(&log).run_id(&*run).await.expect_err("a turn");
    assert_eq!(error.metadata()["diff"][0]["path"], "about.session");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_call_that_attaches_can_be_cancelled() -> Result<()> {
    let log = MemoryLog::new();
    let slow = json!([{"delay_ms": 60_000}, {"text": "late"}, {"finish": "stop"}]);
    let engine = Engine::new(Scripted::new([slow.clone(), slow])?);
    let mut dropped = engine.chat("go").record(&log).run_id("k").stream();
    let _ = tokio::time::timeout(Duration::from_secs(1), dropped.next()).await;
    drop(dropped);
    let mut attached = engine.chat("go").record(&log).run_id("k").stream();
    attached.cancel_handle().cancel();
    let events = testing::collect(attached).await?;
    let Some(Event::ChatCompleted { result }) = events.last() else {
        return Err(mynah::Error::invalid_option("test", "no_end"));
    };
    assert_eq!(result.halted_reason.as_str(), "cancelled");
    Ok(())
}

async fn chat(log: &(impl Log + Clone), engine: &Engine) -> Result<mynah::ChatResult> {
    engine.chat("go").record(log).run_id("k").await
}

/// An engine that rolls a die and is done, from one of its answers on, with its model and how often it rolled.
fn rolls(answered: usize) -> Result<(Engine, Scripted, Arc<AtomicUsize>)> {
    let call = json!([{"text": "I roll"}, {"tool_call": {"id": "c0", "name": "roll"}}, {"finish": "tool_calls"}]);
    let scripts = [call, json!([{"text": "do"}, {"text": "ne"}, {"finish": "stop"}])];
    let model = Scripted::new(scripts.into_iter().skip(answered))?;
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&ran);
    let roll = Tool::new("roll", "", json!({})).handler(move |_: Value, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        async { json!(6) }
    });
    Ok((Engine::new(model.clone()).tool(roll.idempotent(1)), model, ran))
}
