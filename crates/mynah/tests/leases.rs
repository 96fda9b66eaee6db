//! A run belongs to one process at a time.

use std::time::{Duration, SystemTime};

use futures_util::StreamExt as _;
use mynah::{
    Engine, Event, EventStream, OnUncertain, Tool, World,
    log::MemoryLog,
    testing::{self, Scripted},
};
use serde_json::json;
use tokio::time::{Instant, advance};

#[tokio::test(start_paused = true)]
async fn a_run_under_way_cannot_be_resumed_and_a_dropped_one_can_at_once() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let mut first = slow()?.chat("go").record(&log).stream();
    let run = until_a_tool_runs(&mut first).await?;
    assert_eq!(
        beside(&mut first, resumed(&log, &run)).await.expect_err("it lives").reason(),
        "leased"
    );
    drop(first);
    let (mut second, waited) = timed(resumed(&log, &run)).await;
    assert_eq!(waited, Duration::ZERO);
    let second = second.as_mut().expect("it is nobody's");
    until_a_tool_runs(second).await?;
    let refused = beside(second, resumed(&log, &run)).await.expect_err("it lives");
    assert_eq!(refused.reason(), "leased");
    assert!(refused.metadata()["owner"].is_string() && refused.metadata()["until"].is_i64());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_process_held_is_waited_for() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let mut first = slow()?.chat("go").record(&log).stream();
    let run = until_a_tool_runs(&mut first).await?;
    // Nobody gives the lease back.
    std::mem::forget(first);
    let (second, waited) = timed(resumed(&log, &run)).await;
    assert!((2_000..3_200).contains(&waited.as_millis()), "{waited:?}");
    let events = testing::collect(second?).await?;
    assert_eq!(testing::text(&events), "done");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_polled_is_kept_however_long_it_takes() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let mut first = slow()?.chat("go").record(&log).stream();
    let run = until_a_tool_runs(&mut first).await?;
    let first = tokio::spawn(testing::collect(first));
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(resumed(&log, &run).await.expect_err("it is under way").reason(), "leased");
    }
    let events = first.await.expect("a task")?;
    assert_eq!(testing::names(&events).last(), Some(&"chat_completed"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_that_nobody_polls_can_be_taken_over_and_its_first_owner_is_told() -> mynah::Result<()>
{
    let log = MemoryLog::new();
    let mut first = slow()?.chat("go").record(&log).stream();
    let run = until_a_tool_runs(&mut first).await?;
    advance(Duration::from_secs(7)).await;
    let mut second = resumed(&log, &run).await?;
    until_a_tool_runs(&mut second).await?;
    let told = testing::collect(first).await.expect_err("it is another's");
    assert!(matches!(told.reason(), "leased" | "fenced"), "{told}");
    let events = testing::collect(second).await?;
    assert_eq!(testing::text(&events), "done");
    Ok(())
}

/// Does something else while a run is polled.
async fn beside<T>(run: &mut EventStream, other: impl Future<Output = T>) -> T {
    tokio::select! {
        done = other => done,
        event = run.next() => panic!("it went on: {event:?}"),
    }
}

async fn timed<T>(what: impl Future<Output = T>) -> (T, Duration) {
    let began = Instant::now();
    (what.await, began.elapsed())
}

/// Goes on with a run as another process does.
async fn resumed(log: &MemoryLog, run: &str) -> mynah::Result<EventStream> {
    slow()?.adapter(done()?).resume(log, run).on_uncertain(OnUncertain::Rerun).stream().await
}

async fn until_a_tool_runs(stream: &mut EventStream) -> mynah::Result<String> {
    while let Some(event) = stream.next().await {
        if matches!(event?, Event::ToolExecutionStarted { .. }) {
            break;
        }
    }
    // The tool is under way when the stream has nothing to tell.
    let next = std::future::poll_fn(|cx| std::task::Poll::Ready(stream.poll_next_unpin(cx)));
    assert!(next.await.is_pending());
    Ok(stream.run_id().unwrap_or_default().to_owned())
}

/// An engine whose tool takes almost a minute.
fn slow() -> mynah::Result<Engine> {
    let call = json!([{"tool_call": {"id": "c0", "name": "wait"}}, {"finish": "tool_calls"}]);
    let wait = Tool::new("wait", "", json!({})).handler(async |_, _| {
        tokio::time::sleep(Duration::from_secs(55)).await;
        "waited"
    });
    let engine = Engine::new(Scripted::new([call])?).tool(wait).world(Tokio::new());
    Ok(engine.param("tool_timeout", 120_000))
}

fn done() -> mynah::Result<Scripted> {
    Scripted::new([json!([{"text": "done"}, {"finish": "stop"}])])
}

/// A world whose time is tokio's.
struct Tokio {
    began: Instant,
    system: mynah::SystemWorld,
}

impl Tokio {
    fn new() -> Self {
        // Every world of a test tells the same time.
        thread_local!(static BEGAN: Instant = Instant::now());
        Self { began: BEGAN.with(|began| *began), system: mynah::SystemWorld }
    }
}

impl World for Tokio {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.began.elapsed()
    }

    fn random(&self) -> u64 {
        self.system.random()
    }

    fn new_id(&self) -> String {
        self.system.new_id()
    }

    fn new_run_id(&self) -> String {
        self.system.new_run_id()
    }
}
