//! Answers of Converse, as the documentation writes them.

use mynah_adapters::{
    bedrock::{Bedrock, EventStreamFramer},
    format::Delivery,
    sse::Framer,
};
use mynah_data::{
    AdapterReason, Error, ErrorKind, Event, FinishReason, Part, Request, Response, ToolCall,
};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use crate::{
    common::{events, folded},
    frames,
};

#[test]
fn blocks_are_told_in_their_order_with_what_must_go_back() {
    let body = answer(
        &[
            delta(0, json!({"reasoningContent": {"text": "hm"}})),
            delta(0, json!({"reasoningContent": {"signature": "sig"}})),
            stop(0),
            delta(1, json!({"reasoningContent": {"redactedContent": "/w=="}})),
            delta(1, json!({"reasoningContent": {"redactedContent": "AAE="}})),
            stop(1),
            delta(2, json!({"text": "Hel"})),
            delta(2, json!({"text": "lo"})),
            stop(2),
            start(3, json!({"toolUse": {"toolUseId": "t", "name": "f"}})),
            delta(3, json!({"toolUse": {"input": "{\"q\""}})),
            delta(3, json!({"toolUse": {"input": ": 1}"}})),
            stop(3),
        ],
        "tool_use",
    );
    let events = told(&body);
    let names: Vec<&str> = events.iter().map(Event::type_name).collect();
    assert_eq!(
        names,
        [
            "message_started",
            "reasoning_delta",
            "reasoning_completed",
            "reasoning_completed",
            "text_delta",
            "text_delta",
            "text_completed",
            "tool_call_started",
            "tool_call_delta",
            "tool_call_delta",
            "tool_call_completed",
            "usage",
            "message_completed",
        ]
    );
    let response = folded(&events);
    let expected = [
        Part::Reasoning {
            text: "hm".to_owned(),
            signature: Some("sig".to_owned()),
            redacted: false,
            data: None,
        },
        Part::Reasoning {
            text: String::new(),
            signature: None,
            redacted: true,
            data: Some(json!({"redactedContent": "/wAB"})),
        },
        Part::text("Hello"),
        Part::tool_call(ToolCall::new("t", "f", "{\"q\": 1}")),
    ];
    assert_eq!(response.message.parts(), expected);
    assert_eq!(response.model.as_deref(), Some("asked"), "the provider does not name it");
}

#[test]
fn reasoning_and_text_that_share_an_index_are_told_apart() {
    let body = answer(
        &[
            delta(0, json!({"text": "Well: "})),
            delta(0, json!({"reasoningContent": {"text": "hm"}})),
            delta(0, json!({"reasoningContent": {"signature": "sig"}})),
            delta(0, json!({"text": "yes"})),
            stop(0),
        ],
        "end_turn",
    );
    let expected = [
        Part::text("Well: "),
        Part::Reasoning {
            text: "hm".to_owned(),
            signature: Some("sig".to_owned()),
            redacted: false,
            data: None,
        },
        Part::text("yes"),
    ];
    assert_eq!(read(&body).message.parts(), expected);
}

#[test]
fn an_answer_may_come_whole() {
    let body = json!({
        "output": {"message": {"role": "assistant", "content": [
            {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "sig"}}},
            {"reasoningContent": {"redactedContent": "/wAB"}},
            {"text": "a"},
            {"citationsContent": {"content": [{"text": "b"}], "citations": [{"title": "t"}]}},
            {"toolUse": {"toolUseId": "t", "name": "f", "input": {"q": 1}}},
            {"toolUse": {"toolUseId": "u", "name": "f", "input": "{\"q\":2}"}},
        ]}},
        "stopReason": "tool_use",
        "usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3},
        "metrics": {"latencyMs": 1},
        "trace": {"guardrail": {"actionReason": "none"}},
    });
    // As the model wrote it.
    let body = body.to_string().replace(r#"{"q":1}"#, r#"{ "q": 1.50e3 }"#);
    let (events, read) = read_whole(&body);
    assert_eq!(read, Ok(()));
    let response = folded(&events);
    assert_eq!(response.text(), "ab");
    assert_eq!(
        response.tool_calls().cloned().collect::<Vec<_>>(),
        [ToolCall::new("t", "f", "{ \"q\": 1.50e3 }"), ToolCall::new("u", "f", "{\"q\":2}")]
    );
    assert_eq!(response.message.parts().len(), 6);
    assert_eq!(
        raw(&events),
        [
            json!({"citationsContent": {"content": [{"text": "b"}], "citations": [{"title": "t"}]}}),
            json!({"trace": {"guardrail": {"actionReason": "none"}}}),
        ]
    );
    for body in ["{}", "nonsense", r#"{"output": {}}"#] {
        let error = read_whole(body).1.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse));
    }
}

#[test]
fn each_stop_reason_has_its_meaning() {
    use FinishReason::*;
    for (reason, expected) in [
        ("end_turn", Stop),
        ("stop_sequence", Stop),
        ("max_tokens", Length),
        ("model_context_window_exceeded", Length),
        ("tool_use", ToolCalls),
        ("guardrail_intervened", ContentFilter),
        ("content_filtered", ContentFilter),
        ("malformed_tool_use", Error),
        ("malformed_model_output", Error),
        ("novelty", Other),
    ] {
        let response = read(&answer(&[], reason));
        assert_eq!(
            (response.finish_reason, response.raw_finish_reason.as_deref()),
            (Some(expected), Some(reason))
        );
    }
}

#[test]
fn usage_counts_the_whole_prompt() {
    let usage = json!({
        "inputTokens": 10, "outputTokens": 5, "totalTokens": 21, "cacheReadInputTokens": 4,
        "cacheWriteInputTokens": 2, "serverToolUsage": {"searches": 1},
        "cacheDetails": [{"ttl": "1h", "inputTokens": 2}],
    });
    let lines = [
        r#"messageStop {"stopReason": "end_turn"}"#.to_owned(),
        format!("metadata {}", json!({"usage": usage, "p": "abc"})),
    ];
    let usage = read(&framed(&lines)).usage;
    assert_eq!(
        (usage.input_tokens, usage.cached_input_tokens, usage.cache_write_tokens),
        (Some(16), Some(4), Some(2))
    );
    assert_eq!((usage.output_tokens, usage.total_tokens), (Some(5), Some(21)));
    assert_eq!(usage.tool_usage["searches"], 1);
    assert_eq!(usage.extra["cacheDetails"][0]["ttl"], "1h");
}

#[test]
fn an_exception_has_its_reason() {
    use AdapterReason::*;
    for (kind, expected) in [
        ("throttlingException", RateLimited),
        ("internalServerException", ProviderUnavailable),
        ("modelStreamErrorException", ProviderUnavailable),
        ("serviceUnavailableException", ProviderUnavailable),
        ("validationException", InvalidRequest),
        ("noveltyException", ProviderUnavailable),
    ] {
        let body = framed(&[
            delta(0, json!({"text": "Hel"})),
            format!("!{kind} {}", json!({"message": "m"})),
        ]);
        let error = failed(&body);
        assert_eq!(
            (error.kind(), error.message().into_owned().as_str()),
            (ErrorKind::Adapter(expected), "m")
        );
    }
    let unmodelled = frames::frame(
        &[
            (":message-type", "error"),
            (":error-code", "throttlingException"),
            (":error-message", "m"),
        ],
        b"",
    );
    assert_eq!(failed(&unmodelled).kind(), ErrorKind::Adapter(RateLimited));
}

#[test]
fn what_is_not_known_is_passed_on() {
    let foreign = json!({"toolUse": {"toolUseId": "t", "name": "web", "type": "server_tool_use"}});
    let lines = [
        start(0, foreign.clone()),
        delta(0, json!({"toolUse": {"input": "{}"}})),
        stop(0),
        delta(1, json!({"citation": {"title": "t"}})),
        r#"surprise {"a": 1}"#.to_owned(),
        r#"messageStop {"stopReason": "end_turn", "additionalModelResponseFields": {"b": 1}}"#
            .to_owned(),
        r#"metadata {"usage": {}, "trace": {"c": 1}}"#.to_owned(),
    ];
    let events = told(&framed(&lines));
    assert_eq!(
        raw(&events),
        [
            json!({"contentBlockStart": {"start": foreign, "contentBlockIndex": 0}}),
            json!({"contentBlockDelta": {"delta": {"toolUse": "{}"}, "contentBlockIndex": 0}}),
            json!({"contentBlockDelta": {"delta": {"citation": {"title": "t"}}, "contentBlockIndex": 1}}),
            json!({"surprise": {"a": 1}}),
            json!({"messageStop": {"additionalModelResponseFields": {"b": 1}}}),
            json!({"metadata": {"trace": {"c": 1}}}),
        ]
    );
    assert_eq!(folded(&events).tool_calls().count(), 0, "they are not ours to answer");
}

#[test]
fn what_is_not_needed_may_be_nested_too_deep() {
    let deep = format!("{}1{}", "[".repeat(1000), "]".repeat(1000));
    let lines = |event: &str| [format!(r#"{event} {{"a":1,"contentBlockIndex":{deep}}}"#)];
    assert_eq!(
        raw(&told(&answer(&lines("novelty"), "end_turn"))),
        [json!({"novelty": {"a": 1, "contentBlockIndex": deep}})]
    );
    let needed = failed(&answer(&lines("contentBlockDelta"), "end_turn"));
    assert_eq!(needed.kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse));
    let exception = format!(r#"!throttlingException {{"message":"slow down","trace":{deep}}}"#);
    assert_eq!(failed(&framed(&[exception])).message(), "slow down");
    let whole = format!(
        r#"{{"output":{{"message":{{"content":[{{"text":"hi"}}]}}}},"stopReason":"end_turn","a":{deep}}}"#
    );
    let (events, read) = read_whole(&whole);
    assert_eq!(read, Ok(()));
    assert_eq!((folded(&events).text(), raw(&events)), ("hi".into(), vec![json!({"a": deep})]));
}

#[test]
fn a_body_is_cut_anywhere_and_whole_only_at_its_end() {
    let body = answer(&[delta(0, json!({"text": "wörld 🐦"})), stop(0)], "end_turn");
    let whole = told(&body);
    for at in 0..=body.len() {
        let (first, second) = body.split_at(at);
        assert_eq!(read_pieces([first, second]), (whole.clone(), Ok(())), "cut at {at}");
    }
    for kept in 0..body.len() {
        let error = read_pieces([&body[..kept]]).1.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::NetworkError), "{kept} bytes");
    }
}

#[test]
fn a_frame_that_was_tampered_with_or_is_too_large_is_an_error() {
    let frame = frames::stream([r#"messageStart {"role": "assistant"}"#]);
    for place in 0..frame.len() {
        let mut body = frame.clone();
        body[place] ^= 1;
        let mut framer = EventStreamFramer::with_limit(1 << 10);
        let read =
            framer.push(&body, &mut |_| Ok(())).and_then(|()| framer.finish(&mut |_| Ok(())));
        assert_eq!(read.unwrap_err().reason(), "malformed_response", "byte {place}");
    }
    let mut framer = EventStreamFramer::with_limit(frame.len() - 1);
    assert_eq!(framer.push(&frame, &mut |_| Ok(())).unwrap_err().reason(), "malformed_response");
}

proptest! {
    #[test]
    fn no_bytes_are_too_odd(bytes in vec(any::<u8>(), 0..200), zeros in 0..8usize) {
        let body = [vec![0; zeros], bytes].concat();
        folded(&read_pieces([body.as_slice()]).0);
    }

    #[test]
    fn no_event_is_too_odd(lines in vec(odd_line(), 0..8)) {
        folded(&read_pieces([framed(&lines).as_slice()]).0);
    }
}

/// Events of the right names with the wrong things in them.
fn odd_line() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        "messageStart",
        "contentBlockStart",
        "contentBlockDelta",
        "contentBlockStop",
        "messageStop",
        "metadata",
        "novelty",
    ];
    let odd =
        || prop_oneof![Just(json!(null)), Just(json!("x")), Just(json!(5)), Just(json!({"y": []}))];
    let kind = prop_oneof!["text", "toolUse", "reasoningContent", "novelty"];
    (name, 0..2u64, kind, odd(), odd()).prop_map(|(name, index, kind, odd, other)| {
        let mut block = json!({});
        block[kind.as_str()] = match kind.as_str() {
            "text" | "novelty" => odd.clone(),
            _ => json!({"toolUseId": odd, "name": "n", "input": other, "text": odd, "redactedContent": other}),
        };
        let event = json!({
            "contentBlockIndex": index, "start": block, "delta": block, "stopReason": odd, "usage": other,
        });
        format!("{name} {event}")
    })
}

fn start(index: u64, start: Value) -> String {
    format!("contentBlockStart {}", json!({"contentBlockIndex": index, "start": start, "p": "ab"}))
}

fn delta(index: u64, delta: Value) -> String {
    format!("contentBlockDelta {}", json!({"contentBlockIndex": index, "delta": delta, "p": "a"}))
}

fn stop(index: u64) -> String {
    format!("contentBlockStop {}", json!({"contentBlockIndex": index, "p": "abc"}))
}

/// A stream of these events that stops for this reason.
fn answer(lines: &[String], reason: &str) -> Vec<u8> {
    let start = r#"messageStart {"role": "assistant", "p": "ab"}"#.to_owned();
    let end = format!("messageStop {}", json!({"stopReason": reason, "p": "a"}));
    let lines = [&[start], lines, &[end]].concat();
    [framed(&lines), metadata()].concat()
}

fn metadata() -> Vec<u8> {
    let usage = json!({"usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}});
    framed(&[format!("metadata {usage}")])
}

fn framed(lines: &[String]) -> Vec<u8> {
    frames::stream(lines.iter().map(String::as_str))
}

fn read_pieces<'b>(pieces: impl IntoIterator<Item = &'b [u8]>) -> (Vec<Event>, Result<(), Error>) {
    let request = Request::from("hi").with_model("asked");
    events(&Bedrock::default(), &request, Delivery::Streamed, pieces)
}

fn read_whole(body: &str) -> (Vec<Event>, Result<(), Error>) {
    events(&Bedrock::default(), &Request::from("hi"), Delivery::Whole, [body.as_bytes()])
}

fn told(body: &[u8]) -> Vec<Event> {
    let (events, read) = read_pieces([body]);
    assert_eq!(read, Ok(()));
    events
}

fn read(body: &[u8]) -> Response {
    folded(&told(body))
}

fn failed(body: &[u8]) -> Error {
    read_pieces([body]).1.unwrap_err()
}

fn raw(events: &[Event]) -> Vec<Value> {
    let raw = events.iter().filter_map(|event| match event {
        Event::RawChunk { chunk } => Some(chunk.clone()),
        _ => None,
    });
    raw.collect()
}
