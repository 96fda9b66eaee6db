//! Four ways to a tool: a function, methods that share a value, a closure with a type for its arguments, and a schema that is known only
//! when the program runs.

use mynah::prelude::*;
use mynah::schemars::{self, JsonSchema};
use mynah::testing::{Script, Scripted};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Unit {
    Celsius,
    Fahrenheit,
}

#[derive(Serialize)]
struct Weather {
    city: String,
    degrees: f64,
}

/// The weather in a city.
#[mynah::tool(idempotent, timeout = "10s")]
async fn get_weather(
    /// Name of the city, in English.
    city: String,
    /// Unit of the temperature; celsius if left out.
    unit: Option<Unit>,
    cx: &ToolContext,
) -> Result<Weather, std::io::Error> {
    println!("call {} in {unit:?}", cx.call.id);
    let degrees = if matches!(unit, Some(Unit::Fahrenheit)) { 70.0 } else { 21.0 };
    Ok(Weather { city, degrees })
}

struct Crm {
    customers: Vec<&'static str>,
}

#[mynah::tools]
impl Crm {
    /// Looks a customer up.
    #[tool(idempotent)]
    async fn customer(&self, id: usize) -> Result<&'static str, String> {
        self.customers.get(id).copied().ok_or_else(|| format!("no customer {id}"))
    }
}

#[derive(Deserialize, JsonSchema)]
struct Sum {
    numbers: Vec<i64>,
}

fn agent() -> Engine {
    let model = Scripted::play([
        Script::new()
            .tool_call("c0", "get_weather", json!({"city": "Boston", "unit": "fahrenheit"}))
            .tool_call("c1", "get_weather", json!({"unit": "kelvin"}))
            .tool_call("c2", "customer", json!({"id": 7}))
            .tool_call("c3", "sum", json!({"numbers": [1, 2, 3]}))
            .tool_call("c4", "echo", json!({"text": "hello"}))
            .call_tools(),
        Script::new().text("Done.").stop(),
    ]);
    let sum = Tool::typed::<Sum, _>("sum", "Adds numbers", async |sum, _| {
        sum.numbers.iter().sum::<i64>()
    });
    // As a file or a server would describe it.
    let described: Value = json!({"type": "object", "required": ["text"]});
    let echo = Tool::new("echo", "Repeats a text", described)
        .handler(async |arguments, _| arguments["text"].clone());

    let crm = Crm { customers: vec!["Ada", "Grace"] };
    Engine::new(model).tool(get_weather).tools(crm).tool(sum).tool(echo)
}

#[tokio::main]
async fn main() -> mynah::Result<()> {
    let result = agent().chat("Do everything.").await?;
    for message in &result.steps[0].tool_results {
        println!("{}: {}", message.tool_call_id().unwrap_or_default(), message.text());
    }
    Ok(())
}

#[tokio::test]
async fn no_crash_does_harm() {
    mynah::testing::crash_everywhere(agent, "Do everything.").await;
}
