//! genai, which leaves the loop to its user.

use futures_util::StreamExt as _;
use genai::{
    Client, ModelIden, ServiceTarget,
    adapter::AdapterKind,
    chat::{ChatMessage, ChatOptions, ChatRequest, ChatStreamEvent, Tool, ToolResponse},
    resolver::{AuthData, Endpoint, ServiceTargetResolver},
};

use super::{price, schema};
use crate::{
    Result,
    work::{PROMPT, Peer, Seen, TOOL_DESCRIPTION, Work},
};

#[derive(Clone)]
pub struct GenAi(Client);

impl GenAi {
    pub fn new(url: &str) -> Result<Self> {
        let url = format!("{url}/");
        let resolve = move |target: ServiceTarget| -> genai::resolver::Result<ServiceTarget> {
            let model = ModelIden::new(AdapterKind::OpenAI, target.model.model_name);
            let (endpoint, auth) =
                (Endpoint::from_owned(url.clone()), AuthData::from_single("key"));
            Ok(ServiceTarget { endpoint, auth, model })
        };
        let resolver = ServiceTargetResolver::from_resolver_fn(resolve);
        Ok(Self(Client::builder().with_service_target_resolver(resolver).build()?))
    }
}

impl Peer for GenAi {
    async fn run(&self, work: Work) -> Result<Seen> {
        let mut request = ChatRequest::new(vec![ChatMessage::user(PROMPT)]);
        if work != Work::Deltas {
            let tool = Tool::new("price").with_description(TOOL_DESCRIPTION).with_schema(schema());
            request = request.with_tools([tool]);
        }
        let options = ChatOptions::default().with_capture_usage(true);
        let options = options.with_capture_content(true).with_capture_tool_calls(true);
        let mut seen = Seen::default();
        loop {
            let answer = self.0.exec_chat_stream(work.name(), request.clone(), Some(&options));
            let mut events = answer.await?.stream;
            let mut calls = Vec::new();
            while let Some(event) = events.next().await {
                match event? {
                    ChatStreamEvent::Chunk(chunk) => seen.text += chunk.content.len(),
                    ChatStreamEvent::End(end) => {
                        calls = end.captured_into_tool_calls().unwrap_or_default();
                    }
                    _ => {}
                }
            }
            if calls.is_empty() {
                return Ok(seen);
            }
            seen.calls += calls.len();
            let mut answers = Vec::new();
            for call in &calls {
                let output = price(serde_json::from_value(call.fn_arguments.clone())?);
                answers.push(ToolResponse::new(call.call_id.clone(), output.to_string()));
            }
            request = request.append_message(calls);
            request = answers.into_iter().fold(request, ChatRequest::append_message);
        }
    }
}
