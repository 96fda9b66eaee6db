//! The log of a command: it knows which run an operation wrote, reports a log that stays unavailable, and can kill the process
//! at a given record.

use std::{
    io::{self, IsTerminal as _, Write as _},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    thread,
    time::Duration,
};

use mynah::{
    ErrorKind, LogReason, Result, RunId,
    log::{Append, Head, Log, LogFuture, Record, forward_log},
};
use tokio::{runtime::Handle, sync::RwLock, time::Instant};

use crate::text::plain;

/// The exit code of a process that was killed.
const KILLED: i32 = 137;

/// How long a log is unavailable before a person reads of it.
const PATIENCE: Duration = Duration::from_secs(3);

/// A log whose appends are watched.
pub(crate) struct Ledger {
    inner: Arc<dyn Log>,
    op: Arc<Mutex<Notes>>,
    /// Shared by all that write: a stream that is dropped does not stop them.
    writing: Arc<RwLock<()>>,
}

/// The state of the current operation.
#[derive(Default)]
struct Notes {
    run: Option<RunId>,
    crash_after: Option<u64>,
    /// Since when the log is unavailable, and whether that was reported.
    outage: Option<(Instant, bool)>,
}

impl Notes {
    /// Takes in the result of an append. The library retries a log that is unavailable, and says nothing while it waits.
    fn appended(&mut self, appended: &Result<Head>, begins: Option<&RunId>) {
        let Err(error) = appended else {
            if let Some((_, true)) = self.outage.take() {
                report("the log is available again");
            }
            return;
        };
        // Nothing of a run is kept whose first record was not written.
        self.run.take_if(|run| Some(&*run) == begins);
        if error.kind() != ErrorKind::Log(LogReason::Unavailable) {
            return;
        }
        let (since, is_told) = self.outage.get_or_insert_with(|| (Instant::now(), false));
        if since.elapsed() >= PATIENCE && !std::mem::replace(is_told, true) {
            let why = error.to_string();
            let why = why.strip_prefix("log error: unavailable: ").unwrap_or(&why);
            report(&format!("waiting for the log: {why}"));
        }
    }

    /// Whether a run is that of an agent of the run that is written.
    fn is_of_agent(&self, run: &str) -> bool {
        let rest = self.run.as_ref().and_then(|known| run.strip_prefix(known.as_str()));
        rest.is_some_and(|rest| rest.starts_with('+'))
    }
}

impl Ledger {
    pub(crate) fn new(inner: Arc<dyn Log>) -> Self {
        Self { inner, op: Arc::default(), writing: Arc::default() }
    }

    /// Waits until all is written that an operation left behind, or has failed.
    pub(crate) async fn settle(&self) {
        drop(self.writing.write().await);
    }

    /// Begins an operation, once all is written that the one before left behind.
    pub(crate) async fn begin(&self, crash_after: Option<u64>) {
        self.settle().await;
        *self.notes() = Notes { crash_after, ..Notes::default() };
    }

    /// Whether the last append failed because the log is unavailable.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.notes().outage.is_some()
    }

    /// The run that the operation has written.
    pub(crate) fn written(&self) -> Option<RunId> {
        self.notes().run.clone()
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        locked(&self.op)
    }
}

fn locked(notes: &Mutex<Notes>) -> MutexGuard<'_, Notes> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a line for people. In a terminal an answer may stand on the current line.
fn report(what: &str) {
    let gap = if io::stderr().is_terminal() { "\n" } else { "" };
    let _ = writeln!(io::stderr(), "{gap}mynah: {}", plain(what));
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
        let notes = Arc::clone(&self.op);
        Box::pin(Unstoppable(Some(Box::pin(async move {
            let _writing = writing.read_owned().await;
            let appended = match crash_after {
                Some(after) => crash(&*inner, batch, after),
                None => inner.append(batch).await,
            };
            locked(&notes).appended(&appended, begins.as_ref());
            appended
        }))))
    }

    forward_log!(self => self.inner);
}
