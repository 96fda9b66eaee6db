//! Calling tools from a custom loop.

use std::{future::poll_fn, pin::Pin, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use mynah_data::{Budget, Error, Result, ToolCall, ToolOutcome, ToolReason};
use mynah_log::{DirectCall, Fact, Inside, Resolution};
use tokio::{sync::Semaphore, time::Instant};

use super::{Context, Shared};
use crate::{
    HandlerExecutor, JsonEncoder, OnUncertain, Settled, Spent, Tool, ToolContext, ToolLimits, Try,
    Watch,
    alone::Keeper,
    is_not_rerun,
    journal::{Query, RUN_ENDED, gone, lock},
    millis, reruns_lost, run_tool, settle,
    settle::failed,
    tool::Backoff,
    uncertain,
    uncertain::is_uncertain,
};

/// A tool to be called. A call without an id gets one.
///
/// A replay or a resumed run finds the record of a call without an id by its turn, name and
/// arguments. Identical calls are matched in their order. If several tasks make them concurrently,
/// that order may change, and the run differs. Explicit ids avoid it.
#[doc(alias = "ToolCall")]
#[derive(Clone)]
#[must_use = "a tool is not called unless a context does it"]
pub struct CallTool {
    call: ToolCall,
    turn: Option<u32>,
    /// The number of attempts, if the call is idempotent.
    max_attempts: Option<u32>,
    backoff: Option<Backoff>,
    approved: bool,
    /// How many calls of the run had the same id before.
    earlier: u64,
}

mynah_data::partial_debug! { CallTool { call, turn, max_attempts, approved } }

impl CallTool {
    mynah_data::setters! { self => self;
        /// The same, asked for in this turn.
        turn(turn: u32) = Some(turn);

        /// Sets the pause after a failed attempt, from 1.
        backoff(pause: impl Fn(u32) -> Duration + Send + Sync + 'static) = Some(Arc::new(pause));
    }

    /// Declares that this call may run twice without harm, and sets the number of attempts after transient failures, as
    /// [`Tool::idempotent`] does for all calls of a tool.
    pub fn idempotent(mut self, max_attempts: u32) -> Self {
        self.max_attempts = Some(max_attempts);
        self
    }

    /// Says that a person, or the loop in their place, approved this call. Without it, a call of a tool that
    /// [asks for approval](Tool::approval) or is [manual](Tool::manual) is refused with `denied`, and does not run.
    ///
    /// Take the decision from a record of the run, as here with a side effect. A process that resumes the run must come to the same:
    /// the record of the call says whether it was approved, and another answer is a `replay_mismatch`.
    ///
    /// ```
    /// # mod mynah { pub use {mynah_data::*, mynah_log as log, mynah_step as step, mynah_step::*}; }
    /// use std::sync::Arc;
    /// use mynah::{Approval, Tool, ToolCall, ToolOutcome};
    /// use mynah::log::MemoryLog;
    /// use mynah::step::{CallTool, Config, Context};
    /// use serde_json::json;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah_data::Result<()> {
    /// let pay = Tool::new("pay", "Pays an invoice", json!({})).approval(Approval::Ask).handler(async |_, _| "paid");
    /// let context = Context::new(Config::new(&Arc::new(MemoryLog::new()), "run-1").tools([pay]))?;
    /// let paid = context
    ///     .run("go", async |cx| {
    ///         let call = CallTool::from(ToolCall::new("c0", "pay", "{}"));
    ///         // What a person says is taken from the world, so it is recorded.
    ///         let says_yes = cx.side_effect("decision", async { Ok::<_, mynah::Error>(true) }).await?;
    ///         cx.call_tool(if says_yes { call.approved() } else { call }).await
    ///     })
    ///     .await?;
    /// assert_eq!(paid, ToolOutcome::Ok(json!("paid")));
    /// # Ok(()) }
    /// ```
    pub fn approved(mut self) -> Self {
        self.approved = true;
        self
    }
}

impl From<ToolCall> for CallTool {
    fn from(call: ToolCall) -> Self {
        Self { call, turn: None, max_attempts: None, backoff: None, approved: false, earlier: 0 }
    }
}

/// What is known of a call that a process announced which ended.
#[derive(Clone, Copy, PartialEq)]
struct Before {
    /// The attempt that would be the next.
    next: Try,
    may_have_run: bool,
}

/// The outcome of one of several calls.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ToolResult {
    /// The call.
    pub call_id: String,
    /// What the tool gave, never its [`ToolOutcome::Error`]; or how it failed.
    pub outcome: Result<ToolOutcome>,
}

impl Context {
    /// Calls a tool: announces it, runs its attempts, and records the outcome.
    ///
    /// Returns the outcome alone, and a tool that fails is an `Err` of this call.
    /// [`Context::call_tools`] gives a [`ToolResult`] for each call, which has the call's id, and a
    /// failure as its `outcome`: the only `Err` of that call is that of the run.
    ///
    /// # Errors
    /// The tool's own failure; `denied` for a call that needs to be [approved](CallTool::approved) and
    /// is not; and as [`Context::call_tools`].
    #[doc(alias = "CallTool")]
    pub async fn call_tool(&self, call: impl Into<CallTool>) -> Result<ToolOutcome> {
        let mut results = self.call_tools([call.into()]).await?;
        results.pop().map_or_else(|| Err(gone()), |result| result.outcome)
    }

    /// Calls several tools concurrently. All are announced first, in order. Outcomes are recorded
    /// as they arrive; the results are in the order of the calls. A failed call does not end the
    /// others.
    ///
    /// # Errors
    /// A tool that fails under [`OnToolError::Halt`](crate::OnToolError::Halt), after the others have ended. Arguments that are not JSON, an id of a call that has no outcome yet (before anything is recorded), `budget_exceeded` (before any is announced), and as
    /// [`Context::now`].
    #[doc(alias = "CallTools")]
    pub async fn call_tools(
        &self,
        calls: impl IntoIterator<Item = impl Into<CallTool>>,
    ) -> Result<Vec<ToolResult>> {
        let mut calls: Vec<CallTool> = calls.into_iter().map(Into::into).collect();
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        for CallTool { call, .. } in &calls {
            if let Some(why) = call.argument_error() {
                let why = format!("the arguments are not valid JSON: {why}");
                return Err(failed(&call.name, ToolReason::InvalidArguments, why));
            }
        }
        let _in_flight = self.0.in_flight.begin()?;
        let mut ids = Ids::claim(self, &calls)?;
        let count = calls.len();
        let mut begun = Vec::with_capacity(count);
        for call in &mut calls {
            // The budget allows all of them, or none.
            let more = begun.is_empty().then_some(count);
            begun.push(self.announce_tool(call, more, &mut ids).await?);
        }
        if begun.contains(&None) {
            // No call runs before all are announced. A call that is recorded as not begun is announced again.
            begun.iter_mut().for_each(|begun| *begun = begun.filter(|it| !it.may_have_run));
        }
        self.flush().await?;
        let places = Semaphore::new(self.0.config.max_concurrency);
        let begin = |(index, (call, begun)): (usize, (CallTool, Option<Before>))| {
            let places = &places;
            async move { (index, self.call(call, begun, places).await) }
        };
        let runs = calls.into_iter().zip(begun).enumerate().map(begin);
        let mut runs = runs.collect::<FuturesUnordered<_>>().collect::<Vec<_>>();
        // The calls wake their loop, and a replay knows what each of them waits for.
        let keeper = Keeper::new();
        let runs = poll_fn(|cx| {
            let polled = Pin::new(&mut runs).poll(cx);
            keeper.keep(cx.waker());
            polled
        });
        let mut results = match self.in_run(self.while_there_is_time(&ids.mine, runs)).await {
            Ok(results) => results,
            Err(breach) => {
                ids.mine.iter().for_each(|id| self.0.journal.leave_stopped(id, RUN_ENDED));
                return Err(self.exceed(breach, None, Vec::new()).await?);
            }
        };
        results.sort_unstable_by_key(|(index, _)| *index);
        let results = results.into_iter().map(|(_, result)| result).collect::<Result<Vec<_>>>();
        if let Err(error) = &results
            && is_uncertain(error)
        {
            // What other branches do is recorded, and nothing follows: the loop would find another outcome when it is resumed.
            self.0.in_flight.close(error);
        }
        self.in_run(async { results }).await
    }

    /// Announces a call, if the budget allows so many more: that is asked with the first of a batch. One without an id gets one. A call
    /// that a process announced which ended may have run: then this returns what is known of it.
    async fn announce_tool(
        &self,
        tool: &mut CallTool,
        more: Option<usize>,
        ids: &mut Ids<'_>,
    ) -> Result<Option<Before>> {
        let ToolCall { id, name, raw_arguments, .. } = &mut tool.call;
        let arguments = raw_arguments.clone();
        let (name, approved) = (name.clone(), tool.approved);
        let call = DirectCall { turn: tool.turn, name, arguments, approved };
        if id.is_empty() {
            let recorded = self.0.journal.records(|cursor| cursor.id_of(&call, |id| ids.take(id)));
            *id = recorded.unwrap_or_else(|| self.0.config.world.new_run_id().to_string());
            // A fresh one, or that of another call.
            ids.take(id);
        } else {
            tool.earlier = self.count_call(id);
        }
        let call = Some(Box::new(call));
        let next = self.0.journal.records(|cursor| cursor.left_open(id));
        let (next, may_have_run) = next.unwrap_or((Try { number: 2, failed: 0 }, true));
        let before = Before { next, may_have_run };
        let fact = Fact::ToolScheduled { call_id: id.clone(), attempt: 1, call };
        let passed = more
            .map(|more| move |spent: &Spent, budget: &Budget| spent.passed_by_tools(budget, more));
        Ok(self.announce(fact, passed).await?.then_some(before))
    }

    async fn call(
        &self,
        called: CallTool,
        begun: Option<Before>,
        places: &Semaphore,
    ) -> Result<ToolResult> {
        let CallTool { call, max_attempts, backoff, approved, earlier, .. } = called;
        let (config, call) = (&self.0.config, Arc::new(call));
        let (call_id, name) = (call.id.clone(), call.name.clone());
        let tool = config.tools.get(&call.name).cloned();
        let tool = tool.map(|tool| match max_attempts {
            Some(max_attempts) => tool.idempotent(max_attempts),
            None => tool,
        });
        let (attempt, from_record) = self.recorded_try(&call, tool.as_ref());
        let mut fact = None;
        if from_record {
            let inside = Inside { call_id: call_id.clone(), attempt: attempt.number };
            self.0.journal.begin(&call, attempt.number, false);
            fact = self.0.journal.ask(Some(inside), Query::Outcome).await?;
        }
        let fact = match fact {
            Some(fact) => fact,
            None => {
                // In a replay each waits for its turn, regardless of free places.
                let _place = match self.0.replaying {
                    true => None,
                    false => places.acquire().await.ok(),
                };
                let mut context = ToolContext::new(Arc::clone(&call), Arc::clone(&config.world))
                    .side_effect_errors(config.side_effect_errors)
                    .in_run(Some(self.0.journal.run_id().clone()), earlier)
                    .kept(Arc::clone(&self.0.journal), attempt, self.0.replaying);
                context.context = Arc::clone(&config.context);
                context.request_id = Arc::from(self.0.journal.run_id().as_str());
                context.cancelled = Some(self.0.cancelled.subscribe());
                match &tool {
                    // None of its processes ran it.
                    Some(tool) if tool.needs_decision() && !approved => {
                        let attempts = context.attempt();
                        self.refuse(&context, unapproved(&call), attempts).await?
                    }
                    _ => self.run_now(tool, context, begun, backoff).await?,
                }
            }
        };
        let outcome = match fact {
            Fact::ToolCompleted { outcome, .. } => Ok(outcome),
            Fact::ToolFailed { resolution: Resolution::Replaced(value), .. } => {
                Ok(ToolOutcome::Ok(value))
            }
            Fact::ToolFailed { error, resolution: Resolution::Halted { .. }, .. } => {
                return Err(error);
            }
            Fact::ToolFailed { error, .. } => Err(error),
            Fact::Cancelled { .. } => Err(failed(&name, ToolReason::Cancelled, RUN_ENDED)),
            _ => Err(gone()),
        };
        Ok(ToolResult { call_id, outcome })
    }

    /// The current attempt of a call, and whether its record answers for it.
    fn recorded_try(&self, call: &ToolCall, tool: Option<&Tool>) -> (Try, bool) {
        let mut journal = self.journal();
        let Some(cursor) = &mut journal.cursor else { return (Try::FIRST, false) };
        let attempt = cursor.attempt_of(&call.id).unwrap_or(Try::FIRST);
        if !cursor.is_behind() {
            return (attempt, false);
        }
        let recorded = !self.0.replaying || tool.is_some_and(Tool::is_recorded);
        match cursor.outcome_ahead(&call.id).map(|fact| recorded || is_not_rerun(fact)) {
            Some(true) => cursor.answer_for(&call.id),
            Some(false) => return (attempt, false),
            // A replay does not run a call that was abandoned. A resumed run waits until its
            // records end.
            None => {}
        }
        (attempt, true)
    }

    /// Runs a call, and records its outcome.
    async fn run_now(
        &self,
        tool: Option<Tool>,
        mut context: ToolContext,
        begun: Option<Before>,
        backoff: Option<Backoff>,
    ) -> Result<Fact> {
        let (config, call) = (&self.0.config, Arc::clone(&context.call));
        if let Some(Before { next, may_have_run }) = begun
            && !self.0.replaying
        {
            let harmless = !may_have_run || reruns_lost(tool.as_ref(), config.on_uncertain);
            let tries = next.number - 1;
            context.effects.begin(tries);
            context.failed = next.failed;
            match config.on_uncertain {
                OnUncertain::Suspend if !harmless => {
                    let error = uncertain(&call);
                    let message = format!(
                        "{}; find out whether it did its work, then resume the run with on_uncertain(OnUncertain::Rerun) to run it \
                         again, or with OnUncertain::Fail to give the loop a failed call",
                        error.message()
                    );
                    return Err(error.with_message(message));
                }
                OnUncertain::Fail if !harmless => {
                    return self.refuse(&context, uncertain(&call), tries).await;
                }
                _ => context.announce_next().await?,
            }
        }
        self.held().await?;
        let effects = context.effects.clone();
        let mut watch = Watch::tool(self.metrics(), &call.name);
        let began = Instant::now();
        let limits = ToolLimits { timeout: config.tool_timeout, backoff, park_after: None };
        let settled = match tool {
            Some(tool) => run_tool(Arc::new(HandlerExecutor), tool, context, limits).await,
            None => {
                let error = failed(&call.name, ToolReason::NotFound, "there is no such tool");
                Settled { outcome: Err(error), attempts: context.attempt() }
            }
        };
        watch.end(settled.failure(), None);
        let mut fact = self.outcome_fact(&call, settled);
        let recorded =
            self.0.journal.records(|cursor| cursor.outcome_ahead(&call.id).map(Fact::duration_ms));
        let recorded = recorded.filter(|_| self.0.replaying);
        fact.set_duration_ms(recorded.unwrap_or_else(|| Some(millis(began.elapsed()))));
        effects.commit(fact.clone(), false).await?;
        Ok(fact)
    }

    /// Records that a call failed which does not run.
    async fn refuse(&self, context: &ToolContext, error: Error, attempts: u32) -> Result<Fact> {
        let fact = self.outcome_fact(&context.call, Settled { outcome: Err(error), attempts });
        context.effects.commit(fact.clone(), false).await?;
        Ok(fact)
    }

    /// The fact of how a call came out.
    fn outcome_fact(&self, call: &ToolCall, settled: Settled) -> Fact {
        settle(call, settled, &JsonEncoder, &self.0.config.on_tool_error, true)
    }
}

/// The error of a call that needs a decision and has none.
fn unapproved(call: &ToolCall) -> Error {
    let why = "the call was not approved; decide about it in the loop, and make it with CallTool::approved";
    failed(&call.name, ToolReason::Denied, why)
}

/// The ids of calls without an outcome. Results of two calls with one id could not be
/// distinguished.
struct Ids<'a> {
    context: &'a Context,
    mine: Vec<String>,
}

impl<'a> Ids<'a> {
    fn claim(context: &'a Context, calls: &[CallTool]) -> Result<Self> {
        let mut claimed = Self { context, mine: Vec::with_capacity(calls.len()) };
        // A call without an id gets an unused one.
        for CallTool { call, .. } in calls.iter().filter(|tool| !tool.call.id.is_empty()) {
            if !claimed.take(&call.id) {
                return Err(Error::invalid_option("call_id", "duplicate").with_message(format!(
                    "validation failed: call_id: call {:?} has no outcome yet, and another has its id",
                    call.id
                )));
            }
        }
        Ok(claimed)
    }

    /// Returns whether no other call has it.
    fn take(&mut self, id: &str) -> bool {
        let is_mine = lock(&self.context.0.called).insert(id.to_owned());
        if is_mine {
            self.mine.push(id.to_owned());
        }
        is_mine
    }
}

impl Drop for Ids<'_> {
    /// A call that was announced and has no outcome was given up, which is recorded.
    fn drop(&mut self) {
        let Shared { called, journal, in_flight, .. } = &*self.context.0;
        let is_given_up = !in_flight.is_closed();
        for id in &self.mine {
            if is_given_up {
                journal.leave_stopped(id, "its caller gave it up");
            }
            lock(called).remove(id);
        }
    }
}
