//! Testing one's own code without a provider: a scripted model plays the answers, and keeps what it was asked.

use mynah::prelude::*;
use mynah::testing::{self, Script, Scripted};
use serde_json::json;

/// Books a table.
#[mynah::tool]
async fn book_table(#[schemars(range(max = 8))] people: u8) -> String {
    format!("booked for {people}")
}

/// The code under test: an agent that books tables.
fn booking_agent(model: Scripted) -> Engine {
    Engine::new(model).model("gpt-4.1-mini").tool(book_table).temperature(0.0)
}

#[tokio::main]
async fn main() -> Result<()> {
    let model = Scripted::play([
        Script::new().tool_call("c0", "book_table", json!({"people": 12})).call_tools(),
        Script::new().tool_call("c1", "book_table", json!({"people": 8})).call_tools(),
        Script::new().text("Eight of you have a table.").stop(),
    ]);
    let agent = booking_agent(model.clone());
    let events = testing::collect(agent.chat("A table for twelve, please.").stream()).await?;

    // The model's call, the tool's outcome, and what the model read.
    assert_eq!(testing::tool_calls(&events).len(), 2);
    assert_eq!(testing::text(&events), "Eight of you have a table.");
    assert_eq!(testing::names(&events).last(), Some(&"chat_completed"));

    let requests = model.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[0].temperature, Some(0.0));
    let told: Vec<_> = requests.iter().filter_map(|request| request.messages.last()).collect();
    assert!(told[1].text().contains("12 is greater than the maximum of 8"));
    assert_eq!(told[2].text(), "booked for 8");

    for message in told {
        println!("{:>5}: {}", message.role().as_str(), message.text());
    }
    println!("everything as expected");
    Ok(())
}
