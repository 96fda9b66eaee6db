//! Why a chat stops: the model is done, or a limit, a condition, a tool or a failure stops it.
//! Every reason is in the result, and the conversation so far can always be continued.

use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<()> {
    let hi = "Work on it.";
    show("the model is done", engine("work").chat(hi).await?);
    show("a limit on turns", engine("work").chat(hi).max_turns(2).await?);
    let tired = |step: &mynah::StepResult| step.thread.messages.len() > 3;
    show("a condition", engine("work").chat(hi).halt_when("tired", tired).await?);
    show("a tool's own reason", engine("submit").chat(hi).await?);
    show("a failing tool", engine("fail").chat(hi).on_tool_error(mynah::OnToolError::Halt).await?);
    show("its failure told to the model", engine("fail").chat(hi).await?);
    Ok(())
}

fn show(what: &str, result: ChatResult) {
    let details = serde_json::Value::Object(result.metadata);
    println!("{what:>30}: {} after {} steps {details}", result.halted_reason, result.steps.len());
}

/// A model that calls one tool three times, then is done.
fn engine(tool: &str) -> Engine {
    let call = |id| Script::new().tool_call(id, tool, json!({})).call_tools();
    let model =
        Scripted::play([call("c0"), call("c1"), call("c2"), Script::new().text("Done.").stop()]);
    let tool = |name| Tool::new(name, "", json!({"type": "object"}));
    Engine::new(model)
        .tool(tool("work").handler(async |_, _| "worked"))
        .tool(tool("submit").handler(async |_, _| ToolOutcome::halt("plan_submitted", "the plan")))
        .tool(tool("fail").handler(async |_, _| ToolOutcome::error("out of paper")))
}
