//! Every change in a log's file is found, and the message names the record.

use std::{collections::HashMap, path::PathBuf, time::Duration};

use mynah_data::{ErrorKind, HaltReason, LogReason};
use mynah_log::{Log, Redact, RunFilter, Warrant, conformance::Sample, verify_run, verify_seals};
use mynah_sqlite::SqliteLog;
use proptest::{collection::vec, prelude::*, sample::select};
use rusqlite::{
    Connection, params,
    types::{FromSql, Value},
};
use tempfile::TempDir;

use crate::tables::{Head, row_of};

#[tokio::test]
async fn every_flipped_byte_of_every_record_is_found() {
    let book = Book::new().await;
    for run in ["sealed", "open"] {
        for seq in 1..=book.records(run) {
            for column in ["envelope", "salt", "payload"] {
                let row = book.row(run, seq);
                let size =
                    book.number(&format!("SELECT length({column}) FROM records WHERE {row}"));
                for byte in 0..size as usize {
                    let bits = 1 << (byte % 8);
                    book.flip(&format!("records SET {column}"), &row, byte, bits);
                    let found = book.found(run).await;
                    assert_eq!(found, seq, "{column} {byte} of {seq}");
                    book.flip(&format!("records SET {column}"), &row, byte, bits);
                }
            }
        }
        book.is_sound(run).await;
    }
}

#[tokio::test]
async fn every_removed_record_is_found() {
    for run in ["sealed", "open"] {
        let last = Book::new().await.records(run);
        for seq in 1..=last {
            let book = Book::new().await;
            book.change(&format!("DELETE FROM records WHERE {}", book.row(run, seq)));
            assert_eq!(book.found(run).await, seq);
            // Closing the gap does not help.
            let mut keys = book.keys(run);
            keys.remove(seq as usize - 1);
            book.set_keys(run, &keys);
            Head::change(&book.raw, run, |head| head.records -= 1);
            assert_eq!(book.found(run).await, seq.min(last - 1));
        }
        let book = Book::new().await;
        book.change("DELETE FROM records");
        assert_eq!(book.found(run).await, 1);
    }
}

#[tokio::test]
async fn every_pair_of_swapped_records_is_found() {
    let book = Book::new().await;
    let last = book.records("sealed");
    for a in 1..=last {
        for b in a + 1..=last {
            let (key_a, key_b) = (book.row("sealed", a), book.row("sealed", b));
            let swap = format!(
                "UPDATE records SET key = -1 WHERE {key_a}; \
                 UPDATE records SET {key_a} WHERE {key_b}; \
                 UPDATE records SET {key_b} WHERE key = -1;"
            );
            book.change(&swap);
            assert_eq!(book.found("sealed").await, a, "{a} and {b}");
            book.change(&swap);
            let keys = book.keys("sealed");
            let mut swapped = keys.clone();
            swapped.swap(a as usize - 1, b as usize - 1);
            book.set_keys("sealed", &swapped);
            assert_eq!(book.found("sealed").await, a, "{a} and {b}");
            book.set_keys("sealed", &keys);
        }
    }
    book.is_sound("sealed").await;
}

#[tokio::test]
async fn every_doubled_record_is_found() {
    for run in ["sealed", "open"] {
        let last = Book::new().await.records(run);
        for seq in 1..=last {
            let book = Book::new().await;
            let columns = "run, envelope, salt, payload";
            let row = book.row(run, seq);
            // Where no run has it.
            book.change(&format!(
                "INSERT INTO records ({columns}) SELECT {columns} FROM records WHERE {row}"
            ));
            let error = verify_seals(&book.log).await.expect_err("a record too many");
            assert_eq!(error.metadata()["run_id"], run);
            let key = book.number("SELECT max(key) FROM records");
            let what = format!("row {key} of table records is in no place of a run");
            assert_eq!(error.metadata()["what"], what);
            // At the end of its run.
            let mut keys = book.keys(run);
            keys.push(key);
            book.set_keys(run, &keys);
            Head::change(&book.raw, run, |head| head.records = last + 1);
            assert_eq!(book.found(run).await, last + 1);
            // In its neighbour's place.
            let book = Book::new().await;
            let place = if seq == last { seq - 1 } else { seq + 1 };
            book.change(&format!(
                "UPDATE records SET ({columns}) = (SELECT {columns} FROM records WHERE {row}) WHERE {}",
                book.row(run, place)
            ));
            assert_eq!(book.found(run).await, place);
        }
    }
}

#[test]
fn nothing_but_the_seal_follows_an_end() {
    for end in [HaltReason::Completed, HaltReason::Error] {
        let mut run = Sample::new("run", 0).stopped(end).user("more").seal();
        let found = mynah_log::verify("run", &run.take()).unwrap_err();
        assert_eq!(found.seq, 3, "{found}");
    }
    let mut waiting = Sample::new("run", 0).stopped(HaltReason::AskUser).user("an answer").sealed();
    assert_eq!(
        mynah_log::verify("run", &waiting.take()).unwrap().status,
        mynah_log::VerifyStatus::Verified
    );
}

#[tokio::test]
async fn a_record_of_another_run_is_found() {
    for columns in ["envelope, salt, payload", "run, envelope, salt, payload", "run"] {
        let book = Book::new().await;
        book.change(&format!(
            "UPDATE records SET ({columns}) = (SELECT {columns} FROM records WHERE {}) WHERE {}",
            book.row("open", 3),
            book.row("sealed", 3)
        ));
        assert_eq!(book.found("sealed").await, 3, "{columns}");
    }
}

#[tokio::test]
async fn an_envelope_is_packed_or_whole_and_nothing_between() {
    let book = Book::new().await;
    for seq in 1..=book.records("sealed") {
        let row = book.row("sealed", seq);
        let packed: Vec<u8> = book.value(&format!("SELECT envelope FROM records WHERE {row}"));
        assert_eq!(packed.len(), if seq == 1 { 12 } else { 44 });
        let record = book.log.read("sealed", seq, 1).await.expect("a record").remove(0);
        book.set_envelope(&row, record.envelope_bytes());
        book.is_sound("sealed").await;
        let whole = record.envelope_bytes().iter().copied();
        for size in (0..=whole.len() + 1).filter(|size| *size != whole.len()) {
            book.set_envelope(&row, &whole.clone().chain([0]).take(size).collect::<Vec<u8>>());
            assert_eq!(book.found("sealed").await, seq, "{size} bytes of the whole");
            if size != packed.len() {
                book.set_envelope(
                    &row,
                    &packed.iter().copied().cycle().take(size).collect::<Vec<u8>>(),
                );
                assert_eq!(book.found("sealed").await, seq, "{size} packed bytes");
            }
        }
        book.set_envelope(&row, &packed);
    }
    book.is_sound("sealed").await;
}

#[tokio::test]
async fn every_flipped_byte_of_a_redacted_record_is_found() {
    let book = Book::new().await;
    let warrant = Warrant::new("ann", "she asked for it", 1_000);
    Redact::all("sealed").perform(&book.log, &warrant).await.expect("bodies");
    book.is_sound("sealed").await;
    for seq in 1..book.records("sealed") {
        let row = book.row("sealed", seq);
        let record = book.log.read("sealed", seq, 1).await.expect("a record").remove(0);
        for byte in 0..record.envelope_bytes().len() {
            book.flip("records SET envelope", &row, byte, 1);
            let found = book.found("sealed").await;
            assert!(found == seq || found == seq + 1, "byte {byte} of {seq}: {found}");
            book.flip("records SET envelope", &row, byte, 1);
        }
    }
    book.is_sound("sealed").await;
}

#[tokio::test]
async fn a_body_that_is_missing_is_found() {
    let book = Book::new().await;
    let row = book.row("sealed", 5);
    book.change(&format!("UPDATE records SET salt = NULL, payload = NULL WHERE {row}"));
    assert_eq!(book.found("sealed").await, 5);
    let salts = ["salt = NULL, payload = x'00'", "salt = x'00', payload = NULL"];
    for half in salts.into_iter().chain(["salt = x'00', payload = x'00'"]) {
        book.change(&format!("UPDATE records SET {half} WHERE {row}"));
        assert_eq!(book.found("sealed").await, 5, "{half}");
    }
}

#[tokio::test]
async fn a_cut_tail_is_found_unless_the_run_could_have_ended_there() {
    for run in ["sealed", "open"] {
        let last = Book::new().await.records(run);
        for seq in 2..=last {
            let book = Book::new().await;
            for cut in seq..=last {
                book.change(&format!("DELETE FROM records WHERE {}", book.row(run, cut)));
            }
            assert_eq!(book.found(run).await, seq, "the index still counts them");
        }
    }
    // A forger who also shortens the index is detected by the seal.
    let book = Book::new().await;
    book.shorten("sealed").await;
    assert_eq!(book.found("sealed").await, 3);
    let error = verify_seals(&book.log).await.expect_err("a seal without its record");
    assert_eq!(error.metadata()["run_id"], "sealed");
    // A run without a seal could have ended there.
    book.shorten("open").await;
    let report = verify_run(&book.log, "open").await.expect("a shorter run");
    assert_eq!((report.status.as_str(), report.records), ("in_progress", 3));
}

#[tokio::test]
async fn every_change_of_where_records_lie_is_found() {
    let book = Book::new().await;
    let mut long = Sample::new("long", 0);
    for _ in 0..30 {
        long = long.tool_turn();
    }
    book.log.append(long.batch()).await.expect("a long run");
    book.is_sound("long").await;
    let older = row_of("long");
    let size = book.number(&format!("SELECT length(keys) FROM older WHERE {older} AND seq = 1"));
    for byte in 0..size as usize {
        book.flip("older SET keys", &format!("{older} AND seq = 1"), byte, 1);
        // Each has a byte here.
        assert_eq!(book.found("long").await, byte as u64 + 1);
        book.flip("older SET keys", &format!("{older} AND seq = 1"), byte, 1);
    }
    let Head { records, keys, .. } = Head::read(&book.raw, "long");
    for at in 0..keys.len() {
        let other = |head: &mut Head| head.keys[at] += 1;
        Head::change(&book.raw, "long", other);
        assert_eq!(book.found("long").await, records - keys.len() as u64 + at as u64 + 1);
        Head::change(&book.raw, "long", |head| head.keys.clone_from(&keys));
    }
    book.is_sound("long").await;
    for change in [
        format!("DELETE FROM older WHERE {older} AND seq = 1"),
        format!("UPDATE older SET seq = 2 WHERE {older} AND seq = 1"),
        format!("UPDATE older SET keys = x'' WHERE {older} AND seq = 1"),
        format!("UPDATE older SET keys = x'ff' WHERE {older} AND seq = 1"),
        format!("UPDATE older SET keys = zeroblob(10000000) WHERE {older} AND seq = 1"),
        format!("UPDATE older SET run = 77 WHERE {older} AND seq = 1"),
    ] {
        let saved = "CREATE TEMP TABLE saved AS SELECT * FROM older; ";
        book.change(&format!("{saved}{change}"));
        assert_eq!(book.found("long").await, 1, "{change}");
        book.change("DELETE FROM older; INSERT INTO older SELECT * FROM saved; DROP TABLE saved");
    }
    for keys in [&[][..], &[0], &[-1], &[i64::MAX; 8], &[0; 1_000_000]] {
        let book = Book::new().await;
        Head::change(&book.raw, "open", |head| head.keys = keys.to_vec());
        book.found("open").await;
    }
    // A run that is gone from the index leaves its records behind.
    book.change(&format!("DELETE FROM heads WHERE {}", row_of("open")));
    assert_eq!(book.found("open").await, 0);
    book.change("DELETE FROM runs WHERE id = 'open'");
    let error = verify_seals(&book.log).await.expect_err("records of no run");
    let what =
        format!("row {} of table records is in no place of a run", &book.row("open", 1)[6..]);
    assert_eq!(error.metadata()["what"], what);
}

#[tokio::test]
async fn every_change_of_the_index_is_found() {
    let changes = [
        "status = 3",
        "status = 99",
        "status = -1",
        "started = started + 1",
        "model = 'gpt-9'",
        "model = NULL",
        "session = 's'",
    ];
    let of_heads: [fn(&mut Head); 12] = [
        |head| head.updated += 1,
        |head| head.records -= 1,
        |head| head.records += 1,
        |head| head.records = u64::MAX,
        |head| head.records = 0,
        |head| head.turns += 1,
        |head| head.turns = u64::MAX,
        |head| head.tool_calls = 0,
        |head| head.input_tokens = 1,
        |head| head.output_tokens = 1,
        |head| head.cost = 0.0,
        |head| head.cost = f64::NAN,
    ];
    for run in ["sealed", "open"] {
        for change in changes {
            let book = Book::new().await;
            book.change(&format!("UPDATE runs SET {change} WHERE id = '{run}'"));
            book.found(run).await;
        }
        for change in of_heads {
            let book = Book::new().await;
            Head::change(&book.raw, run, change);
            book.found(run).await;
        }
        let book = Book::new().await;
        let heads = row_of(run);
        let size = book.number(&format!("SELECT length(state) FROM heads WHERE {heads}"));
        for byte in 0..size as usize {
            book.flip("heads SET state", &heads, byte, 1);
            let found = book.found(run).await;
            if (8..40).contains(&byte) {
                assert_eq!(found, book.records(run), "its hash");
            }
            book.flip("heads SET state", &heads, byte, 1);
        }
    }
    let book = Book::new().await;
    book.change("UPDATE runs SET id = 'renamed' WHERE id = 'open'");
    assert_eq!(book.found("renamed").await, 1, "records name their run");
}

#[tokio::test]
async fn a_damaged_row_of_the_index_does_not_hide_the_others() {
    for damage in [
        "UPDATE runs SET status = 99",
        "UPDATE runs SET model = CAST(x'ff' AS TEXT)",
        "UPDATE heads SET state = x''",
        "UPDATE heads SET state = zeroblob(40)",
        "UPDATE heads SET state = CAST(state || x'ff' AS BLOB)",
        "DELETE FROM heads",
    ] {
        for run in ["sealed", "open"] {
            let book = Book::new().await;
            let column = if damage.contains("runs") { "key" } else { "run" };
            let key = format!("(SELECT key FROM runs WHERE id = '{run}')");
            book.change(&format!("{damage} WHERE {column} = {key}"));
            let (mut filter, mut sound, mut damaged) = (RunFilter::new().limit(1), 0, Vec::new());
            loop {
                let page = book.log.runs(filter.clone()).await.expect("a page");
                sound += page.runs.len();
                damaged.extend(page.damaged.iter().map(|corrupt| corrupt.run_id.clone()));
                assert_eq!(page.sound().is_err(), !page.damaged.is_empty());
                let Some(next) = page.next else { break };
                filter = filter.after(next);
            }
            assert_eq!((sound, damaged), (3, vec![run.into()]), "{damage}");
            assert_eq!(book.found(run).await, 0, "{damage}");
            for other in
                ["before", "sealed", "open", "last"].into_iter().filter(|other| *other != run)
            {
                book.is_sound(other).await;
            }
        }
    }
    // An id that is no text is named as well as it can be.
    let book = Book::new().await;
    book.change("UPDATE runs SET id = CAST(x'ff' AS TEXT) WHERE id = 'open'");
    let page = book.log.runs(RunFilter::new()).await.expect("a page");
    assert_eq!((page.runs.len(), &*page.damaged[0].run_id), (3, "\u{fffd}"));
}

#[tokio::test]
async fn where_the_index_differs_is_told_in_words() {
    let table = [
        ("status = 3", "status: the index says failed, the records say completed"),
        ("model = NULL", "model: the index says none, the records say \"gpt-4.1-mini\""),
        ("session = 's'", "session: the index says \"s\", the records say none"),
    ];
    let told = async |book: &Book, said: &str| {
        let error = verify_run(&book.log, "sealed").await.expect_err("another index");
        assert!(error.to_string().ends_with(said), "{error}");
    };
    for (change, said) in table {
        let book = Book::new().await;
        book.change(&format!("UPDATE runs SET {change} WHERE id = 'sealed'"));
        told(&book, said).await;
    }
    let book = Book::new().await;
    Head::change(&book.raw, "sealed", |head| head.turns = 7);
    told(&book, "turns: the index says 7, the records say 1").await;
}

#[tokio::test]
async fn rows_that_nobody_reads_are_found() {
    let book = Book::new().await;
    verify_seals(&book.log).await.expect("a sound log");
    let stray = "INSERT INTO older (run, seq, keys) VALUES";
    for (change, undo) in [
        ("INSERT INTO seals VALUES (-1, 'ghost', x'00')", "DELETE FROM seals WHERE place < 0"),
        (
            &*format!("{stray} (999999, 1, x'0000000000000001')"),
            "DELETE FROM older WHERE run = 999999",
        ),
        (&*format!("{stray} (1, -7, x'0000000000000001')"), "DELETE FROM older WHERE seq = -7"),
        (
            "INSERT INTO heads SELECT 999999, state FROM heads LIMIT 1",
            "DELETE FROM heads WHERE run = 999999",
        ),
    ] {
        book.change(change);
        let error = verify_seals(&book.log).await.expect_err(change);
        assert_eq!(error.kind(), ErrorKind::Log(LogReason::Corrupt), "{error}");
        book.change(undo);
    }
    verify_seals(&book.log).await.expect("all is as it was");
}

#[tokio::test]
async fn every_change_of_the_seals_is_found() {
    let book = Book::new().await;
    let root = verify_seals(&book.log).await.expect("a sound list").root();
    for byte in 0..32 {
        book.flip("seals SET hash", "id = 'sealed'", byte, 1 << (byte % 8));
        assert_eq!(book.found("sealed").await, book.records("sealed"));
        book.names("sealed").await;
        book.flip("seals SET hash", "id = 'sealed'", byte, 1 << (byte % 8));
    }
    let changes = [
        ("UPDATE seals SET id = 'open' WHERE id = 'sealed'", "open"),
        ("UPDATE seals SET place = 7 WHERE id = 'sealed'", "last"),
        (
            "UPDATE seals SET place = 7 WHERE id = 'before'; UPDATE seals SET place = 0 WHERE id = 'sealed'; \
          UPDATE seals SET place = 1 WHERE place = 7",
            "sealed",
        ),
        ("DELETE FROM seals WHERE id = 'before'", "sealed"),
        ("UPDATE seals SET hash = x'00' WHERE id = 'sealed'", "sealed"),
        ("DELETE FROM runs WHERE id = 'before'", ""),
        ("INSERT INTO seals SELECT place + 5, 'open', hash FROM seals WHERE id = 'sealed'", "open"),
        ("INSERT INTO seals SELECT place + 2, 'open', hash FROM seals WHERE id = 'sealed'", "open"),
    ];
    for (change, run) in changes {
        let book = Book::new().await;
        book.change(change);
        // Those who knew the tree find a list that was put in another order.
        match verify_seals(&book.log).await {
            Ok(tree) => assert_ne!(tree.root(), root, "{change}"),
            Err(error) => assert_eq!(error.metadata()["run_id"], run, "{change}"),
        }
    }
    // A run whose seal is missing from the list is still found.
    let book = Book::new().await;
    book.change("DELETE FROM seals WHERE id = 'last'");
    assert_eq!(book.found("last").await, book.records("last"));
    // Who removes the last seal with its run is found out by those who knew the tree.
    for seq in 1..=book.records("last") {
        book.change(&format!("DELETE FROM records WHERE {}", book.row("last", seq)));
    }
    book.change(&format!("DELETE FROM heads WHERE {}", row_of("last")));
    book.change("DELETE FROM runs WHERE id = 'last'");
    let tree = verify_seals(&book.log).await.expect("a shorter list");
    assert_ne!((tree.size(), tree.root()), (3, root));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_rows_hold_a_log_says_so_and_goes_on(changes in vec(change(), 1..4)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let book = Book::new().await;
            for (sql, value) in &changes {
                book.raw.execute(sql, [value]).expect("a statement");
            }
            let mut run = Sample::new("sealed", 10).user("one").tool_turn();
            run.take();
            let told = [
                verify_seals(&book.log).await.err(),
                verify_run(&book.log, "sealed").await.err(),
                book.log.runs(RunFilter::new()).await.err(),
                book.log.append(run.user("more").batch()).await.err(),
                book.log.lease("open", "ann", Duration::from_secs(1)).await.err(),
                book.log.append(Sample::new("fresh", 0).batch()).await.err(),
            ];
            for error in told.into_iter().flatten() {
                prop_assert!(!error.to_string().contains("stopped"), "{error}");
            }
            Ok(())
        })?;
    }
}

/// Some value, put into a column of every row that takes it.
fn change() -> impl Strategy<Value = (String, Value)> {
    let numbers = ["runs.status", "runs.started", "runs.token", "beats.until", "heads.run"];
    let places =
        ["older.seq", "older.run", "seals.place", "records.key", "records.run", "runs.key"];
    let numbers: Vec<&str> = numbers.into_iter().chain(places).collect();
    let blobs = ["heads.state", "older.keys", "records.envelope", "records.salt"];
    let blobs: Vec<&str> = blobs.into_iter().chain(["records.payload", "seals.hash"]).collect();
    let number = prop_oneof![any::<i64>(), 0..20i64, Just(i64::MAX), Just(i64::MIN)];
    let sizes = select(vec![8, 12, 32, 44]);
    let bytes = prop_oneof![
        vec(any::<u8>(), 0..80),
        sizes.prop_flat_map(|size| vec(any::<u8>(), size)),
        vec(0..2u8, 8..=8)
    ];
    let values = prop_oneof![
        (select(numbers), number.prop_map(Value::Integer)),
        (select(blobs), bytes.prop_map(Value::Blob)),
    ];
    values.prop_map(|(column, value)| {
        let (table, column) = column.split_once('.').expect("a table and a column");
        (format!("UPDATE OR IGNORE {table} SET {column} = ?1"), value)
    })
}

/// A log with four runs, and a connection that does what it likes.
struct Book {
    log: SqliteLog,
    raw: Connection,
    _folder: TempDir,
    rows: HashMap<(String, u64), i64>,
}

impl Book {
    async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path: PathBuf = folder.path().join("mynah.db");
        let log = SqliteLog::open_with(&path, mynah_log::Durability::Relaxed).expect("a log");
        for mut run in [
            Sample::new("before", 0).sealed(),
            Sample::new("sealed", 10).user("one").tool_turn().sealed(),
            Sample::new("open", 20).user("one").tool_turn(),
            Sample::new("last", 30).sealed(),
        ] {
            log.append(run.batch()).await.expect("a new run");
        }
        let raw = Connection::open(&path).expect("a connection");
        raw.pragma_update(None, "synchronous", "off").expect("a setting");
        let rows = ["before", "sealed", "open", "last"].into_iter().flat_map(|run| {
            let keys = (1..).zip(Head::read(&raw, run).keys);
            keys.map(|(seq, key)| ((run.to_owned(), seq), key))
        });
        let rows = rows.collect();
        Self { log, raw, _folder: folder, rows }
    }

    fn change(&self, sql: &str) {
        self.raw.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    fn value<T: FromSql>(&self, sql: &str) -> T {
        self.raw.query_row(sql, [], |row| row.get(0)).expect("a value")
    }

    fn number(&self, sql: &str) -> i64 {
        self.value(sql)
    }

    fn set_envelope(&self, row: &str, bytes: &[u8]) {
        let update = format!("UPDATE records SET envelope = ?1 WHERE {row}");
        assert_eq!(self.raw.execute(&update, [bytes]), Ok(1));
    }

    fn records(&self, run: &str) -> u64 {
        Head::read(&self.raw, run).records
    }

    /// The condition for a record's row.
    fn row(&self, run: &str, seq: u64) -> String {
        format!("key = {}", self.rows[&(run.to_owned(), seq)])
    }

    /// Where a short run's records are.
    fn keys(&self, run: &str) -> Vec<i64> {
        Head::read(&self.raw, run).keys
    }

    fn set_keys(&self, run: &str, keys: &[i64]) {
        Head::change(&self.raw, run, |head| head.keys = keys.to_vec());
    }

    /// Flips bits of one byte: `target` is "table SET column".
    fn flip(&self, target: &str, condition: &str, byte: usize, bits: u8) {
        let (table, column) = target.split_once(" SET ").expect("a table and a column");
        let select = format!("SELECT {column} FROM {table} WHERE {condition}");
        let mut bytes: Vec<u8> = self.value(&select);
        bytes[byte] ^= bits;
        let update = format!("UPDATE {table} SET {column} = ?1 WHERE {condition}");
        assert_eq!(self.raw.execute(&update, params![bytes]), Ok(1));
    }

    /// Makes a run of the first three records, in the index as well.
    async fn shorten(&self, run: &str) {
        let third = self.log.read(run, 3, 1).await.expect("a record").remove(0);
        for seq in 4..=self.records(run) {
            self.change(&format!("DELETE FROM records WHERE {}", self.row(run, seq)));
        }
        let head = Head {
            updated: third.envelope().ts,
            hash: third.hash().0.to_vec(),
            cost: 0.0,
            records: 3,
            turns: 1,
            tool_calls: 0,
            input_tokens: 0,
            output_tokens: 0,
            keys: self.keys(run)[..3].to_vec(),
        };
        head.write(&self.raw, run);
        let update = "UPDATE runs SET status = 0, model = NULL WHERE id = ?1";
        assert_eq!(self.raw.execute(update, [run]), Ok(1));
    }

    /// The record that verification blames.
    async fn found(&self, run: &str) -> u64 {
        let error = verify_run(&self.log, run).await.expect_err("damage");
        // A changed version looks like a newer one.
        let reasons = [LogReason::Corrupt, LogReason::TooNew].map(ErrorKind::Log);
        assert!(reasons.contains(&error.kind()), "{error}");
        assert_eq!(error.metadata()["run_id"], run, "{error}");
        let seq = error.metadata()["seq"].as_u64().expect("a number");
        let text = error.to_string();
        let named = match seq {
            0 => format!("run {run}: "),
            seq => format!("run {run}, record {seq}: "),
        };
        assert!(text.contains(&named), "the message names it: {text}");
        seq
    }

    /// The list of seals names the run as the one that is wrong.
    async fn names(&self, run: &str) {
        let error = verify_seals(&self.log).await.expect_err("damage");
        assert_eq!(error.metadata()["run_id"], run, "{error}");
    }

    async fn is_sound(&self, run: &str) {
        verify_run(&self.log, run).await.expect("what it was");
    }
}
