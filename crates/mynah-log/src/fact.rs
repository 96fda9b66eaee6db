//! Facts: one for each thing that happened.

use std::{iter, sync::Arc};

use mynah_data::{Breach, Error, Message, Metadata, Response, Thread, ToolOutcome, json};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::Error as _};
use serde_json::Value;

use crate::{About, Cut, End, Hash, Tombstone};

/// The name of the side effect by which a tool records that it starts or continues a run: its value has the run's `run_id`.
#[doc(hidden)]
pub const SUB_RUN_STARTED: &str = "sub_run_started";

/// The name of the side effect by which a tool records that such a run ended or asks. Its value has the `run_id`, the `outcome` and the
/// `totals`, which count in budgets.
#[doc(hidden)]
pub const SUB_RUN: &str = "sub_run";

/// The name of the side effect that says that the model is about to be asked for a summary of the conversation, with an estimate of the
/// prompt's `input_tokens`. The answer is part of the `context_truncated` fact that follows.
#[doc(hidden)]
pub const SUMMARY_STARTED: &str = "summary_started";

/// One thing that happened in a run.
///
/// ```
/// # mod mynah { pub use {mynah_data::*, mynah_log as log}; }
/// use mynah::Thread;
/// use mynah::log::{Extent, Fact};
///
/// let fact = Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None };
/// let text = serde_json::to_string(&fact)?;
/// assert_eq!(serde_json::from_str::<Fact>(&text)?, fact);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fact {
    /// The run began with this conversation.
    RunStarted {
        /// The conversation at the start. In a run that [continues](crate::Previous) another, only the new
        /// messages.
        thread: Thread,
        /// How far the run may go.
        extent: Extent,
        /// The configuration that it ran with. Absent in unrecorded runs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        about: Option<Box<About>>,
    },
    /// The run was resumed: after its process ended, or after what it waited for arrived.
    Resumed {
        /// What a person answered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<Arc<Message>>,
        /// The outcomes of calls that the run waited for: the call's id, and the text of its tool
        /// message.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_results: Vec<(String, String)>,
        /// The calls that the run waited for and may run now.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        approved: Vec<String>,
        /// Arguments that a person put in place of the model's, for calls that are approved: the call's id, and their exact text.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        edited: Vec<(String, String)>,
        /// The calls that were rejected, and why: the call's id, and the reason given.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        rejected: Vec<(String, String)>,
        /// The calls whose outcome stays unknown.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        given_up: Vec<String>,
        /// The id of the continuing call, if it is a separate call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        /// How far the run may go from here on, if that changed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        extent: Option<Extent>,
        /// What it runs with from here on, where that is not what it ran with before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        about: Option<Box<About>>,
        /// What happens with calls whose outcome is unknown because the process died while they ran.
        #[serde(default, skip_serializing_if = "is_zero")]
        on_uncertain: OnUncertain,
        /// What became of the process before.
        #[serde(default, skip_serializing_if = "is_zero")]
        after: Interruption,
    },
    /// A message joined the conversation from outside the model.
    UserMessage {
        /// The message.
        message: Arc<Message>,
    },
    /// The model is about to be called.
    TurnStarted {
        /// Which call of the run it is, from 1.
        turn: u32,
        /// The digest of the messages that joined the conversation in this run. Absent in
        /// unrecorded runs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prompt: Option<Hash>,
        /// Tokens of the prompt, as estimated; 0 where nothing was estimated.
        #[serde(default, skip_serializing_if = "is_zero")]
        input_tokens: u64,
    },
    /// The answer of a model call was lost: with the process that waited for it, or because a custom loop gave the call up. Or a
    /// summary was when the run was stopped.
    TurnLost {
        /// The call, by the number that its `turn_started` has. For a summary, the number of the call that comes after it.
        turn: u32,
        /// Tokens of its prompt, as estimated.
        input_tokens: u64,
        /// US dollars that those tokens cost, if their price is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost: Option<f64>,
        /// Whether a custom loop dropped the call. It is made again only if the run was dropped with it: a seam follows.
        #[serde(default, skip_serializing_if = "is_zero")]
        given_up: bool,
    },
    /// The conversation ended, and one more call will format the answer.
    FinalizeStarted {
        /// How the conversation ended.
        conversation: End,
        /// The instruction for the model.
        nudge: Option<Arc<Message>>,
    },
    /// That call could not be made: the chat ends as the conversation did.
    FinalizeFailed {
        /// Why.
        error: Error,
    },
    /// The model answered, or broke off.
    #[doc(alias = "AssistantMessageCompleted")]
    AssistantCompleted {
        /// The received part of the answer.
        response: Box<Response>,
        /// The plan for its calls.
        plan: Plan,
        /// How it arrived. Absent in unrecorded runs.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        cuts: Vec<Cut>,
        /// Milliseconds that it took; none if it was not measured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        duration_ms: Option<u64>,
        /// Milliseconds until its first token arrived; none if it was not measured, or no token arrived.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first_token_ms: Option<u64>,
    },
    /// A tool is about to run.
    #[doc(alias = "ToolCallScheduled")]
    ToolScheduled {
        /// The call.
        call_id: String,
        /// The attempt, from 1.
        attempt: u32,
        /// What is called, where no answer of the model says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<Box<DirectCall>>,
    },
    /// A tool gave an outcome.
    #[doc(alias = "ToolCallCompleted")]
    ToolCompleted {
        /// The call.
        call_id: String,
        /// The attempt that returned it, from 1.
        attempt: u32,
        /// The outcome.
        outcome: ToolOutcome,
        /// The text of its tool message.
        content: String,
        /// Milliseconds that it took; none if it was not measured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        duration_ms: Option<u64>,
    },
    /// An attempt of a tool failed.
    #[doc(alias = "ToolCallFailed")]
    ToolFailed {
        /// The call.
        call_id: String,
        /// The attempt, from 1.
        attempt: u32,
        /// How.
        error: Error,
        /// What was made of it.
        resolution: Resolution,
        /// The text of its tool message; none if it is retried, or the run was stopped.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        content: String,
        /// Milliseconds that it took; none if it was not measured.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        duration_ms: Option<u64>,
    },
    /// Something that cannot be foreseen entered the run: the time, chance, the world outside.
    #[doc(alias = "SideEffectRecorded")]
    SideEffect {
        /// The attempt of the tool that requested it; none if the loop itself did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        inside: Option<Inside>,
        /// What was asked for: `now`, `random`, or the caller's name for it.
        name: String,
        /// How many earlier requests for the same were pending at the same place. It distinguishes
        /// concurrent ones.
        #[serde(default, skip_serializing_if = "is_zero")]
        ahead: u32,
        /// The outcome.
        effect: Effect,
    },
    /// Messages were left out of the request so that it fits.
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
        /// How many messages from the first on are left out, except the system prompt and the user message that the rest answers.
        #[serde(default, skip_serializing_if = "is_zero")]
        dropped: u64,
        /// Up to which message, counted from the first, tool results are left out.
        #[serde(default, skip_serializing_if = "is_zero")]
        cleared: u64,
        /// The answer of the model call that summarised what is left out; none if there was no such call. If the call failed, it has the
        /// error, and what is left out has no summary.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        summary: Option<Box<Response>>,
    },
    /// The run passed a limit of its budget: its end follows.
    BudgetExceeded {
        /// Which limit, and by how much.
        breach: Breach,
        /// The received part of the unfinished answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partial: Option<Box<Response>>,
        /// How that arrived.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        cuts: Vec<Cut>,
    },
    /// The run waits for a person or for tool results.
    Suspended(End),
    /// The run ended in an expected way.
    #[doc(alias = "RunCompleted")]
    Completed(End),
    /// The run failed.
    Failed(End),
    /// The caller, or a deadline, ended the run.
    Cancelled {
        /// Why it stopped.
        end: End,
        /// The received part of the unfinished answer.
        partial: Option<Box<Response>>,
        /// How that arrived.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        cuts: Vec<Cut>,
    },
    /// The last record of a run that ended: what it was, all together.
    Sealed(Seal),
    /// Something was removed from the log. Only the log's [maintenance run](crate::MAINTENANCE) has
    /// these, and nothing else.
    Removed(Tombstone),
}

impl Fact {
    /// The seam between two processes: the run continues where the first of them ended.
    #[doc(hidden)]
    pub const SEAM: Self = Self::Resumed {
        message: None,
        tool_results: Vec::new(),
        approved: Vec::new(),
        edited: Vec::new(),
        rejected: Vec::new(),
        given_up: Vec::new(),
        request_id: None,
        extent: None,
        about: None,
        on_uncertain: OnUncertain::Suspend,
        after: Interruption::Crash,
    };

    /// Whether it only records that another process, possibly with another engine, continued.
    #[doc(hidden)]
    pub fn is_seam(&self) -> bool {
        let Self::Resumed {
            message: None,
            tool_results,
            approved,
            edited,
            rejected,
            given_up,
            request_id: None,
            extent: None,
            about: _,
            on_uncertain: _,
            after: _,
        } = self
        else {
            return false;
        };
        let (pairs, ids) = ([tool_results, edited, rejected], [approved, given_up]);
        pairs.iter().all(|pairs| pairs.is_empty()) && ids.iter().all(|ids| ids.is_empty())
    }

    /// How the run ended, or why it waits, if this fact says so.
    pub const fn end(&self) -> Option<&End> {
        match self {
            Self::Suspended(end)
            | Self::Completed(end)
            | Self::Failed(end)
            | Self::Cancelled { end, .. } => Some(end),
            Self::RunStarted { .. }
            | Self::Resumed { .. }
            | Self::UserMessage { .. }
            | Self::TurnStarted { .. }
            | Self::TurnLost { .. }
            | Self::FinalizeStarted { .. }
            | Self::FinalizeFailed { .. }
            | Self::AssistantCompleted { .. }
            | Self::ToolScheduled { .. }
            | Self::ToolCompleted { .. }
            | Self::ToolFailed { .. }
            | Self::SideEffect { .. }
            | Self::ContextTruncated { .. }
            | Self::BudgetExceeded { .. }
            | Self::Sealed(_)
            | Self::Removed(_) => None,
        }
    }

    /// The tool call and its attempt that this fact belongs to; none if it belongs to the loop.
    #[doc(hidden)]
    pub fn attempt(&self) -> Option<(&str, u32)> {
        match self {
            Self::ToolScheduled { call_id, attempt, .. }
            | Self::ToolCompleted { call_id, attempt, .. }
            | Self::ToolFailed { call_id, attempt, .. }
            | Self::SideEffect { inside: Some(Inside { call_id, attempt }), .. } => {
                Some((call_id, *attempt))
            }
            Self::RunStarted { .. }
            | Self::Resumed { .. }
            | Self::UserMessage { .. }
            | Self::TurnStarted { .. }
            | Self::TurnLost { .. }
            | Self::FinalizeStarted { .. }
            | Self::FinalizeFailed { .. }
            | Self::AssistantCompleted { .. }
            | Self::SideEffect { inside: None, .. }
            | Self::ContextTruncated { .. }
            | Self::BudgetExceeded { .. }
            | Self::Suspended(_)
            | Self::Completed(_)
            | Self::Failed(_)
            | Self::Cancelled { .. }
            | Self::Sealed(_)
            | Self::Removed(_) => None,
        }
    }

    /// The run that a tool started, and whether it has ended, as far as this fact says; none if it is not about such a run.
    ///
    /// ```
    /// # mod mynah { pub use mynah_log as log; }
    /// use mynah::log::{Effect, Fact, Inside, SUB_RUN_STARTED};
    /// use serde_json::json;
    ///
    /// let inside = Some(Inside { call_id: "c1".to_owned(), attempt: 1 });
    /// let effect = Effect::Done(json!({"run_id": "run-1+research-17"}));
    /// let fact = Fact::SideEffect { inside, name: SUB_RUN_STARTED.to_owned(), ahead: 0, effect };
    /// assert_eq!(fact.sub_run(), Some(("run-1+research-17", false)));
    /// ```
    #[doc(hidden)]
    pub fn sub_run(&self) -> Option<(&str, bool)> {
        let Self::SideEffect { inside: Some(_), name, effect: Effect::Done(value), .. } = self
        else {
            return None;
        };
        let run = value.get("run_id").and_then(Value::as_str)?;
        match name.as_str() {
            SUB_RUN_STARTED => Some((run, false)),
            SUB_RUN => {
                let waits = ["/outcome/asks", "/outcome/sleeps"];
                Some((run, waits.iter().all(|path| value.pointer(path).is_none())))
            }
            _ => None,
        }
    }

    /// What the run of an agent spent that this fact reports, with the runs of its own agents.
    #[doc(hidden)]
    pub fn sub_run_totals(&self) -> Option<Totals> {
        match self {
            Self::SideEffect { inside: Some(_), name, effect: Effect::Done(value), .. }
                if name == SUB_RUN =>
            {
                Totals::deserialize(value.get("totals")?).ok()
            }
            _ => None,
        }
    }

    /// How long the answer, the tool or the run took, in milliseconds; none if that was not measured.
    pub fn duration_ms(&self) -> Option<u64> {
        match self {
            Self::AssistantCompleted { duration_ms, .. }
            | Self::ToolCompleted { duration_ms, .. }
            | Self::ToolFailed { duration_ms, .. } => *duration_ms,
            fact => fact.end()?.duration_ms,
        }
    }

    /// Sets how long it took, in milliseconds, if facts of its kind hold that.
    #[doc(hidden)]
    pub fn set_duration_ms(&mut self, millis: Option<u64>) {
        if let Self::AssistantCompleted { duration_ms, .. }
        | Self::ToolCompleted { duration_ms, .. }
        | Self::ToolFailed { duration_ms, .. }
        | Self::Suspended(End { duration_ms, .. })
        | Self::Completed(End { duration_ms, .. })
        | Self::Failed(End { duration_ms, .. })
        | Self::Cancelled { end: End { duration_ms, .. }, .. } = self
        {
            *duration_ms = millis;
        }
    }

    /// How long the first token of an answer took, in milliseconds; none if that was not measured.
    pub fn first_token_ms(&self) -> Option<u64> {
        match self {
            Self::AssistantCompleted { first_token_ms, .. } => *first_token_ms,
            _ => None,
        }
    }

    /// Sets how long the first token took, in milliseconds, if this is the fact of an answer.
    #[doc(hidden)]
    pub fn set_first_token_ms(&mut self, millis: Option<u64>) {
        if let Self::AssistantCompleted { first_token_ms, .. } = self {
            *first_token_ms = millis;
        }
    }
}

/// In human-readable formats a fact is one map: its kind, and the members. In others it is a map
/// with one entry, from the kind to the members, so that it is read in one pass.
impl Serialize for Fact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return Self::serialize(self, serializer);
        }
        let kind = ("kind".to_owned(), Value::from(self.kind().as_str()));
        match Self::serialize(self, serde_json::value::Serializer).map_err(S::Error::custom)? {
            Value::Object(mut tagged) => match tagged.remove(self.kind().as_str()) {
                Some(Value::Object(members)) => {
                    serializer.collect_map(iter::once(kind).chain(members))
                }
                _ => Err(S::Error::custom("a fact without members")),
            },
            _ => Err(S::Error::custom("a fact without a kind")),
        }
    }
}

impl<'de> Deserialize<'de> for Fact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return Self::deserialize(deserializer);
        }
        let mut members = Metadata::deserialize(deserializer)?;
        let Some(Value::String(kind)) = members.shift_remove("kind") else {
            return Err(D::Error::missing_field("kind"));
        };
        let tagged = Metadata::from_iter([(kind, Value::Object(members))]);
        Self::deserialize(Value::Object(tagged)).map_err(D::Error::custom)
    }
}

pub(crate) fn is_zero<N: Default + PartialEq>(count: &N) -> bool {
    *count == N::default()
}

/// What happens with a tool call whose outcome is unknown because the process died while it ran, if the tool is not
/// idempotent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnUncertain {
    /// The run waits until a person reports the outcome. A custom loop gets an error with
    /// `uncertain` in its metadata; its run stays as it is and can be resumed with another policy.
    #[default]
    Suspend,
    /// The call is run again.
    Rerun,
    /// The model reads that the outcome is unknown. A custom loop gets it as the tool's failure.
    Fail,
}

/// What became of the process that had a run before another one continued it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interruption {
    /// The process died, or its fate is unknown.
    #[default]
    Crash,
    /// It gave the run back: its stream was dropped.
    Release,
    /// There was none: the run is a branch that nothing was added to yet.
    Branch,
}

/// What a run was, all together: the content of its last record.
///
/// The record's hash is the run's fingerprint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Seal {
    /// The root of the tree over all records before.
    pub root: Hash,
    /// What they add up to.
    pub totals: Totals,
}

impl Seal {
    /// The seal over records with this root and these totals.
    pub fn new(root: Hash, totals: Totals) -> Self {
        Self { root, totals }
    }
}

/// What a run's facts add up to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Totals {
    /// Model calls that were begun.
    pub turns: u64,
    /// Tool calls that were announced. A retried call counts once.
    pub tool_calls: u64,
    /// Tokens of all prompts, if reported.
    pub input_tokens: u64,
    /// Tokens of all answers, if reported.
    pub output_tokens: u64,
    /// US dollars, if known.
    pub cost: f64,
}

impl Totals {
    /// Adds other totals. Sums stay finite: NaN counts as unknown, and sums saturate at the largest value.
    pub fn add(&mut self, more: &Self) {
        self.turns = self.turns.saturating_add(more.turns);
        self.tool_calls = self.tool_calls.saturating_add(more.tool_calls);
        self.input_tokens = self.input_tokens.saturating_add(more.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(more.output_tokens);
        if more.cost.is_finite() {
            self.cost = (self.cost + more.cost).clamp(f64::MIN, f64::MAX);
        }
    }
}

/// How far a run goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// One model call; tools are never run.
    Generate,
    /// One model call and its tools.
    Step,
    /// Until something ends or suspends the conversation.
    #[default]
    Chat,
}

/// The plan for the tool calls of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Plan {
    /// None is run: the answer is final, or asks for nothing.
    Nothing,
    /// The provider paused; it is called again with what it said.
    Continue,
    /// All are handed to the caller.
    Manual,
    /// One names a tool that the engine does not have, so none is run.
    Unknown {
        /// The name.
        tool_name: String,
    },
    /// Some are run, some are handed to the caller.
    Tools {
        /// Ids of the calls to run, in order.
        run: Vec<String>,
        /// Ids of the calls that the caller answers or a person approves, in order.
        manual: Vec<String>,
        /// Ids of the calls that are not permitted, in order. The model reads that, and none is run.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        denied: Vec<String>,
    },
}

/// One attempt of one call: the place of events inside a tool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inside {
    /// The call.
    pub call_id: String,
    /// The attempt, from 1.
    pub attempt: u32,
}

/// The outcome of a side effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Effect {
    /// It gave a value.
    Done(#[serde(with = "json")] Value),
    /// It failed, in these words.
    Failed(String),
}

/// A tool called by the caller's own loop, not by an answer that is recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectCall {
    /// The turn that it belongs to, where the caller said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// The tool.
    pub name: String,
    /// The exact text of the arguments.
    pub arguments: String,
    /// Whether the loop said that the call was approved.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub approved: bool,
}

/// What follows a failed attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Resolution {
    /// The tool is retried.
    Retried,
    /// Nothing: the run was stopped, or a custom loop gave the call up, before its outcome.
    CutOff,
    /// The model reads the error, and continues.
    Continued,
    /// The model reads another text, and continues.
    Replaced(#[serde(with = "json")] Value),
    /// The chat halts.
    Halted {
        /// How the policy itself failed, if it did.
        exception: Option<String>,
    },
}
