//! What must hold after a crash, and does not.

use std::fmt;

use mynah_data::Error;
use mynah_log::{Fact, Kind};
use mynah_step::RecordedFact;
use serde_json::Value;

use super::{Said, text};

/// What [`crash_everywhere`](super::crash_everywhere) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CrashViolationKind {
    /// The conversation or its end differs from the run without a crash.
    ResultDiffers,
    /// A tool that is marked idempotent gave another result when it ran again.
    NotIdempotent,
    /// A tool or model call with a recorded outcome was repeated.
    Repeated,
    /// A tool started before its announcement was recorded.
    NotAnnounced,
    /// The run could not be resumed.
    NotResumed,
    /// Nothing could be tested: the run without a crash could not be started, or what was set for the check does not fit it.
    NotTested,
    /// The records do not verify.
    NotVerified,
    /// A replay differs from the records.
    ReplayDiffers,
    /// What is observed after the run differs from the run without a crash.
    WorldDiffers,
}

impl CrashViolationKind {
    /// The causes, the likely ones first.
    fn advice(self, crashed: bool, tool: Option<&str>, setting: &Setting) -> Vec<String> {
        let reset = |what: &str| match setting.resets {
            true => None,
            false => Some(format!("reset {what} in before_each(..)")),
        };
        let halts = setting.functions.contains(&HALT_WHEN).then_some(
            "let halt_when depend on its step alone: each process and each replay evaluates it again",
        );
        let first = |advice: &str| vec![advice.to_owned()];
        match self {
            Self::ResultDiffers => {
                let store = "keep what a tool needs in its arguments, in the engine's context or in a store that outlives the process";
                let (clock, reset) = (
                    "read time and chance from the tool's context".to_owned(),
                    reset("what runs share"),
                );
                let mut advice: Vec<String> =
                    halts.filter(|_| tool.is_none()).map(str::to_owned).into_iter().collect();
                match crashed {
                    true => advice.extend([store.to_owned(), clock].into_iter().chain(reset)),
                    false => advice.extend([clock].into_iter().chain(reset).chain(first(store))),
                }
                advice.push("name a tool whose result may differ in varying(..)".to_owned());
                advice
            }
            Self::WorldDiffers => {
                let functions = match setting.functions.as_slice() {
                    [] => ", which is done in each process".to_owned(),
                    named => {
                        format!(" or in {}, which run again in each process", named.join(", "))
                    }
                };
                let effects = format!(
                    "do every effect in a tool, and none where the engine is made{functions}"
                );
                let key = "give context.idempotency_key() to the service that an idempotent tool calls, or remove idempotent(..)";
                let key = setting.idempotent.first().map(|_| key.to_owned());
                let is_idempotent =
                    tool.is_some_and(|tool| setting.idempotent.iter().any(|name| name == tool));
                let reset = reset("the world");
                let effects = Some(effects);
                let ranked = match crashed {
                    false => [reset, effects, key],
                    true if is_idempotent => [key, effects, reset],
                    true => [effects, key, reset],
                };
                ranked.into_iter().flatten().collect()
            }
            Self::NotIdempotent => first(
                "give context.idempotency_key() to the service that the tool calls, so that the work is done once; or remove \
                 idempotent(..), and the run waits for a person instead",
            ),
            Self::Repeated | Self::NotAnnounced | Self::NotVerified => first(
                "report it: this is an error in Mynah, or in the tool executor that the engine uses",
            ),
            Self::NotResumed | Self::ReplayDiffers => {
                let same = "make the same engine in every process: the same model, tools, params and options";
                halts.into_iter().chain([same]).map(str::to_owned).collect()
            }
            Self::NotTested => {
                first("correct the engine, its scripts, or what is set for the check")
            }
        }
    }
}

/// The condition for halting, as it is called among the functions of an engine.
pub(super) const HALT_WHEN: &str = "halt_when";

/// What the engine and the check have that may be the cause of a violation.
pub(super) struct Setting {
    /// Functions of the caller that run outside of tools.
    pub(super) functions: Vec<&'static str>,
    pub(super) idempotent: Vec<String>,
    /// Whether something is done before each run.
    pub(super) resets: bool,
    /// Whether the check runs calls of unknown outcome again.
    pub(super) reruns: bool,
}

/// Where a process died.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CrashPoint {
    /// The record.
    pub record: u64,
    /// The record's kind.
    pub kind: Kind,
    /// The tool call that the record is about.
    pub call_id: Option<String>,
    /// Whether the record was durable. If not, what it reports was done and is not recorded.
    pub durable: bool,
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { record, kind, call_id, durable } = self;
        let when = if *durable { "after" } else { "before" };
        write!(f, "{when} record {record}, {kind}")?;
        call_id.iter().try_for_each(|id| write!(f, " of call {id}"))
    }
}

/// The first thing that does not hold; see [`crash_everywhere`](super::crash_everywhere).
///
/// Its text has the record, the tool, the moment of the crash and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashViolation {
    kind: CrashViolationKind,
    what: String,
    crashes: Vec<CrashPoint>,
    record: Option<(u64, Kind)>,
    tool: Option<String>,
    advice: String,
}

impl CrashViolation {
    pub(super) fn new(kind: CrashViolationKind, what: String) -> Self {
        let advice = String::new();
        Self { kind, what, crashes: Vec::new(), record: None, tool: None, advice }
    }

    /// The same, with what to do.
    pub(super) fn advised(mut self, setting: &Setting) -> Self {
        use CrashViolationKind::{NotIdempotent, ResultDiffers, WorldDiffers};
        let (crashed, tool) = (!self.crashes.is_empty(), self.tool.as_deref());
        let is_marked = |tool: &str| setting.idempotent.iter().any(|name| name == tool);
        // Only the check's policy, and not the tool, says that the call runs again.
        let by_policy = setting.reruns && crashed && tool.is_some_and(|tool| !is_marked(tool));
        self.advice = match self.kind {
            NotIdempotent | ResultDiffers | WorldDiffers if by_policy => {
                "on_uncertain(OnUncertain::Rerun) runs this tool again, which is not idempotent: choose another policy, and the \
                 call is not repeated; or give context.idempotency_key() to the service that the tool calls, so that the work is done once"
                    .to_owned()
            }
            kind => kind.advice(crashed, tool, setting).join("; "),
        };
        self
    }

    pub(super) fn after(mut self, crashes: &[CrashPoint]) -> Self {
        self.crashes = crashes.to_vec();
        self
    }

    pub(super) fn of_tool(mut self, name: &str) -> Self {
        self.tool = Some(name.to_owned());
        self
    }

    /// The same, at the record that an error names.
    pub(super) fn at_error(self, records: &[RecordedFact], error: &Error) -> Self {
        let seq = error.metadata().get("seq").and_then(Value::as_u64);
        self.at_record(records, seq.unwrap_or_default())
    }

    /// The same, at one of these records, and of the tool that it is about.
    pub(super) fn at_record(mut self, records: &[RecordedFact], seq: u64) -> Self {
        let at = records.iter().position(|kept| kept.record().seq() == seq);
        let Some(at) = at else { return self };
        self.record = Some((seq, records[at].record().kind()));
        let call = records[at].fact().attempt();
        self.tool = self.tool.or_else(|| tool_of(&records[..at], call?.0));
        self
    }

    /// The same, at the record that a message is from.
    pub(super) fn at_message(mut self, records: &[RecordedFact], said: &Said) -> Self {
        self.tool.clone_from(&said.tool);
        let is_from = |kept: &&RecordedFact| match (&said.call_id, kept.fact()) {
            (Some(id), Fact::ToolCompleted { call_id, .. } | Fact::ToolFailed { call_id, .. }) => {
                id == call_id
            }
            (None, Fact::AssistantCompleted { response, .. }) => {
                text(&response.message) == said.content
            }
            _ => false,
        };
        match records.iter().rev().find(is_from).map(|kept| kept.record().seq()) {
            Some(seq) => self.at_record(records, seq),
            None => self,
        }
    }

    /// The same, at the record of the last crash.
    pub(super) fn at_last_crash(mut self, records: &[RecordedFact]) -> Self {
        if let Some(CrashPoint { record, kind, call_id, .. }) = self.crashes.last() {
            self.record = Some((*record, *kind));
            self.tool = self.tool.or_else(|| tool_of(records, call_id.as_deref()?));
        }
        self
    }

    /// What does not hold.
    pub fn kind(&self) -> CrashViolationKind {
        self.kind
    }

    /// Where the processes of the run died; empty if it is a run without a crash.
    pub fn crashes(&self) -> &[CrashPoint] {
        &self.crashes
    }

    /// The record at which it was found.
    pub fn record(&self) -> Option<u64> {
        self.record.as_ref().map(|(seq, _)| *seq)
    }

    /// The kind of that record.
    pub fn record_kind(&self) -> Option<Kind> {
        self.record.map(|(_, kind)| kind)
    }

    /// The tool that it is about.
    pub fn tool(&self) -> Option<&str> {
        self.tool.as_deref()
    }
}

impl fmt::Display for CrashViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(tool) = &self.tool {
            write!(f, "\n  tool: {tool}")?;
        }
        if let Some((seq, kind)) = &self.record {
            write!(f, "\n  record: {seq}, {kind}")?;
        }
        for crash in &self.crashes {
            write!(f, "\n  the process died {crash}")?;
        }
        write!(f, "\n  what to do: {}", self.advice)
    }
}

impl std::error::Error for CrashViolation {}

fn tool_of(records: &[RecordedFact], id: &str) -> Option<String> {
    records.iter().rev().find_map(|kept| match kept.fact() {
        Fact::AssistantCompleted { response, .. } => {
            response.tool_calls().find(|call| call.id == id).map(|call| call.name.clone())
        }
        _ => None,
    })
}
