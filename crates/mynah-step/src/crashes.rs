//! How often the process of a run died.

use mynah_log::{Fact, Interruption, SUMMARY_STARTED};

use crate::outcome_of;

/// How often the process of a run died since the run last made progress: a fold of its facts.
///
/// ```
/// use mynah_log::Fact;
/// use mynah_step::Crashes;
///
/// let mut crashes = Crashes::default();
/// crashes.evolve(&Fact::SEAM);
/// assert_eq!(crashes.count(), 1);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Crashes {
    count: u32,
    /// Until when the run waits, in milliseconds since 1970: for good if a person must answer, or if it has ended.
    waits_until: Option<u64>,
}

impl Crashes {
    /// Takes in one more fact.
    pub fn evolve(&mut self, fact: &Fact) {
        match fact {
            // A run that waited for a person was not cut off, and a branch has not run yet.
            Fact::Resumed { .. } if self.waits_at(u64::MAX - 1) => self.count = 0,
            Fact::Resumed { after: Interruption::Branch, .. } => self.count = 0,
            Fact::Resumed { after, .. } => {
                self.count += u32::from(*after == Interruption::Crash);
            }
            fact if is_progress(fact) => self.count = 0,
            _ => {}
        }
        self.waits_until = fact.end().map(|end| match end.awaits_nobody() {
            true => end.wake_at_ms().unwrap_or_default(),
            false => u64::MAX,
        });
    }

    /// Whether the run waits at this time, in milliseconds since 1970, or has ended: a process that dies then does not die in it.
    pub fn waits_at(&self, now: u64) -> bool {
        self.waits_until.is_some_and(|until| until > now)
    }

    /// How often the process died since the run last made progress.
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// Whether a run that is resumed need not do again what a fact records.
fn is_progress(fact: &Fact) -> bool {
    match fact {
        Fact::Resumed { .. }
        | Fact::UserMessage { .. }
        | Fact::TurnStarted { .. }
        | Fact::TurnLost { .. } => false,
        Fact::SideEffect { inside: None, name, .. } => name != SUMMARY_STARTED,
        Fact::ToolScheduled { .. }
        | Fact::ToolCompleted { .. }
        | Fact::ToolFailed { .. }
        | Fact::SideEffect { .. } => outcome_of(fact).is_some(),
        Fact::RunStarted { .. }
        | Fact::FinalizeStarted { .. }
        | Fact::FinalizeFailed { .. }
        | Fact::AssistantCompleted { .. }
        | Fact::ContextTruncated { .. }
        | Fact::BudgetExceeded { .. }
        | Fact::Suspended(_)
        | Fact::Completed(_)
        | Fact::Failed(_)
        | Fact::Cancelled { .. }
        | Fact::Sealed(_)
        | Fact::Removed(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use mynah_data::{HaltReason, Message, Metadata};
    use mynah_log::{Effect, End};
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_process_that_dies_in_a_summary_made_no_progress_and_one_of_a_run_that_waits_for_a_person_did_not_die_in_it()
     {
        let effect = |name: &str| Fact::SideEffect {
            inside: None,
            name: name.to_owned(),
            ahead: 0,
            effect: Effect::Done(Value::Null),
        };
        let asks = Fact::Suspended(End::new(HaltReason::AskUser, Metadata::new()));
        let slept = Fact::Suspended(End::sleeping(1));
        for (fact, count) in
            [(effect(SUMMARY_STARTED), 2), (effect("now"), 1), (asks, 0), (slept, 1)]
        {
            let mut crashes = Crashes::default();
            [Fact::SEAM, fact.clone(), Fact::SEAM].iter().for_each(|fact| crashes.evolve(fact));
            assert_eq!(crashes.count(), count, "{fact:?}");
        }
    }

    #[test]
    fn a_message_with_each_resume_is_no_progress_and_a_branch_begins_anew() {
        let resumed = |interruption| {
            let mut fact = Fact::SEAM;
            if let Fact::Resumed { message, after, .. } = &mut fact {
                (*message, *after) = (Some(Message::user("continue").into()), interruption);
            }
            fact
        };
        let mut crashes = Crashes::default();
        [
            resumed(Interruption::Crash),
            resumed(Interruption::Release),
            resumed(Interruption::Crash),
        ]
        .iter()
        .for_each(|fact| crashes.evolve(fact));
        assert_eq!(crashes.count(), 2);
        crashes.evolve(&resumed(Interruption::Branch));
        assert_eq!(crashes.count(), 0);
    }
}
