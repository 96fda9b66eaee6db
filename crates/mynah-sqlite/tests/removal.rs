//! Removed data is gone from the file, and changes in the account of removals are detected.

use std::{fs, io::Cursor, path::PathBuf};

use mynah_data::{Error, ErrorKind, LogReason};
use mynah_log::{
    Append, Auditor, Chain, Durability, Fact, Kind, Log, MAINTENANCE, Prune, Redact, Removed,
    Stripped, Tombstone, Warrant, bundle, conformance::Sample, verify_run, verify_seals,
};
use mynah_sqlite::SqliteLog;
use proptest::prelude::*;
use rusqlite::{Connection, params};
use tempfile::TempDir;

use crate::tables::Head;

#[tokio::test]
async fn what_was_taken_away_is_nowhere_in_the_files() {
    let book = Book::new().await;
    assert!(book.holds("secret of said"), "the search finds what is there");
    assert!(book.holds("secret of quiet"));
    Redact::kind("said", Kind::UserMessage).perform(&book.log, &warrant()).await.expect("a run");
    assert!(!book.holds("secret of said"));
    Prune::before(25).perform(&book.log, &warrant()).await.expect("old runs");
    assert!(!book.holds("secret of quiet"));
    assert!(book.holds("secret of last"), "the others are there");
}

#[tokio::test]
async fn a_run_that_somebody_goes_on_with_is_not_redacted() {
    let book = Book::empty();
    book.log.append(Sample::new("run", 0).user("secret").batch()).await.expect("a run");
    let term = std::time::Duration::from_secs(3);
    let lease = book.log.lease("run", "somebody", term).await.expect("a lease");
    let redact = Redact::kind("run", Kind::UserMessage);
    let error = redact.perform(&book.log, &warrant()).await.expect_err("it is in other hands");
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::Leased));
    book.log.release(&lease);
    assert_eq!(redact.perform(&book.log, &warrant()).await.map(|gone| gone.len()), Ok(1));
    book.log.lease("run", "somebody", term).await.expect("nobody keeps it");
}

#[tokio::test]
async fn what_a_reader_keeps_from_being_wiped_is_wiped_by_whoever_writes_next() {
    let book = Book::new().await;
    let reader = Connection::open(book.folder.path().join("mynah.db")).expect("a connection");
    let begun = "BEGIN; SELECT count(*) FROM records;";
    reader.execute_batch(begun).expect("a reader that takes its time");
    Redact::kind("said", Kind::UserMessage).perform(&book.log, &warrant()).await.expect("a run");
    assert!(book.holds("secret of said"), "it is read");
    let error = book.log.wipe().await.expect_err("it is still read");
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::Unavailable));
    assert!(error.to_string().contains("mynah.db-wal: another process reads"), "{error}");

    let Book { log, raw, folder } = book;
    drop(log);
    reader.execute_batch("COMMIT").expect("a reader that is done");
    let log = SqliteLog::open(folder.path().join("mynah.db")).expect("a log");
    let book = Book { log, raw, folder };
    assert!(!book.holds("secret of said"), "to open it was enough");
    assert!(book.holds("secret of last"), "the others are there");
    book.log.wipe().await.expect("nothing is left to wipe");
}

#[tokio::test]
async fn a_redaction_does_not_leave_the_index_to_whoever_changes_it() {
    let book = Book::empty();
    let run = Sample::new("run", 0).user("secret").tool_turn().sealed();
    book.log.append({ run }.batch()).await.expect("a run");
    let is_found = async |what: &str| {
        let error = verify_run(&book.log, "run").await.expect_err(what);
        assert!(error.to_string().contains(": the index says "), "{error}");
        is_corrupt(error, "run", 9);
    };
    let totals: [fn(&mut Head); 5] = [
        |head| head.turns += 1,
        |head| head.tool_calls += 1,
        |head| head.input_tokens += 1,
        |head| head.output_tokens += 1,
        |head| head.cost += 1.0,
    ];
    let totals_are_found = async || {
        let head = Head::read(&book.raw, "run");
        for change in totals {
            Head::change(&book.raw, "run", change);
            is_found("a total").await;
            head.write(&book.raw, "run");
        }
    };
    let is_found_in = async |column: &str| {
        book.change(&format!(
            "CREATE TEMP TABLE was AS SELECT {column} AS it FROM runs WHERE id = 'run'; \
             UPDATE runs SET {column} = 'other' WHERE id = 'run'"
        ));
        is_found(column).await;
        book.change(&format!(
            "UPDATE runs SET {column} = (SELECT it FROM was) WHERE id = 'run'; DROP TABLE was"
        ));
    };
    for kind in
        [Kind::UserMessage, Kind::ToolScheduled, Kind::TurnStarted, Kind::AssistantCompleted]
    {
        Redact::kind("run", kind).perform(&book.log, &warrant()).await.expect("bodies");
        let verified = verify_run(&book.log, "run").await;
        assert!(verified.is_ok(), "{kind}: {verified:?}");
        totals_are_found().await;
        is_found_in("session").await;
        if kind != Kind::AssistantCompleted {
            is_found_in("model").await;
        }
    }
    Redact::all("run").perform(&book.log, &warrant()).await.expect("bodies");
    assert_eq!(verify_run(&book.log, "run").await.map(|report| report.redacted), Ok(8));
    totals_are_found().await;

    let mut file = Vec::new();
    bundle::export(&book.log, "run", &mut file).await.expect("a run");
    let elsewhere = Book::empty();
    bundle::import(&elsewhere.log, Cursor::new(file)).await.expect("a bundle");
    assert_eq!(verify_run(&elsewhere.log, "run").await.map(|report| report.redacted), Ok(8));
    let counted = async |log: &SqliteLog| log.run("run").await.map(|run| run.map(|run| run.totals));
    assert_eq!(counted(&elsewhere.log).await, counted(&book.log).await);
}

#[tokio::test]
async fn the_model_and_the_session_of_a_redacted_run_are_not_changed_unseen() {
    let book = Book::empty();
    for run in [
        Sample::of_session("both", 0, "s", None).tool_turn().sealed(),
        Sample::new("model", 0).tool_turn().tool_turn(),
        Sample::new("neither", 0).user("secret"),
    ] {
        book.log.append({ run }.batch()).await.expect("a run");
    }
    let elsewhere = Book::empty();
    let runs = ["both", "model", "neither"];
    for run in runs {
        Redact::all(run).perform(&book.log, &warrant()).await.expect("bodies");
        let mut file = Vec::new();
        bundle::export(&book.log, run, &mut file).await.expect("a run");
        bundle::import(&elsewhere.log, Cursor::new(file)).await.expect("a bundle");
    }
    for (book, run) in [&book, &elsewhere].into_iter().flat_map(|book| runs.map(|run| (book, run)))
    {
        verify_run(&book.log, run).await.expect(run);
        let was =
            format!("CREATE TEMP TABLE was AS SELECT model, session FROM runs WHERE id = '{run}'");
        book.change(&was);
        for change in [
            "model = 'other'",
            "session = 'other'",
            "model = NULL",
            "session = NULL",
            "model = session, session = model",
        ] {
            let columns = change.replace(" = ", " IS ").replace(", ", " AND ");
            let changed = book.raw.execute(
                &format!("UPDATE runs SET {change} WHERE id = '{run}' AND NOT ({columns})"),
                [],
            );
            let found = verify_run(&book.log, run).await;
            let kind = found.map(drop).map_err(|error| error.kind());
            let corrupt = Err(ErrorKind::Log(LogReason::Corrupt));
            let expected = if changed == Ok(0) { Ok(()) } else { corrupt };
            assert_eq!(kind, expected, "{run}: {change}");
            book.change(&format!(
                "UPDATE runs SET (model, session) = (SELECT model, session FROM was) WHERE id = '{run}'"
            ));
        }
        book.change("DROP TABLE was");
        verify_run(&book.log, run).await.expect(run);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Pages are merged and moved as rows shrink and go: no copy stays behind.
    #[test]
    fn no_order_of_removals_leaves_a_copy_behind(
        sizes in prop::collection::vec(prop_oneof![20..200usize, 1000..6000usize, 20_000..22_000usize], 16..32),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let book = Book::empty();
            let mut run = Sample::new("run", 0);
            for (n, size) in sizes.iter().enumerate() {
                run = run.user(&format!("<{n}>{}", format!("secret-{n}.").repeat(size / 10)));
                book.log.append(run.batch()).await.expect("more");
            }
            let mut gone = Vec::new();
            for picks in picks.chunks(5) {
                let seqs: Vec<u64> = picks.iter().map(|pick| pick.index(sizes.len()) as u64 + 2).collect();
                Redact::records("run", seqs.clone()).perform(&book.log, &warrant()).await.expect("a run");
                gone.extend(seqs.iter().copied());
                let all = book.all();
                for seq in &gone {
                    let secret = format!("secret-{}.", seq - 2);
                    assert!(!all.contains(&secret), "{secret} of {seqs:?}");
                }
            }
            verify_run(&book.log, "run").await.expect("a sound run");
        });
    }
}

#[tokio::test]
async fn the_room_of_pruned_runs_is_used_again() {
    let book = Book::empty();
    let fill = async |from: i64| {
        for n in from..from + 40 {
            let run = Sample::new(format!("run-{n}"), n).user(&"x".repeat(20_000)).sealed();
            book.log.append(run.clone().batch()).await.expect("a run");
        }
    };
    fill(0).await;
    let size = book.pages();
    for round in 1..6 {
        Prune::before(40 * round).perform(&book.log, &warrant()).await.expect("old runs");
        fill(40 * round).await;
    }
    assert!(book.pages() < size + size / 4, "{} pages, {size} at first", book.pages());
    Auditor::new(&book.log).verify_seals().await.expect("a sound list");
}

#[tokio::test]
async fn a_run_that_is_not_what_it_was_is_neither_pruned_nor_redacted() {
    let book = Book::new().await;
    book.change("UPDATE records SET payload = x'00' WHERE key = 3");
    let found = Redact::records("said", [2]).perform(&book.log, &warrant()).await;
    is_corrupt(found.expect_err("evidence"), "said", 3);
    assert_eq!(book.log.head(MAINTENANCE).await, Ok(None));
    let done = Prune::before(100).perform(&book.log, &warrant()).await.expect("the others go");
    let pruned: Vec<&str> = done.pruned.iter().map(|run| &*run.run_id).collect();
    assert_eq!((pruned, done.in_use), (vec!["quiet", "last"], vec![]));
    let [(run, corrupt)] = &done.damaged[..] else { panic!("{:?}", done.damaged) };
    assert_eq!((&*run.run_id, &*corrupt.run_id, corrupt.seq), ("said", "said", 3));
    assert_eq!(book.log.run("said").await.map(|run| run.is_some()), Ok(true));

    // The run that a damaged first record continues is unknown.
    let book = Book::new().await;
    book.change("UPDATE records SET payload = x'00' WHERE key = 1");
    let found = Prune::before(100).perform(&book.log, &warrant()).await;
    is_corrupt(found.expect_err("evidence"), "said", 1);
    assert_eq!(book.log.head(MAINTENANCE).await, Ok(None));
}

#[tokio::test]
async fn whoever_meddles_with_tombstones_is_found_out() {
    // Each row of the maintenance run removed.
    let book = Book::removed().await;
    for row in book.tombstones() {
        book.change(&format!("CREATE TEMP TABLE saved AS SELECT * FROM records WHERE key = {row}"));
        book.change(&format!("DELETE FROM records WHERE key = {row}"));
        verify_run(&book.log, "said").await.expect_err("a tombstone less");
        verify_seals(&book.log).await.expect_err("a tombstone less");
        book.change("INSERT INTO records SELECT * FROM saved; DROP TABLE saved");
    }
    // Each byte of each changed.
    for (seq, row) in (1..).zip(book.tombstones()) {
        for column in ["envelope", "salt", "payload"] {
            let select = format!("SELECT {column} FROM records WHERE key = {row}");
            let bytes: Vec<u8> = book.raw.query_row(&select, [], |row| row.get(0)).expect("bytes");
            for byte in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[byte] ^= 1;
                book.set(row, column, &changed);
                let error = verify_seals(&book.log).await.expect_err("another tombstone");
                let found = error.metadata()["seq"].as_u64().expect("a number");
                assert!(found == seq || found == seq + 1, "{column} {byte} of {seq}: {error}");
            }
            book.set(row, column, &bytes);
        }
    }
    verify_seals(&book.log).await.expect("all is as it was");
    // Without its body.
    let row = book.tombstones()[0];
    book.change(&format!("UPDATE records SET salt = NULL, payload = NULL WHERE key = {row}"));
    is_corrupt(verify_seals(&book.log).await.expect_err("no body"), MAINTENANCE, 1);
}

#[tokio::test]
async fn a_tail_cut_off_the_maintenance_run_is_found() {
    // With a mended index: the tombstone of the pruned run, then that of the redacted record as well.
    let book = Book::removed().await;
    book.cut(1).await;
    verify_run(&book.log, "said").await.expect("its tombstone is there");
    is_corrupt(verify_seals(&book.log).await.expect_err("an id that is gone"), "quiet", 0);
    book.change("DELETE FROM pruned");
    is_corrupt(verify_seals(&book.log).await.expect_err("a leaf of no record"), MAINTENANCE, 2);
    book.change("DELETE FROM seals WHERE place = 4");
    is_corrupt(verify_seals(&book.log).await.expect_err("a seal of no run"), "quiet", 0);
    let book = Book::removed().await;
    book.change("DELETE FROM runs WHERE id = 'log:maintenance'");
    is_corrupt(verify_run(&book.log, "said").await.expect_err("a body less"), "said", 2);
    // A kept root proves the removal.
    let book = Book::new().await;
    Prune::before(35).include_unfinished().perform(&book.log, &warrant()).await.expect("three");
    let kept = verify_seals(&book.log).await.expect("a sound list");
    book.cut(2).await;
    book.change("DELETE FROM seals WHERE place = 5; DELETE FROM pruned WHERE id = 'open'");
    let tree = verify_seals(&book.log).await.expect("nothing is missing");
    assert_eq!((kept.size(), tree.size()), (6, 5));
    assert_ne!(kept.root(), tree.root());
}

#[tokio::test]
async fn a_forged_tombstone_is_found() {
    // For a run that is there.
    let book = Book::new().await;
    let head = book.log.head("said").await.expect("a log").expect("a run");
    let removed = Removed::Run { records: head.seq, hash: head.hash, sealed: true };
    book.forge("said", removed.clone());
    is_corrupt(verify_run(&book.log, "said").await.expect_err("it is there"), MAINTENANCE, 1);
    is_corrupt(verify_seals(&book.log).await.expect_err("it is there"), MAINTENANCE, 1);
    // For a run that never was.
    let book = Book::new().await;
    book.forge("never", removed);
    is_corrupt(verify_seals(&book.log).await.expect_err("it has no seal"), MAINTENANCE, 1);
    // For a record that has its body, is another one, or is not there.
    for (seq, hash) in [(2, None), (2, Some(head.hash)), (9, Some(head.hash))] {
        let book = Book::new().await;
        let record = book.log.read("said", seq, 1).await.expect("records").pop();
        let hash = hash.or(record.map(|record| record.hash())).expect("a hash");
        book.forge("said", Removed::Bodies(vec![Stripped::new(seq, hash)]));
        is_corrupt(verify_run(&book.log, "said").await.expect_err("a lie"), "said", seq);
    }
    // And one with another fingerprint for a run that is gone.
    let book = Book::new().await;
    book.change(
        "DELETE FROM records WHERE key BETWEEN 5 AND 8; \
         DELETE FROM heads WHERE run = (SELECT key FROM runs WHERE id = 'quiet'); DELETE FROM runs WHERE id = 'quiet'; \
         INSERT INTO pruned VALUES ('quiet')",
    );
    let removed = Removed::Run { records: 4, hash: head.hash, sealed: true };
    book.forge("quiet", removed);
    is_corrupt(verify_seals(&book.log).await.expect_err("another seal"), "quiet", 0);
}

#[tokio::test]
async fn ids_that_are_not_given_again_are_those_of_runs_with_a_tombstone() {
    let book = Book::removed().await;
    book.change("INSERT INTO pruned VALUES ('never')");
    is_corrupt(verify_seals(&book.log).await.expect_err("an id too many"), "never", 0);
    book.change("UPDATE pruned SET id = 'open' WHERE id = 'never'");
    is_corrupt(verify_seals(&book.log).await.expect_err("a run that is there"), "open", 0);
    book.change("DELETE FROM pruned WHERE id = 'open'");
    verify_seals(&book.log).await.expect("all is as it was");
    book.change("DELETE FROM pruned");
    let error = verify_seals(&book.log).await.expect_err("an id that could be given again");
    assert!(
        error.to_string().contains("it removes run quiet, and its id could be reused"),
        "{error}"
    );
    is_corrupt(error, MAINTENANCE, 2);
}

fn warrant() -> Warrant {
    Warrant::new("ann", "she asked for it", 1_000)
}

fn is_corrupt(error: Error, run: &str, seq: u64) {
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::Corrupt), "{error}");
    let metadata = error.metadata();
    assert_eq!((&metadata["run_id"], &metadata["seq"]), (&run.into(), &seq.into()), "{error}");
}

/// A log, and a connection that does what it likes.
struct Book {
    log: SqliteLog,
    raw: Connection,
    folder: TempDir,
}

impl Book {
    fn empty() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path: PathBuf = folder.path().join("mynah.db");
        let log = SqliteLog::open_with(&path, Durability::Relaxed).expect("a log");
        let raw = Connection::open(&path).expect("a connection");
        Self { log, raw, folder }
    }

    /// Four runs of four records each, but for the third, which has no end.
    async fn new() -> Self {
        let book = Self::empty();
        for (run, at) in [("said", 10), ("quiet", 20), ("open", 30), ("last", 40)] {
            let sample = Sample::new(run, at).user(&format!("secret of {run}"));
            let mut sample = if run == "open" { sample } else { sample.sealed() };
            book.log.append(sample.batch()).await.expect("a new run");
        }
        book
    }

    /// The same, where a body was redacted, and then a run pruned.
    async fn removed() -> Self {
        let book = Self::new().await;
        Redact::records("said", [2]).perform(&book.log, &warrant()).await.expect("a record");
        let head = book.log.head("quiet").await.expect("a log").expect("a run");
        let removed = Removed::Run { records: head.seq, hash: head.hash, sealed: true };
        let tombstone = book.log.read(MAINTENANCE, 1, 1).await.expect("a tombstone").remove(0);
        let mut chain = Chain::new(MAINTENANCE);
        chain.follow(&tombstone).expect("a first record");
        let record = chain.append(2, [0; 16], &fact("quiet", removed)).expect("a fact");
        let batch = Append::new(
            MAINTENANCE,
            book.log.head(MAINTENANCE).await.expect("a log"),
            vec![record],
        );
        book.log.append(batch).await.expect("a tombstone");
        book
    }

    fn change(&self, sql: &str) {
        self.raw.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    fn set(&self, row: i64, column: &str, bytes: &[u8]) {
        let update = format!("UPDATE records SET {column} = ?1 WHERE key = ?2");
        assert_eq!(self.raw.execute(&update, params![bytes, row]), Ok(1));
    }

    fn pages(&self) -> i64 {
        self.raw.query_row("PRAGMA page_count", [], |row| row.get(0)).expect("a number")
    }

    /// The rows of the maintenance run.
    fn tombstones(&self) -> Vec<i64> {
        Head::read(&self.raw, MAINTENANCE).keys
    }

    /// Cuts the maintenance run off after so many tombstones, in the index as well.
    async fn cut(&self, left: u64) {
        let last = self.log.read(MAINTENANCE, left, 1).await.expect("a tombstone").remove(0);
        let rows = self.tombstones();
        let (kept, gone) = rows.split_at(left as usize);
        gone.iter().for_each(|row| self.change(&format!("DELETE FROM records WHERE key = {row}")));
        Head::change(&self.raw, MAINTENANCE, |head| {
            head.updated = last.envelope().ts;
            head.hash = last.hash().0.to_vec();
            head.records = left;
            head.keys = kept.to_vec();
        });
    }

    /// Writes a tombstone as the log would, and takes nothing away.
    fn forge(&self, run: &str, removed: Removed) {
        let mut chain = Chain::new(MAINTENANCE);
        let record = chain.append(1, [0; 16], &fact(run, removed)).expect("a fact");
        let body = record.body().expect("a body");
        let insert = "INSERT INTO runs (id, status, started, token, wake) VALUES (?1, 0, 1, 0, 0)";
        assert_eq!(self.raw.execute(insert, [MAINTENANCE]), Ok(1));
        let run = self.raw.last_insert_rowid();
        let insert = "INSERT INTO records (run, envelope, salt, payload) VALUES (?1, ?2, ?3, ?4)";
        let values = params![run, &record.envelope_bytes()[..], body.salt, &body.payload[..]];
        assert_eq!(self.raw.execute(insert, values), Ok(1));
        let head = Head {
            updated: 1,
            hash: record.hash().0.to_vec(),
            cost: 0.0,
            records: 1,
            turns: 0,
            tool_calls: 0,
            input_tokens: 0,
            output_tokens: 0,
            keys: vec![self.raw.last_insert_rowid()],
        };
        head.write(&self.raw, MAINTENANCE);
        let insert = "INSERT INTO seals SELECT max(place) + 1, 'log:maintenance', ?1 FROM seals";
        assert_eq!(self.raw.execute(insert, params![record.hash().0]), Ok(1));
    }

    /// Whether a text is anywhere in the folder.
    fn holds(&self, text: &str) -> bool {
        self.all().contains(text)
    }

    /// All that is in the folder.
    fn all(&self) -> String {
        let files = fs::read_dir(self.folder.path()).expect("a folder");
        let bytes = files.map(|file| fs::read(file.expect("a file").path()).expect("bytes"));
        bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
    }
}

fn fact(run: &str, removed: Removed) -> Fact {
    let (by, reason) = ("ann".to_owned(), "she asked for it".to_owned());
    Fact::Removed(Tombstone { run_id: run.into(), removed, by, reason })
}
