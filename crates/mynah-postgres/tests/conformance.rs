//! The log in PostgreSQL passes the suite of all logs.

use std::sync::Arc;

use mynah_log::{Log, conformance};
use mynah_postgres::PostgresLog;

mod server;

#[tokio::test]
async fn the_log_in_postgresql_does_what_every_log_must() {
    let Some(server) = server::start() else { return };
    conformance::run(async || {
        Arc::new(PostgresLog::open(&server.fresh()).expect("a URL")) as Arc<dyn Log>
    })
    .await;
}
