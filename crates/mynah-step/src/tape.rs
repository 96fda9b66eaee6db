//! What becomes of facts: nothing, a record, or a comparison with one.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use mynah_data::{Error, Result};
use mynah_log::{Fact, Head, Lease};

use crate::{
    Recorded, Recorder,
    desk::{Place, Want, gone},
    recorded::{of_tool, outcome},
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
    pub fn run_id(&self) -> Option<&Arc<str>> {
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

    /// Lets the holder of a lease write what follows the records.
    pub fn hold(&mut self, lease: Lease) {
        match self {
            Self::Blank => {}
            Self::Recording(recorder) => recorder.lease = Some(lease),
            Self::Replaying(recorded) => {
                if let Some(recorder) = &mut recorded.then {
                    recorder.lease = Some(lease);
                }
            }
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
                    // The process ended between the end and its seal.
                    if ends(fact)
                        && let Some(mut recorder) = recorded.follow()
                    {
                        recorder.seal()?;
                        *self = Self::Recording(recorder);
                    }
                    Ok(())
                }
                Some(mut recorder) => {
                    // Whoever reads the records sees where one process ended and another began.
                    if !matches!(fact, Fact::Resumed { .. }) {
                        recorder.commit(&recorded.seam)?;
                    }
                    recorder.commit(fact)?;
                    *self = Self::Recording(recorder);
                    Ok(())
                }
            },
        }
    }

    /// How many engines took over from another up to here, in a run that is performed again. Whoever goes on with it is one
    /// of them.
    pub fn handovers(&self) -> usize {
        self.recorded().map_or(0, Recorded::handovers)
    }

    /// The next recorded fact; none where the world answers.
    pub fn upcoming(&self) -> Option<&Fact> {
        self.recorded()?.upcoming()
    }

    /// What is recorded of how a call of the turn came out.
    pub fn outcome_of(&self, call: &str) -> Option<&Fact> {
        self.recorded()?.outcome_of(call)
    }

    /// The call that the next recorded fact belongs to, and whether that is its outcome.
    pub fn next_call(&self) -> Option<(&str, bool)> {
        let upcoming = self.upcoming()?;
        let (call, _) = of_tool(upcoming)?;
        Some((call, outcome(upcoming).is_some()))
    }

    /// The try with which another process began a call of the turn anew, in a run performed again.
    pub fn attempt_of(&self, call: &str) -> Option<u32> {
        self.recorded()?.attempt_of(call)
    }

    /// The last try of a call that was announced before the run is performed again, in its last turn.
    pub fn announced(&self, call: &str) -> Option<u32> {
        self.recorded()?.announced(call)
    }

    /// The records answer for a call: what happened inside it is not made again.
    pub fn answer_for(&mut self, call: &str) {
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

    /// Whether the records end while tools run.
    pub fn ends_in_tools(&self) -> bool {
        self.recorded().is_some_and(Recorded::ends_in_tools)
    }

    /// Whether the run was ended while tools ran.
    pub fn is_cut_off_in_tools(&self) -> bool {
        self.recorded().is_some_and(Recorded::is_cut_off_in_tools)
    }

    /// Whether the records answer, not the world.
    pub fn is_replaying(&self) -> bool {
        self.recorded().is_some()
    }

    fn recorded(&self) -> Option<&Recorded> {
        match self {
            Self::Replaying(recorded) => Some(recorded),
            _ => None,
        }
    }

    /// What somebody gets who asks; nothing while it is not their turn.
    pub(crate) fn answer(&mut self, place: &Place, want: &Want) -> Option<Result<Option<Fact>>> {
        match (self, want) {
            (Self::Replaying(recorded), _) => recorded.answer(place, want),
            (Self::Recording(recorder), Want::Commit { fact, .. }) => {
                Some(recorder.commit(fact).map(|()| None))
            }
            _ => Some(Ok(None)),
        }
    }

    /// Ends the run because somebody who asks can't be answered.
    pub(crate) fn refuse(&mut self, place: &Place, want: &Want) -> Error {
        match self {
            Self::Replaying(recorded) => recorded.refuse(place, want),
            _ => gone(),
        }
    }

    /// Whether the run is brought back to where it was, to go on from there.
    pub fn is_resuming(&self) -> bool {
        matches!(self, Self::Replaying(recorded) if recorded.then.is_some())
    }

    /// Whether a replay came to the end of records that have no end: there is nothing to compare with.
    pub fn ran_out(&self) -> bool {
        matches!(self, Self::Replaying(recorded) if recorded.then.is_none())
            && self.upcoming().is_none()
    }

    /// Starts writing what waits, without waiting for it.
    pub fn kick(&mut self, cx: &mut Context<'_>) {
        if let Self::Recording(recorder) = self {
            // What fails is told at the next barrier.
            let _ = recorder.poll_flush(cx);
        }
    }

    /// Keeps the run this writer's, as long as it is polled.
    pub fn keep(&mut self, cx: &mut Context<'_>) {
        if let Self::Recording(recorder) = self {
            recorder.poll_keep(cx);
        }
    }

    /// Waits until every fact is as safe as the log makes it.
    pub fn poll_durable(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        match self {
            Self::Recording(recorder) => recorder.poll_flush(cx),
            _ => Poll::Ready(Ok(())),
        }
    }
}
