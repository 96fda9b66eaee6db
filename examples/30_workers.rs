//! A run that one part of a program enqueues and a worker performs. A message approves its tool call, and any process can follow
//! its events.

use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use mynah::{Signal, Worker, deliver, follow};
use serde_json::json;

/// Sends a refund.
#[mynah::tool(approval)]
async fn refund(euros: u32) -> String {
    format!("sent {euros} euros")
}

#[tokio::main]
async fn main() -> mynah::Result<()> {
    let call = Script::new().tool_call("c0", "refund", json!({"euros": 20})).call_tools();
    let model = Scripted::play([call, Script::new().text("The refund is on its way.").stop()]);
    let engine = Engine::new(model).tool(refund);

    // A request comes in. Its run is recorded, and the caller returns at once. The log may be a file, or PostgreSQL.
    let log = MemoryLog::new();
    let chat = || {
        let chat = engine.chat("Ticket 4711 wants its money back.").record(&log);
        chat.run_id("ticket-4711").agent("support")
    };
    let run = chat().enqueue().await?;

    // A worker performs runs until its shutdown future is ready: here, until the run has ended.
    let ended = async {
        let mut events = follow(&log, &run, None);
        while let Some(Ok(event)) = events.next().await {
            let kind = event.event.type_name();
            println!("{} {kind}", event.id);
            if kind == "suspended" {
                // A person approves the call, from any process. A second message with the same id is dropped.
                let approval = Signal::approve("c0");
                let delivered = deliver(&log, &run, "approval-1", &approval).await;
                println!("delivered: {}", delivered.is_ok_and(|is_new| is_new));
            }
        }
    };
    let report = Worker::new(&log).agent("support", engine.clone()).run(ended).await?;
    println!("{report:?}");

    // The same call returns the recorded result.
    let result = chat().await?;
    println!("{}", result.into_text()?);
    Ok(())
}
