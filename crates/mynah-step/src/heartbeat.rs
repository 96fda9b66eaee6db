//! The signs of life of this process.
//!
//! One thread beats in real time while there are recorded runs. It does not matter whether a run is
//! polled or its runtime is blocked. A log gets one beat a second from this process, for any number
//! of runs. So a run is held for exactly as long as its process lives.

use std::{
    collections::BTreeMap,
    fmt,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, Weak},
    task::Poll,
    thread,
    time::Duration,
};

use mynah_data::{Error, LogReason, Result};
use mynah_log::{Interruption, Lease, Log, backend::nanos};
use tokio::time::Instant;

use crate::{
    LEASE, SystemWorld,
    journal::lock,
    recorder::{is_temporary, time_of},
};

/// How old a beat is when the next is due. A lease lasts three times as long.
const BEAT: Duration = Duration::from_secs(1);

/// How often the thread looks which beats are due.
const TICK: Duration = Duration::from_millis(250);

/// The hearts of this process by the identity of their log, and whether a thread serves them.
static HEARTS: Mutex<Hearts> = Mutex::new(Hearts { all: BTreeMap::new(), are_served: false });

struct Hearts {
    all: BTreeMap<String, Weak<Heart>>,
    are_served: bool,
}

/// A point in time, on two clocks. One notices that the machine slept, the other that the time was
/// set.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    instant: Instant,
    clock: i64,
}

impl Moment {
    /// This moment.
    #[must_use]
    pub fn now() -> Self {
        Self { instant: Instant::now(), clock: time_of(&SystemWorld) }
    }

    /// Whether it is so long ago, by either clock.
    fn is_past(self, age: Duration) -> bool {
        let clock = time_of(&SystemWorld);
        self.instant.elapsed() >= age || self.clock.saturating_add(nanos(age)) <= clock
    }
}

/// What keeps the leases of this process in one log.
struct Heart {
    log: Arc<dyn Log>,
    /// The part of the owners' names that it beats for.
    process: String,
    state: Mutex<Pulse>,
}

struct Pulse {
    /// When the last beat that succeeded was asked for.
    asked: Option<Moment>,
    /// How often so much time passed between two beats that others may have taken runs.
    gaps: u64,
    is_beating: bool,
    kept: Vec<Weak<Held>>,
}

impl Heart {
    /// The one that keeps the leases of this owner.
    fn of(log: &Arc<dyn Log>, owner: &str) -> Arc<Self> {
        let process = mynah_log::backend::process(owner).to_owned();
        let all = &mut lock(&HEARTS).all;
        if let Some(heart) = all.get(&process).and_then(Weak::upgrade) {
            return heart;
        }
        let pulse = Pulse { asked: None, gaps: 0, is_beating: false, kept: Vec::new() };
        let (log, state) = (Arc::clone(log), Mutex::new(pulse));
        let heart = Arc::new(Self { log, process: process.clone(), state });
        all.insert(process, Arc::downgrade(&heart));
        heart
    }

    fn state(&self) -> MutexGuard<'_, Pulse> {
        lock(&self.state)
    }

    /// Takes note of a beat that succeeded, and gives the number of gaps before it.
    fn note(&self, asked: Moment) -> u64 {
        let mut state = self.state();
        // The log may have got it at any time until now, and the one before as soon as that was asked for.
        let is_late = state.asked.is_some_and(|before| before.is_past(LEASE));
        state.gaps += u64::from(is_late);
        state.asked = Some(asked);
        state.gaps
    }

    /// Whether a beat is due. If so, it is marked as in flight.
    fn begins(&self) -> bool {
        let mut state = self.state();
        let is_due = state.asked.is_some_and(|asked| asked.instant.elapsed() >= BEAT);
        state.kept.retain(|held| held.strong_count() > 0);
        let is_needed = |held: &Weak<Held>| held.upgrade().is_some_and(|held| held.is_live());
        let begins = is_due && !state.is_beating && state.kept.iter().any(is_needed);
        state.is_beating |= begins;
        begins
    }

    /// Sends a beat. After a gap each run is renewed, so that a lost one is noticed.
    async fn beat(&self) {
        let asked = Moment::now();
        let before = self.state().gaps;
        // What failed is due again at once.
        let beaten = self.log.beat(&self.process, LEASE).await;
        let gaps = beaten.map_or(before, |()| self.note(asked));
        if gaps > before {
            let kept: Vec<_> = self.state().kept.iter().filter_map(Weak::upgrade).collect();
            for held in kept.into_iter().filter(|held| held.is_live()) {
                // A lost run is reported at its next check; a failed renewal is retried before it matters.
                let _ = held.renew().await;
            }
        }
        self.state().is_beating = false;
    }
}

/// The lease of a run that this process holds.
pub(crate) struct Held {
    heart: Arc<Heart>,
    pub(crate) lease: Lease,
    state: Mutex<State>,
}

struct State {
    /// The number of gaps when the log last said that the run is this process's.
    known: Option<u64>,
    is_kept: bool,
    /// Whether there is nothing to keep: the run waits, has ended, has failed or was dropped.
    is_over: bool,
    lost: Option<Error>,
}

impl Held {
    /// A lease that was asked for at this moment; none if that is still to be done.
    pub(crate) fn new(log: &Arc<dyn Log>, lease: Lease, asked: Option<Moment>) -> Arc<Self> {
        let heart = Heart::of(log, &lease.owner);
        let known = asked.map(|asked| heart.note(asked));
        let state = State { known, is_kept: false, is_over: false, lost: None };
        Arc::new(Self { heart, lease, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Keeps it from now on, until it is dropped.
    pub(crate) fn keep(self: &Arc<Self>) {
        if std::mem::replace(&mut self.state().is_kept, true) {
            return;
        }
        self.heart.state().kept.push(Arc::downgrade(self));
        let mut hearts = lock(&HEARTS);
        if !hearts.are_served {
            let thread = thread::Builder::new().name("mynah-leases".to_owned());
            if let Err(error) = thread.spawn(serve) {
                // It is then renewed before a tool starts.
                tracing::warn!(%error, "no thread to renew leases with");
                return;
            }
            hearts.are_served = true;
        }
    }

    /// Whether there is nothing to keep. Once this returns, no renewal begins.
    pub(crate) fn set_over(&self, is_over: bool) {
        self.state().is_over = is_over;
    }

    fn is_live(&self) -> bool {
        let state = self.state();
        !state.is_over && state.lost.is_none()
    }

    /// Takes note that the log gave or renewed it when it was asked at this moment.
    pub(crate) fn renewed(&self, asked: Moment) {
        let gaps = self.heart.note(asked);
        self.state().known = Some(gaps);
    }

    /// Why the run is not this process's any more, if a renewal was refused.
    pub(crate) fn lost(&self) -> Option<Error> {
        self.state().lost.clone()
    }

    /// Whether another process may have taken it: no beat for the length of a lease, now or since
    /// the last renewal.
    pub(crate) fn is_doubtful(&self) -> bool {
        let (asked, gaps) = {
            let pulse = self.heart.state();
            (pulse.asked, pulse.gaps)
        };
        self.state().known != Some(gaps) || asked.is_none_or(|asked| asked.is_past(LEASE))
    }

    /// Asks the log for it again. One that was lost stays lost.
    ///
    /// # Errors
    /// Another process has the run, or had it; a log that fails, which may succeed the next time if it is unavailable.
    pub(crate) async fn renew(&self) -> Result<()> {
        let (Lease { run_id: run, owner, token, .. }, asked) = (&self.lease, Moment::now());
        let mut renewal = self.heart.log.lease(run, owner, LEASE);
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
                self.heart.log.release(&other);
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
}

/// A lease that this process keeps. It is released when it is dropped, unless a [`Recorder`](crate::Recorder) has it.
pub struct KeptLease(Option<Arc<Held>>);

impl KeptLease {
    /// Keeps a lease that was asked for at this moment.
    #[must_use]
    pub fn new(log: &Arc<dyn Log>, lease: Lease, asked: Moment) -> Self {
        let held = Held::new(log, lease, Some(asked));
        held.keep();
        Self(Some(held))
    }

    /// What became of the process that had the run before. One that lets go of its run gives it back.
    #[must_use]
    pub fn interruption(&self, is_fresh_branch: bool) -> Interruption {
        let taken_over = self.0.as_ref().is_some_and(|held| held.lease.taken_over);
        match taken_over {
            _ if is_fresh_branch => Interruption::Branch,
            true => Interruption::Crash,
            false => Interruption::Release,
        }
    }

    /// The lease, which is not released any more.
    pub(crate) fn into_held(mut self) -> Option<Arc<Held>> {
        self.0.take()
    }
}

impl fmt::Debug for KeptLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeptLease").field(&self.0.as_ref().map(|held| &held.lease)).finish()
    }
}

impl Drop for KeptLease {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            held.set_over(true);
            held.heart.log.release(&held.lease);
        }
    }
}

/// What the thread does: it ends when no run is left.
fn serve() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime.inspect_err(|error| tracing::warn!(%error, "leases are not renewed"))
    else {
        lock(&HEARTS).are_served = false;
        return;
    };
    runtime.block_on(async {
        loop {
            tokio::time::sleep(TICK).await;
            let mut hearts = lock(&HEARTS);
            hearts.all.retain(|_, heart| heart.strong_count() > 0);
            if hearts.all.is_empty() {
                hearts.are_served = false;
                return;
            }
            let all: Vec<Arc<Heart>> = hearts.all.values().filter_map(Weak::upgrade).collect();
            drop(hearts);
            // A log that does not answer does not keep the others waiting.
            for heart in all.into_iter().filter(|heart| heart.begins()) {
                tokio::spawn(async move { heart.beat().await });
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use mynah_log::{MemoryLog, conformance::Sample};

    use super::*;

    #[tokio::test]
    async fn one_beat_keeps_all_leases_until_they_are_dropped_and_then_the_thread_ends() {
        let log = MemoryLog::new();
        let shared: Arc<dyn Log> = Arc::new(log.clone());
        let mut held = Vec::new();
        for (run, owner) in [("one", "me/1"), ("two", "me/2")] {
            let kept = Sample::new(run, 0).batch().held(owner, LEASE);
            log.append(kept).await.expect("a run");
            let lease = Lease::new(run, owner, 1, 0);
            held.push(Held::new(&shared, lease, Some(Moment::now())));
        }
        assert!(Arc::ptr_eq(&held[0].heart, &held[1].heart), "one heart");
        held.iter().for_each(Held::keep);
        let until = async || {
            let run = log.run("two").await.expect("an index").expect("a run");
            run.held_until.expect("a lease")
        };
        let (mut last, mut renewals) = (until().await, 0);
        for _ in 0..30 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            renewals += u32::from(until().await != last);
            last = until().await;
        }
        assert!((2..=3).contains(&renewals), "{renewals} in three seconds");
        held[0].set_over(true);
        tokio::time::sleep(BEAT + 2 * TICK).await;
        assert_ne!(until().await, last, "the other is kept");
        held[1].set_over(true);
        tokio::time::sleep(BEAT + 2 * TICK).await;
        last = until().await;
        tokio::time::sleep(BEAT + 2 * TICK).await;
        assert_eq!(until().await, last, "what is over is not kept");
        assert!(lock(&HEARTS).are_served);
        drop(held);
        tokio::time::sleep(2 * TICK).await;
        assert!(!lock(&HEARTS).are_served, "no run is left, and no thread");
    }

    #[tokio::test]
    async fn after_a_gap_between_beats_each_run_is_asked_for_again() {
        let log = MemoryLog::new();
        let shared: Arc<dyn Log> = Arc::new(log.clone());
        let hold = async |run: &str| {
            let owner = format!("gap/{run}");
            log.append(Sample::new(run, 0).batch().held(&owner, LEASE)).await.expect("a run");
            let lease = Lease::new(run, owner, 1, 0);
            Held::new(&shared, lease, Some(Moment::now()))
        };
        let (kept, lost) = (hold("kept").await, hold("lost").await);
        kept.heart.state().kept.extend([&kept, &lost].map(Arc::downgrade));
        assert!(!kept.is_doubtful() && !lost.is_doubtful());
        kept.heart.beat().await;
        assert!(!kept.is_doubtful(), "no time has passed");
        let seen = log.run("lost").await.expect("an index").and_then(|run| run.held_until);
        log.take("lost", "other", LEASE, seen).await.expect("an owner that is silent");
        let long_ago = time_of(&SystemWorld) - nanos(LEASE);
        kept.heart.state().asked = Some(Moment { instant: Instant::now(), clock: long_ago });
        assert!(kept.is_doubtful() && lost.is_doubtful(), "the machine slept");
        kept.heart.beat().await;
        assert!(!kept.is_doubtful() && kept.lost().is_none());
        assert_eq!(lost.lost().map(|error| error.reason().to_owned()).as_deref(), Some("leased"));
    }
}
