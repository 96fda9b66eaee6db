//! What decoding an answer costs: each figure beside a limit or a peer taken in the same run.
//!
//! `cargo xtask bench decode`. Ratios are what to look at; the times depend on the machine.

#![allow(clippy::expect_used, reason = "a bench that cannot run says why")]
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use mynah_adapters::{
    anthropic::Anthropic,
    format::{Delivery, Format, Reader},
    gemini::Gemini,
    openai_chat::OpenAiChat,
    openai_responses::OpenAiResponses,
    sse::{Framer, SseFramer},
};
use mynah_data::{Metadata, Request};
use serde::Deserialize;

/// What a connection hands out at once.
const PIECE: usize = 16 << 10;

/// How much is decoded.
const SIZE: usize = 10 << 20;

fn main() {
    println!(
        "{:<46} {:>12} {:>12} {:>8}  goal",
        "10 MB of small deltas", "mynah", "beside", "ratio"
    );
    let chat = stream(
        &[],
        |n| {
            format!(
                r#"{{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4.1-mini","service_tier":"default","system_fingerprint":"fp_1","choices":[{{"index":0,"delta":{{"content":" word{n}"}},"logprobs":null,"finish_reason":null}}],"usage":null,"obfuscation":"abcdef"}}"#
            )
        },
        &[r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#, "[DONE]"],
    );
    compare("Chat Completions", &OpenAiChat::default(), &chat, smallest::<ChatChunk>);
    let messages = stream(
        &[r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#],
        |n| {
            format!(
                r#"{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":" word{n}"}}}}"#
            )
        },
        &[
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#,
            r#"{"type":"message_stop"}"#,
        ],
    );
    compare("Messages", &Anthropic::default(), &messages, smallest::<MessageEvent>);
    let responses = stream(
        &[
            r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"msg_1","content":[]}}"#,
        ],
        |n| {
            format!(
                r#"{{"type":"response.output_text.delta","content_index":0,"delta":" word{n}","item_id":"msg_1","logprobs":[],"obfuscation":"abcdef","output_index":0,"sequence_number":{n}}}"#
            )
        },
        &[r#"{"type":"response.completed","response":{"status":"completed","output":[]}}"#],
    );
    compare("Responses", &OpenAiResponses::default(), &responses, smallest::<ResponseEvent>);
    // This provider sends fewer and longer pieces, and counts with each of them: every other event
    // is of counters, which the smallest struct leaves out.
    let gemini = stream(
        &[],
        |n| {
            let text = format!(" word{n}").repeat(10);
            format!(
                r#"{{"candidates":[{{"content":{{"parts":[{{"text":"{text}"}}],"role":"model"}},"index":0}}],"modelVersion":"gemini-2.5-flash","responseId":"id_1","usageMetadata":{{"candidatesTokenCount":{n},"promptTokenCount":14,"promptTokensDetails":[{{"modality":"TEXT","tokenCount":14}}],"serviceTier":"standard","totalTokenCount":{n}}}}}"#
            )
        },
        &[
            r#"{"candidates":[{"content":{"parts":[{"text":""}]},"finishReason":"STOP","index":0}]}"#,
        ],
    );
    compare("Gemini", &Gemini::default(), &gemini, smallest::<GeminiChunk>);
}

fn compare(name: &str, format: &dyn Format, body: &str, peer: fn(&str)) {
    let (mut ours, mut theirs, mut lines, mut frames) =
        (Duration::MAX, Duration::MAX, Duration::MAX, Duration::MAX);
    for _ in 0..25 {
        ours = ours.min(timed(|| decode(format, body)));
        theirs = theirs.min(timed(|| peer(body)));
        frames = frames.min(timed(|| frame(body)));
        lines = lines.min(timed(|| split(body)));
    }
    report(&format!("{name}: events, against serde_json alone"), ours, theirs, "1.5x");
    report(&format!("{name}: events, against splitting lines"), ours, lines, "");
    report(&format!("{name}: frames, against splitting lines"), frames, lines, "");
}

fn decode(format: &dyn Format, body: &str) {
    let mut reader = Reader::new(format, &Request::from("hi"), Delivery::Streamed);
    for piece in body.as_bytes().chunks(PIECE) {
        reader.push(piece).expect("a whole answer");
        while let Some(event) = reader.next_event() {
            black_box(event);
        }
    }
    reader.finish(Metadata::new()).expect("a whole answer");
}

fn frame(body: &str) {
    let mut framer = SseFramer::new();
    let mut length = 0;
    for piece in body.as_bytes().chunks(PIECE) {
        let framed = framer.push(piece, &mut |frame| {
            length += frame.data.len();
            Ok(())
        });
        framed.expect("frames");
    }
    black_box(length);
}

fn split(body: &str) {
    black_box(body.lines().map(str::len).sum::<usize>());
}

/// The least that must be read to have the text.
#[derive(Deserialize)]
struct ChatChunk {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Content,
}

#[derive(Deserialize)]
struct Content {
    #[serde(default)]
    content: Option<String>,
}

impl Text for ChatChunk {
    fn text(self) -> Option<String> {
        self.choices.into_iter().next()?.delta.content
    }
}

#[derive(Deserialize)]
struct MessageEvent {
    #[serde(default)]
    delta: Option<TextDelta>,
}

#[derive(Deserialize)]
struct TextDelta {
    #[serde(default)]
    text: Option<String>,
}

impl Text for MessageEvent {
    fn text(self) -> Option<String> {
        self.delta?.text
    }
}

#[derive(Deserialize)]
struct ResponseEvent {
    #[serde(default)]
    delta: Option<String>,
}

impl Text for ResponseEvent {
    fn text(self) -> Option<String> {
        self.delta
    }
}

#[derive(Deserialize)]
struct GeminiChunk {
    candidates: Vec<Candidate>,
}

#[derive(Deserialize)]
struct Candidate {
    content: Parts,
}

#[derive(Deserialize)]
struct Parts {
    parts: Vec<TextDelta>,
}

impl Text for GeminiChunk {
    fn text(self) -> Option<String> {
        self.candidates.into_iter().next()?.content.parts.into_iter().next()?.text
    }
}

trait Text {
    fn text(self) -> Option<String>;
}

fn smallest<T: Text + for<'de> Deserialize<'de>>(body: &str) {
    for line in body.lines() {
        if let Some(data) = line.strip_prefix("data: ")
            && let Ok(chunk) = serde_json::from_str::<T>(data)
        {
            black_box(chunk.text());
        }
    }
}

fn stream(first: &[&str], delta: impl Fn(usize) -> String, last: &[&str]) -> String {
    let mut body = String::with_capacity(SIZE + 1024);
    let mut say = |data: &str| {
        body.push_str("data: ");
        body.push_str(data);
        body.push_str("\n\n");
        body.len()
    };
    for data in first {
        say(data);
    }
    let mut n = 0;
    while say(&delta(n)) < SIZE {
        n += 1;
    }
    for data in last {
        say(data);
    }
    body
}

fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

fn report(what: &str, ours: Duration, beside: Duration, goal: &str) {
    let ratio = ours.as_secs_f64() / beside.as_secs_f64();
    println!("{what:<46} {ours:>12.2?} {beside:>12.2?} {ratio:>7.2}x  {goal}");
}
