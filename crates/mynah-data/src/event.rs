//! What streams to a caller while it happens.

use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    ChatResult, Error, FinishReason, HaltReason, Message, Metadata, Response, StepThread, ToolCall,
    ToolMode, ToolOutcome, Usage, step_thread,
};

/// One thing that happened.
///
/// A model's answer is `MessageStarted`, then text, reasoning, tool calls and usage in any order, then `MessageCompleted`
/// (or `Error`). A step adds, for each tool that ran, `ToolExecutionStarted`, any number of `ToolExecutionProgress`,
/// `ToolExecutionCompleted` and one of `ToolResultEncoded`, `AskUserRequested`, `ToolHalt`, and ends with one `StepCompleted`. A chat is steps, and ends with
/// one `ChatCompleted`.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::Event;
/// let event = Event::text_delta("do");
/// assert_eq!(serde_json::to_string(&event)?, r#"{"type":"text_delta","id":null,"delta":"do"}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
///
/// A variant that may get another member has a constructor, which takes what is always there. The other members are set by matching.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::{Event, FinishReason};
///
/// let mut event = Event::message_completed(Some(FinishReason::Stop));
/// if let Event::MessageCompleted { raw_finish_reason, .. } = &mut event {
///     *raw_finish_reason = Some("end_turn".to_owned());
/// }
/// # assert!(serde_json::to_string(&event)?.contains(r#""raw_finish_reason":"end_turn""#));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The model begins to answer.
    #[non_exhaustive]
    MessageStarted {
        /// The empty assistant message.
        message: Arc<Message>,
        /// The id under which the call was made.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        /// The provider's id of the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// The model that answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        /// Whether this is the call that formats a chat's answer (`structured_finalize`). What
        /// follows up to `MessageCompleted` is JSON for programs, and not what the model says to a
        /// person.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        finalizing: bool,
    },
    /// A piece of text.
    TextDelta {
        /// Which block of text; none where the provider has only one.
        #[serde(default)]
        id: Option<Arc<str>>,
        /// The piece.
        delta: String,
    },
    /// A block of text is complete.
    TextCompleted {
        /// Which block.
        #[serde(default)]
        id: Option<Arc<str>>,
        /// The whole text; it wins over the pieces.
        text: String,
    },
    /// A piece of reasoning.
    ReasoningDelta {
        /// Which block.
        #[serde(default)]
        id: Option<Arc<str>>,
        /// The piece.
        delta: String,
    },
    /// A block of reasoning is complete.
    #[non_exhaustive]
    ReasoningCompleted {
        /// Which block.
        #[serde(default)]
        id: Option<Arc<str>>,
        /// The whole text; it wins over the pieces.
        text: String,
        /// The provider's signature over it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
        /// Whether the provider withheld the text.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        redacted: bool,
        /// What the provider must get back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        data: Option<Value>,
    },
    /// The model begins to write a tool call.
    ToolCallStarted {
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// A piece of a call's argument text.
    ToolCallDelta {
        /// The call's id.
        id: String,
        /// The piece.
        arguments_delta: String,
    },
    /// A tool call is complete.
    ToolCallCompleted(Arc<ToolCall>),
    /// What the provider counted so far. No filter hides it.
    Usage {
        /// Replaces what was reported before.
        usage: Box<Usage>,
    },
    /// The model's answer is complete.
    #[non_exhaustive]
    MessageCompleted {
        /// The whole answer.
        message: Arc<Message>,
        /// Why the model stopped.
        #[serde(default)]
        finish_reason: Option<FinishReason>,
        /// The provider's own word for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        raw_finish_reason: Option<String>,
        /// Whether the provider only paused, and wants to be called again with what it said.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        paused: bool,
        /// Merged into the response's metadata. `response_id` and `response_model` are the response's id and model, where the
        /// provider did not say them when it began.
        #[serde(default, skip_serializing_if = "Metadata::is_empty")]
        metadata: Metadata,
    },
    /// A tool starts.
    #[non_exhaustive]
    ToolExecutionStarted {
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
        /// The arguments it gets.
        arguments: Value,
    },
    /// A tool reports how far it has come. It is not recorded, so a replay has none. A report that was not read is replaced by
    /// the next one of its call.
    #[non_exhaustive]
    ToolExecutionProgress {
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
        /// How far it has come. It rises from report to report.
        progress: f64,
        /// How far it will have come at the end, if that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total: Option<f64>,
        /// What it does now, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// A tool is done.
    #[non_exhaustive]
    ToolExecutionCompleted {
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
        /// The outcome.
        result: ToolOutcome,
    },
    /// A tool's result, as the model will read it.
    #[non_exhaustive]
    ToolResultEncoded {
        /// The call's id.
        id: String,
        /// The text of the tool message.
        content: String,
    },
    /// A tool wants a person to answer.
    #[non_exhaustive]
    AskUserRequested {
        /// The call that asks.
        tool_call_id: String,
        /// The tool's name.
        tool_name: String,
        /// The question.
        question: String,
        /// Hints for the program that asks it.
        opts: Metadata,
    },
    /// A tool, or the policy for its errors, ends the conversation.
    #[non_exhaustive]
    ToolHalt {
        /// The call that halts.
        tool_call_id: String,
        /// Why; `tool_error` if the policy for errors halts.
        reason: HaltReason,
        /// The value that the tool gave, or its error.
        result: Value,
        /// The text of the tool message.
        content: String,
        /// How the caller's own error policy failed, if it did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        on_tool_error_exception: Option<String>,
    },
    /// A step is done: always the last event of a step.
    #[serde(with = "step_thread::completed")]
    #[non_exhaustive]
    StepCompleted {
        /// The model's answer.
        response: Box<Response>,
        /// The conversation with the answer and the tool results. In a chat's JSON, the messages that the step added.
        thread: StepThread,
        /// Whether tools were run or handed to the caller.
        mode: ToolMode,
        /// Calls of manual tools, for the caller to answer.
        manual_tool_calls: Vec<ToolCall>,
    },
    /// The chat is done: always the last event of a chat.
    ChatCompleted {
        /// The outcome.
        result: Box<ChatResult>,
    },
    /// Something of the provider's own.
    RawChunk {
        /// As it came.
        chunk: Value,
    },
    /// Something failed in mid-stream.
    Error {
        /// What.
        error: Error,
    },
}

/// The message of an event that has none of its own, as an answer begins and mostly ends: one for all.
fn nothing() -> Arc<Message> {
    static NOTHING: LazyLock<Arc<Message>> = LazyLock::new(|| Arc::new(Message::assistant("")));
    Arc::clone(&NOTHING)
}

impl Event {
    /// The model begins to answer.
    pub fn message_started() -> Self {
        Self::MessageStarted {
            message: nothing(),
            request_id: None,
            id: None,
            model: None,
            finalizing: false,
        }
    }

    /// A piece of the only block of text.
    pub fn text_delta(delta: impl Into<String>) -> Self {
        Self::TextDelta { id: None, delta: delta.into() }
    }

    /// A tool call is complete.
    pub fn tool_call_completed(call: impl Into<Arc<ToolCall>>) -> Self {
        Self::ToolCallCompleted(call.into())
    }

    /// The model's answer is complete. The message itself is built from the events before.
    pub fn message_completed(finish_reason: Option<FinishReason>) -> Self {
        Self::MessageCompleted {
            message: nothing(),
            finish_reason,
            raw_finish_reason: None,
            paused: false,
            metadata: Metadata::new(),
        }
    }

    /// A block of reasoning is complete.
    pub fn reasoning_completed(text: impl Into<String>) -> Self {
        Self::ReasoningCompleted {
            id: None,
            text: text.into(),
            signature: None,
            redacted: false,
            data: None,
        }
    }

    /// A tool starts.
    pub fn tool_execution_started(
        id: impl Into<String>,
        name: impl Into<String>,
        arguments: Value,
    ) -> Self {
        Self::ToolExecutionStarted { id: id.into(), name: name.into(), arguments }
    }

    /// A tool reports how far it has come.
    pub fn tool_execution_progress(
        id: impl Into<String>,
        name: impl Into<String>,
        progress: f64,
    ) -> Self {
        Self::ToolExecutionProgress {
            id: id.into(),
            name: name.into(),
            progress,
            total: None,
            message: None,
        }
    }

    /// A tool is done.
    pub fn tool_execution_completed(
        id: impl Into<String>,
        name: impl Into<String>,
        result: ToolOutcome,
    ) -> Self {
        Self::ToolExecutionCompleted { id: id.into(), name: name.into(), result }
    }

    /// A tool's result is encoded for the model.
    pub fn tool_result_encoded(id: impl Into<String>, content: impl Into<String>) -> Self {
        Self::ToolResultEncoded { id: id.into(), content: content.into() }
    }

    /// A tool wants a person to answer.
    pub fn ask_user_requested(
        tool_call_id: impl Into<String>,
        tool_name: impl Into<String>,
        question: impl Into<String>,
        opts: Metadata,
    ) -> Self {
        Self::AskUserRequested {
            tool_call_id: tool_call_id.into(),
            tool_name: tool_name.into(),
            question: question.into(),
            opts,
        }
    }

    /// A tool, or the policy for its errors, ends the conversation.
    pub fn tool_halt(
        tool_call_id: impl Into<String>,
        reason: HaltReason,
        result: Value,
        content: impl Into<String>,
    ) -> Self {
        Self::ToolHalt {
            tool_call_id: tool_call_id.into(),
            reason,
            result,
            content: content.into(),
            on_tool_error_exception: None,
        }
    }

    /// A step is done.
    pub fn step_completed(
        response: impl Into<Box<Response>>,
        thread: impl Into<StepThread>,
        mode: ToolMode,
        manual_tool_calls: Vec<ToolCall>,
    ) -> Self {
        Self::StepCompleted {
            response: response.into(),
            thread: thread.into(),
            mode,
            manual_tool_calls,
        }
    }

    /// Whether the event holds something that the model said: text, reasoning, or a part of a tool call.
    pub const fn is_token(&self) -> bool {
        matches!(
            self,
            Self::TextDelta { .. }
                | Self::TextCompleted { .. }
                | Self::ReasoningDelta { .. }
                | Self::ReasoningCompleted { .. }
                | Self::ToolCallStarted { .. }
                | Self::ToolCallDelta { .. }
                | Self::ToolCallCompleted(_)
        )
    }

    /// The name of the event in JSON.
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::MessageStarted { .. } => "message_started",
            Self::TextDelta { .. } => "text_delta",
            Self::TextCompleted { .. } => "text_completed",
            Self::ReasoningDelta { .. } => "reasoning_delta",
            Self::ReasoningCompleted { .. } => "reasoning_completed",
            Self::ToolCallStarted { .. } => "tool_call_started",
            Self::ToolCallDelta { .. } => "tool_call_delta",
            Self::ToolCallCompleted(_) => "tool_call_completed",
            Self::Usage { .. } => "usage",
            Self::MessageCompleted { .. } => "message_completed",
            Self::ToolExecutionStarted { .. } => "tool_execution_started",
            Self::ToolExecutionProgress { .. } => "tool_execution_progress",
            Self::ToolExecutionCompleted { .. } => "tool_execution_completed",
            Self::ToolResultEncoded { .. } => "tool_result_encoded",
            Self::AskUserRequested { .. } => "ask_user_requested",
            Self::ToolHalt { .. } => "tool_halt",
            Self::StepCompleted { .. } => "step_completed",
            Self::ChatCompleted { .. } => "chat_completed",
            Self::RawChunk { .. } => "raw_chunk",
            Self::Error { .. } => "error",
        }
    }

    /// Whether a model's stream may hold it; the others are made by the step and the chat.
    pub const fn is_from_model(&self) -> bool {
        matches!(
            self,
            Self::MessageStarted { .. }
                | Self::TextDelta { .. }
                | Self::TextCompleted { .. }
                | Self::ReasoningDelta { .. }
                | Self::ReasoningCompleted { .. }
                | Self::ToolCallStarted { .. }
                | Self::ToolCallDelta { .. }
                | Self::ToolCallCompleted(_)
                | Self::Usage { .. }
                | Self::MessageCompleted { .. }
                | Self::RawChunk { .. }
                | Self::Error { .. }
        )
    }
}
