//! Answers of Messages.

use mynah_adapters::{anthropic::Anthropic, format::Delivery};
use mynah_data::{Request, Response};
use serde_json::{Value, json};

use super::{events, folded, sse, streamed};

pub fn read(body: &str) -> Response {
    folded(&streamed(&Anthropic::default(), body))
}

pub fn read_whole(answer: &Value) -> Response {
    let (request, body) = (Request::from("hi"), answer.to_string());
    let (told, read) = events(&Anthropic::default(), &request, Delivery::Whole, [body.as_bytes()]);
    assert_eq!(read, Ok(()));
    folded(&told)
}

pub fn text(piece: &str) -> Value {
    json!({"type": "text_delta", "text": piece})
}

pub fn input(piece: &str) -> Value {
    json!({"type": "input_json_delta", "partial_json": piece})
}

/// A stream of these blocks, each with its deltas, that stops for this reason.
pub fn answer(blocks: &[(Value, Vec<Value>)], reason: &str) -> String {
    let mut messages = Vec::new();
    for (index, (block, deltas)) in blocks.iter().enumerate() {
        messages
            .push(json!({"type": "content_block_start", "index": index, "content_block": block}));
        messages.extend(
            deltas.iter().map(
                |delta| json!({"type": "content_block_delta", "index": index, "delta": delta}),
            ),
        );
        messages.push(json!({"type": "content_block_stop", "index": index}));
    }
    around(&messages, reason)
}

/// A stream of these events, with a beginning and an end.
pub fn around(events: &[Value], reason: &str) -> String {
    let usage = json!({"input_tokens": 3, "output_tokens": 1});
    let start =
        [json!({"type": "message_start", "message": {"id": "m", "model": "c", "usage": usage}})];
    let end = [
        json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 2}}),
        json!({"type": "message_stop"}),
    ];
    body(&[start.as_slice(), events, &end].concat())
}

pub fn body(messages: &[Value]) -> String {
    let messages: Vec<String> = messages.iter().map(Value::to_string).collect();
    sse(messages.iter().map(String::as_str))
}
