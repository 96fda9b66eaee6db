//! Any value in the place of a number in a log's file causes no panic, and an error names the
//! problem.

use std::{fs, io::Cursor, path::Path, time::Duration};

use mynah_data::{Error, ErrorKind, LogReason};
use mynah_log::{
    AnswerPart, Append, Durability, Lease, Log, Prune, Queue, Redact, RunFilter, Warrant, bundle,
    conformance::Sample, verify_run, verify_seals,
};
use mynah_sqlite::SqliteLog;
use rusqlite::{Connection, types::Value};

use crate::tables::Head;

const RUNS: [&str; 3] = ["sealed", "open", "held"];

/// Every column that holds a number, and what else its row needs for it to count.
const COLUMNS: [(&str, &str, &str); 22] = [
    ("runs", "key", ""),
    ("runs", "status", ""),
    ("runs", "started", ""),
    ("runs", "token", ""),
    ("runs", "wake", ""),
    ("runs", "priority", ", queue = 'q'"),
    ("runs", "at_most", ", queue = 'q', shared = 'key'"),
    ("beats", "until", ""),
    ("inbox", "key", ""),
    ("inbox", "run", ""),
    ("inbox", "at", ""),
    ("parts", "run", ""),
    ("parts", "seq", ""),
    ("parts", "first", ""),
    ("parts", "count", ""),
    ("heads", "run", ""),
    ("older", "run", ""),
    ("older", "seq", ""),
    ("records", "key", ""),
    ("records", "run", ""),
    ("seals", "place", ""),
    ("unwiped", "tombstone", ""),
];

#[tokio::test]
async fn no_value_of_any_column_makes_anything_panic() {
    let folder = tempfile::tempdir().expect("a folder");
    let (whole, changed) = (folder.path().join("whole.db"), folder.path().join("changed.db"));
    let (next, bundle) = fill(&whole).await;
    for (table, column, rest) in COLUMNS {
        // Of rows whose numbers have to differ, SQLite lets one have the value.
        for value in [
            Value::Integer(-1),
            Value::Integer(i64::MIN),
            Value::Integer(i64::MAX - 1),
            Value::Integer(i64::MAX),
            Value::Real(0.5),
            Value::Text("text".to_owned()),
            Value::Blob(vec![0xff; 9]),
            Value::Null,
        ] {
            fs::copy(&whole, &changed).expect("a copy");
            let raw = Connection::open(&changed).expect("a file");
            let update = format!("UPDATE OR IGNORE {table} SET {column} = ?1{rest}");
            // A primary key takes nothing but numbers.
            let _ = raw.execute(&update, [&value]);
            drop(raw);
            nothing_panics(&changed, &next, &bundle, &format!("{table}.{column} = {value:?}"))
                .await;
        }
    }
    // Those that are packed.
    let of_heads: [fn(&mut Head, u64); 8] = [
        |head, number| head.updated = number.cast_signed(),
        |head, number| head.cost = f64::from_bits(number),
        |head, number| head.records = number,
        |head, number| head.turns = number,
        |head, number| head.tool_calls = number,
        |head, number| head.input_tokens = number,
        |head, number| head.output_tokens = number,
        |head, number| head.keys = vec![number.cast_signed()],
    ];
    for (at, change) in of_heads.into_iter().enumerate() {
        for number in [0, i64::MAX.cast_unsigned() - 1, i64::MAX.cast_unsigned(), u64::MAX] {
            fs::copy(&whole, &changed).expect("a copy");
            let raw = Connection::open(&changed).expect("a file");
            RUNS.iter().for_each(|run| Head::change(&raw, run, |head| change(head, number)));
            drop(raw);
            nothing_panics(&changed, &next, &bundle, &format!("number {at} = {number}")).await;
        }
    }
}

async fn nothing_panics(changed: &Path, next: &Append, bundle: &[u8], change: &str) {
    for error in perform_everything(changed, next, bundle).await {
        let told = error.to_string();
        let is_panic = told.contains("stopped") || told.contains("panicked");
        assert!(!is_panic, "{change}: {told}");
    }
}

#[tokio::test]
async fn a_token_that_no_lease_had_is_damage_and_nobody_gets_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log.db");
    fill(&path).await;
    for token in [-1, i64::MIN, i64::MAX] {
        let raw = Connection::open(&path).expect("a file");
        raw.execute("UPDATE runs SET token = ?1 WHERE id = 'open'", [token]).expect("a row");
        let log = SqliteLog::open(&path).expect("a log");
        let second = Duration::from_secs(1);
        let refused = log.lease("open", "me", second).await.map(drop);
        for found in [refused, verify_run(&log, "open").await.map(drop)] {
            let error = found.expect_err("damage");
            assert_eq!(error.kind(), ErrorKind::Log(LogReason::Corrupt), "{error}");
            assert_eq!(error.metadata()["run_id"], "open");
        }
        log.lease("held", "me", second).await.expect("another run");
    }
}

/// Makes a log of some runs, one of them long, whose tables take values of any type. Gives what could be appended to the open
/// one, and a bundle.
async fn fill(path: &Path) -> (Append, Vec<u8>) {
    let log = SqliteLog::open(path).expect("a log");
    let long = (0..70).fold(Sample::new("sealed", 0), |run, _| run.user("more"));
    log.append(long.tool_turn().seal().batch()).await.expect("a run");
    log.append(Sample::new("held", 1).batch().held("me", Duration::ZERO)).await.expect("a run");
    let lease = Lease::new("held", "me", 1, 0);
    log.keep_part(&lease, AnswerPart::new(1, 0, 1, "part")).await.expect("a run");
    log.append(Sample::new("gone", 2).sealed().batch()).await.expect("a run");
    let mut open = Sample::new("open", 3).tool_turn();
    log.append(open.batch().queue(Queue::new("q").concurrency("key", 2))).await.expect("a run");
    log.deliver("open", "m", b"message".to_vec()).await.expect("a run");
    let mut file = Vec::new();
    bundle::export(&log, "gone", &mut file).await.expect("a run");
    let warrant = Warrant::new("ann", "asked to", 9);
    Redact::records("sealed", [2]).perform(&log, &warrant).await.expect("a record");
    drop(log);
    let raw = Connection::open(path).expect("a file");
    raw.execute_batch(
        "INSERT INTO unwiped VALUES (1); PRAGMA writable_schema = on; \
         UPDATE sqlite_schema SET sql = replace(replace(replace(sql, \
         'STRICT, WITHOUT', 'WITHOUT'), ') STRICT', ')'), 'NOT NULL', '') WHERE type = 'table';",
    )
    .expect("tables that take anything");
    (open.user("more").batch(), file)
}

/// Does all that can be done with a log, and gives what was refused.
async fn perform_everything(path: &Path, next: &Append, file: &[u8]) -> Vec<Error> {
    let log = SqliteLog::open_with(path, Durability::Relaxed).expect("a log");
    let mut told = Vec::new();
    for run in RUNS {
        told.push(log.run(run).await.map(drop));
        told.push(log.head(run).await.map(drop));
        for from in [0, 1, 60, u64::MAX] {
            told.push(log.read(run, from, 100).await.map(drop));
        }
        told.push(verify_run(&log, run).await.map(drop));
        told.push(bundle::export(&log, run, &mut Vec::new()).await.map(drop));
    }
    for filter in [RunFilter::new().limit(1), RunFilter::new().limit(1).oldest_first()] {
        let mut filter = Some(filter);
        // More pages than there are runs would go round in a circle.
        for _ in 0..9 {
            let Some(page) = filter.take() else { break };
            match log.runs(page.clone()).await {
                Ok(found) => filter = found.next.map(|next| page.after(next)),
                Err(error) => told.push(Err(error)),
            }
        }
        assert_eq!(filter.map(|filter| filter.after), None);
    }
    for from in [0, 1, i64::MAX as u64, u64::MAX] {
        told.push(log.seals(from, 100).await.map(drop));
    }
    told.push(log.check().await);
    told.push(verify_seals(&log).await.map(drop));
    for (owner, now) in [("me", 0), ("you", 9), ("you", i64::MAX), ("me", i64::MIN)] {
        let log = log.clone().with_clock(move || now);
        for run in RUNS {
            let taken = log.take(run, owner, Duration::MAX, Some(now)).await;
            for lease in [taken, log.lease(run, owner, Duration::MAX).await] {
                match lease {
                    Ok(lease) => log.release(&lease),
                    Err(error) => told.push(Err(error)),
                }
            }
        }
    }
    for now in [i64::MIN, 0, i64::MAX] {
        let log = log.clone().with_clock(move || now);
        told.push(log.claim("you", Duration::MAX, &["q"], 9).await.map(drop));
        told.push(log.beat("you", Duration::MAX).await);
    }
    for cursor in [None, Some("0.0"), Some("-9.9")] {
        told.push(log.changes(cursor, 100).await.map(drop));
    }
    for run in RUNS {
        told.push(log.inbox(run, 9).await.map(drop));
        told.push(log.deliver(run, "n", Vec::new()).await.map(drop));
    }
    // A part that is not found is waited for.
    let parts = tokio::time::timeout(Duration::from_millis(5), log.parts("held", 1, 0)).await;
    told.extend(parts.ok().map(|parts| parts.map(drop)));
    told.push(log.append(next.clone()).await.map(drop));
    told.push(log.append(Sample::new("new", 4).sealed().batch()).await.map(drop));
    told.push(bundle::import(&log, Cursor::new(file)).await.map(drop));
    let warrant = Warrant::new("ann", "asked to", 10);
    for run in RUNS {
        told.push(Redact::all(run).perform(&log, &warrant).await.map(drop));
    }
    let prune = Prune::before(i64::MAX).include_unfinished();
    told.push(prune.perform(&log, &warrant).await.map(drop));
    told.push(log.wipe().await);
    told.into_iter().filter_map(Result::err).collect()
}
