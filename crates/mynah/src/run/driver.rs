//! The stream that a caller polls. It owns the run; dropping it drops everything.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _};
use mynah_data::{
    ChatResult, Error, Event, FinishReason, Message, Messages, Request, Response, ResponseBuilder,
    Result, StepResult, Thread, Usage,
};
use mynah_log::{About, CutRecorder, End, Extent, Fact, Head, Lease};
use mynah_step::{
    Adapter, BoxFuture, Desk, Heard, MetricsSink, ModelCall, ModelStream, OnUncertain, RetryPolicy,
    Tape, ToolContext, ToolExecutor, ToolLimits, ToolResultEncoder, WallClock, Watch, World,
};
use tokio::time::Sleep;
use tracing::Span;

use super::{
    budget::Meter,
    decide::{Action, Policy},
    model::{CallLimits, PromptDigest},
    settle::ErrorPolicy,
    state::{RunState, manual_calls, plan_mode},
    tools::ToolRuns,
};
use crate::cancel::{CancelHandle, Cancellation};

/// Sees every event of the model, whatever the filters say.
pub(crate) type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

/// Everything a run needs that does not change while one engine has it.
pub(crate) struct Setup {
    pub(crate) policy: Policy,
    pub(crate) meter: Meter,
    pub(crate) adapter: Arc<dyn Adapter>,
    /// What the model is asked, without the messages.
    pub(crate) request: Request,
    /// The same for the call that gives the answer its form.
    pub(crate) final_request: Option<Request>,
    pub(crate) call: ModelCall,
    pub(crate) retry: Arc<RetryPolicy>,
    pub(crate) world: Arc<dyn World>,
    pub(crate) executor: Arc<dyn ToolExecutor>,
    pub(crate) encoder: Arc<dyn ToolResultEncoder>,
    pub(crate) on_tool_error: ErrorPolicy,
    /// What every tool is told; each gets its own call.
    pub(crate) tool_context: ToolContext,
    pub(crate) tool_limits: ToolLimits,
    pub(crate) max_concurrency: usize,
    pub(crate) deadline: Option<Duration>,
    pub(crate) on_event: Option<Observer>,
    pub(crate) metrics: Option<Arc<dyn MetricsSink>>,
    /// Whether a run that is performed again answers for its tools from its records.
    pub(crate) recorded_tools: bool,
    pub(crate) require_raw_response_hash: bool,
}

/// How a run begins.
pub(crate) struct Beginning {
    /// The conversation that the runs before it hold.
    pub(crate) before: Messages,
    /// What joined since.
    pub(crate) thread: Thread,
    /// How far it is to go.
    pub(crate) extent: Extent,
    /// What it begins with; none where nobody keeps it.
    pub(crate) about: Option<Box<About>>,
}

/// How a run is gone on with.
#[derive(Default)]
pub(crate) struct Resumption {
    pub(crate) on_uncertain: OnUncertain,
    /// What a run that waited goes on with.
    pub(crate) fact: Option<Fact>,
    /// What a person says to a run that does not wait.
    pub(crate) message: Option<Arc<Message>>,
    /// How long earlier processes of the run were active.
    pub(crate) active: Duration,
}

/// A run under way.
pub(crate) struct Driver {
    pub(super) setup: Box<Setup>,
    /// What engines have that take over later, in a run performed again.
    later: VecDeque<Setup>,
    /// How many took over already.
    handovers: usize,
    pub(super) resumption: Resumption,
    pub(super) state: RunState,
    pub(super) phase: Phase,
    /// Events that are made and not yet handed out.
    pub(super) ready: VecDeque<Event>,
    pub(super) answer: ResponseBuilder,
    /// What the answer takes, for a run with a budget.
    pub(super) heard: Heard,
    /// The model call under way, for who is told of it.
    pub(super) watch: Watch,
    /// How the answer arrives, for a run that is kept.
    pub(super) cuts: CutRecorder,
    pub(super) tape: Tape,
    /// What the model is asked, for a run that is kept.
    pub(super) prompt: PromptDigest,
    /// Where tools hand in what happens inside them, for a run that is kept.
    pub(super) desk: Option<Arc<Desk>>,
    /// What went wrong between the run and its records: it ends the run.
    pub(super) fault: Option<Error>,
    /// What a single step came to, until its records are safe.
    pub(super) held: Option<Event>,
    /// Whether the caller knows what it came to.
    told: bool,
    /// Whether a resumed run is still brought back to where it was: what was told before is not told again.
    pub(super) behind: bool,
    pub(crate) cancel: Cancellation,
    pub(super) deadline: Option<Pin<Box<Sleep>>>,
    pub(super) wall_clock: Option<WallClock>,
    pub(super) limits: CallLimits,
    /// Whether anybody sees the events of steps and tools; what nobody sees is not made.
    pub(crate) watched: bool,
    pub(super) span: Span,
    /// The step under way.
    pub(super) step: Span,
}

/// What the run waits for.
pub(super) enum Phase {
    Decide,
    Opening(BoxFuture<Result<ModelStream>>),
    Answering(ModelStream),
    /// The tools start when their announcement is safe.
    Announced(ToolRuns),
    Tools(ToolRuns),
    /// The end is told when its records are safe.
    Closing(Result<Option<Event>>),
    Done,
}

impl Driver {
    /// A run that engines had which others took over from, and the last of them has, or is to have.
    pub(crate) fn new(
        earlier: impl IntoIterator<Item = Setup>,
        last: Setup,
        Beginning { before, thread, extent, about }: Beginning,
        resumption: Resumption,
        cancel: Option<&CancelHandle>,
        tape: Tape,
    ) -> Self {
        let mut setups = earlier.into_iter();
        let (setup, later) = match setups.next() {
            Some(first) => (first, setups.chain([last]).collect()),
            None => (last, VecDeque::new()),
        };
        let span = tracing::info_span!(
            "mynah.run",
            ?extent,
            request_id = setup.call.request_id,
            model = setup.request.model.as_ref().map(tracing::field::display),
            halted_reason = tracing::field::Empty,
            finish_reason = tracing::field::Empty,
            turns = tracing::field::Empty,
            input_tokens = tracing::field::Empty,
            output_tokens = tracing::field::Empty,
        );
        let mut driver = Self {
            prompt: PromptDigest::new(before.len()),
            state: RunState::new(before, setup.meter),
            wall_clock: WallClock::new(setup.policy.budget.as_ref(), resumption.active),
            setup: Box::new(setup),
            later,
            handovers: 0,
            resumption,
            phase: Phase::Decide,
            ready: VecDeque::new(),
            answer: ResponseBuilder::new(),
            heard: Heard::default(),
            watch: Watch::default(),
            cuts: CutRecorder::new(),
            desk: tape.is_kept().then(Desk::new),
            behind: tape.is_resuming(),
            tape,
            fault: None,
            held: None,
            told: false,
            cancel: cancel.map(Cancellation::listen).unwrap_or_default(),
            deadline: None,
            limits: CallLimits::default(),
            watched: true,
            span,
            step: Span::none(),
        };
        driver.commit(Fact::RunStarted { thread, extent, about });
        driver
    }

    /// The id of a run that is kept.
    pub(crate) fn run_id(&self) -> Option<&Arc<str>> {
        self.tape.run_id()
    }

    /// A run that is kept and has told its end: where its records end, and whether it waits.
    pub(crate) fn stopped(&self) -> Option<(&Arc<str>, Head, bool)> {
        let head = self.tape.head().filter(|_| self.told)?;
        Some((self.run_id()?, head, self.state.end.as_ref().is_some_and(End::waits)))
    }

    /// Up to which record a run that is performed again was compared.
    pub(crate) fn compared(&self) -> Option<u64> {
        self.tape.compared()
    }

    /// The id of the call.
    pub(crate) fn request_id(&self) -> &str {
        &self.setup.call.request_id
    }

    /// Lets a run that goes on be written by the holder of a lease.
    pub(crate) fn hold(&mut self, lease: Lease) {
        self.tape.hold(lease);
    }

    /// The next event; an `Err` is the last.
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        if self.span.is_disabled() {
            return self.poll_run(cx);
        }
        let span = self.span.clone();
        let _entered = span.enter();
        self.poll_run(cx)
    }

    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        loop {
            let step = Some(&self.step).filter(|step| !step.is_disabled()).cloned();
            let _entered = step.as_ref().map(Span::enter);
            if let Some(fault) = self.fault.take() {
                self.ready.clear();
                self.phase = Phase::Done;
                return Poll::Ready(Some(Err(fault)));
            }
            if self.tells_next() && self.tape.poll_sent(cx).is_pending() {
                // Tools go on while what came of others is on its way to the log.
                if !matches!(self.phase, Phase::Tools(_)) {
                    return Poll::Pending;
                }
            } else if !self.is_answered_in_full()
                && let Some(event) = self.ready.pop_front()
            {
                if self.behind {
                    continue;
                }
                return Poll::Ready(Some(Ok(event)));
            }
            if matches!(self.phase, Phase::Done) {
                // The run is over, however long its stream is held.
                (self.span, self.step) = (Span::none(), Span::none());
                return Poll::Ready(None);
            }
            if self.is_stopped(cx) {
                continue;
            }
            match self.poll_phase(cx) {
                Poll::Ready(Some(event)) => return Poll::Ready(Some(Ok(event))),
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {}
            }
        }
    }

    /// Whether there is something to tell, or may be in a moment.
    fn tells_next(&self) -> bool {
        !self.ready.is_empty() || matches!(self.phase, Phase::Answering(_))
    }

    /// Whether the model has said all of its answer, of which there is no fact yet: nobody is told before there is one.
    fn is_answered_in_full(&self) -> bool {
        self.watched && matches!(self.phase, Phase::Answering(_)) && self.answer.has_completed()
    }

    /// Whether somebody, or the time, stops what is under way; then it was stopped.
    fn is_stopped(&mut self, cx: &mut Context<'_>) -> bool {
        // A single step that was told to be complete has nothing left to interrupt.
        let over = self.state.extent != Extent::Chat && !self.state.steps_of_pass().is_empty();
        let over = over && self.cancelled_here().is_none();
        if !over && !matches!(self.phase, Phase::Closing(_)) {
            if let Some(reason) = self.interrupted(cx) {
                self.interrupt(reason);
                return true;
            }
            if let Some(breach) = self.out_of_time(cx) {
                self.exceed(breach);
                return true;
            }
        }
        let Some(error) = self.timed_out(cx) else { return false };
        match self.phase {
            Phase::Opening(_) => self.not_opened(error),
            _ => self.broke_off(error),
        }
        true
    }

    /// Goes on with what is under way. An event of the model is handed out as it comes.
    fn poll_phase(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        match &mut self.phase {
            Phase::Decide => self.advance(),
            Phase::Opening(opening) => {
                // A model call costs money, not correctness: it need not wait for what precedes it to be safe.
                if let Err(error) = ready!(self.tape.poll_room(cx)) {
                    self.fault = Some(error);
                    return Poll::Ready(None);
                }
                match ready!(opening.poll_unpin(cx)) {
                    Ok(stream) => self.phase = Phase::Answering(stream),
                    Err(error) => self.not_opened(error),
                }
            }
            Phase::Answering(stream) => match ready!(stream.poll_next_unpin(cx)) {
                Some(Ok(event)) => {
                    self.limits.heard();
                    let event = self.hear(event);
                    if let Some(breach) = self.passed_by_answer() {
                        self.ready.push_back(event);
                        self.exceed(breach);
                    } else if self.is_answered_in_full() {
                        self.ready.push_back(event);
                    } else if !self.behind {
                        return Poll::Ready(Some(event));
                    }
                }
                // Nobody has heard anything yet: it is as if there had been no stream.
                Some(Err(error)) if !self.answer.has_started() => self.not_opened(error),
                Some(Err(error)) => self.broke_off(error),
                None => self.answered(),
            },
            Phase::Tools(_) => ready!(self.poll_tools(cx)),
            Phase::Announced(_) | Phase::Closing(_) => {
                let durable = ready!(self.tape.poll_durable(cx));
                self.is_safe(durable);
            }
            Phase::Done => {}
        }
        Poll::Ready(None)
    }

    /// What waited for its records to be safe, or not, happens.
    fn is_safe(&mut self, durable: Result<()>) {
        match (durable, std::mem::replace(&mut self.phase, Phase::Done)) {
            (Err(error), _) | (Ok(()), Phase::Closing(Err(error))) => self.fault = Some(error),
            (Ok(()), Phase::Closing(Ok(event))) => {
                self.told = true;
                self.ready.extend(event);
            }
            (Ok(()), Phase::Announced(runs)) => {
                self.phase = Phase::Tools(runs);
                self.start_tools();
            }
            (Ok(()), phase) => self.phase = phase,
        }
    }

    /// Whether what happens now happens in the world.
    pub(super) fn is_live(&self) -> bool {
        !self.tape.has_upcoming() && !self.tape.ran_out()
    }

    /// What the model had said when it was cut off.
    pub(super) fn cut_off(&mut self, answering: bool, why: &str) -> Option<Box<Response>> {
        let partial =
            (answering && self.answer.has_started()).then(|| Box::new(self.take_answer()));
        let usage = partial.as_ref().map(|response| &response.usage);
        self.watch.end(Some(why), usage);
        partial
    }

    /// What the last step of the run came to.
    pub(crate) fn last_step(&self) -> Option<&StepResult> {
        self.state.last_step()
    }

    /// Does the next thing that is to be done.
    fn advance(&mut self) {
        if self.tape.ran_out() {
            return self.stop_short();
        }
        let action = self.state.decide(&self.setup.policy);
        if action.leaves_the_word() && self.is_spoken_to() {
            return;
        }
        match action {
            Action::CallModel => self.call_model(),
            Action::Finalize { conversation, nudge } => {
                self.commit(Fact::FinalizeStarted { conversation, nudge: nudge.map(Arc::new) });
            }
            Action::RunTools(ids) => self.run_tools(&ids),
            Action::Exceed(breach) => self.exceed(breach),
            Action::Finish(end) => {
                self.commit(end.into_fact());
                self.finish_or_go_on();
            }
            Action::Refuse(end, error) => {
                self.commit(end.into_fact());
                self.phase = Phase::Closing(Err(error));
            }
            Action::Stop => self.finish_single(),
        }
    }

    /// Takes in a fact. Where it completes a step, the caller is told.
    pub(super) fn commit(&mut self, fact: Fact) {
        let fact = self.keep(fact);
        self.take_in(fact);
    }

    /// Gives a fact to the tape, and gives it back as its record has it.
    pub(super) fn keep(&mut self, mut fact: Fact) -> Fact {
        if self.tape.is_kept() {
            match self.tape.commit(&fact) {
                Ok(kept) => fact = kept.unwrap_or(fact),
                Err(error) => _ = self.fault.get_or_insert(error),
            }
            if !self.tape.is_resuming() {
                self.catch_up();
            }
        }
        if let Fact::Resumed { request_id: Some(id), .. } = &fact {
            self.setup.tool_context.request_id = Arc::from(id.as_str());
            self.setup.call.request_id.clone_from(id);
        }
        fact
    }

    /// Takes in a fact that is where it belongs. Where another engine took over after it, what follows is that one's.
    pub(super) fn take_in(&mut self, fact: Fact) {
        let before = self.state.steps.len();
        self.state.evolve(fact);
        if self.state.steps.len() > before {
            self.step = Span::none();
            match self.state.extent {
                _ if !self.watched => {}
                Extent::Generate => {}
                // A step's last event is its result.
                Extent::Step => self.held = self.step_completed(),
                Extent::Chat => self.ready.extend(self.step_completed()),
            }
        }
        while self.handovers < self.tape.handovers() {
            self.handovers += 1;
            if let Some(next) = self.later.pop_front() {
                self.hand_over(next);
            }
        }
    }

    /// Goes on with what another engine has. The call keeps its id.
    fn hand_over(&mut self, next: Setup) {
        let before = std::mem::replace(&mut *self.setup, next);
        self.setup.call.request_id = before.call.request_id;
        self.setup.tool_context.request_id = before.tool_context.request_id;
        self.state.meter = self.setup.meter;
        self.wall_clock = WallClock::new(self.setup.policy.budget.as_ref(), self.resumption.active);
    }

    /// From here on a resumed run is in the world, and tells what happens.
    pub(super) fn catch_up(&mut self) {
        if std::mem::take(&mut self.behind) {
            self.ready.clear();
        }
    }

    fn step_completed(&self) -> Option<Event> {
        let (step, last) = (self.state.steps.last()?, self.state.last.as_ref()?);
        Some(Event::StepCompleted {
            response: Box::new(step.response.clone()),
            thread: step.thread.clone(),
            mode: plan_mode(&last.plan),
            manual_tool_calls: manual_calls(&last.plan, &step.response),
        })
    }

    /// A run that waits goes on where what it waited for is there.
    pub(super) fn finish_or_go_on(&mut self) {
        let resumed = match self.tape.upcoming() {
            Some(resumed @ Fact::Resumed { .. }) => Some(resumed.clone()),
            // It was ended while it waited.
            Some(Fact::Cancelled { end, .. }) => return self.interrupt(end.reason.clone()),
            None => self.resumption.fact.take(),
            _ => None,
        };
        match resumed {
            Some(fact) => {
                self.commit(fact);
                self.phase = Phase::Decide;
            }
            None => self.finish(),
        }
    }

    /// Tells what the run came to.
    pub(super) fn finish(&mut self) {
        // A step whose tools are not done has no result, and its run tells why.
        if self.state.extent != Extent::Chat && self.state.open.is_none() {
            return self.finish_single();
        }
        let result = self.result();
        self.span.record("halted_reason", result.halted_reason.as_str());
        self.tell_span(&result.steps);
        self.phase = Phase::Closing(Ok(Some(Event::ChatCompleted { result: Box::new(result) })));
    }

    /// What the run came to, as the result of a chat. Its steps are in it from then on.
    pub(crate) fn result(&mut self) -> ChatResult {
        let mut result = self.state.chat_result();
        result.run_id = self.tape.run_id().cloned();
        result
    }

    /// A single call or step was told as it came; the end of a step is its result.
    fn finish_single(&mut self) {
        self.tell_span(&self.state.steps);
        self.phase = Phase::Closing(Ok(self.held.take()));
    }

    /// What a run came to, for whoever watches its span.
    fn tell_span(&self, steps: &[StepResult]) {
        let Some(last) = steps.last().filter(|_| !self.span.is_disabled()) else { return };
        let mut usage = Usage::default();
        steps.iter().for_each(|step| usage.add(&step.response.usage));
        self.span.record("finish_reason", last.response.finish_reason.map(FinishReason::as_str));
        self.span.record("turns", steps.len());
        self.span.record("input_tokens", usage.input_tokens);
        self.span.record("output_tokens", usage.output_tokens);
    }

    /// A replay goes as far as the records do, and does nothing beyond them.
    pub(super) fn stop_short(&mut self) {
        self.phase = Phase::Closing(Ok(None));
    }
}
