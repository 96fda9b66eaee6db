//! What a budget does to a run.

use std::task::Context;

use mynah_data::{Breach, Budget, HaltReason, Place, Pricing, Response};
use mynah_log::Fact;
use mynah_step::{WallClock, prompt_size, tell_exceeded};

use super::{
    decide::Action,
    driver::{Driver, Phase},
    state::RunState,
};

/// What turns text into tokens, and tokens into dollars.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meter {
    /// The bytes of the schemas of all tools, which stand in every prompt.
    pub(crate) schema_bytes: u64,
    pub(crate) pricing: Option<Pricing>,
}

impl RunState {
    /// The model is about to be called.
    pub(super) fn turn_started(&mut self) {
        self.spent.turn_started(self.prompt_size(0));
    }

    /// The model has answered, or was cut off.
    pub(super) fn answered(&mut self, response: &Response) {
        self.spent.answered(response, self.meter.pricing.as_ref());
    }

    /// The first limit that calling the model would pass, with a prompt that is `more` than the thread.
    pub(super) fn passed_by_calling(&self, budget: &Budget, more: u64) -> Option<Breach> {
        self.spent.passed_by_calling(budget, self.prompt_size(more), self.meter.pricing.as_ref())
    }

    fn prompt_size(&self, more: u64) -> u64 {
        // The call that gives the answer its form has no tools.
        let schemas = if self.conversation.is_some() { 0 } else { self.meter.schema_bytes };
        prompt_size(self.thread.messages.size() + more, schemas)
    }
}

impl Driver {
    /// The first limit that the answer has passed.
    pub(super) fn passed_by_answer(&self) -> Option<Breach> {
        let budget = self.setup.policy.budget.as_ref()?;
        let pricing = self.setup.meter.pricing.as_ref();
        self.state.spent.passed_by_answer(budget, &self.heard, pricing)
    }

    /// The limit on time, where the run has passed it and is about to take more.
    pub(super) fn out_of_time(&mut self, cx: &mut Context<'_>) -> Option<Breach> {
        let clock = self.wall_clock.as_mut()?;
        if let Some(recorded) = self.tape.upcoming() {
            // Time is not measured again: where it ran out, it runs out again.
            return WallClock::recorded(recorded).filter(|_| self.is_between()).cloned();
        }
        let place = match self.phase {
            _ if self.tape.ran_out() => return None,
            Phase::Decide => Place::PreCall,
            // Whoever performs the run again sees the tools start.
            Phase::Announced(_) => return None,
            Phase::Tools(_) if self.state.open.is_none() => return None,
            _ => Place::MidStream,
        };
        let breach = clock.poll_passed(cx, place)?;
        let ends = place == Place::PreCall
            && !matches!(
                self.state.decide(&self.setup.policy),
                Action::CallModel | Action::Finalize { .. } | Action::RunTools(_)
            );
        (!ends).then_some(breach)
    }

    /// Stops the run because its budget is used up, and keeps what there is of it.
    pub(super) fn exceed(&mut self, breach: Breach) {
        let answering = matches!(self.phase, Phase::Opening(_) | Phase::Answering(_));
        if self.is_live() {
            let run = self.run_id().map(|run| &**run);
            tell_exceeded(run, &breach, self.setup.metrics.as_ref());
        }
        let partial = self.cut_off(answering, HaltReason::BudgetExceeded.as_str());
        let cuts = std::mem::take(&mut self.cuts).finish();
        self.phase = Phase::Decide;
        self.cut_off_tools();
        self.commit(Fact::BudgetExceeded { breach, partial, cuts });
    }
}
