//! The world answers: models and tools are called, clocks are read, facts are recorded.

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use mynah_data::{
    AdapterReason, BreachTime, Error, Event, HaltReason, Message, Response, Result, ToolCall,
};
use mynah_log::{End, Fact, RunStatus};
use mynah_step::{
    BoxFuture, IncomingAnswer, Journal, MetricsSink, ModelStream, Opened, Parking, Recorder,
    Settled, WallClock, Watch, millis, open_model, open_or_park, since_1970, tell_exceeded,
};
use serde_json::json;
use tokio::time::{Instant, Sleep};

use super::{
    Resumption,
    decide::Action,
    door::{Door, ToolRun, ToolRuns, running},
    input::Input,
    machine::Machine,
    progress::LatestProgress,
    state::ATTEMPTS,
};
use crate::{cancel::Cancel, context_policy::ContextView, prepare::without_tools};

/// The world answers.
pub(super) struct Live {
    /// Where facts go, if the run is recorded.
    journal: Option<Arc<Journal>>,
    model: Model,
    /// Whether the log has everything that precedes the answer.
    is_settled: bool,
    limits: CallLimits,
    watch: Watch,
    tools: ToolRuns,
    progress: LatestProgress,
    /// Tools that start when the run is known to be this process's.
    starting: Vec<ToolRun>,
    finished: Option<(Arc<ToolCall>, Settled)>,
    /// Inputs that are due.
    due: VecDeque<Input>,
    deadline: Option<Pin<Box<Sleep>>>,
    wall_clock: Option<WallClock>,
    /// What the run continues with.
    resumption: Resumption,
    /// The time that is waited for.
    sleep: Option<Pin<Box<Sleep>>>,
    clock: Clock,
    metrics: Option<Arc<dyn MetricsSink>>,
    /// The call that summarises the conversation.
    summary: Option<BoxFuture<Option<Box<Response>>>>,
    /// The ends of agents' runs, once their parent was stopped.
    ending: Option<FuturesUnordered<BoxFuture<Result<RunStatus>>>>,
}

enum Model {
    Idle,
    Opening(BoxFuture<Result<Opened>>),
    Answering(ModelStream),
}

impl Live {
    pub(super) fn new(
        journal: Option<Arc<Journal>>,
        resumption: Resumption,
        machine: &Machine,
    ) -> Self {
        Self {
            clock: Clock::new(resumption.active),
            journal,
            model: Model::Idle,
            is_settled: false,
            limits: CallLimits::default(),
            watch: Watch::default(),
            tools: ToolRuns::default(),
            progress: machine.progress(),
            starting: Vec::new(),
            finished: None,
            due: VecDeque::new(),
            deadline: None,
            wall_clock: WallClock::new(machine.setup.policy.budget.as_ref(), resumption.active),
            resumption,
            sleep: None,
            metrics: machine.setup.metrics.clone(),
            summary: None,
            ending: None,
        }
    }

    /// What stops the run now: its caller, its deadline, or the limit on its time.
    fn poll_stop(
        &mut self,
        cx: &mut Context<'_>,
        action: &Action,
        machine: &Machine,
        cancelled: bool,
    ) -> Option<Input> {
        if machine.is_over() {
            return None;
        }
        if cancelled {
            return Some(Input::Interrupted { reason: HaltReason::Cancelled, end: None });
        }
        // A deadline runs from the first poll on: nothing happens before it, and a runtime need not be there.
        if let Some(limit) = machine.setup.deadline {
            let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
            if deadline.as_mut().poll(cx).is_ready() {
                return Some(Input::Interrupted { reason: HaltReason::Deadline, end: None });
            }
        }
        let place = match action {
            Action::CallModel | Action::Summarise(_) => Some(BreachTime::MidStream),
            Action::RunTools if machine.is_running() => Some(BreachTime::MidStream),
            Action::Sleep(_) => Some(BreachTime::PreCall),
            action if action.takes_time() => Some(BreachTime::PreCall),
            _ => None,
        };
        // The clock starts with the run.
        let passed =
            self.wall_clock.as_mut()?.poll_passed(cx, place.unwrap_or(BreachTime::PreCall));
        passed.filter(|_| place.is_some()).map(Input::LimitReached)
    }

    /// Records of the calls in flight that they end with the run.
    fn cut_off_tools(&mut self, machine: &Machine) -> Result<()> {
        let Some(journal) = &self.journal else { return Ok(()) };
        // What they recorded before comes first: an agent's run that started must end too.
        self.due.extend(
            std::iter::from_fn(|| journal.noted()).map(|fact| Input::Recorded(Box::new(fact))),
        );
        for call in machine.state.open_calls() {
            if let Some(mut fact) = journal.cut_off(&call.id) {
                journal.commit(&mut fact)?;
                self.due.push_back(Input::Recorded(Box::new(fact)));
            }
        }
        Ok(())
    }

    /// What a model call fails with that takes too long, or is silent for too long.
    fn timed_out(&mut self, cx: &mut Context<'_>, machine: &Machine) -> Option<Error> {
        let why = self.limits.poll_passed(cx)?;
        let error = Error::adapter(AdapterReason::Timeout)
            .with_message(format!("adapter error: timeout: {why}"))
            .with_provider(machine.setup.adapter.name());
        Some(error)
    }

    /// What the user says next. A message of the inbox is consumed with its fact.
    fn next_message(&mut self) -> Option<Arc<Message>> {
        if let Some(message) = self.resumption.message.take() {
            return Some(message);
        }
        let (id, message) = self.resumption.mailbox.as_ref()?.next()?;
        self.journal.iter().for_each(|journal| journal.consume(id.clone()));
        Some(message)
    }

    fn stop_model(&mut self) {
        (self.model, self.limits) = (Model::Idle, CallLimits::default());
        self.summary = None;
    }

    /// Reports a model call or the end of the run to the metrics sink.
    fn observe(&mut self, fact: &Fact) {
        let usage = |response: &Option<Box<Response>>| {
            response.as_ref().map(|response| response.usage.clone())
        };
        match fact {
            Fact::AssistantCompleted { response, .. } => {
                let failure = response.error();
                self.watch.end(failure.as_ref().map(Error::reason), Some(&response.usage));
            }
            Fact::FinalizeFailed { error } => self.watch.end(Some(error.reason()), None),
            Fact::BudgetExceeded { breach, partial, .. } => {
                let run_id = self.journal.as_ref().map(|journal| &**journal.run_id());
                tell_exceeded(run_id, breach, self.metrics.as_ref());
                let why = HaltReason::BudgetExceeded;
                self.watch.end(Some(why.as_str()), usage(partial).as_ref());
            }
            Fact::Cancelled { end, partial, .. } => {
                self.watch.end(Some(end.reason.as_str()), usage(partial).as_ref());
            }
            Fact::RunStarted { .. }
            | Fact::Resumed { .. }
            | Fact::UserMessage { .. }
            | Fact::TurnStarted { .. }
            | Fact::TurnLost { .. }
            | Fact::FinalizeStarted { .. }
            | Fact::ToolScheduled { .. }
            | Fact::ToolCompleted { .. }
            | Fact::ToolFailed { .. }
            | Fact::SideEffect { .. }
            | Fact::ContextTruncated { .. }
            | Fact::Suspended(_)
            | Fact::Completed(_)
            | Fact::Failed(_)
            | Fact::Sealed(_)
            | Fact::Removed(_) => {}
        }
    }
}

impl Door for Live {
    fn commit(&mut self, mut fact: Fact) -> Result<Fact> {
        self.observe(&fact);
        if let Some(journal) = &self.journal {
            self.clock.stamp(&mut fact);
            journal.commit(&mut fact)?;
        }
        Ok(fact)
    }

    fn before(
        &mut self,
        cx: &mut Context<'_>,
        action: &Action,
        machine: &Machine,
        cancelled: bool,
    ) -> Option<Input> {
        if let Some(due) = self.due.pop_front() {
            return Some(due);
        }
        if *action == Action::Stop {
            return None;
        }
        if let Some(resumed) = self.after_end() {
            return Some(resumed);
        }
        if let Some(stop) = self.poll_stop(cx, action, machine, cancelled) {
            self.stop_model();
            if machine.is_running()
                && let Err(error) = self.cut_off_tools(machine)
            {
                tracing::debug!(%error, "the end of running tools could not be recorded");
            }
            self.tools.clear();
            self.progress.clear();
            self.starting.clear();
            self.finished = None;
            self.due.push_back(stop);
            return self.due.pop_front();
        }
        if machine.leaves_the_word(action) {
            return self.next_message().map(Input::Said);
        }
        None
    }

    fn poll_messages(
        &mut self,
        cx: &mut Context<'_>,
        action: &Action,
        machine: &Machine,
    ) -> Poll<()> {
        let looked = match &mut self.resumption.mailbox {
            Some(mailbox) if mailbox.is_new() || action.leaves_the_word() => {
                mailbox.poll_refresh(cx)
            }
            _ => return Poll::Ready(()),
        };
        // A log that does not answer puts off neither the deadline nor the limit on time.
        if looked.is_pending() && self.poll_stop(cx, action, machine, false).is_some() {
            self.resumption.mailbox = None;
            return Poll::Ready(());
        }
        looked
    }

    fn call_model(&mut self, machine: &Machine) {
        self.resumption.woken = false;
        let (setup, state) = (&machine.setup, &machine.state);
        let asked = match (&setup.asked_last, &state.conversation) {
            (Some(last), Some(_)) => Arc::clone(last),
            _ => Arc::clone(&setup.asked),
        };
        let mut messages = state.view.of(&state.thread.messages);
        if state.conversation.is_none()
            && let Some(note) = state.budget_note(&setup.policy)
        {
            messages.push(note);
        }
        let (request, call) = asked.as_ref();
        self.watch = Watch::model(setup.metrics.as_ref(), request.model.as_ref());
        self.clock.model_called();
        self.limits = CallLimits::begin(call.request_timeout, call.stream_timeout);
        let (adapter, retry) = (Arc::clone(&setup.adapter), Arc::clone(&setup.retry));
        let world = Arc::clone(&setup.world);
        let parking = Parking::new(state.attempts, machine.park_after());
        let opening = open_or_park(adapter, asked, messages, retry, world, parking);
        self.model = Model::Opening(Box::pin(opening));
        self.is_settled = false;
    }

    fn poll_model(&mut self, cx: &mut Context<'_>, machine: &Machine) -> Poll<Result<Input>> {
        if let Some(error) = self.timed_out(cx, machine) {
            self.stop_model();
            return Poll::Ready(Ok(Input::ModelEnded(Err(error))));
        }
        let ended = loop {
            match &mut self.model {
                Model::Idle => return Poll::Pending,
                Model::Opening(opening) => {
                    // A model call costs money, not correctness: it need not wait until what precedes it is durable.
                    if let Some(journal) = &self.journal {
                        ready!(journal.poll(cx, Recorder::poll_room))?;
                    }
                    match ready!(opening.poll_unpin(cx)) {
                        Ok(Opened::Stream(stream)) => self.model = Model::Answering(stream),
                        Ok(Opened::Later { delay, attempts, error }) => {
                            self.watch.end(Some(error.reason()), None);
                            self.stop_model();
                            return Poll::Ready(Ok(park_call(machine, delay, attempts, &error)));
                        }
                        Err(error) => {
                            self.watch.end(Some(error.reason()), None);
                            break Err(error.with_cause_told());
                        }
                    }
                }
                Model::Answering(stream) => {
                    // The lease of a new run is kept once the log has said that it has the first records. What fails is
                    // reported when it is waited for.
                    if !self.is_settled {
                        let journal = self.journal.as_ref();
                        let settles = |journal: &Arc<Journal>| {
                            journal.poll(cx, Recorder::poll_flush).is_ready()
                        };
                        self.is_settled = journal.is_none_or(settles);
                    }
                    match ready!(stream.poll_next_unpin(cx)) {
                        Some(Ok(event)) => {
                            self.limits.heard();
                            self.clock.heard(&event);
                            return Poll::Ready(Ok(Input::ModelEvent(event)));
                        }
                        // The result and the records have no other cause.
                        Some(Err(error)) => break Err(error.with_cause_told()),
                        None => break Ok(()),
                    }
                }
            }
        };
        self.stop_model();
        Poll::Ready(Ok(Input::ModelEnded(ended)))
    }

    fn poll_summary(
        &mut self,
        cx: &mut Context<'_>,
        machine: &Machine,
        view: ContextView,
    ) -> Poll<Result<Input>> {
        // That the model is asked is written meanwhile.
        if let Some(journal) = &self.journal
            && let Poll::Ready(Err(error)) = journal.poll(cx, Recorder::poll_flush)
        {
            return Poll::Ready(Err(error));
        }
        let summary = self.summary.get_or_insert_with(|| summarise(machine, &view));
        let summary = ready!(summary.poll_unpin(cx));
        self.summary = None;
        Poll::Ready(Ok(Input::Summarised { view, summary }))
    }

    fn poll_ended(&mut self, cx: &mut Context<'_>, machine: &Machine) -> Poll<()> {
        let ending = self.ending.get_or_insert_with(|| {
            let log = self.journal.as_ref().and_then(|journal| journal.log());
            let runs = machine.state.runs_to_end().iter().zip(log.into_iter().cycle());
            runs.map(|(run, log)| Cancel::of(log, run, &machine.setup.world).into_future())
                .collect()
        });
        while let Some(ended) = ready!(ending.poll_next_unpin(cx)) {
            if let Err(error) = ended {
                tracing::debug!(%error, "the run of an agent was not ended with its parent");
            }
        }
        Poll::Ready(())
    }

    fn start_tool(&mut self, call: &Arc<ToolCall>, machine: &Machine) -> bool {
        self.resumption.woken = false;
        if self.journal.is_some() {
            self.clock.tool_started(&call.id);
        }
        let progress = machine.shows_progress().then_some(&self.progress);
        self.starting.push(running(call, machine, self.journal.as_ref(), false, progress));
        true
    }

    fn poll_tools(&mut self, cx: &mut Context<'_>, _: &Machine) -> Poll<Result<Input>> {
        // Since they were announced, the caller may have been away for longer than the lease. Tools that run continue meanwhile.
        if !self.starting.is_empty() {
            let held = self
                .journal
                .as_ref()
                .map_or(Poll::Ready(Ok(())), |j| j.poll(cx, Recorder::poll_held));
            if let Poll::Ready(held) = held {
                held?;
                self.tools.extend(self.starting.drain(..));
            }
        }
        loop {
            // What a call noted of its attempts comes before its outcome.
            if let Some(fact) = self.journal.as_ref().and_then(|journal| journal.noted()) {
                return Poll::Ready(Ok(Input::Recorded(Box::new(fact))));
            }
            if let Some((call, settled)) = self.finished.take() {
                return Poll::Ready(Ok(Input::ToolFinished { call, settled }));
            }
            if let Poll::Ready(Some(finished)) = self.tools.poll_next_unpin(cx) {
                self.progress.end(&finished.0.id);
                self.finished = Some(finished);
                continue;
            }
            let Some(journal) = &self.journal else { return Poll::Pending };
            // What is done is written while others still run.
            journal.watch(cx)?;
            let noted = journal.noted().map(|fact| Ok(Input::Recorded(Box::new(fact))));
            return noted.map_or(Poll::Pending, Poll::Ready);
        }
    }

    fn poll_progress(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        self.progress.poll(cx)
    }

    fn poll_sleep(
        &mut self,
        cx: &mut Context<'_>,
        until: u64,
        machine: &Machine,
    ) -> Poll<Result<Input>> {
        let now = now_ms(machine);
        let left = Duration::from_millis(until.saturating_sub(now));
        let mut has_come = std::mem::take(&mut self.resumption.woken) || left.is_zero();
        if !has_come {
            if machine.park_after().is_some_and(|longest| left > longest) {
                return Poll::Ready(Ok(Input::Parked(End::sleeping(until))));
            }
            // What was done is written meanwhile.
            if let Some(journal) = &self.journal
                && let Poll::Ready(Err(error)) = journal.poll(cx, Recorder::poll_flush)
            {
                return Poll::Ready(Err(error));
            }
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(left)));
            has_come = sleep.as_mut().poll(cx).is_ready();
        }
        if !has_come {
            return Poll::Pending;
        }
        self.sleep = None;
        let is_due = |(_, time): &(&str, u64)| *time <= now.max(until);
        let due = machine.state.sleeping().filter(is_due).map(|(call, _)| call.to_owned());
        Poll::Ready(Ok(Input::Woke(due.collect())))
    }

    fn after_end(&mut self) -> Option<Input> {
        self.resumption.fact.take().map(Input::Resumed)
    }
}

/// The time by the clock of the run, in milliseconds since 1970.
fn now_ms(machine: &Machine) -> u64 {
    millis(since_1970(machine.setup.world.now()))
}

/// A model call that is made again after a delay for which the run does not wait here.
fn park_call(machine: &Machine, delay: Duration, attempts: u32, error: &Error) -> Input {
    let mut end = End::sleeping(now_ms(machine).saturating_add(millis(delay)));
    end.metadata.insert(ATTEMPTS.to_owned(), json!(attempts));
    end.metadata.insert("error".to_owned(), error.to_value());
    Input::Parked(end)
}

/// Asks the model for a summary of what a view leaves out. The run continues without one if the call fails.
fn summarise(machine: &Machine, view: &ContextView) -> BoxFuture<Option<Box<Response>>> {
    let (setup, state) = (&machine.setup, &machine.state);
    let Some(messages) = state.summary_request(view, &setup.policy) else {
        return Box::pin(std::future::ready(None));
    };
    let mut request = without_tools(setup.request());
    request.messages = messages;
    let call = setup.call().clone();
    let mut watch = Watch::model(setup.metrics.as_ref(), request.model.as_ref());
    let mut hearing = IncomingAnswer::new(state.spent.pricing().copied(), false);
    let (adapter, retry) = (Arc::clone(&setup.adapter), Arc::clone(&setup.retry));
    let world = Arc::clone(&setup.world);
    Box::pin(async move {
        let limit = call.request_timeout.unwrap_or(Duration::MAX);
        let silence = call.stream_timeout.unwrap_or(Duration::MAX);
        let name = adapter.name().to_owned();
        let answered = tokio::time::timeout(limit, async {
            let mut events = open_model(adapter, request, call, retry, world).await?;
            let silent = |_| Error::adapter(AdapterReason::Timeout);
            while let Some(event) =
                tokio::time::timeout(silence, events.next()).await.map_err(silent)?
            {
                hearing.hear(event?, None);
            }
            hearing.check_end(&name, false)
        });
        let answered =
            answered.await.unwrap_or_else(|_| Err(Error::adapter(AdapterReason::Timeout)));
        if let Err(error) = answered {
            hearing.hear(Event::Error { error }, None);
        }
        let (response, _) = hearing.into_answer();
        let error = response.error();
        watch.end(error.as_ref().map(Error::reason), Some(&response.usage));
        if let Some(error) = error {
            tracing::warn!(%error, "the conversation is shortened without a summary");
        }
        Some(Box::new(response))
    })
}

/// Measures how long things take, for their facts.
struct Clock {
    /// How long earlier processes were active, and since when this one is.
    active: Duration,
    began: Instant,
    model: Option<Instant>,
    /// How long the first token of the model took.
    first_token: Option<Duration>,
    tools: HashMap<String, Instant>,
}

impl Clock {
    fn new(active: Duration) -> Self {
        let (began, tools) = (Instant::now(), HashMap::new());
        Self { active, began, model: None, first_token: None, tools }
    }

    fn model_called(&mut self) {
        (self.model, self.first_token) = (Some(Instant::now()), None);
    }

    fn heard(&mut self, event: &Event) {
        if self.first_token.is_none() && event.is_token() {
            self.first_token = self.model.map(|began| began.elapsed());
        }
    }

    fn tool_started(&mut self, call: &str) {
        self.tools.insert(call.to_owned(), Instant::now());
    }

    /// Writes into a fact how long what it is about took.
    fn stamp(&mut self, fact: &mut Fact) {
        let took = match fact {
            Fact::AssistantCompleted { first_token_ms, .. } => {
                *first_token_ms = self.first_token.take().map(millis);
                self.model.take().map(|began| began.elapsed())
            }
            Fact::ToolCompleted { call_id, .. } | Fact::ToolFailed { call_id, .. } => {
                self.tools.remove(call_id).map(|began| began.elapsed())
            }
            Fact::Suspended(_) | Fact::Completed(_) | Fact::Failed(_) | Fact::Cancelled { .. } => {
                Some(self.active + self.began.elapsed())
            }
            Fact::RunStarted { .. }
            | Fact::Resumed { .. }
            | Fact::UserMessage { .. }
            | Fact::TurnStarted { .. }
            | Fact::TurnLost { .. }
            | Fact::FinalizeStarted { .. }
            | Fact::FinalizeFailed { .. }
            | Fact::ToolScheduled { .. }
            | Fact::SideEffect { .. }
            | Fact::ContextTruncated { .. }
            | Fact::BudgetExceeded { .. }
            | Fact::Sealed(_)
            | Fact::Removed(_) => return,
        };
        fact.set_duration_ms(took.map(millis));
    }
}

/// How long a model call may take, and be silent.
#[derive(Default)]
struct CallLimits {
    whole: Option<Pin<Box<Sleep>>>,
    max_silence: Option<Duration>,
    /// From the first event on: until then each attempt has its own.
    silence: Option<Pin<Box<Sleep>>>,
}

impl CallLimits {
    fn begin(whole: Option<Duration>, max_silence: Option<Duration>) -> Self {
        let whole = whole.map(|limit| Box::pin(tokio::time::sleep(limit)));
        Self { whole, max_silence, silence: None }
    }

    /// Restarts the timer for silence.
    fn heard(&mut self) {
        let Some(limit) = self.max_silence else { return };
        match &mut self.silence {
            Some(timer) => timer.as_mut().reset(Instant::now() + limit),
            None => self.silence = Some(Box::pin(tokio::time::sleep(limit))),
        }
    }

    fn poll_passed(&mut self, cx: &mut Context<'_>) -> Option<&'static str> {
        let mut passed = |timer: &mut Option<Pin<Box<Sleep>>>| {
            timer.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready())
        };
        if passed(&mut self.whole) {
            return Some("the call took longer than request_timeout");
        }
        passed(&mut self.silence).then_some("nothing came for longer than stream_timeout")
    }
}
