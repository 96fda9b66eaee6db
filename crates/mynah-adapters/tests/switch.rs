//! One conversation, several providers: none gets what only another can read.

use futures_util::StreamExt as _;
use mynah_adapters::conformance::{Reply, Scenario, Subject, TestServer};
use mynah_data::{Message, Part, Request, ResponseBuilder};
use mynah_step::ModelCall;
use secrecy::SecretString;

use crate::subjects::subjects;

#[tokio::test]
async fn reasoning_goes_back_to_whoever_thought_it_and_to_nobody_else() {
    for (from, author) in subjects() {
        let Some(pieces) = thoughts(from, &*author) else { continue };
        let (answer, _) = ask(&*author, &pieces, Request::from("hi")).await;
        for (to, reader) in subjects() {
            let results = answer.tool_calls().map(|call| Message::tool_result(&call.id, "found"));
            let thread = [Message::user("hi"), answer.clone()].into_iter().chain(results);
            let text = reader.answer(Scenario::Text).unwrap();
            let (_, sent) = ask(&*reader, &text, Request::new(thread)).await;
            assert!(sent.contains("call-1") && sent.contains("found"), "{from} to {to}: {sent}");
            for secret in ["sig-1", "kept-1"] {
                // Where the author has no such thing, it cannot go back.
                let is_known = pieces.concat().contains(secret);
                let goes_back = sent.contains(secret);
                assert_eq!(goes_back, from == to && is_known, "{secret}, {from} to {to}: {sent}");
            }
        }
    }
}

#[tokio::test]
async fn one_server_with_models_of_several_makers_counts_as_several() {
    let models = [
        ("openrouter", ["anthropic/claude-sonnet-5", "anthropic/claude-opus-5", "openai/gpt-5"]),
        (
            "bedrock",
            [
                "us.anthropic.claude-sonnet-5-v1:0",
                "arn:aws:bedrock:eu-west-1:1:inference-profile/eu.anthropic.claude-opus-5",
                "zai.glm-4.7",
            ],
        ),
    ];
    for (name, [model, sibling, stranger]) in models {
        let Some((_, subject)) = subjects().into_iter().find(|(known, _)| *known == name) else {
            continue;
        };
        let pieces = thoughts(name, &*subject).unwrap();
        let (answer, _) = ask_model(&*subject, &pieces, Request::from("hi"), model).await;
        for (to, goes_back) in [(model, true), (sibling, true), (stranger, false)] {
            let results = answer.tool_calls().map(|call| Message::tool_result(&call.id, "found"));
            let thread = [Message::user("hi"), answer.clone()].into_iter().chain(results);
            let text = subject.answer(Scenario::Text).unwrap();
            let (_, sent) = ask_model(&*subject, &text, Request::new(thread), to).await;
            assert_eq!(sent.contains("sig-1"), goes_back, "{model} to {to}: {sent}");
        }
    }
}

#[tokio::test]
async fn what_bears_no_name_is_taken_for_ones_own() {
    for (name, subject) in subjects() {
        if !["anthropic", "gemini", "bedrock"].contains(&name) {
            continue;
        }
        let thought = Part::Reasoning {
            text: "because".to_owned(),
            signature: Some("sig-1".to_owned()),
            redacted: false,
            data: None,
        };
        let answer = Message::assistant_parts([thought, Part::text("so")]);
        let thread = [Message::user("hi"), answer, Message::user("and?")];
        let text = subject.answer(Scenario::Text).unwrap();
        let (_, sent) = ask(&*subject, &text, Request::new(thread)).await;
        assert!(sent.contains("sig-1"), "{name}: {sent}");
    }
}

/// An answer with all that a provider wants back: a signature, and things of its own.
fn thoughts(name: &str, subject: &dyn Subject) -> Option<Vec<String>> {
    let mut pieces = subject.answer(Scenario::Reasoning)?;
    let event = |data: &str| format!("data: {data}\n\n");
    let more = match name {
        "openai" => vec![event(
            r#"{"type":"response.output_item.done","output_index":7,"item":{"type":"web_search_call","id":"kept-1","status":"completed"}}"#,
        )],
        "anthropic" => vec![
            event(
                r#"{"type":"content_block_start","index":7,"content_block":{"type":"redacted_thinking","data":"kept-1"}}"#,
            ),
            event(r#"{"type":"content_block_stop","index":7}"#),
            event(
                r#"{"type":"content_block_start","index":8,"content_block":{"type":"server_tool_use","id":"kept-1","name":"web_search","input":{}}}"#,
            ),
            event(r#"{"type":"content_block_stop","index":8}"#),
            event(
                r#"{"type":"content_block_start","index":9,"content_block":{"type":"compaction","content":"kept-1"}}"#,
            ),
            event(r#"{"type":"content_block_stop","index":9}"#),
        ],
        "gemini" => vec![event(
            r#"{"candidates":[{"content":{"parts":[{"executableCode":{"code":"kept-1"}},{"functionCall":{"id":"call-2","name":"search","args":{}},"thoughtSignature":"kept-1"}]}}]}"#,
        )],
        "openrouter" => vec![event(
            r#"{"choices":[{"delta":{"reasoning_details":[{"type":"reasoning.encrypted","index":1,"data":"kept-1"}]}}]}"#,
        )],
        "bedrock" => vec![
            r#"contentBlockDelta {"contentBlockIndex":7,"delta":{"reasoningContent":{"redactedContent":"/wAB"}}}"#
                .to_owned(),
            r#"contentBlockStop {"contentBlockIndex":7}"#.to_owned(),
        ],
        _ => vec![],
    };
    let at = pieces.len() - 1;
    pieces.splice(at..at, more);
    Some(pieces)
}

/// The answer to a request, and the request as it was sent.
async fn ask(subject: &dyn Subject, pieces: &[String], request: Request) -> (Message, String) {
    ask_model(subject, pieces, request, "model-1").await
}

async fn ask_model(
    subject: &dyn Subject,
    pieces: &[String],
    request: Request,
    model: &str,
) -> (Message, String) {
    let body = pieces.iter().map(|piece| subject.frame(piece));
    let reply = Reply::stream(subject.content_type(), body);
    let server = TestServer::start(move |_| reply.clone()).await.unwrap();
    let key = Some(SecretString::from("key"));
    let mut call = ModelCall::default();
    call.api_key = key;
    let opened = subject.adapter(server.url()).open(request.with_model(model), call).await;
    let mut stream = opened.unwrap();
    let mut answer = ResponseBuilder::new();
    while let Some(event) = stream.next().await {
        answer.apply(&event.unwrap());
    }
    let sent = server.received().pop().unwrap().body.to_string();
    (Message::clone(&answer.into_response().message), sent)
}
