//! Every change to the records of a log is found, and the message names the record.

use mynah_data::{ErrorKind, LogReason};
use mynah_log::{Log as _, conformance::Sample, verify_run, verify_seals};
use mynah_postgres::PostgresLog;
use tokio_postgres::{Client, NoTls};

use crate::server;

/// A log with a run that has its seal and one that has none, and a way to change its tables.
struct Book {
    log: PostgresLog,
    raw: Client,
}

impl Book {
    async fn new(server: &server::Server) -> Self {
        let url = server.fresh();
        let log = PostgresLog::open(&url).expect("a URL");
        let mut sealed = Sample::new("sealed", 0).tool_turn().sealed();
        let mut open = Sample::new("open", 0).tool_turn();
        for run in [&mut sealed, &mut open] {
            log.append(run.batch()).await.expect("a new run");
        }
        log.seals(0, 9).await.expect("a leaf");
        let (raw, connection) = tokio_postgres::connect(&url, NoTls).await.expect("a server");
        tokio::spawn(connection);
        Self { log, raw }
    }

    async fn change(&self, statements: &str) {
        self.raw.batch_execute(statements).await.expect("a change");
    }

    async fn number(&self, query: &str) -> i64 {
        self.raw.query_one(query, &[]).await.expect("a row").get(0)
    }

    async fn records(&self, run: &str) -> i64 {
        self.number(&format!("SELECT count(*) FROM mynah_records WHERE run = '{run}'")).await
    }

    /// The record that is named as wrong.
    async fn found(&self, run: &str) -> i64 {
        let error = verify_run(&self.log, run).await.expect_err("damage");
        let reasons = [LogReason::Corrupt, LogReason::TooNew].map(ErrorKind::Log);
        assert!(reasons.contains(&error.kind()), "{error}");
        assert_eq!(error.metadata()["run_id"], run, "{error}");
        error.metadata()["seq"].as_i64().expect("a number")
    }
}

#[tokio::test]
async fn every_flipped_byte_of_every_record_is_found() {
    let Some(server) = server::start() else { return };
    let book = Book::new(&server).await;
    for run in ["sealed", "open"] {
        for seq in 1..=book.records(run).await {
            let row = format!("run = '{run}' AND seq = {seq}");
            for column in ["envelope", "salt", "payload"] {
                let size = format!("SELECT length({column})::int8 FROM mynah_records WHERE {row}");
                for byte in 0..book.number(&size).await {
                    let flip = format!(
                        "UPDATE mynah_records SET {column} = \
                         set_byte({column}, {byte}, get_byte({column}, {byte}) # {}) WHERE {row}",
                        1 << (byte % 8)
                    );
                    book.change(&flip).await;
                    assert_eq!(book.found(run).await, seq, "{column} {byte} of {seq}");
                    book.change(&flip).await;
                }
            }
        }
        verify_run(&book.log, run).await.expect("what it was");
    }
    verify_seals(&book.log).await.expect("what they were");
}

#[tokio::test]
async fn every_removed_record_is_found() {
    let Some(server) = server::start() else { return };
    for run in ["sealed", "open"] {
        let last = Book::new(&server).await.records(run).await;
        for seq in 1..=last {
            let book = Book::new(&server).await;
            book.change(&format!("DELETE FROM mynah_records WHERE run = '{run}' AND seq = {seq}"))
                .await;
            assert_eq!(book.found(run).await, seq);
            // Closing the gap does not help.
            for later in seq + 1..=last {
                book.change(&format!(
                    "UPDATE mynah_records SET seq = seq - 1 WHERE run = '{run}' AND seq = {later}"
                ))
                .await;
            }
            book.change(&format!(
                "UPDATE mynah_heads SET records = records - 1 WHERE run = '{run}'"
            ))
            .await;
            assert_eq!(book.found(run).await, seq.min(last - 1));
        }
    }
}

#[tokio::test]
async fn every_pair_of_swapped_records_is_found() {
    let Some(server) = server::start() else { return };
    let book = Book::new(&server).await;
    let last = book.records("sealed").await;
    let set = |from: i64, to: i64| {
        format!("UPDATE mynah_records SET seq = {to} WHERE run = 'sealed' AND seq = {from};")
    };
    for a in 1..=last {
        for b in a + 1..=last {
            let swap = set(a, -1) + &set(b, a) + &set(-1, b);
            book.change(&swap).await;
            assert_eq!(book.found("sealed").await, a, "{a} and {b}");
            book.change(&swap).await;
        }
    }
    verify_run(&book.log, "sealed").await.expect("what it was");
}

#[tokio::test]
async fn records_of_another_run_are_found() {
    let Some(server) = server::start() else { return };
    let book = Book::new(&server).await;
    let last = book.records("open").await;
    for seq in 1..=last {
        let swap = format!(
            "UPDATE mynah_records SET run = 'x' WHERE run = 'open' AND seq = {seq}; \
             UPDATE mynah_records SET run = 'open' WHERE run = 'sealed' AND seq = {seq}; \
             UPDATE mynah_records SET run = 'sealed' WHERE run = 'x' AND seq = {seq};"
        );
        book.change(&swap).await;
        assert_eq!(book.found("open").await, seq);
        assert_eq!(book.found("sealed").await, seq);
        book.change(&swap).await;
    }
    verify_run(&book.log, "open").await.expect("what it was");
    verify_seals(&book.log).await.expect("what they were");
}

#[tokio::test]
async fn a_run_that_is_cut_off_or_taken_out_is_found() {
    let Some(server) = server::start() else { return };
    let book = Book::new(&server).await;
    let last = book.records("sealed").await;
    // The seal and what stands before it, with an index that agrees.
    book.change(&format!(
        "DELETE FROM mynah_records WHERE run = 'sealed' AND seq > {}; \
         UPDATE mynah_heads SET records = {} WHERE run = 'sealed'; \
         UPDATE mynah_runs SET sealed = false, status = 0 WHERE id = 'sealed'",
        last - 2,
        last - 2
    ))
    .await;
    assert!(verify_run(&book.log, "sealed").await.is_err());
    assert!(verify_seals(&book.log).await.is_err(), "the log's tree has its seal");
    let book = Book::new(&server).await;
    book.change("DELETE FROM mynah_records WHERE run = 'sealed'; DELETE FROM mynah_runs WHERE id = 'sealed'")
        .await;
    assert!(verify_seals(&book.log).await.is_err() || book.log.check().await.is_err());
}
