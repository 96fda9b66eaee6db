//! The decision maker of a run: inputs in; facts, events and the next action out. No async, no I/O, no clock.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use mynah_data::{
    ASK_USER_SENTINEL, ChatResult, Error, Event, HaltReason, Message, Messages, Response, RunId,
    StepThread, ToolCall,
};
use mynah_log::{Effect, End, Extent, Fact, Hash, Plan, Resolution, SUMMARY_STARTED, cbor};
use mynah_step::{IncomingAnswer, Journal, OnToolError, Settled, prompt_tokens, settle, uncertain};
use serde_json::json;

use super::{
    Setup,
    decide::{Action, failed},
    input::Input,
    part_writer::PartWriter,
    progress::LatestProgress,
    state::{RunState, interrupted, interruption, manual_calls, plan_mode},
    tell::tell,
};
use crate::context_policy::{ContextView, summary_in};
use crate::in_flight::{Flight, InFlight};

/// The decision maker of a run.
///
/// [`handle`](Machine::handle) and [`perform`](Machine::perform) turn an input or an action into facts.
/// [`take_in`](Machine::take_in) folds a committed fact into the state and queues the events that it causes.
/// [`decide`](Machine::decide) returns what comes next; every end of a run is an action that it returns.
pub(super) struct Machine {
    pub(super) setup: Box<Setup>,
    /// What engines have that take over later, in a replay.
    later: VecDeque<Setup>,
    pub(super) state: RunState,
    /// Events that are made and not yet handed out.
    pub(super) events: VecDeque<Event>,
    /// Whether anyone sees the events of steps and tools; otherwise they are not made.
    pub(super) watched: bool,
    recorded: bool,
    prompt: PromptDigest,
    /// The answer in flight.
    hearing: Option<Box<IncomingAnswer>>,
    /// Where it is shared with readers in this process.
    flight: Option<Flight>,
    /// How many calls are in flight.
    running: usize,
    /// Where to look for the next call to start.
    next_call: usize,
    /// Why the run ends, where no fact says it.
    stop: Option<Box<Stop>>,
    /// The result of a single step, until its records are durable.
    held: Option<Box<Event>>,
}

/// A reason to end a run that no fact holds.
enum Stop {
    /// The model could not be reached.
    NotOpened(Error),
    /// The caller or a deadline stopped the run. A recorded stop has its end.
    Interrupted(HaltReason, Option<End>),
    /// A time has not come, and the run does not wait for it in this process.
    Parked(End),
}

impl Machine {
    /// A run in this state that a setup has, and others take over from it.
    pub(super) fn new(
        setup: Setup,
        later: VecDeque<Setup>,
        before: usize,
        state: RunState,
        recorded: bool,
    ) -> Self {
        Self {
            setup: Box::new(setup),
            later,
            state,
            events: VecDeque::new(),
            watched: true,
            recorded,
            prompt: PromptDigest::new(before),
            hearing: None,
            flight: None,
            running: 0,
            next_call: 0,
            stop: None,
            held: None,
        }
    }

    /// Shares the answers of a recorded run, if that is wanted. Returns the writer that keeps them in the log, if that is.
    pub(super) fn share(&mut self, journal: Option<&Arc<Journal>>) -> Option<PartWriter> {
        let journal = journal?;
        let keeps = self.setup.durable_events;
        let all = self.setup.in_flight.clone().or_else(|| keeps.then(InFlight::new))?;
        let flight = self.flight.insert(all.open(journal.run_id()));
        keeps.then(|| PartWriter::new(Arc::clone(journal), flight.subscribe()))
    }

    /// Where tools report their progress.
    pub(super) fn progress(&self) -> LatestProgress {
        let progress = LatestProgress::default();
        if let Some(flight) = &self.flight {
            progress.share(flight.reports());
        }
        progress
    }

    pub(super) fn shows_progress(&self) -> bool {
        self.watched || self.flight.is_some()
    }

    pub(super) fn decide(&self) -> Action {
        let policy = &self.setup.policy;
        match self.stop.as_deref() {
            None => self.state.decide(policy),
            Some(Stop::NotOpened(why)) => {
                let end = failed(why.to_value());
                Action::Refuse(self.state.end_of_chat(end, policy), why.clone())
            }
            Some(Stop::Interrupted(_, Some(end))) => Action::Cancel(end.clone()),
            Some(Stop::Interrupted(reason, None)) => {
                let end = interrupted(self.state.extent, reason.clone());
                Action::Cancel(self.state.end_of_chat(end, policy))
            }
            Some(Stop::Parked(end)) => Action::Finish(end.clone()),
        }
    }

    /// The facts that an action produces without an input.
    pub(super) fn perform(&mut self, action: Action) -> Vec<Fact> {
        match action {
            Action::StartTurn => {
                let messages = &self.state.thread.messages;
                let digest = &mut self.prompt;
                let prompt = self.recorded.then(|| digest.of(messages, self.state.rewrites));
                let (turn, input_tokens) = (self.turn(), self.state.prompt(&self.setup.policy, 0));
                vec![Fact::TurnStarted { turn, prompt, input_tokens }]
            }
            Action::Shorten(view) => vec![self.shorten(view, None)],
            Action::StartSummary(view) => {
                let request = self.state.summary_request(&view, &self.setup.policy);
                let size = request.map_or(0, |messages| messages.size());
                let effect = Effect::Done(json!({"input_tokens": prompt_tokens(size, 0)}));
                let name = SUMMARY_STARTED.to_owned();
                vec![Fact::SideEffect { inside: None, name, ahead: 0, effect }]
            }
            Action::LoseTurn => vec![self.lost_turn()],
            Action::Finalize { conversation, nudge } => {
                vec![Fact::FinalizeStarted { conversation, nudge: nudge.map(Arc::new) }]
            }
            Action::Announce { call_id, attempt } => {
                vec![Fact::ToolScheduled { call_id, attempt, call: None }]
            }
            Action::GiveUp(call) => {
                let attempts = self.state.attempt_of(&call.id).number;
                vec![self.settled(&call, Settled::new(Err(uncertain(&call)), attempts))]
            }
            Action::Exceed(breach) => self.handle(Input::LimitReached(breach)),
            Action::Finish(end) | Action::Refuse(end, _) => vec![end.into_fact()],
            Action::Cancel(end) => {
                let (partial, cuts) = self.cut_off();
                vec![Fact::Cancelled { end, partial, cuts }]
            }
            Action::CallModel
            | Action::RunTools
            | Action::Sleep(_)
            | Action::Summarise(_)
            | Action::Stop => Vec::new(),
        }
    }

    /// The fact that requests show only this of the conversation from now on.
    fn shorten(&self, mut view: ContextView, summary: Option<Box<Response>>) -> Fact {
        let (before, messages) = (&self.state.view, &self.state.thread.messages);
        let made = summary_in(summary.as_deref());
        let strategy = match made {
            Some(_) => "summarise",
            None if view.dropped > before.dropped => "drop",
            None => "clear_tool_results",
        };
        if let Some(summary) = made {
            view = view.summarised(&summary.text());
        }
        let tokens =
            |view: &ContextView| self.state.prompt_without(&self.setup.policy, view.left_out(), 0);
        let shown = |view: &ContextView| view.of(messages).len() as u64;
        Fact::ContextTruncated {
            strategy: strategy.to_owned(),
            tokens_before: tokens(before),
            tokens_after: tokens(&view),
            messages_before: shown(before),
            messages_after: shown(&view),
            dropped: view.dropped as u64,
            cleared: view.cleared as u64,
            summary,
        }
    }

    pub(super) fn handle(&mut self, input: Input) -> Vec<Fact> {
        match input {
            Input::ModelEvent(event) => {
                let (event, facts) = self.hear(event);
                self.events.push_back(event);
                facts
            }
            Input::ModelEnded(ended) => self.model_ended(ended),
            Input::ToolFinished { call, settled } => vec![self.settled(&call, settled)],
            Input::Recorded(fact) => {
                self.take_in(*fact);
                Vec::new()
            }
            Input::Resumed(fact) => {
                self.hearing = None;
                self.running = 0;
                vec![*fact]
            }
            Input::Said(message) => vec![Fact::UserMessage { message }],
            Input::Interrupted { reason, end } => {
                if let Some(error) = interruption(self.state.extent, &reason) {
                    // A single call that is stopped before it began ends like one that was being opened.
                    if self.state.open.is_none() {
                        let hearing = self.hearing.get_or_insert_default();
                        if !hearing.has_completed() {
                            hearing.fail(error.clone());
                        }
                    }
                    self.events.push_back(Event::Error { error });
                }
                if let Some((_, false)) = &end {
                    self.hearing = None;
                }
                let stop = Stop::Interrupted(reason, end.map(|(end, _)| end));
                self.stop = Some(Box::new(stop));
                self.lost_summary().into_iter().collect()
            }
            Input::LimitReached(breach) => {
                let lost = self.lost_summary();
                let (partial, cuts) = self.cut_off();
                lost.into_iter().chain([Fact::BudgetExceeded { breach, partial, cuts }]).collect()
            }
            Input::Woke(calls) => {
                self.next_call = 0;
                let announced = |call_id: String| {
                    let attempt = self.state.attempt_of(&call_id).number.saturating_add(1);
                    Fact::ToolScheduled { call_id, attempt, call: None }
                };
                calls.into_iter().map(announced).collect()
            }
            Input::Parked(end) => {
                self.hearing = None;
                self.flight.iter().for_each(Flight::end);
                self.stop = Some(Box::new(Stop::Parked(end)));
                Vec::new()
            }
            Input::Summarised { view, summary } => vec![self.shorten(view, summary)],
            Input::SummaryLost => self.lost_summary().into_iter().collect(),
            Input::RecordsEnded => Vec::new(),
        }
    }

    /// The fact that the answer of the model call in flight is lost, with an estimate of what it took.
    fn lost_turn(&self) -> Fact {
        self.state.spent.lost(self.turn())
    }

    /// The same for a summary, if one was asked for.
    fn lost_summary(&self) -> Option<Fact> {
        self.state.summarising.is_some().then(|| self.lost_turn())
    }

    /// Folds a committed fact into the state. Emits an event if it completes a step.
    pub(super) fn take_in(&mut self, fact: Fact) {
        let before = self.state.steps.len();
        match &fact {
            Fact::AssistantCompleted { .. } => self.next_call = 0,
            Fact::Resumed { about, request_id, .. } => {
                self.next_call = 0;
                let id = request_id.clone();
                if about.is_some()
                    && let Some(next) = self.later.pop_front()
                {
                    self.hand_over(next);
                }
                if let Some(id) = id {
                    self.setup.set_request_id(&id);
                }
            }
            Fact::ToolFailed { resolution: Resolution::Retried, .. } => {}
            Fact::ToolFailed { call_id, resolution: Resolution::CutOff, .. } => {
                self.stopped(call_id);
            }
            Fact::Suspended(_) | Fact::Failed(_) | Fact::Cancelled { .. } => self.stop = None,
            Fact::ToolCompleted { call_id, .. } | Fact::ToolFailed { call_id, .. } => {
                self.stopped(call_id);
                if self.watched
                    && let Some(call) = self.state.call(call_id)
                {
                    let told = tell(call, &fact);
                    self.events.extend(told);
                }
            }
            Fact::RunStarted { .. }
            | Fact::UserMessage { .. }
            | Fact::TurnStarted { .. }
            | Fact::TurnLost { .. }
            | Fact::FinalizeStarted { .. }
            | Fact::FinalizeFailed { .. }
            | Fact::ToolScheduled { .. }
            | Fact::SideEffect { .. }
            | Fact::ContextTruncated { .. }
            | Fact::BudgetExceeded { .. }
            | Fact::Completed(_)
            | Fact::Sealed(_)
            | Fact::Removed(_) => {}
        }
        self.state.evolve(fact);
        if self.state.steps.len() > before {
            match self.state.extent {
                _ if !self.watched => {}
                Extent::Generate => {}
                // A step's last event is its result.
                Extent::Step => self.held = self.step_completed().map(Box::new),
                Extent::Chat => self.events.extend(self.step_completed()),
            }
        }
    }

    /// Continues with what another engine has. The call keeps its id.
    fn hand_over(&mut self, next: Setup) {
        let before = std::mem::replace(&mut *self.setup, next);
        self.setup.set_request_id(&before.call().request_id);
    }

    /// The number of the next model call, or of the one in flight.
    fn turn(&self) -> u32 {
        u32::try_from(self.state.steps.len() + 1).unwrap_or(u32::MAX)
    }

    pub(super) fn begin_hearing(&mut self) {
        let pricing = self.state.spent.pricing().copied();
        self.hearing = Some(Box::new(IncomingAnswer::new(pricing, self.recorded)));
        self.flight.iter().for_each(Flight::begin);
    }

    /// Whether a user message may come before an action: nothing is in flight, and the model is
    /// called or the run ends.
    pub(super) fn leaves_the_word(&self, action: &Action) -> bool {
        action.leaves_the_word() || (*action == Action::CallModel && !self.is_hearing())
    }

    pub(super) fn is_hearing(&self) -> bool {
        self.hearing.is_some()
    }

    /// Whether the answer is complete and has no fact yet. Nothing is emitted before there is one.
    pub(super) fn is_answered_in_full(&self) -> bool {
        self.watched && self.hearing.as_ref().is_some_and(|answer| answer.has_completed())
    }

    /// Takes in an event of the model. Returns it as the caller sees it, and the fact that it passed a limit.
    pub(super) fn hear(&mut self, event: Event) -> (Event, Vec<Fact>) {
        let Some(hearing) = &mut self.hearing else { return (event, Vec::new()) };
        let mut event = hearing.hear(event, Some(&self.setup.call().request_id));
        if let Event::MessageStarted { finalizing, .. } = &mut event {
            *finalizing = self.state.conversation.is_some();
        }
        if let Some(on_event) = &self.setup.on_event {
            on_event(&event);
        }
        self.flight.iter().for_each(|flight| flight.hear(&event));
        let budget = self.setup.policy.budget.as_ref();
        match budget.and_then(|budget| hearing.passed(&self.state.spent, budget)) {
            Some(breach) => (event, self.handle(Input::LimitReached(breach))),
            None => (event, Vec::new()),
        }
    }

    fn model_ended(&mut self, ended: Result<(), Error>) -> Vec<Fact> {
        let started = self.hearing.as_ref().is_some_and(|answer| answer.has_started());
        match ended {
            Err(error) if !started => return self.not_opened(error),
            Err(error) => self.break_off(error),
            Ok(()) => {}
        }
        self.answered()
    }

    /// A call that failed before its first event. The first of a run is the caller's `Err`; a later one is a step that failed.
    fn not_opened(&mut self, error: Error) -> Vec<Fact> {
        if self.state.conversation.is_some() {
            self.hearing = None;
            return vec![Fact::FinalizeFailed { error }];
        }
        if self.state.extent != Extent::Chat || self.state.steps_of_call().is_empty() {
            self.hearing = None;
            self.stop = Some(Box::new(Stop::NotOpened(error)));
            return Vec::new();
        }
        self.break_off(error);
        self.answered()
    }

    fn break_off(&mut self, error: Error) {
        self.flight.iter().for_each(Flight::end);
        let Some(hearing) = &mut self.hearing else { return };
        let event = hearing.hear(Event::Error { error }, Some(&self.setup.call().request_id));
        if let Some(on_event) = &self.setup.on_event {
            on_event(&event);
        }
        self.events.push_back(event);
    }

    fn answered(&mut self) -> Vec<Fact> {
        let (provider, needs_hash) =
            (Arc::clone(&self.setup.adapter), self.setup.require_raw_response_hash);
        let Some(hearing) = &mut self.hearing else { return Vec::new() };
        if let Err(error) = hearing.check_end(provider.name(), needs_hash) {
            self.break_off(error);
        }
        let Some(hearing) = self.hearing.take() else { return Vec::new() };
        self.flight.iter().for_each(Flight::end);
        let paused = hearing.is_paused();
        let (mut response, cuts) = hearing.into_answer();
        response.request_id.get_or_insert_with(|| self.setup.call().request_id.clone());
        let plan = self.setup.policy.plan(&self.state, &response, paused);
        if let Plan::Unknown { tool_name } = &plan {
            self.events.push_back(Event::Error { error: Error::unknown_tool(tool_name) });
        }
        let response = Box::new(response);
        let (duration_ms, first_token_ms) = (None, None);
        vec![Fact::AssistantCompleted { response, plan, cuts, duration_ms, first_token_ms }]
    }

    /// What the model had said when the run was stopped. Nothing is in flight any more.
    fn cut_off(&mut self) -> (Option<Box<Response>>, Vec<mynah_log::Cut>) {
        self.running = 0;
        self.flight.iter().for_each(Flight::end);
        match self.hearing.take().filter(|answer| answer.has_started()) {
            Some(hearing) => {
                let (response, cuts) = hearing.into_answer();
                (Some(Box::new(response)), cuts)
            }
            None => (None, Vec::new()),
        }
    }

    pub(super) fn next_to_start(&mut self) -> Option<Arc<ToolCall>> {
        if self.running >= self.setup.max_concurrency {
            return None;
        }
        let calls = self.state.open.as_ref().map_or(0, |turn| turn.calls.len());
        while self.next_call < calls {
            let call = self.state.startable(self.next_call);
            self.next_call += 1;
            if let Some(call) = call {
                return Some(Arc::clone(&call.call));
            }
        }
        None
    }

    /// A call is not in flight any more. One that was lost with its process was not.
    fn stopped(&mut self, call_id: &str) {
        if !self.state.planned(call_id).is_some_and(|planned| planned.lost) {
            self.running = self.running.saturating_sub(1);
        }
    }

    /// A call was started. An event is emitted unless it may not have run.
    pub(super) fn started(&mut self, call: &ToolCall, ran: bool) {
        self.running += 1;
        if self.watched && ran {
            let arguments = call.arguments.clone();
            let started = Event::tool_execution_started(&call.id, &call.name, arguments);
            self.events.push_back(started);
        }
    }

    /// How long the run waits in its process for a time; none if it does so as long as it takes.
    pub(super) fn park_after(&self) -> Option<Duration> {
        let parks = self.recorded && self.state.extent == Extent::Chat;
        parks.then_some(self.setup.park_after)
    }

    pub(super) fn is_running(&self) -> bool {
        self.running > 0
    }

    /// The fact of how a call came out.
    fn settled(&self, call: &ToolCall, settled: Settled) -> Fact {
        let setup = &self.setup;
        let policy = match setup.policy.tool(&call.name, self.state.conversation.is_some()) {
            Some(_) => &setup.on_tool_error,
            // By the caller's choice, the model gets an error for tools that do not exist.
            None => &OnToolError::Continue,
        };
        let remembered = self.watched || self.recorded;
        let mut fact = settle(call, settled, setup.encoder.as_ref(), policy, remembered);
        if self.state.planned(&call.id).is_some_and(|planned| planned.edited) {
            add_edit_note(&mut fact, &call.raw_arguments);
        }
        fact
    }

    /// Whether nothing is left to interrupt: a single step has its result.
    pub(super) fn is_over(&self) -> bool {
        self.stop.is_some()
            || self.state.end.is_some()
            || self.state.extent != Extent::Chat && !self.state.steps_of_pass().is_empty()
    }

    fn step_completed(&self) -> Option<Event> {
        let (step, last) = (self.state.steps.last()?, self.state.last.as_ref()?);
        let thread = match self.state.extent {
            Extent::Chat => {
                let before = self.state.steps_of_call().iter().rev().nth(1);
                StepThread::added(step.thread.clone(), step.first_added(before))
            }
            _ => step.thread.clone().into(),
        };
        let (mode, manual) = (plan_mode(&last.plan), manual_calls(&last.plan, &step.response));
        Some(Event::step_completed(step.response.clone(), thread, mode, manual))
    }

    /// The last event of a run that has its end: the result of a chat, or of a single step.
    pub(super) fn completed(&mut self, run_id: Option<&RunId>) -> Option<Event> {
        // A step with unfinished tools has no result. Its run has the reason.
        if self.state.extent != Extent::Chat && self.state.open.is_none() {
            // A run whose end was recorded by another process has its result in the state.
            let is_step = self.state.extent == Extent::Step && self.state.last_step().is_some();
            let completed = || self.step_completed().filter(|_| is_step && self.watched);
            return self.held.as_deref().cloned().or_else(completed);
        }
        Some(Event::ChatCompleted { result: Box::new(self.result(run_id)) })
    }

    /// The result of the run as a chat. Its steps move into it.
    pub(super) fn result(&mut self, run_id: Option<&RunId>) -> ChatResult {
        let mut result = self.state.chat_result();
        result.run_id = run_id.cloned();
        result
    }
}

/// Adds to the result of a call that a person changed its arguments. The question of a tool is no result.
fn add_edit_note(fact: &mut Fact, arguments: &str) {
    // Behind a result that just fits, a record has room for this much.
    const SHOWN: usize = 4096;
    if let Fact::ToolCompleted { content, .. } | Fact::ToolFailed { content, .. } = fact
        && content != ASK_USER_SENTINEL
    {
        let end = arguments.floor_char_boundary(SHOWN);
        let more = if end < arguments.len() { "…" } else { "" };
        let shown = &arguments[..end];
        content.push_str(&format!(
            "\n\n[A person changed the arguments of this call before it ran, to {shown}{more}]"
        ));
    }
}

/// The digest of the messages that joined a conversation in a run. What earlier runs hold is not part of it.
///
/// It is carried forward message by message, so its cost follows what is new.
struct PromptDigest {
    before: usize,
    messages: usize,
    rewrites: u32,
    digest: Hash,
}

impl PromptDigest {
    /// Of nothing yet, after so many messages that earlier runs hold.
    fn new(before: usize) -> Self {
        Self { before, messages: before, rewrites: 0, digest: Hash::of(&[]) }
    }

    fn of(&mut self, messages: &Messages, rewrites: u32) -> Hash {
        // What was changed is read again, so that the digest depends on the messages alone.
        if rewrites != self.rewrites {
            (self.messages, self.rewrites, self.digest) = (self.before, rewrites, Hash::of(&[]));
        }
        while let Some(message) = messages.get(self.messages) {
            let message: &Message = message;
            // A message without an encoding was refused before.
            let digest = cbor::with_bytes(message, |bytes| Hash::of(&[&self.digest.0, bytes]));
            self.digest = digest.unwrap_or_else(|_| Hash::of(&[&self.digest.0]));
            self.messages += 1;
        }
        self.digest
    }
}
