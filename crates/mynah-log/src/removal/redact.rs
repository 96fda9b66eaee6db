//! Taking away what records hold.

use std::time::Duration;

use mynah_data::{Error, Result, RunId};

use super::{Removals, Removed, Stripped, Warrant, bury};
use crate::{Auditor, Hash, Kind, Log, Record, RunSummary, entry};

/// How many records one tombstone names at most.
const NAMED: usize = 1024;

/// For how long a run without its seal is kept from others.
const TERM: Duration = Duration::from_secs(3);

/// How many records are read at once.
const PORTION: usize = 256;

/// Removes the bodies of records: personal data, secrets. The envelopes stay, so the run still
/// verifies. It cannot be replayed.
///
/// ```
/// # mod mynah { pub use mynah_log as log; }
/// use mynah::log::{Kind, Log, MemoryLog, Redact, Warrant, verify_run};
/// use mynah::log::conformance::Sample;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah_data::Result<()> {
/// # let log = MemoryLog::new();
/// # log.append(Sample::new("run-1", 0).user("my card is 4111").sealed().batch()).await?;
/// let redact = Redact::kind("run-1", Kind::UserMessage);
/// assert_eq!(redact.candidates(&log).await?.len(), 1);
/// redact.perform(&log, &Warrant::new("ann", "card number", 0)).await?;
/// assert_eq!(verify_run(&log, "run-1").await?.redacted, 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is removed until `perform` is called"]
pub struct Redact {
    run: RunId,
    which: Which,
}

#[derive(Clone, Debug)]
enum Which {
    Records(Vec<u64>),
    Kind(Kind),
    All,
}

/// A record whose body can be removed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Redactable {
    /// Its place in the run.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
    /// What kind of fact it holds.
    pub kind: Kind,
    /// How many bytes.
    pub bytes: u64,
}

impl Redact {
    /// These records of a run.
    pub fn records(run: impl Into<RunId>, seqs: impl IntoIterator<Item = u64>) -> Self {
        let mut seqs: Vec<u64> = seqs.into_iter().collect();
        seqs.sort_unstable();
        seqs.dedup();
        Self { run: run.into(), which: Which::Records(seqs) }
    }

    /// All records of this kind of a run.
    pub fn kind(run: impl Into<RunId>, kind: Kind) -> Self {
        Self { run: run.into(), which: Which::Kind(kind) }
    }

    /// All records of a run but its seal, which holds nothing of what was said.
    pub fn all(run: impl Into<RunId>) -> Self {
        Self { run: run.into(), which: Which::All }
    }

    /// What would go: nothing is changed. Records whose bodies are gone already are not among them.
    ///
    /// # Errors
    /// A run or a record that is not there, a seal, or a log that cannot be read.
    pub async fn candidates(&self, log: &dyn Log) -> Result<Vec<Redactable>> {
        Ok(self.find(log).await?.into_iter().map(|(found, _)| found).collect())
    }

    async fn find(&self, log: &dyn Log) -> Result<Vec<(Redactable, Stripped)>> {
        let run = log.run(&self.run).await?.ok_or_else(|| entry::not_found(&self.run))?;
        self.check(&run)?;
        let mut found = Vec::new();
        let mut next = 1;
        while next <= run.records {
            let records = log.read(&self.run, next, PORTION).await?;
            for record in &records {
                if let Some(body) = record.body().filter(|_| self.picks(&run, record)) {
                    let kind = record.kind();
                    let bytes = body.payload.len() as u64;
                    let (seq, hash) = (record.seq(), record.hash());
                    found.push((Redactable { seq, hash, kind, bytes }, Stripped::of(record)));
                }
            }
            next += records.len().max(1) as u64;
        }
        Ok(found)
    }

    /// Removes them in one commit, and returns what was removed. A corrupt run is left alone.
    /// [`Log::wipe`] then erases their bytes from the log's files.
    ///
    /// # Errors
    /// Those of [`candidates`](Self::candidates), a run that is corrupt, or one that a process
    /// holds.
    pub async fn perform(&self, log: &dyn Log, warrant: &Warrant) -> Result<Vec<Redactable>> {
        Auditor::new(log).verify_run(&self.run).await?;
        if log.run(&self.run).await?.is_none_or(|run| run.seal.is_some()) {
            return self.take_away(log, warrant).await;
        }
        // No process may continue the run meanwhile.
        let owner = format!("redact by {}", warrant.by);
        let lease = log.lease(&self.run, &owner, TERM).await?;
        let taken = self.take_away(log, warrant).await;
        log.release(&lease);
        taken
    }

    async fn take_away(&self, log: &dyn Log, warrant: &Warrant) -> Result<Vec<Redactable>> {
        let (found, stripped): (_, Vec<_>) = self.find(log).await?.into_iter().unzip();
        let tombstones = stripped.chunks(NAMED).map(|chunk| {
            (warrant.at, warrant.tombstone(&self.run, Removed::Bodies(chunk.to_vec())))
        });
        let chain = Removals::read(log).await?.into_chain();
        bury(log, chain, &tombstones.collect::<Vec<_>>()).await?;
        Ok(found)
    }

    fn picks(&self, run: &RunSummary, record: &Record) -> bool {
        match &self.which {
            Which::Records(seqs) => seqs.binary_search(&record.seq()).is_ok(),
            Which::Kind(kind) => record.kind() == *kind,
            Which::All => !is_seal(run, record.seq()),
        }
    }

    fn check(&self, run: &RunSummary) -> Result<()> {
        let wrong = |field, code, why: String| {
            Err(Error::invalid_option(field, code).with_message(why).with("run_id", &*self.run))
        };
        if self.run == super::MAINTENANCE {
            return wrong("run", "tombstone", "tombstones keep their bodies".to_owned());
        }
        match &self.which {
            Which::Records(seqs) => {
                let missing = seqs.iter().find(|seq| !(1..=run.records).contains(seq));
                if let Some(seq) = missing {
                    let why =
                        format!("run {} has no record {seq}, it has {}", self.run, run.records);
                    return wrong("record", "not_found", why);
                }
                match seqs.last() {
                    Some(last) if is_seal(run, *last) => wrong("record", "seal", SEAL.to_owned()),
                    _ => Ok(()),
                }
            }
            Which::Kind(Kind::Sealed) => wrong("kind", "seal", SEAL.to_owned()),
            Which::Kind(_) | Which::All => Ok(()),
        }
    }
}

const SEAL: &str = "a seal keeps its body: it has no content of the conversation";

fn is_seal(run: &RunSummary, seq: u64) -> bool {
    run.seal.is_some() && seq == run.records
}
