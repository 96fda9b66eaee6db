//! Progress of tools: shown while they run, recorded nowhere.

use std::sync::Arc;

use futures_util::StreamExt as _;
use mynah::{
    Engine, Event, InFlight, Result, RunEvent, Thread, Tool, ToolProgress, follow,
    log::{Log as _, MemoryLog},
};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::common::{call, fold, says, scripted};

/// A tool that reports, waits for a permit, reports more than anyone can read, and waits for another.
fn digger(permits: &Arc<Semaphore>) -> Tool {
    Tool::new("dig", "Digs", json!({"type": "object"})).handler_with_state(
        Arc::clone(permits),
        async |permits, _, context| {
            context.progress(ToolProgress::new(1.0).total(100.0).message("sand"));
            permits.acquire().await.unwrap().forget();
            for depth in 0..100_000 {
                context.progress(ToolProgress::new(f64::from(depth)));
            }
            context.progress(ToolProgress::new(2.0).total(f64::INFINITY));
            // No number that an event can have.
            context.progress(ToolProgress::new(f64::NAN));
            permits.acquire().await.unwrap().forget();
            // A task that outlives its call reports to nobody.
            let left = context.clone();
            tokio::spawn(async move {
                tokio::task::yield_now().await;
                left.progress(ToolProgress::new(3.0));
            });
            json!("done")
        },
    )
}

fn progress(progress: f64, of: Option<f64>, doing: Option<&str>) -> Event {
    let mut event = Event::tool_execution_progress("c0", "dig", progress);
    if let Event::ToolExecutionProgress { total, message, .. } = &mut event {
        (*total, *message) = (of, doing.map(str::to_owned));
    }
    event
}

#[tokio::test]
async fn a_stream_has_the_latest_progress_and_the_records_have_none() -> Result<()> {
    let permits = Arc::new(Semaphore::new(0));
    let engine = || Engine::new(scripted([call("c0", "dig"), says("deep")])).tool(digger(&permits));
    let log = MemoryLog::new();
    let mut stream = engine().chat("hi").record(&log).run_id("r").stream();
    let (mut seen, mut result) = (Vec::new(), None);
    while let Some(event) = stream.next().await {
        let event = event?;
        if let Event::ToolExecutionProgress { .. } = event {
            permits.add_permits(1);
        }
        if let Event::ChatCompleted { result: completed } = &event {
            result = Some(completed.clone());
        }
        seen.push(event);
    }
    let from = seen.iter().position(|e| e.type_name() == "tool_execution_started").unwrap();
    assert_eq!(
        seen[from + 1..from + 3],
        [progress(1.0, Some(100.0), Some("sand")), progress(2.0, None, None)]
    );
    assert_eq!(seen[from + 3].type_name(), "tool_execution_completed");
    assert_eq!(seen.iter().filter(|e| e.type_name() == "tool_execution_progress").count(), 2);
    let result = *result.unwrap();
    assert_eq!(fold(&Thread::from("hi"), &seen).chat_result(), result);

    // A replay has the same events, but for the progress, and equals the records.
    seen.retain(|event| event.type_name() != "tool_execution_progress");
    let mut again = Vec::new();
    let mut replayed = engine().replay(&log, "r").stream();
    while let Some(event) = replayed.next().await {
        again.push(event?.type_name());
    }
    assert_eq!(again, seen.iter().map(Event::type_name).collect::<Vec<_>>());
    permits.add_permits(2);
    assert_eq!(engine().replay(&log, "r").rerun_tools().await?.status, "equal");
    let records = log.read("r", 1, 100).await?;
    let facts: Vec<_> = records.iter().map(|record| record.fact()).collect();
    let facts = format!("{facts:?}");
    assert!(facts.contains("dig") && !facts.contains("sand"), "{facts}");
    Ok(())
}

#[tokio::test]
async fn a_reader_in_the_same_process_sees_it_at_the_place_of_the_event_before() -> Result<()> {
    let permits = Arc::new(Semaphore::new(0));
    let engine = Engine::new(scripted([call("c0", "dig"), says("deep")])).tool(digger(&permits));
    let (log, all) = (MemoryLog::new(), InFlight::new());
    // Its own caller waits for the result alone.
    let chat =
        engine.chat("hi").record(&log).run_id("r").in_flight(&all).stream().started().await?;
    let chat = tokio::spawn(chat.for_each(|_| std::future::ready(())));
    let mut events = follow(&log, "r", None).in_flight(&all);
    let (mut seen, mut last) = (Vec::new(), None);
    while let Some(event) = events.try_next().await? {
        if let RunEvent::Event(reported) = &event.event
            && let Event::ToolExecutionProgress { .. } = **reported
        {
            assert_eq!((Some(event.id), event.ts), (last, None));
            seen.push(Event::clone(reported));
            // A reader that comes from there sees it too, and then what is recorded.
            let mut other = follow(&log, "r", event.id).in_flight(&all);
            assert_eq!(other.try_next().await?, Some(event.clone()));
            assert_eq!(other.next_ready().await?, None);
            permits.add_permits(1);
        }
        last = Some(event.id);
    }
    chat.await.unwrap();
    assert_eq!(seen, [progress(1.0, Some(100.0), Some("sand")), progress(2.0, None, None)]);
    let recorded = follow(&log, "r", None).next_ready().await?;
    assert!(recorded.is_some());
    Ok(())
}
