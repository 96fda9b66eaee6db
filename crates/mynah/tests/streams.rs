//! Streams are alike on all calls: they are made at once, and what refuses a call is their first item.

use futures_util::StreamExt as _;
use mynah::{
    Engine, Error, EventStream, OnUncertain, Tool, fork_run,
    log::MemoryLog,
    replay_run,
    testing::{self, Script, Scripted},
};
use serde_json::json;

fn engine() -> Engine {
    let call = Script::new().tool_call("c0", "pay", json!({})).call_tools();
    let pay = Tool::new("pay", "", json!({})).manual().handler(async |_, _| "paid");
    Engine::new(Scripted::play([call, Script::new().text("Paid.").stop()])).tool(pay)
}

#[tokio::test]
async fn every_stream_is_made_at_once_and_refused_by_its_first_item() {
    let (engine, log) = (engine(), MemoryLog::new());
    let streams: [fn(&Engine, &MemoryLog) -> EventStream; 4] = [
        |engine, log| engine.resume(log, "none").on_uncertain(OnUncertain::Rerun).stream(),
        |engine, log| engine.replay(log, "none").stream(),
        |_, log| replay_run(log, "none").stream(),
        |engine, _| engine.chat("pay").run_id("none").stream(),
    ];
    let reasons = ["run_not_found", "run_not_found", "run_not_found", "invalid_options"];
    for (stream, reason) in streams.into_iter().zip(reasons) {
        let first = stream(&engine, &log).next().await.and_then(Result::err);
        assert_eq!(first.as_ref().map(Error::reason), Some(reason));
        let refused = stream(&engine, &log).started().await.err();
        assert_eq!(refused, first, "started() reports the same");
    }
}

#[tokio::test]
async fn a_run_is_untouched_until_its_stream_is_polled() -> mynah::Result<()> {
    let (engine, log) = (engine(), MemoryLog::new());
    let waiting = engine.chat("pay").record(&log).run_id("r").start_or_resume().await?;
    let records = replay_run(&log, waiting.run_id()).await?.records;
    drop(engine.resume(&log, "r").approve("c0").stream());
    assert_eq!(replay_run(&log, "r").await?.records, records);

    let mut cancelled = engine.resume(&log, fork_run(&log, "r", records).await?.run_id);
    cancelled = cancelled.approve("c0");
    let mut stream = cancelled.stream();
    stream.cancel_handle().cancel();
    let names = testing::collect(stream).await?;
    assert!(!testing::text(&names).contains("Paid."), "a handle from before the first poll counts");

    let events = testing::collect(engine.resume(&log, "r").approve("c0").stream()).await?;
    assert_eq!(testing::text(&events), "Paid.");
    Ok(())
}
