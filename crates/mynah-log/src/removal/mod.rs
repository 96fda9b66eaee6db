//! Taking things out of a log, so that what is left still verifies.
//!
//! A log accounts for removals in a run of its own, the [maintenance run](MAINTENANCE): one record,
//! a [`Tombstone`], for each removal. Appending the tombstone removes what it names; there is no
//! other way. So nothing is removed without one, and missing data without one is damage. Each is a
//! leaf of the log's tree.

mod prune;
mod redact;
mod removals;

use mynah_data::{ErrorKind, LogReason, Result, RunId};
use serde::{Deserialize, Serialize};

use crate::{
    Append, Chain, Fact, Hash, Kind, Log, Record, RunSummary, Totals, record_summary::RecordSummary,
};

pub use prune::{Prune, PruneReport};
pub use redact::{Redact, Redactable};
pub(crate) use removals::Gone;
pub use removals::{Pruned, Removals};

/// The id of the run in which a log accounts for removals.
///
/// It is read like any run. It has tombstones and nothing else, never a seal, and is not listed among the others.
pub const MAINTENANCE: &str = "log:maintenance";

/// Something was removed from a log: what, by whom, and why. Its record says when.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tombstone {
    /// The run that it was a part of.
    pub run_id: RunId,
    /// What was removed.
    pub removed: Removed,
    /// Who did it.
    pub by: String,
    /// Why.
    pub reason: String,
}

impl Tombstone {
    /// The tombstone in a record.
    ///
    /// # Errors
    /// What it is instead, in words.
    pub(crate) fn of(record: &Record) -> std::result::Result<Self, String> {
        match record.strict_fact()? {
            Some(Fact::Removed(tombstone)) => Ok(tombstone),
            _ => Err("it does not name what to remove".to_owned()),
        }
    }
}

/// What was removed from a log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Removed {
    /// The bodies of these records. Their envelopes stay.
    Bodies(Vec<Stripped>),
    /// The whole run. If it had its seal, that stays in the log's list of seals.
    Run {
        /// How many records it had.
        records: u64,
        /// The hash of the last of them: of its seal, if it had one.
        hash: Hash,
        /// Whether it had its seal.
        sealed: bool,
    },
}

/// A record that lost its body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
#[non_exhaustive]
pub struct Stripped {
    /// Its place in the run.
    pub seq: u64,
    /// Its hash.
    pub hash: Hash,
    /// What the body added to the totals of the run, so that they can be computed without it. Turns
    /// are not included: the kind of a record gives them.
    pub adds: Totals,
    /// A commitment to the model and the session that the index took from the record, to check the
    /// index against. None if records of its kind name neither, or the names are unknown.
    pub names: Option<Hash>,
}

impl Stripped {
    /// A record whose body had added nothing.
    pub fn new(seq: u64, hash: Hash) -> Self {
        Self { seq, hash, adds: Totals::default(), names: None }
    }

    /// The same, of a body that had added this.
    pub fn adding(self, adds: Totals) -> Self {
        Self { adds: Totals { turns: 0, ..adds }, ..self }
    }

    fn of(record: &Record) -> Self {
        let stripped = Self::new(record.seq(), record.hash());
        stripped.adding(record.gist().adds.clone()).naming(record, record.gist())
    }

    /// The same, where the index has this from the record.
    pub(crate) fn naming(self, record: &Record, gist: &RecordSummary) -> Self {
        let names = record.kind().names().then(|| gist.names(&record.envelope().body));
        Self { names, ..self }
    }

    /// What the body had added to the totals of the run, in a record of this kind.
    fn adds_as(&self, kind: Kind) -> Totals {
        Totals { turns: u64::from(kind == Kind::TurnStarted), ..self.adds.clone() }
    }
}

/// The serialized form. Empty members at its end are left out.
#[derive(Serialize, Deserialize)]
struct Written(
    u64,
    Hash,
    #[serde(default, skip_serializing_if = "Option::is_none")] Option<Totals>,
    #[serde(default, skip_serializing_if = "Option::is_none")] Option<Hash>,
);

impl From<Written> for Stripped {
    fn from(Written(seq, hash, adds, names): Written) -> Self {
        Self { seq, hash, adds: adds.unwrap_or_default(), names }
    }
}

impl From<Stripped> for Written {
    fn from(Stripped { seq, hash, adds, names }: Stripped) -> Self {
        let is_written = names.is_some() || adds != Totals::default();
        Self(seq, hash, is_written.then_some(adds), names)
    }
}

/// Who removes something, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warrant {
    /// Who does it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When, in nanoseconds since 1970: logs have no clock.
    pub at: i64,
}

impl Warrant {
    /// On this one's word, for this reason, now.
    pub fn new(by: impl Into<String>, reason: impl Into<String>, at: i64) -> Self {
        Self { by: by.into(), reason: reason.into(), at }
    }

    /// The tombstone of a whole run.
    fn of(&self, run: &RunSummary) -> Tombstone {
        let (records, hash, sealed) = (run.records, run.hash, run.seal.is_some());
        self.tombstone(&run.run_id, Removed::Run { records, hash, sealed })
    }

    fn tombstone(&self, run: &str, removed: Removed) -> Tombstone {
        let (by, reason) = (self.by.clone(), self.reason.clone());
        Tombstone { run_id: run.into(), removed, by, reason }
    }
}

/// The run that a run continues, from its first record.
pub fn previous_run(first: &Record) -> Option<RunId> {
    match first.fact().ok()?? {
        Fact::RunStarted { about, .. } => Some(about?.session?.previous?.run_id),
        _ => None,
    }
}

/// Tombstones hide nothing, and keep their bodies.
const SALT: [u8; 16] = [0; 16];

/// Removes what these tombstones name, each at its own time, all in one commit. They follow the
/// chain of the maintenance run, which comes back with them.
pub(crate) async fn bury(
    log: &dyn Log,
    mut chain: Chain,
    tombstones: &[(i64, Tombstone)],
) -> Result<Chain> {
    if tombstones.is_empty() {
        return Ok(chain);
    }
    loop {
        let expected = chain.head();
        let records = tombstones
            .iter()
            .map(|(at, tombstone)| chain.append(*at, SALT, &Fact::Removed(tombstone.clone())))
            .collect::<Result<_>>()?;
        match log.append(Append::new(MAINTENANCE, expected, records)).await {
            // Someone else was faster to take something away.
            Err(error)
                if error.kind() == ErrorKind::Log(LogReason::HeadMismatch)
                    && error.metadata().get("run_id").is_some_and(|run| run == MAINTENANCE) =>
            {
                chain = Removals::read(log).await?.into_chain();
            }
            done => return done.map(|_| chain),
        }
    }
}
