//! Every backend passes the one suite.

use std::sync::Arc;

use mynah_log::{Log, MemoryLog, conformance};

#[tokio::test]
async fn the_log_in_memory_does_what_every_log_must() {
    conformance::run(async || Arc::new(MemoryLog::new()) as Arc<dyn Log>).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn the_log_in_sqlite_does_what_every_log_must() {
    use std::cell::Cell;

    let folder = tempfile::tempdir().expect("a folder");
    let count = Cell::new(0);
    conformance::run(async || {
        count.set(count.get() + 1);
        let path = folder.path().join(format!("{}.db", count.get()));
        Arc::new(mynah_log::SqliteLog::open(path).expect("a log")) as Arc<dyn Log>
    })
    .await;
}
