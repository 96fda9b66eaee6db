//! What the writer is still to do, by run.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mynah_data::RunId;
use tokio::sync::Notify;

/// The runs with pending writes, and how many.
#[derive(Default)]
pub(crate) struct Pending {
    runs: Mutex<HashMap<RunId, usize>>,
    less: Notify,
}

impl Pending {
    fn runs(&self) -> MutexGuard<'_, HashMap<RunId, usize>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more job, until what is returned is dropped.
    pub(crate) fn add(self: &Arc<Self>, run: &str) -> Job {
        let run = RunId::from(run);
        *self.runs().entry(run.clone()).or_default() += 1;
        Job { pending: Arc::clone(self), run }
    }

    /// Waits until a run has no pending writes.
    pub(crate) async fn settled(&self, run: &str) {
        loop {
            let less = self.less.notified();
            if !self.runs().contains_key(run) {
                return;
            }
            less.await;
        }
    }
}

/// A job that is not done.
pub(crate) struct Job {
    pending: Arc<Pending>,
    run: RunId,
}

impl Drop for Job {
    fn drop(&mut self) {
        let mut runs = self.pending.runs();
        if let Some(count) = runs.get_mut(&self.run) {
            *count -= 1;
            if *count == 0 {
                runs.remove(&self.run);
            }
        }
        drop(runs);
        self.pending.less.notify_waiters();
    }
}
