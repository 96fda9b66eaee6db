//! The boundary for people with a loop of their own.

mod in_flight;
mod model;
mod run;
mod sleep;
mod tools;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{self, Poll, Waker},
    time::{Duration, SystemTime},
};

use mynah_data::{
    Breach, BreachTime, Budget, Error, ErrorKind, LogReason, Response, Result, RunId,
    ValidationReason,
};
use mynah_log::{Corrupt, Cut, Fact, Kind, Record, SUMMARY_STARTED, Verifier, payload_of};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::{
    sync::{Mutex as Queue, watch},
    time::Instant,
};
use tracing::Span;

use self::in_flight::InFlight;
pub use self::{
    model::ModelAnswer,
    tools::{CallTool, ToolResult},
};
use crate::{
    Config, Crashes, Journal, MetricsSink, RecordedFact, Recorder, ReplayCursor, RunMode, Spent,
    WallClock, active,
    config::DEFAULT_MAX_CONCURRENCY,
    cursor::{CHECKPOINT, MODEL_CALL, SLEEP, WOKE},
    effects::Effects,
    journal::{Query, State as JournalState, gone, lock},
    metrics::tell_exceeded,
    millis,
    recorder::{ends, sealed},
};

/// The boundary of one run, for a custom loop. Everything non-deterministic goes through it, is
/// recorded, and comes from the records in a replay. Cheap to clone; all clones are the same run.
///
/// [`Context::run`] performs a loop as one run: it records how the loop began and ended.
///
/// A run whose process died is [resumed](Config::resume) by running the loop again from its
/// beginning, or from its last [checkpoint](Context::checkpoint). So a loop may depend only on its
/// arguments and on values from here.
///
/// From its first record on, the run belongs to this process while that lives: another process that resumes it gets an error.
/// [`Context::run`] takes a run that is resumed before its loop begins. Dropping the last clone releases the run.
///
/// # Approvals
///
/// The loop decides about calls of tools that [ask for approval](crate::Tool::approval) or are [manual](crate::Tool::manual). Such a
/// call runs only if the loop makes it with [`CallTool::approved`]. Otherwise it is recorded as `denied`.
///
/// # Logging
///
/// A run has a `tracing` span, `mynah.run`, with its id as the field `run_id`. Everything logged in
/// a model call, a tool or a side effect is in it. The loop itself joins with [`span`](Self::span),
/// and so do tasks and threads that it spawns:
///
/// ```
/// # mod mynah { pub use {mynah_log as log, mynah_step as step}; }
/// use mynah::log::MemoryLog;
/// use mynah::step::{Config, Context};
/// use tracing::Instrument as _;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah_data::Result<()> {
/// let context = Context::new(Config::new(&MemoryLog::new(), "run-1"))?;
/// async { tracing::info!("the loop begins") }.instrument(context.span()).await;
/// # Ok(()) }
/// ```
///
/// # Examples
///
/// ```
/// # mod mynah { pub use {mynah_data::*, mynah_log as log, mynah_step as step, mynah_step::*}; }
/// use std::sync::Arc;
/// use mynah::{Tool, ToolCall, ToolOutcome};
/// use mynah::log::MemoryLog;
/// use mynah::step::{Config, Context};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah_data::Result<()> {
/// let roll = Tool::new("roll", "Rolls a die", json!({}))
///     .handler(async |_, context| context.random().await.map(|chance| json!(chance % 6 + 1)));
/// let log = Arc::new(MemoryLog::new());
/// let config = Config::new(&log, "run-1").tools([roll]);
///
/// async fn agent(context: &Context) -> mynah::Result<ToolOutcome> {
///     let roll = ToolCall::new("c0", "roll", "{}");
///     context.run("go", async |cx| cx.call_tool(roll).await).await
/// }
///
/// let live = agent(&Context::new(config.clone())?).await?;
/// let replayed = agent(&Context::new(config.replay().await?)?).await?;
/// assert_eq!(replayed, live);
/// # Ok(()) }
/// ```
#[doc(alias = "WithContext")]
#[derive(Clone)]
pub struct Context(Arc<Shared>);

struct Shared {
    config: Config,
    span: Span,
    replaying: bool,
    /// How often the process of a run that is resumed died, before this one took it.
    crashes: Crashes,
    journal: Arc<Journal>,
    effects: Effects,
    /// The number of model calls. A call holds the lock: an answer belongs to the call before it.
    turns: Queue<u32>,
    spent: Mutex<Spent>,
    /// How long the run may take; a replay measures nothing.
    clock: Mutex<Option<WallClock>>,
    /// How long earlier processes were active, and since when this one is.
    active: (Duration, Instant),
    /// The ids of calls that have no outcome yet.
    called: Mutex<HashSet<String>>,
    /// How many calls had each of the ids that the loop chose.
    named: Mutex<HashMap<String, u64>>,
    cancelled: watch::Sender<bool>,
    in_flight: InFlight,
}

impl Context {
    /// A run with this configuration.
    ///
    /// # Errors
    /// A run without an id, `max_crashes` of zero, a tool whose schema is not JSON Schema, a budget
    /// that cannot be enforced; a replay without records or with changed ones; a resumed run that has ended. A
    /// duplicate id of a new run is reported by its first write (`head_mismatch`, or `sealed` if
    /// the other run has ended). A run that was cut off continues with [`Config::resume`].
    pub fn new(mut config: Config) -> Result<Self> {
        if config.run_id.is_empty() {
            return Err(Error::invalid_option("run_id", "empty"));
        }
        if config.max_crashes == 0 {
            return Err(Error::invalid_option("max_crashes", "must_be_positive"));
        }
        if config.max_concurrency == 0 {
            config.max_concurrency = DEFAULT_MAX_CONCURRENCY;
        }
        if let Some(budget) = &config.budget {
            Budget::from_json(&json!(budget))
                .map_err(|errors| Error::validation(ValidationReason::InvalidOptions, errors))?;
        }
        config.check_tools()?;
        let (log, world) = (Arc::clone(&config.log), Arc::clone(&config.world));
        let mode = std::mem::take(&mut config.mode);
        let (replaying, live) = (matches!(mode, RunMode::Replay(_)), matches!(mode, RunMode::Live));
        let (mut before, mut crashes) = (Duration::ZERO, Crashes::default());
        let run = config.run_id.as_str();
        let configured = |recorder: Recorder| {
            recorder.metered(config.metrics.clone()).with_emit_timeout(config.emit_timeout)
        };
        let (recorder, cursor) = match mode {
            RunMode::Live => {
                (Some(configured(Recorder::new(log, world, run).with_new_lease())), None)
            }
            RunMode::Resume(records) => {
                let (facts, verifier) = verified(run, records)?;
                if verifier.report().fingerprint.is_some() {
                    return Err(has_ended(run, &facts));
                }
                before = active(&facts);
                facts.iter().for_each(|kept| crashes.evolve(kept.fact()));
                let (chain, totals) = verifier.into_chain();
                let recorder = Recorder::after(log, world, chain, totals).resuming(&facts);
                let cursor = ReplayCursor::of_loop(run.into(), facts, true);
                (Some(configured(recorder)), Some(cursor))
            }
            RunMode::Replay(records) => {
                let (facts, _) = verified(run, records)?;
                (None, Some(ReplayCursor::of_loop(run.into(), facts, false)))
            }
        };
        let clock = WallClock::new(config.budget.as_ref(), before);
        let journal = Journal::of_loop(run, recorder, cursor);
        let effects = Effects {
            errors: config.side_effect_errors,
            journal: Some(Arc::clone(&journal)),
            replaying: !live,
            ..Effects::unkept(Arc::clone(&config.world))
        };
        Ok(Self(Arc::new(Shared {
            span: tracing::info_span!("mynah.run", run_id = config.run_id.as_str()),
            config,
            replaying,
            crashes,
            journal,
            effects,
            turns: Queue::new(0),
            spent: Mutex::default(),
            clock: Mutex::new(clock),
            active: (before, Instant::now()),
            called: Mutex::default(),
            named: Mutex::default(),
            cancelled: watch::Sender::new(false),
            in_flight: InFlight::default(),
        })))
    }

    /// The id of the run.
    pub fn run_id(&self) -> &RunId {
        &self.0.config.run_id
    }

    /// The `tracing` span of the run; see [Logging](Self#logging).
    pub fn span(&self) -> Span {
        self.0.span.clone()
    }

    /// Whether the records answer, not the world: always in a replay, and in a resumed run until it
    /// reaches its old position.
    pub fn is_replaying(&self) -> bool {
        self.journal().is_behind()
    }

    /// The receiver of measurements. None while the records answer.
    pub fn metrics(&self) -> Option<&Arc<dyn MetricsSink>> {
        self.0.config.metrics.as_ref().filter(|_| !self.is_replaying())
    }

    /// The time of day.
    ///
    /// # Errors
    /// `replay_mismatch`, or a log that cannot be written.
    #[doc(alias = "Now")]
    pub async fn now(&self) -> Result<SystemTime> {
        let _in_flight = self.0.in_flight.begin()?;
        self.in_run(self.0.effects.now()).await
    }

    /// An unpredictable number.
    ///
    /// # Errors
    /// As [`Context::now`].
    #[doc(alias("Random", "rand"))]
    pub async fn random(&self) -> Result<u64> {
        let _in_flight = self.0.in_flight.begin()?;
        self.in_run(self.0.effects.random()).await
    }

    /// Performs a side effect under a name. Its value is recorded, and a replay returns the
    /// recorded value without performing it. If the process dies during the effect, the resumed run
    /// performs it again. An effect that must not happen twice needs an idempotency key, or is a
    /// tool, whose outcome is then unknown. Several effects may run at once, also under one name,
    /// if they are requested in the same order each time. If that order is not fixed, as in spawned
    /// tasks, each task needs its own name (`now` and `random` are one name each). In a replay, a
    /// branch that others wait for may wait at most ten seconds for anything else.
    ///
    /// An effect is a future of a `Result`. If the error's type cannot be inferred, its `Ok` names
    /// one:
    ///
    /// ```
    /// # mod mynah { pub use {mynah_data::*, mynah_log as log, mynah_step as step}; }
    /// use std::sync::Arc;
    /// use mynah::Error;
    /// use mynah::log::MemoryLog;
    /// use mynah::step::{Config, Context};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah_data::Result<()> {
    /// let context = Context::new(Config::new(&Arc::new(MemoryLog::new()), "run-1"))?;
    /// let process = async { Ok::<_, Error>(std::process::id()) };
    /// let process = context.run("go", async |cx| cx.side_effect("process", process).await).await?;
    /// assert_eq!(process, std::process::id());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The effect's own error, live and in a replay; see
    /// [`SideEffectErrors`](crate::SideEffectErrors). A value that cannot be recorded: nested
    /// deeper than 96 levels, without JSON, or not readable again, such as NaN. A reserved name, under
    /// which the run itself records: `model_call`, `checkpoint`, `sleep`, `woke` and
    /// `summary_started`. A request to the run from inside an effect. A new run with the id of another, before anything is done. Also those
    /// of [`Context::now`].
    #[doc(alias = "SideEffect")]
    pub async fn side_effect<T, E>(
        &self,
        name: &str,
        effect: impl Future<Output = std::result::Result<T, E>>,
    ) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
        E: fmt::Display,
    {
        if [MODEL_CALL, CHECKPOINT, SLEEP, WOKE, SUMMARY_STARTED].contains(&name) {
            return Err(Error::invalid_option("name", "reserved").with_message(format!(
                "validation failed: name: the run itself records under {name:?}; choose another name"
            )));
        }
        // Boxing early keeps the effect from being copied into each future on the way.
        let effect = Box::pin(async { effect.await.map_err(|error| error.to_string()) });
        self.effect(name, effect).await
    }

    async fn effect<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        effect: impl Future<Output = std::result::Result<T, String>>,
    ) -> Result<T> {
        self.journal().check_open()?;
        let _in_flight = self.0.in_flight.begin()?;
        // The log is called when this has its place among the others.
        let effect = Box::pin(async {
            self.held().await.map_err(|error| error.to_string())?;
            effect.await
        });
        self.in_run(self.0.effects.perform(name, effect)).await
    }

    /// Waits until something may begin: the log has everything before, and the run is ours.
    async fn held(&self) -> Result<()> {
        poll_fn(|cx| self.0.journal.poll(cx, Recorder::poll_held)).await
    }

    /// The same as [`Context::side_effect`], and its record is durable when this returns: an effect that is done is not done again
    /// even after a power cut. It is recorded before that: a limit on its time belongs inside the effect, because a loop that gives up
    /// the waiting finds the effect done when it is resumed.
    ///
    /// # Errors
    /// As [`Context::side_effect`].
    pub async fn durable_side_effect<T, E>(
        &self,
        name: &str,
        effect: impl Future<Output = std::result::Result<T, E>>,
    ) -> Result<T>
    where
        T: Serialize + DeserializeOwned,
        E: fmt::Display,
    {
        let done = self.side_effect(name, Box::pin(effect)).await;
        self.flush().await?;
        done
    }

    /// A fresh id for a call, for who needs to know it before the call; the same in a replay.
    ///
    /// # Errors
    /// As [`Context::now`].
    #[doc(alias = "NewCallID")]
    pub async fn new_call_id(&self) -> Result<String> {
        let id = async { Ok::<_, Error>(self.0.config.world.new_run_id().to_string()) };
        self.side_effect("call_id", id).await
    }

    /// Records a fact of the loop's own: how the run began and ended, a message of a person, messages left out of a prompt.
    /// One that ends the run is safe when this is done, and has the seal after it.
    ///
    /// # Errors
    /// A fact that something else records, as [`Context::call_tool`] does calls and [`Context::side_effect`] side effects, or that is too
    /// large for a record (`too_large`, live and in a replay): it is not recorded. `replay_mismatch`, or a log that cannot be written.
    #[doc(alias = "Emit")]
    pub async fn emit(&self, fact: Fact) -> Result<()> {
        if let Some((code, why)) = misplaced(&fact) {
            let refused = Error::invalid_option("fact", code);
            return Err(refused.with_message(format!("validation failed: fact: {why}")));
        }
        let _in_flight = self.0.in_flight.begin()?;
        self.put(fact).await
    }

    /// Records a fact.
    async fn put(&self, mut fact: Fact) -> Result<()> {
        match &self.journal().cursor {
            Some(cursor) if cursor.is_behind() => cursor.set_durations(&mut fact),
            _ if fact.end().is_some_and(|end| end.duration_ms.is_none()) => {
                let (earlier, began) = self.0.active;
                fact.set_duration_ms(Some(millis(earlier + began.elapsed())));
            }
            _ => {}
        }
        self.check_recordable(&fact)?;
        let durable = ends(&fact);
        let commit = async {
            self.0.effects.commit(fact.clone(), durable).await?;
            self.spent().evolve(&fact);
            Ok(())
        };
        self.in_run(commit).await
    }

    /// Records a fact, or another in its place if it is too large for a record. Returns what is recorded.
    async fn put_or(&self, fact: Fact, smaller: impl FnOnce(Error) -> Fact) -> Result<Fact> {
        match self.put(fact.clone()).await {
            Ok(()) => Ok(fact),
            Err(error) if error.kind() == ErrorKind::Log(LogReason::TooLarge) => {
                let fact = smaller(error);
                self.put(fact.clone()).await.map(|()| fact)
            }
            Err(error) => Err(error),
        }
    }

    /// Refuses a fact that no record can hold also while the records answer, where nothing is added to them.
    fn check_recordable(&self, fact: &Fact) -> Result<()> {
        let refused = self.0.journal.records(|_| payload_of(fact).err());
        refused.map_or(Ok(()), Err)
    }

    /// Announces an action unless the budget forbids it. Returns whether the records have it. If
    /// they do, or it was stopped, the replay does the same.
    async fn announce(
        &self,
        fact: Fact,
        passed: Option<impl FnOnce(&Spent, &Budget) -> Option<Breach>>,
    ) -> Result<bool> {
        self.check_recordable(&fact)?;
        if self.is_replaying() {
            match self.ask(Query::Announce(fact.clone())).await? {
                Some(Fact::BudgetExceeded { breach, .. }) => {
                    return Err(Error::budget_exceeded(&breach, None));
                }
                Some(recorded) => {
                    self.spent().evolve(&recorded);
                    return Ok(true);
                }
                None => {}
            }
        }
        if let Some(passed) = passed {
            let budget = self.0.config.budget.as_ref();
            let breach = budget.and_then(|budget| passed(&self.spent(), budget));
            let late = || {
                self.out_of_time(&mut task::Context::from_waker(Waker::noop()), BreachTime::PreCall)
            };
            if let Some(breach) = breach.or_else(late) {
                return Err(self.exceed(breach, None, Vec::new()).await?);
            }
        }
        self.put(fact).await?;
        Ok(false)
    }

    /// Records that the budget is used up.
    async fn exceed(
        &self,
        breach: Breach,
        partial: Option<Box<Response>>,
        cuts: Vec<Cut>,
    ) -> Result<Error> {
        if !self.is_replaying() {
            tell_exceeded(Some(self.run_id()), &breach, self.0.config.metrics.as_ref());
        }
        let exceeded = Fact::BudgetExceeded { breach: breach.clone(), partial, cuts };
        let smaller =
            |_| Fact::BudgetExceeded { breach: breach.clone(), partial: None, cuts: Vec::new() };
        let Fact::BudgetExceeded { partial, .. } = self.put_or(exceeded, smaller).await? else {
            return Err(gone());
        };
        Ok(Error::budget_exceeded(&breach, partial.as_deref()))
    }

    /// Waits until everything recorded so far is safe. Answers and outcomes are on their way to the log when the loop has them. While
    /// the log is unavailable they wait in memory, and so does what begins next. What a tool depends on is safe before it runs: this is
    /// for who must know before doing something else.
    ///
    /// # Errors
    /// A log that cannot be written.
    pub async fn flush(&self) -> Result<()> {
        self.in_run(poll_fn(|cx| self.0.journal.poll_durable(cx))).await
    }

    /// Ends the loop: waits until everything recorded is durable. A replay must have consumed all
    /// records: this is the only place that reports a loop which stops too early.
    ///
    /// # Errors
    /// `replay_mismatch` if records are left, or the loop differed from them and continued; a log
    /// that cannot be written.
    pub async fn finish(&self) -> Result<()> {
        let finished = self.0.journal.records(|cursor| cursor.finish().err());
        finished.map_or(Ok(()), Err)?;
        self.flush().await
    }

    /// A duration that the loop records itself: `live`, or in a replay that of the next record, as no two runs take the same time.
    ///
    /// Answers, tools and the end of a run have their durations without it.
    #[doc(alias = "ReplayDurationMs")]
    pub fn replay_duration_ms(&self, live: u64) -> u64 {
        let recorded = self.0.journal.records(|cursor| cursor.upcoming()?.duration_ms());
        recorded.unwrap_or(live)
    }

    /// Ends the model call and the tools that run, and every one that is called from now on, as cancelled. In a replay they end
    /// as they did.
    pub fn cancel(&self) {
        // A replay has the outcome in its records.
        if !self.0.replaying {
            self.0.cancelled.send_replace(true);
        }
    }

    /// Performs something in the span of the run, and gives the log what it recorded: that is kept even if the process dies right
    /// after. It waits for nothing after the commit, because a loop that gave it up then would not know what the records know.
    /// The run takes time from the first thing on that it does.
    async fn in_run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        poll_fn(move |cx| {
            let _entered = self.0.span.enter();
            if self.0.config.budget.is_some() {
                let _ = self.out_of_time(cx, BreachTime::PreCall);
            }
            let polled = future.as_mut().poll(cx);
            // What is done is written while others still run. What fails is reported when it is waited for.
            let _ = self.0.journal.poll(cx, Recorder::poll_flush);
            polled
        })
        .await
    }

    /// Performs something until the run has passed its limit on time. The records say of calls of tools whether the limit cut them off.
    async fn while_there_is_time<T>(
        &self,
        calls: &[String],
        future: impl Future<Output = T>,
    ) -> std::result::Result<T, Breach> {
        let mut future = pin!(future);
        let is_cut_off = || {
            let of_call = |id: &String| {
                let look = |cursor: &mut ReplayCursor| cursor.cut_off_ahead(id).map(drop);
                self.0.journal.records(look).is_some()
            };
            calls.is_empty() || !self.is_replaying() || calls.iter().any(of_call)
        };
        let out_of_time = |cx: &mut task::Context<'_>| {
            self.out_of_time(cx, BreachTime::MidStream).filter(|_| is_cut_off())
        };
        // Nothing begins too late, and what is done is not cut off.
        if !self.is_replaying() {
            let now = poll_fn(|cx| Poll::Ready(out_of_time(cx))).await;
            now.map_or(Ok(()), Err)?;
        }
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending => {
                out_of_time(cx).map_or(Poll::Pending, |breach| Poll::Ready(Err(breach)))
            }
        })
        .await
    }

    /// The limit on time, where the run has passed it. Where the records answer, it is where they say.
    fn out_of_time(&self, cx: &mut task::Context<'_>, when: BreachTime) -> Option<Breach> {
        if self.is_replaying() {
            self.0.journal.park(cx);
            return self.0.journal.records(|cursor| match cursor.after_cut_offs()? {
                // A part of an answer is that of the model's branch, which takes it from its record.
                Fact::BudgetExceeded { partial: Some(_), .. } => None,
                next => WallClock::recorded(next).filter(|breach| breach.when == when).cloned(),
            });
        }
        let mut clock = lock(&self.0.clock);
        clock.as_mut()?.poll_passed(cx, when)
    }

    /// Counts a call, and returns how many earlier ones had its id.
    fn count_call(&self, id: &str) -> u64 {
        let mut named = lock(&self.0.named);
        let earlier = named.entry(id.to_owned()).or_default();
        *earlier += 1;
        *earlier - 1
    }

    fn spent(&self) -> MutexGuard<'_, Spent> {
        lock(&self.0.spent)
    }

    fn journal(&self) -> MutexGuard<'_, JournalState> {
        self.0.journal.lock()
    }

    /// Asks the records for something that the loop itself makes.
    async fn ask(&self, want: Query) -> Result<Option<Fact>> {
        self.in_run(self.0.journal.ask(None, want)).await
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("config", &self.0.config)
            .field("replaying", &self.0.replaying)
            .finish_non_exhaustive()
    }
}

/// Performs something until its run is cancelled, if it can be; nothing is there then.
pub(crate) async fn unless_cancelled<T>(
    cancelled: impl Into<Option<watch::Receiver<bool>>>,
    future: impl Future<Output = T>,
) -> Option<T> {
    // The tools of an engine's runs, which may be many, cannot be and need no room for it.
    let mut cancelled = cancelled.into().map(|mut cancelled| {
        Box::pin(async move {
            // All other handles are gone.
            if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    });
    let mut future = pin!(future);
    poll_fn(|cx| match cancelled.as_mut().map(|cancelled| cancelled.as_mut().poll(cx)) {
        Some(Poll::Ready(())) => Poll::Ready(None),
        _ => future.as_mut().poll(cx).map(Some),
    })
    .await
}

/// Why a loop cannot emit a fact: a replay would not take it for the recorded one.
fn misplaced(fact: &Fact) -> Option<(&'static str, &'static str)> {
    match fact {
        Fact::Sealed(_) => Some(("sealed_by_itself", "the seal follows the end by itself")),
        Fact::Removed(_) => Some(("of_the_log", "the log records what is removed")),
        Fact::ToolScheduled { .. } | Fact::ToolCompleted { .. } | Fact::ToolFailed { .. } => {
            Some(("of_a_call", "Context::call_tool records a call and its outcome"))
        }
        Fact::SideEffect { .. } => Some(("of_an_effect", "Context::side_effect records its value")),
        Fact::Resumed { .. } if fact.is_seam() => {
            Some(("of_a_resume", "Config::resume records that a run is resumed"))
        }
        Fact::RunStarted { .. }
        | Fact::Resumed { .. }
        | Fact::UserMessage { .. }
        | Fact::TurnStarted { .. }
        | Fact::TurnLost { .. }
        | Fact::FinalizeStarted { .. }
        | Fact::FinalizeFailed { .. }
        | Fact::AssistantCompleted { .. }
        | Fact::ContextTruncated { .. }
        | Fact::BudgetExceeded { .. }
        | Fact::Suspended(_)
        | Fact::Completed(_)
        | Fact::Failed(_)
        | Fact::Cancelled { .. } => None,
    }
}

/// The error for a loop that has ended, with the record at which a copy of it can continue.
fn has_ended(run: &str, facts: &[RecordedFact]) -> Error {
    let failed = facts.iter().rposition(|kept| kept.is(Kind::Failed));
    let advice = match failed {
        Some(end) => {
            let before = &facts[..end];
            let is_refused = before.last().is_some_and(|last| {
                matches!(last.fact(), Fact::SideEffect { inside: None, name, .. } if name == MODEL_CALL)
            });
            let called = before.iter().rposition(|kept| kept.is(Kind::TurnStarted));
            let (why, at) = match called.filter(|_| is_refused) {
                Some(call) => ("its model call failed", call),
                None => ("it failed", end),
            };
            let place = if is_refused { "that call" } else { "its failure" };
            format!(
                "{why}; mynah::fork_run(&log, {run:?}, {at}) copies the records before {place}, and the copy can be resumed"
            )
        }
        None => "mynah::fork_run copies it up to a record, and the copy can be resumed".to_owned(),
    };
    let error = sealed(run);
    let message = format!("{}; {advice}", error.message());
    error.with_message(message)
}

/// The facts of records that are what they were.
fn verified(run: &str, records: Vec<Record>) -> Result<(Vec<RecordedFact>, Verifier)> {
    if records.is_empty() {
        return Err(Error::invalid_option("mode", "no_records"));
    }
    let mut verifier = Verifier::new(run);
    let mut facts = Vec::with_capacity(records.len());
    for record in records {
        verifier.check(&record)?;
        let (seq, what) = (record.seq(), "its body is missing".to_owned());
        let missing = || Corrupt::new(run, seq, what);
        facts.push(RecordedFact::read(&record)?.ok_or_else(missing)?);
    }
    Ok((facts, verifier))
}
