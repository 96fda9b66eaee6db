//! A server that is down: calls fail at once, and succeed as soon as it is back.

use std::{net::TcpListener, time::Duration};

use mynah_log::{Log as _, RunFilter, conformance::Sample};
use mynah_postgres::PostgresLog;
use tokio::time::Instant;

use crate::server;

/// Less than one call that waits for the server takes, and enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(8);

/// Makes many calls side by side. All fail, and none waits for the server or for another.
async fn all_fail(log: &PostgresLog, round: usize) {
    let began = Instant::now();
    let call = |n: usize| {
        let log = log.clone();
        tokio::spawn(async move {
            match n % 4 {
                0 => log.head("run").await.map(drop),
                1 => log.append(Sample::new(format!("{round}-{n}"), 0).batch()).await.map(drop),
                2 => log.runs(RunFilter::new()).await.map(drop),
                _ => log.beat("process", Duration::from_secs(1)).await,
            }
        })
    };
    for call in (0..40).map(call).collect::<Vec<_>>() {
        let error = call.await.expect("a task").expect_err("a server that is down");
        assert_eq!(error.reason(), "unavailable", "{error}");
    }
    assert!(began.elapsed() < PATIENCE, "it took {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_fail_at_once_while_the_server_is_down_and_succeed_when_it_is_back() {
    let Some(server) = server::start() else { return };
    let log = PostgresLog::open(&server.fresh()).expect("a URL");
    let mut run = Sample::new("run", 0);
    log.append(run.batch()).await.expect("a new run");
    log.head("run").await.expect("a run");
    server.crash();
    for round in 0..4 {
        all_fail(&log, round).await;
        // Long enough for several attempts to connect.
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    // A host that takes connections and does not answer holds up no call either.
    let silent = TcpListener::bind(("127.0.0.1", server.port)).expect("its port");
    tokio::time::sleep(Duration::from_secs(1)).await;
    all_fail(&log, 4).await;
    drop(silent);

    server.up();
    let began = Instant::now();
    while log.head("run").await.is_err() {
        assert!(began.elapsed() < PATIENCE, "it is back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    run = run.user("more");
    assert_eq!(log.append(run.batch()).await, Ok(run.head()), "for all connections");
}
