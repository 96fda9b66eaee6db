//! A tool: what the model is told of it, and what runs when the model calls it.
//!
//! Arguments are checked against the schema first. What the handler gives back, a failure too, is what the model reads.

use mynah::prelude::*;
use mynah::testing::{Script, Scripted};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<()> {
    let model = Scripted::play([
        Script::new().tool_call("c0", "get_weather", json!({"city": "Boston"})).call_tools(),
        Script::new().text("It is 21 °C in Boston.").stop(),
    ]);

    let schema = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"]
    });
    let get_weather = Tool::new("get_weather", "The weather in a city", schema)
        .handler(async |arguments, _context| json!({"city": arguments["city"], "celsius": 21}));

    let engine = Engine::new(model).tool(get_weather);
    let result = engine.chat("What's the weather in Boston?").max_turns(4).await?;

    for message in result.thread.messages.iter() {
        let calls = message.tool_calls().map(|call| format!("{}({})", call.name, call.arguments));
        let calls: String = calls.collect();
        println!("{:>9}: {}{calls}", message.role().as_str(), message.text());
    }
    Ok(())
}
