//! Branching off a run.

use std::{future::poll_fn, sync::Arc, time::Duration};

use mynah_data::{
    Error, ErrorKind, LogReason, Message, ModelRef, Part, Result, Role, RunId, Thread,
};
use mynah_log::{About, Continues, Fact, Log, Parent, Record, RunSummary, SessionLink};
use mynah_step::{RecordedFact, Recorder, SystemWorld, World, active, was_redacted};
use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::{
    call::awaited,
    loaded::{Loaded, VerifiedRun},
    prepare::{check_run_id, joined},
    replay::with_system,
};

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
        system: None,
        said: None,
        model: None,
        agent: None,
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
    /// What it begins with in place of what is recorded.
    system: Option<String>,
    said: Option<String>,
    model: Option<String>,
    agent: Option<String>,
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
    /// Names the agent that the branch is continued with, for [workers](crate::Worker).
    #[doc(hidden)]
    pub fn agent(mut self, name: impl Into<String>) -> Self {
        self.agent = Some(name.into());
        self
    }

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

    /// Begins the branch with other instructions: they replace the first system message, or precede all others. Only a branch at
    /// record 1 can.
    ///
    /// A branch of a session's later turn then holds the whole conversation itself.
    ///
    /// ```
    /// # use mynah::{Engine, testing::Scripted};
    /// use mynah::{fork_run, log::MemoryLog};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = |text: &str| Engine::new(Scripted::says([text]));
    /// let log = MemoryLog::new();
    /// let run = engine("hi").chat("hello").record(&log).await?.run_id.unwrap();
    ///
    /// let branch = fork_run(&log, &*run, 1).system("Be formal.").message("hello there").await?;
    /// let otherwise = engine("good day").resume(&log, &*branch.run_id).await?;
    /// let said: Vec<_> = otherwise.thread.messages.iter().map(|message| message.text()).collect();
    /// assert_eq!(said, ["Be formal.", "hello there", "good day"]);
    /// # Ok(()) }
    /// ```
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.system = Some(text.into());
        self
    }

    /// Begins the branch with another text of the user: that of the last user message. Only a branch at record 1 can; after later
    /// records, [`Resume::message`](crate::Resume::message) adds one.
    pub fn message(mut self, text: impl Into<String>) -> Self {
        self.said = Some(text.into());
        self
    }

    /// Names another model in the first record, so that lists show the model that the branch is continued with. Only a branch at record 1
    /// does: later records hold answers of the model that is recorded.
    #[doc(hidden)]
    pub fn model(mut self, model: impl Into<ModelRef>) -> Self {
        self.model = Some(model.into().to_string()).filter(|_| self.at == 1);
        self
    }

    /// What the first record of the branch holds, if that is something else than the other run's.
    async fn beginning(&mut self) -> Result<Option<(Thread, Option<SessionLink>)>> {
        let (system, said) = (self.system.take(), self.said.take());
        let Some(option) = system.as_ref().map(|_| "system").or(said.as_ref().map(|_| "message"))
        else {
            return Ok(None);
        };
        if self.at != 1 {
            return Err(Error::invalid_option(option, "not_the_first_record").with_message(format!(
                "validation failed: {option}: what a run began with can be changed in a branch at record 1, and not at record {}",
                self.at
            )));
        }
        let Loaded { before, mut thread, mut about, .. } =
            Loaded::read(&*self.log, &self.run).await?;
        let mut messages = joined(&before, &thread).messages;
        if let Some(text) = system {
            messages = with_system(&messages, text);
        }
        if let Some(text) = said {
            let is_user = |(_, message): &(usize, &Arc<Message>)| message.role() == Role::User;
            let Some((place, _)) = messages.iter().enumerate().filter(is_user).last() else {
                return Err(Error::invalid_option("message", "no_user_message").with_message(
                    format!("validation failed: message: run {} begins without one", self.run),
                ));
            };
            let changed = |(at, message): (usize, &Arc<Message>)| match at == place {
                true => Arc::new(with_text(message, &text)),
                false => Arc::clone(message),
            };
            messages = messages.iter().enumerate().map(changed).collect();
        }
        let known = if messages.starts_with(&before) { before.len() } else { 0 };
        if let Some(link) = about.session.as_mut().filter(|_| known < before.len()) {
            link.previous = None;
        }
        thread.messages = messages.since(known).cloned().collect();
        Ok(Some((thread, about.session)))
    }

    async fn copy(mut self) -> Result<Forked> {
        let beginning = self.beginning().await?;
        let Self { log, run, at, world, id, link, model, agent, .. } = self;
        id.as_deref().map_or(Ok(()), check_run_id)?;
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
                    let mut about = about.map_or_else(About::default, |about| *about);
                    let agent = agent.clone().map(|agent| ("agent".to_owned(), agent.into()));
                    about.options.extend(agent);
                    let (thread, session) = beginning.clone().unwrap_or((thread, about.session));
                    let model = model.clone().or(about.model);
                    let about = About { parent: Some(parent.clone()), session, model, ..about };
                    Fact::RunStarted { thread, extent, about: Some(Box::new(about)) }
                }
                fact => fact,
            };
            recorder.push(&fact)?;
        }
        let run_id = recorder.run_id().clone();
        match poll_fn(|cx| recorder.poll_flush(cx)).await {
            Err(error) if IS_TAKEN.contains(&error.kind()) => {
                let message = format!(
                    "log error: run_exists: run {run_id} exists; a fork needs another run id"
                );
                Err(Error::log(LogReason::RunExists).with_message(message).with("run_id", &*run_id))
            }
            flushed => flushed.map(|()| Forked { run_id, parent }),
        }
    }
}

/// The errors of a log that has a run with the id of a new one.
const IS_TAKEN: [ErrorKind; 3] = [
    ErrorKind::Log(LogReason::Sealed),
    ErrorKind::Log(LogReason::HeadMismatch),
    ErrorKind::Log(LogReason::Leased),
];

/// A user message with another text. Its images stay.
fn with_text(message: &Message, text: &str) -> Message {
    let others = message.parts().iter().filter(|part| !matches!(part, Part::Text { .. }));
    let changed = Message::user_parts([Part::text(text)].into_iter().chain(others.cloned()));
    match message.name() {
        Some(name) => changed.with_name(name),
        None => changed,
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
