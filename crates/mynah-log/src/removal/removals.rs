//! What was taken out of a log, all together.

use std::collections::{BTreeMap, HashMap};

use mynah_data::Result;

use super::{MAINTENANCE, Removed, Tombstone};
use crate::{Chain, Corrupt, Hash, Head, Log, Record, audit};

/// What was taken out of a log: its maintenance run, verified, by the runs that its tombstones name. It takes memory for each
/// removal, and none for what is there.
///
/// ```
/// use mynah_log::{MemoryLog, Removals};
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
    runs: HashMap<String, Gone>,
}

/// What was taken away of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gone {
    /// Where its tombstones stand in the maintenance run.
    pub(crate) tombstones: Vec<u64>,
    /// The records that lost their bodies.
    pub(crate) bodies: BTreeMap<u64, Hash>,
    pub(crate) run: Option<Pruned>,
}

/// A run that was taken out of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// The place of its tombstone in the maintenance run.
    pub tombstone: u64,
    /// When it was taken out, in nanoseconds since 1970.
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
    pub async fn read(log: &dyn Log) -> Result<Self> {
        let mut removals =
            Self { chain: Chain::new(MAINTENANCE), hashes: Vec::new(), runs: HashMap::new() };
        if let Some(indexed) = log.run(MAINTENANCE).await? {
            let walked = audit::walk(log, &indexed, |record| Ok(removals.take(record)?));
            let verifier = walked.await?.0;
            removals.chain = verifier.into_chain().0;
        }
        Ok(removals)
    }

    /// Where the maintenance run ends; none if nothing was ever taken away.
    pub fn head(&self) -> Option<Head> {
        self.chain.head()
    }

    /// Whether a run was taken out of the log.
    pub fn is_pruned(&self, run: &str) -> bool {
        self.of(run).is_some_and(|gone| gone.run.is_some())
    }

    /// Whether a record's body was taken away.
    pub fn is_redacted(&self, record: &Record) -> bool {
        let gone = self.of(&record.envelope().run);
        gone.is_some_and(|gone| gone.bodies.get(&record.seq()) == Some(&record.hash()))
    }

    pub(crate) fn of(&self, run: &str) -> Option<&Gone> {
        self.runs.get(run)
    }

    /// The runs that were taken out of the log, by their ids, in no order.
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

    fn take(&mut self, record: &Record) -> std::result::Result<(), Corrupt> {
        let seq = record.seq();
        let wrong = |what: String| Corrupt { run: MAINTENANCE.to_owned(), seq, what };
        let Tombstone { run_id, removed, .. } = Tombstone::of(record).map_err(wrong)?;
        self.hashes.push(record.hash());
        let gone = self.runs.entry(run_id.clone()).or_default();
        if gone.run.is_some() {
            return Err(wrong("it names a run that was gone already".to_owned()));
        }
        gone.tombstones.push(seq);
        match removed {
            Removed::Bodies(records) => gone.bodies.extend(records),
            Removed::Run { hash, sealed, .. } => {
                let at = record.envelope().ts;
                gone.run = Some(Pruned { tombstone: seq, at, hash, sealed });
            }
        }
        Ok(())
    }
}
