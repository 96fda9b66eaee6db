//! A log as this program writes it: it knows which run was written, keeps what it holds from running out, and ends the process
//! where a scenario says so.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use mynah::{
    ErrorKind, LogReason, Result,
    log::{Append, BoxFuture, Head, Lease, Log, Record, RunFilter, RunPage, RunSummary, SealedRun},
};
use tokio::{task::JoinHandle, time::Instant};

/// The exit code of a process that was killed.
const KILLED: i32 = 137;

/// How long a run stays taken by a process that is gone. One that lives says so more often.
const TERM: Duration = Duration::from_secs(2);
const BEAT: Duration = Duration::from_millis(500);

/// Starts something that needs a run for itself. Whoever holds the run may be gone: if so, it is free soon.
pub(crate) async fn when_free<T, F: Future<Output = Result<T>>>(
    start: impl Fn() -> F,
) -> Result<T> {
    match start().await {
        Err(error) if error.kind() == ErrorKind::Log(LogReason::Leased) => {
            tokio::time::sleep(TERM + TERM / 8).await;
            start().await
        }
        started => started,
    }
}

/// A log whose appends are watched.
pub(crate) struct Ledger {
    inner: Arc<dyn Log>,
    op: Mutex<Notes>,
}

/// What there is to know of the operation under way.
#[derive(Default)]
struct Notes {
    run: Option<Arc<str>>,
    crash_after: Option<u64>,
    held: Option<Held>,
}

/// A lease that is kept from running out.
struct Held {
    lease: Lease,
    beat: JoinHandle<()>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.beat.abort();
    }
}

impl Ledger {
    pub(crate) fn new(inner: Arc<dyn Log>) -> Self {
        Self { inner, op: Mutex::default() }
    }

    /// Begins an operation. What the one before held and did not give back, as its stream was dropped, is free again.
    pub(crate) async fn begin(&self, crash_after: Option<u64>) {
        let before =
            std::mem::replace(&mut *self.notes(), Notes { crash_after, ..Notes::default() });
        if let Some(held) = &before.held {
            held.beat.abort();
            // What is not given back runs out by itself.
            let _ = self.inner.release(&held.lease).await;
        }
    }

    /// The run that the operation has written.
    pub(crate) fn written(&self) -> Option<Arc<str>> {
        self.notes().run.clone()
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.op.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the records up to a place safe, and ends the process in the same moment: nothing that runs on this thread
    /// goes on, and nobody tidies up.
    fn crash(&self, mut batch: Append, last: u64) -> Result<Head> {
        batch.records.retain(|record| record.seq() <= last);
        if !batch.records.is_empty() {
            let append = || match tokio::runtime::Builder::new_current_thread().build() {
                Ok(runtime) => runtime.block_on(self.inner.append(batch)).err(),
                Err(_) => None,
            };
            if let Ok(Some(error)) = thread::scope(|scope| scope.spawn(append).join()) {
                return Err(error);
            }
        }
        std::process::exit(KILLED)
    }
}

impl Log for Ledger {
    fn append(&self, batch: Append) -> BoxFuture<'_, Result<Head>> {
        Box::pin(async move {
            let last = batch.records.last().map_or(0, Record::seq);
            let crash_after = self.notes().crash_after.filter(|after| *after <= last);
            if let Some(after) = crash_after {
                return self.crash(batch, after);
            }
            let begins = batch.expected.is_none();
            self.notes().run = Some(Arc::clone(&batch.run));
            let appended = self.inner.append(batch).await;
            if begins && appended.is_err() {
                self.notes().run = None;
            }
            appended
        })
    }

    fn read(&self, run: &str, from: u64, limit: usize) -> BoxFuture<'_, Result<Vec<Record>>> {
        self.inner.read(run, from, limit)
    }

    fn head(&self, run: &str) -> BoxFuture<'_, Result<Option<Head>>> {
        self.inner.head(run)
    }

    fn wait(&self, run: &str, beyond: u64) -> BoxFuture<'_, Result<()>> {
        self.inner.wait(run, beyond)
    }

    fn run(&self, run: &str) -> BoxFuture<'_, Result<Option<RunSummary>>> {
        self.inner.run(run)
    }

    fn runs(&self, filter: RunFilter) -> BoxFuture<'_, Result<RunPage>> {
        self.inner.runs(filter)
    }

    fn seals(&self, from: u64, limit: usize) -> BoxFuture<'_, Result<Vec<SealedRun>>> {
        self.inner.seals(from, limit)
    }

    fn lease(
        &self,
        run: &str,
        owner: &str,
        term: Duration,
        now: i64,
    ) -> BoxFuture<'_, Result<Lease>> {
        let (run, owner) = (run.to_owned(), owner.to_owned());
        Box::pin(async move {
            let lease = self.inner.lease(&run, &owner, term.min(TERM), now).await?;
            let inner = Arc::clone(&self.inner);
            let beat = tokio::spawn(async move {
                let began = Instant::now();
                loop {
                    tokio::time::sleep(BEAT).await;
                    let passed = i64::try_from(began.elapsed().as_nanos()).unwrap_or(i64::MAX);
                    let now = now.saturating_add(passed);
                    if inner.lease(&run, &owner, TERM, now).await.is_err() {
                        return;
                    }
                }
            });
            self.notes().held = Some(Held { lease: lease.clone(), beat });
            Ok(lease)
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.check()
    }

    fn release(&self, lease: &Lease) -> BoxFuture<'_, Result<()>> {
        drop(self.notes().held.take());
        self.inner.release(lease)
    }
}
