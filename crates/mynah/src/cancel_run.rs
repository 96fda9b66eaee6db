//! Ending a run from outside.

use std::{future::poll_fn, sync::Arc};

use mynah_data::{Error, HaltReason, Metadata, Result, StreamReason};
use mynah_log::{End, Extent, Fact, Log};
use mynah_step::{Recorder, SystemWorld, World};

use crate::replay::{LEASE, Loaded, nanos};

/// Ends a run that has no end, from outside: one that waits, or whose process ended. It gets its seal, and can be neither
/// resumed nor appended to.
///
/// ```
/// # use mynah::{Engine, Mode, testing::Scripted};
/// # use serde_json::json;
/// use mynah::log::{Log, MemoryLog, RunStatus};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::new([
/// #     json!([{"tool_call": {"id": "c0", "name": "pay"}}, {"finish": "tool_calls"}])])?);
/// let log = std::sync::Arc::new(MemoryLog::new());
/// let run = engine.chat("pay").mode(Mode::Manual).record(&log).await?.run_id.unwrap();
/// mynah::cancel_run(&log, &run).await?;
/// assert_eq!(log.run(&run).await?.unwrap().status, RunStatus::Cancelled);
/// # Ok(()) }
/// ```
///
/// # Errors
/// A run that is not there, not what it was, has ended, or is in other hands.
pub async fn cancel_run<L: Log + Clone>(log: &L, run: &str) -> Result<()> {
    let Loaded { chain, totals, extent, .. } = Loaded::read(log, run).await?;
    let world: Arc<dyn World> = Arc::new(SystemWorld);
    let lease = log.lease(run, &world.new_id(), LEASE, nanos(world.as_ref())).await?;
    let mut recorder =
        Recorder::after(Arc::new(log.clone()), world, chain, totals).with_lease(lease);
    let mut metadata = Metadata::new();
    if extent != Extent::Chat {
        metadata.insert("error".to_owned(), Error::stream(StreamReason::Cancelled).to_value());
    }
    let end = End::new(HaltReason::Cancelled, metadata);
    recorder.commit(&Fact::Cancelled { end, partial: None, cuts: Vec::new() })?;
    poll_fn(|cx| recorder.poll_flush(cx)).await
}
