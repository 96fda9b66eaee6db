//! Records: facts as bytes, chained by hash.
//!
//! A record is an *envelope* and a *body*. The envelope is deterministic CBOR and holds everything
//! the chain needs: which run, which place in it, the hash of the record before, when, what kind,
//! and a commitment to the body. The body, a random salt and the fact's bytes, lies beside it. It
//! can be removed later (personal data, secrets): the chain still verifies, and the commitment
//! gives nothing away.

mod packed;

use std::{borrow::Cow, sync::Arc};

use mynah_data::{Error, LogReason, Result, RunId};

use crate::{
    Corrupt, Fact, Hash, Kind, Totals,
    cbor::{self, Reader, Writer, major},
    merkle,
    record_summary::RecordSummary,
    verify::too_new,
};

/// The version of the format, in every envelope.
pub const FORMAT: u8 = 1;

/// The largest payload that a record may have, in bytes. What is larger is neither appended, nor read, nor taken in from a bundle.
pub const MAX_PAYLOAD: usize = 32 << 20;

const BODY_DOMAIN: &[u8] = b"mynah record body 1\n";
const RECORD_DOMAIN: &[u8] = b"mynah record 1\n";

/// The position of a record in the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Envelope {
    /// The version of the format.
    pub v: u8,
    /// The run.
    pub run_id: RunId,
    /// The place in the run, from 1.
    pub seq: u64,
    /// The hash of the record before; none on the first.
    pub prev: Option<Hash>,
    /// Nanoseconds since 1970.
    pub ts: i64,
    /// What kind of fact; a record that this version does not know has one that it does not know either.
    pub(crate) kind: Cow<'static, str>,
    /// The commitment to the body.
    pub body: Hash,
}

impl Envelope {
    /// Members in the order of their keys: shorter ones first.
    fn write(&self, writer: &mut Writer) {
        writer.head(major::MAP, if self.prev.is_some() { 7 } else { 6 });
        writer.text("v");
        writer.head(major::UNSIGNED, self.v.into());
        writer.text("ts");
        writer.integer(self.ts);
        writer.text("run");
        writer.text(&self.run_id);
        writer.text("seq");
        writer.head(major::UNSIGNED, self.seq);
        writer.text("body");
        writer.byte_string(&self.body.0);
        writer.text("kind");
        writer.text(&self.kind);
        if let Some(prev) = &self.prev {
            writer.text("prev");
            writer.byte_string(&prev.0);
        }
    }

    fn to_bytes(&self) -> Arc<[u8]> {
        Writer::with(|writer| {
            self.write(writer);
            Arc::from(writer.bytes())
        })
    }

    fn read(bytes: &[u8]) -> Result<Self, cbor::CborError> {
        let mut reader = Reader::new(bytes);
        let members = reader.map()?;
        reader.key("v")?;
        let v = reader.unsigned()?;
        if v != u64::from(FORMAT) {
            return Err(match v > u64::from(FORMAT) {
                true => cbor::CborError::newer(format_args!("version {v} of the format")),
                false => {
                    cbor::CborError::new(format_args!("there is no version {v} of the format"))
                }
            });
        }
        reader.key("ts")?;
        let ts = reader.integer()?;
        reader.key("run")?;
        let run_id = RunId::from(reader.str()?);
        reader.key("seq")?;
        let seq = reader.unsigned()?;
        reader.key("body")?;
        let body = Hash(reader.byte_array()?);
        reader.key("kind")?;
        let kind = reader.str()?;
        let kind = Self::kind_of(kind);
        let prev = match members {
            6 => None,
            7 => {
                reader.key("prev")?;
                Some(Hash(reader.byte_array()?))
            }
            _ => return Err(cbor::CborError::new(format_args!("{members} members"))),
        };
        reader.end()?;
        Ok(Self { v: FORMAT, run_id, seq, prev, ts, kind, body })
    }

    fn kind_of(name: &str) -> Cow<'static, str> {
        let known = Kind::of(name).map(|kind| Cow::Borrowed(kind.as_str()));
        known.unwrap_or_else(|| Cow::Owned(name.to_owned()))
    }
}

impl Hash {
    /// The hash of the record with this envelope.
    fn of_envelope(bytes: &[u8]) -> Self {
        Self::of(&[RECORD_DOMAIN, bytes])
    }
}

/// The part of a record that can be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// Hides the body that the commitment is about.
    pub salt: [u8; 16],
    /// The fact, as deterministic CBOR.
    pub payload: Arc<[u8]>,
}

impl Body {
    fn commitment(&self) -> Hash {
        Hash::of(&[BODY_DOMAIN, &self.salt, &self.payload])
    }

    fn check_size(&self) -> Result<(), String> {
        if self.payload.len() > MAX_PAYLOAD {
            return Err(format!("its payload has more than {MAX_PAYLOAD} bytes"));
        }
        Ok(())
    }
}

/// One entry of a run's log.
///
/// There is no record whose envelope is not strictly encoded, or whose body is not the one that it commits to and
/// deterministic CBOR of its kind. Clones share it.
#[derive(Clone, Debug)]
pub struct Record(Arc<Parts>);

#[derive(Clone, Debug)]
struct Parts {
    envelope: Envelope,
    kind: Kind,
    bytes: Arc<[u8]>,
    hash: Hash,
    body: Option<Body>,
    gist: RecordSummary,
}

impl PartialEq for Record {
    fn eq(&self, other: &Self) -> bool {
        (&self.0.bytes, &self.0.body) == (&other.0.bytes, &other.0.body)
    }
}

impl Eq for Record {}

impl Record {
    /// A record from what a log stores. Whether its payload is a fact is found out by [`fact`](Self::fact).
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn from_parts(bytes: impl Into<Arc<[u8]>>, body: Option<Body>) -> Result<Self, Corrupt> {
        let bytes = bytes.into();
        let envelope = Envelope::read(&bytes)
            .map_err(|error| Corrupt::new("", 0, wrong("envelope", &error)))?;
        let corrupt = |what: String| Corrupt::new(&envelope.run_id, envelope.seq, what);
        if let Some(body) = &body {
            body.check_size().map_err(corrupt)?;
            if body.commitment() != envelope.body {
                return Err(corrupt("the body is not the one that was committed to".to_owned()));
            }
        }
        let (run_id, seq, hash) =
            (envelope.run_id.clone(), envelope.seq, Hash::of_envelope(&bytes));
        Self::new(envelope, bytes, hash, body).map_err(|what| Corrupt::new(run_id, seq, what))
    }

    /// A record whose envelope commits to its body.
    fn new(
        envelope: Envelope,
        bytes: Arc<[u8]>,
        hash: Hash,
        body: Option<Body>,
    ) -> Result<Self, String> {
        let kind = Kind::of(&envelope.kind);
        let mut gist = RecordSummary::default();
        if let Some(body) = &body {
            gist = RecordSummary::read(&body.payload, kind, &envelope.kind)?;
        }
        let unknown = || too_new(format_args!("records of kind {:?}", envelope.kind));
        let kind = kind.ok_or_else(unknown)?;
        Ok(Self(Arc::new(Parts { envelope, kind, bytes, hash, body, gist })))
    }

    /// Its position in the chain.
    pub fn envelope(&self) -> &Envelope {
        &self.0.envelope
    }

    /// The kind of its fact.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The envelope as it is stored and hashed.
    pub fn envelope_bytes(&self) -> &Arc<[u8]> {
        &self.0.bytes
    }

    /// The place in the run, from 1.
    pub fn seq(&self) -> u64 {
        self.0.envelope.seq
    }

    /// The record's hash: what the next record names.
    pub fn hash(&self) -> Hash {
        self.0.hash
    }

    /// The body; none if it was removed.
    pub fn body(&self) -> Option<&Body> {
        self.0.body.as_ref()
    }

    /// The bytes of its envelope and its payload.
    pub fn size(&self) -> usize {
        self.0.bytes.len() + self.body().map_or(0, |body| body.payload.len())
    }

    /// The leaf that stands for the record in a tree.
    pub fn leaf(&self) -> Hash {
        merkle::leaf_of(&self.0.hash)
    }

    /// The fact; none if the body was removed.
    ///
    /// # Errors
    /// A payload that is not what its fact is written as.
    pub fn fact(&self) -> Result<Option<Fact>, Corrupt> {
        self.strict_fact().map_err(|what| Corrupt::new(&self.envelope().run_id, self.seq(), what))
    }

    /// The same, with the error in words.
    pub(crate) fn strict_fact(&self) -> Result<Option<Fact>, String> {
        let fact = self.loose_fact()?;
        if let (Some(fact), Some(body)) = (&fact, &self.0.body) {
            let written = cbor::to_vec(fact).map_err(|error| format!("payload: {error}"))?;
            // A type reads more than it writes: members that may be missing, older names.
            if *written != *body.payload {
                return Err(format!("payload: not as a fact {} is written", fact.kind()));
            }
        }
        Ok(fact)
    }

    /// The same, also from a payload that its fact is not written as: for who compares the payload with what a fact of their
    /// own is written as.
    ///
    /// # Errors
    /// A payload that is not a fact.
    #[doc(hidden)]
    pub fn loose_fact(&self) -> Result<Option<Fact>, String> {
        let Some(body) = &self.0.body else { return Ok(None) };
        cbor::from_slice(&body.payload).map(Some).map_err(|error| wrong("payload", &error))
    }

    /// What it adds to the totals of its run.
    pub fn adds(&self) -> &Totals {
        &self.0.gist.adds
    }

    /// The same, and what the index learns from it.
    pub(crate) fn gist(&self) -> &RecordSummary {
        &self.0.gist
    }

    /// Whether it follows this end of a run's chain.
    ///
    /// # Errors
    /// What keeps it from following, in words.
    pub(crate) fn check_after(&self, run: &RunId, head: Option<Head>) -> Result<(), String> {
        let envelope = self.envelope();
        let seq = head.map_or(1, |head| head.seq.saturating_add(1));
        if envelope.run_id != *run {
            return Err(format!("it belongs to run {}", envelope.run_id));
        }
        if envelope.seq != seq {
            return Err(format!("expected record {seq}, found {}", envelope.seq));
        }
        if envelope.prev != head.map(|head| head.hash) {
            return Err("it does not name the hash of the record before it".to_owned());
        }
        Ok(())
    }

    /// The same record without its body, with its summary from a tombstone.
    pub(crate) fn with_gist(self, gist: RecordSummary) -> Self {
        Self(Arc::new(Parts { gist, ..Arc::unwrap_or_clone(self.0) }))
    }

    /// The same record without its body. Totals still count what the body added.
    pub fn without_body(self) -> Self {
        let parts = Arc::unwrap_or_clone(self.0);
        let gist = RecordSummary { adds: parts.gist.adds, ..RecordSummary::default() };
        Self(Arc::new(Parts { body: None, gist, ..parts }))
    }
}

/// The payload of a record of this fact.
///
/// # Errors
/// A fact that has no deterministic encoding, or is larger than [`MAX_PAYLOAD`] (`too_large`).
#[doc(hidden)]
pub fn payload_of(fact: &Fact) -> Result<Arc<[u8]>> {
    let payload = cbor::with_bytes(fact, |payload| match payload.len() {
        ..=MAX_PAYLOAD => Ok(Arc::from(payload)),
        size => Err(too_large(fact.kind().as_str(), size)),
    });
    payload.map_err(|error| {
        Error::log(LogReason::Corrupt)
            .with_message(format!("a fact that cannot be recorded: {error}"))
    })?
}

fn too_large(kind: &str, size: usize) -> Error {
    let why = format!("a {kind} of {size} bytes; a record holds at most {MAX_PAYLOAD}");
    Error::log(LogReason::TooLarge)
        .with_message(format!("log error: too_large: {why}"))
        .with("kind", kind)
        .with("size", size as u64)
        .with("limit", MAX_PAYLOAD as u64)
}

fn wrong(part: &str, error: &cbor::CborError) -> String {
    if error.is_newer() { too_new(error) } else { format!("{part}: {error}") }
}

/// Where a chain ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The last record's place.
    pub seq: u64,
    /// The last record's hash.
    pub hash: Hash,
}

/// A run's chain as it grows: the next record's place, the hash it must name, the tree over what there is.
#[derive(Clone, Debug)]
pub struct Chain {
    run_id: RunId,
    head: Option<Head>,
    tree: merkle::Tree,
}

impl Chain {
    /// A chain without records.
    pub fn new(run_id: impl Into<RunId>) -> Self {
        Self { run_id: run_id.into(), head: None, tree: merkle::Tree::new() }
    }

    /// The run.
    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// Where it ends.
    pub fn head(&self) -> Option<Head> {
        self.head
    }

    /// The root over all records so far.
    pub fn root(&self) -> Hash {
        self.tree.root()
    }

    /// The next record, for this fact.
    ///
    /// # Errors
    /// A fact that has no deterministic encoding, or is larger than [`MAX_PAYLOAD`] (`too_large`): the chain stays as it was.
    pub fn append(&mut self, ts: i64, salt: [u8; 16], fact: &Fact) -> Result<Record> {
        let body = Body { salt, payload: payload_of(fact)? };
        let envelope = Envelope {
            v: FORMAT,
            run_id: self.run_id.clone(),
            seq: self.head.map_or(1, |head| head.seq + 1),
            prev: self.head.map(|head| head.hash),
            ts,
            kind: Cow::Borrowed(fact.kind().as_str()),
            body: body.commitment(),
        };
        let bytes = envelope.to_bytes();
        let hash = Hash::of_envelope(&bytes);
        let (kind, body, gist) = (fact.kind(), Some(body), RecordSummary::of(fact));
        let parts = Parts { envelope, kind, bytes, hash, body, gist };
        let record = Record(Arc::new(parts));
        self.extend(&record);
        Ok(record)
    }

    /// Takes in a record that follows.
    ///
    /// # Errors
    /// What keeps it from following.
    pub fn follow(&mut self, record: &Record) -> Result<(), Corrupt> {
        let seq = self.head.map_or(1, |head| head.seq.saturating_add(1));
        let follows = record.check_after(&self.run_id, self.head);
        follows.map_err(|what| Corrupt::new(&self.run_id, seq, what))?;
        self.extend(record);
        Ok(())
    }

    fn extend(&mut self, record: &Record) {
        self.head = Some(Head { seq: record.seq(), hash: record.hash() });
        self.tree.push(record.leaf());
    }
}
