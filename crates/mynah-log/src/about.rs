//! What a run ran with, and which runs it follows.

use std::sync::Arc;

use mynah_data::{Messages, Metadata, Pricing, Role, RunId, ToolSpec, json};
use serde::{Deserialize, Serialize};

use crate::{Hash, fact::is_zero};

/// The version of the loop's behaviour, in the [`About`] of every run that an engine starts.
///
/// It is raised when a later loop decides differently on the same facts, so that the later loop can decide about a recorded
/// run as the loop that wrote it did.
pub const BEHAVIOUR: u32 = 1;

/// How the name of a tool executor begins that answers from the records of a run. The id of the run follows.
#[doc(hidden)]
pub const RECORDED_TOOLS: &str = "recorded:";

/// The configuration of a run, as data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// The version of the loop's behaviour, see [`BEHAVIOUR`]; 0 if no engine's loop wrote the run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub behaviour: u32,
    /// The id of the call.
    pub request_id: String,
    /// The adapter's name.
    pub adapter: String,
    /// The model.
    pub model: Option<String>,
    /// What its tokens cost, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pricing: Option<Pricing>,
    /// The tools, in order.
    pub tools: Vec<Arc<ToolSpec>>,
    /// The engine's params.
    #[serde(default, with = "json::members")]
    pub params: Metadata,
    /// The call's own options.
    #[serde(default, with = "json::members")]
    pub options: Metadata,
    /// Whether one more call formats the answer of a chat.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finalizes: bool,
    /// Tools that came with the request itself, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub described: Vec<String>,
    /// The run that this one was branched from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The session that it is a turn of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionLink>,
}

impl About {
    /// Contains only prices.
    #[doc(hidden)]
    pub fn of_price(pricing: Pricing) -> Self {
        Self { pricing: Some(pricing), ..Self::default() }
    }

    /// The run whose records answer the tool calls; none if the tools run.
    #[doc(hidden)]
    pub fn answering_run(&self) -> Option<&str> {
        self.options.get("tool_executor")?.as_str()?.strip_prefix(RECORDED_TOOLS)
    }

    /// The system prompt of conversations that have none of their own.
    #[doc(hidden)]
    pub fn system_prompt(&self) -> Option<&str> {
        let set = self.options.get("system").or_else(|| self.params.get("system"));
        set.and_then(|prompt| prompt.as_str()).filter(|prompt| !prompt.is_empty())
    }

    /// Whether a conversation begins with that prompt.
    #[doc(hidden)]
    pub fn prompts(&self, messages: &Messages) -> bool {
        let first = messages.get(0).filter(|first| first.role() == Role::System);
        first.is_some_and(|first| Some(&*first.text()) == self.system_prompt())
    }

    /// Whether it contains only where the run was branched off, as in a run that no engine wrote.
    #[doc(hidden)]
    pub fn is_bare(&self) -> bool {
        *self == Self { parent: self.parent.clone(), ..Self::default() }
    }
}

/// The session that a run is a turn of, and the turn before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SessionLink {
    /// The caller's id for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The session's own data for its tools.
    #[serde(default, skip_serializing_if = "Metadata::is_empty", with = "json::members")]
    pub context: Metadata,
    /// The caller's own data, kept with the session.
    #[serde(default, skip_serializing_if = "Metadata::is_empty", with = "json::members")]
    pub metadata: Metadata,
    /// The run before; none in the first that this log keeps of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Previous>,
}

/// The previous run of a session, up to the record that this one continues from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Previous {
    /// The other run.
    pub run_id: RunId,
    /// Its last record then: its seal, unless it waited.
    pub seq: u64,
    /// That record's hash: the run's fingerprint, if it is the seal.
    pub hash: Hash,
    /// The length of the conversation there, if this run continues it and holds only new messages;
    /// 0 if it holds the whole conversation itself.
    pub messages: u64,
    /// What its last request left out of the conversation, if this run leaves it out too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
}

/// The part of a conversation that requests leave out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// How many messages from the first on, as in [`ContextTruncated`](crate::Fact::ContextTruncated).
    pub dropped: u64,
    /// Up to which message tool results are left out.
    pub cleared: u64,
    /// The summary that stands in their place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

/// Where a run was branched off another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parent {
    /// The other run.
    pub run_id: RunId,
    /// The last record that both have.
    pub seq: u64,
    /// That record's hash.
    pub hash: Hash,
    /// For how long the other run was active up to there, in nanoseconds. A branch has taken that time as well. If this run
    /// continues the other, all of its time.
    pub active: u64,
    /// How this run continues the other, if it is no branch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continues: Option<Continues>,
}

/// How a run continues another that a failed model call or a limit ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Continues {
    /// The first of the runs that are continued so. The idempotency keys of all of them are made of its id.
    pub root: RunId,
    /// Model calls that failed after they had begun to answer. The records of this run do not have them, or what they spent.
    pub turns: u64,
    /// Tokens of their prompts.
    pub input_tokens: u64,
    /// Tokens of their answers.
    pub output_tokens: u64,
    /// All of their tokens.
    pub total_tokens: u64,
    /// What they cost in US dollars.
    pub cost: f64,
}

impl Continues {
    /// The first continuation of a run, with nothing spent.
    pub fn new(root: &RunId) -> Self {
        Self { root: root.clone(), ..Self::default() }
    }
}
