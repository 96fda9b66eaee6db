//! What was removed from a log, all together.

use mynah_data::RunId;
use std::collections::{BTreeMap, HashMap};

use super::{MAINTENANCE, Removed, Stripped, Tombstone};
use crate::{Chain, Corrupt, Hash, Head, Log, Record, audit, entry, record_summary::RecordSummary};

/// What was removed from a log: its maintenance run, verified, by the runs that its tombstones
/// name. It takes memory for each removal, and none for what is there.
///
/// ```
/// # mod mynah { pub use mynah_log as log; }
/// use mynah::log::{MemoryLog, Removals};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah_data::Result<()> {
/// let removals = Removals::read(&MemoryLog::new()).await?;
/// assert_eq!((removals.head(), removals.is_pruned("run-1")), (None, false));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Removals {
    chain: Chain,
    /// The hashes of the tombstones, in order.
    hashes: Vec<Hash>,
    runs: HashMap<RunId, Gone>,
}

/// What was removed from one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gone {
    /// Where its tombstones stand in the maintenance run.
    pub(crate) tombstones: Vec<u64>,
    /// The records that lost their bodies.
    pub(crate) bodies: BTreeMap<u64, Stripped>,
    pub(crate) run: Option<Pruned>,
}

impl Gone {
    /// Whether this record lost its body.
    pub(crate) fn names(&self, seq: u64, hash: Hash) -> bool {
        self.bodies.get(&seq).is_some_and(|stripped| stripped.hash == hash)
    }

    pub(crate) fn strip(&mut self, records: impl IntoIterator<Item = Stripped>) {
        self.bodies.extend(records.into_iter().map(|stripped| (stripped.seq, stripped)));
    }

    /// A record for counting. One without a body adds what its tombstone states.
    ///
    /// # Errors
    /// A body that is missing without a tombstone, or there in spite of one.
    pub(crate) fn counted(gone: Option<&Self>, record: &Record) -> Result<Record, Corrupt> {
        let named = gone.and_then(|gone| gone.bodies.get(&record.seq()));
        let what = match (record.body(), named) {
            (Some(_), None) => return Ok(record.clone()),
            (None, None) => "its body is missing, and no tombstone explains it",
            (_, Some(stripped)) if stripped.hash != record.hash() => {
                "a tombstone names another record in its place"
            }
            (None, Some(stripped)) => {
                let adds = stripped.adds_as(record.kind());
                let gist = RecordSummary { adds, ..RecordSummary::default() };
                return Ok(record.clone().with_gist(gist));
            }
            (Some(_), Some(_)) => "a tombstone removes its body, which still exists",
        };
        Err(Corrupt::new(&record.envelope().run_id, record.seq(), what))
    }
}

/// A run that was removed from a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// The place of its tombstone in the maintenance run.
    pub tombstone: u64,
    /// When it was removed, in nanoseconds since 1970.
    pub at: i64,
    /// The hash of its last record.
    pub hash: Hash,
    /// Whether that was its seal.
    pub sealed: bool,
}

impl Removals {
    /// Reads and verifies the maintenance run of a log.
    ///
    /// # Errors
    /// The first tombstone that is wrong, or a log that cannot be read.
    pub async fn read(log: &dyn Log) -> mynah_data::Result<Self> {
        let mut removals =
            Self { chain: Chain::new(MAINTENANCE), hashes: Vec::new(), runs: HashMap::new() };
        if let Some(indexed) = log.run(MAINTENANCE).await? {
            let walked = audit::walk_knowing(log, &indexed, None, |r| Ok(removals.take(r)?));
            let verifier = walked.await?.0;
            removals.chain = verifier.into_chain().0;
        }
        Ok(removals)
    }

    /// Where the maintenance run ends; none if nothing was ever removed.
    pub fn head(&self) -> Option<Head> {
        self.chain.head()
    }

    /// Whether a run was removed from the log.
    pub fn is_pruned(&self, run: &str) -> bool {
        self.of(run).is_some_and(|gone| gone.run.is_some())
    }

    /// Why there is no such run: it was removed from the log, or it never was in it.
    pub fn absence(&self, run: &str) -> mynah_data::Error {
        if self.is_pruned(run) { entry::pruned(run) } else { entry::not_found(run) }
    }

    /// Whether a record's body was removed.
    pub fn is_redacted(&self, record: &Record) -> bool {
        let gone = self.of(&record.envelope().run_id);
        gone.is_some_and(|gone| gone.names(record.seq(), record.hash()))
    }

    pub(crate) fn of(&self, run: &str) -> Option<&Gone> {
        self.runs.get(run)
    }

    /// The runs that were removed from the log, by their ids, in no order.
    pub fn pruned(&self) -> impl Iterator<Item = (&str, Pruned)> {
        self.runs.iter().filter_map(|(run, gone)| Some((&**run, gone.run?)))
    }

    /// The hash of the tombstone in this place of the maintenance run.
    pub(crate) fn hash(&self, seq: u64) -> Option<Hash> {
        let place = usize::try_from(seq.checked_sub(1)?).ok()?;
        self.hashes.get(place).copied()
    }

    pub(crate) fn into_chain(self) -> Chain {
        self.chain
    }

    fn take(&mut self, record: &Record) -> Result<(), Corrupt> {
        let seq = record.seq();
        let wrong = |what: String| Corrupt { run_id: MAINTENANCE.into(), seq, what };
        let Tombstone { run_id, removed, .. } = Tombstone::of(record).map_err(wrong)?;
        self.hashes.push(record.hash());
        let gone = self.runs.entry(run_id.clone()).or_default();
        if gone.run.is_some() {
            return Err(wrong("it names a run that was gone already".to_owned()));
        }
        gone.tombstones.push(seq);
        match removed {
            Removed::Bodies(records) => gone.strip(records),
            Removed::Run { hash, sealed, .. } => {
                let at = record.envelope().ts;
                gone.run = Some(Pruned { tombstone: seq, at, hash, sealed });
            }
        }
        Ok(())
    }
}
