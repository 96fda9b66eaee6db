//! Runs that are ended or branched from outside, whatever they were at.

mod plans;

use std::sync::Arc;

use mynah::{
    Tools, cancel_run, fork_run,
    log::{Append, Fact, Log, MemoryLog, Record, RunStatus, verify_run},
    replay_run,
};
use plans::{Plan, cases, plan, runtime};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(200), ..ProptestConfig::default() })]

    #[test]
    fn a_run_that_is_cancelled_after_any_record_verifies_and_replays(plan in plan(), extent in 0..3u8) {
        runtime().block_on(async {
            let (run, records) = kept(&plan, extent).await;
            for cut in 1..records.len() {
                let log = cut_off(&records[..=cut - 1]).await?;
                let ended = match records[cut - 1].fact() {
                    Ok(Some(Fact::Completed(_))) => RunStatus::Completed,
                    Ok(Some(Fact::Failed(_))) => RunStatus::Failed,
                    _ => RunStatus::Cancelled,
                };
                let told = format!("record {cut} of {}, {}", records.len(), records[cut - 1].envelope().kind);
                prop_assert_eq!(cancel_run(&log, &run).await, Ok(ended), "{}", told);
                let report = verify_run(&log, &run).await.map_err(failed)?;
                prop_assert_eq!(report.status, "verified", "{}", told);
                prop_assert_eq!(report.records, cut as u64 + if ended == RunStatus::Cancelled { 2 } else { 1 }, "{}", told);
                for tools in [Tools::Recorded, Tools::Rerun] {
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
            let replayed = plan.engine().replay(&log, &*branch.run_id).replay_tools(Tools::Recorded).await;
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

/// A run of this plan: a single call, a step or a chat.
async fn kept(plan: &Plan, extent: u8) -> (Arc<str>, Vec<Record>) {
    let log = MemoryLog::new();
    let (engine, options) = (plan.engine(), plan.options());
    let mut stream = match extent {
        0 => engine.generate("go").options(options).record(&log).stream(),
        1 => engine.step("go").options(options).record(&log).stream(),
        _ => engine.chat("go").options(options).record(&log).stream(),
    };
    let run = Arc::from(stream.run_id().unwrap_or_default());
    while let Some(Ok(_)) = futures_util::StreamExt::next(&mut stream).await {}
    let records = log.read(&run, 1, 10_000).await.unwrap_or_default();
    (run, records)
}

/// A log in which a run ends with the last of these records.
async fn cut_off(records: &[Record]) -> Result<MemoryLog, TestCaseError> {
    let log = MemoryLog::new();
    if let Some(first) = records.first() {
        let run = Arc::clone(&first.envelope().run);
        log.append(Append::new(run, None, records.to_vec())).await.map_err(failed)?;
    }
    Ok(log)
}

fn failed(error: mynah::Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}
