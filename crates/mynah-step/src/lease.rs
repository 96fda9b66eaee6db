//! Taking over a run that another process may hold.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use mynah_data::{Error, ErrorKind, LogReason, Result};
use mynah_log::{Head, Log, backend};
use serde_json::Value;
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

use crate::{
    World,
    heartbeat::{KeptLease, Moment},
    journal::lock,
    new_owner, process,
};

/// How long a process holds a run without a beat. It beats every second while it lives, whether its
/// run is polled or not. A process that was suspended for longer may have lost its runs. It finds
/// out before it starts a tool, or at its next append.
pub const LEASE: Duration = Duration::from_secs(3);

/// A longer time without an answer is a break. The beats of living processes do not reach a log that is unavailable, so after a break their
/// silence says nothing until they had time to beat again.
const BREAK: Duration = Duration::from_millis(1_500);

/// Whether a log has answered without a break for long enough that the silence of a process says that it died.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contact {
    answered: Option<Instant>,
    /// When it answered again after a break.
    back: Option<Instant>,
}

impl Contact {
    /// Takes note that the log has answered.
    pub fn answered(&mut self) {
        let now = Instant::now();
        if self.answered.is_some_and(|before| now - before >= BREAK) {
            self.back = Some(now);
        }
        self.answered = Some(now);
    }

    /// Whether runs may be taken from silent processes. If there was no break since it was first asked, they may.
    #[must_use]
    pub fn is_steady(&self) -> bool {
        let is_there = self.answered.is_some_and(|answered| answered.elapsed() < BREAK);
        is_there && self.back.is_none_or(|back| back.elapsed() >= LEASE)
    }
}

/// Takes the right to continue a run that was read up to this head.
///
/// A run without a holder is taken at once: its process released it, or it waits, or it was never
/// held. So is one whose holder ran on this machine and has ended. Any other holder may have
/// crashed. A living holder beats every second, so this waits for a beat for the length of a
/// [lease](LEASE). Without one the run is taken over. A log that was unavailable is watched for that long again. If the holder lives after all, its appends
/// are refused. No time of day is compared, so wrong or changed clocks make no difference.
///
/// # Errors
/// `leased`, with the holder's name and the end of its lease, if the holder lives; `head_mismatch` if another process continued
/// the run since it was read; a log that fails.
pub async fn take_over(
    log: &Arc<dyn Log>,
    world: &dyn World,
    run: &str,
    head: Option<Head>,
) -> Result<KeptLease> {
    let lease = take_when_silent(log, world, run).await.map_err(|error| held_here(error, run))?;
    if log.head(run).await? == head {
        return Ok(lease);
    }
    Err(Error::log(LogReason::HeadMismatch)
        .with_message(format!(
            "log error: head_mismatch: another process continued run {run}; resume it again"
        ))
        .with("run_id", run))
}

/// The same error, if it is a call in this process that holds the run.
fn held_here(error: Error, run: &str) -> Error {
    let holder = error.metadata().get("owner").and_then(Value::as_str);
    match error.kind() == ErrorKind::Log(LogReason::Leased) && holder.is_some_and(process::is_own) {
        true => error.with_message(format!(
            "log error: leased: run {run} is held by another call in this process; wait until that ends or drop it, then resume"
        )),
        false => error,
    }
}

async fn take_when_silent(log: &Arc<dyn Log>, world: &dyn World, run: &str) -> Result<KeptLease> {
    let owner = new_owner(&**log, world);
    let take = async |seen: Option<i64>| -> Result<KeptLease> {
        let asked = Moment::now();
        let lease = log.take(run, &owner, LEASE, seen).await?;
        Ok(KeptLease::new(log, lease, asked))
    };
    let leased = match take(None).await {
        Err(error) if error.kind() == ErrorKind::Log(LogReason::Leased) => error,
        taken => return taken,
    };
    let seen = leased.metadata().get("until").and_then(Value::as_i64);
    let holder = leased.metadata().get("owner").and_then(Value::as_str);
    if let (Some(seen), Some(holder)) = (seen, holder) {
        let watch = Watch::of(&**log, holder);
        if !watch.has_ended(holder) {
            watch.silence(&**log, run, seen).await?;
        }
    }
    // The log compares again: a renewal that arrived just now counts.
    take(seen).await
}

/// The processes that this process has waited for, by their log and the names that they beat as.
///
/// A process beats for all of its runs at once, so one wait serves every run that it holds.
static WATCHED: Mutex<BTreeMap<(usize, String), Arc<Watch>>> = Mutex::new(BTreeMap::new());

/// How long a process is remembered after its last beat was first seen.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// What is known of a process that holds runs.
#[derive(Default)]
struct Watch {
    /// It ran on this machine and has ended.
    has_ended: OnceLock<()>,
    /// The last beat that was seen. One task at a time waits for the next; the others wait for that task.
    last: AsyncMutex<Option<Sighting>>,
}

#[derive(Clone, Copy)]
struct Sighting {
    /// The end of the lease that the beat gave.
    until: i64,
    since: Instant,
    /// When the log last said that it is still the last.
    confirmed: Instant,
    /// Whether it was the last for as long as a lease lasts.
    is_silent: bool,
}

impl Watch {
    /// The process of this owner.
    fn of(log: &dyn Log, owner: &str) -> Arc<Self> {
        let key = (log.identity(), backend::process(owner).to_owned());
        let mut all = lock(&WATCHED);
        if !all.contains_key(&key) {
            all.retain(|_, watch| !watch.is_forgotten());
        }
        Arc::clone(all.entry(key).or_default())
    }

    fn is_forgotten(&self) -> bool {
        let is_old = |seen: Sighting| seen.since.elapsed() > REMEMBERED;
        self.last.try_lock().is_ok_and(|seen| seen.is_none_or(is_old))
    }

    /// Whether the process of this owner has certainly ended. The system is asked until it has.
    fn has_ended(&self, owner: &str) -> bool {
        if self.has_ended.get().is_none() && process::owner_has_ended(owner) {
            let _ = self.has_ended.set(());
        }
        self.has_ended.get().is_some()
    }

    /// Waits until the holder of a run has not beaten for as long as a lease lasts since this beat was first seen, or until the
    /// run is held otherwise.
    async fn silence(&self, log: &dyn Log, run: &str, until: i64) -> Result<()> {
        const PAUSE: Duration = Duration::from_millis(100);
        let mut last = self.last.lock().await;
        let now = Instant::now();
        let new = Sighting { until, since: now, confirmed: now, is_silent: false };
        let seen = last.get_or_insert(new);
        if seen.until != until {
            *seen = new;
        }
        while !seen.is_silent {
            if log.run(run).await?.and_then(|run| run.held_until) != Some(until) {
                break;
            }
            let now = Instant::now();
            if now - seen.confirmed >= BREAK {
                seen.since = now;
            }
            seen.confirmed = now;
            seen.is_silent = now - seen.since >= LEASE;
            if !seen.is_silent {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }
}
