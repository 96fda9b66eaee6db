//! Answers of Responses.

use mynah_adapters::{format::Delivery, openai_responses::OpenAiResponses};
use mynah_data::{Error, Event, Request, Response};
use serde_json::{Value, json};

use super::{events, folded, sse, streamed};

pub fn completed(output: Value) -> Value {
    json!({"type": "response.completed", "response": reply("completed", json!({"output": output}))})
}

pub fn reply(status: &str, rest: Value) -> Value {
    let mut reply = json!({"id": "resp_1", "object": "response", "model": "m1", "status": status, "temperature": 1.0, "tools": [{"type": "function"}]});
    reply.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    reply
}

pub fn raw(events: &[Event]) -> Vec<Value> {
    let raw = events.iter().filter_map(|event| match event {
        Event::RawChunk { chunk } => Some(chunk.clone()),
        _ => None,
    });
    raw.collect()
}

pub fn read(body: &str) -> Response {
    folded(&streamed(&OpenAiResponses::default(), body))
}

pub fn whole(body: &Value) -> (Vec<Event>, Result<(), Error>) {
    let body = body.to_string();
    events(&OpenAiResponses::default(), &Request::from("hi"), Delivery::Whole, [body.as_bytes()])
}

pub fn told(body: &str) -> (Vec<Event>, Result<(), Error>) {
    let bytes = [body.as_bytes()];
    events(&OpenAiResponses::default(), &Request::from("hi"), Delivery::Streamed, bytes)
}

pub fn body(told: &[Value]) -> String {
    let told: Vec<String> = told.iter().map(Value::to_string).collect();
    sse(told.iter().map(String::as_str))
}
