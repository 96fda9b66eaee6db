//! Decisions about the calls that a run waits for, and whether they still count.

use std::borrow::Cow;

use mynah_data::{Error, Result, SessionReason, ToolCall};
use mynah_log::{Fact, Hash};
use mynah_step::{Tool, reruns_lost};
use serde_json::json;

use super::Resume;
use crate::{Decision, loaded::Loaded, subagent::approvals::answer};

impl Decision {
    fn runs(&self) -> bool {
        matches!(self, Self::Approve | Self::ApproveWith(_))
    }
}

impl Resume {
    /// Its decisions as the answer to a question about calls of an agent.
    pub(crate) fn as_answer(&self) -> String {
        answer(&self.decisions)
    }

    /// The calls that run because of a decision.
    pub(super) fn approved(&self) -> impl Iterator<Item = &String> {
        self.decisions.iter().filter(|(_, decision)| decision.runs()).map(|(id, _)| id)
    }

    /// The calls that the run waits for and the caller did not decide about.
    pub(super) fn unanswered(
        &self,
        mut waiting: Vec<Cow<'_, ToolCall>>,
        loaded: &Loaded,
    ) -> Result<Vec<String>> {
        let tools = self.engine.resolve_tools(&self.options);
        let known: Vec<String> = waiting.iter().map(|call| call.id.clone()).collect();
        for (id, decision) in &self.decisions {
            let Some(place) = waiting.iter().position(|call| call.id == *id) else {
                let run = &self.run;
                let why = match known.contains(id) {
                    true => format!("call {id:?} of run {run} is named twice"),
                    false => format!("run {run} does not wait for a call {id:?}"),
                };
                let message = format!("session error: unknown_tool_call_id: {why}");
                let error = Error::session(SessionReason::UnknownToolCallId).with_message(message);
                return Err(error.with("tool_call_id", id.as_str()));
            };
            let call = waiting.remove(place);
            if !decision.runs() {
                continue;
            }
            let has_handler =
                |tool: &&Tool| tool.name() == call.name && tool.get_handler().is_some();
            let Some(tool) = tools.iter().find(has_handler) else {
                return Err(Error::invalid_option("approve", "no_handler").with_message(format!(
                    "validation failed: approve: tool {:?} has no handler that could run call {id:?}; give its result",
                    call.name
                )));
            };
            self.check_digest(&call, tool, loaded)?;
            if let Decision::ApproveWith(arguments) = decision {
                tool.check_arguments(&call.with_arguments(arguments.to_string()))?;
            }
        }
        Ok(waiting.into_iter().map(|call| call.id.clone()).collect())
    }

    /// Refuses a call whose tool is not the one for which it was approved.
    fn check_digest(&self, call: &ToolCall, tool: &Tool, loaded: &Loaded) -> Result<()> {
        let (recorded, digest) = (loaded.digest(call), Hash::of_call(tool.spec(), call));
        let approved =
            self.digests.iter().find(|(id, _)| *id == call.id).map(|(_, digest)| *digest);
        if approved.or(recorded) == Some(digest) {
            return Ok(());
        }
        let (run, id) = (&self.run, &call.id);
        let message = format!(
            "session error: approval_stale: call {id:?} of run {run} was to be approved for another description or schema of tool {:?} than \
             this engine has; look at the tool, then approve the call with Engine::resume(…).approve_digest and its new digest, {digest}",
            call.name
        );
        Err(Error::session(SessionReason::ApprovalStale)
            .with_message(message)
            .with("run_id", run.as_str())
            .with("tool_call_id", id.as_str())
            .with("tool_name", call.name.as_str())
            .with("recorded_digest", json!(recorded))
            .with("digest", json!(digest)))
    }

    /// Refuses to run calls that were approved for the tools of another engine, before they ran or were completed.
    pub(super) fn check_approved(&self, loaded: &Loaded, fact: Option<&Fact>) -> Result<()> {
        let mut state = loaded.state().clone();
        fact.cloned().into_iter().for_each(|fact| state.evolve(fact));
        let (lost, tools) = (state.left_open(), self.engine.resolve_tools(&self.options));
        for call in state.approved_calls() {
            // Its digest was checked when it was named.
            if self.approved().any(|id| *id == call.id) {
                continue;
            }
            let tool = tools.iter().find(|tool| tool.name() == call.name);
            let is_lost = lost.iter().any(|(lost, _)| lost.id == call.id);
            if let Some(tool) =
                tool.filter(|tool| !is_lost || reruns_lost(Some(tool), self.on_uncertain))
            {
                self.check_digest(call, tool, loaded)?;
            }
        }
        Ok(())
    }
}
