//! What must hold for any bytes at all, one function for each way in. `tests/hostile.rs` calls them with some bytes in every test
//! run, the targets in `fuzz/` with many.

#![allow(clippy::expect_used, reason = "helpers fail as tests do")]
#![allow(unreachable_pub, reason = "the fuzzer is another crate")]

use std::io::Cursor;

use mynah_log::{
    Append, Body, Chain, Fact, Hash, Log, MemoryLog, Record, RunFilter, SqliteLog, bundle, cbor,
    conformance::Sample, verify, verify_run, verify_seals,
};
use rusqlite::{Connection, types::Value};
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
        let envelope = envelope(kind, &body);
        let Ok(record) = Record::from_parts(envelope.as_slice(), Some(body.clone())) else {
            continue;
        };
        assert_eq!((&record.envelope_bytes()[..], record.body()), (&envelope[..], Some(&body)));
        let _ = verify("run", [&record]);
        if let Ok(fact) = record.fact() {
            let fact = fact.expect("a body");
            assert_eq!(fact.kind(), kind);
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

/// The rows of a SQLite file: bytes say which columns are changed, and into what.
pub fn rows(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log.db");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let log = SqliteLog::open(&path).expect("a log");
        let mut sealed = Sample::new("sealed", 0).user("one").tool_turn().seal();
        log.append(sealed.batch()).await.expect("a run");
        log.append(Sample::new("open", 1).tool_turn().batch()).await.expect("a run");
        let raw = Connection::open(&path).expect("the same file");
        let mut rest = bytes;
        while let Some((change, left)) = RunChange::read(rest) {
            change.make(&raw);
            rest = left;
        }
        let next = Sample::new("open", 2).user("more").batch();
        let told = [
            log.runs(RunFilter::new()).await.err(),
            log.read("open", 1, 100).await.err(),
            verify_seals(&log).await.err(),
            verify_run(&log, "sealed").await.err(),
            verify_run(&log, "open").await.err(),
            log.append(Append::new("open", next.expected, next.records)).await.err(),
        ];
        for error in told.into_iter().flatten() {
            let told = error.to_string();
            assert!(!told.contains("stopped") && !told.contains("panicked"), "{told}");
        }
    });
}

/// A value for a column of the rows of a table.
struct RunChange {
    column: (&'static str, &'static str),
    value: Value,
}

impl RunChange {
    const COLUMNS: [(&str, &str); 14] = [
        ("records", "envelope"),
        ("records", "salt"),
        ("records", "payload"),
        ("records", "key"),
        ("runs", "status"),
        ("heads", "state"),
        ("heads", "run"),
        ("runs", "token"),
        ("runs", "id"),
        ("older", "seq"),
        ("older", "keys"),
        ("seals", "place"),
        ("seals", "hash"),
        ("seals", "id"),
    ];

    fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&[column, kind], rest) = bytes.split_first_chunk()?;
        let column = Self::COLUMNS[usize::from(column) % Self::COLUMNS.len()];
        let (value, rest) = match kind {
            0..=63 => {
                let (number, rest) = rest.split_first_chunk()?;
                (Value::Integer(i64::from_le_bytes(*number)), rest)
            }
            64..=95 => (Value::Integer(i64::from(kind) - 70), rest),
            96..=111 => (Value::Null, rest),
            _ => {
                let (blob, rest) = rest.split_at(rest.len().min(usize::from(kind) - 112));
                let text = std::str::from_utf8(blob).ok().filter(|_| kind % 2 == 0);
                let blob = || Value::Blob(blob.to_vec());
                (text.map_or_else(blob, |text| Value::Text(text.to_owned())), rest)
            }
        };
        Some((Self { column, value }, rest))
    }

    /// Where SQLite itself refuses it, nothing is changed.
    fn make(&self, raw: &Connection) {
        let (table, column) = self.column;
        let _ = raw.execute(&format!("UPDATE OR IGNORE {table} SET {column} = ?1"), [&self.value]);
    }
}

/// The envelope of a first record that commits to this body.
fn envelope(kind: &str, body: &Body) -> Vec<u8> {
    #[derive(Serialize)]
    struct Envelope<'a> {
        v: u8,
        ts: i64,
        run: &'a str,
        seq: u64,
        body: Bytes,
        kind: &'a str,
    }
    struct Bytes(Hash);
    impl Serialize for Bytes {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(&self.0.0)
        }
    }
    let commitment = Hash::of(&[b"mynah record body 1\n", &body.salt, &body.payload]);
    let envelope = Envelope { v: 1, ts: 1, run: "run", seq: 1, body: Bytes(commitment), kind };
    cbor::to_vec(&envelope).expect("an envelope")
}
