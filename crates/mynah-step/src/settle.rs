//! What a tool's outcome means: for the model, and for the run.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use mynah_data::{
    ASK_USER_SENTINEL, Error, MAX_ERROR, MAX_RESULT, ToolCall, ToolOutcome, ToolReason, excess,
    parts_text,
};
use mynah_log::{Fact, Resolution};
use serde_json::{Value, json};

use crate::{EncodeError, Settled, ToolResultEncoder, tool::panic_text, tool_failed};

/// What a caller's own error policy makes of a failed tool.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ToolErrorDecision {
    /// The model reads this instead of the error, and continues.
    Continue(Value),
    /// The chat halts.
    Halt,
}

type Decide = Arc<dyn Fn(&ToolCall, &Error) -> ToolErrorDecision + Send + Sync>;

/// What happens when a tool fails.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum OnToolError {
    /// The model reads the error, and continues.
    #[default]
    Continue,
    /// The chat halts.
    Halt,
    /// A function decides; see [`OnToolError::decide`].
    Decide(Decide),
}

impl fmt::Debug for OnToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Continue => "Continue",
            Self::Halt => "Halt",
            Self::Decide(_) => "Decide(..)",
        })
    }
}

impl OnToolError {
    /// A policy that is a function of the call and its error. It must depend on these alone.
    pub fn decide(
        decide: impl Fn(&ToolCall, &Error) -> ToolErrorDecision + Send + Sync + 'static,
    ) -> Self {
        Self::Decide(Arc::new(decide))
    }
}

/// The fact of how a call came out. If the run is neither recorded nor watched, only the text of a result is remembered.
pub fn settle(
    call: &ToolCall,
    settled: Settled,
    encoder: &dyn ToolResultEncoder,
    policy: &OnToolError,
    remembered: bool,
) -> Fact {
    let attempt = settled.attempts;
    let failure = Failure { call, attempt, encoder };
    let completed = match settled.outcome {
        Ok(ToolOutcome::Ok(value)) => failure.text(&value).map(|content| {
            (ToolOutcome::Ok(if remembered { value } else { Value::Null }), content)
        }),
        Ok(ToolOutcome::Parts(parts)) => {
            let content = parts_text(&parts);
            Ok((ToolOutcome::Parts(parts), content))
        }
        Ok(ToolOutcome::Halt { reason, result }) => {
            failure.text(&result).map(|content| (ToolOutcome::Halt { reason, result }, content))
        }
        Ok(later @ ToolOutcome::Later { .. }) => Ok((later, String::new())),
        Ok(asked @ ToolOutcome::AskUser { .. }) => Ok((asked, ASK_USER_SENTINEL.to_owned())),
        Ok(ToolOutcome::Error { error, .. }) => {
            return failure.judge(tool_failed(call, &error), Some(&error), policy);
        }
        Ok(_) => Err(Error::tool(ToolReason::InvalidReturn)),
        Err(error) => Err(error),
    };
    match completed {
        Ok((outcome, content)) => {
            let (call_id, duration_ms) = (call.id.clone(), None);
            Fact::ToolCompleted { call_id, attempt, outcome, content, duration_ms }
        }
        Err(error) => failure.judge(error, None, policy),
    }
}

/// The text of a value. An encoder is the caller's own, so its panic is a failure of the call, not of the chat.
fn encode(encoder: &dyn ToolResultEncoder, value: &Value) -> Result<String, EncodeError> {
    catch_unwind(AssertUnwindSafe(|| encoder.encode(value)))
        .unwrap_or_else(|panic| Err(EncodeError(panic_text(panic.as_ref()))))
}

/// The same error, or a short one of a call that has finished if no record could hold it.
pub(crate) fn bounded(call: &ToolCall, error: Error) -> Error {
    match error.to_value().to_string().len() {
        ..=MAX_ERROR => error,
        _ => too_large(call, &format!("its error has more than {MAX_ERROR} bytes")),
    }
}

fn too_large(call: &ToolCall, why: &str) -> Error {
    failed(&call.name, ToolReason::ResultTooLarge, why)
}

/// The error of a call to this tool.
pub(crate) fn failed(tool: &str, reason: ToolReason, why: impl fmt::Display) -> Error {
    Error::tool(reason)
        .with_message(format!("tool error ({tool}): {reason}: {why}"))
        .with("tool_name", tool)
}

/// A call that failed.
struct Failure<'a> {
    call: &'a ToolCall,
    attempt: u32,
    encoder: &'a dyn ToolResultEncoder,
}

impl Failure<'_> {
    /// Applies the policy to an error. `reported` is what the tool itself said, if it said anything.
    fn judge(&self, error: Error, reported: Option<&Value>, policy: &OnToolError) -> Fact {
        let kind = error.kind();
        let error = bounded(self.call, error);
        // What the tool reported is as large as its error.
        let reported = reported.filter(|_| error.kind() == kind);
        let halted = Resolution::Halted { exception: None };
        let OnToolError::Decide(decide) = policy else {
            let halts = matches!(policy, OnToolError::Halt);
            let resolution = if halts { halted } else { Resolution::Continued };
            return self.fact(error, reported, resolution);
        };
        match catch_unwind(AssertUnwindSafe(|| decide(self.call, &error))) {
            Ok(ToolErrorDecision::Continue(value)) => match self.replacement(&value) {
                Ok(content) => self.with_content(error, Resolution::Replaced(value), content),
                Err(error) => self.fact(error, None, halted),
            },
            Ok(ToolErrorDecision::Halt) => self.fact(error, reported, halted),
            Err(panic) => {
                let text = panic_text(panic.as_ref());
                let error = Error::tool(ToolReason::InvalidReturn)
                    .with_message(format!(
                        "tool error: invalid_return: on_tool_error panicked: {text}"
                    ))
                    .with("on_tool_error_raised", true)
                    .with("on_tool_error_exception", text.as_str());
                self.fact(error, None, Resolution::Halted { exception: Some(text) })
            }
        }
    }

    fn fact(&self, error: Error, reported: Option<&Value>, resolution: Resolution) -> Fact {
        let content = self.content(&error, reported);
        self.with_content(error, resolution, content)
    }

    fn with_content(&self, error: Error, resolution: Resolution, content: String) -> Fact {
        Fact::ToolFailed {
            call_id: self.call.id.clone(),
            attempt: self.attempt,
            error,
            resolution,
            content,
            duration_ms: None,
        }
    }

    /// What the model reads of an error. An error must always have a text, so a failing encoder is passed by.
    fn content(&self, error: &Error, reported: Option<&Value>) -> String {
        let message = || json!({"error": error.message()});
        let value = reported.map_or_else(message, |reported| json!({"error": reported}));
        let text = encode(self.encoder, &value).ok().filter(|text| text.len() <= MAX_RESULT);
        text.unwrap_or_else(|| message().to_string())
    }

    /// The text of a value that a policy gives in place of an error.
    fn replacement(&self, value: &Value) -> Result<String, Error> {
        match excess(value) {
            Some(excess) => Err(too_large(self.call, &format!("its replacement is {excess}"))),
            None => self.text(value),
        }
    }

    /// The text of a result. One that no record could hold is a failure of a call that has finished.
    fn text(&self, value: &Value) -> Result<String, Error> {
        let text = encode(self.encoder, value)
            .map_err(|EncodeError(why)| failed(&self.call.name, ToolReason::EncodingFailed, why))?;
        if text.len() <= MAX_RESULT {
            return Ok(text);
        }
        let why = format!("its text has {} bytes, and at most {MAX_RESULT} are kept", text.len());
        Err(too_large(self.call, &why))
    }
}
