//! Connections: how many there are, and how long they may take.

use std::{sync::Arc, time::Duration};

use axum::{Router, serve::Listener};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;

/// How many connections there are at once. Others wait to be accepted.
const CONNECTIONS: usize = 10_000;

/// How long the head of a request may take, and a connection may be idle.
const HEADS: Duration = Duration::from_secs(10);

/// Serves until it must stop and every request is answered.
pub(crate) async fn serve(mut listener: TcpListener, router: Router, stopping: CancellationToken) {
    let (graceful, places) = (GracefulShutdown::new(), Arc::new(Semaphore::new(CONNECTIONS)));
    let accepts = async {
        // The semaphore is never closed.
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            let (stream, _) = Listener::accept(&mut listener).await;
            let mut http = http1::Builder::new();
            let http = http.timer(TokioTimer::new()).header_read_timeout(HEADS);
            let service = TowerToHyperService::new(router.clone());
            let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
            tokio::spawn(async move {
                let _place = place;
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection broke");
                }
            });
        }
    };
    tokio::select! { () = accepts => {}, () = stopping.cancelled() => {} }
    drop(listener);
    graceful.shutdown().await;
}
