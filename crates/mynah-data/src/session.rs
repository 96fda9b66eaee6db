//! Sessions: a thread that can be put away and picked up.

use serde::{Deserialize, Serialize, de};
use serde_json::{Value, json};

use crate::{
    Breach, ChatResult, Error, ErrorKind, FieldError, HaltReason, Message, Messages, Metadata,
    Part, Role, SessionReason, StepResult, StreamReason, Thread, ToolCall, ToolReason,
    ValidationReason,
    result::is_final,
    session_run::{self, SessionRun},
};

/// A conversation that can be put away and picked up, in another process too.
///
/// What can be done with one, and where:
///
/// | operation | where |
/// |---|---|
/// | make one | [`Session::new`], `Session::from("hello")`, [`with_id`](Self::with_id), [`with_context`](Self::with_context) |
/// | look at it | [`status`](Self::status), [`messages`](Self::messages), [`pending_tool_calls`](Self::pending_tool_calls), [`uncertain_tool_calls`](Self::uncertain_tool_calls), [`pending_question`](Self::pending_question), [`error`](Self::error), [`breach`](Self::breach) |
/// | run its first turn | `Engine::start` |
/// | add what a person says, or answers, and run a turn | `Engine::reply` |
/// | run a turn after tool results, or with any message | `Engine::continue_session` |
/// | run a single step | `Engine::step_session` |
/// | give the results of pending tool calls | [`submit_tool_result`](Self::submit_tool_result), [`submit_tool_results`](Self::submit_tool_results) |
/// | add messages without a turn | [`append`](Self::append), [`append_user`](Self::append_user), [`append_tool_result`](Self::append_tool_result) |
/// | ask whether an operation is legal now | [`check`](Self::check) |
/// | make it usable after a failed turn | [`recover`](Self::recover) |
/// | restore it from its recorded turns | `mynah::restore_session`, `mynah::restore_turn` |
/// | fold a turn's events into it | [`SessionReducer`](crate::SessionReducer), [`apply_chat`](Self::apply_chat), [`apply_step`](Self::apply_step) |
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::{Session, Status, Thread, ToolCall};
///
/// let waiting = Session::awaiting_tools(Thread::from("hi"), vec![ToolCall::new("c0", "echo", "{}")]);
/// let session = waiting.submit_tool_result("c0", serde_json::json!({"ok": true}))?;
/// assert_eq!(session.status(), Status::Idle);
/// assert!(session.pending_tool_calls().is_empty());
/// # Ok::<(), mynah_data::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Session {
    /// The caller's id for it; tools see it.
    pub id: Option<String>,
    /// The conversation so far.
    pub thread: Thread,
    /// Its status, with what it waits for.
    pub state: SessionState,
    /// The caller's own data for tools. Mynah never reads it.
    pub context: Metadata,
    /// The caller's own data, kept with the session.
    pub metadata: Metadata,
    /// Metadata of the last turn.
    pub turn_metadata: Metadata,
    /// The run of the last recorded turn.
    pub last_run: Option<SessionRun>,
}

/// The status of a session, with its data.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum SessionState {
    /// Ready for a turn.
    #[default]
    Idle,
    /// A person must answer a tool's question.
    AwaitingUser {
        /// The question.
        question: String,
        /// The call that asks.
        tool_call_id: Option<String>,
    },
    /// A person must decide about these calls, or the caller must submit their results.
    AwaitingTools {
        /// The calls, in order.
        calls: Vec<ToolCall>,
    },
    /// The last turn ended normally; ready for another.
    Completed,
    /// The last turn failed.
    Failed {
        /// The failure: an [`Error`] in JSON, or the data of the failing tool.
        error: Value,
    },
}

crate::words! {
    /// The name of a session's status.
    #[non_exhaustive]
    pub enum Status {
        /// Ready for a turn.
        Idle => "idle",
        /// A person must answer.
        AwaitingUser => "awaiting_user",
        /// A person must decide about tool calls, or the caller must give their results.
        AwaitingTools => "awaiting_tools",
        /// The last turn ended normally.
        Completed => "completed",
        /// The last turn failed.
        Error => "error",
    }
}

crate::words! {
    /// An operation on a session.
    #[non_exhaustive]
    pub enum Operation {
        /// Run the session's thread as a fresh conversation.
        Start => "start",
        /// Append what a person says, and chat.
        Reply => "reply",
        /// Append a message, or nothing, and chat.
        Continue => "continue",
        /// One step.
        Step => "step",
        /// Give the results of pending tool calls.
        SubmitToolResult => "submit_tool_result",
    }
}

impl Session {
    /// An idle session without messages.
    pub fn new() -> Self {
        Self::default()
    }

    /// A session that waits for tool results.
    pub fn awaiting_tools(thread: Thread, calls: Vec<ToolCall>) -> Self {
        Self { thread, state: SessionState::AwaitingTools { calls }, ..Self::default() }
    }

    /// A session that waits for a person.
    pub fn awaiting_user(
        thread: Thread,
        question: impl Into<String>,
        tool_call_id: Option<String>,
    ) -> Self {
        Self {
            thread,
            state: SessionState::AwaitingUser { question: question.into(), tool_call_id },
            ..Self::default()
        }
    }

    /// The same session under this id.
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The same session with this context for its tools.
    pub fn with_context(mut self, context: Metadata) -> Self {
        self.context = context;
        self
    }

    /// The same session with one more metadata member.
    pub fn with_metadata(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.metadata.insert(key.to_owned(), value.into());
        self
    }

    /// The same session with one more message. Checks nothing.
    #[must_use]
    pub fn append(mut self, message: Message) -> Self {
        self.thread.messages.push(message);
        self
    }

    /// The same session with a person's message. Checks nothing.
    #[must_use]
    pub fn append_user(self, text: impl Into<String>) -> Self {
        self.append(Message::user(text))
    }

    /// The same session with a tool's message. Checks nothing and leaves the pending calls alone;
    /// see [`Session::submit_tool_result`].
    #[must_use]
    pub fn append_tool_result(
        self,
        tool_call_id: impl Into<String>,
        content: impl Into<Value>,
    ) -> Self {
        self.append(Message::tool_result(tool_call_id, content))
    }

    /// The name of the state.
    pub fn status(&self) -> Status {
        match self.state {
            SessionState::Idle => Status::Idle,
            SessionState::AwaitingUser { .. } => Status::AwaitingUser,
            SessionState::AwaitingTools { .. } => Status::AwaitingTools,
            SessionState::Completed => Status::Completed,
            SessionState::Failed { .. } => Status::Error,
        }
    }

    /// The calls that the session waits for: they need a person's approval, or a result from the caller. Those among them that may
    /// have run are [`uncertain_tool_calls`](Self::uncertain_tool_calls).
    pub fn pending_tool_calls(&self) -> &[ToolCall] {
        match &self.state {
            SessionState::AwaitingTools { calls } => calls,
            _ => &[],
        }
    }

    /// The pending calls whose outcome is unknown, because the process died while they ran. To approve one of them runs it again.
    ///
    /// ```
    /// # use mynah_data::{ChatResult, HaltReason, Message, Session, Thread, ToolCall};
    /// # let call = ToolCall::new("c0", "pay", "{}");
    /// # let mut result = ChatResult::new(Thread::from("pay"), HaltReason::UncertainTools);
    /// # result.thread.messages.push(Message::assistant_parts([mynah_data::Part::tool_call(call)]));
    /// # result.metadata.insert("uncertain_tool_calls".to_owned(), serde_json::json!(["c0"]));
    /// # let session = Session::new().apply_chat(&result);
    /// for call in session.uncertain_tool_calls() {
    ///     println!("Find out whether {} did its work.", call.name);
    /// }
    /// # assert_eq!(session.uncertain_tool_calls().count(), 1);
    /// # assert_eq!(Session::awaiting_tools(Thread::new(), vec![ToolCall::new("c0", "pay", "{}")]).uncertain_tool_calls().count(), 0);
    /// ```
    pub fn uncertain_tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        let listed = self.turn_metadata.get("uncertain_tool_calls").and_then(Value::as_array);
        self.pending_tool_calls().iter().filter(move |call| {
            listed.is_some_and(|ids| ids.iter().any(|id| id.as_str() == Some(&call.id)))
        })
    }

    /// What a person must answer.
    pub fn pending_question(&self) -> Option<&str> {
        match &self.state {
            SessionState::AwaitingUser { question, .. } => Some(question),
            _ => None,
        }
    }

    /// The call that asked it.
    pub fn pending_tool_call_id(&self) -> Option<&str> {
        match &self.state {
            SessionState::AwaitingUser { tool_call_id, .. } => tool_call_id.as_deref(),
            _ => None,
        }
    }

    /// The messages so far, in order.
    pub fn messages(&self) -> &Messages {
        &self.thread.messages
    }

    /// How the last turn failed. What a failing tool left behind that is no [`Error`] itself is in the error's metadata, as `error`.
    pub fn error(&self) -> Option<Error> {
        let error = self.failure()?;
        Some(Error::deserialize(error).unwrap_or_else(|_| {
            let said = error.as_str().map_or_else(|| error.to_string(), str::to_owned);
            Error::tool(ToolReason::Failed)
                .with_message(format!("tool error: failed: {said}"))
                .with("error", error.clone())
        }))
    }

    /// The limit that the last turn passed, if a budget ended it.
    pub fn breach(&self) -> Option<Breach> {
        Breach::deserialize(self.turn_metadata.get("budget")?).ok()
    }

    fn failure(&self) -> Option<&Value> {
        match &self.state {
            SessionState::Failed { error } => Some(error),
            _ => None,
        }
    }

    /// Whether the operation is legal now. `message` is what `Continue` would append.
    ///
    /// # Errors
    /// `session_in_error_state`, or `invalid_status` with the operation and the status.
    pub fn check(&self, operation: Operation, message: Option<&Message>) -> Result<(), Error> {
        let from_user = message.is_some_and(|m| m.role() == Role::User);
        let legal = match (&self.state, operation) {
            (SessionState::Failed { error }, _) => {
                return Err(Error::session(SessionReason::SessionInErrorState)
                    .with_message(format!(
                        "session error: session_in_error_state: the last turn of {} failed; Session::recover makes it usable again",
                        self.named()
                    ))
                    .with("error", error.clone()));
            }
            (SessionState::Idle | SessionState::Completed, operation) => {
                operation != Operation::SubmitToolResult
            }
            (SessionState::AwaitingUser { .. }, Operation::Reply) => true,
            (SessionState::AwaitingUser { .. }, Operation::Continue) => from_user,
            (SessionState::AwaitingUser { .. }, _) => false,
            (SessionState::AwaitingTools { .. }, Operation::SubmitToolResult) => true,
            (SessionState::AwaitingTools { calls }, Operation::Continue) => {
                calls.is_empty() && message.is_none()
            }
            (SessionState::AwaitingTools { .. }, _) => false,
        };
        if legal {
            return Ok(());
        }
        let is_uncertain = self.uncertain_tool_calls().next().is_some();
        Err(Error::invalid_status_of(&self.named(), operation, self.status(), is_uncertain))
    }

    /// The session in an error.
    fn named(&self) -> String {
        self.id.as_ref().map_or_else(|| "the session".to_owned(), |id| format!("session {id:?}"))
    }

    /// Adds the result of one pending call. Text and lists of message parts stay as they are; any
    /// other value becomes its JSON. The model is not called.
    ///
    /// # Errors
    /// `invalid_status` unless the session waits for tools; `unknown_tool_call_id` if no pending call has this id.
    pub fn submit_tool_result(&self, id: &str, content: impl Into<Value>) -> Result<Self, Error> {
        self.check(Operation::SubmitToolResult, None)?;
        self.with_tool_result(id, content.into())
    }

    fn with_tool_result(&self, id: &str, content: Value) -> Result<Self, Error> {
        let pending = self.pending_tool_calls();
        if !pending.iter().any(|call| call.id == id) {
            return Err(Error::session(SessionReason::UnknownToolCallId)
                .with_message(format!(
                    "session error: unknown_tool_call_id: no pending call has the id {id:?}"
                ))
                .with("tool_call_id", id));
        }
        let calls: Vec<ToolCall> = pending.iter().filter(|call| call.id != id).cloned().collect();
        let mut session = self.clone();
        session.thread.messages.push(tool_message(id, content));
        session.state = if calls.is_empty() {
            SessionState::Idle
        } else {
            SessionState::AwaitingTools { calls }
        };
        Ok(session)
    }

    /// Adds the results of several pending calls: all of them, or none. An empty list changes
    /// nothing.
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// use mynah::{Session, Status, Thread, ToolCall};
    ///
    /// let calls = ["c0", "c1"].map(|id| ToolCall::new(id, "echo", "{}"));
    /// let waiting = Session::awaiting_tools(Thread::from("hi"), calls.to_vec());
    /// let session = waiting.submit_tool_results([("c0", "r0"), ("c1", "r1")])?;
    /// assert_eq!(session.status(), Status::Idle);
    /// assert!(session.pending_tool_calls().is_empty());
    /// # Ok::<(), mynah_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// `invalid_status` unless the session waits for tools; `unknown_tool_call_id`, naming it, if an id is not that of a pending
    /// call or stands twice.
    pub fn submit_tool_results<I, C>(
        &self,
        results: impl IntoIterator<Item = (I, C)>,
    ) -> Result<Self, Error>
    where
        I: AsRef<str>,
        C: Into<Value>,
    {
        let mut session = self.clone();
        for (index, (id, content)) in results.into_iter().enumerate() {
            if index == 0 {
                self.check(Operation::SubmitToolResult, None)?;
            }
            session = session.with_tool_result(id.as_ref(), content.into())?;
        }
        Ok(session)
    }

    /// A fresh, idle session with the same conversation. Calls without a result get an error
    /// result. Partial answers of failed turns stay, marked as partial.
    ///
    /// The error result of a [call with an unknown outcome](Self::uncertain_tool_calls) says that the outcome is unknown, so that the model
    /// does not take the call for one that never started. A model may still repeat it: where that does harm, find out what the call did and
    /// [submit its result](Self::submit_tool_result) instead.
    #[must_use]
    pub fn recover(&self) -> Self {
        let mut session =
            Self { state: SessionState::Idle, turn_metadata: Metadata::new(), ..self.clone() };
        session.thread.messages.repair_with(|id| {
            let unknown = self.uncertain_tool_calls().find(|call| call.id == id);
            unknown.map_or_else(
                || crate::CUT_SHORT.to_owned(),
                |call| Error::unknown_outcome(call).to_string(),
            )
        });
        session
    }

    /// The session after a chat with this result.
    #[must_use]
    pub fn apply_chat(&self, result: &ChatResult) -> Self {
        let state = match &result.halted_reason {
            HaltReason::AskUser => SessionState::AwaitingUser {
                question: result.pending_question.clone().unwrap_or_default(),
                tool_call_id: result.pending_tool_call_id.clone(),
            },
            HaltReason::ManualToolCalls => {
                SessionState::AwaitingTools { calls: result.manual_tool_calls() }
            }
            HaltReason::UncertainTools => {
                SessionState::AwaitingTools { calls: result.uncertain_tool_calls() }
            }
            HaltReason::ToolError | HaltReason::Error => {
                SessionState::Failed { error: failure(&result.metadata) }
            }
            HaltReason::Cancelled | HaltReason::Deadline | HaltReason::Sleeping => {
                SessionState::Idle
            }
            _ => SessionState::Completed,
        };
        self.after_turn(result.thread.clone(), state, result.metadata.clone())
    }

    /// The session after a step with this result.
    #[must_use]
    pub fn apply_step(&self, result: &StepResult) -> Self {
        let text = |key: &str| result.metadata.get(key).and_then(Value::as_str).map(str::to_owned);
        let halted = result.halted_reason();
        let manual = result.manual_tool_calls();
        let mut metadata = result.metadata.clone();
        let mut thread = result.thread.clone();
        let state = match halted {
            Some(HaltReason::AskUser) => SessionState::AwaitingUser {
                question: text("pending_question").unwrap_or_default(),
                tool_call_id: text("pending_tool_call_id"),
            },
            Some(HaltReason::ToolError) => SessionState::Failed { error: failure(&metadata) },
            Some(HaltReason::Cancelled | HaltReason::Deadline) => SessionState::Idle,
            _ if !manual.is_empty() => SessionState::AwaitingTools { calls: manual },
            _ if result.is_manual() && !is_final(result.response.finish_reason) => {
                SessionState::AwaitingTools {
                    calls: result.response.tool_calls().cloned().collect(),
                }
            }
            _ if metadata.contains_key("error") => {
                SessionState::Failed { error: failure(&metadata) }
            }
            _ => match result.response.error() {
                // A caller may end a turn early. That is not a failure.
                Some(error) if error.kind() == ErrorKind::Stream(StreamReason::Cancelled) => {
                    SessionState::Idle
                }
                Some(error) => SessionState::Failed { error: error.to_value() },
                None if result.done => SessionState::Completed,
                None => SessionState::Idle,
            },
        };
        if !matches!(state, SessionState::AwaitingTools { .. }) {
            let repaired = thread.messages.repair(crate::CUT_SHORT);
            if !repaired.is_empty() {
                metadata.insert("repaired_tool_calls".to_owned(), json!(repaired));
            }
        }
        self.after_turn(thread, state, metadata)
    }

    fn after_turn(&self, thread: Thread, state: SessionState, turn_metadata: Metadata) -> Self {
        Self {
            id: self.id.clone(),
            thread,
            state,
            context: self.context.clone(),
            metadata: self.metadata.clone(),
            turn_metadata,
            last_run: self.last_run.clone(),
        }
    }
}

/// The failure that a session keeps: the error, or all metadata of the turn.
fn failure(metadata: &Metadata) -> Value {
    let named = metadata.get("error").or_else(|| metadata.get("on_tool_error_exception"));
    named.cloned().unwrap_or_else(|| Value::Object(metadata.clone()))
}

fn tool_message(id: &str, content: Value) -> Message {
    match &content {
        Value::Array(items) if !items.is_empty() => match Vec::<Part>::deserialize(&content) {
            Ok(parts) => Message::tool_parts(id, parts),
            Err(_) => Message::tool_result(id, content),
        },
        _ => Message::tool_result(id, content),
    }
}

impl Serialize for Session {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("Session", 10)?;
        fields.serialize_field("id", &self.id)?;
        fields.serialize_field("thread", &self.thread)?;
        fields.serialize_field("status", &self.status())?;
        fields.serialize_field("pending_tool_calls", self.pending_tool_calls())?;
        fields.serialize_field("pending_question", &self.pending_question())?;
        fields.serialize_field("pending_tool_call_id", &self.pending_tool_call_id())?;
        fields.serialize_field("context", &self.context)?;
        match self.failure() {
            None => fields.serialize_field("metadata", &self.metadata)?,
            Some(error) => {
                let mut metadata = self.metadata.clone();
                metadata.insert("error".to_owned(), error.clone());
                fields.serialize_field("metadata", &metadata)?;
            }
        }
        fields.serialize_field("turn_metadata", &self.turn_metadata)?;
        match &self.last_run {
            Some(run) => fields.serialize_field("last_run", &session_run::Wire::from(run))?,
            None => fields.skip_field("last_run")?,
        }
        fields.end()
    }
}

impl<'de> Deserialize<'de> for Session {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_wire(Wire::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[derive(Deserialize)]
#[serde(expecting = "a session")]
pub(crate) struct Wire {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    thread: Thread,
    status: Status,
    #[serde(default)]
    pending_tool_calls: Vec<ToolCall>,
    #[serde(default)]
    pending_question: Option<String>,
    #[serde(default)]
    pending_tool_call_id: Option<String>,
    #[serde(default)]
    context: Metadata,
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    turn_metadata: Metadata,
    #[serde(default)]
    last_run: Option<session_run::Wire>,
}

impl Session {
    pub(crate) fn from_wire(mut wire: Wire) -> Result<Self, Error> {
        let missing = |field: &str, code: &str| {
            Error::validation(ValidationReason::InvalidSession, vec![FieldError::new(field, code)])
        };
        let state = match wire.status {
            Status::Idle => SessionState::Idle,
            Status::Completed => SessionState::Completed,
            Status::AwaitingUser => SessionState::AwaitingUser {
                question: wire
                    .pending_question
                    .ok_or_else(|| missing("pending_question", "required_for_status"))?,
                tool_call_id: wire.pending_tool_call_id,
            },
            Status::AwaitingTools if wire.pending_tool_calls.is_empty() => {
                return Err(missing("pending_tool_calls", "required_for_status"));
            }
            Status::AwaitingTools => SessionState::AwaitingTools { calls: wire.pending_tool_calls },
            Status::Error => SessionState::Failed {
                error: wire
                    .metadata
                    .shift_remove("error")
                    .ok_or_else(|| missing("metadata", "error_required_for_status"))?,
            },
        };
        Ok(Self {
            id: wire.id,
            last_run: wire.last_run.map(|run| run.of(&wire.thread)),
            thread: wire.thread,
            state,
            context: wire.context,
            metadata: wire.metadata,
            turn_metadata: wire.turn_metadata,
        })
    }
}

/// A session can be started from anything that makes a thread.
macro_rules! session_from_thread {
    ($($input:ty),+) => {$(
        impl From<$input> for Session {
            fn from(input: $input) -> Self {
                Self { thread: Thread::from(input), ..Self::default() }
            }
        }
    )+};
}
session_from_thread!(&str, String, Message, Vec<Message>, Thread, &Thread);

impl<const N: usize> From<[Message; N]> for Session {
    fn from(messages: [Message; N]) -> Self {
        Self { thread: Thread::from(messages), ..Self::default() }
    }
}

impl From<&Session> for Session {
    fn from(session: &Session) -> Self {
        session.clone()
    }
}
