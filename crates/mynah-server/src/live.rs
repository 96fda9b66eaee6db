//! The runs that this process performs.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
};

use futures_util::{Stream, StreamExt as _};
use mynah::{CancelHandle, Error, Event, InFlight, Result as MynahResult, RunId};
use tokio::{sync::watch, task::JoinSet};

use crate::{Room, metrics::Metrics};

/// The runs that this process performs. Each has a task of its own, which no client can stop by leaving.
#[derive(Default)]
pub(crate) struct Live {
    pub(crate) in_flight: InFlight,
    runs: Arc<Mutex<HashMap<RunId, LiveRun>>>,
    tasks: Mutex<JoinSet<()>>,
    /// Why runs could not be performed the last time.
    failures: Arc<Mutex<BTreeMap<RunId, Error>>>,
}

/// How many failures are kept.
const MAX_FAILURES: usize = 1_000;

/// A run that this process performs.
#[derive(Clone)]
pub(crate) struct LiveRun {
    cancel: CancelHandle,
    done: watch::Receiver<bool>,
}

impl LiveRun {
    /// Ends the run where it is.
    pub(crate) fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Waits until this process is done with the run.
    pub(crate) async fn done(mut self) {
        // A task that is gone is done.
        let _ = self.done.wait_for(|done| *done).await;
    }

    /// The same, for who looks again and again.
    pub(crate) fn is_done(&self) -> bool {
        *self.done.borrow()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live {
    /// The run, if this process performs it.
    pub(crate) fn run(&self, id: &str) -> Option<LiveRun> {
        locked(&self.runs).get(id).cloned()
    }

    /// The runs that this process performs.
    pub(crate) fn ids(&self) -> Vec<RunId> {
        locked(&self.runs).keys().cloned().collect()
    }

    /// Notes why a run could not be performed.
    pub(crate) fn fail(&self, id: &RunId, error: &Error) {
        let mut failures = locked(&self.failures);
        if failures.len() < MAX_FAILURES || failures.contains_key(id) {
            failures.insert(id.clone(), error.clone());
        }
    }

    /// Why this process could not perform a run, until it has attempted it again.
    pub(crate) fn failure(&self, id: &str) -> Option<Error> {
        locked(&self.failures).get(id).cloned()
    }

    /// Notes that this process performs a run, until what it returns is dropped.
    pub(crate) fn enter(&self, metrics: &Arc<Metrics>, id: RunId, cancel: CancelHandle) -> Leave {
        let (done, receiver) = watch::channel(false);
        locked(&self.runs).insert(id.clone(), LiveRun { cancel, done: receiver });
        metrics.runs_started.fetch_add(1, Relaxed);
        metrics.runs_live.fetch_add(1, Relaxed);
        let (runs, failures) = (Arc::clone(&self.runs), Arc::clone(&self.failures));
        Leave { id, runs, failures, metrics: Arc::clone(metrics), done }
    }

    /// Performs a run until it ends or waits.
    pub(crate) fn perform(
        &self,
        metrics: &Arc<Metrics>,
        id: RunId,
        (cancel, room): (CancelHandle, Room),
        events: impl Stream<Item = MynahResult<Event>> + Send + 'static,
    ) -> LiveRun {
        let leave = self.enter(metrics, id, cancel.clone());
        let run = LiveRun { cancel, done: leave.done.subscribe() };
        let mut tasks = locked(&self.tasks);
        // Finished ones are not kept.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let (leave, _room) = (leave, room);
            let mut events = Box::pin(events);
            while let Some(event) = events.next().await {
                if let Err(error) = event {
                    tracing::warn!(run_id = %leave.id, %error, "the run stopped");
                }
            }
            // The run is released before its end is reported.
            drop(events);
        });
        drop(tasks);
        run
    }

    /// Lets all runs stop where another process can continue them, and waits until they did.
    pub(crate) async fn drained(&self) {
        loop {
            let runs: Vec<LiveRun> = locked(&self.runs).values().cloned().collect();
            runs.iter().for_each(|run| run.cancel.release());
            match runs.into_iter().next() {
                Some(run) => run.done().await,
                None => return,
            }
        }
    }

    /// Drops the runs that are left, which releases them: another process can continue them at once.
    pub(crate) async fn release(&self) {
        let mut tasks = std::mem::take(&mut *locked(&self.tasks));
        tasks.shutdown().await;
    }
}

/// Takes a run out of the list when its task ends, however it does.
pub(crate) struct Leave {
    id: RunId,
    runs: Arc<Mutex<HashMap<RunId, LiveRun>>>,
    failures: Arc<Mutex<BTreeMap<RunId, Error>>>,
    metrics: Arc<Metrics>,
    done: watch::Sender<bool>,
}

impl Drop for Leave {
    fn drop(&mut self) {
        let mut runs = locked(&self.runs);
        // A later signal may have continued the run.
        let is_own = |run: &LiveRun| run.done.same_channel(&self.done.subscribe());
        if runs.get(&self.id).is_some_and(is_own) {
            runs.remove(&self.id);
        }
        // Whether it failed again is noted after this.
        locked(&self.failures).remove(&self.id);
        self.metrics.runs_live.fetch_sub(1, Relaxed);
        self.done.send_replace(true);
    }
}
