//! What a recorded fact is to a replay.

use mynah_data::{BreachTime, Limit};
use mynah_log::{Fact, Hash, Resolution};

use crate::{
    RecordedFact,
    journal::{Origin, PendingEffect},
};

/// What a loop makes that does not know of its run being a branch, or of having been ended from outside, as it is recorded.
pub(super) fn as_recorded(produced: &Fact, recorded: &RecordedFact) -> Option<Fact> {
    match (produced, recorded.fact()) {
        (
            Fact::RunStarted { thread, extent, about: None },
            Fact::RunStarted { about: Some(about), .. },
        ) if about.is_bare() => {
            let (thread, extent) = (thread.clone(), *extent);
            Some(Fact::RunStarted { thread, extent, about: Some(about.clone()) })
        }
        (Fact::Cancelled { .. }, end) if is_ended_from_outside(end) => Some(end.clone()),
        _ => None,
    }
}

/// Whether a fact is that another process ended the run, which did not measure how long it was active.
pub(super) fn is_ended_from_outside(fact: &Fact) -> bool {
    matches!(fact, Fact::Cancelled { end, .. } if end.duration_ms.is_none())
}

/// Whether the run is a branch to which nothing was added.
pub fn is_fresh_branch(records: &[RecordedFact]) -> bool {
    match (records.first().map(RecordedFact::fact), records.last()) {
        (Some(Fact::RunStarted { about: Some(about), .. }), Some(last)) => {
            about.parent.as_ref().is_some_and(|parent| parent.seq == last.record().seq())
        }
        _ => false,
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

/// Whether a fact is that a call was stopped while it ran.
pub(super) fn is_cut_off(fact: &Fact) -> bool {
    matches!(fact, Fact::ToolFailed { resolution: Resolution::CutOff, .. })
}

/// Whether a fact is that a call of the model or of a tool was given up.
pub(super) fn is_given_up(fact: &Fact) -> bool {
    is_cut_off(fact) || matches!(fact, Fact::TurnLost { given_up: true, .. })
}

/// The name under which a loop records where it is.
pub(crate) const CHECKPOINT: &str = "checkpoint";

/// The name under which a loop records until when it sleeps.
pub(crate) const SLEEP: &str = "sleep";

/// The name under which a loop records how a sleep ended: whether it was over, or the run was cancelled before.
pub(crate) const WOKE: &str = "woke";

/// The name under which the failure of a model call is kept.
pub(crate) const MODEL_CALL: &str = "model_call";

/// Whether a fact is this request to the model.
pub(super) fn asks(fact: &Fact, this: Hash) -> bool {
    matches!(fact, Fact::TurnStarted { prompt: Some(prompt), .. } if *prompt == this)
}

/// Whether a fact is the outcome of a model call.
pub(crate) fn is_answer(fact: &Fact) -> bool {
    match fact {
        Fact::AssistantCompleted { .. } | Fact::TurnLost { .. } => true,
        Fact::BudgetExceeded { breach, .. } => breach.when == BreachTime::MidStream,
        Fact::SideEffect { inside, name, .. } => inside.is_none() && name == MODEL_CALL,
        Fact::RunStarted { .. }
        | Fact::Resumed { .. }
        | Fact::UserMessage { .. }
        | Fact::TurnStarted { .. }
        | Fact::FinalizeStarted { .. }
        | Fact::FinalizeFailed { .. }
        | Fact::ToolScheduled { .. }
        | Fact::ToolCompleted { .. }
        | Fact::ToolFailed { .. }
        | Fact::ContextTruncated { .. }
        | Fact::Suspended(_)
        | Fact::Completed(_)
        | Fact::Failed(_)
        | Fact::Cancelled { .. }
        | Fact::Sealed(_)
        | Fact::Removed(_) => false,
    }
}

/// Whether a fact is made at a place.
pub(super) fn is_at(place: &Origin, fact: &Fact) -> bool {
    let call = of_tool(fact).map(|(call, _)| call);
    call == place.as_ref().map(|inside| inside.call_id.as_str())
}

/// Whether a fact is the outcome of a side effect with a requested name.
pub(super) fn is_named(fact: &Fact, place: &Origin, asked: &PendingEffect) -> bool {
    matches!(fact, Fact::SideEffect { inside, name, .. } if inside == place && **name == *asked.name)
}

/// Whether a fact cannot be the recorded one at its place, regardless of contents. Facts of one
/// call can be, unless both are side effects: the call may make others between them.
pub(super) fn is_other(place: &Origin, fact: &Fact, recorded: &Fact) -> bool {
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
pub(super) fn is_stopped(fact: &Fact, upcoming: &Fact) -> bool {
    let Fact::BudgetExceeded { breach, .. } = upcoming else { return false };
    let before = match fact {
        Fact::TurnStarted { .. } => breach.limit != Limit::ToolCalls,
        Fact::ToolScheduled { .. } => matches!(breach.limit, Limit::ToolCalls | Limit::WallClock),
        _ => false,
    };
    before && breach.when == BreachTime::PreCall
}

/// The call and the attempt in which a fact was made: not the call's announcement, and not its outcome.
pub(crate) fn inner(fact: &Fact) -> Option<(&str, u32)> {
    of_tool(fact).filter(|_| outcome_of(fact).is_none())
}

/// The call and the attempt that a fact of a running tool belongs to.
pub(crate) fn of_tool(fact: &Fact) -> Option<(&str, u32)> {
    let is_announced = matches!(fact, Fact::ToolScheduled { attempt: 1, .. });
    fact.attempt().filter(|_| !is_announced)
}
