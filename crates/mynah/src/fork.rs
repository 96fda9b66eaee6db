//! Branching off a run.

use std::{future::poll_fn, sync::Arc, time::Duration};

use mynah_data::{Error, Result, RunId};
use mynah_log::{About, Continues, Fact, Log, Parent, Record, RunSummary};
use mynah_step::{RecordedFact, Recorder, SystemWorld, World, active, was_redacted};
use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::{call::awaited, loaded::VerifiedRun};

/// Copies a run up to a record into a new run, which can be resumed differently.
///
/// A seal cannot be copied, because nothing can follow it; an ended run can be branched at any
/// record before. A branch of a session's turn continues the same earlier turns, and is not listed
/// among the session's own. It has spent what its copy of the run spent, time included. It has its
/// own copy of the data: [redact](mynah_log::Redact) it too.
///
/// ```
/// use mynah::{Engine, testing::Scripted};
/// use mynah::{fork_run, log::MemoryLog};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = |text: &str| Engine::new(Scripted::says([text]));
///
/// let log = MemoryLog::new();
/// let run = engine("hi").chat("hello").record(&log).await?.run_id.unwrap();
///
/// let branch = fork_run(&log, &*run, 2).await?;
/// let otherwise = engine("good day").resume(&log, &*branch.run_id).await?;
/// assert_eq!(otherwise.text(), "good day");
/// # Ok(()) }
/// ```
pub fn fork_run<L: Log + Clone>(log: &L, run: impl AsRef<str>, at: u64) -> Fork {
    Fork {
        log: Arc::new(log.clone()),
        run: run.as_ref().into(),
        at,
        world: Arc::new(SystemWorld),
        id: None,
        link: None,
    }
}

/// A run to be branched off; see [`fork_run`].
#[must_use = "nothing is copied unless it is awaited"]
pub struct Fork {
    log: Arc<dyn Log>,
    run: RunId,
    at: u64,
    pub(crate) world: Arc<dyn World>,
    /// The id of the new run; a fresh one if not set.
    id: Option<RunId>,
    /// How it continues the other and how long that was active, if it is no branch.
    pub(crate) link: Option<(Continues, Duration)>,
}

mynah_data::partial_debug! { Fork { run, at, id } }

/// A run that was branched off another.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Forked {
    /// The new run.
    pub run_id: RunId,
    /// Where it was branched off. Its JSON has no time, because that does not identify the place.
    #[serde(serialize_with = "place")]
    pub parent: Parent,
}

fn place<S: Serializer>(parent: &Parent, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    let mut place = serializer.serialize_struct("Parent", 3)?;
    place.serialize_field("run_id", &parent.run_id)?;
    place.serialize_field("seq", &parent.seq)?;
    place.serialize_field("hash", &parent.hash)?;
    place.end()
}

impl Fork {
    /// The id of the new run, instead of a fresh one.
    pub fn run_id(mut self, id: impl Into<RunId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Takes the new run's id and times from a world of the caller's own.
    pub fn world(mut self, world: impl World) -> Self {
        self.world = Arc::new(world);
        self
    }

    async fn copy(self) -> Result<Forked> {
        let Self { log, run, at, world, id, link } = self;
        let mut records = Vec::new();
        // The whole run is verified, and what follows may have been removed.
        let shared = |record: &Record| match record.seq() <= at {
            true => {
                records.extend(RecordedFact::read(record)?);
                Ok(())
            }
            false => Ok(()),
        };
        let VerifiedRun { verifier, run: found, redacted } =
            VerifiedRun::whole(&*log, &run, shared).await?;
        let sealed = verifier.report().fingerprint.is_some();
        if sealed && at == found.records {
            let what = format!("record {at} is its seal, and nothing can follow it");
            return Err(misplaced("is_the_seal", &what, &found, sealed));
        }
        if let Some(redacted) = redacted.filter(|redacted| redacted.seq() <= at) {
            return Err(was_redacted(&redacted));
        }
        let Some(last) = records.last().filter(|kept| kept.record().seq() == at) else {
            let what = format!("it has no record {at}");
            return Err(misplaced("no_such_record", &what, &found, sealed));
        };
        let hash = last.record().hash();
        let (continues, active) = match link {
            Some((continues, active)) => (Some(continues), active),
            None => (None, active(&records)),
        };
        let active = u64::try_from(active.as_nanos()).unwrap_or(u64::MAX);
        let parent = Parent { run_id: run, seq: at, hash, active, continues };
        let mut recorder =
            Recorder::new(log, Arc::clone(&world), id.unwrap_or_else(|| world.new_run_id()));
        for kept in records {
            let fact = match kept.into_fact() {
                Fact::RunStarted { thread, extent, about } => {
                    let about = about.map_or_else(About::default, |about| *about);
                    let about = About { parent: Some(parent.clone()), ..about };
                    Fact::RunStarted { thread, extent, about: Some(Box::new(about)) }
                }
                fact => fact,
            };
            recorder.push(&fact)?;
        }
        poll_fn(|cx| recorder.poll_flush(cx)).await?;
        Ok(Forked { run_id: recorder.run_id().clone(), parent })
    }
}

/// That a run cannot be branched there, and where it can.
fn misplaced(code: &str, what: &str, run: &RunSummary, sealed: bool) -> Error {
    let last = run.records.saturating_sub(u64::from(sealed));
    Error::invalid_option("at", code).with_message(format!(
        "validation failed: at: run {} can be branched at its records 1 to {last}: {what}",
        run.run_id
    ))
}

awaited! {
    /// # Errors
    /// A run that is missing or corrupt, or a record that it does not have.
    Fork => Forked, fork => fork.copy().await
}
