//! How turns and runs end.

use std::sync::Arc;

use mynah_data::{
    CUT_SHORT, ChatResult, Error, FinishReason, Halt, HaltReason, Message, Metadata, Response,
    StepResult, StreamReason, ToolCall, ToolMode,
};
use mynah_log::{End, Extent, Plan, UNCERTAIN_CALLS};
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::RunState;
use crate::run::open_turn::{ClosedTurn, OpenTurn, PlannedCall, add_denied};

impl RunState {
    /// The result of an ended chat: of the call that last continued the run, if that was a separate
    /// one.
    pub(crate) fn chat_result(&mut self) -> ChatResult {
        let end =
            self.end.clone().unwrap_or_else(|| End::new(HaltReason::Cancelled, Metadata::new()));
        let mut result = ChatResult::new(self.thread.clone(), end.reason);
        let settled = self.open.iter().flat_map(|turn| &turn.calls);
        result
            .thread
            .extend(settled.filter_map(|call| Some(Arc::clone(&call.settled.as_ref()?.0))));
        if let (HaltReason::AskUser, Some(halt)) = (&result.halted_reason, self.halt())
            && let Halt::AskUser { question, tool_call_id, .. } = halt
        {
            result.pending_question = Some(question.clone());
            result.pending_tool_call_id = Some(tool_call_id.clone());
        }
        self.steps.drain(..std::mem::take(&mut self.called_at));
        result.steps = std::mem::take(&mut self.steps);
        let last = || result.steps.last().map(|step| step.response.clone());
        let partial = self.partial.take().map(|partial| *partial);
        result.final_response = partial.or_else(|| self.handed_over()).or_else(last);
        result.metadata = end.metadata;
        result
    }

    /// The answer of the agent that took the conversation over, if one ended it.
    fn handed_over(&self) -> Option<Response> {
        let answer = self.handoff_answer().filter(|_| self.is_completed())?;
        let mut response = Response::new(answer);
        response.finish_reason = Some(FinishReason::Stop);
        Some(response)
    }

    fn is_completed(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.reason == HaltReason::Completed)
    }

    fn handoff_answer(&self) -> Option<Message> {
        let halt = self.halt()?;
        let answer = Message::assistant(halt.handoff()?);
        Some(answer.with_metadata("handoff_tool_call_id", halt.tool_call_id()))
    }

    /// Ends the open turn: its tool messages join the thread in the order of the calls, and it becomes a step.
    pub(super) fn close(&mut self, failure: Option<&Error>) {
        let open = self.open.take().map(|turn| *turn);
        let Some(OpenTurn { mut response, plan, calls, approved, .. }) = open else {
            return;
        };
        if let Some(error) = failure {
            response.metadata.insert("error".to_owned(), error.to_value());
        }
        let failure = match &plan {
            Plan::Unknown { tool_name } => Some(Error::unknown_tool(tool_name)),
            _ => response.error(),
        };
        let halted = |call: &&PlannedCall| matches!(call.settled, Some((_, Some(_))));
        let halted = calls.iter().filter(halted).cloned().collect();
        let unknown = calls.iter().filter(|call| call.is_unknown());
        self.unknown = unknown.map(|call| Arc::clone(&call.call)).collect();
        let mut settled: Vec<_> = calls.into_iter().filter_map(|call| call.settled).collect();
        if let Plan::Tools { denied: ids, .. } = &plan
            && !ids.is_empty()
        {
            add_denied(&mut settled, ids, &response);
        }
        self.thread.extend(settled.iter().map(|(message, _)| Arc::clone(message)));
        let halt =
            Halt::winner(settled.iter().filter_map(|(_, halt)| halt.as_ref()), &response.message)
                .cloned();
        if approved {
            // Its step was emitted when it was handed to the caller.
            self.last = Some(Box::new(ClosedTurn { plan, halt, halted }));
            return;
        }
        // A chat answers what is left unanswered at its end; a step that failed has no other end.
        if self.extent != Extent::Chat && failure.is_some() && !matches!(plan, Plan::Unknown { .. })
        {
            self.repair(CUT_SHORT);
        }
        let mut step = StepResult::new(self.thread.clone(), response);
        step.tool_results = settled.into_iter().map(|(message, _)| message).collect();
        step.describe(
            plan_mode(&plan),
            &manual_calls(&plan, &step.response),
            halt.as_ref(),
            failure.as_ref(),
        );
        step.done &= plan != Plan::Continue;
        self.steps.push(step);
        self.last = Some(Box::new(ClosedTurn { plan, halt, halted }));
    }

    pub(super) fn finish(&mut self, mut end: End) {
        // What the run waits for is answered when it continues.
        if end.reason != HaltReason::ManualToolCalls && !end.is_in_a_turn() {
            let why = match end
                .metadata
                .get("error")
                .and_then(|error| error.get("message"))
                .and_then(Value::as_str)
            {
                Some(message)
                    if matches!(
                        self.last.as_deref(),
                        Some(ClosedTurn { plan: Plan::Unknown { .. }, .. })
                    ) =>
                {
                    message.to_owned()
                }
                _ => CUT_SHORT.to_owned(),
            };
            let repaired = self.repair(&why);
            self.repaired.extend(repaired);
        }
        if !self.repaired.is_empty() {
            end.metadata.insert("repaired_tool_calls".to_owned(), json!(self.repaired));
        }
        // The question is only in the step's result.
        if let (
            Extent::Chat,
            HaltReason::AskUser,
            Some(Halt::AskUser { tool_call_id, question, .. }),
        ) = (self.extent, &end.reason, self.halt())
        {
            let question = Message::assistant(question)
                .with_metadata("ask_user", true)
                .with_metadata("tool_call_id", tool_call_id.as_str());
            self.thread.messages.push(question);
        }
        // So does it with the answer of the agent that took the conversation over.
        if self.extent == Extent::Chat && end.reason == HaltReason::Completed {
            self.thread.extend(self.handoff_answer().map(Arc::new));
        }
        self.end = Some(end);
    }

    /// What was said and done stays in the conversation. The unfinished turn is not a step.
    pub(super) fn cut_off(&mut self, partial: Option<Response>) {
        self.calling = None;
        match partial {
            Some(response) => self.answer(response, Plan::Nothing),
            // The step of an approved call was emitted when it was handed to the caller.
            None if self.runs_approved() => {
                return self.close(None);
            }
            None if self.open.is_some() => self.close(None),
            None => return,
        }
        self.partial = self.steps.pop().map(|step| Box::new(step.response));
    }

    /// Ends the run where it is. Of a step or a single call the unfinished turn is all there is.
    pub(super) fn cancel(&mut self, end: End, partial: Option<Response>) {
        // A run that is ended from outside has lost its process.
        if end.metadata.contains_key(UNCERTAIN_CALLS) {
            self.open.iter_mut().for_each(|turn| turn.lose());
        }
        if self.extent == Extent::Chat {
            self.cut_off(partial);
            return self.finish(end);
        }
        let error = end.metadata.get("error");
        if let Some(mut response) = partial {
            if let Some(error) = error.filter(|_| response.error().is_none()) {
                response.metadata.insert("error".to_owned(), error.clone());
            }
            self.answer(response, Plan::Nothing);
        } else if self.open.is_some() {
            let error = error.and_then(|error| Error::deserialize(error).ok());
            self.close(error.as_ref());
        } else {
            return self.finish(end);
        }
        self.end = Some(end);
    }
}

/// The end of a run that its caller or a deadline stopped, in its process or from outside.
pub(crate) fn interrupted(extent: Extent, reason: HaltReason) -> End {
    let error = interruption(extent, &reason);
    let error = error.map(|error| ("error".to_owned(), error.to_value()));
    End::new(reason, error.into_iter().collect())
}

/// The error of a single call or step that is stopped. A chat has a result that says so.
pub(in crate::run) fn interruption(extent: Extent, reason: &HaltReason) -> Option<Error> {
    (extent != Extent::Chat).then(|| match reason {
        HaltReason::Cancelled => Error::stream(StreamReason::Cancelled),
        _ => Error::stream(StreamReason::Timeout)
            .with_message("stream error: timeout: the deadline passed"),
    })
}

pub(in crate::run) fn plan_mode(plan: &Plan) -> ToolMode {
    if *plan == Plan::Manual { ToolMode::Manual } else { ToolMode::Auto }
}

/// The calls that a plan hands to the caller tool by tool.
pub(in crate::run) fn manual_calls(plan: &Plan, response: &Response) -> Vec<ToolCall> {
    match plan {
        Plan::Tools { manual, .. } if !manual.is_empty() => {
            response.tool_calls().filter(|call| manual.contains(&call.id)).cloned().collect()
        }
        _ => Vec::new(),
    }
}
