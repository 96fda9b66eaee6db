//! What a tool may know and do.

use std::{any::Any, fmt, sync::Arc, time::SystemTime};

use mynah_data::{Budget, Messages, Metadata, Result, RunId, ToolCall};
use mynah_log::{Fact, Hash, Log};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::Span;

use crate::{Journal, SideEffectErrors, World, effects::Effects};

/// The context of a tool call: facts about the call, and access to time, randomness and side
/// effects. Those are recorded, and the same in a replay. Cheap to clone.
///
/// ```
/// # mod mynah { pub use {mynah_data::Error, mynah_step::*}; }
/// use mynah::Tool;
/// use serde_json::json;
///
/// let roll = Tool::new("roll", "Rolls a die", json!({"type": "object"}))
///     .handler(async |_, context| {
///         let rolled = context.random().await? % 6 + 1;
///         let page = context.side_effect("fetch", async { Ok::<_, std::io::Error>("<html>".to_owned()) }).await?;
///         Ok::<_, mynah::Error>(json!({"rolled": rolled, "bytes": page.len()}))
///     });
/// # assert_eq!(roll.name(), "roll");
/// ```
///
/// A [blocking](crate::Tool::blocking) tool waits for them with `tokio::runtime::Handle::current().block_on(…)`.
///
/// A tool whose effect must happen once, however often it is attempted, gives the service that it calls its
/// [`idempotency_key`](Self::idempotency_key).
///
/// # Logging
///
/// A call runs in a `tracing` span of its own, `mynah.tool`, with the fields `tool`, `call` and
/// `run_id`. The tool's log output is bound to its run automatically. Tasks and threads that it
/// spawns join with [`span`](Self::span):
///
/// ```
/// # use mynah_step as mynah;
/// use mynah::Tool;
/// use serde_json::json;
/// use tracing::Instrument as _;
///
/// let index = Tool::new("index", "Indexes a page", json!({"type": "object"})).handler(async |_, context| {
///     tracing::info!("fetching");
///     let rest = async { tracing::info!("indexing") };
///     let task = tokio::spawn(rest.instrument(context.span()));
///     json!(task.await.is_ok())
/// });
/// # assert_eq!(index.name(), "index");
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct ToolContext {
    /// The caller's own data: that of the call, else of the session, else of the engine.
    pub context: Arc<Metadata>,
    /// The session's id.
    pub session_id: Option<Arc<str>>,
    /// The id of the chat, step or turn.
    pub request_id: Arc<str>,
    /// The call itself.
    pub call: Arc<ToolCall>,
    /// The engine that runs the call. `mynah::Engine::of` returns it.
    #[doc(hidden)]
    pub engine: Option<Arc<dyn Any + Send + Sync>>,
    pub(crate) effects: Effects,
    /// The run, and which of its turns asked for the call; see [`Self::in_run`].
    run_id: Option<RunId>,
    turn: u64,
    /// The run whose id the key is made of, if it is not this one.
    pub(crate) root: Option<RunId>,
    /// The span of the call, once it runs.
    pub(crate) span: Span,
    /// How many attempts of the call failed in processes that ended.
    pub(crate) failed: u32,
    /// What the call continues with, if it asked a person.
    continuation: Option<Arc<Continuation>>,
    /// What is left of the run's budget.
    budget_left: Option<Arc<Budget>>,
    /// The conversation up to the call.
    conversation: Messages,
    /// The receiver of its progress.
    on_progress: Option<OnProgress>,
    /// Whether the run is cancelled, where that ends its tools. None in a run of an engine, which drops them.
    pub(crate) cancelled: Option<watch::Receiver<bool>>,
}

/// How far a call has come.
///
/// ```
/// # use mynah_step as mynah;
/// use mynah::ToolProgress;
///
/// let progress = ToolProgress::new(3.0).total(4.0).message("page 3");
/// assert_eq!(progress.total, Some(4.0));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ToolProgress {
    /// How far it has come. It rises from report to report.
    pub progress: f64,
    /// How far it will have come at the end, if that is known.
    pub total: Option<f64>,
    /// What it does now, for people.
    pub message: Option<String>,
}

impl ToolProgress {
    /// It has come this far.
    pub fn new(progress: f64) -> Self {
        Self { progress, ..Self::default() }
    }

    mynah_data::setters! { self => self;
        /// The same, with how far it will have come at the end.
        total(total: impl Into<Option<f64>>) = total.into();

        /// The same, with what it does now.
        message(message: impl Into<String>) = Some(message.into());
    }
}

type OnProgress = Arc<dyn Fn(&ToolProgress) + Send + Sync>;

/// What a call continues with that asked a person by
/// [`ToolOutcome::ask_and_continue`](mynah_data::ToolOutcome::ask_and_continue).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Continuation {
    /// The state that the call gave with its question.
    pub state: Value,
    /// The answer to its question; none if it waited for a time, by [`ToolOutcome::later_with`](mynah_data::ToolOutcome::later_with).
    pub answer: Option<String>,
}

impl Continuation {
    /// With this state, and the answer if there is one.
    pub fn new(state: Value, answer: Option<String>) -> Self {
        Self { state, answer }
    }
}

/// An attempt of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Try {
    /// Which one it is, from 1.
    pub number: u32,
    /// How many before it failed; the others were cut off with their process.
    pub failed: u32,
}

impl Try {
    /// The first one.
    pub const FIRST: Self = Self::new(1, 0);

    /// The attempt of this number, from 1, after so many that failed.
    pub const fn new(number: u32, failed: u32) -> Self {
        Self { number, failed }
    }
}

impl ToolContext {
    /// For a call in this world, in an unrecorded run, without further data.
    pub fn new(call: impl Into<Arc<ToolCall>>, world: Arc<dyn World>) -> Self {
        Self {
            context: Arc::default(),
            session_id: None,
            request_id: Arc::from(""),
            call: call.into(),
            engine: None,
            effects: Effects::unkept(world),
            run_id: None,
            turn: 0,
            root: None,
            span: Span::none(),
            failed: 0,
            continuation: None,
            budget_left: None,
            conversation: Messages::new(),
            on_progress: None,
            cancelled: None,
        }
    }

    /// The same, with what becomes of side effects that fail.
    #[doc(hidden)]
    pub fn side_effect_errors(mut self, errors: SideEffectErrors) -> Self {
        self.effects.errors = errors;
        self
    }

    /// The same for a call.
    #[doc(hidden)]
    pub fn for_call(mut self, call: Arc<ToolCall>) -> Self {
        self.call = call;
        self
    }

    /// The same for an attempt of its call in a recorded or replayed run.
    #[doc(hidden)]
    pub fn kept(mut self, journal: Arc<Journal>, attempt: Try, replaying: bool) -> Self {
        self.effects.journal = Some(journal);
        self.effects.call = Some(Arc::clone(&self.call));
        self.effects.begin(attempt.number);
        self.failed = attempt.failed;
        self.effects.replaying = replaying;
        self
    }

    /// The same for a call in a turn of a run; none if it is unrecorded. Calls of one turn have
    /// different ids.
    #[doc(hidden)]
    pub fn in_run(mut self, run_id: Option<RunId>, turn: u64) -> Self {
        (self.run_id, self.turn) = (run_id, turn);
        self
    }

    /// The same for a run that continues others, with the first of them: calls keep their
    /// [keys](Self::idempotency_key).
    #[doc(hidden)]
    pub fn continuing(mut self, root: Option<RunId>) -> Self {
        self.root = root;
        self
    }

    /// The same for a call that continues.
    pub fn continued(mut self, continuation: Option<Arc<Continuation>>) -> Self {
        self.continuation = continuation;
        self
    }

    /// What the call continues with: the state that it gave when it asked a person, and the answer. None at its first attempt.
    pub fn continuation(&self) -> Option<&Continuation> {
        self.continuation.as_deref()
    }

    /// The same, with what is left of the run's budget.
    #[doc(hidden)]
    pub fn with_budget_left(mut self, left: Option<Budget>) -> Self {
        self.budget_left = left.map(Arc::new);
        self
    }

    /// What was left of the run's budget when the call began; none if the run has no budget. A tool that is
    /// [delegating](crate::Tool::delegating) gets its part of that.
    pub fn budget_left(&self) -> Option<&Budget> {
        self.budget_left.as_deref()
    }

    /// The same in this conversation.
    #[doc(hidden)]
    pub fn in_conversation(mut self, messages: Messages) -> Self {
        self.conversation = messages;
        self
    }

    /// The conversation up to the answer that has the call. Results of other calls of the same answer are not in it.
    pub fn conversation(&self) -> &Messages {
        &self.conversation
    }

    /// The log that records the run, for tools that start runs of their own. None in a replay, and if the run is not recorded.
    pub fn log(&self) -> Option<Arc<dyn Log>> {
        self.effects.journal.as_ref()?.log()
    }

    /// The same, with a function that receives the call's progress.
    pub fn on_progress(mut self, heard: impl Fn(&ToolProgress) + Send + Sync + 'static) -> Self {
        self.on_progress = Some(Arc::new(heard));
        self
    }

    /// Reports progress of the call. The caller of an engine's run sees it as an
    /// [event](mynah_data::Event::ToolExecutionProgress), the client of an MCP server as a notification. It is logged in the
    /// call's span, and not recorded.
    pub fn progress(&self, progress: ToolProgress) {
        let ToolProgress { progress: now, total, message } = &progress;
        tracing::info!(parent: &self.span, progress = now, total, message, "progress of a tool");
        self.show_progress(&progress);
    }

    /// Reports progress of the call like [`progress`](Self::progress), but does not log it: for reports that are frequent.
    #[doc(hidden)]
    pub fn show_progress(&self, progress: &ToolProgress) {
        if let Some(heard) = &self.on_progress {
            heard(progress);
        }
    }

    /// Whether anyone receives the call's progress.
    #[doc(hidden)]
    pub fn has_listener(&self) -> bool {
        self.on_progress.is_some()
    }

    /// The id of the run that the call belongs to; none if the run is not recorded.
    pub fn run_id(&self) -> Option<&RunId> {
        self.run_id.as_ref()
    }

    /// The `tracing` span of the call, for what runs elsewhere on its behalf; see [Logging](Self#logging).
    pub fn span(&self) -> Span {
        self.span.clone()
    }

    /// A key for this call alone: 32 hexadecimal digits that are the same in every attempt, in every process that resumes the run and
    /// in a replay, and different for every other call. A service that takes such keys does the work once:
    ///
    /// ```
    /// # use mynah_step as mynah;
    /// # async fn charge(_key: &str, _cents: &serde_json::Value) -> Result<String, std::io::Error> { Ok("paid".to_owned()) }
    /// use mynah::Tool;
    /// use serde_json::json;
    ///
    /// let pay = Tool::new("pay", "Charges the card", json!({"type": "object"}))
    ///     .idempotent(3)
    ///     .handler(async |arguments, context| {
    ///         let key = context.idempotency_key();
    ///         context.side_effect("charge", charge(&key, &arguments["cents"])).await.map(|paid| json!(paid))
    ///     });
    /// # assert_eq!(pay.name(), "pay");
    /// ```
    ///
    /// It is made of the run's id, the turn and the call's id. A run that continues one which its provider or its budget ended has the
    /// keys of that run. A run that is not recorded has the id of its request instead: such a key is the same in another
    /// process only if the caller sets the same request id. A fork is another run, with other keys.
    pub fn idempotency_key(&self) -> String {
        let run = self.root.as_ref().or(self.run_id.as_ref());
        let run = run.map_or(&*self.request_id, RunId::as_str);
        let call = json!(["call", self.run_id.is_some(), run, self.turn, self.call.id]);
        let mut key = Hash::of(&[call.to_string().as_bytes()]).to_string();
        key.truncate(32);
        key
    }

    /// The number of this attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.effects.attempt
    }

    /// Whether the call is part of a replay. A layer that only delays calls has nothing to do then.
    pub fn is_replayed(&self) -> bool {
        self.effects.replaying
    }

    /// Announces the next attempt.
    pub(crate) async fn announce_next(&mut self) -> Result<()> {
        let (call_id, attempt) = (self.call.id.clone(), self.attempt().saturating_add(1));
        self.effects.begin(attempt);
        let announced = Fact::ToolScheduled { call_id, attempt, call: None };
        self.effects.commit(announced, true).await
    }

    /// The time of day.
    ///
    /// # Errors
    /// A replay that differs, or a log that could not be written.
    pub async fn now(&self) -> Result<SystemTime> {
        self.effects.now().await
    }

    /// An unpredictable number.
    ///
    /// # Errors
    /// As [`ToolContext::now`].
    pub async fn random(&self) -> Result<u64> {
        self.effects.random().await
    }

    /// Performs a side effect under a name. Its value is recorded, and a replay returns the
    /// recorded value without performing it. Several may run at once, also under one name, if they
    /// are requested in the same order, as [`Context::side_effect`](crate::Context::side_effect)
    /// explains. It belongs to its attempt: if the process ends during the call and the call runs again,
    /// all its effects run again, those that were finished too.
    ///
    /// An effect is a future of a `Result`. If the error's type cannot be inferred, its `Ok` names
    /// one:
    ///
    /// ```
    /// # mod mynah { pub use {mynah_data::*, mynah_step::*}; }
    /// use mynah::{Error, Result, ToolContext};
    ///
    /// async fn process(context: &ToolContext) -> Result<u32> {
    ///     context.side_effect("process", async { Ok::<_, Error>(std::process::id()) }).await
    /// }
    /// ```
    ///
    /// # Errors
    /// The effect's own error, live and in a replay; see [`SideEffectErrors`]. In a recorded run, a
    /// value that cannot be recorded: nested deeper than 96 levels, without JSON, or not readable
    /// again, such as NaN. A request to the call's context from inside the effect. Also those of
    /// [`ToolContext::now`].
    pub async fn side_effect<T, E>(
        &self,
        name: &str,
        effect: impl Future<Output = std::result::Result<T, E>>,
    ) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
        E: fmt::Display,
    {
        // Boxing early keeps the effect from being copied into each future on the way.
        let effect = Box::pin(async { effect.await.map_err(|error| error.to_string()) });
        self.effects.perform(name, effect).await
    }
}

mynah_data::partial_debug! { ToolContext { call, context, session_id, request_id, run_id } }
