//! What comes out of an answer that is whole.

use futures_util::future::join_all;
use mynah_data::{Event, FinishReason, Message, Part, Request, ResponseFormat, ToolCall};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{
    REQUEST_ID, Reply, Scenario, Subject, TestServer, hear_whole, reply, request, serving, stream,
};

pub(super) async fn text_comes_whole_in_order_and_counted(subject: &dyn Subject) {
    let pieces = subject.answer(Scenario::Text).expect("every provider writes text");
    let server = serving(reply(subject, Scenario::Text).expect("text")).await;
    let heard = hear_whole(subject, &server, request()).await;
    let (first, last) = (heard.events.first(), heard.events.last());
    assert!(matches!(first, Some(Event::MessageStarted { .. })), "{first:?}");
    assert!(matches!(last, Some(Event::MessageCompleted { .. })), "{last:?}");
    let ends = heard.events.iter().filter(|event| matches!(event, Event::MessageCompleted { .. }));
    assert_eq!(ends.count(), 1, "an answer ends once");
    let deltas: Vec<&str> = heard.events.iter().filter_map(text_delta).collect();
    assert_eq!(deltas, ["Hello", " wörld 🐦"], "pieces come as they were written");
    let response = heard.response;
    assert_eq!(response.text(), "Hello wörld 🐦");
    assert_eq!(response.finish_reason, Some(FinishReason::Stop));
    assert_eq!(
        (response.id.as_deref(), response.model.as_deref()),
        (subject.answer_id(), Some("model-1"))
    );
    assert_eq!((response.usage.input_tokens, response.usage.output_tokens), (Some(11), Some(7)));
    assert_eq!(response.metadata["provider_request_id"], REQUEST_ID);
    let body: Vec<u8> = pieces.iter().flat_map(|piece| subject.frame(piece)).collect();
    let hash: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(response.metadata["raw_response_hash"], hash, "the hash is that of the body");
}

pub(super) async fn bytes_may_come_one_by_one(subject: &dyn Subject) {
    for scenario in [Scenario::Text, Scenario::ParallelCalls, Scenario::Reasoning] {
        let Some(pieces) = subject.answer(scenario) else { continue };
        let body: Vec<u8> = pieces.iter().flat_map(|piece| subject.frame(piece)).collect();
        let bytes = body.iter().map(|byte| vec![*byte]);
        let bytes = serving(Reply::stream(subject.content_type(), bytes)).await;
        let whole = serving(Reply::stream(subject.content_type(), [body])).await;
        let whole = hear_whole(subject, &whole, request()).await;
        assert_eq!(
            hear_whole(subject, &bytes, request()).await.events,
            whole.events,
            "{scenario:?}"
        );
    }
}

pub(super) async fn a_call_keeps_its_arguments_to_the_byte(subject: &dyn Subject) {
    let Some(reply) = reply(subject, Scenario::ToolCall) else { return };
    let heard = hear_whole(subject, &serving(reply).await, request()).await;
    let call = ToolCall::new("call-1", "search", r#"{"q": "go", "n": 1.0}"#);
    assert_eq!(calls(&heard.response.message), [call]);
    assert_eq!(heard.response.finish_reason, Some(FinishReason::ToolCalls));
    assert_calls_are_told_in_order(&heard.events);
}

pub(super) async fn calls_that_come_in_turn_are_told_apart(subject: &dyn Subject) {
    let Some(reply) = reply(subject, Scenario::ParallelCalls) else { return };
    let heard = hear_whole(subject, &serving(reply).await, request()).await;
    let expected = [
        ToolCall::new("call-1", "search", r#"{"q":"a"}"#),
        ToolCall::new("call-2", "lookup", r#"{"k":[1,2]}"#),
    ];
    assert_eq!(calls(&heard.response.message), expected);
    assert_calls_are_told_in_order(&heard.events);
}

pub(super) async fn reasoning_goes_back_with_its_signature(subject: &dyn Subject) {
    let Some(reply) = reply(subject, Scenario::Reasoning) else { return };
    let server = serving(reply).await;
    let heard = hear_whole(subject, &server, request()).await;
    let first = heard.response.message.parts().first();
    assert!(
        matches!(first, Some(Part::Reasoning { text, signature: Some(signed), .. }) if text == "because" && signed == "sig-1"),
        "{first:?}"
    );
    let question = Message::user("hi");
    let result = Message::tool_result("call-1", "found");
    let next = Request::new([question, Message::clone(&heard.response.message), result]);
    hear_whole(subject, &server, next.with_model("model-1")).await;
    let sent = server.received().pop().expect("a second call").body.to_string();
    for part in ["because", "sig-1", "call-1", "found"] {
        assert!(sent.contains(part), "{part} goes back: {sent}");
    }
}

pub(super) async fn a_call_that_was_cut_off_says_so(subject: &dyn Subject) {
    let Some(reply) = reply(subject, Scenario::CutOff) else { return };
    let response = hear_whole(subject, &serving(reply).await, request()).await.response;
    assert_eq!(response.finish_reason, Some(FinishReason::Length));
    let calls = calls(&response.message);
    assert_eq!(calls, [ToolCall::new("call-1", "search", r#"{"q": "g"#)]);
    assert!(calls[0].arguments.is_null());
}

pub(super) async fn what_is_filtered_says_so(subject: &dyn Subject) {
    let Some(reply) = reply(subject, Scenario::Filtered) else { return };
    let response = hear_whole(subject, &serving(reply).await, request()).await.response;
    assert_eq!(response.finish_reason, Some(FinishReason::ContentFilter));
    assert_eq!(response.text(), "Hel", "what was said before stays");
}

pub(super) async fn what_nobody_knows_is_passed_on(subject: &dyn Subject) {
    let Some(reply) = reply(subject, Scenario::Novelty) else { return };
    let heard = hear_whole(subject, &serving(reply).await, request()).await;
    assert_eq!(heard.response.text(), "Hello");
    let mut raw = heard.events.iter().filter_map(|event| match event {
        Event::RawChunk { chunk } => Some(chunk.to_string()),
        _ => None,
    });
    assert!(raw.any(|chunk| chunk.contains("novelty")), "{:?}", heard.events);
}

/// A tool that only enforces the answer's format is not visible in the events.
pub(super) async fn a_form_is_asked_for_and_the_answer_is_its_text(subject: &dyn Subject) {
    let Some(reply) = reply(subject, Scenario::Form) else { return };
    let server = serving(reply).await;
    let schema = json!({
        "type": "object", "properties": {"bird": {"type": "string"}},
        "required": ["bird"], "additionalProperties": false,
    });
    let request = request().with_response_format(ResponseFormat::json_schema("answer", schema));
    let response = hear_whole(subject, &server, request).await.response;
    let answer: Option<serde_json::Value> = serde_json::from_str(&response.text()).ok();
    assert_eq!(answer, Some(json!({"bird": "mynah"})), "{}", response.text());
    assert_eq!(response.finish_reason, Some(FinishReason::Stop));
    assert_eq!(calls(&response.message), [], "the answer is a text");
    let sent = server.received().pop().expect("a call").body.to_string();
    assert!(sent.contains("bird"), "the schema is sent: {sent}");
}

/// The server repeats in each answer what it was asked.
pub(super) async fn streams_side_by_side_do_not_mix(subject: &dyn Subject) {
    const CALLS: usize = 32;
    let pieces = subject.answer(Scenario::Text).expect("text");
    let replies: Vec<Reply> = (0..CALLS)
        .map(|number| {
            let said: Vec<String> = pieces
                .iter()
                .map(|piece| piece.replace("Hello", &format!("Hello {number}")))
                .collect();
            stream(subject, &said)
        })
        .collect();
    let server = TestServer::start(move |received| {
        let asked = received.body.to_string();
        let number = (0..CALLS)
            .find(|number| asked.contains(&format!("number {number}.")))
            .expect("a number");
        replies[number].clone()
    });
    let server = server.await.expect("a port");
    let calls = (0..CALLS).map(|number| {
        let request = Request::from(format!("number {number}.")).with_model("model-1");
        hear_whole(subject, &server, request)
    });
    for (number, heard) in join_all(calls).await.into_iter().enumerate() {
        assert_eq!(heard.response.text(), format!("Hello {number} wörld 🐦"));
    }
}

fn text_delta(event: &Event) -> Option<&str> {
    match event {
        Event::TextDelta { delta, .. } => Some(delta),
        _ => None,
    }
}

fn calls(message: &Message) -> Vec<ToolCall> {
    message.tool_calls().cloned().collect()
}

/// A call is started, then written, then completed, and the pieces are what is completed.
fn assert_calls_are_told_in_order(events: &[Event]) {
    let mut open: Vec<(&str, String)> = Vec::new();
    for event in events {
        let place =
            |open: &[(&str, String)], id: &str| open.iter().position(|(known, _)| *known == id);
        match event {
            Event::ToolCallStarted { id, .. } => {
                assert!(place(&open, id).is_none(), "{id} is started once");
                open.push((id, String::new()));
            }
            Event::ToolCallDelta { id, arguments_delta } => {
                let place = place(&open, id).expect("a call is written after it was started");
                open[place].1.push_str(arguments_delta);
            }
            Event::ToolCallCompleted(call) => {
                let place =
                    place(&open, &call.id).expect("a call is completed after it was started");
                assert_eq!(open.remove(place).1, call.raw_arguments);
            }
            _ => {}
        }
    }
    assert!(open.is_empty(), "every call is completed: {open:?}");
}
