//! Answers of Chat Completions.

use mynah_adapters::{format::Delivery, openai_chat::OpenAiChat};
use mynah_data::{Error, Request, Response};
use serde_json::{Value, json};

use super::{events, folded, sse, streamed};

pub fn read(body: &str) -> Response {
    folded(&streamed(&OpenAiChat::default(), body))
}

pub fn failed(body: &str) -> Error {
    let (_, read) =
        events(&OpenAiChat::default(), &Request::from("hi"), Delivery::Streamed, [body.as_bytes()]);
    read.unwrap_err()
}

/// A stream of these deltas that stops for this reason.
pub fn answer(deltas: &[Value], reason: &str) -> String {
    let said = deltas
        .iter()
        .map(|delta| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]}));
    let finish = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]});
    body(&said.chain([finish]).collect::<Vec<_>>())
}

pub fn body(chunks: &[Value]) -> String {
    let chunks: Vec<String> = chunks.iter().map(Value::to_string).collect();
    sse(chunks.iter().map(String::as_str).chain(["[DONE]"]))
}
