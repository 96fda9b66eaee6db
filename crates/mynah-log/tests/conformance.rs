//! The log in memory passes the suite that every backend passes.

use std::sync::Arc;

use mynah_log::{Log, MemoryLog, conformance};

#[tokio::test]
async fn the_log_in_memory_does_what_every_log_must() {
    conformance::run(async || Arc::new(MemoryLog::new()) as Arc<dyn Log>).await;
}
