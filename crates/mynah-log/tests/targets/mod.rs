//! What must hold for any bytes at all, one function for each way in. `tests/hostile.rs` calls them with some bytes in every test
//! run, the targets in `fuzz/` with many.

#![allow(clippy::expect_used, reason = "helpers fail as tests do")]
#![allow(unreachable_pub, reason = "the fuzzer is another crate")]

use std::io::Cursor;

use mynah_log::{Body, Chain, Fact, Hash, Log, MemoryLog, Record, RunFilter, bundle, cbor, verify};
use serde::{Serialize, Serializer, de::IgnoredAny};

/// The decoder of CBOR: bytes that decode are the bytes that encoding gives.
pub fn cbor(bytes: &[u8]) {
    let form = cbor::from_slice::<IgnoredAny>(bytes);
    if let Ok(value) = cbor::from_slice::<serde_json::Value>(bytes) {
        assert!(form.is_ok(), "{form:?}");
        assert_eq!(cbor::to_vec(&value).as_deref(), Ok(bytes));
    }
    // A type takes no more than the form allows.
    if let Err(error) = form {
        assert!(cbor::from_slice::<Fact>(bytes).is_err(), "{error}");
    }
}

/// The decoder of records: bytes as an envelope, and bytes as the payload of an envelope that is sound.
pub fn record(bytes: &[u8]) {
    if let Ok(record) = Record::from_parts(bytes, None) {
        assert_eq!(&record.envelope_bytes()[..], bytes);
    }
    for kind in ["run_started", "assistant_completed", "tool_completed", "cancelled", "sealed"] {
        let body = Body { salt: [7; 16], payload: bytes.into() };
        let envelope = envelope("run", 1, None, 1, kind, &body);
        let _ = Record::unpack(bytes, &"run".into(), 1, Some(body.clone()));
        let Ok(record) = Record::from_parts(envelope.as_slice(), Some(body.clone())) else {
            continue;
        };
        assert_eq!((&record.envelope_bytes()[..], record.body()), (&envelope[..], Some(&body)));
        let unpacked = Record::unpack(&record.pack(), &"run".into(), 1, Some(body));
        assert_eq!(unpacked.as_ref(), Ok(&record));
        let _ = verify("run", [&record]);
        if let Ok(fact) = record.fact() {
            let fact = fact.expect("a body");
            assert_eq!(fact.kind().as_str(), kind);
            assert_eq!(cbor::to_vec(&fact).as_deref(), Ok(bytes));
            let again = Chain::new("run").append(1, [7; 16], &fact).expect("a fact that was read");
            assert_eq!(again, record);
        }
    }
}

/// A bundle: nothing comes into a log from one that is not sound.
pub fn bundle(bytes: &[u8]) {
    let sound = bundle::verify(bytes);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let log = MemoryLog::new();
        let imported = bundle::import(&log, Cursor::new(bytes)).await;
        assert!(sound.is_ok() || imported.is_err());
        let runs = log.runs(RunFilter::new()).await.expect("a list of runs").runs;
        assert_eq!(runs.len(), usize::from(imported.is_ok()));
    });
}

/// The envelope of a record that commits to this body.
pub fn envelope(
    run: &str,
    seq: u64,
    prev: Option<Hash>,
    ts: i64,
    kind: &str,
    body: &Body,
) -> Vec<u8> {
    #[derive(Serialize)]
    struct Envelope<'a> {
        v: u8,
        ts: i64,
        run: &'a str,
        seq: u64,
        body: Bytes,
        kind: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        prev: Option<Bytes>,
    }
    struct Bytes(Hash);
    impl Serialize for Bytes {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(&self.0.0)
        }
    }
    let commitment = Hash::of(&[b"mynah record body 1\n", &body.salt, &body.payload]);
    let (body, prev) = (Bytes(commitment), prev.map(Bytes));
    cbor::to_vec(&Envelope { v: 1, ts, run, seq, body, kind, prev }).expect("an envelope")
}
