//! Records: facts as bytes, chained by hash.
//!
//! A record is an *envelope* and a *body*. The envelope is deterministic CBOR and holds everything the chain needs: which
//! run, which place in it, the hash of the record before, when, what kind, and a commitment to the body. The body, a
//! random salt and the fact's bytes, lies beside it. It can be taken away later (personal data, secrets): the chain still
//! verifies, and the commitment gives nothing away.

use std::sync::Arc;

use mynah_data::{Error, LogReason, Result};
use serde::{Deserialize, Serialize};

use crate::{Fact, Hash, cbor, merkle};

/// The version of the format, in every envelope.
pub const FORMAT: u8 = 1;

const BODY_DOMAIN: &[u8] = b"mynah record body 1\n";
const RECORD_DOMAIN: &[u8] = b"mynah record 1\n";

/// What the chain knows of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Envelope {
    /// The version of the format.
    pub v: u8,
    /// The run.
    pub run: Arc<str>,
    /// The place in the run, from 1.
    pub seq: u64,
    /// The hash of the record before; none on the first.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "opt_bytes")]
    pub prev: Option<Hash>,
    /// Nanoseconds since 1970.
    pub ts: i64,
    /// What kind of fact.
    pub kind: Arc<str>,
    /// The commitment to the body.
    #[serde(with = "bytes")]
    pub body: Hash,
}

/// The part of a record that can be taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// Makes the commitment tell nothing.
    pub salt: [u8; 16],
    /// The fact, as deterministic CBOR.
    pub payload: Arc<[u8]>,
}

impl Body {
    fn commitment(&self) -> Hash {
        Hash::of(&[BODY_DOMAIN, &self.salt, &self.payload])
    }
}

/// One entry of a run's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    envelope: Envelope,
    bytes: Arc<[u8]>,
    hash: Hash,
    body: Option<Body>,
}

impl Record {
    /// A record from what a log stores. The envelope must decode strictly, and the body must be what it commits to.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn from_parts(
        bytes: impl Into<Arc<[u8]>>,
        body: Option<Body>,
    ) -> std::result::Result<Self, String> {
        let bytes = bytes.into();
        let envelope: Envelope =
            cbor::from_slice(&bytes).map_err(|error| format!("envelope: {error}"))?;
        if envelope.v != FORMAT {
            return Err(format!("envelope: format {} is not known", envelope.v));
        }
        if body.as_ref().is_some_and(|body| body.commitment() != envelope.body) {
            return Err("the body is not the one that was committed to".to_owned());
        }
        let hash = record_hash(&bytes);
        Ok(Self { envelope, bytes, hash, body })
    }

    /// What the chain knows of it.
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// The envelope as it is stored and hashed.
    pub fn envelope_bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// The place in the run, from 1.
    pub fn seq(&self) -> u64 {
        self.envelope.seq
    }

    /// The record's hash: what the next record names.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// The body; none if it was taken away.
    pub fn body(&self) -> Option<&Body> {
        self.body.as_ref()
    }

    /// The leaf that stands for the record in a tree.
    pub fn leaf(&self) -> Hash {
        merkle::leaf(&self.hash.0)
    }

    /// The fact; none if the body was taken away.
    ///
    /// # Errors
    /// A payload that is not the deterministic encoding of a fact of the envelope's kind.
    pub fn fact(&self) -> std::result::Result<Option<Fact>, String> {
        let Some(body) = &self.body else { return Ok(None) };
        let fact: Fact =
            cbor::from_slice(&body.payload).map_err(|error| format!("payload: {error}"))?;
        if fact.kind() != &*self.envelope.kind {
            return Err(format!(
                "the envelope says {}, the payload {}",
                self.envelope.kind,
                fact.kind()
            ));
        }
        Ok(Some(fact))
    }

    /// The same record without its body.
    pub fn without_body(mut self) -> Self {
        self.body = None;
        self
    }
}

fn record_hash(envelope: &[u8]) -> Hash {
    Hash::of(&[RECORD_DOMAIN, envelope])
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
    run: Arc<str>,
    head: Option<Head>,
    tree: merkle::Tree,
}

impl Chain {
    /// A chain without records.
    pub fn new(run: impl Into<Arc<str>>) -> Self {
        Self { run: run.into(), head: None, tree: merkle::Tree::new() }
    }

    /// The run.
    pub fn run(&self) -> &Arc<str> {
        &self.run
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
    /// A fact that has no deterministic encoding.
    pub fn append(&mut self, ts: i64, salt: [u8; 16], fact: &Fact) -> Result<Record> {
        let unencodable = |error: cbor::Error| {
            Error::log(LogReason::Corrupt)
                .with_message(format!("a fact that cannot be recorded: {error}"))
        };
        let payload: Arc<[u8]> = cbor::to_vec(fact).map_err(unencodable)?.into();
        let body = Body { salt, payload };
        let envelope = Envelope {
            v: FORMAT,
            run: Arc::clone(&self.run),
            seq: self.head.map_or(1, |head| head.seq + 1),
            prev: self.head.map(|head| head.hash),
            ts,
            kind: Arc::from(fact.kind()),
            body: body.commitment(),
        };
        let bytes: Arc<[u8]> = cbor::to_vec(&envelope).map_err(unencodable)?.into();
        let hash = record_hash(&bytes);
        let record = Record { envelope, bytes, hash, body: Some(body) };
        self.extend(&record);
        Ok(record)
    }

    /// Takes in a record that follows.
    ///
    /// # Errors
    /// What keeps it from following, in words.
    pub fn follow(&mut self, record: &Record) -> std::result::Result<(), String> {
        let envelope = &record.envelope;
        let seq = self.head.map_or(1, |head| head.seq + 1);
        if envelope.run != self.run {
            return Err(format!("it belongs to run {}", envelope.run));
        }
        if envelope.seq != seq {
            return Err(format!("expected record {seq}, found {}", envelope.seq));
        }
        if envelope.prev != self.head.map(|head| head.hash) {
            return Err("it does not name the hash of the record before it".to_owned());
        }
        self.extend(record);
        Ok(())
    }

    fn extend(&mut self, record: &Record) {
        self.head = Some(Head { seq: record.seq(), hash: record.hash });
        self.tree.push(record.leaf());
    }
}

/// Hashes as CBOR byte strings.
mod bytes {
    use serde::{Deserializer, Serializer, de};

    use crate::Hash;

    pub(super) fn serialize<S: Serializer>(hash: &Hash, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&hash.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Hash, D::Error> {
        struct Bytes;
        impl de::Visitor<'_> for Bytes {
            type Value = Hash;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("32 bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Hash, E> {
                bytes.try_into().map(Hash).map_err(|_| E::invalid_length(bytes.len(), &self))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

mod opt_bytes {
    use serde::{Deserializer, Serializer};

    use crate::Hash;

    pub(super) fn serialize<S: Serializer>(
        hash: &Option<Hash>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match hash {
            Some(hash) => super::bytes::serialize(hash, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Hash>, D::Error> {
        super::bytes::deserialize(deserializer).map(Some)
    }
}
