//! Records and runs as programs outside Rust read them.

use mynah_data::{Result, RunId};
use serde::Serialize;

use crate::{Fact, Hash, Kind, Log, Parent, Record};

/// A record with its fact, to be written as JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RecordView {
    /// The run.
    pub run_id: RunId,
    /// The place in the run, from 1.
    pub seq: u64,
    /// Nanoseconds since 1970.
    pub ts: i64,
    /// What kind of fact.
    pub kind: Kind,
    /// The hash of the record before; none on the first.
    pub prev: Option<Hash>,
    /// The hash of this record.
    pub hash: Hash,
    /// The fact; none if its body was removed or cannot be read.
    pub fact: Option<Fact>,
    /// Why the body cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

impl Record {
    /// The record with its fact, to be written as JSON.
    pub fn view(&self) -> RecordView {
        let envelope = self.envelope();
        let (fact, unreadable) = match self.strict_fact() {
            Ok(fact) => (fact, None),
            Err(what) => (None, Some(what)),
        };
        RecordView {
            run_id: envelope.run_id.clone(),
            seq: envelope.seq,
            ts: envelope.ts,
            kind: self.kind(),
            prev: envelope.prev,
            hash: self.hash(),
            fact,
            unreadable,
        }
    }
}

/// Reads where a run was forked from another. Returns none if the first record was redacted or is
/// damaged.
///
/// # Errors
/// A log that cannot be read.
pub async fn parent(log: &dyn Log, run: &str) -> Result<Option<Parent>> {
    let first = log.read(run, 1, 1).await?;
    Ok(match first.first().and_then(|record| record.fact().ok().flatten()) {
        Some(Fact::RunStarted { about: Some(about), .. }) => about.parent,
        _ => None,
    })
}
