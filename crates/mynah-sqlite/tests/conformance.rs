//! A log in a SQLite file does what every log must.

use std::{cell::Cell, path::Path, sync::Arc};

use mynah_log::{Log, conformance};
use mynah_sqlite::SqliteLog;

fn open(folder: &Path, count: i32) -> Arc<dyn Log> {
    Arc::new(SqliteLog::open(folder.join(format!("{count}.db"))).expect("a log"))
}

#[tokio::test]
async fn the_log_in_sqlite_does_what_every_log_must() {
    let (folder, count) = (tempfile::tempdir().expect("a folder"), Cell::new(0));
    conformance::run(async || open(folder.path(), count.replace(count.get() + 1))).await;
}

#[tokio::test]
async fn two_handles_of_a_log_in_sqlite_do_what_one_does() {
    let (folder, count) = (tempfile::tempdir().expect("a folder"), Cell::new(0));
    conformance::run_shared(async || {
        let count = count.replace(count.get() + 1);
        [(); 2].map(|()| open(folder.path(), count))
    })
    .await;
}
