//! An envelope comes back from what is packed of it, byte for byte, and any change is found.

use std::sync::Arc;

use mynah_log::{Body, Hash, Record, conformance::Sample};
use proptest::{array::uniform32, collection::vec, option, prelude::*, sample::Index};

use crate::targets;

proptest! {
    #[test]
    fn any_envelope_comes_back_as_it_was(record in record()) {
        let packed = record.pack();
        let envelope = record.envelope();
        prop_assert_eq!(packed.len(), if envelope.prev.is_some() { 44 } else { 12 });
        let body = record.body().cloned();
        let unpacked = Record::unpack(&packed, &envelope.run_id, envelope.seq, body);
        prop_assert_eq!(unpacked.as_ref().map(Record::hash), Ok(record.hash()));
        prop_assert_eq!(unpacked, Ok(record));
    }

    #[test]
    fn the_envelope_of_a_body_that_was_removed_is_whole(record in record()) {
        let stripped = record.clone().without_body();
        prop_assert_eq!(&*stripped.pack(), &record.envelope_bytes()[..]);
        let (run, seq) = (&record.envelope().run_id, record.seq());
        let unpacked = Record::unpack(&stripped.pack(), run, seq, None);
        prop_assert_eq!(unpacked, Ok(stripped));
        // It may have the body nevertheless.
        let body = record.body().cloned();
        prop_assert_eq!(Record::unpack(record.envelope_bytes(), run, seq, body), Ok(record));
    }

    #[test]
    fn any_change_is_found(record in record(), at in any::<Index>(), bit in 0..8_u8) {
        let (run, seq) = (&record.envelope().run_id, record.seq());
        let body = record.body().cloned().expect("a body");
        let mut parts = [record.pack().to_vec(), body.salt.to_vec(), body.payload.to_vec()];
        let changed = at.index(parts.iter().map(Vec::len).sum());
        let byte = parts.iter_mut().flatten().nth(changed).expect("a byte");
        *byte ^= 1_u8 << bit;
        let [stored, salt, payload] = parts;
        let salt = salt.try_into().expect("a salt");
        let changed = Record::unpack(&stored, run, seq, Some(Body { salt, payload: payload.into() }));
        let elsewhere = [
            Record::unpack(&record.pack(), &format!("{run}2").into(), seq, Some(body.clone())),
            Record::unpack(&record.pack(), run, seq ^ 1, Some(body.clone())),
            Record::unpack(record.envelope_bytes(), run, seq ^ 1, Some(body)),
            Record::unpack(&record.pack(), run, seq, None),
        ];
        let error = changed.expect_err("another byte");
        prop_assert_eq!((&error.run_id, error.seq), (run, seq));
        prop_assert_eq!(error.what, "it is not the record that was written");
        for other in elsewhere {
            other.expect_err("another place, or no body");
        }
    }

    #[test]
    fn whatever_is_stored_is_read_or_refused(
        record in record(),
        stored in vec(any::<u8>(), 0..64),
        payload in vec(any::<u8>(), 0..64),
    ) {
        let (run, seq) = (&record.envelope().run_id, record.seq());
        let body = Body { salt: [7; 16], payload: payload.into() };
        for body in [None, Some(body), record.body().cloned()] {
            let error = Record::unpack(&stored, run, seq, body).expect_err("no record");
            prop_assert_eq!((&error.run_id, error.seq), (run, seq));
        }
    }
}

/// A record of any kind of a sample, in any place.
fn record() -> impl Strategy<Value = Record> {
    let place = (".{0,40}", any::<u64>(), option::of(uniform32(any::<u8>())), any::<i64>());
    (place, any::<[u8; 16]>(), any::<Index>()).prop_map(|((run, seq, prev, ts), salt, which)| {
        let records = Sample::new("run", 0).user("one").tool_turn().sealed().take();
        let of = which.get(&records);
        let body = Body { salt, payload: Arc::clone(&of.body().expect("a body").payload) };
        let kind = of.kind().as_str();
        let envelope = targets::envelope(&run, seq, prev.map(Hash), ts, kind, &body);
        Record::from_parts(envelope, Some(body)).expect("a record")
    })
}
