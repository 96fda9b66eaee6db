//! A custom loop as one run, which can continue from where it says it is.

use std::{future::poll_fn, pin::pin, sync::Arc};

use mynah_data::{
    EngineReason, Error, ErrorKind, HaltReason, Metadata, Result, StreamReason, Thread, ToolReason,
};
use mynah_log::{End, Extent, Fact};
use serde::{Serialize, de::DeserializeOwned};
use tracing::Instrument as _;

use super::{Context, sleep::is_parked};
use crate::{
    Recorder, alone::poll_alone, cursor::CHECKPOINT, journal::gone, millis, since_1970,
    uncertain::is_uncertain,
};

impl Context {
    /// Performs the loop as one run: records how it began, runs it, and records how it ended.
    ///
    /// The run completes if the loop returns `Ok`. It fails with the loop's error otherwise, unless it can still be resumed:
    /// the log failed, a replay differs, the outcome of a tool is unknown, the loop [sleeps](Context::sleep) for long, or it asked for
    /// something invalid. [Cancelled](Context::cancel), it ends so.
    ///
    /// ```
    /// # mod mynah { pub use {mynah_data::*, mynah_log as log, mynah_step as step}; }
    /// use std::sync::Arc;
    /// use mynah::Result;
    /// use mynah::log::MemoryLog;
    /// use mynah::step::{Config, Context};
    ///
    /// async fn dice(context: &Context) -> Result<u64> {
    ///     context.run("roll", async |cx| Ok(cx.random().await? % 6 + 1)).await
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// let config = Config::new(&Arc::new(MemoryLog::new()), "run-1");
    /// let rolled = dice(&Context::new(config.clone())?).await?;
    /// let replayed = dice(&Context::new(config.replay().await?)?).await?;
    /// assert_eq!(rolled, replayed);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The loop's own, and those of [`Context::emit`] and [`Context::finish`]. `halted`, and the run is suspended, if its process
    /// died more than [`max_crashes`](crate::Config::max_crashes) times without progress. [`Error::run_id`] names the run.
    pub async fn run<T>(
        &self,
        thread: impl Into<Thread>,
        body: impl AsyncFnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        let done = self.perform(thread.into(), body).await;
        done.map_err(|error| self.with_advice(error).of_run(Some(self.run_id())))
    }

    /// The same error. That of a loop that does something else than it did says what the loop must keep to.
    fn with_advice(&self, error: Error) -> Error {
        if !matches!(error.kind(), ErrorKind::Replay(_)) {
            return error;
        }
        let message = format!(
            "{}; a loop may depend only on its arguments and on values from its Context, and a changed one continues in a fork of its run \
             (mynah::fork_run)",
            error.message()
        );
        error.with_message(message)
    }

    async fn perform<T>(
        &self,
        thread: Thread,
        body: impl AsyncFnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        // A process that dies in its loop counts, even if it records nothing more.
        let mut crashes = self.0.crashes;
        let waits = crashes.waits_at(millis(since_1970(self.0.config.world.now())));
        let seam = self.0.journal.take_over(waits).instrument(self.span()).await?;
        seam.iter().for_each(|seam| crashes.evolve(seam));
        if crashes.count() > self.0.config.max_crashes {
            return Err(self.suspend_crash_loop(crashes.count()).await?);
        }
        self.emit(Fact::RunStarted { thread, extent: Extent::Chat, about: None }).await?;
        let (mut body, alone) = (pin!(body(self)), Arc::default());
        let done = poll_fn(|cx| {
            let polled = if self.0.effects.replaying {
                let (polled, is_alone) = poll_alone(&alone, body.as_mut(), cx);
                self.0.journal.set_loop_waits_elsewhere(!is_alone);
                polled
            } else {
                body.as_mut().poll(cx)
            };
            // What the log could not take yet is written while the loop waits for something else.
            let _ = self.0.journal.poll(cx, Recorder::poll_flush);
            polled
        })
        .await;
        let end = match &done {
            Ok(_) => Fact::Completed(End::new(HaltReason::Completed, Metadata::new())),
            Err(error) => match self.end_with(error) {
                Some(end) => end,
                None => {
                    // The caller knows what happened besides once that is safe.
                    if is_uncertain(error) {
                        self.flush().await?;
                    }
                    return done;
                }
            },
        };
        self.emit(end).await?;
        self.finish().await?;
        done
    }

    /// Suspends a run whose process died repeatedly. The loop is not run.
    async fn suspend_crash_loop(&self, crashes: u32) -> Result<Error> {
        self.journal().cursor = None;
        let end = End::new(
            HaltReason::CrashLoop,
            Metadata::from_iter([("crashes".to_owned(), crashes.into())]),
        );
        self.in_run(self.0.effects.commit(Fact::Suspended(end), true)).await?;
        Ok(Error::engine(EngineReason::Halted)
            .with_message(format!(
                "engine error: halted: crash_loop: the process of run {} died {crashes} times without progress; find out why, then \
                 resume it once more",
                self.run_id()
            ))
            .with("crashes", crashes))
    }

    /// The end of a run whose loop failed so; none if it can still be resumed.
    fn end_with(&self, error: &Error) -> Option<Fact> {
        let can_resume = matches!(
            error.kind(),
            ErrorKind::Log(_) | ErrorKind::Replay(_) | ErrorKind::Validation(_)
        );
        if can_resume || is_uncertain(error) || is_parked(error) {
            return None;
        }
        let metadata = Metadata::from_iter([("error".to_owned(), error.to_value())]);
        let reason = match error.kind() {
            ErrorKind::Stream(StreamReason::Cancelled) | ErrorKind::Tool(ToolReason::Cancelled) => {
                let end = End::new(HaltReason::Cancelled, metadata);
                return Some(Fact::Cancelled { end, partial: None, cuts: Vec::new() });
            }
            ErrorKind::Engine(EngineReason::BudgetExceeded) => HaltReason::BudgetExceeded,
            _ => HaltReason::Error,
        };
        Some(Fact::Failed(End::new(reason, metadata)))
    }

    /// Records where the loop is. A run that is [resumed](crate::Config::resume) can continue from the last checkpoint
    /// instead of the beginning: see [`Context::resume_point`]. The checkpoint is durable when this returns. Nothing else of
    /// the run may be in flight.
    ///
    /// # Errors
    /// As [`Context::side_effect`].
    pub async fn checkpoint<T: Serialize + DeserializeOwned>(&self, state: T) -> Result<T> {
        let state = self.effect(CHECKPOINT, async { Ok(state) }).await?;
        self.0.effects.queue.clear();
        self.flush().await?;
        Ok(state)
    }

    /// The state of the last [checkpoint](Context::checkpoint) of a resumed run; none if it has
    /// none, is new, or is replayed. The loop continues after that checkpoint, and nothing before
    /// it is requested again. Call this first in the loop.
    ///
    /// ```
    /// # mod mynah { pub use {mynah_data::*, mynah_log as log, mynah_step as step}; }
    /// use std::sync::Arc;
    /// use mynah::Result;
    /// use mynah::log::MemoryLog;
    /// use mynah::step::{Config, Context};
    ///
    /// /// Counts to a number. A process that dies goes on where it was.
    /// async fn count(context: &Context, to: u64) -> Result<u64> {
    ///     context
    ///         .run("count", async |cx| {
    ///             let mut counted: u64 = cx.resume_point()?.unwrap_or(0);
    ///             while counted < to {
    ///                 cx.random().await?;
    ///                 counted = cx.checkpoint(counted + 1).await?;
    ///             }
    ///             Ok(counted)
    ///         })
    ///         .await
    /// }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// let config = Config::new(&Arc::new(MemoryLog::new()), "run-1");
    /// assert_eq!(count(&Context::new(config.clone())?, 3).await?, 3);
    /// assert_eq!(count(&Context::new(config.replay().await?)?, 3).await?, 3);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A recorded state of another type.
    pub fn resume_point<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let Some(state) = self.0.journal.records(|cursor| cursor.last_checkpoint()) else {
            return Ok(None);
        };
        let state = T::deserialize(state).map_err(|why| {
            Error::invalid_option("checkpoint", "another_type").with_message(format!(
                "validation failed: checkpoint: its state does not fit: {why}"
            ))
        })?;
        let passed =
            self.0.journal.records(|cursor| Some(cursor.pass_to_checkpoint())).unwrap_or_default();
        let mut turns = self.0.turns.try_lock().map_err(|_| gone())?;
        for fact in &passed {
            self.spent().evolve(fact);
            match fact {
                Fact::TurnStarted { turn, .. } => *turns = *turn,
                Fact::ToolScheduled { call_id, attempt: 1, .. } => _ = self.count_call(call_id),
                // Nothing but what was spent is known of others.
                _ => {}
            }
        }
        Ok(Some(state))
    }
}
