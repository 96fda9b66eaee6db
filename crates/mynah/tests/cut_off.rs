//! Tools that run when their run is stopped: the records name them, and the events do not change.

use std::time::Duration;

use mynah::{
    Budget, CancelHandle, ChatResult, Engine, HaltReason, OnUncertain, Options, Tool, ToolOutcome,
    Tools,
    log::{Fact, Log as _, MemoryLog, Resolution},
    replay_run,
    testing::Scripted,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    kept::{calls, copy, says},
    param::Param as _,
};

const SECOND: Duration = Duration::from_secs(1);

/// A way to stop a run after a second.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stop {
    Cancel,
    Deadline,
    WallClock,
}

const STOPS: [Stop; 3] = [Stop::Cancel, Stop::Deadline, Stop::WallClock];

#[tokio::test(start_paused = true)]
async fn of_tools_that_are_stopped_with_their_run_the_records_tell_those_that_ran()
-> mynah::Result<()> {
    for stop in STOPS {
        let log = MemoryLog::new();
        let kept = stopped(&picking()?, stop, Some(&log)).await?;
        let run = kept.run_id.clone().unwrap_or_default();
        let announced = ["c0 announced 1", "c1 announced 1", "c2 announced 1"];
        let expected = [&announced[..], &["c0 completed 1", "c1 cut_off 1"]].concat();
        assert_eq!(story(&log, &run).await, expected, "{stop:?}");
        let plain = stopped(&picking()?, stop, None).await?;
        assert_eq!((plain.thread, plain.metadata), (kept.thread, kept.metadata), "{stop:?}");
        for tools in [Tools::All, Tools::Recorded] {
            let replayed = picking()?.replay(&log, &*run).replay_tools(tools).await?;
            assert_eq!(replayed.status, "equal", "{stop:?}");
        }
        assert_eq!(replay_run(&log, &*run).await?.status, "equal", "{stop:?}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_process_that_ended_while_it_stopped_its_run_leaves_tools_of_which_nobody_knows()
-> mynah::Result<()> {
    for stop in STOPS {
        let log = MemoryLog::new();
        let run = stopped(&picking()?, stop, Some(&log)).await?.run_id.unwrap_or_default();
        let cut = copy(&log, &run, 8).await;
        assert_eq!(story(&cut, &run).await.last().map(String::as_str), Some("c1 cut_off 1"));
        let later = || Ok::<_, mynah::Error>(picking()?.adapter(Scripted::new([says("done")])?));
        let waiting = later()?.resume(&cut, &*run).await?;
        assert_eq!(waiting.halted_reason, HaltReason::UncertainTools, "{stop:?}");
        let open = Options::new().budget(Budget::new()).deadline(100 * SECOND);
        let rerun = later()?.resume(&cut, &*run).on_uncertain(OnUncertain::Rerun).options(open);
        assert_eq!(rerun.await?.text(), "done", "{stop:?}");
        let announced = ["c1 announced 2", "c2 announced 2", "c1 completed 2", "c2 completed 2"];
        assert_eq!(story(&cut, &run).await[5..], announced, "{stop:?}");
        for tools in [Tools::All, Tools::Recorded] {
            let replayed = later()?.replay(&cut, &*run).replay_tools(tools).await?;
            assert_eq!(replayed.status, "equal", "{stop:?}");
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_is_stopped_is_the_try_that_ran_and_none_between_two() -> mynah::Result<()> {
    let first = ["c0 announced 1", "c0 retried 1"];
    let second = ["c0 announced 2", "c0 cut_off 2"];
    let cases =
        [(SECOND, [&first[..], &second].concat()), (Duration::from_millis(50), first.to_vec())];
    for (deadline, expected) in cases {
        let engine = calls(["c0"])?.tool(Tool::new("pick", "", json!({})).idempotent(3).handler(
            async |_, context| {
                if context.attempt() > 1 {
                    sleep(10 * SECOND).await;
                }
                ToolOutcome::transient("busy")
            },
        ));
        let log = MemoryLog::new();
        let late = engine.chat("go").deadline(deadline).record(&log).await?;
        assert_eq!(late.halted_reason, HaltReason::Deadline);
        let run = late.run_id.unwrap_or_default();
        assert_eq!(story(&log, &run).await, expected);
        assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    }
    Ok(())
}

/// Three calls, one at a time: the first is done at once, the others take ten seconds each.
fn picking() -> mynah::Result<Engine> {
    let pick = Tool::new("pick", "", json!({})).handler(async |arguments: Value, _| {
        if arguments["x"] != 0 {
            sleep(10 * SECOND).await;
        }
        ToolOutcome::Ok(json!("picked"))
    });
    Ok(calls(["c0", "c1", "c2"])?.tool(pick).param("max_concurrency", 1))
}

async fn stopped(
    engine: &Engine,
    stop: Stop,
    log: Option<&MemoryLog>,
) -> mynah::Result<ChatResult> {
    let cancel = CancelHandle::new();
    let chat = engine.chat("go").cancel_handle(&cancel);
    let chat = match stop {
        Stop::Cancel => chat,
        Stop::Deadline => chat.deadline(SECOND),
        Stop::WallClock => chat.budget(Budget::new().max_wall_clock_ms(1_000)),
    };
    let chat = match log {
        Some(log) => chat.record(log),
        None => chat,
    };
    let cancelling = async {
        if stop == Stop::Cancel {
            sleep(SECOND).await;
            cancel.cancel();
        }
    };
    tokio::join!(chat.into_future(), cancelling).0
}

/// The records of tools.
async fn story(log: &MemoryLog, run: &str) -> Vec<String> {
    let records = log.read(run, 1, 1_000).await.unwrap_or_default();
    let facts = records.iter().filter_map(|record| record.fact().ok().flatten());
    let told = facts.filter_map(|fact| {
        let (call, what, attempt) = match fact {
            Fact::ToolScheduled { call_id, attempt, .. } => (call_id, "announced", attempt),
            Fact::ToolCompleted { call_id, attempt, .. } => (call_id, "completed", attempt),
            Fact::ToolFailed { call_id, attempt, error, resolution, .. } => {
                let what = match resolution {
                    Resolution::CutOff if error.reason() == "cancelled" => "cut_off",
                    Resolution::Retried => "retried",
                    _ => "failed",
                };
                (call_id, what, attempt)
            }
            _ => return None,
        };
        Some(format!("{call} {what} {attempt}"))
    });
    told.collect()
}
