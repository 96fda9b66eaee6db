//! What nobody knows of an answer reaches whoever wants to see it.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail as tests do"
)]

mod common;

use common::{events, messages};
use mynah_adapters::{
    anthropic::Anthropic,
    format::{Delivery, Format},
    ollama::Ollama,
    openai_chat::OpenAiChat,
    openai_responses::OpenAiResponses,
};
use mynah_data::{Event, Request};
use serde_json::{Value, json};

#[test]
fn messages_pass_on_what_they_do_not_know() {
    let streamed = [
        json!({"type": "message_start", "a": 1, "message": {"id": "m", "type": "message", "role": "assistant", "model": "c", "content": [], "stop_reason": null, "b": 2}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "", "c": 3}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi", "d": 4}, "e": 5}),
        json!({"type": "content_block_stop", "index": 0, "f": 6}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}, "g": 7}}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "h": 8}, "context_management": {"i": 9}}),
        json!({"type": "message_stop"}),
    ];
    assert_eq!(
        raw(&Anthropic::default(), Delivery::Streamed, &messages::body(&streamed)),
        [
            json!({"type": "message", "b": 2}),
            json!({"type": "message_start", "a": 1}),
            json!({"type": "text", "c": 3}),
            json!({"type": "content_block_delta", "d": 4}),
            json!({"type": "content_block_delta", "e": 5}),
            json!({"type": "content_block_stop", "f": 6}),
            json!({"type": "tool_use", "g": 7}),
            json!({"type": "message_delta", "delta": {"h": 8}}),
            json!({"type": "message_delta", "context_management": {"i": 9}}),
        ]
    );
    let whole = json!({
        "id": "m", "type": "message", "role": "assistant", "model": "c", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "hi", "a": 1}, {"type": "novelty", "b": 2}],
        "context_management": {"c": 3},
    });
    assert_eq!(
        raw(&Anthropic::default(), Delivery::Whole, &whole.to_string()),
        [
            json!({"type": "message", "context_management": {"c": 3}}),
            json!({"type": "text", "a": 1}),
            json!({"type": "novelty", "b": 2}),
        ]
    );
}

#[test]
fn responses_pass_on_once_what_they_do_not_know() {
    let message = json!({"type": "message", "id": "m", "role": "assistant", "status": "completed", "a": 1, "content": [
        {"type": "output_text", "text": "hi", "annotations": [], "logprobs": [{"token": "hi"}], "b": 2},
    ]});
    let call = json!({"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}", "status": "completed", "d": 4});
    let reply =
        json!({"id": "r", "model": "m", "status": "completed", "output": [message, call], "e": 5});
    let expected = [
        json!({"type": "annotations", "logprobs": [{"token": "hi"}], "b": 2}),
        json!({"type": "message", "a": 1}),
        json!({"type": "function_call", "d": 4}),
        json!({"type": "response", "e": 5}),
    ];
    let format = OpenAiResponses::default();
    assert_eq!(raw(&format, Delivery::Whole, &reply.to_string()), expected);
    let begun = json!({"id": "r", "model": "m", "status": "in_progress", "output": [], "e": 5});
    let done = |index: u64, item: &Value| json!({"type": "response.output_item.done", "output_index": index, "item": item});
    let streamed = [
        json!({"type": "response.created", "response": begun}),
        json!({"type": "response.in_progress", "response": begun}),
        done(0, &message),
        done(1, &call),
        json!({"type": "response.completed", "response": reply}),
    ];
    let [texts, message, call, response] = expected;
    assert_eq!(
        raw(&format, Delivery::Streamed, &messages::body(&streamed)),
        [response, texts, message, call]
    );
}

#[test]
fn ollama_passes_on_what_it_does_not_know() {
    let line = json!({
        "model": "q", "done": true, "done_reason": "stop", "a": 1,
        "message": {"content": "hi", "b": 2, "tool_calls": [
            {"c": 3, "function": {"index": 0, "name": "f", "arguments": {}, "d": 4}},
        ]},
    });
    for delivery in [Delivery::Streamed, Delivery::Whole] {
        assert_eq!(
            raw(&Ollama::default(), delivery, &line.to_string()),
            [json!({"a": 1, "message": {"b": 2, "tool_calls": [{"c": 3, "d": 4}]}})]
        );
    }
}

#[cfg(feature = "bedrock")]
#[test]
fn converse_passes_on_what_it_does_not_know() {
    let whole = json!({
        "output": {"a": 1, "message": {"role": "assistant", "b": 2, "content": [
            {"text": "hi", "c": 3},
            {"toolUse": {"toolUseId": "t", "name": "f", "input": {}, "d": 4}},
        ]}},
        "stopReason": "tool_use",
    });
    assert_eq!(
        raw(&mynah_adapters::bedrock::Bedrock::default(), Delivery::Whole, &whole.to_string()),
        [
            json!({"c": 3}),
            json!({"toolUse": {"d": 4}}),
            json!({"output": {"a": 1, "message": {"b": 2}}}),
        ]
    );
}

#[test]
fn what_is_nested_too_deep_is_passed_on_as_it_is_written() {
    let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
    let chat = format!(
        r#"{{"model":"m","novelty":{deep},"choices":[{{"index":0,"delta":{{"content":"hi"}},"finish_reason":"stop"}}]}}"#
    );
    let chat = format!("data: {chat}\n\ndata: [DONE]\n\n");
    let told = raw(&OpenAiChat::default(), Delivery::Streamed, &chat);
    assert_eq!(told, [json!({"novelty": deep})]);
    let line = format!(r#"{{"model":"q","done":true,"message":{{"content":"hi"}},"a":{deep}}}"#);
    assert_eq!(raw(&Ollama::default(), Delivery::Streamed, &line), [json!({"a": deep})]);
}

/// What was passed on of a body.
fn raw(format: &dyn Format, delivery: Delivery, body: &str) -> Vec<Value> {
    let (told, read) = events(format, &Request::from("hi"), delivery, [body.as_bytes()]);
    assert_eq!(read, Ok(()));
    let raw = told.into_iter().filter_map(|event| match event {
        Event::RawChunk { chunk } => Some(chunk),
        _ => None,
    });
    raw.collect()
}
