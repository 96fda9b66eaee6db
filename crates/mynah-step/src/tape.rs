//! What becomes of facts: nothing, a record, or a comparison with one.

use std::task::{Context, Poll, ready};

use mynah_data::{Error, Result, RunId};
use mynah_log::{DirectCall, Fact, Head, Resolution};
use serde_json::Value;

use crate::{
    Recorded, Recorder, Try,
    desk::{Place, Want, gone},
    recorded::of_tool,
    recorder::ends,
};

/// What becomes of a run's facts.
///
/// The loop commits each fact before it takes it in. Unrecorded, that is all. Recorded, the fact joins the run's chain and is
/// written with its neighbours; [`Tape::poll_durable`] waits until nothing is left to write. In a replay it must be the fact
/// that was recorded.
#[derive(Default)]
pub enum Tape {
    /// Nobody keeps the run.
    #[default]
    Blank,
    /// The run is kept.
    Recording(Box<Recorder>),
    /// The run is performed again.
    Replaying(Box<Recorded>),
}

impl Tape {
    /// Whether facts need everything that a record holds.
    pub fn is_kept(&self) -> bool {
        !matches!(self, Self::Blank)
    }

    /// The run's id, if anybody keeps it.
    pub fn run_id(&self) -> Option<&RunId> {
        match self {
            Self::Blank => None,
            Self::Recording(recorder) => Some(recorder.chain.run()),
            Self::Replaying(replay) => Some(&replay.run),
        }
    }

    /// Where the chain of a run that is being kept ends.
    pub fn head(&self) -> Option<Head> {
        match self {
            Self::Recording(recorder) => recorder.chain.head(),
            _ => None,
        }
    }

    /// Takes a fact.
    ///
    /// # Errors
    /// `replay_mismatch` if it is not the one that was recorded.
    pub fn commit(&mut self, fact: &Fact) -> Result<()> {
        match self {
            Self::Blank => Ok(()),
            Self::Recording(recorder) => recorder.commit(fact),
            Self::Replaying(recorded) => match recorded.follow() {
                None => {
                    recorded.compare(fact)?;
                    if ends(fact)
                        && let Some(recorder) = recorded.follow()
                    {
                        *self = Self::Recording(recorder);
                    }
                    Ok(())
                }
                Some(mut recorder) => {
                    recorder.commit(fact)?;
                    *self = Self::Recording(recorder);
                    Ok(())
                }
            },
        }
    }

    /// Up to which record a run that is performed again was compared.
    pub fn compared(&self) -> Option<u64> {
        self.recorded().map(Recorded::compared)
    }

    /// The next recorded fact; none where the world answers.
    pub fn upcoming(&self) -> Option<&Fact> {
        self.recorded()?.upcoming()
    }

    /// The next recorded fact, if it is of one of these kinds: others are not read for it.
    pub fn upcoming_of(&self, kinds: &[&str]) -> Option<&Fact> {
        let next = self.recorded()?.next()?;
        kinds.iter().any(|kind| next.is(kind)).then(|| next.fact())
    }

    /// The call that makes the next recorded fact while it runs.
    pub fn upcoming_of_tool(&self) -> Option<&str> {
        of_tool(self.recorded()?.next_of_tool()?).map(|(call, _)| call)
    }

    /// Whether the records say that the run was stopped while its tools ran.
    pub fn stops_tools(&self) -> bool {
        let after = self.recorded().and_then(Recorded::after_tools);
        after.is_some_and(|after| after.is("cancelled") || after.is("budget_exceeded"))
    }

    /// Takes over the durations of the next record, if it is of the same kind: no two runs take the same time.
    pub fn adopt_durations(&self, fact: &mut Fact) {
        if let Some(recorded) = self.upcoming_of(&[fact.kind()]) {
            fact.set_duration_ms(recorded.duration_ms());
        }
    }

    /// Ends the run because nobody makes what is recorded next.
    pub fn nobody_makes_next(&self) -> Error {
        self.recorded().map_or_else(gone, Recorded::nobody_makes_next)
    }

    /// Whether there is a next recorded fact.
    pub fn has_upcoming(&self) -> bool {
        self.recorded().is_some_and(|recorded| recorded.next().is_some())
    }

    /// What is recorded of how a call of the turn came out.
    pub fn outcome_of(&self, call: &str) -> Option<&Fact> {
        self.recorded()?.outcome_of(call)
    }

    /// The try with which another process began a call anew, in a run performed again.
    pub(crate) fn attempt_of(&self, call: &str) -> Option<Try> {
        self.recorded()?.attempt_of(call)
    }

    /// The id that is recorded of such a call and can be taken. In a replay of something else that of the call which comes
    /// next: the id is not what differs.
    pub(crate) fn id_of(
        &self,
        call: &DirectCall,
        mut take: impl FnMut(&str) -> bool,
    ) -> Option<String> {
        let recorded = self.recorded()?;
        let mut ids = recorded.to_come().filter_map(|fact| match fact {
            Fact::ToolScheduled { call_id, attempt: 1, call: Some(other) } => {
                Some((call_id, other))
            }
            _ => None,
        });
        let same = ids.find(|(id, other)| ***other == *call && take(id)).map(|(id, _)| id);
        let next = match recorded.upcoming() {
            Some(Fact::ToolScheduled { call_id, .. }) if !self.is_resuming() => Some(call_id),
            _ => None,
        };
        same.or(next).cloned()
    }

    /// How the call came out that was announced last under this id, whatever else happened meanwhile.
    pub(crate) fn outcome_ahead(&self, call: &str) -> Option<&Fact> {
        self.recorded()?.outcome_ahead(call)
    }

    /// The try that would follow the last of the call that is announced next under this id, which has no outcome.
    pub(crate) fn left_open(&self, call: &str) -> Option<Try> {
        self.recorded()?.left_open(call)
    }

    /// The records answer for a call: what happened inside it is not made again.
    pub(crate) fn answer_for(&mut self, call: &str) {
        if let Self::Replaying(recorded) = self {
            recorded.answer_for(call);
        }
    }

    /// The outcome that comes next, of a call for which the records answer.
    pub fn take_outcome(&mut self) -> Option<Fact> {
        match self {
            Self::Replaying(recorded) => recorded.take_fact(),
            _ => None,
        }
    }

    fn recorded(&self) -> Option<&Recorded> {
        match self {
            Self::Replaying(recorded) => Some(recorded),
            _ => None,
        }
    }

    /// Refuses what is asked for before the run began, or after it ended.
    pub(crate) fn check_open(&self) -> Result<()> {
        match self {
            Self::Recording(recorder) => recorder.check_open(),
            _ => Ok(()),
        }
    }

    /// The state of the last checkpoint, in a run that is resumed.
    pub(crate) fn last_checkpoint(&self) -> Option<Value> {
        let Self::Replaying(recorded) = self else { return None };
        recorded.last_checkpoint()
    }

    /// Passes over everything up to the last checkpoint, in a run that is resumed, and returns it.
    pub(crate) fn pass_to_checkpoint(&mut self) -> Vec<Fact> {
        match self {
            Self::Replaying(recorded) => recorded.pass_to_checkpoint(),
            _ => Vec::new(),
        }
    }

    /// The next recorded fact that is not of a call which ended with the run.
    pub(crate) fn after_cut_offs(&self) -> Option<&Fact> {
        self.recorded()?.to_come().find(|fact| !is_cut_off(fact))
    }

    /// Whether the next record says that a call was given up by its caller.
    pub(crate) fn gives_up_next(&self) -> bool {
        self.upcoming_of(&["tool_failed"]).is_some_and(is_cut_off)
    }

    /// What somebody gets who asks; nothing while it is not their turn.
    pub(crate) fn answer(&mut self, place: &Place, want: &Want) -> Option<Result<Option<Fact>>> {
        match (self, want) {
            (Self::Replaying(recorded), _) => recorded.answer(place, want),
            (Self::Recording(recorder), Want::Commit { fact, .. }) => {
                Some(recorder.commit(fact).map(|()| None))
            }
            // What is not recorded is for the world to answer, as long as the run is ours.
            (Self::Recording(recorder), _) => Some(recorder.is_ours().map(|()| None)),
            (Self::Blank, _) => Some(Ok(None)),
        }
    }

    /// Ends the run: nothing that is recorded may be left.
    pub(crate) fn finish(&mut self) -> Result<()> {
        match self {
            Self::Replaying(recorded) => recorded.finish(),
            _ => Ok(()),
        }
    }

    /// Goes over to the world once everything recorded was made again, where the run is to go on and nobody has its lease
    /// yet: takes that first.
    pub(crate) fn poll_go_on(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Self::Replaying(recorded) = self else { return Poll::Ready(()) };
        if recorded.next().is_some() || !recorded.then.as_ref().is_some_and(|r| r.takes_lease) {
            return Poll::Ready(());
        }
        if let Some(recorder) = &mut recorded.then
            && let Err(error) = ready!(recorder.poll_take(cx))
        {
            recorder.fail(error);
        }
        if let Some(recorder) = recorded.then.take() {
            *self = Self::Recording(recorder);
        }
        Poll::Ready(())
    }

    /// Nothing more is written, for this reason.
    pub(crate) fn fail(&mut self, error: &Error) {
        if let Self::Recording(recorder) = self {
            recorder.fail(error.clone());
        }
    }

    /// Whether the next answer comes from the records: always in a replay, in a run that goes on until it is where it was.
    pub(crate) fn is_behind(&self) -> bool {
        self.recorded().is_some_and(|recorded| recorded.then.is_none() || recorded.next().is_some())
    }

    /// Ends the run because somebody who asks can't be answered.
    pub(crate) fn refuse(&mut self, place: &Place, want: &Want) -> Error {
        match self {
            Self::Replaying(recorded) => recorded.refuse(place, want),
            _ => gone(),
        }
    }

    /// Whether the run is brought back to where it was, to go on from there.
    fn is_resuming(&self) -> bool {
        matches!(self, Self::Replaying(recorded) if recorded.then.is_some())
    }

    /// Starts writing what waits, without waiting for it.
    pub fn kick(&mut self, cx: &mut Context<'_>) {
        if let Self::Recording(recorder) = self {
            // What fails is told at the next barrier.
            let _ = recorder.poll_flush(cx);
        }
    }

    /// Waits until what came of tools, what people said and what models were asked and answered is on its way to the log: whoever is told of it
    /// may do something else for as long as they like, and what was done is done. Safe it is when [`Tape::poll_durable`] says so.
    pub fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Recording(recorder) => recorder.poll_sent(cx),
            _ => Poll::Ready(()),
        }
    }

    /// Whether a run is kept of which the log has nothing yet.
    pub(crate) fn is_unwritten(&self) -> bool {
        matches!(self, Self::Recording(recorder) if recorder.written.is_none())
    }

    /// Whether so much waits to be written that nothing should be added to it.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Recording(recorder) if recorder.is_full())
    }

    /// Starts writing what waits, and waits for it only where it is so much that nothing should be added.
    pub fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.is_full() {
            return self.poll_durable(cx);
        }
        self.kick(cx);
        Poll::Ready(Ok(()))
    }

    /// Waits until the log was given every fact, so that each is kept even if this process dies now.
    pub(crate) fn poll_given(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Recording(recorder) => recorder.poll_given(cx),
            _ => Poll::Ready(()),
        }
    }

    /// Waits until the run is this writer's for certain, before an effect that must not happen twice: see
    /// [`Recorder::poll_held`].
    pub fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self {
            Self::Recording(recorder) => recorder.poll_held(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Waits until every fact is as safe as the log makes it.
    pub fn poll_durable(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        ready!(self.poll_go_on(cx));
        match self {
            Self::Recording(recorder) => recorder.poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }
}

/// Whether a fact is that a call was stopped while it ran.
fn is_cut_off(fact: &Fact) -> bool {
    matches!(fact, Fact::ToolFailed { resolution: Resolution::CutOff, .. })
}
