//! What a run waits for is as durable as it is configured. What comes in between is synced with it.

#![allow(clippy::expect_used, reason = "helpers fail as tests do")]

use std::sync::{Arc, Mutex, PoisonError};

use mynah::{
    Engine, Tool,
    log::{Append, Durability, Head, Log, LogFuture, MemoryLog, forward_log},
    testing::Scripted,
};
use serde_json::json;

/// The kinds of the records of each batch, and how durable it is to be.
type Batches = Vec<(Vec<String>, Option<Durability>)>;

/// A log that notes what it is asked to append.
#[derive(Clone, Default)]
struct Noting {
    log: MemoryLog,
    batches: Arc<Mutex<Batches>>,
}

impl Log for Noting {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        let kinds = batch.records.iter().map(|record| record.envelope().kind.to_string());
        let noted = (kinds.collect(), batch.durability);
        self.batches.lock().unwrap_or_else(PoisonError::into_inner).push(noted);
        self.log.append(batch)
    }

    forward_log!(self => self.log);
}

async fn batches(durability: Option<Durability>) -> mynah::Result<Batches> {
    let log = Noting::default();
    let call = json!([{"tool_call": {"id": "c0", "name": "pay"}}, {"finish": "tool_calls"}]);
    let answer = json!([{"text": "paid"}, {"finish": "stop"}]);
    let pay = Tool::new("pay", "", json!({})).handler(async |_: serde_json::Value, _| "paid");
    let engine = Engine::new(Scripted::new([call, answer])?).tool(pay);
    let chat = engine.chat("pay").record(&log);
    match durability {
        Some(durability) => chat.durability(durability).await?,
        None => chat.await?,
    };
    let noted = log.batches.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(noted.clone())
}

#[tokio::test]
async fn only_what_nothing_waits_for_is_left_to_the_next_barrier() -> mynah::Result<()> {
    for configured in [None, Some(Durability::Full)] {
        let batches = batches(configured).await?;
        let has = |kind: &str| batches.iter().any(|(kinds, _)| kinds.iter().any(|k| k == kind));
        assert!(has("tool_scheduled") && has("tool_completed") && has("sealed"), "{batches:?}");
        for (kinds, durability) in &batches {
            let is_between = kinds.iter().all(|k| k == "tool_completed" || k == "turn_started");
            let expected = if is_between { Some(Durability::Relaxed) } else { configured };
            assert_eq!(*durability, expected, "{kinds:?}");
        }
        assert!(batches.iter().any(|(_, durability)| *durability == Some(Durability::Relaxed)));
    }
    Ok(())
}
