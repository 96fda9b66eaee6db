//! A person decides about calls before they run: approves one, changes the arguments of one, rejects one. A function of the engine
//! decides which calls need a person at all.

use mynah::Approval;
use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use serde_json::json;

/// Pays an invoice.
#[mynah::tool]
async fn pay(to: String, euros: u32) -> String {
    println!("paid {euros} euros to {to}");
    format!("paid {euros}")
}

fn agent() -> Engine {
    let calls = Script::new()
        .tool_call("c0", "pay", json!({"to": "Ada", "euros": 7}))
        .tool_call("c1", "pay", json!({"to": "Bob", "euros": 700}))
        .tool_call("c2", "pay", json!({"to": "Eve", "euros": 900}))
        .tool_call("c3", "pay", json!({"to": "Mallory", "euros": 99_000}))
        .call_tools();
    let paid = Script::new().text("Ada and Bob are paid.").stop();
    // The process that continues the run plays the second script.
    let model = Scripted::play([calls, paid]).by_turn();

    let limits = |call: &ToolCall, _: &Tool| match call.arguments["euros"].as_u64() {
        Some(0..100) => Approval::Never,
        Some(100..10_000) => Approval::Ask,
        _ => Approval::Deny,
    };
    Engine::new(model).tool(pay).approval(limits)
}

/// What a person says to a call.
fn decide(call: &ToolCall) -> Decision {
    match call.arguments["to"].as_str() {
        Some("Bob") => Decision::ApproveWith(json!({"to": "Bob", "euros": 70})),
        _ => Decision::Reject("ask Eve for an invoice first".to_owned()),
    }
}

#[tokio::main]
async fn main() -> mynah::Result<()> {
    // The log may be a file, and the decision may come days later from another process: `start_or_resume` with the same id.
    let log = MemoryLog::new();
    let chat = agent().chat("Pay all invoices.").record(&log).run_id("invoices-may");
    let run = chat.start_or_resume().await?;
    for call in run.waiting().iter().flat_map(|waiting| waiting.calls()) {
        println!("waits: {} {}", call.name, call.raw_arguments);
    }
    let run = run.decide(decide).await?;
    for message in run.result().thread.messages.iter() {
        println!("{message}");
    }
    Ok(())
}

#[tokio::test]
async fn no_crash_pays_twice() {
    let check = mynah::testing::crash_everywhere(agent, "Pay all invoices.");
    check.decide(decide).await;
}
