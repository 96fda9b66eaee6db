//! Tools for any MCP client. With the argument `serve` this program serves its tools on standard input and output: that command is what
//! an editor or another agent is given. Without it, it is the client: it starts itself, and shows how far a call has come.

use std::{env, error::Error, time::Duration};

use mynah::{
    Approval, ToolProgress,
    mcp::{self, Server},
    prelude::*,
    testing::{Script, Scripted},
};
use serde_json::json;

/// Counts the words of a text.
#[mynah::tool(idempotent)]
async fn count_words(text: String) -> usize {
    text.split_whitespace().count()
}

/// Bakes bread.
#[mynah::tool]
async fn bake(loaves: u32, cx: &ToolContext) -> String {
    for loaf in 1..=loaves {
        let baked = ToolProgress::new(loaf.into()).total(f64::from(loaves));
        cx.progress(baked.message(format!("loaf {loaf}")));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    format!("{loaves} loaves")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    if env::args().nth(1).as_deref() == Some("serve") {
        // Over HTTP it would be `.http(listener)`, at /mcp.
        return Ok(mcp::serve([count_words(), bake()]).name("bakery").stdio().await?);
    }

    let program = env::current_exe()?.display().to_string();
    // The server is this program, so its calls need no approval.
    let bakery = Server::stdio([&*program, "serve"]).name("bakery").approval(Approval::Never);
    let model = Scripted::play([
        Script::new()
            .tool_call("c0", "bakery_count_words", json!({"text": "brown bread"}))
            .tool_call("c1", "bakery_bake", json!({"loaves": 3}))
            .call_tools(),
        Script::new().text("Two words, three loaves.").stop(),
    ]);
    let engine = Engine::new(model).tools(bakery.connect().await?);
    let mut events = engine.chat("Bake some bread.").stream();
    while let Some(event) = events.next().await {
        match event? {
            Event::ToolExecutionProgress { name, progress, total, message, .. } => {
                let (total, message) = (total.unwrap_or_default(), message.unwrap_or_default());
                println!("{name}: {progress} of {total}, {message}");
            }
            Event::ToolResultEncoded { id, content, .. } => println!("{id}: {content}"),
            Event::ChatCompleted { result } => println!("{}", result.text()),
            _ => {}
        }
    }
    Ok(())
}
