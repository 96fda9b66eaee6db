//! What the tools of a custom loop know of their run.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use mynah_data::Result;
use mynah_log::{Append, Log as _, MemoryLog};
use mynah_step::{Config, Context, ToolContext};
use serde_json::json;

use crate::common::*;

/// What a tool saw: its call and its key.
type Seen = Arc<Mutex<Vec<(String, String)>>>;

#[tokio::test]
async fn calls_with_one_id_have_different_keys_and_a_resumed_run_has_the_same() {
    let (log, live) = (Arc::new(MemoryLog::new()), Seen::default());
    perform(config(&log, &live), &agent).await.expect("a run").expect("its calls");
    let live: Vec<_> = live.lock().expect("what was seen").clone();
    let keys: HashSet<_> = live.iter().map(|(_, key)| key).collect();
    assert_eq!((live.len(), keys.len()), (4, 4), "{live:?}");
    let records = read(&log).await;
    for cut in 1..records.len() - 1 {
        let (log, seen) = (Arc::new(MemoryLog::new()), Seen::default());
        log.append(Append::new(RUN, None, records[..cut].to_vec())).await.expect("a copy");
        let resumed = config(&log, &seen).resume().await.expect("it can go on");
        perform(resumed, &agent).await.expect("a run").expect("its calls");
        let seen = seen.lock().expect("what was seen").clone();
        // An id that is made up is another one until it is recorded.
        let scheduled = kinds(&facts(&records[..cut]));
        let scheduled = scheduled.into_iter().filter(|kind| *kind == "tool_scheduled").count();
        let known = if scheduled < 4 { 3 } else { 4 };
        let since = live.len() - seen.len();
        assert_eq!(seen[..known - since.min(known)], live[since.min(known)..known], "cut at {cut}");
    }
}

#[tokio::test]
async fn a_tool_knows_its_run_and_the_data_of_its_caller() {
    let log = Arc::new(MemoryLog::new());
    let looks = tool("look", |context: ToolContext| async move {
        json!([context.run_id(), context.request_id, *context.context])
    });
    let config = plain(&log).tools([looks]).context("tenant", 7).context("user", "Ada");
    let seen =
        perform(config, async |context: &Context| context.call_tool(call("c0", "look")).await);
    let seen = seen.await.expect("a run").expect("a call");
    assert_eq!(seen, json!([RUN, RUN, {"tenant": 7, "user": "Ada"}]).into());
}

/// Calls a tool under ids that repeat, and under one that is made up.
async fn agent(context: &Context) -> Result<()> {
    for id in ["c0", "c1", "c0", ""] {
        context.call_tool(call(id, "pay")).await?;
    }
    Ok(())
}

fn config(log: &Arc<MemoryLog>, seen: &Seen) -> Config {
    let seen = Arc::clone(seen);
    let pay = tool("pay", move |context: ToolContext| {
        let saw = (context.call.id.clone(), context.idempotency_key());
        seen.lock().expect("what was seen").push(saw);
        async { json!("paid") }
    });
    plain(log).tools([pay.idempotent(1)])
}
