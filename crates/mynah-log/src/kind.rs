//! Kinds of facts, and what holds for all facts of a kind.
//!
//! A new kind gets its line in [`kinds!`] and its variant in [`Fact`]; the compiler then names every match that must consider it.

use std::{fmt, str::FromStr};

use mynah_data::{Error, Message};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Effect, End, Fact, Inside, MAINTENANCE, Removed, RunStatus, Tombstone};

macro_rules! kinds {
    ($($kind:ident = $name:literal, $status:expr, $place:ident, $counted:ident;)+) => {
        /// The kind of a [`Fact`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Kind {
            $(
                #[doc = concat!("The kind of [`Fact::", stringify!($kind), "`].")]
                #[serde(rename = $name)]
                $kind,
            )+
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$kind),+];

            /// The name, as in JSON and in envelopes.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }

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

            /// Where in a run a record of this kind stands.
            const fn place(self) -> Place {
                match self {
                    $(Self::$kind => Place::$place,)+
                }
            }

            /// What totals and the index take from its payload.
            pub(crate) const fn counted(self) -> Counted {
                match self {
                    $(Self::$kind => Counted::$counted,)+
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
    RunStarted = "run_started", RUNNING, First, Names;
    Resumed = "resumed", RUNNING, Between, Nothing;
    UserMessage = "user_message", RUNNING, Between, Nothing;
    TurnStarted = "turn_started", RUNNING, Between, Turn;
    TurnLost = "turn_lost", RUNNING, Between, Estimate;
    FinalizeStarted = "finalize_started", RUNNING, Between, Nothing;
    FinalizeFailed = "finalize_failed", RUNNING, Between, Nothing;
    AssistantCompleted = "assistant_completed", RUNNING, Between, Answer;
    ToolScheduled = "tool_scheduled", RUNNING, Between, Call;
    ToolCompleted = "tool_completed", RUNNING, Between, Nothing;
    ToolFailed = "tool_failed", RUNNING, Between, Nothing;
    SideEffect = "side_effect", RUNNING, Between, Nothing;
    ContextTruncated = "context_truncated", RUNNING, Between, Summary;
    BudgetExceeded = "budget_exceeded", RUNNING, Between, Partial;
    Suspended = "suspended", Some(RunStatus::Suspended), Between, Nothing;
    Completed = "completed", Some(RunStatus::Completed), Between, Nothing;
    Failed = "failed", Some(RunStatus::Failed), Between, Nothing;
    Cancelled = "cancelled", Some(RunStatus::Cancelled), Between, Partial;
    Sealed = "sealed", None, Last, Nothing;
    Removed = "removed", RUNNING, Maintenance, Nothing;
}

impl Kind {
    /// Whether it ends a run: only the seal can follow.
    pub const fn is_end(self) -> bool {
        matches!(self.status(), Some(status) if status.is_ended())
    }

    /// Whether a record of this kind keeps its body in every redaction.
    pub(crate) const fn keeps_body(self) -> bool {
        matches!(self, Self::Sealed | Self::Removed)
    }

    /// Why a record of this kind may not be at this place of a run, regardless of the records before it.
    pub(crate) fn misplaced(self, run: &str, is_first: bool) -> Option<&'static str> {
        let (place, is_maintenance) = (self.place(), run == MAINTENANCE);
        if is_maintenance != (place == Place::Maintenance) {
            return Some("a log's maintenance run has tombstones, and no other run has any");
        }
        let starts = is_first && !is_maintenance;
        (starts != (place == Place::First)).then_some("a run starts once, with its first record")
    }

    /// Why a record of this kind may not follow one of that kind, none before the first.
    pub(crate) fn misplaced_after(self, run: &str, before: Option<Self>) -> Option<&'static str> {
        if let Some(what) = self.misplaced(run, before.is_none()) {
            return Some(what);
        }
        match (before, self.place()) {
            (Some(Self::Sealed), _) => Some("it follows the seal"),
            (Some(before), Place::First | Place::Between | Place::Maintenance)
                if before.is_end() =>
            {
                Some("it follows the run's end, and only the seal can")
            }
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::of(name).ok_or_else(|| {
            let kinds = Self::ALL.iter().filter(|kind| !kind.keeps_body());
            let kinds = kinds.map(|kind| kind.as_str()).collect::<Vec<_>>().join(", ");
            let why = format!("no record is of kind {name:?}; the kinds are {kinds}");
            Error::invalid_option("kind", "unknown").with_message(why)
        })
    }
}

/// Where in a run a record stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At the beginning, and nowhere else.
    First,
    /// Anywhere between the beginning and the end.
    Between,
    /// At the end: nothing follows.
    Last,
    /// In the log's maintenance run, and nowhere else.
    Maintenance,
}

/// What totals and the index take from a payload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Nothing.
    Nothing,
    /// The model and the session that the run began with.
    Names,
    /// One more turn, for any payload.
    Turn,
    /// The estimate of a call whose answer was lost.
    Estimate,
    /// The usage of an answer, and the model that gave it.
    Answer,
    /// The usage of as much of an answer as came.
    Partial,
    /// The usage of a summary.
    Summary,
    /// A tool call, if it is the first attempt.
    Call,
}

impl Counted {
    /// Whether it has to be read from the payload.
    pub(crate) const fn is_read(self) -> bool {
        !matches!(self, Self::Nothing | Self::Turn)
    }

    /// Whether records of such kinds name a model or a session.
    pub(crate) const fn names(self) -> bool {
        matches!(self, Self::Names | Self::Answer)
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
