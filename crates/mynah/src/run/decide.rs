//! What comes next: a pure function of the state.

use std::{fmt, sync::Arc};

use mynah_data::{
    Breach, Budget, Error, FinishReason, HaltReason, Message, Metadata, Mode, Response, StepResult,
};
use mynah_log::{End, Extent, Plan};
use mynah_step::Tool;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::state::RunState;

/// What a run is to do next.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    /// Call the model.
    CallModel,
    /// Call the model once more, to give the answer its form: the conversation ended so.
    Finalize { conversation: End, nudge: Option<Message> },
    /// Run these calls.
    RunTools(Vec<String>),
    /// Stop: the next call would pass this limit.
    Exceed(Breach),
    /// Stop, and say so.
    Finish(End),
    /// Stop: the caller of a single call gets this error.
    Refuse(End, Error),
    /// Nothing: the run has its end.
    Stop,
}

impl Action {
    /// Whether a person may say something first: the model is to be called, or nothing more is to be done.
    pub(super) fn leaves_the_word(&self) -> bool {
        match self {
            Self::CallModel | Self::Finalize { .. } => true,
            Self::Finish(end) => !end.waits() && end.reason != HaltReason::BudgetExceeded,
            _ => false,
        }
    }
}

/// What happens when the model calls a tool that the engine does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnUnknownTool {
    /// The step fails, before any tool runs.
    #[default]
    Fail,
    /// The call gets an error result, and the model goes on.
    Answer,
}

/// The caller's own condition for halting.
#[derive(Clone)]
pub(crate) enum HaltWhen {
    /// It is asked after each step.
    Asked(Arc<dyn Fn(&StepResult) -> bool + Send + Sync>),
    /// It held after so many steps, as the records tell; none if it never did.
    After(Option<usize>),
}

/// The engine's and the call's settings, as far as they decide what comes next.
///
/// `halt_when` is asked again when a run is performed again, so it must depend on its argument alone.
pub(crate) struct Policy {
    pub(crate) mode: Mode,
    pub(crate) max_turns: u32,
    pub(crate) budget: Option<Budget>,
    pub(crate) halt_when: Option<HaltWhen>,
    pub(crate) finalize: Option<Finalize>,
    pub(crate) on_unknown_tool: OnUnknownTool,
    pub(crate) tools: Arc<[Tool]>,
}

/// The second pass, which gives the answer its form.
#[derive(Clone, Debug)]
pub(crate) struct Finalize {
    /// What the model is told first; nothing if it is empty.
    pub(crate) nudge: String,
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("mode", &self.mode)
            .field("max_turns", &self.max_turns)
            .field("finalize", &self.finalize)
            .finish_non_exhaustive()
    }
}

impl Policy {
    /// The tool of this name. The finalizing call has none, so a call in its answer is a call to nothing.
    pub(super) fn tool(&self, name: &str, finalizing: bool) -> Option<&Tool> {
        self.tools.iter().find(|tool| !finalizing && tool.name() == name)
    }

    /// What is to happen with the calls of an answer.
    pub(super) fn plan(&self, state: &RunState, response: &Response, paused: bool) -> Plan {
        if response.error().is_some() || state.extent == Extent::Generate {
            return Plan::Nothing;
        }
        let calls = response.tool_calls().next().is_some();
        // A provider that paused with calls in its answer could not be called again before they have results.
        if paused && !calls {
            return Plan::Continue;
        }
        if response.finish_reason != Some(FinishReason::ToolCalls) || !calls {
            return Plan::Nothing;
        }
        if self.mode == Mode::Manual {
            return Plan::Manual;
        }
        let (mut run, mut manual) = (Vec::new(), Vec::new());
        for call in response.tool_calls() {
            match self.tool(&call.name, state.conversation.is_some()) {
                Some(tool) if tool.spec().manual => manual.push(call.id.clone()),
                None if self.on_unknown_tool == OnUnknownTool::Fail => {
                    return Plan::Unknown { tool_name: call.name.clone() };
                }
                _ => run.push(call.id.clone()),
            }
        }
        Plan::Tools { run, manual }
    }
}

impl RunState {
    /// What comes next.
    pub(super) fn decide(&self, policy: &Policy) -> Action {
        let next = self.next(policy);
        let Some(budget) = &policy.budget else { return next };
        let passed = match &next {
            Action::CallModel => self.passed_by_calling(budget, 0),
            Action::Finalize { nudge, .. } => {
                self.passed_by_calling(budget, nudge.as_ref().map_or(0, Message::size))
            }
            Action::RunTools(_) => {
                let new = self.unsettled().filter(|call| call.attempt == 0);
                self.spent.passed_by_tools(budget, new.count())
            }
            _ => None,
        };
        passed.map_or(next, Action::Exceed)
    }

    /// What comes next, whatever it takes.
    fn next(&self, policy: &Policy) -> Action {
        if self.end.is_some() {
            return Action::Stop;
        }
        if let Some((breach, error)) = &self.exceeded {
            let budget = Metadata::from_iter([("budget".to_owned(), json!(breach))]);
            let mut end = self.end_of_chat(End::new(HaltReason::BudgetExceeded, budget), policy);
            if self.extent == Extent::Chat {
                return Action::Finish(end);
            }
            end.metadata.insert("error".to_owned(), error.to_value());
            return Action::Refuse(end, error.clone());
        }
        if let Some(conversation) = &self.conversation
            && let Some(error) = &conversation.failure
        {
            let mut end = conversation.end.clone();
            let told = json!({"pass_1_halted": end.reason, "pass_2_error": error});
            end.metadata.insert("structured_finalize".to_owned(), told);
            return Action::Finish(end);
        }
        if self.open.is_some() {
            return Action::RunTools(
                self.unsettled().map(|planned| planned.call.id.clone()).collect(),
            );
        }
        let Some(step) = self.steps_of_pass().last() else {
            return match self.halt() {
                // A call that was approved has halted.
                Some(halt) if self.conversation.is_none() => Action::Finish(
                    self.end_of_chat(End::new(halt.reason(), halt.details()), policy),
                ),
                _ => Action::CallModel,
            };
        };
        if self.extent != Extent::Chat {
            return Action::Finish(self.end_after(step).unwrap_or_else(completed));
        }
        let Some(end) = self.terminal(step, policy) else {
            return Action::CallModel;
        };
        match &policy.finalize {
            Some(finalize) if self.conversation.is_none() && leads_to_finalize(&end.reason) => {
                let nudge = (!finalize.nudge.is_empty()).then(|| Message::user(&finalize.nudge));
                Action::Finalize { conversation: end, nudge }
            }
            _ => Action::Finish(self.end_of_chat(end, policy)),
        }
    }

    /// The end of a chat: where the answer is given a form, it tells how the conversation ended.
    pub(super) fn end_of_chat(&self, mut end: End, policy: &Policy) -> End {
        if policy.finalize.is_some() {
            // What stops a chat before the call that gives its answer a form does not end the conversation once more.
            let last = self.steps_of_pass().last().and_then(|step| self.terminal(step, policy));
            let last = last.filter(|end| leads_to_finalize(&end.reason));
            let conversation = self.conversation.as_ref().map(|pass| &pass.end).or(last.as_ref());
            let told = json!({"pass_1_halted": conversation.unwrap_or(&end).reason});
            end.metadata.insert("structured_finalize".to_owned(), told);
        }
        end
    }

    /// The first of the terminal conditions that holds after a step.
    fn terminal(&self, step: &StepResult, policy: &Policy) -> Option<End> {
        if let Some(end) = self.end_after(step) {
            return Some(end);
        }
        let halts = policy.halt_when.as_ref().is_some_and(|halt_when| match halt_when {
            HaltWhen::Asked(condition) => condition(step),
            HaltWhen::After(steps) => *steps == Some(self.steps.len()),
        });
        if halts {
            return Some(end(
                HaltReason::HaltWhen,
                "halt_when_step_index",
                json!(self.step_index()),
            ));
        }
        let max_turns = if self.conversation.is_some() { 1 } else { policy.max_turns };
        if self.steps_of_pass().len() >= max_turns as usize {
            return Some(end(HaltReason::MaxTurns, "max_turns", json!(max_turns)));
        }
        None
    }

    /// How a step itself ends or suspends the run; none where the model is to be called again.
    fn end_after(&self, step: &StepResult) -> Option<End> {
        if let Some(halt) = self.halt() {
            return Some(End::new(halt.reason(), halt.details()));
        }
        let nothing = Plan::Nothing;
        let plan = self.last.as_ref().map_or(&nothing, |last| &last.plan);
        match plan {
            Plan::Unknown { tool_name } => {
                return Some(failed(Error::unknown_tool(tool_name).to_value()));
            }
            Plan::Manual => return Some(manual(self.step_index(), Vec::new())),
            Plan::Tools { manual: calls, .. } if !calls.is_empty() => {
                let listed = step.metadata.get("manual_tool_calls").cloned().unwrap_or_default();
                return Some(manual(self.step_index(), vec![("manual_tool_calls", listed)]));
            }
            _ => {}
        }
        match step.response.finish_reason {
            Some(FinishReason::Error) => {
                let error = step.response.metadata.get("error").cloned();
                Some(failed(error.unwrap_or_default()))
            }
            Some(FinishReason::ToolCalls) => None,
            _ if *plan == Plan::Continue => None,
            _ => Some(completed()),
        }
    }

    /// The place of the last step among those of the result.
    fn step_index(&self) -> usize {
        self.steps_of_call().len().saturating_sub(1)
    }
}

/// Whether the finalizing pass follows a conversation that ended so.
fn leads_to_finalize(reason: &HaltReason) -> bool {
    matches!(reason, HaltReason::Completed | HaltReason::MaxTurns | HaltReason::HaltWhen)
}

fn end(reason: HaltReason, key: &str, value: Value) -> End {
    End::new(reason, Metadata::from_iter([(key.to_owned(), value)]))
}

fn completed() -> End {
    End::new(HaltReason::Completed, Metadata::new())
}

fn failed(error: Value) -> End {
    end(HaltReason::Error, "error", error)
}

fn manual(index: usize, more: Vec<(&str, Value)>) -> End {
    let mut end = end(HaltReason::ManualToolCalls, "manual_turn_index", json!(index));
    end.metadata.extend(more.into_iter().map(|(key, value)| (key.to_owned(), value)));
    end
}
