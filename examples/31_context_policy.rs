//! A long tool loop whose requests are shortened, so that they fit into the model's context window. The conversation itself stays
//! whole.

use mynah::ContextPolicy;
use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use serde_json::json;

/// Reads a page of the manual.
#[mynah::tool]
async fn read_page(page: u32) -> String {
    format!("Page {page}. {}", "Feed the bird twice a day. ".repeat(40))
}

#[tokio::main]
async fn main() -> mynah::Result<()> {
    let reads = (1..=5).map(|page| {
        let id = format!("c{page}");
        Script::new().tool_call(id, "read_page", json!({"page": page})).call_tools()
    });
    let model = Scripted::play(reads.chain([Script::new().text("Twice a day.").stop()]));
    let engine = Engine::new(model.clone()).tool(read_page);

    let policy = ContextPolicy::new(1_000).keep_turns(1);
    let result = engine.chat("How often does it eat?").context_policy(policy).await?;

    for (call, request) in model.requests().iter().enumerate() {
        println!("request {}: {} characters", call + 1, request.messages.size());
    }
    println!("the conversation: {} characters", result.thread.messages.size());
    println!("{}", result.into_text()?);
    Ok(())
}
