//! The events of a recorded run, with ids that hold in every process.

use std::{fmt, str::FromStr, sync::Arc};

use mynah_data::{Breach, Error, Event, Message, Result, RunId};
use mynah_log::{Effect, End, Extent, Hash, Inside, Interruption, Parent, Previous, Totals};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::Value;

/// The place of an event in a run.
///
/// `seq.i` is event `i` of record `seq`. `seq~attempt.i` is event `i` of an answer in flight, which follows the `turn_started` of
/// record `seq`.
///
/// ```
/// use mynah::EventId;
///
/// let id: EventId = "4.2".parse()?;
/// assert_eq!((id.seq, id.attempt, id.index), (4, None, 2));
/// assert_eq!("3~1.0".parse::<EventId>()?.to_string(), "3~1.0");
/// # Ok::<(), mynah::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct EventId {
    /// The record; for an answer in flight, that of its `turn_started`.
    pub seq: u64,
    /// Which attempt at the answer, from 1; none for an event of a record.
    pub attempt: Option<u32>,
    /// The place among the events of the record or the answer, from 0.
    pub index: u64,
}

impl EventId {
    /// Event `index` of record `seq`.
    pub const fn recorded(seq: u64, index: u64) -> Self {
        Self { seq, attempt: None, index }
    }

    /// Event `index` of the answer in flight after record `seq`.
    pub const fn in_flight(seq: u64, attempt: u32, index: u64) -> Self {
        Self { seq, attempt: Some(attempt), index }
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seq, attempt, index } = self;
        match attempt {
            Some(attempt) => write!(f, "{seq}~{attempt}.{index}"),
            None => write!(f, "{seq}.{index}"),
        }
    }
}

impl FromStr for EventId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = text.split_once('.').and_then(|(place, index)| {
            let (seq, attempt) = match place.split_once('~') {
                Some((seq, attempt)) => (seq, Some(attempt.parse().ok()?)),
                None => (place, None),
            };
            Some(Self { seq: seq.parse().ok()?, attempt, index: index.parse().ok()? })
        });
        parsed.filter(|id| id.seq > 0).ok_or_else(|| {
            Error::invalid_option("after", "not_an_event_id").with_message(
                "validation failed: after: not the id of an event; give one as 4.2 or 3~1.0",
            )
        })
    }
}

impl Serialize for EventId {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EventId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// An event of a recorded run, and where it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FollowedEvent {
    /// The place in the run. [`follow`](crate::follow) continues after it.
    pub id: EventId,
    /// The time of its record, in nanoseconds since 1970; none while the answer is in flight.
    pub ts: Option<i64>,
    /// What happened.
    pub event: RunEvent,
}

impl FollowedEvent {
    pub(crate) fn new(id: EventId, ts: Option<i64>, event: RunEvent) -> Self {
        Self { id, ts, event }
    }
}

/// One thing that happened in a recorded run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunEvent {
    /// The run began.
    #[non_exhaustive]
    RunStarted {
        /// The conversation with which it began; in a run that continues a session, the messages
        /// since the turn before.
        messages: Vec<Arc<Message>>,
        /// How far it goes.
        extent: Extent,
        /// The model.
        model: Option<String>,
        /// The names of its tools.
        tools: Vec<String>,
        /// The session that it is a turn of.
        session_id: Option<String>,
        /// The turn before in its session.
        previous: Option<Previous>,
        /// The run that it was forked from.
        parent: Option<Parent>,
    },
    /// Another process continued the run, or the run got what it waited for.
    #[non_exhaustive]
    Resumed {
        /// What a person answered.
        message: Option<Arc<Message>>,
        /// Results that were given to calls: the call's id, and the text of its tool message.
        tool_results: Vec<(String, String)>,
        /// The calls that were approved.
        approved: Vec<String>,
        /// Arguments that a person put in place of the model's: the call's id, and their text.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        edited: Vec<(String, String)>,
        /// The calls that were rejected, and why.
        rejected: Vec<(String, String)>,
        /// The calls whose outcome stays unknown.
        given_up: Vec<String>,
        /// What became of the process before.
        after: Interruption,
        /// The model that continues, if the engine changed.
        model: Option<String>,
    },
    /// A message joined the conversation from outside the model.
    #[non_exhaustive]
    UserMessage {
        /// The message.
        message: Arc<Message>,
    },
    /// The model is called.
    #[non_exhaustive]
    TurnStarted {
        /// Which call of the run it is, from 1.
        turn: u32,
    },
    /// The answer in flight was lost with its process, or a custom loop gave the call up. What was received of it must be discarded.
    #[non_exhaustive]
    TurnRestarted {
        /// Which call of the run it was.
        turn: u32,
    },
    /// A tool starts.
    #[non_exhaustive]
    ToolExecutionStarted {
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
        /// The arguments that it gets.
        arguments: Value,
        /// The attempt, from 1.
        attempt: u32,
    },
    /// An attempt of a tool failed, and the call has no result yet.
    #[non_exhaustive]
    ToolAttemptFailed {
        /// The call's id.
        id: String,
        /// The attempt, from 1.
        attempt: u32,
        /// How it failed.
        error: Error,
        /// Whether another attempt follows; otherwise the run was stopped.
        retried: bool,
    },
    /// A value from outside entered the run.
    #[non_exhaustive]
    SideEffect {
        /// `now`, `random`, or the caller's name for it.
        name: String,
        /// The attempt of a tool that asked for it; none if the loop did.
        inside: Option<Inside>,
        /// The value.
        effect: Effect,
    },
    /// Messages were left out of a prompt to make it fit.
    #[non_exhaustive]
    ContextTruncated {
        /// How they were chosen.
        strategy: String,
        /// Tokens before, as estimated.
        tokens_before: u64,
        /// Tokens after, as estimated.
        tokens_after: u64,
        /// Messages before.
        messages_before: u64,
        /// Messages after.
        messages_after: u64,
        /// The summary of what is left out, if the model made one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        summary: Option<String>,
    },
    /// The conversation ended, and one more call formats the answer.
    FinalizeStarted {},
    /// That call failed.
    #[non_exhaustive]
    FinalizeFailed {
        /// How.
        error: Error,
    },
    /// A limit of the run's budget was passed.
    #[non_exhaustive]
    BudgetExceeded {
        /// Which limit, and by how much.
        breach: Breach,
    },
    /// The run waits.
    Suspended(End),
    /// The run completed.
    Completed(End),
    /// The run failed.
    Failed(End),
    /// The run was cancelled.
    Cancelled(End),
    /// The run is sealed: no event follows.
    #[non_exhaustive]
    Sealed {
        /// The hash of the seal.
        fingerprint: Hash,
        /// The root of the tree over the records before.
        root: Hash,
        /// What the records add up to.
        totals: Totals,
    },
    /// Something was removed from the log. Only its maintenance run has these.
    #[non_exhaustive]
    Removed {
        /// The run that it was taken from.
        run_id: RunId,
    },
    /// The body of the record was removed.
    #[non_exhaustive]
    Redacted {
        /// The kind of the record.
        kind: String,
    },
    /// An event of a model's answer, or the outcome of a tool.
    #[serde(untagged)]
    Event(Box<Event>),
}

impl RunEvent {
    /// The name of the event, as in JSON.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::RunStarted { .. } => "run_started",
            Self::Resumed { .. } => "resumed",
            Self::UserMessage { .. } => "user_message",
            Self::TurnStarted { .. } => "turn_started",
            Self::TurnRestarted { .. } => "turn_restarted",
            Self::ToolExecutionStarted { .. } => "tool_execution_started",
            Self::ToolAttemptFailed { .. } => "tool_attempt_failed",
            Self::SideEffect { .. } => "side_effect",
            Self::ContextTruncated { .. } => "context_truncated",
            Self::FinalizeStarted {} => "finalize_started",
            Self::FinalizeFailed { .. } => "finalize_failed",
            Self::BudgetExceeded { .. } => "budget_exceeded",
            Self::Suspended(_) => "suspended",
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
            Self::Cancelled(_) => "cancelled",
            Self::Sealed { .. } => "sealed",
            Self::Removed { .. } => "removed",
            Self::Redacted { .. } => "redacted",
            Self::Event(event) => event.type_name(),
        }
    }
}
