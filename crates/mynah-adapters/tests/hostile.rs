//! Bytes that no provider would send: never a panic, never a hang, and never more memory than they are worth.

use allocation_counter::measure;
use mynah_adapters::{
    conformance::Scenario,
    format::{Delivery, Reader},
    presets::Preset,
};
use mynah_data::{Event, Metadata, Request};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use crate::{common::events, subjects::subjects, targets};

const NAMES: [&str; 7] =
    ["openai", "openai-chat", "openrouter", "anthropic", "gemini", "ollama", "bedrock"];

proptest! {
    #[test]
    fn any_bytes_at_all(bytes in vec(any::<u8>(), 0..400)) {
        every_target(&bytes);
    }

    #[test]
    fn bytes_that_look_like_events(lines in vec(line(), 0..30)) {
        every_target(lines.concat().as_bytes());
    }

    #[test]
    fn answers_with_a_piece_changed(
        (kind, scenario, at) in (any::<usize>(), any::<usize>(), any::<usize>()),
        change in vec(any::<u8>(), 0..6),
    ) {
        const SCENARIOS: [Scenario; 4] =
            [Scenario::Text, Scenario::ToolCall, Scenario::ParallelCalls, Scenario::Reasoning];
        let subjects = subjects();
        let (name, subject) = &subjects[kind % subjects.len()];
        if let Some(pieces) = subject.answer(SCENARIOS[scenario % SCENARIOS.len()]) {
            let mut body = match *name {
                "bedrock" => pieces.join("\n").into_bytes(),
                _ => pieces.concat().into_bytes(),
            };
            let at = at % (body.len() + 1);
            let end = (at + change.len() / 2).min(body.len());
            body.splice(at..end, change);
            targets::answer(name, &body);
        }
    }
}

#[test]
fn an_answer_of_too_many_parts_is_refused() {
    let many = |item: fn(usize) -> String| (0..6_000).map(item).collect::<String>();
    let bodies = [
        (
            "openai-chat",
            many(|n| {
                let call = json!({"index": n, "id": n.to_string(), "function": {"name": "f"}});
                format!("data: {}\n\n", json!({"choices": [{"delta": {"tool_calls": [call]}}]}))
            }),
        ),
        (
            "anthropic",
            many(|n| {
                let block = json!({"type": "text", "text": ""});
                let event =
                    json!({"type": "content_block_start", "index": n, "content_block": block});
                format!("data: {event}\n\n")
            }),
        ),
        (
            "openai",
            many(|n| {
                let item = json!({"type": "message", "id": n.to_string()});
                format!("data: {}\n\n", json!({"type": "response.output_item.added", "item": item}))
            }),
        ),
        (
            "gemini",
            many(|n| {
                let part = json!({"text": "x", "thought": n % 2 == 0});
                format!("data: {}\n\n", json!({"candidates": [{"content": {"parts": [part]}}]}))
            }),
        ),
        (
            "ollama",
            many(|_| {
                let call = json!({"function": {"name": "f"}});
                format!("{}\n", json!({"message": {"tool_calls": [call]}}))
            }),
        ),
    ];
    for (name, body) in bodies {
        let format = Preset::named(name).unwrap().format();
        let (_, read) =
            events(&*format, &Request::from("hi"), Delivery::Streamed, [body.as_bytes()]);
        let error = read.expect_err(name);
        assert_eq!(error.reason(), "malformed_response", "{name}");
        assert!(error.message().into_owned().contains("more than 4096"), "{name}: {error}");
    }
}

#[test]
fn what_is_made_up_anew_each_time_is_not_kept() {
    let many = |item: fn(usize) -> Value| {
        (0..5_000).map(|n| format!("data: {}\n\n", item(n))).collect::<Vec<_>>()
    };
    let choices: Vec<Value> = (0..20_000).map(|_| json!({"index": 1})).collect();
    let bodies = [
        ("openai-chat", vec![format!("data: {}\n\n", json!({"choices": choices}))]),
        ("gemini", vec![format!("data: {}\n\n", json!({"candidates": choices}))]),
        ("gemini", many(|n| json!({"usageMetadata": {n.to_string(): 1}}))),
        ("anthropic", many(|n| json!({"type": "message_delta", "usage": {n.to_string(): 1}}))),
        (
            "openrouter",
            many(|n| {
                let detail = json!({"type": "reasoning.text", "index": n, "text": "x"});
                json!({"choices": [{"delta": {"reasoning_details": [detail]}}]})
            }),
        ),
    ];
    for (name, pieces) in bodies {
        let format = Preset::named(name).unwrap().format();
        let memory = measure(|| {
            let mut reader = Reader::new(&*format, &Request::from("hi"), Delivery::Streamed);
            for piece in &pieces {
                let read = reader.push(piece.as_bytes());
                assert!(read.is_ok() || piece.len() > 100_000, "{name}: {read:?}");
                while reader.next_event().is_some() {}
            }
        });
        assert!(memory.bytes_max <= 8 << 20, "{name}: {}", memory.bytes_max);
    }
}

#[test]
fn a_body_a_frame_and_a_line_have_their_limits() {
    for name in NAMES {
        let format = Preset::named(name).unwrap().format();
        for delivery in [Delivery::Streamed, Delivery::Whole] {
            let mut reader =
                Reader::new(&*format, &Request::from("hi"), delivery).with_limit(1 << 10);
            let fed = (0..1_000).try_for_each(|_| reader.push(b": nothing\n"));
            let error = fed.and_then(|()| reader.finish(Metadata::new())).expect_err(name);
            assert_eq!(error.reason(), "malformed_response", "{name}: {error}");
        }
        // One line that never ends.
        let mut reader = Reader::new(&*format, &Request::from("hi"), Delivery::Streamed);
        let piece = [b'd'; 1 << 16];
        let fed = (0..2_000).try_for_each(|_| reader.push(&piece));
        let error = fed.expect_err(name);
        assert_eq!(error.metadata()["limit"], 64 << 20, "{name}: {error}");
    }
}

#[test]
fn what_is_nested_too_deep_is_read_once() {
    // To look at all of the body for each of these would not end today.
    const MEMBERS: usize = 4_000;
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    let (each, one) = (deep(200), deep(1 << 19));
    let members: String = (0..MEMBERS).map(|n| format!("\"{n}\":{each},")).collect();
    let known = format!("\"model\":{each},").repeat(MEMBERS);
    let chat = json!({"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]});
    let body =
        format!("data: {{{known}{members}\"one\":{one}}}\n\ndata: {chat}\n\ndata: [DONE]\n\n");
    let format = Preset::named("openai-chat").unwrap().format();
    let (told, read) =
        events(&*format, &Request::from("hi"), Delivery::Streamed, [body.as_bytes()]);
    assert_eq!(read, Ok(()));
    let chunk = told.iter().find_map(|event| match event {
        Event::RawChunk { chunk } => chunk.as_object(),
        _ => None,
    });
    let chunk = chunk.unwrap();
    assert_eq!(chunk.len(), MEMBERS + 2);
    assert!(chunk.iter().all(|(name, text)| *text == if name == "one" { &*one } else { &*each }));
}

fn every_target(bytes: &[u8]) {
    targets::sse(bytes);
    targets::lines(bytes);
    targets::event_stream(bytes);
    NAMES.iter().for_each(|name| targets::answer(name, bytes));
}

/// Something like a line of a stream.
fn line() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "data: ",
        "data:",
        "event: ",
        ":",
        "id: ",
        "retry: 1",
        "{",
        "}",
        "[",
        "]",
        "\"",
        ",",
        "null",
        "7",
        "\"index\":",
        "\"choices\":",
        "\"delta\":",
        "\"content\":",
        "\"tool_calls\":",
        "\"function\":",
        "\"type\":",
        "\"message_start\"",
        "\"content_block_start\"",
        "\"content_block_delta\"",
        "\"content_block\":",
        "\"candidates\":",
        "\"parts\":",
        "\"text\":",
        "\"item\":",
        "\"output\":",
        "\"response.completed\"",
        "[DONE]",
        "\u{feff}",
        "\r",
        "\n",
        "\r\n",
        "é",
        "🐦",
        " ",
    ]);
    (vec(word, 0..12), prop::sample::select(vec!["\n", "\n\n", "\r\n", "\r\r", ""]))
        .prop_map(|(words, end)| words.concat() + end)
}
