//! A custom loop as one run: how it begins and ends, continues from a checkpoint, and gives calls
//! up.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::Poll,
    time::Duration,
};

use futures_util::future::{join, join_all};
use mynah_data::{Error, HaltReason, Message, Result, ToolCall, ToolReason};
use mynah_log::{Append, Fact, Interruption, Kind, Log, MAX_PAYLOAD, MemoryLog, Resolution};
use mynah_step::{Config, Context, LEASE, Tool};
use serde_json::json;

use crate::common::{
    self, RUN, Slow, begin, call, die, everywhere, facts, kinds, plain, read, tool, twice,
};

type Shared = Arc<MemoryLog>;

#[tokio::test]
async fn a_loop_that_returns_completes_its_run_and_one_that_fails_fails_it() -> Result<()> {
    for (fails, expected) in [(false, "completed"), (true, "failed")] {
        let log = Shared::default();
        let agent = async |context: &Context| {
            context
                .run("go", async |cx| {
                    let drawn = cx.random().await?;
                    if fails { Err(Error::tool(ToolReason::Failed)) } else { Ok(drawn) }
                })
                .await
        };
        let live = agent(&Context::new(plain(&log))?).await;
        let recorded = facts(&read(&log).await);
        assert_eq!(kinds(&recorded), ["run_started", "side_effect", expected, "sealed"]);
        let again = agent(&Context::new(plain(&log).replay().await?)?).await;
        assert_eq!(again, live);
        let failed_run = live.err().and_then(|error| error.run_id());
        assert_eq!(failed_run.is_some(), fails);
    }
    Ok(())
}

#[tokio::test]
async fn a_cancelled_loop_ends_its_run_as_cancelled() -> Result<()> {
    let log = Shared::default();
    let wait = Tool::new("wait", "", json!({}))
        .handler(async |_, _| std::future::pending::<serde_json::Value>().await);
    let context = Context::new(plain(&log).tools([wait]))?;
    let cancel = async {
        tokio::task::yield_now().await;
        context.cancel();
    };
    let run = context
        .run("go", async |cx| cx.call_tool(ToolCall::new("c0", "wait", "{}")).await.map(drop));
    let (done, ()) = tokio::join!(run, cancel);
    assert_eq!(done.map_err(|error| error.reason()), Err("cancelled"));
    let recorded = facts(&read(&log).await);
    let Some(Fact::Cancelled { end, .. }) = recorded.iter().rev().nth(1) else {
        panic!("{:?}", kinds(&recorded))
    };
    assert_eq!(end.reason, HaltReason::Cancelled);
    Ok(())
}

/// Counts to three, with an effect for each number. Returns how often it did something.
async fn count(config: Config, done: &AtomicU32) -> Result<u32> {
    Context::new(config)?
        .run("count", async |cx| {
            let mut counted: u32 = cx.resume_point()?.unwrap_or(0);
            while counted < 3 {
                let step = async {
                    done.fetch_add(1, Relaxed);
                    Ok::<_, Error>(counted + 1)
                };
                let next = cx.side_effect("step", step).await?;
                counted = cx.checkpoint(next).await?;
            }
            Ok(counted)
        })
        .await
}

#[tokio::test]
async fn a_loop_that_says_where_it_is_continues_there_after_any_record() -> Result<()> {
    let (whole, done) = (Shared::default(), AtomicU32::new(0));
    assert_eq!(count(plain(&whole), &done).await, Ok(3));
    let records = read(&whole).await;
    for kept in 1..records.len() - 1 {
        let log = Shared::default();
        log.append(Append::new(common::RUN, None, records[..kept].to_vec())).await?;
        done.store(0, Relaxed);
        assert_eq!(count(plain(&log).resume().await?, &done).await, Ok(3), "after {kept}");
        let recorded =
            kinds(&facts(&records[..kept])).iter().filter(|kind| **kind == "side_effect").count();
        // Each number has two records: its effect, and the checkpoint.
        assert_eq!(done.load(Relaxed), 3 - recorded.div_ceil(2) as u32, "after {kept}");
        assert_eq!(count(plain(&log).replay().await?, &done).await, Ok(3), "after {kept}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_effect_that_is_given_up_before_a_checkpoint_does_not_count_after_it() -> Result<()> {
    let log = Shared::default();
    let agent = async |config: Config, hangs: bool| {
        let context = Context::new(config)?;
        let run = context.run("go", async |cx| {
            if cx.resume_point::<u32>()?.is_none() {
                let never = cx.side_effect("fetch", std::future::pending::<Result<u32>>());
                let moment = Duration::from_millis(20);
                assert!(tokio::time::timeout(moment, never).await.is_err());
                cx.checkpoint(1_u32).await?;
            }
            let fetched = cx.side_effect("fetch", async { Ok::<_, Error>(7) }).await?;
            if hangs {
                std::future::pending::<()>().await;
            }
            Ok(fetched)
        });
        let moment = tokio::time::timeout(LEASE, run).await;
        moment.unwrap_or_else(|_| Err(Error::tool(ToolReason::Timeout)))
    };
    let dropped = agent(plain(&log), true).await;
    assert_eq!(dropped.map_err(|error| error.reason()), Err("timeout"));
    assert_eq!(agent(plain(&log).resume().await?, false).await, Ok(7));
    assert_eq!(agent(plain(&log).replay().await?, false).await, Ok(7));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_call_that_its_caller_gives_up_is_recorded_as_cancelled_and_given_up_again() -> Result<()>
{
    let log = Shared::default();
    let config = || {
        let wait = Tool::new("wait", "", json!({})).handler(async |_, context| {
            let drawn = context.random().await?;
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok::<_, Error>(json!(drawn))
        });
        plain(&log).world(common::Clock::default()).tools([wait])
    };
    let agent = async |context: &Context| {
        context
            .run("go", async |cx| {
                let call = cx.call_tool(ToolCall::new("c0", "wait", "{}"));
                let in_time = tokio::time::timeout(Duration::from_secs(20), call).await;
                Ok((in_time.is_ok(), cx.random().await?))
            })
            .await
    };
    let live = agent(&Context::new(config())?).await?;
    assert!(!live.0);
    let recorded = facts(&read(&log).await);
    let stopped = recorded.iter().find_map(|fact| match fact {
        Fact::ToolFailed { call_id, error, resolution, .. } => Some((call_id, error, resolution)),
        _ => None,
    });
    let (call, error, resolution) = stopped.expect("the outcome of the call");
    assert_eq!((call.as_str(), resolution), ("c0", &Resolution::CutOff));
    assert_eq!(error.message(), "tool error (wait): cancelled: its caller gave it up");
    assert_eq!(agent(&Context::new(config().replay().await?)?).await?, live);
    Ok(())
}

#[tokio::test]
async fn what_a_loop_took_from_the_world_is_with_the_log_when_it_has_it() -> Result<()> {
    let log = Shared::default();
    let context = Context::new(plain(&log))?;
    let run = context.run("go", async |cx| {
        cx.now().await?;
        assert_eq!(read(&log).await.len(), 2, "now");
        cx.side_effect("effect", async { Ok::<_, Error>(1) }).await?;
        assert_eq!(read(&log).await.len(), 3, "an effect");
        Ok(())
    });
    run.await
}

#[tokio::test]
async fn a_durable_side_effect_is_done_when_the_log_says_that_it_has_it() -> Result<()> {
    let log = Slow::default();
    let context = Context::new(plain(&log))?;
    // The run is in the log before it does anything.
    log.answers.add_permits(1);
    common::begin(&context).await?;
    let one = || async { Ok::<_, Error>(1) };
    assert_eq!(context.side_effect("effect", one()).await, Ok(1), "the log was given it");
    let mut durable = Box::pin(context.durable_side_effect("durable", one()));
    let is_done = poll_fn(|cx| Poll::Ready(durable.as_mut().poll(cx).is_ready()));
    assert!(!is_done.await, "the log has not answered");
    assert_eq!((log.given.load(Relaxed), log.answers.available_permits()), (3, 0));
    log.answers.add_permits(2);
    assert_eq!(durable.await, Ok(1));
    Ok(())
}

#[tokio::test]
async fn the_durations_of_calls_and_of_the_run_are_recorded_and_the_same_in_a_replay() -> Result<()>
{
    let log = Shared::default();
    let nap = || {
        Tool::new("nap", "", json!({})).handler(async |_, _| {
            tokio::time::sleep(Duration::from_millis(30)).await;
            json!(1)
        })
    };
    let agent = async |context: &Context| {
        context
            .run("go", async |cx| cx.call_tool(ToolCall::new("c0", "nap", "{}")).await.map(drop))
            .await
    };
    agent(&Context::new(plain(&log).tools([nap()]))?).await?;
    let recorded = facts(&read(&log).await);
    for fact in &recorded[2..4] {
        assert!(fact.duration_ms().is_some_and(|took| took >= 30), "{fact:?}");
    }
    assert_eq!(recorded[3].kind(), Kind::Completed);
    agent(&Context::new(plain(&log).tools([nap()]).replay().await?)?).await
}

/// Draws lots under two names, in an order that the caller chooses.
async fn draw(context: &Context, names: [&str; 2]) -> Result<()> {
    context
        .run("draw", async |cx| {
            for name in names {
                cx.side_effect(name, async { Ok::<_, Error>(1) }).await?;
            }
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_sequential_loop_that_differs_is_told_at_once() -> Result<()> {
    let log = Shared::default();
    draw(&Context::new(plain(&log))?, ["a", "b"]).await?;
    let context = Context::new(plain(&log).replay().await?)?;
    let told = tokio::time::timeout(Duration::from_secs(5), draw(&context, ["b", "a"])).await;
    let error = told.expect("it need not be waited for").expect_err("the order differs");
    assert_eq!(error.metadata()["seq"], 2);
    Ok(())
}

#[tokio::test]
async fn a_loop_that_is_dropped_in_a_tool_is_resumed_and_its_call_made_again() -> Result<()> {
    let log = Shared::default();
    let config = |hangs: bool| {
        let work = Tool::new("work", "", json!({})).idempotent(1).handler(move |_, _| async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            json!("done")
        });
        plain(&log).tools([work])
    };
    let agent = async |context: &Context| {
        context
            .run("go", async |cx| {
                let outcome = cx.call_tool(ToolCall::new("c0", "work", "{}")).await?;
                Ok((outcome, cx.random().await?))
            })
            .await
    };
    for _ in 0..2 {
        let config = match log.head(common::RUN).await? {
            None => config(true),
            Some(_) => config(true).resume().await?,
        };
        let context = Context::new(config)?;
        let moment = Duration::from_millis(50);
        assert!(tokio::time::timeout(moment, agent(&context)).await.is_err(), "it hangs");
    }
    let resumed = Context::new(config(false).resume().await?)?;
    let done = tokio::time::timeout(Duration::from_secs(8), agent(&resumed)).await;
    let done = done.expect("it does not hang")?;
    assert_eq!(done.0, mynah_data::ToolOutcome::Ok(json!("done")));
    assert_eq!(agent(&Context::new(config(false).replay().await?)?).await?, done);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_and_ended_from_outside_replays_as_cancelled() -> Result<()> {
    let second = Duration::from_secs(1);
    for dropped_in in ["a tool", "a tool and a model call", "an effect", "a sleep"] {
        let log = Shared::default();
        let config = || {
            let hang = Tool::new("hang", "", json!({}))
                .handler(async |_, _| std::future::pending::<()>().await);
            plain(&log).adapter(common::plays([Vec::new()])).tools([hang])
        };
        let agent = async |config: Config| {
            let context = Context::new(config)?;
            let run = context.run("go", async |cx| {
                let call = cx.call_tool(ToolCall::new("c0", "hang", "{}"));
                match dropped_in {
                    "a tool" => call.await.map(drop),
                    "an effect" => {
                        cx.side_effect("hang", std::future::pending::<Result<_>>()).await
                    }
                    "a sleep" => cx.sleep(60 * second).await,
                    _ => join(cx.call_model(common::ask("hi")), call).await.0.map(drop),
                }
            });
            run.await
        };
        assert!(tokio::time::timeout(second, agent(config())).await.is_err(), "{dropped_in}");
        common::end_from_outside(&log).await;
        let replayed = agent(config().replay().await?).await;
        assert_eq!(replayed.map_err(|error| error.reason()), Err("cancelled"), "{dropped_in}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_before_its_run_ends_as_cancelled_is_given_up_again() -> Result<()>
{
    let log = Shared::default();
    let agent = async |config: Config| {
        let hang = Tool::new("hang", "", json!({}))
            .handler(async |_, _| std::future::pending::<()>().await);
        let context = Context::new(config.world(common::Clock::default()).tools([hang]))?;
        let run = context.run("go", async |cx| {
            let call = cx.call_tool(ToolCall::new("c0", "hang", "{}"));
            let given_up = tokio::time::timeout(Duration::from_secs(20), call).await;
            given_up.unwrap_or_else(|_| Err(Error::tool(ToolReason::Cancelled))).map(drop)
        });
        run.await
    };
    let live = agent(plain(&log)).await;
    let recorded = kinds(&facts(&read(&log).await)).join(" ");
    assert_eq!(recorded, "run_started tool_scheduled tool_failed cancelled sealed");
    assert_eq!(agent(plain(&log).replay().await?).await, live);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_does_not_give_up_any_more_what_it_gave_up_is_told() -> Result<()> {
    let log = Shared::default();
    let agent = async |config: Config, limit: Option<Duration>| {
        let hang = Tool::new("hang", "", json!({}))
            .handler(async |_, _| std::future::pending::<()>().await);
        let context = Context::new(config.world(common::Clock::default()).tools([hang]))?;
        let run = context.run("go", async |cx| {
            // In a replay, the work takes no time, and the limit is reached as late as it was.
            let both = async {
                let work = async {
                    tokio::time::sleep(Duration::from_secs(50)).await;
                    Ok::<_, Error>(())
                };
                cx.side_effect("work", work).await?;
                cx.call_tool(ToolCall::new("c0", "hang", "{}")).await
            };
            let in_time = match limit {
                Some(limit) => tokio::time::timeout(limit, both).await.is_ok(),
                None => both.await.is_ok(),
            };
            cx.side_effect("then", async { Ok::<_, Error>(in_time) }).await
        });
        run.await
    };
    let minute = Some(Duration::from_secs(60));
    assert_eq!(agent(plain(&log), minute).await, Ok(false));
    assert_eq!(agent(plain(&log).replay().await?, minute).await, Ok(false));
    let told = agent(plain(&log).replay().await?, None).await.expect_err("it waits on");
    assert!(told.to_string().contains("call c0 of hang: expected tool_failed"), "{told}");
    Ok(())
}

#[tokio::test]
async fn nothing_is_done_before_a_run_begins_or_after_it_ended() -> Result<()> {
    let (log, done) = (Shared::default(), AtomicU32::new(0));
    let context = Context::new(plain(&log))?;
    let act = async || {
        let effect = async {
            done.fetch_add(1, Relaxed);
            Ok::<_, Error>(1)
        };
        context.side_effect("act", effect).await.map_err(|error| error.reason())
    };
    assert_eq!(act().await, Err("invalid_options"));
    context.run("go", async |_| Ok(())).await?;
    assert_eq!(act().await, Err("sealed"));
    assert_eq!(done.load(Relaxed), 0);
    Ok(())
}

#[tokio::test]
async fn a_checkpoint_of_another_type_is_an_error_and_the_run_can_still_be_resumed() -> Result<()> {
    let log = Shared::default();
    let stopped = async |config: Config| {
        let context = Context::new(config)?;
        let run = context.run("go", async |cx| {
            cx.checkpoint(5_u32).await?;
            std::future::pending::<Result<()>>().await
        });
        Ok::<_, Error>(tokio::time::timeout(Duration::from_millis(50), run).await.is_err())
    };
    assert!(stopped(plain(&log)).await?);
    let wrong = Context::new(plain(&log).resume().await?)?;
    let told = wrong.run("go", async |cx| cx.resume_point::<String>()).await;
    let error = told.expect_err("a number is no text").to_string();
    assert!(error.contains("its state does not fit"), "{error}");
    drop(wrong);
    let right = Context::new(plain(&log).resume().await?)?;
    assert_eq!(right.run("go", async |cx| cx.resume_point::<u32>()).await, Ok(Some(5)));
    Ok(())
}

#[tokio::test]
async fn a_failed_effect_is_with_the_log_when_the_loop_has_its_error() -> Result<()> {
    let log = Shared::default();
    let run = Context::new(plain(&log))?;
    run.run("go", async |cx| {
        let failed = cx.side_effect("act", async { Err::<u8, _>("no") }).await;
        assert_eq!((failed.is_err(), read(&log).await.len()), (true, 2));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_tool_that_differs_is_told_at_once_with_the_name_of_the_recorded_effect() -> Result<()> {
    let log = Shared::default();
    let agent = async |config: Config, name: &'static str| {
        let draws = Tool::new("draws", "", json!({})).handler(move |_, context| async move {
            context.side_effect(name, async { Ok::<_, Error>(json!(1)) }).await
        });
        Context::new(config.tools([draws]))?
            .run("go", async |cx| {
                let calls = ["c0", "c1"].map(|id| ToolCall::new(id, "draws", "{}"));
                cx.call_tools(calls).await.map(drop)
            })
            .await
    };
    agent(plain(&log), "old").await?;
    let again = agent(plain(&log).replay().await?, "new");
    let told = tokio::time::timeout(Duration::from_secs(5), again).await;
    let error = told.expect("it need not be waited for").expect_err("another effect");
    let named = r#"side_effect differs at name: recorded is "old", not "new""#;
    assert!(error.to_string().contains(named), "{error}");
    Ok(())
}

#[tokio::test]
async fn what_a_context_is_not_for_is_said_in_the_words_of_its_user() -> Result<()> {
    let context = Context::new(plain(&Shared::default()))?;
    let early = context.random().await.expect_err("it has not begun").to_string();
    assert!(early.ends_with("run run-1 has not begun; Context::run begins it"), "{early}");
    let run = context.run("go", async |cx| {
        let mine = cx.side_effect("checkpoint", async { Ok::<_, Error>(1) });
        let reserved = mine.await.expect_err("it is reserved").to_string();
        assert!(reserved.contains(r#"the run itself records under "checkpoint""#), "{reserved}");
        let twice = cx.run("again", async |_| Ok(())).await.expect_err("it runs").to_string();
        assert!(
            twice.ends_with("run run-1 has begun already; another run needs a Context of its own"),
            "{twice}"
        );
        Ok(())
    });
    run.await
}

#[tokio::test]
async fn a_value_that_is_too_large_has_that_as_its_reason_live_and_again() -> Result<()> {
    let log = Shared::default();
    let agent = async |config: Config| {
        let run = Context::new(config)?;
        run.run("go", async |cx| {
            let large = "x".repeat(mynah_data::MAX_RESULT);
            let made = cx.side_effect("large", async { Ok::<_, Error>(large) }).await;
            Ok(made.expect_err("it is too large"))
        })
        .await
    };
    let live = agent(plain(&log)).await?;
    assert_eq!(live.reason(), "result_too_large");
    assert_eq!(agent(plain(&log).replay().await?).await?, live);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_crashes_again_and_again_is_suspended_and_can_be_resumed_once_more()
-> Result<()> {
    let (log, began) = (Shared::default(), AtomicU32::new(0));
    let agent = async |config: Config, hangs: bool| {
        let work = Tool::new("work", "", json!({})).idempotent(1).handler(move |_, _| async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            json!("done")
        });
        let context = Context::new(config.tools([work]).max_crashes(2))?;
        let run = context.run("go", async |cx| {
            began.fetch_add(1, Relaxed);
            cx.call_tool(ToolCall::new("c0", "work", "{}")).await
        });
        let moment = tokio::time::timeout(2 * LEASE, run).await;
        moment.unwrap_or_else(|_| Err(Error::tool(ToolReason::Timeout)))
    };
    let reason = |done: Result<mynah_data::ToolOutcome>| done.map_err(|error| error.reason());
    assert_eq!(reason(agent(plain(&log), true).await), Err("timeout"));
    for _ in 0..2 {
        die(&log).await;
        assert_eq!(reason(agent(plain(&log).resume().await?, true).await), Err("timeout"));
    }
    die(&log).await;
    assert_eq!(reason(agent(plain(&log).resume().await?, true).await), Err("halted"));
    assert_eq!(began.load(Relaxed), 3, "the loop is not run");
    let recorded = facts(&read(&log).await);
    let Some(Fact::Suspended(end)) = recorded.last() else { panic!("{:?}", kinds(&recorded)) };
    assert_eq!((&end.reason, &end.metadata["crashes"]), (&HaltReason::CrashLoop, &json!(3)));
    let done = agent(plain(&log).resume().await?, false).await?;
    assert_eq!(done, mynah_data::ToolOutcome::Ok(json!("done")));
    assert_eq!(agent(plain(&log).replay().await?, false).await?, done);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_crashes_before_it_records_anything_new_is_suspended_too() -> Result<()> {
    let (log, ran) = (Shared::default(), AtomicU32::new(0));
    let agent = async |config: Config, at_once: bool| {
        let context = Context::new(config.max_crashes(2))?;
        let run = context.run("go", async |cx| {
            ran.fetch_add(1, Relaxed);
            if at_once {
                std::future::pending::<()>().await;
            }
            cx.side_effect("step", async { Ok::<_, Error>(()) }).await?;
            std::future::pending::<()>().await;
            Ok(())
        });
        let moment = tokio::time::timeout(3 * LEASE, run).await;
        moment.unwrap_or_else(|_| Err(Error::tool(ToolReason::Timeout)))
    };
    let reason = |done: Result<()>| done.map_err(|error| error.reason());
    assert_eq!(reason(agent(plain(&log), false).await), Err("timeout"));
    for at_once in [false, true] {
        die(&log).await;
        assert_eq!(reason(agent(plain(&log).resume().await?, at_once).await), Err("timeout"));
    }
    die(&log).await;
    assert_eq!(reason(agent(plain(&log).resume().await?, false).await), Err("halted"));
    assert_eq!(ran.load(Relaxed), 3, "the loop is not run");
    let kinds = kinds(&facts(&read(&log).await)).join(" ");
    assert_eq!(kinds, "run_started side_effect resumed resumed resumed suspended");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_after_a_suspension_is_noticed() -> Result<()> {
    let (log, clock) = (Shared::default(), Arc::new(common::Clock::default()));
    let began = AtomicU32::new(0);
    let agent = async |config: Config| {
        let context = Context::new(config.world(Arc::clone(&clock)).max_crashes(2))?;
        let run = context.run("go", async |cx| {
            cx.sleep(Duration::from_secs(600)).await?;
            began.fetch_add(1, Relaxed);
            // It dies before it records anything.
            std::future::pending::<Result<()>>().await
        });
        let moment = tokio::time::timeout(3 * LEASE, run).await;
        moment.unwrap_or_else(|_| Err(Error::tool(ToolReason::Timeout)))
    };
    let reason = |done: Result<()>| done.map_err(|error| error.reason());
    assert_eq!(reason(agent(plain(&log)).await), Err("halted"), "it sleeps");
    tokio::time::advance(Duration::from_secs(600)).await;
    // The first one records how the sleep ended. Suspended as a crash loop, it is one again.
    for expected in ["timeout", "timeout", "timeout", "halted", "timeout", "timeout", "halted"] {
        assert_eq!(reason(agent(plain(&log).resume().await?).await), Err(expected));
        die(&log).await;
    }
    assert_eq!(began.load(Relaxed), 5);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_was_dropped_or_slept_did_not_crash() -> Result<()> {
    let (log, clock) = (Shared::default(), Arc::new(common::Clock::default()));
    let agent = async |config: Config, hangs: bool| {
        let work = Tool::new("work", "", json!({})).idempotent(1).handler(move |_, _| async move {
            if hangs {
                std::future::pending::<()>().await;
            }
        });
        let context = Context::new(config.world(Arc::clone(&clock)).tools([work]).max_crashes(1))?;
        let run = context.run("go", async |cx| {
            cx.sleep(Duration::from_secs(600)).await?;
            cx.call_tool(ToolCall::new("c0", "work", "{}")).await.map(drop)
        });
        let moment = tokio::time::timeout(2 * LEASE, run).await;
        moment.unwrap_or_else(|_| Err(Error::tool(ToolReason::Timeout)))
    };
    let reason = |done: Result<()>| done.map_err(|error| error.reason());
    assert_eq!(reason(agent(plain(&log), true).await), Err("halted"), "it sleeps");
    tokio::time::advance(Duration::from_secs(600)).await;
    for _ in 0..3 {
        assert_eq!(reason(agent(plain(&log).resume().await?, true).await), Err("timeout"));
    }
    die(&log).await;
    assert_eq!(reason(agent(plain(&log).resume().await?, true).await), Err("timeout"));
    assert_eq!(reason(agent(plain(&log).resume().await?, false).await), Ok(()));
    let fate = |fact: &Fact| match fact {
        Fact::Resumed { after, .. } => Some(*after),
        _ => None,
    };
    let fates: Vec<_> = facts(&read(&log).await).iter().filter_map(fate).collect();
    use Interruption::{Crash, Release};
    assert_eq!(fates, [Release, Release, Release, Crash, Release]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_before_its_next_attempt_is_cut_off_in_its_last() -> Result<()> {
    let log = Shared::default();
    let agent = async |config: Config, gives_up: bool| {
        let hang = Tool::new("hang", "", json!({}))
            .idempotent(1)
            .handler(async |_, _| std::future::pending::<()>().await);
        let context =
            Context::new(config.tools([hang]).max_concurrency(if gives_up { 1 } else { 2 }))?;
        let run = context.run("go", async |cx| {
            let calls = ["c0", "c1"].map(|id| ToolCall::new(id, "hang", "{}"));
            let limit = if gives_up { LEASE } else { 9 * LEASE };
            let in_time = tokio::time::timeout(limit, cx.call_tools(calls)).await.is_ok();
            cx.side_effect("then", async { Ok::<_, Error>(in_time) }).await
        });
        let moment = tokio::time::timeout(3 * LEASE, run).await;
        moment.unwrap_or_else(|_| Err(Error::tool(ToolReason::Timeout)))
    };
    let reason = |done: Result<bool>| done.map_err(|error| error.reason());
    assert_eq!(reason(agent(plain(&log), false).await), Err("timeout"));
    die(&log).await;
    assert_eq!(reason(agent(plain(&log).resume().await?, false).await), Err("timeout"));
    die(&log).await;
    assert_eq!(reason(agent(plain(&log).resume().await?, true).await), Ok(false));
    let attempts = |fact: &Fact| match fact {
        Fact::ToolFailed { call_id, attempt, .. } => Some((call_id.clone(), *attempt)),
        _ => None,
    };
    let recorded = facts(&read(&log).await);
    let cut_off: Vec<_> = recorded.iter().filter_map(attempts).collect();
    let last = [("c0".to_owned(), 3), ("c1".to_owned(), 2)];
    assert_eq!(cut_off[cut_off.len() - 2..], last, "one began again, and one waited for its place");
    assert_eq!(agent(plain(&log).replay().await?, true).await, Ok(false));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_that_sleeps_sleeps_on_though_a_process_died_that_resumed_it() -> Result<()> {
    let (log, clock) = (Shared::default(), Arc::new(common::Clock::default()));
    let agent = async |hangs: bool, config: Config| {
        let context = Context::new(config.world(Arc::clone(&clock)))?;
        let run = context.run("go", async |cx| {
            if hangs {
                std::future::pending::<()>().await;
            }
            cx.sleep(Duration::from_secs(600)).await
        });
        let moment = tokio::time::timeout(3 * LEASE, run).await;
        moment.unwrap_or_else(|_| Err(Error::tool(ToolReason::Timeout)))
    };
    assert_eq!(agent(false, plain(&log)).await.map_err(|error| error.reason()), Err("halted"));
    let before = log.run(RUN).await?.expect("a run");
    assert!(before.wake_at.is_some());
    for _ in 0..9 {
        die(&log).await;
        let hung = agent(true, plain(&log).resume().await?).await;
        assert_eq!(hung.map_err(|error| error.reason()), Err("timeout"));
    }
    let after = log.run(RUN).await?.expect("a run");
    assert_eq!((after.status, after.wake_at), (before.status, before.wake_at));
    Ok(())
}

#[tokio::test]
async fn a_run_that_another_process_has_is_refused_as_often_as_it_is_asked_for() -> Result<()> {
    let log = Shared::default();
    let mine = Context::new(plain(&log))?;
    let mut held = Box::pin(mine.run("go", async |cx| {
        cx.now().await?;
        std::future::pending::<Result<()>>().await
    }));
    assert!(tokio::time::timeout(Duration::from_millis(50), &mut held).await.is_err(), "it hangs");
    let before = read(&log).await;
    let context = Context::new(plain(&log).resume().await?)?;
    for _ in 0..2 {
        let refused = context.run("go", async |cx| cx.now().await.map(drop)).await;
        assert_eq!(refused.map_err(|error| error.reason()), Err("leased"));
    }
    assert_eq!(read(&log).await, before);
    Ok(())
}

#[tokio::test]
async fn a_limit_of_no_crash_at_all_is_refused() {
    let refused = Context::new(plain(&Shared::default()).max_crashes(0)).map(drop);
    let error = refused.expect_err("no run could be resumed").to_string();
    assert!(error.contains("max_crashes: must_be_positive"), "{error}");
}

#[tokio::test]
async fn a_fact_that_is_too_large_to_be_recorded_is_refused_live_and_again() -> Result<()> {
    let agent = async |context: &Context| {
        let say = async |length: usize| {
            let message = Arc::new(Message::user("x".repeat(length)));
            context
                .emit(Fact::UserMessage { message })
                .await
                .map_err(|error| error.reason().to_owned())
        };
        let large = call(&"c".repeat(MAX_PAYLOAD), "work");
        let called = context.call_tools([call("c0", "work"), large]).await;
        [
            say(MAX_PAYLOAD).await,
            called.map(drop).map_err(|error| error.reason().to_owned()),
            say(1).await,
        ]
    };
    let config = |log: &Arc<MemoryLog>| plain(log).tools([tool("work", |_| async { "worked" })]);
    let (done, facts) = twice(config, agent).await;
    let refused = || Err("too_large".to_owned());
    assert_eq!(done, [refused(), refused(), Ok(())]);
    let expected =
        ["run_started", "tool_scheduled", "tool_failed", "user_message", "completed", "sealed"];
    assert_eq!(kinds(&facts), expected);
    everywhere(config, agent).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn two_loops_of_a_run_that_is_taken_over_do_not_wait_for_each_other() -> Result<()> {
    let log = Arc::new(MemoryLog::new());
    let context = Context::new(plain(&log))?;
    begin(&context).await?;
    context.flush().await?;
    drop(context);
    die(&log).await;
    let context = Context::new(plain(&log).resume().await?)?;
    // Each is polled with a waker of its own.
    let run =
        |context: Context| tokio::spawn(async move { context.run("go", async |_| Ok(())).await });
    let runs = [run(context.clone()), run(context)];
    let runs = tokio::time::timeout(LEASE * 9, join_all(runs)).await.expect("both end");
    let done = runs.into_iter().map(|run| run.expect("no panic")).filter(Result::is_ok);
    assert_eq!(done.count(), 1, "a run is performed once");
    Ok(())
}

#[tokio::test]
async fn what_is_given_up_behind_the_records_is_not_recorded_when_they_end() -> Result<()> {
    let log = Arc::new(MemoryLog::new());
    let context = Context::new(plain(&log))?;
    begin(&context).await?;
    context.random().await?;
    context.flush().await?;
    drop(context);
    let context = Context::new(plain(&log).resume().await?)?;
    begin(&context).await?;
    {
        let message = Arc::new(Message::user("too early"));
        let mut given_up = pin!(context.emit(Fact::UserMessage { message }));
        let polled = poll_fn(|cx| Poll::Ready(given_up.as_mut().poll(cx))).await;
        assert!(polled.is_pending(), "what is recorded comes first");
        context.random().await?;
    }
    context.now().await?;
    context.flush().await?;
    let expected = ["run_started", "side_effect", "resumed", "side_effect"];
    assert_eq!(kinds(&facts(&read(&log).await)), expected);
    Ok(())
}
