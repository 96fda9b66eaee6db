//! The tools' part of a run: announcing them, running them side by side, and telling what came of them.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use mynah_data::{EngineReason, Error, Event, HaltReason, ToolCall};
use mynah_log::{End, Fact};
use mynah_step::{
    BoxFuture, OnUncertain, Settled, Tape, Tool, ToolContext, Try, WallClock, Watch, is_not_rerun,
    run_tool, uncertain,
};

use super::{
    driver::{Driver, Phase, Resumption, Setup},
    settle::{ErrorPolicy, settle, tell},
};

/// The calls of a turn.
#[derive(Default)]
pub(super) struct ToolRuns {
    /// Calls that wait for a free place.
    waiting: VecDeque<Arc<ToolCall>>,
    running: FuturesUnordered<BoxFuture<(Arc<ToolCall>, Outcome)>>,
    /// Whether a call among them was not polled yet.
    starting: bool,
    /// Calls that are done before their turn, in a run performed again.
    early: Vec<(Arc<ToolCall>, Outcome)>,
    /// Calls that were announced before the process ended, with the try that follows.
    again: Vec<(Arc<ToolCall>, Try)>,
    /// How many tries of them failed before.
    failed: HashMap<String, u32>,
    /// Calls of which nobody knows whether they ran.
    uncertain: Vec<String>,
}

/// What came of a call: in the world, or as it is recorded.
enum Outcome {
    Settled(Settled),
    Recorded,
}

impl Driver {
    pub(super) fn run_tools(&mut self, ids: &[String]) {
        let next = |id: &String| {
            let number = self.state.attempt_of(id) + 1;
            let recorded = self.tape.announced(id).filter(|next| next.number >= number);
            recorded.unwrap_or(Try { number, failed: 0 })
        };
        let next: Vec<Try> = ids.iter().map(next).collect();
        // Tools start when all of them are announced: where the process ended before that, none did.
        let started = !next.contains(&Try::FIRST);
        for id in ids {
            if self.tape.ran_out() {
                return self.stop_short();
            }
            if let Some(reason) = self.cancelled_here() {
                return self.interrupt(reason);
            }
            if self.state.attempt_of(id) == 0 {
                self.commit(Fact::ToolScheduled { call_id: id.clone(), attempt: 1, call: None });
            }
        }
        let mut runs = ToolRuns::default();
        let cut_off = self.is_cut_off();
        // Where the records go on, what has no outcome in them is not run.
        let live =
            !self.tape.is_replaying() || (self.tape.is_resuming() && self.tape.ends_in_tools());
        for (id, next) in ids.iter().zip(next) {
            let Some(call) = self.state.open_call(id).cloned() else { continue };
            if cut_off || self.tape.outcome_of(id).is_some() || (live && !started) {
                runs.waiting.push_back(call);
            } else if live && self.is_uncertain(&call, next.number - 1) {
                runs.uncertain.push(call.id.clone());
            } else if live {
                runs.again.push((call, next));
            }
        }
        if !self.tape.has_upcoming() {
            self.announce_again(&mut runs);
        }
        self.phase = Phase::Announced(runs);
    }

    /// Whether the run was ended while its tools ran: by somebody, or by the time, if that is limited.
    fn is_cut_off(&self) -> bool {
        self.tape.after_tools().is_some_and(|kept| {
            let is_timed = self.wall_clock.is_some();
            kept.is("cancelled") || (is_timed && WallClock::recorded(kept.fact()).is_some())
        })
    }

    /// Whether nobody knows if a call ran that was announced before the process ended, and it may do harm if it is run twice.
    fn is_uncertain(&self, call: &ToolCall, announced: u32) -> bool {
        if self.resumption.answers(&call.id) {
            return true;
        }
        // What was allowed and announced since may have run.
        if self.state.is_approved(&call.id) && announced == self.state.attempt_of(&call.id) {
            return false;
        }
        let tool = self.setup.policy.tool(&call.name, self.state.conversation.is_some());
        let harmless = tool.is_some_and(|tool| tool.spec().idempotent);
        self.resumption.on_uncertain != OnUncertain::Rerun && !harmless
    }

    /// Announces calls that are run once more, and lets them wait for a place with the others.
    fn announce_again(&mut self, runs: &mut ToolRuns) {
        for (call, Try { number, failed }) in std::mem::take(&mut runs.again) {
            let call_id = call.id.clone();
            runs.failed.insert(call_id.clone(), failed);
            self.commit(Fact::ToolScheduled { call_id, attempt: number, call: None });
            runs.waiting.push_back(call);
        }
        let place =
            |call: &Arc<ToolCall>| self.state.open_calls().position(|open| open.id == call.id);
        runs.waiting.make_contiguous().sort_by_key(place);
    }

    /// Starts as many of the waiting calls as there are free places.
    pub(super) fn start_tools(&mut self) {
        while let Phase::Tools(runs) = &mut self.phase
            && runs.running.len() + runs.early.len() < self.setup.max_concurrency
            && !runs.waiting.is_empty()
        {
            self.start_next();
        }
    }

    fn start_next(&mut self) {
        let Phase::Tools(runs) = &mut self.phase else { return };
        let Some(call) = runs.waiting.pop_front() else { return };
        if self.watched {
            self.ready.push_back(Event::ToolExecutionStarted {
                id: call.id.clone(),
                name: call.name.clone(),
                arguments: call.arguments.clone(),
            });
        }
        let tool = self.setup.policy.tool(&call.name, self.state.conversation.is_some());
        let answers = self.setup.recorded_tools
            || tool.is_some_and(Tool::is_recorded)
            || self.state.runs_approved();
        let recorded = self.tape.outcome_of(&call.id);
        if recorded.is_none() && self.tape.is_replaying() {
            // It ran when the run was ended.
            runs.running.push(Box::pin(std::future::pending()));
            return;
        }
        if recorded.is_some_and(|fact| answers || is_not_rerun(fact)) {
            self.tape.answer_for(&call.id);
            runs.running.push(Box::pin(std::future::ready((call, Outcome::Recorded))));
            return;
        }
        // The step of calls that a person approved is there already.
        let turn = self.state.steps.len() - usize::from(self.state.runs_approved());
        let mut context = self.setup.tool_context.clone().for_call(Arc::clone(&call));
        context = context.in_run(self.tape.run_id().cloned(), turn as u64);
        if let Some(desk) = &self.desk {
            let attempt = self.tape.attempt_of(&call.id).unwrap_or_else(|| Try {
                number: self.state.attempt_of(&call.id),
                failed: runs.failed.remove(&call.id).unwrap_or_default(),
            });
            context = context.kept(Arc::clone(desk), attempt, self.tape.is_replaying());
        }
        let told = self.setup.metrics.as_ref().filter(|_| !self.tape.is_replaying());
        let watch = Watch::tool(told, &call.name);
        runs.starting = true;
        runs.running.push(start(&self.setup, tool.cloned(), context, watch));
    }

    /// Lets the calls go on, until something happened or all of them wait.
    pub(super) fn poll_tools(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Phase::Tools(runs) = &mut self.phase else { return Poll::Ready(()) };
        if let Some((call, outcome)) = runs.next_due(&self.tape) {
            self.tool_done(&call, outcome);
            return Poll::Ready(());
        }
        if runs.starting {
            // Since they were announced, the caller may have been away for longer than the run was ours.
            if let Err(lost) = ready!(self.tape.poll_held(cx)) {
                self.fault = Some(lost);
                return Poll::Ready(());
            }
            runs.starting = false;
        }
        match runs.running.poll_next_unpin(cx) {
            Poll::Ready(Some(done)) => {
                runs.early.push(done);
                return Poll::Ready(());
            }
            Poll::Ready(None) => {
                self.tools_over();
                return Poll::Ready(());
            }
            Poll::Pending => {}
        }
        let Some(desk) = self.desk.clone() else { return Poll::Pending };
        desk.park(cx.waker());
        match desk.serve(&mut self.tape) {
            Ok(true) => return Poll::Ready(()),
            Ok(false) => {}
            Err(error) => {
                self.fault = Some(error);
                return Poll::Ready(());
            }
        }
        if !runs.waiting.is_empty() && desk.is_stuck(&self.tape) {
            // Everybody may wait for a call that has no place yet.
            self.start_next();
            return Poll::Ready(());
        }
        if let Poll::Ready(error) = desk.poll_stuck(&mut self.tape) {
            self.fault = Some(error);
            return Poll::Ready(());
        }
        // What is done is kept while others still run.
        self.tape.kick(cx);
        Poll::Pending
    }

    /// No call runs any more.
    fn tools_over(&mut self) {
        let Phase::Tools(runs) = &mut self.phase else { return };
        if !runs.early.is_empty() {
            if !runs.waiting.is_empty() {
                return self.start_next();
            }
            // What is recorded belongs to none of them: the run differs.
            let (call, outcome) = runs.early.remove(0);
            return self.tool_done(&call, outcome);
        }
        if !runs.again.is_empty() {
            let mut runs = std::mem::take(runs);
            self.announce_again(&mut runs);
            self.phase = Phase::Announced(runs);
            return;
        }
        let mut uncertain = std::mem::take(&mut runs.uncertain);
        if let Some(Fact::Suspended(end)) = self.tape.upcoming_of("suspended")
            && end.reason == HaltReason::UncertainTools
        {
            let listed = end.metadata.get("uncertain_tool_calls").cloned().unwrap_or_default();
            uncertain = serde_json::from_value(listed).unwrap_or_default();
            uncertain.retain(|id| self.state.unsettled().any(|planned| planned.call.id == *id));
        }
        if uncertain.is_empty() {
            self.decide_again();
        } else {
            self.wait_for(uncertain);
        }
    }

    /// What comes next follows from what came of the calls. Where the records hold something else, the run differs from them
    /// here: the same calls would be asked for again without end.
    fn decide_again(&mut self) {
        self.phase = Phase::Decide;
        let left = self.state.unsettled().next().filter(|_| self.tape.has_upcoming());
        if let Some(call_id) = left.map(|planned| planned.call.id.clone()) {
            self.commit(Fact::ToolScheduled { call_id, attempt: 1, call: None });
        }
    }

    fn tool_done(&mut self, call: &ToolCall, outcome: Outcome) {
        match outcome {
            Outcome::Recorded => {
                if let Some(fact) = self.tape.take_outcome() {
                    self.tell_tool(call, &fact);
                    self.take_in(fact);
                }
            }
            Outcome::Settled(settled) => {
                let setup = &self.setup;
                let policy = match setup.policy.tool(&call.name, self.state.conversation.is_some())
                {
                    Some(_) => &setup.on_tool_error,
                    // The caller chose that the model is told of tools that do not exist.
                    None => &ErrorPolicy::Continue,
                };
                let remembered = self.watched || self.tape.is_kept();
                let fact = settle(call, settled, setup.encoder.as_ref(), policy, remembered);
                let fact = self.keep(fact);
                if let Some(desk) = &self.desk {
                    desk.committed(&fact);
                }
                self.tell_tool(call, &fact);
                self.take_in(fact);
            }
        }
    }

    /// Records of the calls that run that they are stopped with the run.
    pub(super) fn cut_off_tools(&mut self) {
        let Some(desk) = self.desk.clone().filter(|_| self.is_live()) else { return };
        let calls = self.state.open_calls();
        let cut_off: Vec<Fact> = calls.filter_map(|call| desk.cut_off(&call.id)).collect();
        cut_off.into_iter().for_each(|fact| self.commit(fact));
    }

    fn tell_tool(&mut self, call: &ToolCall, fact: &Fact) {
        if self.watched {
            self.ready.extend(tell(call, fact));
        }
        self.start_tools();
    }

    /// Waits for somebody to say what came of calls, or tells the model that nobody knows.
    pub(super) fn wait_for(&mut self, calls: Vec<String>) {
        // What was said of it before is recorded.
        let live = !self.tape.has_upcoming();
        if live {
            self.catch_up();
        }
        let answered = self.resumption.fact.is_some();
        if live && !answered && self.resumption.on_uncertain == OnUncertain::Fail {
            let open: Vec<Arc<ToolCall>> = self.state.open_calls().cloned().collect();
            for call in open.iter().filter(|call| calls.contains(&call.id)) {
                let attempts = self.state.attempt_of(&call.id);
                let settled = Settled { outcome: Err(uncertain(call)), attempts };
                self.tool_done(call, Outcome::Settled(settled));
            }
            self.phase = Phase::Decide;
            return;
        }
        self.commit(End::uncertain(calls).into_fact());
        self.finish_or_go_on();
    }
}

impl Resumption {
    /// Whether something was said of a call.
    pub(super) fn answers(&self, id: &str) -> bool {
        let Some(Fact::Resumed { tool_results, approved, rejected, given_up, .. }) = &self.fact
        else {
            return false;
        };
        let answers = tool_results.iter().chain(rejected).map(|(id, _)| id);
        answers.chain(approved).chain(given_up).any(|named| named == id)
    }
}

impl ToolRuns {
    /// A call that is done and whose turn it is: in the world whichever is done, in a run performed again the one that made what
    /// comes next. Whatever that is, all that is left to be made by it is its outcome.
    fn next_due(&mut self, tape: &Tape) -> Option<(Arc<ToolCall>, Outcome)> {
        if self.early.is_empty() {
            return None;
        }
        let due = match tape.has_upcoming() {
            false => 0,
            true => {
                let next = tape.next_call()?;
                self.early.iter().position(|(call, _)| call.id == next)?
            }
        };
        Some(self.early.remove(due))
    }
}

/// One call, running.
fn start(
    setup: &Setup,
    tool: Option<Tool>,
    context: ToolContext,
    mut watch: Watch,
) -> BoxFuture<(Arc<ToolCall>, Outcome)> {
    let call = Arc::clone(&context.call);
    let Some(tool) = tool else {
        watch.end(Some(EngineReason::UnknownTool.as_str()), None);
        let settled =
            Settled { outcome: Err(Error::unknown_tool(&call.name)), attempts: context.attempt() };
        return Box::pin(std::future::ready((call, Outcome::Settled(settled))));
    };
    let (executor, limits) = (Arc::clone(&setup.executor), setup.tool_limits.clone());
    Box::pin(async move {
        let settled = run_tool(executor, tool, context, limits).await;
        watch.end(settled.failure(), None);
        (call, Outcome::Settled(settled))
    })
}
