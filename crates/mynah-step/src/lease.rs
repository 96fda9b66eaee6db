//! Taking a run that another may hold.

use std::time::Duration;

use mynah_data::{Error, ErrorKind, LogReason, Result};
use mynah_log::{Lease, Log};

use crate::{World, nanos, new_owner};

/// For how long a run is nobody else's. A process that does not poll its run for so long keeps it all the same, unless
/// another takes it over; it is told at its next append.
pub const LEASE: Duration = Duration::from_secs(3);

/// Takes the right to append to a run.
///
/// Whoever holds it may be gone: then it is free soon, and waited for, no longer than a [lease](LEASE) lasts. One that lives
/// tells by holding it for longer.
///
/// # Errors
/// `leased`, with the holder's name and the time at which the lease runs out, if the holder lives; a log that fails.
pub async fn take_lease(log: &dyn Log, run: &str, world: &dyn World) -> Result<Lease> {
    const PAUSE: Duration = Duration::from_millis(100);
    let owner = new_owner(world);
    let mut first = None;
    for _ in 0..LEASE.as_millis() / PAUSE.as_millis() {
        let error = match log.lease(run, &owner, LEASE, nanos(world)).await {
            Err(error) if error.kind() == ErrorKind::Log(LogReason::Leased) => error,
            taken => return taken,
        };
        if *first.get_or_insert_with(|| until(&error)) != until(&error) {
            return Err(error);
        }
        tokio::time::sleep(PAUSE).await;
    }
    log.lease(run, &owner, LEASE, nanos(world)).await
}

fn until(error: &Error) -> Option<i64> {
    error.metadata().get("until")?.as_i64()
}
