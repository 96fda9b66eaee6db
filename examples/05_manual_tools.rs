//! A manual tool is not run: its calls are handed to the program, which gives the results when it has them, perhaps after
//! a person approved. Other tools of the same answer run as usual.

use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use serde_json::json;

#[tokio::main]
async fn main() -> mynah::Result<()> {
    let model = Scripted::play([
        Script::new()
            .tool_call("c0", "balance", json!({}))
            .tool_call("c1", "transfer", json!({"to": "Ada", "amount": 50}))
            .call_tools(),
        Script::new().text("Done: Ada got 50, and 70 are left.").stop(),
    ]);
    let anything = json!({"type": "object"});
    let engine = Engine::new(model)
        .tool(
            Tool::new("balance", "What is there", anything.clone())
                .handler(async |_, _| json!(120)),
        )
        .tool(Tool::new("transfer", "Sends money", anything).manual());

    let (session, result) = engine.start("Send Ada 50.").await?;
    println!("{}: {}", result.halted_reason, session.status());

    let results = session.pending_tool_calls().iter().map(|call| {
        println!("approved: {}({})", call.name, call.arguments);
        (&call.id, json!({"ok": true}))
    });
    let session = session.submit_tool_results(results)?;

    let (session, result) = engine.continue_session(&session, None).await?;
    println!("{}: {}", session.status(), result.into_text()?);
    Ok(())
}
