//! Why a step ended before its time.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{CONTINUE, HaltReason, Message, Metadata};

/// The reason of a halt that ends the conversation with an answer.
pub const HANDOFF: &str = "handoff";

/// Why a step ended early, as reported by its tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Halt {
    /// A tool wants a person to answer.
    AskUser {
        /// The call that asks.
        tool_call_id: String,
        /// The question.
        question: String,
        /// Hints for the program that asks it.
        opts: Metadata,
    },
    /// A tool, or the policy for its errors, ends the conversation.
    Tool {
        /// The call that halts.
        tool_call_id: String,
        /// Why.
        reason: HaltReason,
        /// The value that the tool gave.
        result: Value,
        /// How the caller's own error policy failed, if it did.
        exception: Option<String>,
    },
}

impl Halt {
    /// The call that halts.
    pub fn tool_call_id(&self) -> &str {
        match self {
            Self::AskUser { tool_call_id, .. } | Self::Tool { tool_call_id, .. } => tool_call_id,
        }
    }

    /// The answer with which another agent ends the conversation; none if it is another halt.
    pub fn handoff(&self) -> Option<&str> {
        match self {
            Self::Tool { reason, result: Value::String(answer), .. } => {
                (reason.as_str() == HANDOFF).then_some(answer)
            }
            _ => None,
        }
    }

    /// The halt's reason.
    pub fn reason(&self) -> HaltReason {
        match self {
            Self::AskUser { .. } => HaltReason::AskUser,
            Self::Tool { reason, .. } => reason.clone(),
        }
    }

    /// The members for a step's metadata.
    pub fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.insert("halted_reason".to_owned(), json!(self.reason()));
        metadata.extend(self.details());
        metadata
    }

    /// The members for a chat's metadata.
    pub fn details(&self) -> Metadata {
        let mut metadata = Metadata::new();
        let mut set = |key: &str, value: Value| metadata.insert(key.to_owned(), value);
        match self {
            Self::AskUser { tool_call_id, question, opts } => {
                set("pending_question", json!(question));
                set("pending_tool_call_id", json!(tool_call_id));
                set("ask_user_opts", json!(opts));
            }
            Self::Tool { tool_call_id, reason, result, exception } => {
                set("halt_tool_call_id", json!(tool_call_id));
                if *reason != HaltReason::ToolError {
                    set("halt_result", result.clone());
                }
                if let Some(exception) = exception {
                    set("on_tool_error_exception", json!(exception));
                }
            }
        }
        metadata
    }

    /// The state of the call that asks, if it continues with the answer.
    #[doc(hidden)]
    pub fn continues(&self) -> Option<&Value> {
        match self {
            Self::AskUser { opts, .. } => opts.get(CONTINUE),
            Self::Tool { .. } => None,
        }
    }

    /// The halt that counts where several tools halted: that of the earliest call, whichever finished first. A question that ends the
    /// turn is asked after those of calls that continue with the answer.
    pub fn winner<'a>(
        halts: impl IntoIterator<Item = &'a Self>,
        message: &Message,
    ) -> Option<&'a Self> {
        let position = |halt: &&Self| {
            message
                .tool_calls()
                .position(|call| call.id == halt.tool_call_id())
                .unwrap_or(usize::MAX)
        };
        let halts: Vec<&Self> = halts.into_iter().collect();
        let earliest = halts.iter().copied().min_by_key(position)?;
        let continues = halts.into_iter().filter(|halt| halt.continues().is_some());
        match earliest {
            Self::AskUser { .. } => continues.min_by_key(position).or(Some(earliest)),
            Self::Tool { .. } => Some(earliest),
        }
    }
}
