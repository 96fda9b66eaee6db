//! The tools' part of a run: announcing them, running them side by side, and telling what came of them.

use std::{collections::VecDeque, sync::Arc};

use futures_util::stream::FuturesUnordered;
use mynah_data::{Error, Event, HaltReason, Metadata, ToolCall, ToolOutcome, ToolReason};
use mynah_log::{End, Fact};
use mynah_step::{BoxFuture, Settled, Tape, Tool, ToolContext, run_tool};
use tracing::Instrument as _;

use super::{
    driver::{Driver, Phase, Setup},
    settle::{ErrorPolicy, settle, tell},
};

/// What happens on resume with a tool that was announced, has no outcome, and may do harm if it is run twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnUncertain {
    /// The run waits, and a person says what came of it.
    #[default]
    Suspend,
    /// It is run again.
    Rerun,
    /// The model is told that nobody knows.
    Fail,
}

/// What the model reads of a call that may have run.
pub(crate) const NOBODY_KNOWS: &str =
    "tool error: the process ended, and nobody knows whether the call ran";

/// Calls that wait for a free place, and calls that run.
pub(super) struct ToolRuns {
    waiting: VecDeque<Arc<ToolCall>>,
    pub(super) running: FuturesUnordered<BoxFuture<(Arc<ToolCall>, Outcome)>>,
    /// In a run performed again: what is recorded of these calls, in the order in which they were done.
    pub(super) recorded: VecDeque<(String, Fact)>,
    /// Calls that are done before their turn.
    pub(super) early: Vec<(Arc<ToolCall>, Outcome)>,
    /// Calls of which nobody knows whether they ran.
    pub(super) uncertain: Vec<String>,
}

/// What came of a call: in the world, or as it is recorded.
pub(super) enum Outcome {
    Settled(Settled),
    Recorded(Fact),
}

impl Driver {
    pub(super) fn run_tools(&mut self, ids: &[String]) {
        let mut announced = Vec::new();
        for id in ids {
            if self.tape.ran_out() {
                return self.stop_short();
            }
            if matches!(self.tape.upcoming(), Some(Fact::ToolScheduled { .. })) {
                announced.push(id.clone());
            }
            self.commit(Fact::ToolScheduled { call_id: id.clone(), attempt: 1, call: None });
        }
        let recorded = self.tape.outcomes();
        let uncertain = self.uncertain(announced, &recorded);
        let short = matches!(self.tape, Tape::Replaying(_))
            && !self.tape.is_resuming()
            && self.tape.remaining() == recorded.len();
        let is_due = |id: &String| {
            let known = !short || recorded.iter().any(|(done, _)| done == id);
            ids.contains(id) && !uncertain.contains(id) && known
        };
        let calls = self.state.open_calls().filter(|call| is_due(&call.id));
        let waiting = calls.cloned().collect();
        self.phase = Phase::Announced(ToolRuns {
            waiting,
            running: FuturesUnordered::new(),
            recorded,
            early: Vec::new(),
            uncertain,
        });
    }

    /// The calls of which nobody knows whether they ran: announced before the run ended without its end, without an
    /// outcome, and not fit to be run twice.
    pub(super) fn uncertain(
        &self,
        announced: Vec<String>,
        recorded: &VecDeque<(String, Fact)>,
    ) -> Vec<String> {
        if let Some(Fact::Suspended(end)) = self.tape.upcoming()
            && end.reason == HaltReason::UncertainTools
        {
            let listed = end.metadata.get("uncertain_tool_calls").cloned().unwrap_or_default();
            return serde_json::from_value(listed).unwrap_or_default();
        }
        let ended = self.tape.is_resuming() && self.tape.remaining() == recorded.len();
        if !ended || self.setup.on_uncertain == OnUncertain::Rerun {
            return Vec::new();
        }
        let harmless = |id: &String| {
            let call = self.state.open_calls().find(|call| call.id == *id);
            let tool = call.and_then(|call| {
                self.setup.policy.tool(&call.name, self.state.conversation.is_some())
            });
            tool.is_some_and(|tool| tool.spec().idempotent)
        };
        let unknown =
            announced.into_iter().filter(|id| !recorded.iter().any(|(done, _)| done == id));
        unknown.filter(|id| !harmless(id)).collect()
    }

    /// Starts as many of the waiting calls as there are free places.
    pub(super) fn start_tools(&mut self) {
        let Phase::Tools(runs) = &mut self.phase else {
            return;
        };
        while runs.running.len() + runs.early.len() < self.setup.max_concurrency {
            let Some(call) = runs.waiting.pop_front() else {
                return;
            };
            let recorded =
                runs.recorded.iter().find(|(id, _)| *id == call.id).map(|(_, fact)| fact);
            if recorded.is_none() && std::mem::take(&mut self.behind) {
                self.ready.clear();
            }
            if self.watched && !(recorded.is_some() && self.tape.is_resuming()) {
                self.ready.push_back(Event::ToolExecutionStarted {
                    id: call.id.clone(),
                    name: call.name.clone(),
                    arguments: call.arguments.clone(),
                });
            }
            let tool = self.setup.policy.tool(&call.name, self.state.conversation.is_some());
            let answers = self.setup.recorded_tools || tool.is_some_and(Tool::is_recorded);
            runs.running.push(match recorded.filter(|fact| answers || not_rerun(fact)) {
                Some(fact) => Box::pin(std::future::ready((call, Outcome::Recorded(fact.clone())))),
                None => start(&self.setup, call, self.state.conversation.is_some()),
            });
        }
    }

    pub(super) fn tool_done(&mut self, call: &ToolCall, outcome: Outcome) {
        let setup = &self.setup;
        let told_before = matches!(outcome, Outcome::Recorded(_)) && self.tape.is_resuming();
        let fact = match outcome {
            Outcome::Recorded(fact) => fact,
            Outcome::Settled(settled) => {
                let finalizing = self.state.conversation.is_some();
                let policy = match setup.policy.tool(&call.name, finalizing) {
                    Some(_) => &setup.on_tool_error,
                    // The caller chose that the model is told of tools that do not exist.
                    None => &ErrorPolicy::Continue,
                };
                let remembered = self.watched || self.tape.is_kept();
                settle(call, settled, setup.encoder.as_ref(), policy, remembered)
            }
        };
        if self.watched && !told_before {
            self.ready.extend(tell(call, &fact));
        }
        self.start_tools();
        self.commit(fact);
    }

    /// Waits for somebody to say what came of calls, or tells the model that nobody knows.
    pub(super) fn wait_for(&mut self, calls: Vec<String>) {
        if self.setup.on_uncertain == OnUncertain::Fail {
            let open: Vec<Arc<ToolCall>> = self.state.open_calls().cloned().collect();
            for call in open.iter().filter(|call| calls.contains(&call.id)) {
                let error = Error::tool(ToolReason::Failed)
                    .with_message(NOBODY_KNOWS)
                    .with("tool_name", call.name.as_str());
                self.tool_done(
                    call,
                    Outcome::Settled(Settled { outcome: Err(error), attempts: 1 }),
                );
            }
            self.phase = Phase::Decide;
            return;
        }
        let metadata = Metadata::from_iter([("uncertain_tool_calls".to_owned(), calls.into())]);
        self.commit(End::new(HaltReason::UncertainTools, metadata).into_fact());
        self.finish_or_go_on();
    }
}

impl ToolRuns {
    /// A call that is done and whose turn it is: in the world whichever is done, in a run performed again the one that was
    /// done next.
    pub(super) fn next_due(&mut self) -> Option<(Arc<ToolCall>, Outcome)> {
        let due = match self.recorded.front() {
            Some((id, _)) => self.early.iter().position(|(call, _)| call.id == *id)?,
            None if self.early.is_empty() => return None,
            None => 0,
        };
        self.recorded.pop_front();
        Some(self.early.remove(due))
    }
}

/// Whether a failure is answered from its record also where tools are run again: nobody waits for a timeout twice.
fn not_rerun(fact: &Fact) -> bool {
    use mynah_data::ErrorKind;
    matches!(fact, Fact::ToolFailed { error, .. }
        if matches!(error.kind(), ErrorKind::Tool(ToolReason::Timeout | ToolReason::HandlerRaised)))
}

/// One call, running.
fn start(
    setup: &Setup,
    call: Arc<ToolCall>,
    finalizing: bool,
) -> BoxFuture<(Arc<ToolCall>, Outcome)> {
    let Some(tool) = setup.policy.tool(&call.name, finalizing).cloned() else {
        let settled = Settled { outcome: Err(Error::unknown_tool(&call.name)), attempts: 1 };
        return Box::pin(std::future::ready((call, Outcome::Settled(settled))));
    };
    let failure = tracing::field::Empty;
    let span = tracing::info_span!("mynah.tool", tool = call.name, call = call.id, failure);
    let context = ToolContext { call: Arc::clone(&call), ..setup.tool_context.clone() };
    let run = run_tool(Arc::clone(&setup.executor), tool, context, setup.tool_limits);
    let telling = span.clone();
    let run = async move {
        let settled = run.await;
        let failure = match &settled.outcome {
            Ok(ToolOutcome::Error { .. }) => Some(ToolReason::Failed.as_str()),
            outcome => outcome.as_ref().err().map(Error::reason),
        };
        telling.record("failure", failure);
        (call, Outcome::Settled(settled))
    };
    Box::pin(run.instrument(span))
}
