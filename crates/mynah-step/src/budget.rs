//! What a run has spent, and whether it may spend more.

use std::{pin::Pin, task::Context, time::Duration};

use mynah_data::{
    Breach, BreachTime, Budget, Catalog, EngineReason, Error, Event, Limit, Pricing, Request,
    Response, Result, Usage,
};
use mynah_log::{Continues, Effect, Fact, Kind, SUMMARY_STARTED, Totals};
use serde::Deserialize as _;
use serde_json::Value;
use tokio::time::{Instant, Sleep};

use crate::{RecordedFact, cursor::MODEL_CALL, millis};

/// What a run has spent: a fold of its facts.
///
/// ```
/// use mynah_data::{Breach, Budget, Limit, BreachTime};
/// use mynah_log::Fact;
/// use mynah_step::Spent;
///
/// let budget = Budget::new().max_input_tokens(10).max_turns(1);
/// let mut spent = Spent::default();
/// assert_eq!(spent.passed_by_calling(&budget, 10), None);
/// spent.evolve(&Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 10 });
/// let breach = Breach::new(Limit::Turns, 1u64, 2u64, BreachTime::PreCall);
/// assert_eq!(spent.passed_by_calling(&budget, 0), Some(breach));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    turns: u64,
    tool_calls: u64,
    calls: Taken,
    /// Tokens of the newest prompt, as estimated.
    prompt: u64,
    /// What tokens cost, from the fact that says what the run runs with.
    pricing: Option<Pricing>,
}

/// What model calls took.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    input: u64,
    output: u64,
    total: u64,
    usd: f64,
}

/// What was received of an answer in flight.
#[derive(Debug, Default)]
pub(crate) struct PartialAnswer {
    usage: Usage,
    /// Characters since the provider last reported its usage.
    unreported: u64,
}

impl Spent {
    /// Takes in one more fact.
    pub fn evolve(&mut self, fact: &Fact) {
        if let Fact::RunStarted { about: Some(about), .. } = fact
            && let Some(link) = about.parent.as_ref().and_then(|parent| parent.continues.as_ref())
        {
            let Continues { turns, input_tokens: input, output_tokens: output, .. } = *link;
            let taken = Taken { input, output, total: link.total_tokens, usd: link.cost };
            (self.turns, self.calls) = (self.turns.saturating_add(turns), self.calls.and(taken));
        }
        match fact {
            Fact::RunStarted { about: Some(about), .. }
            | Fact::Resumed { about: Some(about), .. } => self.pricing = about.pricing,
            Fact::TurnStarted { input_tokens, .. } => {
                self.turns += 1;
                self.prompt = *input_tokens;
            }
            Fact::TurnLost { input_tokens: input, cost, .. } => {
                let (total, usd) = (*input, cost.unwrap_or(0.0));
                self.calls = self.calls.and(Taken { input: *input, output: 0, total, usd });
            }
            Fact::AssistantCompleted { response, .. } => self.answered(response),
            Fact::BudgetExceeded { partial: Some(partial), .. }
            | Fact::Cancelled { partial: Some(partial), .. } => self.answered(partial),
            Fact::ContextTruncated { summary: Some(summary), .. } => self.answered(summary),
            Fact::SideEffect { inside: None, name, effect: Effect::Done(value), .. }
                if name == SUMMARY_STARTED =>
            {
                self.turns += 1;
                self.prompt = value.get("input_tokens").and_then(Value::as_u64).unwrap_or(0);
            }
            Fact::ToolScheduled { attempt: 1, .. } => self.tool_calls += 1,
            // A model call of a custom loop that failed.
            Fact::SideEffect { inside: None, name, effect: Effect::Failed(error), .. }
                if name == MODEL_CALL =>
            {
                let error: Option<Error> = serde_json::from_str(error).ok();
                let usage = error.and_then(|e| Usage::deserialize(e.metadata().get("usage")?).ok());
                self.took(&usage.unwrap_or_default(), 0);
            }
            Fact::SideEffect { inside: Some(_), .. } => {
                self.delegated(&fact.sub_run_totals().unwrap_or_default());
            }
            Fact::RunStarted { about: None, .. }
            | Fact::Resumed { about: None, .. }
            | Fact::UserMessage { .. }
            | Fact::FinalizeStarted { .. }
            | Fact::FinalizeFailed { .. }
            | Fact::ToolScheduled { .. }
            | Fact::ToolCompleted { .. }
            | Fact::ToolFailed { .. }
            | Fact::SideEffect { .. }
            | Fact::ContextTruncated { .. }
            | Fact::BudgetExceeded { partial: None, .. }
            | Fact::Suspended(_)
            | Fact::Completed(_)
            | Fact::Failed(_)
            | Fact::Cancelled { partial: None, .. }
            | Fact::Sealed(_)
            | Fact::Removed(_) => {}
        }
    }

    /// Counts an answer: as reported, and estimated where it was not.
    pub(crate) fn answered(&mut self, response: &Response) {
        let unreported = match response.usage.output_tokens {
            Some(_) => 0,
            None => response.message.size(),
        };
        self.took(&response.usage, unreported);
    }

    /// Counts a model call that took this, and so many characters that were not reported.
    pub(crate) fn took(&mut self, usage: &Usage, unreported: u64) {
        let taken = Taken::by(usage, unreported, self.prompt, self.pricing.as_ref());
        self.calls = self.calls.and(taken);
    }

    /// Counts what a run spent that a tool started.
    fn delegated(&mut self, totals: &Totals) {
        self.turns = self.turns.saturating_add(totals.turns);
        self.tool_calls = self.tool_calls.saturating_add(totals.tool_calls);
        let (input, output) = (totals.input_tokens, totals.output_tokens);
        let total = input.saturating_add(output);
        self.calls = self.calls.and(Taken { input, output, total, usd: totals.cost });
    }

    /// What was spent, as the totals of a run: its own records and those of the runs that its tools started.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        (totals.turns, totals.tool_calls) = (self.turns, self.tool_calls);
        (totals.input_tokens, totals.output_tokens) = (self.calls.input, self.calls.output);
        totals.cost = self.calls.usd;
        totals
    }

    /// What is left of a budget. The limit on time is not among it: the tools of a run end with its time.
    pub fn left(&self, budget: &Budget) -> Budget {
        let left = |cap: Option<u64>, used: u64| cap.map(|cap| cap.saturating_sub(used));
        let mut rest = budget.clone();
        rest.max_input_tokens = left(budget.max_input_tokens, self.calls.input);
        rest.max_output_tokens = left(budget.max_output_tokens, self.calls.output);
        rest.max_total_tokens = left(budget.max_total_tokens, self.calls.total);
        rest.max_usd = budget.max_usd.map(|cap| (cap - self.calls.usd).max(0.0));
        rest.max_turns = left(budget.max_turns, self.turns);
        rest.max_tool_calls = left(budget.max_tool_calls, self.tool_calls);
        rest.max_wall_clock_ms = None;
        rest
    }

    /// What tokens cost.
    pub fn pricing(&self) -> Option<&Pricing> {
        self.pricing.as_ref()
    }

    /// Sets what tokens cost from here on, where no fact says it.
    pub(crate) fn set_pricing(&mut self, pricing: Option<Pricing>) {
        self.pricing = pricing;
    }

    /// The fact that the answer of this turn was lost, with an estimate of what it took.
    pub fn lost(&self, turn: u32) -> Fact {
        let Taken { input, usd, .. } =
            Taken::by(&Usage::default(), 0, self.prompt, self.pricing.as_ref());
        let cost = self.pricing.map(|_| usd);
        Fact::TurnLost { turn, input_tokens: input, cost, given_up: false }
    }

    /// Adds the model call that was made since to what a run that continues this one has to count. A call that took nothing does not
    /// count: the provider refused it.
    pub fn add_since(&self, before: &Self, link: &mut Continues) {
        let (now, then) = (&self.calls, &before.calls);
        link.input_tokens = link.input_tokens.saturating_add(now.input.saturating_sub(then.input));
        link.output_tokens =
            link.output_tokens.saturating_add(now.output.saturating_sub(then.output));
        link.total_tokens = link.total_tokens.saturating_add(now.total.saturating_sub(then.total));
        link.cost += (now.usd - then.usd).max(0.0);
        if now.total > then.total {
            link.turns = link.turns.saturating_add(self.turns.saturating_sub(before.turns));
        }
    }

    /// The first limit that calling the model would pass, with a prompt of so many tokens.
    pub fn passed_by_calling(&self, budget: &Budget, prompt: u64) -> Option<Breach> {
        let next = self.calls.and(Taken::by(&Usage::default(), 0, prompt, self.pricing.as_ref()));
        next.over(budget, BreachTime::PreCall)
            .or_else(|| over(Limit::Turns, budget.max_turns, self.turns + 1, BreachTime::PreCall))
    }

    /// The limit that running so many more tools would pass.
    pub fn passed_by_tools(&self, budget: &Budget, more: usize) -> Option<Breach> {
        let calls = self.tool_calls.saturating_add(more as u64);
        over(Limit::ToolCalls, budget.max_tool_calls, calls, BreachTime::PreCall)
    }

    /// The first limit that the answer in flight has passed.
    pub(crate) fn passed_by_answer(
        &self,
        budget: &Budget,
        heard: &PartialAnswer,
    ) -> Option<Breach> {
        let pricing = self.pricing.as_ref();
        let answer = Taken::by(&heard.usage, heard.unreported, self.prompt, pricing);
        self.calls.and(answer).over(budget, BreachTime::MidStream)
    }
}

impl Taken {
    /// What a call took: as reported, and estimated where it was not.
    fn by(reported: &Usage, unreported: u64, prompt: u64, pricing: Option<&Pricing>) -> Self {
        let written = reported.output_tokens.unwrap_or(0).saturating_add(estimate(unreported));
        let input = reported.input_tokens.unwrap_or(prompt);
        let mut usage = Usage::new(input, written);
        usage.input_cost = reported.input_cost;
        usage.cached_input_tokens = reported.cached_input_tokens;
        usage.cache_write_tokens = reported.cache_write_tokens;
        if unreported == 0 {
            usage.output_cost = reported.output_cost;
            usage.total_cost = reported.total_cost;
        }
        if let Some(pricing) = pricing {
            pricing.apply(&mut usage);
        }
        let total = match reported.total_tokens {
            Some(total) => total.saturating_add(estimate(unreported)),
            None => input.saturating_add(written),
        };
        let parts = || usage.input_cost.unwrap_or(0.0) + usage.output_cost.unwrap_or(0.0);
        let usd = usage.total_cost.or(reported.total_cost).unwrap_or_else(parts);
        Self { input, output: written, total, usd: usd.max(0.0) }
    }

    fn and(self, more: Self) -> Self {
        Self {
            input: self.input.saturating_add(more.input),
            output: self.output.saturating_add(more.output),
            total: self.total.saturating_add(more.total),
            usd: self.usd + more.usd,
        }
    }

    /// The first limit that this passes.
    fn over(&self, budget: &Budget, place: BreachTime) -> Option<Breach> {
        let usd = |cap: &f64| self.usd > *cap;
        over(Limit::InputTokens, budget.max_input_tokens, self.input, place)
            .or_else(|| over(Limit::OutputTokens, budget.max_output_tokens, self.output, place))
            .or_else(|| over(Limit::TotalTokens, budget.max_total_tokens, self.total, place))
            .or_else(|| Some(Breach::usd(budget.max_usd.filter(usd)?, self.usd, place)))
    }
}

impl PartialAnswer {
    /// Takes in an event of the model.
    pub(crate) fn hear(&mut self, event: &Event) {
        match event {
            Event::TextDelta { delta, .. }
            | Event::ReasoningDelta { delta, .. }
            | Event::ToolCallDelta { arguments_delta: delta, .. } => {
                self.unreported += delta.chars().count() as u64;
            }
            Event::Usage { usage } => {
                let known = self.usage.output_tokens;
                self.usage = Usage::clone(usage);
                match usage.output_tokens {
                    Some(_) => self.unreported = 0,
                    // What was not reported is still to be counted.
                    None => self.usage.output_tokens = known,
                }
            }
            _ => {}
        }
    }
}

/// How long a run may be active, over all its processes. Time is no fact: a live run measures it, and where it ran out is
/// recorded.
pub struct WallClock {
    cap: Duration,
    /// What earlier processes used.
    before: Duration,
    /// When this process began, and when it must end.
    running: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl WallClock {
    /// The clock of a run whose budget limits its time. Earlier processes used some of it.
    pub fn new(budget: Option<&Budget>, before: Duration) -> Option<Self> {
        let cap = Duration::from_millis(budget?.max_wall_clock_ms?);
        Some(Self { cap, before, running: None })
    }

    /// The limit of a replayed run that the limit stopped.
    pub fn recorded(fact: &Fact) -> Option<&Breach> {
        match fact {
            Fact::BudgetExceeded { breach, .. } if breach.limit == Limit::WallClock => Some(breach),
            _ => None,
        }
    }

    /// The limit, once it has passed. It counts from the first call.
    pub fn poll_passed(&mut self, cx: &mut Context<'_>, place: BreachTime) -> Option<Breach> {
        let (cap, before) = (self.cap, self.before);
        let (began, timer) = self.running.get_or_insert_with(|| {
            // It is passed by more than it, and timers count in milliseconds.
            let left = (cap + Duration::from_millis(1)).saturating_sub(before);
            (Instant::now(), Box::pin(tokio::time::sleep(left)))
        });
        // The next action takes some time, so the limit never passes before the first one.
        let least = u64::from(cap.is_zero());
        let actual = millis(before + began.elapsed()).max(least);
        // A run that never pauses gives no timer its turn, so the timer only wakes one that does.
        let breach = (actual > millis(cap))
            .then(|| Breach::new(Limit::WallClock, millis(cap), actual, place));
        if breach.is_none() {
            let _ = timer.as_mut().poll(cx);
        }
        breach
    }
}

/// How long a run was active, from its records: without the time from the end of a process, or a
/// suspension, until it was resumed. A branch includes the time of the run that it was branched
/// from.
pub fn active(records: &[RecordedFact]) -> Duration {
    let parent = match records.first().map(RecordedFact::fact) {
        Some(Fact::RunStarted { about: Some(about), .. }) => about.parent.as_ref(),
        _ => None,
    };
    let (copied, inherited) = parent.map_or((0, 0), |parent| (parent.seq, parent.active));
    let spans = records.windows(2).filter_map(|pair| match pair {
        [from, to] if !to.is(Kind::Resumed) && to.record().seq() > copied => {
            let [from, to] = [from, to].map(|kept| kept.record().envelope().ts);
            u64::try_from(to.saturating_sub(from)).ok()
        }
        _ => None,
    });
    Duration::from_nanos(spans.fold(inherited, u64::saturating_add))
}

/// The price of a request's tokens, if known: the model's own, or that of the catalog. It is
/// unknown if the request asks not to be served [at list prices](Pricing::is_listed).
pub fn price_of(request: &Request, catalog: &Catalog) -> Option<Pricing> {
    if !Pricing::is_listed(&request.options) {
        return None;
    }
    let model = request.model.as_ref()?;
    let pricing = model.pricing.or_else(|| catalog.find(model)?.pricing)?;
    let retention = request.prompt_cache.as_ref().map(|cache| cache.retention);
    Some(pricing.for_retention(retention.unwrap_or_default()))
}

/// Refuses a limit in dollars that cannot be enforced (`unknown_price`).
pub fn check_price(
    budget: Option<&Budget>,
    pricing: Option<&Pricing>,
    request: &Request,
) -> Result<()> {
    let limited = budget.is_some_and(|b| b.max_usd.is_some() && !b.allow_unknown_price);
    if !limited || pricing.is_some() {
        return Ok(());
    }
    let model = request.model.as_ref().map(ToString::to_string);
    let (tier, way_out) = match Pricing::is_listed(&request.options) {
        true => ("", "give the model a price, or allow_unknown_price"),
        false => {
            (" in the tier that is asked for", "ask for the standard one, or allow_unknown_price")
        }
    };
    Err(Error::engine(EngineReason::UnknownPrice)
        .with_message(format!(
            "engine error: unknown_price: the price of {} is unknown{tier}, so max_usd cannot be enforced; {way_out}",
            model.as_deref().unwrap_or("a call without a model")
        ))
        .with("model", model))
}

/// The tokens of a prompt whose messages and schemas have so many characters, as estimated.
pub fn prompt_tokens(messages: u64, schemas: u64) -> u64 {
    estimate(messages.saturating_add(schemas).saturating_add(2))
}

fn over(limit: Limit, cap: Option<u64>, actual: u64, place: BreachTime) -> Option<Breach> {
    Some(Breach::new(limit, cap.filter(|cap| actual > *cap)?, actual, place))
}

/// The tokens of so many characters, as estimated.
pub(crate) fn estimate(characters: u64) -> u64 {
    characters / 3
}
