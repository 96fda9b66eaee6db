//! How a run stopped, and what it waits for.

use std::borrow::Cow;

use mynah_data::{Breach, Error, HaltReason, Metadata, ToolCall, json};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Fact;

/// The member of an end that says when a run which sleeps can continue.
const WAKE_AT: &str = "wake_at_ms";

/// The member of an end that lists the calls whose outcome is unknown.
#[doc(hidden)]
pub const UNCERTAIN_CALLS: &str = "uncertain_tool_calls";

/// How a run stopped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct End {
    /// Why.
    pub reason: HaltReason,
    /// More on it, for the caller.
    #[serde(default, with = "json::members")]
    pub metadata: Metadata,
    /// Milliseconds that the run was active; none if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

impl End {
    /// Stopped for this reason.
    pub fn new(reason: HaltReason, metadata: Metadata) -> Self {
        Self { reason, metadata, duration_ms: None }
    }

    /// Whether the run continues when it gets what it waits for.
    pub fn waits(&self) -> bool {
        use HaltReason::{AskUser, CrashLoop, ManualToolCalls, Sleeping, UncertainTools};
        matches!(self.reason, AskUser | CrashLoop | ManualToolCalls | Sleeping | UncertainTools)
    }

    /// Whether the run waits in the middle of a turn: its process died, or a time has not come.
    #[doc(hidden)]
    pub fn is_in_a_turn(&self) -> bool {
        self.reason == HaltReason::UncertainTools || self.awaits_nobody()
    }

    /// Whether the run waits, and continues without an answer or a decision.
    #[doc(hidden)]
    pub fn awaits_nobody(&self) -> bool {
        matches!(self.reason, HaltReason::CrashLoop | HaltReason::Sleeping)
    }

    /// Waiting until this time, in milliseconds since 1970.
    #[doc(hidden)]
    pub fn sleeping(until_ms: u64) -> Self {
        let metadata = Metadata::from_iter([(WAKE_AT.to_owned(), until_ms.into())]);
        Self::new(HaltReason::Sleeping, metadata)
    }

    /// Until when a run waits that sleeps, in milliseconds since 1970.
    pub fn wake_at_ms(&self) -> Option<u64> {
        let time = self.metadata.get(WAKE_AT).and_then(Value::as_u64);
        time.filter(|_| self.reason == HaltReason::Sleeping)
    }

    /// Waiting for the outcome of these calls, which is unknown.
    #[doc(hidden)]
    pub fn uncertain<T: Into<Value>>(calls: impl IntoIterator<Item = T>) -> Self {
        let calls = calls.into_iter().collect::<Value>();
        let metadata = Metadata::from_iter([(UNCERTAIN_CALLS.to_owned(), calls)]);
        Self::new(HaltReason::UncertainTools, metadata)
    }

    /// The error that ended the run.
    pub fn error(&self) -> Option<Error> {
        Error::deserialize(self.metadata.get("error")?).ok()
    }

    /// The limit that was passed, if a budget ended the run.
    pub fn breach(&self) -> Option<Breach> {
        Breach::deserialize(self.metadata.get("budget")?).ok()
    }

    /// The same, with the arguments of those whose arguments a person had changed.
    #[doc(hidden)]
    pub fn with_edited<'c>(mut self, calls: impl IntoIterator<Item = &'c ToolCall>) -> Self {
        let calls =
            calls.into_iter().map(|call| (call.id.clone(), call.raw_arguments.clone().into()));
        let edited: Metadata = calls.collect();
        if !edited.is_empty() {
            self.metadata.insert("edited_arguments".to_owned(), edited.into());
        }
        self
    }

    /// Of these facts' last answer, the calls that the run waits for which stopped so after them. A call that may have run has the
    /// arguments with which it was run.
    #[doc(hidden)]
    pub fn waiting_calls<'f, I>(&self, facts: I) -> Vec<Cow<'f, ToolCall>>
    where
        I: IntoIterator<Item = &'f Fact, IntoIter: DoubleEndedIterator>,
    {
        let answer = facts.into_iter().rev().find_map(|fact| match fact {
            Fact::AssistantCompleted { response, .. } => Some(response),
            _ => None,
        });
        let listed = |name: &str| self.metadata.get(name).and_then(Value::as_array);
        let waits = |call: &&ToolCall| match self.reason {
            HaltReason::ManualToolCalls => listed("manual_tool_calls")
                .is_none_or(|calls| calls.iter().any(|named| named["id"] == call.id.as_str())),
            HaltReason::UncertainTools => {
                listed(UNCERTAIN_CALLS).is_some_and(|ids| ids.iter().any(|id| *id == call.id))
            }
            _ => false,
        };
        let edited = |call: &'f ToolCall| match call.edited_in(&self.metadata) {
            Some(edited) => Cow::Owned(edited),
            None => Cow::Borrowed(call),
        };
        answer
            .into_iter()
            .flat_map(|answer| answer.tool_calls())
            .filter(waits)
            .map(edited)
            .collect()
    }

    /// The fact of stopping so.
    pub fn into_fact(self) -> Fact {
        match self.reason {
            _ if self.waits() => Fact::Suspended(self),
            HaltReason::Error | HaltReason::ToolError | HaltReason::BudgetExceeded => {
                Fact::Failed(self)
            }
            _ => Fact::Completed(self),
        }
    }
}
