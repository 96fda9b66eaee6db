//! What it costs to continue, replay and show a run grows with the run, and no faster. A run that waits is small.

use std::{
    future::IntoFuture as _,
    sync::Arc,
    task::{Context, Waker},
};

use futures_util::StreamExt as _;
use mynah::{
    Adapter, BoxFuture, Engine, ModelCall, ModelStream, Request, Result, Tool, log::MemoryLog,
    recorded_call, replay_run, testing::Scripted,
};
use serde_json::{Value, json};

use crate::kept::{copy, says};

/// An engine that calls a tool in so many turns, and is done.
fn engine(turns: usize) -> Result<Engine> {
    let call = |n: usize| json!([{"text": "I look"}, {"tool_call": {"id": format!("c{n}"), "name": "look"}}, {"finish": "tool_calls"}]);
    let scripts: Vec<Value> = (0..turns).map(call).chain([says("done")]).collect();
    let look = Tool::new("look", "", json!({})).handler(async |_, _| "x".repeat(100));
    Ok(Engine::new(Scripted::new(scripts)?).tool(look).max_turns(10_000))
}

/// The bytes that are allocated to resume, replay and show a run of so many turns.
fn costs(turns: usize) -> Result<[u64; 3]> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let log = MemoryLog::new();
    let (run, cut) = runtime.block_on(async {
        let run = engine(turns)?.chat("go").record(&log).run_id("k").await?.run_id.expect("a run");
        // Without its last answer, its end and its seal.
        let records = mynah::log::Log::run(&log, &run).await?.expect("a run").records;
        Ok::<_, mynah::Error>((run, Arc::new(copy(&log, "k", records - 3).await)))
    })?;
    let last = engine(0)?;
    let measure = |work: &dyn Fn()| allocation_counter::measure(work).bytes_total;
    Ok([
        measure(&|| {
            let done = runtime.block_on(last.resume(&cut, &*run).into_future());
            assert_eq!(done.expect("an end").text(), "done");
        }),
        measure(&|| {
            runtime.block_on(replay_run(&log, &*run).into_future()).expect("equal");
        }),
        measure(&|| drop(runtime.block_on(recorded_call(&log, &*run)).expect("a run"))),
    ])
}

#[test]
fn resuming_replaying_and_showing_a_run_costs_what_it_is_long() -> Result<()> {
    let [shorter, longer] = [costs(250)?, costs(1000)?];
    for (what, (shorter, longer)) in
        ["resume", "replay", "show"].iter().zip(shorter.into_iter().zip(longer))
    {
        assert!(longer < shorter * 5, "{what}: {shorter} bytes for 250 turns, {longer} for 1000");
    }
    Ok(())
}

/// A model that never answers.
struct Silent;

impl Adapter for Silent {
    fn name(&self) -> &str {
        "silent"
    }

    fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_run_that_waits_for_its_model_keeps_less_than_seven_kilobytes() {
    let wait = Tool::new("wait", "Never returns.", json!({"type": "object"}));
    let engine = Engine::new(Silent).tool(wait.handler(async |_, _| "done"));
    let waiting = || {
        let mut run = engine.chat("hi").stream();
        assert!(run.poll_next_unpin(&mut Context::from_waker(Waker::noop())).is_pending());
        run
    };
    // What the first run sets up for all.
    let mut runs = vec![waiting()];
    runs.reserve(1);
    let kept = allocation_counter::measure(|| runs.push(waiting())).bytes_current;
    assert!(kept < 7 << 10, "{kept} bytes");
}
