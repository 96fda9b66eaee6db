//! What must hold for any rows at all. `tests/hostile.rs` calls it with some bytes in every test run, the target in `fuzz/` with many.

#![allow(clippy::expect_used, reason = "helpers fail as tests do")]
#![allow(unreachable_pub, reason = "the fuzzer is another crate")]

use mynah_log::{Append, Log, RunFilter, conformance::Sample, verify_run, verify_seals};
use mynah_sqlite::SqliteLog;
use rusqlite::{Connection, types::Value};

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
    const COLUMNS: [(&str, &str); 15] = [
        ("records", "run"),
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
