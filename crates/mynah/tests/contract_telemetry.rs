//! What a run reports to observers, and what it never reports.
#![allow(clippy::unwrap_used, reason = "helpers fail as tests do")]

mod common;
#[path = "common/param.rs"]
mod param;
mod recorder;

use common::{Seen, boom, call, calls, echo, events, says, scripted, tool};
use futures_util::StreamExt as _;
use mynah::{Engine, Event, Options, Tool, ToolContext, ToolOutcome};
use param::Param as _;
use recorder::{Recorder, SpanRecord};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

#[tokio::test]
async fn l01_a_chat_is_one_span_with_its_id_and_its_end() {
    let recorder = Recorder::install();
    let engine = Engine::new(scripted([says("hi")])).model("m");
    engine.chat("hello").request_id("r1").await.unwrap();
    let [run] = recorder.spans("mynah.run").try_into().unwrap();
    assert!(run.is_closed());
    let told = |name: &str| run.fields.get(name).map(String::as_str);
    assert_eq!(told("extent"), Some("Chat"));
    assert_eq!(told("model"), Some("m"));
    assert_eq!(told("request_id"), Some("r1"));
    assert_eq!(told("halted_reason"), Some("completed"));
    assert_eq!(told("turns"), Some("1"));
}

#[tokio::test]
async fn l02_a_tools_span_lies_in_its_steps_and_that_in_the_chats() {
    let recorder = Recorder::install();
    let model = scripted([call("c0", "echo"), says("done")]);
    Engine::new(model).tool(echo()).chat("hello").await.unwrap();
    let [tool] = recorder.spans("mynah.tool").try_into().unwrap();
    assert_eq!(tool.parent, Some("mynah.step"));
    assert_eq!(tool.fields["tool"], "echo");
    assert_eq!(tool.fields["call"], "c0");
    assert_eq!(tool.fields.get("failure"), None);
    let steps = recorder.spans("mynah.step");
    let indices: Vec<&str> = steps.iter().map(|step| step.fields["index"].as_str()).collect();
    assert_eq!(indices, ["0", "1"]);
    assert!(steps.iter().all(|step| step.parent == Some("mynah.run")));
    assert_eq!(recorder.closed(), ["mynah.tool", "mynah.step", "mynah.step", "mynah.run"]);
}

#[tokio::test(start_paused = true)]
async fn l03_the_span_of_a_tool_that_failed_says_how() {
    let hang = Tool::new("hang", "", json!({})).handler(async |_, _| {
        std::future::pending::<()>().await;
        Value::Null
    });
    let tools = [hang, boom(), tool("no", |_| ToolOutcome::error("no"))];
    let called = [("c0", "hang", json!({})), ("c1", "boom", json!({})), ("c2", "no", json!({}))];
    let recorder = Recorder::install();
    Engine::new(scripted([calls(called), says("done")])).tools(tools).chat("hello").await.unwrap();
    let spans = recorder.spans("mynah.tool");
    let failures: Vec<&str> = spans.iter().map(|span| span.fields["failure"].as_str()).collect();
    assert_eq!(failures, ["timeout", "handler_raised", "failed"]);
    assert!(spans.iter().all(SpanRecord::is_closed));
}

#[tokio::test]
async fn l04_a_request_id_is_the_same_for_span_handler_adapter_and_response() {
    let recorder = Recorder::install();
    let (look, seen) = looking(|context| context.request_id.to_string());
    let model = scripted([call("c0", "look"), says("done")]);
    let chat = Engine::new(model.clone()).tool(look).chat("hello").request_id("mine");
    let result = chat.await.unwrap();
    let mut ids = seen.all();
    ids.extend(model.model_calls().into_iter().map(|call| call.request_id));
    ids.extend(result.steps.into_iter().filter_map(|step| step.response.request_id));
    ids.extend(recorder.spans("mynah.run").iter().map(|run| run.fields["request_id"].clone()));
    assert_eq!(ids, ["mine"; 6]);
}

#[tokio::test]
async fn l05_the_span_of_a_stream_ends_with_it_and_tells_usage_and_end() {
    let recorder = Recorder::install();
    let counted = json!({"input_tokens": 9, "output_tokens": 2});
    let model = scripted([json!([{"text": "hi"}, {"usage": counted}, {"finish": "stop"}])]);
    let mut stream = Engine::new(model).chat("hello").stream();
    let run = || recorder.spans("mynah.run").remove(0);
    assert!(matches!(stream.next().await, Some(Ok(Event::MessageStarted { .. }))));
    assert!(!run().is_closed());
    assert_eq!(run().fields.get("halted_reason"), None);

    while stream.next().await.is_some() {}
    assert!(run().is_closed(), "although the stream is still held");
    let fields = run().fields;
    let told = ["halted_reason", "finish_reason", "turns", "input_tokens", "output_tokens"]
        .map(|name| fields[name].as_str());
    assert_eq!(told, ["completed", "stop", "1", "9", "2"]);
}

#[tokio::test]
async fn l05_steps_and_single_calls_have_spans_too_and_a_dropped_stream_closes_its_own() {
    let recorder = Recorder::install();
    let engine = Engine::new(scripted([says("hi"), says("hi"), says("hi")]));
    engine.step("hello").await.unwrap();
    engine.generate("hello").await.unwrap();
    let mut dropped = engine.chat("hello").stream();
    dropped.next().await.unwrap().unwrap();
    drop(dropped);
    let runs = recorder.spans("mynah.run");
    let told: Vec<_> = runs
        .iter()
        .map(|run| (run.fields["extent"].as_str(), run.fields.get("finish_reason")))
        .collect();
    let stop = "stop".to_owned();
    assert_eq!(told, [("Step", Some(&stop)), ("Generate", Some(&stop)), ("Chat", None)]);
    assert!(runs.iter().all(SpanRecord::is_closed));
}

#[tokio::test(start_paused = true)]
async fn y07_each_try_but_the_last_is_told_of() {
    let recorder = Recorder::install();
    let refused = |reason: &str| json!([{"preflight_error": reason}]);
    let model = scripted([refused("rate_limited"), refused("timeout"), refused("timeout")]);
    let call = Engine::new(model).generate("hello").request_id("r1");
    call.param("retry", json!({"jitter_ms": 0})).await.unwrap_err();

    let told = |attempt: &str, delay: &str, reason: &str| {
        let fields = [
            ("attempt", attempt),
            ("delay_ms", delay),
            ("message", "model call failed; retrying"),
            ("provider", "scripted"),
            ("reason", reason),
            ("request_id", "r1"),
        ];
        fields.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    };
    let events = recorder.events();
    let fields: Vec<_> = events.iter().map(|event| event.fields.clone()).collect();
    assert_eq!(fields, [told("1", "500", "rate_limited"), told("2", "1000", "timeout")]);
    assert!(events.iter().all(|event| event.span == Some("mynah.step")), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_try_of_a_tool_that_failed_is_told_with_its_call_and_its_error() {
    let recorder = Recorder::install();
    let tool = Tool::new("book", "", json!({})).idempotent(2);
    let tool = tool.handler(async |_, _| mynah::ToolOutcome::transient("no line"));
    Engine::new(scripted([call("c0", "book"), says("done")])).tool(tool).chat("go").await.unwrap();
    let fields: Vec<_> = recorder.events().into_iter().map(|event| event.fields).collect();
    let told = [
        ("attempt", "1"),
        ("call", "c0"),
        ("error", "\"no line\""),
        ("message", "tool failed; retrying"),
        ("tool", "book"),
    ];
    let told: recorder::Fields =
        told.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    assert_eq!(fields, [told]);
}

#[tokio::test(start_paused = true)]
async fn the_spans_and_retries_of_a_recorded_run_tell_its_id() {
    let recorder = Recorder::install();
    let log = std::sync::Arc::new(mynah::log::MemoryLog::new());
    let tool = Tool::new("book", "", json!({})).idempotent(2);
    let tool = tool.handler(async |_, context: ToolContext| {
        tracing::info!(target: "mynah::test", "inside");
        context.span().in_scope(|| tracing::info!(target: "mynah::test", "joined"));
        match context.attempt() {
            1 => ToolOutcome::transient("no line"),
            _ => ToolOutcome::from(json!("booked")),
        }
    });
    let refused = json!([{"preflight_error": "rate_limited"}]);
    let model = scripted([refused, call("c0", "book"), says("done")]);
    let chat = Engine::new(model).tool(tool).chat("go").param("retry", json!({"jitter_ms": 0}));
    let run = chat.record(&log).await.unwrap().run_id.unwrap();
    for name in ["mynah.run", "mynah.tool"] {
        let [span] = recorder.spans(name).try_into().unwrap();
        assert_eq!(span.fields["run_id"], *run, "{name}");
        assert!(span.is_closed());
    }
    let (own, told): (Vec<_>, Vec<_>) = recorder
        .events()
        .into_iter()
        .partition(|event| ["inside", "joined"].contains(&event.fields["message"].as_str()));
    assert_eq!(own.iter().map(|event| event.span).collect::<Vec<_>>(), [Some("mynah.tool"); 4]);
    let told: Vec<_> = told.iter().map(|event| (event.span, &*event.fields["run_id"])).collect();
    assert_eq!(told, [(Some("mynah.step"), &*run), (Some("mynah.tool"), &*run)]);
}

#[tokio::test]
async fn a_limit_that_is_passed_is_told_once_with_its_figures_and_place() {
    let recorder = Recorder::install();
    let log = std::sync::Arc::new(mynah::log::MemoryLog::new());
    let told = |limit: &str, actual: &str, place: &str, run: &str| {
        let fields = [("limit", limit), ("cap", "1"), ("actual", actual), ("where", place)];
        let fields = fields.into_iter().chain([("run_id", run), ("message", "budget exceeded")]);
        fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let engine = || Engine::new(scripted([says("far too long")])).model("m");
    let ended = engine().chat("go").param("budget", json!({"max_output_tokens": 1})).record(&log);
    let long = ended.await.unwrap().run_id.unwrap_or_default();
    let ended = engine().chat("hello").param("budget", json!({"max_input_tokens": 1})).record(&log);
    let asked = ended.await.unwrap().run_id.unwrap_or_default();
    for run in [&long, &asked] {
        engine().replay(&log, &**run).await.unwrap();
    }
    let fields: Vec<_> = recorder.events().into_iter().map(|event| event.fields).collect();
    let expected: [recorder::Fields; 2] = [
        told("output_tokens", "4", "mid_stream", &long),
        told("input_tokens", "2", "pre_call", &asked),
    ];
    assert_eq!(fields, expected);
}

#[tokio::test]
async fn a_key_reaches_the_adapter_and_nothing_else() {
    const KEY: &str = "sk-b7f3c1d9";
    let recorder = Recorder::install();
    let (look, seen) = looking(|context| format!("{context:?} {:?}", Engine::of(context)));
    let model = scripted([
        call("c0", "look"),
        says("done"),
        call("c0", "look"),
        says("done"),
        json!([{"preflight_error": "authentication_failed"}]),
    ]);
    let engine = Engine::new(model.clone()).tool(look.registered_as("look"));
    let mut said = Vec::new();

    let chat = engine.chat("hello").api_key(KEY);
    said.push(format!("{chat:?} {:?}", Options::new().api_key(KEY)));
    let stream = chat.stream();
    said.push(format!("{stream:?}"));
    let events = events(stream).await;
    said.push(format!("{events:?} {}", json!(events)));

    let turn = engine.start("hello").api_key(KEY);
    said.push(format!("{turn:?}"));
    let (session, result) = turn.await.unwrap();
    said.push(format!("{session:?} {result:?} {} {}", json!(session), json!(result)));

    let mut refused = engine.reply(&session, "more").api_key(KEY).stream();
    let error = refused.next().await.unwrap().unwrap_err();
    said.push(format!("{refused:?} {error} {error:?} {}", json!(error)));

    said.push(format!("{engine:?} {:?} {}", engine.spec(), json!(engine.spec().unwrap())));
    said.push(format!("{model:?} {:?}", model.model_calls()));
    said.push(format!("{:?} {}", model.requests(), json!(model.requests())));
    said.push(recorder.text());
    assert_eq!(seen.all().len(), 2);
    said.extend(seen.all());

    assert_eq!(model.calls(), 5);
    for call in model.model_calls() {
        assert_eq!(call.api_key.unwrap().expose_secret(), KEY);
    }
    for text in said {
        assert!(!text.contains(KEY), "{text}");
    }
}

/// A tool that keeps something of the context of each call.
fn looking(at: impl Fn(&ToolContext) -> String + Send + Sync + 'static) -> (Tool, Seen<String>) {
    let seen = Seen::default();
    let saw = seen.clone();
    let look = Tool::new("look", "", json!({})).handler(move |_, context: ToolContext| {
        saw.push(at(&context));
        async { "looked" }
    });
    (look, seen)
}
