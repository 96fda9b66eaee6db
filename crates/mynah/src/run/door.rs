//! Where inputs come from: the world, or records.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{FutureExt as _, stream::FuturesUnordered};
use mynah_data::{EngineReason, Event, Result, ToolCall};
use mynah_log::Fact;
use mynah_step::{BoxFuture, Journal, Settled, Watch, run_tool};

use super::{decide::Action, input::Input, machine::Machine, progress::LatestProgress};
use crate::context_policy::ContextView;

/// Where everything non-deterministic enters a run. The one difference between a run that happens and one that is replayed.
pub(super) trait Door: Send {
    /// Commits a fact, and returns it as it is recorded.
    fn commit(&mut self, fact: Fact) -> Result<Fact>;

    /// An input that comes before an action is performed. The caller may have cancelled the run.
    fn before(
        &mut self,
        cx: &mut Context<'_>,
        action: &Action,
        machine: &Machine,
        cancelled: bool,
    ) -> Option<Input>;

    fn call_model(&mut self, machine: &Machine);

    fn poll_model(&mut self, cx: &mut Context<'_>, machine: &Machine) -> Poll<Result<Input>>;

    /// The summary of what a view leaves out.
    fn poll_summary(
        &mut self,
        cx: &mut Context<'_>,
        machine: &Machine,
        view: ContextView,
    ) -> Poll<Result<Input>>;

    /// Ends what the run started elsewhere and its end must end too.
    fn poll_ended(&mut self, cx: &mut Context<'_>, machine: &Machine) -> Poll<()>;

    /// Starts a tool. Its announcement is durable. Returns false if it is known only that the tool may have run in a process
    /// that died.
    fn start_tool(&mut self, call: &Arc<ToolCall>, machine: &Machine) -> bool;

    fn poll_tools(&mut self, cx: &mut Context<'_>, machine: &Machine) -> Poll<Result<Input>>;

    /// The next report of a call in flight about its progress.
    fn poll_progress(&mut self, _: &mut Context<'_>) -> Poll<Event> {
        Poll::Pending
    }

    /// What becomes of calls that wait until this time, in milliseconds since 1970, while nothing else runs.
    fn poll_sleep(
        &mut self,
        cx: &mut Context<'_>,
        until: u64,
        machine: &Machine,
    ) -> Poll<Result<Input>>;

    /// Looks for messages that arrived before an action that they may precede.
    fn poll_messages(&mut self, _: &mut Context<'_>, _: &Action, _: &Machine) -> Poll<()> {
        Poll::Ready(())
    }

    /// An input that continues a run which waits.
    fn after_end(&mut self) -> Option<Input>;
}

/// A tool in flight.
pub(super) type ToolRun = BoxFuture<(Arc<ToolCall>, Settled)>;

/// Tools in flight.
pub(super) type ToolRuns = FuturesUnordered<ToolRun>;

pub(super) fn running(
    call: &Arc<ToolCall>,
    machine: &Machine,
    journal: Option<&Arc<Journal>>,
    replaying: bool,
    progress: Option<&LatestProgress>,
) -> ToolRun {
    let (setup, state) = (&machine.setup, &machine.state);
    let tool = setup.policy.tool(&call.name, state.conversation.is_some()).cloned();
    let context = setup.tool_context.clone().for_call(Arc::clone(call));
    let run_id = journal.map(|journal| journal.run_id().clone());
    let context = context.continued(state.continuation_of(&call.id));
    let context = context.in_conversation(state.thread.messages.clone());
    let left = state.budget_left(call, &setup.policy);
    let mut context = context.in_run(run_id, state.turn_of_calls()).with_budget_left(left);
    if let Some(journal) = journal {
        context = context.kept(Arc::clone(journal), state.attempt_of(&call.id), replaying);
    }
    if let Some(progress) = progress {
        context = progress.listen(context);
    }
    let mut watch = Watch::tool(setup.metrics.as_ref().filter(|_| !replaying), &call.name);
    let call = Arc::clone(call);
    let Some(tool) = tool else {
        watch.end(Some(EngineReason::UnknownTool.as_str()), None);
        let outcome = Err(setup.policy.unknown(&call.name, state.conversation.is_some()));
        let settled = Settled::new(outcome, context.attempt());
        return Box::pin(std::future::ready((call, settled)));
    };
    let (executor, mut limits) = (Arc::clone(&setup.executor), setup.tool_limits.clone());
    limits.park_after = machine.park_after();
    Box::pin(run_tool(executor, tool, context, limits).map(move |settled| {
        watch.end(settled.failure(), None);
        (call, settled)
    }))
}
