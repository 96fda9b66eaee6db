//! Taking a run that another may hold.

use std::time::Duration;

use mynah_data::{Error, ErrorKind, LogReason, Result};
use mynah_log::{Head, Lease, Log};
use serde_json::Value;

use crate::{
    World,
    recorder::{nanos, new_owner, span},
};

/// For how long a run is nobody else's. A process that does not poll its run for so long keeps it all the same, unless
/// another takes it over; it is told at its next append, or before it starts a tool.
pub const LEASE: Duration = Duration::from_secs(3);

/// How far the clocks of two processes may be apart. What ran out longer ago by this clock has run out by any.
const APART: Duration = Duration::from_secs(60);

/// Takes the right to go on with a run that was read up to this head.
///
/// Whoever holds it may be gone: one that lives tells by holding it for longer. What nobody kept while it was watched for as
/// long as a [lease](LEASE) lasts is taken, whatever time the holder's clock told; should it live after all, its appends are
/// refused. What ran out more than a minute ago is taken at once: clocks that are further apart than that are not thought of.
///
/// # Errors
/// `leased`, with the holder's name and the time at which the lease runs out, if the holder lives; `head_mismatch` where
/// somebody went on with it since it was read; a log that fails.
pub async fn take_over(
    log: &dyn Log,
    world: &dyn World,
    run: &str,
    head: Option<Head>,
) -> Result<Lease> {
    let lease = when_free(log, world, run).await?;
    if log.head(run).await? == head {
        return Ok(lease);
    }
    log.release(&lease).await?;
    Err(Error::log(LogReason::HeadMismatch)
        .with_message(format!(
            "log error: head_mismatch: somebody else went on with run {run}; resume it again"
        ))
        .with("run_id", run))
}

async fn when_free(log: &dyn Log, world: &dyn World, run: &str) -> Result<Lease> {
    const PAUSE: Duration = Duration::from_millis(100);
    let owner = new_owner(world);
    let mut seen = None;
    for _ in 0..LEASE.as_millis() / PAUSE.as_millis() {
        let now = nanos(world);
        // What ran out only now by this clock may not have run out by the holder's.
        let long_ago = now.saturating_sub(span(APART));
        let error = match log.lease(run, &owner, LEASE, long_ago).await {
            Err(error) if error.kind() == ErrorKind::Log(LogReason::Leased) => error,
            Err(error) => return Err(error),
            Ok(_) => return log.lease(run, &owner, LEASE, now).await,
        };
        let until = error.metadata().get("until").and_then(Value::as_i64);
        if *seen.get_or_insert(until) != until {
            return Err(error);
        }
        tokio::time::sleep(PAUSE).await;
    }
    let ran_out = seen.flatten().unwrap_or(i64::MIN).max(nanos(world));
    log.lease(run, &owner, LEASE, ran_out).await?;
    // From here on it is held by this clock.
    log.lease(run, &owner, LEASE, nanos(world)).await
}
