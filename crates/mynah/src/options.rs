//! What a call may ask for beyond its messages.

use std::{fmt, sync::Arc, time::Duration};

use mynah_data::{
    Budget, Error, FieldError, Metadata, Request, Result, ValidationReason, validate,
};
use mynah_log::{Durability, Log, Queue};
use mynah_step::{Tool, ToolExecutor, ToolResultEncoder};
use secrecy::SecretString;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::{
    cancel::CancelHandle,
    engine::overlay_tools,
    in_flight::InFlight,
    run::{ApprovalPolicy, HaltWhen, Observer, OnToolError},
    values::{NAMES, ToolErrors, Values},
};

/// Options of a call, to be shared between calls or read from a file.
///
/// An option that is not set comes from the request, then from the engine, then from the library. As JSON, options are an object with
/// the names of the setters ([`NAMES`](Self::NAMES)), except that those of [`adapter_option`](Self::adapter_option) are members of
/// `adapter_opts`; durations are milliseconds. In JSON, members that Mynah does not know are options of the provider. Functions, the key, the
/// log and what concerns only the process that makes the call, such as [`park_after`](Self::park_after), are not part of it.
///
/// ```
/// use mynah::{Options, ToolMode};
/// use serde_json::json;
///
/// let options: Options = serde_json::from_value(json!({"max_turns": 4, "reasoning_effort": "high"}))?;
/// let options = options.mode(ToolMode::Manual);
/// assert_eq!(options.to_json()["max_turns"], 4);
/// assert!(options.provider_options().contains_key("reasoning_effort"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "options do nothing unless a call has them"]
pub struct Options {
    pub(crate) values: Values,
    pub(crate) tools: Vec<Tool>,
    /// The caller's own condition, and its name in records.
    pub(crate) halt_when: Option<(Value, HaltWhen)>,
    pub(crate) on_tool_error: Option<OnToolError>,
    pub(crate) approval: Option<ApprovalPolicy>,
    pub(crate) on_event: Option<Observer>,
    pub(crate) in_flight: Option<InFlight>,
    pub(crate) tool_executor: Option<Arc<dyn ToolExecutor>>,
    pub(crate) tool_result_encoder: Option<Arc<dyn ToolResultEncoder>>,
    /// Placeholders in the records for code that need not be given again.
    pub(crate) told: Metadata,
    pub(crate) api_key: Option<SecretString>,
    pub(crate) cancel_handle: Option<CancelHandle>,
    pub(crate) log: Option<Arc<dyn Log>>,
    pub(crate) durability: Option<Durability>,
    pub(crate) emit_timeout: Option<Duration>,
    pub(crate) park_after: Option<Duration>,
    /// The queue of a run that workers perform.
    pub(crate) queue: Option<Queue>,
    /// Whether a run that another engine began may be continued.
    pub(crate) allow_changed: bool,
    /// The budget with which a run that exists already continues, if that is another than it began with.
    pub(crate) new_budget: Option<Budget>,
}

impl Options {
    /// The names of the options that JSON can hold.
    pub const NAMES: &[&str] = NAMES;

    /// No option set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads options from a JSON object. Null counts as not set.
    ///
    /// # Errors
    /// Anything but an object. A value that does not fit is an error of the call, which reports all of them at once.
    pub fn from_json(value: Value) -> Result<Self> {
        let Value::Object(mut values) = value else {
            return Err(Error::invalid_option("options", "not_a_map"));
        };
        let mut options = Self::default();
        // A key is kept apart from what can be printed.
        let opts = values.get_mut("adapter_opts").and_then(Value::as_object_mut);
        let keys =
            [opts.and_then(|opts| opts.shift_remove("api_key")), values.shift_remove("api_key")];
        for key in keys.iter().flatten().filter_map(Value::as_str) {
            options.api_key = Some(SecretString::from(key));
        }
        options.values = Values::from_json(values);
        Ok(options)
    }

    /// Refuses values that do not fit, as a call with them would. What depends on the conversation, the model or the tools is checked by the
    /// call alone.
    ///
    /// ```
    /// use mynah::Options;
    /// use serde_json::json;
    ///
    /// let wrong = Options::from_json(json!({"temperature": "hot"}))?.check().unwrap_err();
    /// assert_eq!(wrong.field_errors()[0].path_text(), "temperature");
    /// let wrong = Options::new().temperature(2.5).check().unwrap_err();
    /// assert!(wrong.to_string().ends_with("temperature must be a number from 0 to 2"), "{wrong}");
    /// # Ok::<(), mynah::Error>(())
    /// ```
    ///
    /// A call sends options that Mynah does not know to the provider. This refuses those whose name is almost that of a known one:
    ///
    /// ```
    /// use mynah::Options;
    /// use serde_json::json;
    ///
    /// let wrong = Options::from_json(json!({"max_turn": 3}))?.check().unwrap_err();
    /// assert!(wrong.to_string().ends_with("max_turn would go to the provider; did you mean max_turns?"), "{wrong}");
    /// # Ok::<(), mynah::Error>(())
    /// ```
    ///
    /// # Errors
    /// `invalid_options` with each value that does not fit its option or whose name is misspelt, or `invalid_request` with each that no
    /// request may have.
    pub fn check(&self) -> Result<()> {
        self.check_values()?;
        let meant = |name: &String| {
            Some((
                FieldError::new(name.as_str(), "misspelt"),
                format!(
                    "{name} would go to the provider; did you mean {}?",
                    Self::meant(name, &[])?
                ),
            ))
        };
        let (errors, why): (Vec<_>, Vec<_>) = self.values.provider.keys().filter_map(meant).unzip();
        if errors.is_empty() {
            return Ok(());
        }
        Err(Error::validation(ValidationReason::InvalidOptions, errors).because(&why))
    }

    /// Returns the option, or the one of these other names, that a name is a misspelling of.
    #[doc(hidden)]
    pub fn meant(name: &str, others: &[&'static str]) -> Option<&'static str> {
        let known = || NAMES.iter().chain(others).copied();
        if known().any(|known| known == name) {
            return None;
        }
        let plain = name.to_lowercase().replace('-', "_");
        // Short names are near to many others.
        let near = known()
            .map(|known| (strsim::osa_distance(&plain, known), known))
            .filter(|(distance, known)| *distance <= if known.len() < 7 { 1 } else { 2 });
        near.min().map(|(_, known)| known)
    }

    /// The same as [`Options::check`], without a look at the names of other options.
    #[doc(hidden)]
    pub fn check_values(&self) -> Result<()> {
        self.values.check()?;
        let mut request = Request::from("");
        request.temperature = self.values.temperature;
        request.max_tokens = self.values.max_tokens;
        request.response_format = self.values.response_format.clone();
        validate::request(&request)
    }

    /// Returns the options that JSON can hold. The key of the call is not among them.
    pub fn to_json(&self) -> Metadata {
        self.values.to_json()
    }

    /// Returns the options that go to the provider as they are.
    pub fn provider_options(&self) -> &Metadata {
        &self.values.provider
    }

    /// How long the log may take to append records: with a deadline, not much longer than the call itself.
    pub(crate) fn log_timeout(&self, engine: &Self) -> Option<Duration> {
        const LEAST: Duration = Duration::from_secs(5);
        let deadline = self.values.deadline.or(engine.values.deadline).map(Duration::from_millis);
        self.emit_timeout.or(deadline.map(|limit| limit.max(LEAST)))
    }

    /// Makes the call's own cancel handle, which the caller's handle ends too.
    pub(crate) fn own_cancel(&mut self) -> CancelHandle {
        let cancel = self.cancel_handle.take().map_or_else(CancelHandle::new, |all| all.child());
        self.cancel_handle.insert(cancel).clone()
    }

    /// Keeps only the options for observing and stopping a run.
    pub(crate) fn as_watched(&self) -> Self {
        let values = self.values.clone().unrecorded();
        let (on_event, cancel_handle) = (self.on_event.clone(), self.cancel_handle.clone());
        Self { values, on_event, cancel_handle, ..Self::default() }
    }

    /// Adds other options. They count more than those set so far.
    pub fn overlay(mut self, over: Self) -> Self {
        if over.values.on_tool_error.is_some() {
            self.on_tool_error = None;
        }
        self.values.overlay(over.values);
        if !over.tools.is_empty() {
            self.tools = overlay_tools(&self.tools, &over.tools);
        }
        self.halt_when = over.halt_when.or(self.halt_when);
        self.on_tool_error = over.on_tool_error.or(self.on_tool_error);
        // What is recorded was decided.
        if !matches!(self.approval, Some(ApprovalPolicy::Recorded(_))) {
            self.approval = over.approval.or(self.approval);
        }
        self.on_event = over.on_event.or(self.on_event);
        self.in_flight = over.in_flight.or(self.in_flight);
        self.tool_executor = over.tool_executor.or(self.tool_executor);
        self.tool_result_encoder = over.tool_result_encoder.or(self.tool_result_encoder);
        self.told.extend(over.told);
        self.api_key = over.api_key.or(self.api_key);
        self.cancel_handle = over.cancel_handle.or(self.cancel_handle);
        self.log = over.log.or(self.log);
        self.durability = over.durability.or(self.durability);
        self.emit_timeout = over.emit_timeout.or(self.emit_timeout);
        self.park_after = over.park_after.or(self.park_after);
        self.queue = over.queue.or(self.queue);
        self.new_budget = over.new_budget.or(self.new_budget);
        self.allow_changed |= over.allow_changed;
        self
    }
}

impl Serialize for Options {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Options {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        use serde::de::Error as _;
        let options =
            Self::from_json(Value::deserialize(deserializer)?).map_err(D::Error::custom)?;
        options.values.check().map_err(D::Error::custom)?;
        Ok(options)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("values", &self.to_json())
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}

/// Declares setters of options, in groups: a builder has those that apply to it.
macro_rules! option_setters {
    ($type:ty, $self_:ident => $options:expr; $($group:ident)+) => {
        impl $type {
            $($crate::options::setters_of!($group, $self_ => $options);)+
        }
    };
}
pub(crate) use option_setters;

/// The setters of one group.
macro_rules! setters_of {
    (options, $self_:ident => $options:expr) => {
        /// Adds options from elsewhere, over those set so far.
        pub fn options(mut $self_, options: $crate::Options) -> Self {
            $options = $options.overlay(options);
            $self_
        }
    };
    (prompt, $self_:ident => $options:expr) => {
        mynah_data::setters! { $self_ => $options.values;
            /// The system prompt of conversations that have none. It becomes their first message. A conversation that has a system message, as
            /// that of a session's later turn, keeps it.
            system(prompt: impl Into<String>) = Some(prompt.into());
        }
    };
    (model, $self_:ident => $options:expr) => {
        mynah_data::setters! { $self_ => $options.values;
            /// The sampling temperature, 0 to 2.
            temperature(temperature: f64) = Some(temperature);

            /// The most tokens that the model may write in one answer.
            max_tokens(tokens: u64) = Some(tokens);

            /// Whether the model calls a tool, and which one.
            tool_choice(choice: mynah_data::ToolChoice) = Some(choice);

            /// The format of the answer.
            response_format(format: mynah_data::ResponseFormat) = Some(format);

            /// How the provider caches the prompt.
            prompt_cache(cache: mynah_data::PromptCache) = Some(cache);

            /// The most that the run may spend, over all its calls and processes. A chat that would spend more ends with
            /// `budget_exceeded`; a single call or step fails with it.
            ///
            /// ```
            /// use mynah::{Engine, testing::Scripted};
            /// use serde_json::json;
            /// use mynah::Budget;
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
            /// # let engine = Engine::new(Scripted::new([json!([{"text": "far too "}, {"text": "much"}, {"finish": "stop"}])])?);
            ///
            /// let result = engine.chat("hi").budget(Budget::new().max_output_tokens(1)).await?;
            /// assert_eq!(result.halted_reason.as_str(), "budget_exceeded");
            /// assert_eq!(result.metadata["budget"]["limit"], "output_tokens");
            /// assert_eq!(result.text(), "far too ");
            /// let error = result.into_text().unwrap_err();
            /// assert!(error.to_string().contains(": budget_exceeded: output_tokens: 2, of at most 1"), "{error}");
            /// # Ok(()) }
            /// ```
            budget(budget: mynah_data::Budget) = Some(budget);

            /// Whether each request of the conversation ends with a note that says what is left of the [budget](Self::budget), so that the
            /// model can plan. By default it does not.
            ///
            /// The note follows from what is recorded. It is not part of the thread, and time is not among it.
            ///
            /// ```
            /// use mynah::{Engine, testing::{Script, Scripted}};
            /// use mynah::Budget;
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
            /// # let model = Scripted::play([Script::new().text("hi").stop()]);
            /// # let engine = Engine::new(model.clone());
            ///
            /// engine.chat("hello").budget(Budget::new().max_turns(5)).budget_note(true).await?;
            /// # let last = model.requests()[0].messages.last().unwrap().text().into_owned();
            /// assert_eq!(last, "[Budget left after this answer: 4 model calls.]");
            /// # Ok(()) }
            /// ```
            budget_note(on: bool) = Some(on);

            /// The time limit of the whole call. The messages and results until then are kept. If the log of a recorded
            /// call is unavailable then, the call fails; see `emit_timeout`.
            deadline(limit: std::time::Duration) = Some($crate::options::millis(limit));

            /// The longest that one model call may take, with all its attempts and the pauses between them.
            request_timeout(limit: std::time::Duration) = Some($crate::options::millis(limit));

            /// The longest silence of a model call, before its first event and between two events.
            stream_timeout(limit: std::time::Duration) = Some($crate::options::millis(limit));

            /// When a model call that failed before its first event is retried.
            retry(policy: mynah_step::RetryPolicy) = Some(policy);

            /// Requires that an answer comes with the hash of what the provider sent, as `raw_response_hash` in its metadata. An answer
            /// without it is an error.
            require_raw_response_hash(on: bool) = Some(on);
        }

        /// An option of the provider, sent as it is. Options that Mynah has itself are set with their own setters and refused
        /// here. Adapters over HTTP also refuse `messages`, `input` and `contents`, which would replace the conversation.
        ///
        /// ```
        /// use mynah::{Engine, testing::Scripted};
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
        /// # let model = Scripted::says(["hi"]);
        /// # let engine = Engine::new(model.clone());
        ///
        /// engine.chat("hello").provider_option("seed", 7).await?;
        /// # assert_eq!(model.requests()[0].options["seed"], 7);
        /// # Ok(()) }
        /// ```
        #[doc(alias = "put_param")]
        pub fn provider_option(mut $self_, name: &str, value: impl Into<serde_json::Value>) -> Self {
            $options.values.set_provider(name, value.into());
            $self_
        }
    };
    (tools, $self_:ident => $options:expr) => {
        mynah_data::setters! { $self_ => $options.values;
            /// Whether tools are run or handed to the caller.
            mode(mode: mynah_data::ToolMode) = Some(mode);

            /// The time limit of each tool call. By default 30 seconds.
            tool_timeout(limit: std::time::Duration) = Some($crate::options::millis(limit));

            /// How many tools run side by side. By default 8.
            max_concurrency(tools: usize) = Some(u64::try_from(tools).unwrap_or(u64::MAX));

            /// The result of a side effect of a tool that fails.
            side_effect_errors(policy: $crate::SideEffectErrors) = Some(policy);

            /// What happens if the model calls a tool that the engine does not have.
            on_unknown_tool(policy: $crate::OnUnknownTool) = Some(policy);

            /// How the conversation is shortened if it does not fit the model's context window. By default it is sent whole.
            context_policy(policy: $crate::ContextPolicy) = Some(policy);

            /// How often processes may die in succession before a recorded run makes progress. The next
            /// resume then suspends the run with the reason `crash_loop`; another resume continues it.
            /// By default 5.
            max_crashes(crashes: u32) = Some(u64::from(crashes));
        }
    };
    (chat, $self_:ident => $options:expr) => {
        mynah_data::setters! { $self_ => $options.values;
            /// How often the model is called at most, calls included that were lost with their process. By default 8.
            max_turns(turns: u32) = Some(u64::from(turns));

            /// Formats the answer by one more call after the tools.
            structured_finalize(on: bool) = Some(on);

            /// The message before that call; none if it is empty.
            structured_finalize_nudge(nudge: impl Into<String>) = Some(nudge.into());
        }
    };
    (call, $self_:ident => $options:expr) => {
        mynah_data::setters! { $self_ => $options.values;
            /// The model, instead of the engine's.
            model(model: impl Into<mynah_data::ModelRef>) = Some(model.into());

            /// The session's id for tools and caches.
            session_id(id: impl Into<String>) = Some(id.into());

            /// Whether pieces of text are streamed. The result does not change.
            emit_text_deltas(on: bool) = Some(on);

            /// Whether pieces of tool arguments are streamed. The result does not change.
            emit_tool_deltas(on: bool) = Some(on);
        }

        /// Sets one option of the adapter, over the [engine's](crate::Engine::adapter_option).
        ///
        /// Adapters over HTTP take `headers`, as `json!({"x-gateway-key": "…"})`. They are sent with the call and not recorded, as they may
        /// hold keys. The key itself is no such option, and refused. They also take `base_url`, those of OpenAI's formats `organization`, and
        /// that of Bedrock `region`. An adapter of your own may take others, so a name that none knows is not refused, and has no effect.
        pub fn adapter_option(mut $self_, name: &str, value: impl Into<serde_json::Value>) -> Self {
            $options.values.set_adapter_option(name, value.into());
            $self_
        }

        mynah_data::setters! { $self_ => $options;
            /// Observes every event of the model, regardless of filters. A call that attaches to a recorded run observes its recorded events
            /// too, from the first, as its stream has them; a [resumed](crate::Engine::resume) run observes only what is new.
            on_event(observe: impl Fn(&mynah_data::Event) + Send + Sync + 'static) = Some(std::sync::Arc::new(observe));

            /// Lets this handle end the call.
            cancel_handle(handle: &$crate::CancelHandle) = Some(handle.clone());
        }
    };
    (live, $self_:ident => $options:expr) => {
        mynah_data::setters! { $self_ => $options.values;
            /// Whether the provider's own chunks are streamed.
            include_raw_chunks(on: bool) = Some(on);

            /// Keeps the answer of a recorded run in its log while it streams, so that [`follow`](crate::follow) shows it in any process.
            ///
            /// Its events are written in groups, every 50 ms or 4 KiB, without waiting for the disk and outside the chain of records. They
            /// are deleted when the answer is recorded. A reader that follows the run after a crash gets the rest of the same answer, or one
            /// [`TurnRestarted`](crate::RunEvent::TurnRestarted) before the next.
            durable_events() = Some(true);
        }

        mynah_data::setters! { $self_ => $options;
            /// Shares the answers of a recorded run with readers in this process while they stream; see [`InFlight`](crate::InFlight).
            in_flight(all: &$crate::InFlight) = Some(all.clone());
        }
    };
    (new, $self_:ident => $options:expr) => {
        mynah_data::setters! { $self_ => $options.values;
            /// The id of the call in logs, tools and the response. By default a new one.
            request_id(id: impl Into<String>) = Some(id.into());
        }
    };
    (data, $self_:ident => $options:expr) => {
        /// Adds one entry of context data for tools.
        ///
        /// Tools see one map: that of the call if it has an entry, otherwise the session's, otherwise the engine's. The maps are not
        /// merged, so that a call that is made for another person shows tools nothing of the first one;
        /// [`Engine::merge`](crate::Engine::merge) adds to the engine's.
        pub fn context(mut $self_, key: &str, value: impl Into<serde_json::Value>) -> Self {
            let context = $options.values.context.get_or_insert_default();
            context.insert(key.to_owned(), value.into());
            $self_
        }
    };
    (key, $self_:ident => $options:expr) => {
        mynah_data::setters! { $self_ => $options;
            /// The key for this call alone. Never stored, printed or recorded.
            api_key(key: impl Into<String>) = Some(secrecy::SecretString::from(key.into()));
        }
    };
    (tool_code, $self_:ident => $options:expr) => {
        /// Adds tools: an array, a `Vec`, an iterator, or a value whose methods are tools ([`tools`](macro@crate::tools)). Those of a call
        /// replace the engine's of the same name, or join them. Two of one name are refused when the call is made.
        ///
        /// ```
        /// use mynah::{Engine, Options, Tool};
        /// use serde_json::json;
        ///
        /// let tool = |name: &str| Tool::new(name, "", json!({}));
        /// let engine = Engine::without_adapter().tools([tool("a"), tool("b")]);
        /// let tools = engine.resolve_tools(&Options::new().tools([tool("b"), tool("c")]));
        /// assert_eq!(tools.iter().map(Tool::name).collect::<Vec<_>>(), ["a", "b", "c"]);
        /// ```
        #[doc(alias = "put_tools")]
        pub fn tools<M: ?Sized>(mut $self_, tools: impl mynah_step::IntoTools<M>) -> Self {
            $options.tools.extend(tools.into_tools());
            $self_
        }

        /// What happens if a tool fails: [`Continue`](crate::OnToolError::Continue), which is the default and lets the model read
        /// the error, [`Halt`](crate::OnToolError::Halt), or a function that [decides](crate::OnToolError::decide).
        ///
        /// A function must depend on its arguments alone. Its decision is recorded, and it is called again if a replay runs the tool
        /// again. Records hold only that there is one, so a resume without it is refused. An engine that has one cannot be stored.
        ///
        /// ```
        /// use mynah::{Engine, Tool, testing::Scripted};
        /// use serde_json::json;
        /// use mynah::{OnToolError, ToolErrorDecision};
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
        /// # let calls = json!([{"tool_call": {"id": "c0", "name": "pay"}}, {"finish": "tool_calls"}]);
        /// # let model = Scripted::new([calls.clone(), calls, json!([{"text": "Later."}, {"finish": "stop"}])])?;
        /// # let pay = Tool::new("pay", "", json!({})).handler(async |_, _| Err::<String, _>("no money"));
        /// # let engine = Engine::new(model).tool(pay);
        ///
        /// let halted = engine.chat("pay").on_tool_error(OnToolError::Halt).await?;
        /// assert_eq!(halted.halted_reason.as_str(), "tool_error");
        ///
        /// let soften = OnToolError::decide(|_, _| ToolErrorDecision::Continue(json!("try tomorrow")));
        /// let result = engine.chat("pay").on_tool_error(soften).await?;
        /// assert_eq!(result.text(), "Later.");
        /// # Ok(()) }
        /// ```
        pub fn on_tool_error(mut $self_, policy: $crate::OnToolError) -> Self {
            let (word, decide) = $crate::options::tool_errors(policy);
            $options.values.on_tool_error = word;
            $options.on_tool_error = decide;
            $self_
        }

        mynah_data::setters! { $self_ => $options;
            /// Runs the tools: an executor of a call does so instead of the engine's. Records hold its name.
            tool_executor(executor: impl mynah_step::ToolExecutor) = Some(std::sync::Arc::new(executor));

            /// Encodes tool results as text: an encoder of a call does so instead of the engine's. Records hold its name, and the texts.
            tool_result_encoder(encoder: impl mynah_step::ToolResultEncoder) = Some(std::sync::Arc::new(encoder));
        }
    };
    (approval, $self_:ident => $options:expr) => {
        /// Decides for each call of a tool whether a person must approve it. The function of a call does so instead of the engine's. The
        /// stricter of the function and the [approval](crate::Tool::approval) of the tool wins. It is not called for tools that are manual or denied,
        /// nor in [`ToolMode::Manual`](crate::ToolMode::Manual), which hands over every call.
        ///
        /// Its decisions are recorded: a replay does not call it. Records hold only that there is one, so a resume without it is refused. If it
        /// panics, the call is denied. An engine that has one cannot be stored.
        ///
        /// ```
        /// use mynah::{Engine, Tool, testing::Scripted};
        /// use serde_json::json;
        /// use mynah::Approval;
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
        /// # let model = Scripted::new([json!([
        /// #     {"tool_call": {"id": "c0", "name": "pay", "arguments": {"euros": 7}}},
        /// #     {"tool_call": {"id": "c1", "name": "pay", "arguments": {"euros": 700}}},
        /// #     {"finish": "tool_calls"},
        /// # ])])?;
        ///
        /// let pay = Tool::new("pay", "Pays an invoice", json!({})).handler(async |_, _| "paid");
        /// let engine = Engine::new(model).tool(pay).approval(|call, tool| match call.arguments["euros"].as_u64() {
        ///     Some(0..100) => Approval::Never,
        ///     Some(100..10_000) => Approval::Ask,
        ///     _ => Approval::Deny,
        /// });
        /// let waiting = engine.chat("Pay all.").await?;
        /// assert_eq!(waiting.manual_tool_calls()[0].id, "c1");
        /// # Ok(()) }
        /// ```
        pub fn approval(
            mut $self_,
            decide: impl Fn(&mynah_data::ToolCall, &mynah_step::Tool) -> mynah_data::Approval + Send + Sync + 'static,
        ) -> Self {
            $options.approval = Some($crate::run::ApprovalPolicy::Function(std::sync::Arc::new(decide)));
            $self_
        }
    };
    (chat_code, $self_:ident => $options:expr) => {
        /// Halts after a turn for which the condition is true, unless something else ends the chat. The name stands for the
        /// condition in records; it may be any JSON, such as the data that the condition is made of.
        ///
        /// The condition must depend on its argument alone: it is called again when a run is replayed or resumed. A resume without
        /// it, or with one of another name, is refused. A replay without it uses the records.
        ///
        /// ```
        /// use mynah::{Engine, Tool, ToolOutcome, testing::Scripted};
        /// use serde_json::json;
        /// use mynah::log::MemoryLog;
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
        /// # let engine = Engine::new(Scripted::new([
        /// #     json!([{"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"}]),
        /// # ])?).tool(Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("How many?")));
        ///
        /// let log = MemoryLog::new();
        /// let waiting = engine.chat("order").halt_when("v1", |_| false).record(&log).await?;
        ///
        /// let resume = engine.resume(&log, waiting.run_id.unwrap()).answer("two");
        /// let refused = resume.halt_when("v2", |_| true).await.unwrap_err();
        /// assert_eq!(refused.differences()[0].path, "about.options.halt_when");
        /// # Ok(()) }
        /// ```
        pub fn halt_when(
            mut $self_,
            name: impl Into<serde_json::Value>,
            condition: impl Fn(&mynah_data::StepResult) -> bool + Send + Sync + 'static,
        ) -> Self {
            let condition = $crate::run::HaltWhen::Function(std::sync::Arc::new(condition));
            $options.halt_when = Some((name.into(), condition));
            $self_
        }
    };
    (record, $self_:ident => $options:expr) => {
        /// Records the call as a run in this log. The result of a call holds the id of its run; so does
        /// [`EventStream::run_id`](crate::EventStream::run_id), also if the call fails.
        pub fn record<L: mynah_log::Log + Clone>(mut $self_, log: &L) -> Self {
            $options.log = Some(std::sync::Arc::new(log.clone()));
            $self_
        }
    };
    (queue, $self_:ident => $options:expr) => {
        mynah_data::setters! { $self_ => $options.values;
            /// Names the agent that performs the run, for [workers](crate::Worker).
            agent(name: impl Into<String>) = Some(name.into());
        }

        mynah_data::setters! { $self_ => $options;
            /// The queue from which [workers](crate::Worker) may claim the run if its process dies or does not perform it, with its
            /// priority and limit; see [`Chat::enqueue`](crate::Chat::enqueue).
            queue(queue: mynah_log::Queue) = Some(queue);
        }
    };
    (park, $self_:ident => $options:expr) => {
        mynah_data::setters! { $self_ => $options;
            /// How long a recorded chat waits in its process for a time: of a tool that continues [later](crate::ToolOutcome::later), or of a model
            /// call that its provider wants to have later. For a longer time it is suspended with the reason `sleeping`, and can be resumed when
            /// the time has come. By default two minutes; a [`Worker`](crate::Worker) has its own limit.
            park_after(limit: std::time::Duration) = Some(limit);
        }
    };
    (keep, $self_:ident => $options:expr) => {
        mynah_data::setters! { $self_ => $options;
            /// How durable the records of this call are before a tool starts or a result is returned. By default as the log does it.
            durability(durability: mynah_log::Durability) = Some(durability);

            /// How long the log may take to append records of this call, failed attempts included. A
            /// run whose log takes longer ends with an `Err`, and can be resumed. If not set, the log has the time of the
            /// call's deadline, at least five seconds. Without a deadline an append has no time limit, and an unavailable
            /// log, such as one on a full disk, is retried for five minutes.
            emit_timeout(limit: std::time::Duration) = Some(limit);
        }
    };
}
pub(crate) use setters_of;

option_setters!(Options, self => self; prompt model tools chat call live new data key tool_code approval chat_code record park keep);

pub(crate) fn tool_errors(policy: OnToolError) -> (Option<ToolErrors>, Option<OnToolError>) {
    match policy {
        OnToolError::Continue => (Some(ToolErrors::Continue), None),
        OnToolError::Halt => (Some(ToolErrors::Halt), None),
        decide => (None, Some(decide)),
    }
}

/// A duration in milliseconds. A limit that is set never rounds to zero.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
