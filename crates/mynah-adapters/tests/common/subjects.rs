//! How each provider writes the answers of the suite.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

#[cfg(feature = "bedrock")]
#[path = "converse.rs"]
mod converse;

use std::sync::Arc;

#[cfg(feature = "bedrock")]
pub use converse::Converse;
use mynah_adapters::{
    conformance::{Scenario, Subject},
    http::{Http, HttpAdapter},
};
use mynah_data::{Image, Message, Part, Request, ToolChoice, ToolSpec};
use mynah_step::Adapter;
use serde_json::json;

/// One subject for each format, with the name of its adapter.
pub fn subjects() -> Vec<(&'static str, Box<dyn Subject>)> {
    let http = http();
    vec![
        ("openai", Box::new(Responses("openai", http.clone()))),
        ("openrouter", Box::new(Chat("openrouter", http.clone()))),
        ("anthropic", Box::new(Messages(http.clone()))),
        ("gemini", Box::new(Partials(http.clone()))),
        ("ollama", Box::new(Lines(http.clone()))),
        #[cfg(feature = "bedrock")]
        ("bedrock", Box::new(Converse(http))),
    ]
}

pub fn http() -> Http {
    Http::new().expect("a client")
}

fn adapter(name: &str, http: &Http, base_url: &str) -> Arc<dyn Adapter> {
    let adapter = HttpAdapter::named(name).and_then(|adapter| adapter.with_base_url(base_url));
    Arc::new(adapter.expect("an adapter").with_http(http.clone()))
}

/// A request with an image that the provider is to fetch.
fn image_elsewhere() -> Request {
    let image = Part::image(Image::from_url("https://example.com/a.png"));
    Request::new([Message::user_parts([image])]).with_model("model-1")
}

/// Pieces, each one server-sent event.
fn events(data: &[&str]) -> Option<Vec<String>> {
    Some(data.iter().map(|data| format!("data: {data}\n\n")).collect())
}

pub struct Chat(pub &'static str, pub Http);

impl Subject for Chat {
    fn adapter(&self, base_url: &str) -> Arc<dyn Adapter> {
        adapter(self.0, &self.1, base_url)
    }

    /// The usage and `[DONE]`.
    fn may_lack(&self) -> usize {
        2
    }

    fn answer(&self, scenario: Scenario) -> Option<Vec<String>> {
        let chunk = |delta: &str, finish: &str| {
            format!(
                r#"{{"id":"answer-1","object":"chat.completion.chunk","created":1,"model":"model-1","choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish}}}],"usage":null}}"#
            )
        };
        let said = |delta: &str| chunk(delta, "null");
        let calls = |calls: &str| said(&format!(r#"{{"tool_calls":[{calls}]}}"#));
        let usage = r#"{"id":"answer-1","model":"model-1","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":7,"total_tokens":18}}"#;
        let first = said(r#"{"role":"assistant","content":"","refusal":null}"#);
        let (said, reason) = match scenario {
            Scenario::Text => (
                vec![first, said(r#"{"content":"Hello"}"#), said(r#"{"content":" wörld 🐦"}"#)],
                "stop",
            ),
            Scenario::ToolCall => (
                vec![
                    first,
                    calls(
                        r#"{"index":0,"id":"call-1","type":"function","function":{"name":"search","arguments":""}}"#,
                    ),
                    calls(r#"{"index":0,"function":{"arguments":"{\"q\": \"g"}}"#),
                    calls(r#"{"index":0,"function":{"arguments":"o\", \"n\": 1.0}"}}"#),
                ],
                "tool_calls",
            ),
            Scenario::ParallelCalls => (
                vec![
                    calls(
                        r#"{"index":0,"id":"call-1","function":{"name":"search","arguments":""}}"#,
                    ),
                    calls(
                        r#"{"index":1,"id":"call-2","function":{"name":"lookup","arguments":"{\"k\""}}"#,
                    ),
                    calls(
                        r#"{"index":0,"function":{"arguments":"{\"q\":"}},{"index":1,"function":{"arguments":":[1,"}}"#,
                    ),
                    calls(r#"{"index":1,"function":{"arguments":"2]}"}}"#),
                    calls(r#"{"index":0,"function":{"arguments":"\"a\"}"}}"#),
                ],
                "tool_calls",
            ),
            // OpenAI itself tells nothing of its reasoning in this format.
            Scenario::Reasoning if self.0 == "openrouter" => (
                vec![
                    said(
                        r#"{"reasoning":"be","reasoning_details":[{"type":"reasoning.text","index":0,"text":"be"}]}"#,
                    ),
                    said(
                        r#"{"reasoning":"cause","reasoning_details":[{"type":"reasoning.text","index":0,"text":"cause"}]}"#,
                    ),
                    said(
                        r#"{"reasoning_details":[{"type":"reasoning.text","index":0,"signature":"sig-1"}]}"#,
                    ),
                    calls(
                        r#"{"index":0,"id":"call-1","function":{"name":"search","arguments":"{}"}}"#,
                    ),
                ],
                "tool_calls",
            ),
            Scenario::Overloaded => {
                let failure =
                    r#"{"error":{"message":"no capacity","type":"overloaded_error","code":529}}"#;
                return events(&[&first, &said(r#"{"content":"Hel"}"#), failure]);
            }
            Scenario::RateLimited => {
                let failure = r#"{"error":{"message":"Rate limit reached. Please try again in 2s.","type":"tokens","code":"rate_limit_exceeded"}}"#;
                return events(&[&first, &said(r#"{"content":"Hel"}"#), failure]);
            }
            Scenario::Filtered => (vec![first, said(r#"{"content":"Hel"}"#)], "content_filter"),
            Scenario::CutOff => (
                vec![calls(
                    r#"{"index":0,"id":"call-1","function":{"name":"search","arguments":"{\"q\": \"g"}}"#,
                )],
                "length",
            ),
            Scenario::Novelty => (vec![said(r#"{"content":"Hello","novelty":true}"#)], "stop"),
            Scenario::Form => {
                let pieces = [r#"{"content":"{\"bird\":"}"#, r#"{"content":" \"mynah\"}"}"#];
                (pieces.map(said).to_vec(), "stop")
            }
            _ => return None,
        };
        let mut pieces: Vec<&str> = said.iter().map(String::as_str).collect();
        let finish = chunk("{}", &format!("{reason:?}"));
        pieces.extend([finish.as_str(), usage, "[DONE]"]);
        events(&pieces)
    }

    fn error(&self, message: &str) -> String {
        format!(
            r#"{{"error":{{"message":{message:?},"type":"invalid_request_error","param":null,"code":null}}}}"#
        )
    }

    fn too_long(&self) -> (u16, String) {
        let body = r#"{"error":{"message":"This model's maximum context length is 8 tokens","code":"context_length_exceeded"}}"#;
        (400, body.to_owned())
    }

    fn filtered(&self) -> Option<(u16, String)> {
        let body = r#"{"error":{"message":"The response was filtered","type":null,"param":"prompt","code":"content_filter","status":400}}"#;
        Some((400, body.to_owned()))
    }

    fn unsupported(&self) -> Option<Request> {
        None
    }
}

pub struct Messages(pub Http);

impl Subject for Messages {
    fn adapter(&self, base_url: &str) -> Arc<dyn Adapter> {
        adapter("anthropic", &self.0, base_url)
    }

    fn answer(&self, scenario: Scenario) -> Option<Vec<String>> {
        let start = r#"{"type":"message_start","message":{"id":"answer-1","type":"message","role":"assistant","model":"model-1","content":[],"stop_reason":null,"usage":{"input_tokens":11,"output_tokens":1}}}"#;
        let open = |index: usize, block: &str| {
            format!(r#"{{"type":"content_block_start","index":{index},"content_block":{block}}}"#)
        };
        let delta = |index: usize, kind: &str, member: &str, text: &str| {
            format!(
                r#"{{"type":"content_block_delta","index":{index},"delta":{{"type":"{kind}","{member}":{text:?}}}}}"#
            )
        };
        let close = |index: usize| format!(r#"{{"type":"content_block_stop","index":{index}}}"#);
        let call = |index: usize, id: &str, name: &str, pieces: &[&str]| {
            let block =
                format!(r#"{{"type":"tool_use","id":"{id}","name":"{name}","input":{{}}}}"#);
            let mut said = vec![open(index, &block)];
            said.extend(
                pieces.iter().map(|piece| delta(index, "input_json_delta", "partial_json", piece)),
            );
            said.push(close(index));
            said
        };
        let text = |pieces: &[&str]| {
            let mut said = vec![open(0, r#"{"type":"text","text":""}"#)];
            said.extend(pieces.iter().map(|piece| delta(0, "text_delta", "text", piece)));
            said
        };
        let failed = |failure: &str| {
            let mut said = vec![start.to_owned()];
            said.extend(text(&["Hel"]));
            said.push(failure.to_owned());
            events(&said.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let ping = r#"{"type":"ping"}"#.to_owned();
        let (said, reason) = match scenario {
            Scenario::Text => {
                ([text(&["Hello", " wörld 🐦"]), vec![close(0), ping]].concat(), "end_turn")
            }
            Scenario::ToolCall => {
                (call(0, "call-1", "search", &["", r#"{"q": "g"#, r#"o", "n": 1.0}"#]), "tool_use")
            }
            // Blocks follow each other in this format.
            Scenario::ParallelCalls => (
                [
                    call(0, "call-1", "search", &[r#"{"q":"#, r#""a"}"#]),
                    call(1, "call-2", "lookup", &[r#"{"k":[1,2]}"#]),
                ]
                .concat(),
                "tool_use",
            ),
            Scenario::Reasoning => {
                let thinking = vec![
                    open(0, r#"{"type":"thinking","thinking":"","signature":""}"#),
                    delta(0, "thinking_delta", "thinking", "because"),
                    delta(0, "signature_delta", "signature", "sig-1"),
                    close(0),
                ];
                ([thinking, call(1, "call-1", "search", &[""])].concat(), "tool_use")
            }
            Scenario::Overloaded => {
                return failed(
                    r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
                );
            }
            Scenario::RateLimited => {
                return failed(
                    r#"{"type":"error","error":{"type":"rate_limit_error","message":"Number of requests has exceeded your rate limit"}}"#,
                );
            }
            Scenario::Filtered => ([text(&["Hel"]), vec![close(0)]].concat(), "refusal"),
            Scenario::CutOff => (call(0, "call-1", "search", &[r#"{"q": "g"#]), "max_tokens"),
            Scenario::Novelty => {
                let novelty = r#"{"type":"surprise","novelty":true}"#.to_owned();
                ([text(&["Hello"]), vec![close(0), novelty]].concat(), "end_turn")
            }
            Scenario::Form => {
                ([text(&[r#"{"bird":"#, r#" "mynah"}"#]), vec![close(0)]].concat(), "end_turn")
            }
            _ => return None,
        };
        let stop = format!(
            r#"{{"type":"message_delta","delta":{{"stop_reason":"{reason}","stop_sequence":null}},"usage":{{"output_tokens":7}}}}"#
        );
        let mut pieces = vec![start];
        pieces.extend(said.iter().map(String::as_str));
        pieces.extend([stop.as_str(), r#"{"type":"message_stop"}"#]);
        let named = pieces.iter().map(|data| {
            let kind = data.split('"').nth(3).unwrap_or_default();
            format!("event: {kind}\ndata: {data}\n\n")
        });
        Some(named.collect())
    }

    fn error(&self, message: &str) -> String {
        format!(
            r#"{{"type":"error","error":{{"type":"invalid_request_error","message":{message:?}}},"request_id":null}}"#
        )
    }

    fn too_long(&self) -> (u16, String) {
        let body = r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 9 tokens > 8 maximum"}}"#;
        (400, body.to_owned())
    }

    fn filtered(&self) -> Option<(u16, String)> {
        let body = r#"{"type":"error","error":{"type":"invalid_request_error","message":"Output blocked by content filtering policy"}}"#;
        Some((400, body.to_owned()))
    }

    fn unsupported(&self) -> Option<Request> {
        let mut request = Request::from("hi").with_model("model-1");
        request.tool_choice = Some(ToolChoice::Required);
        Some(request)
    }

    fn asks_to_wait(&self) -> bool {
        false
    }
}

pub struct Partials(pub Http);

impl Subject for Partials {
    fn adapter(&self, base_url: &str) -> Arc<dyn Adapter> {
        adapter("gemini", &self.0, base_url)
    }

    fn answer(&self, scenario: Scenario) -> Option<Vec<String>> {
        const IDS: &str = r#""modelVersion":"model-1","responseId":"answer-1""#;
        let said = |parts: &str| {
            format!(
                r#"{{"candidates":[{{"content":{{"role":"model","parts":[{parts}]}},"index":0}}],"usageMetadata":{{"promptTokenCount":11,"totalTokenCount":11}},{IDS}}}"#
            )
        };
        let call = |id: &str, name: &str, args: &str| {
            format!(r#"{{"functionCall":{{"id":"{id}","name":"{name}","args":{args}}}}}"#)
        };
        let said = match scenario {
            Scenario::Text => {
                vec![said(r#"{"text":"Hello"}"#), said(r#"{"text":" wörld 🐦"}"#)]
            }
            Scenario::ToolCall => vec![said(&call("call-1", "search", r#"{"q": "go", "n": 1.0}"#))],
            Scenario::ParallelCalls => {
                let calls = [
                    call("call-1", "search", r#"{"q":"a"}"#),
                    call("call-2", "lookup", r#"{"k":[1,2]}"#),
                ];
                vec![said(&calls.join(","))]
            }
            Scenario::Reasoning => vec![
                said(r#"{"text":"because","thought":true,"thoughtSignature":"sig-1"}"#),
                said(&call("call-1", "search", "{}")),
            ],
            Scenario::Overloaded => {
                let failure = r#"{"error":{"code":503,"message":"The model is overloaded. Please try again later.","status":"UNAVAILABLE"}}"#;
                return events(&[&said(r#"{"text":"Hel"}"#), failure]);
            }
            Scenario::RateLimited => {
                let failure = r#"{"error":{"code":429,"message":"You exceeded your current quota.","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"2s"}]}}"#;
                return events(&[&said(r#"{"text":"Hel"}"#), failure]);
            }
            Scenario::Filtered => vec![said(r#"{"text":"Hel"}"#)],
            Scenario::Novelty => vec![said(r#"{"text":"Hello","novelty":true}"#)],
            Scenario::Form => {
                vec![said(r#"{"text":"{\"bird\":"}"#), said(r#"{"text":" \"mynah\"}"}"#)]
            }
            // Calls come whole.
            _ => return None,
        };
        let reason = if scenario == Scenario::Filtered { "SAFETY" } else { "STOP" };
        let finish = format!(
            r#"{{"candidates":[{{"content":{{"role":"model","parts":[{{"text":""}}]}},"finishReason":"{reason}"}}],"usageMetadata":{{"promptTokenCount":11,"candidatesTokenCount":4,"thoughtsTokenCount":3,"totalTokenCount":18}},{IDS}}}"#
        );
        let mut pieces: Vec<&str> = said.iter().map(String::as_str).collect();
        pieces.push(&finish);
        Some(pieces.iter().map(|data| format!("data: {data}\r\n\r\n")).collect())
    }

    fn error(&self, message: &str) -> String {
        format!(r#"{{"error":{{"code":400,"message":{message:?},"status":"INVALID_ARGUMENT"}}}}"#)
    }

    fn too_long(&self) -> (u16, String) {
        let body = r#"{"error":{"code":400,"message":"The input token count (9) exceeds the maximum number of tokens allowed (8).","status":"INVALID_ARGUMENT"}}"#;
        (400, body.to_owned())
    }

    fn filtered(&self) -> Option<(u16, String)> {
        let body = r#"{"promptFeedback":{"blockReason":"PROHIBITED_CONTENT"},"usageMetadata":{"promptTokenCount":11,"totalTokenCount":11},"modelVersion":"model-1"}"#;
        Some((200, body.to_owned()))
    }

    fn unsupported(&self) -> Option<Request> {
        let tool = ToolSpec::new("search", "", json!({"type": "object"}));
        let mut request = Request::from("hi").with_model("model-1").with_tools([tool]);
        request.options.insert("parallel_tool_calls".to_owned(), false.into());
        Some(request)
    }
}

pub struct Responses(pub &'static str, pub Http);

impl Subject for Responses {
    fn adapter(&self, base_url: &str) -> Arc<dyn Adapter> {
        adapter(self.0, &self.1, base_url)
    }

    fn answer(&self, scenario: Scenario) -> Option<Vec<String>> {
        let reply = |status: &str, rest: &str| {
            format!(
                r#""response":{{"id":"answer-1","object":"response","model":"model-1","status":"{status}","output":[]{rest}}}}}"#
            )
        };
        let usage = r#","usage":{"input_tokens":11,"output_tokens":7,"total_tokens":18}"#;
        let start = format!(r#"{{"type":"response.created",{}"#, reply("in_progress", ""));
        let done = format!(r#"{{"type":"response.completed",{}"#, reply("completed", usage));
        let item = |kind: &str, index: usize, item: &str| {
            format!(
                r#"{{"type":"response.output_item.{kind}","output_index":{index},"item":{item}}}"#
            )
        };
        let delta = |kind: &str, id: &str, index: usize, text: &str| {
            format!(
                r#"{{"type":"response.{kind}.delta","item_id":"{id}","output_index":{index},"content_index":0,"delta":{text:?}}}"#
            )
        };
        let call = |number: usize, name: &str, arguments: &str| {
            format!(
                r#"{{"type":"function_call","id":"fc-{number}","call_id":"call-{number}","name":"{name}","arguments":{arguments:?}}}"#
            )
        };
        let arguments = |number: usize, text: &str| {
            delta("function_call_arguments", &format!("fc-{number}"), number - 1, text)
        };
        let open =
            item("added", 0, r#"{"type":"message","id":"msg-1","role":"assistant","content":[]}"#);
        let text = |text: &str| delta("output_text", "msg-1", 0, text);
        let mut said = vec![start];
        let mut end = done;
        match scenario {
            Scenario::Text => said.extend([open, text("Hello"), text(" wörld 🐦")]),
            Scenario::ToolCall => said.extend([
                item("added", 0, &call(1, "search", "")),
                arguments(1, r#"{"q": "g"#),
                arguments(1, r#"o", "n": 1.0}"#),
                item("done", 0, &call(1, "search", r#"{"q": "go", "n": 1.0}"#)),
            ]),
            Scenario::ParallelCalls => said.extend([
                item("added", 0, &call(1, "search", "")),
                item("added", 1, &call(2, "lookup", "")),
                arguments(1, r#"{"q":"#),
                arguments(2, r#"{"k":[1"#),
                arguments(1, r#""a"}"#),
                arguments(2, ",2]}"),
            ]),
            Scenario::Reasoning => said.extend([
                item("added", 0, r#"{"type":"reasoning","id":"rs-1","summary":[]}"#),
                delta("reasoning_summary_text", "rs-1", 0, "because"),
                item("done", 0, r#"{"type":"reasoning","id":"rs-1","summary":[{"type":"summary_text","text":"because"}],"encrypted_content":"sig-1"}"#),
                item("done", 1, &call(1, "search", "{}")),
            ]),
            Scenario::Overloaded => {
                said.extend([open, text("Hel")]);
                let error = r#","error":{"code":"server_is_overloaded","message":"Try again later."}"#;
                end = format!(r#"{{"type":"response.failed",{}"#, reply("failed", error));
            }
            Scenario::RateLimited => {
                said.extend([open, text("Hel")]);
                let error = r#","error":{"code":"rate_limit_exceeded","message":"Rate limit reached. Please try again in 2s."}"#;
                end = format!(r#"{{"type":"response.failed",{}"#, reply("failed", error));
            }
            Scenario::Filtered => {
                said.extend([open, text("Hel")]);
                let why = format!(r#"{usage},"incomplete_details":{{"reason":"content_filter"}}"#);
                end = format!(r#"{{"type":"response.incomplete",{}"#, reply("incomplete", &why));
            }
            Scenario::CutOff => {
                said.extend([item("added", 0, &call(1, "search", "")), arguments(1, r#"{"q": "g"#)]);
                let why = format!(r#"{usage},"incomplete_details":{{"reason":"max_output_tokens"}}"#);
                end = format!(r#"{{"type":"response.incomplete",{}"#, reply("incomplete", &why));
            }
            Scenario::Novelty => said.extend([
                open,
                text("Hello"),
                r#"{"type":"response.surprise","novelty":true}"#.to_owned(),
            ]),
            Scenario::Form => said.extend([open, text(r#"{"bird":"#), text(r#" "mynah"}"#)]),
            _ => return None,
        }
        said.push(end);
        let named = said.iter().map(|data| {
            let kind = data.split('"').nth(3).unwrap_or_default();
            format!("event: {kind}\ndata: {data}\n\n")
        });
        Some(named.collect())
    }

    fn error(&self, message: &str) -> String {
        match self.0 {
            "xai" => format!(r#"{{"code":"Some requested entity","error":{message:?}}}"#),
            _ => format!(
                r#"{{"error":{{"message":{message:?},"type":"invalid_request_error","param":null,"code":null}}}}"#
            ),
        }
    }

    fn too_long(&self) -> (u16, String) {
        let body = r#"{"error":{"message":"Your input exceeds the context window of this model.","type":"invalid_request_error","code":"context_length_exceeded"}}"#;
        (400, body.to_owned())
    }

    fn filtered(&self) -> Option<(u16, String)> {
        let body = r#"{"error":{"message":"Invalid prompt: your prompt was flagged as potentially violating our usage policy.","type":"invalid_request_error","code":"invalid_prompt"}}"#;
        Some((400, body.to_owned()))
    }

    fn unsupported(&self) -> Option<Request> {
        None
    }
}

/// Ollama: thinking has no signature, a call's arguments come as an object, and it never says that it is overloaded.
pub struct Lines(pub Http);

impl Subject for Lines {
    fn adapter(&self, base_url: &str) -> Arc<dyn Adapter> {
        adapter("ollama", &self.0, base_url)
    }

    fn answer(&self, scenario: Scenario) -> Option<Vec<String>> {
        let line = |message: &str, rest: &str| {
            format!(
                r#"{{"model":"model-1","created_at":"2026-01-01T00:00:00Z","message":{{"role":"assistant",{message}}},{rest}}}"#
            )
        };
        let said = |message: &str| line(message, r#""done":false"#);
        let call = |id: &str, name: &str, arguments: &str| {
            said(&format!(
                r#""content":"","tool_calls":[{{"id":"{id}","function":{{"name":"{name}","arguments":{arguments}}}}}]"#
            ))
        };
        let mut lines = match scenario {
            Scenario::Text => {
                vec![said(r#""content":"Hello""#), said(r#""content":" wörld 🐦""#)]
            }
            Scenario::ParallelCalls => vec![
                call("call-1", "search", r#"{"q":"a"}"#),
                call("call-2", "lookup", r#"{"k":[1,2]}"#),
            ],
            Scenario::Novelty => vec![said(r#""content":"Hello","novelty":true"#)],
            Scenario::Form => {
                vec![said(r#""content":"{\"bird\":""#), said(r#""content":" \"mynah\"}""#)]
            }
            _ => return None,
        };
        lines.push(line(
            r#""content":"""#,
            r#""done":true,"done_reason":"stop","prompt_eval_count":11,"eval_count":7"#,
        ));
        Some(lines.iter().map(|line| format!("{line}\n")).collect())
    }

    fn error(&self, message: &str) -> String {
        format!(r#"{{"error":{message:?}}}"#)
    }

    fn too_long(&self) -> (u16, String) {
        let body = r#"{"error":"the input length exceeds the context length"}"#;
        (400, body.to_owned())
    }

    fn filtered(&self) -> Option<(u16, String)> {
        None
    }

    fn unsupported(&self) -> Option<Request> {
        Some(image_elsewhere())
    }

    fn answer_id(&self) -> Option<&str> {
        None
    }

    fn content_type(&self) -> &str {
        "application/x-ndjson"
    }
}
