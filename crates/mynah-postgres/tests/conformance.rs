//! The log in PostgreSQL passes the suite of all logs.

use std::sync::Arc;

use mynah_log::{Log, conformance};
use mynah_postgres::PostgresLog;

use crate::server;

fn open(url: &str) -> Arc<dyn Log> {
    Arc::new(PostgresLog::open(url).expect("a URL"))
}

#[tokio::test]
async fn the_log_in_postgresql_does_what_every_log_must() {
    let Some(server) = server::start() else { return };
    conformance::run(async || open(&server.fresh())).await;
}

#[tokio::test]
async fn two_handles_of_a_log_in_postgresql_do_what_one_does() {
    let Some(server) = server::start() else { return };
    conformance::run_shared(async || {
        let url = server.fresh();
        [(); 2].map(|()| open(&url))
    })
    .await;
}
