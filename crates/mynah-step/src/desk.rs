//! Where tools hand in what happens inside them, and wait for their turn.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use mynah_data::{Error, ErrorKind, LogReason, Result, ToolCall, ToolReason};
use mynah_log::{Fact, Hash, Inside, Resolution};
use tokio::{sync::oneshot, time::Sleep};

use crate::{
    Tape,
    alone::{Keeper, keeps},
    recorded::of_tool,
    recorder::ends,
};

/// Where the calls of a run hand in their facts while they run side by side.
///
/// Whoever holds the [`Tape`] serves the desk. In the world everyone is served at once. In a run performed again the recorded
/// order is a turnstile: each call passes when the next recorded fact is its own, so the calls meet the interleaving that
/// they had. Who asks for something else cannot be told from who is early, as another branch of the same loop or tool may be
/// waiting for something that is no part of the run: so a difference is what everybody waits behind for a while in vain.
#[derive(Default)]
pub struct Desk {
    state: Mutex<State>,
}

/// The desk, as the keeper of the wakers of those who serve it.
const PARKED: u64 = 0;

/// Why calls are stopped with their run.
pub(crate) const RUN_ENDED: &str = "the run was ended";

/// How long a run that is performed again may stand still: whoever asks may be early, or give up what it does not want.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long if the loop has ended, or nothing but the desk can wake anyone: enough for tasks that nobody waits for.
const GRACE: Duration = Duration::from_millis(100);

#[derive(Default)]
struct State {
    asks: Vec<Ask>,
    /// Whose facts are committed and not yet safe.
    unsafe_yet: Vec<(Place, Reply, Option<Fact>)>,
    /// Who is to be woken when there is something to do.
    parked: Vec<Waker>,
    /// The tries that began and have no outcome, by the ids of their calls.
    begun: HashMap<String, Begun>,
    /// Facts of attempts that tools handed in, for whoever folds the run's facts.
    noted: VecDeque<Fact>,
    /// Whether the loop may wait for something else than the desk.
    loop_waits_elsewhere: bool,
    /// How often somebody was answered.
    answered: u64,
    standstill: Option<Standstill>,
}

struct Begun {
    call: Arc<ToolCall>,
    attempt: u32,
    /// Whether nobody runs it any more.
    is_over: bool,
    /// Whether it waits for nothing but the desk.
    is_alone: bool,
}

/// A run that is performed again in which nothing happens.
struct Standstill {
    /// How many had been answered before.
    since: u64,
    until: Pin<Box<Sleep>>,
}

type Reply = oneshot::Sender<Result<Option<Fact>>>;

struct Ask {
    place: Place,
    want: Want,
    reply: Reply,
    /// Whether it is served though nobody waits for the reply.
    is_left: bool,
}

/// Where in a run a fact is made: inside a try of a tool, or by the loop itself.
pub(crate) type Place = Option<Inside>;

/// What somebody wants of the records.
pub(crate) enum Want {
    /// To commit a fact, where it is of a side effect that of this one; to be told when it is safe, if it must be.
    Commit { fact: Fact, asked: Option<Asked>, durable: bool },
    /// To be told whether a fact is recorded that announces something; or what stopped the run before it.
    Announce(Fact),
    /// What is recorded of a side effect. Where nothing has to be, nothing may be.
    Recall { asked: Asked, required: bool },
    /// To be told when the model is asked this, or that no record tells.
    Turn(Hash),
    /// How the call came out, from its record.
    Outcome,
    /// What the model answered, from its record; or how the run ended, if it did not.
    Answer,
}

/// A side effect that somebody asked for.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) name: Arc<str>,
    line: Arc<Line>,
}

/// The side effects of one place that have no record, in the order in which they were asked for. One that nobody waits for any
/// more stays: when that was is nothing that a replay knows.
#[derive(Default)]
pub(crate) struct Line(Mutex<Vec<Arc<str>>>);

impl Line {
    pub(crate) fn ask(self: &Arc<Self>, name: &str) -> Asked {
        let name = Arc::from(name);
        self.names().push(Arc::clone(&name));
        Asked { name, line: Arc::clone(self) }
    }

    fn names(&self) -> MutexGuard<'_, Vec<Arc<str>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asked {
    /// How many of the same name were asked for before and have no record.
    pub(crate) fn ahead(&self) -> u32 {
        let names = self.line.names();
        let before = names.iter().take_while(|other| !Arc::ptr_eq(other, &self.name));
        before.filter(|other| **other == self.name).count().try_into().unwrap_or(u32::MAX)
    }

    /// It has its record.
    fn leave(&self) {
        self.line.names().retain(|other| !Arc::ptr_eq(other, &self.name));
    }
}

impl Desk {
    /// A desk where nobody waits.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Serves whoever can be served; tells whether anybody was. The first difference from the records is the error.
    ///
    /// # Errors
    /// `replay_mismatch`, or a log that could not be written.
    pub fn serve(self: &Arc<Self>, tape: &mut Tape) -> Result<bool> {
        let mut served = false;
        self.state().asks.retain(|ask| ask.is_left || !ask.reply.is_closed());
        let waker = Waker::from(Arc::clone(self));
        let mut cx = Context::from_waker(&waker);
        while tape.poll_go_on(&mut cx).is_ready()
            && let Some((ask, answer)) = self.next_served(tape)
        {
            served = true;
            let failed = answer.as_ref().err().cloned();
            match (ask.want, answer) {
                (Want::Commit { durable, .. }, Ok(kept)) if durable || tape.is_full() => {
                    self.state().unsafe_yet.push((ask.place, ask.reply, kept));
                }
                // Who stopped waiting does not want to know.
                (_, answer) => drop(ask.reply.send(answer)),
            }
            if let Some(error) = failed {
                return Err(error);
            }
        }
        let wait = !self.state().unsafe_yet.is_empty();
        if wait && let Poll::Ready(safe) = tape.poll_durable(&mut cx) {
            served = true;
            for (_, reply, kept) in std::mem::take(&mut self.state().unsafe_yet) {
                drop(reply.send(safe.clone().map(|()| kept)));
            }
            safe?;
        }
        Ok(served)
    }

    fn next_served(&self, tape: &mut Tape) -> Option<(Ask, Result<Option<Fact>>)> {
        let mut state = self.state();
        let mut served = None;
        for (index, ask) in state.asks.iter_mut().enumerate() {
            if let Want::Commit {
                fact: Fact::SideEffect { ahead, .. }, asked: Some(asked), ..
            } = &mut ask.want
            {
                *ahead = asked.ahead();
            }
            if let Some(answer) = tape.answer(&ask.place, &ask.want) {
                served = Some((index, answer));
                break;
            }
        }
        let (index, answer) = served?;
        state.answered += 1;
        let ask = state.asks.remove(index);
        match (&ask.want, &answer) {
            (Want::Commit { asked: Some(asked), .. }, Ok(_))
            | (Want::Recall { asked, .. }, Ok(Some(_))) => asked.leave(),
            (Want::Commit { fact, .. }, Ok(_)) => {
                state.came_out(fact);
                if ask.place.is_some() {
                    state.noted.push_back(fact.clone());
                }
            }
            _ => {}
        }
        Some((ask, answer))
    }

    /// A try of a call begins.
    pub(crate) fn begin(&self, call: &Arc<ToolCall>, attempt: u32) {
        let begun = Begun { call: Arc::clone(call), attempt, is_over: false, is_alone: false };
        self.state().begun.insert(call.id.clone(), begun);
    }

    /// Whether an attempt of a call waits for nothing but the desk.
    pub(crate) fn set_alone(&self, call_id: &str, is_alone: bool) {
        let mut state = self.state();
        let Some(begun) = state.begun.get_mut(call_id) else { return };
        if std::mem::replace(&mut begun.is_alone, is_alone) && !is_alone {
            state.standstill = None;
        }
    }

    /// Whether the loop may wait for something else than the desk.
    pub(crate) fn set_loop_waits_elsewhere(&self, elsewhere: bool) {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.loop_waits_elsewhere, elsewhere);
        if before && !elsewhere && state.standstill.take().is_some() {
            // Whoever waits patiently need not any more.
            drop(state);
            self.wake_parked();
        }
    }

    /// A try of a call is over: its tool is done, was given up, or was dropped with its run. What goes on all the same, as a thread
    /// does, waits no longer and gets nothing more: it would stand behind the outcome, where no replay asks for it.
    pub(crate) fn end(&self, call: &ToolCall, attempt: u32) {
        let mut state = self.state();
        if let Some(begun) = state.begun.get_mut(&call.id).filter(|begun| begun.attempt == attempt)
        {
            begun.is_over = true;
        }
        let goes_on = |place: &Place| {
            place.as_ref().is_none_or(|at| at.call_id != call.id || at.attempt != attempt)
        };
        state.asks.retain(|ask| goes_on(&ask.place));
        state.unsafe_yet.retain(|(place, ..)| goes_on(place));
    }

    /// A fact of an attempt that a tool handed in since this was last asked: it failed, or the next one is announced.
    pub fn noted(&self) -> Option<Fact> {
        self.state().noted.pop_front()
    }

    /// A fact was committed that was not handed in: if it is what came of a call, that is not under way any more.
    pub fn committed(&self, fact: &Fact) {
        self.state().came_out(fact);
    }

    /// What is to be recorded of a call when the run is stopped: nothing if it did not begin, or came out.
    pub fn cut_off(&self, call_id: &str) -> Option<Fact> {
        self.stopped(call_id, RUN_ENDED)
    }

    /// Leaves it to be recorded of a call that it was stopped, unless it did not begin or came out.
    pub(crate) fn leave_stopped(&self, call_id: &str, why: &str) {
        let Some(fact) = self.stopped(call_id, why) else { return };
        let place = of_tool(&fact)
            .map(|(call_id, attempt)| Inside { call_id: call_id.to_owned(), attempt });
        let want = Want::Commit { fact, asked: None, durable: false };
        let reply = oneshot::channel().0;
        self.state().asks.push(Ask { place, want, reply, is_left: true });
        self.wake_parked();
    }

    fn stopped(&self, call_id: &str, why: &str) -> Option<Fact> {
        let Begun { call, attempt, .. } = self.state().begun.remove(call_id)?;
        let error = Error::tool(ToolReason::Cancelled)
            .with_message(format!("tool error ({}): cancelled: {why}", call.name))
            .with("tool_name", call.name.as_str());
        let (call_id, resolution) = (call_id.to_owned(), Resolution::CutOff);
        Some(Fact::ToolFailed {
            call_id,
            attempt,
            error,
            resolution,
            content: String::new(),
            duration_ms: None,
        })
    }

    /// Waits for something to happen in a run that is performed again in which everybody waits for somebody else's turn. If nothing
    /// does, the first of them asked for something else than what is recorded, and is told so.
    pub fn poll_stuck(self: &Arc<Self>, tape: &mut Tape) -> Poll<Error> {
        if !tape.is_behind() || tape.gives_up_next() {
            return Poll::Pending;
        }
        let mut state = self.state();
        let before = state.standstill.take();
        if state.asks.is_empty() || !state.all_wait() {
            return Poll::Pending;
        }
        let mut standstill =
            before.filter(|before| before.since == state.answered).unwrap_or_else(|| {
                let is_end =
                    |ask: &Ask| matches!(&ask.want, Want::Commit { fact, .. } if ends(fact));
                let alone = !state.loop_waits_elsewhere
                    && state.begun.values().all(|begun| begun.is_over || begun.is_alone);
                let is_known = alone || state.asks.iter().any(is_end);
                let patience = if is_known { GRACE } else { PATIENCE };
                Standstill { since: state.answered, until: Box::pin(tokio::time::sleep(patience)) }
            });
        // A timer may wake whoever polls it at once, and that takes the lock.
        drop(state);
        let waker = Waker::from(Arc::clone(self));
        if standstill.until.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.state().standstill = Some(standstill);
            return Poll::Pending;
        }
        self.refuse_first(tape).map_or(Poll::Pending, Poll::Ready)
    }

    fn refuse_first(&self, tape: &mut Tape) -> Option<Error> {
        let mut state = self.state();
        let first = state.asks.iter().enumerate().min_by(|(_, a), (_, b)| a.place.cmp(&b.place));
        let (index, _) = first?;
        let ask = state.asks.remove(index);
        let error = tape.refuse(&ask.place, &ask.want);
        drop(ask.reply.send(Err(error.clone())));
        Some(error)
    }

    /// Wakes somebody when there is something to serve.
    pub fn park(&self, waker: &Waker) {
        keeps(waker, PARKED);
        let parked = &mut self.state().parked;
        if !parked.iter().any(|other| other.will_wake(waker)) {
            parked.push(waker.clone());
        }
    }

    /// Hands something in and waits for the answer. Somebody else must serve.
    ///
    /// # Errors
    /// What the records or the log say, and that the call is over that asks for a side effect.
    pub(crate) async fn ask(&self, place: Place, want: Want) -> Result<Option<Fact>> {
        let over = if place.is_some() { call_is_over } else { gone };
        static ASKED: AtomicU64 = AtomicU64::new(PARKED + 1);
        let keeper = Keeper(ASKED.fetch_add(1, Ordering::Relaxed));
        let mut answer = self.hand_in(place, want);
        let answer = poll_fn(move |cx| {
            let polled = Pin::new(&mut answer).poll(cx);
            if polled.is_pending() {
                keeps(cx.waker(), keeper.0);
            }
            polled
        });
        answer.await.unwrap_or_else(|_| Err(over()))
    }

    /// Hands something in. There is no answer for a call that is over.
    fn hand_in(&self, place: Place, want: Want) -> oneshot::Receiver<Result<Option<Fact>>> {
        let (reply, answer) = oneshot::channel();
        let mut state = self.state();
        let of_tool = matches!(want, Want::Recall { .. } | Want::Commit { asked: Some(_), .. });
        if of_tool && place.as_ref().is_some_and(|place| !state.is_under_way(place)) {
            return answer;
        }
        state.asks.push(Ask { place, want, reply, is_left: false });
        drop(state);
        self.wake_parked();
        answer
    }

    fn wake_parked(&self) {
        let parked = std::mem::take(&mut self.state().parked);
        parked.into_iter().for_each(Waker::wake);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_under_way(&self, Inside { call_id, attempt }: &Inside) -> bool {
        self.begun.get(call_id).is_some_and(|begun| begun.attempt == *attempt && !begun.is_over)
    }

    /// Whether all calls that run wait for their turn.
    fn all_wait(&self) -> bool {
        let waits = |begun: &Begun| {
            let of_call = |place: &Inside| place.call_id == begun.call.id;
            let mut asks = self.asks.iter().filter(|ask| !ask.reply.is_closed());
            asks.any(|ask| ask.place.as_ref().is_some_and(of_call))
        };
        self.begun.values().filter(|begun| !begun.is_over).all(waits)
    }

    fn came_out(&mut self, fact: &Fact) {
        if let Fact::ToolCompleted { call_id, .. } | Fact::ToolFailed { call_id, .. } = fact {
            self.begun.remove(call_id);
        }
    }
}

impl Wake for Desk {
    fn wake(self: Arc<Self>) {
        self.wake_parked();
    }
}

/// A tool went on after its call was over.
fn call_is_over() -> Error {
    Error::tool(ToolReason::Cancelled).with_message("tool error: cancelled: the call is over")
}

/// The run ended while somebody waited.
pub(crate) fn gone() -> Error {
    Error::new(ErrorKind::Log(LogReason::Unavailable))
        .with_message("log error: unavailable: the run is over")
}
