//! What comes next: a pure function of the state.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use mynah_data::{
    Approval, Breach, Budget, Error, FinishReason, Halt, HaltReason, Message, Messages, Metadata,
    Response, StepResult, ToolCall, ToolMode,
};
use mynah_log::{End, Extent, OnUncertain, Plan};
use mynah_step::{Tool, prompt_tokens, reruns_lost};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    open_turn::{OpenTurn, PlannedCall},
    state::{PendingModelCall, RunState, manual_calls},
};
use crate::context_policy::{ContextPolicy, ContextView, MIN_REQUEST, Token};

/// The next action of a run.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    /// Record that the next model call starts.
    StartTurn,
    /// Leave more of the conversation out of the next request.
    Shorten(ContextView),
    /// Record that the model is asked for a summary of what is left out from now on.
    StartSummary(ContextView),
    /// Ask for it: that is recorded.
    Summarise(ContextView),
    /// Call the model: its turn is started.
    CallModel,
    /// Record that the answer of the model call in flight was lost with its process.
    LoseTurn,
    /// Record that the conversation ended so. One more call formats the answer.
    Finalize { conversation: End, nudge: Option<Message> },
    /// Announce an attempt of a call.
    Announce { call_id: String, attempt: u32 },
    /// Run the calls that are announced.
    RunTools,
    /// Wait until this time, in milliseconds since 1970: calls continue then.
    Sleep(u64),
    /// Record that the outcome of a call is unknown, and let the model continue.
    GiveUp(Arc<ToolCall>),
    /// Stop: the next call would pass this limit.
    Exceed(Breach),
    /// Record this end.
    Finish(End),
    /// Record this end. The caller of a single call gets the error.
    Refuse(End, Error),
    /// Record that the caller or a deadline ended the run so.
    Cancel(End),
    /// Nothing: the run has its end.
    Stop,
}

impl Action {
    /// Whether a user message may come first: the model is called next, or nothing is left to do.
    pub(super) fn leaves_the_word(&self) -> bool {
        match self {
            Self::StartTurn | Self::Finalize { .. } => true,
            Self::Finish(end) => !end.waits() && end.reason != HaltReason::BudgetExceeded,
            _ => false,
        }
    }

    /// Whether the run can be released instead: nothing is in flight, and what comes next has not begun.
    pub(super) fn can_be_left(&self) -> bool {
        matches!(self, Self::StartSummary(_) | Self::Sleep(_)) || self.takes_time()
    }

    pub(super) fn takes_time(&self) -> bool {
        match self {
            Self::StartTurn | Self::Finalize { .. } => true,
            Self::Announce { attempt, .. } => *attempt == 1,
            _ => false,
        }
    }
}

/// What happens when the model calls a tool that the engine does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnUnknownTool {
    /// The step fails, before any tool runs.
    #[default]
    Fail,
    /// The call gets an error result that lists the tools, and the model continues.
    Answer,
}

/// How many tools are listed to a model that called one that is not there.
const LISTED_TOOLS: usize = 100;

/// The caller's own condition for halting.
#[derive(Clone)]
pub(crate) enum HaltWhen {
    /// It is evaluated after each step.
    Function(Arc<dyn Fn(&StepResult) -> bool + Send + Sync>),
    /// It held after so many steps, according to the records; none if it never did.
    After(Option<usize>),
}

type DecideApproval = dyn Fn(&ToolCall, &Tool) -> Approval + Send + Sync;

/// Decides which calls a person must approve.
#[derive(Clone)]
pub(crate) enum ApprovalPolicy {
    /// A function that is called for each call.
    Function(Arc<DecideApproval>),
    /// The plans that the records hold, one for each answer.
    Recorded(Arc<[Plan]>),
}

impl ApprovalPolicy {
    /// What it decides for a call of the answer in this place. A function permits no more than the tool does, and nothing if it
    /// panics.
    fn decide(&self, call: &ToolCall, tool: &Tool, answer: usize) -> Approval {
        match self {
            Self::Function(decide) => {
                let decided = catch_unwind(AssertUnwindSafe(|| decide(call, tool)));
                decided.unwrap_or(Approval::Deny).max(tool.spec().approval)
            }
            Self::Recorded(plans) => match plans.get(answer) {
                Some(Plan::Tools { denied, .. }) if denied.contains(&call.id) => Approval::Deny,
                Some(Plan::Tools { manual, .. }) if manual.contains(&call.id) => Approval::Ask,
                _ => Approval::Never,
            },
        }
    }
}

/// The engine's and the call's settings, as far as they decide what comes next.
///
/// `halt_when` is evaluated again in a replay, so it must depend on its argument alone.
pub(crate) struct Policy {
    pub(crate) mode: ToolMode,
    pub(crate) max_turns: u32,
    pub(crate) budget: Option<Budget>,
    pub(crate) halt_when: Option<HaltWhen>,
    /// The instruction of the second pass, which formats the answer, if there is one. Empty for none.
    pub(crate) finalize: Option<String>,
    pub(crate) on_unknown_tool: OnUnknownTool,
    /// How the conversation is shortened if it does not fit.
    pub(crate) context: Option<ContextPolicy>,
    /// The characters of a token of the model.
    pub(crate) token: Token,
    /// Whether requests end with what is left of the budget.
    pub(crate) budget_note: bool,
    pub(crate) approval: Option<ApprovalPolicy>,
    /// How often a process may die before the run made any progress.
    pub(crate) max_crashes: u32,
    pub(crate) tools: Arc<[Tool]>,
    /// Characters of the tools' schemas, which are in every prompt; 0 if not needed.
    pub(crate) schema_size: u64,
}

impl Policy {
    /// The tool of this name. The finalizing call has none, so a call in its answer is a call to nothing.
    pub(super) fn tool(&self, name: &str, finalizing: bool) -> Option<&Tool> {
        self.tools.iter().find(|tool| !finalizing && tool.name() == name)
    }

    /// The error for a call of a tool that does not exist: it lists the tools.
    pub(super) fn unknown(&self, name: &str, finalizing: bool) -> Error {
        let tools: Vec<_> = match finalizing {
            true => Vec::new(),
            false => self.tools.iter().map(Tool::name).take(LISTED_TOOLS).collect(),
        };
        let error = Error::unknown_tool(name);
        let more = if tools.len() < self.tools.len() { ", …" } else { "" };
        let list = match tools.is_empty() {
            true => "it has no tools for this answer".to_owned(),
            false => format!("its tools are: {}{more}", tools.join(", ")),
        };
        let message = format!("{}; {list}", error.message());
        error.with_message(message)
    }

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
        if self.mode == ToolMode::Manual {
            return Plan::Manual;
        }
        let (mut run, mut manual, mut denied) = (Vec::new(), Vec::new(), Vec::new());
        for call in response.tool_calls() {
            let list = match self.tool(&call.name, state.conversation.is_some()) {
                Some(tool) => match self.approval(call, tool, state.steps.len()) {
                    Approval::Ask if !self.cannot_run(call, tool) => &mut manual,
                    Approval::Never | Approval::Ask => &mut run,
                    _ => &mut denied,
                },
                None if self.on_unknown_tool == OnUnknownTool::Fail => {
                    return Plan::Unknown { tool_name: call.name.clone() };
                }
                None => &mut run,
            };
            list.push(call.id.clone());
        }
        Plan::Tools { run, manual, denied }
    }

    /// Whether a call that asks for approval would fail for its arguments: the model reads why, and no person is asked. A manual tool
    /// belongs to the caller.
    fn cannot_run(&self, call: &ToolCall, tool: &Tool) -> bool {
        let is_recorded = matches!(self.approval, Some(ApprovalPolicy::Recorded(_)));
        !is_recorded && !tool.spec().manual && tool.check_arguments(call).is_err()
    }

    /// Whether a call is run. The calls of manual tools wait like those that a person must approve.
    fn approval(&self, call: &ToolCall, tool: &Tool, answer: usize) -> Approval {
        match (tool.spec().approval, &self.approval) {
            (Approval::Deny, _) => Approval::Deny,
            _ if tool.spec().manual => Approval::Ask,
            (_, Some(policy)) => policy.decide(call, tool, answer),
            (own, None) => own,
        }
    }
}

impl RunState {
    pub(super) fn decide(&self, policy: &Policy) -> Action {
        // It is asked after each event of an answer, and other actions are large.
        if self.calling == Some(PendingModelCall::Now)
            && self.end.is_none()
            && self.exceeded.is_none()
        {
            return Action::CallModel;
        }
        let next = self.next(policy);
        if next == Action::StartTurn
            && let Some(view) = self.shorter_view(policy)
        {
            return match self.summarising {
                Some(_) => Action::Summarise(view),
                None if self.summarises(&view, policy) => Action::StartSummary(view),
                None => Action::Shorten(view),
            };
        }
        let Some(budget) = &policy.budget else { return next };
        let passed = match &next {
            Action::StartTurn => self.spent.passed_by_calling(budget, self.prompt(policy, 0)),
            Action::Finalize { nudge, .. } => {
                let more = nudge.as_ref().map_or(0, Message::size);
                self.spent.passed_by_calling(budget, self.prompt(policy, more))
            }
            Action::Announce { attempt: 1, .. } => {
                let left = self.open.as_ref().and_then(|turn| turn.unannounced());
                self.spent.passed_by_tools(budget, left.map_or(0, |(_, count)| count))
            }
            _ => None,
        };
        passed.map_or(next, Action::Exceed)
    }

    /// The tokens of the next prompt, as estimated, with so many more characters.
    pub(super) fn prompt(&self, policy: &Policy, more: u64) -> u64 {
        self.prompt_without(policy, self.view.left_out(), more)
    }

    /// The same if so many characters of the conversation are left out.
    pub(super) fn prompt_without(&self, policy: &Policy, left_out: u64, more: u64) -> u64 {
        // The call that formats the answer has no tools.
        let schemas = if self.conversation.is_some() { 0 } else { policy.schema_size };
        prompt_tokens(self.thread.messages.size().saturating_sub(left_out) + more, schemas)
    }

    /// What the next request shows of the conversation, if it must show less than it does now.
    fn shorter_view(&self, policy: &Policy) -> Option<ContextView> {
        let context = policy.context.as_ref()?;
        let tokens = |left_out| {
            self.measured.correct(self.prompt_without(policy, left_out, 0), policy.token)
        };
        match tokens(self.view.left_out()) > context.max_tokens {
            true => context.shorten(&self.thread.messages, &self.view, tokens),
            false => None,
        }
    }

    /// The request for a summary of what a view leaves out. It fits the window itself.
    pub(super) fn summary_request(&self, view: &ContextView, policy: &Policy) -> Option<Messages> {
        let context = policy.context.as_ref()?;
        let characters = self.measured.characters(context.max_tokens, policy.token);
        let characters = usize::try_from(characters).unwrap_or(usize::MAX);
        let (before, messages) = (&self.view, &self.thread.messages);
        (characters >= MIN_REQUEST)
            .then(|| view.to_summarise(before, messages, context, characters))
    }

    /// Whether what a view leaves out is summarised: that is wanted, there is something new, and the window and the budget have room for the
    /// call.
    fn summarises(&self, view: &ContextView, policy: &Policy) -> bool {
        let is_wanted = policy.context.as_ref().is_some_and(|context| context.summarise);
        let passed = |budget| self.spent.passed_by_calling(budget, self.prompt(policy, 0));
        is_wanted
            && self.extent == Extent::Chat
            && view.dropped > self.view.dropped
            && policy.budget.as_ref().and_then(passed).is_none()
            && self.summary_request(view, policy).is_some()
    }

    /// What a call may spend of the budget. Calls that start runs share what is left, also with those that wait for an answer: they
    /// continue later. A part never gets smaller when a call ends, so all parts together stay within what is left.
    pub(super) fn budget_left(&self, call: &ToolCall, policy: &Policy) -> Option<Budget> {
        let left = self.spent.left(policy.budget.as_ref()?);
        let delegates = |call: &ToolCall| {
            let tool = policy.tool(&call.name, self.conversation.is_some());
            tool.is_some_and(Tool::is_delegating)
        };
        if !delegates(call) {
            return Some(left);
        }
        let others = self.unfinished_calls().filter(|call| delegates(call));
        let ids: Vec<&str> = others.map(|call| call.id.as_str()).collect();
        let place = ids.iter().position(|id| *id == call.id).unwrap_or(0);
        Some(left.share(place, ids.len()))
    }

    /// What the model reads of its budget after the conversation.
    pub(super) fn budget_note(&self, policy: &Policy) -> Option<Message> {
        let budget = policy.budget.as_ref().filter(|_| policy.budget_note)?;
        let left = self.spent.left(budget);
        let counts = [
            (left.max_turns, "model calls"),
            (left.max_tool_calls, "tool calls"),
            (left.max_input_tokens, "input tokens"),
            (left.max_output_tokens, "output tokens"),
            (left.max_total_tokens, "tokens"),
        ];
        let counts =
            counts.into_iter().filter_map(|(left, what)| Some(format!("{} {what}", left?)));
        let dollars = left.max_usd.map(|usd| format!("${usd:.4}"));
        let left: Vec<String> = counts.chain(dollars).collect();
        (!left.is_empty()).then(|| {
            Message::user(format!("[Budget left after this answer: {}.]", left.join(", ")))
        })
    }

    /// The next action, regardless of budgets.
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
        match self.calling {
            Some(PendingModelCall::Now) => return Action::CallModel,
            Some(PendingModelCall::Lost) => return Action::LoseTurn,
            None => {}
        }
        if self.summarising == Some(PendingModelCall::Lost) {
            return Action::LoseTurn;
        }
        let crashes = self.crashes.count();
        if crashes > policy.max_crashes {
            return Action::Finish(end(HaltReason::CrashLoop, "crashes", json!(crashes)));
        }
        if let Some(conversation) = &self.conversation
            && let Some(error) = &conversation.failure
        {
            let mut end = conversation.end.clone();
            let told = json!({"pass_1_halted": end.reason, "pass_2_error": error});
            end.metadata.insert("structured_finalize".to_owned(), told);
            return Action::Finish(end);
        }
        if let Some(turn) = &self.open {
            return self.next_of_tools(turn, policy);
        }
        let Some(step) = self.steps_of_pass().last() else {
            // A call that was approved has halted; or one that asked is done, and others of its turn wait for approval.
            let halt = self.halt().filter(|_| self.conversation.is_none()).map(halted);
            let end = halt.or_else(|| self.waits_for_approval());
            let end = end.or_else(|| match self.extent {
                Extent::Chat => self.out_of_turns(policy),
                _ => None,
            });
            return end
                .map_or(Action::StartTurn, |end| Action::Finish(self.end_of_chat(end, policy)));
        };
        if self.extent != Extent::Chat {
            return Action::Finish(self.end_after(step).unwrap_or_else(completed));
        }
        let Some(end) = self.terminal(step, policy) else {
            return Action::StartTurn;
        };
        match &policy.finalize {
            Some(nudge) if self.conversation.is_none() && leads_to_finalize(&end.reason) => {
                let nudge = (!nudge.is_empty()).then(|| Message::user(nudge));
                Action::Finalize { conversation: end, nudge }
            }
            _ => Action::Finish(self.end_of_chat(end, policy)),
        }
    }

    /// What comes next while calls of a turn have no outcome. What may have run in a process that died is run again if
    /// that is harmless or wanted. The rest waits until the other calls are done.
    fn next_of_tools(&self, turn: &OpenTurn, policy: &Policy) -> Action {
        let announce = |planned: &PlannedCall| Action::Announce {
            call_id: planned.call.id.clone(),
            attempt: planned.attempt.saturating_add(1),
        };
        if let Some((first, _)) = turn.unannounced() {
            return announce(first);
        }
        let runs_again = |planned: &&PlannedCall| {
            let tool = policy.tool(&planned.call.name, self.conversation.is_some());
            planned.approved || reruns_lost(tool, self.on_uncertain)
        };
        if let Some(planned) = turn.lost().find(runs_again) {
            return announce(planned);
        }
        if turn.runs() {
            return Action::RunTools;
        }
        if let Some(first) = turn.sleeping().map(|(_, until)| until).min() {
            return Action::Sleep(first);
        }
        match self.on_uncertain {
            OnUncertain::Fail => match turn.lost().next() {
                Some(planned) => Action::GiveUp(Arc::clone(&planned.call)),
                None => Action::RunTools,
            },
            _ => {
                let end = End::uncertain(turn.lost().map(|lost| lost.call.id.as_str()));
                let edited = turn.lost().filter(|lost| lost.edited).map(|lost| &*lost.call);
                Action::Finish(end.with_edited(edited))
            }
        }
    }

    /// The end of a chat. If the answer is formatted, it keeps how the conversation ended.
    pub(super) fn end_of_chat(&self, mut end: End, policy: &Policy) -> End {
        if policy.finalize.is_some() {
            // A stop before the formatting call does not end the conversation a second time.
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
            HaltWhen::Function(condition) => condition(step),
            HaltWhen::After(steps) => *steps == Some(self.steps.len()),
        });
        if halts {
            return Some(end(
                HaltReason::HaltWhen,
                "halt_when_step_index",
                json!(self.step_index()),
            ));
        }
        self.out_of_turns(policy)
    }

    /// The end of a conversation that has had all its turns. A model call that was lost with its
    /// process was one; the call that formats the answer is made again.
    fn out_of_turns(&self, policy: &Policy) -> Option<End> {
        let (max_turns, lost) = match self.conversation {
            Some(_) => (1, 0),
            None => (policy.max_turns, self.lost_turns),
        };
        let turns = self.steps_of_pass().len() + lost;
        (turns >= max_turns as usize && turns > 0)
            .then(|| end(HaltReason::MaxTurns, "max_turns", json!(max_turns)))
    }

    /// How a step itself ends or suspends the run; none if the model is called again.
    fn end_after(&self, step: &StepResult) -> Option<End> {
        if let Some(halt) = self.halt() {
            return Some(halted(halt));
        }
        let nothing = Plan::Nothing;
        let plan = self.last.as_ref().map_or(&nothing, |last| &last.plan);
        match plan {
            Plan::Unknown { tool_name } => {
                return Some(failed(Error::unknown_tool(tool_name).to_value()));
            }
            Plan::Manual => return Some(manual(self.step_index(), Vec::new())),
            _ => {}
        }
        if let Some(end) = self.waits_for_approval() {
            return Some(end);
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

    /// The end of a run whose last turn has calls that wait for approval.
    fn waits_for_approval(&self) -> Option<End> {
        let (last, step) = (self.last.as_ref()?, self.steps.last()?);
        let calls = manual_calls(&last.plan, &step.response);
        let listed = vec![("manual_tool_calls", json!(calls))];
        (!calls.is_empty()).then(|| manual(self.step_index(), listed))
    }

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

/// The end of a run that a tool halted, with the error where it failed.
fn halted(halt: &Halt) -> End {
    if halt.handoff().is_some() {
        return end(HaltReason::Completed, "handoff_tool_call_id", json!(halt.tool_call_id()));
    }
    let mut end = End::new(halt.reason(), halt.details());
    if let Halt::Tool { reason: HaltReason::ToolError, result, .. } = halt {
        end.metadata.insert("error".to_owned(), result.clone());
    }
    end
}

fn completed() -> End {
    End::new(HaltReason::Completed, Metadata::new())
}

pub(super) fn failed(error: Value) -> End {
    end(HaltReason::Error, "error", error)
}

fn manual(index: usize, more: Vec<(&str, Value)>) -> End {
    let mut end = end(HaltReason::ManualToolCalls, "manual_turn_index", json!(index));
    end.metadata.extend(more.into_iter().map(|(key, value)| (key.to_owned(), value)));
    end
}
