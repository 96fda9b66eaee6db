//! Engines: how a call's options meet the engine's, how an engine is stored, and what it keeps to itself.

use std::sync::Arc;

use mynah::{
    BoxFuture, Catalog, EncodeError, Engine, EngineReason, EngineRegistry, EngineSpec, Error,
    ErrorKind, FieldError, Image, Message, ModelRef, Options, Part, Pricing, Request,
    ResponseFormat, Result, RetryPolicy, Tool, ToolContext, ToolExecutor, ToolOutcome,
    ToolResultEncoder, ValidationReason, testing::Scripted,
};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::{
    common::{calls, echo, map, says, scripted},
    param::Param as _,
};

#[test]
fn g01_a_field_that_no_engine_has_is_refused() {
    let refused = serde_json::from_value::<EngineSpec>(json!({"adaptor": "scripted"}));
    let error = Error::from(refused.unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Validation(ValidationReason::InvalidJson));
    assert!(error.to_string().contains("unknown field `adaptor`"), "{error}");
}

#[tokio::test]
async fn g02_two_tools_of_one_name_are_refused_by_the_call() {
    let model = scripted([says("hi")]);
    let error = Engine::new(model.clone()).tool(echo()).tool(echo()).chat("hello").await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Validation(ValidationReason::InvalidRequest));
    assert_eq!(error.field_errors(), [FieldError::new("tools", "duplicate_name")]);
    assert!(error.to_string().ends_with(r#"; more than one tool is named "echo""#), "{error}");
    assert_eq!(model.calls(), 0);
}

#[test]
fn g03_merging_params_that_are_no_map_changes_nothing() {
    let engine = Engine::without_adapter().param("top_p", 1).context("user", 42);
    for misfit in [json!([["top_p", 2]]), json!("top_p"), json!(null), json!(7)] {
        let options = Options::new().param("params", misfit.clone()).param("context", misfit);
        assert_eq!(engine.merge(&options).spec(), engine.spec());
    }
}

#[test]
fn g04_merging_replaces_the_model_and_overlays_tools_params_and_context() {
    let engine = Engine::without_adapter()
        .model("old")
        .tools([described("a", ""), described("b", "")])
        .param("temperature", 0.2)
        .param("top_p", 1)
        .context("user", 42);
    let options = Options::new()
        .model("new")
        .tools([described("b", "another"), described("c", "")])
        .param("params", json!({"temperature": 0.9}))
        .param("context", json!({"tenant": 7}))
        .param("reasoning_effort", "high");
    let merged = engine.merge(&options).spec().unwrap();
    assert_eq!(merged.model, Some(ModelRef::new("new")));
    assert_eq!(described_as(merged.tools.iter().map(|entry| &entry.tool)), "a: , b: another, c: ");
    assert_eq!(Value::Object(merged.params), json!({"temperature": 0.9, "top_p": 1}));
    assert_eq!(Value::Object(merged.context), json!({"user": 42, "tenant": 7}));
}

#[tokio::test]
async fn g05_what_belongs_to_the_engine_is_not_among_the_params() {
    let denied = [
        ("adapter", json!("x")),
        ("adapter_opts", json!({"x": 1})),
        ("model", json!("x")),
        ("tools", json!([])),
        ("tool_executor", json!("x")),
        ("tool_result_encoder", json!("x")),
        ("image_adapter", json!("x")),
        ("params", json!({"x": 1})),
        ("context", json!({"x": 1})),
        ("retry", json!(false)),
        ("middleware", json!([])),
        ("metadata", json!({"x": 1})),
        ("api_key", json!("x")),
    ];
    let mut options = Options::new().param("reasoning_effort", "high");
    for (name, value) in denied {
        options = options.param(name, value);
    }
    let (engine, model) = (Engine::without_adapter().param("top_p", 1), scripted([says("hi")]));
    let params = engine.resolve_params(&options);
    assert_eq!(Value::Object(params), json!({"top_p": 1, "reasoning_effort": "high"}));

    engine.adapter(model.clone()).chat("hello").options(options).await.unwrap();
    let sent = model.requests().remove(0).options;
    assert_eq!(Value::Object(sent), json!({"top_p": 1, "reasoning_effort": "high"}));
}

#[tokio::test]
async fn what_an_engine_has_for_its_provider_is_passed_on_under_any_name() {
    let model = scripted([says("hi")]);
    let own = json!({"metadata": {"user_id": "u"}, "tools": [{"type": "web_search"}]});
    let engine = map(own.clone())
        .into_iter()
        .fold(Engine::new(model.clone()), |engine, (name, value)| engine.param(&name, value));
    let options = Options::new().param("metadata", json!({"x": 1})).param("tools", json!([]));
    assert_eq!(Value::Object(engine.resolve_params(&options)), own);
    engine.chat("hello").options(options).await.unwrap();
    assert_eq!(Value::Object(model.requests().remove(0).options), own);
}

#[test]
fn a_stored_engine_may_have_its_retry_policy_as_a_field() {
    let read = |retry: Value| {
        let spec = serde_json::from_value::<EngineSpec>(json!({"retry": retry})).unwrap();
        Engine::from_spec(&spec, &EngineRegistry::new())
    };
    for policy in [json!(false), json!("default"), json!({"max_attempts": 5})] {
        let engine = read(policy.clone()).unwrap();
        let policy = json!(serde_json::from_value::<RetryPolicy>(policy).unwrap());
        assert_eq!(engine.resolve_params(&Options::new())["retry"], policy);
        assert_eq!(engine.spec().unwrap().retry, Some(policy));
    }
    let error = read(json!("often")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::InvalidEngine));
    assert_eq!(error.metadata()["field"], "retry");
}

#[test]
fn middleware_is_reserved_and_empty() {
    let read =
        |middleware: Value| serde_json::from_value::<EngineSpec>(json!({"middleware": middleware}));
    assert_eq!(read(json!([])).unwrap(), Engine::without_adapter().spec().unwrap());
    let error = read(json!(["Logging"])).unwrap_err();
    assert!(error.to_string().contains("`middleware` must be an empty list"), "{error}");
    assert!(read(json!("Logging")).is_err());
}

#[tokio::test]
async fn what_a_request_has_for_its_provider_is_passed_on_under_any_name() {
    let model = scripted([says("hi")]);
    let own = json!({"tools": [{"type": "web_search"}], "metadata": {"user_id": "u"}});
    let mut request = Request::from("hello");
    request.options = map(own.clone());
    let engine = Engine::new(model.clone()).param("metadata", json!({"user_id": "engine"}));
    engine.generate(request).param("tools", json!([])).await.unwrap();
    assert_eq!(Value::Object(model.requests().remove(0).options), own);
}

#[test]
fn g06_a_model_named_with_its_provider_stays_so() {
    let engine = Engine::without_adapter().model(("openai", "gpt-x"));
    let resolved = engine.resolve_model(&Options::new()).unwrap();
    assert_eq!(resolved, ModelRef::from(("openai", "gpt-x")));
    let other = Options::new().model(("anthropic", "claude-x"));
    assert_eq!(engine.resolve_model(&other), Some(ModelRef::from(("anthropic", "claude-x"))));
    assert_eq!(Engine::without_adapter().resolve_model(&Options::new()), None);
}

#[test]
fn a_resolved_model_has_what_the_catalog_knows_of_it() {
    let engine = Engine::without_adapter().model("gpt-4.1-mini");
    let resolved = engine.resolve_model(&Options::new()).unwrap();
    assert_eq!(resolved, Catalog::built_in().inform("gpt-4.1-mini".into()));
    assert!(resolved.pricing.is_some());
    // What is stored is what was said.
    assert_eq!(engine.merge(&Options::new()).spec().unwrap().model, Some("gpt-4.1-mini".into()));
}

#[tokio::test]
async fn g07_the_calls_adapter_options_win_over_the_engines() {
    let model = scripted([says("hi")]);
    let engine = Engine::new(model.clone()).adapter_option("x", 1).adapter_option("y", 1);
    engine.chat("hello").adapter_option("x", 2).await.unwrap();
    let given = model.model_calls().remove(0).adapter_opts;
    assert_eq!(Value::Object(given), json!({"x": 2, "y": 1}));
}

#[test]
fn g08_without_tools_of_the_call_the_engines_are_used() {
    let engine = Engine::without_adapter().tools([described("b", ""), described("a", "")]);
    let resolved = engine.resolve_tools(&Options::new());
    assert_eq!(described_as(resolved.iter().map(|tool| &**tool.spec())), "b: , a: ");
}

#[tokio::test]
async fn p01_tools_are_refused_for_a_model_that_has_none() {
    for lacking in [json!({"enabled": false}), json!(false)] {
        let errors = capability_errors(|engine| {
            engine.model(ModelRef::new("m").with_capability("tools", lacking)).tool(echo())
        });
        assert_eq!(errors.await, [FieldError::new("tools", "tools_disabled")]);
    }
}

#[tokio::test]
async fn p02_a_schema_is_refused_for_a_model_without_json_and_an_object_is_not() {
    let model = || ModelRef::new("m").with_capability("json_native", false);
    let schema = || json!(ResponseFormat::json_schema("p", json!({"type": "object"})));
    let refused = [FieldError::new("response_format", "json_native_disabled")];
    let plain = |engine: Engine| engine.model(model()).param("response_format", schema());
    assert_eq!(capability_errors(plain).await, refused);
    // The schema of the finalizing call is the same schema.
    let finalized = |engine| plain(engine).param("structured_finalize", true);
    assert_eq!(capability_errors(finalized).await, refused);

    let object = |engine: Engine| {
        engine.model(model()).param("response_format", json!({"type": "json_object"}))
    };
    assert_eq!(capability_errors(object).await, []);
}

#[tokio::test]
async fn p03_an_image_is_refused_for_a_model_that_cannot_see() {
    let picture = Message::user_parts([
        Part::text("what is this?"),
        Part::image(Image::from_url("https://example.com/bird.png")),
    ]);
    let model = scripted([says("a bird"), says("a bird")]);
    let engine =
        Engine::new(model.clone()).model(ModelRef::new("m").with_capability("vision", false));
    let error = engine.chat(picture.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Validation(ValidationReason::UnsupportedCapability));
    assert_eq!(error.field_errors(), [FieldError::new("vision", "vision_disabled")]);
    assert_eq!(model.calls(), 0);
    assert!(engine.chat("no picture").await.is_ok());
    assert!(engine.model("unknown").chat(picture).await.is_ok());
}

#[tokio::test]
async fn what_the_catalog_knows_of_a_model_counts_where_its_caller_says_nothing() {
    let file = json!({"models": [{
        "id": "m", "provider": "p", "context_window": 1000, "max_output_tokens": 10,
        "capabilities": {"vision": false, "tools": {"enabled": false}},
    }]});
    let catalog = Catalog::built_in().with_json(&file.to_string()).unwrap();
    let model = scripted([says("yes"), says("yes")]);
    let engine = Engine::new(model.clone()).catalog(catalog).model("m").tool(echo());
    let error = engine.chat("call it").await.unwrap_err();
    assert_eq!(error.field_errors(), [FieldError::new("tools", "tools_disabled")]);
    assert_eq!(model.calls(), 0);

    let mut knows_better = ModelRef::new("m").with_capability("tools", true);
    knows_better.limits.insert("output".to_owned(), json!(20));
    assert!(engine.model(knows_better).chat("call it").await.is_ok());
    let told = model.requests()[0].model.clone().unwrap();
    assert_eq!(json!(told.limits), json!({"context": 1000, "output": 20}));
    assert_eq!(json!(told.capabilities), json!({"vision": false, "tools": true}));
}

#[tokio::test]
async fn p04_what_is_not_known_of_a_model_is_not_refused() {
    let schema = || json!(ResponseFormat::json_schema("p", json!({"type": "object"})));
    let everything =
        |engine: Engine| engine.model("m").tool(echo()).param("response_format", schema());
    assert_eq!(capability_errors(everything).await, []);
}

#[tokio::test]
async fn p05_costs_are_computed_from_prices_and_never_overwrite_the_providers() {
    let usage = async |counted: Value| {
        let model = scripted([json!([{"text": "hi"}, {"usage": counted}, {"finish": "stop"}])]);
        let priced = ModelRef::new("m").with_pricing(Pricing::new(0.15, 0.6));
        let response = Engine::new(model).model(priced).generate("hello").await.unwrap();
        let usage = response.usage;
        (usage.input_cost, usage.output_cost, usage.total_cost)
    };
    let counted = json!({"input_tokens": 1000, "output_tokens": 500});
    assert_eq!(usage(counted).await, (Some(0.00015), Some(0.0003), Some(0.00045)));
    let billed =
        json!({"input_tokens": 1000, "output_tokens": 500, "input_cost": 9.0, "total_cost": 10.0});
    assert_eq!(usage(billed).await, (Some(9.0), Some(0.0003), Some(10.0)));
    assert_eq!(usage(json!({"input_tokens": 1000})).await, (Some(0.00015), None, None));
}

#[test]
fn every_field_of_a_stored_engine_comes_back() {
    let (engine, registry) = whole_engine();
    let spec = engine.spec().unwrap();
    let stored = serde_json::to_string(&spec).unwrap();
    let expected = json!({
        "adapter": "scripted",
        "adapter_opts": {"endpoint": "responses"},
        "model": {
            "provider": "openai", "id": "gpt-x", "capabilities": {"vision": true}, "limits": {},
            "pricing": {"input": 0.15, "output": 0.6}, "metadata": {}
        },
        "tools": [
            {
                "tool": {
                    "name": "echo", "description": "gives back", "schema": {"type": "object"}, "manual": false,
                    "idempotent": true, "max_attempts": 3, "timeout_ms": 1500, "metadata": {}
                },
                "handler": "demo::echo"
            },
            {
                "tool": {
                    "name": "pick", "description": "", "schema": {}, "manual": true,
                    "idempotent": false, "max_attempts": 1, "timeout_ms": null, "metadata": {}
                },
                "handler": null
            }
        ],
        "tool_executor": "loud",
        "tool_result_encoder": "shouting",
        "params": {"temperature": 0.2},
        "retry": json!(RetryPolicy::attempts(5)),
        "context": {"user_id": 42},
        "metadata": {"owner": "tests"}
    });
    assert_eq!(serde_json::from_str::<Value>(&stored).unwrap(), expected);

    let loaded: EngineSpec = serde_json::from_str(&stored).unwrap();
    assert_eq!(loaded, spec);
    let restored = Engine::from_spec(&loaded, &registry).unwrap();
    assert_eq!(restored.spec().unwrap(), spec);
}

#[tokio::test]
async fn a_restored_engine_runs_with_the_registered_code() {
    let (engine, registry) = whole_engine();
    let restored = Engine::from_spec(&engine.spec().unwrap(), &registry).unwrap();
    let result = restored.chat("echo please").await.unwrap();
    assert_eq!(result.steps[0].tool_results[0].text(), "{\"RAN\":{\"X\":1}}");
    assert_eq!(result.text(), "done");
}

#[test]
fn an_empty_object_is_an_engine_without_anything() {
    let spec: EngineSpec = serde_json::from_str("{}").unwrap();
    let engine = Engine::from_spec(&spec, &EngineRegistry::new()).unwrap();
    assert_eq!(engine.spec().unwrap(), Engine::without_adapter().spec().unwrap());
}

#[test]
fn code_that_the_registry_does_not_know_is_named_with_its_field() {
    let (engine, whole) = whole_engine();
    let spec = engine.spec().unwrap();
    assert!(Engine::from_spec(&spec, &whole).is_ok());
    let (adapter, echo) = (Scripted::default(), echo());
    let cases = [
        (
            "adapter",
            "scripted",
            EngineRegistry::new()
                .tool("demo::echo", &echo)
                .tool_executor(Loud)
                .tool_result_encoder(Shouting),
        ),
        (
            "tools.0.handler",
            "demo::echo",
            EngineRegistry::new()
                .adapter(adapter.clone())
                .tool_executor(Loud)
                .tool_result_encoder(Shouting),
        ),
        (
            "tool_executor",
            "loud",
            EngineRegistry::new()
                .adapter(adapter.clone())
                .tool("demo::echo", &echo)
                .tool_result_encoder(Shouting),
        ),
        (
            "tool_result_encoder",
            "shouting",
            EngineRegistry::new().adapter(adapter).tool("demo::echo", &echo).tool_executor(Loud),
        ),
    ];
    for (field, name, registry) in cases {
        let error = Engine::from_spec(&spec, &registry).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::InvalidEngine));
        assert_eq!(error.metadata()["field"], field);
        assert_eq!(error.metadata()["name"], name);
        assert!(error.to_string().contains(field) && error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_handler_without_a_registered_name_cannot_be_stored_and_says_so() {
    let engine = Engine::without_adapter().tool(described("a", "")).tool(echo());
    let error = engine.spec().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::InvalidEngine));
    assert_eq!(error.metadata()["field"], "tools.1.handler");
    assert_eq!(error.metadata()["tool_name"], "echo");
    assert!(error.to_string().contains("registered_as"), "{error}");
}

#[tokio::test]
async fn a_key_among_json_options_is_a_key_like_any_other() {
    const KEY: &str = "sk-b7f3c1d9";
    let model = scripted([says("hi"), says("hi")]);
    let engine = Engine::new(model.clone());
    let from_json = Options::from_json(json!({"api_key": KEY, "max_turns": 2})).unwrap();
    for options in [from_json, Options::new().param("api_key", KEY)] {
        assert!(!format!("{options:?} {:?}", options.to_json()).contains(KEY));
        engine.chat("hello").options(options).await.unwrap();
    }
    for call in model.model_calls() {
        assert_eq!(call.api_key.unwrap().expose_secret(), KEY);
    }
}

/// An engine in which nothing is left at its default, and the registry with its code.
fn whole_engine() -> (Engine, EngineRegistry) {
    let model = scripted([calls([("c0", "echo", json!({"x": 1}))]), says("done")]);
    let echo = Tool::new("echo", "gives back", json!({"type": "object"}))
        .handler(async |arguments, _| arguments)
        .registered_as("demo::echo")
        .idempotent(3)
        .timeout(std::time::Duration::from_millis(1500));
    let registry = EngineRegistry::new()
        .adapter(model.clone())
        .tool("demo::echo", &echo)
        .tool_executor(Loud)
        .tool_result_encoder(Shouting);
    let name = ModelRef::from(("openai", "gpt-x"))
        .with_capability("vision", true)
        .with_pricing(Pricing::new(0.15, 0.6));
    let engine = Engine::new(model)
        .adapter_option("endpoint", "responses")
        .model(name)
        .tools([echo, Tool::new("pick", "", json!({})).manual()])
        .tool_executor(Loud)
        .tool_result_encoder(Shouting)
        .param("temperature", 0.2)
        .retry(RetryPolicy::attempts(5))
        .context("user_id", 42)
        .metadata("owner", "tests");
    (engine, registry)
}

/// Runs the handler, and says that it did.
struct Loud;

impl ToolExecutor for Loud {
    fn name(&self) -> &str {
        "loud"
    }

    fn execute(
        &self,
        tool: &Tool,
        arguments: Value,
        context: ToolContext,
    ) -> BoxFuture<Result<ToolOutcome>> {
        let handler = Arc::clone(tool.get_handler().unwrap());
        Box::pin(async move {
            match handler.call(arguments, context).await {
                ToolOutcome::Ok(value) => Ok(ToolOutcome::Ok(json!({"ran": value}))),
                outcome => Ok(outcome),
            }
        })
    }
}

struct Shouting;

impl ToolResultEncoder for Shouting {
    fn name(&self) -> &str {
        "shouting"
    }

    fn encode(&self, value: &Value) -> std::result::Result<String, EncodeError> {
        Ok(value.to_string().to_uppercase())
    }
}

/// What is refused of a chat on such an engine, before the model is called.
async fn capability_errors(make: impl FnOnce(Engine) -> Engine) -> Vec<FieldError> {
    let model = scripted([says("hi"), says("{}")]);
    match make(Engine::new(model.clone())).chat("hello").await {
        Ok(_) => Vec::new(),
        Err(error) => {
            let unsupported = ErrorKind::Validation(ValidationReason::UnsupportedCapability);
            assert_eq!(error.kind(), unsupported);
            assert_eq!(model.calls(), 0);
            error.field_errors()
        }
    }
}

fn described(name: &str, description: &str) -> Tool {
    Tool::new(name, description, json!({}))
}

fn described_as<'a>(specs: impl Iterator<Item = &'a mynah::ToolSpec>) -> String {
    specs.map(|spec| format!("{}: {}", spec.name, spec.description)).collect::<Vec<_>>().join(", ")
}
