//! The log of a scenario: it knows which run an operation wrote, and can kill the process at a
//! given record.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    thread,
};

use mynah::{
    Result, RunId,
    log::{Append, Head, Log, LogFuture, Record, forward_log},
};
use tokio::{runtime::Handle, sync::RwLock};

/// The exit code of a process that was killed.
const KILLED: i32 = 137;

/// A log whose appends are watched.
pub(crate) struct Ledger {
    inner: Arc<dyn Log>,
    op: Mutex<Notes>,
    /// Shared by all that write: a stream that is dropped does not stop them.
    writing: Arc<RwLock<()>>,
}

/// The state of the current operation.
#[derive(Default)]
struct Notes {
    run: Option<RunId>,
    crash_after: Option<u64>,
}

impl Notes {
    /// Whether a run is that of an agent of the run that is written.
    fn is_of_agent(&self, run: &str) -> bool {
        let rest = self.run.as_ref().and_then(|known| run.strip_prefix(known.as_str()));
        rest.is_some_and(|rest| rest.starts_with('+'))
    }
}

impl Ledger {
    pub(crate) fn new(inner: Arc<dyn Log>) -> Self {
        Self { inner, op: Mutex::default(), writing: Arc::default() }
    }

    /// Begins an operation, once all is written that the one before left behind.
    pub(crate) async fn begin(&self, crash_after: Option<u64>) {
        drop(self.writing.write().await);
        *self.notes() = Notes { crash_after, run: None };
    }

    /// The run that the operation has written.
    pub(crate) fn written(&self) -> Option<RunId> {
        self.notes().run.clone()
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.op.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes the records up to a place durable, and kills the process at once: nothing on this thread
/// continues, and no destructor runs.
fn crash(log: &dyn Log, mut batch: Append, last: u64) -> Result<Head> {
    batch.records.retain(|record| record.seq() <= last);
    if !batch.records.is_empty() {
        let append = || match tokio::runtime::Builder::new_current_thread().build() {
            Ok(runtime) => runtime.block_on(log.append(batch)).err(),
            Err(_) => None,
        };
        if let Ok(Some(error)) = thread::scope(|scope| scope.spawn(append).join()) {
            return Err(error);
        }
    }
    std::process::exit(KILLED)
}

/// An append that completes even if its future is dropped.
struct Unstoppable(Option<LogFuture<'static, Head>>);

impl Future for Unstoppable {
    type Output = Result<Head>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(append) = &mut self.0 else { return Poll::Pending };
        let appended = ready!(append.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(appended)
    }
}

impl Drop for Unstoppable {
    fn drop(&mut self) {
        if let (Some(append), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(append);
        }
    }
}

impl Log for Ledger {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        let last = batch.records.last().map_or(0, Record::seq);
        let begins = batch.expected.is_none().then(|| batch.run_id.clone());
        let crash_after = {
            let mut notes = self.notes();
            if !notes.is_of_agent(&batch.run_id) {
                notes.run = Some(batch.run_id.clone());
            }
            notes.crash_after.filter(|after| *after <= last)
        };
        let (inner, writing) = (Arc::clone(&self.inner), Arc::clone(&self.writing));
        let append = Unstoppable(Some(Box::pin(async move {
            let _writing = writing.read_owned().await;
            match crash_after {
                Some(after) => crash(&*inner, batch, after),
                None => inner.append(batch).await,
            }
        })));
        Box::pin(async move {
            let appended = append.await;
            if appended.is_err() {
                self.notes().run.take_if(|run| Some(&*run) == begins.as_ref());
            }
            appended
        })
    }

    forward_log!(self => self.inner);
}
