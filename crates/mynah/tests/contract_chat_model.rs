//! What reaches the model: options, tools, models, keys, and how often it is called.

use std::time::Duration;

use mynah::{
    AdapterReason, CancelHandle, Engine, Error, ErrorKind, HaltReason, ModelRef, OnUnknownTool,
    Options, Request, ResponseFormat, Result, RetryPolicy, ToolCall, ToolChoice, ToolErrorDecision,
    ToolMode,
};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    common::{Canned, boom, call, echo, fixtures::stopped, map, refusal, says, scripted, tool},
    param::Param as _,
};

#[tokio::test]
async fn c31_c32_the_model_gets_the_providers_options_and_nothing_of_the_loops() -> Result<()> {
    let model = Canned::new([stopped("x")]);
    let engine = Engine::new(model.clone())
        .model("fake:m")
        .tool(echo())
        .param("max_turns", 3)
        .param("on_tool_error", "halt")
        .param("engine_x", 1)
        .adapter_option("base_url", "http://localhost")
        .context("user", 7);
    let cancel = CancelHandle::new();
    let chat = engine
        .chat("hi")
        .max_turns(2)
        .mode(ToolMode::Auto)
        .halt_when("test", |_| false)
        .on_event(|_| {})
        .on_tool_error(mynah::OnToolError::decide(|_, _| ToolErrorDecision::Halt))
        .on_unknown_tool(OnUnknownTool::Answer)
        .emit_text_deltas(false)
        .emit_tool_deltas(false)
        .include_raw_chunks(true)
        .tool_timeout(Duration::from_secs(1))
        .deadline(Duration::from_secs(9))
        .max_concurrency(2)
        .context("user", 8)
        .session_id("s")
        .request_id("r")
        .api_key("sk-secret")
        .retry(RetryPolicy::attempts(2))
        .structured_finalize(true)
        .structured_finalize_nudge("go")
        .cancel_handle(&cancel)
        .adapter_option("organization", "o")
        .param("request_timeout", 1000)
        .param("stream_timeout", 500)
        .temperature(0.5)
        .max_tokens(9)
        .tool_choice(ToolChoice::Required)
        .param("reasoning_x", 1)
        .param("nothing", json!(null));
    chat.await?;

    let mut expected = Request::from("hi")
        .with_model(ModelRef::from("fake:m"))
        .with_tool_choice(ToolChoice::Required)
        .with_temperature(0.5)
        .with_max_tokens(9)
        .with_options(map(json!({"engine_x": 1, "reasoning_x": 1})));
    expected.tools = vec![std::sync::Arc::clone(echo().spec())];
    expected.stream = true;
    assert_eq!(model.requests.all(), [expected]);

    let [call] = &model.calls.all()[..] else { panic!("one call") };
    assert_eq!((call.request_id.as_str(), call.session_id.as_deref()), ("r", Some("s")));
    let opts = json!({"base_url": "http://localhost", "organization": "o"});
    assert_eq!(call.adapter_opts, map(opts));
    assert_eq!(call.request_timeout, Some(Duration::from_secs(1)));
    assert_eq!(call.stream_timeout, Some(Duration::from_millis(500)));
    assert!(call.api_key.is_some());
    assert!(!format!("{call:?}").contains("sk-secret"), "keys are not printed");
    Ok(())
}

#[tokio::test]
async fn c31_options_that_do_not_fit_are_refused_all_at_once() {
    let model = scripted([says("never")]);
    let chat = || {
        let wrong = json!({
            "mode": "sometimes", "max_turns": 0, "temperature": "hot", "tool_timeout": -1, "max_concurrency": 0,
            "emit_text_deltas": 1, "on_unknown_tool": "shrug", "retry": 3, "context": [],
        });
        Engine::new(model.clone()).chat("hi").options(Options::from_json(wrong).unwrap())
    };
    let error = chat().await.unwrap_err();
    let fields: Vec<String> = error.field_errors().iter().map(|e| e.path_text()).collect();
    let expected = [
        "mode",
        "max_turns",
        "temperature",
        "tool_timeout",
        "max_concurrency",
        "on_unknown_tool",
        "retry",
        "emit_text_deltas",
        "context",
    ];
    assert_eq!(fields, expected);
    assert_eq!(refusal(chat().stream()).await, error);
    assert_eq!(model.calls(), 0);
}

#[tokio::test]
async fn of_two_policies_for_tool_errors_the_newer_counts() -> Result<()> {
    let chat = || Engine::new(scripted([call("c0", "boom"), says("on")])).tool(boom()).chat("hi");
    let replace = |_: &ToolCall, _: &Error| ToolErrorDecision::Continue(json!("fine"));
    let halt = || Options::new().on_tool_error(mynah::OnToolError::Halt);
    let tell = || Options::new().param("on_tool_error", "continue");
    let cases = [
        (
            chat()
                .on_tool_error(mynah::OnToolError::decide(replace))
                .on_tool_error(mynah::OnToolError::Halt),
            "tool_error",
            "",
        ),
        (
            chat().on_tool_error(mynah::OnToolError::decide(replace)).options(halt()),
            "tool_error",
            "",
        ),
        (
            chat().on_tool_error(mynah::OnToolError::decide(replace)).options(tell()),
            "completed",
            "kaboom",
        ),
        (
            chat()
                .on_tool_error(mynah::OnToolError::Halt)
                .on_tool_error(mynah::OnToolError::decide(replace)),
            "completed",
            "fine",
        ),
        (
            chat()
                .options(halt())
                .options(Options::new().on_tool_error(mynah::OnToolError::decide(replace))),
            "completed",
            "fine",
        ),
        (
            chat().on_tool_error(mynah::OnToolError::decide(replace)).options(Options::new()),
            "completed",
            "fine",
        ),
    ];
    for (chat, reason, told) in cases {
        let result = chat.await?;
        assert_eq!(result.halted_reason.as_str(), reason);
        let message = result.steps[0].tool_results[0].text();
        assert!(message.contains(told), "{message}");
    }
    Ok(())
}

#[tokio::test]
async fn c37_tools_of_the_call_replace_the_engines_in_place_or_join_them() -> Result<()> {
    let model = scripted([call("c0", "b"), says("done")]);
    let named = |name: &'static str, by: &'static str| tool(name, move |_| json!(by));
    let engine =
        Engine::new(model.clone()).tools(["a", "b", "c"].map(|name| named(name, "engine")));
    let result = engine.chat("hi").tools([named("d", "call"), named("b", "call")]).await?;
    for request in model.requests() {
        let names: Vec<&str> = request.tools.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
    }
    assert_eq!(result.steps[0].tool_results[0].text(), "call");
    Ok(())
}

#[tokio::test]
async fn c38_the_calls_model_wins_over_the_requests_over_the_engines() -> Result<()> {
    let model = scripted((0..4).map(|_| says("x")));
    let engine = Engine::new(model.clone()).model("engine");
    let request = || Request::from("hi").with_model("request").with_temperature(0.1);
    engine.generate(request()).model("call").temperature(0.2).await?;
    engine.generate(request()).await?;
    engine.generate("hi").await?;
    engine.chat("hi").model("call").await?;
    let asked: Vec<_> = model.requests().into_iter().map(|r| (r.model, r.temperature)).collect();
    let expected = [("call", Some(0.2)), ("request", Some(0.1)), ("engine", None), ("call", None)];
    assert_eq!(
        asked,
        expected.map(|(name, temperature)| (Some(ModelRef::from(name)), temperature))
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_refused_call_is_tried_again_as_the_caller_says_and_each_try_takes_a_script() -> Result<()>
{
    let model = scripted([
        json!([{"preflight_error": "rate_limited", "retry_after_ms": 7000}]),
        json!([{"preflight_error": "overloaded"}]),
        call("c0", "echo"),
        json!([{"preflight_error": "timeout"}]),
        says("done"),
    ]);
    let start = Instant::now();
    let chat = Engine::new(model.clone()).tool(echo()).chat("hi").retry(RetryPolicy::attempts(3));
    let result = chat.await?;
    assert_eq!((result.halted_reason, result.steps.len()), (HaltReason::Completed, 2));
    assert_eq!(model.calls(), 5);
    assert!(start.elapsed() >= Duration::from_secs(7), "the provider's wish is respected");
    let requests = model.requests();
    assert_eq!(
        (&requests[0], &requests[3]),
        (&requests[2], &requests[4]),
        "the same is asked again"
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn retries_end_with_the_last_error_and_help_only_where_they_can() {
    let refusals = |reason: &str| vec![json!([{"preflight_error": reason}]); 4];
    let cases = [
        ("rate_limited", Some(json!({"max_attempts": 3})), 3),
        ("rate_limited", Some(json!(true)), 3),
        ("rate_limited", Some(json!({"max_attempts": 0})), 1),
        ("rate_limited", Some(json!(false)), 1),
        ("rate_limited", None, 1),
        ("invalid_request", Some(json!({"max_attempts": 3})), 1),
        ("invalid_request", Some(json!({"max_attempts": 2, "retry_on": ["invalid_request"]})), 2),
    ];
    for (reason, policy, tries) in cases {
        let model = scripted(refusals(reason));
        let chat = Engine::new(model.clone()).chat("hi").param("retry", json!(policy));
        let error = chat.await.unwrap_err();
        assert_eq!(error.reason(), reason);
        assert_eq!(model.calls(), tries, "{reason} {policy:?}");
    }
    let model = scripted(refusals("overloaded"));
    let engine = Engine::new(model.clone()).retry(RetryPolicy::attempts(4));
    engine.chat("hi").retry(RetryPolicy::attempts(2)).await.unwrap_err();
    assert_eq!(model.calls(), 2, "the call's policy wins over the engine's");
}

#[tokio::test]
async fn an_answer_that_has_begun_is_never_asked_for_again() -> Result<()> {
    let model = scripted([json!([{"error": "rate_limited"}]), says("never")]);
    let result = Engine::new(model.clone()).chat("hi").retry(RetryPolicy::attempts(3)).await?;
    let error = result.error().expect("an error");
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::RateLimited));
    assert_eq!(model.calls(), 1);
    Ok(())
}

#[tokio::test]
async fn a_response_format_without_finalizing_reaches_the_model_beside_the_tools() -> Result<()> {
    let model = scripted([says("{}")]);
    let format = ResponseFormat::json_schema("p", json!({"type": "object"}));
    Engine::new(model.clone()).tool(echo()).chat("hi").response_format(format.clone()).await?;
    let [request] = &model.requests()[..] else { panic!("one request") };
    assert_eq!((request.response_format.as_ref(), request.tools.len()), (Some(&format), 1));
    Ok(())
}
