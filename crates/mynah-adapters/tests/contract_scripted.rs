//! The scripted model: what each entry of a script does, and what is kept of each call.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use mynah_adapters::scripted::{Entry, Script, Scripted};
use mynah_data::{
    AdapterReason, Error, ErrorKind, Event, FinishReason, Message, Part, Request, Response,
    ResponseBuilder, Result, Thread, ToolCall, ValidationReason,
};
use mynah_step::{Adapter as _, ModelCall, ModelStream, RetryPolicy, SystemWorld, open_model};
use serde_json::{Value, json};
use tokio::time::Instant;

#[tokio::test]
async fn x02_without_a_script_the_call_fails_before_there_is_a_stream() {
    let model = Scripted::default();
    assert_eq!(refusal(&model).await, no_script(1, 0));
}

#[tokio::test]
async fn x03_a_second_call_on_one_script_fails() {
    let model = scripted([json!([{"text": "hi"}, {"finish": "stop"}])]);
    assert_eq!(answer(&model).await.text(), "hi");
    assert_eq!(refusal(&model).await, no_script(2, 1));
}

#[tokio::test]
async fn x03_scripts_can_follow_the_conversation_in_every_process() {
    let model = || Scripted::says(["one", "two"]).by_turn();
    let said = async |model: &Scripted, answers: usize| {
        let thread = (0..answers).fold(Thread::from("count"), |thread, _| {
            thread.with(Message::assistant("a number")).with(Message::user("and?"))
        });
        let stream =
            Arc::new(model.clone()).open(Request::from(thread), ModelCall::default()).await?;
        Ok::<_, Error>(fold(stream).await.text().into_owned())
    };
    let first = model();
    assert_eq!(said(&first, 0).await, Ok("one".to_owned()));
    // A repeated call, and one in another process.
    assert_eq!(said(&first, 0).await, Ok("one".to_owned()));
    assert_eq!(said(&first, 1).await, Ok("two".to_owned()));
    assert_eq!(said(&model(), 1).await, Ok("two".to_owned()));
    assert_eq!(first.calls(), 3);
    let error = said(&first, 2).await.unwrap_err();
    assert!(error.message().contains("turn 3 and only 2 script(s)"), "{error}");
    let error = refusal(&Scripted::default()).await.to_string();
    assert!(error.contains("add scripts; a program that is started again"), "{error}");
}

#[tokio::test]
async fn x04_a_script_without_a_finish_ends_without_a_reason() {
    for (script, text) in [(json!([{"text": "hi"}]), "hi"), (json!([]), "")] {
        let answer = answer(&scripted([script])).await;
        assert_eq!(answer.text(), text);
        assert_eq!(answer.finish_reason, None);
        assert_eq!(answer.error(), None);
    }
}

#[tokio::test]
async fn x05_an_error_breaks_the_answer_off_and_keeps_what_was_said() {
    let model = scripted([json!([{"text": "par"}, {"error": "rate_limited"}])]);
    let answer = answer(&model).await;
    assert_eq!(answer.text(), "par");
    assert_eq!(answer.finish_reason, Some(FinishReason::Error));
    let error = answer.error().unwrap();
    assert_eq!(error, Error::adapter(AdapterReason::RateLimited).with_provider("scripted"));
}

#[tokio::test]
async fn x05_every_reason_can_be_scripted_in_mid_stream_and_before() {
    for reason in AdapterReason::ALL {
        let detailed = |kind: &str| {
            json!([{
                kind: reason.as_str(),
                "message": "as told",
                "status": 418,
                "retry_after_ms": 7,
                "request_id": "q"
            }])
        };
        let expected = Error::adapter(*reason)
            .with_provider("scripted")
            .with_message("as told")
            .with("retry_after_ms", 7)
            .with("status", 418)
            .with("request_id", "q");
        let model = scripted([detailed("error"), detailed("preflight_error")]);
        assert_eq!(answer(&model).await.error(), Some(expected.clone()));
        assert_eq!(refusal(&model).await, expected);
    }
}

#[tokio::test]
async fn x06_a_reason_that_nobody_knows_is_unknown_and_keeps_its_cause() {
    let model = scripted([json!([{"error": "weird"}])]);
    let error = answer(&model).await.error().unwrap();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::Unknown));
    assert_eq!(error.metadata()["cause"], "weird");
}

#[tokio::test]
async fn x07_what_stands_after_the_end_is_not_played() {
    let ends = [
        (json!({"finish": "stop"}), "message_completed"),
        (json!({"error": "timeout"}), "error"),
        (json!({"disconnect": true}), "text_delta"),
    ];
    for (end, last) in ends {
        let model = scripted([json!([{"text": "a"}, end, {"text": "b"}, {"finish": "length"}])]);
        let told = told(&model).await;
        assert_eq!(told.last(), Some(&last));
        assert_eq!(told.iter().filter(|name| **name == "text_delta").count(), 1, "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn x08_a_delay_holds_back_what_comes_after_it() {
    let model =
        scripted([json!([{"text": "a"}, {"delay_ms": 50}, {"text": "b"}, {"delay_ms": 7}])]);
    let mut stream = open(&model).await.unwrap();
    let begun = Instant::now();
    let mut times = Vec::new();
    while let Some(event) = stream.next().await {
        times.push((event.unwrap().type_name(), begun.elapsed().as_millis()));
    }
    let expected = [
        ("message_started", 0),
        ("text_delta", 0),
        ("text_delta", 50),
        ("text_completed", 57),
        ("message_completed", 57),
    ];
    assert_eq!(times, expected);
}

#[tokio::test(start_paused = true)]
async fn x09_a_dropped_stream_is_closed_at_once() {
    let model = scripted([json!([{"text": "a"}, {"delay_ms": 60_000}, {"text": "b"}])]);
    let stream = open(&model).await.unwrap();
    assert_eq!(model.open_streams(), 1);
    let seen: Vec<_> = stream.take(2).collect().await;
    assert_eq!(seen.len(), 2);
    assert_eq!(model.open_streams(), 0);
}

#[tokio::test(start_paused = true)]
async fn x10_calls_that_are_refused_can_be_retried_until_one_is_not() {
    let late = json!([{"preflight_error": "timeout"}]);
    let model = scripted([late.clone(), late, json!([{"text": "hi"}, {"finish": "stop"}])]);
    let opened = open_model(
        Arc::new(model.clone()),
        Request::from("hello"),
        ModelCall::default(),
        Arc::new(RetryPolicy::attempts(3)),
        Arc::new(SystemWorld),
    );
    assert_eq!(fold(opened.await.unwrap()).await.text(), "hi");
    assert_eq!(model.calls(), 3);
}

#[tokio::test]
async fn x11_a_call_that_fails_in_mid_stream_leaves_the_next_script_for_the_next_call() {
    let model =
        scripted([json!([{"error": "timeout"}]), json!([{"text": "hi"}, {"finish": "stop"}])]);
    assert_eq!(told(&model).await, ["message_started", "error"]);
    assert_eq!(answer(&model).await.text(), "hi");
}

#[tokio::test]
async fn x12_a_preflight_error_comes_instead_of_a_stream() {
    let model =
        scripted([json!([{"preflight_error": "authentication_failed"}, {"text": "never"}])]);
    let error = refusal(&model).await;
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::AuthenticationFailed));
    assert_eq!((model.calls(), model.open_streams()), (1, 0));
}

#[tokio::test]
async fn x13_equal_scripts_are_played_apart_and_clones_play_one() {
    let scripts = || [json!([{"text": "first"}]), json!([{"text": "second"}])];
    let (one, other) = (scripted(scripts()), scripted(scripts()));
    assert_eq!(answer(&one).await.text(), "first");
    assert_eq!(answer(&other).await.text(), "first");
    assert_eq!(answer(&one.clone()).await.text(), "second");
    assert_eq!((one.calls(), other.calls()), (2, 1));
}

#[tokio::test]
async fn x14_the_last_usage_counts_and_counters_that_nobody_knows_are_kept() {
    let model = scripted([json!([
        {"usage": {"input_tokens": 1}},
        {"text": "hi"},
        {"usage": {"input_tokens": 9, "output_tokens": 2, "cached_input_tokens": 4, "moons": 3}},
        {"finish": "stop"}
    ])]);
    let usage = answer(&model).await.usage;
    assert_eq!((usage.input_tokens, usage.output_tokens), (Some(9), Some(2)));
    assert_eq!((usage.cached_input_tokens, usage.total()), (Some(4), Some(11)));
    assert_eq!(json!(usage.extra), json!({"moons": 3}));
}

#[tokio::test]
async fn x15_every_call_is_kept_with_its_request_before_its_script_is_looked_at() {
    let model = Scripted::default();
    let request = Request::new([Message::user("hello")]).with_model("m").with_temperature(0.5);
    let call = ModelCall::new("r1");
    let opened = Arc::new(model.clone()).open(request.clone(), call);
    assert!(opened.await.is_err());
    assert_eq!(model.requests(), [request]);
    let [call] = model.model_calls().try_into().unwrap();
    assert_eq!(call.request_id, "r1");
}

#[test]
fn x16_an_entry_that_nobody_knows_is_refused_with_those_that_are_known() {
    let error = Scripted::new([json!([]), json!([{"text": "a"}, {"txt": "b"}])]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Validation(ValidationReason::InvalidJson));
    assert_eq!(error.metadata()["field"], "1.1");
    let known = "text, reasoning, tool_call, tool_call_start, tool_call_delta, usage, raw_chunk, finish, error, \
                 preflight_error, delay_ms, disconnect";
    assert_eq!(error.message(), format!("1.1: expected one of {known}, found txt"));
}

#[test]
fn x16_a_script_that_does_not_fit_is_refused_with_the_place() {
    let cases = [
        (json!({"text": "a"}), "script: expected a list of entries"),
        (json!(["text"]), "0: expected an object"),
        (json!([{}]), "found nothing"),
        (json!([{"text": 1}]), "0: text: "),
        (json!([{"text": "a", "id": 1}]), r#"0: unknown key "id" beside "text""#),
        (json!([{"text": "a", "finish": "stop"}]), "unknown key"),
        (json!([{"finish": "done"}]), "0: finish: "),
        (json!([{"delay_ms": -1}]), "0: delay_ms: "),
        (json!([{"delay_ms": 0.5}]), "0: delay_ms: "),
        (json!([{"disconnect": false}]), "0: disconnect: expected true"),
        (json!([{"tool_call": {"name": "echo"}}]), "0: tool_call: "),
        (json!([{"tool_call": {"id": "c0", "name": "echo", "args": {}}}]), "args"),
        (json!([{"tool_call_start": {"id": "c0"}}]), "0: tool_call_start: "),
        (json!([{"tool_call_delta": {"id": "c0"}}]), "0: tool_call_delta: "),
        (json!([{"usage": {"input_tokens": "many"}}]), "0: usage: "),
        (json!([{"usage": 3}]), "0: usage: "),
        (json!([{"error": 429}]), "0: error: "),
        (json!([{"error": "timeout", "retry_after_ms": "soon"}]), "0: retry_after_ms: "),
        (
            json!([{"text": "a"}, {"preflight_error": "timeout"}]),
            "1: preflight_error may only be the first entry",
        ),
    ];
    for (script, expected) in cases {
        let error = Script::from_json(&script).expect_err(&script.to_string());
        assert_eq!(error.kind(), ErrorKind::Validation(ValidationReason::InvalidJson));
        assert!(error.message().into_owned().contains(expected), "{script}: {error}");
    }
}

#[tokio::test]
async fn x17_a_tool_call_keeps_its_text_or_gets_that_of_its_arguments() {
    let cases = [
        (json!({"arguments": {"x": 1.0}}), r#"{"x":1.0}"#, json!({"x": 1.0})),
        (json!({"raw_arguments": "{ \"x\": 1 }"}), "{ \"x\": 1 }", json!({"x": 1})),
        (json!({"raw_arguments": "{\"x\":"}), "{\"x\":", Value::Null),
        (json!({}), "{}", json!({})),
    ];
    for (given, raw, arguments) in cases {
        let mut call = json!({"id": "c0", "name": "echo"});
        call.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
        let model = scripted([json!([{"tool_call": call}, {"finish": "tool_calls"}])]);
        let answer = answer(&model).await;
        let [call] = answer.tool_calls().collect::<Vec<_>>().try_into().unwrap();
        assert_eq!((call.raw_arguments.as_str(), &call.arguments), (raw, &arguments));
        assert_eq!(answer.finish_reason, Some(FinishReason::ToolCalls));
    }
}

#[tokio::test]
async fn a_tool_call_in_pieces_is_put_together_at_the_end() {
    let model = scripted([json!([
        {"tool_call_start": {"id": "c0", "name": "echo"}},
        {"tool_call_start": {"id": "c1", "name": "add"}},
        {"tool_call_delta": {"id": "c0", "arguments_delta": "{\"x\""}},
        {"tool_call_delta": {"id": "c1", "arguments_delta": "{}"}},
        {"tool_call_delta": {"id": "c0", "arguments_delta": ": 1}"}},
        {"finish": "tool_calls"}
    ])]);
    let answer = answer(&model).await;
    let calls: Vec<&ToolCall> = answer.tool_calls().collect();
    let expected = [ToolCall::new("c0", "echo", "{\"x\": 1}"), ToolCall::new("c1", "add", "{}")];
    assert_eq!(calls, expected.iter().collect::<Vec<_>>());
}

#[tokio::test]
async fn an_answer_is_told_in_the_order_of_its_script() {
    let model = scripted([json!([
        {"reasoning": "hm", "signature": "s"},
        {"text": "a"},
        {"text": ""},
        {"tool_call": {"id": "c0", "name": "echo"}},
        {"raw_chunk": [1, {"two": 3}]},
        {"text": "b"},
        {"usage": {"input_tokens": 1}},
        {"finish": "other"}
    ])]);
    let events = play(&model).await;
    let names: Vec<&str> = events.iter().map(|event| event.as_ref().unwrap().type_name()).collect();
    let expected = [
        "message_started",
        "reasoning_delta",
        "reasoning_completed",
        "text_delta",
        "tool_call_started",
        "tool_call_completed",
        "raw_chunk",
        "text_delta",
        "usage",
        "text_completed",
        "message_completed",
    ];
    assert_eq!(names, expected);
    assert_eq!(events[6], Ok(Event::RawChunk { chunk: json!([1, {"two": 3}]) }));
}

#[tokio::test]
async fn the_parts_of_an_answer_stand_in_the_order_of_its_script() {
    let model = scripted([json!([
        {"reasoning": "hm", "signature": "s"},
        {"text": "a"},
        {"tool_call": {"id": "c0", "name": "echo"}},
        {"text": "b"},
        {"finish": "tool_calls"}
    ])]);
    let signed = Part::Reasoning {
        text: "hm".to_owned(),
        signature: Some("s".to_owned()),
        redacted: false,
        data: None,
    };
    let call = Part::tool_call(ToolCall::new("c0", "echo", "{}"));
    let answer = answer(&model).await;
    assert_eq!(answer.message.parts(), [signed, Part::text("a"), call, Part::text("b")]);
}

#[tokio::test]
async fn every_finish_reason_can_be_scripted() {
    use FinishReason::*;
    for reason in [Stop, Length, ToolCalls, ContentFilter, Error, Other] {
        let model = scripted([json!([{"finish": reason}])]);
        assert_eq!(answer(&model).await.finish_reason, Some(reason));
    }
}

#[tokio::test]
async fn a_disconnect_ends_the_stream_without_an_end_of_the_answer() {
    let model = scripted([json!([{"text": "par"}, {"disconnect": true}])]);
    assert_eq!(told(&model).await, ["message_started", "text_delta"]);
}

#[tokio::test]
async fn a_script_can_be_written_in_rust() {
    let model = Scripted::play([Script::new()
        .text("a")
        .with(Entry::Delay(Duration::ZERO))
        .tool_call("c0", "echo", json!({"x": 1}))
        .finish(FinishReason::ToolCalls)]);
    let answer = answer(&model).await;
    let call = Part::tool_call(ToolCall::from_value("c0", "echo", json!({"x": 1})));
    assert_eq!(answer.message.parts(), [Part::text("a"), call]);
}

fn scripted<const N: usize>(scripts: [Value; N]) -> Scripted {
    Scripted::new(scripts).unwrap()
}

async fn open(model: &Scripted) -> Result<ModelStream> {
    Arc::new(model.clone()).open(Request::from("hello"), ModelCall::default()).await
}

async fn refusal(model: &Scripted) -> Error {
    open(model).await.err().expect("no stream")
}

async fn play(model: &Scripted) -> Vec<Result<Event>> {
    open(model).await.unwrap().collect().await
}

/// The names of a call's events; `error` for the error that ends it.
async fn told(model: &Scripted) -> Vec<&'static str> {
    let name = |event: &Result<Event>| event.as_ref().map_or("error", Event::type_name);
    play(model).await.iter().map(name).collect()
}

async fn answer(model: &Scripted) -> Response {
    fold(open(model).await.unwrap()).await
}

async fn fold(mut stream: ModelStream) -> Response {
    let mut answer = ResponseBuilder::new();
    while let Some(event) = stream.next().await {
        answer.apply(&event.unwrap_or_else(|error| Event::Error { error }));
    }
    answer.response()
}

fn no_script(call: usize, scripts: usize) -> Error {
    Error::adapter(AdapterReason::NoScriptedResponse)
        .with_message(format!(
            "adapter error: no_scripted_response: call {call} and only {scripts} script(s)"
        ))
        .with_provider("scripted")
}
