//! Performing a run again from its records, and branching off.

use std::{
    future::{IntoFuture, poll_fn},
    sync::Arc,
};

use mynah_data::{Error, Message, Messages, Result, Role, Thread};
use mynah_log::{About, Fact, Log, Parent};
use mynah_step::{BoxFuture, Recorded, Recorder, Tape};
use serde::Serialize;
use serde_json::Value;

use crate::{
    engine::Engine,
    loaded::Loaded,
    options::{Options, option_setters},
    prepare::{Input, Origin, prepare_on},
    stream::EventStream,
};

/// What a run that was performed again came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Replayed {
    /// `equal`: anything else is an error.
    pub status: &'static str,
    /// How many records there are.
    pub records: u64,
}

/// Whether the tools of a run that is performed again are run again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tools {
    /// They are run, and must come to the same.
    #[default]
    Rerun,
    /// Their records answer for them.
    Recorded,
}

/// A run to be performed again; see [`Engine::replay`].
#[must_use = "a replay does nothing unless it is awaited"]
pub struct Replay {
    /// None where the records tell which engine it was.
    engine: Option<Engine>,
    log: Arc<dyn Log>,
    run: String,
    tools: Tools,
    change: Option<Change>,
    options: Options,
}

/// A conversation that is to begin otherwise.
enum Change {
    Thread(Thread),
    System(String),
}

option_setters!(Replay, self => self.options);

impl Engine {
    /// Performs a run again from its records, and compares every fact with the recorded one. The model is never called; tools
    /// are run again, unless [`Replay::replay_tools`] or the tool itself says that its records answer.
    ///
    /// Against a changed engine it tells the first thing that would be different: a test for prompts and tools.
    ///
    /// ```
    /// # use mynah::{Engine, testing::Scripted};
    /// # use serde_json::json;
    /// use mynah::log::MemoryLog;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::new([json!([{"text": "hi"}, {"finish": "stop"}])])?);
    /// let log = std::sync::Arc::new(MemoryLog::new());
    /// let result = engine.chat("hello").record(&log).await?;
    /// let replayed = engine.replay(&log, result.run_id.unwrap().as_ref()).await?;
    /// assert_eq!(replayed.status, "equal");
    /// # Ok(()) }
    /// ```
    pub fn replay<L: Log + Clone>(&self, log: &L, run: impl Into<String>) -> Replay {
        Replay {
            engine: Some(self.clone()),
            log: Arc::new(log.clone()),
            run: run.into(),
            tools: Tools::default(),
            change: None,
            options: Options::new(),
        }
    }
}

/// Performs a run again from its records alone: they tell the engine's tools, params and options, and answer for the model
/// and every tool. It is equal if this version of the loop makes the same of it.
///
/// What a run had of code and its records cannot hold (an error policy, an executor) is not asked again; its
/// `halt_when` is taken to say what it said.
///
/// ```
/// # use mynah::{Engine, testing::Scripted};
/// # use serde_json::json;
/// use mynah::log::MemoryLog;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::new([json!([{"text": "hi"}, {"finish": "stop"}])])?);
/// let log = std::sync::Arc::new(MemoryLog::new());
/// let result = engine.chat("hello").record(&log).await?;
/// let replayed = mynah::replay_run(&log, result.run_id.unwrap().as_ref()).await?;
/// assert_eq!(replayed.records, 5);
/// # Ok(()) }
/// ```
pub fn replay_run<L: Log + Clone>(log: &L, run: impl Into<String>) -> Replay {
    Replay {
        engine: None,
        log: Arc::new(log.clone()),
        run: run.into(),
        tools: Tools::Recorded,
        options: Options::new(),
        change: None,
    }
}

impl Replay {
    /// Whether tools are run again or answered for by their records.
    pub fn replay_tools(mut self, tools: Tools) -> Self {
        self.tools = tools;
        self
    }

    /// Compares with what this conversation would have begun.
    pub fn thread(mut self, thread: impl Into<Thread>) -> Self {
        self.change = Some(Change::Thread(thread.into()));
        self
    }

    /// Compares with what other instructions would have begun: in place of the first system message, or before all others.
    ///
    /// ```
    /// # use mynah::{Engine, Thread, log::MemoryLog, testing::Scripted};
    /// # use serde_json::json;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::new([json!([{"text": "hi"}, {"finish": "stop"}])])?);
    /// let log = MemoryLog::new();
    /// let thread = Thread::new().with_system("Be brief.").with_user("hello");
    /// let run = engine.chat(thread).record(&log).await?.run_id.unwrap();
    ///
    /// let difference = engine.replay(&log, &*run).system("Be kind.").await.unwrap_err();
    /// assert_eq!(difference.metadata()["diff"][0]["path"], "thread.messages.0.content");
    /// # Ok(()) }
    /// ```
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.change = Some(Change::System(text.into()));
        self
    }

    /// Adds options that the records do not hold: functions, and tools of the call.
    pub fn options(mut self, options: Options) -> Self {
        self.options = self.options.overlay(options);
        self
    }

    /// The run's events again, as they came. The first difference ends them with an `Err`.
    ///
    /// # Errors
    /// A run that is not there, or not what it was.
    pub async fn stream(self) -> Result<EventStream> {
        let loaded = Loaded::to_compare(self.log.as_ref(), &self.run).await?;
        Ok(self.perform(loaded))
    }

    fn perform(self, loaded: Loaded) -> EventStream {
        // Without an engine there is none that could be another one.
        let allow_changed = self.engine.is_none();
        let (engine, functions) = match self.engine {
            Some(engine) => (engine, Options::new()),
            None => (loaded.engine(), loaded.functions()),
        };
        let Loaded { run, records, mut before, mut thread, extent, about, .. } = loaded;
        if let Some(change) = self.change {
            // What the runs before it hold is a part of what it was asked.
            let mut whole = before.clone();
            whole.extend(thread.messages.iter().cloned());
            let changed = change.of(whole);
            if !changed.starts_with(&before) {
                before = Messages::new();
            }
            thread.messages = changed.since(before.len()).cloned().collect();
        }
        let recorded = Recorded::new(run.into(), records);
        let options = Options::from_json(Value::Object(about.options.clone())).unwrap_or_default();
        EventStream::new(prepare_on(
            &engine,
            Input::Thread(thread),
            options.overlay(functions).overlay(self.options),
            extent,
            Tape::Replaying(Box::new(recorded)),
            Origin {
                before,
                recorded: Some(about),
                allow_changed,
                recorded_tools: self.tools == Tools::Recorded,
                ..Origin::default()
            },
        ))
    }

    async fn compare(self) -> Result<Replayed> {
        let loaded = Loaded::to_compare(self.log.as_ref(), &self.run).await?;
        let (records, refusal) = (loaded.records.len() as u64, loaded.refusal());
        match self.perform(loaded).drain(drop).await {
            // A run that its provider refused is equal when it is refused the same way.
            Err(error) if Some(&error) != refusal.as_ref() => Err(error),
            _ => Ok(Replayed { status: "equal", records }),
        }
    }
}

impl Change {
    fn of(self, messages: Messages) -> Messages {
        let instructions = match self {
            Self::Thread(thread) => return thread.messages,
            Self::System(text) => Arc::new(Message::system(text)),
        };
        match messages.iter().position(|message| message.role() == Role::System) {
            Some(place) => {
                let (old, new) = (messages.iter().take(place), messages.since(place + 1));
                old.chain([&instructions]).chain(new).cloned().collect()
            }
            None => [&instructions].into_iter().chain(messages.iter()).cloned().collect(),
        }
    }
}

impl IntoFuture for Replay {
    type Output = Result<Replayed>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.compare())
    }
}

impl Engine {
    /// Copies a run up to a record into a new run, which can be resumed to go on differently. A seal cannot be copied, as
    /// nothing can follow it; what ends there can be branched at any record before. A branch of a session's turn goes on
    /// from the same turns before, and is not listed among the session's own.
    ///
    /// # Errors
    /// A run that is not there or not what it was, or a record that it does not have.
    pub async fn fork<L: Log + Clone>(&self, log: &L, run: &str, at: u64) -> Result<Forked> {
        let loaded = Loaded::read(log, run).await?;
        let end = loaded.records.last().filter(|(_, fact)| matches!(fact, Fact::Sealed(_)));
        if end.is_some_and(|(seal, _)| seal.seq() == at) {
            return Err(Error::invalid_option("at", "is_the_seal").with_message(format!(
                "validation failed: at: record {at} is the seal of run {run}, and nothing can follow it; fork at a record before"
            )));
        }
        let kept = loaded.records.iter().take_while(|(record, _)| record.seq() <= at);
        let kept: Vec<_> = kept.collect();
        let Some((last, _)) = kept.last().filter(|(record, _)| record.seq() == at) else {
            return Err(Error::invalid_option("at", "no_such_record"));
        };
        let parent = Parent { run_id: run.to_owned(), seq: at, hash: last.hash() };
        let world = &self.0.world;
        let log: Arc<dyn Log> = Arc::new(log.clone());
        let mut recorder = Recorder::new(log, Arc::clone(world), world.new_run_id());
        for (_, fact) in kept {
            match fact.clone() {
                Fact::RunStarted { thread, extent, about } => {
                    let about = about
                        .map(|about| Box::new(About { parent: Some(parent.clone()), ..*about }));
                    recorder.push(&Fact::RunStarted { thread, extent, about })?;
                }
                fact => recorder.push(&fact)?,
            }
        }
        poll_fn(|cx| recorder.poll_flush(cx)).await?;
        Ok(Forked { run_id: recorder.run_id().clone(), parent })
    }
}

/// A run that was branched off another.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Forked {
    /// The new run.
    pub run_id: Arc<str>,
    /// Where it was branched off.
    pub parent: Parent,
}
