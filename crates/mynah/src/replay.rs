//! Performing a run again from its records.

use std::sync::Arc;

use mynah_data::{Error, Message, Messages, Result, Role, RunId};
use mynah_log::{Fact, Log};
use mynah_step::{ReplayCursor, Tool, mismatch};
use serde::Serialize;

use crate::{
    call::awaited,
    engine::Engine,
    loaded::Loaded,
    options::{Options, option_setters},
    prepare::{Part, joined},
    run::{Driver, RunStart},
    stream::EventStream,
};

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Replayed {
    /// Equal: a difference is an error, which [`Error::mismatch`](mynah_data::Error::mismatch) describes.
    pub status: ReplayStatus,
    /// How many records there are.
    pub records: u64,
}

mynah_data::words! {
    /// How a replayed run compares with its record.
    #[non_exhaustive]
    pub enum ReplayStatus {
        /// It did what is recorded.
        Equal => "equal",
    }
}

/// By its name in JSON.
impl PartialEq<&str> for ReplayStatus {
    fn eq(&self, name: &&str) -> bool {
        self.as_str() == *name
    }
}

/// Which tools of a replayed run are run again, and must have the same outcome. For scenarios, and for tests of replays themselves:
/// users have [`Replay::rerun_tools`] and [`Replay::rerun_tool`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tools {
    /// None: their records answer.
    #[default]
    Recorded,
    /// Those that are [idempotent](crate::Tool::idempotent).
    Idempotent,
    /// All of them, except calls that needed approval and tools whose [records answer](crate::Tool::recorded). Effects are repeated.
    All,
}

/// The tools that a replay runs again: a class of them, and some by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rerun {
    pub(crate) tools: Tools,
    pub(crate) named: Vec<String>,
}

impl Rerun {
    /// Returns whether the record of a call answers for its tool.
    pub(crate) fn is_answered(&self, tool: Option<&Tool>, was_approved: bool) -> bool {
        if tool.is_some_and(|tool| self.named.iter().any(|name| name == tool.name())) {
            return false;
        }
        let is_run = match self.tools {
            Tools::Recorded => false,
            Tools::Idempotent => tool.is_some_and(|tool| tool.spec().idempotent),
            Tools::All => true,
        };
        !is_run || was_approved || tool.is_some_and(Tool::is_recorded)
    }
}

/// A run to replay; see [`Engine::replay`].
///
/// Options that are set here are compared with those of the run, and its behaviour with what they lead to. A replay calls no model and
/// records nothing, so it has no options for that:
///
/// ```compile_fail,E0599
/// # fn example(engine: mynah::Engine, log: mynah::log::MemoryLog) {
/// let replay = engine.replay(&log, "r").durable_events();
/// # }
/// ```
#[must_use = "a replay does nothing unless it is awaited"]
pub struct Replay {
    /// None if the records describe the engine.
    engine: Option<Engine>,
    log: Arc<dyn Log>,
    run: RunId,
    rerun: Rerun,
    /// Instructions that replace the recorded ones.
    system: Option<String>,
    options: Options,
}

mynah_data::partial_debug! { Replay { run, options } }

option_setters!(Replay, self => self.options; model tools chat call data tool_code chat_code);

impl Engine {
    /// Performs a run again from its records, and compares every fact with the recorded one. The model is never called.
    ///
    /// Tools are not run either: their records answer. [`Replay::rerun_tools`] runs the idempotent ones again, and
    /// [`Replay::rerun_tool`] those that are named.
    ///
    /// Against a changed engine it reports the first difference: a test for prompts and tools. By
    /// default it compares the engine itself; [`Replay::allow_changed_engine`] compares its
    /// behaviour. The order of tools and prices are ignored.
    ///
    /// A tool that requests something from its context that is not recorded there, such as the time
    /// again, differs at once if nothing else can move the replay. Otherwise it differs after ten
    /// seconds: until then another tool may come first.
    ///
    /// ```
    /// use mynah::{Engine, testing::Scripted};
    /// use mynah::log::MemoryLog;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::says(["hi"]));
    ///
    /// let log = std::sync::Arc::new(MemoryLog::new());
    /// let result = engine.chat("hello").record(&log).await?;
    /// let replayed = engine.replay(&log, result.run_id.unwrap().as_ref()).await?;
    /// assert_eq!(replayed.status, "equal");
    /// # Ok(()) }
    /// ```
    pub fn replay<L: Log + Clone>(&self, log: &L, run: impl AsRef<str>) -> Replay {
        let alone = replay_run(log, run);
        Replay { engine: Some(self.clone()), ..alone }
    }
}

/// Replays a run from its records alone: they have the engine's tools, params and options, and
/// answer for the model and every tool. The replay is equal if this version of the loop produces
/// the same records.
///
/// To run tools again, use [`Engine::replay`]: with [`rerun_tools`](Replay::rerun_tools) this replay is refused.
///
/// Code of the run (an error policy, an executor, an encoder) is not called: its outcome is
/// recorded. Its `halt_when` returns what it returned.
///
/// ```
/// use mynah::{Engine, testing::Scripted};
/// use mynah::log::MemoryLog;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::says(["hi"]));
///
/// let log = std::sync::Arc::new(MemoryLog::new());
/// let result = engine.chat("hello").record(&log).await?;
/// let replayed = mynah::replay_run(&log, result.run_id.unwrap().as_ref()).await?;
/// assert_eq!(replayed.records, 5);
/// # Ok(()) }
/// ```
pub fn replay_run<L: Log + Clone>(log: &L, run: impl AsRef<str>) -> Replay {
    Replay::alone(Arc::new(log.clone()), run.as_ref().into(), Options::new())
}

impl Replay {
    pub(crate) fn alone(log: Arc<dyn Log>, run: RunId, options: Options) -> Self {
        let (engine, rerun, system) = (None, Rerun::default(), None);
        Self { engine, log, run, rerun, system, options }
    }

    /// Runs the idempotent tools again and compares their outcomes with the records. Tools that are not idempotent, and calls that a
    /// person approved, are run again only if [named](Self::rerun_tool).
    ///
    /// ```
    /// use mynah::{Engine, Tool, log::MemoryLog, testing::Scripted};
    /// use serde_json::json;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let model = Scripted::new([
    /// #     json!([{"tool_call": {"id": "c0", "name": "price"}}, {"finish": "tool_calls"}]),
    /// #     json!([{"text": "Two."}, {"finish": "stop"}]),
    /// # ])?;
    ///
    /// let price = |cents: u32| Tool::new("price", "", json!({})).idempotent(1).handler(move |_, _| async move { json!(cents) });
    /// let log = MemoryLog::new();
    /// let run = Engine::new(model.clone()).tool(price(2)).chat("What is it?").record(&log).await?.run_id.unwrap();
    ///
    /// let changed = Engine::new(model).tool(price(3));
    /// changed.replay(&log, &*run).await?;
    /// assert!(changed.replay(&log, &*run).rerun_tools().await.is_err());
    /// # Ok(()) }
    /// ```
    pub fn rerun_tools(self) -> Self {
        self.replay_tools(Tools::Idempotent)
    }

    /// Runs this tool again, whether or not it is idempotent or needed approval. Several may be named.
    pub fn rerun_tool(mut self, name: impl Into<String>) -> Self {
        self.rerun.named.push(name.into());
        self
    }

    /// Which tools are run again. By default none.
    #[doc(hidden)]
    pub fn replay_tools(mut self, tools: Tools) -> Self {
        self.rerun.tools = tools;
        self
    }

    /// Compares with other instructions: they replace the first system message, or precede all
    /// others. In a later turn of a session these are places in the whole conversation, and the run
    /// has only its new messages.
    ///
    /// ```
    /// use mynah::{Engine, Thread, log::MemoryLog, testing::Scripted};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::says(["hi"]));
    ///
    /// let log = MemoryLog::new();
    /// let thread = Thread::new().with_system("Be brief.").with_user("hello");
    /// let run = engine.chat(thread).record(&log).await?.run_id.unwrap();
    ///
    /// let difference = engine.replay(&log, &*run).system("Be kind.").await.unwrap_err();
    /// assert_eq!(difference.differences()[0].path, "thread.messages.0.content");
    /// # Ok(()) }
    /// ```
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.system = Some(text.into());
        self
    }

    /// Ignores differences in the recorded model, tools, params and options, and reports the first
    /// difference in behaviour.
    ///
    /// ```
    /// use mynah::{Engine, log::MemoryLog, testing::Scripted};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::says(["hi"]));
    ///
    /// let log = MemoryLog::new();
    /// let run = engine.chat("hello").record(&log).await?.run_id.unwrap();
    /// let patient = engine.clone().max_turns(50);
    /// assert!(patient.replay(&log, &*run).await.is_err());
    /// assert_eq!(patient.replay(&log, &*run).allow_changed_engine().await?.status, "equal");
    /// # Ok(()) }
    /// ```
    pub fn allow_changed_engine(mut self) -> Self {
        self.options.allow_changed = true;
        self
    }

    /// Adds options that the records do not hold: functions, and tools of the call. A log among them is ignored: a replay records
    /// nothing.
    pub fn options(mut self, options: Options) -> Self {
        self.options = self.options.overlay(options);
        self
    }

    /// The run's events again, as they came. The first difference ends them with an `Err`.
    ///
    /// The first poll reads the run. The stream is refused if the run does not exist or was changed.
    pub fn stream(mut self) -> EventStream {
        let cancel = self.options.own_cancel();
        let begun = async move {
            let loaded = Loaded::to_compare(self.log.as_ref(), &self.run).await?;
            self.perform(loaded)
        };
        EventStream::starting(Box::pin(begun), cancel)
    }

    pub(crate) fn perform(mut self, mut loaded: Loaded) -> Result<Driver> {
        let reruns = self.rerun.tools != Tools::Recorded || !self.rerun.named.is_empty();
        if reruns && self.engine.is_none() {
            return Err(Error::invalid_option("rerun_tools", "no_engine").with_message(
                "validation failed: rerun_tools: the records of a run hold no tools; use Engine::replay",
            ));
        }
        if let Some(engine) = &self.engine {
            let tools = engine.resolve_tools(&self.options);
            let is_there = |name: &&String| tools.iter().any(|tool| tool.name() == name.as_str());
            if let Some(unknown) = self.rerun.named.iter().find(|name| !is_there(name)) {
                let names: Vec<_> = tools.iter().map(|tool| format!("{:?}", tool.name())).collect();
                return Err(Error::invalid_option("rerun_tool", "unknown_tool").with_message(format!(
                    "validation failed: rerun_tool: there is no tool {unknown:?}; the tools are {}",
                    names.join(", ")
                )));
            }
        }
        let mut whole = None;
        if let Some(system) = self.system.take() {
            // What the runs before it hold is a part of what it was asked.
            let conversation = joined(&loaded.before, &loaded.thread);
            let changed = with_system(&conversation.messages, system);
            if !changed.starts_with(&loaded.before) {
                loaded.before = Messages::new();
                whole = Some(conversation);
            }
            loaded.thread.messages = changed.since(loaded.before.len()).cloned().collect();
        }
        let (earlier, last) = loaded.stretches();
        // These settings apply to the last engine. Observers see all of them.
        let mut watching = Options::new();
        watching.on_event.clone_from(&self.options.on_event);
        let earlier = earlier.into_iter().map(|ran| loaded.part(ran, &watching));
        let earlier = earlier.collect::<Result<Vec<Part>>>()?;
        let mut part = match &self.engine {
            Some(engine) => loaded.plan(engine, last, &self.options)?.prepare()?,
            None => loaded.part(last, &self.options)?,
        };
        part.setup.rerun = self.rerun.clone();
        if self.options.allow_changed {
            part.about = Some(Box::new(last.about.clone()));
        }
        // The first record is compared when the run begins again.
        if !earlier.is_empty()
            && let Some(difference) = loaded.difference(part.about.as_deref())
        {
            return Err(difference);
        }
        let about = earlier.first().unwrap_or(&part).about.clone();
        // Its first record has only what is new, and what differs stands before that: one whole is compared with the other.
        if let Some(whole) = whole {
            let begun = |thread, about| Fact::RunStarted { thread, extent: loaded.extent, about };
            let recorded = begun(whole, Some(loaded.about.clone()));
            let produced = begun(loaded.thread.clone(), about);
            return Err(mismatch(&loaded.run, 1, Some(&recorded), Some(&produced)));
        }
        let earlier = earlier.into_iter().map(|part| part.setup).collect();
        let Loaded { run, records, before, thread, extent, .. } = loaded;
        let cancel = self.options.cancel_handle.as_ref();
        let beginning = RunStart { before, thread, extent, about };
        let records = (ReplayCursor::new(run, records), self.options.allow_changed);
        Ok(Driver::replay(earlier, part.setup, beginning, cancel, records))
    }

    async fn compare(self) -> Result<Replayed> {
        let loaded = Loaded::to_compare(self.log.as_ref(), &self.run).await?;
        let (records, refusal) = (loaded.records.len() as u64, loaded.refusal());
        match EventStream::new(self.perform(loaded)).drain(drop).await {
            // A run that its provider refused is equal when it is refused the same way.
            Err(error) if Some(&error) != refusal.as_ref() => Err(error),
            _ => Ok(Replayed { status: ReplayStatus::Equal, records }),
        }
    }
}

/// A conversation with other instructions: they replace the first system message, or precede all others.
pub(crate) fn with_system(messages: &Messages, text: String) -> Messages {
    let instructions = Arc::new(Message::system(text));
    match messages.iter().position(|message| message.role() == Role::System) {
        Some(place) => {
            let (old, new) = (messages.iter().take(place), messages.since(place + 1));
            old.chain([&instructions]).chain(new).cloned().collect()
        }
        None => [&instructions].into_iter().chain(messages.iter()).cloned().collect(),
    }
}

awaited! { Replay => Replayed, replay => replay.compare().await }
