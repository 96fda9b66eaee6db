//! Taking a bundle into a log.

use std::io::{BufRead, Seek};

use mynah_data::{Error, LogReason, Result, RunId};

use super::{
    Bundle,
    reader::{Item, Reader, unreadable},
};
use crate::{
    Append, Chain, Hash, Head, Log, MAINTENANCE, Record, Removals, Removed, Stripped, Tombstone,
    VerifyReport, entry, record_summary::RecordSummary, removal::bury,
};

/// How many bytes of records are appended at once, about.
const HELD: usize = if cfg!(test) { 4 << 10 } else { 16 << 20 };

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imported {
    /// The run.
    pub run_id: RunId,
    /// What it was found to be.
    pub report: VerifyReport,
    /// How many of its records were new here; none if it was there already.
    pub added: u64,
    /// How many bodies of the bundle were redacted here, and stay away.
    pub withheld: u64,
}

/// Imports the run of a bundle into a log. The whole bundle is checked before anything is stored. A
/// run of ordinary size (about 16 MiB) is stored in one commit. An interrupted import of a larger
/// one leaves its beginning, like a run in progress; importing it again continues from there. The
/// tombstones of missing bodies are stored before the records that they name.
///
/// A run that is there already stays as it is: what the bundle has beyond its end is added. Bodies that were redacted here stay away.
///
/// # Errors
/// A bundle that is not what it says; another run of the same id; one that was pruned here; a log or a file that cannot be used.
pub async fn import(log: &dyn Log, mut input: impl BufRead + Seek) -> Result<Imported> {
    let mut reader = Reader::open(&mut input)?;
    let run = RunId::from(reader.run());
    let there = log.head(&run).await?;
    let removals = Removals::read(log).await?;
    let Checked { bundle, records, tombstones, head, at_there, withheld } =
        Checked::read(&mut reader, there, &removals)?;
    if run == MAINTENANCE {
        return Err(refused(&run, "it is the account of another log, and this one has its own"));
    }
    if removals.is_pruned(&run) {
        return Err(entry::pruned(&run));
    }
    let report = bundle.report;
    let added = match there {
        Some(there) if there.seq >= report.records => {
            let last = log.read(&run, report.records, 1).await?;
            if last.first().map(Record::hash) != Some(head) {
                return Err(refused(&run, "the log has another run of this id"));
            }
            return Ok(Imported { run_id: run, report, added: 0, withheld });
        }
        Some(there) if at_there != Some(there.hash) => {
            return Err(refused(&run, "the log has another run of this id"));
        }
        there => report.records - there.map_or(0, |there| there.seq),
    };
    let tombstones = missing(&removals, &run, tombstones, there);
    let chain = removals.clone().into_chain();
    let mut target =
        Target { log, removals, chain, tombstones, run, head: there, batch: Vec::new(), bytes: 0 };
    match records {
        Some(records) => {
            for record in records {
                target.take(record).await?;
            }
        }
        None => {
            input.rewind().map_err(unreadable)?;
            let mut reader = Reader::open(&mut input)?;
            loop {
                match reader.next()? {
                    Item::Tombstone(..) => {}
                    Item::Record(record) => target.take(record).await?,
                    Item::End(_) => break,
                }
            }
        }
    }
    target.flush().await?;
    Ok(Imported { run_id: target.run, report, added, withheld })
}

/// A bundle, read to its end.
struct Checked {
    bundle: Bundle,
    /// Its records; none if they are too many to be held.
    records: Option<Vec<Record>>,
    tombstones: Vec<(i64, Tombstone)>,
    /// The hash of the last record.
    head: Hash,
    /// The hash of the record where the run ends that is there.
    at_there: Option<Hash>,
    /// How many bodies it has that were redacted here.
    withheld: u64,
}

impl Checked {
    fn read<R: BufRead>(
        reader: &mut Reader<R>,
        there: Option<Head>,
        removals: &Removals,
    ) -> Result<Self> {
        let (mut records, mut bytes, mut withheld) = (Some(Vec::new()), 0, 0);
        let (mut tombstones, mut head, mut at_there) = (Vec::new(), Hash([0; 32]), None);
        let there = there.map_or(0, |there| there.seq);
        loop {
            match reader.next()? {
                Item::Tombstone(at, tombstone) => tombstones.push((at, tombstone)),
                Item::Record(record) => {
                    head = record.hash();
                    if record.seq() == there {
                        at_there = Some(head);
                    }
                    bytes += record.size();
                    withheld += u64::from(record.body().is_some() && removals.is_redacted(&record));
                    records = records.filter(|_| bytes <= HELD);
                    if let Some(records) = &mut records {
                        records.push(record);
                    }
                }
                Item::End(bundle) => {
                    return Ok(Self { bundle, records, tombstones, head, at_there, withheld });
                }
            }
        }
    }
}

/// Where records go.
struct Target<'l> {
    log: &'l dyn Log,
    removals: Removals,
    /// The log's maintenance run.
    chain: Chain,
    /// The tombstones of records that are not stored yet.
    tombstones: Vec<(i64, Tombstone)>,
    run: RunId,
    head: Option<Head>,
    batch: Vec<Record>,
    bytes: usize,
}

impl Target<'_> {
    /// Takes what is new, without bodies that were redacted here, and keeps it in portions.
    async fn take(&mut self, record: Record) -> Result<()> {
        if self.head.is_some_and(|head| head.seq >= record.seq()) {
            return Ok(());
        }
        self.bytes += record.size();
        let is_redacted = self.removals.is_redacted(&record);
        self.batch.push(if is_redacted { record.without_body() } else { record });
        if self.bytes > HELD { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        if let Some(last) = batch.last() {
            let tombstones = self.due(last.seq(), &batch);
            self.chain = bury(self.log, self.chain.clone(), &tombstones).await?;
            let append = Append::new(&*self.run, self.head, batch);
            self.head = Some(self.log.append(append).await?);
        }
        Ok(())
    }

    /// The tombstones of records up to this one, which need not be stored any more. They have no
    /// names for the index.
    fn due(&mut self, last: u64, batch: &[Record]) -> Vec<(i64, Tombstone)> {
        let nameless = |stripped: Stripped| {
            let place = batch.binary_search_by_key(&stripped.seq, Record::seq);
            match place.ok().and_then(|place| batch.get(place)) {
                Some(record) => stripped.naming(record, &RecordSummary::default()),
                None => stripped,
            }
        };
        let mut due = Vec::new();
        for (at, tombstone) in &mut self.tombstones {
            let Removed::Bodies(bodies) = &mut tombstone.removed else { continue };
            let named = bodies.extract_if(.., |stripped| stripped.seq <= last);
            let named: Vec<_> = named.map(nameless).collect();
            if !named.is_empty() {
                due.push((*at, Tombstone { removed: Removed::Bodies(named), ..tombstone.clone() }));
            }
        }
        due
    }
}

/// The tombstones, as far as they name records to come that this log has none for.
fn missing(
    removals: &Removals,
    run: &str,
    tombstones: Vec<(i64, Tombstone)>,
    there: Option<Head>,
) -> Vec<(i64, Tombstone)> {
    let there = there.map_or(0, |there| there.seq);
    let known = removals.of(run);
    let is_new = |Stripped { seq, hash, .. }: &Stripped| {
        *seq > there && known.is_none_or(|gone| !gone.names(*seq, *hash))
    };
    let new = tombstones.into_iter().filter_map(|(at, tombstone)| {
        let Removed::Bodies(mut bodies) = tombstone.removed else { return None };
        bodies.retain(is_new);
        let is_left = !bodies.is_empty();
        is_left.then_some((at, Tombstone { removed: Removed::Bodies(bodies), ..tombstone }))
    });
    new.collect()
}

fn refused(run: &str, why: &str) -> Error {
    Error::log(LogReason::HeadMismatch)
        .with_message(format!("log error: head_mismatch: run {run} is not imported: {why}"))
        .with("run_id", run)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Cursor,
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use super::*;
    use crate::{
        Auditor, LogFuture, MemoryLog, Redact, Warrant, bundle::export, conformance::Sample,
    };

    #[tokio::test]
    async fn what_an_interrupted_import_of_a_redacted_run_leaves_is_in_progress_until_it_is_finished()
     {
        let source = large().await;
        let redact = Redact::records("large", [2, 9, 15, 19]);
        redact.perform(&source, &Warrant::new("ann", "asked to", 5)).await.expect("a run");
        let mut file = Vec::new();
        export(&source, "large", &mut file).await.expect("a run");
        let records = source.read("large", 1, 100).await.expect("records");

        let mut beginnings = 0;
        for commits in 0.. {
            let target = Interrupted { log: MemoryLog::new(), left: commits.into() };
            if import(&target, Cursor::new(&file)).await.is_ok() {
                break;
            }
            let there = target.log.head("large").await.expect("a head").map(|head| head.seq);
            let mut auditor = Auditor::new(&target.log);
            auditor.verify_seals().await.expect("a sound list");
            if there.is_some() {
                beginnings += 1;
                let report = auditor.verify_run("large").await.expect("a sound beginning");
                assert_eq!((report.status.as_str(), Some(report.records)), ("in_progress", there));
                let mut part = Vec::new();
                let bundle = export(&target.log, "large", &mut part).await.expect("a beginning");
                assert_eq!(super::super::verify(&part[..]), Ok(bundle));
            }
            let imported = import(&target.log, Cursor::new(&file)).await.expect("a bundle");
            assert_eq!(imported.added, 21 - there.unwrap_or(0), "{commits} commits");
            assert_eq!(target.log.read("large", 1, 100).await.as_ref(), Ok(&records));
            let report = Auditor::new(&target.log).verify_run("large").await.expect("a sound run");
            assert_eq!((report.status.as_str(), report.redacted), ("verified", 4));
        }
        assert!(beginnings > 4, "it comes in portions");
    }

    #[tokio::test]
    async fn a_large_run_comes_in_portions_and_goes_on_where_it_was_interrupted() {
        let log = large().await;
        let mut file = Vec::new();
        export(&log, "large", &mut file).await.expect("a run");
        let records = log.read("large", 1, 100).await.expect("records");
        for interrupted in [0, 7] {
            let target = MemoryLog::new();
            if interrupted > 0 {
                let beginning = records[..interrupted].to_vec();
                target.append(Append::new("large", None, beginning)).await.expect("a beginning");
            }
            let imported = import(&target, Cursor::new(&file)).await.expect("a bundle");
            assert_eq!(imported.added, 21 - interrupted as u64);
            assert_eq!(target.read("large", 1, 100).await.as_ref(), Ok(&records));
        }
    }
    /// A log with a run that comes in portions.
    async fn large() -> MemoryLog {
        let (log, mut run) = (MemoryLog::new(), Sample::new("large", 0));
        for _ in 0..18 {
            run = run.user(&"x".repeat(1 << 10));
        }
        log.append(run.sealed().batch()).await.expect("a run");
        log
    }

    /// A log that fails after so many commits.
    struct Interrupted {
        log: MemoryLog,
        left: AtomicUsize,
    }

    impl Log for Interrupted {
        fn append(&self, batch: Append) -> LogFuture<'_, Head> {
            let left = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
            match left {
                Ok(_) => self.log.append(batch),
                Err(_) => Box::pin(async { Err(Error::log(LogReason::Unavailable)) }),
            }
        }

        crate::forward_log!(self => self.log);
    }
}
