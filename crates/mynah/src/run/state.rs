//! What a run knows: a fold of its facts.

mod ending;

use std::sync::Arc;

use mynah_data::{
    ASK_USER_SENTINEL, Breach, CUT_SHORT, Error, Halt, HaltReason, Message, Messages, Response,
    Role, RunId, StepResult, Thread, ToolCall, ToolOutcome, Wait,
};
use mynah_log::{
    About, BEHAVIOUR, End, Extent, Fact, Interruption, OnUncertain, Plan, Resolution,
    SUMMARY_STARTED,
};
use mynah_step::{Continuation, Crashes, Spent, Try, uncertain};
use serde_json::{Value, json};

pub(crate) use self::ending::interrupted;
pub(super) use self::ending::{interruption, manual_calls, plan_mode};
use super::open_turn::{ClosedTurn, OpenTurn, PlannedCall};
use crate::context_policy::{ContextView, Measured, place, summary_in};

/// Everything a run may base a decision on.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunState {
    pub(crate) extent: Extent,
    pub(crate) thread: Thread,
    pub(super) steps: Vec<StepResult>,
    /// The result of the conversation, while the answer is being formatted.
    pub(super) conversation: Option<Box<Conversation>>,
    /// A model call that was started and has no answer yet.
    pub(super) calling: Option<PendingModelCall>,
    /// A call for a summary that was started and has no answer yet.
    pub(super) summarising: Option<PendingModelCall>,
    /// The turn whose tools are not all done.
    pub(super) open: Option<Box<OpenTurn>>,
    /// How the last completed step went, beyond what its result says.
    pub(super) last: Option<Box<ClosedTurn>>,
    pub(super) end: Option<End>,
    /// The limit that was passed, and the error for the caller of a single call.
    pub(super) exceeded: Option<(Breach, Error)>,
    pub(super) spent: Spent,
    /// What happens with calls whose outcome is unknown.
    pub(super) on_uncertain: OnUncertain,
    /// How often the model call in flight failed before the run waited to make it again.
    pub(super) attempts: u32,
    /// How many model calls of the conversation were lost with their process.
    pub(super) lost_turns: usize,
    /// How often the process died since the run last made progress.
    pub(super) crashes: Crashes,
    /// How often messages were changed other than by appending to them.
    pub(super) rewrites: u32,
    /// What requests show of the conversation.
    pub(super) view: ContextView,
    pub(super) measured: Measured,
    /// Runs of its agents that have no end.
    pub(crate) sub_runs: Vec<RunId>,
    /// What the model had said when the run was cut off.
    partial: Option<Box<Response>>,
    /// What the run runs with.
    about: Option<Box<About>>,
    /// The calls that were answered in place of a tool.
    repaired: Vec<String>,
    /// The calls of the last turn that may have run in a process that died, and got no outcome.
    unknown: Vec<Arc<ToolCall>>,
    /// The number of steps when the run last continued after waiting. Limits are counted from
    /// there, as in a separate call.
    answered_at: usize,
    /// The number of steps when a separate call last continued the run. Its result has those that
    /// follow.
    called_at: usize,
}

/// The member of an end that says how often a model call failed which is made again later.
pub(super) const ATTEMPTS: &str = "attempts";

/// A model call without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PendingModelCall {
    /// It is in flight.
    Now,
    /// Its process died.
    Lost,
}

/// A conversation that ended before the chat did.
#[derive(Clone, Debug)]
pub(super) struct Conversation {
    pub(super) end: End,
    thread: Thread,
    steps: usize,
    /// Why the answer could not be formatted.
    pub(super) failure: Option<Error>,
}

impl RunState {
    /// The state before the first fact: the conversation that the run continues.
    pub(crate) fn new(before: Messages) -> Self {
        let mut state = Self::default();
        state.thread.messages = before;
        state
    }

    /// Takes in one more fact. Never fails on facts that a run produced.
    pub(crate) fn evolve(&mut self, fact: Fact) {
        self.spent.evolve(&fact);
        self.crashes.evolve(&fact);
        match fact {
            Fact::RunStarted { thread, extent, about } => {
                self.begin(thread, extent);
                let previous =
                    about.as_ref().and_then(|about| about.session.as_ref()?.previous.as_ref());
                if let Some(left_out) = previous.and_then(|previous| previous.left_out.clone()) {
                    self.view = ContextView::carried(&self.thread.messages, left_out);
                }
                self.about = about;
            }
            Fact::Resumed {
                message,
                tool_results,
                approved,
                edited,
                rejected,
                given_up,
                request_id,
                extent,
                about,
                on_uncertain,
                after,
            } => {
                // A turn of a session continues its conversation, prompt included.
                if let Some(about) = about.as_ref().filter(|_| request_id.is_none()) {
                    self.change_prompt(about);
                }
                self.about = about.or(self.about.take());
                self.on_uncertain = on_uncertain;
                self.extent = extent.unwrap_or(self.extent);
                // A run that waited was not cut off.
                if self.end.is_none() {
                    if after != Interruption::Branch {
                        self.calling = self.calling.map(|_| PendingModelCall::Lost);
                        self.summarising = self.summarising.map(|_| PendingModelCall::Lost);
                    }
                    self.open.iter_mut().for_each(|turn| turn.lose());
                }
                if request_id.is_some() {
                    self.called_at = self.steps.len();
                }
                let given =
                    tool_results.into_iter().map(|(id, text)| Message::tool_result(id, text));
                let error = |(id, why): (String, String)| {
                    Message::tool_error(id, json!({"error": why}).to_string())
                };
                let rejected = rejected.into_iter().map(|(id, why)| (id, rejection(&why)));
                let given_up = self.last_calls().filter(|call| given_up.contains(&call.id));
                let given_up = given_up.map(|call| (call.id.clone(), uncertain(call).to_string()));
                let results = given.chain(rejected.chain(given_up).map(error)).collect();
                self.resume(message, results, approved, edited);
            }
            Fact::UserMessage { message } => self.hear_person(message),
            Fact::TurnStarted { input_tokens, .. } => {
                self.attempts = 0;
                self.measured.estimate(input_tokens);
                (self.calling, self.summarising) = (Some(PendingModelCall::Now), None);
            }
            // A summary is no turn of the conversation.
            Fact::TurnLost { .. } => {
                self.lost_turns += usize::from(self.summarising.take().is_none());
                self.calling = None;
            }
            Fact::FinalizeStarted { conversation, nudge } => self.finalize(conversation, nudge),
            Fact::FinalizeFailed { error } => {
                self.calling = None;
                if let Some(conversation) = &mut self.conversation {
                    self.thread = conversation.thread.clone();
                    self.rewrites += 1;
                    conversation.failure = Some(error);
                }
            }
            Fact::AssistantCompleted { response, plan, .. } => {
                self.measured.report(response.usage.input_tokens);
                self.answer(*response, plan);
            }
            Fact::ToolScheduled { call_id, attempt, .. } => self.announce(&call_id, attempt),
            Fact::ToolFailed { call_id, resolution: Resolution::Retried, .. } => {
                self.planned_mut(&call_id).into_iter().for_each(|call| call.failed += 1);
            }
            // The run was stopped while it ran: its end follows.
            Fact::ToolFailed { resolution: Resolution::CutOff, .. } => {}
            Fact::ToolCompleted { call_id, outcome, content, .. } => {
                self.tool_completed(call_id, outcome, content);
            }
            Fact::ToolFailed { call_id, error, resolution, content, .. } => {
                self.tool_failed(call_id, &error, resolution, content);
            }
            Fact::BudgetExceeded { breach, partial, .. } => {
                let answered = self.open.as_ref().map(|turn| &turn.response);
                let error = Error::budget_exceeded(&breach, partial.as_deref().or(answered));
                self.exceeded = Some((breach, error));
                self.cut_off(partial.map(|response| *response));
            }
            Fact::Suspended(end) | Fact::Completed(end) | Fact::Failed(end) => {
                let attempts =
                    end.metadata.get(ATTEMPTS).and_then(Value::as_u64).unwrap_or_default();
                self.attempts = u32::try_from(attempts).unwrap_or(u32::MAX);
                self.finish(end);
            }
            Fact::Cancelled { end, partial, .. } => {
                self.cancel(end, partial.map(|response| *response))
            }
            Fact::ContextTruncated { dropped, cleared, summary, .. } => {
                let (before, messages) = (std::mem::take(&mut self.view), &self.thread.messages);
                let view = ContextView::new(messages, place(dropped), place(cleared), before);
                self.view = match summary_in(summary.as_deref()) {
                    Some(summary) => view.summarised(&summary.text()),
                    None => view,
                };
                self.summarising = None;
            }
            Fact::SideEffect { inside: None, name, .. } if name == SUMMARY_STARTED => {
                self.summarising = Some(PendingModelCall::Now);
            }
            // What tools and loops take from the world decides nothing here, but for the runs that they start.
            fact @ Fact::SideEffect { .. } => {
                if let Some((run, ended)) = fact.sub_run() {
                    self.sub_runs.retain(|known| known != run);
                    self.sub_runs.extend((!ended).then(|| RunId::from(run)));
                }
            }
            // These belong to other runs.
            Fact::Sealed(_) | Fact::Removed(_) => {}
        }
    }

    /// Appends the run's own messages to the conversation that it continues.
    fn begin(&mut self, thread: Thread, extent: Extent) {
        self.extent = extent;
        if self.thread.messages.is_empty() {
            self.thread = thread;
        } else {
            self.thread.extend(thread.messages.since(0).cloned());
            self.thread.metadata = thread.metadata;
        }
    }

    /// Puts the system prompt of another engine in the place of the one before. A conversation keeps a prompt of its own.
    fn change_prompt(&mut self, about: &About) {
        let before = self.about.as_deref().and_then(About::system_prompt);
        let prompt = about.system_prompt();
        let messages = &self.thread.messages;
        let has_prompt = self.about.as_ref().is_some_and(|about| about.prompts(messages));
        let has_own = !has_prompt && messages.iter().any(|it| it.role() == Role::System);
        if prompt == before || has_own || has_prompt != before.is_some() {
            return;
        }
        let prompted = |thread: &mut Thread| {
            let rest = thread.messages.iter().skip(usize::from(has_prompt)).cloned();
            let first = prompt.map(|prompt| Arc::new(Message::system(prompt)));
            thread.messages = first.into_iter().chain(rest).collect();
        };
        prompted(&mut self.thread);
        self.conversation.iter_mut().for_each(|it| prompted(&mut it.thread));
        // Its places are those of the messages before.
        if has_prompt != prompt.is_some() {
            self.view = ContextView::default();
        }
        self.rewrites += 1;
    }

    fn finalize(&mut self, end: End, nudge: Option<Arc<Message>>) {
        self.repaired = self.repair(CUT_SHORT);
        let (thread, steps) = (self.thread.clone(), self.steps.len());
        let conversation = Conversation { end, thread, steps, failure: None };
        self.conversation = Some(Box::new(conversation));
        self.thread.extend(nudge);
    }

    fn tool_completed(&mut self, call_id: String, outcome: ToolOutcome, content: String) {
        let mut parts = None;
        let halt = match outcome {
            ToolOutcome::Parts(given) => {
                parts = Some(given);
                None
            }
            ToolOutcome::AskUser { question, opts } => {
                Some(Halt::AskUser { tool_call_id: call_id.clone(), question, opts })
            }
            ToolOutcome::Later { wait: Wait::UntilMs(time), state } => {
                return self.sleep(&call_id, time, state);
            }
            ToolOutcome::Halt { reason, result } => {
                Some(Halt::Tool { tool_call_id: call_id.clone(), reason, result, exception: None })
            }
            _ => None,
        };
        let message = match (&halt, parts) {
            (Some(Halt::AskUser { .. }), _) => Message::tool_result(call_id, ASK_USER_SENTINEL),
            (_, Some(parts)) => Message::tool_parts(call_id, parts),
            _ => Message::tool_result(call_id, content),
        };
        self.settle(message, halt);
    }

    fn sleep(&mut self, call_id: &str, until: u64, state: Option<Value>) {
        let Some(call) = self.planned_mut(call_id) else { return };
        call.sleeps_until = Some(until);
        if let Some(state) = state {
            call.continuation = Some(Arc::new(Continuation::new(state, None)));
        }
        self.open.iter_mut().for_each(|turn| turn.sleeping += 1);
    }

    fn tool_failed(
        &mut self,
        call_id: String,
        error: &Error,
        resolution: Resolution,
        content: String,
    ) {
        let message = match resolution {
            Resolution::Replaced(_) => Message::tool_result(&*call_id, content),
            _ => Message::tool_error(&*call_id, content),
        };
        let halt = match resolution {
            Resolution::Halted { exception } => Some(Halt::Tool {
                tool_call_id: call_id,
                reason: HaltReason::ToolError,
                result: error.to_value(),
                exception,
            }),
            _ => None,
        };
        self.settle(message, halt);
    }

    /// Continues after waiting: with a person's answer, or with outcomes of the calls that it
    /// waited for.
    fn resume(
        &mut self,
        message: Option<Arc<Message>>,
        results: Vec<Message>,
        approved: Vec<String>,
        edited: Vec<(String, String)>,
    ) {
        // Reporting an unknown outcome does not begin another conversation.
        let waited = self.end.take();
        if let (Some(HaltReason::AskUser), Some(answer)) =
            (waited.as_ref().map(|end| &end.reason), &message)
            && let Some(last) = self
                .last
                .take_if(|last| last.halt.as_ref().is_some_and(|halt| halt.continues().is_some()))
        {
            self.begin_anew();
            return self.continue_call(*last, answer.text().into_owned());
        }
        if waited.is_some_and(|end| !end.is_in_a_turn()) {
            self.begin_anew();
        }
        if self.open.is_some() {
            for id in &approved {
                self.planned_mut(id).into_iter().for_each(|call| call.approved = true);
            }
        } else if let (false, Some(step)) = (approved.is_empty(), self.steps.last()) {
            // What is given waits for what is run, so that both join the thread in the order of the calls.
            let is_given = |id| results.iter().any(|result| result.tool_call_id() == Some(id));
            let ids = step.response.tool_calls().map(|call| &call.id);
            let run = ids.filter(|id| approved.contains(id) || is_given(id)).cloned().collect();
            let plan = Plan::Tools { run, manual: Vec::new(), denied: Vec::new() };
            let mut turn = OpenTurn::new(step.response.clone(), plan, true);
            turn.calls.iter_mut().for_each(|call| call.permitted = true);
            self.open = Some(Box::new(turn));
        }
        for (id, arguments) in edited {
            if let Some(planned) = self.planned_mut(&id) {
                planned.call = Arc::new(planned.call.with_arguments(arguments));
                planned.edited = true;
            }
        }
        for result in results {
            let id = result.tool_call_id().unwrap_or_default();
            match &self.open {
                Some(turn) if turn.call(id).is_some() => self.settle(result, None),
                _ => self.thread.messages.push(result),
            }
        }
        self.close_if_settled();
        self.thread.extend(message);
    }

    /// Continues a call that asked a person. Neither the question nor the answer stays in the conversation: the call's result will. The other
    /// calls that halted, and those that wait for approval, come after it.
    fn continue_call(&mut self, last: ClosedTurn, answer: String) {
        let Some(response) = self.steps.last().map(|step| step.response.clone()) else { return };
        let manual = last.manual().to_vec();
        let run: Vec<String> = last.halted.iter().map(|halted| halted.call.id.clone()).collect();
        let messages = &self.thread.messages;
        let is_turn = |(_, message): &(usize, &Arc<Message>)| **message == response.message;
        let turn = messages.iter().enumerate().filter(is_turn).last().map_or(0, |(place, _)| place);
        let is_open = |id: &str| run.iter().chain(&manual).any(|open| open == id);
        let is_kept = |(place, message): &(usize, &Arc<Message>)| {
            let asked = message.metadata().contains_key("ask_user");
            *place <= turn || !(asked || message.tool_call_id().is_some_and(is_open))
        };
        let kept = messages.iter().enumerate().filter(is_kept);
        self.thread.messages = kept.map(|(_, message)| Arc::clone(message)).collect();
        self.rewrites += 1;
        let mut turn =
            OpenTurn::new(response, Plan::Tools { run, manual, denied: Vec::new() }, true);
        for halted in last.halted {
            let place = turn.place(&halted.call.id);
            let Some(call) = place.and_then(|place| turn.calls.get_mut(place)) else { continue };
            let asked = last.halt.as_ref().filter(|halt| halt.tool_call_id() == halted.call.id);
            let Some(state) = asked.and_then(Halt::continues).cloned() else {
                *call = halted;
                turn.unsettled -= 1;
                continue;
            };
            // It is announced as a further attempt, as one is that a person allowed to run again.
            let continuation = Some(Arc::new(Continuation::new(state, Some(answer.clone()))));
            *call =
                PlannedCall { continuation, lost: true, approved: true, settled: None, ..halted };
            turn.lost += 1;
        }
        turn.pass_announced();
        self.open = Some(Box::new(turn));
    }

    /// The runs of agents that end with this one: it was cancelled, or its deadline passed.
    pub(super) fn runs_to_end(&self) -> &[RunId] {
        match self.end.as_ref().map(|end| &end.reason) {
            Some(HaltReason::Cancelled | HaltReason::Deadline) => &self.sub_runs,
            _ => &[],
        }
    }

    pub(super) fn continuation_of(&self, id: &str) -> Option<Arc<Continuation>> {
        self.planned(id)?.continuation.clone()
    }

    /// Continues with a message of a person while the run did not wait.
    fn hear_person(&mut self, message: Arc<Message>) {
        self.calling = None;
        self.begin_anew();
        self.repaired = self.repair(CUT_SHORT);
        self.thread.messages.push(message);
    }

    /// A halt that was answered is not a reason to halt again, and what follows is a conversation of its own.
    fn begin_anew(&mut self) {
        self.last = None;
        self.conversation = None;
        self.answered_at = self.steps.len();
        self.lost_turns = 0;
        self.repaired.clear();
    }

    /// The result of the last step since the run last continued after waiting.
    pub(crate) fn last_step(&self) -> Option<&StepResult> {
        self.steps_since_answer().last()
    }

    /// The calls of the turn whose tools are not all done.
    pub(super) fn open_calls(&self) -> impl Iterator<Item = &Arc<ToolCall>> {
        self.open.iter().flat_map(|turn| turn.response.message.shared_tool_calls())
    }

    /// The calls of the last answer, whether or not its turn is over.
    fn last_calls(&self) -> impl Iterator<Item = &Arc<ToolCall>> {
        let open = self.open.as_ref().map(|turn| &turn.response);
        let answer = open.or_else(|| self.steps.last().map(|step| &step.response));
        answer.into_iter().flat_map(|answer| answer.message.shared_tool_calls())
    }

    /// Whether an engine made its facts whose behaviour this version knows. A user's loop may run its calls by other rules.
    pub(crate) fn is_of_this_loop(&self) -> bool {
        self.about.as_ref().is_some_and(|about| !about.is_bare() && about.behaviour <= BEHAVIOUR)
    }

    /// The calls that may have run in a process that died, and have no outcome; and whether a person changed their arguments.
    pub(crate) fn left_open(&self) -> Vec<(Arc<ToolCall>, bool)> {
        let mut open = self.open.clone();
        open.iter_mut().for_each(|turn| turn.lose());
        open.iter()
            .flat_map(|turn| turn.lost())
            .map(|call| (Arc::clone(&call.call), call.edited))
            .collect()
    }

    pub(crate) fn approved_calls(&self) -> impl Iterator<Item = &Arc<ToolCall>> {
        let calls = self.open.iter().flat_map(|turn| &turn.calls);
        calls.filter(|call| call.permitted && call.settled.is_none()).map(|planned| &planned.call)
    }

    /// The attempt of a call that was announced last.
    pub(super) fn attempt_of(&self, id: &str) -> Try {
        let planned = self.planned(id);
        planned.map_or(Try::FIRST, |call| Try::new(call.attempt, call.failed))
    }

    /// Whether the call at this place in the open turn must be started: it is announced, and has no
    /// outcome.
    pub(super) fn startable(&self, place: usize) -> Option<&PlannedCall> {
        let call = self.open.as_ref()?.calls.get(place)?;
        (call.settled.is_none() && !call.lost && call.sleeps_until.is_none()).then_some(call)
    }

    /// The calls that wait for the time of their next attempt, and that time.
    pub(super) fn sleeping(&self) -> impl Iterator<Item = (&str, u64)> {
        let calls = self.open.iter().flat_map(|turn| turn.sleeping());
        calls.map(|(planned, until)| (planned.call.id.as_str(), until))
    }

    /// The calls of the open turn that have no result: they run, will run, or asked a person.
    pub(super) fn unfinished_calls(&self) -> impl Iterator<Item = &ToolCall> {
        let is_unfinished = |call: &&PlannedCall| match &call.settled {
            None => true,
            Some((_, halt)) => matches!(halt, Some(Halt::AskUser { .. })),
        };
        let calls = self.open.iter().flat_map(|turn| &turn.calls).filter(is_unfinished);
        calls.map(|planned| &*planned.call)
    }

    pub(super) fn call(&self, id: &str) -> Option<&Arc<ToolCall>> {
        self.planned(id).map(|planned| &planned.call)
    }

    /// The turn of the calls that run or wait. The step of calls that wait for a person is there already.
    pub(crate) fn turn_of_calls(&self) -> u64 {
        (self.steps.len() - usize::from(self.open.is_none() || self.runs_approved())) as u64
    }

    /// Whether the calls that are run are those that waited for a person's leave.
    pub(super) fn runs_approved(&self) -> bool {
        self.open.as_ref().is_some_and(|turn| turn.approved)
    }

    pub(super) fn planned(&self, id: &str) -> Option<&PlannedCall> {
        self.open.as_ref()?.call(id)
    }

    fn planned_mut(&mut self, id: &str) -> Option<&mut PlannedCall> {
        let turn = self.open.as_mut()?;
        let place = turn.place(id)?;
        turn.calls.get_mut(place)
    }

    pub(super) fn halt(&self) -> Option<&Halt> {
        self.last.as_ref()?.halt.as_ref()
    }

    pub(super) fn steps_since_answer(&self) -> &[StepResult] {
        self.steps.get(self.answered_at..).unwrap_or_default()
    }

    /// The steps since a separate call last continued the run.
    pub(super) fn steps_of_call(&self) -> &[StepResult] {
        &self.steps[self.called_at..]
    }

    /// The steps of the conversation, or of what follows it.
    pub(super) fn steps_of_pass(&self) -> &[StepResult] {
        let began = self.conversation.as_ref().map_or(0, |conversation| conversation.steps);
        &self.steps[began.max(self.answered_at)..]
    }

    fn answer(&mut self, response: Response, plan: Plan) {
        self.calling = None;
        // A call that failed or was cut off before it said anything leaves nothing: an empty message would spoil the
        // next request.
        let message = &response.message;
        let cut = response.error().is_some() || message.metadata().contains_key("partial");
        if !cut || !message.parts().is_empty() {
            self.thread.messages.push(Arc::clone(&response.message));
        }
        self.open = Some(Box::new(OpenTurn::new(response, plan, false)));
        self.close_if_settled();
    }

    fn announce(&mut self, call_id: &str, attempt: u32) {
        let Some(call) = self.planned_mut(call_id) else { return };
        call.attempt = attempt;
        call.approved = false;
        let was_lost = std::mem::take(&mut call.lost);
        if let Some(turn) = &mut self.open {
            turn.lost -= usize::from(was_lost);
            if let Some(place) = turn.place(call_id) {
                turn.wake(place);
            }
            turn.pass_announced();
        }
    }

    /// Takes in what the model reads of a call.
    fn settle(&mut self, message: Message, halt: Option<Halt>) {
        let call = self.planned_mut(message.tool_call_id().unwrap_or_default());
        if let Some(call) = call.filter(|call| call.settled.is_none()) {
            call.settled = Some((Arc::new(message), halt));
            let was_lost = std::mem::take(&mut call.lost);
            let slept = call.sleeps_until.take().is_some();
            if let Some(turn) = &mut self.open {
                turn.unsettled -= 1;
                turn.lost -= usize::from(was_lost);
                turn.sleeping -= usize::from(slept);
                turn.pass_announced();
            }
        }
        self.close_if_settled();
    }

    /// Answers calls that were left without a result, and names them.
    fn repair(&mut self, why: &str) -> Vec<String> {
        let unknown = std::mem::take(&mut self.unknown);
        let repaired = self.thread.messages.repair_with(|id| {
            let call = unknown.iter().find(|call| call.id == id);
            call.map_or_else(|| why.to_owned(), |call| uncertain(call).to_string())
        });
        self.rewrites += u32::from(!repaired.is_empty());
        repaired
    }

    fn close_if_settled(&mut self) {
        if self.open.as_ref().is_some_and(|turn| turn.unsettled == 0) {
            self.close(None);
        }
    }
}

fn rejection(why: &str) -> String {
    match why {
        "" => "a person rejected the call".to_owned(),
        why => format!("a person rejected the call: {why}"),
    }
}
