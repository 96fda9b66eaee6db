//! What providers say when they refuse, and what we make of it.

use std::time::Duration;

use mynah_adapters::{
    anthropic::Anthropic,
    failure,
    format::{Delivery, Format},
    ollama::Ollama,
    openai_chat::OpenAiChat,
};
use mynah_data::{AdapterReason, Error, ErrorKind, Request};
use serde_json::{Value, json};

use crate::common;

#[test]
fn o13_o14_n18_each_refusal_has_its_reason_and_its_message() {
    use AdapterReason::*;
    for (status, body, reason, message) in [
        (
            401,
            r#"{"error":{"message":"Incorrect API key provided","type":"invalid_request_error","code":"invalid_api_key"}}"#,
            AuthenticationFailed,
            "Incorrect API key provided",
        ),
        (
            400,
            r#"{"error":{"message":"too many","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
            ContextLengthExceeded,
            "too many",
        ),
        (
            400,
            r#"{"error":{"message":"refused","type":null,"code":"content_filter"}}"#,
            ContentFilter,
            "refused",
        ),
        (
            400,
            r#"{"error":{"message":"no such model","code":"model_not_found"}}"#,
            NotFound,
            "no such model",
        ),
        (
            429,
            r#"{"error":{"message":"quota","type":"insufficient_quota","code":"insufficient_quota"}}"#,
            PermissionDenied,
            "quota",
        ),
        (
            400,
            r#"{"error":{"code":400,"message":"x/y is not a valid model ID"},"user_id":"u"}"#,
            NotFound,
            "x/y is not a valid model ID",
        ),
        (
            400,
            r#"{"object":"error","message":"Invalid model: x","type":"invalid_model","param":null,"code":"1500"}"#,
            NotFound,
            "Invalid model: x",
        ),
        (
            400,
            r#"{"code":"Client specified an invalid argument","error":"Model not found: x"}"#,
            NotFound,
            "Model not found: x",
        ),
        (
            429,
            r#"{"error":{"message":"not active","type":"billing_not_active","code":"billing_not_active"}}"#,
            PermissionDenied,
            "not active",
        ),
        (
            400,
            r#"{"error":{"message":"hard limit","type":"invalid_request_error","code":"billing_hard_limit_reached"}}"#,
            PermissionDenied,
            "hard limit",
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"You have reached your specified API usage limits. You will regain access on 2026-12-01."}}"#,
            PermissionDenied,
            "You have reached your specified API usage limits. You will regain access on 2026-12-01.",
        ),
        (
            400,
            r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error"}}"#,
            ContextLengthExceeded,
            "the request exceeds the available context size",
        ),
        (
            500,
            r#"{"error":{"code":500,"message":"tools param requires --jinja flag","type":"server_error"}}"#,
            InvalidRequest,
            "tools param requires --jinja flag",
        ),
        (
            500,
            r#"{"error":{"code":500,"message":"Cannot use both json_schema and grammar","type":"server_error"}}"#,
            InvalidRequest,
            "Cannot use both json_schema and grammar",
        ),
        (
            500,
            r#"{"error":{"code":500,"message":"Context size has been exceeded.","type":"server_error"}}"#,
            ContextLengthExceeded,
            "Context size has been exceeded.",
        ),
        (
            502,
            r#"{"error":{"message":"Provider returned error","code":502,"metadata":{"raw":"{\"error\":{\"message\":\"maximum context length is 8\"}}"}}}"#,
            ContextLengthExceeded,
            "Provider returned error: maximum context length is 8",
        ),
        (
            500,
            r#"{"error":{"message":"the file of the model was not found","type":"server_error"}}"#,
            ProviderUnavailable,
            "the file of the model was not found",
        ),
        (
            413,
            r#"{"error":{"message":"Request too large for model `m` on tokens per minute (TPM): Limit 6, Requested 7, please reduce your message size","type":"tokens","code":"rate_limit_exceeded"}}"#,
            ContextLengthExceeded,
            "Request too large for model `m` on tokens per minute (TPM): Limit 6, Requested 7, please reduce your message size",
        ),
        (
            429,
            r#"{"error":{"message":"Request too large for m on tokens per min (TPM): Limit 6, Requested 7. The input or output tokens must be reduced.","type":"tokens","code":"rate_limit_exceeded"}}"#,
            ContextLengthExceeded,
            "Request too large for m on tokens per min (TPM): Limit 6, Requested 7. The input or output tokens must be reduced.",
        ),
        (
            503,
            r#"{"error":{"message":"There is not enough capacity for this context length, try again later","type":"server_error"}}"#,
            ProviderUnavailable,
            "There is not enough capacity for this context length, try again later",
        ),
        (
            429,
            r#"{"message":"Too many tokens, please wait before trying again.","__type":"ThrottlingException"}"#,
            RateLimited,
            "Too many tokens, please wait before trying again.",
        ),
        (
            403,
            r#"{"Message":"Authentication failed: Please make sure your API Key is valid."}"#,
            AuthenticationFailed,
            "Authentication failed: Please make sure your API Key is valid.",
        ),
        (
            503,
            r#"{"error":{"message":"The engine is currently overloaded, please try again later"}}"#,
            Overloaded,
            "The engine is currently overloaded, please try again later",
        ),
        (
            400,
            r#"{"code":"invalid-argument","error":"Incorrect API key provided: x"}"#,
            AuthenticationFailed,
            "Incorrect API key provided: x",
        ),
        (401, r#"{"detail":"Unauthorized"}"#, AuthenticationFailed, "Unauthorized"),
        (
            422,
            r#"{"detail":[{"msg":"field required"}]}"#,
            InvalidRequest,
            r#"[{"msg":"field required"}]"#,
        ),
        (
            400,
            r#"{"object":"error","message":"Logprobs","type":"invalid_request_invalid_args","code":"3051"}"#,
            InvalidRequest,
            "Logprobs",
        ),
        (
            400,
            r#"[{"error":{"code":400,"message":"API key not valid.","status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}]"#,
            AuthenticationFailed,
            "API key not valid.",
        ),
        (
            403,
            r#"{"type":"error","error":{"type":"permission_error","message":"not yours"}}"#,
            PermissionDenied,
            "not yours",
        ),
        (
            413,
            r#"{"type":"error","error":{"type":"request_too_large","message":"too large"}}"#,
            InvalidRequest,
            "too large",
        ),
        (
            529,
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            Overloaded,
            "Overloaded",
        ),
        (
            402,
            r#"{"error":{"message":"Insufficient Balance"}}"#,
            PermissionDenied,
            "Insufficient Balance",
        ),
        (
            400,
            r#"{"__type":"com.amazon.coral.service#ThrottlingException","message":"slow down"}"#,
            RateLimited,
            "slow down",
        ),
        (
            422,
            r#"{"object":"error","message":{"detail":[{"msg":"Field required"}]},"type":"invalid_request_error","code":null}"#,
            InvalidRequest,
            r#"{"detail":[{"msg":"Field required"}]}"#,
        ),
        (
            400,
            r#"{"error":{"message":"filtered","code":"bad","innererror":{"code":"ResponsibleAIPolicyViolation"}}}"#,
            ContentFilter,
            "filtered",
        ),
        (
            424,
            r#"{"message":"the model failed","__type":"ModelErrorException"}"#,
            ProviderUnavailable,
            "the model failed",
        ),
        (
            498,
            r#"{"error":{"message":"no room","type":"flex","code":"capacity_exceeded"}}"#,
            Overloaded,
            "no room",
        ),
        (498, "", Overloaded, "HTTP status 498"),
        (
            400,
            r#"{"object":"error","message":"The decoder prompt (length 9) is longer than the maximum model length of 8.","type":"BadRequestError","code":400}"#,
            ContextLengthExceeded,
            "The decoder prompt (length 9) is longer than the maximum model length of 8.",
        ),
        (
            422,
            r#"{"error":{"message":"`inputs` tokens + `max_new_tokens` must be <= 8","type":"invalid_request_error"}}"#,
            ContextLengthExceeded,
            "`inputs` tokens + `max_new_tokens` must be <= 8",
        ),
        (
            400,
            r#"{"error":{"message":"Invalid prompt: your prompt was flagged as potentially violating our usage policy.","type":"invalid_request_error","code":"invalid_prompt"}}"#,
            ContentFilter,
            "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
        ),
        (
            400,
            r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"maximum context length is 8\"}}","provider_name":"Azure"}}}"#,
            ContextLengthExceeded,
            "Provider returned error: Azure: maximum context length is 8",
        ),
        (
            502,
            r#"{"error":{"message":"Provider returned error","code":502,"metadata":{"raw":"worker died"}}}"#,
            ProviderUnavailable,
            "Provider returned error: worker died",
        ),
        (
            429,
            r#"{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":{"message":"later"},"provider_name":"Groq"}}}"#,
            RateLimited,
            "Provider returned error: Groq: later",
        ),
        (
            403,
            r#"{"error":{"message":"flagged","code":403,"metadata":{"reasons":["violence"],"flagged_input":"…","provider_name":"OpenAI"}}}"#,
            ContentFilter,
            "flagged",
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"Output blocked by content filtering policy"}}"#,
            ContentFilter,
            "Output blocked by content filtering policy",
        ),
        (
            400,
            r#"{"error":{"message":"Content Exists Risk","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}"#,
            ContentFilter,
            "Content Exists Risk",
        ),
        (
            400,
            r#"{"error":{"message":"m","type":"image_generation_user_error","code":"moderation_blocked"}}"#,
            ContentFilter,
            "m",
        ),
        (
            403,
            r#"{"code":"permission_denied","error":"Content violates usage guidelines. Team: t"}"#,
            ContentFilter,
            "Content violates usage guidelines. Team: t",
        ),
        (
            400,
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the API."}}"#,
            PermissionDenied,
            "Your credit balance is too low to access the API.",
        ),
        (
            429,
            "event: error\ndata: {\"error\":{\"message\":\"later\",\"type\":\"overloaded_error\"}}\n\n",
            Overloaded,
            "later",
        ),
        (503, r#"{"error":"too busy","error_type":"overloaded"}"#, Overloaded, "too busy"),
        (429, r#"{"error":null,"message":"later"}"#, RateLimited, "later"),
        (500, r#"{"errors":[{"message":"worker died"}]}"#, ProviderUnavailable, "worker died"),
        (401, r#"{"Message":"no token"}"#, AuthenticationFailed, "no token"),
        (404, r#""no such page""#, NotFound, "no such page"),
        (400, "[]", InvalidRequest, "HTTP status 400"),
        (408, "", Timeout, "HTTP status 408"),
        (501, "", UnsupportedFeature, "HTTP status 501"),
        (502, "<html>Bad gateway</html>", ProviderUnavailable, "HTTP status 502"),
        (503, "upstream connect error", ProviderUnavailable, "upstream connect error"),
        (302, "", Unknown, "HTTP status 302"),
    ] {
        let error = failure::of_response(status, |_| None, body.as_bytes());
        assert_eq!(
            (error.kind(), error.message().into_owned().as_str()),
            (ErrorKind::Adapter(reason), message),
            "{status} {body}"
        );
    }
}

#[test]
fn words_alone_tell_a_model_that_is_not_there_and_a_prompt_that_is_too_long() {
    use AdapterReason::*;
    for (message, reason) in [
        ("Model Not Exist", NotFound),
        ("Model no-such/model does not exist", NotFound),
        ("The provided model identifier is invalid.", NotFound),
        ("User input tokens exceeds 127072 tokens", ContextLengthExceeded),
        ("Number of input tokens exceeds maximum length", ContextLengthExceeded),
        ("This model's maximum context length is 8 tokens", ContextLengthExceeded),
        ("the request exceeds the available context size", ContextLengthExceeded),
        ("Cannot truncate prompt with n_keep (11378) >= n_ctx (4096)", ContextLengthExceeded),
        (
            "Trying to keep the first 9 tokens when context the overflows. However, the model is loaded with context length of only 8 tokens, which is not enough.",
            ContextLengthExceeded,
        ),
        ("Invalid 'tools[0].function.name': 'context window' does not match", InvalidRequest),
        ("The image does not exist", InvalidRequest),
        ("tool get_model does not exist", InvalidRequest),
    ] {
        let body = json!({"error": {"message": message, "type": "invalid_request_error"}});
        let error = failure::of_response(400, |_| None, body.to_string().as_bytes());
        assert_eq!(error.kind(), ErrorKind::Adapter(reason), "{message}");
        if reason == ContextLengthExceeded {
            let event = json!({"error": {"message": message}});
            assert_eq!(failure::in_stream(&event).kind(), error.kind(), "{message}");
        }
    }
}

#[test]
fn whether_another_try_is_worth_it_may_stand_in_a_header() {
    for (told, kept) in [("true", Some(true)), ("false", Some(false)), ("maybe", None)] {
        let error =
            failure::of_response(409, |name| (name == "x-should-retry").then_some(told), b"");
        assert_eq!(error.metadata().get("should_retry"), kept.map(|kept| json!(kept)).as_ref());
    }
}

#[test]
fn the_ids_that_help_a_provider_to_help_are_kept() {
    let body =
        br#"{"type":"error","error":{"type":"api_error","message":"m"},"request_id":"from body"}"#;
    let id = |header: Option<&'static str>| {
        let error = failure::of_response(500, |name| header.filter(|_| name == "request-id"), body);
        error.metadata()["request_id"].as_str().map(str::to_owned)
    };
    assert_eq!(id(None).as_deref(), Some("from body"));
    assert_eq!(id(Some("from header")).as_deref(), Some("from header"));
    let event = String::from_utf8(body.to_vec()).unwrap();
    let error = failed(&Anthropic::default(), &format!("event: error\ndata: {event}\n\n"));
    assert_eq!(error.metadata()["request_id"], "from body");
}

#[test]
fn what_the_model_wrote_in_vain_is_told_as_far_as_it_is_short() {
    let told = |wrote: &str| {
        let said = json!({"error": {
            "message": "Failed to call a function. See 'failed_generation' for more details.",
            "type": "invalid_request_error", "code": "tool_use_failed", "failed_generation": wrote,
        }});
        let refused = failure::of_response(400, |_| None, said.to_string().as_bytes());
        let in_stream = failure::in_stream(&said);
        assert_eq!(refused.kind(), ErrorKind::Adapter(AdapterReason::InvalidRequest));
        let [refused, in_stream] =
            [refused, in_stream].map(|error| error.metadata()["failed_generation"].clone());
        assert_eq!(refused, in_stream);
        refused.as_str().unwrap().to_owned()
    };
    assert_eq!(told("<function=f>"), "<function=f>");
    assert_eq!(told(&"é".repeat(5_000)), "é".repeat(2_048));
}

#[test]
fn a_server_that_sends_elsewhere_is_not_followed_and_the_place_is_told() {
    let header = |name: &str| (name == "location").then_some("https://elsewhere/v1");
    let error = failure::of_response(308, header, b"");
    assert_eq!(error.message(), "HTTP status 308: the server sends to https://elsewhere/v1");
}

#[test]
fn a_whole_answer_that_is_cut_through_broke_off() {
    let whole = r#"{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}"#;
    let read = |body: &str| {
        let request = Request::from("hi");
        common::events(&OpenAiChat::default(), &request, Delivery::Whole, [body.as_bytes()]).1
    };
    assert_eq!(read(whole), Ok(()));
    for cut in [&whole[..1], &whole[..40], &whole[..whole.len() - 1]] {
        let error = read(cut).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::NetworkError), "{cut}");
    }
}

#[test]
fn what_kind_of_error_it_is_and_how_long_to_wait_may_stand_in_other_places() {
    let kind = "ThrottlingException:http://internal.amazon.com/coral/com.amazon.bedrock/";
    let header = |name: &str| (name == "x-amzn-errortype").then_some(kind);
    let error = failure::of_response(400, header, br#"{"message":"Too many requests"}"#);
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::RateLimited));
    assert_eq!(error.metadata()["type"], "ThrottlingException");
    let body = br#"{"error":{"code":429,"message":"m","status":"RESOURCE_EXHAUSTED","details":[{"violations":[]},{"retryDelay":"34.5s"}]}}"#;
    let told = |header: Option<&'static str>| {
        let error =
            failure::of_response(429, |name| header.filter(|_| name == "retry-after"), body);
        error.retry_after().map(|time| time.as_millis())
    };
    assert_eq!((told(None), told(Some("2"))), (Some(34_500), Some(2000)), "a header comes first");
}

#[test]
fn what_fails_in_the_middle_of_an_answer_fails_for_the_providers_reasons() {
    let (chat, ollama) = (OpenAiChat::default(), Ollama::default());
    let formats: [(&dyn Format, &str); 2] = [
        (
            &chat,
            "data: {\"error\":{\"message\":\"the runner was killed\",\"type\":\"novelty\"}}\n\n",
        ),
        (&ollama, "{\"error\":\"the runner was killed\"}\n"),
    ];
    for (format, body) in formats {
        let error = failed(format, body);
        assert_eq!(
            (error.kind(), error.message().into_owned().as_str()),
            (ErrorKind::Adapter(AdapterReason::ProviderUnavailable), "the runner was killed")
        );
    }
}

#[test]
fn an_answer_that_is_blocked_on_its_way_is_filtered() {
    let words = "Output blocked by content filtering policy";
    let error = json!({"type": "error", "error": {"type": "api_error", "message": words}});
    let error = failed(&Anthropic::default(), &format!("event: error\ndata: {error}\n\n"));
    assert_eq!(
        (error.kind(), error.message().into_owned().as_str()),
        (ErrorKind::Adapter(AdapterReason::ContentFilter), words)
    );
}

#[test]
fn words_in_the_place_of_a_stream_are_malformed_and_half_a_line_of_one_broke_off() {
    let (chat, ollama) = (OpenAiChat::default(), Ollama::default());
    let formats: [(&dyn Format, &[&str]); 2] = [
        (&chat, &["d", "data: {\"choices", "event: message\nda", ": wait\n", "", "\n\n"]),
        (&ollama, &["{\"model\":", "", "\n"]),
    ];
    for (format, halves) in formats {
        for words in
            ["upstream connect error", "internal error: x\n", "error code: 520\nid\n", "OK"]
        {
            assert_eq!(
                failed(format, words).kind(),
                ErrorKind::Adapter(AdapterReason::MalformedResponse),
                "{words:?}"
            );
        }
        for half in halves {
            assert_eq!(
                failed(format, half).kind(),
                ErrorKind::Adapter(AdapterReason::NetworkError),
                "{half:?}"
            );
        }
    }
}

/// A program may shorten its conversation where that is too long. A name does not get shorter by it.
#[test]
fn a_string_that_is_too_long_is_too_much_context_where_the_model_would_read_it() {
    use AdapterReason::{ContextLengthExceeded, InvalidRequest};
    let reason = |param: Value| {
        let error = json!({"message": "string too long", "code": "string_above_max_length", "type": "invalid_request_error", "param": param});
        failure::of_response(400, |_| None, json!({"error": error}).to_string().as_bytes()).kind()
    };
    for param in [
        json!(null),
        json!("input"),
        json!("messages[1].content"),
        json!("input[3].content[0].text"),
        json!("input[2].output"),
        json!("messages[1].tool_calls[0].function.arguments"),
        json!("instructions"),
    ] {
        assert_eq!(reason(param), ErrorKind::Adapter(ContextLengthExceeded));
    }
    for param in ["tools[0].function.name", "input[2].call_id", "user", "metadata.content_id"] {
        assert_eq!(reason(param.into()), ErrorKind::Adapter(InvalidRequest), "{param}");
    }
}

#[test]
fn y09_a_pause_may_be_milliseconds_seconds_or_a_date() {
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (headers, expected) in [
        (vec![("retry-after-ms", "1500"), ("retry-after", "2")], Some(1500)),
        (vec![("retry-after", "2")], Some(2000)),
        (vec![("retry-after", "0.5")], Some(500)),
        (vec![("retry-after", "Sun, 06 Nov 1994 08:49:40 GMT"), ("date", DATE)], Some(3000)),
        (vec![("retry-after", DATE)], Some(0)),
        (vec![("retry-after", "soon")], None),
        (vec![("retry-after", "-1")], None),
        (vec![], None),
    ] {
        let header =
            |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let error = failure::of_response(429, header, b"");
        assert_eq!(error.retry_after().map(|time| time.as_millis()), expected, "{headers:?}");
    }
}

fn failed(format: &dyn Format, body: &str) -> Error {
    let request = Request::from("hi");
    common::events(format, &request, Delivery::Streamed, [body.as_bytes()]).1.unwrap_err()
}

#[test]
fn a_pause_that_is_asked_for_in_words_is_told() {
    let pause = |words: &str| {
        let said = json!({"error": {"message": words, "code": "rate_limit_exceeded"}});
        failure::in_stream(&said).retry_after().map(|time| time.as_millis())
    };
    for (words, ms) in [
        ("Please try again in 11.054s. Visit https://example.com to learn more.", Some(11_054)),
        ("Please try again in 28ms.", Some(28)),
        ("Please try again in 7m12.5s.", Some(432_500)),
        ("Please try again in 1h0m1s", Some(3_601_000)),
        ("Please try again in 20 seconds.", None),
        ("Please try again in a while.", None),
        ("Please try again in -5s.", None),
        ("Please try again in ", None),
        ("Please try again later.", None),
    ] {
        assert_eq!(pause(words), ms, "{words}");
    }
    let header = |name: &str| (name == "retry-after").then_some("3");
    let body = br#"{"error": {"message": "Please try again in 1s."}}"#;
    assert_eq!(failure::of_response(429, header, body).retry_after(), Some(Duration::from_secs(3)));
}
