//! The journal: facts of a live run go to the log, facts of a replay come from the records.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker, ready},
    time::Duration,
};

use mynah_data::{Error, ErrorKind, LogReason, Result, RunId, ToolCall, ToolReason};
use mynah_log::{Fact, Hash, Head, Inside, Lease, Log};
use tokio::time::{Instant, Sleep};

use crate::{
    Recorder, ReplayCursor,
    alone::{Keeper, keeps},
    cursor::of_tool,
};

mod state;

/// The journal of a run that is recorded, replayed or resumed: facts go in, and recorded answers come out.
///
/// The loop, its branches and its tools send questions concurrently. A live run answers each at
/// once. In a replay the recorded order is a turnstile: each question is answered when the next
/// record is its own, so the calls meet the recorded interleaving. An early question looks like one
/// that differs, because another branch may wait for something outside of the run. So a difference
/// is reported when everything has waited behind it for a while in vain.
pub struct Journal {
    run: RunId,
    state: Mutex<State>,
    /// Also wakes for what the journal waits for, which must not keep the journal.
    parked: Arc<Parked>,
}

/// Why calls are stopped with their run.
pub(crate) const RUN_ENDED: &str = "the run was ended";

/// How long a replay may stand still: a question may be early, or be given up as it was live.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long if the loop has ended, or nothing but the journal can wake anything: enough for tasks that are not waited for.
const GRACE: Duration = Duration::from_millis(100);

/// What the journal holds behind its lock.
#[derive(Default)]
pub(crate) struct State {
    /// Writes the run. In a run that is resumed, what follows its records.
    pub(crate) recorder: Option<Box<Recorder>>,
    /// The records that answer first.
    pub(crate) cursor: Option<Box<ReplayCursor>>,
    questions: Vec<Question>,
    /// How many of them, from the first, have no answer until something changes, and when that was
    /// found.
    without_answer: (usize, u64),
    /// Answers that were not taken yet, by the ids of the questions.
    answers: HashMap<u64, Answer>,
    /// The attempts that began and have no outcome, by the ids of their calls. Of a user's loop also calls that are announced and do
    /// not run.
    attempts: HashMap<String, Attempt>,
    /// The turn of a user's loop that began and has no answer.
    turn: Option<u32>,
    /// Facts that tools committed, for an engine that folds them.
    noted: Option<VecDeque<Fact>>,
    /// Whether the loop may wait for something else than the journal.
    loop_waits_elsewhere: bool,
    /// How many questions were answered.
    answered: u64,
    /// How many of them the engine's loop has seen.
    seen: u64,
    standstill: Option<Stall>,
}

/// Wakers of tasks that wait.
#[derive(Default)]
struct Parked(Mutex<Wakers>);

#[derive(Default)]
struct Wakers {
    /// For the answers to their questions.
    for_answers: HashMap<u64, Waker>,
    /// For the log, or any change.
    others: Vec<Waker>,
}

#[derive(Default)]
struct Attempt {
    tool: String,
    number: u32,
    /// Whether the call may have run, in this process or one before.
    may_have_run: bool,
    /// Whether it does not run any more.
    is_over: bool,
    /// Whether it waits for nothing but the journal.
    is_alone: bool,
    /// When a question of it was last answered.
    answered: Option<Instant>,
}

/// A replay in which nothing happens.
struct Stall {
    /// How many questions had been answered before.
    since: u64,
    until: Pin<Box<Sleep>>,
    /// Whether it may last long.
    is_patient: bool,
}

type Answer = Result<Option<Fact>>;

struct Question {
    /// None if nothing waits for the answer.
    id: Option<u64>,
    place: Origin,
    want: Query,
}

/// A question that is being asked, until this is dropped.
struct Asking<'a> {
    journal: &'a Journal,
    keeper: Keeper,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let id = self.keeper.id();
        lock(&self.journal.parked.0).for_answers.remove(&id);
        let mut state = self.journal.lock();
        if state.answers.remove(&id).is_none() {
            state.withdraw(|question| question.id == Some(id));
        }
    }
}

/// Where in a run a fact is made: inside an attempt of a tool, or by the loop itself.
pub(crate) type Origin = Option<Inside>;

/// What a question is about.
pub(crate) enum Query {
    /// Whether a fact is the recorded one, if it is of a side effect that of this one.
    Commit { fact: Fact, asked: Option<PendingEffect> },
    /// Whether a fact is recorded that announces something; or what stopped the run before it.
    Announce(Fact),
    /// What is recorded of a side effect. If nothing has to be, nothing may be.
    Recall { asked: PendingEffect, required: bool },
    /// When this request to the model was made; none if no record has it.
    Turn(Hash),
    /// How the call came out, from its record.
    Outcome,
    /// What the model answered, from its record; or how the run ended, if it did not.
    Answer,
}

/// A side effect that was asked for and has no record yet.
#[derive(Clone)]
pub(crate) struct PendingEffect {
    pub(crate) name: Arc<str>,
    queue: Arc<EffectQueue>,
}

/// The side effects of one place that have no record, in the order in which they were asked for. One that is given up stays: when
/// that was is nothing that a replay knows.
#[derive(Default)]
pub(crate) struct EffectQueue(Mutex<Vec<Arc<str>>>);

impl EffectQueue {
    pub(crate) fn push(self: &Arc<Self>, name: &str) -> PendingEffect {
        let name = Arc::from(name);
        lock(&self.0).push(Arc::clone(&name));
        PendingEffect { name, queue: Arc::clone(self) }
    }

    /// Forgets those that were given up: a run that continues from here does not know of them.
    pub(crate) fn clear(&self) {
        lock(&self.0).clear();
    }
}

impl PendingEffect {
    /// How many of the same name were asked for before and have no record.
    pub(crate) fn ahead(&self) -> u32 {
        let names = lock(&self.queue.0);
        let before = names.iter().take_while(|other| !Arc::ptr_eq(other, &self.name));
        before.filter(|other| **other == self.name).count().try_into().unwrap_or(u32::MAX)
    }

    /// It has its record.
    fn leave(&self) {
        lock(&self.queue.0).retain(|other| !Arc::ptr_eq(other, &self.name));
    }
}

impl Journal {
    /// The journal of an engine's run that is recorded.
    pub fn recording(recorder: Recorder) -> Arc<Self> {
        Self::new(recorder.run_id().clone(), Some(recorder), None, Some(VecDeque::new()))
    }

    /// The journal of an engine's run that is replayed.
    pub fn replaying(cursor: ReplayCursor) -> Arc<Self> {
        Self::new(cursor.run_id().clone(), None, Some(cursor), Some(VecDeque::new()))
    }

    /// The journal of a user's loop. Its records answer first, and what follows them is recorded.
    pub(crate) fn of_loop(
        run: &str,
        recorder: Option<Recorder>,
        cursor: Option<ReplayCursor>,
    ) -> Arc<Self> {
        Self::new(RunId::from(run), recorder, cursor, None)
    }

    fn new(
        run: RunId,
        recorder: Option<Recorder>,
        cursor: Option<ReplayCursor>,
        noted: Option<VecDeque<Fact>>,
    ) -> Arc<Self> {
        let state = State {
            recorder: recorder.map(Box::new),
            cursor: cursor.map(Box::new),
            loop_waits_elsewhere: noted.is_none(),
            noted,
            ..State::default()
        };
        Arc::new(Self { run, state: Mutex::new(state), parked: Arc::default() })
    }

    /// The run's id.
    pub fn run_id(&self) -> &RunId {
        &self.run
    }

    /// The log that records the run; none in a replay.
    pub fn log(&self) -> Option<Arc<dyn Log>> {
        self.lock().recorder.as_ref().map(|recorder| recorder.log())
    }

    /// The log, the lease of the run and its last record, if this process records the run.
    pub fn held(&self) -> Option<(Arc<dyn Log>, Lease, u64)> {
        self.lock().recorder.as_ref()?.lease()
    }

    /// What is recorded, while nothing else changes it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Looks at the records that answer, if there are any.
    pub fn records<T>(&self, look: impl FnOnce(&mut ReplayCursor) -> Option<T>) -> Option<T> {
        self.lock().cursor.as_mut().and_then(|cursor| look(cursor))
    }

    /// The error of a replay in which nothing makes what is recorded next.
    pub fn differs_from_next(&self) -> Error {
        let difference = self.records(|cursor| {
            let before = cursor.difference().cloned();
            Some(before.unwrap_or_else(|| cursor.differs_from_next(None)))
        });
        difference.unwrap_or_else(gone)
    }

    /// Removes a message from the inbox of a run that is being recorded, in the commit of its next record.
    pub fn consume(&self, message: String) {
        if let Some(recorder) = &mut self.lock().recorder {
            recorder.consume(message);
        }
    }

    /// Where the chain of a run that is being recorded ends.
    pub fn head(&self) -> Option<Head> {
        self.lock().recorder.as_ref()?.chain.head()
    }

    /// Commits a fact that the engine's loop made. A replay compares it with the next record, which
    /// has the durations.
    pub fn commit(&self, fact: &mut Fact) -> Result<()> {
        let mut state = self.lock();
        if let Some(cursor) = &mut state.cursor {
            if let Some(error) = cursor.difference() {
                return Err(error.clone());
            }
            cursor.set_durations(fact);
            cursor.compare(fact)?;
        } else if let Some(recorder) = &mut state.recorder {
            recorder.commit(fact)?;
        }
        state.came_out(fact);
        Ok(())
    }

    /// Answers what can be answered, and does what is waited for: takes the lease, makes facts durable, counts the time of a
    /// standstill.
    fn work(&self) {
        let waker = Waker::from(Arc::clone(&self.parked));
        let cx = &mut Context::from_waker(&waker);
        let mut state = self.lock();
        let mut answered = Vec::new();
        state.answer_all(cx, &mut answered);
        state.poll_stuck(cx, &mut answered);
        drop(state);
        if !answered.is_empty() {
            self.wake(&answered);
        }
    }

    /// Wakes the tasks that wait for these answers, or for any change.
    fn wake(&self, answered: &[u64]) {
        let mut parked = lock(&self.parked.0);
        let mut wakers = std::mem::take(&mut parked.others);
        wakers.extend(answered.iter().filter_map(|id| parked.for_answers.remove(id)));
        drop(parked);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Asks something and waits for the answer.
    pub(crate) async fn ask(&self, place: Origin, want: Query) -> Result<Option<Fact>> {
        let asking = Asking { journal: self, keeper: Keeper::new() };
        let id = asking.keeper.id();
        self.lock().question(id, place, want);
        poll_fn(|cx| {
            self.work();
            if let Some(answer) = self.lock().answers.remove(&id) {
                return Poll::Ready(answer);
            }
            asking.keeper.keep(cx.waker());
            lock(&self.parked.0).for_answers.insert(id, cx.waker().clone());
            // What became ready before that did not wake this task.
            self.work();
            self.lock().answers.remove(&id).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Records a fact that was made at a place, of this side effect if it is of one; waits until it is safe, if it must be. If records
    /// answer, it must be the recorded one. Otherwise its own task adds it: one that gives up the wait for that has recorded nothing.
    pub(crate) async fn keep(
        &self,
        place: Origin,
        mut fact: Fact,
        asked: Option<PendingEffect>,
        durable: bool,
    ) -> Result<()> {
        let replays = self.lock().cursor.is_some();
        let mut is_recorded = false;
        if replays {
            let want = Query::Commit { fact: fact.clone(), asked: asked.clone() };
            is_recorded = self.ask(place.clone(), want).await?.is_some();
        }
        if !is_recorded {
            poll_fn(|cx| {
                loop {
                    let added = self.lock().add(&place, &mut fact, asked.as_ref());
                    if let Some(added) = added {
                        self.wake(&[]);
                        return Poll::Ready(added);
                    }
                    ready!(self.poll(cx, Recorder::poll_room))?;
                }
            })
            .await?;
        }
        if durable {
            poll_fn(|cx| self.poll_durable(cx)).await?;
        }
        Ok(())
    }

    /// Works while calls of the engine's loop run, and wakes the task when anything changes. Returns whether anything was answered
    /// since this was last asked.
    ///
    /// # Errors
    /// `replay_mismatch`, if a call asked for something that is not recorded.
    pub fn watch(&self, cx: &mut Context<'_>) -> Result<bool> {
        self.park(cx);
        self.work();
        // What is done is written while others still run. What fails is reported when it is waited for.
        let _ = self.poll(cx, Recorder::poll_flush);
        let mut state = self.lock();
        let is_new = state.seen != state.answered;
        state.seen = state.answered;
        let differs = state.cursor.as_ref().and_then(|cursor| cursor.difference());
        differs.map_or(Ok(is_new), |error| Err(error.clone()))
    }

    /// Wakes the task when the log is ready, or anything changes.
    pub(crate) fn park(&self, cx: &mut Context<'_>) {
        keeps(cx.waker(), Keeper::JOURNAL);
        let others = &mut lock(&self.parked.0).others;
        if !others.iter().any(|other| other.will_wake(cx.waker())) {
            others.push(cx.waker().clone());
        }
    }

    /// Waits for something of the recorder, such as [`Recorder::poll_held`]. There is nothing to wait for while records answer.
    pub fn poll(
        &self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Recorder, &mut Context<'_>) -> Poll<Result<()>>,
    ) -> Poll<Result<()>> {
        let mut state = self.lock();
        let Some(recorder) = state.live() else { return Poll::Ready(Ok(())) };
        poll(recorder, &mut Context::from_waker(&self.parked(cx)))
    }

    /// A waker for what the journal waits for, which wakes this task and all others: any of them may poll it last.
    fn parked(&self, cx: &mut Context<'_>) -> Waker {
        self.park(cx);
        Waker::from(Arc::clone(&self.parked))
    }

    /// Whether every fact is [on its way to the log](Recorder::poll_given).
    pub fn is_given(&self) -> bool {
        self.lock().recorder.as_ref().is_none_or(|recorder| recorder.is_given())
    }

    /// Takes a run that is resumed before its records are asked. If its process died in it, that is recorded at once unless the run
    /// waits, and this returns the fact.
    pub(crate) async fn take_over(&self, waits: bool) -> Result<Option<Fact>> {
        let mut seam = None;
        poll_fn(|cx| {
            let mut state = self.lock();
            let Some(recorder) = &mut state.recorder else { return Poll::Ready(Ok(())) };
            let waker = self.parked(cx);
            let cx = &mut Context::from_waker(&waker);
            ready!(recorder.poll_take(cx))?;
            if !waits && recorder.owes_seam() {
                seam = seam.take().or(recorder.commit_seam()?);
            }
            recorder.poll_flush(cx)
        })
        .await
        .map(|()| seam)
    }

    /// Waits until every fact is durable.
    pub fn poll_durable(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let mut state = self.lock();
        if state.is_behind() {
            return Poll::Ready(Ok(()));
        }
        let waker = self.parked(cx);
        let cx = &mut Context::from_waker(&waker);
        ready!(state.poll_take_over(cx));
        state.live().map_or(Poll::Ready(Ok(())), |recorder| recorder.poll_flush(cx))
    }

    /// An attempt of a call begins: it runs, or its record is waited for.
    pub(crate) fn begin(&self, call: &ToolCall, number: u32, runs: bool) {
        let mut state = self.lock();
        let before = state.attempts.get(&call.id);
        let may_have_run = runs || before.is_none_or(|before| before.may_have_run);
        let (tool, is_alone) = (call.name.clone(), !runs);
        let attempt = Attempt { tool, number, may_have_run, is_alone, ..Attempt::default() };
        state.attempts.insert(call.id.clone(), attempt);
    }

    /// Whether an attempt of a call waits for nothing but the journal.
    pub(crate) fn set_alone(&self, call_id: &str, is_alone: bool) {
        let mut state = self.lock();
        let Some(attempt) = state.attempts.get_mut(call_id) else { return };
        if !std::mem::replace(&mut attempt.is_alone, is_alone) && is_alone {
            self.count_anew(state);
        }
    }

    /// Whether the loop may wait for something else than the journal.
    pub(crate) fn set_loop_waits_elsewhere(&self, elsewhere: bool) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.loop_waits_elsewhere, elsewhere) && !elsewhere {
            self.count_anew(state);
        }
    }

    /// A standstill that may last long need not any more, unless a call is to be given up.
    fn count_anew(&self, mut state: MutexGuard<'_, State>) {
        if state.cursor.as_ref().is_some_and(|cursor| cursor.gives_up_next()) {
            return;
        }
        if state.standstill.take_if(|standstill| standstill.is_patient).is_some() {
            drop(state);
            Arc::clone(&self.parked).wake();
        }
    }

    /// An attempt of a call is over: its tool is done, was given up, or was dropped with its run. What continues all the same, as a
    /// thread does, gets nothing more: it would stand behind the outcome, where no replay asks for it.
    pub(crate) fn end(&self, call: &ToolCall, number: u32) {
        let mut state = self.lock();
        let attempt = state.attempts.get_mut(&call.id).filter(|attempt| attempt.number == number);
        if let Some(attempt) = attempt {
            attempt.is_over = true;
        }
        let is_of = |place: &Origin| {
            place.as_ref().is_some_and(|at| at.call_id == call.id && at.attempt == number)
        };
        let over = state.withdraw(|question| is_of(&question.place));
        state.answers.extend(over.iter().map(|id| (*id, Err(call_is_over()))));
        drop(state);
        if !over.is_empty() {
            self.wake(&over);
        }
    }

    /// Since when an attempt of a call has not waited for an answer; none if it never did.
    pub(crate) fn busy_since(&self, call: &ToolCall) -> Option<Instant> {
        let state = self.lock();
        let attempt = state.attempts.get(&call.id)?;
        if state.waits(&call.id) { Some(Instant::now()) } else { attempt.answered }
    }

    /// A fact that a tool of an engine's run committed since this was last asked.
    pub fn noted(&self) -> Option<Fact> {
        self.lock().noted.as_mut()?.pop_front()
    }

    /// The fact that a call was stopped with its run; none if it did not begin, or came out.
    pub fn cut_off(&self, call_id: &str) -> Option<Fact> {
        self.lock().stopped(call_id, RUN_ENDED)
    }

    /// Leaves it to be recorded of a call that it was stopped, unless it was not announced or came out.
    pub(crate) fn leave_stopped(&self, call_id: &str, why: &str) {
        let mut state = self.lock();
        let Some(stopped) = state.stopped(call_id, why) else { return };
        // A replay does not know how far the call was.
        let recorded = state.cursor.as_ref().and_then(|cursor| cursor.cut_off_ahead(call_id));
        let fact = recorded.cloned().unwrap_or(stopped);
        drop(state);
        self.leave(fact);
    }

    /// Leaves it to be recorded of a turn, if it has no answer, that its loop gave it up. Returns the fact.
    pub(crate) fn leave_turn(&self, turn: u32, lost: impl FnOnce() -> Fact) -> Option<Fact> {
        let mut state = self.lock();
        state.turn.take_if(|open| *open == turn)?;
        // A replay takes what the call cost from the record.
        let recorded = state.cursor.as_ref().and_then(|cursor| cursor.lost_ahead(turn));
        let fact = recorded.cloned().unwrap_or_else(lost);
        drop(state);
        self.leave(fact.clone());
        Some(fact)
    }

    /// Leaves a fact to be recorded, which nothing waits for.
    fn leave(&self, fact: Fact) {
        let place = of_tool(&fact)
            .map(|(call_id, attempt)| Inside { call_id: call_id.to_owned(), attempt });
        let want = Query::Commit { fact, asked: None };
        self.lock().questions.push(Question { id: None, place, want });
        self.work();
    }
}

impl Wake for Parked {
    /// The log, a lease or a timer is ready.
    fn wake(self: Arc<Self>) {
        let Wakers { for_answers, others } = std::mem::take(&mut *lock(&self.0));
        for_answers.into_values().chain(others).for_each(Waker::wake);
    }
}

pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A tool continued after its call was over.
fn call_is_over() -> Error {
    Error::tool(ToolReason::Cancelled).with_message("tool error: cancelled: the call is over")
}

/// The run ended while something waited.
pub(crate) fn gone() -> Error {
    Error::new(ErrorKind::Log(LogReason::Unavailable))
        .with_message("log error: unavailable: the run is over")
}
