//! What a run has spent, and whether it may spend more.

use std::{pin::Pin, task::Context, time::Duration};

use mynah_data::{
    Breach, Budget, Error, Event, HaltReason, Limit, Metadata, Place, Pricing, Response, Usage,
};
use mynah_log::{End, Extent, Fact};
use serde_json::json;
use tokio::time::{Instant, Sleep};

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

/// What a run has spent, as its facts tell.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pub(super) turns: u64,
    pub(super) tool_calls: u64,
    calls: Taken,
    /// The tokens of the newest prompt, as estimated.
    prompt: u64,
}

/// What model calls took.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    input: u64,
    output: u64,
    total: u64,
    usd: f64,
}

/// What was heard of the answer under way.
#[derive(Debug, Default)]
pub(super) struct Heard {
    usage: Usage,
    /// Characters since the provider last reported its usage.
    unreported: u64,
}

impl RunState {
    /// The model is about to be called.
    pub(super) fn turn_started(&mut self) {
        self.spent.turns += 1;
        self.spent.prompt = self.prompt_tokens(0);
    }

    /// The model has answered, or was cut off.
    pub(super) fn answered(&mut self, response: &Response) {
        let usage = &response.usage;
        let unreported = match usage.output_tokens {
            Some(_) => 0,
            None => response.message.size(),
        };
        let taken = self.taken(usage, unreported);
        self.spent.calls = self.spent.calls.and(taken);
    }

    /// The first limit that calling the model would pass, with a prompt that is `more` than the thread.
    pub(super) fn passed_by_calling(&self, budget: &Budget, more: u64) -> Option<Breach> {
        let prompt = self.prompt_tokens(more);
        let next = self.taken(&Usage { input_tokens: Some(prompt), ..Usage::default() }, 0);
        let next = self.spent.calls.and(next);
        over(Limit::InputTokens, budget.max_input_tokens, next.input, Place::PreCall)
            .or_else(|| next.over(budget, Place::PreCall))
            .or_else(|| over(Limit::Turns, budget.max_turns, self.spent.turns + 1, Place::PreCall))
    }

    /// The limit that running so many more tools would pass.
    pub(super) fn passed_by_tools(&self, budget: &Budget, more: usize) -> Option<Breach> {
        let calls = self.spent.tool_calls + more as u64;
        over(Limit::ToolCalls, budget.max_tool_calls, calls, Place::PreCall)
    }

    /// The first limit that the answer under way has passed.
    pub(super) fn passed_by_answer(&self, budget: &Budget, heard: &Heard) -> Option<Breach> {
        let answer = self.taken(&heard.usage, heard.unreported);
        self.spent.calls.and(answer).over(budget, Place::MidStream)
    }

    /// What the next prompt takes, as estimated.
    fn prompt_tokens(&self, more: u64) -> u64 {
        // The call that gives the answer its form has no tools.
        let schemas = if self.conversation.is_some() { 0 } else { self.meter.schema_bytes };
        tokens(self.thread.messages.size() + schemas + more + 2)
    }

    /// What a call took: as reported, and estimated where it was not.
    fn taken(&self, reported: &Usage, unreported: u64) -> Taken {
        let written = reported.output_tokens.unwrap_or(0).saturating_add(tokens(unreported));
        let input = reported.input_tokens.unwrap_or(self.spent.prompt);
        let mut usage = Usage {
            input_tokens: Some(input),
            output_tokens: Some(written),
            input_cost: reported.input_cost,
            cached_input_tokens: reported.cached_input_tokens,
            cache_write_tokens: reported.cache_write_tokens,
            ..Usage::default()
        };
        if unreported == 0 {
            usage.output_cost = reported.output_cost;
            usage.total_cost = reported.total_cost;
        }
        if let Some(pricing) = &self.meter.pricing {
            pricing.apply(&mut usage);
        }
        let total = match reported.total_tokens {
            Some(total) => total.saturating_add(tokens(unreported)),
            None => input.saturating_add(written),
        };
        let parts = || usage.input_cost.unwrap_or(0.0) + usage.output_cost.unwrap_or(0.0);
        let usd = usage.total_cost.or(reported.total_cost).unwrap_or_else(parts);
        Taken { input, output: written, total, usd: usd.max(0.0) }
    }
}

impl Driver {
    /// The first limit that the answer has passed.
    pub(super) fn passed_by_answer(&self) -> Option<Breach> {
        let budget = self.setup.policy.budget.as_ref()?;
        self.state.passed_by_answer(budget, &self.heard)
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
        let partial =
            (answering && self.answer.has_started()).then(|| Box::new(self.take_answer()));
        let cuts = std::mem::take(&mut self.cuts).finish();
        let metadata = Metadata::from_iter([("budget".to_owned(), json!(breach))]);
        let end = End::new(HaltReason::BudgetExceeded, metadata);
        let mut end = self.state.end_of_chat(end, &self.setup.policy);
        let refused = (self.setup.policy.extent != Extent::Chat).then(|| {
            let error = Error::budget_exceeded(&breach, partial.as_deref());
            end.metadata.insert("error".to_owned(), error.to_value());
            error
        });
        self.commit(Fact::BudgetExceeded { breach, partial, cuts });
        self.commit(end.into_fact());
        match refused {
            Some(error) => self.phase = Phase::Closing(Err(error)),
            None => self.finish(),
        }
    }
}

impl Taken {
    fn and(self, more: Self) -> Self {
        Self {
            input: self.input.saturating_add(more.input),
            output: self.output.saturating_add(more.output),
            total: self.total.saturating_add(more.total),
            usd: self.usd + more.usd,
        }
    }

    /// The first limit that this passes, of those that an answer can pass.
    fn over(&self, budget: &Budget, place: Place) -> Option<Breach> {
        let usd = |cap: &f64| self.usd > *cap;
        over(Limit::OutputTokens, budget.max_output_tokens, self.output, place)
            .or_else(|| over(Limit::TotalTokens, budget.max_total_tokens, self.total, place))
            .or_else(|| Some(Breach::usd(budget.max_usd.filter(usd)?, self.usd, place)))
    }
}

impl Heard {
    /// Takes in an event of the model.
    pub(super) fn hear(&mut self, event: &Event) {
        match event {
            Event::TextDelta { delta, .. }
            | Event::ReasoningDelta { delta, .. }
            | Event::ToolCallDelta { arguments_delta: delta, .. } => {
                self.unreported += delta.chars().count() as u64;
            }
            Event::Usage { usage } => *self = Self { usage: Usage::clone(usage), unreported: 0 },
            _ => {}
        }
    }
}

fn over(limit: Limit, cap: Option<u64>, actual: u64, place: Place) -> Option<Breach> {
    Some(Breach::new(limit, cap.filter(|cap| actual > *cap)?, actual, place))
}

/// The tokens of so many characters, as estimated.
fn tokens(characters: u64) -> u64 {
    characters / 3
}

/// How long a run may be active, over all its processes.
pub(super) struct WallClock {
    cap: Duration,
    /// What earlier processes used.
    before: Duration,
    /// When this process began, and when it must end.
    running: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl WallClock {
    pub(super) fn new(cap_ms: u64, before: Duration) -> Self {
        Self { cap: Duration::from_millis(cap_ms), before, running: None }
    }

    /// The limit of a run that is performed again, where it stopped the run.
    pub(super) fn recorded(fact: &Fact) -> Option<&Breach> {
        match fact {
            Fact::BudgetExceeded { breach, .. } if breach.limit == Limit::WallClock => Some(breach),
            _ => None,
        }
    }

    /// The limit, once it has passed. Counts from the first time that it is asked.
    pub(super) fn poll_passed(&mut self, cx: &mut Context<'_>, place: Place) -> Option<Breach> {
        let (cap, before) = (self.cap, self.before);
        let (began, timer) = self.running.get_or_insert_with(|| {
            // It is passed by more than it, and timers count in milliseconds.
            let left = (cap + Duration::from_millis(1)).saturating_sub(before);
            (Instant::now(), Box::pin(tokio::time::sleep(left)))
        });
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let actual = millis(before + began.elapsed());
        // A run that never pauses gives no timer its turn, so the timer only wakes one that does.
        let breach = over(Limit::WallClock, Some(millis(cap)), actual, place);
        if breach.is_none() {
            let _ = timer.as_mut().poll(cx);
        }
        breach
    }
}
