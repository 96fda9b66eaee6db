//! The configuration of a run: its log, its mode, and its observers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use mynah_data::{Budget, Error, ErrorKind, LogReason, ToolCall, ToolOutcome};
use mynah_log::{MemoryLog, Redact, VerifyStatus, Warrant, verify};
use mynah_step::{CallTool, Config, Context, RunMode, Tool, ToolContext};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::common::*;

#[tokio::test]
async fn a_configuration_that_lacks_something_is_refused() {
    let log = Arc::new(MemoryLog::new());
    let reason = |config: Config| Context::new(config).map(drop).map_err(|error| error.to_string());
    let unchecked = Tool::new("book", "", json!({"required": "people"}));
    for (config, why) in [
        (Config::new(&log, ""), "run_id"),
        (plain(&log).tools([unchecked]), r#"the schema of tool "book" cannot be used: /required"#),
        (plain(&log).mode(RunMode::Replay(Vec::new())), "mode"),
        (plain(&log).mode(RunMode::Resume(Vec::new())), "mode"),
    ] {
        let refused = reason(config).expect_err(why);
        assert!(refused.contains(why), "{refused}");
    }
    assert_eq!(reason(plain(&log)), Ok(()));
}

#[tokio::test]
async fn records_that_are_not_the_runs_own_or_were_changed_are_refused_before_anything_happens() {
    let log = Arc::new(MemoryLog::new());
    let done = perform(plain(&log), async |context: &Context| context.random().await).await;
    assert!(done.is_ok());
    let records = read(&log).await;
    let swapped = vec![records[0].clone(), records[2].clone(), records[1].clone()];
    for (id, records) in [("run-2", records.clone()), (RUN, swapped), (RUN, records[1..].to_vec())]
    {
        for mode in [RunMode::Replay(records.clone()), RunMode::Resume(records)] {
            let refused = Context::new(Config::new(&log, id).mode(mode)).map(drop);
            assert_eq!(refused.map_err(|error| error.reason()), Err("corrupt"));
        }
    }
    let ended = Context::new(plain(&log).mode(RunMode::Resume(records))).map(drop);
    assert_eq!(ended.map_err(|error| error.reason()), Err("sealed"));
}

#[tokio::test]
async fn a_run_begins_once_and_before_anything_else() {
    let log = Arc::new(MemoryLog::new());
    let context = Context::new(plain(&log)).expect("a run");
    let out_of_place = |done: Result<(), Error>| {
        let error = done.expect_err("it is out of place");
        let named = (&error.metadata()["field"], error.kind().type_name());
        assert_eq!(named, (&json!("fact"), "validation_error"), "{error}");
    };
    out_of_place(context.now().await.map(drop));
    out_of_place(end(&context).await);
    assert_eq!(begin(&context).await, Ok(()));
    out_of_place(begin(&context).await);
    assert!(context.now().await.is_ok());
    assert_eq!(end(&context).await, Ok(()));
    let expected = ["run_started", "side_effect", "completed", "sealed"];
    assert_eq!(kinds(&facts(&read(&log).await)), expected);
}

#[tokio::test]
async fn a_run_that_is_not_there_cannot_be_performed_again() {
    let config = || plain(&Arc::new(MemoryLog::new()));
    for missing in [config().resume().await.map(drop), config().replay().await.map(drop)] {
        let error = missing.expect_err("there is none");
        assert_eq!((error.reason(), &error.metadata()["run_id"]), ("run_not_found", &json!(RUN)));
    }
}

#[tokio::test]
async fn a_resumed_run_goes_on_in_its_chain_and_counts_its_turns_on() {
    let log = Arc::new(MemoryLog::new());
    let context = Context::new(plain(&log).adapter(plays([says(&["one"])]))).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    assert!(context.call_model(ask("1")).await.is_ok());
    assert_eq!(context.flush().await, Ok(()));
    drop(context);
    let resume =
        plain(&log).adapter(plays([says(&["two"])])).mode(RunMode::Resume(read(&log).await));
    let context = Context::new(resume).expect("it goes on");
    assert_eq!(begin(&context).await, Ok(()));
    assert_eq!(context.call_model(ask("1")).await.map(|answer| answer.turn), Ok(1));
    assert_eq!(context.call_model(ask("2")).await.map(|answer| answer.turn), Ok(2));
    assert_eq!(end(&context).await, Ok(()));
    let records = read(&log).await;
    let turn = ["turn_started", "assistant_completed"];
    let expected = [&["run_started"][..], &turn, &["resumed"], &turn, &["completed", "sealed"]];
    assert_eq!(kinds(&facts(&records)), expected.concat());
    assert_eq!(verify(RUN, &records).expect("it verifies").status, VerifyStatus::Verified);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_hangs_stops_nobody_for_longer_than_the_emit_timeout() {
    let limit = Duration::from_secs(3);
    let config = |after: usize| {
        let retried = Arc::new(AtomicU32::new(0));
        let flaky = tool("flaky", move |_| {
            let first = retried.fetch_add(1, Relaxed) == 0;
            async move { if first { ToolOutcome::transient("busy") } else { json!(1).into() } }
        });
        let config = plain(&Failing::new(after, true)).tools([flaky]).emit_timeout(limit);
        Context::new(config).expect("a run")
    };
    let unavailable = |done: Result<(), Error>| {
        assert_eq!(done.map_err(|error| error.reason()), Err("unavailable"));
    };
    let context = config(0);
    assert_eq!(begin(&context).await, Ok(()), "what need not be safe yet does not wait");
    let began = Instant::now();
    unavailable(end(&context).await);
    assert_eq!(began.elapsed(), limit);
    let context = config(0);
    assert_eq!(begin(&context).await, Ok(()));
    unavailable(context.flush().await);
    // The announcement of a second attempt waits too.
    let context = config(1);
    assert_eq!(begin(&context).await, Ok(()));
    let call = CallTool::from(call("c0", "flaky")).idempotent(2);
    unavailable(context.call_tool(call.backoff(|_| Duration::ZERO)).await.map(drop));
}

#[tokio::test(start_paused = true)]
async fn without_an_emit_timeout_a_log_may_take_as_long_as_it_likes() {
    let context = Context::new(plain(&Failing::new(0, true))).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    let day = Duration::from_secs(86_400);
    assert!(tokio::time::timeout(day, end(&context)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_slow_holds_up_whoever_records_more_than_may_wait() {
    let done = Arc::new(AtomicU32::new(0));
    let fill = || {
        let done = done.clone();
        tool("fill", move |context: ToolContext| {
            let done = done.clone();
            async move {
                let size = context.call.arguments.as_u64().unwrap_or(0) as usize;
                for _ in 0..5_000 {
                    let effect = async { Ok::<_, String>("x".repeat(size)) };
                    context.side_effect("fill", effect).await?;
                    done.fetch_add(1, Relaxed);
                }
                Ok::<_, Error>(json!(null))
            }
        })
        .timeout(Duration::from_secs(3_600))
    };
    for (size, most) in [(0, 1_024), (1 << 20, 4)] {
        done.store(0, Relaxed);
        // Nothing is written any more once the tool is announced.
        let context = Context::new(plain(&Failing::new(2, true)).tools([fill()])).expect("a run");
        assert_eq!(begin(&context).await, Ok(()));
        let filling = context.call_tool(ToolCall::new("c0", "fill", size.to_string()));
        assert!(tokio::time::timeout(Duration::from_secs(60), filling).await.is_err());
        // As many again may be on their way to the log.
        let done = done.load(Relaxed);
        assert!((most - 1..2 * most).contains(&done), "{done}");
    }
}

#[tokio::test]
async fn a_log_that_fails_ends_the_run_at_its_next_barrier_and_nothing_follows() {
    let ran = Arc::new(AtomicU32::new(0));
    let counted = ran.clone();
    let count = tool("count", move |_| {
        counted.fetch_add(1, Relaxed);
        async { json!(1) }
    });
    let log = Failing::new(1, false);
    let context = Context::new(plain(&log).tools([count])).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    assert_eq!(context.flush().await, Ok(()));
    let failed = context.call_tool(call("c0", "count")).await.map_err(|error| error.reason());
    assert_eq!(failed, Err("unusable"));
    assert_eq!(ran.load(Relaxed), 0, "a tool whose announcement is not safe does not run");
    assert_eq!(context.random().await.map_err(|error| error.reason()), Err("unusable"));
    assert_eq!(end(&context).await.map_err(|error| error.reason()), Err("unusable"));
    assert_eq!(kinds(&facts(&read(&log.log).await)), ["run_started"]);
}

#[tokio::test(start_paused = true)]
async fn every_call_append_and_passed_limit_is_told_once_and_nothing_of_a_replay() {
    let told = Arc::new(Told::default());
    let log = Arc::new(MemoryLog::new());
    let config = || {
        let mut broken = says(&["hal"]);
        broken.pop();
        let model = plays([whole([usage(7, 2)]), broken]);
        let fails = tool("fails", async |_| ToolOutcome::error("no"));
        plain(&log)
            .adapter(model)
            .tools([tool("t", async |_| json!(1)), fails])
            .metrics(told.clone())
    };
    let agent = async |context: &Context| {
        drop(context.call_model(ask("1")).await);
        drop(context.call_model(ask("2")).await);
        drop(context.call_tools([call("a", "t"), call("b", "fails"), call("c", "none")]).await);
        context.metrics().is_some()
    };
    assert_eq!(perform(config(), agent).await, Ok(true));
    let model = |failure: Value, tokens: [u64; 2]| json!({"model": "", "failure": failure, "tokens": tokens});
    let expected = [
        model(json!(null), [7, 2]),
        model(json!("network_error"), [0, 0]),
        json!({"tool": "t", "failure": null}),
        json!({"tool": "fails", "failure": "failed"}),
        json!({"tool": "none", "failure": "not_found"}),
    ];
    assert_eq!(told.calls(), expected);
    let all = told.0.lock().expect("nobody panicked").clone();
    let appended = all.iter().map(|told| &told["append"]).filter(|kind| !kind.is_null());
    let records = read(&log).await;
    let kinds = records.iter().map(|record| json!(record.kind()));
    assert_eq!(appended.cloned().collect::<Vec<_>>(), kinds.collect::<Vec<_>>());
    told.0.lock().expect("nobody panicked").clear();
    let again = config().mode(RunMode::Replay(read(&log).await));
    assert_eq!(perform(again, agent).await, Ok(false));
    assert_eq!(told.0.lock().expect("nobody panicked").len(), 0);
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_cancelled_dropped_or_over_budget_are_told_once_too() {
    let told = Arc::new(Told::default());
    let log = Arc::new(MemoryLog::new());
    let model = plays([Vec::new(), says(&["far too long for this"]), Vec::new()]);
    let slow = tool("slow", async |_| sleep(Duration::from_secs(9)).await);
    let config = plain(&log).adapter(model).tools([slow]).metrics(told.clone());
    let context = Context::new(config.budget(Budget::new().max_output_tokens(6))).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    let second = Duration::from_secs(1);
    assert!(tokio::time::timeout(second, context.call_model(ask("dropped"))).await.is_err());
    assert!(context.call_model(ask("long")).await.is_err());
    assert!(tokio::time::timeout(second, context.call_tool(call("a", "slow"))).await.is_err());
    let cancel = async {
        sleep(second).await;
        context.cancel();
    };
    assert!(tokio::join!(context.call_tool(call("b", "slow")), cancel).0.is_err());
    let model = |failure: &str| json!({"model": "", "failure": failure, "tokens": [0, 0]});
    let tool = json!({"tool": "slow", "failure": "cancelled"});
    let limit = json!({"limit": "output_tokens"});
    let expected = [model("cancelled"), model("budget_exceeded"), limit, tool.clone(), tool];
    assert_eq!(told.calls(), expected);
}

#[tokio::test]
async fn two_tools_of_one_name_are_refused_when_the_run_begins() {
    let tool = |name: &str| Tool::new(name, "", json!({})).handler(async |_, _| "ok");
    let config = Config::new(&MemoryLog::new(), "run").tools([tool("a"), tool("b")]);
    let error = Context::new(config.clone().tools([tool("a")])).expect_err("a refusal");
    assert!(error.to_string().contains("two tools have the name \"a\""), "{error}");
    assert!(Context::new(config).is_ok());
}

#[test]
fn every_operation_can_be_sent_to_another_thread() {
    fn is_send(_: impl Send) {}
    let log = Arc::new(MemoryLog::new());
    let context = Context::new(plain(&log)).expect("a run");
    is_send(context.call_model(ask("hi")));
    is_send(context.call_tools([call("c0", "t")]));
    is_send(context.now());
    is_send(context.side_effect("it", async { Ok::<u8, String>(1) }));
    is_send(context.flush());
    is_send(end(&context));
}

#[tokio::test]
async fn a_run_with_a_redacted_record_is_not_performed_again_and_the_error_names_it() {
    let log = Arc::new(MemoryLog::new());
    let context = Context::new(plain(&log)).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    assert!(context.random().await.is_ok());
    assert_eq!(context.flush().await, Ok(()));
    let mut records = read(&log).await;
    drop(context);
    let warrant = Warrant::new("ann", "she asked for it", 9);
    assert!(Redact::records(RUN, [2]).perform(&*log, &warrant).await.is_ok());
    for refused in [plain(&log).replay().await, plain(&log).resume().await] {
        let error = refused.map(drop).expect_err("a body is missing");
        assert_eq!(error.kind(), ErrorKind::Log(LogReason::Redacted), "{error}");
        assert_eq!(error.metadata()["seq"], 2);
    }
    // No tombstone says why.
    records[1] = records[1].clone().without_body();
    let error = Context::new(plain(&log).mode(RunMode::Replay(records))).map(drop);
    let error = error.expect_err("a body is missing");
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::Corrupt), "{error}");
}

#[tokio::test]
async fn a_failed_append_is_told_with_its_reason() {
    let told = Arc::new(Told::default());
    let config = plain(&Failing::new(0, false)).metrics(told.clone());
    let context = Context::new(config).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    assert!(context.flush().await.is_err());
    let told = told.0.lock().expect("nobody panicked").clone();
    assert_eq!(told, [json!({"append": "run_started", "failure": "unusable"})]);
}
