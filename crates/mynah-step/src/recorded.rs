//! A run's records, to be performed again.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use mynah_data::{BreachTime, Error, Limit, Message, ResponseBuilder, Result, RunId, ToolOutcome};
use mynah_log::{Corrupt, Effect, Fact, Hash, Inside, Plan, Record, Resolution, cbor};
use serde_json::Value;

use crate::{
    RecordedFact, Recorder, Try,
    desk::{Asked, Place, Want, gone},
    difference::{call_of, difference_of},
    left_behind::{LeftBehind, Nth},
    recorder::ends,
};

/// A run's records, to be performed again.
///
/// What the loop does not make again is left out: the seal, the seams where another process went on, and what tries of tools
/// left behind that have no outcome because their process ended, or their run.
pub struct Recorded {
    pub(crate) run: RunId,
    facts: VecDeque<RecordedFact>,
    /// Writes what the loop made, to be compared.
    writer: cbor::Writer,
    /// How many facts stood before these.
    taken: usize,
    ahead: Ahead,
    last: u64,
    /// Calls of the turn whose records answer for them: what happened inside them is passed by.
    answered: HashSet<String>,
    /// The tries of calls that another process began anew.
    anew: HashMap<Nth, Try>,
    /// The tries that would follow the last of calls that never came out.
    open: HashMap<Nth, Try>,
    /// How many calls of each id were announced so far, where that tells calls apart which are begun anew or never came out.
    calls: HashMap<String, u32>,
    /// The last answer, which names the tools of its calls.
    answer: Option<Arc<Message>>,
    /// The tools of the calls that a loop of somebody's own made, by the ids of the calls.
    tools: HashMap<String, String>,
    /// Where the run differed from its records: whoever asks later is told the same.
    differs: Option<Error>,
    /// Who writes what follows: there in a run that is resumed.
    pub(crate) then: Option<Box<Recorder>>,
}

impl Recorded {
    /// Compares with these records, all but the seal.
    pub fn new(run: RunId, mut records: Vec<RecordedFact>) -> Self {
        let last = records.last().map_or(0, |kept| kept.record().seq());
        records.retain(|kept| !kept.is("sealed"));
        Self::from_parts(run, records, last, LeftBehind::default())
    }

    /// Compares with the records of a loop of its caller's own, which runs from its beginning: it does not make again what a
    /// process left behind that died.
    pub(crate) fn of_loop(run: RunId, mut records: Vec<RecordedFact>, resumes: bool) -> Self {
        let last = records.last().map_or(0, |kept| kept.record().seq());
        // Calls that were dropped with their run were not given up by the loop: their outcome is unknown.
        let is_dropped = |kept: &RecordedFact| {
            kept.is("tool_failed")
                && matches!(kept.fact(), Fact::ToolFailed { resolution: Resolution::CutOff, .. })
        };
        while resumes && records.last().is_some_and(is_dropped) {
            records.pop();
        }
        let left = LeftBehind::of(&records);
        let mut place = 0..;
        records.retain(|kept| {
            let is_left = place.next().is_some_and(|place| left.places.contains(&place));
            let is_seam = kept.is("resumed") && kept.fact().is_seam();
            !kept.is("sealed") && !is_seam && !is_left
        });
        Self::from_parts(run, records, last, left)
    }

    fn from_parts(
        run: RunId,
        records: Vec<RecordedFact>,
        last: u64,
        LeftBehind { anew, open, .. }: LeftBehind,
    ) -> Self {
        let mut recorded = Self {
            run,
            ahead: Ahead::default(),
            facts: records.into(),
            writer: cbor::Writer::new(),
            taken: 0,
            last,
            answered: HashSet::new(),
            anew,
            open,
            calls: HashMap::new(),
            answer: None,
            tools: HashMap::new(),
            differs: None,
            then: None,
        };
        recorded.ahead.look(0, &recorded.facts);
        recorded
    }

    /// The same, and writes what follows the records.
    pub(crate) fn then(mut self, recorder: Recorder) -> Self {
        self.then = Some(Box::new(recorder.after_seam(Fact::SEAM)));
        self
    }

    /// The last record that was made again, or stands before the next that must be.
    pub(crate) fn compared(&self) -> u64 {
        self.next().map_or(self.last, |next| next.record().seq() - 1)
    }

    /// The next fact that the loop must make.
    pub(crate) fn upcoming(&self) -> Option<&Fact> {
        self.next().map(RecordedFact::fact)
    }

    /// The record of it, which may be unread. What is passed by never stands first.
    pub(crate) fn next(&self) -> Option<&RecordedFact> {
        self.facts.front()
    }

    fn take(&mut self) -> Option<(Record, Fact)> {
        let (record, fact) = self.facts.pop_front()?.into_parts();
        self.took(&fact);
        Some((record, fact))
    }

    /// What is next now, after this fact.
    fn took(&mut self, fact: &Fact) {
        self.taken += 1;
        if let Some(call) = outcome_of(fact) {
            self.answered.remove(call);
        } else if let Fact::ToolScheduled { call_id, attempt: 1, call } = fact {
            if !(self.anew.is_empty() && self.open.is_empty()) {
                *self.calls.entry(call_id.clone()).or_default() += 1;
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
        self.look_ahead();
    }

    /// Sees what the running tools make, where all that was seen so far is taken.
    fn look_ahead(&mut self) {
        if self.ahead.end.is_some_and(|end| end < self.taken) {
            self.ahead.look(self.taken, &self.facts);
        }
    }

    /// Who writes what follows, once everything recorded was made again.
    pub(crate) fn follow(&mut self) -> Option<Box<Recorder>> {
        if self.next().is_some() { None } else { self.then.take() }
    }

    /// What comes after all that the running tools make.
    pub(crate) fn after_tools(&self) -> Option<&RecordedFact> {
        self.facts.get(self.ahead.end?.checked_sub(self.taken)?)
    }

    /// How a call of the turn came out.
    pub(crate) fn outcome_of(&self, call: &str) -> Option<&Fact> {
        let place = self.ahead.outcomes.get(call)?.checked_sub(self.taken)?;
        self.facts.get(place).map(RecordedFact::fact)
    }

    /// How the call came out that was announced last under this id, whatever else happened meanwhile.
    pub(crate) fn outcome_ahead(&self, call: &str) -> Option<&Fact> {
        let again = |fact: &&Fact| matches!(fact, Fact::ToolScheduled { call_id, attempt: 1, .. } if call_id == call);
        let facts = self.facts.iter().map(RecordedFact::fact);
        facts.take_while(|fact| !again(fact)).find(|fact| outcome_of(fact) == Some(call))
    }

    /// The try with which another process began the call anew that was announced last under this id.
    pub(crate) fn attempt_of(&self, call: &str) -> Option<Try> {
        self.anew.get(&self.nth(call, 0)).copied()
    }

    /// The try that would follow the last of the call that is announced next under this id, which has no outcome.
    pub(crate) fn left_open(&self, call: &str) -> Option<Try> {
        self.open.get(&self.nth(call, 1)).copied()
    }

    /// The call of this id that was announced last, or so many after it.
    fn nth(&self, call: &str, further: u32) -> Nth {
        (call.to_owned(), self.calls.get(call).copied().unwrap_or_default() + further)
    }

    /// The records answer for a call: what happened inside it is not made again.
    pub(crate) fn answer_for(&mut self, call: &str) {
        self.answered.insert(call.to_owned());
        self.pass_by();
    }

    /// The next fact, which the records themselves make.
    pub(crate) fn take_fact(&mut self) -> Option<Fact> {
        self.take().map(|(_, fact)| fact)
    }

    /// Passes over everything up to the last checkpoint, in a run that is resumed, and returns it.
    pub(crate) fn pass_to_checkpoint(&mut self) -> Vec<Fact> {
        let passed = 0..self.checkpoint().map_or(0, |place| place + 1);
        passed.filter_map(|_| self.take_fact()).collect()
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
        let is_checkpoint = |kept: &RecordedFact| {
            kept.is("side_effect")
                && matches!(kept.fact(), Fact::SideEffect { inside: None, name, .. } if name == CHECKPOINT)
        };
        self.facts.iter().rposition(is_checkpoint).filter(|_| self.then.is_some())
    }

    /// What somebody gets who asks; nothing while it is not their turn.
    pub(crate) fn answer(&mut self, place: &Place, want: &Want) -> Option<Result<Option<Fact>>> {
        if let Some(error) = &self.differs {
            return Some(Err(error.clone()));
        }
        let answer = self.next_answer(place, want)?;
        self.differs = answer.as_ref().err().cloned();
        Some(answer)
    }

    fn next_answer(&mut self, place: &Place, want: &Want) -> Option<Result<Option<Fact>>> {
        let is_mine = self.upcoming().map_or(place.is_none(), |next| is_at(place, next));
        match want {
            Want::Commit { .. } | Want::Announce(_) if !is_mine => None,
            Want::Announce(fact) if self.upcoming().is_some_and(|next| is_stopped(fact, next)) => {
                Some(Ok(self.take_fact()))
            }
            // Another branch of the loop, or of the tool, comes first. What no record has never comes.
            Want::Commit { fact, .. } | Want::Announce(fact)
                if self.upcoming().is_some_and(|next| is_other(place, fact, next)) =>
            {
                let never = self.then.is_none() && !self.is_to_come(fact);
                never.then(|| Err(self.refusal(place, want)))
            }
            Want::Commit { fact, .. } | Want::Announce(fact) => match self.compare(fact) {
                Err(_) if place.is_none() && self.is_to_come(fact) => None,
                compared => Some(compared.map(|()| Some(fact.clone()))),
            },
            Want::Recall { asked, required } => {
                if !required && !self.will_recall(place, asked) {
                    return Some(Ok(None));
                }
                let is_next = self.upcoming().is_some_and(|next| {
                    is_named(next, place, asked)
                        && matches!(next, Fact::SideEffect { ahead, .. } if *ahead == asked.ahead())
                });
                is_next.then(|| Ok(self.take_fact()))
            }
            Want::Turn(prompt) => {
                let is_next = self.upcoming().is_some_and(|next| asks(next, *prompt));
                let is_to_come = || self.to_come().any(|fact| asks(fact, *prompt));
                // What has no record may follow the records, where the run is to go on.
                (is_next || self.then.is_none() && !is_to_come()).then_some(Ok(None))
            }
            Want::Answer => match self.upcoming() {
                _ if !is_mine => None,
                Some(answer) if is_answer(answer) => Some(Ok(self.take_fact())),
                Some(end) if ends(end) => Some(Ok(Some(end.clone()))),
                // A loop that did not wait for the answer does not wait for it now.
                _ => None,
            },
            Want::Outcome => {
                let is_next =
                    is_mine && self.upcoming().is_some_and(|fact| outcome_of(fact).is_some());
                is_next.then(|| Ok(self.take_fact()))
            }
        }
    }

    /// What is recorded and was not made again yet.
    pub(crate) fn to_come(&self) -> impl Iterator<Item = &Fact> {
        self.facts.iter().map(RecordedFact::fact)
    }

    /// Whether a side effect of a place that is asked for has a record: each that has one before it leaves the line.
    fn will_recall(&self, place: &Place, asked: &Asked) -> bool {
        let mut left = asked.ahead();
        let effects = self.facts.iter().filter(|kept| kept.is("side_effect"));
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
    fn is_to_come(&mut self, fact: &Fact) -> bool {
        let payload = self.writer.encode(fact).unwrap_or_default();
        self.facts
            .iter()
            .any(|kept| kept.record().body().is_some_and(|body| *body.payload == *payload))
    }

    /// Ends the run because somebody who asks can't be answered.
    pub(crate) fn refuse(&mut self, place: &Place, want: &Want) -> Error {
        let error = self.refusal(place, want);
        self.differs.get_or_insert(error).clone()
    }

    fn refusal(&self, place: &Place, want: &Want) -> Error {
        let fact = match want {
            Want::Commit { fact, .. } | Want::Announce(fact) => fact.clone(),
            Want::Turn(prompt) => {
                // Which turn it would have been is not what differs.
                let turn = match self.upcoming() {
                    Some(Fact::TurnStarted { turn, .. }) => *turn,
                    _ => 0,
                };
                Fact::TurnStarted { turn, prompt: Some(*prompt), input_tokens: 0 }
            }
            Want::Answer => Fact::AssistantCompleted {
                response: Box::new(ResponseBuilder::new().into_response()),
                plan: Plan::Nothing,
                cuts: Vec::new(),
                duration_ms: None,
            },
            Want::Outcome => {
                let Some(Inside { call_id, attempt }) = place.clone() else { return gone() };
                // If it is among the records, others stand before it that nobody makes.
                let recorded = self.outcome_ahead(&call_id).cloned();
                let (outcome, content) = (ToolOutcome::Ok(Value::Null), String::new());
                recorded.unwrap_or(Fact::ToolCompleted {
                    call_id,
                    attempt,
                    outcome,
                    content,
                    duration_ms: None,
                })
            }
            Want::Recall { asked, .. } => {
                // Whatever would have come of it: it is not what differs.
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
        if self.differs.is_none() && self.next().is_some() {
            self.differs = Some(self.differs_from_next(None));
        }
        self.differs.clone().map_or(Ok(()), Err)
    }

    /// Takes a fact that must be the recorded one. The order of members in free-form JSON is no difference.
    pub(crate) fn compare(&mut self, fact: &Fact) -> Result<()> {
        let Some(next) = self.facts.front() else { return Err(self.differs_from_next(Some(fact))) };
        let as_branch = as_branch(fact, next);
        let produced = as_branch.as_ref().unwrap_or(fact);
        let bytes = self.writer.encode(produced).unwrap_or_default();
        let is_same = next.record().body().is_some_and(|body| *body.payload == *bytes)
            || next.record().fact().is_ok_and(|recorded| recorded.as_ref() == Some(produced));
        if !is_same {
            return Err(self.differs_from_next(Some(fact)));
        }
        self.facts.pop_front();
        self.took(fact);
        // The process ended between the end and its seal.
        match &mut self.then {
            Some(recorder) if ends(fact) && self.facts.is_empty() => recorder.seal()?,
            _ => {}
        }
        Ok(())
    }

    /// The next fact, if a tool that runs makes it.
    pub(crate) fn next_of_tool(&self) -> Option<&Fact> {
        let next = self.next().filter(|next| next.may_be_of_tool())?;
        of_tool(next.fact()).map(|_| next.fact())
    }

    /// Ends the run because nobody makes what is recorded next.
    pub(crate) fn nobody_makes_next(&self) -> Error {
        self.differs_from_next(None)
    }

    fn differs_from_next(&self, fact: Option<&Fact>) -> Error {
        self.difference(fact, self.next().map(|next| (next.record(), next.fact())))
    }

    fn difference(&self, fact: Option<&Fact>, recorded: Option<(&Record, &Fact)>) -> Error {
        match recorded {
            None => self.mismatch(self.last + 1, None, fact),
            Some((record, recorded)) => match record.fact() {
                // Nothing that the loop makes is like a payload that is not as its fact is written.
                Err(what) => Corrupt::new(&self.run, record.seq(), what).into(),
                Ok(_) => self.mismatch(record.seq(), Some(recorded), fact),
            },
        }
    }

    /// Says which call it is about, where it is about one.
    fn mismatch(&self, seq: u64, recorded: Option<&Fact>, produced: Option<&Fact>) -> Error {
        let call = produced.and_then(call_of).or_else(|| recorded.and_then(call_of));
        let about = call.map(|call| match self.tool_of(call) {
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

/// What a loop makes that does not know of its run being a branch, as a branch records it.
fn as_branch(produced: &Fact, recorded: &RecordedFact) -> Option<Fact> {
    let Fact::RunStarted { thread, extent, about: None } = produced else { return None };
    match recorded.fact() {
        Fact::RunStarted { about: Some(about), .. } if about.is_bare() => {
            let (thread, extent) = (thread.clone(), *extent);
            Some(Fact::RunStarted { thread, extent, about: Some(about.clone()) })
        }
        _ => None,
    }
}

/// The call that a fact is the outcome of.
pub fn outcome_of(fact: &Fact) -> Option<&str> {
    match fact {
        Fact::ToolFailed { resolution: Resolution::Retried | Resolution::CutOff, .. } => None,
        Fact::ToolCompleted { call_id, .. } | Fact::ToolFailed { call_id, .. } => Some(call_id),
        _ => None,
    }
}

/// The name under which a loop records where it is.
pub(crate) const CHECKPOINT: &str = "checkpoint";

/// The name under which the failure of a model call is kept.
pub(crate) const MODEL_CALL: &str = "model_call";

/// Whether a fact is that the model is asked this.
fn asks(fact: &Fact, this: Hash) -> bool {
    matches!(fact, Fact::TurnStarted { prompt: Some(prompt), .. } if *prompt == this)
}

/// Whether a fact is what came of a model call.
fn is_answer(fact: &Fact) -> bool {
    match fact {
        Fact::AssistantCompleted { .. } | Fact::TurnLost { .. } => true,
        Fact::BudgetExceeded { breach, .. } => breach.when == BreachTime::MidStream,
        Fact::SideEffect { inside, name, .. } => inside.is_none() && name == MODEL_CALL,
        _ => false,
    }
}

/// Whether a fact is made at a place.
fn is_at(place: &Place, fact: &Fact) -> bool {
    let call = of_tool(fact).map(|(call, _)| call);
    call == place.as_ref().map(|inside| inside.call_id.as_str())
}

/// Whether a fact is what came of a side effect of a name that was asked for.
fn is_named(fact: &Fact, place: &Place, asked: &Asked) -> bool {
    matches!(fact, Fact::SideEffect { inside, name, .. } if inside == place && **name == *asked.name)
}

/// Whether a fact is not the one that is recorded at its place, whatever both say. What a call makes is, unless both are side
/// effects: everything else it makes between them.
fn is_other(place: &Place, fact: &Fact, recorded: &Fact) -> bool {
    match (fact, recorded) {
        (
            Fact::SideEffect { inside, name, ahead, .. },
            Fact::SideEffect { inside: place, name: other, ahead: before, .. },
        ) => (inside, name, ahead) != (place, other, before),
        (Fact::ToolScheduled { call_id: a, .. }, Fact::ToolScheduled { call_id: b, .. }) => a != b,
        _ => place.is_none() && fact.kind() != recorded.kind(),
    }
}

/// Whether what follows is that the budget did not allow what a fact announces.
fn is_stopped(fact: &Fact, upcoming: &Fact) -> bool {
    let Fact::BudgetExceeded { breach, .. } = upcoming else { return false };
    let before = match fact {
        Fact::TurnStarted { .. } => breach.limit != Limit::ToolCalls,
        Fact::ToolScheduled { .. } => matches!(breach.limit, Limit::ToolCalls | Limit::WallClock),
        _ => false,
    };
    before && breach.when == BreachTime::PreCall
}

/// The call, and its try, inside which a fact was made.
pub(crate) fn inner(fact: &Fact) -> Option<(&str, u32)> {
    match fact {
        Fact::SideEffect { inside: Some(Inside { call_id, attempt }), .. } => {
            Some((call_id, *attempt))
        }
        Fact::ToolFailed {
            call_id,
            attempt,
            resolution: Resolution::Retried | Resolution::CutOff,
            ..
        } => Some((call_id, *attempt)),
        Fact::ToolScheduled { call_id, attempt, .. } if *attempt > 1 => Some((call_id, *attempt)),
        _ => None,
    }
}

/// The call, and its try, that a fact belongs to which a running tool makes.
pub(crate) fn of_tool(fact: &Fact) -> Option<(&str, u32)> {
    inner(fact).or(match fact {
        Fact::ToolCompleted { call_id, attempt, .. }
        | Fact::ToolFailed { call_id, attempt, .. } => Some((call_id, *attempt)),
        _ => None,
    })
}
