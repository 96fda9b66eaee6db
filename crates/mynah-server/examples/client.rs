//! A server and its client in one program: starts a run, approves the call that it waits for, and follows its events.

use std::time::Duration;

use mynah::{
    Engine, RunEvent, Signal, Tool, Waiting,
    client::Client,
    log::MemoryLog,
    testing::{Script, Scripted},
};
use mynah_server::{Agent, Server};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Scripted::play([
        Script::new().tool_call("c0", "refund", json!({"order": 17})).call_tools(),
        Script::new().text("Order 17 ").text("is refunded.").stop(),
    ]);
    let refund = Tool::new("refund", "Refunds an order", json!({})).manual();
    let engine = Engine::new(model).tool(refund.handler(async |_, _| "refunded"));

    // In production this is `mynah serve`, on another machine.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = Server::new(MemoryLog::new()).agent(Agent::new("support", engine));
    tokio::spawn(server.serve(listener, std::future::pending()));

    let client = Client::new(&format!("http://{address}"))?;
    let start = client.start("Refund order 17").run_id("order-17");
    let run = start.wait(Duration::from_secs(30)).send().await?;
    if let Some(Waiting::Approval(calls)) = &run.waiting {
        println!("waits for {} {}", calls[0].name, calls[0].raw_arguments);
        let approve = Signal::approve(&calls[0].id);
        client.signal("order-17", "approval-1", &approve).await?;
    }
    let mut events = client.events("order-17", None);
    while let Some(event) = events.next().await {
        if let RunEvent::Event(event) = event?.event
            && let mynah::Event::TextDelta { delta, .. } = *event
        {
            print!("{delta}");
        }
    }
    println!();
    Ok(())
}
