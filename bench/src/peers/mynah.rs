//! Mynah, recorded or not.

use futures_util::StreamExt as _;
use mynah::{Engine, Event, adapters::http::HttpAdapter, log::SqliteLog};
use serde_json::Value;

use super::Item;
use crate::{
    Result,
    work::{PROMPT, Peer, Seen, Work},
};

#[derive(Clone)]
pub struct Mynah {
    engine: Engine,
    log: Option<SqliteLog>,
}

/// The price of an item.
#[mynah::tool]
async fn price(item: i64) -> Value {
    super::price(Item { item })
}

impl Mynah {
    pub fn new(url: &str, work: Work, log: Option<SqliteLog>) -> Result<Self> {
        let engine =
            Engine::new(HttpAdapter::named("vllm")?.with_base_url(url)?).model(work.name());
        let engine = if work == Work::Deltas { engine } else { engine.tool(price) };
        Ok(Self { engine: engine.max_turns(100), log })
    }
}

impl Peer for Mynah {
    async fn run(&self, _: Work) -> Result<Seen> {
        let mut chat = self.engine.chat(PROMPT);
        if let Some(log) = &self.log {
            chat = chat.record(log);
        }
        let mut seen = Seen::default();
        let mut events = chat.stream();
        while let Some(event) = events.next().await {
            match event? {
                Event::TextDelta { delta, .. } => seen.text += delta.len(),
                Event::ToolCallCompleted(_) => seen.calls += 1,
                _ => {}
            }
        }
        Ok(seen)
    }

    fn commits(&self) -> u64 {
        self.log.as_ref().map_or(0, SqliteLog::commits)
    }
}
