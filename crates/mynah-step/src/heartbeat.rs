//! Renewing the leases of all recorded runs of this process.
//!
//! One thread does it, in real time, for as long as there are runs: whether a run is polled, and whether its runtime is blocked,
//! makes no difference. So a run is held for exactly as long as its process lives.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::Poll,
    thread,
    time::Duration,
};

use mynah_data::{Error, LogReason, Result};
use mynah_log::{Lease, Log};
use tokio::time::Instant;

use crate::{
    LEASE, World,
    recorder::{PAUSES, is_temporary, nanos, span},
    world::jittered,
};

/// How old a renewal is when the next is due. A lease lasts three times as long.
const BEAT: Duration = Duration::from_secs(1);

/// How often the thread looks which leases are due.
const TICK: Duration = Duration::from_millis(250);

/// The runs whose leases are renewed; none if there is no thread.
static RUNS: Mutex<Option<Vec<Weak<Held>>>> = Mutex::new(None);

/// A point in time. The clock knows of a machine that slept, and the other of a clock that was set.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) instant: Instant,
    pub(crate) clock: i64,
}

impl Moment {
    pub(crate) fn now(world: &dyn World) -> Self {
        Self { instant: Instant::now(), clock: nanos(world) }
    }

    /// Whether it is so long ago, by either clock.
    fn is_past(self, age: Duration, clock: impl FnOnce() -> i64) -> bool {
        self.instant.elapsed() >= age || self.clock.saturating_add(span(age)) <= clock()
    }
}

/// The lease of a run that this process holds.
pub(crate) struct Held {
    log: Arc<dyn Log>,
    world: Arc<dyn World>,
    pub(crate) lease: Lease,
    state: Mutex<State>,
}

struct State {
    /// When the last renewal that succeeded was asked for.
    renewed: Moment,
    is_kept: bool,
    is_renewing: bool,
    /// Whether there is nothing to renew: the run waits, has ended, has failed or was dropped.
    is_over: bool,
    lost: Option<Error>,
}

impl Held {
    /// A lease that was asked for at this moment.
    pub(crate) fn new(
        log: Arc<dyn Log>,
        world: Arc<dyn World>,
        lease: Lease,
        renewed: Moment,
    ) -> Arc<Self> {
        let state =
            State { renewed, is_kept: false, is_renewing: false, is_over: false, lost: None };
        Arc::new(Self { log, world, lease, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews it from now on, until it is dropped.
    pub(crate) fn keep(self: &Arc<Self>) {
        if std::mem::replace(&mut self.state().is_kept, true) {
            return;
        }
        let mut runs = runs();
        if runs.is_none() {
            let thread = thread::Builder::new().name("mynah-leases".to_owned());
            if let Err(error) = thread.spawn(serve) {
                // It is then renewed by appends, and before a tool starts.
                tracing::warn!(%error, "no thread to renew leases with");
                return;
            }
        }
        runs.get_or_insert_default().push(Arc::downgrade(self));
    }

    /// Whether there is nothing to renew. Once this returns, no renewal begins.
    pub(crate) fn set_over(&self, is_over: bool) {
        self.state().is_over = is_over;
    }

    /// Takes note of a renewal that succeeded.
    pub(crate) fn renewed(&self, asked: Moment) {
        self.state().renewed = asked;
    }

    /// Why the run is not this process's any more, if a renewal was refused.
    pub(crate) fn lost(&self) -> Option<Error> {
        self.state().lost.clone()
    }

    /// Whether it is time to renew it, now that the clock says this.
    pub(crate) fn is_due(&self, clock: i64) -> bool {
        self.state().renewed.is_past(BEAT, || clock)
    }

    /// Whether it may have run out.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.state().renewed.is_past(LEASE, || nanos(&*self.world))
    }

    /// Renews it. One that was lost stays lost.
    ///
    /// # Errors
    /// Another process has the run, or had it; a log that fails, which may succeed the next time if it is unavailable.
    pub(crate) async fn renew(&self) -> Result<()> {
        let (Lease { run, owner, token, .. }, asked) = (&self.lease, Moment::now(&*self.world));
        let mut renewal = self.log.lease(run, owner, LEASE);
        // It begins before the run is released, or not at all.
        let begun = poll_fn(|cx| {
            let state = self.state();
            let begun = (!state.is_over).then(|| renewal.as_mut().poll(cx));
            Poll::Ready(begun)
        });
        let renewed = match begun.await {
            None => return Ok(()),
            Some(Poll::Ready(renewed)) => renewed,
            Some(Poll::Pending) => renewal.await,
        };
        let lost = match renewed {
            Ok(renewed) if renewed.token == *token => {
                self.renewed(asked);
                return Ok(());
            }
            Ok(other) => {
                // Another process had it, and gave it back.
                self.log.release(&other).await?;
                Error::log(LogReason::Fenced)
                    .with_message(format!(
                        "log error: fenced: run {run} was taken over by another process"
                    ))
                    .with("run_id", &**run)
            }
            Err(error) if is_temporary(&error) => return Err(error),
            Err(error) => error,
        };
        let mut state = self.state();
        Err(state.lost.get_or_insert(lost).clone())
    }

    /// Renews it, and asks a log that is unavailable again within this time.
    ///
    /// # Errors
    /// As [`renew`](Self::renew).
    pub(crate) async fn renew_within(&self, limit: Duration) -> Result<()> {
        let (began, mut pause) = (Instant::now(), PAUSES.0);
        loop {
            match self.renew().await {
                Err(error) if is_temporary(&error) && began.elapsed() < limit => {
                    tokio::time::sleep(jittered(&*self.world, pause, 0.5)).await;
                    pause = PAUSES.1.min(pause * 2);
                }
                renewed => return renewed,
            }
        }
    }

    /// Whether a renewal is due; then it is under way.
    fn begins(&self) -> bool {
        let mut state = self.state();
        let is_due = state.renewed.instant.elapsed() >= BEAT;
        let begins = is_due && !state.is_over && !state.is_renewing && state.lost.is_none();
        state.is_renewing |= begins;
        begins
    }
}

fn runs() -> MutexGuard<'static, Option<Vec<Weak<Held>>>> {
    RUNS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the thread does: it ends when no run is left.
fn serve() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime.inspect_err(|error| tracing::warn!(%error, "leases are not renewed"))
    else {
        *runs() = None;
        return;
    };
    runtime.block_on(async {
        loop {
            tokio::time::sleep(TICK).await;
            let mut runs = runs();
            let kept = runs.get_or_insert_default();
            kept.retain(|held| held.strong_count() > 0);
            if kept.is_empty() {
                *runs = None;
                return;
            }
            let kept: Vec<Arc<Held>> = kept.iter().filter_map(Weak::upgrade).collect();
            drop(runs);
            // A log that does not answer for one of them does not keep the others waiting.
            for held in kept.into_iter().filter(|held| held.begins()) {
                tokio::spawn(async move {
                    // What is lost is told to whoever asks; what failed is tried again.
                    let _ = held.renew().await;
                    held.state().is_renewing = false;
                });
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use mynah_log::{MemoryLog, conformance::Sample};

    use super::*;
    use crate::SystemWorld;

    #[tokio::test]
    async fn leases_are_renewed_until_they_are_dropped_and_then_the_thread_ends() {
        let (log, world) = (Arc::new(MemoryLog::new()), Arc::new(SystemWorld));
        let kept = Sample::new("kept", 0).batch().held("me", LEASE);
        log.append(kept).await.expect("a run");
        let lease = Lease::new("kept", "me", 1, 0);
        let now = Moment::now(&SystemWorld);
        let held = Held::new(log.clone(), world, lease, now);
        held.keep();
        let until = async || {
            let run = log.run("kept").await.expect("an index").expect("a run");
            run.held_until.expect("a lease")
        };
        let (mut last, mut renewals) = (until().await, 0);
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            renewals += u32::from(until().await != last);
            last = until().await;
        }
        assert!((2..=3).contains(&renewals), "{renewals} in three seconds");
        assert!(runs().is_some());
        held.set_over(true);
        tokio::time::sleep(BEAT + 2 * TICK).await;
        assert_eq!(until().await, last, "what is over is not renewed");
        drop(held);
        tokio::time::sleep(2 * TICK).await;
        assert!(runs().is_none(), "no run is left, and no thread");
    }
}
