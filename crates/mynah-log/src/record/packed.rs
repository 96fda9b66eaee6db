//! Envelopes in few bytes: of an envelope is kept what follows neither from where its record lies nor from its body.

use std::borrow::Cow;

use mynah_data::RunId;

use super::{Body, Envelope, Parts, Record};
use crate::{Corrupt, Hash, cbor::Reader};

/// The version of the format whose envelopes are packed.
const VERSION: u8 = 1;

/// What is packed: the start of the record's hash and the time, and behind the first record of a run the hash of the one before.
const CHECK: usize = 4;
const FIRST: usize = CHECK + size_of::<i64>();

impl Record {
    /// The bytes that a log may store in place of the envelope, beside the body.
    ///
    /// Run, place, kind and the commitment to the body follow from where the record lies and from its body. The rest is packed: 12 bytes
    /// of the first record of a run, 44 of others. The whole envelope, which is never as short, is returned if there is no body, or if
    /// unpacking would not give its very bytes.
    #[doc(hidden)]
    pub fn pack(&self) -> Cow<'_, [u8]> {
        let Parts { envelope, bytes, hash, body, .. } = &*self.0;
        let Envelope { run_id, seq, prev, ts, body: commitment, .. } = envelope;
        // No record has a body that its envelope does not commit to.
        let derived = body.as_ref().and_then(|Body { payload, .. }| {
            Envelope::derive(run_id, *seq, *prev, *ts, payload, *commitment)
        });
        if derived.is_none_or(|derived| derived.to_bytes() != *bytes) {
            return Cow::Borrowed(bytes);
        }
        let mut packed = Vec::with_capacity(FIRST + size_of::<Hash>());
        packed.extend(&hash.0[..CHECK]);
        packed.extend(ts.to_be_bytes());
        packed.extend(prev.iter().flat_map(|prev| prev.0));
        Cow::Owned(packed)
    }

    /// The record in this place of a run, from what [`pack`](Self::pack) returned.
    ///
    /// # Errors
    /// What is wrong, in words.
    #[doc(hidden)]
    pub fn unpack(
        stored: &[u8],
        run_id: &RunId,
        seq: u64,
        body: Option<Body>,
    ) -> Result<Self, Corrupt> {
        let corrupt = |what| Corrupt::new(run_id, seq, what);
        let (packed, body) = match (split(stored), body) {
            (Some(packed), Some(body)) => (packed, body),
            (_, body) => {
                let record = Self::from_parts(stored, body).map_err(|found| corrupt(found.what))?;
                let envelope = record.envelope();
                if envelope.run_id != *run_id || envelope.seq != seq {
                    return Err(corrupt(format!(
                        "record {} of run {} is in its place",
                        envelope.seq, envelope.run_id
                    )));
                }
                return Ok(record);
            }
        };
        body.check_size().map_err(corrupt)?;
        let (check, ts, prev) = packed;
        let derived = Envelope::derive(run_id, seq, prev, ts, &body.payload, body.commitment());
        let record = derived.map(|derived| {
            let bytes = derived.to_bytes();
            (derived, Hash::of_envelope(&bytes), bytes)
        });
        match record {
            Some((envelope, hash, bytes)) if hash.0.starts_with(check) => {
                Self::new(envelope, bytes, hash, Some(body)).map_err(corrupt)
            }
            _ => Err(corrupt("it is not the record that was written".to_owned())),
        }
    }
}

impl Envelope {
    /// The envelope of a record in this place, whose kind is the one that the payload names.
    fn derive(
        run_id: &RunId,
        seq: u64,
        prev: Option<Hash>,
        ts: i64,
        payload: &[u8],
        body: Hash,
    ) -> Option<Self> {
        let kind = Self::kind_of(Reader::new(payload).variant().ok()?);
        Some(Self { v: VERSION, run_id: run_id.clone(), seq, prev, ts, kind, body })
    }
}

/// The check, the time and the hash before of what is packed; none of a whole envelope.
fn split(stored: &[u8]) -> Option<(&[u8], i64, Option<Hash>)> {
    let (first, prev) = stored.split_at_checked(FIRST)?;
    let (check, ts) = first.split_at(CHECK);
    let prev = match prev {
        [] => None,
        prev => Some(Hash(prev.try_into().ok()?)),
    };
    Some((check, i64::from_be_bytes(ts.try_into().ok()?), prev))
}
