//! An agent with two typed tools. Its run is recorded in a file, verified and replayed. Needs `--features sqlite`.

use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use serde_json::json;

/// Current weather in a city.
#[mynah::tool]
async fn get_weather(
    /// Name of the city, in English.
    city: String,
) -> String {
    format!("21 °C in {city}")
}

/// Adds an entry to the calendar.
#[mynah::tool]
async fn add_entry(day: String, text: String) -> String {
    format!("{day}: {text}")
}

#[tokio::main]
async fn main() -> mynah::Result<()> {
    let log = SqliteLog::open("mynah.db")?;
    let chat = agent().chat("Plan a walk in Oslo if it is warm.").record(&log);
    let result = chat.await?;
    let run = result.run_id.clone().unwrap_or_default();
    println!("{}", result.into_text()?);

    let report = mynah::log::verify_run(&log, &run).await?;
    println!("{run}: {}, {} records", report.status, report.records);
    println!("replay: {}", agent().replay(&log, &run).await?.status);
    Ok(())
}

/// The agent. With a real model: `Engine::named("anthropic:claude-sonnet-5")?` in place of `Engine::new(model)`.
fn agent() -> Engine {
    let model = Scripted::play([
        Script::new().tool_call("c1", "get_weather", json!({"city": "Oslo"})).call_tools(),
        Script::new()
            .tool_call("c2", "add_entry", json!({"day": "Sunday", "text": "walk"}))
            .call_tools(),
        Script::new().text("It is warm: the walk is on Sunday.").stop(),
    ]);
    // Another process that continues the run gets the script that comes next.
    Engine::new(model.by_turn()).tool(get_weather).tool(add_entry)
}
