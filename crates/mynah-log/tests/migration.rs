//! A log of an older version of the tables, as the program of that time wrote it. Whoever adds a version keeps one of the version before.

#![allow(clippy::expect_used, reason = "helpers fail as tests do")]

use std::{io::Cursor, path::PathBuf, sync::Arc, time::Duration};

use mynah_data::{ErrorKind, LogReason, Message};
use mynah_log::{
    Append, Chain, Fact, Log, MemoryLog, RunFilter, RunStatus, SqliteLog, bundle,
    conformance::Sample, verify_run, verify_seals,
};
use rusqlite::Connection;
use tempfile::TempDir;

const VERSION_4: &str = include_str!("kept/version_4.sql");

/// What that program told to be the root of the log's tree.
const ROOT: &str = "99eadba8140c9d5d91f7194dd594e5e69f9e2d165df80968aaa49893df110463";

#[tokio::test]
async fn a_log_of_version_4_is_what_it_was() {
    let (_folder, path) = version_4();
    let log = SqliteLog::open(&path).expect("a log");
    let version = Connection::open(&path)
        .and_then(|raw| raw.query_row("PRAGMA user_version", [], |row| row.get::<_, u32>(0)));
    assert_eq!(version, Ok(SqliteLog::SCHEMA));
    let tree = verify_seals(&log).await.expect("a sound log");
    assert_eq!((tree.size(), tree.root().to_string().as_str()), (12, ROOT));

    let told = log.runs(RunFilter::new().oldest_first()).await.expect("a list");
    assert_eq!(told.damaged, []);
    assert_eq!(told.runs.len(), 9);
    let again = MemoryLog::new();
    for run in told.runs {
        let report = verify_run(&log, &run.run_id).await.expect("a sound run");
        assert_eq!(report.redacted, u64::from(&*run.run_id == "run-4"));
        let is_open = matches!(run.status, RunStatus::Running | RunStatus::Suspended);
        assert_eq!(report.status, if is_open { "in_progress" } else { "verified" });
        let mut file = Vec::new();
        bundle::export(&log, &run.run_id, &mut file).await.expect("a run");
        bundle::import(&again, Cursor::new(file)).await.expect("a bundle");
        // What its records alone come to: neither its place among the seals nor who has it stands in them.
        let mut rebuilt = again.run(&run.run_id).await.expect("a log").expect("a run");
        (rebuilt.seal, rebuilt.held_until) = (run.seal, run.held_until);
        assert_eq!(run, rebuilt);
        assert_eq!(run.seal.is_some(), !is_open);
        let until = (&*run.run_id == "run-10").then_some(112_000_000_000);
        assert_eq!(run.held_until, until, "of the run that was killed");
    }
    let pruned = log.append(Sample::new("run-0", 0).batch()).await.expect_err("an id of the past");
    assert_eq!(pruned.kind(), ErrorKind::Log(LogReason::Pruned));
}

#[tokio::test]
async fn a_run_that_had_no_end_in_version_4_goes_on() {
    const UNTIL: i64 = 112_000_000_000;
    let (_folder, path) = version_4();
    let log = SqliteLog::open(&path).expect("a log");
    log.append(next(&log, "run-9").await).await.expect("a run that waits");
    let second = Duration::from_secs(1);
    let held = log.lease("run-10", "me", second, UNTIL - 1).await.expect_err("its process's own");
    assert_eq!(held.kind(), ErrorKind::Log(LogReason::Leased));
    let lease = log.lease("run-10", "me", second, UNTIL).await.expect("a run that is free again");
    assert_eq!(lease.token, 2, "it is the second to have it");
    log.append(next(&log, "run-10").await.fenced(&lease)).await.expect("a run that was killed");
    for (run, records) in [("run-9", 7), ("run-10", 5)] {
        assert_eq!(verify_run(&log, run).await.map(|report| report.records), Ok(records));
    }
    verify_seals(&log).await.expect("a sound log");
}

/// One more record of a run.
async fn next(log: &SqliteLog, run: &str) -> Append {
    let mut chain = Chain::new(run);
    for record in log.read(run, 1, usize::MAX).await.expect("records") {
        chain.follow(&record).expect("a sound chain");
    }
    let head = chain.head();
    let fact = Fact::UserMessage { message: Arc::new(Message::user("go on")) };
    let record = chain.append(0, [7; 16], &fact).expect("a fact that can be encoded");
    Append::new(run, head, vec![record])
}

#[test]
fn a_log_of_version_4_that_is_only_read_says_what_to_do() {
    let (_folder, path) = version_4();
    let error = SqliteLog::open_read_only(&path).expect_err("older tables");
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::Unavailable));
    assert_eq!((&error.metadata()["schema"], &error.metadata()["known"]), (&4.into(), &5.into()));
    let told = error.to_string();
    let advice = "open it to write once, which brings it up to date";
    assert!(told.ends_with(advice), "{told}");
    drop(SqliteLog::open(&path).expect("a log"));
    SqliteLog::open_read_only(&path).expect("a log that is up to date");
}

#[tokio::test]
async fn what_somebody_else_made_in_a_log_of_version_4_is_not_in_the_way() {
    let (_folder, path) = version_4();
    let made = "CREATE INDEX by_cost ON runs (cost); \
                CREATE TRIGGER dear AFTER UPDATE OF cost ON runs BEGIN DELETE FROM seals; END; \
                CREATE TRIGGER grown AFTER INSERT ON records BEGIN SELECT seq FROM runs; END; \
                CREATE VIEW costs AS SELECT id, cost FROM runs; \
                CREATE VIEW places AS SELECT seq, keys FROM older; \
                CREATE VIEW broken AS SELECT absent FROM nowhere; \
                CREATE TABLE notes (run TEXT REFERENCES runs (id), note TEXT); \
                INSERT INTO notes VALUES ('run-2', 'heavy');";
    let raw = Connection::open(&path).expect("a file");
    raw.execute_batch(made).expect("what is somebody's own");
    let log = SqliteLog::open(&path).expect("a log");
    let tree = verify_seals(&log).await.expect("a sound log");
    assert_eq!(tree.root().to_string(), ROOT);
    let told = |select: &str| raw.query_row(select, [], |row| row.get::<_, String>(0));
    let left = "SELECT group_concat(name) FROM (SELECT name FROM sqlite_schema \
                WHERE tbl_name IN ('notes', 'costs', 'places') ORDER BY name)";
    assert_eq!(told(left).as_deref(), Ok("costs,notes,places"));
    let notes = "SELECT sql FROM sqlite_schema WHERE name = 'notes'";
    let as_it_was = "CREATE TABLE notes (run TEXT REFERENCES runs (id), note TEXT)";
    assert_eq!(told(notes).as_deref(), Ok(as_it_was));
}

#[test]
fn nothing_is_left_of_the_tables_of_version_4() {
    let (_folder, path) = version_4();
    // Two keys of records, as only those tables had them.
    let keys = [0, 0, 0, 0, 0, 0, 0, 0x0c, 0, 0, 0, 0, 0, 0, 0, 0x0d];
    let is_there = || {
        let file = std::fs::read(&path).expect("a file");
        file.windows(keys.len()).any(|bytes| bytes == keys)
    };
    assert!(is_there());
    drop(SqliteLog::open(&path).expect("a log"));
    assert!(!is_there());
}

fn version_4() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mynah.db");
    Connection::open(&path).expect("a file").execute_batch(VERSION_4).expect("its tables");
    (folder, path)
}
