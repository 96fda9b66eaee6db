//! A chat that may spend no more than its budget: tokens, turns, tool calls, time or dollars.

use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use serde_json::json;

/// Looks something up.
#[mynah::tool]
async fn search(query: String) -> String {
    format!("nothing about {query}")
}

#[tokio::main]
async fn main() -> mynah::Result<()> {
    // A model that never has enough.
    let again = Script::new().tool_call("c", "search", json!({"query": "mynahs"})).call_tools();
    let engine = Engine::new(Scripted::play(vec![again; 9])).tool(search);

    let budget = Budget::new().max_total_tokens(50_000).max_tool_calls(3);
    let result = engine.chat("Tell me about mynahs.").budget(budget).await?;
    println!("{} after {} steps", result.halted_reason, result.steps.len());
    if let Some(breach) = result.breach() {
        println!("{breach}");
    }
    Ok(())
}
