//! Taking over a run that another process may hold.

use std::time::Duration;

use mynah_data::{Error, ErrorKind, LogReason, Result};
use mynah_log::{Head, Lease, Log};
use serde_json::Value;
use tokio::time::Instant;

use crate::{World, new_owner, process};

/// How long a process holds a run without a sign of life. It gives one every second for as long as it lives, whether its
/// run is polled or not. A process that was suspended for longer may have lost its runs; it finds out before it starts a tool, or
/// at its next append.
pub const LEASE: Duration = Duration::from_secs(3);

/// Takes the right to continue a run that was read up to this head.
///
/// A run that nobody holds is taken at once: its process gave it back, or it waits, or it was never held. So is one whose holder
/// ran on this machine and has ended. Any other holder may have crashed. A holder that lives gives a sign of life every second, so one
/// is waited for as long as a lease [lasts](LEASE). If there was none, the run is taken over; should the holder live after all, its appends are refused. No time of day is compared, so
/// neither a clock that is wrong nor one that is set makes a difference.
///
/// # Errors
/// `leased`, with the holder's name and the end of its lease, if the holder lives; `head_mismatch` if another process continued
/// the run since it was read; a log that fails.
pub async fn take_over(
    log: &dyn Log,
    world: &dyn World,
    run: &str,
    head: Option<Head>,
) -> Result<Lease> {
    let lease = take_when_silent(log, world, run).await?;
    if log.head(run).await? == head {
        return Ok(lease);
    }
    log.release(&lease);
    Err(Error::log(LogReason::HeadMismatch)
        .with_message(format!(
            "log error: head_mismatch: somebody else went on with run {run}; resume it again"
        ))
        .with("run_id", run))
}

async fn take_when_silent(log: &dyn Log, world: &dyn World, run: &str) -> Result<Lease> {
    const PAUSE: Duration = Duration::from_millis(100);
    let owner = new_owner(log, world);
    let leased = match log.take(run, &owner, LEASE, None).await {
        Err(error) if error.kind() == ErrorKind::Log(LogReason::Leased) => error,
        taken => return taken,
    };
    let seen = leased.metadata().get("until").and_then(Value::as_i64);
    let holder = leased.metadata().get("owner").and_then(Value::as_str);
    if holder.is_some_and(process::owner_has_ended) {
        return log.take(run, &owner, LEASE, seen).await;
    }
    let held_until = async || Ok::<_, Error>(log.run(run).await?.and_then(|run| run.held_until));
    let (began, mut now) = (Instant::now(), seen);
    while now.is_some() && now == seen && began.elapsed() < LEASE {
        tokio::time::sleep(PAUSE).await;
        now = held_until().await?;
    }
    // The log compares once more: a renewal that came just now counts.
    log.take(run, &owner, LEASE, seen).await
}
