//! Results of steps and chats.

use std::{borrow::Cow, fmt, sync::Arc};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    Breach, EngineReason, Error, FinishReason, Message, Metadata, Response, Role, RunId, Thread,
    ToolCall, Usage,
};

crate::words! {
    /// Whether tools are run or handed to the caller.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum ToolMode {
        /// Tools are run, except those marked manual.
        #[default]
        Auto => "auto",
        /// Every call is handed to the caller.
        Manual => "manual",
    }
}

/// Why a chat stopped. Tools may halt for reasons of their own.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::HaltReason;
/// assert_eq!(HaltReason::from("max_turns"), HaltReason::MaxTurns);
/// assert_eq!(HaltReason::from("plan_submitted").as_str(), "plan_submitted");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HaltReason {
    /// The model was done.
    #[default]
    Completed,
    /// The limit on turns was reached.
    MaxTurns,
    /// The caller's `halt_when` said so.
    HaltWhen,
    /// A tool wants a person to answer.
    AskUser,
    /// A tool failed, and the policy for errors halts.
    ToolError,
    /// The caller cancelled, or dropped the stream.
    Cancelled,
    /// The deadline of the whole chat passed.
    Deadline,
    /// The model call failed.
    Error,
    /// Tool calls wait for a person's approval, or for results from the caller.
    ManualToolCalls,
    /// A budget was used up.
    BudgetExceeded,
    /// Tools were announced, and their outcome is unknown.
    UncertainTools,
    /// The process died again and again before the run made any progress.
    CrashLoop,
    /// The run waits until a time: a tool continues then, or the model is called again.
    Sleeping,
    /// A tool halted for a reason of its own.
    Custom(String),
}

impl HaltReason {
    /// The reasons that a tool may not use for its own halts.
    pub const RESERVED: &'static [Self] = &[
        Self::Completed,
        Self::MaxTurns,
        Self::HaltWhen,
        Self::AskUser,
        Self::ToolError,
        Self::Cancelled,
        Self::Deadline,
        Self::Error,
        Self::ManualToolCalls,
        Self::BudgetExceeded,
        Self::UncertainTools,
        Self::CrashLoop,
        Self::Sleeping,
    ];

    /// The name used in JSON.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Completed => "completed",
            Self::MaxTurns => "max_turns",
            Self::HaltWhen => "halt_when",
            Self::AskUser => "ask_user",
            Self::ToolError => "tool_error",
            Self::Cancelled => "cancelled",
            Self::Deadline => "deadline",
            Self::Error => "error",
            Self::ManualToolCalls => "manual_tool_calls",
            Self::BudgetExceeded => "budget_exceeded",
            Self::UncertainTools => "uncertain_tools",
            Self::CrashLoop => "crash_loop",
            Self::Sleeping => "sleeping",
            Self::Custom(reason) => reason,
        }
    }

    /// What the caller can do, as the end of a message.
    fn advice(&self, is_recorded: bool) -> &'static str {
        match self {
            Self::MaxTurns if !is_recorded => {
                "; continue with the thread of the result, or set a larger max_turns"
            }
            Self::MaxTurns => {
                "; resume the run with a larger max_turns, or continue with the thread of the result"
            }
            Self::AskUser => "; answer the pending_question with reply or resume",
            Self::ManualToolCalls => {
                "; give results for manual_tool_calls, or approve or reject them"
            }
            Self::BudgetExceeded if !is_recorded => "; set a larger budget",
            Self::BudgetExceeded => "; resume the run with a larger budget",
            Self::UncertainTools => "; decide about uncertain_tool_calls, and resume the run",
            Self::Sleeping => "; resume the run at its wake_at_ms",
            _ => "",
        }
    }
}

impl From<&str> for HaltReason {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl From<String> for HaltReason {
    fn from(text: String) -> Self {
        let known = Self::RESERVED.iter().find(|reason| reason.as_str() == text);
        known.cloned().unwrap_or(Self::Custom(text))
    }
}

impl fmt::Display for HaltReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for HaltReason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for HaltReason {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from(String::deserialize(deserializer)?))
    }
}

/// The result of one step: a model's answer, and the results of its tool calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepResult {
    /// The conversation with the answer and the tool results.
    pub thread: Thread,
    /// The model's answer.
    pub response: Response,
    /// The tool messages, in the order of the calls, as they were when the step ended. A call that waited then, for an approval, a
    /// result or an answer, is missing or has a placeholder here: its result is in the `thread` of the chat's result.
    pub tool_results: Vec<Arc<Message>>,
    /// Whether nothing is left to do: the model was not waiting for tools, or a tool halted.
    pub done: bool,
    /// `mode`, `manual_tool_calls`, `halted_reason`, `halt_tool_call_id`, `halt_result`, `pending_question`,
    /// `pending_tool_call_id`, `ask_user_opts`, `on_tool_error_exception`, each where it applies.
    pub metadata: Metadata,
    /// The run that recorded the step, if it was one of its own and no part of a chat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
}

impl StepResult {
    /// A result of the given answer.
    pub fn new(thread: Thread, response: Response) -> Self {
        Self {
            thread,
            response,
            tool_results: Vec::new(),
            done: false,
            metadata: Metadata::new(),
            run_id: None,
        }
    }

    /// The error that ended the step: of the model call, or of a tool that halts on errors.
    pub fn error(&self) -> Option<Error> {
        let error = error(&self.metadata).or_else(|| self.response.error())?;
        Some(error.of_run(self.run_id.as_ref()))
    }

    /// The limit that was passed, if a budget ended the step.
    pub fn breach(&self) -> Option<Breach> {
        read(&self.metadata, "budget")
    }

    /// What a tool wants a person to answer.
    pub fn pending_question(&self) -> Option<&str> {
        self.metadata.get("pending_question")?.as_str()
    }

    /// The call that asks.
    pub fn pending_tool_call_id(&self) -> Option<&str> {
        self.metadata.get("pending_tool_call_id")?.as_str()
    }

    /// The call whose tool halted the step.
    pub fn halt_tool_call_id(&self) -> Option<&str> {
        self.metadata.get("halt_tool_call_id")?.as_str()
    }

    /// What the tool that halted the step gave as its result.
    pub fn halt_result(&self) -> Option<&Value> {
        self.metadata.get("halt_result")
    }

    /// Why a tool halted, if one did.
    pub fn halted_reason(&self) -> Option<HaltReason> {
        Some(HaltReason::from(self.metadata.get("halted_reason")?.as_str()?))
    }

    /// The calls of manual tools that wait for the caller.
    pub fn manual_tool_calls(&self) -> Vec<ToolCall> {
        calls(&self.metadata)
    }

    /// Whether every call was handed to the caller.
    pub fn is_manual(&self) -> bool {
        self.metadata.get("mode").and_then(Value::as_str) == Some("manual")
    }
}

fn calls(metadata: &Metadata) -> Vec<ToolCall> {
    read(metadata, "manual_tool_calls").unwrap_or_default()
}

fn error(metadata: &Metadata) -> Option<Error> {
    read(metadata, "error")
}

fn read<'a, T: Deserialize<'a>>(metadata: &'a Metadata, name: &str) -> Option<T> {
    T::deserialize(metadata.get(name)?).ok()
}

/// The result of a chat.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::{ChatResult, HaltReason, Thread};
/// let result = ChatResult::new(Thread::new(), HaltReason::Completed);
/// assert_eq!(result.halted_reason, HaltReason::Completed);
/// assert!(result.steps.is_empty());
/// ```
///
/// Every field has a default: a completed chat in which nothing was said.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::{ChatResult, HaltReason, Thread};
/// assert_eq!(ChatResult::default(), ChatResult::new(Thread::new(), HaltReason::Completed));
/// ```
///
/// In JSON the conversation stands once, in `thread`. A step has no `thread` there, but the `messages` that it added
/// and, as `after`, how many of the conversation stood before them. Reading the JSON restores the steps' threads.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ChatResult {
    /// The whole conversation. Keep it to continue from here.
    pub thread: Thread,
    /// The last answer; none if the model was never asked.
    pub final_response: Option<Response>,
    /// Every step, in order.
    pub steps: Vec<StepResult>,
    /// Why the chat stopped.
    pub halted_reason: HaltReason,
    /// What a tool wants a person to answer.
    pub pending_question: Option<String>,
    /// The call that asks.
    pub pending_tool_call_id: Option<String>,
    /// More on the halt, by its reason; `structured_finalize`, `repaired_tool_calls` where they apply.
    pub metadata: Metadata,
    /// The run that recorded the chat.
    pub run_id: Option<RunId>,
}

impl ChatResult {
    /// A chat that stopped for this reason, with nothing in it yet.
    pub fn new(thread: Thread, halted_reason: HaltReason) -> Self {
        Self { thread, halted_reason, ..Self::default() }
    }

    /// Whether the chat stopped for anything but the model being done.
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// use mynah::{ChatResult, HaltReason, Thread};
    /// assert!(!ChatResult::new(Thread::new(), HaltReason::Completed).is_halted());
    /// assert!(ChatResult::new(Thread::new(), HaltReason::MaxTurns).is_halted());
    /// ```
    #[doc(alias = "halted?")]
    pub fn is_halted(&self) -> bool {
        self.halted_reason != HaltReason::Completed
    }

    /// The text of the last answer, however far it came; empty if there is none.
    pub fn text(&self) -> Cow<'_, str> {
        self.final_response.as_ref().map_or(Cow::Borrowed(""), Response::text)
    }

    /// The answer of a chat whose model was done, or why there is none.
    ///
    /// A chat that was cancelled, reached a limit, halted or waits has no answer. Its last
    /// [`text`](ChatResult::text) may be incomplete or empty.
    ///
    /// The model also counts as done if its answer was filtered or cut off at the token limit; see
    /// the `finish_reason` of [`final_response`](ChatResult::final_response). The text is not
    /// checked against a response format. [`into_json`](ChatResult::into_json) checks both.
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// use mynah::{ChatResult, EngineReason, ErrorKind, HaltReason, Thread};
    /// let error = ChatResult::new(Thread::new(), HaltReason::MaxTurns).into_text().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::Halted));
    /// assert_eq!(error.metadata()["halted_reason"], "max_turns");
    /// ```
    ///
    /// # Errors
    /// The error that ended the chat; `halted` for every other reason but `completed`, with the `budget` that was passed if that is why.
    pub fn into_text(self) -> Result<String, Error> {
        self.check_completed()?;
        Ok(self.text().into_owned())
    }

    /// The answer of a chat whose model was done, read as JSON: see [`Response::into_json`] for what is checked.
    ///
    /// ```
    /// # use mynah_data::{ChatResult, HaltReason, Message, Response, Thread};
    /// # let mut result = ChatResult::new(Thread::new(), HaltReason::Completed);
    /// # result.final_response = Some(Response::new(Message::assistant(r#"{"celsius": 21}"#)));
    /// let weather: std::collections::HashMap<String, i32> = result.into_json()?;
    /// assert_eq!(weather["celsius"], 21);
    /// # Ok::<(), mynah_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`into_text`](ChatResult::into_text) and [`Response::into_json`], and that of a
    /// failed call for the answer's format (`structured_finalize`).
    pub fn into_json<T: DeserializeOwned>(self) -> Result<T, Error> {
        self.check_completed()?;
        if let Some(error) = self.finalize_error() {
            return Err(error.of_run(self.run_id.as_ref()));
        }
        let response = self.final_response.unwrap_or_else(|| Response::new(Message::assistant("")));
        response.into_json().map_err(|error| error.of_run(self.run_id.as_ref()))
    }

    /// Whether the model was done.
    fn check_completed(&self) -> Result<(), Error> {
        match self.error() {
            Some(error) => Err(error),
            None if !self.is_halted() => Ok(()),
            None => Err(self.halted()),
        }
    }

    fn halted(&self) -> Error {
        let breach = self.breach();
        let calls: Vec<String> = self
            .manual_tool_calls()
            .iter()
            .map(|call| format!("{} [{}]", call.name, call.id))
            .collect();
        let cause = match &breach {
            Some(breach) => format!(": {breach}"),
            None if calls.is_empty() => String::new(),
            None => format!(": {}", calls.join(", ")),
        };
        let error = Error::engine(EngineReason::Halted)
            .with_message(format!(
                "engine error: halted: the chat stopped before the model was done: {}{cause}{}",
                self.halted_reason,
                self.halted_reason.advice(self.run_id.is_some())
            ))
            .with("halted_reason", self.halted_reason.as_str())
            .of_run(self.run_id.as_ref());
        match breach {
            Some(breach) => error.with("budget", json!(breach)),
            None => error,
        }
    }

    /// The calls that wait for a person's approval, or for results from the caller.
    pub fn manual_tool_calls(&self) -> Vec<ToolCall> {
        let listed = calls(&self.metadata);
        if !listed.is_empty() || self.halted_reason != HaltReason::ManualToolCalls {
            return listed;
        }
        self.final_response.iter().flat_map(|response| response.tool_calls().cloned()).collect()
    }

    /// The calls whose outcome is unknown, with the arguments with which they ran.
    pub fn uncertain_tool_calls(&self) -> Vec<ToolCall> {
        let listed = self.metadata.get("uncertain_tool_calls").and_then(Value::as_array);
        let uncertain = |call: &&ToolCall| {
            listed.is_some_and(|ids| ids.iter().any(|id| id.as_str() == Some(&call.id)))
        };
        // The answer that made them is not a step yet.
        let asked =
            self.thread.messages.iter().rev().find(|message| message.role() == Role::Assistant);
        asked
            .into_iter()
            .flat_map(|message| message.tool_calls().filter(uncertain))
            .map(|call| call.edited_in(&self.metadata).unwrap_or_else(|| call.clone()))
            .collect()
    }

    /// The error that ended the chat. If the chat is [`Sleeping`](HaltReason::Sleeping) because its provider asked to wait, the error of the
    /// model call that will be made again.
    pub fn error(&self) -> Option<Error> {
        Some(error(&self.metadata)?.of_run(self.run_id.as_ref()))
    }

    /// The limit that was passed, if a budget ended the chat.
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// # use mynah_data::{Breach, BreachTime, ChatResult, HaltReason, Thread};
    /// use mynah::Limit;
    ///
    /// # let breach = Breach::new(Limit::Turns, 3u64, 4u64, BreachTime::PreCall);
    /// # let mut result = ChatResult::new(Thread::new(), HaltReason::BudgetExceeded);
    /// # result.metadata.insert("budget".to_owned(), serde_json::json!(breach));
    /// if let Some(breach) = result.breach() {
    ///     assert_eq!(breach.limit, Limit::Turns);
    /// }
    /// ```
    pub fn breach(&self) -> Option<Breach> {
        read(&self.metadata, "budget")
    }

    /// The error of the call for the answer's format (`structured_finalize`).
    pub fn finalize_error(&self) -> Option<Error> {
        read(self.metadata.get("structured_finalize")?.as_object()?, "pass_2_error")
    }

    /// The ids of calls that were left without a result and got an error result at the end.
    pub fn repaired_tool_calls(&self) -> Vec<String> {
        read(&self.metadata, "repaired_tool_calls").unwrap_or_default()
    }

    /// The call whose tool halted the chat.
    pub fn halt_tool_call_id(&self) -> Option<&str> {
        self.metadata.get("halt_tool_call_id")?.as_str()
    }

    /// What the tool that halted the chat gave as its result.
    pub fn halt_result(&self) -> Option<&Value> {
        self.metadata.get("halt_result")
    }

    /// Tokens and costs of all answers together.
    pub fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        self.steps.iter().for_each(|step| sum.add(&step.response.usage));
        // An answer that was cut off is not a step, and cost all the same.
        let last = self.steps.last().map(|step| &step.response);
        if let Some(cut_off) =
            self.final_response.as_ref().filter(|response| Some(*response) != last)
        {
            sum.add(&cut_off.usage);
        }
        sum
    }
}

/// Whether an answer leaves nothing to do: everything but a wish for tools.
pub(crate) fn is_final(finish_reason: Option<FinishReason>) -> bool {
    finish_reason != Some(FinishReason::ToolCalls)
}
