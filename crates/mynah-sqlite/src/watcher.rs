//! The thread that watches for writes of other processes, while there are waiters.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use mynah_data::Result;
use mynah_log::backend::Waiters;
use rusqlite::Connection;

use crate::file::{File, unavailable};

/// How often it checks. Commits of this process are reported at once.
const PACE: Duration = Duration::from_millis(20);

pub(crate) struct Watcher {
    state: Arc<WatcherState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct WatcherState {
    file: File,
    waiters: Arc<Waiters>,
    closed: Mutex<bool>,
    changed: Condvar,
}

impl Watcher {
    pub(crate) fn new(file: File, waiters: Arc<Waiters>) -> Self {
        let state =
            WatcherState { file, waiters, closed: Mutex::new(false), changed: Condvar::new() };
        Self { state: Arc::new(state), thread: Mutex::new(None) }
    }

    /// Watches from now on, while there is a waiter.
    pub(crate) fn watch(&self) -> Result<()> {
        let mut running = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_none() {
            let state = Arc::clone(&self.state);
            let thread = thread::Builder::new().name("mynah-log-watcher".to_owned());
            let thread = thread.spawn(move || state.serve());
            let thread = thread
                .map_err(|e| unavailable(format!("no thread to watch with: {e}")).caused_by(e))?;
            *running = Some(thread);
        }
        // Under its lock, so that the thread is not just between looking for waiters and sleeping.
        let _closed = self.state.closed();
        self.state.changed.notify_one();
        Ok(())
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        *self.state.closed() = true;
        self.state.changed.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // It panicked, or it is done: there is nothing more to do either way.
            let _ = thread.join();
        }
    }
}

impl WatcherState {
    fn closed(&self) -> MutexGuard<'_, bool> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut connection = None;
        let mut last = None;
        let mut closed = self.closed();
        while !*closed {
            let woken = if self.waiters.is_empty() {
                self.changed.wait(closed)
            } else {
                let result = self.changed.wait_timeout(closed, PACE);
                result
                    .map(|(guard, _)| guard)
                    .map_err(|error| PoisonError::new(error.into_inner().0))
            };
            drop(woken.unwrap_or_else(PoisonError::into_inner));
            // A file that cannot be read is reported too: the waiters find out why.
            let version = self.version(&mut connection);
            if version.is_none() || version != last {
                self.waiters.notify_all();
            }
            last = version;
            closed = self.closed();
        }
    }

    /// Changes when another process has written.
    fn version(&self, connection: &mut Option<Connection>) -> Option<i64> {
        if connection.is_none() {
            *connection = self.file.open_to_read().ok();
        }
        let connection = connection.as_ref()?;
        connection.pragma_query_value(None, "data_version", |row| row.get(0)).ok()
    }
}
