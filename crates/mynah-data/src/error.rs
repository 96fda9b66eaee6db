//! The one error type: a kind with a closed set of reasons, a message for people, metadata for programs.

use std::{borrow::Cow, error::Error as StdError, fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    AdapterReason, Breach, Budget, EngineReason, ErrorKind, HaltReason, LogReason, Metadata,
    Operation, Response, RunId, SessionReason, Status, StreamReason, ToolCall, ToolReason,
    ValidationReason,
    json::{self, Json},
};

/// A result whose error is Mynah's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong: a [kind](ErrorKind) with a closed set of reasons, a message for people, metadata for programs.
///
/// One value, one JSON form: `{"type", "reason", "message", "metadata"}`. It never holds an API key.
///
/// `Display` is for people: the message, with the provider, status, request id, tool and cause where the message does not name
/// them. `Debug` is the same, so that `fn main() -> Result<()>` prints it; `{:#?}` has every detail. The cause is its
/// [`source`](StdError::source). Neither the cause nor the [run](Self::run_id) of a failed call is compared or in the JSON.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::{AdapterReason, Error, ErrorKind};
///
/// let error = Error::adapter(AdapterReason::RateLimited).with_provider("openai").with("status", 429);
/// assert_eq!(error.to_string(), "adapter error (openai): rate_limited (status 429)");
/// assert_eq!(error.message(), "adapter error (openai): rate_limited");
/// assert_eq!(error.status(), Some(429));
/// assert!(error.is_retryable());
/// assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::RateLimited));
/// ```
#[doc(alias(
    "AdapterError",
    "EngineError",
    "SessionError",
    "StreamError",
    "ToolError",
    "ValidationError"
))]
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: Option<String>,
    metadata: Metadata,
    cause: Option<Arc<dyn StdError + Send + Sync>>,
    /// The run whose call failed.
    run_id: Option<RunId>,
}

impl Error {
    /// An error of this kind with the default message and no metadata.
    pub fn new(kind: ErrorKind) -> Self {
        Self::with_metadata(kind, Metadata::new())
    }

    fn with_metadata(kind: ErrorKind, metadata: Metadata) -> Self {
        Self(Box::new(Inner { kind, message: None, metadata, cause: None, run_id: None }))
    }

    /// A failed provider call.
    pub fn adapter(reason: AdapterReason) -> Self {
        Self::new(ErrorKind::Adapter(reason))
    }

    /// An engine that does not support the request.
    pub fn engine(reason: EngineReason) -> Self {
        Self::new(ErrorKind::Engine(reason))
    }

    /// A failed tool call.
    pub fn tool(reason: ToolReason) -> Self {
        Self::new(ErrorKind::Tool(reason))
    }

    /// A stream that ended early.
    pub fn stream(reason: StreamReason) -> Self {
        Self::new(ErrorKind::Stream(reason))
    }

    /// A log that refused an operation, or is corrupt.
    pub fn log(reason: LogReason) -> Self {
        Self::new(ErrorKind::Log(reason))
    }

    /// A refused session operation.
    pub fn session(reason: SessionReason) -> Self {
        Self::new(ErrorKind::Session(reason))
    }

    /// A value that breaks the rules listed in `errors`.
    pub fn validation(reason: ValidationReason, errors: Vec<FieldError>) -> Self {
        let mut error = Self::new(ErrorKind::Validation(reason));
        if let Some(first) = errors.first() {
            let message = format!(
                "validation failed: {reason} ({} error(s)): {}",
                errors.len(),
                errors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            );
            let field = Value::from(first.path_text());
            error = error.with_message(message).with("field", field);
        }
        let list = errors.iter().map(|e| json!({"path": e.path, "code": e.code})).collect();
        error.with("errors", Value::Array(list))
    }

    /// One option or field that breaks a rule.
    pub fn invalid_option(field: impl Into<PathSegment>, code: impl Into<String>) -> Self {
        Self::validation(ValidationReason::InvalidOptions, vec![FieldError::new(field, code)])
    }

    /// The model called a tool that the engine does not have.
    #[doc(hidden)]
    pub fn unknown_tool(name: &str) -> Self {
        Self::engine(EngineReason::UnknownTool)
            .with_message(format!(
                "engine error: unknown_tool: the engine has no tool named {name:?}"
            ))
            .with("tool_name", name)
    }

    /// A tool call whose outcome is unknown, because the process died while it ran.
    #[doc(hidden)]
    pub fn unknown_outcome(call: &ToolCall) -> Self {
        let ToolCall { id, name, .. } = call;
        Self::tool(ToolReason::Failed)
            .with_message(format!(
                "tool error ({name}): the process ended during call {id}, and its outcome is unknown"
            ))
            .with("tool_name", name.as_str())
            .with("tool_call_id", id.as_str())
    }

    /// A call that passed a limit of its budget, with the model's output until then.
    #[doc(hidden)]
    pub fn budget_exceeded(breach: &Breach, partial: Option<&Response>) -> Self {
        let Breach { limit, cap, .. } = breach;
        let error = Self::engine(EngineReason::BudgetExceeded)
            .with_message(format!("engine error: budget_exceeded: {limit}: more than {cap}"))
            .with("budget", json!(breach));
        partial.map_or(error.clone(), |partial| error.with("partial", json!(partial)))
    }

    /// A session operation that is not legal in the session's status.
    #[doc(hidden)]
    pub fn invalid_status(operation: Operation, status: Status) -> Self {
        Self::invalid_status_of("the session", operation, status, false)
    }

    /// The same for a session that the message names, and that may wait for calls whose outcome is unknown.
    pub(crate) fn invalid_status_of(
        session: &str,
        operation: Operation,
        status: Status,
        is_uncertain: bool,
    ) -> Self {
        let advice = match status {
            Status::AwaitingUser => "answer its question with Engine::reply",
            Status::AwaitingTools if is_uncertain => {
                "the outcome of some of its calls is unknown, because the process died while they ran; find out what they did, then give their \
                 results with Session::submit_tool_results; an approval with Engine::resume runs them again"
            }
            Status::AwaitingTools => {
                "give the results of its pending calls with Session::submit_tool_results first, or approve or reject them with Engine::resume"
            }
            Status::Idle | Status::Completed => "it waits for no tool results",
            Status::Error => "make it usable with Session::recover first",
        };
        Self::session(SessionReason::InvalidStatus)
            .with_message(format!(
                "session error: invalid_status: {operation} is not legal while {session} is {status}; {advice}"
            ))
            .with("operation", operation.as_str())
            .with("status", status.as_str())
    }

    /// The same error with this message.
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.0.message = Some(message.into());
        self
    }

    /// The same error, with a reason appended to its message if there is one.
    #[doc(hidden)]
    pub fn because(self, why: &[String]) -> Self {
        match why {
            [] => self,
            why => {
                let message = format!("{}; {}", self.message(), why.join("; "));
                self.with_message(message)
            }
        }
    }

    /// The same error with one more metadata member.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.0.metadata.insert(key.to_owned(), value.into());
        self
    }

    /// The same error, naming the provider.
    pub fn with_provider(self, provider: impl Into<String>) -> Self {
        self.with("provider", provider.into())
    }

    /// The same error, whose [`source`](StdError::source) is this cause.
    pub fn caused_by(mut self, cause: impl StdError + Send + Sync + 'static) -> Self {
        self.0.cause = Some(Arc::new(cause));
        self
    }

    /// The same error with the cause of another one.
    #[doc(hidden)]
    pub fn with_cause_of(mut self, other: &Self) -> Self {
        self.0.cause.clone_from(&other.0.cause);
        self
    }

    /// The same error, with its innermost cause in the message: a copy from JSON has no other.
    #[doc(hidden)]
    pub fn with_cause_told(self) -> Self {
        match self.untold_cause() {
            Some(cause) => {
                let message = format!("{}: {cause}", self.message());
                self.with_message(message)
            }
            None => self,
        }
    }

    /// The same error, as that of a call which this run records.
    #[doc(hidden)]
    pub fn of_run(mut self, run: Option<&RunId>) -> Self {
        self.0.run_id = self.0.run_id.or_else(|| run.cloned());
        self
    }

    pub(crate) fn failed_run(&self) -> Option<&RunId> {
        self.0.run_id.as_ref()
    }

    /// The message alone, as in JSON, without what `Display` adds from the metadata and the cause.
    pub fn message(&self) -> Cow<'_, str> {
        match &self.0.message {
            Some(message) => message.into(),
            None => self.default_message().into(),
        }
    }

    /// The kind, with its reason.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The reason as text, as in JSON.
    pub fn reason(&self) -> &'static str {
        self.0.kind.reason()
    }

    /// Facts for programs. Those that most errors have can be read with methods: [`provider`](Self::provider),
    /// [`status`](Self::status), [`request_id`](Self::request_id), [`tool_name`](Self::tool_name), …
    pub fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    /// The broken rules of a validation error, in rule order; empty for every other kind.
    pub fn field_errors(&self) -> Vec<FieldError> {
        match (self.0.kind, self.0.metadata.get("errors")) {
            (ErrorKind::Validation(_), Some(list)) => FieldError::deserialize_list(list),
            _ => Vec::new(),
        }
    }

    /// Whether a retry of the same provider call may succeed.
    pub fn is_retryable(&self) -> bool {
        use AdapterReason::*;
        matches!(
            self.0.kind,
            ErrorKind::Adapter(
                RateLimited | ProviderUnavailable | Overloaded | Timeout | NetworkError
            )
        )
    }

    /// Whether the run of a failed model call can be resumed, because the reason passes or can be
    /// corrected: the provider was down, overloaded, slow or unreachable, limited the rate, or
    /// rejected the key.
    ///
    /// That holds for runs of an `Engine`. A custom loop (`Context::run`) that returns such an error has ended: `Config::resume` refuses it, and
    /// its error names the record at which `fork_run` makes a copy that can be resumed. A loop that should survive such an error asks the model
    /// again instead of returning it.
    pub fn is_resumable(&self) -> bool {
        use AdapterReason::{AuthenticationFailed, PermissionDenied};
        self.is_retryable()
            || matches!(
                self.0.kind,
                ErrorKind::Adapter(AuthenticationFailed | PermissionDenied)
                    | ErrorKind::Stream(StreamReason::AdapterError | StreamReason::Timeout)
            )
    }

    /// Whether something took too long: a provider, a stream or a tool.
    pub fn is_timeout(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::Adapter(AdapterReason::Timeout)
                | ErrorKind::Stream(StreamReason::Timeout)
                | ErrorKind::Tool(ToolReason::Timeout)
        )
    }

    /// Whether a value was rejected before anything happened.
    pub fn is_validation(&self) -> bool {
        matches!(self.0.kind, ErrorKind::Validation(_))
    }

    /// The stable JSON form, as stored under `metadata.error` of results.
    pub fn to_value(&self) -> Value {
        json!({
            "type": self.0.kind.type_name(),
            "reason": self.0.kind.reason(),
            "message": self.message(),
            "metadata": self.0.metadata,
        })
    }

    /// The cause, its cause, and so on.
    fn causes(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        std::iter::successors(self.source(), |&cause| cause.source())
    }

    /// The innermost cause, which a person can act on, unless the message has it.
    fn untold_cause(&self) -> Option<String> {
        let innermost = self.causes().last().map(ToString::to_string);
        innermost.filter(|cause| !self.message().contains(cause.as_str()))
    }

    /// What a programmer can do about it, which is not for the model that may read the message.
    fn advice(&self) -> Option<&'static str> {
        match self.0.kind {
            ErrorKind::Adapter(AdapterReason::NoScriptedResponse) => Some(
                "add scripts; a program that is started again picks them by the conversation with Scripted::by_turn()",
            ),
            ErrorKind::Engine(EngineReason::UnknownTool) => {
                let is_plain = Self::unknown_tool(self.tool_name()?).message() == self.message();
                is_plain.then_some(
                    "on_unknown_tool(OnUnknownTool::Answer) lets the model read that and continue",
                )
            }
            _ => None,
        }
    }

    fn default_message(&self) -> String {
        let subject = match self.0.kind {
            ErrorKind::Engine(_) => "engine error",
            ErrorKind::Adapter(_) => "adapter error",
            ErrorKind::Stream(_) => "stream error",
            ErrorKind::Tool(_) => "tool error",
            ErrorKind::Session(_) => "session error",
            ErrorKind::Validation(_) => "validation failed",
            ErrorKind::Log(_) => "log error",
            ErrorKind::Replay(_) => "replay mismatch",
        };
        let named = self.0.metadata.get("provider").or_else(|| self.0.metadata.get("tool_name"));
        match named.and_then(Value::as_str) {
            Some(name) => format!("{subject} ({name}): {}", self.reason()),
            None => format!("{subject}: {}", self.reason()),
        }
    }
}

/// The message, with details that a person needs and the message lacks.
impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = self.message();
        let untold = |name: &&str| !message.contains(*name);
        if let Some(provider) = self.provider().filter(untold) {
            write!(f, "{provider}: ")?;
        }
        if let Some(tool) = self.tool_name().filter(untold) {
            write!(f, "tool {tool}: ")?;
        }
        f.write_str(&message)?;
        let is_of_call = matches!(self.0.kind, ErrorKind::Adapter(_) | ErrorKind::Stream(_));
        let status = self.status().map(|status| status.to_string());
        let wait = self.retry_after().map(|wait| wait.as_secs_f64().ceil());
        let details = [
            status.as_deref().filter(untold).map(|status| format!("status {status}")),
            Some(self.reason()).filter(|_| is_of_call).filter(untold).map(str::to_owned),
            self.request_id().filter(untold).map(|id| format!("request {id}")),
            self.server().filter(untold).map(|server| format!("calling {server}")),
            wait.map(|seconds| format!("retry after {seconds} s")).filter(|wait| untold(&&**wait)),
        ];
        let details = details.into_iter().flatten().collect::<Vec<_>>();
        if !details.is_empty() {
            write!(f, " ({})", details.join(", "))?;
        }
        if let Some(cause) = self.untold_cause() {
            write!(f, ": {cause}")?;
        }
        let mut expected = self.field_errors().into_iter().filter_map(|error| error.expected());
        expected.try_for_each(|expected| write!(f, "; {expected}"))?;
        self.advice().map_or(Ok(()), |advice| write!(f, "; {advice}"))
    }
}

/// Equality compares what an error reports, not whether its message is the default one, nor its
/// cause.
impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        self.0.kind == other.0.kind
            && self.0.metadata == other.0.metadata
            && self.message() == other.message()
    }
}

/// For people, as `fn main() -> Result<()>` prints it; `{:#?}` has every detail.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("message", &self.message())
            .field("metadata", &self.0.metadata)
            .field("run_id", &self.run_id())
            .field("causes", &self.causes().map(ToString::to_string).collect::<Vec<_>>())
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.cause.as_deref().map(|cause| cause as &(dyn StdError + 'static))
    }
}

impl Serialize for Error {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("Error", 4)?;
        fields.serialize_field("type", self.0.kind.type_name())?;
        fields.serialize_field("reason", self.0.kind.reason())?;
        fields.serialize_field("message", &self.message())?;
        fields.serialize_field("metadata", &Json(&self.0.metadata))?;
        fields.end()
    }
}

impl<'de> Deserialize<'de> for Error {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(expecting = "an error")]
        struct Wire {
            r#type: String,
            reason: String,
            message: String,
            #[serde(default, deserialize_with = "json::deserialize")]
            metadata: Metadata,
        }
        let is_read = deserializer.is_human_readable();
        let wire = Wire::deserialize(deserializer)?;
        let kind = ErrorKind::parse(&wire.r#type, &wire.reason).ok_or_else(|| {
            let named = format!("{} / {}", wire.r#type, wire.reason);
            match is_read {
                true => serde::de::Error::custom(format!("unknown error {named}")),
                // Records distinguish unknown members from wrong ones.
                false => serde::de::Error::unknown_variant(&named, &[]),
            }
        })?;
        let mut error = Self::with_metadata(kind, wire.metadata);
        // A default message is not stored, so that an error equals its copy from JSON.
        if error.default_message() != wire.message {
            error.0.message = Some(wire.message);
        }
        Ok(error)
    }
}

/// One step of a path to a field: a name or an index.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PathSegment {
    /// An index into a list.
    Index(usize),
    /// A field of an object.
    Field(String),
}

impl From<&str> for PathSegment {
    fn from(field: &str) -> Self {
        Self::Field(field.to_owned())
    }
}

impl From<String> for PathSegment {
    fn from(field: String) -> Self {
        Self::Field(field)
    }
}

impl From<usize> for PathSegment {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// One broken rule: where, and which.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::FieldError;
/// let error = FieldError::new("role", "unknown").under([("messages").into(), 0.into()]);
/// assert_eq!(error.to_string(), "messages.0.role: unknown");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FieldError {
    /// The way to the field, from the outside in.
    pub path: Vec<PathSegment>,
    /// The broken rule, as a stable word.
    pub code: String,
}

impl FieldError {
    /// A broken rule on one field.
    pub fn new(field: impl Into<PathSegment>, code: impl Into<String>) -> Self {
        Self { path: vec![field.into()], code: code.into() }
    }

    /// A broken rule at the end of this path.
    pub fn at(path: impl IntoIterator<Item = PathSegment>, code: impl Into<String>) -> Self {
        Self { path: path.into_iter().collect(), code: code.into() }
    }

    /// The same broken rule, seen from further outside.
    pub fn under(mut self, prefix: impl IntoIterator<Item = PathSegment>) -> Self {
        self.path.splice(0..0, prefix);
        self
    }

    /// The path with dots between its steps.
    pub fn path_text(&self) -> String {
        let steps: Vec<String> = self
            .path
            .iter()
            .map(|step| match step {
                PathSegment::Index(index) => index.to_string(),
                PathSegment::Field(name) => name.clone(),
            })
            .collect();
        steps.join(".")
    }

    /// What would fit in the place of what was refused, for codes that do not say it to everybody.
    fn expected(&self) -> Option<String> {
        let path = self.path_text();
        let fit = match (&*path, &*self.code) {
            (path, "unknown_field") if path.starts_with("budget.") => {
                return Some(format!("a budget has {}", Budget::NAMES.join(", ")));
            }
            (_, "must_be_positive") => "a whole number from 1 up",
            (_, "not_a_boolean") => "true or false",
            // The message names the tool.
            (path, "not_a_map") if path.starts_with("tools.") => return None,
            (_, "not_a_map") => "an object",
            (_, "not_a_string") => "a text",
            ("temperature", "out_of_range") => "a number from 0 to 2",
            ("tool_choice", "invalid_shape") => {
                r#""auto", "none", "required", the name of a tool, or an object"#
            }
            ("response_format", "invalid_shape") => r#""text" or an object"#,
            ("prompt_cache", "invalid_shape") => "true, false or an object",
            ("model", "invalid_shape") => "a name, or an object with an id",
            ("retry", "invalid_shape") => {
                r#"an object such as {"max_attempts": 3, "base_delay_ms": 500}"#
            }
            _ => return None,
        };
        Some(format!("{path} must be {fit}"))
    }

    fn deserialize_list(list: &Value) -> Vec<Self> {
        Vec::deserialize(list).unwrap_or_default()
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path_text(), self.code)
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        let broken = if error.is_data() {
            FieldError::new("data", "malformed_struct")
        } else {
            FieldError::new("json", "malformed")
        };
        Self::validation(ValidationReason::InvalidJson, vec![broken])
            .with_message(format!("JSON could not be decoded: {error}"))
            .caused_by(error)
    }
}

/// A handler's halt with a reason that the loop keeps for itself.
pub(crate) fn reserved_halt(reason: &HaltReason) -> Error {
    Error::tool(ToolReason::InvalidReturn)
        .with_message(format!("tool error: invalid_return: the halt reason {reason} is reserved"))
        .with("reserved_halt_reason", reason.as_str())
}
