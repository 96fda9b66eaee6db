//! Checking what a log keeps, its index and its list of seals included.

use mynah_data::Result;

use crate::{Corrupt, Hash, Log, Report, RunSummary, SealedRun, Verifier, entry, merkle::Tree};

const PORTION: usize = 256;

/// Checks a run as a log keeps it: its records, and what the log's index and its list of seals say
/// of it. Memory does not grow with the run. A run that goes on meanwhile is checked up to where
/// it was at the beginning.
///
/// # Errors
/// The first thing that is wrong, a run that is not there, or a log that cannot be read.
pub async fn verify_run(log: &dyn Log, run: &str) -> Result<Report> {
    let Some(indexed) = log.run(run).await? else { return Err(entry::not_found(run)) };
    let mut verifier = Verifier::new(run);
    let mut found: Option<RunSummary> = None;
    loop {
        let seen = found.as_ref().map_or(0, |found| found.records);
        // The last portion is empty, or tells that there is more than the index counts.
        let wanted = usize::try_from(indexed.records - seen).unwrap_or(PORTION).clamp(1, PORTION);
        let records = log.read(run, seen + 1, wanted).await?;
        if seen == indexed.records {
            break;
        }
        if records.is_empty() {
            let what = format!("it is missing: the index counts {} records", indexed.records);
            return Err(corrupt(run, seen + 1, what).into());
        }
        for record in &records {
            if let Err(wrong) = verifier.check(record) {
                let vouched = expected(log, &indexed, record.seq()).await;
                return Err(verifier.blame(wrong, vouched).into());
            }
            found.get_or_insert_with(|| RunSummary::begin(record)).count(record);
        }
    }
    let report = verifier.report();
    let found = found.ok_or_else(|| corrupt(run, 1, "the index has a run without records"))?;
    compare(&indexed, &found, report.redacted > 0)
        .map_err(|what| corrupt(run, found.records, what))?;
    check_seal(log, &indexed, &report).await?;
    Ok(report)
}

/// Checks what no run tells by itself: that nothing lies in the log that belongs to no run, and that
/// its list of seals is that of its runs. Gives the tree over the list. No run is read: [`verify_run`]
/// is for that.
///
/// # Errors
/// The first thing that is wrong, or a log that cannot be read.
pub async fn verify_seals(log: &dyn Log) -> Result<Tree> {
    log.check().await?;
    let mut tree = Tree::new();
    loop {
        let seals = log.seals(tree.size(), PORTION).await?;
        if seals.is_empty() {
            return Ok(tree);
        }
        for seal in &seals {
            let run = log.run(&seal.run).await?;
            let run =
                run.ok_or_else(|| corrupt(&seal.run, 0, "the log has its seal, but no such run"))?;
            if run.seal != Some(tree.size()) || run.hash != seal.fingerprint {
                let what = "it is not the seal that the log's list of seals has for the run";
                return Err(corrupt(&seal.run, run.records, what).into());
            }
            tree.push(seal.leaf());
        }
    }
}

/// The hash that a record has to have, as others tell: the record after it, or the index.
async fn expected(log: &dyn Log, indexed: &RunSummary, seq: u64) -> Option<Hash> {
    if seq == indexed.records {
        return Some(indexed.hash);
    }
    let after = log.read(&indexed.run_id, seq.checked_add(1)?, 1).await.ok()?;
    after.first()?.envelope().prev
}

/// What the index says otherwise than the records. What was taken away cannot be counted again.
fn compare(indexed: &RunSummary, found: &RunSummary, redacted: bool) -> Result<(), String> {
    let differ = |what: &str, indexed: &dyn std::fmt::Debug, found: &dyn std::fmt::Debug| {
        let (indexed, found) = (format!("{indexed:?}"), format!("{found:?}"));
        // As text, since a sum that is not a number does not equal itself.
        if indexed == found {
            return Ok(());
        }
        Err(format!("the index says {what} {indexed}, the records say {found}"))
    };
    differ("status", &indexed.status, &found.status)?;
    differ("started", &indexed.started, &found.started)?;
    differ("updated", &indexed.updated, &found.updated)?;
    differ("hash", &indexed.hash, &found.hash)?;
    if redacted {
        return Ok(());
    }
    differ("model", &indexed.model, &found.model)?;
    differ("session", &indexed.session_id, &found.session_id)?;
    differ("totals", &indexed.totals, &found.totals)
}

/// Whether the log's list of seals has a run's seal, at the place that the index names.
async fn check_seal(log: &dyn Log, indexed: &RunSummary, report: &Report) -> Result<()> {
    let run = &indexed.run_id;
    let what = match (report.fingerprint, indexed.seal) {
        (None, None) => return Ok(()),
        (Some(_), None) => "it is a seal that the log's list of seals does not have",
        (None, Some(_)) => "the log's list of seals has a seal for the run, and this is not it",
        (Some(fingerprint), Some(place)) => {
            let listed = log.seals(place, 1).await?;
            if listed == [SealedRun::new(run.clone(), fingerprint)] {
                return Ok(());
            }
            "the log's list of seals has another seal for the run"
        }
    };
    Err(corrupt(run, indexed.records, what).into())
}

fn corrupt(run: &str, seq: u64, what: impl Into<String>) -> Corrupt {
    Corrupt { run: run.to_owned(), seq, what: what.into() }
}
