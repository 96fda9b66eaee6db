//! A tool: a function that the model can call.
//!
//! Its name, its description and the schema of its arguments come from the function. Arguments are checked against the schema first. The
//! model reads what the function returns, a failure too.

use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use serde_json::json;

/// The weather in a city.
#[mynah::tool]
async fn get_weather(
    /// Name of the city, in English.
    city: String,
) -> String {
    format!("21 °C in {city}")
}

#[tokio::main]
async fn main() -> Result<()> {
    let model = Scripted::play([
        Script::new().tool_call("c0", "get_weather", json!({"city": "Boston"})).call_tools(),
        Script::new().text("It is 21 °C in Boston.").stop(),
    ]);
    let engine = Engine::new(model).tool(get_weather);
    let result = engine.chat("What's the weather in Boston?").max_turns(4).await?;

    for message in result.thread.messages.iter() {
        let calls = message.tool_calls().map(|call| format!("{}({})", call.name, call.arguments));
        let calls: String = calls.collect();
        println!("{:>9}: {}{calls}", message.role().as_str(), message.text());
    }
    Ok(())
}
