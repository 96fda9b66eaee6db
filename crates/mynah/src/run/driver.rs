//! The stream that a caller polls. It owns the run; dropping it drops everything.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, ready},
};

use mynah_data::{ChatResult, Error, Event, FinishReason, Result, RunId, StepResult, Usage};
use mynah_log::{End, Extent, Fact, Head};
use mynah_step::{Journal, Recorder, ReplayCursor};
use tracing::Span;

use super::{
    Resumption, RunStart, RunState, Setup, decide::Action, door::Door, input::Input, live::Live,
    machine::Machine, part_writer::PartWriter, replayed::Replay,
};
use crate::{
    cancel::{CancelHandle, Cancellation, released},
    mailbox::Reader,
    stream::Filter,
};

/// A run in progress: polls the door for inputs, passes them to the machine, commits the facts and hands out the events.
pub(crate) struct Driver {
    machine: Machine,
    door: Box<dyn Door>,
    /// Where facts go; none if the run is not recorded.
    journal: Option<Arc<Journal>>,
    /// Keeps the answer in flight in the log, if that is wanted.
    parts: Option<PartWriter>,
    /// What ends the run from elsewhere.
    cancel: Cancellation,
    /// A replay of the run's past, whose events are emitted first.
    past: Option<Box<Driver>>,
    is_past: bool,
    phase: Phase,
    /// Whether tools were announced whose announcement may not be durable yet.
    announced: bool,
    /// What the caller gets in place of a result.
    refusal: Option<Error>,
    /// A failure of the log, or a difference from the records: it ends the run.
    fault: Option<Error>,
    /// Whether the caller has the result.
    told: bool,
    span: Span,
    /// The step in progress.
    step: Span,
    /// What the caller wants to see.
    pub(crate) filter: Filter,
}

enum Phase {
    Running,
    /// The end is emitted when its records are durable.
    Closing(Option<Box<Event>>),
    Done,
}

impl Driver {
    pub(crate) fn new(
        setup: Setup,
        beginning: RunStart,
        cancel: Option<&CancelHandle>,
        (recorder, mailbox): (Option<Recorder>, Option<Reader>),
    ) -> Self {
        let RunStart { before, thread, extent, about } = beginning;
        let (len, recorded) = (before.len(), recorder.is_some());
        let machine = Machine::new(setup, VecDeque::new(), len, RunState::new(before), recorded);
        let resumption = Resumption { mailbox, ..Resumption::default() };
        let mut driver = Self::live(machine, resumption, cancel, extent, recorder);
        driver.commit(Fact::RunStarted { thread, extent, about });
        driver
    }

    /// A run that continues in this state, after so many messages that earlier runs hold.
    pub(crate) fn resume(
        setup: Setup,
        (before, state): (usize, RunState),
        resumption: Resumption,
        refusal: Option<Error>,
        cancel: Option<&CancelHandle>,
        recorder: Recorder,
    ) -> Self {
        let extent = state.extent;
        let machine = Machine::new(setup, VecDeque::new(), before, state, true);
        Self { refusal, ..Self::live(machine, resumption, cancel, extent, Some(recorder)) }
    }

    fn live(
        mut machine: Machine,
        resumption: Resumption,
        cancel: Option<&CancelHandle>,
        extent: Extent,
        recorder: Option<Recorder>,
    ) -> Self {
        let journal = recorder.map(Journal::recording);
        if let Some(journal) = &journal {
            machine.setup.set_run_id(journal.run_id());
        }
        let parts = machine.share(journal.as_ref());
        let door = Live::new(journal.clone(), resumption, &machine);
        Self { parts, ..Self::with(machine, Box::new(door), journal, cancel, extent) }
    }

    /// A run that is replayed, which setups had one after the other.
    pub(crate) fn replay(
        mut setups: VecDeque<Setup>,
        last: Setup,
        beginning: RunStart,
        cancel: Option<&CancelHandle>,
        (records, allow_changed): (ReplayCursor, bool),
    ) -> Self {
        let RunStart { before, thread, extent, about } = beginning;
        let (len, filter) = (before.len(), last.filter);
        let first = match setups.pop_front() {
            Some(first) => {
                setups.push_back(last);
                first
            }
            None => last,
        };
        let machine = Machine::new(first, setups, len, RunState::new(before), true);
        let journal = Journal::replaying(records);
        let door = Replay::new(Arc::clone(&journal), allow_changed);
        let driver = Self::with(machine, Box::new(door), Some(journal), cancel, extent);
        let mut driver = Self { filter, ..driver };
        driver.commit(Fact::RunStarted { thread, extent, about });
        driver
    }

    fn with(
        machine: Machine,
        door: Box<dyn Door>,
        journal: Option<Arc<Journal>>,
        cancel: Option<&CancelHandle>,
        extent: Extent,
    ) -> Self {
        let setup = &machine.setup;
        let span = tracing::info_span!(
            "mynah.run",
            run_id = journal.as_ref().map(|journal| &**journal.run_id()),
            ?extent,
            request_id = setup.call().request_id,
            model = setup.request().model.as_ref().map(tracing::field::display),
            halted_reason = tracing::field::Empty,
            finish_reason = tracing::field::Empty,
            turns = tracing::field::Empty,
            input_tokens = tracing::field::Empty,
            output_tokens = tracing::field::Empty,
        );
        let filter = setup.filter;
        Self {
            machine,
            door,
            journal,
            parts: None,
            cancel: cancel.map(Cancellation::listen).unwrap_or_default(),
            past: None,
            is_past: false,
            phase: Phase::Running,
            announced: false,
            refusal: None,
            fault: None,
            told: false,
            span,
            step: Span::none(),
            filter,
        }
    }

    pub(crate) fn run_id(&self) -> Option<&RunId> {
        self.journal.as_ref().map(|journal| journal.run_id())
    }

    /// For a recorded run whose end was emitted: its last record, and whether it waits.
    pub(crate) fn stopped(&self) -> Option<(&RunId, Head, bool)> {
        let head = self.journal.as_ref()?.head().filter(|_| self.told)?;
        Some((self.run_id()?, head, self.machine.state.end.as_ref().is_some_and(End::waits)))
    }

    /// The last record that a replay was compared with.
    pub(crate) fn compared(&self) -> Option<u64> {
        self.journal.as_ref()?.records(|cursor| Some(cursor.compared()))
    }

    pub(crate) fn request_id(&self) -> &str {
        &self.machine.setup.call().request_id
    }

    /// Whether anyone sees the events of steps and tools.
    pub(crate) fn watch(&mut self, watched: bool) {
        self.machine.watched = watched;
        // An observer sees a run's past whether it was cut off or has ended.
        if !watched && self.machine.setup.on_event.is_none() {
            self.past = None;
        }
    }

    /// Emits the events of the run's past first, all but its end.
    pub(crate) fn tell_first(&mut self, past: Self) {
        self.past = Some(Box::new(Self { is_past: true, ..past }));
    }

    /// Waits until the log has every fact so far.
    pub(crate) fn poll_durable(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.journal.as_ref().map_or(Poll::Ready(Ok(())), |journal| journal.poll_durable(cx))
    }

    pub(crate) fn cancel_handle(&mut self) -> CancelHandle {
        self.cancel.handle()
    }

    pub(crate) fn last_step(&self) -> Option<&StepResult> {
        self.machine.state.last_step()
    }

    /// The result of the run as a chat. Its steps move into it.
    pub(crate) fn result(&mut self) -> ChatResult {
        let run_id = self.run_id().cloned();
        self.machine.result(run_id.as_ref())
    }

    /// The next event; an `Err` is the last.
    pub(crate) fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        if let Some(past) = &mut self.past {
            match ready!(past.poll_event(cx)) {
                None => self.past = None,
                told => return Poll::Ready(told),
            }
        }
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
                self.machine.events.clear();
                self.phase = Phase::Done;
                return Poll::Ready(Some(Err(fault)));
            }
            // Facts are on their way to the log before their events are emitted. Tools continue
            // meanwhile.
            let tells = !self.machine.events.is_empty() || self.machine.is_hearing();
            let journal = self.journal.as_ref().filter(|journal| tells && !journal.is_given());
            if journal.is_some_and(|journal| journal.poll(cx, Recorder::poll_given).is_pending()) {
                if !self.machine.is_running() {
                    return Poll::Pending;
                }
            } else if !self.machine.is_answered_in_full()
                && let Some(event) = self.machine.events.pop_front()
            {
                return Poll::Ready(Some(Ok(event)));
            }
            let polled = match &mut self.phase {
                Phase::Running => self.advance(cx),
                Phase::Closing(event) => {
                    let event = event.take();
                    self.poll_close(cx, event)
                }
                Phase::Done => {
                    // The run is over, however long its stream is held.
                    (self.span, self.step) = (Span::none(), Span::none());
                    return Poll::Ready(None);
                }
            };
            match polled {
                Poll::Ready(Ok(Some(event))) => return Poll::Ready(Some(Ok(event))),
                Poll::Ready(Ok(None)) => {}
                Poll::Ready(Err(fault)) => self.fault = Some(fault),
                Poll::Pending => return self.poll_progress(cx),
            }
        }
    }

    /// While the run waits for its tools, their progress is emitted. It comes after everything that has a record.
    fn poll_progress(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        let shows = self.machine.watched && self.machine.is_running();
        if !shows || !self.machine.events.is_empty() {
            return Poll::Pending;
        }
        self.door.poll_progress(cx).map(|event| Some(Ok(event)))
    }

    /// Does the next thing. An event of the model is handed out as it comes.
    fn advance(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Event>>> {
        let action = self.machine.decide();
        let mut cancelled = !self.machine.is_over() && self.cancel.poll_cancelled(cx);
        if !cancelled && !self.machine.is_hearing() {
            if let Some(journal) = self.journal.as_ref().filter(|_| action.can_be_left())
                && self.cancel.poll_released(cx)
            {
                ready!(journal.poll_durable(cx))?;
                return Poll::Ready(Err(released(journal.run_id())));
            }
            ready!(self.door.poll_messages(cx, &action, &self.machine));
            // One of them may be a cancellation.
            cancelled = !self.machine.is_over() && self.cancel.poll_cancelled(cx);
        }
        if let Some(input) = self.door.before(cx, &action, &self.machine, cancelled) {
            self.apply(input);
            return Poll::Ready(Ok(None));
        }
        match action {
            Action::CallModel => {
                if !self.machine.is_hearing() {
                    self.door.call_model(&self.machine);
                    self.machine.begin_hearing();
                    // The request is on its way to the log before any of its answer is emitted.
                    return Poll::Ready(Ok(None));
                }
                if let Some(parts) = &mut self.parts {
                    parts.poll(cx);
                }
                let input = ready!(self.door.poll_model(cx, &self.machine))?;
                let is_event = matches!(input, Input::ModelEvent(_));
                self.apply(input);
                // An answer that is there in full is recorded before its last event is handed out.
                if is_event && !self.machine.is_answered_in_full() {
                    return Poll::Ready(Ok(self.machine.events.pop_front()));
                }
            }
            Action::Summarise(view) => {
                let input = ready!(self.door.poll_summary(cx, &self.machine, view))?;
                self.apply(input);
            }
            Action::RunTools => {
                if self.announced {
                    ready!(self.poll_durable(cx))?;
                    self.announced = false;
                }
                if let Some(call) = self.machine.next_to_start() {
                    let ran = self.door.start_tool(&call, &self.machine);
                    self.machine.started(&call, ran);
                } else {
                    // Tools may take long, and what came before them was emitted: a run that waits keeps no room for more.
                    self.machine.events.shrink_to_fit();
                    let input = ready!(self.door.poll_tools(cx, &self.machine))?;
                    self.apply(input);
                }
            }
            Action::Sleep(until) => {
                let input = ready!(self.door.poll_sleep(cx, until, &self.machine))?;
                self.apply(input);
            }
            Action::Stop => match self.door.after_end() {
                Some(input) => self.apply(input),
                None => self.close(),
            },
            action => {
                if let Action::Refuse(_, error) = &action {
                    self.refusal = Some(error.clone());
                }
                let facts = self.machine.perform(action);
                facts.into_iter().for_each(|fact| self.commit(fact));
            }
        }
        Poll::Ready(Ok(None))
    }

    fn apply(&mut self, input: Input) {
        // A replay goes as far as the records do, and does nothing beyond them.
        if let Input::RecordsEnded = input {
            self.phase = Phase::Closing(None);
            return;
        }
        let facts = self.machine.handle(input);
        facts.into_iter().for_each(|fact| self.commit(fact));
    }

    /// Commits a fact and folds it into the state.
    fn commit(&mut self, fact: Fact) {
        if self.fault.is_some() {
            return;
        }
        match self.door.commit(fact) {
            Ok(fact) => {
                self.announced |= matches!(fact, Fact::ToolScheduled { .. });
                if matches!(fact, Fact::TurnStarted { .. }) {
                    let index = self.machine.state.steps.len();
                    self.step = tracing::info_span!(parent: &self.span, "mynah.step", index);
                }
                let steps = self.machine.state.steps.len();
                self.machine.take_in(fact);
                if self.machine.state.steps.len() > steps {
                    self.step = Span::none();
                }
            }
            Err(error) => self.fault = Some(error),
        }
    }

    /// Emits the result when its records are durable.
    fn close(&mut self) {
        let state = &self.machine.state;
        if state.extent == Extent::Chat
            && let Some(end) = &state.end
        {
            self.span.record("halted_reason", end.reason.as_str());
        }
        self.tell_span(&self.machine.state.steps);
        let run_id = self.run_id().cloned();
        let event = match self.is_past || self.refusal.is_some() {
            true => None,
            false => self.machine.completed(run_id.as_ref()),
        };
        self.refusal.take_if(|_| self.is_past);
        self.phase = Phase::Closing(event.map(Box::new));
    }

    fn poll_close(
        &mut self,
        cx: &mut Context<'_>,
        event: Option<Box<Event>>,
    ) -> Poll<Result<Option<Event>>> {
        let closed = match self.poll_durable(cx) {
            Poll::Ready(Ok(())) => self.door.poll_ended(cx, &self.machine).map(Ok),
            durable => durable,
        };
        match closed {
            Poll::Pending => {
                self.phase = Phase::Closing(event);
                Poll::Pending
            }
            Poll::Ready(closed) => {
                self.phase = Phase::Done;
                closed?;
                match self.refusal.take() {
                    Some(error) => Poll::Ready(Err(error)),
                    None => {
                        self.told = true;
                        Poll::Ready(Ok(event.map(|event| *event)))
                    }
                }
            }
        }
    }

    fn tell_span(&self, steps: &[StepResult]) {
        let Some(last) = steps.last().filter(|_| !self.span.is_disabled()) else { return };
        let mut usage = Usage::default();
        steps.iter().for_each(|step| usage.add(&step.response.usage));
        self.span.record("finish_reason", last.response.finish_reason.map(FinishReason::as_str));
        self.span.record("turns", steps.len());
        self.span.record("input_tokens", usage.input_tokens);
        self.span.record("output_tokens", usage.output_tokens);
    }
}
