//! What a custom loop runs with.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use mynah_data::{Budget, Catalog, Error, LogReason, Metadata, Result, RunId};
use mynah_log::{Log, OnUncertain, Record, Removals, walk};
use serde_json::Value;

use crate::{
    Adapter, IntoTools, MetricsSink, OnToolError, RetryPolicy, SideEffectErrors, SystemWorld, Tool,
    World,
};

/// How many tools [`Context::call_tools`](crate::Context::call_tools) runs concurrently by default.
pub(crate) const DEFAULT_MAX_CONCURRENCY: usize = 8;

/// The configuration of a [`Context`](crate::Context). It does not change during the run.
#[derive(Clone)]
#[must_use = "a configuration does nothing unless a context is made of it"]
pub struct Config {
    pub(crate) log: Arc<dyn Log>,
    pub(crate) run_id: RunId,
    pub(crate) mode: RunMode,
    pub(crate) adapter: Option<Arc<dyn Adapter>>,
    pub(crate) tools: Arc<BTreeMap<String, Tool>>,
    pub(crate) context: Arc<Metadata>,
    pub(crate) budget: Option<Budget>,
    pub(crate) catalog: Catalog,
    pub(crate) world: Arc<dyn World>,
    pub(crate) max_concurrency: usize,
    pub(crate) tool_timeout: Duration,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) metrics: Option<Arc<dyn MetricsSink>>,
    pub(crate) require_raw_response_hash: bool,
    pub(crate) emit_timeout: Option<Duration>,
    pub(crate) on_tool_error: OnToolError,
    pub(crate) side_effect_errors: SideEffectErrors,
    pub(crate) on_uncertain: OnUncertain,
    pub(crate) max_crashes: u32,
    pub(crate) park_after: Duration,
    /// The first name that two tools have.
    repeated: Option<String>,
}

/// Whether a run is new, resumed, or replayed.
///
/// All three run the same loop from its beginning. They differ in who answers it: the world, the records, or first the records
/// and then the world.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum RunMode {
    /// A new run happens.
    #[default]
    Live,
    /// Resumes a run that has these records and no end; see [`Config::resume`].
    Resume(Vec<Record>),
    /// Replays these records and writes nothing; see [`Config::replay`].
    #[doc(alias = "Recorded")]
    Replay(Vec<Record>),
}

impl Config {
    /// A new run in this log, with nothing to call.
    pub fn new<L: Log + Clone>(log: &L, run_id: impl Into<RunId>) -> Self {
        Self {
            log: Arc::new(log.clone()),
            run_id: run_id.into(),
            mode: RunMode::Live,
            adapter: None,
            tools: Arc::default(),
            context: Arc::default(),
            budget: None,
            catalog: Catalog::built_in(),
            world: Arc::new(SystemWorld),
            max_concurrency: DEFAULT_MAX_CONCURRENCY,
            tool_timeout: Duration::from_secs(30),
            retry: None,
            metrics: None,
            require_raw_response_hash: false,
            emit_timeout: None,
            on_tool_error: OnToolError::default(),
            side_effect_errors: SideEffectErrors::default(),
            on_uncertain: OnUncertain::default(),
            max_crashes: 5,
            park_after: Duration::from_secs(120),
            repeated: None,
        }
    }

    /// The same with more tools. Two of one name are refused when the run begins. A model is offered the tools of its request:
    /// [`Request::with_tools`](mynah_data::Request::with_tools).
    ///
    /// ```
    /// # mod mynah { pub use {mynah_log as log, mynah_step as step, mynah_step::*}; }
    /// use mynah::Tool;
    /// use mynah::log::MemoryLog;
    /// use mynah::step::Config;
    /// use serde_json::json;
    ///
    /// let tool = |name: &str| Tool::new(name, "", json!({}));
    /// let config = Config::new(&MemoryLog::new(), "run-1").tools([tool("a")]).tools([tool("b")]);
    /// ```
    pub fn tools<M: ?Sized>(mut self, tools: impl IntoTools<M>) -> Self {
        let known = Arc::make_mut(&mut self.tools);
        for tool in tools.into_tools() {
            if let Some(repeated) = known.insert(tool.name().to_owned(), tool) {
                self.repeated.get_or_insert_with(|| repeated.name().to_owned());
            }
        }
        self
    }

    /// Refuses two tools of one name, tools without time, and tools whose arguments could not be checked.
    pub(crate) fn check_tools(&self) -> Result<()> {
        if let Some(name) = &self.repeated {
            let why = format!("two tools have the name {name:?}");
            return Err(Error::invalid_option("tools", "duplicate_tool_name").because(&[why]));
        }
        if let Some(tool) = self.tools.values().find(|tool| tool.spec().timeout_ms == Some(0)) {
            let why = format!("the timeout of tool {:?} is zero", tool.name());
            return Err(Error::invalid_option("tools", "must_be_positive").because(&[why]));
        }
        let error = self.tools.values().find_map(Tool::schema_error);
        error.map_or(Ok(()), |why| {
            Err(Error::invalid_option("tools", "not_json_schema").because(&[why.to_owned()]))
        })
    }

    /// The same with one more entry of the caller's own data for the tools: their [`ToolContext::context`](crate::ToolContext::context).
    pub fn context(mut self, key: &str, value: impl Into<Value>) -> Self {
        Arc::make_mut(&mut self.context).insert(key.to_owned(), value.into());
        self
    }

    mynah_data::setters! { self => self;
        /// The same, answered by this adapter. Model calls need one.
        #[doc(alias = "Provider")]
        adapter(adapter: impl Adapter) = Some(Arc::new(adapter));

        /// The same with this budget, for the run and its resumption. Its time begins with the first thing that the run does here, and cuts
        /// off models and tools; side effects of the loop itself are not cut off.
        budget(budget: Budget) = Some(budget);

        /// The same, which does this with a tool that may have run before its process ended and is not idempotent.
        on_uncertain(on_uncertain: OnUncertain) = on_uncertain;

        /// The same, which [`Context::run`](crate::Context::run) suspends if its process died more often than this without any progress. Five
        /// times by default, and at least once. A process that drops the run, as with a panic that is caught, did not die in it, and neither did
        /// one of a run that was suspended, as in a long sleep. A process that is killed did, also while its loop waited in an effect.
        max_crashes(crashes: u32) = crashes;

        /// The same, which sleeps for this long in its process, and is suspended for longer. Two minutes by default. See
        /// [`Context::sleep`](crate::Context::sleep).
        park_after(limit: Duration) = limit;

        /// The same with these prices for models that come without one.
        catalog(catalog: Catalog) = catalog;

        /// The same in another world: with a clock and chance of the caller's own. A replay never asks it.
        #[doc(alias = "ClockFn")]
        world(world: impl World) = Arc::new(world);

        /// The same, which runs so many tools side by side; eight by default, or if it is zero.
        #[doc(alias("MaxParallelTools", "max_parallel_tools"))]
        max_concurrency(tools: usize) = tools;

        /// The same with this time limit for each attempt of a tool that has none of its own.
        tool_timeout(limit: Duration) = limit;

        /// The same with this policy for model calls that fail before their first event. By default the adapter's.
        retry(policy: RetryPolicy) = Some(policy);

        /// The same, which reports to this sink how long calls take. A replay reports nothing.
        metrics(sink: impl MetricsSink) = Some(Arc::new(sink));

        /// The same, which requires that an answer comes with the hash of what the provider sent.
        require_raw_response_hash(on: bool) = on;

        /// The same, which fails if the log takes longer to append, failed attempts included. If not set, an append has no time limit, and an
        /// unavailable log is retried for five minutes.
        emit_timeout(limit: Duration) = Some(limit);

        /// The same with this policy for tools that fail. By default the loop gets the error. [`Halt`](OnToolError::Halt) makes it an `Err` of
        /// [`Context::call_tools`](crate::Context::call_tools); a function may replace it with a result.
        on_tool_error(policy: OnToolError) = policy;

        /// The same with this policy for side effects that fail.
        side_effect_errors(policy: SideEffectErrors) = policy;

        /// The same in this mode.
        mode(mode: RunMode) = mode;
    }

    /// Resumes the run after its process ended.
    ///
    /// The loop runs again from its beginning and must make the same calls. The records answer it
    /// as far as they go, so nothing that completed is repeated. After that, the world answers, and
    /// its answers are recorded. The run's lease is taken first: of two processes that resume a run
    /// one continues, and the other gets an error before it does anything.
    ///
    /// A model that was called and has no answer is called again. A tool that was announced and has no outcome is run again if
    /// it is [idempotent](crate::Tool::idempotent); otherwise [`OnUncertain`] says. A loop that does something else than it did gets
    /// `replay_mismatch`.
    ///
    /// ```
    /// # mod mynah { pub use {mynah_data::*, mynah_log as log, mynah_step as step, mynah_step::*}; }
    /// use std::{future::pending, sync::Arc, time::Duration};
    /// use mynah::{Result, Tool, ToolCall};
    /// use mynah::log::MemoryLog;
    /// use mynah::step::{Config, Context};
    /// use serde_json::json;
    ///
    /// /// Rolls a die and has it charmed. The first process hangs in between.
    /// async fn agent(context: &Context, hangs: bool) -> Result<u64> {
    ///     let run = context.run("go", async |cx| {
    ///         let rolled = cx.random().await? % 6 + 1;
    ///         if hangs {
    ///             pending::<()>().await;
    ///         }
    ///         cx.call_tool(ToolCall::new("c0", "charm", rolled.to_string())).await?;
    ///         Ok(rolled)
    ///     });
    ///     run.await
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
    /// let charm = Tool::new("charm", "Charms a die", json!({})).handler(async |die, _| die);
    /// let config = Config::new(&Arc::new(MemoryLog::new()), "run-1").tools([charm]);
    /// let first = Context::new(config.clone())?;
    /// assert!(tokio::time::timeout(Duration::from_millis(20), agent(&first, true)).await.is_err());
    /// drop(first);
    ///
    /// let resumed = agent(&Context::new(config.clone().resume().await?)?, false).await?;
    /// let replayed = agent(&Context::new(config.replay().await?)?, false).await?;
    /// assert_eq!(resumed, replayed);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// `run_not_found`; `pruned` or `redacted` if the run or the body of a record was removed;
    /// `corrupt` if the records were changed, or contradict the log's index; a log that cannot be
    /// read.
    pub async fn resume(self) -> Result<Self> {
        let records = self.records().await?;
        Ok(self.mode(RunMode::Resume(records)))
    }

    /// The same, to perform the run again: the records answer the loop, nothing is written, and the first thing that differs is a
    /// `replay_mismatch`, records that are left at [the end](crate::Context::finish) included. Tools are run and compared, unless
    /// they are [manual](crate::Tool::manual) or [answer from their records](crate::Tool::recorded).
    ///
    /// A question that is not recorded there fails at once if nothing but its records can wake the loop and its tools, and after ten seconds otherwise: until
    /// then it may be early, and wait for another branch.
    ///
    /// # Errors
    /// As [`Config::resume`].
    pub async fn replay(self) -> Result<Self> {
        let records = self.records().await?;
        Ok(self.mode(RunMode::Replay(records)))
    }

    /// All records of the run, verified, and compared with the log's index.
    async fn records(&self) -> Result<Vec<Record>> {
        let Some(indexed) = self.log.run(&self.run_id).await? else {
            return Err(Removals::read(&*self.log).await?.absence(&self.run_id));
        };
        let mut records = Vec::new();
        let keep = |record: &Record| match record.body() {
            Some(_) => {
                records.push(record.clone());
                Ok(())
            }
            None => Err(was_redacted(record)),
        };
        walk(&*self.log, &indexed, keep).await?;
        Ok(records)
    }
}

/// The error for a run that cannot be replayed, because the body of one of its records was removed.
pub fn was_redacted(record: &Record) -> Error {
    let (run, seq, kind) = (&record.envelope().run_id, record.seq(), record.kind());
    Error::log(LogReason::Redacted)
        .with_message(format!(
            "log error: redacted: the body of record {seq} of run {run}, {kind}, was taken away, and \
             the run cannot be performed again without it"
        ))
        .with("run_id", &**run)
        .with("seq", seq)
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("run_id", &self.run_id)
            .field("tools", &self.tools.keys())
            .field("max_concurrency", &self.max_concurrency)
            .finish_non_exhaustive()
    }
}
