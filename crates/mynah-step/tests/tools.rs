//! Tool calls of a custom loop.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use mynah_data::{Approval, Error, ErrorKind, ToolCall, ToolOutcome, ToolReason};
use mynah_log::{Append, Fact, Kind, Log as _, MemoryLog, Resolution};
use mynah_step::{
    CallTool, Config, Context, HandlerExecutor, OnToolError, OnUncertain, RunMode, SystemWorld,
    Tool, ToolContext, ToolErrorDecision, ToolLimits, ToolResult, run_tool,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::common::*;

#[tokio::test]
async fn a_call_is_announced_run_and_told_with_its_turn_and_arguments() {
    let echo = || Tool::new("echo", "", json!({})).handler(async |arguments, _| arguments);
    let config = |log: &Arc<MemoryLog>| plain(log).tools([echo()]);
    let raw = r#"{"b": 1.0, "a": {"n": [1e2]}}"#;
    let (outcome, facts) = twice(config, async |context| {
        let call = CallTool::from(ToolCall::new("c0", "echo", raw)).turn(3);
        context.call_tool(call).await
    })
    .await;
    assert_eq!(outcome, Ok(ToolOutcome::Ok(json!({"b": 1.0, "a": {"n": [1e2]}}))));
    assert_eq!(kinds(&facts)[1..3], ["tool_scheduled", "tool_completed"]);
    let Fact::ToolScheduled { call_id, attempt: 1, call: Some(call) } = &facts[1] else {
        unreachable!("{:?}", facts[1])
    };
    assert_eq!((call_id.as_str(), call.turn, call.name.as_str()), ("c0", Some(3), "echo"));
    assert_eq!(call.arguments, raw, "the text of the arguments is kept");
}

#[tokio::test]
async fn arguments_that_cannot_be_checked_never_reach_the_tool() {
    let unchecked = Tool::new("book", "", json!({"required": "people"}))
        .handler(async |arguments, _| arguments);
    let context = ToolContext::new(call("c0", "book"), Arc::new(SystemWorld));
    let limits = ToolLimits::new(Duration::from_secs(1));
    let settled = run_tool(Arc::new(HandlerExecutor), unchecked, context, limits).await;
    let reason = settled.outcome.map_err(|error| error.reason());
    assert_eq!(reason, Err("invalid_arguments"));
}

#[tokio::test]
async fn a_call_without_an_id_gets_one_that_a_replay_keeps() {
    let config = |log: &Arc<MemoryLog>| {
        plain(log).tools([tool("id", async |c: ToolContext| c.call.id.clone())])
    };
    let (ids, _) =
        twice(config, async |context| context.call_tools([call("", "id"), call("", "id")]).await)
            .await;
    let ids = ids.expect("both ran");
    assert_ne!(ids[0].call_id, ids[1].call_id);
    for result in ids {
        assert_eq!(result.outcome, Ok(ToolOutcome::Ok(json!(result.call_id))));
    }
}

#[tokio::test]
async fn every_failure_is_recorded_with_its_reason_before_it_is_returned() {
    let panics =
        || tool("panics", async |_| if true { std::panic::panic_any("boom") } else { json!(1) });
    let fails = || tool("fails", async |_| ToolOutcome::error("out of ink"));
    let config = |log: &Arc<MemoryLog>| plain(log).tools([panics(), fails()]);
    let (outcomes, facts) = twice(config, async |context| {
        let mut outcomes = Vec::new();
        for name in ["panics", "fails", "missing"] {
            outcomes.push(context.call_tool(call(name, name)).await.map_err(|e| e.kind()));
        }
        outcomes
    })
    .await;
    let reasons = [ToolReason::HandlerRaised, ToolReason::Failed, ToolReason::NotFound];
    assert_eq!(outcomes, reasons.map(|reason| Err(ErrorKind::Tool(reason))));
    let told = facts.iter().filter_map(|fact| match fact {
        Fact::ToolFailed { error, resolution: Resolution::Continued, .. } => Some(error.kind()),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), reasons.map(ErrorKind::Tool));
}

#[tokio::test]
async fn arguments_that_are_not_one_json_value_are_refused_before_any_call_is_announced() {
    let log = Arc::new(MemoryLog::new());
    let context = Context::new(plain(&log).tools([tool("t", async |_| json!(1))])).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    for raw in ["{", "{} {}", "{\"a\": 1} trailing"] {
        let calls = [call("c0", "t"), ToolCall::new("c1", "t", raw)];
        let refused = context.call_tools(calls).await.map_err(|error| error.reason());
        assert_eq!(refused, Err("invalid_arguments"), "{raw}");
    }
    assert_eq!(context.flush().await, Ok(()));
    assert_eq!(kinds(&facts(&read(&log).await)), ["run_started"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_has_an_id_of_its_own_until_it_came_out() {
    let log = Arc::new(MemoryLog::new());
    let echo = tool("t", async |_| {
        sleep(Duration::from_millis(40)).await;
        json!(1)
    });
    let context = Context::new(plain(&log).tools([echo])).expect("a run");
    assert_eq!(begin(&context).await, Ok(()));
    let twins = context.call_tools([call("a", "t"), call("a", "t")]).await;
    assert_eq!(twins.map_err(|error| error.reason()), Err("invalid_options"));
    let both = tokio::join!(context.call_tool(call("a", "t")), context.call_tool(call("a", "t")));
    let done = ToolOutcome::Ok(json!(1));
    assert_eq!(both.0.as_ref(), Ok(&done));
    assert_eq!(both.1.map_err(|error| error.reason()), Err("invalid_options"));
    // Who came out lets go of it.
    assert_eq!(context.call_tool(call("a", "t")).await, Ok(done));
    let nameless = context.call_tools([call("", "t"), call("", "t")]).await.expect("they have ids");
    assert_ne!(nameless[0].call_id, nameless[1].call_id);
    assert_eq!(context.flush().await, Ok(()));
    let pairs = ["tool_scheduled", "tool_completed"];
    let at_once = ["tool_scheduled", "tool_scheduled", "tool_completed", "tool_completed"];
    let expected = [&["run_started"][..], &pairs, &pairs, &at_once].concat();
    assert_eq!(kinds(&facts(&read(&log).await)), expected);
}

#[tokio::test(start_paused = true)]
async fn a_transient_failure_of_an_idempotent_call_is_tried_again_and_every_try_is_a_pair() {
    let tries = Arc::new(AtomicU32::new(0));
    let config = |log: &Arc<MemoryLog>| plain(log).tools([flaky(&tries, 2)]);
    let (outcome, facts) = twice(config, async |context| {
        tries.store(0, Relaxed);
        let call = CallTool::from(call("c0", "flaky")).idempotent(5);
        context.call_tool(call).await
    })
    .await;
    assert_eq!(outcome, Ok(ToolOutcome::Ok(json!(3))));
    let told: Vec<_> = facts.iter().filter_map(attempt).collect();
    let expected = [
        ("tool_scheduled", 1),
        ("tool_failed", 1),
        ("tool_scheduled", 2),
        ("tool_failed", 2),
        ("tool_scheduled", 3),
        ("tool_completed", 3),
    ];
    assert_eq!(told, expected);
}

#[tokio::test(start_paused = true)]
async fn only_transient_failures_of_idempotent_calls_are_tried_again() {
    let tries = Arc::new(AtomicU32::new(0));
    for (max, expected) in [(None, 1), (Some(0), 1), (Some(1), 1), (Some(3), 3)] {
        let log = Arc::new(MemoryLog::new());
        tries.store(0, Relaxed);
        let config = plain(&log).tools([flaky(&tries, 9)]);
        let failed = perform(config, async |context: &Context| {
            let call = CallTool::from(call("c0", "flaky"));
            let call = max.into_iter().fold(call, CallTool::idempotent);
            context.call_tool(call).await.map_err(|error| error.reason())
        });
        assert_eq!(failed.await, Ok(Err("failed")));
        assert_eq!(tries.load(Relaxed), expected, "{max:?}");
    }
    let log = Arc::new(MemoryLog::new());
    let ran = Arc::new(AtomicU32::new(0));
    let counted = ran.clone();
    let fatal = tool("fatal", move |_| {
        counted.fetch_add(1, Relaxed);
        async { ToolOutcome::error("no") }
    });
    let both = perform(plain(&log).tools([fatal]), async |context: &Context| {
        for name in ["fatal", "missing"] {
            let call = CallTool::from(call(name, name)).idempotent(5);
            assert!(context.call_tool(call).await.is_err());
        }
    });
    assert_eq!(both.await, Ok(()));
    assert_eq!(ran.load(Relaxed), 1);
    let scheduled =
        facts(&read(&log).await).iter().filter(|f| f.kind() == Kind::ToolScheduled).count();
    assert_eq!(scheduled, 2);
}

#[tokio::test(start_paused = true)]
async fn the_pause_between_tries_is_the_callers_or_doubles_from_100_ms_with_a_quarter_of_chance() {
    let tries = Arc::new(AtomicU32::new(0));
    let took = async |given: Option<Duration>| {
        let log = Arc::new(MemoryLog::new());
        tries.store(0, Relaxed);
        let began = Instant::now();
        let done = perform(plain(&log).tools([flaky(&tries, 3)]), async |context: &Context| {
            let call = CallTool::from(call("c0", "flaky")).idempotent(9);
            let call = match given {
                Some(pause) => call.backoff(move |attempt| pause * attempt),
                None => call,
            };
            context.call_tool(call).await.is_ok()
        });
        assert_eq!(done.await, Ok(true));
        let live = began.elapsed();
        tries.store(0, Relaxed);
        let mode = RunMode::Replay(read(&log).await);
        let again =
            perform(plain(&log).tools([flaky(&tries, 3)]).mode(mode), async |context: &Context| {
                let call = CallTool::from(call("c0", "flaky")).idempotent(9);
                context.call_tool(call).await.is_ok()
            });
        assert_eq!(again.await, Ok(true));
        assert_eq!(began.elapsed(), live, "a replay does not pause");
        live
    };
    assert_eq!(took(Some(Duration::from_secs(7))).await, Duration::from_secs(7 * 6));
    let own = took(None).await.as_millis();
    assert!((700..=875 + 3).contains(&own), "{own}");
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_announced_in_order_told_as_it_is_done_and_answered_in_order() {
    let config = |log: &Arc<MemoryLog>| plain(log).tools([waits()]);
    let (results, facts) = twice(config, async |context| {
        let calls = [30, 10, 20].map(|ms| ToolCall::new(format!("c{ms}"), "waits", ms.to_string()));
        context.call_tools(calls).await
    })
    .await;
    let results = results.expect("all ran");
    let ids: Vec<_> = results.iter().map(|result| result.call_id.as_str()).collect();
    assert_eq!(ids, ["c30", "c10", "c20"]);
    let told: Vec<_> = facts.iter().filter_map(id).collect();
    let announced = ["c30", "c10", "c20"].map(|id| ("tool_scheduled", id.to_owned()));
    let done = ["c10", "c20", "c30"].map(|id| ("tool_completed", id.to_owned()));
    assert_eq!(told, [announced, done].concat());
}

#[tokio::test]
async fn no_calls_are_no_records() {
    let (results, facts) =
        twice(plain, async |context| context.call_tools([] as [ToolCall; 0]).await).await;
    assert_eq!(results, Ok(Vec::new()));
    assert_eq!(kinds(&facts), ["run_started", "completed", "sealed"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_does_not_end_its_siblings() {
    let fails = || tool("fails", async |_| ToolOutcome::error("no"));
    let config = |log: &Arc<MemoryLog>| plain(log).tools([waits(), fails()]);
    let (results, _) = twice(config, async |context| {
        let calls = [call("c0", "fails"), ToolCall::new("c1", "waits", "10"), call("c2", "none")];
        let results = context.call_tools(calls).await?;
        Ok::<_, Error>(results.into_iter().map(|result| result.outcome.is_ok()).collect::<Vec<_>>())
    })
    .await;
    assert_eq!(results, Ok(vec![false, true, false]));
}

#[tokio::test(start_paused = true)]
async fn no_more_tools_run_at_once_than_there_are_places_eight_unless_said() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let busy = || {
        let (now, most) = (now.clone(), most.clone());
        tool("busy", move |_| {
            let (now, most) = (now.clone(), most.clone());
            async move {
                most.fetch_max(now.fetch_add(1, Relaxed) + 1, Relaxed);
                sleep(Duration::from_millis(5)).await;
                now.fetch_sub(1, Relaxed);
            }
        })
    };
    for (places, expected) in [(None, 8), (Some(0), 8), (Some(1), 1), (Some(30), 20)] {
        most.store(0, Relaxed);
        let log = Arc::new(MemoryLog::new());
        let config = places.into_iter().fold(plain(&log).tools([busy()]), Config::max_concurrency);
        let done = perform(config, async |context: &Context| {
            context.call_tools((0..20).map(|n| call(&format!("c{n}"), "busy"))).await.is_ok()
        });
        assert_eq!(done.await, Ok(true));
        assert_eq!(most.load(Relaxed), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_with_side_effects_and_retries_replays_in_its_interleaving() {
    let tries = Arc::new(AtomicU32::new(0));
    let busy = || {
        Tool::new("busy", "", json!({})).handler(async |arguments, context: ToolContext| {
            let pause = Duration::from_millis(arguments.as_u64().unwrap_or(0));
            let mut seen = Vec::new();
            for _ in 0..3 {
                let effect = pause_for(pause);
                context.side_effect("pause", effect).await?;
                seen.push(context.random().await?);
            }
            Ok::<_, Error>(json!(seen))
        })
    };
    let config = |log: &Arc<MemoryLog>| plain(log).tools([busy(), flaky(&tries, 2)]);
    let (_, facts) = twice(config, async |context| {
        tries.store(0, Relaxed);
        let calls = [30, 70, 110].map(|ms| ToolCall::new(format!("c{ms}"), "busy", ms.to_string()));
        let retried = CallTool::from(call("r", "flaky")).idempotent(3);
        context.call_tools(calls.map(CallTool::from).into_iter().chain([retried])).await
    })
    .await;
    let order: Vec<_> = facts.iter().filter_map(id).map(|(_, id)| id).collect();
    let sorted = {
        let mut sorted = order.clone();
        sorted.sort();
        sorted
    };
    assert_ne!(order, sorted, "the calls were interleaved");
}

#[tokio::test(start_paused = true)]
async fn effects_at_once_inside_one_tool_replay_in_the_order_in_which_they_were_done() {
    let at_once = || {
        tool("at_once", async |context: ToolContext| {
            let after = |ms: u64| async move {
                sleep(Duration::from_millis(ms)).await;
                Ok::<_, String>(ms)
            };
            let (slow, fast, chance) = tokio::join!(
                context.side_effect("slow", after(20)),
                context.side_effect("fast", after(10)),
                context.random(),
            );
            Ok::<_, Error>(json!([slow?, fast?, chance?]))
        })
    };
    let config = |log: &Arc<MemoryLog>| plain(log).tools([at_once()]);
    let (_, facts) =
        twice(config, async |context| context.call_tool(call("c0", "at_once")).await).await;
    let names = facts.iter().filter_map(|fact| match fact {
        Fact::SideEffect { name, .. } => Some(name.as_str()),
        _ => None,
    });
    assert_eq!(names.collect::<Vec<_>>(), ["random", "fast", "slow"]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_inside_a_side_effect_and_a_timeout_at_one_are_the_tools_failures() {
    let bad = || {
        tool("bad", async |context: ToolContext| {
            context.random().await?;
            let effect =
                async { if true { std::panic::panic_any("boom") } else { Ok::<_, String>(1) } };
            context.side_effect("bad", effect).await.map(|one| json!(one))
        })
    };
    let slow = || {
        tool("slow", async |context: ToolContext| {
            context.random().await?;
            let effect = pause_for(Duration::from_secs(60));
            context.side_effect("slow", effect).await.map(|()| json!(1))
        })
        .timeout(Duration::from_secs(1))
    };
    let config = |log: &Arc<MemoryLog>| plain(log).tools([bad(), slow()]);
    let (results, _) = twice(config, async |context| {
        let results = context.call_tools([call("c0", "bad"), call("c1", "slow")]).await?;
        let reason = |result: mynah_step::ToolResult| result.outcome.map_err(|e| e.reason());
        Ok::<_, Error>(results.into_iter().map(reason).collect::<Vec<_>>())
    })
    .await;
    assert_eq!(results, Ok(vec![Err("handler_raised"), Err("timeout")]));
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_what_runs_as_cancelled_and_a_replay_ends_it_again() {
    let config = |log: &Arc<MemoryLog>| plain(log).tools([waits()]);
    let (outcomes, _) = twice(config, async |context| {
        let cancel = async {
            sleep(Duration::from_millis(50)).await;
            context.cancel();
        };
        let calls = [10, 90].map(|ms| ToolCall::new(format!("c{ms}"), "waits", ms.to_string()));
        let (results, ()) = tokio::join!(context.call_tools(calls), cancel);
        let later = context.call_tool(ToolCall::new("later", "waits", "10")).await;
        let first = results.expect("both have an outcome").into_iter().map(|result| result.outcome);
        first
            .chain([later])
            .map(|outcome| outcome.map(drop).map_err(|e| e.reason()))
            .collect::<Vec<_>>()
    })
    .await;
    assert_eq!(outcomes, [Ok(()), Err("cancelled"), Err("cancelled")]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_in_its_second_try_or_the_pause_before_it_ends_in_that_try() {
    // It fails at once, is retried after 10 s, and then does not end.
    for after in [5, 15] {
        let stuck = Tool::new("stuck", "", json!({})).handler(async |_, context: ToolContext| {
            if context.attempt() > 1 {
                std::future::pending::<()>().await;
            }
            ToolOutcome::transient("busy")
        });
        let config = |log: &Arc<MemoryLog>| plain(log).tools([stuck.clone()]);
        let (outcome, facts) = twice(config, async |context| {
            let cancel = async {
                sleep(Duration::from_secs(after)).await;
                context.cancel();
            };
            let call = CallTool::from(call("c0", "stuck")).idempotent(3);
            let call = call.backoff(|_| Duration::from_secs(10));
            let began = Instant::now();
            let outcome = tokio::join!(context.call_tool(call), cancel).0;
            assert_eq!(began.elapsed().as_secs(), after, "nobody waits for the rest of the pause");
            outcome.map_err(|error| error.reason())
        })
        .await;
        assert_eq!(outcome, Err("cancelled"));
        let told: Vec<_> = facts.iter().filter_map(attempt).collect();
        let pair = |attempt| [("tool_scheduled", attempt), ("tool_failed", attempt)];
        assert_eq!(told, [pair(1), pair(2)].concat(), "{after}");
    }
}

#[tokio::test(start_paused = true)]
async fn cancelling_a_replay_does_not_change_what_came_of_its_tools() {
    let log = Arc::new(MemoryLog::new());
    let agent = async |context: &Context| {
        if context.is_replaying() {
            context.cancel();
        }
        let calls = [10, 20].map(|ms| ToolCall::new(format!("c{ms}"), "waits", ms.to_string()));
        context.call_tools(calls).await
    };
    let live = perform(plain(&log).tools([waits()]), &agent).await.expect("it runs");
    let again = plain(&log).tools([waits()]).mode(RunMode::Replay(read(&log).await));
    assert_eq!(perform(again, &agent).await, Ok(live));
}

#[tokio::test]
async fn a_tool_that_answers_from_its_record_is_not_run_again() {
    for make in [Tool::recorded, Tool::manual] {
        let ran = Arc::new(AtomicU32::new(0));
        let once = || {
            let ran = ran.clone();
            make(tool("once", move |context: ToolContext| {
                ran.fetch_add(1, Relaxed);
                async move { context.random().await.map(|chance| json!(chance)) }
            }))
        };
        let config = |log: &Arc<MemoryLog>| plain(log).tools([once()]);
        let approved = || CallTool::from(call("c0", "once")).approved();
        let (done, _) = twice(config, async |context| context.call_tool(approved()).await).await;
        assert!(done.is_ok(), "{done:?}");
        assert_eq!(ran.load(Relaxed), 1);
    }
}

#[tokio::test]
async fn arguments_and_results_keep_the_order_of_their_members_in_a_replay() {
    let echo = Tool::new("echo", "", json!({})).handler(async |arguments, _| arguments);
    for echo in [echo.clone(), echo.recorded()] {
        let config = |log: &Arc<MemoryLog>| plain(log).tools([echo.clone()]);
        let (text, _) = twice(config, async |context| {
            let call = ToolCall::new("c0", "echo", r#"{"b": 1, "a": {"d": 2, "c": 3}}"#);
            match context.call_tool(call).await {
                Ok(ToolOutcome::Ok(value)) => value.to_string(),
                other => format!("{other:?}"),
            }
        })
        .await;
        assert_eq!(text, r#"{"b":1,"a":{"d":2,"c":3}}"#);
    }
}

#[tokio::test]
async fn a_tool_that_gives_something_else_is_a_mismatch_at_its_outcome() {
    let log = Arc::new(MemoryLog::new());
    let agent = async |context: &Context| context.call_tool(call("c0", "t")).await.map(drop);
    let live = perform(plain(&log).tools([tool("t", async |_| json!(1))]), &agent).await;
    assert_eq!(live, Ok(Ok(())));
    let other = plain(&log).tools([tool("t", async |_| json!(2))]);
    let error = perform(other.mode(RunMode::Replay(read(&log).await)), &agent).await;
    let error = error.and_then(|done| done).expect_err("it differs");
    assert_eq!((error.reason(), &error.metadata()["seq"]), ("payload", &json!(3)));
    assert!(
        error.to_string().contains("record 3: call c0 of t: tool_completed differs"),
        "{error}"
    );
    let path = &error.metadata()["diff"][0];
    assert_eq!((&path["recorded"], &path["produced"]), (&json!(1), &json!(2)), "{path}");
}

#[tokio::test]
async fn ten_thousand_effects_and_a_thousand_calls_at_once_cost_what_they_are() {
    let many = || {
        tool("many", async |context: ToolContext| {
            for _ in 0..10_000 {
                context.random().await?;
            }
            Ok::<_, Error>(json!(null))
        })
    };
    let config = |log: &Arc<MemoryLog>| {
        let config = plain(log).tools([
            many(),
            tool("one", async |context: ToolContext| {
                context.random().await.map(|chance| json!(chance))
            }),
        ]);
        config.max_concurrency(1_000)
    };
    let (_, facts) = twice(config, async |context| {
        context.call_tool(call("c", "many")).await?;
        context.call_tools((0..1_000).map(|n| call(&format!("c{n}"), "one"))).await
    })
    .await;
    assert_eq!(facts.len(), 1 + 10_002 + 3_000 + 2);
}

/// A tool that fails transiently this many times.
fn flaky(tries: &Arc<AtomicU32>, failures: u32) -> Tool {
    let tries = tries.clone();
    tool("flaky", move |_| {
        let attempt = tries.fetch_add(1, Relaxed) + 1;
        async move {
            if attempt <= failures { ToolOutcome::transient("busy") } else { json!(attempt).into() }
        }
    })
}

/// A tool that waits for a given time, as a side effect.
fn waits() -> Tool {
    Tool::new("waits", "", json!({})).handler(async |arguments, context: ToolContext| {
        let pause = Duration::from_millis(arguments.as_u64().unwrap_or(0));
        let effect = pause_for(pause);
        context.side_effect("wait", effect).await.map(|()| json!("done"))
    })
}

async fn pause_for(time: Duration) -> Result<(), String> {
    sleep(time).await;
    Ok(())
}

fn attempt(fact: &Fact) -> Option<(&'static str, u32)> {
    match fact {
        Fact::ToolScheduled { attempt, .. }
        | Fact::ToolCompleted { attempt, .. }
        | Fact::ToolFailed { attempt, .. } => Some((fact.kind().as_str(), *attempt)),
        _ => None,
    }
}

fn id(fact: &Fact) -> Option<(&'static str, String)> {
    match fact {
        Fact::ToolScheduled { call_id, .. }
        | Fact::ToolCompleted { call_id, .. }
        | Fact::ToolFailed { call_id, .. } => Some((fact.kind().as_str(), call_id.clone())),
        _ => None,
    }
}

#[tokio::test]
async fn the_policy_for_tool_errors_replaces_a_result_or_ends_the_calls() {
    let tools = || {
        [
            tool("fails", async |_| ToolOutcome::error("out of ink")),
            tool("works", async |_| json!("printed")),
        ]
    };
    let agent = async |context: &Context| {
        let results = context.call_tools([call("c0", "fails"), call("c1", "works")]).await?;
        Ok::<_, Error>(results.into_iter().map(|result| result.outcome).collect::<Vec<_>>())
    };
    let soften = || OnToolError::decide(|_, _| ToolErrorDecision::Continue(json!("later")));
    let config = |log: &Arc<MemoryLog>| plain(log).tools(tools()).on_tool_error(soften());
    let (outcomes, _) = twice(config, agent).await;
    let later = |text: &str| Ok(ToolOutcome::Ok(json!(text)));
    assert_eq!(outcomes, Ok(vec![later("later"), later("printed")]));

    let config = |log: &Arc<MemoryLog>| plain(log).tools(tools()).on_tool_error(OnToolError::Halt);
    let (outcomes, facts) = twice(config, agent).await;
    assert_eq!(outcomes.map_err(|error| error.to_string().contains("out of ink")), Err(true));
    let ended = kinds(&facts).into_iter().filter(|kind| kind.starts_with("tool_")).count();
    assert_eq!(ended, 4, "the other call ran to its end: {facts:?}");
}

#[tokio::test]
async fn tools_and_context_of_a_config_are_added_to_those_before() {
    let log = Arc::new(MemoryLog::new());
    let named = |name, text: &'static str| tool(name, move |_| async move { json!(text) });
    let config = plain(&log).tools([named("a", "a"), named("b", "b")]);
    let config = config.tools([named("c", "c")]);
    let outcomes = perform(config, async |context: &Context| {
        context.call_tools(["a", "b", "c"].map(|name| call(name, name))).await
    });
    let outcomes = outcomes.await.expect("a run").expect("calls");
    let outcomes = outcomes.into_iter().map(|result| result.outcome);
    let expected = ["a", "b", "c"].map(|text| Ok(ToolOutcome::Ok(json!(text))));
    assert_eq!(outcomes.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_call_that_needs_a_decision_runs_only_if_the_loop_says_that_it_was_approved() {
    let paid = Arc::new(AtomicUsize::new(0));
    let pay = |name: &str| {
        let paid = Arc::clone(&paid);
        tool(name, move |_| {
            let paid = paid.fetch_add(1, Relaxed) + 1;
            async move { json!(paid) }
        })
    };
    let tools = || [pay("asks").approval(Approval::Ask), pay("manual").manual()];
    let config = |log: &Arc<MemoryLog>| plain(log).tools(tools());
    for name in ["asks", "manual"] {
        paid.store(0, Relaxed);
        let ((refused, approved), facts) = twice(config, async |context| {
            let refused = context.call_tool(call("c0", name)).await;
            let approved = CallTool::from(call("c1", name)).approved();
            (refused, context.call_tool(approved).await)
        })
        .await;
        let error = refused.expect_err("it was not approved");
        assert_eq!(error.kind(), ErrorKind::Tool(ToolReason::Denied));
        let advice = "the call was not approved; decide about it in the loop, and make it with CallTool::approved";
        assert_eq!(error.message(), format!("tool error ({name}): denied: {advice}"));
        assert_eq!((approved, paid.load(Relaxed)), (Ok(ToolOutcome::Ok(json!(1))), 1));
        let refused = ["tool_scheduled", "tool_failed"];
        let expected = [refused, ["tool_scheduled", "tool_completed"]].concat();
        assert_eq!(kinds(&facts)[1..5], expected, "{name}");
    }
    let denied = |log: &Arc<MemoryLog>| plain(log).tools([pay("never").approval(Approval::Deny)]);
    let (denied, _) = twice(denied, async |context| {
        context.call_tool(CallTool::from(call("c0", "never")).approved()).await
    })
    .await;
    assert_eq!(denied.map_err(|error| error.reason()), Err("denied"));
    assert_eq!(paid.load(Relaxed), 1);
}

#[tokio::test]
async fn a_call_that_nobody_approved_has_not_run_in_a_process_that_died() {
    let ran = Arc::new(AtomicUsize::new(0));
    let config = |log: &Arc<MemoryLog>| {
        let ran = Arc::clone(&ran);
        let pay = tool("pay", move |_| {
            ran.fetch_add(1, Relaxed);
            async { json!(1) }
        });
        plain(log).tools([pay.approval(Approval::Ask)])
    };
    everywhere(config, async |context| {
        context.call_tool(call("c0", "pay")).await.map_err(|error| error.reason())
    })
    .await;
    assert_eq!(ran.load(Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_approved_in_one_process_and_is_not_in_the_next_is_a_difference() {
    let (log, ran) = (Arc::new(MemoryLog::new()), Arc::new(AtomicUsize::new(0)));
    let config = || {
        let ran = Arc::clone(&ran);
        let pay = tool("pay", move |_| {
            ran.fetch_add(1, Relaxed);
            std::future::pending::<Value>()
        });
        plain(&log).tools([pay.approval(Approval::Ask)])
    };
    let paying = perform(config(), async |context: &Context| {
        context.call_tool(CallTool::from(call("c0", "pay")).approved()).await
    });
    assert!(tokio::time::timeout(Duration::from_secs(20), paying).await.is_err(), "it hangs");
    let resumed = config().on_uncertain(OnUncertain::Rerun).resume().await.expect("it can go on");
    let context = Context::new(resumed).expect("it goes on");
    assert_eq!(begin(&context).await, Ok(()));
    let differs = context.call_tool(call("c0", "pay")).await.expect_err("nobody approved it");
    assert_eq!(differs.kind().to_string(), "replay_mismatch / payload");
    assert!(differs.message().contains("approved"), "{differs}");
    assert_eq!(ran.load(Relaxed), 1);
}

/// Two calls, of which the second waits for a place. The first hangs, if it is told to.
fn one_place(log: &Arc<MemoryLog>, hangs: bool, paid: &Arc<AtomicUsize>) -> Config {
    let work = tool("work", move |_| async move {
        if hangs {
            std::future::pending::<()>().await;
        }
        json!("done")
    });
    let paid = Arc::clone(paid);
    let pay = tool("pay", move |_| {
        let paid = paid.fetch_add(1, Relaxed) + 1;
        async move { json!(paid) }
    });
    plain(log).world(Clock::default()).tools([work.idempotent(1), pay]).max_concurrency(1)
}

fn work_and_pay() -> [ToolCall; 2] {
    [call("c0", "work"), call("c1", "pay")]
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_given_up_before_they_had_a_place_are_recorded_as_given_up() {
    let paid = Arc::new(AtomicUsize::new(0));
    let agent = async |context: &Context| {
        let calls = context.call_tools(work_and_pay());
        let in_time = tokio::time::timeout(Duration::from_secs(20), calls).await;
        (in_time.is_ok(), context.random().await)
    };
    let (done, facts) = twice(|log| one_place(log, true, &paid), agent).await;
    assert!(!done.0);
    let cut_off = |fact: &Fact| match fact {
        Fact::ToolFailed { call_id, resolution: Resolution::CutOff, .. } => Some(call_id.clone()),
        _ => None,
    };
    assert_eq!(facts.iter().filter_map(cut_off).collect::<Vec<_>>(), ["c0", "c1"]);
    everywhere(|log| one_place(log, true, &paid), async |context| agent(context).await.0).await;
    assert_eq!(paid.load(Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_dropped_before_it_had_a_place_has_not_run_and_runs_once() {
    let log = Arc::new(MemoryLog::new());
    let paid = Arc::new(AtomicUsize::new(0));
    let agent = async |context: &Context| context.call_tools(work_and_pay()).await;
    let mut config = one_place(&log, true, &paid);
    for _ in 0..2 {
        let run = perform(config, agent);
        assert!(tokio::time::timeout(Duration::from_secs(20), run).await.is_err(), "it hangs");
        config = one_place(&log, true, &paid).resume().await.expect("it goes on");
    }
    let resumed = one_place(&log, false, &paid).resume().await.expect("it goes on");
    let done = perform(resumed, agent).await.expect("a run");
    let outcomes = |done: &mynah_data::Result<Vec<ToolResult>>| {
        let done = done.as_ref().expect("both are known").iter();
        done.map(|result| result.outcome.clone()).collect::<Vec<_>>()
    };
    let value = |value: serde_json::Value| Ok(ToolOutcome::Ok(value));
    assert_eq!(outcomes(&done), [value(json!("done")), value(json!(1))]);
    let replayed = one_place(&log, false, &paid).replay().await.expect("records");
    // A tool runs again in a replay.
    paid.store(0, Relaxed);
    assert_eq!(perform(replayed, agent).await.expect("a replay"), done);

    // Once it may have run, its outcome is unknown.
    let records = read(&log).await;
    let scheduled = |fact: &Fact| matches!(fact, Fact::ToolScheduled { call_id, attempt, .. } if call_id == "c1" && *attempt > 1);
    let begun = facts(&records).iter().rposition(scheduled).expect("it was announced again");
    let log = Arc::new(MemoryLog::new());
    let kept = Append::new(RUN, None, records[..=begun].to_vec());
    log.append(kept).await.expect("records");
    paid.store(0, Relaxed);
    let resumed = one_place(&log, false, &paid).resume().await.and_then(Context::new);
    let context = resumed.expect("it goes on");
    begin(&context).await.expect("it is recorded");
    let unknown = agent(&context).await.expect_err("an unknown outcome");
    assert_eq!((&unknown.metadata()["uncertain"], paid.load(Relaxed)), (&json!(true), 0));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_between_two_attempts_is_given_up_again() {
    let busy = || tool("busy", async |_| ToolOutcome::transient("busy")).idempotent(3);
    let config = |log: &Arc<MemoryLog>| plain(log).world(Clock::default()).tools([busy()]);
    let (done, facts) = twice(config, async |context| {
        let pause = |_| Duration::from_secs(60);
        let called = context.call_tool(CallTool::from(call("c0", "busy")).backoff(pause));
        let in_time = tokio::time::timeout(Duration::from_secs(20), called).await;
        (in_time.is_ok(), context.random().await)
    })
    .await;
    assert!(!done.0);
    let expected = ["tool_scheduled", "tool_failed", "tool_failed", "side_effect"];
    assert_eq!(kinds(&facts)[1..5], expected);
}

#[test]
fn the_future_of_a_tools_function_is_held_once() {
    const ROOM: usize = 4 << 10;
    let tool = Tool::new("wait", "", json!({})).handler(async |_, _| {
        let room = [0_u8; ROOM];
        std::future::pending::<()>().await;
        room.len()
    });
    let context = ToolContext::new(ToolCall::new("c1", "wait", "{}"), Arc::new(SystemWorld));
    let running = tool.get_handler().unwrap().call(Value::Null, context);
    assert!(size_of_val(&*running) < 2 * ROOM, "{} bytes", size_of_val(&*running));
}
