//! The events that a tool call causes.

use mynah_data::{Error, Event, HaltReason, Metadata, ToolCall, ToolOutcome};
use mynah_log::{Fact, Resolution};
use serde_json::Value;

pub(crate) fn tell(call: &ToolCall, fact: &Fact) -> Vec<Event> {
    let halt = |reason: &HaltReason, result: &Value, content: &str, exception: Option<&String>| {
        Event::ToolHalt {
            tool_call_id: call.id.clone(),
            reason: reason.clone(),
            result: result.clone(),
            content: content.to_owned(),
            on_tool_error_exception: exception.cloned(),
        }
    };
    match fact {
        Fact::ToolCompleted { outcome, content, .. } => {
            let last = match outcome {
                ToolOutcome::Later { .. } => {
                    return vec![execution_completed(call, outcome.clone())];
                }
                ToolOutcome::AskUser { question, opts } => ask_user(call, question, opts),
                ToolOutcome::Halt { reason, result } => halt(reason, result, content, None),
                _ => encoded(call, content.clone()),
            };
            vec![execution_completed(call, outcome.clone()), last]
        }
        Fact::ToolFailed { error, resolution, content, .. } => {
            let reported = error.metadata().get("error").cloned();
            let (shown, last) = match resolution {
                Resolution::Replaced(value) => {
                    (ToolOutcome::Ok(value.clone()), encoded(call, content.clone()))
                }
                Resolution::Halted { exception } => {
                    let told = halt(
                        &HaltReason::ToolError,
                        &error.to_value(),
                        content,
                        exception.as_ref(),
                    );
                    (shown(error, reported), told)
                }
                _ => (shown(error, reported), encoded(call, content.clone())),
            };
            vec![execution_completed(call, shown), last]
        }
        _ => Vec::new(),
    }
}

fn shown(error: &Error, reported: Option<Value>) -> ToolOutcome {
    ToolOutcome::error(reported.unwrap_or_else(|| error.to_value()))
}

fn execution_completed(call: &ToolCall, result: ToolOutcome) -> Event {
    Event::ToolExecutionCompleted { id: call.id.clone(), name: call.name.clone(), result }
}

fn ask_user(call: &ToolCall, question: &str, opts: &Metadata) -> Event {
    Event::AskUserRequested {
        tool_call_id: call.id.clone(),
        tool_name: call.name.clone(),
        question: question.to_owned(),
        opts: opts.clone(),
    }
}

fn encoded(call: &ToolCall, content: String) -> Event {
    Event::ToolResultEncoded { id: call.id.clone(), content }
}
