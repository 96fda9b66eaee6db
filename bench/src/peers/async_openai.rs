//! async-openai, which leaves the loop to its user.

use async_openai::{
    Client,
    config::OpenAIConfig,
    types::chat::{
        ChatCompletionMessageToolCall, ChatCompletionMessageToolCallChunk,
        ChatCompletionMessageToolCalls, ChatCompletionRequestAssistantMessageArgs,
        ChatCompletionRequestMessage, ChatCompletionRequestToolMessage,
        ChatCompletionRequestUserMessageArgs, ChatCompletionStreamOptions, ChatCompletionTool,
        ChatCompletionTools, CreateChatCompletionRequestArgs, FunctionObject,
    },
};
use futures_util::StreamExt as _;

use super::{price, schema};
use crate::{
    Result,
    work::{PROMPT, Peer, Seen, TOOL_DESCRIPTION, Work},
};

#[derive(Clone)]
pub struct AsyncOpenAi(Client<OpenAIConfig>);

impl AsyncOpenAi {
    pub fn new(url: &str) -> Self {
        let config = OpenAIConfig::new().with_api_key("key").with_api_base(url);
        Self(Client::with_config(config))
    }
}

fn add(calls: &mut Vec<ChatCompletionMessageToolCall>, piece: ChatCompletionMessageToolCallChunk) {
    let index = piece.index as usize;
    if calls.len() <= index {
        calls.resize_with(index + 1, ChatCompletionMessageToolCall::default);
    }
    let call = &mut calls[index];
    call.id.push_str(&piece.id.unwrap_or_default());
    if let Some(function) = piece.function {
        call.function.name.push_str(&function.name.unwrap_or_default());
        call.function.arguments.push_str(&function.arguments.unwrap_or_default());
    }
}

impl Peer for AsyncOpenAi {
    async fn run(&self, work: Work) -> Result<Seen> {
        let first = ChatCompletionRequestUserMessageArgs::default().content(PROMPT).build()?;
        let mut messages: Vec<ChatCompletionRequestMessage> = vec![first.into()];
        let function = FunctionObject {
            name: "price".to_owned(),
            description: Some(TOOL_DESCRIPTION.to_owned()),
            parameters: Some(schema()),
            strict: None,
        };
        let tools = [ChatCompletionTools::Function(ChatCompletionTool { function })];
        let usage = ChatCompletionStreamOptions { include_usage: Some(true), ..Default::default() };
        let mut seen = Seen::default();
        loop {
            let mut request = CreateChatCompletionRequestArgs::default();
            request.model(work.name()).messages(messages.clone()).stream_options(usage);
            if work != Work::Deltas {
                request.tools(tools.clone());
            }
            let mut events = self.0.chat().create_stream(request.build()?).await?;
            let (mut text, mut calls) = (String::new(), Vec::new());
            while let Some(event) = events.next().await {
                for choice in event?.choices {
                    text.push_str(&choice.delta.content.unwrap_or_default());
                    let pieces = choice.delta.tool_calls.unwrap_or_default();
                    pieces.into_iter().for_each(|piece| add(&mut calls, piece));
                }
            }
            seen.text += text.len();
            seen.calls += calls.len();
            if calls.is_empty() {
                return Ok(seen);
            }
            let mut answers = Vec::new();
            for call in &calls {
                let content = price(serde_json::from_str(&call.function.arguments)?).to_string();
                let (content, tool_call_id) = (content.into(), call.id.clone());
                answers.push(ChatCompletionRequestToolMessage { content, tool_call_id });
            }
            let calls: Vec<_> =
                calls.into_iter().map(ChatCompletionMessageToolCalls::Function).collect();
            let said =
                ChatCompletionRequestAssistantMessageArgs::default().tool_calls(calls).build()?;
            messages.push(said.into());
            messages.extend(answers.into_iter().map(ChatCompletionRequestMessage::Tool));
        }
    }
}
