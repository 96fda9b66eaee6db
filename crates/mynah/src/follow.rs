//! A run's events from its records, from any place on.

use std::{
    collections::{HashMap, VecDeque},
    pin::pin,
    sync::Arc,
};

use futures_util::future::{Either, select};
use mynah_data::{Error, ErrorKind, Event, LogReason, Response, Result, RunId, ToolCall};
use mynah_log::{
    AnswerPart, Corrupt, Cut, DirectCall, End, Fact, Kind, Log, Record, Resolution, expand,
};

use crate::{
    context_policy::summary_in,
    in_flight::{Answer, InFlight, Report},
    run::tell,
    run_event::{EventId, FollowedEvent, RunEvent},
};

/// Returns the events of a recorded run after an event, or from its start, and then those to come,
/// whichever process performs it.
///
/// The events are derived from records, so they and their ids are the same for every reader. An answer comes with the pieces in
/// which it arrived.
///
/// A tool starts with [`RunEvent::ToolExecutionStarted`] and ends with [`Event::ToolExecutionCompleted`] in [`RunEvent::Event`]. Results that a
/// person gives are in [`RunEvent::Resumed`] and nowhere else, also that of a call which started before its process died.
///
/// ```
/// use mynah::{Engine, testing::Scripted};
/// use mynah::{follow, log::MemoryLog};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::says(["hi"]));
///
/// let log = MemoryLog::new();
/// let run = engine.chat("hello").record(&log).await?.run_id.unwrap();
///
/// let mut events = follow(&log, &run, None);
/// let first = events.next().await.unwrap()?;
/// assert_eq!(first.id.to_string(), "1.0");
///
/// // Another reader continues where the first stopped.
/// let mut rest = follow(&log, &run, Some(first.id));
/// assert_eq!(rest.next().await.unwrap()?.id.to_string(), "2.0");
/// # Ok(()) }
/// ```
pub fn follow<L: Log + Clone>(
    log: &L,
    run: impl AsRef<str>,
    after: impl Into<Option<EventId>>,
) -> Follow {
    Follow::new(Arc::new(log.clone()), run.as_ref().into(), after.into())
}

/// The events of a run; see [`follow`].
///
/// It holds the events of one record, and a portion of records of limited size. A slow reader costs no more.
#[must_use = "no event is read unless it is asked for"]
pub struct Follow {
    log: Arc<dyn Log>,
    run: RunId,
    /// The last record that was read.
    seen: u64,
    ready: VecDeque<Record>,
    /// How many records are read next.
    portion: usize,
    derived: Derived,
    events: VecDeque<FollowedEvent>,
    skip: Option<Skip>,
    /// Whether the model answers after the last record that was read.
    in_turn: bool,
    is_over: bool,
    in_flight: Option<InFlight>,
    /// The id of the last event that was given.
    last: Option<EventId>,
    /// The number of the last progress report that was given.
    reported: u64,
}

mynah_data::partial_debug! { Follow { run, seen } }

/// What the reader has had.
#[derive(Clone, Copy, Debug)]
enum Skip {
    /// The events of the records before this one, and these many of its own.
    Recorded { seq: u64, events: u64 },
    /// The events up to this record, and these many of the answer after it.
    Answer { seq: u64, events: u64 },
}

/// How many records are read at once, at first and at most.
const PORTION: (usize, usize) = (4, 64);

/// How many bytes of records are held, unless a single one is larger.
const HELD: usize = 256 << 10;

impl Follow {
    pub(crate) fn new(log: Arc<dyn Log>, run: RunId, after: Option<EventId>) -> Self {
        let skip = after.map(|EventId { seq, attempt, index }| {
            let events = index.saturating_add(1);
            match attempt {
                None => Skip::Recorded { seq, events },
                Some(_) => Skip::Answer { seq, events },
            }
        });
        Self {
            log,
            run,
            seen: 0,
            ready: VecDeque::new(),
            portion: PORTION.0,
            derived: Derived::default(),
            events: VecDeque::new(),
            skip,
            in_turn: false,
            is_over: false,
            in_flight: None,
            last: after,
            reported: 0,
        }
    }

    /// Shows answers of runs in this process while they stream, before they are recorded. Those of runs with
    /// [`durable_events`](crate::Chat::durable_events) are shown in any case, a little later.
    ///
    /// Their events have ids such as `3~1.0`. When the answer is recorded, the events follow that the reader has not had.
    ///
    /// The progress of tools is shown too. It is not recorded, and has no place of its own: it has the id of the event before it.
    pub fn in_flight(mut self, all: &InFlight) -> Self {
        self.in_flight = Some(all.clone());
        self
    }

    /// The next event, when it is there; none after the seal. As the method of the same name that [`EventStream`](crate::EventStream) has
    /// from `futures::StreamExt`.
    ///
    /// Dropping the future loses no event.
    ///
    /// # Errors
    /// Those of [`try_next`](Self::try_next).
    pub async fn next(&mut self) -> Option<Result<FollowedEvent>> {
        self.try_next().await.transpose()
    }

    /// As [`next`](Self::next), with the error outside.
    ///
    /// # Errors
    /// `run_not_found` if there is no such run; a log that cannot be read, or a record that is damaged. The next call attempts it again.
    pub async fn try_next(&mut self) -> Result<Option<FollowedEvent>> {
        loop {
            let mut answer = self.in_flight.as_ref().and_then(|all| all.of(&self.run));
            let before = answer.as_mut().map(|answer| {
                let answer = answer.borrow_and_update();
                (answer.generation, answer.progress.clone())
            });
            if let Some(event) = self.next_ready().await? {
                return Ok(Some(event));
            }
            if self.is_over {
                return Ok(None);
            }
            if self.seen == 0 && self.log.head(&self.run).await?.is_none() {
                return Err(Error::log(LogReason::RunNotFound)
                    .with_message(format!("there is no run {} in this log", self.run))
                    .with("run_id", &self.run));
            }
            // If the same answer was in flight before and after the records were read, it is the one that follows them.
            if let (Some(answer), Some((generation, progress))) = (&answer, before) {
                let answer = answer.borrow();
                if answer.generation == generation
                    && (self.take_off(0, &answer.events) || self.take_report(&progress, &answer))
                {
                    continue;
                }
            }
            let log = Arc::clone(&self.log);
            let waited = match &mut answer {
                Some(answer) => {
                    let recorded = log.wait(&self.run, self.seen);
                    match select(recorded, pin!(answer.changed())).await {
                        Either::Left((waited, _)) => waited,
                        // There is more of it, or the run left this process.
                        Either::Right(_) => continue,
                    }
                }
                None if self.in_turn => {
                    let parts = log.parts(&self.run, self.seen, self.had_of_answer()).await;
                    parts.and_then(|parts| self.take_parts(&parts))
                }
                None => log.wait(&self.run, self.seen).await,
            };
            match waited {
                Err(error) if error.kind() == ErrorKind::Log(LogReason::Sealed) => {
                    self.is_over = true;
                }
                waited => waited?,
            }
        }
    }

    /// How many events of the answer in flight the reader has had.
    fn had_of_answer(&self) -> u64 {
        match self.skip {
            Some(Skip::Answer { seq, events }) if seq == self.seen => events,
            _ => 0,
        }
    }

    /// Queues what the reader has not had of the parts that the log keeps.
    fn take_parts(&mut self, parts: &[AnswerPart]) -> Result<()> {
        for part in parts {
            // Parts are written relaxed, so a log that crashed may have lost some. The record has them all.
            if part.first > self.had_of_answer() {
                self.in_turn = false;
                return Ok(());
            }
            let events: Vec<Event> = serde_json::from_slice(&part.payload).map_err(|_| {
                let what = "a part of the answer in flight after it cannot be read";
                Corrupt::new(self.run.clone(), part.seq, what)
            })?;
            self.take_off(part.first, &events);
        }
        Ok(())
    }

    /// Queues those events of the answer in flight that the reader has not had. The first of them has this place. Returns
    /// whether there is something.
    fn take_off(&mut self, first: u64, answer: &[Event]) -> bool {
        if !self.in_turn {
            return false;
        }
        let (seq, had) = (self.seen, self.had_of_answer());
        let place = usize::try_from(had.saturating_sub(first)).unwrap_or(usize::MAX);
        let new = answer.get(place..).unwrap_or_default();
        self.events.extend(new.iter().zip(first.max(had)..).map(|(event, index)| {
            FollowedEvent::new(EventId::in_flight(seq, 1, index), None, event.clone().into())
        }));
        let events = had.max(first.saturating_add(answer.len() as u64));
        if events > 0 {
            self.skip = Some(Skip::Answer { seq, events });
        }
        !self.events.is_empty()
    }

    /// Queues progress that the reader has not had. Returns whether there is some.
    ///
    /// A call that had reported before the records were read is announced in them. One that has not ended after that is not
    /// completed in them.
    fn take_report(&mut self, before: &[Report], answer: &Answer) -> bool {
        let Some(id) = self.last else { return false };
        let is_new = |report: &&Report| report.number > self.reported;
        let runs =
            |report: &&Report| answer.progress.iter().any(|now| now.call_id == report.call_id);
        let Some(report) =
            before.iter().filter(is_new).filter(runs).min_by_key(|report| report.number)
        else {
            return false;
        };
        self.reported = report.number;
        self.events.push_back(FollowedEvent::new(id, None, report.event.clone().into()));
        true
    }

    /// The next event if it is recorded already; none otherwise.
    ///
    /// # Errors
    /// As [`try_next`](Self::try_next).
    #[doc(hidden)]
    pub async fn next_ready(&mut self) -> Result<Option<FollowedEvent>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                self.last = Some(event.id);
                return Ok(Some(event));
            }
            if self.is_over {
                return Ok(None);
            }
            if self.ready.is_empty() {
                let records = self.log.read(&self.run, self.seen + 1, self.portion).await?;
                self.hold(records);
            }
            let Some(record) = self.ready.front().cloned() else { return Ok(None) };
            let events = self.derived.take_in(&record)?;
            let (seq, ts) = (record.seq(), record.envelope().ts);
            let had = self.had(&record, events.len());
            self.events = events
                .into_iter()
                .zip(0..)
                .skip(had)
                .map(|(event, i)| FollowedEvent::new(EventId::recorded(seq, i), Some(ts), event))
                .collect();
            self.is_over = record.kind() == Kind::Sealed;
            self.in_turn = match record.kind() {
                Kind::TurnStarted => true,
                // A turn that a branch begins with is continued, also after what a user says to the branch.
                Kind::Resumed | Kind::UserMessage => self.in_turn,
                _ => false,
            };
            self.seen = seq;
            self.ready.pop_front();
        }
    }

    /// Holds as many of these records as may be held, and reads about as many the next time.
    fn hold(&mut self, mut records: Vec<Record>) {
        let mut bytes = 0;
        let fits = |record: &&Record| {
            let is_first = bytes == 0;
            bytes += record.size();
            is_first || bytes <= HELD
        };
        let count = records.iter().take_while(fits).count();
        records.truncate(count);
        if bytes > HELD {
            self.portion = count.max(1);
        } else if bytes < HELD / 2 {
            self.portion = (2 * self.portion).min(PORTION.1);
        }
        self.ready = records.into();
    }

    /// Whether the run is sealed and all its events were given.
    pub fn is_over(&self) -> bool {
        self.is_over && self.events.is_empty()
    }

    /// How many events of a record with so many the reader has had.
    fn had(&mut self, record: &Record, events: usize) -> usize {
        let answer = match record.kind() {
            Kind::AssistantCompleted => events,
            // The last event shows how the run or the answer was stopped.
            Kind::Cancelled | Kind::BudgetExceeded => events.saturating_sub(1),
            _ => 0,
        };
        const ALL: usize = usize::MAX;
        let limit = |events: u64| usize::try_from(events).unwrap_or(ALL);
        let seq = record.seq();
        match self.skip {
            Some(Skip::Recorded { seq: last, .. } | Skip::Answer { seq: last, .. })
                if seq < last =>
            {
                ALL
            }
            Some(Skip::Recorded { seq: last, events }) if seq == last => limit(events),
            Some(Skip::Answer { seq: turn, .. }) if seq == turn => ALL,
            Some(Skip::Answer { seq: turn, events }) if seq == turn + 1 => {
                self.skip = None;
                limit(events).min(answer)
            }
            _ => {
                self.skip = None;
                0
            }
        }
    }
}

/// State that the events of a record depend on, in addition to the record.
#[derive(Default)]
struct Derived {
    /// The calls that may run, by id.
    calls: HashMap<String, Arc<ToolCall>>,
    /// Whether the next answer is the one that formats the result.
    finalizing: bool,
    /// Why the run waits, if it does.
    waits: Option<End>,
}

impl Derived {
    fn take_in(&mut self, record: &Record) -> Result<Vec<RunEvent>, Corrupt> {
        let Some(fact) = record.fact()? else {
            return Ok(vec![RunEvent::Redacted { kind: record.kind().to_string() }]);
        };
        Ok(match fact {
            Fact::RunStarted { thread, extent, about } => {
                let about = about.map(|about| *about).unwrap_or_default();
                let session = about.session.unwrap_or_default();
                vec![RunEvent::RunStarted {
                    messages: thread.messages.iter().cloned().collect(),
                    extent,
                    model: about.model,
                    tools: about.tools.iter().map(|tool| tool.name.clone()).collect(),
                    session_id: session.id,
                    previous: session.previous,
                    parent: about.parent,
                }]
            }
            Fact::Resumed {
                message,
                tool_results,
                approved,
                edited,
                rejected,
                given_up,
                after,
                about,
                request_id: _,
                extent: _,
                on_uncertain: _,
            } => {
                if self.waits.take().is_some_and(|end| !end.is_in_a_turn()) {
                    self.finalizing = false;
                }
                for (id, arguments) in &edited {
                    let call = self.call(id).with_arguments(arguments);
                    self.calls.insert(id.clone(), Arc::new(call));
                }
                let model = about.and_then(|about| about.model);
                vec![RunEvent::Resumed {
                    message,
                    tool_results,
                    approved,
                    edited,
                    rejected,
                    given_up,
                    after,
                    model,
                }]
            }
            Fact::UserMessage { message } => {
                self.finalizing = false;
                vec![RunEvent::UserMessage { message }]
            }
            Fact::TurnStarted { turn, .. } => vec![RunEvent::TurnStarted { turn }],
            Fact::TurnLost { turn, .. } => vec![RunEvent::TurnRestarted { turn }],
            Fact::FinalizeStarted { .. } => {
                self.finalizing = true;
                vec![RunEvent::FinalizeStarted {}]
            }
            Fact::FinalizeFailed { error } => vec![RunEvent::FinalizeFailed { error }],
            Fact::AssistantCompleted { response, cuts, .. } => {
                let calls = response.message.tool_calls();
                self.calls.extend(calls.map(|call| (call.id.clone(), Arc::new(call.clone()))));
                self.answer(&cuts, &response)
            }
            Fact::ToolScheduled { call_id, attempt, call } => {
                if let Some(DirectCall { name, arguments, .. }) = call.map(|call| *call) {
                    let call = ToolCall::new(&*call_id, name, arguments);
                    self.calls.insert(call_id.clone(), Arc::new(call));
                }
                let call = self.call(&call_id);
                let (name, arguments) = (call.name.clone(), call.arguments.clone());
                vec![RunEvent::ToolExecutionStarted { id: call_id, name, arguments, attempt }]
            }
            Fact::ToolFailed {
                call_id,
                attempt,
                error,
                resolution: resolution @ (Resolution::Retried | Resolution::CutOff),
                ..
            } => {
                let retried = resolution == Resolution::Retried;
                vec![RunEvent::ToolAttemptFailed { id: call_id, attempt, error, retried }]
            }
            Fact::ToolCompleted { ref call_id, .. } | Fact::ToolFailed { ref call_id, .. } => {
                let told = tell(&self.call(call_id), &fact);
                told.into_iter().map(RunEvent::from).collect()
            }
            Fact::SideEffect { inside, name, effect, .. } => {
                vec![RunEvent::SideEffect { name, inside, effect }]
            }
            Fact::ContextTruncated {
                strategy,
                tokens_before,
                tokens_after,
                messages_before,
                messages_after,
                dropped: _,
                cleared: _,
                summary,
            } => vec![RunEvent::ContextTruncated {
                strategy,
                tokens_before,
                tokens_after,
                messages_before,
                messages_after,
                summary: summary_in(summary.as_deref()).map(|made| made.text().into_owned()),
            }],
            Fact::BudgetExceeded { breach, partial, cuts } => {
                let mut events = partial.map_or_else(Vec::new, |said| self.answer(&cuts, &said));
                events.push(RunEvent::BudgetExceeded { breach });
                events
            }
            Fact::Suspended(end) => {
                self.waits = Some(end.clone());
                vec![RunEvent::Suspended(end)]
            }
            Fact::Completed(end) => vec![RunEvent::Completed(end)],
            Fact::Failed(end) => vec![RunEvent::Failed(end)],
            Fact::Cancelled { end, partial, cuts } => {
                let mut events = partial.map_or_else(Vec::new, |said| self.answer(&cuts, &said));
                events.push(RunEvent::Cancelled(end));
                events
            }
            Fact::Sealed(seal) => vec![RunEvent::Sealed {
                fingerprint: record.hash(),
                root: seal.root,
                totals: seal.totals,
            }],
            Fact::Removed(tombstone) => vec![RunEvent::Removed { run_id: tombstone.run_id }],
        })
    }

    /// The events of an answer, as they came.
    fn answer(&self, cuts: &[Cut], response: &Response) -> Vec<RunEvent> {
        let mut events = expand(cuts, response);
        for event in &mut events {
            if let Event::MessageStarted { finalizing, .. } = event {
                *finalizing = self.finalizing;
            }
        }
        events.into_iter().map(RunEvent::from).collect()
    }

    /// The call with this id. If the answer that made it was redacted, only the id is known.
    fn call(&self, id: &str) -> Arc<ToolCall> {
        let unknown = || Arc::new(ToolCall::new(id, "", ""));
        self.calls.get(id).cloned().unwrap_or_else(unknown)
    }
}

impl From<Event> for RunEvent {
    fn from(event: Event) -> Self {
        Self::Event(Box::new(event))
    }
}
