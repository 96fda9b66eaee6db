//! The log's index is compared with a run's records before anything is added to them.

use std::time::{Duration, SystemTime};

use mynah::{
    Engine, ErrorKind, LogReason, Result, ToolMode, World, cancel_run,
    log::{
        Fact, Log, LogFuture, MemoryLog, Record, Redact, RunStatus, RunSummary, Warrant,
        forward_log, verify_run,
    },
    step::Config,
    testing::Scripted,
};
use serde_json::{Value, json};

#[tokio::test]
async fn a_run_whose_tail_was_cut_neither_goes_on_nor_is_ended() -> Result<()> {
    let (kept, run) = waiting().await?;
    let last = kept.head(&run).await?.map_or(0, |head| head.seq);
    let log = Tampered { kept, last: Some(last - 1), index: |_| () };
    let missing = format!("it is missing: the index counts {last} records");
    for error in refusals(&log, &run).await? {
        assert_eq!(error, (ErrorKind::Log(LogReason::Corrupt), json!(last), json!(missing)));
    }
    Ok(())
}

#[tokio::test]
async fn an_index_that_says_something_else_than_the_records_is_not_overwritten() -> Result<()> {
    type Change = fn(&mut RunSummary);
    let changes: [(Change, &str, u64); 3] = [
        (|index| index.status = RunStatus::Completed, "status: the index says completed", 0),
        (|index| index.hash.0[0] ^= 1, "hash: the index says ", 0),
        (|index| index.records -= 1, "status: the index says suspended", 1),
    ];
    for (index, says, before_last) in changes {
        let (kept, run) = waiting().await?;
        let last = kept.head(&run).await?.map_or(0, |head| head.seq);
        let log = Tampered { kept, last: None, index };
        for (kind, seq, what) in refusals(&log, &run).await? {
            let named = json!(last - before_last);
            assert_eq!((kind, seq), (ErrorKind::Log(LogReason::Corrupt), named));
            assert!(what.as_str().is_some_and(|what| what.starts_with(says)), "{what}");
        }
        assert_eq!(log.kept.head(&run).await?.map_or(0, |head| head.seq), last);
    }
    Ok(())
}

#[tokio::test]
async fn totals_that_were_changed_after_a_redaction_are_not_sealed() -> Result<()> {
    let (kept, run) = waiting().await?;
    let warrant = Warrant::new("ann", "she asked for it", 0);
    Redact::records(run.as_str(), [3]).perform(&kept, &warrant).await?;
    let last = kept.head(&run).await?.map_or(0, |head| head.seq);
    let log = Tampered { kept, last: None, index: |index| index.totals.input_tokens += 1_000 };
    let error = cancel_run(&log, &run).await.expect_err("other totals than the records have");
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::Corrupt), "{error}");
    assert!(error.to_string().contains("input tokens: the index says "), "{error}");
    assert_eq!(log.kept.head(&run).await?.map_or(0, |head| head.seq), last, "nothing was added");
    Ok(())
}

#[tokio::test]
async fn a_waiting_run_is_ended_whatever_was_taken_out_of_it() -> Result<()> {
    let (log, run) = waiting().await?;
    let before = log.run(&run).await?.map(|indexed| indexed.totals);
    let warrant = Warrant::new("ann", "she asked for it", 0);
    Redact::records(run.as_str(), [1, 3]).perform(&log, &warrant).await?;
    assert_eq!(cancel_run(&log, &run).await?, RunStatus::Cancelled);
    let report = verify_run(&log, &run).await?;
    assert_eq!((report.status.as_str(), report.redacted), ("verified", 2));
    let records = log.read(&run, report.records, 1).await?;
    let Ok(Some(Fact::Sealed(seal))) = records[0].fact() else { panic!("{records:?}") };
    assert_eq!((Some(seal.totals.clone()), seal.totals.turns), (before, 1));
    Ok(())
}

#[tokio::test]
async fn a_run_is_ended_at_the_time_of_the_callers_world() -> Result<()> {
    struct Noon;
    impl World for Noon {
        fn now(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000)
        }

        fn random(&self) -> u64 {
            12
        }
    }
    let (log, run) = waiting().await?;
    cancel_run(&log, &run).world(Noon).await?;
    let ended = log.run(&run).await?.map(|indexed| indexed.updated);
    assert_eq!(ended, Some(4_000_000_000_000_000_000));
    Ok(())
}

/// Why a run is neither resumed nor ended, nor performed by a loop of its own: the kind of error, the record that it names, and what is wrong with it.
#[expect(clippy::expect_used, reason = "what is done all the same fails the test")]
async fn refusals(log: &Tampered, run: &str) -> Result<[(ErrorKind, Value, Value); 4]> {
    let resumed = engine()?.resume(log, run).tool_result("c0", 1).await.map(drop);
    let own_loop = || Config::new(log, run);
    let errors = [
        resumed,
        cancel_run(log, run).await.map(drop),
        own_loop().resume().await.map(drop),
        own_loop().replay().await.map(drop),
    ];
    Ok(errors.map(|refused| {
        let error = refused.expect_err("it is not what it was");
        (error.kind(), error.metadata()["seq"].clone(), error.metadata()["what"].clone())
    }))
}

/// A run that waits for its caller's tool.
async fn waiting() -> Result<(MemoryLog, String)> {
    let log = MemoryLog::new();
    let run = engine()?.chat("pay").mode(ToolMode::Manual).record(&log).await?.run_id;
    Ok((log, run.unwrap_or_default().to_string()))
}

fn engine() -> Result<Engine> {
    let usage = json!({"usage": {"input_tokens": 3, "output_tokens": 4}});
    let calls =
        json!([{"tool_call": {"id": "c0", "name": "pay"}}, usage, {"finish": "tool_calls"}]);
    Ok(Engine::new(Scripted::new([calls])?))
}

/// A log with a change made from outside.
#[derive(Clone)]
struct Tampered {
    kept: MemoryLog,
    /// The last record that is left.
    last: Option<u64>,
    index: fn(&mut RunSummary),
}

impl Log for Tampered {
    fn read(&self, run: &str, from: u64, limit: usize) -> LogFuture<'_, Vec<Record>> {
        let read = self.kept.read(run, from, limit);
        Box::pin(async move {
            let mut records = read.await?;
            records.retain(|record| self.last.is_none_or(|last| record.seq() <= last));
            Ok(records)
        })
    }

    fn run(&self, run: &str) -> LogFuture<'_, Option<RunSummary>> {
        let found = self.kept.run(run);
        Box::pin(async move {
            let mut found = found.await?;
            found.iter_mut().for_each(self.index);
            Ok(found)
        })
    }

    forward_log!(self => self.kept, except read, run);
}
