//! Ending a run from elsewhere.

use std::{fmt, future::poll_fn, pin::Pin, sync::Arc, task::Context};

use mynah_data::{Error, ErrorKind, HaltReason, LogReason, Result, RunId, StreamReason};
use mynah_log::{Fact, Log, Record, RunStatus, UNCERTAIN_CALLS};
use mynah_step::{Recorder, SystemWorld, World, take_over};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::{
    Signal,
    call::awaited,
    linked::after_end,
    loaded::VerifiedRun,
    run::{RunState, interrupted},
    worker::deliver,
};

/// Ends runs from elsewhere: another task, a signal handler, a button.
///
/// A cancelled chat stops where it is, keeps its messages, and returns a result with
/// `halted_reason: cancelled`. Dropping a stream stops it too, without a result.
///
/// ```
/// use mynah::{CancelHandle, Engine, testing::Scripted};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
///
/// let engine = Engine::new(Scripted::says(["never heard"]));
/// let cancel = CancelHandle::new();
/// cancel.cancel();
/// let result = engine.chat("hi").cancel_handle(&cancel).await?;
/// assert_eq!(result.halted_reason.as_str(), "cancelled");
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct CancelHandle {
    cancelled: CancellationToken,
    released: CancellationToken,
}

impl CancelHandle {
    /// A handle that was not used yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends every run that has this handle.
    pub fn cancel(&self) {
        self.cancelled.cancel();
    }

    /// Lets every recorded run that has this handle stop where another process can continue it: before its next model call, and before
    /// the tools of an answer start. A model call in flight and tools that run come to their end first.
    ///
    /// The run stays open, and its stream ends with the error `released`. A run that is not recorded continues.
    pub fn release(&self) {
        self.released.cancel();
    }

    /// A handle that ends less: what this one ends, it ends too.
    pub(crate) fn child(&self) -> Self {
        let (cancelled, released) = (self.cancelled.child_token(), self.released.child_token());
        Self { cancelled, released }
    }

    /// Whether its runs were [cancelled](Self::cancel).
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }
}

impl fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelHandle").field(&self.is_cancelled()).finish()
    }
}

/// A run's receiver for its handle. A run without a handle pays nothing for it.
#[derive(Default)]
pub(crate) struct Cancellation(Option<Listening>);

struct Listening {
    handle: CancelHandle,
    cancelled: Pin<Box<WaitForCancellationFutureOwned>>,
    /// From the first time on that it is looked at.
    released: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl Cancellation {
    pub(crate) fn listen(handle: &CancelHandle) -> Self {
        let handle = handle.child();
        let cancelled = Box::pin(handle.cancelled.clone().cancelled_owned());
        Self(Some(Listening { handle, cancelled, released: None }))
    }

    /// A handle for this run alone, beside the one that it may have been given.
    pub(crate) fn handle(&mut self) -> CancelHandle {
        if self.0.is_none() {
            *self = Self::listen(&CancelHandle::new());
        }
        self.0.as_ref().map(|listening| listening.handle.clone()).unwrap_or_default()
    }

    pub(crate) fn poll_cancelled(&mut self, cx: &mut Context<'_>) -> bool {
        let waiting = self.0.as_mut().map(|listening| listening.cancelled.as_mut());
        waiting.is_some_and(|waiting| waiting.poll(cx).is_ready())
    }

    pub(crate) fn poll_released(&mut self, cx: &mut Context<'_>) -> bool {
        self.0.as_mut().is_some_and(|Listening { handle, released, .. }| {
            let waits = || Box::pin(handle.released.clone().cancelled_owned());
            released.get_or_insert_with(waits).as_mut().poll(cx).is_ready()
        })
    }
}

pub(crate) fn released(run: &RunId) -> Error {
    Error::stream(StreamReason::Released)
        .with_message(format!("stream error: released: run {run} has no end yet; resume it"))
        .with("run_id", &**run)
}

/// Ends an open run from outside: one that waits, or whose process ended. It gets its seal, and can
/// be neither resumed nor appended to. Returns how it ended: `cancelled`, unless its own end was
/// recorded and only the seal was missing.
///
/// A tool that the run's process was killed in may have done its work. The conversation then has an error result for that call which says that
/// its outcome is unknown, the run's result lists it in `uncertain_tool_calls`, and a model that is asked to continue may call the tool again.
/// To decide about such calls instead, [resume](crate::Engine::resume) the run.
///
/// What was removed from its records is not needed for it. Runs of [agents](crate::Engine::as_tool) that it started and that have no end are
/// ended too.
///
/// ```
/// use mynah::{Engine, ToolMode, testing::Scripted};
/// use serde_json::json;
/// use mynah::log::{MemoryLog, RunStatus};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::new([
/// #     json!([{"tool_call": {"id": "c0", "name": "pay"}}, {"finish": "tool_calls"}])])?);
///
/// let log = MemoryLog::new();
/// let run = engine.chat("pay").mode(ToolMode::Manual).record(&log).await?.run_id.unwrap();
/// assert_eq!(mynah::cancel_run(&log, &run).await?, RunStatus::Cancelled);
/// # Ok(()) }
/// ```
///
/// A run that a process on another machine holds is watched for three seconds, and refused if that process lives. If another run
/// [continues](crate::Engine::resume) this one, that run is ended.
pub fn cancel_run<L: Log + Clone>(log: &L, run: impl AsRef<str>) -> Cancel {
    let (log, run) = (Arc::new(log.clone()), run.as_ref().to_owned());
    Cancel { log, run: run.into(), world: Arc::new(SystemWorld), message_id: None }
}

/// The error for a run whose records changed since they were read: its process may have released it
/// a moment ago.
pub(crate) const HAS_MOVED: ErrorKind = ErrorKind::Log(LogReason::HeadMismatch);

/// A run to be ended; see [`cancel_run`].
#[must_use = "a run is not ended unless it is awaited"]
pub struct Cancel {
    log: Arc<dyn Log>,
    run: RunId,
    world: Arc<dyn World>,
    message_id: Option<String>,
}

mynah_data::partial_debug! { Cancel { run } }

impl Cancel {
    pub(crate) fn of(log: Arc<dyn Log>, run: &RunId, world: &Arc<dyn World>) -> Self {
        Self { log, run: run.clone(), world: Arc::clone(world), message_id: None }
    }

    /// Counts as the [message](crate::deliver) with this id. It is delivered when the run can be ended, so no worker takes it.
    #[doc(hidden)]
    pub fn message_id(mut self, id: impl Into<String>) -> Self {
        self.message_id = Some(id.into());
        self
    }

    /// Takes the time of its end from a world of the caller's own.
    pub fn world(mut self, world: impl World) -> Self {
        self.world = Arc::new(world);
        self
    }

    async fn end(mut self) -> Result<RunStatus> {
        let ended = match self.end_as_read().await {
            Err(error) if error.kind() == HAS_MOVED => self.end_as_read().await,
            ended => ended,
        };
        match ended {
            Err(error) if error.kind() == ErrorKind::Log(LogReason::Sealed) => {
                self.run = after_end(&*self.log, &self.run, error).await?;
                self.end_as_read().await
            }
            ended => ended,
        }
    }

    async fn end_as_read(&self) -> Result<RunStatus> {
        let Self { log, run, world, message_id } = self;
        let (mut state, mut is_whole) = (RunState::default(), true);
        let look = |record: &Record| {
            match record.fact() {
                Ok(Some(fact)) => state.evolve(fact),
                _ => is_whole = false,
            }
            Ok(())
        };
        let VerifiedRun { verifier, run: found, .. } =
            VerifiedRun::whole(&**log, run, look).await?;
        let status = found.status;
        if verifier.report().fingerprint.is_some() {
            let status = status.as_str();
            let message = format!("log error: sealed: run {run} has ended already: {status}");
            return Err(Error::log(LogReason::Sealed)
                .with_message(message)
                .with("run_id", run.as_str()));
        }
        let mut end = interrupted(state.extent, HaltReason::Cancelled);
        // Only what is read of it in full tells which calls its process may have run.
        if is_whole && state.is_of_this_loop() {
            let ids = state.left_open().into_iter().map(|(call, _)| call.id.clone());
            let ids: Vec<String> = ids.collect();
            if !ids.is_empty() {
                end.metadata.insert(UNCERTAIN_CALLS.to_owned(), ids.into());
            }
        }
        let (chain, _) = verifier.into_chain();
        let lease = take_over(log, &**world, run, chain.head()).await?;
        if let Some(id) = message_id {
            deliver(&**log, run, id, &Signal::Cancel).await?;
        }
        let (log, world) = (Arc::clone(log), Arc::clone(world));
        let mut recorder = Recorder::after(log, world, chain, found.totals).with_lease(lease);
        if status.is_ended() {
            recorder.seal()?;
        } else {
            recorder.commit(&Fact::Cancelled { end, partial: None, cuts: Vec::new() })?;
        }
        poll_fn(|cx| recorder.poll_flush(cx)).await?;
        if status.is_ended() {
            return Ok(status);
        }
        for run in &state.sub_runs {
            // One that has ended stays as it is, and one that another process holds ends there.
            if let Err(error) = Self::of(Arc::clone(&self.log), run, &self.world).await {
                tracing::debug!(%error, "the run of an agent was not ended with its parent");
            }
        }
        Ok(RunStatus::Cancelled)
    }
}

awaited! {
    /// # Errors
    /// A run that is missing or corrupt, has its seal, or is held by another process.
    Cancel => RunStatus, cancel => cancel.end().await
}
