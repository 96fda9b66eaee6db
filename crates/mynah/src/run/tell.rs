//! The events that a tool call causes.

use mynah_data::{Event, HaltReason, ToolCall, ToolOutcome};
use mynah_log::{Fact, Resolution};
use serde_json::Value;

pub(crate) fn tell(call: &ToolCall, fact: &Fact) -> Vec<Event> {
    let ToolCall { id, name, .. } = call;
    let encoded = |content: &String| Event::tool_result_encoded(id, content);
    let halt =
        |reason: &HaltReason, result: &Value, content: &String, exception: Option<&String>| {
            let mut halt = Event::tool_halt(id, reason.clone(), result.clone(), content);
            if let Event::ToolHalt { on_tool_error_exception, .. } = &mut halt {
                *on_tool_error_exception = exception.cloned();
            }
            halt
        };
    let (result, last) = match fact {
        Fact::ToolCompleted { outcome, content, .. } => {
            let last = match outcome {
                ToolOutcome::Later { .. } => None,
                ToolOutcome::AskUser { question, opts } => {
                    Some(Event::ask_user_requested(id, name, question, opts.clone()))
                }
                ToolOutcome::Halt { reason, result } => Some(halt(reason, result, content, None)),
                _ => Some(encoded(content)),
            };
            (outcome.clone(), last)
        }
        Fact::ToolFailed { error, resolution, content, .. } => {
            let reported = || error.metadata().get("error").cloned();
            let failed = || ToolOutcome::error(reported().unwrap_or_else(|| error.to_value()));
            match resolution {
                Resolution::Replaced(value) => {
                    (ToolOutcome::Ok(value.clone()), Some(encoded(content)))
                }
                Resolution::Halted { exception } => {
                    let (reason, why) = (HaltReason::ToolError, error.to_value());
                    (failed(), Some(halt(&reason, &why, content, exception.as_ref())))
                }
                _ => (failed(), Some(encoded(content))),
            }
        }
        _ => return Vec::new(),
    };
    let completed = Event::tool_execution_completed(id, name, result);
    [completed].into_iter().chain(last).collect()
}
