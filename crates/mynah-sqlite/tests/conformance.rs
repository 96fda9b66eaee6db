//! A log in a SQLite file does what every log must.

#![allow(clippy::expect_used, reason = "helpers fail as tests do")]

use std::{cell::Cell, sync::Arc};

use mynah_log::{Log, conformance};
use mynah_sqlite::SqliteLog;

#[tokio::test]
async fn the_log_in_sqlite_does_what_every_log_must() {
    let folder = tempfile::tempdir().expect("a folder");
    let count = Cell::new(0);
    conformance::run(async || {
        count.set(count.get() + 1);
        let path = folder.path().join(format!("{}.db", count.get()));
        Arc::new(SqliteLog::open(path).expect("a log")) as Arc<dyn Log>
    })
    .await;
}
