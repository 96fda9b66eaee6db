//! Kinds of facts, and what holds for all facts of a kind.
//!
//! A new kind gets its line in [`kinds!`] and its variant in [`Fact`]; the compiler then names every match that must consider it.

use std::{fmt, str::FromStr};

use mynah_data::{Error, Message};
use serde_json::Value;

use crate::{Effect, End, Fact, Inside, MAINTENANCE, Removed, RunStatus, Tombstone};

macro_rules! kinds {
    ($($kind:ident = $name:literal, $status:expr;)+) => {
        mynah_data::words! {
            /// The kind of a [`Fact`].
            pub enum Kind {
                $(
                    #[doc = concat!("The kind of [`Fact::", stringify!($kind), "`].")]
                    $kind => $name,
                )+
            }
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$kind),+];

            /// The kind of this name; none if this version does not know it.
            pub(crate) fn of(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$kind),)+
                    _ => None,
                }
            }

            /// The status of a run whose last record is of this kind; none for a seal, which changes nothing.
            pub const fn status(self) -> Option<RunStatus> {
                match self {
                    $(Self::$kind => $status,)+
                }
            }
        }

        impl Fact {
            /// Its kind.
            pub const fn kind(&self) -> Kind {
                match self {
                    $(Self::$kind { .. } => Kind::$kind,)+
                }
            }
        }
    };
}

const RUNNING: Option<RunStatus> = Some(RunStatus::Running);

kinds! {
    RunStarted = "run_started", RUNNING;
    Resumed = "resumed", RUNNING;
    UserMessage = "user_message", RUNNING;
    TurnStarted = "turn_started", RUNNING;
    TurnLost = "turn_lost", RUNNING;
    FinalizeStarted = "finalize_started", RUNNING;
    FinalizeFailed = "finalize_failed", RUNNING;
    AssistantCompleted = "assistant_completed", RUNNING;
    ToolScheduled = "tool_scheduled", RUNNING;
    ToolCompleted = "tool_completed", RUNNING;
    ToolFailed = "tool_failed", RUNNING;
    SideEffect = "side_effect", RUNNING;
    ContextTruncated = "context_truncated", RUNNING;
    BudgetExceeded = "budget_exceeded", RUNNING;
    Suspended = "suspended", Some(RunStatus::Suspended);
    Completed = "completed", Some(RunStatus::Completed);
    Failed = "failed", Some(RunStatus::Failed);
    Cancelled = "cancelled", Some(RunStatus::Cancelled);
    Sealed = "sealed", None;
    Removed = "removed", RUNNING;
}

impl Kind {
    /// Whether it ends a run: only the seal can follow.
    pub const fn is_end(self) -> bool {
        matches!(self.status(), Some(status) if status.is_ended())
    }

    /// Whether a run continues only when its records of this kind are safe: what they announce cannot be taken back, or the caller
    /// learns of the end.
    pub const fn is_waited_for(self) -> bool {
        matches!(self, Self::RunStarted | Self::ToolScheduled | Self::Suspended | Self::Sealed)
    }

    /// Whether records of this kind name a model or a session.
    pub(crate) const fn names(self) -> bool {
        matches!(self, Self::RunStarted | Self::AssistantCompleted)
    }

    /// Why a record of this kind may not be at this place of a run, regardless of the records before it.
    pub(crate) fn misplaced(self, run: &str, is_first: bool) -> Option<&'static str> {
        let is_maintenance = run == MAINTENANCE;
        if is_maintenance != (self == Self::Removed) {
            return Some("a log's maintenance run has tombstones, and no other run has any");
        }
        let starts = is_first && !is_maintenance;
        (starts != (self == Self::RunStarted)).then_some("a run starts once, with its first record")
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::of(name).ok_or_else(|| {
            let kinds =
                Self::ALL.iter().filter(|kind| !matches!(kind, Self::Sealed | Self::Removed));
            let kinds = kinds.map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ");
            let why = format!("no record is of kind {name:?}; the kinds are {kinds}");
            Error::invalid_option("kind", "unknown").with_message(why)
        })
    }
}

impl Fact {
    /// What it says, in a few words: to be shortened, and cleaned for a terminal.
    pub fn summary(&self) -> String {
        match self {
            Self::RunStarted { thread, .. } => {
                thread.messages.last().map_or_else(String::new, |last| last.summary())
            }
            Self::Resumed {
                message, tool_results, approved, edited, rejected, given_up, ..
            } => {
                let results = tool_results.iter().map(|(id, content)| format!("[{id}] {content}"));
                let approved =
                    approved.iter().map(|id| match edited.iter().find(|(of, _)| of == id) {
                        Some((_, arguments)) => format!("[{id}] approved with {arguments}"),
                        None => format!("[{id}] approved"),
                    });
                let rejected = rejected.iter().map(|(id, why)| match why.as_str() {
                    "" => format!("[{id}] rejected"),
                    why => format!("[{id}] rejected: {why}"),
                });
                let given_up = given_up.iter().map(|id| format!("[{id}] given up"));
                let answer = message.as_deref().map(Message::summary);
                let all = results.chain(approved).chain(rejected).chain(given_up).chain(answer);
                all.collect::<Vec<_>>().join(" ")
            }
            Self::UserMessage { message } => message.summary(),
            Self::TurnStarted { turn, .. } => turn.to_string(),
            Self::TurnLost { turn, input_tokens, .. } => {
                format!("{turn}: about {input_tokens} input tokens")
            }
            Self::FinalizeStarted { conversation, .. } => conversation.to_string(),
            Self::FinalizeFailed { error } => error.message().into_owned(),
            Self::AssistantCompleted { response, .. } => response.message.summary(),
            Self::ToolScheduled { call_id, attempt: 1, .. } => format!("[{call_id}]"),
            Self::ToolScheduled { call_id, attempt, .. } => format!("[{call_id}] try {attempt}"),
            Self::ToolCompleted { call_id, content, .. } => format!("[{call_id}] {content}"),
            Self::ToolFailed { call_id, error, .. } => format!("[{call_id}] {}", error.message()),
            Self::SideEffect { inside: Some(Inside { call_id, .. }), name, effect, .. } => {
                format!("[{call_id}] {name} {effect}")
            }
            Self::SideEffect { inside: None, name, effect, .. } => format!("{name} {effect}"),
            Self::ContextTruncated { strategy, messages_before, messages_after, .. } => {
                format!("{strategy}: {messages_before} -> {messages_after} messages")
            }
            Self::BudgetExceeded { breach, .. } => breach.to_string(),
            Self::Suspended(end)
            | Self::Completed(end)
            | Self::Failed(end)
            | Self::Cancelled { end, .. } => end.to_string(),
            Self::Sealed(seal) => seal.root.to_string(),
            Self::Removed(Tombstone { run_id, removed, by, reason }) => {
                let what = match removed {
                    Removed::Run { .. } => "run".to_owned(),
                    Removed::Bodies(bodies) => format!("{} bodies of run", bodies.len()),
                };
                format!("{what} {run_id} by {by}: {reason}")
            }
        }
    }
}

/// The value, or how it failed.
impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done(value) => value.fmt(f),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

/// The reason, and the question, the limit, the error, or the calls that the run stopped for.
impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let metadata = &self.metadata;
        let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let detail = text(metadata.get("pending_question"))
            .or_else(|| self.breach().map(|breach| breach.to_string()))
            .or_else(|| self.error().map(|error| error.message().into_owned()))
            .or_else(|| metadata.get("uncertain_tool_calls").map(Value::to_string));
        match detail {
            Some(detail) => write!(f, "{}: {detail}", self.reason),
            None => self.reason.fmt(f),
        }
    }
}
