//! Unknown members of an answer reach callers that want them.

use mynah_adapters::{
    anthropic::Anthropic,
    format::{Delivery, Format},
    gemini::Gemini,
    ollama::Ollama,
    openai_chat::OpenAiChat,
    openai_responses::OpenAiResponses,
};
use mynah_data::{Event, Request};
use serde_json::{Value, json};

use crate::common::{events as events_of, messages};

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
fn pieces_are_passed_on_each_time_and_what_chunks_repeat_once() {
    let likely = json!({"content": [{"token": "ha", "logprob": 0.0}]});
    let chat = json!({"model": "m", "a": 1, "choices": [
        {"index": 0, "delta": {"content": "ha", "audio": {"data": "AAAA"}}, "logprobs": likely,
         "content_filter_results": {"hate": {"filtered": false}}},
    ]});
    let piece = json!({"choices": [{"logprobs": likely, "delta": {"audio": {"data": "AAAA"}}}]});
    let gemini = json!({"modelVersion": "m", "a": 1, "candidates": [
        {"content": {"parts": [{"text": "ha"}]}, "logprobsResult": {"chosenCandidates": [0]},
         "safetyRatings": [{"probability": "LOW"}]},
    ]});
    let candidate = json!({"candidates": [{"logprobsResult": {"chosenCandidates": [0]}}]});
    let [(openai, _, in_chat), _, _, (google, _, in_gemini), _] = formats();
    for (format, chunk, end, piece, (list, repeated)) in [
        (openai, chat, in_chat, piece, ("choices", "content_filter_results")),
        (google, gemini, in_gemini, candidate, ("candidates", "safetyRatings")),
    ] {
        let mut changed = chunk.clone();
        changed["a"] = json!(2);
        let chunks = [&chunk, &chunk, &changed, &changed].map(Value::to_string);
        let with = |a: u8| {
            let mut piece = piece.clone();
            piece["a"] = json!(a);
            piece
        };
        let told =
            raw(&*format, Delivery::Streamed, &body(&*format, [chunks.join("\n\ndata: "), end]));
        let mut first = with(1);
        first[list][0][repeated] = chunk[list][0][repeated].clone();
        assert_eq!(told, [first, piece.clone(), with(2), piece]);
    }
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

#[test]
fn an_unknown_event_that_is_nested_too_deep_fails_no_call() {
    let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
    for (format, member, answer) in formats() {
        let event = format!(r#"{{"type":"novelty","a":1,"{member}":{deep}}}"#);
        let mut expected = json!({"type": "novelty", "a": 1});
        expected[member] = deep.as_str().into();
        let told = raw(&*format, Delivery::Streamed, &body(&*format, [event, answer]));
        assert_eq!(told.first(), Some(&expected), "{member}");
    }
}

#[test]
fn other_choices_may_be_nested_too_deep() {
    let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
    let chat = format!(r#"{{"choices":[{{"index":1,"delta":{{"content":{deep}}}}}]}}"#);
    let gemini =
        format!(r#"{{"candidates":[{{"index":1,"content":{{"parts":[{{"text":{deep}}}]}}}}]}}"#);
    let [(openai, _, in_chat), _, _, (google, _, in_gemini), _] = formats();
    for (format, member, other, answer) in
        [(openai, "choices", chat, in_chat), (google, "candidates", gemini, in_gemini)]
    {
        let told = raw(&*format, Delivery::Streamed, &body(&*format, [other.clone(), answer]));
        let written = &other[other.find('[').unwrap()..other.len() - 1];
        assert_eq!(told.first(), Some(&json!({member: written})));
    }
}

#[test]
fn what_is_needed_and_nested_too_deep_fails_the_call() {
    let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
    let events = [
        format!(r#"{{"choices":[{{"index":0,"delta":{{"content":{deep}}}}}]}}"#),
        format!(r#"{{"type":"response.output_text.delta","item_id":"m","delta":{deep}}}"#),
        format!(
            r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":{deep}}}}}"#
        ),
        format!(r#"{{"candidates":[{{"content":{{"parts":[{{"text":{deep}}}]}}}}]}}"#),
        format!(r#"{{"message":{{"content":{deep}}}}}"#),
    ];
    for ((format, _, answer), event) in formats().into_iter().zip(events) {
        let body = body(&*format, [event.clone(), answer]);
        let (_, read) =
            events_of(&*format, &Request::from("hi"), Delivery::Streamed, [body.as_bytes()]);
        let error = read.expect_err(&event[..40]);
        assert_eq!(error.reason(), "malformed_response", "{error}");
    }
}

#[test]
fn an_error_keeps_its_words_where_something_beside_them_is_nested_too_deep() {
    let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
    let event = format!(
        r#"{{"type":"error","error":{{"message":"slow down","code":429}},"trace":{deep}}}"#
    );
    for (format, member, _) in formats() {
        let body = body(&*format, [event.clone()]);
        let (_, read) =
            events_of(&*format, &Request::from("hi"), Delivery::Streamed, [body.as_bytes()]);
        let error = read.expect_err(member);
        assert_eq!(
            (error.reason(), error.message().into_owned().as_str()),
            ("rate_limited", "slow down")
        );
    }
}

#[test]
fn messages_take_unknown_members_that_are_nested_too_deep() {
    let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
    let streamed = messages::body(&[
        json!({"type": "message_start", "message": {"id": "m", "model": "c", "a": "DEEP", "usage": {"input_tokens": 1, "b": "DEEP"}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "novelty", "c": "DEEP"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
        json!({"type": "message_stop"}),
    ]);
    let whole = json!({
        "id": "m", "model": "c", "stop_reason": "end_turn", "a": "DEEP",
        "content": [{"type": "novelty", "c": "DEEP"}],
    });
    for (delivery, body) in [(Delivery::Streamed, streamed), (Delivery::Whole, whole.to_string())] {
        let body = body.replace("\"DEEP\"", &deep);
        assert_eq!(
            raw(&Anthropic::default(), delivery, &body),
            [json!({"type": "message", "a": deep}), json!({"type": "novelty", "c": deep})]
        );
    }
}

/// Every format over text, a member that its reader asks for, and an answer of one event or line.
fn formats() -> [(Box<dyn Format>, &'static str, String); 5] {
    let chat =
        json!({"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]});
    let chat = format!("{chat}\n\ndata: [DONE]");
    let reply = json!({"id": "r", "status": "completed", "output": [
        {"type": "message", "content": [{"type": "output_text", "text": "hi"}]},
    ]});
    let responses = json!({"type": "response.completed", "response": reply});
    let stop = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}});
    let messages = format!("{stop}\n\ndata: {}", json!({"type": "message_stop"}));
    let gemini =
        json!({"candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}]});
    let ollama = json!({"model": "q", "done": true, "message": {"content": "hi"}});
    [
        (Box::new(OpenAiChat::default()), "id", chat),
        (Box::new(OpenAiResponses::default()), "delta", responses.to_string()),
        (Box::new(Anthropic::default()), "index", messages),
        (Box::new(Gemini::default()), "responseId", gemini.to_string()),
        (Box::new(Ollama::default()), "done_reason", ollama.to_string()),
    ]
}

/// A body of these events.
fn body(format: &dyn Format, events: impl IntoIterator<Item = String>) -> String {
    let is_lines = format.framer().begins_with_json();
    let framed = |event| if is_lines { format!("{event}\n") } else { format!("data: {event}\n\n") };
    events.into_iter().map(framed).collect()
}

/// What was passed on of a body.
fn raw(format: &dyn Format, delivery: Delivery, body: &str) -> Vec<Value> {
    let (told, read) = events_of(format, &Request::from("hi"), delivery, [body.as_bytes()]);
    assert_eq!(read, Ok(()));
    let raw = told.into_iter().filter_map(|event| match event {
        Event::RawChunk { chunk } => Some(chunk),
        _ => None,
    });
    raw.collect()
}
