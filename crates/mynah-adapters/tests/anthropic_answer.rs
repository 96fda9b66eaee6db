//! Answers of Messages, as the documentation and the gateways in the field write them.

use mynah_adapters::{anthropic::Anthropic, format::Delivery};
use mynah_data::{
    AdapterReason, Error, ErrorKind, Event, FinishReason, Part, Request, ResponseFormat, ToolCall,
};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use crate::common::{
    events, folded,
    messages::{answer, around, body, input, read, read_whole, text},
    sse, streamed,
};

#[test]
fn n13_blocks_are_told_one_after_the_other() {
    let body = answer(
        &[
            (json!({"type": "text", "text": ""}), vec![text("I'll "), text("look.")]),
            (
                json!({"type": "tool_use", "id": "t1", "name": "search", "input": {}}),
                vec![input(""), input("{\"q\""), input(": 1}")],
            ),
        ],
        "tool_use",
    );
    let told: Vec<&str> =
        streamed(&Anthropic::default(), &body).iter().map(Event::type_name).collect();
    assert_eq!(
        told,
        [
            "message_started",
            "usage",
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
    let parts = read(&body).message.parts().to_vec();
    assert_eq!(
        parts,
        [Part::text("I'll look."), Part::tool_call(ToolCall::new("t1", "search", "{\"q\": 1}"))]
    );
}

#[test]
fn blocks_of_text_in_a_row_stay_apart() {
    let block = |said: &str| (json!({"type": "text", "text": said}), vec![]);
    let parts = read(&answer(&[block("a"), block("b")], "end_turn")).message.parts().to_vec();
    assert_eq!(parts, [Part::text("a"), Part::text("b")]);
}

#[test]
fn blocks_with_one_number_stay_apart_too() {
    let block = |said: &str| {
        let start = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
        let delta = json!({"type": "content_block_delta", "index": 0, "delta": text(said)});
        [start, delta, json!({"type": "content_block_stop", "index": 0})]
    };
    let parts = read(&around(&[block("a"), block("b")].concat(), "end_turn")).message;
    assert_eq!(parts.parts(), [Part::text("a"), Part::text("b")]);
}

#[test]
fn words_are_never_lost_for_want_of_a_beginning_or_a_name() {
    let delta = |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    for pieces in [
        vec![delta(0, text("a")), delta(0, text("b"))],
        vec![delta(0, json!({"text": "a"})), delta(0, json!({"text": "b"}))],
        vec![json!({"type": "content_block_start", "index": 0}), delta(0, text("ab"))],
        vec![
            delta(0, json!({"type": "thinking_delta", "thinking": "hm"})),
            delta(0, json!({"signature": "sig"})),
            delta(0, text("ab")),
        ],
        vec![
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": "f"}}),
            delta(0, input("{}")),
            delta(0, text("ab")),
        ],
    ] {
        let response = read(&around(&pieces, "end_turn"));
        assert_eq!(response.text(), "ab", "{pieces:?}");
    }
    let lost = failed(&around(&[delta(0, input("{\"a\": 1}"))], "tool_use"));
    assert_eq!(lost.kind(), ErrorKind::Adapter(AdapterReason::NetworkError));
}

#[test]
fn n12_each_stop_reason_has_its_meaning() {
    use FinishReason::*;
    for (reason, expected) in [
        ("end_turn", Stop),
        ("stop_sequence", Stop),
        ("max_tokens", Length),
        ("model_context_window_exceeded", Length),
        ("tool_use", ToolCalls),
        ("refusal", ContentFilter),
        ("pause_turn", Other),
        ("novelty", Other),
    ] {
        let response = read(&answer(&[], reason));
        assert_eq!(
            (response.finish_reason, response.raw_finish_reason.as_deref()),
            (Some(expected), Some(reason)),
            "{reason}"
        );
    }
}

#[test]
fn what_the_provider_says_of_a_refusal_is_the_refusal_and_what_was_said_before_is_text() {
    let details =
        json!({"type": "refusal", "category": "cyber", "explanation": "It was declined."});
    let said = json!({"type": "text", "text": "Hello.."});
    let streamed = [
        json!({"type": "message_start", "message": {"id": "m", "model": "c"}}),
        json!({"type": "content_block_start", "index": 0, "content_block": said}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "refusal", "stop_details": details}}),
        json!({"type": "message_stop"}),
    ];
    let whole = json!({
        "id": "m", "model": "c", "content": [said], "stop_reason": "refusal", "stop_details": details,
    });
    for (delivery, body) in
        [(Delivery::Streamed, body(&streamed)), (Delivery::Whole, whole.to_string())]
    {
        let (events, read) =
            events(&Anthropic::default(), &Request::from("hi"), delivery, [body.as_bytes()]);
        assert_eq!(read, Ok(()));
        let response = folded(&events);
        let refusal = Part::Refusal { text: "It was declined.".to_owned() };
        assert_eq!(response.message.parts(), [Part::text("Hello.."), refusal]);
        assert_eq!(response.text(), "Hello..");
        assert_eq!(
            (response.finish_reason, response.raw_finish_reason.as_deref()),
            (Some(FinishReason::ContentFilter), Some("refusal"))
        );
        assert_eq!(response.metadata["stop_details"], details);
    }
}

#[test]
fn the_model_that_took_over_is_named_and_has_not_the_price_of_the_one_that_declined() {
    let fallback = json!({"type": "fallback", "from": {"model": "c"}, "to": {"model": "d"}});
    let blocks = [(fallback, vec![]), (json!({"type": "text", "text": ""}), vec![text("Hello.")])];
    let response = read(&answer(&blocks, "end_turn"));
    assert_eq!(response.text(), "Hello.");
    assert_eq!(response.metadata["served_by"], "d");
    let mut usage = response.usage;
    assert_eq!((usage.input_tokens, usage.output_tokens), (Some(3), Some(2)));
    mynah_data::Pricing::new(10.0, 50.0).apply(&mut usage);
    assert_eq!(usage.total_cost, None);
}

#[test]
fn a_pause_keeps_what_must_go_back() {
    let search = json!({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}});
    let found = json!({"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"encrypted_content": "e"}]});
    let body = answer(
        &[(search, vec![input("{\"query\": \"q\"}")]), (found.clone(), vec![])],
        "pause_turn",
    );
    let events = streamed(&Anthropic::default(), &body);
    assert!(matches!(events.last(), Some(Event::MessageCompleted { paused: true, .. })));
    let response = folded(&events);
    let kept: Vec<Value> = response
        .message
        .parts()
        .iter()
        .filter_map(|part| match part {
            Part::Reasoning { data, redacted: false, .. } => data.clone(),
            _ => None,
        })
        .collect();
    assert_eq!(
        kept,
        [
            json!({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}}),
            found
        ]
    );
    assert_eq!(response.tool_calls().count(), 0, "they are not ours to answer");
}

#[test]
fn n14_reasoning_has_its_signature_wherever_it_comes() {
    let late = (
        json!({"type": "thinking", "thinking": "", "signature": ""}),
        vec![
            json!({"type": "thinking_delta", "thinking": "hm"}),
            json!({"type": "signature_delta", "signature": "sig"}),
        ],
    );
    let early = (json!({"type": "thinking", "thinking": "hm", "signature": "sig"}), vec![]);
    let signed = Part::Reasoning {
        text: "hm".to_owned(),
        signature: Some("sig".to_owned()),
        redacted: false,
        data: None,
    };
    for block in [late, early] {
        assert_eq!(
            read(&answer(&[block], "end_turn")).message.parts(),
            std::slice::from_ref(&signed)
        );
    }
    let withheld = (json!({"type": "redacted_thinking", "data": "e"}), vec![]);
    let expected = Part::Reasoning {
        text: String::new(),
        signature: None,
        redacted: true,
        data: Some(json!("e")),
    };
    assert_eq!(read(&answer(&[withheld], "end_turn")).message.parts(), [expected]);
}

#[test]
fn n19_usage_counts_the_whole_prompt_and_the_end_wins() {
    let start = json!({"type": "message_start", "message": {"id": "m", "model": "c", "usage": {
        "input_tokens": 10, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2, "output_tokens": 1,
    }}});
    let stop = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {
        "input_tokens": null, "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 3},
        "server_tool_use": {"web_search_requests": 1},
    }});
    let usage = read(&body(&[start, stop, json!({"type": "message_stop"})])).usage;
    assert_eq!(
        (usage.input_tokens, usage.cached_input_tokens, usage.cache_write_tokens),
        (Some(16), Some(4), Some(2))
    );
    assert_eq!(
        (usage.output_tokens, usage.reasoning_tokens, usage.total_tokens),
        (Some(9), Some(3), Some(25))
    );
    assert_eq!(usage.tool_usage["web_search_requests"], 1);
}

#[test]
fn the_largest_prompt_counts_whichever_end_told_of_it() {
    let input = |first: Value, last: Value| {
        let start =
            json!({"type": "message_start", "message": {"id": "m", "model": "c", "usage": first}});
        let stop =
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": last});
        read(&body(&[start, stop, json!({"type": "message_stop"})])).usage.input_tokens
    };
    let cached = json!({"input_tokens": 7, "cache_read_input_tokens": 3});
    assert_eq!(input(cached.clone(), json!({"input_tokens": 0})), Some(10));
    assert_eq!(input(json!({"input_tokens": 10}), cached), Some(10));
    assert_eq!(input(json!({"input_tokens": 10}), json!({"input_tokens": 40})), Some(40));
}

#[test]
fn a_tool_without_arguments_has_none_unless_the_limit_cut_them_off() {
    let call =
        || [(json!({"type": "tool_use", "id": "t1", "name": "now", "input": {}}), vec![input("")])];
    let arguments = |reason: &str| {
        read(&answer(&call(), reason)).tool_calls().next().unwrap().arguments.clone()
    };
    assert_eq!(arguments("tool_use"), json!({}));
    assert_eq!(arguments("max_tokens"), Value::Null);
}

#[test]
fn n09_n10_the_answer_that_a_tool_was_made_for_is_text() {
    let request = Request::from("hi")
        .with_model("claude-3-haiku-20240307")
        .with_response_format(ResponseFormat::json_schema("count", json!({"type": "object"})));
    let call =
        json!({"type": "tool_use", "id": "t1", "name": "respond_with_json_count", "input": {}});
    let stream = answer(&[(call, vec![input("{\"n\""), input(": 1}")])], "tool_use");
    let (told, read) =
        events(&Anthropic::default(), &request, Delivery::Streamed, [stream.as_bytes()]);
    assert_eq!(read, Ok(()));
    let response = folded(&told);
    assert_eq!(
        (response.text().as_ref(), response.finish_reason),
        ("{\"n\": 1}", Some(FinishReason::Stop))
    );
    assert_eq!(response.tool_calls().count(), 0);
    assert_eq!(response.metadata["structured_output_tool"], true);
    assert!(!told.iter().any(|event| event.type_name().starts_with("tool_call")));
    let whole = json!({"type": "message", "id": "m", "model": "c", "stop_reason": "tool_use", "content": [
        {"type": "tool_use", "id": "t1", "name": "respond_with_json_count", "input": {"n": 1}},
    ]});
    let (told, read) =
        events(&Anthropic::default(), &request, Delivery::Whole, [whole.to_string().as_bytes()]);
    assert_eq!(read, Ok(()));
    assert_eq!(folded(&told).text(), "{\"n\":1}");
}

#[test]
fn the_answer_that_a_tool_was_made_for_stands_alone_and_may_be_empty() {
    let request = Request::from("hi")
        .with_model("claude-3-haiku-20240307")
        .with_response_format(ResponseFormat::json_schema("count", json!({"type": "object"})));
    let sure = (json!({"type": "text", "text": ""}), vec![text("Su"), text("re")]);
    let form = |pieces: &[&str]| {
        let call =
            json!({"type": "tool_use", "id": "t", "name": "respond_with_json_count", "input": {}});
        (call, pieces.iter().map(|piece| input(piece)).collect())
    };
    for (blocks, reason, expected) in [
        (vec![sure.clone(), form(&["{\"n\"", ":1}"])], "tool_use", "{\"n\":1}"),
        (vec![sure.clone(), form(&[""])], "tool_use", "{}"),
        (vec![form(&[])], "max_tokens", ""),
        (vec![sure], "end_turn", "Sure"),
    ] {
        let stream = answer(&blocks, reason);
        let (told, read) =
            events(&Anthropic::default(), &request, Delivery::Streamed, [stream.as_bytes()]);
        assert_eq!((folded(&told).text().as_ref(), read), (expected, Ok(())));
    }
}

#[test]
fn gateways_are_understood() {
    // Nulls at the beginning, no space after the colon, an end that another format would use.
    let gateway = concat!(
        "event:message_start\ndata:{\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"model\":\"c\",\"content\":null,\"usage\":{\"input_tokens\":0,\"output_tokens\":null}}}\n\n",
        "event:content_block_start\ndata:{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
        "event:content_block_delta\ndata:{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\n",
        "event:message_delta\ndata:{\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"input_tokens\":5,\"output_tokens\":2}}\n\n",
        "event: data\ndata: [DONE]\n\n",
    );
    let response = read(gateway);
    assert_eq!((response.text().as_ref(), response.usage.input_tokens), ("hi", Some(5)));
    let untyped = [(json!({"text": "h"}), vec![text("i")])];
    assert_eq!(read(&answer(&untyped, "end_turn")).message.parts(), [Part::text("hi")]);
    let pinged = answer(&[], "end_turn") + "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    assert_eq!(read(&pinged).finish_reason, Some(FinishReason::Stop));
    let unended = answer(&[], "end_turn");
    assert_eq!(
        read(unended.trim_end()).finish_reason,
        Some(FinishReason::Stop),
        "no blank line at the end"
    );
    assert_eq!(failed(&sse(["[DONE]"])).kind(), ErrorKind::Adapter(AdapterReason::NetworkError));
}

#[test]
fn blocks_that_nobody_closed_are_complete_at_the_end_and_names_may_stand_in_the_frame_alone() {
    let unclosed = concat!(
        "event: message_start\ndata: {\"message\":{\"id\":\"m\",\"model\":\"c\"}}\n\n",
        "event: content_block_start\ndata: {\"index\":0,\"content_block\":{\"type\":\"thinking\"}}\n\n",
        "event: content_block_delta\ndata: {\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"hm\"}}\n\n",
        "event: content_block_delta\ndata: {\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"sig\"}}\n\n",
        "event: content_block_start\ndata: {\"index\":1,\"content_block\":{\"type\":\"text\",\"text\":\"hi\"}}\n\n",
        "event: message_delta\ndata: {\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n",
        "event: message_stop\ndata: {}\n\n",
    );
    let response = read(unclosed);
    let signed = |part: &Part| matches!(part, Part::Reasoning { text, signature: Some(signature), .. } if text == "hm" && signature == "sig");
    assert!(signed(&response.message.parts()[0]), "{response:?}");
    assert_eq!(response.text(), "hi");
}

#[test]
fn a_whole_answer_may_say_that_it_has_no_error() {
    let body = json!({
        "id": "m", "model": "c", "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn", "error": null,
    });
    let (told, read) = events(
        &Anthropic::default(),
        &Request::from("hi"),
        Delivery::Whole,
        [body.to_string().as_bytes()],
    );
    assert_eq!((folded(&told).text().as_ref(), read), ("hi", Ok(())));
}

#[test]
fn arguments_stay_as_they_are_written() {
    let input = r#"{"id":12345678901234567890123,"x":1.10, "y":1e3}"#;
    let block = format!(r#"{{"type":"tool_use","id":"t","name":"f","input":{input}}}"#);
    let whole = format!(r#"{{"id":"m","model":"c","content":[{block}],"stop_reason":"tool_use"}}"#);
    let streamed = sse([
        r#"{"type":"message_start","message":{"id":"m","model":"c"}}"#,
        &format!(r#"{{"type":"content_block_start","index":0,"content_block":{block}}}"#),
        r#"{"type":"content_block_stop","index":0}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"}}"#,
        r#"{"type":"message_stop"}"#,
    ]);
    for (delivery, body) in [(Delivery::Whole, whole), (Delivery::Streamed, streamed)] {
        let request = Request::from("hi");
        let (told, read) = events(&Anthropic::default(), &request, delivery, [body.as_bytes()]);
        let response = folded(&told);
        let call = response.tool_calls().next().unwrap();
        assert_eq!((call.raw_arguments.as_str(), read), (input, Ok(())));
    }
}

#[test]
fn arguments_count_whether_they_are_text_or_an_object() {
    let expected = [&ToolCall::new("t", "f", r#"{"a":1}"#)];
    let start = |input: Value| json!({"type": "tool_use", "id": "t", "name": "f", "input": input});
    let object = json!({"a": 1});
    for (block, pieces) in [
        (start(json!(r#"{"a":1}"#)), vec![]),
        (start(object.clone()), vec![]),
        (start(json!({})), vec![json!({"type": "input_json_delta", "partial_json": object})]),
    ] {
        let response = read(&answer(&[(block.clone(), pieces)], "tool_use"));
        assert_eq!(response.tool_calls().collect::<Vec<_>>(), expected, "{block}");
        if block["input"] != json!({}) {
            let whole =
                json!({"id": "m", "model": "c", "content": [block], "stop_reason": "tool_use"});
            let response = read_whole(&whole);
            assert_eq!(response.tool_calls().collect::<Vec<_>>(), expected, "{whole}");
        }
    }
}

#[test]
fn input_that_comes_with_the_block_and_again_in_pieces_is_told_once() {
    let block = json!({"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}});
    let response = read(&answer(&[(block, vec![input(r#"{"x":"#), input("1}")])], "tool_use"));
    let call = ToolCall::new("t", "f", r#"{"x":1}"#);
    assert_eq!(response.tool_calls().collect::<Vec<_>>(), [&call]);
}

#[test]
fn n16_an_error_in_the_middle_has_the_reason_that_the_provider_gives() {
    use AdapterReason::*;
    for (kind, expected) in [
        ("overloaded_error", Overloaded),
        ("rate_limit_error", RateLimited),
        ("api_error", ProviderUnavailable),
        ("authentication_error", AuthenticationFailed),
        ("invalid_request_error", InvalidRequest),
        ("timeout_error", Timeout),
        ("novelty", ProviderUnavailable),
    ] {
        let error =
            json!({"type": "error", "error": {"type": kind, "message": "m"}, "request_id": "r"});
        let error = failed(&body(&[error]));
        assert_eq!(
            (error.kind(), error.message().into_owned().as_str()),
            (ErrorKind::Adapter(expected), "m"),
            "{kind}"
        );
    }
}

proptest! {
    #[test]
    fn no_event_is_too_odd(messages in vec(odd_event(), 0..8)) {
        let body = body(&messages);
        let (events, _) = events(&Anthropic::default(), &Request::from("hi"), Delivery::Streamed, [body.as_bytes()]);
        folded(&events);
    }
}

/// Events of the right types with the wrong things in them.
fn odd_event() -> impl Strategy<Value = Value> {
    let kind = prop_oneof![
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "novelty",
    ];
    let block = prop_oneof![
        "text",
        "thinking",
        "redacted_thinking",
        "tool_use",
        "server_tool_use",
        "novelty"
    ];
    let delta = prop_oneof![
        "text_delta",
        "input_json_delta",
        "thinking_delta",
        "signature_delta",
        "novelty"
    ];
    let odd =
        || prop_oneof![Just(json!(null)), Just(json!("x")), Just(json!(5)), Just(json!({"y": []}))];
    (kind, 0..2u64, block, delta, odd(), odd()).prop_map(|(kind, index, block, delta, odd, other)| {
        json!({
            "type": kind, "index": index, "message": {"id": odd, "usage": other},
            "content_block": {"type": block, "text": odd, "thinking": other, "input": other, "id": odd, "name": "n"},
            "delta": {"type": delta, "text": odd, "partial_json": other, "thinking": odd, "signature": other, "stop_reason": odd},
        })
    })
}

fn failed(body: &str) -> Error {
    let (_, read) =
        events(&Anthropic::default(), &Request::from("hi"), Delivery::Streamed, [body.as_bytes()]);
    read.unwrap_err()
}
