//! What appends cost, as a ratio to raw statements on the same server, in the same run.

#![allow(missing_docs, clippy::expect_used, reason = "a benchmark says what is wrong by panicking")]

use std::time::{Duration, Instant};

use mynah_log::{Log as _, Record, conformance::Sample};
use mynah_postgres::PostgresLog;
use tokio_postgres::NoTls;

#[path = "../tests/server/mod.rs"]
mod server;

const RUNS: usize = 64;
const ROUNDS: u32 = 100;
const MESSAGE: &str = "a message of some length, as people write";

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// The id of a run, as long as those that Mynah makes.
fn id(runs: usize, n: usize) -> String {
    format!("01JCW3X9T0{runs:08}{n:08}")
}

/// One row each of these, as an append of one record writes it.
const INSERT: &str = "INSERT INTO raw (run, seq, envelope, salt, payload) \
                      SELECT * FROM unnest($1::text[], $2::int8[], $3::bytea[], $4::bytea[], $5::bytea[])";

async fn raw(
    client: &tokio_postgres::Client,
    insert: &tokio_postgres::Statement,
    round: i64,
    record: &Record,
    rows: usize,
) {
    let body = record.body().expect("a body");
    let runs: Vec<String> = (0..rows).map(|run| id(rows, run)).collect();
    let (seqs, envelopes) = (vec![round; rows], vec![&record.envelope_bytes()[..]; rows]);
    let (salts, payloads) = (vec![&body.salt[..]; rows], vec![&body.payload[..]; rows]);
    client.execute(insert, &[&runs, &seqs, &envelopes, &salts, &payloads]).await.expect("rows");
}

async fn ours(log: &PostgresLog, runs: &mut [Sample]) -> Duration {
    // What is measured is the append, and not the making of records.
    let mut round = || {
        let each = runs.iter_mut().map(|run| {
            *run = run.clone().user(MESSAGE);
            run.batch()
        });
        each.collect::<Vec<_>>()
    };
    let rounds: Vec<_> = (0..ROUNDS).map(|_| round()).collect();
    let began = now();
    for mut batches in rounds {
        // One is awaited where it is called, as the raw statement is. Many come from as many tasks.
        if batches.len() == 1 {
            log.append(batches.remove(0)).await.expect("an append");
            continue;
        }
        let append = |batch| {
            let log = log.clone();
            tokio::spawn(async move { log.append(batch).await.expect("an append") })
        };
        let tasks: Vec<_> = batches.into_iter().map(append).collect();
        for task in tasks {
            task.await.expect("a task");
        }
    }
    began.elapsed()
}

fn main() {
    let Some(server) = server::start() else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let url = server.fresh();
        let log = PostgresLog::open(&url).expect("a URL");
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("a server");
        tokio::spawn(connection);
        client
            .batch_execute(
                "CREATE TABLE raw (run text, seq int8, envelope bytea, salt bytea, payload bytea, PRIMARY KEY (run, seq))",
            )
            .await
            .expect("a table");
        let insert = client.prepare(INSERT).await.expect("a statement");
        // As many bytes as the others: a record names its run.
        let sample = Sample::new(id(1, 0), 0).user(MESSAGE).batch();
        let record = sample.records.last().expect("a record");
        for count in [RUNS, 1] {
            let mut runs: Vec<Sample> =
                (0..count).map(|n| Sample::new(id(count, n), 0)).collect();
            for run in &mut runs {
                log.append(run.batch()).await.expect("a new run");
            }
            // Once to warm up.
            ours(&log, &mut runs).await;
            let append = ours(&log, &mut runs).await;
            let began = now();
            for round in 0..i64::from(ROUNDS) {
                raw(&client, &insert, round, record, count).await;
            }
            let raw = began.elapsed();
            let [append, insert] = [append, raw].map(|all| all.as_secs_f64() / f64::from(ROUNDS));
            println!(
                "{count} runs: append {:.2} ms, raw insert {:.2} ms, raw/append {:.2}, append/raw {:.2}",
                append * 1e3,
                insert * 1e3,
                insert / append,
                append / insert
            );
        }
    });
}
