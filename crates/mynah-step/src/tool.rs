//! Tools: what a model can ask for beside text.

use std::{
    any::Any,
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use futures_util::FutureExt;
use mynah_data::{Error, Metadata, Result, ToolCall, ToolOutcome, ToolReason, ToolSpec};
use serde_json::{Value, json};

use crate::{BoxFuture, World, world::jittered};

/// A tool: what the model is told of it, and what runs when it is called.
///
/// ```
/// use mynah_step::Tool;
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
pub struct Tool {
    spec: Arc<ToolSpec>,
    handler: Option<Arc<dyn Handler>>,
    registered_as: Option<String>,
    recorded: bool,
    validator: Arc<OnceLock<Option<jsonschema::Validator>>>,
}

impl Tool {
    /// A tool without a handler. The model may call it; running the call fails unless the tool is manual.
    pub fn new(name: impl Into<String>, description: impl Into<String>, schema: Value) -> Self {
        Self::from_spec(ToolSpec::new(name, description, schema))
    }

    /// A tool without a handler, from its stored description.
    pub fn from_spec(spec: ToolSpec) -> Self {
        Self {
            spec: Arc::new(spec),
            handler: None,
            registered_as: None,
            recorded: false,
            validator: Arc::default(),
        }
    }

    /// The same tool, run by an async function of the arguments and the [context](ToolContext).
    ///
    /// The function is polled where the chat is polled: side by side with its siblings, and gone when the chat is
    /// dropped. What keeps a processor busy belongs into [`Tool::blocking`].
    pub fn handler<F, Fut>(
        self,
        run: impl Fn(Value, ToolContext) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Fut: Future<Output = F> + Send + 'static,
        F: Into<ToolOutcome>,
    {
        self.with_handler(Arc::new(move |arguments, context| -> BoxFuture<ToolOutcome> {
            let outcome = run(arguments, context);
            Box::pin(async move { outcome.await.into() })
        }))
    }

    /// The same tool, run by an ordinary function on a thread of its own: for what computes or blocks.
    ///
    /// Such tools really run in parallel. A thread cannot be stopped from outside: if the chat is dropped, the function
    /// runs to its end and its outcome is thrown away.
    pub fn blocking<T: Into<ToolOutcome>>(
        self,
        run: impl Fn(Value, ToolContext) -> T + Send + Sync + 'static,
    ) -> Self {
        let run = Arc::new(run);
        self.with_handler(Arc::new(move |arguments, context| -> BoxFuture<ToolOutcome> {
            let run = Arc::clone(&run);
            Box::pin(async move {
                let mut task = AbortOnDrop(tokio::task::spawn_blocking(move || {
                    run(arguments, context).into()
                }));
                match (&mut task.0).await {
                    Ok(outcome) => outcome,
                    Err(failed) => match failed.try_into_panic() {
                        Ok(panic) => std::panic::resume_unwind(panic),
                        Err(_) => ToolOutcome::error("the runtime shut down"),
                    },
                }
            })
        }))
    }

    /// The same tool, run by this handler.
    pub fn with_handler(mut self, handler: Arc<dyn Handler>) -> Self {
        self.handler = Some(handler);
        self
    }

    /// The same tool, whose handler a registry knows by this name: needed to store an engine that has it.
    pub fn registered_as(mut self, name: impl Into<String>) -> Self {
        self.registered_as = Some(name.into());
        self
    }

    /// The same tool, whose calls are handed to the caller instead of being run.
    pub fn manual(self) -> Self {
        self.with(|spec| spec.manual = true)
    }

    /// The same tool, whose calls may be run twice without harm, and are tried so often in all after transient failures.
    pub fn idempotent(self, max_attempts: u32) -> Self {
        self.with(|spec| {
            spec.idempotent = true;
            spec.max_attempts = max_attempts;
        })
    }

    /// The same tool, whose records answer for it when a run is performed again: it is not run a second time.
    pub fn recorded(mut self) -> Self {
        self.recorded = true;
        self
    }

    /// The same tool with a time limit of its own.
    pub fn timeout(self, limit: Duration) -> Self {
        self.with(|spec| {
            // A limit that is there does not vanish by rounding.
            let millis = limit.as_nanos().div_ceil(1_000_000).max(1);
            spec.timeout_ms = Some(u64::try_from(millis).unwrap_or(u64::MAX));
        })
    }

    fn with(mut self, change: impl FnOnce(&mut ToolSpec)) -> Self {
        change(Arc::make_mut(&mut self.spec));
        self
    }

    /// The tool's name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// What the model is told of it.
    pub fn spec(&self) -> &Arc<ToolSpec> {
        &self.spec
    }

    /// Whether its records answer for it when a run is performed again.
    pub fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// What runs when it is called.
    pub fn get_handler(&self) -> Option<&Arc<dyn Handler>> {
        self.handler.as_ref()
    }

    /// The name under which a registry knows the handler.
    pub fn registered_name(&self) -> Option<&str> {
        self.registered_as.as_deref()
    }

    /// The arguments of a call, if they are JSON and fit the schema.
    fn check_arguments(&self, call: &ToolCall) -> Result<Value> {
        let invalid = |why: String| {
            Error::tool(ToolReason::InvalidArguments)
                .with_message(format!("tool error ({}): invalid_arguments: {why}", call.name))
                .with("tool_name", call.name.as_str())
        };
        if let Some(why) = call.argument_error() {
            return Err(invalid(format!("the arguments are not valid JSON: {why}")));
        }
        if let Some(Err(error)) = self.validator().map(|v| v.validate(&call.arguments)) {
            let place = error.instance_path().to_string();
            let place = if place.is_empty() { "the arguments".to_owned() } else { place };
            return Err(invalid(format!("{place}: {error}")));
        }
        Ok(call.arguments.clone())
    }

    /// The compiled schema; none where it is not JSON Schema, or asks for nothing.
    fn validator(&self) -> Option<&jsonschema::Validator> {
        let compile = || {
            let schema = self.spec.schema.as_object()?;
            if schema.is_empty() {
                return None;
            }
            match jsonschema::validator_for(&self.spec.schema) {
                Ok(validator) => Some(validator),
                Err(error) => {
                    tracing::warn!(tool = self.name(), %error, "not JSON Schema; arguments go unchecked");
                    None
                }
            }
        };
        self.validator.get_or_init(compile).as_ref()
    }
}

/// Keeps a function that has no thread yet from getting one when nobody waits for it any more.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool")
            .field("spec", &self.spec)
            .field("registered_as", &self.registered_as)
            .finish()
    }
}

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

/// What a tool may know of the call it serves. Cheap to clone.
#[derive(Clone)]
pub struct ToolContext {
    /// The caller's own data: that of the call, else of the session, else of the engine.
    pub context: Arc<Metadata>,
    /// The session's id.
    pub session_id: Option<Arc<str>>,
    /// The id of the chat, step or turn.
    pub request_id: Arc<str>,
    /// The call itself.
    pub call: Arc<ToolCall>,
    /// The engine that runs the call; `mynah::Engine::of` gives it its type back.
    pub engine: Option<Arc<dyn Any + Send + Sync>>,
    /// Where time and chance come from.
    pub world: Arc<dyn World>,
}

impl ToolContext {
    /// For a call in this world, with nothing else known.
    pub fn new(call: impl Into<Arc<ToolCall>>, world: Arc<dyn World>) -> Self {
        Self {
            context: Arc::default(),
            session_id: None,
            request_id: Arc::from(""),
            call: call.into(),
            engine: None,
            world,
        }
    }

    /// The time of day.
    pub fn now(&self) -> SystemTime {
        self.world.now()
    }

    /// A number that nobody can guess.
    pub fn random(&self) -> u64 {
        self.world.random()
    }

    /// Does something that has an effect outside the run, under a name.
    pub async fn side_effect<T>(&self, name: &str, effect: impl Future<Output = T>) -> T {
        tracing::debug!(name, call = self.call.id, "side effect");
        effect.await
    }
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext")
            .field("call", &self.call)
            .field("context", &self.context)
            .field("session_id", &self.session_id)
            .field("request_id", &self.request_id)
            .finish_non_exhaustive()
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
                Box::pin(async move { Ok(outcome.await) })
            }
            None => {
                let error = Error::tool(ToolReason::NotFound)
                    .with_message(format!(
                        "tool error ({}): not_found: the tool has no handler",
                        tool.name()
                    ))
                    .with("tool_name", tool.name());
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

/// How long and how often a call may try.
#[derive(Clone, Copy, Debug)]
pub struct ToolLimits {
    /// The time limit of a try, unless the tool has its own.
    pub timeout: Duration,
}

/// A call that ran to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    /// What came of it, or what kept it from running.
    pub outcome: Result<ToolOutcome>,
    /// The last try, from 1.
    pub attempts: u32,
}

/// Runs one call: checks the arguments, keeps the time limit, tries again after transient failures of an idempotent tool,
/// and turns a panic into an error. Dropping the future drops the tool.
pub async fn run_tool(
    executor: Arc<dyn ToolExecutor>,
    tool: Tool,
    context: ToolContext,
    limits: ToolLimits,
) -> Settled {
    let world = Arc::clone(&context.world);
    let mut arguments = match tool.check_arguments(&context.call) {
        Ok(arguments) => arguments,
        Err(error) => {
            return Settled { outcome: Err(error), attempts: 1 };
        }
    };
    let spec = Arc::clone(tool.spec());
    let timeout = spec.timeout_ms.map_or(limits.timeout, Duration::from_millis);
    let last = if spec.idempotent { spec.max_attempts.max(1) } else { 1 };
    let mut attempt = 1;
    loop {
        let given =
            if attempt == last { std::mem::take(&mut arguments) } else { arguments.clone() };
        let outcome = attempt_once(executor.as_ref(), &tool, given, context.clone(), timeout).await;
        let failed_for_now = matches!(outcome, Ok(ToolOutcome::Error { transient: true, .. }));
        if attempt == last || !failed_for_now {
            return Settled { outcome, attempts: attempt };
        }
        tracing::info!(tool = tool.name(), attempt, "tool failed and is tried again");
        tokio::time::sleep(jittered(world.as_ref(), backoff(attempt), 0.25)).await;
        attempt += 1;
    }
}

/// 100 ms, doubling, at most 10 s.
fn backoff(attempt: u32) -> Duration {
    Duration::from_millis((100u64 << (attempt - 1).min(7)).min(10_000))
}

async fn attempt_once(
    executor: &dyn ToolExecutor,
    tool: &Tool,
    arguments: Value,
    context: ToolContext,
    timeout: Duration,
) -> Result<ToolOutcome> {
    // The handler itself may panic before it gives its future, so making it belongs inside the guard too.
    let run =
        AssertUnwindSafe(async { executor.execute(tool, arguments, context).await }).catch_unwind();
    let failed = |reason: ToolReason, why: String| {
        Error::tool(reason)
            .with_message(format!("tool error ({}): {reason}: {why}", tool.name()))
            .with("tool_name", tool.name())
    };
    match tokio::time::timeout(timeout, run).await {
        Ok(Ok(outcome)) => match outcome {
            Ok(outcome) => outcome.misuse().map_or(Ok(outcome), Err),
            Err(error) => Err(error),
        },
        Ok(Err(panic)) => Err(failed(ToolReason::HandlerRaised, panic_text(panic.as_ref()))),
        Err(_) => {
            Err(failed(ToolReason::Timeout, format!("no result after {} ms", timeout.as_millis()))
                .with("timeout_ms", json!(timeout.as_millis() as u64)))
        }
    }
}

/// What a caught panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
