//! A log in a SQLite file: several processes, killed writers, shared commits, versions of tables.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use mynah_data::{ErrorKind, LogReason, Message};
use mynah_log::{
    Append, Chain, Durability, Fact, Log, Prune, Record, RunFilter, VerifyStatus, Warrant,
    conformance::Sample, verify_run, verify_seals,
};
use mynah_sqlite::SqliteLog;
use rusqlite::Connection;
use tempfile::TempDir;

#[test]
fn a_failure_of_sqlite_is_the_source_of_the_logs_error() {
    use std::error::Error as _;
    let (_folder, path) = file();
    std::fs::write(
        &path,
        "no database, whatever its name says, and long enough for a header".repeat(20),
    )
    .expect("a file");
    let error = SqliteLog::open(&path).expect_err("no log");
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::Unusable));
    let source = error.source().and_then(|source| source.downcast_ref::<rusqlite::Error>());
    let code = source.and_then(rusqlite::Error::sqlite_error_code);
    assert_eq!(code, Some(rusqlite::ErrorCode::NotADatabase), "{error:#?}");
}

#[tokio::test]
async fn processes_that_append_to_one_run_lose_nothing_and_double_nothing() {
    const EACH: usize = 60;
    let (_folder, path) = file();
    let log = SqliteLog::open(&path).expect("a log");
    log.append(Sample::new("run", 0).batch()).await.expect("a new run");
    let writers = ["a", "b", "c"].map(|name| child("contend", &path, &format!("{name} {EACH}")));
    for mut writer in writers {
        assert!(writer.wait().expect("a process").success());
    }
    let report = verify_run(&log, "run").await.expect("a sound run");
    assert_eq!(report.records, 1 + 3 * EACH as u64);
    let records = log.read("run", 2, usize::MAX).await.expect("records");
    for name in ["a", "b", "c"] {
        let expected: Vec<String> = (0..EACH).map(|n| format!("{name} {n}")).collect();
        let texts = records.iter().map(text);
        let found: Vec<String> = texts.filter(|text| text.starts_with(name)).collect();
        assert_eq!(found, expected, "each of its records once, in its order");
        let own = verify_run(&log, &format!("run of {name}")).await.expect("a run of its own");
        assert_eq!((own.status.as_str(), own.records), ("verified", 3));
    }
    assert_eq!(verify_seals(&log).await.expect("a sound list").size(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_that_come_grow_end_and_go_side_by_side_leave_a_sound_log() {
    const TASKS: u64 = 24;
    let (_folder, path) = file();
    let log = SqliteLog::open_with(&path, Durability::Relaxed).expect("a log");
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let log = log.clone();
            tokio::spawn(async move {
                // How much of each run must be there in the end; none for a removed run.
                let mut left = Vec::new();
                for n in 0..12 {
                    let mut run = Sample::new(format!("{task}-{n}"), 0);
                    for step in 0..(task + n) % 5 {
                        log.append(run.batch()).await.expect("what follows");
                        // Fewer and more at once than one statement writes.
                        run = (0..(task * n + step) % 6)
                            .fold(run.user("go on"), |run, _| run.tool_turn());
                    }
                    if n % 3 > 0 {
                        run = run.sealed();
                    }
                    log.append(run.batch()).await.expect("the rest");
                    left.push((run.run_id().to_owned(), run.head().seq));
                    if n % 4 == 3 {
                        let gone = Prune::before(i64::MAX).include_unfinished().limit(1);
                        let warrant = Warrant::new("me", "a test", 1);
                        // Another process may have removed the same, or be about to.
                        let _ = gone.perform(&log, &warrant).await;
                    }
                }
                left
            })
        })
        .collect();
    let mut kept = 0;
    let mut left = Vec::new();
    for task in tasks {
        left.extend(task.await.expect("a task"));
    }
    for (run, records) in left {
        match log.run(&run).await.expect("an index") {
            Some(summary) => {
                assert_eq!(summary.records, records, "{run}");
                assert_eq!(verify_run(&log, &run).await.expect("a sound run").records, records);
                kept += 1;
            }
            None => assert_eq!(log.read(&run, 1, 1).await.expect("nothing"), []),
        }
    }
    assert!((1..TASKS * 12).contains(&kept), "some are gone, and not all: {kept}");
    log.check().await.expect("nothing strange");
    verify_seals(&log).await.expect("a sound list");
}

#[tokio::test]
async fn who_asks_for_a_run_sees_what_the_log_was_given_before() {
    let (_folder, path) = file();
    let log = SqliteLog::open(&path).expect("a log");
    for n in 0..200 {
        let name = format!("run {n}");
        let batch = Sample::new(&*name, n).batch();
        let records = batch.records.len() as u64;
        // The caller does not wait for it.
        let _ = log.append(batch).as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if n % 2 == 0 {
            let found = log.run(&name).await.expect("a log");
            assert_eq!(found.map(|found| found.records), Some(records));
        } else {
            let found = log.head(&name).await.expect("a log");
            assert_eq!(found.map(|found| found.seq), Some(records));
        }
    }
}

#[tokio::test]
async fn appends_of_every_durability_are_kept_side_by_side() {
    let (_folder, path) = file();
    for opened in [Durability::Full, Durability::Relaxed] {
        let log = SqliteLog::open_with(&path, opened).expect("a log");
        let says = [None, Some(Durability::Full), Some(Durability::Relaxed)];
        let appends = (0..90).map(|n| {
            let log = log.clone();
            tokio::spawn(async move {
                let mut run = Sample::new(format!("{opened:?} {n}"), n as i64).tool_turn().sealed();
                log.append(run.batch().durability(says[n % 3])).await
            })
        });
        for append in appends.collect::<Vec<_>>() {
            append.await.expect("a task").expect("a new run");
        }
    }
    let log = SqliteLog::open_read_only(&path).expect("a log");
    assert_eq!(verify_seals(&log).await.expect("a sound list").size(), 180);
}

#[tokio::test]
async fn a_killed_writer_loses_nothing_that_was_acknowledged_and_leaves_no_gap() {
    let (_folder, path) = file();
    SqliteLog::open(&path)
        .expect("a log")
        .append(Sample::new("run", 0).batch())
        .await
        .expect("a run");
    for round in 0..12 {
        let mut writer = child("append", &path, "");
        let mut lines = BufReader::new(writer.stdout.take().expect("a pipe")).lines();
        let mut acknowledged = 0;
        let mut next =
            || lines.find_map(|line| line.ok()?.strip_prefix("ack ")?.parse::<u64>().ok());
        for _ in 0..3 + 7 * (round % 4) {
            acknowledged = next().expect("a writer at work");
        }
        writer.kill().expect("a process to kill");
        writer.wait().expect("a process");
        while let Some(late) = next() {
            acknowledged = late;
        }
        let log = SqliteLog::open(&path).expect("a log");
        let report = verify_run(&log, "run").await.expect("a sound run");
        assert!(report.records >= acknowledged, "{} of {acknowledged}", report.records);
        assert_eq!(report.records % 3, 1, "batches of three are whole");
    }
}

#[tokio::test]
async fn a_log_is_the_same_when_it_is_opened_again() {
    let (folder, path) = file();
    let log = SqliteLog::open(&path).expect("a log");
    let mut run = Sample::new("run", 0).tool_turn();
    let batch = run.batch();
    let records = batch.records.clone();
    log.append(batch).await.expect("a new run");
    let lease = log.lease("run", "ann", Duration::from_secs(60)).await.expect("a free run");
    let summary = log.run("run").await.expect("a summary");
    drop(log);
    let names: Vec<_> = folder.path().read_dir().expect("a folder").flatten().collect();
    assert_eq!(names.len(), 1, "one file, tidied up: {names:?}");

    let log = SqliteLog::open(&path).expect("the same log");
    assert_eq!(log.run("run").await, Ok(summary));
    assert_eq!(log.read("run", 1, 100).await, Ok(records));
    let other = log.lease("run", "bob", Duration::from_secs(1)).await;
    assert_eq!(reason(other), LogReason::Leased, "leases outlive processes");
    log.append(run.sealed().batch().fenced(&lease)).await.expect("the end");
}

#[tokio::test]
async fn relaxed_durability_keeps_everything_through_the_end_of_the_process() {
    let (_folder, path) = file();
    let log = SqliteLog::open_with(&path, Durability::Relaxed).expect("a log");
    for n in 0..20 {
        log.append(Sample::new(format!("run-{n}"), n).tool_turn().batch()).await.expect("a run");
    }
    drop(log);
    let log = SqliteLog::open(&path).expect("the same log");
    let page = log.runs(RunFilter::new()).await.expect("a list");
    assert_eq!(page.runs.len(), 20);
    for run in page.runs {
        verify_run(&log, &run.run_id).await.expect("a sound run");
    }
}

#[tokio::test]
async fn a_log_that_is_read_alone_sees_what_others_write_and_writes_nothing() {
    let (_folder, path) = file();
    assert_eq!(reason(SqliteLog::open_read_only(&path)), LogReason::Unavailable, "no file yet");
    assert!(!path.exists(), "looking makes no file");
    let log = SqliteLog::open(&path).expect("a log");
    let reader = SqliteLog::open_read_only(&path).expect("the same log");
    let mut run = Sample::new("run", 0);
    log.append(run.batch()).await.expect("a new run");
    assert_eq!(reader.head("run").await, Ok(Some(run.head())));

    let result = reader.append(run.clone().user("x").batch()).await;
    assert_eq!(reason(result), LogReason::ReadOnly);
    let result = reader.lease("run", "ann", Duration::from_secs(1)).await;
    assert_eq!(reason(result), LogReason::ReadOnly);
    assert_eq!(reader.commits(), 0);

    run = run.user("x").sealed();
    log.append(run.batch()).await.expect("more");
    drop(log);
    let report = verify_run(&reader, "run").await.expect("a sound run");
    assert_eq!(report.status, VerifyStatus::Verified);
}

#[tokio::test]
async fn a_reader_waits_for_what_another_process_writes() {
    let (_folder, path) = file();
    let log: Arc<dyn Log> = Arc::new(SqliteLog::open(&path).expect("a log"));
    let follow = tokio::spawn(async move {
        let mut kinds: Vec<String> = Vec::new();
        while kinds.last().is_none_or(|kind| kind != "sealed") {
            let seen = kinds.len() as u64;
            log.wait("run of a", seen).await.expect("a log that can be read");
            let more = log.read("run of a", seen + 1, 10).await.expect("a log that can be read");
            kinds.extend(more.iter().map(|record| record.kind().to_string()));
        }
        kinds
    });
    SqliteLog::open(&path)
        .expect("a log")
        .append(Sample::new("run", 0).batch())
        .await
        .expect("a run");
    assert!(child("contend", &path, "a 1").wait().expect("a process").success());
    let kinds = follow.await.expect("a task");
    assert_eq!(kinds, ["run_started", "completed", "sealed"]);
}

#[tokio::test]
async fn many_runs_share_a_commit() {
    let (_folder, path) = file();
    let log = Arc::new(SqliteLog::open(&path).expect("a log"));
    // While someone else writes, the first append waits for the lock and the others for the first.
    let other = Connection::open(&path).expect("a connection");
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    let append = |n: i64| {
        let log = Arc::clone(&log);
        tokio::spawn(async move { log.append(Sample::new(format!("run-{n}"), n).batch()).await })
    };
    let appends: Vec<_> = (0..64).map(append).collect();
    tokio::task::yield_now().await;
    other.execute_batch("COMMIT").expect("the lock is free");
    for append in appends {
        append.await.expect("a task").expect("a new run");
    }
    assert!(log.commits() <= 2, "{} commits for 64 appends", log.commits());
}

#[tokio::test]
async fn a_run_that_cannot_be_written_does_not_fail_those_who_share_its_commit() {
    let (_folder, path) = file();
    let log = Arc::new(SqliteLog::open(&path).expect("a log"));
    let mut runs: Vec<Sample> = (0..8).map(|n| Sample::new(format!("run-{n}"), n)).collect();
    for run in &mut runs {
        log.append(run.batch()).await.expect("a new run");
    }
    let other = Connection::open(&path).expect("a connection");
    let trouble = "CREATE UNIQUE INDEX trouble ON records \
                   (CASE WHEN key > 8 AND run = 4 THEN 1 ELSE key END)";
    other.execute_batch(trouble).expect("a run that cannot be written");
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    let append = |run: Sample| {
        let log = Arc::clone(&log);
        tokio::spawn(async move { log.append(run.user("more").batch()).await })
    };
    let appends: Vec<_> = runs.into_iter().map(append).collect();
    tokio::task::yield_now().await;
    other.execute_batch("COMMIT").expect("the lock is free");
    for (n, append) in appends.into_iter().enumerate() {
        let result = append.await.expect("a task");
        match n {
            3 => assert_eq!(reason(result), LogReason::Corrupt),
            _ => assert_eq!(result.map(|head| head.seq), Ok(2)),
        }
    }
}

#[tokio::test]
async fn a_log_opened_by_many_at_once_is_made_once() {
    let (_folder, path) = file();
    let open = |n: i64| {
        let path = path.clone();
        std::thread::spawn(move || (n, SqliteLog::open(path).expect("a log")))
    };
    let threads: Vec<_> = (0..8).map(open).collect();
    for thread in threads {
        let (n, log) = thread.join().expect("a thread");
        log.append(Sample::new(format!("run-{n}"), n).batch()).await.expect("a new run");
    }
    let log = SqliteLog::open_read_only(&path).expect("the same log");
    assert_eq!(log.runs(RunFilter::new()).await.expect("a list").runs.len(), 8);
}

#[test]
fn a_log_of_another_version_is_left_alone() {
    let (_folder, path) = file();
    drop(SqliteLog::open(&path).expect("a log"));
    let other = Connection::open(&path).expect("a connection");
    for version in [-1, 2, 5] {
        other.pragma_update(None, "user_version", version).expect("another version");
        for result in [SqliteLog::open(&path), SqliteLog::open_read_only(&path)] {
            let error = result.expect_err("a log that is not understood");
            assert_eq!(error.kind(), ErrorKind::Log(LogReason::SchemaTooNew));
            assert_eq!(error.metadata()["schema"], version);
            assert!(error.to_string().contains("made by another version of Mynah"), "{error}");
        }
    }
}

#[test]
fn tables_that_lost_their_version_are_damaged() {
    let (_folder, path) = file();
    drop(SqliteLog::open(&path).expect("a log"));
    let other = Connection::open(&path).expect("a connection");
    other.pragma_update(None, "user_version", 0).expect("no version");
    for result in [SqliteLog::open(&path), SqliteLog::open_read_only(&path)] {
        let error = result.expect_err("tables of no version");
        assert_eq!(error.kind(), ErrorKind::Log(LogReason::Corrupt));
        assert!(error.to_string().contains("their version is missing"), "{error}");
    }
}

#[tokio::test]
#[cfg(unix)]
async fn a_file_that_is_removed_or_replaced_while_it_is_open_is_noticed_at_the_next_commit() {
    for (how, what) in [("remove", "removed"), ("replace", "replaced by another file")] {
        let (folder, path) = file();
        let log = SqliteLog::open(&path).expect("a log");
        let mut run = Sample::new("run", 0);
        log.append(run.batch()).await.expect("a run");
        let held = log.lease("run", "me", Duration::from_secs(1)).await.expect("a lease");
        if how == "remove" {
            std::fs::remove_file(&path).expect("a file");
        } else {
            let other = folder.path().join("other.db");
            drop(SqliteLog::open(&other).expect("another log"));
            std::fs::rename(&other, &path).expect("a file");
        }
        let lost = log.append(run.user("lost").batch()).await.expect_err("a file nobody finds");
        assert_eq!(lost.kind(), ErrorKind::Log(LogReason::Unusable));
        assert!(
            lost.to_string().contains(&format!("mynah.db was {what} while it was open")),
            "{lost}"
        );
        let lease = log.lease("run", "me", Duration::from_secs(1)).await;
        assert_eq!(reason(lease), LogReason::Unusable);
        // The lease cannot be given back, and no reader waits until it can.
        log.release(&held);
        let read = tokio::time::timeout(Duration::from_secs(60), log.run("run")).await;
        drop(read.expect("an answer"));
    }
}

#[tokio::test]
async fn a_file_that_is_locked_for_long_is_unavailable_and_takes_the_same_batch_later() {
    let (_folder, path) = file();
    let log = SqliteLog::open(&path).expect("a log");
    let other = Connection::open(&path).expect("a connection");
    other.execute_batch("BEGIN IMMEDIATE").expect("a lock");
    let mut run = Sample::new("run", 0);
    let batch = run.batch();
    assert_eq!(reason(log.append(batch.clone()).await), LogReason::Unavailable);
    other.execute_batch("COMMIT").expect("no lock");
    assert_eq!(log.append(batch).await, Ok(run.head()));
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_anything_is_to_be_written() {
    let (_folder, path) = file();
    drop(SqliteLog::open(&path).expect("a log"));
    // SQLite only reads a file of a format that it does not know how to write, the caller that owns
    // it.
    let mut bytes = std::fs::read(&path).expect("a file");
    bytes[18] = 3;
    std::fs::write(&path, bytes).expect("a file");
    assert_eq!(reason(SqliteLog::open(&path)), LogReason::ReadOnly);
}

#[test]
fn what_is_not_a_log_is_refused_and_left_as_it_is() {
    let (folder, path) = file();
    std::fs::write(&path, "Dear diary, today I wrote a text file of some length.").expect("a file");
    assert_eq!(reason(SqliteLog::open(&path)), LogReason::Unusable);
    let text = std::fs::read_to_string(&path).expect("a file");
    assert!(text.starts_with("Dear diary"));

    let path = folder.path().join("foreign.db");
    let other = Connection::open(&path).expect("a connection");
    other.execute_batch("CREATE TABLE recipes (name TEXT)").expect("a table");
    for result in [SqliteLog::open(&path), SqliteLog::open_read_only(&path)] {
        assert_eq!(reason(result), LogReason::Unusable);
    }
    let tables = "SELECT count(*) FROM sqlite_schema";
    assert_eq!(other.query_row(tables, [], |row| row.get::<_, i64>(0)), Ok(1));

    let path = folder.path().join("empty.db");
    std::fs::write(&path, "").expect("a file");
    let error = SqliteLog::open_read_only(&path).expect_err("nothing to read");
    assert!(error.to_string().ends_with("empty.db is empty: there is no log in it"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::Unavailable));
    let is_folder = folder.path().to_str().expect("a path");
    for path in ["", ":memory:", "/no/such/folder/mynah.db", is_folder] {
        assert_eq!(reason(SqliteLog::open(path)), LogReason::Unusable, "{path}");
    }
}

#[tokio::test]
async fn a_damaged_index_is_found_though_every_run_can_be_read() {
    for index in ["runs_by_status", "runs_by_session", "seals_by_run"] {
        let (_folder, path) = file();
        let log = SqliteLog::open(&path).expect("a log");
        log.append(Sample::new("run", 0).sealed().batch()).await.expect("a run");
        drop(log);
        let select = format!(
            "SELECT rootpage, page_size FROM sqlite_schema, pragma_page_size WHERE name = '{index}'"
        );
        let read = |row: &rusqlite::Row<'_>| Ok([row.get::<_, i64>(0)?, row.get(1)?]);
        let found = Connection::open(&path).and_then(|other| other.query_row(&select, [], read));
        let [page, size] = found.expect("an index").map(|n| usize::try_from(n).expect("a number"));
        let mut bytes = std::fs::read(&path).expect("a file");
        // The place of its first row.
        let end = (page - 1) * size + 5;
        bytes[end..end + 4].fill(0x3f);
        std::fs::write(&path, bytes).expect("a file");
        let log = SqliteLog::open_read_only(&path).expect("a log");
        let error = verify_seals(&log).await.expect_err("a damaged file");
        assert_eq!(error.kind(), ErrorKind::Log(LogReason::Corrupt), "{index}: {error}");
        assert!(
            error.to_string().contains("the file is damaged; restore it from a copy"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_file_that_lacks_a_table_or_a_column_is_damaged() {
    for (change, what) in [
        ("DROP TABLE seals", "no such table: seals"),
        ("DROP TABLE unwiped", "no such table: unwiped"),
        ("DROP TABLE pruned", "no such table: pruned"),
        ("ALTER TABLE runs RENAME COLUMN status TO condition", "no such column: status"),
    ] {
        let (_folder, path) = file();
        let log = SqliteLog::open(&path).expect("a log");
        log.append(Sample::new("run", 0).sealed().batch()).await.expect("a run");
        drop(log);
        Connection::open(&path).expect("a file").execute_batch(change).expect("a change");
        let log = SqliteLog::open_read_only(&path).expect("a log");
        let path = std::path::absolute(&path).expect("a path");
        let told = format!(
            "log error: corrupt: {}: {what}: the file is damaged; restore it from a copy",
            path.display()
        );
        let errors = [verify_seals(&log).await.err(), log.runs(RunFilter::new()).await.err()];
        let errors: Vec<String> =
            errors.iter().flatten().map(|error| error.message().into_owned()).collect();
        assert_eq!(errors.first(), Some(&told));
        assert!(errors.iter().all(|error| !error.contains("SELECT")), "{errors:?}");
    }
}

#[tokio::test]
async fn what_a_file_would_do_by_itself_is_not_done() {
    let (_folder, path) = file();
    drop(SqliteLog::open(&path).expect("a log"));
    let trigger = "CREATE TRIGGER forget AFTER INSERT ON runs BEGIN DELETE FROM runs; END";
    Connection::open(&path).expect("a file").execute_batch(trigger).expect("a trigger");
    let log = SqliteLog::open(&path).expect("a log");
    log.append(Sample::new("run", 0).sealed().batch()).await.expect("a run");
    assert_eq!(
        mynah_log::verify_run(&log, "run").await.expect("a sound run").status,
        VerifyStatus::Verified
    );
}

#[tokio::test]
async fn what_refers_to_a_run_does_not_keep_it() {
    let (_folder, path) = file();
    let log = SqliteLog::open(&path).expect("a log");
    log.append(Sample::new("run", 0).sealed().batch()).await.expect("a run");
    let note =
        "CREATE TABLE notes (run TEXT REFERENCES runs (id)); INSERT INTO notes VALUES ('run')";
    Connection::open(&path).expect("a file").execute_batch(note).expect("somebody's own table");
    let warrant = Warrant::new("ann", "asked to", 9);
    let gone = Prune::before(5).perform(&log, &warrant).await.expect("an old run");
    assert_eq!(gone.pruned.len(), 1);
}

#[tokio::test]
async fn large_records_come_in_portions() {
    let (_folder, path) = file();
    let log = SqliteLog::open(&path).expect("a log");
    let text = "x".repeat(9 << 20);
    let mut run = Sample::new("run", 0).user(&text).user(&text).user(&text);
    log.append(run.batch()).await.expect("a new run");
    let portion = log.read("run", 1, 100).await.expect("records");
    assert_eq!(portion.len(), 3, "not all at once");
    let rest = log.read("run", 4, 100).await.expect("records");
    assert_eq!(rest.iter().map(Record::seq).collect::<Vec<_>>(), [4]);
    assert_eq!(verify_run(&log, "run").await.expect("a sound run").records, 4);
}

/// What a child process does; nothing when it is run as a test.
#[tokio::test]
async fn child_process() {
    let Some(task) = env::var_os("MYNAH_TEST_TASK") else { return };
    let argument =
        |name| env::var_os(name).and_then(|value| value.into_string().ok()).unwrap_or_default();
    let log = SqliteLog::open(argument("MYNAH_TEST_PATH")).expect("a log");
    match task.to_str() {
        Some("contend") => {
            let argument = argument("MYNAH_TEST_ARGUMENT");
            let (name, count) = argument.split_once(' ').expect("a name and a number");
            contend(&log, name, count.parse().expect("a number")).await;
        }
        _ => append_for_ever(&log).await,
    }
}

/// Appends to a run that others append to as well, and makes a run of its own.
async fn contend(log: &SqliteLog, name: &str, count: usize) {
    let mut chain = Chain::new("run");
    for n in 0..count {
        loop {
            catch_up(log, &mut chain).await;
            let mut longer = chain.clone();
            let batch = message(&mut longer, &format!("{name} {n}"));
            match log.append(batch).await {
                Ok(_) => break chain = longer,
                result => assert_eq!(reason(result), LogReason::HeadMismatch),
            }
        }
    }
    let mut own = Sample::new(format!("run of {name}"), 0).sealed();
    log.append(own.batch()).await.expect("a run of its own");
}

async fn append_for_ever(log: &SqliteLog) {
    let mut chain = Chain::new("run");
    catch_up(log, &mut chain).await;
    loop {
        let mut batch = message(&mut chain, "1");
        batch.records.extend(message(&mut chain, "2").records);
        batch.records.extend(message(&mut chain, "3").records);
        let head = log.append(batch).await.expect("the only writer");
        let mut out = std::io::stdout().lock();
        writeln!(out, "ack {}", head.seq)
            .and_then(|()| out.flush())
            .expect("a parent that listens");
    }
}

async fn catch_up(log: &SqliteLog, chain: &mut Chain) {
    let from = chain.head().map_or(1, |head| head.seq + 1);
    for record in log.read("run", from, usize::MAX).await.expect("records") {
        chain.follow(&record).expect("a sound chain");
    }
}

fn message(chain: &mut Chain, text: &str) -> Append {
    let expected = chain.head();
    let fact = Fact::UserMessage { message: Arc::new(Message::user(text)) };
    let record = chain.append(0, [7; 16], &fact).expect("a fact that can be encoded");
    Append::new(chain.run_id().clone(), expected, vec![record])
}

fn text(record: &Record) -> String {
    match record.fact() {
        Ok(Some(Fact::UserMessage { message })) => message.text().into_owned(),
        other => panic!("a message, not {other:?}"),
    }
}

/// This test program again, as another process.
fn child(task: &str, path: &Path, argument: &str) -> Child {
    Command::new(env::current_exe().expect("this program"))
        .args(["--exact", "sqlite::child_process", "--nocapture"])
        .env("MYNAH_TEST_TASK", task)
        .env("MYNAH_TEST_PATH", path)
        .env("MYNAH_TEST_ARGUMENT", argument)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

fn file() -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mynah.db");
    (folder, path)
}

fn reason<T>(result: mynah_data::Result<T>) -> LogReason {
    match result.err().map(|error| error.kind()) {
        Some(ErrorKind::Log(reason)) => reason,
        other => panic!("a log's refusal, not {other:?}"),
    }
}
