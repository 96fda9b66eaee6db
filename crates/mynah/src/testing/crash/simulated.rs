//! A run that was simulated, and how two of them are compared.

use mynah_data::{CONTINUE, ChatResult, HaltReason, Message, ToolOutcome};
use mynah_log::{End, Fact, Kind, MemoryLog, OnUncertain};
use mynah_step::{RecordedFact, differences};
use serde_json::{Value, json};

use super::{CrashPoint, text};
use crate::{
    loaded::Loaded,
    subagent::{AgentCalls, is_of_agent},
};

/// A run, in as many processes as it took.
pub(super) struct Simulated {
    pub(super) log: MemoryLog,
    pub(super) records: Vec<RecordedFact>,
    pub(super) crashes: Vec<CrashPoint>,
    pub(super) result: ChatResult,
    /// Calls whose outcome is unknown.
    pub(super) in_doubt: Vec<String>,
    pub(super) world: Option<Value>,
}

impl Simulated {
    pub(super) fn new(
        log: MemoryLog,
        mut run: Loaded,
        crashes: Vec<CrashPoint>,
        world: Option<Value>,
        policy: OnUncertain,
    ) -> Self {
        let result = run.take_state().chat_result();
        let records = run.records;
        let facts = || records.iter().map(RecordedFact::fact);
        let given_up = |fact: &Fact| match fact {
            Fact::ToolFailed { call_id, error, .. } => {
                error.metadata().contains_key("uncertain").then(|| call_id.clone())
            }
            // Calls of an agent that may have run. If they run again, the agent's result must be the same.
            Fact::ToolCompleted { call_id, outcome: ToolOutcome::AskUser { opts, .. }, .. } => {
                let is_in_doubt = policy != OnUncertain::Rerun && AgentCalls::may_have_run(opts);
                is_in_doubt.then(|| call_id.clone())
            }
            _ => None,
        };
        let mut in_doubt: Vec<String> = facts().filter_map(given_up).collect();
        if let Some(Fact::Suspended(end)) = facts().next_back()
            && end.reason == HaltReason::UncertainTools
        {
            in_doubt.extend(end.waiting_calls(facts()).into_iter().map(|call| call.id.clone()));
        }
        Self { log, records, crashes, result, in_doubt, world }
    }

    /// Whether messages may be missing: about calls whose outcome is unknown and what follows them, or because a model call that was lost in
    /// the crash used up the budget or the turns.
    pub(super) fn is_shorter(&self) -> bool {
        !self.in_doubt.is_empty() || self.is_spent()
    }

    pub(super) fn is_spent(&self) -> bool {
        let before = self.finalizes().map(|(conversation, _)| &conversation.reason);
        let is_spent =
            |reason: &_| matches!(reason, HaltReason::BudgetExceeded | HaltReason::MaxTurns);
        (is_spent(&self.result.halted_reason) || before.is_some_and(is_spent))
            && self.records.iter().any(|kept| kept.is(Kind::TurnLost))
    }

    /// How the conversation ended before the pass that formats the answer, and the instruction of that pass.
    pub(super) fn finalizes(&self) -> Option<(&End, Option<&Message>)> {
        self.records.iter().find_map(|kept| match kept.fact() {
            Fact::FinalizeStarted { conversation, nudge } => Some((conversation, nudge.as_deref())),
            _ => None,
        })
    }

    /// What the run waits for, if a person must continue it, and what to do.
    pub(super) fn waits(&self) -> Option<String> {
        match self.result.halted_reason {
            HaltReason::ManualToolCalls => {
                let calls = self.result.manual_tool_calls();
                let names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
                Some(format!(
                    "the run waits for a decision about {}; add approve_all() or decide(..), or may_wait() if it may end there",
                    names.join(", ")
                ))
            }
            HaltReason::AskUser => {
                let question = self.result.pending_question.as_deref().unwrap_or_default();
                let how = match AgentCalls::asked(&self.result.metadata) {
                    Some(_) => "approve_all(), decide(..) or answer(..)",
                    None => "answer(..)",
                };
                Some(format!(
                    "the run waits for an answer to {question:?}; add {how}, or may_wait() if it may end there"
                ))
            }
            _ => None,
        }
    }

    /// Whether a person was asked about a call of an agent that may have run.
    pub(super) fn asked_about_outcome(&self) -> bool {
        self.records.iter().any(|kept| match kept.fact() {
            Fact::ToolCompleted { outcome: ToolOutcome::AskUser { opts, .. }, .. } => {
                AgentCalls::may_have_run(opts)
            }
            _ => false,
        })
    }

    pub(super) fn is_uncertain(&self) -> bool {
        self.result.halted_reason == HaltReason::UncertainTools
            || AgentCalls::asked(&self.result.metadata).is_some_and(|asked| asked.may_have_run)
    }
}

/// Where two results differ, to the letter.
pub(super) fn differing(first: &ChatResult, then: &ChatResult) -> Option<String> {
    let [first, then] = [first, then].map(compared);
    if text(&first) == text(&then) {
        return None;
    }
    let place = differences(&first, &then).into_iter().next();
    let place = place.map_or_else(|| "the order of members".to_owned(), |place| place.to_string());
    Some(format!("the result differs: {place}"))
}

/// A result, without how far agents had come when they asked: a run that was resumed has more records.
fn compared(result: &ChatResult) -> Value {
    let mut result = json!(result);
    let steps = result["steps"].as_array_mut().into_iter().flatten();
    for opts in steps.filter_map(|step| step.pointer_mut("/metadata/ask_user_opts")) {
        if let Some(opts) = opts.as_object_mut().filter(|opts| is_of_agent(opts)) {
            opts.shift_remove(CONTINUE);
        }
    }
    result
}
