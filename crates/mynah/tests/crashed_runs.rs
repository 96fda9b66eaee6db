//! Runs whose processes died repeatedly.

use std::time::Duration;

use mynah::{
    Decision, Engine, Result, Waiting,
    log::{Log as _, MemoryLog},
    testing::Scripted,
};

use crate::kept::{copy, kinds, says};

/// A run whose processes died during the model call, this many times.
async fn crashed(engine: &Engine, times: usize) -> Result<MemoryLog> {
    let mut log = MemoryLog::new();
    engine.chat("go").max_crashes(1).record(&log).run_id("k").await?;
    for crash in 1..=times {
        let started = kinds(&log, "k").await.iter().rposition(|kind| kind == "turn_started");
        log = copy(&log, "k", started.expect("a model call") as u64 + 1).await;
        let lease = log.lease("k", "dead", Duration::from_nanos(1)).await?;
        drop(lease);
        let resumed = engine.resume(&log, "k").await?;
        let waits = resumed.halted_reason.as_str() == "crash_loop";
        assert_eq!(waits, crash > 1, "crash {crash}");
    }
    Ok(log)
}

#[tokio::test(start_paused = true)]
async fn a_run_that_crashes_again_and_again_waits_until_someone_resumes_it() -> Result<()> {
    let engine = Engine::new(Scripted::new((0..5).map(|n| says(&format!("said {n}"))))?);
    let log = crashed(&engine, 2).await?;
    let twice = engine.resume(&copy(&log, "k", u64::MAX).await, "k").await?;
    assert_eq!(twice.text(), "said 2", "a run that waits continues when it is resumed");
    let start = || engine.chat("go").max_crashes(1).record(&log).run_id("k").start_or_resume();
    let run = start().await?;
    assert_eq!(run.waiting(), Some(Waiting::CrashLoop));
    let error = run.decide(|_| Decision::Approve).await.expect_err("nothing to decide");
    assert_eq!(error.reason(), "invalid_status");
    assert_eq!(start().await?.waiting(), Some(Waiting::CrashLoop));
    let error = start().await?.answer("yes").await.expect_err("no question");
    assert_eq!(error.reason(), "invalid_status");
    let run = start().await?.resume().await?;
    assert_eq!((run.waiting(), run.result().halted_reason.as_str()), (None, "completed"));
    let error = run.decide(|_| Decision::Approve).await.expect_err("an end");
    assert_eq!(error.reason(), "invalid_status");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_model_call_that_was_lost_with_its_process_is_one_of_the_turns() -> Result<()> {
    let log = MemoryLog::new();
    let model = Scripted::new([says("lost"), says("never")])?;
    let engine = Engine::new(model.clone());
    engine.chat("go").max_turns(1).record(&log).run_id("k").await?;
    let log = copy(&log, "k", 2).await;
    assert_eq!(kinds(&log, "k").await, ["run_started", "turn_started"]);
    let done = engine.resume(&log, "k").await?;
    assert_eq!((done.halted_reason.as_str(), model.calls()), ("max_turns", 1));
    assert_eq!(mynah::replay_run(&log, "k").await?.status, "equal");
    // More turns let it answer.
    let done = engine.resume(&log, "k").max_turns(2).await?;
    assert_eq!((done.run_id.as_deref(), &*done.text()), (Some("k~2"), "never"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_that_always_crashes_in_its_model_call_waits_before_its_turns_are_used_up()
-> Result<()> {
    let engine = Engine::new(Scripted::new((0..9).map(|n| says(&format!("said {n}"))))?);
    let mut log = MemoryLog::new();
    engine.chat("go").record(&log).run_id("k").await?;
    for crash in 1.. {
        let started = kinds(&log, "k").await.iter().rposition(|kind| kind == "turn_started");
        log = copy(&log, "k", started.expect("a model call") as u64 + 1).await;
        drop(log.lease("k", "dead", Duration::from_nanos(1)).await?);
        let resumed = engine.resume(&log, "k").await?;
        if resumed.halted_reason.as_str() == "crash_loop" {
            assert_eq!(crash, 6);
            break;
        }
        assert_eq!(resumed.halted_reason.as_str(), "completed", "crash {crash}");
    }
    assert!(engine.resume(&log, "k").await?.text().starts_with("said"));
    Ok(())
}
