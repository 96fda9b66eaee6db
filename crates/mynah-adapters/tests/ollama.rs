//! Ollama's own format, as its documentation and its servers write it.

use mynah_adapters::{
    format::{Delivery, Format},
    ollama::Ollama,
};
use mynah_data::{
    AdapterReason, Error, ErrorKind, Event, FinishReason, Image, Message, Metadata, Part, Request,
    Response, ResponseFormat, ToolCall, ToolChoice, ToolSpec, Usage,
};
use mynah_step::ModelCall;
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use crate::common::{events, folded, streamed};

/// `think value "low" is not supported for this model`
#[test]
fn effort_says_whether_to_think_and_how_much_where_there_are_levels() {
    let sent = |model: &str, options: Value| {
        let options = options.as_object().unwrap().clone();
        let request = Request::from("hi").with_model(model).with_options(options);
        Ollama::default().body(&request, &ModelCall::default()).unwrap()
    };
    for (effort, level, switch) in [
        ("none", json!(false), false),
        ("minimal", json!("low"), true),
        ("medium", json!("medium"), true),
        ("xhigh", json!("high"), true),
        ("max", json!("high"), true),
    ] {
        let effort = json!({"reasoning_effort": effort});
        for (model, expected) in [("gpt-oss:20b", level), ("qwen3:4b", switch.into())] {
            let body = sent(model, effort.clone());
            assert_eq!(
                (&body["think"], body.get("options")),
                (&expected, None),
                "{model} {effort}"
            );
        }
    }
    let own = |options| sent("deepseek-v3.1", options)["think"].clone();
    assert_eq!(own(json!({"think": "max", "reasoning_effort": "low"})), "max");
    assert_eq!(own(json!({"reasoning_effort": "low", "think": false})), false);
}

#[test]
fn a_result_has_the_name_of_the_call_before_it() {
    let round = |tool: &str| {
        let call = Part::tool_call(ToolCall::new("call_1", tool, "{}"));
        [Message::assistant_parts([call]), Message::tool_result("call_1", "found")]
    };
    let sent = body(Request::new([round("search"), round("fetch")].concat()));
    assert_eq!(sent["messages"][1]["tool_name"], "search");
    assert_eq!(sent["messages"][3]["tool_name"], "fetch");
}

#[test]
fn a_question_is_a_model_and_messages_with_the_models_options_aside() {
    let options = json!({
        "top_p": 0.5, "stop": "x", "options": {"num_ctx": 8192}, "keep_alive": "10m", "think": "high", "truncate": false,
    });
    let request = Request::new([Message::system("Be brief."), Message::user("hi")]);
    let request = request.with_options(options.as_object().unwrap().clone());
    assert_eq!(
        body(request.with_temperature(0.5).with_max_tokens(64)),
        json!({
            "model": "qwen3:4b",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
            "stream": true,
            "keep_alive": "10m",
            "think": "high",
            "truncate": false,
            "options": {"temperature": 0.5, "num_predict": 64, "top_p": 0.5, "stop": ["x"], "num_ctx": 8192},
        })
    );
    assert_eq!(body(Request::from("hi")).get("options"), None);
}

#[test]
fn images_go_as_their_bytes_and_addresses_are_refused() {
    let images = [Image::from_binary(*b"hi", "image/png"), Image::from_base64("aGk=", "image/png")];
    let parts = [Part::text("what?")].into_iter().chain(images.map(Part::image));
    assert_eq!(
        body(Request::new([Message::user_parts(parts)]))["messages"],
        json!([{"role": "user", "content": "what?", "images": ["aGk=", "aGk="]}])
    );
    let url = Part::image(Image::from_url("https://example.com/a.png"));
    let error = refused(Request::new([Message::user_parts([url])]));
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::UnsupportedFeature));
}

#[test]
fn tools_calls_results_and_thinking() {
    let calls = Message::assistant_parts([
        Part::reasoning("hm"),
        Part::text("Let me see."),
        Part::tool_call(ToolCall::new("c1", "search", r#"{"q": 1.5}"#)),
        Part::tool_call(ToolCall::new("c2", "now", "")),
    ]);
    let request = Request::new([
        calls,
        Message::tool_result("c1", json!({"n": 1})),
        Message::tool_result("c2", "noon"),
        Message::tool_result("c9", "whose?"),
    ])
    .with_tools([ToolSpec::new("search", "finds", json!({"type": "object"}))]);
    let body = body(request);
    assert_eq!(
        body["tools"],
        json!([{"type": "function", "function": {"name": "search", "description": "finds", "parameters": {"type": "object"}}}])
    );
    assert_eq!(
        body["messages"],
        json!([
            {"role": "assistant", "content": "Let me see.", "thinking": "hm", "tool_calls": [
                {"id": "c1", "function": {"name": "search", "arguments": {"q": 1.5}}},
                {"id": "c2", "function": {"name": "now", "arguments": {}}},
            ]},
            {"role": "tool", "content": "{\"n\":1}", "tool_call_id": "c1", "tool_name": "search"},
            {"role": "tool", "content": "noon", "tool_call_id": "c2", "tool_name": "now"},
            {"role": "tool", "content": "whose?", "tool_call_id": "c9"},
        ])
    );
}

#[test]
fn a_tool_may_be_kept_back_and_cannot_be_demanded() {
    let asked = |choice| {
        Request::from("hi").with_tools([ToolSpec::new("f", "", json!({}))]).with_tool_choice(choice)
    };
    assert!(body(asked(ToolChoice::Auto)).get("tools").is_some());
    assert_eq!(body(asked(ToolChoice::None)).get("tools"), None);
    for choice in [ToolChoice::Required, ToolChoice::Tool("f".to_owned())] {
        let error = refused(asked(choice));
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::UnsupportedFeature));
    }
}

#[test]
fn each_form_of_answer_has_its_form() {
    let schema = json!({"type": "object"});
    let own = Metadata::from_iter([("type".to_owned(), json!("array"))]);
    for (format, expected) in [
        (ResponseFormat::Text, None),
        (ResponseFormat::JsonObject, Some(json!("json"))),
        (ResponseFormat::json_schema("person", schema.clone()), Some(schema)),
        (ResponseFormat::Other(own), Some(json!({"type": "array"}))),
    ] {
        let request = Request::from("hi").with_response_format(format);
        assert_eq!(body(request.clone()).get("format").cloned(), expected);
        assert!(!Ollama::default().needs_structured_finalize(&request));
        let request = request.with_tools([ToolSpec::new("f", "", json!({}))]);
        assert_eq!(Ollama::default().needs_structured_finalize(&request), expected.is_some());
    }
}

#[test]
fn thinking_text_and_calls_come_in_their_order() {
    let response = read(&[
        json!({"message": {"role": "assistant", "content": "", "thinking": "h"}}),
        json!({"message": {"role": "assistant", "content": "", "thinking": "m"}}),
        json!({"message": {"role": "assistant", "content": "So"}}),
        json!({"message": {"role": "assistant", "content": "."}}),
        json!({"message": {"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "f", "arguments": {"x": 1.0, "a": "<"}}},
            {"id": "own", "function": {"index": 1, "name": "g", "arguments": "{}"}},
        ]}}),
        json!({"message": {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "h"}}]}}),
        last("stop"),
    ]);
    assert_eq!(
        response.message.parts(),
        [
            Part::reasoning("hm"),
            Part::text("So."),
            Part::tool_call(ToolCall::new("call_1", "f", r#"{"x":1.0,"a":"<"}"#)),
            Part::tool_call(ToolCall::new("own", "g", "{}")),
            Part::tool_call(ToolCall::new("call_3", "h", "")),
        ]
    );
    assert_eq!(response.finish_reason, Some(FinishReason::ToolCalls));
    assert_eq!((response.id, response.model.as_deref()), (None, Some("qwen3:4b")));
}

#[test]
fn arguments_stay_as_they_are_written() {
    let arguments = r#"{"id":12345678901234567890123,"x":1.10, "y":1e3}"#;
    let call = format!(r#"{{"function":{{"name":"f","arguments":{arguments}}}}}"#);
    let line = format!(r#"{{"message":{{"tool_calls":[{call}]}}}}"#);
    let body = format!("{line}\n{}\n", last("stop"));
    let response = folded(&streamed(&Ollama::default(), &body));
    let call = response.tool_calls().next().unwrap();
    assert_eq!(call.raw_arguments, arguments);
}

#[test]
fn each_reason_to_stop_has_its_meaning() {
    use FinishReason::*;
    for (line, expected, raw) in [
        (last("stop"), Stop, Some("stop")),
        (last("length"), Length, Some("length")),
        (last("load"), Other, Some("load")),
        (last("unload"), Other, Some("unload")),
        (json!({"done": true}), Stop, None),
    ] {
        let response = read(std::slice::from_ref(&line));
        assert_eq!(
            (response.finish_reason, response.raw_finish_reason.as_deref()),
            (Some(expected), raw),
            "{line}"
        );
    }
}

#[test]
fn tokens_and_times_are_counted_at_the_end() {
    let mut expected = Usage::new(11, 7);
    expected.total_tokens = Some(18);
    expected.extra =
        json!({"total_duration": 30, "load_duration": 1}).as_object().unwrap().clone().into();
    assert_eq!(read(&[last("stop")]).usage, expected);
    let mut cached = last("stop");
    cached["prompt_eval_cached_count"] = 9.into();
    let mut expected = expected;
    expected.cached_input_tokens = Some(9);
    assert_eq!(read(&[cached]).usage, expected);
}

#[test]
fn a_server_that_does_not_stream_is_understood() {
    let mut line = last("stop");
    line["message"] = json!({"role": "assistant", "content": "So.", "thinking": "hm"});
    let (events, read) = whole(&line);
    assert_eq!(read, Ok(()));
    let response = folded(&events);
    assert_eq!(response.message.parts(), [Part::reasoning("hm"), Part::text("So.")]);
    assert_eq!(response.usage.output_tokens, Some(7));
    for (body, expected) in [
        (json!({"model": "m"}), AdapterReason::MalformedResponse),
        (
            json!({"error": "the prompt exceeds the context length"}),
            AdapterReason::ContextLengthExceeded,
        ),
    ] {
        assert_eq!(whole(&body).1.unwrap_err().kind(), ErrorKind::Adapter(expected), "{body}");
    }
}

#[test]
fn an_answer_that_fails_or_breaks_off_is_an_error() {
    let said = json!({"model": "m", "message": {"content": "Hel"}, "done": false});
    let failure = json!({"error": "an error was encountered while running the model"});
    for (lines, reason, message) in [
        (
            vec![said.clone(), failure],
            "provider_unavailable",
            "an error was encountered while running the model",
        ),
        (
            vec![said],
            "network_error",
            "adapter error: network_error: the answer broke off before its end",
        ),
    ] {
        let body = body_of(&lines);
        for delivery in [Delivery::Streamed, Delivery::Whole] {
            let (events, read) =
                events(&Ollama::default(), &Request::from("hi"), delivery, [body.as_bytes()]);
            let error = read.unwrap_err();
            assert_eq!((error.reason(), error.message().into_owned().as_str()), (reason, message));
            assert_eq!(folded(&events).text(), "Hel");
        }
    }
}

#[test]
fn what_nobody_knows_is_passed_on() {
    let lines = [
        json!({"message": {"content": "x", "novelty": 1}, "logprobs": [{"token": "x"}], "done": false}),
        json!({"message": {"content": "", "tool_calls": [{"id": "c"}]}, "done": false}),
        json!({"remote_model": "m", "done": true}),
    ];
    let events = streamed(&Ollama::default(), &body_of(&lines));
    let raw: Vec<&Value> = events
        .iter()
        .filter_map(|event| match event {
            Event::RawChunk { chunk } => Some(chunk),
            _ => None,
        })
        .collect();
    assert_eq!(
        raw,
        [
            &json!({"logprobs": [{"token": "x"}], "message": {"novelty": 1}}),
            &json!({"message": {"tool_calls": [{"id": "c"}]}}),
            &json!({"remote_model": "m"}),
        ]
    );
}

proptest! {
    #[test]
    fn no_line_is_too_odd(lines in vec(odd_line(), 0..6)) {
        let body = body_of(&lines);
        let (events, _) = events(&Ollama::default(), &Request::from("hi"), Delivery::Streamed, [body.as_bytes()]);
        folded(&events);
    }
}

/// Lines of the right shape with the wrong things in them.
fn odd_line() -> impl Strategy<Value = Value> {
    let odd = || {
        prop_oneof![
            Just(json!(null)),
            Just(json!(-7)),
            Just(json!("x")),
            Just(json!([])),
            Just(json!({})),
            Just(json!([7, {"function": "f"}, {"function": {"name": 1, "arguments": [2]}}])),
            Just(json!([{"id": 3, "function": {"name": "f", "arguments": "{"}}])),
        ]
    };
    let names = prop_oneof!["content", "thinking", "tool_calls", "images", "novelty"];
    let message =
        vec((names, odd()), 0..4).prop_map(|members| Value::Object(members.into_iter().collect()));
    (message, odd(), odd(), any::<bool>()).prop_map(|(message, model, count, done)| {
        json!({"model": model, "message": message, "done": done, "done_reason": model, "eval_count": count, "total_duration": count})
    })
}

/// The line that ends an answer.
fn last(reason: &str) -> Value {
    json!({
        "model": "qwen3:4b", "created_at": "2026-01-01T00:00:00Z", "message": {"role": "assistant", "content": ""},
        "done": true, "done_reason": reason, "total_duration": 30, "load_duration": 1, "prompt_eval_count": 11, "eval_count": 7,
    })
}

fn read(lines: &[Value]) -> Response {
    let mut lines = lines.to_vec();
    lines[0]["model"] = "qwen3:4b".into();
    folded(&streamed(&Ollama::default(), &body_of(&lines)))
}

fn whole(body: &Value) -> (Vec<Event>, Result<(), Error>) {
    let body = body.to_string();
    events(&Ollama::default(), &Request::from("hi"), Delivery::Whole, [body.as_bytes()])
}

fn body_of(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn body(request: Request) -> Value {
    Ollama::default().body(&request.with_model("qwen3:4b"), &ModelCall::default()).unwrap()
}

fn refused(request: Request) -> Error {
    Ollama::default().body(&request.with_model("qwen3:4b"), &ModelCall::default()).unwrap_err()
}
