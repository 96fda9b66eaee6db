//! Typed tools: derived schemas, and everything a handler may return.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use mynah_data::{Error, ToolCall, ToolOutcome, ToolReason};
use mynah_step::{
    HandlerExecutor, Settled, SystemWorld, Tool, ToolContext, ToolLimits, run_tool,
    schemars::{self, JsonSchema},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Deserialize, JsonSchema)]
struct Place {
    /// Name of the city, in English.
    city: String,
    unit: Option<Unit>,
}

#[derive(Deserialize, Serialize, JsonSchema)]
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

#[derive(Debug)]
struct NoStation;

impl fmt::Display for NoStation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no station there")
    }
}

impl StdError for NoStation {}

async fn settled(tool: Tool, arguments: Value) -> Settled {
    let call = ToolCall::from_value("c0", tool.name(), arguments);
    let context = ToolContext::new(call, Arc::new(SystemWorld));
    let limits = ToolLimits::new(Duration::from_secs(5));
    run_tool(Arc::new(HandlerExecutor), tool, context, limits).await
}

async fn outcome(tool: Tool) -> ToolOutcome {
    settled(tool, json!({"city": "Rome"})).await.outcome.unwrap()
}

fn any(name: &str) -> Tool {
    Tool::new(name, "", json!({"type": "object"}))
}

#[tokio::test]
async fn a_typed_tool_has_the_schema_of_its_arguments_and_gets_them_as_a_value() {
    let weather = Tool::typed::<Place, _>("weather", "The weather", async |place, cx| {
        let degrees = if matches!(place.unit, Some(Unit::Fahrenheit)) { 70.0 } else { 21.0 };
        Weather { city: format!("{} ({})", place.city, cx.call.id), degrees }
    });
    assert_eq!(weather.spec().description, "The weather");
    assert_eq!(
        weather.spec().schema,
        json!({
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city, in English."},
                "unit": {"type": ["string", "null"], "enum": ["celsius", "fahrenheit", null]}
            },
            "required": ["city"]
        })
    );
    let arguments = json!({"city": "Rome", "unit": "fahrenheit"});
    let Settled { outcome, .. } = settled(weather, arguments).await;
    assert_eq!(outcome, Ok(ToolOutcome::Ok(json!({"city": "Rome (c0)", "degrees": 70.0}))));
}

#[tokio::test]
async fn arguments_that_do_not_fit_never_reach_the_handler() {
    let tool = Tool::typed::<Place, _>("weather", "", async |_, _| unreachable_value());
    let error = settled(tool, json!({"unit": "kelvin"})).await.outcome.unwrap_err();
    assert_eq!(error.reason(), ToolReason::InvalidArguments.as_str());
}

#[tokio::test]
async fn the_model_reads_every_misfit_with_its_place_what_was_expected_and_what_it_got() {
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only described")]
    #[serde(deny_unknown_fields)]
    struct Order {
        items: Vec<Item>,
        unit: Unit,
        note: String,
    }
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only described")]
    struct Item {
        #[schemars(range(min = 1))]
        count: i64,
        size: Size,
    }
    #[derive(Deserialize, JsonSchema)]
    #[serde(untagged)]
    #[expect(dead_code, reason = "only described")]
    enum Size {
        Number(u8),
        Word(String),
    }
    let tool = Tool::typed::<Order, _>("order", "", async |_, _| unreachable_value());
    let item = json!({"count": 0, "size": true});
    let arguments = json!({"items": [item, "two"], "unit": "kelvin", "color": "x".repeat(9_000)});
    let error = settled(tool.clone(), arguments).await.outcome.unwrap_err().to_string();
    for expected in [
        "tool error (order): invalid_arguments: ",
        "/items/0/count: 0 is less than the minimum of 1",
        "/items/0/size: fits none of its forms (/items/0/size: expected integer, got true | /items/0/size: expected string, got true), got true",
        r#"/items/1: expected object, got "two""#,
        r#"/unit: expected one of "celsius", "fahrenheit", got "kelvin""#,
        "/color: unknown",
        "/note: missing",
    ] {
        assert!(error.contains(expected), "{expected} in {error}");
    }
    assert!(error.len() < 1_000, "{error}");

    let many: Vec<_> = (0..100).map(|_| "x".repeat(1_000)).collect();
    let arguments = json!({"items": many, "unit": "celsius", "note": ""});
    let error = settled(tool, arguments).await.outcome.unwrap_err().to_string();
    assert!(error.ends_with("; and 92 more") && error.len() < 2_000, "{error}");
}

fn unreachable_value() -> Value {
    panic!("the handler ran")
}

#[tokio::test]
async fn arguments_that_fit_the_schema_but_not_the_type_are_an_error_for_the_model() {
    #[derive(Deserialize, JsonSchema)]
    struct Count {
        n: u32,
    }
    let tool = Tool::typed::<Count, _>("count", "", async |count, _| count.n);
    // JSON Schema takes 2.0 for an integer, serde does not.
    let whole = settled(tool.clone(), json!({"n": 2.0})).await.outcome.unwrap();
    assert_eq!(whole, ToolOutcome::Ok(json!(2)));
    let ToolOutcome::Error { error, .. } =
        settled(tool, json!({"n": 1e300})).await.outcome.unwrap()
    else {
        panic!("not an error")
    };
    let expected = "invalid_arguments: /n: invalid type: floating point `1e+300`, expected u32";
    assert_eq!(error, expected);
}

#[tokio::test]
async fn an_error_of_a_type_names_the_place_of_the_value() {
    /// A number that is even; JSON Schema knows nothing of that.
    #[derive(JsonSchema)]
    #[schemars(transparent)]
    struct Even(#[expect(dead_code, reason = "only read")] i64);
    impl<'de> Deserialize<'de> for Even {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let n = i64::deserialize(deserializer)?;
            if n % 2 == 0 {
                Ok(Self(n))
            } else {
                Err(serde::de::Error::custom(format!("{n} is odd")))
            }
        }
    }
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only read")]
    struct Pair {
        name: String,
        both: (Even, Even),
    }
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only read")]
    struct Pairs {
        empty: Vec<Even>,
        #[serde(rename = "a/b")]
        pairs: Vec<Pair>,
        last: Even,
    }
    let pair = |name: &str, a: i64, b: i64| json!({"name": name, "both": [a, b]});
    let pairs = |second: i64, last: i64| {
        let pairs = [pair("\"x\": 1,\n}", 2, 4), pair("y", 2, second)];
        json!({"empty": [], "a/b": pairs, "last": last})
    };
    for (arguments, expected) in [
        (pairs(3, 2), "invalid_arguments: /a~1b/1/both/1: 3 is odd"),
        (pairs(4, 5), "invalid_arguments: /last: 5 is odd"),
    ] {
        let tools = [
            Tool::typed::<Pairs, _>("pairs", "", async |_, _| unreachable_value()),
            Tool::typed_blocking("pairs", "", |_: Pairs, _| unreachable_value()),
        ];
        for tool in tools {
            let outcome = settled(tool, arguments.clone()).await.outcome.unwrap();
            assert_eq!(outcome, ToolOutcome::error(expected));
        }
    }
}

#[tokio::test]
async fn a_handler_returns_any_value_result_or_outcome() {
    let ok = |value: Value| ToolOutcome::Ok(value);
    assert_eq!(outcome(any("t").handler(async |_, _| 21)).await, ok(json!(21)));
    assert_eq!(outcome(any("t").handler(async |_, _| ())).await, ok(Value::Null));
    assert_eq!(outcome(any("t").handler(async |_, _| "text")).await, ok(json!("text")));
    assert_eq!(outcome(any("t").handler(async |_, _| "text".to_owned())).await, ok(json!("text")));
    assert_eq!(outcome(any("t").handler(async |_, _| Some(vec![1, 2]))).await, ok(json!([1, 2])));
    let weather = any("t").handler(async |_, _| Weather { city: "Rome".to_owned(), degrees: 1.5 });
    assert_eq!(outcome(weather).await, ok(json!({"city": "Rome", "degrees": 1.5})));
    let asks = ToolOutcome::ask("How many?");
    assert_eq!(outcome(any("t").handler(async |_, _| ToolOutcome::ask("How many?"))).await, asks);
    assert_eq!(outcome(any("t").blocking(|_, _| 21)).await, ok(json!(21)));
    // A value that only looks as serde writes a `Result`.
    let looks = json!({"Err": "a name"});
    assert_eq!(outcome(any("t").handler(async |_, _| json!({"Err": "a name"}))).await, ok(looks));
}

#[tokio::test]
async fn a_handler_fails_with_any_error_type() {
    let failed = |text: &str| ToolOutcome::error(text);
    let own = any("t").handler(async |_, _| Err::<Weather, _>(NoStation));
    assert_eq!(outcome(own).await, failed("no station there"));
    let text = any("t").handler(async |_, _| Err::<i32, _>("no".to_owned()));
    assert_eq!(outcome(text).await, failed("no"));
    let slice = any("t").blocking(|_, _| Err::<i32, _>("no"));
    assert_eq!(outcome(slice).await, failed("no"));
    let ours = any("t")
        .handler(async |_, _| Err::<i32, _>(Error::tool(ToolReason::Failed).with_message("ours")));
    assert_eq!(outcome(ours).await, failed("ours"));
    let value = any("t").handler(async |_, _| Err::<i32, _>(json!({"code": 4})));
    assert_eq!(outcome(value).await, ToolOutcome::error(json!({"code": 4})));
    let boxed = any("t").handler(async |_, cx: ToolContext| {
        cx.random().await?;
        let number: i32 = "x".parse()?;
        Ok::<_, Box<dyn StdError + Send + Sync>>(number)
    });
    assert_eq!(outcome(boxed).await, failed("invalid digit found in string"));
}

#[derive(Debug)]
struct Because(&'static str, Box<dyn StdError + Send + Sync>);

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl StdError for Because {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.1)
    }
}

#[tokio::test]
async fn the_text_of_an_error_has_those_of_its_sources_once() {
    let failed = |text: &str| ToolOutcome::error(text);
    let far = || Because("no forecast", Box::new(Because("no reading", Box::new(NoStation))));
    let chain = any("t").handler(move |_, _| async move { Err::<i32, _>(far()) });
    assert_eq!(outcome(chain).await, failed("no forecast: no reading: no station there"));
    let boxed = any("t").handler(move |_, _| async move {
        Err::<i32, Box<dyn StdError + Send + Sync>>(Box::new(far()))
    });
    assert_eq!(outcome(boxed).await, failed("no forecast: no reading: no station there"));
    let told =
        || Because("no forecast: no station there", Box::new(Because("far", Box::new(NoStation))));
    let told = any("t").handler(move |_, _| async move { Err::<i32, _>(told()) });
    assert_eq!(outcome(told).await, failed("no forecast: no station there"));
}

#[tokio::test]
async fn a_result_of_an_outcome_is_that_outcome() {
    let asks = ToolOutcome::ask("How many?");
    let own = any("t").handler(async |_, _| Ok::<_, NoStation>(ToolOutcome::ask("How many?")));
    assert_eq!(outcome(own).await, asks);
    let text = any("t").handler(async |_, _| Ok::<_, String>(ToolOutcome::ask("How many?")));
    assert_eq!(outcome(text).await, asks);
    let ours = any("t").handler(async |_, _| Ok::<_, Error>(ToolOutcome::ask("How many?")));
    assert_eq!(outcome(ours).await, asks);
    let value = any("t").handler(async |_, _| Ok::<_, String>(json!({"ask_user": "no question"})));
    assert_eq!(outcome(value).await, ToolOutcome::Ok(json!({"ask_user": "no question"})));
}

#[tokio::test]
async fn a_handler_gets_the_state_that_its_tool_was_given() {
    let state = Arc::new(20);
    let dynamic = any("t").handler_with_state(Arc::clone(&state), async |n, arguments, _| {
        tokio::task::yield_now().await;
        format!("{}{}", arguments["city"], *n + 1)
    });
    assert_eq!(outcome(dynamic).await, ToolOutcome::Ok(json!("\"Rome\"21")));
    let typed = Tool::typed_with_state("t", "", state, async |n, place: Place, _| {
        tokio::task::yield_now().await;
        (place.city, *n)
    });
    assert_eq!(outcome(typed).await, ToolOutcome::Ok(json!(["Rome", 20])));
    let blocking = Tool::typed_blocking("t", "", |place: Place, _| place.city.len());
    assert_eq!(outcome(blocking).await, ToolOutcome::Ok(json!(4)));
}

#[test]
fn a_recursive_type_keeps_its_definitions_at_the_root() {
    #[derive(Deserialize, JsonSchema)]
    struct Folder {
        #[expect(dead_code, reason = "only described")]
        folders: Vec<Folder>,
    }
    let tool = Tool::typed::<Folder, _>("t", "", async |_, _| ());
    assert_eq!(tool.schema_error(), None);
    let schema = tool.spec().schema.to_string();
    assert!(schema.contains("$ref") && !schema.contains("$schema"), "{schema}");
}
