//! Answers of Gemini, as the documentation and the field write them.

use std::time::Duration;

use mynah_adapters::{
    format::{Delivery, Format},
    gemini::Gemini,
};
use mynah_data::{
    AdapterReason, Error, ErrorKind, Event, FinishReason, Message, Metadata, Part, Request,
    Response, ToolCall,
};
use mynah_step::ModelCall;
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use crate::common::{events, folded, sse, streamed};

#[test]
fn i16_text_thoughts_and_calls_are_told_in_their_order() {
    let body = stream(&[
        said(json!([{"text": "hm", "thought": true}])),
        said(json!([{"text": ", yes", "thought": true}])),
        said(json!([{"text": "Hel"}])),
        said(json!([{"text": "lo"}, {"functionCall": {"id": "c", "name": "now", "args": {}}}])),
        finished("STOP"),
    ]);
    let told: Vec<&str> =
        streamed(&Gemini::default(), &body).iter().map(Event::type_name).collect();
    assert_eq!(
        told,
        [
            "message_started",
            "reasoning_delta",
            "reasoning_delta",
            "reasoning_completed",
            "text_delta",
            "text_delta",
            "text_completed",
            "tool_call_started",
            "tool_call_delta",
            "tool_call_completed",
            "usage",
            "message_completed",
        ]
    );
    let response = read(&body);
    assert_eq!(
        response.message.parts(),
        [
            Part::reasoning("hm, yes"),
            Part::text("Hello"),
            Part::tool_call(ToolCall::new("c", "now", "{}"))
        ]
    );
    assert_eq!(response.text(), "Hello", "thoughts are no output");
    assert_eq!((response.id.as_deref(), response.model.as_deref()), (Some("r"), Some("g")));
}

#[test]
fn i08_i12_i13_calls_without_ids_are_told_apart() {
    let call = json!({"functionCall": {"name": "search", "args": {"q": "a"}}});
    let response = read(&stream(&[said(json!([call, call])), finished("STOP")]));
    let ids: Vec<&str> = response.tool_calls().map(|call| call.id.as_str()).collect();
    assert_eq!(ids, ["call_1", "call_2"]);
    assert_eq!(response.finish_reason, Some(FinishReason::ToolCalls));
    assert_eq!(response.raw_finish_reason.as_deref(), Some("STOP"));
    let parts = sent_back(&response);
    assert_eq!(parts, json!([call, call]), "and go back as they came");
}

/// A conversation may have lost its beginning, or have begun where calls are numbered too.
#[test]
fn i13_a_made_up_id_is_none_that_the_conversation_has() {
    let body = stream(&[said(json!([{"functionCall": {"name": "f"}}])), finished("STOP")]);
    for (earlier, expected) in [
        (vec!["call_2"], "call_3"),
        (vec!["call_9", "call_1"], "call_10"),
        (vec!["a", "call_1", "call_x", "call_"], "call_5"),
        (vec!["call_4294967295", "call_4294967296"], "call_4294967297"),
        (vec!["call_18446744073709551615"], "call_18446744073709551616"),
        (vec!["call_99999999999999999999"], "call_2"),
    ] {
        let answer = earlier.iter().map(|id| Part::tool_call(ToolCall::new(*id, "f", "{}")));
        let results = earlier.iter().map(|id| Message::tool_result(*id, "r"));
        let answer = Message::assistant_parts(answer);
        let request = Request::new([Message::user("hi"), answer].into_iter().chain(results));
        let told = events(&Gemini::default(), &request, Delivery::Streamed, [body.as_bytes()]).0;
        let response = folded(&told);
        let ids: Vec<&str> = response.tool_calls().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, [expected], "after {earlier:?}");
    }
}

#[test]
fn i14_everything_goes_back_on_the_part_it_came_with() {
    let chunks = [
        said(json!([{"text": "first ", "thought": true, "thoughtSignature": "s0"}])),
        said(json!([{"text": "signed ", "thoughtSignature": "s1"}])),
        said(json!([{"text": "and "}])),
        said(json!([{"text": "not"}])),
        said(json!([
            {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "s2"},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
        ])),
        said(json!([{"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "s3"}])),
        said(json!([{"text": "", "thoughtSignature": "s4"}])),
        finished("STOP"),
    ];
    assert_eq!(
        sent_back(&read(&stream(&chunks))),
        json!([
            {"text": "first ", "thought": true, "thoughtSignature": "s0"},
            {"text": "signed ", "thoughtSignature": "s1"},
            {"text": "and not"},
            {"executableCode": {"language": "PYTHON", "code": "1"}, "thoughtSignature": "s2"},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
            {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "s3"},
            {"text": "", "thoughtSignature": "s4"},
        ])
    );
}

#[test]
fn i07_each_finish_reason_has_its_meaning() {
    use FinishReason::*;
    for (reasons, expected) in [
        (
            "SAFETY RECITATION LANGUAGE BLOCKLIST PROHIBITED_CONTENT SPII IMAGE_SAFETY IMAGE_PROHIBITED_CONTENT IMAGE_RECITATION",
            ContentFilter,
        ),
        ("STOP", Stop),
        ("MAX_TOKENS", Length),
        ("FUNCTION_CALL", ToolCalls),
        ("IMAGE_OTHER NO_IMAGE OTHER FINISH_REASON_UNSPECIFIED NOVELTY", Other),
        (
            "MALFORMED_FUNCTION_CALL UNEXPECTED_TOOL_CALL TOO_MANY_TOOL_CALLS MISSING_THOUGHT_SIGNATURE MALFORMED_RESPONSE",
            Error,
        ),
    ] {
        for reason in reasons.split(' ') {
            let response = read(&stream(&[finished(reason)]));
            assert_eq!(
                (response.finish_reason, response.raw_finish_reason.as_deref()),
                (Some(expected), Some(reason))
            );
        }
    }
    let mut told = finished("MALFORMED_FUNCTION_CALL");
    told["candidates"][0]["finishMessage"] = json!("Malformed function call: f(");
    assert_eq!(read(&stream(&[told])).metadata["finish_message"], "Malformed function call: f(");
}

/// One request has its own limit; the same request with the last content continues after it.
#[test]
fn an_answer_that_stops_at_the_limit_of_a_request_goes_on() {
    let stopped = |reason: &str, token: Value| {
        let mut last = finished(reason);
        last["candidates"][0]["continuationToken"] = token;
        let mut early = said(json!([{"text": "Hel"}]));
        early["candidates"][0]["continuationToken"] = "early".into();
        streamed(&Gemini::default(), &stream(&[early, last]))
    };
    let sent = |messages: Vec<Message>| {
        let request = Request::new(messages).with_model("gemini-4-argon");
        Gemini::default().body(&request, &ModelCall::default()).unwrap()
    };
    let first = stopped("CONTINUATION", "t1".into());
    assert!(matches!(first.last(), Some(Event::MessageCompleted { paused: true, .. })));
    assert!(!first.iter().any(|event| matches!(event, Event::RawChunk { .. })));
    let [first, second] = [first, stopped("CONTINUATION", Value::Null)].map(|told| folded(&told));
    assert_eq!(first.finish_reason, Some(FinishReason::Other));
    assert_eq!(first.text(), "Hel");
    let [first, second] = [first, second].map(|response| Message::clone(&response.message));
    let asked = sent(vec![Message::user("hi")]);
    for (answers, token) in [(vec![&first], "t1"), (vec![&first, &second], "early")] {
        let answers = answers.into_iter().cloned();
        let mut body = sent([Message::user("hi")].into_iter().chain(answers).collect());
        assert_eq!(body["continuationToken"].take(), token);
        assert_eq!(body["contents"], asked["contents"], "it is the same request");
    }
    let later = vec![Message::user("hi"), first, Message::assistant("lo"), Message::user("and?")];
    let body = sent(later);
    assert_eq!(body["contents"][1]["parts"], json!([{"text": "Hel"}, {"text": "lo"}]));
    assert_eq!(body.get("continuationToken"), None);

    let spent = folded(&stopped("MAX_TOKENS", "t2".into()));
    assert_eq!(spent.finish_reason, Some(FinishReason::Length));
    assert_eq!(spent.metadata["continuation_token"], "t2", "for whoever asks with more tokens");
    let more = Request::from("hi").with_options(spent.metadata).with_model("gemini-4-argon");
    let body = Gemini::default().body(&more, &ModelCall::default()).unwrap();
    assert_eq!(body["continuationToken"], "t2");
    let lost = read(&stream(&[said(json!([{"text": "Hel"}])), finished("CONTINUATION")]));
    assert_eq!(lost.finish_reason, Some(FinishReason::Length), "there is nothing to go on with");
}

#[test]
fn i09_i10_a_prompt_that_is_blocked_is_an_error() {
    let blocked = json!({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 4}});
    for error in [failed(&stream(std::slice::from_ref(&blocked))), failed_whole(&blocked)] {
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::ContentFilter));
        assert_eq!(error.metadata()["block_reason"], "PROHIBITED_CONTENT");
    }
    for body in [json!({}), json!([]), json!({"candidates": []})] {
        assert_eq!(
            failed_whole(&body).kind(),
            ErrorKind::Adapter(AdapterReason::MalformedResponse),
            "{body}"
        );
    }
    let empty = json!({"candidates": [], "usageMetadata": {"promptTokenCount": 4}});
    assert_eq!(failed(&stream(&[empty])).reason(), "malformed_response");
    assert_eq!(failed("data: {\"candi").reason(), "network_error");
}

#[test]
fn i11_i15_usage_counts_thoughts_and_tools_as_parts() {
    let counted = |counters: Value| {
        let mut chunk = finished("STOP");
        chunk["usageMetadata"] = counters;
        chunk
    };
    let usage = read(&stream(&[
        counted(json!({"promptTokenCount": 10, "candidatesTokenCount": 1, "totalTokenCount": 11})),
        counted(json!({
            "promptTokenCount": 10, "cachedContentTokenCount": 4, "thoughtsTokenCount": 5,
            "toolUsePromptTokenCount": 7, "totalTokenCount": 24, "serviceTier": "standard",
        })),
        counted(json!({"candidatesTokenCount": 2})),
    ]))
    .usage;
    assert_eq!(
        (usage.input_tokens, usage.cached_input_tokens, usage.cache_write_tokens),
        (Some(17), Some(4), None)
    );
    assert_eq!(
        (usage.output_tokens, usage.reasoning_tokens, usage.total_tokens),
        (Some(7), Some(5), Some(24))
    );
    assert_eq!(usage.tool_usage, Metadata::from_iter([("prompt_tokens".to_owned(), json!(7))]));
    assert_eq!(*usage.extra, Metadata::from_iter([("serviceTier".to_owned(), json!("standard"))]));
    let output = |counters: Value| read(&stream(&[counted(counters)])).usage.output_tokens;
    assert_eq!(
        output(json!({"promptTokenCount": 3, "responseTokenCount": 5})),
        Some(5),
        "the name of old"
    );
    assert_eq!(output(json!({"promptTokenCount": 3, "totalTokenCount": 3})), Some(0));
    assert_eq!(output(json!({"promptTokenCount": 3})), None, "nothing was said of it");
}

#[test]
fn searches_are_counted() {
    let chunk = |queries: Value| {
        let mut chunk = finished("STOP");
        chunk["usageMetadata"] = json!({"promptTokenCount": 3, "totalTokenCount": 3});
        chunk["candidates"][0]["groundingMetadata"] = json!({"webSearchQueries": queries});
        chunk
    };
    for (chunks, tools) in [
        (vec![chunk(json!(["a", "", "b"])), chunk(json!([]))], json!({"web_search_queries": 2})),
        (vec![chunk(json!([])), chunk(json!(["a"]))], json!({"web_search_queries": 1})),
        (vec![chunk(json!([""])), chunk(json!("a"))], json!({})),
    ] {
        assert_eq!(json!(read(&stream(&chunks)).usage.tool_usage), tools);
    }
}

#[test]
fn counters_are_told_as_often_as_they_change() {
    let chunks = [
        json!({"promptTokenCount": 3, "totalTokenCount": 3, "details": [{"n": 1}], "none": ""}),
        json!({"promptTokenCount": 3, "totalTokenCount": 3, "details": [{"n": 1}], "none": ""}),
        json!({"promptTokenCount": "3", "totalTokenCount": 3.0, "none": []}),
        json!({"totalTokenCount": 4, "promptTokenCount": null}),
        json!({"details": [{"n": 2}], "totalTokenCount": 4}),
        json!({"totalTokenCount": "many"}),
        json!({"totalTokenCount": 5}),
        json!({"toolUsePromptTokenCount": 2, "details": "NUMBER"}),
    ];
    let mut body: Vec<Value> = chunks.map(|counters| json!({"usageMetadata": counters})).into();
    body.extend([said(json!([{"text": "x"}])), finished("STOP")]);
    // A number that no reader takes is passed on as it is written.
    let told = streamed(&Gemini::default(), &stream(&body).replace("\"NUMBER\"", "1e999"));
    let told = told.iter().filter_map(|event| match event {
        Event::Usage { usage } => Some(usage),
        _ => None,
    });
    let told: Vec<Value> = told
        .map(|usage| json!([usage.input_tokens, usage.total_tokens, usage.tool_usage, usage.extra]))
        .collect();
    assert_eq!(
        Value::from(told),
        json!([
            [3, 3, {}, {"details": [{"n": 1}]}],
            [3, 4, {}, {"details": [{"n": 1}]}],
            [3, 4, {}, {"details": [{"n": 2}]}],
            [3, null, {}, {"details": [{"n": 2}], "totalTokenCount": "many"}],
            [3, 5, {}, {"details": [{"n": 2}]}],
            [5, 5, {"prompt_tokens": 2}, {"details": "1e999"}],
            [3, 2, {"prompt_tokens": 2}, {"details": "1e999"}],
        ])
    );
}

#[test]
fn code_that_was_not_answered_is_not_the_end() {
    let mut code = finished("STOP");
    code["candidates"][0]["content"] = json!({"parts": [{"executableCode": {"code": "1"}}]});
    let result = said(json!([{"codeExecutionResult": {"output": "1"}}]));
    let chunks = [code, result, said(json!([{"text": "one"}])), finished("STOP")];
    for kept in 0..chunks.len() {
        assert_eq!(
            failed(&stream(&chunks[..kept])).kind(),
            ErrorKind::Adapter(AdapterReason::NetworkError),
            "after {kept} chunks"
        );
    }
    assert_eq!(read(&stream(&chunks)).text(), "one");
}

#[test]
fn what_follows_an_end_must_come_to_its_own() {
    let first = stream(&[said(json!([{"text": "a"}])), finished("STOP")]);
    let kind = |body: &str| failed(body).kind();
    let broken = ErrorKind::Adapter(AdapterReason::NetworkError);
    assert_eq!(read(&first).text(), "a");
    assert_eq!(kind(&(first.clone() + &stream(&[said(json!([{"text": "b"}]))]))), broken);
    assert_eq!(kind(&(first.clone() + "data: {\"candidates\": [{\"con")), broken);
    let marked = first.clone() + "data: [DONE]\n\n";
    assert_eq!(read(&marked).text(), "a", "as some gateways end");
    let counted = first + "data: {\"usageMetadata\": {\"promptTokenCount\": 3}}\n\n";
    assert_eq!(read(&counted).usage.input_tokens, Some(3), "counters may come last");
}

#[test]
fn an_answer_may_come_whole_or_as_a_list() {
    let chunks = [said(json!([{"text": "Hel"}])), said(json!([{"text": "lo"}])), finished("STOP")];
    let mut whole = finished("STOP");
    whole["candidates"][0]["content"] = json!({"parts": [{"text": "Hello"}], "role": "model"});
    let mut unfinished = whole.clone();
    unfinished["candidates"][0]["finishReason"].take();
    let (told, read) = read_whole(&unfinished);
    assert_eq!((folded(&told).finish_reason, read), (None, Ok(())), "it came whole all the same");
    let (told, read) = read_whole(&json!([chunks[0]]));
    assert_eq!(folded(&told).text(), "Hel");
    let broken = read.map_err(|error| error.reason());
    assert_eq!(broken, Err("network_error"), "a list has its end");
    for body in [json!(chunks), whole] {
        let (told, read) = read_whole(&body);
        assert_eq!(read, Ok(()));
        let response = folded(&told);
        assert_eq!(
            (response.text().as_ref(), response.finish_reason),
            ("Hello", Some(FinishReason::Stop))
        );
    }
    let error = json!({"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"});
    let error = failed_whole(&json!([chunks[0], {"error": error}]));
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::RateLimited));
}

#[test]
fn an_error_in_the_middle_has_its_reason_and_its_pause() {
    use AdapterReason::*;
    for (code, status, message, expected) in [
        (503, "UNAVAILABLE", "The model is overloaded.", Overloaded),
        (503, "UNAVAILABLE", "come back", ProviderUnavailable),
        (500, "INTERNAL", "m", ProviderUnavailable),
        (504, "DEADLINE_EXCEEDED", "m", Timeout),
        (429, "RESOURCE_EXHAUSTED", "m", RateLimited),
        (403, "PERMISSION_DENIED", "m", PermissionDenied),
        (400, "FAILED_PRECONDITION", "m", InvalidRequest),
    ] {
        let details = json!([
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": []},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.5s"},
        ]);
        let error = json!({"code": code, "message": message, "status": status, "details": details});
        let error = failed(&stream(&[said(json!([])), json!({"error": error})]));
        assert_eq!(error.kind(), ErrorKind::Adapter(expected), "{status}");
        assert_eq!(
            (&*error.message(), error.retry_after()),
            (message, Some(Duration::from_millis(1500)))
        );
    }
}

#[test]
fn what_is_not_known_is_passed_on() {
    let mut chunk = finished("STOP");
    chunk["candidates"][0]["groundingMetadata"] = json!({"webSearchQueries": ["q"]});
    chunk["modelStatus"] = json!({"modelStage": "PREVIEW"});
    let other = json!({"candidates": [{"index": 1, "content": {"parts": [{"text": "no"}]}, "finishReason": "STOP"}]});
    let partial = said(json!([{"functionCall": {"name": "f", "novelty": [1]}}]));
    let told = streamed(&Gemini::default(), &stream(&[other.clone(), partial, chunk]));
    let raw: Vec<Value> = told
        .iter()
        .filter_map(|event| match event {
            Event::RawChunk { chunk } => Some(chunk.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(
        raw,
        [
            other,
            json!({"candidates": [{"content": {"parts": [{"functionCall": {"novelty": [1]}}]}}]}),
            json!({
                "modelStatus": {"modelStage": "PREVIEW"},
                "candidates": [{"groundingMetadata": {"webSearchQueries": ["q"]}}],
            }),
        ]
    );
    assert_eq!(folded(&told).text(), "", "only the first candidate is the answer");
}

#[test]
fn the_arguments_of_a_call_may_come_in_pieces() {
    let call = |pieces: Value, goes_on: bool| {
        said(json!([{"functionCall": {"partialArgs": pieces, "willContinue": goes_on}}]))
    };
    let first = said(json!([{
        "functionCall": {"name": "f", "id": "a", "willContinue": true}, "thoughtSignature": "sig",
    }]));
    let pieces = [
        first.clone(),
        call(json!([{"jsonPath": "$.city", "stringValue": "New ", "willContinue": true}]), true),
        call(json!([{"jsonPath": "$.city", "stringValue": "York"}]), true),
        call(
            json!([{"jsonPath": "$.days[0].n", "numberValue": 1}, {"jsonPath": "$['all days'][0]", "boolValue": true}]),
            true,
        ),
        call(json!([{"jsonPath": "$.none", "nullValue": "NULL_VALUE"}]), true),
        said(json!([{"functionCall": {}}])),
        said(json!([{"functionCall": {"name": "g", "args": {}}}])),
        finished("STOP"),
    ];
    let response = read(&stream(&pieces));
    let calls: Vec<_> = response.tool_calls().collect();
    assert_eq!(
        calls.iter().map(|call| (call.name.as_str(), &call.arguments)).collect::<Vec<_>>(),
        [
            (
                "f",
                &json!({"city": "New York", "days": [{"n": 1}], "all days": [true], "none": null})
            ),
            ("g", &json!({})),
        ]
    );
    assert_eq!(
        (calls[0].id.as_str(), &calls[0].metadata["thoughtSignature"]),
        ("a", &json!("sig"))
    );
    for (piece, reason) in [
        (json!({"jsonPath": "$.city", "stringValue": "New "}), "MAX_TOKENS"),
        (json!({"jsonPath": "$.list[7]", "stringValue": "x"}), "STOP"),
        (json!({"jsonPath": "city", "stringValue": "x"}), "STOP"),
        (json!({"jsonPath": format!("${}", ".a".repeat(100)), "stringValue": "x"}), "STOP"),
    ] {
        let cut = read(&stream(&[first.clone(), call(json!([piece]), true), finished(reason)]));
        let call = cut.tool_calls().next().unwrap();
        assert_eq!((call.name.as_str(), &call.arguments), ("f", &Value::Null), "{piece}");
    }
}

#[test]
fn a_call_whose_arguments_the_limit_cut_off_has_none() {
    let call = said(json!([{"functionCall": {"name": "f"}}]));
    let arguments = |reason: &str| {
        let response = read(&stream(&[call.clone(), finished(reason)]));
        response.tool_calls().next().unwrap().arguments.clone()
    };
    assert_eq!((arguments("STOP"), arguments("MAX_TOKENS")), (json!({}), Value::Null));
}

proptest! {
    #[test]
    fn no_chunk_is_too_odd(chunks in vec(odd_chunk(), 0..8)) {
        let body = stream(&chunks);
        let request = Request::from("hi");
        let (told, _) = events(&Gemini::default(), &request, Delivery::Streamed, [body.as_bytes()]);
        folded(&told);
        let whole = json!(chunks).to_string();
        let (told, _) = events(&Gemini::default(), &request, Delivery::Whole, [whole.as_bytes()]);
        folded(&told);
    }
}

/// Chunks with the right members and the wrong things in them.
fn odd_chunk() -> impl Strategy<Value = Value> {
    let odd = || {
        prop_oneof![
            Just(json!(null)),
            Just(json!("x")),
            Just(json!(5)),
            Just(json!(true)),
            Just(json!({"y": []})),
            Just(json!([[]])),
        ]
    };
    let kind = prop_oneof!["text", "functionCall", "executableCode", "novelty"];
    (kind, odd(), odd(), odd(), odd()).prop_map(|(kind, odd, other, third, fourth)| {
        let mut part = json!({"thoughtSignature": other});
        part[kind.as_str()] = match kind.as_str() {
            "functionCall" => json!({"name": odd, "id": other, "args": third}),
            _ => odd.clone(),
        };
        json!({
            "responseId": odd, "modelVersion": other, "usageMetadata": third, "promptFeedback": fourth,
            "candidates": [{"content": {"parts": [part]}, "finishReason": fourth, "novelty": odd}],
        })
    })
}

fn said(parts: Value) -> Value {
    json!({"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}], "modelVersion": "g", "responseId": "r"})
}

fn finished(reason: &str) -> Value {
    json!({
        "candidates": [{"content": {"role": "model"}, "finishReason": reason, "index": 0}],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
        "modelVersion": "g", "responseId": "r",
    })
}

fn stream(chunks: &[Value]) -> String {
    let chunks: Vec<String> = chunks.iter().map(Value::to_string).collect();
    sse(chunks.iter().map(String::as_str))
}

fn read(body: &str) -> Response {
    folded(&streamed(&Gemini::default(), body))
}

fn read_whole(body: &Value) -> (Vec<Event>, Result<(), Error>) {
    let request = Request::from("hi");
    events(&Gemini::default(), &request, Delivery::Whole, [body.to_string().as_bytes()])
}

fn failed(body: &str) -> Error {
    let request = Request::from("hi");
    events(&Gemini::default(), &request, Delivery::Streamed, [body.as_bytes()]).1.unwrap_err()
}

fn failed_whole(body: &Value) -> Error {
    read_whole(body).1.unwrap_err()
}

/// The parts of an answer in the next request.
fn sent_back(response: &Response) -> Value {
    let request = Request::new([Message::clone(&response.message)]).with_model("gemini-2.5-pro");
    Gemini::default().body(&request, &ModelCall::default()).unwrap()["contents"][0]["parts"].clone()
}
