//! Performs the runs of queues: those that others enqueued, whose process died, or that got a message.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use mynah::{Result, Signal, Worker, log::Log as _};
use tokio::time::sleep;

use crate::{App, runs};

/// How long a worker rests whose log failed.
const REST: Duration = Duration::from_secs(1);

/// Performs runs with the server's agents until the server stops and its runs are done.
pub(crate) async fn work(app: &App, queues: &[String], concurrency: usize, drain: Duration) {
    if app.agents.0.is_empty() {
        return;
    }
    let performed = async {
        while !app.stopping.is_cancelled() {
            let worker = queues.iter().fold(worker(app), |worker, queue| worker.queue(queue));
            let worker = worker.concurrency(concurrency).drain(drain);
            if let Err(error) = worker.run(app.stopping.clone().cancelled_owned()).await {
                tracing::error!(%error, "the runs of the queues cannot be performed");
                sleep(REST).await;
            }
        }
        app.live.drained().await;
    };
    tokio::select! { () = performed => {}, () = hear_cancels(app) => {} }
}

/// How often the inboxes of runs in progress are looked at.
const PACE: Duration = Duration::from_millis(200);

/// Ends runs of this process that got a message to do so from another.
async fn hear_cancels(app: &App) {
    let mut cursor = None;
    loop {
        sleep(PACE).await;
        // A log that cannot be read now may be readable soon.
        if let Ok(next) = stop_cancelled(app, cursor.as_deref()).await {
            cursor = Some(next);
        }
    }
}

async fn stop_cancelled(app: &App, cursor: Option<&str>) -> Result<String> {
    let changes = app.log.changes(cursor, 1_000).await?;
    let told = changes.runs.into_iter().filter(|change| change.has_messages);
    let told = told.map(|change| change.run_id).collect();
    // Those that the log forgot may have messages as well.
    for run in if changes.missed { app.live.ids() } else { told } {
        let Some(live) = app.live.run(&run) else { continue };
        let messages = app.log.inbox(&run, usize::MAX).await?;
        let signal = |payload: &[u8]| serde_json::from_slice::<Signal>(payload).ok();
        if messages.iter().any(|message| signal(&message.payload) == Some(Signal::Cancel)) {
            live.cancel();
        }
    }
    Ok(changes.cursor)
}

fn worker(app: &App) -> Worker {
    let worker = Worker::new(&runs::log(app)).in_flight(&app.live.in_flight);
    let entered = Arc::clone(app);
    let worker = worker.on_run(move |run, cancel| {
        entered.live.enter(&entered.metrics, run.clone(), cancel.clone())
    });
    let failing = Arc::clone(app);
    let worker = worker.on_failure(move |run, error| {
        failing.metrics.runs_failed.fetch_add(1, Relaxed);
        failing.live.fail(run, error);
    });
    app.agents.0.iter().fold(worker, |worker, agent| {
        let agent = agent.clone();
        worker.agent_with(agent.name.clone(), move |log, run| {
            let agent = agent.clone();
            Box::pin(async move { agent.engine(&log, Some(&*run)).await })
        })
    })
}
