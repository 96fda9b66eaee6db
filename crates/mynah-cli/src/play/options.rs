//! The options of an operation: the library's, with what a file says in its own way.

use mynah::{Error, Message, Metadata, Options, Result, Role, StepResult, Thread};
use serde::Deserialize;
use serde_json::Value;

use super::tools::SimulatedTool;

/// A condition that can be written down.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum HaltWhen {
    TextContains(String),
    /// From 0.
    Step(usize),
}

/// Reads the options of a call that starts from `thread`. What does not fit is the call's own error, as it is for options
/// that only the library knows.
pub(super) fn read(mut values: Metadata, thread: &Thread) -> Result<Options> {
    let mut take = |name| values.shift_remove(name).filter(|value| !value.is_null());
    let (halt_when, tools) = (take("halt_when"), take("tools"));
    let mut options = Options::from_json(Value::Object(values))?;
    if let Some(condition) = halt_when {
        let condition = HaltWhen::deserialize(condition)
            .map_err(|_| Error::invalid_option("halt_when", "invalid_shape"))?;
        let before = answers(thread);
        options = options.halt_when(move |step: &StepResult| match &condition {
            HaltWhen::TextContains(text) => step.text().contains(text),
            HaltWhen::Step(index) => answers(&step.thread) == before + index + 1,
        });
    }
    if let Some(tools) = tools {
        let tools = Vec::<SimulatedTool>::deserialize(tools).map_err(|error| {
            Error::invalid_option("tools", "invalid_shape").with_message(format!("tools: {error}"))
        })?;
        options = options.tools(tools.iter().map(SimulatedTool::tool));
    }
    Ok(options)
}

/// How often the model has answered. A step's place in a chat is the answers that came before it.
fn answers(thread: &Thread) -> usize {
    let is_answer = |message: &&std::sync::Arc<Message>| message.role() == Role::Assistant;
    thread.messages.iter().filter(is_answer).count()
}
