//! Layers of tools in recorded runs.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use mynah::{
    Engine, Tool,
    layers::{Cache, ConcurrencyLimit, RateLimit},
    log::MemoryLog,
    testing::{Script, Scripted},
};
use serde_json::json;

fn model() -> Scripted {
    let call = |id: &str| Script::new().tool_call(id, "roll", json!({"die": 1})).call_tools();
    Scripted::play([call("c0"), call("c1"), Script::new().text("done").stop()])
}

#[tokio::test]
async fn a_replay_is_equal_whatever_is_cached_then() {
    let runs = Arc::new(AtomicUsize::new(0));
    let engine = |cache: Cache| {
        let roll = Tool::new("roll", "", json!({"type": "object"}));
        let roll = roll.handler_with_state(runs.clone(), async |runs, _, context| {
            runs.fetch_add(1, Relaxed);
            context.random().await
        });
        Engine::new(model()).tool(roll.layer(cache))
    };
    let cache = || Cache::new(10, Duration::from_secs(600));
    let (log, warm) = (MemoryLog::new(), cache());
    let run = engine(warm.clone()).chat("roll twice").record(&log).await.unwrap().run_id.unwrap();
    assert_eq!(runs.load(Relaxed), 1);
    for cache in [warm, cache()] {
        let replay = engine(cache).replay(&log, &*run).rerun_tool("roll");
        assert_eq!(replay.await.unwrap().status, "equal");
    }
    assert_eq!(runs.load(Relaxed), 3, "as in the run, the first call of each replay ran");
}

#[tokio::test(start_paused = true)]
async fn a_replay_waits_for_no_limit() {
    let roll = Tool::new("roll", "", json!({"type": "object"}))
        .handler(async |_, _| 4)
        .layer(RateLimit::new(1, Duration::from_secs(20)))
        .layer(ConcurrencyLimit::new(1));
    let (log, engine) = (MemoryLog::new(), Engine::new(model()).tool(roll));
    let run = engine.chat("roll twice").record(&log).await.unwrap().run_id.unwrap();
    let began = tokio::time::Instant::now();
    let replay = engine.replay(&log, &*run).rerun_tool("roll");
    assert_eq!(replay.await.unwrap().status, "equal");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}
