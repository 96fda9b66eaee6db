//! `Context::sleep`: what is recorded of it, and what a crash leaves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, SystemTime},
};

use futures_util::future::join;
use mynah_data::{Error, HaltReason, Result, ToolOutcome};
use mynah_log::{Append, Fact, Log as _, MemoryLog, Record, RunStatus, verify_run};
use mynah_step::{Config, Context, World};
use serde_json::json;

use crate::common::{self, ask, call, everywhere, facts, kinds, plain, plays, read, says, tool};

const HOUR: Duration = Duration::from_secs(3600);

/// A clock that stands unless it is set.
#[derive(Clone, Default)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn advance(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, SeqCst);
    }
}

impl World for Clock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(1_000 + self.0.load(SeqCst))
    }

    fn random(&self) -> u64 {
        7
    }
}

async fn agent(context: &Context, time: Duration) -> Result<u64> {
    context
        .run("go", async |cx| {
            let before = cx.random().await?;
            cx.sleep(time).await?;
            Ok(before + cx.random().await?)
        })
        .await
}

async fn records(log: &MemoryLog) -> Vec<Record> {
    log.read("run", 1, 100).await.unwrap()
}

#[tokio::test]
async fn a_long_sleep_suspends_the_run_until_its_time() {
    let (log, clock) = (MemoryLog::new(), Clock::default());
    let config = Config::new(&log, "run").world(clock.clone());
    let asleep = agent(&Context::new(config.clone()).unwrap(), HOUR).await.unwrap_err();
    assert_eq!((asleep.reason(), &asleep.metadata()["wake_at_ms"]), ("halted", &3_601_000.into()));
    let run = log.run("run").await.unwrap().unwrap();
    assert_eq!(run.status, RunStatus::Suspended);
    assert_eq!((run.wake_at, run.held_until), (Some(3_601_000 * 1_000_000), None));
    // Half of the time: it sleeps on, until the same time.
    clock.advance(HOUR / 2);
    let early = Context::new(config.clone().resume().await.unwrap()).unwrap();
    assert_eq!(agent(&early, HOUR).await.unwrap_err().metadata()["wake_at_ms"], 3_601_000);
    clock.advance(HOUR / 2);
    let resumed = Context::new(config.clone().resume().await.unwrap()).unwrap();
    assert_eq!(agent(&resumed, HOUR).await, Ok(14));
    verify_run(&log, "run").await.unwrap();
    let again = Context::new(config.replay().await.unwrap()).unwrap();
    assert_eq!(agent(&again, HOUR).await, Ok(14));
}

#[tokio::test]
async fn a_loop_that_ignores_that_it_sleeps_records_nothing_more() {
    let log = MemoryLog::new();
    let config = Config::new(&log, "run").world(Clock::default());
    let context = Context::new(config).unwrap();
    let done = context
        .run("go", async |cx| {
            let _ = cx.sleep(HOUR).await;
            cx.random().await
        })
        .await;
    assert_eq!(done.unwrap_err().reason(), "halted");
    let last = records(&log).await.pop().unwrap().fact().unwrap();
    assert!(matches!(last, Some(Fact::Suspended(end)) if end.reason == HaltReason::Sleeping));
}

#[tokio::test(start_paused = true)]
async fn a_crash_during_a_sleep_does_not_begin_it_anew() {
    let (whole, clock) = (MemoryLog::new(), Clock::default());
    let config =
        |log: &MemoryLog| Config::new(log, "run").world(clock.clone()).park_after(2 * HOUR);
    let began = tokio::time::Instant::now();
    assert_eq!(agent(&Context::new(config(&whole)).unwrap(), HOUR).await, Ok(14));
    assert!(began.elapsed() >= HOUR);
    let all = records(&whole).await;
    let after = |effect: &str| {
        let is = |record: &Record| matches!(record.fact().unwrap(), Some(Fact::SideEffect { name, .. }) if name == effect);
        all.iter().position(is).unwrap() + 1
    };
    for kept in 1..all.len() - 1 {
        let log = MemoryLog::new();
        log.append(Append::new("run", None, all[..kept].to_vec())).await.unwrap();
        // The process died after three quarters of the time.
        clock.0.store(0, SeqCst);
        clock.advance(HOUR * 3 / 4);
        let began = tokio::time::Instant::now();
        let resumed = config(&log).resume().await.unwrap();
        assert_eq!(agent(&Context::new(resumed).unwrap(), HOUR).await, Ok(14));
        let left = match kept {
            kept if kept < after("sleep") => HOUR,
            kept if kept < after("woke") => HOUR / 4,
            _ => Duration::ZERO,
        };
        assert_eq!(began.elapsed().as_secs(), left.as_secs(), "after {kept} records");
        verify_run(&log, "run").await.unwrap();
    }
    // A replay does not wait.
    let began = tokio::time::Instant::now();
    let again = Context::new(config(&whole).replay().await.unwrap()).unwrap();
    assert_eq!(agent(&again, HOUR).await, Ok(14));
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn a_sleep_ends_when_the_run_is_cancelled() {
    let log = MemoryLog::new();
    let config = Config::new(&log, "run").park_after(2 * HOUR);
    let context = Context::new(config.clone()).unwrap();
    let (slept, ()) = tokio::join!(agent(&context, HOUR), async {
        while records(&log).await.len() < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        context.cancel();
    });
    assert_eq!(slept.unwrap_err().reason(), "cancelled");
    assert_eq!(log.run("run").await.unwrap().unwrap().status, RunStatus::Cancelled);
    let again = Context::new(config.replay().await.unwrap()).unwrap();
    assert_eq!(agent(&again, HOUR).await.unwrap_err().reason(), "cancelled");
}

/// An effect.
async fn named(cx: &Context, name: &str) -> Result<u8> {
    cx.side_effect(name, async { Ok::<_, Error>(1) }).await
}

#[tokio::test(start_paused = true)]
async fn what_comes_first_a_sleep_or_something_beside_it_does_so_again_after_any_record() {
    for (first, tool_takes) in [("in time", 50), ("too late", 500)] {
        let config = |log: &Arc<MemoryLog>| {
            let work = tool("work", move |_| async move {
                tokio::time::sleep(Duration::from_millis(tool_takes)).await;
            });
            let clock = Arc::new(common::Clock::default());
            let config = plain(log).world(clock).park_after(2 * HOUR);
            config.tools([work.idempotent(1)]).adapter(plays([says(&["hi"])]))
        };
        everywhere(config, async |cx| {
            let came = tokio::select! {
                slept = cx.sleep(Duration::from_millis(300)) => slept.map(|()| "too late")?,
                done = cx.call_tool(call("c0", "work")) => done.map(|_| "in time")?,
            };
            assert_eq!(came, first);
            named(cx, came).await?;
            // The model answers at once.
            tokio::select! {
                biased;
                slept = cx.sleep(Duration::from_millis(300)) => slept?,
                answer = cx.call_model(ask("hi")) => answer.map(drop)?,
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
            named(cx, "end").await
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sleep_that_was_cancelled_is_cancelled_again_after_any_record() {
    let config = |log: &Arc<MemoryLog>| {
        plain(log).world(Arc::new(common::Clock::default())).park_after(2 * HOUR)
    };
    everywhere(config, async |cx| {
        let cancel = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            cx.cancel();
        };
        let (slept, ()) = join(cx.sleep(HOUR), cancel).await;
        assert_eq!(slept.map_err(|error| error.reason()), Err("cancelled"));
        named(cx, "clean up").await
    })
    .await;
}

/// A loop that does something which takes a moment beside a sleep of two hours.
async fn beside_a_sleep<T>(config: Config, what: impl AsyncFn(&Context) -> Result<T>) -> Result<T> {
    let context = Context::new(config)?;
    let run = context.run("go", async |cx| {
        let (done, slept) = join(what(cx), cx.sleep(2 * HOUR)).await;
        slept.and(done)
    });
    run.await
}

#[tokio::test(start_paused = true)]
async fn what_runs_beside_a_long_sleep_is_done_once_before_the_run_is_suspended() {
    let (log, ran) = (Arc::new(MemoryLog::new()), Arc::new(AtomicU32::new(0)));
    let clock = Arc::new(common::Clock::default());
    let moment = Duration::from_millis(50);
    let config = || {
        let counted = Arc::clone(&ran);
        let pay = tool("pay", move |_| {
            let ran = Arc::clone(&counted);
            async move {
                tokio::time::sleep(moment).await;
                ran.fetch_add(1, SeqCst);
                json!("paid")
            }
        });
        plain(&log).world(Arc::clone(&clock)).tools([pay])
    };
    let agent = async |cx: &Context| {
        let charge = async {
            tokio::time::sleep(moment).await;
            Ok::<_, Error>(ran.fetch_add(1, SeqCst))
        };
        cx.durable_side_effect("charge", charge).await?;
        cx.call_tool(call("c0", "pay")).await
    };
    assert_eq!(
        beside_a_sleep(config(), agent).await.map_err(|error| error.reason()),
        Err("halted")
    );
    let asleep = [
        "run_started",
        "side_effect",
        "side_effect",
        "tool_scheduled",
        "tool_completed",
        "suspended",
    ];
    assert_eq!(kinds(&facts(&read(&log).await)), asleep);
    tokio::time::advance(2 * HOUR).await;
    let resumed = beside_a_sleep(config().resume().await.unwrap(), agent).await;
    assert_eq!(resumed, Ok(ToolOutcome::Ok(json!("paid"))));
    assert_eq!(ran.load(SeqCst), 2, "the effect and the tool");
    assert_eq!(beside_a_sleep(config().replay().await.unwrap(), agent).await, resumed);
}

#[tokio::test(start_paused = true)]
async fn a_long_sleep_is_over_in_time_if_something_else_runs_for_longer() {
    let log = MemoryLog::new();
    let config = Config::new(&log, "run").world(Arc::new(common::Clock::default()));
    let agent = async |cx: &Context| {
        let listen = async {
            tokio::time::sleep(3 * HOUR).await;
            Ok::<_, Error>(1)
        };
        cx.side_effect("listen", listen).await
    };
    assert_eq!(beside_a_sleep(config.clone(), agent).await, Ok(1));
    assert_eq!(beside_a_sleep(config.replay().await.unwrap(), agent).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn of_two_branches_that_sleep_the_one_whose_time_comes_first_goes_on_first() {
    for is_short_first in [true, false] {
        let log = Arc::new(MemoryLog::new());
        let config = plain(&log).world(Arc::new(common::Clock::default()));
        let agent = async |config: Config| {
            let context = Context::new(config)?;
            let run = context.run("go", async |cx| {
                let short = async {
                    cx.sleep(HOUR).await?;
                    cx.side_effect("short", async { Ok::<_, Error>(1) }).await
                };
                let (short, long) = match is_short_first {
                    true => join(short, cx.sleep(2 * HOUR)).await,
                    false => {
                        let (long, short) = join(cx.sleep(2 * HOUR), short).await;
                        (short, long)
                    }
                };
                long.and(short)
            });
            run.await
        };
        let left = |done: Result<i32, Error>| done.unwrap_err().metadata()["wake_at_ms"].clone();
        assert_eq!(left(agent(config.clone()).await), 3_601_000);
        tokio::time::advance(HOUR).await;
        let resumed = config.clone().resume().await.unwrap();
        assert_eq!(left(agent(resumed).await), 7_201_000, "{is_short_first}");
        let facts = facts(&read(&log).await);
        assert!(matches!(facts.last(), Some(Fact::Suspended(_))), "{facts:?}");
        tokio::time::advance(HOUR).await;
        assert_eq!(agent(config.clone().resume().await.unwrap()).await, Ok(1));
        verify_run(&*log, common::RUN).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_in_which_several_branches_sleep_continues_when_the_first_sleep_is_over() {
    let log = MemoryLog::new();
    let config = Config::new(&log, "run").world(Arc::new(common::Clock::default()));
    let agent = async |cx: &Context| {
        let soon = async {
            cx.sleep(Duration::from_secs(60)).await?;
            cx.side_effect("soon", async { Ok::<_, Error>(1) }).await?;
            cx.sleep(HOUR).await?;
            cx.random().await
        };
        soon.await
    };
    let asleep = beside_a_sleep(config.clone(), agent).await.unwrap_err();
    assert_eq!(asleep.metadata()["wake_at_ms"], 3_661_000);
    tokio::time::advance(HOUR).await;
    let asleep = beside_a_sleep(config.clone().resume().await.unwrap(), agent).await.unwrap_err();
    assert_eq!(asleep.metadata()["wake_at_ms"], 7_201_000, "the rest of the other");
    tokio::time::advance(HOUR).await;
    assert!(beside_a_sleep(config.clone().resume().await.unwrap(), agent).await.is_ok());
    verify_run(&log, "run").await.unwrap();
}
