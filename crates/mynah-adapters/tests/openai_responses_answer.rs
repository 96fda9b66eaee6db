//! Answers of Responses, as the documentation and the servers in the field write them.

use mynah_adapters::{format::Delivery, openai_responses::OpenAiResponses};
use mynah_data::{AdapterReason, Error, ErrorKind, FinishReason, Request, Usage};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use crate::common::{
    events, folded,
    responses::{body, completed, raw, read, reply, told, whole},
    sse, streamed,
};

#[test]
fn a_call_that_was_cut_off_before_its_arguments_has_none_whatever_the_reason() {
    for details in ["null", r#"{"reason":"max_output_tokens"}"#, r#"{"reason":"content_filter"}"#] {
        let end = format!(
            r#"{{"type":"response.incomplete","response":{{"id":"r","model":"m","status":"incomplete","incomplete_details":{details},"output":[]}}}}"#
        );
        let body = sse([
            r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"function_call","id":"fc","call_id":"c","name":"f","arguments":""}}"#,
            end.as_str(),
        ]);
        let answer = folded(&streamed(&OpenAiResponses::default(), &body));
        let calls: Vec<&Value> = answer.tool_calls().map(|call| &call.arguments).collect();
        assert_eq!(calls, [&Value::Null], "{details}");
    }
}

#[test]
fn an_answer_that_is_named_at_its_end_alone_has_its_name() {
    let word = json!({"type": "response.output_text.delta", "item_id": "i", "delta": "hi"});
    let end = json!({"type": "response.completed", "response": {"id": "r9", "model": "m-9", "status": "completed", "output": []}});
    let response = read(&body(&[word.clone(), end.clone()]));
    assert_eq!((response.id.as_deref(), response.model.as_deref()), (Some("r9"), Some("m-9")));
    let begun = json!({"type": "response.created", "response": {"id": "r1", "model": "m-1"}});
    let response = read(&body(&[begun, word, end]));
    assert_eq!((response.id.as_deref(), response.model.as_deref()), (Some("r1"), Some("m-1")));
    assert!(!response.metadata.contains_key("response_id"));
}

#[test]
fn o22_each_end_has_its_meaning() {
    use FinishReason::*;
    for (status, reason, expected, raw) in [
        ("completed", json!(null), Stop, Some("completed")),
        ("incomplete", json!({"reason": "max_output_tokens"}), Length, Some("max_output_tokens")),
        ("incomplete", json!({"reason": "content_filter"}), ContentFilter, Some("content_filter")),
        ("incomplete", json!({"reason": "bored"}), Other, Some("bored")),
        ("incomplete", json!(null), Other, Some("incomplete")),
        ("paused", json!(null), Other, Some("paused")),
    ] {
        let reply = reply(status, json!({"output": [], "incomplete_details": reason}));
        let event = json!({"type": format!("response.{}", if status == "incomplete" { status } else { "completed" }), "response": reply});
        for response in [read(&body(&[event])), folded(&whole(&reply).0)] {
            assert_eq!(
                (response.finish_reason, response.raw_finish_reason.as_deref()),
                (Some(expected), raw),
                "{reply}"
            );
            let details = response.metadata.get("incomplete_details").cloned().unwrap_or_default();
            assert_eq!(details, reason);
        }
    }
    // Some say how it ended only by the event's name.
    let response = read(&body(&[json!({"type": "response.incomplete", "response": {}})]));
    assert_eq!(response.finish_reason, Some(Other));
}

#[test]
fn a_call_that_was_cut_off_before_its_arguments_has_none() {
    let call = json!({"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "", "status": "incomplete"});
    let end = json!({"type": "response.incomplete", "response": reply("incomplete", json!({"output": [call], "incomplete_details": {"reason": "max_output_tokens"}}))});
    let response = read(&body(&[end]));
    let call = response.tool_calls().next().unwrap();
    assert_eq!((&call.arguments, call.raw_arguments.as_str()), (&Value::Null, ""));
    assert_eq!(response.finish_reason, Some(FinishReason::Length));
}

#[test]
fn a_cost_may_be_told_in_ticks() {
    let usage = json!({"input_tokens": 196, "output_tokens": 485, "cost_in_usd_ticks": 12_559_000, "num_server_side_tools_used": 2});
    let reply = reply("completed", json!({"output": [], "usage": usage}));
    let response = read(&body(&[json!({"type": "response.completed", "response": reply})]));
    assert_eq!(response.usage.total_cost, Some(0.001_255_9));
}

#[test]
fn o20_usage_counts_the_whole_prompt_and_the_whole_output() {
    let usage = json!({
        "input_tokens": 10, "output_tokens": 5, "total_tokens": 15, "cost": 0.25, "num_sources_used": 2,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "output_tokens_details": {"reasoning_tokens": 3},
    });
    let reply = reply(
        "completed",
        json!({"output": [], "usage": usage, "service_tier": "flex", "reasoning": {"effort": "low", "summary": null}, "tool_usage": {"web_search": {"num_requests": 1}}}),
    );
    let mut expected = Usage::new(10, 5);
    expected.total_tokens = Some(15);
    expected.cached_input_tokens = Some(4);
    expected.cache_write_tokens = Some(2);
    expected.reasoning_tokens = Some(3);
    expected.total_cost = Some(0.25);
    expected.tool_usage = json!({"web_search": {"num_requests": 1}}).as_object().unwrap().clone();
    expected.extra = json!({"cost": 0.25, "num_sources_used": 2, "service_tier": "flex"})
        .as_object()
        .unwrap()
        .clone()
        .into();
    let response = read(&body(&[json!({"type": "response.completed", "response": reply})]));
    assert_eq!(response.usage, expected);
    assert_eq!(
        response.metadata,
        *json!({"reasoning": {"effort": "low"}, "service_tier": "flex"}).as_object().unwrap()
    );
}

#[test]
fn o23_a_failure_has_the_reason_that_the_provider_gives() {
    use AdapterReason::*;
    let failed_with = |error: Value| json!({"type": "response.failed", "response": reply("failed", json!({"error": error}))});
    for (event, expected, message) in [
        (failed_with(json!({"code": "server_error", "message": "m"})), ProviderUnavailable, "m"),
        (failed_with(json!({"code": "rate_limit_exceeded", "message": "m"})), RateLimited, "m"),
        (failed_with(json!({"code": "server_is_overloaded", "message": "m"})), Overloaded, "m"),
        (failed_with(json!({"code": "invalid_prompt", "message": "m"})), InvalidRequest, "m"),
        (failed_with(json!({"code": "image_too_large", "message": "m"})), InvalidRequest, "m"),
        (
            failed_with(json!({"code": "image_content_policy_violation", "message": "m"})),
            ContentFilter,
            "m",
        ),
        (failed_with(json!({"code": "vector_store_timeout", "message": "m"})), Timeout, "m"),
        (failed_with(json!(null)), ProviderUnavailable, "the provider gave the answer up: failed"),
        (
            json!({"type": "error", "code": "insufficient_quota", "message": "m", "param": null, "sequence_number": 3}),
            PermissionDenied,
            "m",
        ),
        (
            json!({"type": "error", "error": {"type": "invalid_request_error", "code": "context_length_exceeded", "message": "m"}}),
            ContextLengthExceeded,
            "m",
        ),
        (json!({"error": {"message": "m", "code": 502}}), ProviderUnavailable, "m"),
    ] {
        let delta = json!({"type": "response.output_text.delta", "delta": "Hel"});
        let body = body(&[delta, event.clone()]);
        let (events, read) = events(
            &OpenAiResponses::default(),
            &Request::from("hi"),
            Delivery::Streamed,
            [body.as_bytes()],
        );
        let error = read.unwrap_err();
        assert_eq!(
            (error.kind(), error.message().into_owned().as_str()),
            (ErrorKind::Adapter(expected), message),
            "{event}"
        );
        assert_eq!(folded(&events).text(), "Hel");
    }
}

#[test]
fn o27_an_answer_in_one_piece_is_read_from_its_items() {
    let output = json!([
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "So"}, {"type": "output_text", "text": " be it."}]},
        {"type": "function_call", "id": "fc", "call_id": "c", "name": "f", "arguments": "{}"},
    ]);
    let (events, read) = whole(&reply(
        "completed",
        json!({"output": output, "usage": {"input_tokens": 1, "output_tokens": 2}, "novelty": 7}),
    ));
    assert_eq!(read, Ok(()));
    let response = folded(&events);
    assert_eq!(response.text(), "So be it.");
    assert_eq!(response.message.parts().len(), 4, "{:?}", response.message);
    assert_eq!(response.finish_reason, Some(FinishReason::ToolCalls));
    assert_eq!((response.id.as_deref(), response.usage.output_tokens), (Some("resp_1"), Some(2)));
    assert_eq!(raw(&events), [json!({"type": "response", "novelty": 7})]);
    let plain = json!([{"type": "message", "id": "m", "content": "So be it."}]);
    let (events, _) = whole(&reply("completed", json!({"output": plain})));
    assert_eq!(folded(&events).text(), "So be it.");
    for (body, expected) in [
        (json!({"id": "x"}), AdapterReason::MalformedResponse),
        (
            json!({"error": {"code": "server_error", "message": "m"}}),
            AdapterReason::ProviderUnavailable,
        ),
        (reply("cancelled", json!({"output": []})), AdapterReason::ProviderUnavailable),
    ] {
        assert_eq!(whole(&body).1.unwrap_err().kind(), ErrorKind::Adapter(expected), "{body}");
    }
    let (events, _) = whole(&reply("queued", json!({"output": []})));
    assert_eq!(folded(&events).finish_reason, None, "it goes on in the background");
}

#[test]
fn only_the_last_event_ends_an_answer() {
    let delta = json!({"type": "response.output_text.delta", "delta": "x"});
    let done = json!({"type": "response.output_text.done", "text": "x"});
    let unfinished = body(&[delta.clone(), done]);
    for body in [unfinished.clone(), format!("{unfinished}data: [DONE]\n\n")] {
        assert_eq!(failed(&body).kind(), ErrorKind::Adapter(AdapterReason::NetworkError));
    }
    // Nothing that follows the end changes it.
    let ended = body(&[delta.clone(), completed(json!([])), delta]);
    assert_eq!(read(&format!("{ended}data: [DONE]\n\n")).text(), "x");
}

#[test]
fn unknown_events_and_members_are_passed_on() {
    let strange = json!({"type": "response.surprise.delta", "delta": "?"});
    let extended =
        json!({"type": "response.output_text.delta", "delta": "x", "logprobs": [{"token": "x"}]});
    let audio =
        json!({"type": "response.content_part.added", "item_id": "m", "part": {"type": "audio"}});
    let told = [
        strange.clone(),
        json!({"type": "keepalive"}),
        extended,
        audio.clone(),
        completed(json!([])),
    ];
    let events = streamed(&OpenAiResponses::default(), &body(&told));
    let logprobs = json!({"type": "response.output_text.delta", "logprobs": [{"token": "x"}]});
    assert_eq!(raw(&events), [strange, logprobs, audio]);
    assert_eq!(folded(&events).text(), "x");
}

#[test]
fn the_type_may_stand_in_the_frame_alone() {
    let body = "event: response.output_text.delta\ndata: {\"delta\":\"x\"}\n\nevent: response.completed\ndata: {}\n\n";
    assert_eq!(read(body).text(), "x");
}

#[test]
fn items_without_end_are_refused() {
    let added = |index: usize| json!({"type": "response.output_item.added", "output_index": index, "item": {"type": "function_call"}});
    let told: Vec<Value> = (0..=10_000).map(added).collect();
    assert_eq!(failed(&body(&told)).kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse));
    let listed = vec![json!({"type": "function_call", "name": "f"}); 10_001];
    let error = whole(&reply("completed", json!({"output": listed}))).1.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse));
}

proptest! {
    #[test]
    fn no_event_is_too_odd(told in vec(odd_event(), 0..8), ended in any::<bool>()) {
        let mut body = sse(told.iter().map(String::as_str));
        if ended {
            body.push_str(&sse([completed(json!([])).to_string().as_str()]));
        }
        let (events, _) = events(&OpenAiResponses::default(), &Request::from("hi"), Delivery::Streamed, [body.as_bytes()]);
        folded(&events);
    }

    #[test]
    fn no_answer_is_too_odd(reply in odd_members()) {
        let (events, _) = whole(&reply);
        folded(&events);
    }
}

/// Events of the right shape with the wrong things in them.
fn odd_event() -> impl Strategy<Value = String> {
    let kind = prop_oneof![
        "response\\.output_item\\.(added|done)",
        "response\\.(output_text|refusal|reasoning_text|function_call_arguments)\\.(delta|done)",
        "response\\.(content_part|reasoning_summary_part)\\.(added|done)",
        "response\\.output_text\\.annotation\\.added",
        "response\\.reasoning_summary_text\\.(delta|done|other)",
        "response\\.(created|incomplete|surprise)",
    ];
    (kind, odd_members()).prop_map(|(kind, mut members)| {
        members["type"] = kind.into();
        members.to_string()
    })
}

fn odd_members() -> impl Strategy<Value = Value> {
    let odd = prop_oneof![
        Just(json!(null)),
        Just(json!(0)),
        Just(json!("wörld")),
        Just(json!("w")),
        Just(json!([])),
        Just(json!({})),
        Just(
            json!({"type": "message", "id": "w", "content": [{"type": "output_text", "text": "é"}, 7, {"type": "audio"}]})
        ),
        Just(json!({"type": "function_call", "id": "w", "arguments": {"x": 1}})),
        Just(json!({"type": "function_call", "call_id": "w", "name": "f"})),
        Just(
            json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "é"}], "encrypted_content": 7})
        ),
        Just(json!({"type": "output_text", "text": "wö", "annotations": [1]})),
        Just(
            json!([{"type": "web_search_call"}, {"type": "message", "content": "é"}, {"type": "function_call", "id": "w"}])
        ),
    ];
    let names = prop_oneof![
        "item",
        "item_id",
        "part",
        "delta",
        "text",
        "refusal",
        "arguments",
        "output",
        "usage",
        "error",
        "status",
        "output_index",
        "novelty",
    ];
    vec((names, odd), 0..6).prop_map(|members| Value::Object(members.into_iter().collect()))
}

fn failed(body: &str) -> Error {
    told(body).1.unwrap_err()
}
