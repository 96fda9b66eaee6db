//! A manual tool is not run: its calls are handed to the program, which gives the results when it has them; or, where the run
//! is kept, a person approves the calls and they are run. Other tools of the same answer run as usual.

use mynah::prelude::*;
use mynah::recorded_call;
use mynah::testing::{Script, Scripted};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<()> {
    // The program does it.
    let engine = bank();
    let (session, result) = engine.start("Send Ada 50.").await?;
    println!("{}: {}", result.halted_reason, session.status());
    let results = session.pending_tool_calls().iter().map(|call| {
        println!("done: {}({})", call.name, call.arguments);
        (&call.id, json!({"ok": true}))
    });
    let session = session.submit_tool_results(results)?;
    let (session, result) = engine.continue_session(&session, None).await?;
    println!("{}: {}", session.status(), result.into_text()?);

    let (engine, log) = (bank(), MemoryLog::new());
    let run = engine.chat("Send Ada 50.").record(&log).await?.run_id.unwrap_or_default();

    // A person approves it, possibly days later and in another process: the log has what the run
    // waits for.
    let waiting = recorded_call(&log, &run).await?.waiting();
    let mut resume = engine.resume(&log, &run);
    for call in waiting.iter().flat_map(|waiting| waiting.calls()) {
        println!("approved: {}({})", call.name, call.arguments);
        resume = resume.approve(&*call.id); // or reject(&*call.id, "why not")
    }
    println!("{}", resume.await?.into_text()?);
    Ok(())
}

fn bank() -> Engine {
    let model = Scripted::play([
        Script::new()
            .tool_call("c0", "balance", json!({}))
            .tool_call("c1", "transfer", json!({"to": "Ada", "amount": 50}))
            .call_tools(),
        Script::new().text("Done: Ada got 50, and 70 are left.").stop(),
    ]);
    let tool = |name, does| Tool::new(name, does, json!({"type": "object"}));
    Engine::new(model)
        .tool(tool("balance", "What is there").handler(async |_, _| json!(120)))
        .tool(tool("transfer", "Sends money").manual().handler(async |_, _| json!({"ok": true})))
}
