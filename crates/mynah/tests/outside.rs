//! Runs in any state that are ended, branched or written from outside.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use mynah::{
    Budget, Engine, ErrorKind, LogReason, RunId, Thread, Tool, ToolCall, ToolOutcome, Tools, World,
    cancel_run, fork_run,
    log::{
        Append, Chain, DirectCall, Effect, Extent, Fact, Log, MemoryLog, Record, RunStatus,
        VerifyStatus, verify_run,
    },
    replay_run,
    step::{Config, Context},
    testing::Scripted,
};
use mynah_step::LEASE;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::plans::{Plan, plan, runtime};

proptest! {
    #[test]
    fn a_run_that_is_cancelled_after_any_record_verifies_and_replays(plan in plan(), extent in 0..3u8) {
        runtime().block_on(async {
            let (run, records) = kept(&plan, extent).await;
            let sealed = records.last().is_some_and(|last| last.kind().as_str() == "sealed");
            for cut in 1..=records.len() - usize::from(sealed) {
                let log = cut_off(&records[..=cut - 1]).await?;
                let ended = match records[cut - 1].fact() {
                    Ok(Some(Fact::Completed(_))) => RunStatus::Completed,
                    Ok(Some(Fact::Failed(_))) => RunStatus::Failed,
                    _ => RunStatus::Cancelled,
                };
                let told = format!("record {cut} of {}, {}", records.len(), records[cut - 1].kind());
                prop_assert_eq!(cancel_run(&log, &run).await, Ok(ended), "{}", told);
                let report = verify_run(&log, &run).await.map_err(failed)?;
                prop_assert_eq!(report.status, VerifyStatus::Verified, "{}", told);
                prop_assert_eq!(report.records, cut as u64 + if ended == RunStatus::Cancelled { 2 } else { 1 }, "{}", told);
                for tools in [Tools::Recorded, Tools::All] {
                    let replayed = plan.engine().replay(&log, &*run).replay_tools(tools).await;
                    prop_assert!(replayed.is_ok(), "{told}: {replayed:?}");
                }
                let alone = replay_run(&log, &*run).await;
                prop_assert!(alone.is_ok(), "{told}: {alone:?}");
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_branch_at_any_record_replays_and_is_cancelled_as_the_run_would_be(plan in plan(), extent in 0..3u8, share in 0.0..1.0f64) {
        runtime().block_on(async {
            let (run, records) = kept(&plan, extent).await;
            let at = ((records.len() as f64 * share) as usize).min(records.len().saturating_sub(2)) + 1;
            let Some(last) = records.get(at - 1) else { return Ok(()) };
            let log = cut_off(&records).await?;
            let branch = fork_run(&log, &*run, at as u64).await.map_err(failed)?;
            prop_assert_eq!((branch.parent.seq, branch.parent.hash), (at as u64, last.hash()));
            let replayed = plan.engine().replay(&log, &*branch.run_id).await;
            prop_assert!(replayed.is_ok(), "record {at}: {replayed:?}");
            if !matches!(last.fact(), Ok(Some(Fact::Sealed(_)))) {
                cancel_run(&log, &branch.run_id).await.map_err(failed)?;
                let replayed = plan.engine().replay(&log, &*branch.run_id).await;
                prop_assert!(replayed.is_ok(), "record {at}: {replayed:?}");
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn a_run_of_somebodys_own_loop_can_be_ended_and_branched_and_nothing_else()
-> mynah::Result<()> {
    let log = MemoryLog::new();
    let begun = Fact::RunStarted { thread: "go".into(), extent: Extent::Chat, about: None };
    let effect = Effect::Done(json!(1));
    let asked = Fact::SideEffect { inside: None, name: "now".to_owned(), ahead: 0, effect };
    write(&log, "own", [begun, asked]).await?;
    let engine = Engine::new(Scripted::default());
    let branch = fork_run(&log, "own", 2).await?;
    for run in ["own", &*branch.run_id] {
        let refusals = [
            engine.replay(&log, run).await.map(drop),
            replay_run(&log, run).await.map(drop),
            engine.resume(&log, run).await.map(drop),
        ];
        for refused in refusals.map(|refused| refused.expect_err("nobody knows the loop")) {
            assert_eq!(refused.kind(), ErrorKind::Log(LogReason::OwnLoop), "{refused}");
        }
        assert_eq!(cancel_run(&log, run).await?, RunStatus::Cancelled);
        assert_eq!(verify_run(&log, run).await?.status, VerifyStatus::Verified);
    }
    let records = log.read(&branch.run_id, 1, 1).await?;
    let Ok(Some(Fact::RunStarted { about: Some(about), .. })) = records[0].fact() else {
        panic!("{records:?}")
    };
    assert_eq!((about.is_bare(), about.parent), (true, Some(branch.parent)));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_branch_of_somebodys_own_loop_whose_process_dies_before_it_records_anything_is_suspended()
-> mynah::Result<()> {
    let log = MemoryLog::new();
    let begun = Fact::RunStarted { thread: "go".into(), extent: Extent::Chat, about: None };
    write(&log, "own", [begun]).await?;
    let branch = fork_run(&log, "own", 1).await?.run_id;
    let mut began = 0;
    let suspended = loop {
        let config = Config::new(&log, &*branch).max_crashes(2).resume().await?;
        let context = Context::new(config)?;
        let run = context.run("go", async |_| {
            began += 1;
            std::future::pending::<mynah::Result<()>>().await
        });
        match tokio::time::timeout(3 * LEASE, run).await {
            Ok(suspended) => break suspended,
            Err(_) => drop(context),
        }
        log.lease(&branch, "dead/1", LEASE).await?;
    };
    assert_eq!(suspended.map_err(|error| error.reason()), Err("halted"));
    assert_eq!(began, 3);
    Ok(())
}

#[tokio::test]
async fn the_logs_own_run_is_left_alone() {
    let refused = cancel_run(&MemoryLog::new(), mynah::log::MAINTENANCE).await;
    assert_eq!(refused.expect_err("it is the log's").metadata()["field"], "run");
}

#[tokio::test]
async fn a_branch_has_taken_the_time_that_its_run_had() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("?"));
    let asks = json!([{"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"}]);
    let says = json!([{"text": "done"}, {"finish": "stop"}]);
    let engine = |scripts: Vec<Value>| -> mynah::Result<Engine> {
        Ok(Engine::new(Scripted::new(scripts)?).tool(ask.clone()).world(Seconds::default()))
    };
    let budget = Budget::new().max_wall_clock_ms(5_500);
    let asking = engine(vec![asks])?.chat("go").budget(budget).record(&log).await?;
    let run = asking.run_id.unwrap_or_default();
    let last = log.head(&run).await?.map_or(0, |head| head.seq);
    let branch = fork_run(&log, &*run, last).world(Seconds::default()).await?;
    let again = fork_run(&log, &*branch.run_id, last).await?;
    // The clock is read for every record.
    assert_eq!((last, branch.parent.active), (6, 5_000_000_000));
    assert_eq!(again.parent.active, branch.parent.active);
    // Half a second is left, and none of a limit of four.
    let resumed = engine(vec![says.clone()])?.resume(&log, &*branch.run_id).answer("yes").await?;
    assert_eq!(resumed.halted_reason.as_str(), "completed");
    let less = Budget::new().max_wall_clock_ms(4_000);
    let resume = engine(vec![says])?.resume(&log, &*again.run_id).answer("yes").budget(less);
    let resumed = resume.allow_changed_engine().await?;
    assert_eq!(resumed.halted_reason.as_str(), "budget_exceeded");
    assert_eq!(replay_run(&log, &*again.run_id).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn a_call_that_was_announced_for_the_last_time_there_is_runs_once_more() -> mynah::Result<()>
{
    let echo = || Tool::new("echo", "", json!({})).handler(async |_, _| json!(1)).idempotent(3);
    let calls = json!([{"tool_call": {"id": "c0", "name": "echo"}}, {"finish": "tool_calls"}]);
    let says = json!([{"text": "done"}, {"finish": "stop"}]);
    let engine = Engine::new(Scripted::new([calls, says.clone(), says])?).tool(echo());
    let log = MemoryLog::new();
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let last = Fact::ToolScheduled { call_id: "c0".to_owned(), attempt: u32::MAX, call: None };
    let begun = log.read(&run, 1, 4).await?.into_iter().filter_map(|record| record.fact().ok()?);
    write(&log, "chat", begun.chain([Fact::SEAM, last.clone()])).await?;
    assert_eq!(engine.resume(&log, "chat").await?.text(), "done");

    let log = Arc::new(log);
    let (name, arguments) = ("echo".to_owned(), "{}".to_owned());
    let call = DirectCall { turn: None, name, arguments, approved: false };
    let first =
        Fact::ToolScheduled { call_id: "c0".to_owned(), attempt: 1, call: Some(Box::new(call)) };
    let began = Fact::RunStarted { thread: Thread::from("go"), extent: Extent::Chat, about: None };
    write(&log, "loop", [began.clone(), first, Fact::SEAM, last]).await?;
    let config = Config::new(&log, "loop").tools([echo()]).resume().await?;
    let context = Context::new(config)?;
    context.emit(began).await?;
    let outcome = context.call_tool(ToolCall::new("c0", "echo", "{}")).await?;
    assert_eq!(outcome, ToolOutcome::Ok(json!(1)));
    Ok(())
}

/// A world in which a second passes with each reading of the clock.
#[derive(Default)]
struct Seconds(AtomicU64);

impl World for Seconds {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn random(&self) -> u64 {
        mynah::SystemWorld.random()
    }
}

/// Keeps a run of these facts.
async fn write(
    log: &MemoryLog,
    run: &str,
    facts: impl IntoIterator<Item = Fact>,
) -> mynah::Result<()> {
    let mut chain = Chain::new(run);
    let records = facts.into_iter().map(|fact| chain.append(0, [7; 16], &fact));
    let records = records.collect::<mynah::Result<_>>()?;
    log.append(Append::new(run, None, records)).await.map(drop)
}

/// A run of this plan: a single call, a step or a chat.
async fn kept(plan: &Plan, extent: u8) -> (RunId, Vec<Record>) {
    let log = MemoryLog::new();
    let (engine, options) = (plan.engine(), plan.options());
    let mut stream = match extent {
        0 => engine.generate("go").options(options).record(&log).stream(),
        1 => engine.step("go").options(options).record(&log).stream(),
        _ => engine.chat("go").options(options).record(&log).stream(),
    };
    let run = stream.run_id().cloned().unwrap_or_default();
    while let Some(Ok(_)) = futures_util::StreamExt::next(&mut stream).await {}
    let records = log.read(&run, 1, 10_000).await.unwrap_or_default();
    (run, records)
}

/// A log in which a run ends with the last of these records.
async fn cut_off(records: &[Record]) -> Result<MemoryLog, TestCaseError> {
    let log = MemoryLog::new();
    if let Some(first) = records.first() {
        let run = first.envelope().run_id.clone();
        log.append(Append::new(run, None, records.to_vec())).await.map_err(failed)?;
    }
    Ok(log)
}

fn failed(error: mynah::Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}
