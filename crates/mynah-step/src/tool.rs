//! Tools: what a model can ask for beside text.

use std::{
    any::Any,
    fmt,
    future::poll_fn,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, OnceLock},
    task::{Poll, ready},
    time::Duration,
};

use futures_util::FutureExt;
use mynah_data::{
    Approval, Error, Result, RunId, ToolCall, ToolOutcome, ToolReason, ToolSpec, Wait,
};
use mynah_log::{Fact, Resolution};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::{
    BoxFuture, IntoOutcome, Journal, ToolContext,
    alone::poll_alone,
    context::unless_cancelled,
    layers::{Layer, layered},
    schema_check::SchemaCheck,
    settle::{bounded, failed},
    world::{jittered, millis, since_1970},
};

/// A tool: its specification for the model, and the handler that runs its calls.
///
/// ```
/// # use mynah_step as mynah;
/// use mynah::Tool;
/// use serde_json::json;
///
/// let weather = Tool::new("get_weather", "The weather in a city", json!({
///     "type": "object",
///     "properties": {"city": {"type": "string"}},
///     "required": ["city"]
/// }))
/// .handler(async |arguments, _context| Ok::<_, std::io::Error>(json!({"city": arguments["city"], "celsius": 21})));
/// assert_eq!(weather.name(), "get_weather");
/// ```
#[derive(Clone)]
#[must_use = "a tool does nothing unless an engine or a loop has it"]
pub struct Tool {
    spec: Arc<ToolSpec>,
    handler: Option<Arc<dyn Handler>>,
    /// What is around the handler, the innermost first; also around one that is set later.
    layers: Vec<Arc<dyn Layer>>,
    registered_as: Option<String>,
    recorded: bool,
    delegating: bool,
    check: Arc<OnceLock<Check>>,
}

/// A schema that arguments are checked against, or why it cannot be used.
type Check = std::result::Result<SchemaCheck, String>;

impl Tool {
    /// A tool without a handler. An engine refuses to call a model with it unless it is manual.
    pub fn new(name: impl Into<String>, description: impl Into<String>, schema: Value) -> Self {
        Self::from_spec(ToolSpec::new(name, description, schema))
    }

    /// A tool without a handler, from its stored description.
    pub fn from_spec(spec: ToolSpec) -> Self {
        Self {
            spec: Arc::new(spec),
            handler: None,
            layers: Vec::new(),
            registered_as: None,
            recorded: false,
            delegating: false,
            check: Arc::default(),
        }
    }

    /// The same tool, run by an async function of the arguments and the [context](ToolContext).
    ///
    /// The function is polled where the chat is polled: side by side with its siblings, and gone when the chat is
    /// dropped. What keeps a processor busy belongs into [`Tool::blocking`].
    ///
    /// It may return anything that is [`IntoOutcome`]. An `async` closure cannot hold state; [`Tool::handler_with_state`] passes it some.
    pub fn handler<Fut, R, M>(
        self,
        run: impl Fn(Value, ToolContext) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome<M> + 'static,
        M: 'static,
    {
        self.with_handler(Arc::new(move |arguments, context| -> BoxFuture<ToolOutcome> {
            // An async block would hold the future twice.
            Box::pin(run(arguments, context).map(IntoOutcome::into_outcome))
        }))
    }

    /// The same tool, run by an async function that gets a clone of some state with each call, as an `Arc` or a connection pool.
    ///
    /// ```
    /// # mod mynah { pub use mynah_step::*; }
    /// use std::sync::Arc;
    /// use mynah::Tool;
    /// use serde_json::json;
    ///
    /// struct Db;
    ///
    /// impl Db {
    ///     async fn price(&self, _dish: &str) -> u32 { 2 }
    /// }
    ///
    /// let db = Arc::new(Db);
    /// let price = Tool::new("price", "What a dish costs", json!({"type": "object"}))
    ///     .handler_with_state(db, async |db, arguments, _context| {
    ///         db.price(arguments["dish"].as_str().unwrap_or_default()).await
    ///     });
    /// ```
    pub fn handler_with_state<S, Fut, R, M>(
        self,
        state: S,
        run: impl Fn(S, Value, ToolContext) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        S: Clone + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome<M> + 'static,
        M: 'static,
    {
        self.handler(move |arguments, context| run(state.clone(), arguments, context))
    }

    /// The same tool, run by an ordinary function on a thread of its own: for what computes or blocks.
    ///
    /// Such tools really run in parallel. A thread cannot be stopped from outside: if the chat is
    /// dropped, the function runs to its end and its outcome is thrown away: in a recorded run,
    /// what it asks its context for then is refused.
    pub fn blocking<R: IntoOutcome<M>, M: 'static>(
        self,
        run: impl Fn(Value, ToolContext) -> R + Send + Sync + 'static,
    ) -> Self {
        let run = Arc::new(run);
        self.with_handler(Arc::new(
            move |arguments, context: ToolContext| -> BoxFuture<ToolOutcome> {
                let (run, span) = (Arc::clone(&run), context.span());
                Box::pin(async move {
                    let mut task = AbortOnDrop(tokio::task::spawn_blocking(move || {
                        span.in_scope(|| run(arguments, context).into_outcome())
                    }));
                    match (&mut task.0).await {
                        Ok(outcome) => outcome,
                        Err(failed) => match failed.try_into_panic() {
                            Ok(panic) => std::panic::resume_unwind(panic),
                            Err(_) => ToolOutcome::error("the runtime shut down"),
                        },
                    }
                })
            },
        ))
    }

    /// The same tool, run by this handler.
    pub fn with_handler(mut self, handler: Arc<dyn Handler>) -> Self {
        let layers = self.layers.iter().cloned();
        self.handler = Some(layers.fold(handler, |next, layer| layered(layer, next)));
        self
    }

    /// The same tool with a layer around its handler, outside of the layers that it has; see [layers](crate::layers).
    pub fn layer(mut self, layer: impl Layer) -> Self {
        let layer: Arc<dyn Layer> = Arc::new(layer);
        self.handler = self.handler.map(|next| layered(Arc::clone(&layer), next));
        self.layers.push(layer);
        self
    }

    mynah_data::setters! { self => self;
        /// Sets the name of the handler in a registry. It is needed to store an engine that has the
        /// tool.
        registered_as(name: impl Into<String>) = Some(name.into());
    }

    /// Hands calls to the caller instead of running them. A call that runs after a person approved
    /// it was approved once: a replay uses its record. In a [loop of your own](crate::Context) a call
    /// runs only if it is [approved](crate::CallTool::approved).
    pub fn manual(self) -> Self {
        self.with(|spec| spec.manual = true)
    }

    /// The same tool, whose calls need a person's approval, or are never permitted.
    ///
    /// With [`Approval::Ask`] the run waits for a decision, as it does for a [manual](Self::manual)
    /// tool. The difference: the engine runs the call when it is approved, so the tool must have a
    /// handler. With [`Approval::Deny`] the tool never runs, regardless of the engine's policy or a
    /// person's decision.
    ///
    /// A [loop of your own](crate::Context) decides itself: it makes the call with
    /// [`CallTool::approved`](crate::CallTool::approved). Without that, the call is refused with `denied`.
    ///
    /// ```
    /// # mod mynah { pub use mynah_step::*; }
    /// use mynah::{Approval, Tool};
    /// use serde_json::json;
    ///
    /// let pay = Tool::new("pay", "Pays an invoice", json!({})).approval(Approval::Ask).handler(async |_, _| "paid");
    /// ```
    pub fn approval(self, approval: Approval) -> Self {
        self.with(|spec| spec.approval = approval)
    }

    /// Declares that calls may run twice without harm, and sets the number of attempts after
    /// transient failures, over all processes of a run. An attempt that was cut off with its
    /// process does not count.
    pub fn idempotent(self, max_attempts: u32) -> Self {
        self.with(|spec| {
            spec.idempotent = true;
            spec.max_attempts = max_attempts;
        })
    }

    /// Answers calls from the records in a replay: the tool does not run again.
    pub fn recorded(mut self) -> Self {
        self.recorded = true;
        self
    }

    /// Declares that calls start runs of their own. Calls of one answer that do share what is left of the run's
    /// [budget](ToolContext::budget_left): each gets an equal part.
    pub fn delegating(mut self) -> Self {
        self.delegating = true;
        self
    }

    /// The same tool with a time limit of its own. A limit of zero is refused when the tool is used.
    pub fn timeout(self, limit: Duration) -> Self {
        self.with(|spec| {
            // A limit that is there does not vanish by rounding.
            let millis = limit.as_nanos().div_ceil(1_000_000);
            spec.timeout_ms = Some(u64::try_from(millis).unwrap_or(u64::MAX));
        })
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut ToolSpec)) -> Self {
        change(Arc::make_mut(&mut self.spec));
        self
    }

    /// The tool's name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its specification for the model.
    pub fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    /// Whether a replay takes its results from the records: it is set so, is manual, or asks for approval.
    pub fn is_recorded(&self) -> bool {
        self.recorded || self.needs_decision()
    }

    /// Whether a call runs only after a decision about it: the tool is manual, or asks for approval.
    pub(crate) fn needs_decision(&self) -> bool {
        self.spec.manual || self.spec.approval == Approval::Ask
    }

    /// Whether its calls start runs of their own.
    pub fn is_delegating(&self) -> bool {
        self.delegating
    }

    /// What runs when it is called.
    pub fn get_handler(&self) -> Option<&Arc<dyn Handler>> {
        self.handler.as_ref()
    }

    /// The name of the handler in a registry.
    pub fn registered_name(&self) -> Option<&str> {
        self.registered_as.as_deref()
    }

    /// The arguments of a call as the handler gets them, if they are JSON and fit the schema.
    ///
    /// Optional members that are `null`, though their schemas permit none, are left out: providers
    /// that require all members make models answer so.
    ///
    /// # Errors
    /// `invalid_arguments`, with the place and the reason.
    pub fn check_arguments(&self, call: &ToolCall) -> Result<Value> {
        let invalid = |why: String| failed(&call.name, ToolReason::InvalidArguments, why);
        if let Some(why) = call.argument_error() {
            return Err(invalid(format!("the arguments are not valid JSON: {why}")));
        }
        match self.check() {
            Ok(check) => check.fitting(&call.arguments).map_err(invalid),
            Err(why) => Err(invalid(why.clone())),
        }
    }

    /// Why the arguments of its calls cannot be checked, so that none may reach it: a schema that is not JSON Schema, or
    /// refers to what does not stand in it.
    pub fn schema_error(&self) -> Option<&str> {
        self.check().as_ref().err().map(String::as_str)
    }

    fn check(&self) -> &Check {
        self.check.get_or_init(|| {
            SchemaCheck::new(&self.spec.schema).map_err(|why| {
                format!("the schema of tool {:?} cannot be used: {why}", self.name())
            })
        })
    }
}

/// Keeps a blocking function from starting if its call was dropped before it got a thread.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

mynah_data::partial_debug! { Tool { spec, registered_as } }

/// What runs when a tool is called. Functions of arguments and context are handlers.
pub trait Handler: Send + Sync + 'static {
    /// Runs one call.
    fn call(&self, arguments: Value, context: ToolContext) -> BoxFuture<ToolOutcome>;
}

impl<F: Fn(Value, ToolContext) -> BoxFuture<ToolOutcome> + Send + Sync + 'static> Handler for F {
    fn call(&self, arguments: Value, context: ToolContext) -> BoxFuture<ToolOutcome> {
        self(arguments, context)
    }
}

/// Runs a tool's handler. Replace it to run tools elsewhere, or not at all.
pub trait ToolExecutor: Send + Sync + 'static {
    /// The name under which a stored engine knows the executor.
    fn name(&self) -> &str;

    /// Runs one call whose arguments were checked.
    ///
    /// # Errors
    /// What kept the tool from running. What the tool itself reports is an outcome.
    fn execute(
        &self,
        tool: &Tool,
        arguments: Value,
        context: ToolContext,
    ) -> BoxFuture<Result<ToolOutcome>>;
}

/// The default executor: calls the tool's own handler.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandlerExecutor;

impl ToolExecutor for HandlerExecutor {
    fn name(&self) -> &str {
        "handler"
    }

    fn execute(
        &self,
        tool: &Tool,
        arguments: Value,
        context: ToolContext,
    ) -> BoxFuture<Result<ToolOutcome>> {
        match tool.get_handler() {
            Some(handler) => {
                let outcome = handler.call(arguments, context);
                Box::pin(outcome.map(Ok))
            }
            None => {
                let error = failed(tool.name(), ToolReason::NotFound, "the tool has no handler");
                Box::pin(async move { Err(error) })
            }
        }
    }
}

/// Turns a tool's result into the text that the model reads.
pub trait ToolResultEncoder: Send + Sync + 'static {
    /// The name under which a stored engine knows the encoder.
    fn name(&self) -> &str;

    /// The text of a value; the same value always gives the same text.
    ///
    /// # Errors
    /// A value that has no text.
    fn encode(&self, value: &Value) -> std::result::Result<String, EncodeError>;
}

/// Why a value has no text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodeError(pub String);

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for EncodeError {}

/// The default encoder: text as it is, everything else as compact JSON.
#[derive(Clone, Copy, Debug, Default)]
pub struct JsonEncoder;

impl ToolResultEncoder for JsonEncoder {
    fn name(&self) -> &str {
        "json"
    }

    fn encode(&self, value: &Value) -> std::result::Result<String, EncodeError> {
        match value {
            Value::String(text) => Ok(text.clone()),
            value => Ok(value.to_string()),
        }
    }
}

/// How long a call may take, and how long it pauses between attempts.
#[derive(Clone)]
#[non_exhaustive]
pub struct ToolLimits {
    /// The time limit of an attempt, unless the tool has its own.
    pub timeout: Duration,
    /// The pause after a failed attempt, from 1. By default 100 ms, doubling, at most 10 s, with up
    /// to a quarter of random jitter.
    pub backoff: Option<Backoff>,
    /// A longer pause between two attempts is an outcome, [`ToolOutcome::Later`], and the run continues with the next attempt. If not set,
    /// the call itself waits.
    pub park_after: Option<Duration>,
}

mynah_data::partial_debug! { ToolLimits { timeout, park_after } }

/// The pause after a failed attempt, from 1.
pub(crate) type Backoff = Arc<dyn Fn(u32) -> Duration + Send + Sync>;

impl ToolLimits {
    /// With this time limit.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, backoff: None, park_after: None }
    }
}

/// A call that ran to its end.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Settled {
    /// The outcome, or what kept it from running.
    pub outcome: Result<ToolOutcome>,
    /// The last attempt, from 1.
    pub attempts: u32,
}

impl Settled {
    /// With this outcome, at its last attempt.
    pub fn new(outcome: Result<ToolOutcome>, attempts: u32) -> Self {
        Self { outcome, attempts }
    }

    /// The reason of the failure, if the call failed.
    pub fn failure(&self) -> Option<&str> {
        match &self.outcome {
            Ok(ToolOutcome::Error { .. }) => Some(ToolReason::Failed.as_str()),
            outcome => outcome.as_ref().err().map(Error::reason),
        }
    }
}

/// Runs one call: checks the arguments, enforces the time limit, retries transient failures of an
/// idempotent tool, and turns a panic into an error. Dropping the future drops the tool.
///
/// In a recorded run, every attempt after the first is announced, and every failed one recorded, as
/// it happens. The call has a span of its own, `mynah.tool`.
pub fn run_tool(
    executor: Arc<dyn ToolExecutor>,
    tool: Tool,
    mut context: ToolContext,
    limits: ToolLimits,
) -> impl Future<Output = Settled> + Send {
    let (run_id, call, failure) =
        (context.run_id().map(RunId::as_str), &context.call.id, tracing::field::Empty);
    let span = tracing::info_span!("mynah.tool", tool = tool.name(), run_id, call, failure);
    context.span = span.clone();
    // Borrowed where it is used: an async function with these parameters would hold each of them twice.
    let mut attempts = Attempts { executor, tool, context, limits };
    async move {
        let settled = attempts.run().instrument(span.clone()).await;
        span.record("failure", settled.failure());
        settled
    }
}

/// A call that runs.
struct Attempts {
    executor: Arc<dyn ToolExecutor>,
    tool: Tool,
    context: ToolContext,
    limits: ToolLimits,
}

impl Attempts {
    /// The attempts of a call, until one is the last.
    async fn run(&mut self) -> Settled {
        let Self { executor, tool, context, limits } = self;
        let first = context.attempt();
        let spec = tool.spec();
        let arguments = match spec.approval {
            Approval::Deny => Err(denied(&context.call)),
            _ => tool.check_arguments(&context.call),
        };
        let mut arguments = match arguments {
            Ok(arguments) => arguments,
            Err(error) => return Settled { outcome: Err(error), attempts: first },
        };
        let timeout = spec.timeout_ms.map_or(limits.timeout, Duration::from_millis);
        let tries = if spec.idempotent { spec.max_attempts.max(1) } else { 1 };
        // An attempt that was cut off with its process does not count, because its outcome is unknown.
        let last = first.saturating_add(tries.saturating_sub(context.failed).max(1) - 1);
        loop {
            let attempt = context.attempt();
            let given =
                if attempt == last { std::mem::take(&mut arguments) } else { arguments.clone() };
            let under_way = context.effects.under_way();
            let mut outcome = attempt_once(executor.as_ref(), tool, given, context, timeout).await;
            if let Ok(ToolOutcome::Later { wait: Wait::ForMs(time), state }) = outcome {
                // When it is over is part of the records.
                outcome = Box::pin(context.now()).await.map(|now| {
                    let wait = Wait::UntilMs(millis(since_1970(now)).saturating_add(time));
                    ToolOutcome::Later { wait, state }
                });
            }
            drop(under_way);
            if let Ok(ToolOutcome::Error { error, transient: true }) = &outcome
                && attempt < last
            {
                let (run_id, call) =
                    (context.run_id().map(RunId::as_str), context.call.id.as_str());
                tracing::info!(tool = tool.name(), run_id, call, attempt, %error, "tool failed; retrying");
                // Rare, and large.
                let parked = match Box::pin(try_again(context, error, limits)).await {
                    Ok(None) => continue,
                    Ok(Some(until)) => Ok(Wait::UntilMs(until)),
                    Err(error) => Err(error),
                };
                outcome = parked.map(|wait| ToolOutcome::Later { wait, state: None });
            }
            return Settled { outcome, attempts: attempt };
        }
    }
}

/// Records a failed attempt, waits, and announces the next. Returns until when the run waits, if that is for long.
async fn try_again(
    context: &mut ToolContext,
    reported: &Value,
    limits: &ToolLimits,
) -> Result<Option<u64>> {
    let (call_id, attempt) = (context.call.id.clone(), context.attempt());
    let effects = &context.effects;
    if effects.is_kept() {
        let error = bounded(&context.call, tool_failed(&context.call, reported));
        let (resolution, content) = (Resolution::Retried, String::new());
        let failed =
            Fact::ToolFailed { call_id, attempt, error, resolution, content, duration_ms: None };
        effects.commit(failed, false).await?;
    }
    if effects.replaying {
        let journal = effects.journal.as_ref();
        let parked = |journal: &Arc<Journal>| {
            journal.records(|cursor| cursor.parked_until(&context.call.id, attempt))
        };
        if let Some(until) = journal.and_then(parked) {
            return Ok(Some(until));
        }
    } else {
        let world = effects.world.as_ref();
        let own = limits.backoff.as_ref();
        let pause = own.map_or_else(|| jittered(world, backoff(attempt), 0.25), |f| f(attempt));
        if limits.park_after.is_some_and(|longest| pause > longest) {
            return Ok(Some(millis(since_1970(world.now()).saturating_add(pause))));
        }
        // The next attempt then ends at once.
        unless_cancelled(context.cancelled.clone(), tokio::time::sleep(pause)).await;
    }
    context.announce_next().await.map(|()| None)
}

/// What a tool itself reported as its error.
pub fn tool_failed(call: &ToolCall, reported: &Value) -> Error {
    let text = reported.as_str().map_or_else(|| reported.to_string(), str::to_owned);
    Error::tool(ToolReason::Failed)
        .with_message(format!("tool error ({}): {text}", call.name))
        .with("tool_name", call.name.as_str())
        .with("error", reported.clone())
}

/// The error of a call that is not permitted.
pub fn denied(call: &ToolCall) -> Error {
    failed(&call.name, ToolReason::Denied, "the call is not permitted")
}

/// 100 ms, doubling, at most 10 s.
fn backoff(attempt: u32) -> Duration {
    Duration::from_millis((100u64 << (attempt - 1).min(7)).min(10_000))
}

async fn attempt_once(
    executor: &dyn ToolExecutor,
    tool: &Tool,
    arguments: Value,
    context: &ToolContext,
    timeout: Duration,
) -> Result<ToolOutcome> {
    // The handler itself may panic before it gives its future, so making it belongs inside the guard too.
    let run = async { executor.execute(tool, arguments, context.clone()).await };
    let mut run = pin!(AssertUnwindSafe(run).catch_unwind());
    let mut limit = pin!(tokio::time::sleep(timeout));
    let alone = Arc::default();
    let in_time = poll_fn(|cx| {
        // Only a replay asks whether a tool waits for nothing but its turn.
        let (polled, is_alone) = match context.effects.replaying {
            true => poll_alone(&alone, run.as_mut(), cx),
            false => (run.as_mut().poll(cx), false),
        };
        if let Poll::Ready(done) = polled {
            return Poll::Ready(Ok(done));
        }
        context.effects.is_alone(is_alone);
        loop {
            ready!(limit.as_mut().poll(cx));
            // What it waits in a replay for others to do first is not its own time.
            let until = context.effects.busy_since().and_then(|since| since.checked_add(timeout));
            match until.filter(|until| *until > Instant::now()) {
                Some(until) => limit.as_mut().reset(until),
                None => return Poll::Ready(Err(())),
            }
        }
    });
    let failed = |reason: ToolReason, why: String| failed(tool.name(), reason, why);
    match unless_cancelled(context.cancelled.clone(), in_time).await {
        Some(Ok(Ok(outcome))) => match outcome {
            Ok(outcome) => outcome.misuse().map_or(Ok(outcome), Err),
            Err(error) => Err(error),
        },
        Some(Ok(Err(panic))) => Err(failed(ToolReason::HandlerRaised, panic_text(panic.as_ref()))),
        None => Err(failed(ToolReason::Cancelled, "the run was ended".to_owned())),
        Some(Err(_)) => {
            Err(failed(ToolReason::Timeout, format!("no result after {} ms", timeout.as_millis()))
                .with("timeout_ms", json!(timeout.as_millis() as u64)))
        }
    }
}

/// The message of a caught panic, truncated if it is too long to be recorded.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    const LONGEST: usize = 64 << 10;
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("a panic without a message");
    text[..text.floor_char_boundary(LONGEST)].to_owned()
}
