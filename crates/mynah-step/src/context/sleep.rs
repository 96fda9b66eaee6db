//! Timers of a user's loop.

use std::{pin::pin, time::Duration};

use futures_util::future::{Either, select};
use mynah_data::{EngineReason, Error, ErrorKind, Result, StreamReason};
use mynah_log::{Effect, End, Fact};

use super::{Context, unless_cancelled};
use crate::{
    cursor::{SLEEP, WOKE},
    journal::PendingEffect,
    millis, since_1970,
};

/// The member of the error of a loop that sleeps which says until when.
const WAKE_AT: &str = "wake_at_ms";

/// What a sleep comes to.
enum Asleep {
    /// It is over, or else the run was cancelled.
    Woken(bool),
    /// The run is left for so long, with this error.
    Parks(Error),
}

impl Context {
    /// Sleeps. When it is over is recorded first, so a crash does not begin it anew: a run that is resumed sleeps for the rest. How it
    /// ended is recorded too. A replay does not sleep.
    ///
    /// For a time longer than [`Config::park_after`](crate::Config::park_after) the run is suspended instead, and this returns an error
    /// that the loop must return. Effects, tools and model calls of other branches are done first, and shorter sleeps come before longer
    /// ones. The log's index has the time (`wake_at`); [`Config::resume`](crate::Config::resume) continues the run then.
    ///
    /// ```
    /// # mod mynah { pub use {mynah_data::*, mynah_log as log, mynah_step as step}; }
    /// use std::{sync::Arc, time::Duration};
    /// use mynah::Result;
    /// use mynah::log::{Log as _, MemoryLog};
    /// use mynah::step::{Config, Context};
    ///
    /// async fn remind(context: &Context) -> Result<&'static str> {
    ///     context
    ///         .run("remind", async |cx| {
    ///             cx.sleep(Duration::from_millis(20)).await?;
    ///             Ok("It is time.")
    ///         })
    ///         .await
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// let log = Arc::new(MemoryLog::new());
    /// let config = Config::new(&log, "run-1").park_after(Duration::ZERO);
    /// let asleep = remind(&Context::new(config.clone())?).await.unwrap_err();
    /// assert_eq!(asleep.reason(), "halted");
    /// assert!(log.run("run-1").await?.unwrap().wake_at.is_some());
    ///
    /// tokio::time::sleep(Duration::from_millis(30)).await;
    /// assert_eq!(remind(&Context::new(config.resume().await?)?).await?, "It is time.");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `halted` if the run is suspended, `cancelled` if it is [cancelled](Context::cancel) meanwhile, `budget_exceeded` if it passes its
    /// limit on time. Also as [`Context::now`].
    pub async fn sleep(&self, time: Duration) -> Result<()> {
        // Both have their places from the beginning: a loop may give up the sleep at any time.
        let woke = self.0.effects.request(WOKE)?;
        let now = || millis(since_1970(self.0.config.world.now()));
        let until = async { Ok(now().saturating_add(millis(time))) };
        let until: u64 = self.effect(SLEEP, until).await?;
        match self.in_run(self.while_there_is_time(&[], self.asleep(until, &woke))).await {
            Ok(asleep) => match asleep? {
                Asleep::Woken(true) => Ok(()),
                Asleep::Woken(false) => Err(Error::stream(StreamReason::Cancelled)),
                Asleep::Parks(why) => Err(self.park(until, why).await?),
            },
            Err(breach) => Err(self.exceed(breach, None, Vec::new()).await?),
        }
    }

    /// Waits until a sleep ends. How it ends is recorded: whether another branch, or a cancellation, came first.
    async fn asleep(&self, until: u64, woke: &PendingEffect) -> Result<Asleep> {
        // From here on no branch that sleeps for longer leaves the run.
        let _asleep = self.0.in_flight.sleep(until);
        if let Some(is_over) = self.0.effects.recall(woke, true).await? {
            return Ok(Asleep::Woken(is_over));
        }
        let slept = tokio::time::sleep(self.left(until));
        let slept = unless_cancelled(self.0.cancelled.subscribe(), slept);
        let is_over = match select(pin!(slept), pin!(self.left_alone(until))).await {
            Either::Left((slept, _)) => slept.is_some(),
            Either::Right((why, _)) => return why.map(Asleep::Parks),
        };
        let _in_flight = self.0.in_flight.begin()?;
        self.0.effects.keep(woke, Effect::Done(is_over.into())).await?;
        Ok(Asleep::Woken(is_over))
    }

    fn left(&self, until: u64) -> Duration {
        let now = millis(since_1970(self.0.config.world.now()));
        Duration::from_millis(until.saturating_sub(now))
    }

    /// Waits until nothing else happens in the run before a sleep ends that is long. Returns the error with which the run is left.
    async fn left_alone(&self, until: u64) -> Result<Error> {
        let is_long = || self.left(until) > self.0.config.park_after;
        let why = Error::engine(EngineReason::Halted)
            .with_message(format!(
                "engine error: halted: sleeping: run {} waits for a time; resume it at its wake_at_ms",
                self.run_id()
            ))
            .with(WAKE_AT, until);
        // Branches that were not polled yet begin before that.
        tokio::task::yield_now().await;
        self.0.in_flight.close_for_sleep(until, is_long, &why).await?;
        Ok(why)
    }

    /// Suspends the run until a time. Nothing more is recorded by this process.
    async fn park(&self, until: u64, why: Error) -> Result<Error> {
        self.put(Fact::Suspended(End::sleeping(until))).await?;
        self.flush().await?;
        Ok(why)
    }
}

/// Whether a loop ended so because its run sleeps.
pub(super) fn is_parked(error: &Error) -> bool {
    error.kind() == ErrorKind::Engine(EngineReason::Halted)
        && error.metadata().contains_key(WAKE_AT)
}
