//! The format of the examples does what every adapter must.

#[allow(dead_code, unreachable_pub, reason = "an example is a program too")]
#[path = "../../../examples/14_own_format.rs"]
mod example;

use std::sync::Arc;

use example::Parrot;
use mynah::{
    Adapter, Request,
    adapters::{
        conformance::{self, Scenario, Subject},
        http::{Http, HttpAdapter},
    },
};
use serde_json::json;

#[tokio::test]
async fn a_format_of_ones_own_does_what_every_adapter_must() {
    conformance::run(&Cage(Http::new().unwrap())).await;
}

struct Cage(Http);

impl Subject for Cage {
    fn adapter(&self, base_url: &str) -> Arc<dyn Adapter> {
        let adapter = HttpAdapter::new("parrot", Arc::new(Parrot)).with_base_url(base_url);
        Arc::new(adapter.unwrap().with_key_variables(["PARROT_KEY"]).with_http(self.0.clone()))
    }

    fn answer(&self, scenario: Scenario) -> Option<Vec<String>> {
        let word = |word: &str| json!({"kind": "word", "word": word});
        let call = |id: &str, name: &str, arguments: &str| json!({"kind": "call", "id": id, "name": name, "arguments": arguments});
        let said = match scenario {
            Scenario::Text => vec![word("Hello"), word(" wörld 🐦")],
            Scenario::ToolCall => vec![call("call-1", "search", r#"{"q": "go", "n": 1.0}"#)],
            Scenario::ParallelCalls => vec![
                call("call-1", "search", r#"{"q":"a"}"#),
                call("call-2", "lookup", r#"{"k":[1,2]}"#),
            ],
            Scenario::Reasoning => vec![
                json!({"kind": "thought", "word": "because", "seal": "sig-1"}),
                call("call-1", "search", "{}"),
            ],
            Scenario::Overloaded => vec![
                word("Hel"),
                json!({"kind": "trouble", "message": "too many birds", "code": "overloaded"}),
            ],
            Scenario::RateLimited => vec![
                word("Hel"),
                json!({"kind": "trouble", "message": "try again in 2s", "code": "rate_limited"}),
            ],
            Scenario::CutOff => vec![call("call-1", "search", r#"{"q": "g"#)],
            Scenario::Novelty => vec![word("Hello"), json!({"kind": "song", "novelty": true})],
            _ => return None,
        };
        let mut said =
            [vec![json!({"kind": "egg", "id": "answer-1", "bird": "model-1"})], said].concat();
        let why = if scenario == Scenario::CutOff { "cage covered" } else { "done" };
        if !matches!(scenario, Scenario::Overloaded | Scenario::RateLimited) {
            said.push(json!({"kind": "end", "seeds": 11, "words": 7, "why": why}));
        }
        Some(said.iter().map(|line| format!("{line}\n")).collect())
    }

    fn error(&self, message: &str) -> String {
        json!({"error": message}).to_string()
    }

    fn too_long(&self) -> (u16, String) {
        (
            400,
            json!({"error": "the prompt is too long", "code": "context_length_exceeded"})
                .to_string(),
        )
    }

    fn filtered(&self) -> Option<(u16, String)> {
        let body = json!({"error": "not before the children", "code": "content_filter"});
        Some((400, body.to_string()))
    }

    fn unsupported(&self) -> Option<Request> {
        None
    }

    fn content_type(&self) -> &str {
        "application/x-ndjson"
    }
}
