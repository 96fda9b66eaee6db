//! Tools as data: specifications, calls and outcomes.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    Error, HaltReason, Metadata, Part, ToolReason,
    error::reserved_halt,
    extent::{self, MAX_RESULT},
    halt::HANDOFF,
    json::{self, Json},
};

/// The text of the tool message in the thread while a person is asked.
#[doc(hidden)]
pub const ASK_USER_SENTINEL: &str = "<awaiting user response>";

/// The hint of a question that holds the state of its call. The call continues with the answer.
#[doc(hidden)]
pub const CONTINUE: &str = "continue";

/// The specification of a tool: what the model sees, and how its calls are handled.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::ToolSpec;
/// use serde_json::json;
/// let spec = ToolSpec::new("echo", "gives its arguments back", json!({"type": "object"}));
/// assert!(!spec.manual);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ToolSpec {
    /// The name that the model calls: 1 to 64 letters, digits, `_` and `-`.
    pub name: String,
    /// The description for the model.
    pub description: String,
    /// JSON Schema of the arguments.
    #[serde(with = "json")]
    pub schema: Value,
    /// Whether calls are handed to the caller instead of being run.
    #[serde(default)]
    pub manual: bool,
    /// Whether a person must approve calls before they are run.
    #[serde(default, skip_serializing_if = "Approval::is_never")]
    pub approval: Approval,
    /// Whether running a call twice is harmless.
    #[serde(default)]
    pub idempotent: bool,
    /// The number of attempts of an idempotent tool that fails transiently, over all processes of a
    /// run. An attempt that was cut off with its process does not count.
    #[serde(default = "one")]
    pub max_attempts: u32,
    /// The time limit of this tool. It takes precedence over that of the call.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Anything else.
    #[serde(default, with = "json::members")]
    pub metadata: Metadata,
}

fn one() -> u32 {
    1
}

crate::words! {
    /// Whether a call of a tool is run; from the most permissive to the strictest.
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// use mynah::{Approval, ToolSpec};
    /// use serde_json::json;
    /// let mut spec = ToolSpec::new("pay", "pays a bill", json!({}));
    /// spec.approval = Approval::Ask;
    /// assert_eq!(serde_json::to_value(&spec)?["approval"], "ask");
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    #[derive(Default, PartialOrd, Ord)]
    #[non_exhaustive]
    pub enum Approval {
        /// The call runs without approval.
        #[default]
        Never => "never",
        /// The run waits until a person approves or rejects the call.
        Ask => "ask",
        /// The call never runs. The model reads that it is not permitted.
        Deny => "deny",
    }
}

impl Approval {
    fn is_never(&self) -> bool {
        *self == Self::Never
    }
}

impl ToolSpec {
    /// A tool with its name, its description and the JSON Schema of its arguments.
    pub fn new(name: impl Into<String>, description: impl Into<String>, schema: Value) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            schema,
            manual: false,
            approval: Approval::Never,
            idempotent: false,
            max_attempts: 1,
            timeout_ms: None,
            metadata: Metadata::new(),
        }
    }
}

/// A call that a model asked for. Keeps the exact text of the arguments.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::ToolCall;
/// let call = ToolCall::new("c0", "echo", r#"{"x": 1.0}"#);
/// assert_eq!(call.arguments["x"], 1.0);
/// assert_eq!(call.raw_arguments, r#"{"x": 1.0}"#);
/// assert!(ToolCall::new("c1", "echo", r#"{"x":"#).argument_error().is_some());
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ToolCall {
    /// The id that binds the result to the call.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The parsed arguments. Null if the text is not one JSON value, or was cut off before it
    /// began.
    #[serde(with = "json")]
    pub arguments: Value,
    /// The arguments exactly as the model wrote them.
    pub raw_arguments: String,
    /// Data that the provider must get back with the call, such as a signature.
    #[serde(skip_serializing_if = "Metadata::is_empty", with = "json::members")]
    pub metadata: Metadata,
}

impl ToolCall {
    /// A call with the argument text that the model wrote. Empty text and `null` mean no arguments: `{}`.
    pub fn new(
        id: impl Into<String>,
        name: impl Into<String>,
        raw_arguments: impl Into<String>,
    ) -> Self {
        let raw_arguments = raw_arguments.into();
        let arguments = parse_arguments(&raw_arguments).unwrap_or(Value::Null);
        Self {
            id: id.into(),
            name: name.into(),
            arguments,
            raw_arguments,
            metadata: Metadata::new(),
        }
    }

    /// A call with arguments that are already a value; their text is compact JSON. Null means no arguments: `{}`.
    pub fn from_value(id: impl Into<String>, name: impl Into<String>, arguments: Value) -> Self {
        let raw_arguments = arguments.to_string();
        let arguments = some_arguments(arguments);
        Self {
            id: id.into(),
            name: name.into(),
            arguments,
            raw_arguments,
            metadata: Metadata::new(),
        }
    }

    /// A stored call, with both forms of its arguments or with one.
    pub(crate) fn read(
        id: String,
        name: String,
        arguments: Option<Value>,
        raw_arguments: Option<String>,
    ) -> Self {
        match (raw_arguments, arguments) {
            // The call was cut off before its arguments. A call without arguments has `{}` beside
            // its empty text.
            (Some(raw), Some(Value::Null)) if !raw.trim().is_empty() => Self::new(id, name, raw),
            (Some(raw), Some(arguments)) => {
                let mut call = Self::new(id, name, raw);
                // The text also has the order of the members, which some stores do not keep.
                if call.arguments != arguments {
                    call.arguments = arguments;
                }
                call
            }
            (Some(raw), None) => Self::new(id, name, raw),
            (None, arguments) => {
                Self::from_value(id, name, some_arguments(arguments.unwrap_or_default()))
            }
        }
    }

    /// The same call with other arguments: their exact text.
    #[must_use]
    pub fn with_arguments(&self, raw_arguments: impl Into<String>) -> Self {
        let mut call = Self::new(&*self.id, &*self.name, raw_arguments);
        call.metadata = self.metadata.clone();
        call
    }

    /// The same call with the arguments that a person changed. The metadata of a waiting run hold
    /// them.
    #[doc(hidden)]
    pub fn edited_in(&self, metadata: &Metadata) -> Option<Self> {
        let arguments = metadata.get("edited_arguments")?.get(&self.id)?.as_str()?;
        Some(self.with_arguments(arguments))
    }

    /// The problem of an argument text that is not one JSON value.
    pub fn argument_error(&self) -> Option<String> {
        if !self.arguments.is_null() {
            return None;
        }
        parse_arguments(&self.raw_arguments).err().map(|error| error.to_string())
    }
}

fn parse_arguments(text: &str) -> serde_json::Result<Value> {
    if text.trim().is_empty() {
        return Ok(some_arguments(Value::Null));
    }
    extent::parse(text).map(some_arguments)
}

fn some_arguments(value: Value) -> Value {
    if value.is_null() { Value::Object(Metadata::new()) } else { value }
}

impl<'de> Deserialize<'de> for ToolCall {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(expecting = "a tool call")]
        struct Wire {
            id: String,
            name: String,
            #[serde(default, deserialize_with = "json::present")]
            arguments: Option<Value>,
            #[serde(default)]
            raw_arguments: Option<String>,
            #[serde(default, deserialize_with = "json::deserialize")]
            metadata: Metadata,
        }
        let wire = Wire::deserialize(deserializer)?;
        let mut call = Self::read(wire.id, wire.name, wire.arguments, wire.raw_arguments);
        call.metadata = wire.metadata;
        Ok(call)
    }
}

/// Null differs from an absent member.
fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    json: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(json).map(Some)
}

/// The outcome of a tool call.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::ToolOutcome;
/// use serde_json::json;
/// assert_eq!(serde_json::to_value(ToolOutcome::ask("How many?"))?, json!({"ask_user": "How many?", "opts": {}}));
/// assert_eq!(ToolOutcome::from(json!(5)), ToolOutcome::Ok(json!(5)));
/// assert_eq!(ToolOutcome::from(Err::<(), _>("no stock")), ToolOutcome::error("no stock"));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ToolOutcome {
    /// A value for the model.
    Ok(Value),
    /// Text and images for the model.
    Parts(Vec<Part>),
    /// The tool failed.
    Error {
        /// The message for the model.
        error: Value,
        /// Whether a retry may succeed.
        transient: bool,
    },
    /// A person must answer before the conversation continues.
    AskUser {
        /// The question.
        question: String,
        /// Hints for the program that asks it: choices, a mask, a time limit. Never interpreted.
        opts: Metadata,
    },
    /// The conversation ends here.
    Halt {
        /// Why; becomes the chat's halt reason.
        reason: HaltReason,
        /// A value for the model and for the caller.
        result: Value,
    },
    /// There is no result yet: the call continues later, with another attempt.
    Later {
        /// When.
        wait: Wait,
        /// What the next attempt continues with; if not set, what this one did.
        state: Option<Value>,
    },
}

/// How long something waits.
///
/// A time that was waited for is recorded as the time when it is over, so that a crash does not begin it anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Wait {
    /// So many milliseconds from now on.
    ForMs(u64),
    /// Until this time, in milliseconds since 1970.
    UntilMs(u64),
}

impl From<Duration> for Wait {
    /// Rounded up: no wait is shorter than it was asked for.
    fn from(time: Duration) -> Self {
        Self::ForMs(u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
    }
}

impl ToolOutcome {
    /// The tool failed permanently.
    pub fn error(error: impl Into<Value>) -> Self {
        Self::Error { error: error.into(), transient: false }
    }

    /// The tool failed, and a retry may succeed.
    pub fn transient(error: impl Into<Value>) -> Self {
        Self::Error { error: error.into(), transient: true }
    }

    /// A person must answer.
    pub fn ask(question: impl Into<String>) -> Self {
        Self::AskUser { question: question.into(), opts: Metadata::new() }
    }

    /// A person must answer, with hints for the program that asks.
    pub fn ask_with(question: impl Into<String>, opts: Metadata) -> Self {
        Self::AskUser { question: question.into(), opts }
    }

    /// A person must answer, and the same call continues with the answer.
    ///
    /// The model does not see the question. When the run is resumed, the tool runs again with this
    /// state and the answer in its context (`ToolContext::continuation`). Both are recorded, so the
    /// run may wait for days and continue in another process. This works in recorded runs. In
    /// others the question is asked, and the answer goes to the model.
    pub fn ask_and_continue(
        question: impl Into<String>,
        mut opts: Metadata,
        state: impl Into<Value>,
    ) -> Self {
        opts.insert(CONTINUE.to_owned(), state.into());
        Self::AskUser { question: question.into(), opts }
    }

    /// The call has no result yet, and its tool is run again after this time, or later.
    ///
    /// The model reads nothing of it. The time is recorded, so a crash does not begin it anew. A recorded run that waits for long is
    /// suspended (`sleeping`) and takes no memory; a worker, or a resume, continues it when the time has come.
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// use std::time::Duration;
    /// use mynah::ToolOutcome;
    ///
    /// let outcome = ToolOutcome::later(Duration::from_secs(60));
    /// assert_eq!(serde_json::to_value(outcome).unwrap(), serde_json::json!({"later": {"for_ms": 60_000}}));
    /// ```
    pub fn later(time: Duration) -> Self {
        Self::Later { wait: time.into(), state: None }
    }

    /// The same, and the next attempt gets this state (`ToolContext::continuation`).
    pub fn later_with(time: Duration, state: impl Into<Value>) -> Self {
        Self::Later { wait: time.into(), state: Some(state.into()) }
    }

    /// The conversation ends here with this answer, as if the model had given it: another agent took the conversation over.
    ///
    /// The chat is completed, its text is the answer, and the thread ends with it. It is the halt with the reason `handoff`.
    pub fn handoff(answer: impl Into<String>) -> Self {
        Self::halt(HANDOFF, answer.into())
    }

    /// The conversation ends here, for a reason of the tool's own.
    pub fn halt(reason: impl Into<String>, result: impl Into<Value>) -> Self {
        Self::Halt { reason: HaltReason::from(reason.into()), result: result.into() }
    }

    /// The error of an outcome that a handler may not return: a halt with a reserved reason, or a
    /// value that is too large to be stored.
    #[doc(hidden)]
    pub fn misuse(&self) -> Option<Error> {
        if let Self::Parts(parts) = self
            && parts.iter().any(|part| !matches!(part, Part::Text { .. } | Part::Image { .. }))
        {
            let reason = ToolReason::InvalidReturn;
            let why = format!(
                "tool error: {reason}: a result has parts that are neither text nor images"
            );
            return Some(Error::tool(reason).with_message(why));
        }
        let excess = match self {
            Self::Ok(value) | Self::Error { error: value, .. } => extent::excess(value),
            Self::Halt { reason, result } => {
                extent::excess(result).or_else(|| extent::oversize(&(reason, result), MAX_RESULT))
            }
            Self::AskUser { question, opts } => {
                let deep = opts.values().find_map(extent::excess);
                deep.or_else(|| extent::oversize(&(question, opts), MAX_RESULT))
            }
            Self::Parts(parts) => extent::excess(&json!(parts)),
            Self::Later { state, .. } => state.as_ref().and_then(extent::excess),
        };
        if let Some(excess) = excess {
            let reason = ToolReason::ResultTooLarge;
            let why = format!("tool error: {reason}: the result is {excess}");
            return Some(Error::tool(reason).with_message(why));
        }
        match self {
            // A reserved reason is also reserved as a custom one.
            Self::Halt { reason, .. } => HaltReason::RESERVED
                .iter()
                .find(|reserved| reserved.as_str() == reason.as_str())
                .map(reserved_halt),
            _ => None,
        }
    }
}

impl From<Value> for ToolOutcome {
    fn from(value: Value) -> Self {
        Self::Ok(value)
    }
}

impl From<Vec<Part>> for ToolOutcome {
    fn from(parts: Vec<Part>) -> Self {
        Self::Parts(parts)
    }
}

impl From<String> for ToolOutcome {
    fn from(text: String) -> Self {
        Self::Ok(Value::String(text))
    }
}

impl From<&str> for ToolOutcome {
    fn from(text: &str) -> Self {
        Self::Ok(Value::from(text))
    }
}

impl From<()> for ToolOutcome {
    fn from((): ()) -> Self {
        Self::Ok(Value::Null)
    }
}

impl<T: Into<ToolOutcome>, E: std::fmt::Display> From<std::result::Result<T, E>> for ToolOutcome {
    fn from(result: std::result::Result<T, E>) -> Self {
        match result {
            Ok(value) => value.into(),
            Err(error) => Self::error(error.to_string()),
        }
    }
}

impl Serialize for ToolOutcome {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(None)?;
        match self {
            Self::Ok(value) => map.serialize_entry("ok", &Json(value))?,
            Self::Parts(parts) => map.serialize_entry("parts", parts)?,
            Self::Error { error, transient } => {
                map.serialize_entry("error", &Json(error))?;
                if *transient {
                    map.serialize_entry("transient", transient)?;
                }
            }
            Self::AskUser { question, opts } => {
                map.serialize_entry("ask_user", question)?;
                map.serialize_entry("opts", &Json(opts))?;
            }
            Self::Halt { reason, result } => {
                map.serialize_entry("halt", reason)?;
                map.serialize_entry("result", &Json(result))?;
            }
            Self::Later { wait, state } => {
                map.serialize_entry("later", wait)?;
                if let Some(state) = state {
                    map.serialize_entry("state", &Json(state))?;
                }
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for ToolOutcome {
    /// Reads the members of all kinds at once. Those of another kind are rejected.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(expecting = "the outcome of a tool")]
        struct Wire {
            #[serde(default, deserialize_with = "json::present")]
            ok: Option<Value>,
            #[serde(default, deserialize_with = "present")]
            parts: Option<Vec<Part>>,
            #[serde(default, deserialize_with = "json::present")]
            error: Option<Value>,
            #[serde(default, deserialize_with = "present")]
            transient: Option<bool>,
            #[serde(default, deserialize_with = "present")]
            ask_user: Option<String>,
            #[serde(default, deserialize_with = "json::present")]
            opts: Option<Metadata>,
            #[serde(default, deserialize_with = "present")]
            halt: Option<HaltReason>,
            #[serde(default, deserialize_with = "json::present")]
            result: Option<Value>,
            #[serde(default, deserialize_with = "present")]
            later: Option<Wait>,
            #[serde(default, deserialize_with = "json::present")]
            state: Option<Value>,
        }
        let wire = Wire::deserialize(deserializer)?;
        let (failed, asked) = ((wire.error, wire.transient), (wire.ask_user, wire.opts));
        let (halted, slept) = ((wire.halt, wire.result), (wire.later, wire.state));
        Ok(match ((wire.ok, wire.parts), failed, asked, halted, slept) {
            ((Some(value), None), (None, None), (None, None), (None, None), (None, None)) => {
                Self::Ok(value)
            }
            ((None, Some(parts)), (None, None), (None, None), (None, None), (None, None)) => {
                Self::Parts(parts)
            }
            ((None, None), (Some(error), transient), (None, None), (None, None), (None, None)) => {
                Self::Error { error, transient: transient.unwrap_or_default() }
            }
            ((None, None), (None, None), (Some(question), opts), (None, None), (None, None)) => {
                Self::AskUser { question, opts: opts.unwrap_or_default() }
            }
            ((None, None), (None, None), (None, None), (Some(reason), result), (None, None)) => {
                Self::Halt { reason, result: result.unwrap_or_default() }
            }
            ((None, None), (None, None), (None, None), (None, None), (Some(wait), state)) => {
                Self::Later { wait, state }
            }
            _ => {
                let expected = "expected one of ok, parts, error, ask_user, halt, later, and what belongs to it";
                return Err(serde::de::Error::custom(expected));
            }
        })
    }
}

/// Tools as a request carries them: shared, so that a turn does not copy them.
pub(crate) type SharedSpecs = Vec<Arc<ToolSpec>>;
