//! Calls of one answer run concurrently. Events report each as it finishes; the model reads the
//! results in the order of its calls.

use std::time::Duration;

use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use serde_json::json;
use tokio::time::{Instant, sleep};

/// Asks a host for a sign of life.
#[mynah::tool]
async fn ping(host: String, ms: u64) -> String {
    sleep(Duration::from_millis(ms)).await;
    format!("{host} is up")
}

#[tokio::main]
async fn main() -> Result<()> {
    let model = Scripted::play([
        Script::new()
            .tool_call("c0", "ping", json!({"host": "far", "ms": 300}))
            .tool_call("c1", "ping", json!({"host": "near", "ms": 100}))
            .tool_call("c2", "ping", json!({"host": "middling", "ms": 200}))
            .call_tools(),
        Script::new().text("All three are up.").stop(),
    ]);
    let begun = Instant::now();
    let mut events = Engine::new(model).tool(ping).chat("Who is up?").stream();
    while let Some(event) = events.next().await {
        let ms = begun.elapsed().as_millis();
        match event? {
            Event::ToolExecutionStarted { id, arguments, .. } => {
                println!("{ms:>4} ms  {id} begins {arguments}")
            }
            Event::ToolResultEncoded { id, content, .. } => {
                println!("{ms:>4} ms  {id} is done {content}")
            }
            Event::ChatCompleted { result } => {
                let read = result.steps[0].tool_results.iter();
                let read: Vec<_> = read.filter_map(|message| message.tool_call_id()).collect();
                println!("{ms:>4} ms  the model reads {read:?} and says: {}", result.text());
            }
            _ => {}
        }
    }
    Ok(())
}
