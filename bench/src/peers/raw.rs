//! What a person would write without a library.

use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{price, schema};
use crate::{
    Result,
    work::{PROMPT, Peer, Seen, TOOL_DESCRIPTION, Work},
};

#[derive(Clone)]
pub struct Raw {
    client: reqwest::Client,
    url: String,
}

#[derive(Deserialize)]
struct Chunk {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Delta,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    #[serde(default)]
    tool_calls: Vec<CallPiece>,
}

#[derive(Deserialize)]
struct CallPiece {
    index: usize,
    id: Option<String>,
    function: Function,
}

#[derive(Default, Deserialize)]
struct Function {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

#[derive(Default)]
struct Answer {
    text: String,
    calls: Vec<Call>,
}

impl Answer {
    fn take(&mut self, line: &[u8]) -> Result<()> {
        let Some(data) = line.strip_prefix(b"data: ").filter(|data| *data != b"[DONE]") else {
            return Ok(());
        };
        let chunk: Chunk = serde_json::from_slice(data)?;
        for Choice { delta } in chunk.choices {
            self.text.push_str(&delta.content.unwrap_or_default());
            for piece in delta.tool_calls {
                if self.calls.len() <= piece.index {
                    self.calls.resize_with(piece.index + 1, Call::default);
                }
                let call = &mut self.calls[piece.index];
                call.id.push_str(&piece.id.unwrap_or_default());
                call.name.push_str(&piece.function.name.unwrap_or_default());
                call.arguments.push_str(&piece.function.arguments.unwrap_or_default());
            }
        }
        Ok(())
    }
}

impl Raw {
    pub fn new(url: &str) -> Result<Self> {
        let client = reqwest::Client::builder().no_proxy().build()?;
        Ok(Self { client, url: format!("{url}/chat/completions") })
    }

    async fn ask(&self, body: &Value) -> Result<Answer> {
        let request = self.client.post(&self.url).bearer_auth("key");
        let request = request.header("content-type", "application/json");
        let response = request.body(serde_json::to_vec(body)?).send().await?.error_for_status()?;
        let mut pieces = response.bytes_stream();
        let (mut answer, mut held) = (Answer::default(), Vec::new());
        while let Some(piece) = pieces.next().await {
            held.extend_from_slice(&piece?);
            let mut begin = 0;
            while let Some(length) = held[begin..].iter().position(|byte| *byte == b'\n') {
                answer.take(&held[begin..begin + length])?;
                begin += length + 1;
            }
            held.drain(..begin);
        }
        Ok(answer)
    }
}

impl Peer for Raw {
    async fn run(&self, work: Work) -> Result<Seen> {
        let mut messages = vec![json!({"role": "user", "content": PROMPT})];
        let function =
            json!({"name": "price", "description": TOOL_DESCRIPTION, "parameters": schema()});
        let tools = json!([{"type": "function", "function": function}]);
        let mut seen = Seen::default();
        loop {
            let mut body = json!({"model": work.name(), "messages": messages, "stream": true});
            body["stream_options"] = json!({"include_usage": true});
            if work != Work::Deltas {
                body["tools"] = tools.clone();
            }
            let Answer { text, calls } = self.ask(&body).await?;
            seen.text += text.len();
            seen.calls += calls.len();
            if calls.is_empty() {
                return Ok(seen);
            }
            let listed = calls.iter().map(|call| {
                let function = json!({"name": call.name, "arguments": call.arguments});
                json!({"id": call.id, "type": "function", "function": function})
            });
            let listed: Vec<Value> = listed.collect();
            messages.push(json!({"role": "assistant", "content": null, "tool_calls": listed}));
            for call in calls {
                let content = price(serde_json::from_str(&call.arguments)?).to_string();
                messages.push(json!({"role": "tool", "tool_call_id": call.id, "content": content}));
            }
        }
    }
}
