//! What a call may ask for beyond its messages.

use std::{fmt, sync::Arc, time::Duration};

use mynah_data::{Error, Metadata, Result};
use mynah_log::{Durability, Log};
use mynah_step::{Tool, ToolExecutor, ToolResultEncoder};
use secrecy::SecretString;
use serde_json::Value;

use crate::{
    cancel::CancelHandle,
    code::HALT_WHEN,
    run::{ErrorPolicy, HaltWhen, Observer},
};

/// The options of a call. Every builder of a call has the same methods; this type is for options that come from
/// elsewhere: a file, another program, a shared default.
///
/// What is not said here comes from the request, then from the engine's params, then from the library. Members that Mynah
/// does not know go to the provider as they are.
///
/// ```
/// use mynah::{ToolMode, Options};
/// use serde_json::json;
///
/// let options = Options::from_json(json!({"max_turns": 4, "reasoning_effort": "high"}))?.mode(ToolMode::Manual);
/// assert_eq!(options.values()["max_turns"], 4);
/// # Ok::<(), mynah::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Options {
    /// All that can be said in JSON, checked when the call is made.
    values: Metadata,
    pub(crate) tools: Option<Vec<Tool>>,
    /// The caller's own condition, and what the records tell of it.
    pub(crate) halt_when: Option<(Value, HaltWhen)>,
    pub(crate) on_tool_error: Option<ErrorPolicy>,
    pub(crate) on_event: Option<Observer>,
    pub(crate) executor: Option<Arc<dyn ToolExecutor>>,
    pub(crate) encoder: Option<Arc<dyn ToolResultEncoder>>,
    /// What records tell of code that need not be given again.
    pub(crate) told: Metadata,
    pub(crate) api_key: Option<SecretString>,
    pub(crate) cancel: Option<CancelHandle>,
    pub(crate) log: Option<Arc<dyn Log>>,
    pub(crate) durability: Option<Durability>,
    pub(crate) emit_timeout: Option<Duration>,
}

/// Names that belong to the engine or to the call itself: as options of a call they never reach a provider.
pub(crate) const DENIED: [&str; 13] = [
    "adapter",
    "adapter_opts",
    "model",
    "tools",
    "tool_executor",
    "tool_result_encoder",
    "image_adapter",
    "params",
    "context",
    "retry",
    "middleware",
    "metadata",
    "api_key",
];

/// Those of them that providers have too: among a request's own options and an engine's params they are the provider's.
pub(crate) const SHARED: [&str; 2] = ["tools", "metadata"];

/// Names of what concerns the caller alone: a run is the same whatever they say, so its records do not hold them.
pub(crate) const UNRECORDED: [&str; 4] =
    ["emit_text_deltas", "emit_tool_deltas", "include_raw_chunks", "request_id"];

/// Options that are functions: said by name they would be lost, so they are refused.
pub(crate) const CODE: [&str; 2] = [HALT_WHEN, "on_event"];

impl Options {
    /// Nothing said.
    pub fn new() -> Self {
        Self::default()
    }

    /// From a JSON object with the names of the builder methods. Null means nothing said.
    ///
    /// # Errors
    /// Anything but an object. The values themselves are checked when the call is made.
    pub fn from_json(value: Value) -> Result<Self> {
        match value {
            Value::Object(values) => {
                let set = |options: Self, (name, value): (String, Value)| options.set(&name, value);
                Ok(values.into_iter().fold(Self::default(), set))
            }
            _ => Err(Error::invalid_option("options", "not_a_map")),
        }
    }

    /// Of what can be said in JSON, only this.
    pub(crate) fn only(mut self, name: &str) -> Self {
        self.values.retain(|said, _| said == name);
        self
    }

    /// Only those that say how the caller watches a run and stops it.
    pub(crate) fn as_watched(&self) -> Self {
        let mut values = self.values.clone();
        values.retain(|name, _| UNRECORDED.contains(&name.as_str()));
        let (on_event, cancel) = (self.on_event.clone(), self.cancel.clone());
        Self { values, on_event, cancel, ..Self::default() }
    }

    /// What was said, as far as it can be said in JSON.
    pub fn values(&self) -> &Metadata {
        &self.values
    }

    /// The same options with one more, by its name.
    pub fn set(mut self, name: &str, value: impl Into<Value>) -> Self {
        match (name, value.into()) {
            // A key does not lie around with the rest, which can be printed.
            ("api_key", Value::String(key)) => self.api_key = Some(SecretString::from(key)),
            ("adapter_opts", Value::Object(mut opts)) => {
                if let Some(Value::String(key)) = opts.shift_remove("api_key") {
                    self.api_key = Some(SecretString::from(key));
                }
                self.values.insert(name.to_owned(), Value::Object(opts));
            }
            (name, value) => {
                // Of two policies for tool errors the newer counts, whichever way it was said.
                self.on_tool_error = self.on_tool_error.filter(|_| name != "on_tool_error");
                self.values.insert(name.to_owned(), value);
            }
        }
        self
    }

    /// The same options, overlaid by others.
    pub fn overlay(mut self, over: Self) -> Self {
        if over.values.get("on_tool_error").is_some_and(|policy| !policy.is_null()) {
            self.on_tool_error = None;
        }
        self.values.extend(said(over.values));
        self.tools = over.tools.or(self.tools);
        self.halt_when = over.halt_when.or(self.halt_when);
        self.on_tool_error = over.on_tool_error.or(self.on_tool_error);
        self.on_event = over.on_event.or(self.on_event);
        self.executor = over.executor.or(self.executor);
        self.encoder = over.encoder.or(self.encoder);
        self.told.extend(over.told);
        self.api_key = over.api_key.or(self.api_key);
        self.cancel = over.cancel.or(self.cancel);
        self.log = over.log.or(self.log);
        self.durability = over.durability.or(self.durability);
        self.emit_timeout = over.emit_timeout.or(self.emit_timeout);
        self
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("values", &self.values)
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}

/// The setters, once for [`Options`] and once for each builder of a call.
macro_rules! option_setters {
    ($type:ty, $self_:ident => $options:expr) => {
        impl $type {
            /// Sets an option by its name: one of Mynah's, or one of the provider's own.
            pub fn param(mut $self_, name: &str, value: impl Into<serde_json::Value>) -> Self {
                let options = std::mem::take(&mut $options);
                $options = options.set(name, value);
                $self_
            }

            /// The model, instead of the engine's.
            pub fn model(self, model: impl Into<mynah_data::ModelRef>) -> Self {
                self.param("model", serde_json::json!(model.into()))
            }

            /// How many times the model is called at most; 8 if nobody says.
            pub fn max_turns(self, turns: u32) -> Self {
                self.param("max_turns", turns)
            }

            /// What the run may spend at most, all its calls and processes together. A chat that would spend more ends with
            /// `budget_exceeded`; a single call or step fails with it.
            ///
            /// ```
            /// # use mynah::{Engine, testing::Scripted};
            /// # use serde_json::json;
            /// use mynah::Budget;
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
            /// # let engine = Engine::new(Scripted::new([json!([{"text": "far too "}, {"text": "much"}, {"finish": "stop"}])])?);
            /// let result = engine.chat("hi").budget(Budget::new().max_output_tokens(1)).await?;
            /// assert_eq!(result.halted_reason.as_str(), "budget_exceeded");
            /// assert_eq!(result.metadata["budget"]["limit"], "output_tokens");
            /// assert_eq!(result.text(), "far too ");
            /// let error = result.into_text().unwrap_err();
            /// assert!(error.to_string().ends_with(": budget_exceeded: output_tokens: 2, of at most 1"), "{error}");
            /// # Ok(()) }
            /// ```
            pub fn budget(self, budget: mynah_data::Budget) -> Self {
                self.param("budget", serde_json::json!(budget))
            }

            /// Whether tools are run or handed to the caller.
            pub fn mode(self, mode: mynah_data::ToolMode) -> Self {
                self.param("mode", serde_json::json!(mode))
            }

            /// Sampling temperature, 0 to 2.
            pub fn temperature(self, temperature: f64) -> Self {
                // JSON has no word for what is not a number; it must not pass for nothing said.
                match serde_json::Number::from_f64(temperature) {
                    Some(number) => self.param("temperature", serde_json::Value::Number(number)),
                    None => self.param("temperature", temperature.to_string()),
                }
            }

            /// The most tokens that the model may write in one answer.
            pub fn max_tokens(self, tokens: u64) -> Self {
                self.param("max_tokens", tokens)
            }

            /// Whether and which tool the model is to call.
            pub fn tool_choice(self, choice: mynah_data::ToolChoice) -> Self {
                self.param("tool_choice", serde_json::json!(choice))
            }

            /// The form of the answer.
            pub fn response_format(self, format: mynah_data::ResponseFormat) -> Self {
                self.param("response_format", serde_json::json!(format))
            }

            /// Gives the answer its form by one more call after the tools.
            pub fn structured_finalize(self, on: bool) -> Self {
                self.param("structured_finalize", on)
            }

            /// What the model is told before that call; nothing if it is empty.
            pub fn structured_finalize_nudge(self, nudge: impl Into<String>) -> Self {
                self.param("structured_finalize_nudge", nudge.into())
            }

            /// The time limit of each tool call; 30 seconds if nobody says.
            pub fn tool_timeout(self, limit: std::time::Duration) -> Self {
                self.param("tool_timeout", $crate::options::millis(limit))
            }

            /// The time limit of the whole call. What was said and done until then is kept.
            pub fn deadline(self, limit: std::time::Duration) -> Self {
                self.param("deadline", $crate::options::millis(limit))
            }

            /// How many tools run side by side at most; 8 if nobody says.
            pub fn max_concurrency(self, tools: usize) -> Self {
                self.param("max_concurrency", tools)
            }

            /// How often processes may die one after the other before a recorded run made any progress. Then it is suspended with
            /// the reason `crash_loop` when it is resumed, until it is resumed once more. By default 10.
            pub fn max_crashes(self, crashes: u32) -> Self {
                self.param("max_crashes", crashes)
            }

            /// Whether an answer must come with the hash of what the provider sent, as `raw_response_hash` in its metadata;
            /// one without is an error.
            pub fn require_raw_response_hash(self, on: bool) -> Self {
                self.param("require_raw_response_hash", on)
            }

            /// What becomes of a side effect of a tool that fails.
            pub fn side_effect_errors(self, policy: $crate::SideEffectErrors) -> Self {
                self.param("side_effect_errors", serde_json::json!(policy))
            }

            /// What happens when the model calls a tool that the engine does not have.
            pub fn on_unknown_tool(self, policy: $crate::OnUnknownTool) -> Self {
                self.param("on_unknown_tool", serde_json::json!(policy))
            }

            /// When a model call that failed before its first event is tried again.
            pub fn retry(self, policy: mynah_step::RetryPolicy) -> Self {
                self.param("retry", serde_json::json!(policy))
            }

            /// Whether pieces of text are streamed. What is collected does not change.
            pub fn emit_text_deltas(self, on: bool) -> Self {
                self.param("emit_text_deltas", on)
            }

            /// Whether pieces of tool arguments are streamed. What is collected does not change.
            pub fn emit_tool_deltas(self, on: bool) -> Self {
                self.param("emit_tool_deltas", on)
            }

            /// Whether the provider's own chunks are streamed.
            pub fn include_raw_chunks(self, on: bool) -> Self {
                self.param("include_raw_chunks", on)
            }

            /// The caller's own data for tools, instead of the session's or the engine's.
            pub fn context(self, context: mynah_data::Metadata) -> Self {
                self.param("context", context)
            }

            /// The session's id for tools and caches.
            pub fn session_id(self, id: impl Into<String>) -> Self {
                self.param("session_id", id.into())
            }

            /// The id under which logs, tools and the response know the call; made up if nobody says.
            pub fn request_id(self, id: impl Into<String>) -> Self {
                self.param("request_id", id.into())
            }

            /// The adapter's own options, over the engine's. Adapters over HTTP take `headers`, as
            /// `{"headers": {"x-gateway-key": "…"}}`, to be sent with the call; they are not recorded, as they may hold keys.
            pub fn adapter_opts(self, opts: mynah_data::Metadata) -> Self {
                self.param("adapter_opts", opts)
            }

            /// Tools for this call: each replaces the engine's of the same name, or joins them.
            pub fn tools(mut $self_, tools: impl IntoIterator<Item = mynah_step::Tool>) -> Self {
                $options.tools = Some(tools.into_iter().collect());
                $self_
            }

            /// Halts after a turn for which this is true, unless something else ends the chat. Must depend on its argument
            /// alone: it is asked again when a run is replayed or resumed. The records tell only that there is one, so a resume
            /// that is given none is refused; for a replay to which none is given they tell when it held.
            pub fn halt_when(
                self,
                condition: impl Fn(&mynah_data::StepResult) -> bool + Send + Sync + 'static,
            ) -> Self {
                self.halt_when_named(true, condition)
            }

            /// The same, under a name that the records keep, or data of which it is made: whoever resumes the run can tell from
            /// them which condition it has, and one of another name is a change.
            ///
            /// ```
            /// # use mynah::{Engine, Tool, ToolOutcome, testing::Scripted};
            /// # use serde_json::json;
            /// use mynah::log::MemoryLog;
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
            /// # let engine = Engine::new(Scripted::new([
            /// #     json!([{"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"}]),
            /// # ])?).tool(Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("How many?")));
            /// let log = MemoryLog::new();
            /// let waiting = engine.chat("order").halt_when_named("v1", |_| false).record(&log).await?;
            ///
            /// let resume = engine.resume(&log, waiting.run_id.unwrap()).answer("two");
            /// let refused = resume.halt_when_named("v2", |_| true).await.unwrap_err();
            /// assert_eq!(refused.metadata()["diff"][0]["path"], "about.options.halt_when");
            /// # Ok(()) }
            /// ```
            pub fn halt_when_named(
                mut $self_,
                name: impl Into<serde_json::Value>,
                condition: impl Fn(&mynah_data::StepResult) -> bool + Send + Sync + 'static,
            ) -> Self {
                let condition = $crate::run::HaltWhen::Asked(std::sync::Arc::new(condition));
                $options.halt_when = Some((name.into(), condition));
                $self_
            }

            /// Halts when a tool fails, instead of telling the model.
            pub fn halt_on_tool_error(self) -> Self {
                self.param("on_tool_error", "halt")
            }

            /// Decides what happens when a tool fails. Must depend on its arguments alone: what it decided is recorded, and it is
            /// asked again when a replay runs the tool again, which must be given the same. The records tell only that there is
            /// one, so a resume that is given none is refused.
            pub fn on_tool_error(
                mut $self_,
                decide: impl Fn(&mynah_data::ToolCall, &mynah_data::Error) -> $crate::OnToolError + Send + Sync + 'static,
            ) -> Self {
                $options.on_tool_error = Some($crate::run::ErrorPolicy::Decide(std::sync::Arc::new(decide)));
                $self_
            }

            /// Watches every event of the model, whatever the filters say.
            pub fn on_event(mut $self_, watch: impl Fn(&mynah_data::Event) + Send + Sync + 'static) -> Self {
                $options.on_event = Some(std::sync::Arc::new(watch));
                $self_
            }

            /// What runs the tools, instead of the engine's. The records tell its name.
            pub fn tool_executor(mut $self_, executor: impl mynah_step::ToolExecutor) -> Self {
                $options.executor = Some(std::sync::Arc::new(executor));
                $self_
            }

            /// What turns tool results into text, instead of the engine's. The records tell its name, and the texts.
            pub fn tool_result_encoder(mut $self_, encoder: impl mynah_step::ToolResultEncoder) -> Self {
                $options.encoder = Some(std::sync::Arc::new(encoder));
                $self_
            }

            /// The key for this call alone. Never stored, printed or recorded.
            pub fn api_key(mut $self_, key: impl Into<String>) -> Self {
                $options.api_key = Some(secrecy::SecretString::from(key.into()));
                $self_
            }

            /// Lets this handle end the call.
            pub fn cancel_handle(mut $self_, handle: &$crate::CancelHandle) -> Self {
                $options.cancel = Some(handle.clone());
                $self_
            }

            /// Keeps the call as a run in this log. What a step or a chat comes to names its run; that of a `generate`, or of a
            /// call that may fail, is told by its [stream](crate::EventStream::run_id).
            pub fn record<L: mynah_log::Log + Clone>(mut $self_, log: &L) -> Self {
                $options.log = Some(std::sync::Arc::new(log.clone()));
                $self_
            }

            /// How safe the records of this call are before a tool starts or a result is told; what the log does by itself if
            /// nobody says.
            pub fn durability(mut $self_, durability: mynah_log::Durability) -> Self {
                $options.durability = Some(durability);
                $self_
            }

            /// How long the log may take to append records of this call, failed attempts included. A run whose log takes longer ends
            /// with an `Err`. If not set, an append may take as long as it likes, and a log that is unavailable is retried for five
            /// minutes.
            pub fn emit_timeout(mut $self_, limit: std::time::Duration) -> Self {
                $options.emit_timeout = Some(limit);
                $self_
            }
        }
    };
}
pub(crate) use option_setters;

option_setters!(Options, self => self);

/// What is said in a map of options: null leaves to others what they say.
pub(crate) fn said(values: Metadata) -> impl Iterator<Item = (String, Value)> {
    values.into_iter().filter(|(_, value)| !value.is_null())
}

pub(crate) fn millis(duration: Duration) -> u64 {
    // A limit that is there does not vanish by rounding.
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
