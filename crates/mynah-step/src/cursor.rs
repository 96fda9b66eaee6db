//! A run's records, while the run is replayed.

mod facts;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use mynah_data::{Error, Message, Result, RunId, ToolOutcome, Wait};
use mynah_log::{DirectCall, Effect, Fact, Kind, Record, Resolution, cbor};
use serde_json::Value;

pub(crate) use self::facts::{CHECKPOINT, MODEL_CALL, SLEEP, WOKE, inner, is_answer, of_tool};
use self::facts::{
    as_recorded, asks, is_at, is_cut_off, is_ended_from_outside, is_given_up, is_named, is_other,
    is_stopped,
};
pub use self::facts::{is_fresh_branch, outcome_of};
use crate::{
    RecordedFact, Try,
    difference::difference_of,
    journal::{Origin, PendingEffect, Query},
    recorder::ends,
    uncertain::is_not_begun,
};

/// The place in a run's records that a replay has reached.
///
/// Records that a loop does not make again are left out: the seal, the seams where another process
/// continued, and records of tool attempts whose process died.
#[derive(Default)]
pub struct ReplayCursor {
    run: RunId,
    facts: VecDeque<RecordedFact>,
    /// Whether the run continues where the records end.
    resumes: bool,
    /// How many facts stood before these.
    taken: usize,
    ahead: Ahead,
    last: u64,
    /// Calls whose records answer for them: what happened inside them is passed by.
    answered: HashSet<String>,
    /// Turns that were given up because the run was dropped: not by the loop, which makes the call again.
    dropped: HashSet<u64>,
    /// With which record each process of the run began, and when.
    processes: Vec<(u64, i64)>,
    /// The attempts of each call of a user's loop, by its id and how many calls had that id up to it.
    calls: HashMap<(String, u32), Attempts>,
    /// How many calls of each id were announced so far.
    announced: HashMap<String, u32>,
    /// The last answer, which names the tools of its calls.
    answer: Option<Arc<Message>>,
    /// The tools of the calls that a user's loop made, by the ids of the calls.
    tools: HashMap<String, String>,
    /// Where the run differed from its records: every later question has the same answer.
    differs: Option<Error>,
}

/// The attempts of one call.
#[derive(Clone, Copy)]
struct Attempts {
    /// In which process of the run the last one was announced.
    process: usize,
    /// The first one of that process.
    first: Try,
    last: u32,
    failed: u32,
    has_outcome: bool,
    /// Whether the last one was stopped before it began.
    not_begun: bool,
}

impl Attempts {
    /// Folds the facts of a run in which each process has its part.
    fn of_calls(records: &[RecordedFact]) -> HashMap<(String, u32), Self> {
        let (mut calls, mut ids, mut process) = (HashMap::new(), HashMap::new(), 0);
        for kept in records {
            let fact = kept.fact();
            process += usize::from(matches!(fact, Fact::Resumed { .. }));
            let Some(key) = nth_call(fact, &mut ids) else { continue };
            let (failed, has_outcome, not_begun, first) = (0, false, false, Try::FIRST);
            let new = Self { process, first, last: 1, failed, has_outcome, not_begun };
            let call = calls.entry(key).or_insert(new);
            match fact {
                Fact::ToolScheduled { attempt, .. } => {
                    if call.process != process {
                        call.first = Try { number: *attempt, failed: call.failed };
                    }
                    (call.process, call.last, call.not_begun) = (process, *attempt, false);
                }
                Fact::ToolFailed { resolution: Resolution::CutOff, error, .. } => {
                    call.not_begun = is_not_begun(error);
                }
                Fact::ToolFailed { resolution: Resolution::Retried, .. } => call.failed += 1,
                _ => call.has_outcome |= outcome_of(fact).is_some(),
            }
        }
        calls
    }

    /// Whether a fact was left behind by a process that died, or announces a restart by another
    /// process. The loop does not make it again. A call that the loop gave up is given up again.
    fn leave_behind(&self, fact: &Fact) -> bool {
        let Some((_, attempt)) = inner(fact) else { return false };
        match fact {
            _ if is_cut_off(fact) => attempt < self.last,
            Fact::ToolScheduled { .. } => !self.has_outcome || attempt <= self.first.number,
            _ => !self.has_outcome || attempt < self.first.number,
        }
    }
}

/// The call that a fact is about, and how many had its id up to it.
fn nth_call(fact: &Fact, ids: &mut HashMap<String, u32>) -> Option<(String, u32)> {
    let id = fact.attempt()?.0.to_owned();
    let count = ids.entry(id.clone()).or_default();
    *count += u32::from(matches!(fact, Fact::ToolScheduled { attempt: 1, .. }));
    Some((id, *count))
}

impl ReplayCursor {
    /// Compares with these records, all but the seal.
    pub fn new(run: RunId, records: Vec<RecordedFact>) -> Self {
        let last = records.last().map_or(0, |kept| kept.record().seq());
        let facts = records.into_iter().filter(|kept| !kept.is(Kind::Sealed)).collect();
        Self::from_parts(run, facts, last)
    }

    /// Compares with the records of a user's loop, which runs from its beginning. If it resumes, it continues where they end.
    pub(crate) fn of_loop(run: RunId, records: Vec<RecordedFact>, resumes: bool) -> Self {
        let last = records.last().map_or(0, |kept| kept.record().seq());
        let mut facts = Vec::with_capacity(records.len());
        let calls = Attempts::of_calls(&records);
        // Calls that were dropped with their run were not given up by the loop: their outcome is unknown.
        let mut dropped = HashSet::new();
        let mut pop_dropped = |facts: &mut Vec<RecordedFact>, continues: bool| {
            let last = facts.iter().rposition(|kept| !is_given_up(kept.fact()));
            let given_up = facts.split_off(last.map_or(0, |last| last + 1));
            // What a model call took counts where the run continues.
            let counts = |kept: &RecordedFact| continues && !is_cut_off(kept.fact());
            facts.extend(given_up.into_iter().filter(counts).inspect(|turn| {
                dropped.insert(turn.record().seq());
            }));
        };
        let begun = |kept: &RecordedFact| (kept.record().seq(), kept.record().envelope().ts);
        let mut processes: Vec<_> = records.first().map(begun).into_iter().collect();
        for kept in records {
            match kept.fact() {
                Fact::Sealed(_) => {}
                // A process that resumes the run after that lets it continue.
                Fact::Suspended(end) if end.awaits_nobody() => {}
                fact if fact.is_seam() => {
                    pop_dropped(&mut facts, true);
                    processes.push(begun(&kept));
                }
                // Its loop was dropped before that.
                fact if is_ended_from_outside(fact) => {
                    pop_dropped(&mut facts, false);
                    facts.push(kept);
                }
                _ => facts.push(kept),
            }
        }
        let is_open = facts.last().is_none_or(|kept| kept.fact().end().is_none());
        if resumes || is_open {
            pop_dropped(&mut facts, resumes);
        }
        let mut ids = HashMap::new();
        facts.retain(|kept| {
            let call = nth_call(kept.fact(), &mut ids).and_then(|call| calls.get(&call));
            !call.is_some_and(|call| call.leave_behind(kept.fact()))
        });
        Self { calls, dropped, processes, resumes, ..Self::from_parts(run, facts.into(), last) }
    }

    fn from_parts(run: RunId, facts: VecDeque<RecordedFact>, last: u64) -> Self {
        let mut cursor = Self { run, facts, last, ..Self::default() };
        cursor.ahead.look(0, &cursor.facts);
        cursor
    }

    /// The run's id.
    pub(crate) fn run_id(&self) -> &RunId {
        &self.run
    }

    /// How many facts were taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken as u64
    }

    /// Whether it answers: always in a replay, in a run that is resumed until everything recorded was made again.
    pub(crate) fn is_behind(&self) -> bool {
        !self.resumes || self.has_upcoming()
    }

    /// The last record that was made again, or stands before the next that must be.
    pub fn compared(&self) -> u64 {
        self.facts.front().map_or(self.last, |next| next.record().seq() - 1)
    }

    /// The next fact that the loop must make.
    pub fn upcoming(&self) -> Option<&Fact> {
        self.facts.front().map(RecordedFact::fact)
    }

    /// The next fact, if it is of one of these kinds: others are not read for it.
    pub fn upcoming_of(&self, kinds: &[Kind]) -> Option<&Fact> {
        let next = self.facts.front()?;
        kinds.iter().any(|kind| next.is(*kind)).then(|| next.fact())
    }

    /// Whether there is a next fact.
    pub fn has_upcoming(&self) -> bool {
        !self.facts.is_empty()
    }

    /// The call that makes the next fact while it runs.
    pub fn upcoming_of_tool(&self) -> Option<&str> {
        let next = self.facts.front().filter(|next| next.may_be_of_tool())?;
        of_tool(next.fact()).map(|(call, _)| call)
    }

    /// The calls that are announced next, for another attempt.
    pub fn announced_next(&self) -> Vec<String> {
        let announced = |kept: &RecordedFact| match kept.fact() {
            Fact::ToolScheduled { call_id, attempt, .. } if *attempt > 1 => Some(call_id.clone()),
            _ => None,
        };
        self.facts.iter().map_while(announced).collect()
    }

    /// Until when an attempt of a call waits for the next one, in milliseconds since 1970, if it does.
    pub fn parked_until(&self, call: &str, attempt: u32) -> Option<u64> {
        match self.outcome_of(call)? {
            Fact::ToolCompleted {
                attempt: recorded,
                outcome: ToolOutcome::Later { wait: Wait::UntilMs(time), .. },
                ..
            } if *recorded == attempt => Some(*time),
            _ => None,
        }
    }

    /// Whether the run was stopped while its tools ran.
    pub fn stops_tools(&self) -> bool {
        let after = self.ahead.end.and_then(|end| self.facts.get(end.checked_sub(self.taken)?));
        after.is_some_and(|after| after.is(Kind::Cancelled) || after.is(Kind::BudgetExceeded))
    }

    /// The next fact, which its record makes.
    pub fn take(&mut self) -> Option<Fact> {
        let fact = self.facts.pop_front()?.into_fact();
        self.took(&fact);
        Some(fact)
    }

    /// What is next now, after this fact.
    fn took(&mut self, fact: &Fact) {
        self.taken += 1;
        if let Some(call) = outcome_of(fact) {
            self.answered.remove(call);
            if matches!(fact, Fact::ToolCompleted { outcome: ToolOutcome::Later { .. }, .. }) {
                // The call has another outcome.
                self.ahead.look(self.taken, &self.facts);
            }
        } else if let Fact::ToolScheduled { call_id, attempt: 1, call } = fact {
            if !self.calls.is_empty() {
                *self.announced.entry(call_id.clone()).or_default() += 1;
            }
            if let Some(call) = call {
                self.tools.insert(call_id.clone(), call.name.clone());
            }
        } else if let Fact::AssistantCompleted { response, .. } = fact {
            self.answer = Some(Arc::clone(&response.message));
        }
        self.pass_by();
    }

    /// Drops what happened inside calls for which the records answer.
    fn pass_by(&mut self) {
        let is_passed_by = |kept: &RecordedFact| {
            !self.answered.is_empty()
                && inner(kept.fact()).is_some_and(|(call, _)| self.answered.contains(call))
        };
        while self.facts.front().is_some_and(is_passed_by) {
            self.facts.pop_front();
            self.taken += 1;
        }
        // All that was seen of the running tools is taken.
        if self.ahead.end.is_some_and(|end| end < self.taken) {
            self.ahead.look(self.taken, &self.facts);
        }
    }

    /// How a call of the turn came out.
    pub fn outcome_of(&self, call: &str) -> Option<&Fact> {
        let place = self.ahead.outcomes.get(call)?.checked_sub(self.taken)?;
        self.facts.get(place).map(RecordedFact::fact)
    }

    /// The outcome of the call that was announced last under this id.
    pub(crate) fn outcome_ahead(&self, call: &str) -> Option<&Fact> {
        let again = |fact: &&Fact| matches!(fact, Fact::ToolScheduled { call_id, attempt: 1, .. } if call_id == call);
        self.to_come().take_while(|fact| !again(fact)).find(|fact| outcome_of(fact) == Some(call))
    }

    /// The recorded fact that the call which was announced last under this id was stopped.
    pub(crate) fn cut_off_ahead(&self, call: &str) -> Option<&Fact> {
        let is_of = |fact: &&Fact| fact.attempt().is_some_and(|(of, _)| of == call);
        let again = |fact: &&Fact| matches!(fact, Fact::ToolScheduled { attempt: 1, .. });
        let mut of_call = self.to_come().filter(is_of).take_while(|fact| !again(fact));
        of_call.find(|fact| is_cut_off(fact))
    }

    /// The attempt with which the process began that was the last to run the call announced last under this id.
    pub(crate) fn attempt_of(&self, call: &str) -> Option<Try> {
        let Attempts { first, last, failed, has_outcome, .. } = *self.nth(call, 0)?;
        Some(if has_outcome { first } else { Try { number: last, failed } })
    }

    /// The attempt that would follow the last of the call that is announced next under this id, which has no outcome; and whether the
    /// call may have run.
    pub(crate) fn left_open(&self, call: &str) -> Option<(Try, bool)> {
        let Attempts { last, failed, not_begun, .. } =
            *self.nth(call, 1).filter(|call| !call.has_outcome)?;
        Some((Try { number: last.saturating_add(1), failed }, !not_begun))
    }

    /// Whether the call that was announced last under this id may have run.
    pub(crate) fn may_have_run(&self, call: &str) -> bool {
        self.nth(call, 0).is_none_or(|call| !call.not_begun)
    }

    /// The call of this id that was announced last, or so many after it.
    fn nth(&self, call: &str, further: u32) -> Option<&Attempts> {
        let announced = self.announced.get(call).copied().unwrap_or_default();
        self.calls.get(&(call.to_owned(), announced + further))
    }

    /// The id that is recorded of such a call and can be taken. In a replay of something else that of the call which comes
    /// next: the id is not what differs.
    pub(crate) fn id_of(
        &self,
        call: &DirectCall,
        mut take: impl FnMut(&str) -> bool,
    ) -> Option<String> {
        let same = self.to_come().find_map(|fact| match fact {
            Fact::ToolScheduled { call_id, attempt: 1, call: Some(other) }
                if **other == *call && take(call_id) =>
            {
                Some(call_id)
            }
            _ => None,
        });
        let next = match self.upcoming() {
            Some(Fact::ToolScheduled { call_id, .. }) if !self.resumes => Some(call_id),
            _ => None,
        };
        same.or(next).cloned()
    }

    /// The records answer for a call: what happened inside it is not made again.
    pub(crate) fn answer_for(&mut self, call: &str) {
        self.answered.insert(call.to_owned());
        self.pass_by();
    }

    /// The next recorded fact that is not of a call which ended with the run.
    pub(crate) fn after_cut_offs(&self) -> Option<&Fact> {
        self.to_come().find(|fact| !is_cut_off(fact))
    }

    /// Whether the next record says that a call was given up by its caller.
    pub(crate) fn gives_up_next(&self) -> bool {
        let next = self.upcoming_of(&[Kind::ToolFailed, Kind::TurnLost]);
        next.is_some_and(is_given_up) && !self.dropped.contains(&(self.compared() + 1))
    }

    /// How long the process that gave a call up had the run before that, if the next record says so.
    pub(crate) fn given_up_after(&self) -> Option<Duration> {
        let next = self.facts.front().filter(|_| self.gives_up_next())?.record();
        let began = self.processes.iter().rfind(|(seq, _)| *seq <= next.seq());
        let nanos = next.envelope().ts.saturating_sub(began.map_or(0, |(_, began)| *began));
        Some(Duration::from_nanos(nanos.try_into().unwrap_or_default()))
    }

    /// The recorded fact that the answer of a turn was lost.
    pub(crate) fn lost_ahead(&self, lost: u32) -> Option<&Fact> {
        let is_lost = |fact: &&Fact| matches!(fact, Fact::TurnLost { turn, .. } if *turn == lost);
        self.to_come().find(is_lost)
    }

    /// Sets the durations of the next record, if it is of the same kind: no two runs take the same time.
    pub(crate) fn set_durations(&self, fact: &mut Fact) {
        if let Some(recorded) = self.upcoming_of(&[fact.kind()]) {
            fact.set_duration_ms(recorded.duration_ms());
            fact.set_first_token_ms(recorded.first_token_ms());
        }
    }

    /// Passes over everything up to the last checkpoint, in a run that is resumed, and returns it.
    pub(crate) fn pass_to_checkpoint(&mut self) -> Vec<Fact> {
        let passed = 0..self.checkpoint().map_or(0, |place| place + 1);
        passed.filter_map(|_| self.take()).collect()
    }

    /// The state of the last checkpoint, in a run that is resumed.
    pub(crate) fn last_checkpoint(&self) -> Option<Value> {
        match self.facts.get(self.checkpoint()?)?.fact() {
            Fact::SideEffect { effect: Effect::Done(state), .. } => Some(state.clone()),
            _ => None,
        }
    }

    /// Where the last checkpoint stands, in a run that is resumed.
    fn checkpoint(&self) -> Option<usize> {
        let is_checkpoint = |kept: &RecordedFact| matches!(kept.fact(), Fact::SideEffect { inside: None, name, .. } if name == CHECKPOINT);
        self.facts.iter().rposition(is_checkpoint).filter(|_| self.resumes)
    }

    /// The answer to a question; none while it is not its turn.
    pub(crate) fn answer(&mut self, place: &Origin, want: &Query) -> Option<Result<Option<Fact>>> {
        if let Some(error) = &self.differs {
            return Some(Err(error.clone()));
        }
        let answer = self.next_answer(place, want)?;
        self.differs = answer.as_ref().err().cloned();
        Some(answer)
    }

    fn next_answer(&mut self, place: &Origin, want: &Query) -> Option<Result<Option<Fact>>> {
        let is_mine = self.upcoming().map_or(place.is_none(), |next| is_at(place, next));
        match want {
            Query::Commit { .. } | Query::Announce(_) if !is_mine => None,
            Query::Announce(fact) if self.upcoming().is_some_and(|next| is_stopped(fact, next)) => {
                Some(Ok(self.take()))
            }
            // Another branch of the loop, or of the tool, comes first. What no record has never comes.
            Query::Commit { fact, .. } | Query::Announce(fact)
                if self.upcoming().is_some_and(|next| is_other(place, fact, next)) =>
            {
                let never = !self.resumes && !self.is_to_come(fact);
                never.then(|| Err(self.refusal(place, want)))
            }
            Query::Commit { fact, .. } | Query::Announce(fact) => match self.compare(fact) {
                Err(_) if place.is_none() && self.is_to_come(fact) => None,
                compared => Some(compared.map(|()| Some(fact.clone()))),
            },
            Query::Recall { asked, required } => {
                if !required && !self.will_recall(place, asked) {
                    return Some(Ok(None));
                }
                if let Some(end) = self.upcoming().filter(|_| is_mine)
                    && is_ended_from_outside(end)
                {
                    return Some(Ok(Some(end.clone())));
                }
                let is_next = self.upcoming().is_some_and(|next| {
                    is_named(next, place, asked)
                        && matches!(next, Fact::SideEffect { ahead, .. } if *ahead == asked.ahead())
                });
                is_next.then(|| Ok(self.take()))
            }
            Query::Turn(prompt) => {
                let is_next = self.upcoming().is_some_and(|next| asks(next, *prompt));
                let is_to_come = || self.to_come().any(|fact| asks(fact, *prompt));
                // In a resumed run, requests without a record may follow the records.
                (is_next || !self.resumes && !is_to_come()).then_some(Ok(None))
            }
            Query::Answer => match self.upcoming() {
                _ if !is_mine => None,
                // The loop gives it up again.
                Some(_) if self.gives_up_next() => None,
                // The answer was cut off too, after something else.
                Some(Fact::BudgetExceeded { partial: None, .. }) if self.is_cut_off_later() => None,
                Some(answer) if is_answer(answer) => Some(Ok(self.take())),
                Some(end) if ends(end) => Some(Ok(Some(end.clone()))),
                // A loop that did not wait for the answer does not wait for it now.
                _ => None,
            },
            Query::Outcome => match self.upcoming() {
                Some(outcome) if is_mine && outcome_of(outcome).is_some() => Some(Ok(self.take())),
                // What the loop waited for when it was dropped ends with the run.
                Some(end) if is_ended_from_outside(end) => Some(Ok(Some(end.clone()))),
                _ => None,
            },
        }
    }

    /// Whether a limit cuts off the answer that is waited for, of which a part is recorded.
    fn is_cut_off_later(&self) -> bool {
        let mut of_turn = self.to_come().take_while(|fact| fact.kind() != Kind::TurnStarted);
        of_turn.any(|fact| matches!(fact, Fact::BudgetExceeded { partial: Some(_), .. }))
    }

    /// What is recorded and was not made again yet.
    fn to_come(&self) -> impl Iterator<Item = &Fact> {
        self.facts.iter().map(RecordedFact::fact)
    }

    /// Whether a requested side effect of a place has a record. Each earlier one with a record
    /// leaves the line.
    fn will_recall(&self, place: &Origin, asked: &PendingEffect) -> bool {
        let mut left = asked.ahead();
        let effects = self.facts.iter().filter(|kept| kept.is(Kind::SideEffect));
        effects.map(RecordedFact::fact).filter(|fact| is_named(fact, place, asked)).any(|fact| {
            match fact {
                Fact::SideEffect { ahead, .. } => {
                    let is_mine = *ahead == left;
                    left -= u32::from(*ahead < left);
                    is_mine
                }
                _ => false,
            }
        })
    }

    /// Whether a record still to come is of this very fact.
    fn is_to_come(&self, fact: &Fact) -> bool {
        let is_there = |payload: &[u8]| self.facts.iter().any(|kept| has_payload(kept, payload));
        cbor::with_bytes(fact, is_there).unwrap_or(false)
    }

    /// Ends the run because a question has no answer.
    pub(crate) fn refuse(&mut self, place: &Origin, want: &Query) -> Error {
        let error = self.refusal(place, want);
        self.differs.get_or_insert(error).clone()
    }

    fn refusal(&self, place: &Origin, want: &Query) -> Error {
        let fact = match want {
            Query::Commit { fact, .. } | Query::Announce(fact) => fact.clone(),
            Query::Turn(prompt) => {
                // Which turn it would have been is not what differs.
                let turn = match self.upcoming() {
                    Some(Fact::TurnStarted { turn, .. }) => *turn,
                    _ => 0,
                };
                Fact::TurnStarted { turn, prompt: Some(*prompt), input_tokens: 0 }
            }
            Query::Answer => return self.differs_from_next(None),
            // If it is among the records, others stand before it that nothing makes.
            Query::Outcome => {
                let call = place.as_ref().and_then(|at| self.outcome_ahead(&at.call_id));
                return self.differs_from_next(call);
            }
            Query::Recall { asked, .. } => {
                // An abandoned call is not what differs.
                let effect = match self.upcoming() {
                    Some(Fact::SideEffect { effect, .. }) => effect.clone(),
                    _ => Effect::Done(Value::Null),
                };
                let (inside, name) = (place.clone(), asked.name.to_string());
                Fact::SideEffect { inside, name, ahead: asked.ahead(), effect }
            }
        };
        self.differs_from_next(Some(&fact))
    }

    /// Ends the run: nothing that is recorded may be left.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if self.differs.is_none() && self.has_upcoming() {
            self.differs = Some(self.differs_from_next(None));
        }
        self.differs.clone().map_or(Ok(()), Err)
    }

    /// Takes a fact that must be the recorded one. The order of members in free-form JSON is no difference.
    pub(crate) fn compare(&mut self, fact: &Fact) -> Result<()> {
        let Some(next) = self.facts.front() else { return Err(self.differs_from_next(Some(fact))) };
        let as_recorded = as_recorded(fact, next);
        let produced = as_recorded.as_ref().unwrap_or(fact);
        let is_same = cbor::with_bytes(produced, |payload| has_payload(next, payload))
            .unwrap_or(false)
            || next.record().fact().is_ok_and(|recorded| recorded.as_ref() == Some(produced));
        if !is_same {
            return Err(self.differs_from_next(Some(fact)));
        }
        self.facts.pop_front();
        self.took(fact);
        Ok(())
    }

    /// Where the run differed from its records, if it did.
    pub(crate) fn difference(&self) -> Option<&Error> {
        self.differs.as_ref()
    }

    /// The error of a run that makes this fact, or none, in place of what is recorded next.
    pub fn differs_from_next(&self, fact: Option<&Fact>) -> Error {
        let Some(next) = self.facts.front() else {
            return self.mismatch(self.last + 1, None, fact);
        };
        let record: &Record = next.record();
        match record.fact() {
            // Nothing that the loop makes is like a payload that is not as its fact is written.
            Err(corrupt) => corrupt.into(),
            Ok(_) => self.mismatch(record.seq(), Some(next.fact()), fact),
        }
    }

    /// Says which call it is about, where it is about one.
    fn mismatch(&self, seq: u64, recorded: Option<&Fact>, produced: Option<&Fact>) -> Error {
        let call = produced.and_then(Fact::attempt).or_else(|| recorded.and_then(Fact::attempt));
        let about = call.map(|(call, _)| match self.tool_of(call) {
            Some(tool) => format!("call {call} of {tool}: "),
            None => format!("call {call}: "),
        });
        difference_of(&self.run, seq, recorded, produced, &about.unwrap_or_default())
    }

    fn tool_of(&self, call: &str) -> Option<&str> {
        let mut asked = self.answer.iter().flat_map(|answer| answer.tool_calls());
        let asked = asked.find(|asked| asked.id == call).map(|asked| asked.name.as_str());
        asked.or_else(|| self.tools.get(call).map(String::as_str))
    }
}

/// What the running tools make, as far as none but them makes anything. Asked for each of many calls side by side, so it is looked
/// up.
#[derive(Default)]
struct Ahead {
    /// Where they are done; none where the facts end before.
    end: Option<usize>,
    /// Where each call comes out.
    outcomes: HashMap<String, usize>,
}

impl Ahead {
    /// Looks at the facts from a place on.
    fn look(&mut self, from: usize, facts: &VecDeque<RecordedFact>) {
        self.outcomes.clear();
        self.end = None;
        for (place, kept) in (from..).zip(facts) {
            if !kept.may_be_of_tool() || of_tool(kept.fact()).is_none() {
                self.end = Some(place);
                break;
            }
            if let Some(call) = outcome_of(kept.fact()) {
                self.outcomes.entry(call.to_owned()).or_insert(place);
            }
        }
    }
}
fn has_payload(kept: &RecordedFact, payload: &[u8]) -> bool {
    kept.record().body().is_some_and(|body| *body.payload == *payload)
}
