//! Taking over a run that another process may hold.

use std::time::Duration;

use mynah_data::{Error, ErrorKind, LogReason, Result};
use mynah_log::{Head, Lease, Log};
use serde_json::Value;
use tokio::time::Instant;

use crate::{World, new_owner, process};

/// How long a process holds a run without a beat. It beats every second while it lives, whether its
/// run is polled or not. A process that was suspended for longer may have lost its runs. It finds
/// out before it starts a tool, or at its next append.
pub const LEASE: Duration = Duration::from_secs(3);

/// Takes the right to continue a run that was read up to this head.
///
/// A run without a holder is taken at once: its process released it, or it waits, or it was never
/// held. So is one whose holder ran on this machine and has ended. Any other holder may have
/// crashed. A living holder beats every second, so this waits for a beat for the length of a
/// [lease](LEASE). Without one the run is taken over. If the holder lives after all, its appends
/// are refused. No time of day is compared, so wrong or changed clocks make no difference.
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
            "log error: head_mismatch: another process continued run {run}; resume it again"
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
    // The log compares again: a renewal that arrived just now counts.
    log.take(run, &owner, LEASE, seen).await
}
