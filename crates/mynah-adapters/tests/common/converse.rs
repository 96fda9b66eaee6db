//! How Amazon Bedrock writes the answers of the suite.

#[path = "frames.rs"]
mod frames;

use std::sync::Arc;

use mynah_adapters::{
    conformance::{Scenario, Subject},
    http::Http,
};
use mynah_data::Request;
use mynah_step::Adapter;

use super::{adapter, image_elsewhere};

/// Its pieces are lines here, each the name of a frame and what is in it.
pub struct Converse(pub Http);

impl Subject for Converse {
    fn adapter(&self, base_url: &str) -> Arc<dyn Adapter> {
        adapter("bedrock", &self.0, base_url)
    }

    fn answer(&self, scenario: Scenario) -> Option<Vec<String>> {
        let start = |index: usize, id: &str, name: &str| {
            format!(
                r#"contentBlockStart {{"contentBlockIndex":{index},"start":{{"toolUse":{{"toolUseId":"{id}","name":"{name}"}}}},"p":"ab"}}"#
            )
        };
        let delta = |index: usize, delta: &str| {
            format!(
                r#"contentBlockDelta {{"contentBlockIndex":{index},"delta":{delta},"p":"abc"}}"#
            )
        };
        let text = |text: &str| delta(0, &format!(r#"{{"text":{text:?}}}"#));
        let input =
            |index, text: &str| delta(index, &format!(r#"{{"toolUse":{{"input":{text:?}}}}}"#));
        let close = |index: usize| format!(r#"contentBlockStop {{"contentBlockIndex":{index}}}"#);
        let (said, reason) = match scenario {
            Scenario::Text => (vec![text("Hello"), text(" wörld 🐦"), close(0)], "end_turn"),
            Scenario::ToolCall => (
                vec![
                    start(0, "call-1", "search"),
                    input(0, r#"{"q": "g"#),
                    input(0, r#"o", "n": 1.0}"#),
                    close(0),
                ],
                "tool_use",
            ),
            Scenario::ParallelCalls => (
                vec![
                    start(0, "call-1", "search"),
                    start(1, "call-2", "lookup"),
                    input(0, r#"{"q":"#),
                    input(1, r#"{"k":[1,2]}"#),
                    input(0, r#""a"}"#),
                    close(1),
                    close(0),
                ],
                "tool_use",
            ),
            Scenario::Reasoning => (
                vec![
                    delta(0, r#"{"reasoningContent":{"text":"because"}}"#),
                    delta(0, r#"{"reasoningContent":{"signature":"sig-1"}}"#),
                    close(0),
                    start(1, "call-1", "search"),
                    close(1),
                ],
                "tool_use",
            ),
            Scenario::Overloaded => {
                let failure =
                    r#"!serviceUnavailableException {"message":"The model is overloaded."}"#;
                return Some(vec![text("Hel"), failure.to_owned()]);
            }
            Scenario::RateLimited => {
                let failure = r#"!throttlingException {"message":"Too many requests, please wait before trying again."}"#;
                return Some(vec![text("Hel"), failure.to_owned()]);
            }
            Scenario::Filtered => (vec![text("Hel"), close(0)], "content_filtered"),
            Scenario::CutOff => {
                (vec![start(0, "call-1", "search"), input(0, r#"{"q": "g"#)], "max_tokens")
            }
            Scenario::Novelty => {
                (vec![text("Hello"), r#"surprise {"novelty":true}"#.to_owned()], "end_turn")
            }
            Scenario::Form => {
                (vec![text(r#"{"bird":"#), text(r#" "mynah"}"#), close(0)], "end_turn")
            }
            _ => return None,
        };
        let mut pieces = vec![r#"messageStart {"role":"assistant","p":"a"}"#.to_owned()];
        pieces.extend(said);
        pieces.push(format!(r#"messageStop {{"stopReason":"{reason}"}}"#));
        let usage = r#"metadata {"usage":{"inputTokens":11,"outputTokens":7,"totalTokens":18},"metrics":{"latencyMs":1}}"#;
        pieces.push(usage.to_owned());
        Some(pieces)
    }

    fn frame(&self, piece: &str) -> Vec<u8> {
        frames::stream(piece.lines())
    }

    fn answer_id(&self) -> Option<&str> {
        None
    }

    fn error(&self, message: &str) -> String {
        format!(r#"{{"message":{message:?}}}"#)
    }

    fn too_long(&self) -> (u16, String) {
        (400, r#"{"message":"Input is too long for requested model."}"#.to_owned())
    }

    fn filtered(&self) -> Option<(u16, String)> {
        Some((400, r#"{"message":"Output blocked by content filtering policy"}"#.to_owned()))
    }

    fn unsupported(&self) -> Option<Request> {
        Some(image_elsewhere())
    }

    fn asks_to_wait(&self) -> bool {
        false
    }

    fn content_type(&self) -> &str {
        "application/vnd.amazon.eventstream"
    }
}
