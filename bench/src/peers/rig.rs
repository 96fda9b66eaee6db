//! rig, with its agent.

use std::convert::Infallible;

use futures_util::StreamExt as _;
use rig_agent::{
    prelude::{Agent, AgentBuilder, MultiTurnStreamItem, Tool},
    tool::ToolContext,
};
use rig_core::{
    providers::openai::OpenAIConfig,
    streaming::{Item as Streamed, StreamEvent},
};
use serde_json::Value;

use super::{Item, price, schema};
use crate::{
    Result,
    work::{PROMPT, Peer, Seen, TOOL_DESCRIPTION, Work},
};

#[derive(Clone)]
pub struct Rig(Agent);

struct Price;

impl Tool for Price {
    const NAME: &'static str = "price";
    type Args = Item;
    type Output = Value;
    type Error = Infallible;

    fn description(&self) -> String {
        TOOL_DESCRIPTION.to_owned()
    }

    fn parameters(&self) -> Value {
        schema()
    }

    async fn call(&self, _: &mut ToolContext, item: Item) -> Result<Value, Infallible> {
        Ok(price(item))
    }
}

impl Rig {
    pub fn new(url: &str, work: Work) -> Self {
        let model = OpenAIConfig::new("key").with_base_url(url).client().chat(work.name());
        let agent = AgentBuilder::new(model);
        Self(if work == Work::Deltas { agent.build() } else { agent.tool(Price).build() })
    }
}

impl Peer for Rig {
    async fn run(&self, _: Work) -> Result<Seen> {
        let mut seen = Seen::default();
        let mut events = self.0.prompt(PROMPT).max_turns(100).stream();
        while let Some(event) = events.next().await {
            match event? {
                MultiTurnStreamItem::StreamAssistantItem(Streamed::Event(StreamEvent::Text {
                    text,
                    ..
                })) => seen.text += text.len(),
                MultiTurnStreamItem::ToolCall { .. } => seen.calls += 1,
                _ => {}
            }
        }
        Ok(seen)
    }
}
