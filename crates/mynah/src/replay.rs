//! Performing a run again from its records, going on with one that has no end, and branching off.

use std::{
    future::{IntoFuture, poll_fn},
    sync::Arc,
    time::{Duration, SystemTime},
};

use mynah_data::{
    ChatResult, Error, Event, HaltReason, LogReason, Message, Result, SessionReason, Thread,
};
use mynah_log::{About, Chain, Extent, Fact, Log, Parent, Record, Totals, Verifier};
use mynah_step::{BoxFuture, Recorded, Recorder, Tape, World};
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

use crate::{
    engine::Engine,
    options::{Options, option_setters},
    prepare::{Again, Input, prepare_on},
    run::OnUncertain,
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
    engine: Engine,
    log: Arc<dyn Log>,
    run: String,
    tools: Tools,
    options: Options,
}

option_setters!(Replay, self => self.options);

impl Engine {
    /// Performs a run again from its records, and compares every fact with the recorded one. The model is never called.
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
            engine: self.clone(),
            log: Arc::new(log.clone()),
            run: run.into(),
            tools: Tools::default(),
            options: Options::new(),
        }
    }
}

impl Replay {
    /// Whether tools are run again or answered for by their records.
    pub fn replay_tools(mut self, tools: Tools) -> Self {
        self.tools = tools;
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
        let loaded = Loaded::read(self.log.as_ref(), &self.run).await?;
        Ok(self.perform(loaded))
    }

    fn perform(self, loaded: Loaded) -> EventStream {
        let Loaded { records, thread, extent, about, .. } = loaded;
        let recorded = Recorded::new(self.run.into(), records);
        let options = Options::from_json(Value::Object(about.options)).unwrap_or_default();
        EventStream::new(prepare_on(
            &self.engine,
            Input::Thread(thread),
            options.overlay(self.options),
            extent,
            Tape::Replaying(Box::new(recorded)),
            Again {
                request_id: Some(about.request_id),
                parent: about.parent,
                recorded_tools: self.tools == Tools::Recorded,
                ..Again::default()
            },
        ))
    }

    async fn compare(self) -> Result<Replayed> {
        let loaded = Loaded::read(self.log.as_ref(), &self.run).await?;
        let (records, refusal) = (loaded.records.len() as u64, refusal(&loaded.records));
        match self.perform(loaded).drain(drop).await {
            // A run that its provider refused is equal when it is refused the same way.
            Err(error) if Some(&error) != refusal.as_ref() => Err(error),
            _ => Ok(Replayed { status: "equal", records }),
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

/// A run to go on with; see [`Engine::resume`].
#[must_use = "a run does not go on unless it is awaited or streamed"]
pub struct Resume {
    engine: Engine,
    log: Arc<dyn Log>,
    run: String,
    message: Option<Message>,
    tool_results: Vec<(String, String)>,
    on_uncertain: OnUncertain,
    options: Options,
}

option_setters!(Resume, self => self.options);

/// How long a resumed run is nobody else's.
const LEASE: Duration = Duration::from_secs(60);

impl Engine {
    /// Goes on with a run that has no end: at the exact point where its process ended, or where it waits. Completed model
    /// calls and tools are not repeated. The engine must be the one that the run began with.
    ///
    /// ```
    /// # use mynah::{Engine, Tool, ToolOutcome, testing::Scripted};
    /// # use serde_json::json;
    /// use mynah::log::MemoryLog;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let engine = Engine::new(Scripted::new([
    /// #     json!([{"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"}]),
    /// #     json!([{"text": "Two it is."}, {"finish": "stop"}]),
    /// # ])?).tool(Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("How many?")));
    /// let log = std::sync::Arc::new(MemoryLog::new());
    /// let waiting = engine.chat("order").record(&log).await?;
    /// assert_eq!(waiting.pending_question.as_deref(), Some("How many?"));
    /// let done = engine.resume(&log, waiting.run_id.unwrap().as_ref()).answer("two").await?;
    /// assert_eq!(done.text(), "Two it is.");
    /// # Ok(()) }
    /// ```
    pub fn resume<L: Log + Clone>(&self, log: &L, run: impl Into<String>) -> Resume {
        Resume {
            engine: self.clone(),
            log: Arc::new(log.clone()),
            run: run.into(),
            message: None,
            tool_results: Vec::new(),
            on_uncertain: OnUncertain::default(),
            options: Options::new(),
        }
    }

    /// Copies a run up to a record into a new run, which can be resumed to go on differently.
    ///
    /// # Errors
    /// A run that is not there or not what it was, or a record that it does not have.
    pub async fn fork<L: Log + Clone>(&self, log: &L, run: &str, at: u64) -> Result<Forked> {
        let loaded = Loaded::read(log, run).await?;
        let kept = loaded.records.iter().take_while(|(record, _)| record.seq() <= at);
        let kept: Vec<_> = kept.filter(|(_, fact)| !matches!(fact, Fact::Sealed(_))).collect();
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

impl Resume {
    /// What a person answered.
    pub fn answer(self, text: impl Into<String>) -> Self {
        self.message(Message::user(text))
    }

    /// What a person answered, as a message.
    pub fn message(mut self, message: Message) -> Self {
        self.message = Some(message);
        self
    }

    /// What came of a call that the run waits for.
    pub fn tool_result(mut self, id: impl Into<String>, content: impl Into<Value>) -> Self {
        let id = id.into();
        let message = Message::tool_result(&id, content);
        self.tool_results.push((id, message.text().into_owned()));
        self
    }

    /// Adds options that the records do not hold: functions, and tools of the call.
    pub fn options(mut self, options: Options) -> Self {
        self.options = self.options.overlay(options);
        self
    }

    /// What happens with a tool that was announced, has no outcome, and may do harm if it is run twice.
    pub fn on_uncertain(mut self, policy: OnUncertain) -> Self {
        self.on_uncertain = policy;
        self
    }

    /// The run as it goes on. What was told before is not told again.
    ///
    /// # Errors
    /// A run that is not there, not what it was, has ended, is in other hands, or waits for something else.
    pub async fn stream(self) -> Result<EventStream> {
        let loaded = Loaded::read(self.log.as_ref(), &self.run).await?;
        self.check(&loaded)?;
        let world = Arc::clone(&self.engine.0.world);
        let lease =
            self.log.lease(&self.run, &world.new_id(), LEASE, nanos(world.as_ref())).await?;
        let active = loaded.active();
        let Loaded { records, thread, extent, about, chain, totals } = loaded;
        let recorder = Recorder::after(self.log, world, chain, totals)
            .metered(self.engine.0.metrics.clone())
            .with_lease(lease);
        let recorded = Recorded::new(self.run.into(), records).then(recorder);
        let options = Options::from_json(Value::Object(about.options)).unwrap_or_default();
        let resumption =
            Fact::Resumed { message: self.message.map(Arc::new), tool_results: self.tool_results };
        Ok(EventStream::new(prepare_on(
            &self.engine,
            Input::Thread(thread),
            options.overlay(self.options),
            extent,
            Tape::Replaying(Box::new(recorded)),
            Again {
                request_id: Some(about.request_id),
                parent: about.parent,
                recorded_tools: true,
                on_uncertain: self.on_uncertain,
                resumption: Some(resumption),
                pricing: Some(about.pricing),
                active,
            },
        )))
    }

    /// Whether the run can go on with what was given.
    fn check(&self, loaded: &Loaded) -> Result<()> {
        let refused = |why: &str| {
            Err(Error::session(SessionReason::InvalidStatus)
                .with_message(format!("session error: invalid_status: run {}: {why}", self.run))
                .with("operation", "resume")
                .with("run_id", self.run.as_str()))
        };
        match loaded.records.last().map(|(_, fact)| fact) {
            Some(Fact::Sealed(_)) => Err(Error::log(LogReason::Sealed)
                .with_message(format!(
                    "log error: sealed: run {} has ended; fork it to go on",
                    self.run
                ))
                .with("run_id", self.run.as_str())),
            Some(Fact::Suspended(end)) => match end.reason {
                HaltReason::AskUser if self.message.is_none() => refused("it waits for an answer"),
                HaltReason::ManualToolCalls if self.tool_results.is_empty() => {
                    refused("it waits for tool results")
                }
                HaltReason::UncertainTools
                    if self.tool_results.is_empty()
                        && self.on_uncertain == OnUncertain::Suspend =>
                {
                    refused(
                        "it waits for what came of its uncertain tools; give results, or say rerun or fail",
                    )
                }
                _ => Ok(()),
            },
            _ if self.message.is_some() || !self.tool_results.is_empty() => {
                refused("it does not wait for anything")
            }
            _ => Ok(()),
        }
    }
}

impl IntoFuture for Resume {
    type Output = Result<ChatResult>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let mut completed = None;
            let run = self.stream().await?.drain(|event| {
                if let Event::ChatCompleted { result } = event {
                    completed = Some(*result);
                }
            });
            run.await?;
            completed.ok_or_else(|| Error::log(LogReason::Unavailable))
        })
    }
}

fn nanos(world: &dyn World) -> i64 {
    let since = world.now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// A run as it was kept, verified.
struct Loaded {
    records: Vec<(Record, Fact)>,
    thread: Thread,
    extent: Extent,
    about: About,
    chain: Chain,
    totals: Totals,
}

impl Loaded {
    async fn read(log: &dyn Log, run: &str) -> Result<Self> {
        const PAGE: usize = 256;
        let mut verifier = Verifier::new(run);
        let mut records = Vec::new();
        loop {
            let page = log.read(run, records.len() as u64 + 1, PAGE).await?;
            if page.is_empty() {
                break;
            }
            for record in page {
                verifier.check(&record)?;
                let fact =
                    record.fact().ok().flatten().ok_or_else(|| unreadable(run, record.seq()))?;
                records.push((record, fact));
            }
        }
        match records.first() {
            Some((_, Fact::RunStarted { thread, extent, about: Some(about) })) => {
                let (thread, extent, about) = (thread.clone(), *extent, (**about).clone());
                let (chain, totals) = verifier.into_chain();
                Ok(Self { records, thread, extent, about, chain, totals })
            }
            Some(_) => Err(unreadable(run, 1)),
            None => Err(Error::log(LogReason::RunNotFound)
                .with_message(format!("log error: run_not_found: no run has the id {run:?}"))
                .with("run_id", run)),
        }
    }

    /// How long the run was active: not from where a process ended, or the run waited, until it went on.
    fn active(&self) -> Duration {
        let spans = self.records.windows(2).filter_map(|pair| match pair {
            [(_, _), (_, Fact::Resumed { .. })] => None,
            [(from, _), (to, _)] => {
                u64::try_from(to.envelope().ts.saturating_sub(from.envelope().ts)).ok()
            }
            _ => None,
        });
        Duration::from_nanos(spans.fold(0, u64::saturating_add))
    }
}

fn unreadable(run: &str, seq: u64) -> Error {
    Error::log(LogReason::Corrupt)
        .with_message(format!(
            "log error: run {run}, record {seq}: what is needed to perform it again was taken away"
        ))
        .with("run_id", run)
        .with("seq", seq)
}

/// The error of a run whose first model call was refused, or that is not told in a result.
fn refusal(records: &[(Record, Fact)]) -> Option<Error> {
    let answered = records.iter().any(|(_, fact)| matches!(fact, Fact::AssistantCompleted { .. }));
    let end = records.iter().rev().find_map(|(_, fact)| match fact {
        Fact::Failed(end) => Some(end),
        _ => None,
    })?;
    let refused = !answered || end.reason == HaltReason::BudgetExceeded;
    Error::deserialize(end.metadata.get("error").filter(|_| refused)?).ok()
}
