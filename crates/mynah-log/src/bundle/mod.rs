//! One run as a file that needs no log to be checked.
//!
//! A bundle is newline-delimited JSON: a line that says what it is, the tombstones of bodies that
//! were removed, the records in order, and a last line with what they come to. The bytes in it are
//! the records' own, in hexadecimal; the facts beside them are for people, and must be what the
//! bytes say. `docs/format.md` describes every member.
//!
//! ```
//! # mod mynah { pub use mynah_log as log; }
//! use std::io::Cursor;
//! use mynah::log::{Log, MemoryLog, bundle};
//! use mynah::log::conformance::Sample;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah_data::Result<()> {
//! # let log = MemoryLog::new();
//! # log.append(Sample::new("run-1", 0).tool_turn().sealed().batch()).await?;
//! let mut file = Vec::new();
//! let bundle = bundle::export(&log, "run-1", &mut file).await?;
//! assert_eq!(bundle::verify(&file[..])?, bundle);
//!
//! let elsewhere = MemoryLog::new();
//! assert_eq!(bundle::import(&elsewhere, Cursor::new(file)).await?.added, 8);
//! assert_eq!(elsewhere.read("run-1", 1, 100).await?, log.read("run-1", 1, 100).await?);
//! # Ok(()) }
//! ```

mod export;
mod import;
mod reader;

use std::io::BufRead;

use mynah_data::{Result, RunId, decode, json_items};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, value::RawValue};

use self::reader::{Item, Reader};
use crate::{
    Body, Hash, MAX_PAYLOAD, Record, VerifyReport, cbor,
    hash::{hex, unhex},
};

pub use export::{export, inclusion};
pub use import::{Imported, import};

/// The version of the format, in the first line.
pub const VERSION: u32 = 1;

/// How long a line may be, in bytes: enough for the largest record, whose bytes are hexadecimal in it.
pub const MAX_LINE: usize = 2 * MAX_PAYLOAD + (1 << 20);

/// A bundle that was found to be what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bundle {
    /// The run in it.
    pub run_id: RunId,
    /// What the run was found to be.
    pub report: VerifyReport,
    /// Where its seal stands in the tree of the log that it came from; none without a seal.
    pub inclusion: Option<Inclusion>,
}

/// That a run's seal is a leaf of a log's tree: the hashes that lead from it to the root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Inclusion {
    /// The leaf's place, from 0.
    pub index: u64,
    /// How many leaves the tree had.
    pub size: u64,
    /// Its root.
    pub root: Hash,
    /// The hashes.
    pub proof: Vec<Hash>,
}

/// Checks a bundle: every record, what was removed, the last line, nothing after it. Memory does
/// not grow with the run, but for the records that were redacted. It takes any bytes.
///
/// # Errors
/// The first thing that is wrong, with its line, or a file that cannot be read.
pub fn verify(input: impl BufRead) -> Result<Bundle> {
    let mut reader = Reader::open(input)?;
    loop {
        if let Item::End(bundle) = reader.next()? {
            return Ok(bundle);
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Line {
    Bundle(Header),
    Tombstone(Entry),
    Record(Entry),
    End(End),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    version: u32,
    run_id: String,
}

/// A record, by its bytes.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    envelope: String,
    #[serde(default, deserialize_with = "not_null", skip_serializing_if = "Option::is_none")]
    salt: Option<String>,
    #[serde(default, deserialize_with = "not_null", skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    #[serde(default, deserialize_with = "not_null", skip_serializing_if = "Option::is_none")]
    fact: Option<Box<RawValue>>,
}

#[derive(PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    records: u64,
    hash: Hash,
    // Null where there is none, never left out.
    #[serde(deserialize_with = "Option::deserialize")]
    root: Option<Hash>,
    #[serde(deserialize_with = "Option::deserialize")]
    fingerprint: Option<Hash>,
    redacted: u64,
    #[serde(deserialize_with = "Option::deserialize")]
    inclusion: Option<Inclusion>,
}

impl End {
    fn of(report: &VerifyReport, hash: Hash, inclusion: Option<Inclusion>) -> Self {
        let VerifyReport { records, root, fingerprint, redacted, .. } = *report;
        Self { records, hash, root, fingerprint, redacted, inclusion }
    }
}

/// A member that may be left out, and is not null.
fn not_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> std::result::Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl Entry {
    fn of(record: &Record, fact: Option<Box<RawValue>>) -> Self {
        let body = record.body();
        Self {
            envelope: hex(record.envelope_bytes()),
            salt: body.map(|body| hex(&body.salt)),
            payload: body.map(|body| hex(&body.payload)),
            fact,
        }
    }

    /// The record, which holds the fact that is shown.
    fn record(self) -> std::result::Result<Record, String> {
        let envelope = unhex(&self.envelope).ok_or("the envelope is not hexadecimal")?;
        let body = match (self.salt, self.payload) {
            (Some(salt), Some(payload)) => {
                let salt = unhex(&salt).and_then(|salt| salt.try_into().ok());
                let salt = salt.ok_or("the salt is not sixteen bytes in hexadecimal")?;
                let payload = unhex(&payload).ok_or("the payload is not hexadecimal")?.into();
                Some(Body { salt, payload })
            }
            (None, None) => None,
            _ => return Err("a body is a salt and a payload".to_owned()),
        };
        let record = Record::from_parts(envelope, body).map_err(|corrupt| corrupt.what)?;
        if let Some(fact) = self.fact {
            let held = record.body().map(shown).transpose()?;
            let is_same = |fact: &str| {
                // What holds more than the payload can is not read: an item takes a byte at least.
                json_items(fact) <= record.body().map_or(0, |body| body.payload.len())
                    && decode::unique_keys(fact).is_ok()
                    && serde_json::from_str(fact).ok() == held
            };
            if held.is_none() || !is_same(fact.get()) {
                return Err("the fact that is shown is not the one in its bytes".to_owned());
            }
        }
        Ok(record)
    }
}

/// What a payload says, as JSON.
fn shown(body: &Body) -> std::result::Result<Value, String> {
    cbor::from_slice(&body.payload).map_err(|error| format!("payload: {error}"))
}
