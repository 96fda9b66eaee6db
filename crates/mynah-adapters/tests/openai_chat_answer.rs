//! Answers of Chat Completions, as the documentation and the servers in the field write them.

use mynah_adapters::{format::Delivery, openai_chat::OpenAiChat};
use mynah_data::{
    AdapterReason, ErrorKind, Event, FinishReason, Part, Request, Response, ToolCall,
};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use crate::common::{
    chat::{answer, body, failed, read},
    events, folded, sse, streamed,
};

#[test]
fn who_answers_may_be_told_after_the_first_chunk() {
    let body = sse([
        r#"{"id":"","model":"","object":"","created":0,"choices":[],"prompt_filter_results":[{"prompt_index":0}]}"#,
        r#"{"id":"answer-1","model":"gpt","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#,
        r#"{"id":"answer-1","model":"gpt","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}"#,
        "[DONE]",
    ]);
    let events = streamed(&OpenAiChat::default(), &body);
    let names: Vec<&str> = events.iter().map(Event::type_name).collect();
    assert_eq!(names, ["message_started", "raw_chunk", "text_delta", "message_completed"]);
    let answer = folded(&events);
    assert_eq!((answer.id.as_deref(), answer.model.as_deref()), (Some("answer-1"), Some("gpt")));
}

#[test]
fn a_server_that_names_no_model_answers_as_the_one_that_was_asked() {
    let body =
        sse([r#"{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}"#, "[DONE]"]);
    let request = Request::from("hi").with_model("asked");
    let (events, _) =
        events(&OpenAiChat::default(), &request, Delivery::Streamed, [body.as_bytes()]);
    assert_eq!(folded(&events).model.as_deref(), Some("asked"));
}

#[test]
fn an_error_may_stand_in_the_place_of_a_chunk() {
    let first = r#"{"choices":[{"delta":{"content":"hi"}}]}"#;
    for (said, reason) in [
        (
            r#"{"object":"error","message":"too busy","type":"BadRequestError","param":null,"code":429}"#,
            AdapterReason::RateLimited,
        ),
        (r#"{"error":"too busy","error_type":"overloaded"}"#, AdapterReason::Overloaded),
        (r#"{"error":{"message":"too busy","code":"503"}}"#, AdapterReason::ProviderUnavailable),
        (
            r#"{"id":"x","error":{"message":"too busy","code":502},"choices":[]}"#,
            AdapterReason::ProviderUnavailable,
        ),
    ] {
        let body = sse([first, said, "[DONE]"]);
        let (_, read) = events(
            &OpenAiChat::default(),
            &Request::from("hi"),
            Delivery::Streamed,
            [body.as_bytes()],
        );
        let error = read.unwrap_err();
        assert_eq!(
            (error.kind(), error.message().into_owned().as_str()),
            (ErrorKind::Adapter(reason), "too busy")
        );
    }
}

#[test]
fn a_gateway_says_beside_the_answer_what_failed_behind_it() {
    let error = json!({"code": 429, "message": "upstream rate limited"});
    for (member, delivery) in [("message", Delivery::Whole), ("delta", Delivery::Streamed)] {
        let said = json!({"choices": [{
            "index": 0, "finish_reason": "error", member: {"content": "par"}, "error": error,
        }]});
        let body = match delivery {
            Delivery::Whole => said.to_string(),
            Delivery::Streamed => body(&[said]),
        };
        let (_, read) =
            events(&OpenAiChat::default(), &Request::from("hi"), delivery, [body.as_bytes()]);
        let error = read.unwrap_err();
        assert_eq!(
            (error.kind(), error.message().into_owned().as_str()),
            (ErrorKind::Adapter(AdapterReason::RateLimited), "upstream rate limited")
        );
    }
}

#[test]
fn what_a_server_says_again_at_the_end_is_told_once() {
    let text = [
        json!({"choices": [{"index": 0, "delta": {"content": "Hel"}}]}),
        json!({"choices": [{"index": 0, "delta": {"content": "lo"}}]}),
        json!({"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]}),
    ];
    assert_eq!(read(&body(&text)).text(), "Hello");
    let only = &text[2..];
    assert_eq!(read(&body(only)).text(), "Hello");
    let piece =
        |function: Value| json!({"tool_calls": [{"index": 0, "id": "a", "function": function}]});
    let deltas = [
        piece(json!({"name": "f", "arguments": "{\"x\""})),
        piece(json!({"arguments": ":1}"})),
        piece(json!({"arguments": "{\"x\":1}"})),
    ];
    let response = read(&answer(&deltas, "tool_calls"));
    let call = ToolCall::new("a", "f", r#"{"x":1}"#);
    assert_eq!(response.tool_calls().collect::<Vec<_>>(), [&call]);
}

#[test]
fn o17_each_finish_reason_has_its_meaning() {
    use FinishReason::*;
    for (reason, expected) in [
        ("stop", Stop),
        ("length", Length),
        ("model_length", Length),
        ("tool_calls", ToolCalls),
        ("function_call", ToolCalls),
        ("content_filter", ContentFilter),
        ("refusal", ContentFilter),
        ("eos", Stop),
        ("novelty", Other),
    ] {
        let response = read(&answer(&[json!({"content": "x"})], reason));
        assert_eq!(
            (response.finish_reason, response.raw_finish_reason.as_deref()),
            (Some(expected), Some(reason)),
            "{reason}"
        );
    }
    for (reason, expected) in [
        ("insufficient_system_resource", AdapterReason::Overloaded),
        ("error", AdapterReason::ProviderUnavailable),
    ] {
        assert_eq!(failed(&answer(&[], reason)).kind(), ErrorKind::Adapter(expected));
    }
}

#[test]
fn stop_with_calls_means_that_tools_are_to_be_run() {
    let call = json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]});
    assert_eq!(read(&answer(&[call], "stop")).finish_reason, Some(FinishReason::ToolCalls));
}

#[test]
fn a_gateway_that_hides_the_limit_is_seen_through() {
    let call = json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]});
    let chunks = [
        json!({"choices": [{"index": 0, "delta": call}]}),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls", "native_finish_reason": "max_output_tokens"}]}),
    ];
    let response = read(&body(&chunks));
    assert_eq!(response.finish_reason, Some(FinishReason::Length));
    assert_eq!(response.raw_finish_reason.as_deref(), Some("max_output_tokens"));
    let call = response.tool_calls().next().unwrap();
    assert_eq!((&call.arguments, call.raw_arguments.as_str()), (&Value::Null, ""));
    let again: Response = serde_json::from_value(json!(response)).unwrap();
    assert_eq!(again, response);
}

#[test]
fn o24_a_refusal_is_a_part_of_its_own() {
    let deltas = [json!({"refusal": "I "}), json!({"refusal": "won't."})];
    let response = read(&answer(&deltas, "stop"));
    assert_eq!(response.message.parts(), [Part::Refusal { text: "I won't.".to_owned() }]);
    assert_eq!(
        (response.finish_reason, response.raw_finish_reason.as_deref()),
        (Some(FinishReason::ContentFilter), Some("stop"))
    );
    assert_eq!(response.text(), "");
    let thoughtful = [json!({"reasoning_content": "hm"}), json!({"refusal": "No."})];
    let parts = read(&answer(&thoughtful, "stop")).message.parts().to_vec();
    assert_eq!(parts, [Part::reasoning("hm"), Part::Refusal { text: "No.".to_owned() }]);
}

#[test]
fn reasoning_comes_under_several_names() {
    for delta in [
        json!({"reasoning_content": "hm", "content": null}),
        json!({"reasoning": "hm"}),
        json!({"reasoning_content": "", "reasoning": "hm"}),
        json!({"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}),
        json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
    ] {
        let response = read(&answer(&[delta.clone(), json!({"content": "so"})], "stop"));
        let [Part::Reasoning { text, .. }, Part::Text { text: said, .. }] =
            response.message.parts()
        else {
            panic!("{delta}: {:?}", response.message);
        };
        assert_eq!((text.as_str(), said.as_str()), ("hm", "so"), "{delta}");
    }
}

#[test]
fn an_error_among_a_servers_own_members_fails_what_was_said_so_far() {
    let chunks = [
        json!({"choices": [{"index": 0, "delta": {"content": "par"}}]}),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "x_groq": {"error": "stream stopped early"}}),
    ];
    let body = body(&chunks);
    let request = Request::from("hi");
    let (events, read) =
        events(&OpenAiChat::default(), &request, Delivery::Streamed, [body.as_bytes()]);
    assert_eq!(read.unwrap_err().message(), "stream stopped early");
    let names: Vec<&str> = events.iter().map(Event::type_name).collect();
    assert_eq!(names, ["message_started", "text_delta"]);
}

#[test]
fn encrypted_details_of_one_place_stay_apart() {
    let sealed = |id: &str, data: &str| json!({"type": "reasoning.encrypted", "index": 0, "id": id, "data": data});
    let words =
        |text: &str| json!({"type": "reasoning.text", "index": 0, "id": null, "text": text});
    let deltas = [
        json!({"reasoning_details": [words("a"), sealed("r1", "AA==")]}),
        json!({"reasoning_details": [words("b"), sealed("r2", "BB==")]}),
        json!({"reasoning_details": [sealed("r2", "BB==")]}),
    ];
    let answer = folded(&streamed(&OpenAiChat::default(), &answer(&deltas, "stop")));
    let [Part::Reasoning { .. }] = answer.message.parts() else { panic!("{:?}", answer.message) };
    assert_eq!(
        json!(answer.message.parts()[0])["data"]["reasoning_details"],
        json!([words("ab"), sealed("r1", "AA=="), sealed("r2", "BB==")])
    );
}

#[test]
fn details_without_a_place_stay_apart() {
    let words = |text: &str| json!({"type": "reasoning.text", "text": text});
    let deltas = ["a", "b"].map(|text| json!({"reasoning_details": [words(text)]}));
    let answer = read(&answer(&deltas, "stop"));
    assert_eq!(
        json!(answer.message.parts()[0])["data"]["reasoning_details"],
        json!([words("a"), words("b")])
    );
}

#[test]
fn half_a_character_does_not_fail_an_answer() {
    let chunk =
        |text: &str| format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{text}"}}}}]}}"#);
    for (pieces, text) in [
        (&[r"a\ud83d", r"\uDE00b"][..], "a\u{fffd}\u{fffd}b"),
        (&[r"a\ud83d\ude00b"], "a😀b"),
        (&[r"\ud83d\ud83d\ude00", r"é\ude00\n"], "\u{fffd}😀é\u{fffd}\n"),
        (&[r"\\ud83d", r"\\\ud83d"], "\\ud83d\\\u{fffd}"),
        (&[r"\ud83dé\ud83d\u0041"], "\u{fffd}é\u{fffd}A"),
    ] {
        let end = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#.to_owned();
        let chunks: Vec<String> =
            pieces.iter().map(|piece| chunk(piece)).chain([end, "[DONE]".to_owned()]).collect();
        assert_eq!(read(&sse(chunks.iter().map(String::as_str))).text(), text);
    }
    let whole = r#"{"choices":[{"message":{"content":"a\ud83d"},"finish_reason":"stop"}]}"#;
    let request = Request::from("hi");
    let (events, _) = events(&OpenAiChat::default(), &request, Delivery::Whole, [whole.as_bytes()]);
    assert_eq!(folded(&events).text(), "a\u{fffd}");
}

#[test]
fn only_the_first_choice_is_the_answer() {
    let chunks = [
        json!({"choices": [{"index": 1, "delta": {"content": "other"}}]}),
        json!({"choices": [{"index": 0, "delta": {"content": "mine"}}]}),
        json!({"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]}),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
    ];
    let events = streamed(&OpenAiChat::default(), &body(&chunks));
    let response = folded(&events);
    assert_eq!(
        (response.text().as_ref(), response.finish_reason),
        ("mine", Some(FinishReason::Stop))
    );
    let raw = events.iter().filter(|event| matches!(event, Event::RawChunk { .. }));
    assert_eq!(raw.count(), 2, "the others are passed on");
}

#[test]
fn a_server_that_does_not_stream_is_understood() {
    let body = json!({
        "id": "a1", "model": "m1", "object": "chat.completion",
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": null, "reasoning_content": "hm",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        }}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    });
    let (events, read) = events(
        &OpenAiChat::default(),
        &Request::from("hi"),
        Delivery::Whole,
        [body.to_string().as_bytes()],
    );
    assert_eq!(read, Ok(()));
    let response = folded(&events);
    assert_eq!(
        response.message.parts(),
        [Part::reasoning("hm"), Part::tool_call(ToolCall::new("a", "f", "{}"))]
    );
    assert_eq!((response.id.as_deref(), response.usage.output_tokens), (Some("a1"), Some(2)));
}

#[test]
fn o19_an_answer_ends_with_its_reason_to_stop_and_without_one_it_broke_off() {
    let finished = sse([
        r#"{"choices":[{"index":0,"delta":{"reasoning":"hm"}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}]}"#,
    ]);
    let response = read(&finished);
    assert_eq!(response.message.parts(), [Part::reasoning("hm"), Part::text("x")]);
    assert_eq!(response.finish_reason, Some(FinishReason::Stop));
    let usage = sse([r#"{"choices":[],"usage":{"prompt_tokens":11,"completion_tokens":7}}"#]);
    assert_eq!(read(&(finished.clone() + &usage)).usage.input_tokens, Some(11));
    let unfinished = sse([r#"{"choices":[{"index":0,"delta":{"content":"x"}}]}"#]);
    assert_eq!(failed(&unfinished).kind(), ErrorKind::Adapter(AdapterReason::NetworkError));
    // The chunk after the reason is cut through.
    let cut = finished + r#"data: {"choices":[],"usa"#;
    assert_eq!(failed(&cut).kind(), ErrorKind::Adapter(AdapterReason::NetworkError));
}

#[test]
fn o23_an_error_in_the_middle_has_the_reason_that_the_provider_gives() {
    for (error, expected) in [
        (json!({"message": "m", "code": 429}), AdapterReason::RateLimited),
        (json!({"message": "m", "code": 502, "metadata": {}}), AdapterReason::ProviderUnavailable),
        (json!({"message": "m", "type": "overloaded_error"}), AdapterReason::Overloaded),
        (
            json!({"message": "m", "code": "context_length_exceeded"}),
            AdapterReason::ContextLengthExceeded,
        ),
        (json!("m"), AdapterReason::ProviderUnavailable),
    ] {
        let told = failed(&sse([json!({"error": error}).to_string().as_str()]));
        assert_eq!((told.kind(), &*told.message()), (ErrorKind::Adapter(expected), "m"), "{error}");
    }
}

proptest! {
    #[test]
    fn no_chunk_is_too_odd(chunks in vec(odd_chunk(), 0..6), done in any::<bool>()) {
        let mut body = sse(chunks.iter().map(String::as_str));
        if done {
            body.push_str("data: [DONE]\n\n");
        }
        let (events, _) = events(&OpenAiChat::default(), &Request::from("hi"), Delivery::Streamed, [body.as_bytes()]);
        folded(&events);
    }
}

/// Chunks of the right shape with the wrong things in them.
fn odd_chunk() -> impl Strategy<Value = String> {
    let odd = || {
        prop_oneof![
            Just(json!(null)),
            Just(json!(7)),
            Just(json!("x")),
            Just(json!([])),
            Just(json!({})),
            Just(json!([{"type": "text", "text": "t"}])),
            Just(json!([{"index": 3, "function": {"arguments": 1}}])),
            Just(json!([{"id": "a", "function": {"name": "f"}}])),
            Just(json!([{"type": "reasoning.text", "index": 0, "text": 5}])),
        ]
    };
    let names = prop_oneof![
        "content",
        "refusal",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "tool_calls",
        "novelty"
    ];
    let delta =
        vec((names, odd()), 0..4).prop_map(|members| Value::Object(members.into_iter().collect()));
    (delta, odd(), odd()).prop_map(|(delta, finish, usage)| {
        json!({"id": finish, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage}).to_string()
    })
}
