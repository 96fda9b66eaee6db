//! `#[mynah::tool]` and `#[mynah::tools]`: what a signature becomes, and what the compiler says of a wrong one.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{fmt, sync::Arc};

use mynah::{
    Approval, ChatResult, Engine, Options, Tool, ToolContext, ToolOutcome,
    schemars::{self, JsonSchema},
    testing::{Script, Scripted},
};
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
    unit: String,
    call: String,
}

#[derive(Debug, Serialize)]
enum WeatherError {
    Unknown,
}

impl fmt::Display for WeatherError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody knows that city")
    }
}

impl std::error::Error for WeatherError {}

/// The weather in a city.
///
/// Of today.
#[mynah::tool]
async fn get_weather(
    /// Name of the city, in English.
    city: String,
    cx: &ToolContext,
    /// Unit of the temperature.
    unit: Option<Unit>,
) -> Result<Weather, WeatherError> {
    if city == "Atlantis" {
        return Err(WeatherError::Unknown);
    }
    Ok(Weather { city, unit: format!("{unit:?}"), call: cx.call.id.clone() })
}

#[mynah::tool(
    name = "add-up",
    idempotent,
    retries = 2,
    timeout = "10s",
    replay = "recorded",
    strict
)]
fn sum(#[serde(default)] numbers: Vec<i64>) -> i64 {
    numbers.iter().sum()
}

#[mynah::tool(approval)]
async fn order() -> ToolOutcome {
    ToolOutcome::ask("How many?")
}

#[mynah::tool(approval = "deny")]
async fn format_disk() {}

#[mynah::tool(manual)]
async fn wait(r#type: String) {
    drop(r#type);
}

struct Crm {
    names: Vec<String>,
}

#[mynah::tools]
impl Crm {
    /// Looks a customer up.
    #[tool(idempotent, timeout = "1m")]
    async fn customer(
        &self,
        /// The number of the customer.
        id: usize,
    ) -> Result<String, String> {
        self.names.get(id).cloned().ok_or_else(|| format!("no customer {id}"))
    }

    #[tool]
    fn count(&self) -> usize {
        self.len()
    }

    #[tool(name = "version")]
    async fn which(
        cx: &ToolContext,
    ) -> Result<(&'static str, u64), Box<dyn std::error::Error + Send + Sync>> {
        Ok(("1", cx.random().await.map(|_| 2)?))
    }

    fn len(&self) -> usize {
        self.names.len()
    }
}

fn crm() -> Crm {
    Crm { names: vec!["Ada".to_owned(), "Grace".to_owned()] }
}

/// What the model reads of a call.
async fn answer(engine: Engine, tool: &str, arguments: Value) -> String {
    let script = [
        Script::new().tool_call("c0", tool, arguments).call_tools(),
        Script::new().text("done").stop(),
    ];
    let result: ChatResult = engine.adapter(Scripted::play(script)).chat("go").await.unwrap();
    result.steps[0].tool_results[0].text().to_string()
}

fn engine() -> Engine {
    Engine::without_adapter().tool(get_weather).tool(sum).tools(crm())
}

#[tokio::test]
async fn a_function_is_a_tool_with_its_name_docs_and_schema() {
    let tool = get_weather();
    assert_eq!(tool.name(), "get_weather");
    assert_eq!(tool.spec().description, "The weather in a city.\n\nOf today.");
    assert_eq!(
        tool.spec().schema,
        json!({
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city, in English."},
                "unit": {"type": ["string", "null"], "enum": ["celsius", "fahrenheit", null], "description": "Unit of the temperature."}
            },
            "required": ["city"]
        })
    );
    let said = answer(engine(), "get_weather", json!({"city": "Rome", "unit": "celsius"})).await;
    assert_eq!(said, r#"{"city":"Rome","unit":"Some(Celsius)","call":"c0"}"#);
    let said = answer(engine(), "get_weather", json!({"city": "Rome", "unit": null})).await;
    assert_eq!(said, r#"{"city":"Rome","unit":"None","call":"c0"}"#);
}

#[tokio::test]
async fn an_error_that_is_also_a_value_is_told_by_its_text() {
    let said = answer(engine(), "get_weather", json!({"city": "Atlantis"})).await;
    assert_eq!(said, r#"{"error":"nobody knows that city"}"#);
}

#[tokio::test]
async fn the_function_behind_a_tool_can_be_called() {
    assert_eq!(sum::call(vec![1, 2]), 3);
    let call = mynah::ToolCall::new("c9", "get_weather", "{}");
    let cx = ToolContext::new(call, Arc::new(mynah::SystemWorld));
    assert_eq!(get_weather::call("Rome".to_owned(), &cx, None).await.unwrap().call, "c9");
    assert_eq!(crm().customer(0).await, Ok("Ada".to_owned()));
}

#[tokio::test]
async fn options_set_what_they_name() {
    let sum = sum();
    let spec = sum.spec();
    assert_eq!((sum.name(), spec.description.as_str()), ("add-up", ""));
    assert_eq!((spec.idempotent, spec.max_attempts, spec.timeout_ms), (true, 3, Some(10_000)));
    assert!(sum.is_recorded() && !spec.manual);
    assert_eq!(spec.metadata["strict"], true);
    assert_eq!(spec.schema["properties"]["numbers"]["default"], json!([]));
    assert_eq!((order().spec().approval, order().spec().manual), (Approval::Ask, false));
    assert_eq!(format_disk().spec().approval, Approval::Deny);
    let wait = wait();
    assert!(wait.spec().manual);
    assert_eq!(wait.spec().schema["required"], json!(["type"]));
    assert_eq!(answer(engine(), "add-up", json!({"numbers": [1, 2]})).await, "3");
    assert_eq!(answer(engine(), "add-up", json!({})).await, "0");
}

#[tokio::test]
async fn methods_are_tools_that_share_one_value() {
    let tools = engine().resolve_tools(&Options::new());
    let names: Vec<_> = tools.iter().map(Tool::name).collect();
    assert_eq!(names, ["get_weather", "add-up", "customer", "count", "version"]);
    assert_eq!(tools[2].spec().description, "Looks a customer up.");
    assert_eq!(tools[2].spec().timeout_ms, Some(60_000));
    assert!(tools[2].spec().idempotent);
    assert_eq!(answer(engine(), "customer", json!({"id": 1})).await, "Grace");
    assert_eq!(
        answer(engine(), "customer", json!({"id": 9})).await,
        r#"{"error":"no customer 9"}"#
    );
    assert_eq!(answer(engine(), "count", json!({})).await, "2");
    assert_eq!(answer(engine(), "version", json!({})).await, r#"["1",2]"#);
}

#[test]
fn an_engine_takes_tools_from_a_value_an_arc_and_any_list() {
    let count = |engine: Engine| engine.resolve_tools(&Options::new()).len();
    let engine = Engine::without_adapter;
    assert_eq!(count(engine().tools(Arc::new(crm()))), 3);
    assert_eq!(count(engine().tools([sum(), get_weather()])), 2);
    assert_eq!(count(engine().tools(vec![sum()])), 1);
    assert_eq!(count(engine().tools(Some(sum()).into_iter())), 1);
    assert_eq!(count(engine().tools([])), 0);
    assert_eq!(engine().resolve_tools(&Options::new().tools(crm())).len(), 3);
}

#[test]
fn mistakes_are_reported_where_they_are() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
