//! Layers around a tool. The layer that was added last is the outermost: it gets the call first and the outcome last.

use std::time::Duration;

use mynah::layers::{Cache, OutputCap, RateLimit, RedactOutput};
use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use serde_json::json;

/// Reads a page.
#[mynah::tool]
async fn read_page(url: String) -> String {
    println!("reading {url}");
    format!("key=s3cret {}", "All about mynahs. ".repeat(100))
}

#[tokio::main]
async fn main() -> mynah::Result<()> {
    let call = |id: &str| Script::new().tool_call(id, "read_page", json!({"url": "mynah.example"}));
    let model = Scripted::play([
        call("c0").call_tools(),
        call("c1").call_tools(),
        Script::new().text("They talk.").stop(),
    ]);

    let read_page = read_page()
        .layer(RedactOutput::words(["s3cret"]))
        .layer(OutputCap::new(60))
        .layer(RateLimit::new(10, Duration::from_secs(60)))
        .layer(Cache::new(100, Duration::from_secs(600)))
        // One of one's own.
        .around(async |next, arguments, context| {
            println!("{} {}({arguments})", context.call.id, context.call.name);
            next.call(arguments, context).await
        });

    let result = Engine::new(model).tool(read_page).chat("What do mynahs do?").await?;
    for message in result.steps.iter().flat_map(|step| &step.tool_results) {
        println!("the model reads: {}", message.text());
    }
    Ok(())
}
