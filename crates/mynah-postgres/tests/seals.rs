//! Seals get their places while many processes read them.

use std::sync::Arc;

use mynah_data::{ErrorKind, LogReason};
use mynah_log::{Log as _, RunFilter, conformance::Sample};
use mynah_postgres::PostgresLog;
use tokio_postgres::NoTls;

use crate::server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_another_reader_gives_its_place_is_read_with_it() {
    const RUNS: u64 = 300;
    let Some(server) = server::start() else { return };
    let url = server.fresh();
    let log = PostgresLog::open(&url).expect("a URL");
    log.init().await.expect("tables");
    let (last, next) = tokio::sync::watch::channel(0_u64);
    let reader = |log: PostgresLog| {
        let mut next = next.clone();
        tokio::spawn(async move {
            let mut seen = 0;
            while next.changed().await.is_ok() {
                let n = *next.borrow_and_update();
                let run = log.run(&format!("run-{n}")).await.expect("a log").expect("a run");
                let page = log.runs(RunFilter::new().limit(3)).await.expect("a log").runs;
                for run in page.iter().chain([&run]) {
                    let place = run.seal.expect("a seal");
                    assert!(place < RUNS, "{} has the place {place}", run.run_id);
                }
                seen += 1;
            }
            seen
        })
    };
    let logs = (0..5).map(|_| PostgresLog::open(&url).expect("a URL"));
    let readers: Vec<_> = logs.map(reader).collect();
    for n in 0..RUNS {
        let mut run = Sample::new(format!("run-{n}"), n as i64).sealed();
        log.append(run.batch()).await.expect("a new run");
        last.send_replace(n);
    }
    drop(last);
    for reader in readers {
        assert!(reader.await.expect("a reader") > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seals_that_cannot_be_placed_now_do_not_trouble_other_reads() {
    let Some(server) = server::start() else { return };
    server.sql("CREATE SCHEMA busy");
    let url = server.url("busy", server.port);
    let log = PostgresLog::open(&format!("{url}%20-clock_timeout%3D200")).expect("a URL");
    log.append(Sample::new("open", 0).batch()).await.expect("a new run");
    log.append(Sample::new("sealed", 0).sealed().batch()).await.expect("a new run");
    let (raw, connection) = tokio_postgres::connect(&url, NoTls).await.expect("a server");
    tokio::spawn(connection);
    let lock = "BEGIN; SELECT next FROM mynah_turns WHERE name = 'seals' FOR UPDATE";
    raw.batch_execute(lock).await.expect("a lock");
    let log = Arc::new(log);
    let placing = Arc::clone(&log);
    let seals = tokio::spawn(async move { placing.seals(0, 9).await });
    let mut reads = 0;
    while !seals.is_finished() || reads < 100 {
        log.head("open").await.expect("a log that can be read");
        reads += 1;
    }
    let error = seals.await.expect("a task").expect_err("a lock that is held");
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::Unavailable), "{error}");
    raw.batch_execute("ROLLBACK").await.expect("its end");
    assert_eq!(log.seals(0, 9).await.map(|seals| seals.len()), Ok(1));
}
