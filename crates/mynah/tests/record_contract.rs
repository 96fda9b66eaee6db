//! What can go wrong with replay and resumption elsewhere, and does not here.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;
use mynah::{
    ChatResult, Engine, Error, ErrorKind, LogReason, Message, Metadata, OnUncertain, RetryPolicy,
    Session, Thread, Tool, ToolOutcome, Tools,
    log::{Append, Chain, Fact, Hash, Log as _, MemoryLog, Record},
    testing::{Scripted, assert_equal, assert_replays, crash_everywhere},
};
use serde_json::{Value, json};

use crate::common::*;

/// Arguments as models write them: spaces, keys in any order, nesting, integral floats, large numbers, signs of markup.
const RAW: &str =
    r#"{ "b" : 1.0, "a":{"z":[1e2,{"y":null}],"k":-0.0}, "n":9007199254740993, "h":"<&>" }"#;

#[tokio::test]
async fn arguments_as_models_write_them_replay_and_stay_as_they_are() -> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let engine = || Ok::<_, Error>(Engine::new(raw_script()?).tool(echo()));
    let live = engine()?.chat("go").record(&log).await?;
    let run = live.run_id.clone().unwrap_or_default();
    for tools in [Tools::All, Tools::Recorded] {
        let replayed = engine()?.replay(&log, &*run).replay_tools(tools).await?;
        assert_eq!(replayed.status, "equal");
    }
    let call = live.steps[0].response.tool_calls().next().map(|call| call.raw_arguments.clone());
    assert_eq!(call.as_deref(), Some(RAW));
    Ok(())
}

#[tokio::test]
async fn what_a_tool_gives_of_its_side_effect_replays_to_the_letter() -> mynah::Result<()> {
    let fetch = || {
        Tool::new("fetch", "", json!({})).handler(async |_, context| {
            let page = async { Ok::<_, Error>(json!({"title": "z", "body": {"y": 1, "x": 2}})) };
            context.side_effect("fetch", page).await
        })
    };
    let log = Arc::new(MemoryLog::new());
    let engine = || Engine::new(scripted([call("c0", "fetch"), says("done")])).tool(fetch());
    let run = engine().chat("go").record(&log).await?.run_id.unwrap_or_default();
    assert_eq!(engine().replay(&log, &*run).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn what_a_run_tells_has_the_same_text_live_resumed_and_replayed() -> mynah::Result<()> {
    fn unsorted() -> Value {
        json!({"z": {"y": 1, "b": 2}, "a": 3})
    }
    fn opts() -> Metadata {
        serde_json::from_value(unsorted()).unwrap_or_default()
    }
    let user =
        Message::user("go").with_metadata("z", json!({"y": 1, "b": 2})).with_metadata("a", 3);
    let log = Arc::new(MemoryLog::new());
    let gives = || Tool::new("gives", "", json!({})).handler(async |_, _| unsorted());
    let asks = || {
        Tool::new("asks", "", json!({}))
            .handler(async |_, _| ToolOutcome::ask_with("how many?", opts()))
    };
    let script = || [call("c0", "gives"), call("c1", "asks"), says("done")];
    let engine = |model: Scripted| Engine::new(model).tool(gives().idempotent(1)).tool(asks());
    let live = engine(scripted(script())).chat(user.clone()).record(&log).await?;
    let text = |result: &ChatResult| json!(result).to_string();
    let written = r#""z":{"y":1,"b":2},"a":3"#;
    assert!(text(&live).contains(written), "in the order in which the members were written");
    let content = live.steps[0].tool_results[0].text().into_owned();
    assert_eq!(content, unsorted().to_string(), "what the model reads is what the tool gave");
    let run = live.run_id.clone().unwrap_or_default();
    engine(scripted([])).replay(&log, &*run).await?;
    let check = crash_everywhere(|| engine(scripted(script())), user).may_wait();
    check.on_uncertain(OnUncertain::Rerun).await;
    Ok(())
}

#[tokio::test]
async fn what_the_model_is_asked_after_a_resumption_is_what_it_would_have_been_asked()
-> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let model = raw_script()?;
    let run = Engine::new(model.clone()).tool(idempotent()).chat("go").record(&log).await?;
    let run = run.run_id.unwrap_or_default();
    let asked = model.requests().pop().map(|request| request.messages);
    for kind in ["assistant_completed", "tool_scheduled", "tool_completed", "turn_started"] {
        let cut = cut_after(&log, &run, kind).await?;
        let model = match kind {
            // Nothing was answered yet.
            "turn_started" => raw_script()?,
            _ => scripted([says("done")]),
        };
        Engine::new(model.clone()).tool(idempotent()).resume(&cut, &*run).await?;
        // Arguments to the letter, reasoning with its signature, results right after their calls.
        assert_eq!(model.requests().pop().map(|request| request.messages), asked, "{kind}");
    }
    Ok(())
}

#[tokio::test]
async fn a_run_that_ended_badly_replays_and_that_is_a_success() -> mynah::Result<()> {
    for scripts in [
        vec![json!([{"text": "hal"}, {"disconnect": true}])],
        vec![json!([{"text": "hal"}, {"error": "overloaded"}])],
        vec![call("c0", "echo"), json!([{"preflight_error": "invalid_request"}])],
        vec![call("c0", "echo"), json!([{"text": "hal"}, {"error": "rate_limited"}])],
        vec![call("c0", "nobody")],
    ] {
        let log = Arc::new(MemoryLog::new());
        let engine =
            || Engine::new(scripted(scripts.clone())).retry(RetryPolicy::never()).tool(echo());
        let live = engine().chat("go").record(&log).await?;
        assert_eq!(live.halted_reason.as_str(), "error", "{scripts:?}");
        let run = live.run_id.unwrap_or_default();
        assert_eq!(engine().replay(&log, &*run).await?.status, "equal", "{scripts:?}");
    }
    Ok(())
}

#[tokio::test]
async fn an_assertion_sees_other_instructions_and_tells_where() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let engine = Engine::new(Scripted::new([says("hi")])?);
    let thread = Thread::new().with_system("Be brief.").with_user("hello");
    let run = engine.chat(thread).record(&log).await?.run_id.unwrap_or_default();
    assert_replays(&engine, &log, &run).await;
    assert_equal(engine.replay(&log, &*run).system("Be brief.")).await;
    let changed = assert_equal(engine.replay(&log, &*run).system("Be kind."));
    let panic = AssertUnwindSafe(changed).catch_unwind().await.expect_err("it differs");
    let told = panic.downcast_ref::<String>().expect("text");
    for part in [file!(), "thread.messages.0.content", "Be brief.", "Be kind."] {
        assert!(told.contains(part), "{told}");
    }
    Ok(())
}

#[tokio::test]
async fn other_instructions_of_a_session_differ_in_a_later_turn_by_themselves() -> mynah::Result<()>
{
    let log = MemoryLog::new();
    let engine = Engine::new(Scripted::new([says("hi"), says("bye")])?);
    let thread = Thread::new().with_system("Be brief.").with_user("hello");
    let (session, _) = engine.start(Session::from(thread)).record(&log).await?;
    let (_, result) = engine.reply(&session, "so long").record(&log).await?;
    let run = result.run_id.unwrap_or_default();
    assert_equal(engine.replay(&log, &*run).system("Be brief.")).await;
    let told = engine.replay(&log, &*run).system("Be kind.").await.expect_err("it differs");
    let path = "thread.messages.0.content";
    let diff = json!([{"path": path, "recorded": "Be brief.", "produced": "Be kind."}]);
    assert_eq!((&told.metadata()["seq"], &told.metadata()["diff"]), (&json!(1), &diff));
    Ok(())
}

#[tokio::test]
async fn a_tool_that_gives_up_by_itself_fails_and_the_run_goes_on() -> mynah::Result<()> {
    let gives_up = Tool::new("slow", "", json!({})).handler(async |_, _| {
        let never = std::future::pending::<()>();
        let waited = tokio::time::timeout(std::time::Duration::from_millis(1), never).await;
        waited.map_err(|elapsed| ToolOutcome::error(elapsed.to_string())).err().unwrap_or(().into())
    });
    let log = Arc::new(MemoryLog::new());
    let engine = Engine::new(scripted([call("c0", "slow"), says("then not")])).tool(gives_up);
    let result = engine.chat("go").record(&log).await?;
    assert_eq!((result.halted_reason.as_str(), &*result.text()), ("completed", "then not"));
    assert!(result.steps[0].tool_results[0].text().contains("error"));
    Ok(())
}

#[tokio::test]
async fn a_record_with_a_member_of_a_newer_version_is_too_new_for_every_operation()
-> mynah::Result<()> {
    let engine = || Engine::new(scripted([says("done")]));
    let log = Arc::new(MemoryLog::new());
    let run = engine().chat("go").record(&log).await?.run_id.unwrap_or_default();
    let mut records = read(&log, &run).await;
    records.truncate(2);
    let payload = &records[1].body().expect("a body").payload;
    let mut fact: Value = mynah::log::cbor::from_slice(payload).expect("CBOR");
    fact["turn_started"]["mood"] = json!("good");
    records[1] = holding(&records[1], mynah::log::cbor::to_vec(&fact).expect("CBOR"));
    let newer = Arc::new(MemoryLog::new());
    newer.append(Append::new(&*run, None, records)).await?;
    let errors = [
        engine().replay(&newer, &*run).await.map(drop),
        mynah::replay_run(&newer, &*run).await.map(drop),
        engine().resume(&newer, &*run).await.map(drop),
        mynah::fork_run(&newer, &*run, 2).await.map(drop),
    ];
    for error in errors.map(|refused| refused.expect_err("a member that nobody knows")) {
        assert_eq!(error.kind(), ErrorKind::Log(LogReason::TooNew), "{error}");
        assert_eq!(error.metadata()["seq"], 2);
        assert!(error.to_string().contains("does not know the member \"mood\""), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_run_of_a_loop_that_behaves_otherwise_is_too_new_to_go_on_or_replay() -> mynah::Result<()>
{
    let engine = || Engine::new(scripted([says("done")]));
    let log = Arc::new(MemoryLog::new());
    let run = engine().chat("go").record(&log).await?.run_id.unwrap_or_default();
    let first = read(&log, &run).await[0].fact().expect("a fact").expect("a body");
    let Fact::RunStarted { thread, extent, about: Some(mut about) } = first else {
        panic!("not a beginning: {first:?}");
    };
    assert_eq!(about.behaviour, mynah::log::BEHAVIOUR);
    about.behaviour += 1;
    let first = Fact::RunStarted { thread, extent, about: Some(about) };
    let first = Chain::new(&*run).append(0, [7; 16], &first)?;
    let newer = Arc::new(MemoryLog::new());
    newer.append(Append::new(&*run, None, vec![first])).await?;
    for refused in [
        engine().replay(&newer, &*run).await.map(drop),
        mynah::replay_run(&newer, &*run).await.map(drop),
        engine().resume(&newer, &*run).await.map(drop),
    ] {
        let error = refused.expect_err("another behaviour");
        assert_eq!(error.kind(), ErrorKind::Log(LogReason::TooNew), "{error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_payload_that_says_the_same_in_other_bytes_is_corrupt() -> mynah::Result<()> {
    let engine = || Engine::new(scripted([says("done")]));
    let log = Arc::new(MemoryLog::new());
    let run = engine().chat("go").record(&log).await?.run_id.unwrap_or_default();
    let mut records = read(&log, &run).await;
    records.truncate(2);
    records[1] = shouted(&records[1]);
    let other = Arc::new(MemoryLog::new());
    other.append(Append::new(&*run, None, records)).await?;
    let errors = [
        engine().replay(&other, &*run).await.map(drop),
        engine().resume(&other, &*run).await.map(drop),
        mynah::fork_run(&other, &*run, 2).await.map(drop),
    ];
    for error in errors.map(|refused| refused.expect_err("capital letters in a digest")) {
        assert_eq!(error.kind(), ErrorKind::Log(LogReason::Corrupt), "{error}");
        let what = "payload: expected 64 hexadecimal digits, in lower case at byte 94";
        assert_eq!(error.metadata()["what"], what);
        assert_eq!(error.metadata()["seq"], 2);
    }
    Ok(())
}

/// A record of a turn's start whose digest is written in capital letters, and all else is right.
fn shouted(record: &Record) -> Record {
    let mut payload = record.body().expect("a body").payload.to_vec();
    let digest = payload.windows(64).position(|text| text.iter().all(u8::is_ascii_hexdigit));
    let digest = digest.expect("a digest");
    payload[digest..digest + 64].make_ascii_uppercase();
    holding(record, payload)
}

/// The same record with another payload, and the commitment to that.
fn holding(record: &Record, payload: Vec<u8>) -> Record {
    let mut body = record.body().expect("a body").clone();
    body.payload = payload.into();
    let old = record.envelope().body.0;
    let new = Hash::of(&[b"mynah record body 1\n", &body.salt, &body.payload]).0;
    let mut envelope = record.envelope_bytes().to_vec();
    let place = envelope.windows(32).position(|bytes| bytes == old).expect("the commitment");
    envelope[place..place + 32].copy_from_slice(&new);
    Record::from_parts(envelope, Some(body)).expect("a record")
}

fn raw_script() -> mynah::Result<Scripted> {
    let call = json!({"tool_call": {"id": "c0", "name": "echo", "raw_arguments": RAW}});
    let thought = json!({"reasoning": "hm", "signature": "s1"});
    Scripted::new([json!([thought, call, {"finish": "tool_calls"}]), says("done")])
}

fn idempotent() -> Tool {
    echo().idempotent(1)
}

/// A log with a run that ended without its end, right after its first record of this kind.
async fn cut_after(log: &Arc<MemoryLog>, run: &str, kind: &str) -> mynah::Result<Arc<MemoryLog>> {
    let mut records = read(log, run).await;
    let end = records.iter().position(|record| record.kind().as_str() == kind);
    records.truncate(end.map_or(0, |index| index + 1));
    let cut = Arc::new(MemoryLog::new());
    cut.append(Append::new(run, None, records)).await?;
    Ok(cut)
}

async fn read(log: &Arc<MemoryLog>, run: &str) -> Vec<Record> {
    log.read(run, 1, 1000).await.unwrap_or_default()
}
