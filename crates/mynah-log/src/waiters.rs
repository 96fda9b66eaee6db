//! Waiting for new records of a run.

use mynah_data::RunId;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

/// Waits for more records of runs, and their notification.
#[derive(Debug, Default)]
pub struct Waiters(Mutex<HashMap<RunId, watch::Sender<()>>>);

impl Waiters {
    /// Starts to wait for a run. No notification after this call is missed: subscribe first, then
    /// check whether to wait.
    pub fn subscribe(self: &Arc<Self>, run: &str) -> Waiter {
        let run = RunId::from(run);
        let mut runs = self.runs();
        let receiver = runs.entry(run.clone()).or_default().subscribe();
        Waiter { waiters: Arc::clone(self), run, receiver }
    }

    /// Notifies all that wait for a run.
    pub fn notify(&self, run: &str) {
        if let Some(sender) = self.runs().get(run) {
            sender.send_replace(());
        }
    }

    /// Notifies all that wait for any run.
    pub fn notify_all(&self) {
        self.runs().values().for_each(|sender| sender.send_replace(()));
    }

    /// The runs that are waited for.
    pub fn awaited(&self) -> Vec<RunId> {
        self.runs().keys().cloned().collect()
    }

    /// Whether there are no waiters.
    pub fn is_empty(&self) -> bool {
        self.runs().is_empty()
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<RunId, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A subscription to the records of a run.
#[derive(Debug)]
pub struct Waiter {
    waiters: Arc<Waiters>,
    run: RunId,
    receiver: watch::Receiver<()>,
}

impl Waiter {
    /// Waits for a notification.
    pub async fn notified(&mut self) {
        // The sender stays in the map while there are waiters.
        let _ = self.receiver.changed().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut runs = self.waiters.runs();
        if runs.get(&self.run).is_some_and(|sender| sender.receiver_count() == 1) {
            runs.remove(&self.run);
        }
    }
}
