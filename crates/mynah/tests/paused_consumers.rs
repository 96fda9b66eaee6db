//! What was done stays done while the caller that reads the stream does something else, or leaves.

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt as _;
use mynah::{
    Budget, Engine, Event, EventStream, SystemWorld, Tool, ToolOutcome,
    log::{Append, Extent, Fact, Head, Lease, Log, LogFuture, MemoryLog, forward_log},
    step::{Config, Context},
    testing::Scripted,
};
use mynah_step::{LEASE, take_over};
use serde_json::{Value, json};

#[tokio::test]
async fn a_tool_that_was_told_to_be_done_is_in_the_log_though_nobody_polls_on() -> mynah::Result<()>
{
    let log = MemoryLog::new();
    let mut stream = working(["c0"])?.chat("go").record(&log).stream();
    until_done(&mut stream, "c0").await?;
    assert_eq!(outcomes(&log, run_of(&stream)).await?, ["c0"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn tools_that_are_done_while_the_log_is_busy_are_told_when_they_are_on_their_way()
-> mynah::Result<()> {
    let ids = ["c0", "c1", "c2"];
    for last in ids {
        let log = Busy::default();
        let mut stream = working(ids)?.chat("go").record(&log).stream();
        until_done(&mut stream, last).await?;
        // The stream is not polled; the log writes what it has.
        tokio::time::sleep(10 * Busy::PAUSE).await;
        let kept = outcomes(&log, run_of(&stream)).await?;
        assert!(kept.iter().any(|id| id == last), "{last} is not among {kept:?}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_a_person_answered_is_in_the_log_though_nobody_polls_on() -> mynah::Result<()> {
    let log = Busy::default();
    let ask = Tool::new("work", "", json!({})).handler(async |_, _| ToolOutcome::ask("Really?"));
    let engine = Engine::new(Scripted::new([calls(["c0"]), done()])?).tool(ask);
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let mut stream = engine.resume(&log, &*run).answer("yes").stream().started().await?;
    stream.next().await.expect("the model speaks")?;
    tokio::time::sleep(10 * Busy::PAUSE).await;
    assert_eq!(kinds(&log, &run).await?[6..], ["resumed", "turn_started"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_model_that_is_heard_was_asked_in_the_log_though_nobody_polls_on() -> mynah::Result<()> {
    let log = Busy::default();
    let mut stream = working(["c0"])?.chat("go").record(&log).stream();
    until_done(&mut stream, "c0").await?;
    while let Some(event) = stream.next().await {
        if matches!(event?, Event::MessageStarted { .. }) {
            break;
        }
    }
    tokio::time::sleep(10 * Busy::PAUSE).await;
    assert_eq!(kinds(&log, run_of(&stream)).await?[4..], ["tool_completed", "turn_started"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_told_is_in_the_log_though_nobody_polls_on() -> mynah::Result<()> {
    for last in [0, 1] {
        let log = Busy::default();
        let mut stream = working(["c0"])?.chat("go").record(&log).stream();
        let (mut told, mut answer) = (0, None);
        while let Some(event) = stream.next().await {
            if let Event::MessageCompleted { message, .. } = event? {
                told += 1;
                answer = Some(message);
            }
            if told > last {
                break;
            }
        }
        tokio::time::sleep(10 * Busy::PAUSE).await;
        let records = log.read(run_of(&stream), 1, usize::MAX).await?;
        let facts = records.iter().filter_map(|record| record.fact().ok().flatten());
        let mut kept = facts.filter_map(|fact| match fact {
            Fact::AssistantCompleted { response, .. } => Some(response.message),
            _ => None,
        });
        assert_eq!(kept.next_back(), answer, "{last}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_model_that_is_asked_again_was_asked_in_the_log_though_nobody_polls_on()
-> mynah::Result<()> {
    let log = Busy::default();
    let engine = Engine::new(Scripted::new([done(), done(), done()])?);
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let branch = mynah::fork_run(&log, &*run, 2).await?.run_id;
    let mut expected = vec!["run_started", "turn_started"];
    // Where a branch begins, no call was lost.
    for more in [&["resumed"][..], &["resumed", "turn_lost", "turn_started"]] {
        let mut stream = engine.resume(&log, &*branch).stream().started().await?;
        stream.next().await.expect("the model speaks")?;
        tokio::time::sleep(10 * Busy::PAUSE).await;
        expected.extend(more);
        assert_eq!(run_of(&stream), &*branch);
        assert_eq!(kinds(&log, &branch).await?, expected);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_happened_in_a_loop_of_ones_own_is_in_the_log_though_the_loop_ended_with_an_error()
-> mynah::Result<()> {
    let log = Busy::default();
    let model = Scripted::new([done(), done()])?;
    let budget = Budget::new().max_turns(1);
    let context = Context::new(Config::new(&log, "own").adapter(model).budget(budget))?;
    let begun = Fact::RunStarted { thread: "go".into(), extent: Extent::Chat, about: None };
    context.emit(begun).await?;
    context.call_model("go".into()).await?;
    context.random().await?;
    context.call_model("go".into()).await.expect_err("one turn is all that is allowed");
    drop(context);
    tokio::time::sleep(10 * Busy::PAUSE).await;
    let records = log.read("own", 1, usize::MAX).await?;
    let kinds: Vec<&str> = records.iter().map(|record| record.kind().as_str()).collect();
    let turn = ["run_started", "turn_started", "assistant_completed"];
    assert_eq!(kinds, [&turn[..], &["side_effect", "budget_exceeded"]].concat());
    Ok(())
}

#[tokio::test]
async fn a_run_is_kept_while_nobody_polls_it_and_free_when_it_is_dropped() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let mut stream = working(["c0"])?.chat("go").record(&log).stream();
    until_done(&mut stream, "c0").await?;
    let (run, head) = (run_of(&stream).to_owned(), log.head(run_of(&stream)).await?);
    // Longer than a lease lasts.
    tokio::time::sleep(LEASE + Duration::from_millis(500)).await;
    let shared: Arc<dyn Log> = Arc::new(log.clone());
    let refused = take_over(&shared, &SystemWorld, &run, head).await.map(drop);
    let refused = refused.expect_err("its process lives");
    assert_eq!(refused.reason(), "leased");
    drop(stream);
    let taken = tokio::time::timeout(Duration::from_millis(500), async {
        take_over(&shared, &SystemWorld, &run, log.head(&run).await?).await
    });
    taken.await.expect("it is free at once").map(drop)
}

#[test]
fn a_run_is_kept_while_its_runtime_is_blocked() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build();
    let (its, other) = (runtime().expect("a runtime"), runtime().expect("a runtime"));
    let mut stream = its.block_on(async {
        let mut stream = working(["c0"])?.chat("go").record(&log).stream();
        until_done(&mut stream, "c0").await?;
        Ok::<_, mynah::Error>(stream)
    })?;
    // None of it continues meanwhile.
    let refused = other.block_on(async {
        let head = log.head(run_of(&stream)).await?;
        let shared: Arc<dyn Log> = Arc::new(log.clone());
        take_over(&shared, &SystemWorld, run_of(&stream), head).await.map(drop)
    });
    assert_eq!(refused.expect_err("its process lives").reason(), "leased");
    its.block_on(async {
        while let Some(event) = stream.next().await {
            event?;
        }
        let kinds = kinds(&log, run_of(&stream)).await?;
        assert_eq!(kinds.last().map(String::as_str), Some("sealed"));
        Ok(())
    })
}

/// Polls a stream until a tool is done, and not again.
async fn until_done(stream: &mut EventStream, call: &str) -> mynah::Result<()> {
    while let Some(event) = stream.next().await {
        if matches!(event?, Event::ToolExecutionCompleted { id, .. } if id == call) {
            return Ok(());
        }
    }
    panic!("{call} was not told")
}

/// The calls whose outcome is in the log.
async fn outcomes(log: &impl Log, run: &str) -> mynah::Result<Vec<String>> {
    let records = log.read(run, 1, usize::MAX).await?;
    let facts = records.iter().filter_map(|record| record.fact().ok().flatten());
    let id = |fact| match fact {
        Fact::ToolCompleted { call_id, .. } => Some(call_id),
        _ => None,
    };
    Ok(facts.filter_map(id).collect())
}

async fn kinds(log: &impl Log, run: &str) -> mynah::Result<Vec<String>> {
    let records = log.read(run, 1, usize::MAX).await?;
    Ok(records.iter().map(|record| record.kind().to_string()).collect())
}

fn run_of(stream: &EventStream) -> &str {
    stream.run_id().expect("it is kept")
}

/// An engine whose model makes these calls at once. All of them finish at once.
fn working<const N: usize>(ids: [&str; N]) -> mynah::Result<Engine> {
    let work = Tool::new("work", "", json!({})).handler(async |_, _| "worked");
    Ok(Engine::new(Scripted::new([calls(ids), done()])?).tool(work))
}

fn calls<const N: usize>(ids: [&str; N]) -> Value {
    let calls = ids.map(|id| json!({"tool_call": {"id": id, "name": "work"}}));
    calls.into_iter().chain([json!({"finish": "tool_calls"})]).collect()
}

fn done() -> Value {
    json!([{"text": "done"}, {"finish": "stop"}])
}

/// A log whose writes take a while, in the order of the calls, even if their futures are dropped.
#[derive(Clone, Default)]
struct Busy(Arc<MemoryLog>);

impl Busy {
    const PAUSE: Duration = Duration::from_millis(10);
}

impl Log for Busy {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        let log = Arc::clone(&self.0);
        let written = tokio::spawn(async move {
            tokio::time::sleep(Self::PAUSE).await;
            log.append(batch).await
        });
        Box::pin(async move { written.await.expect("nobody panicked") })
    }

    fn release(&self, lease: &Lease) {
        let (log, lease) = (Arc::clone(&self.0), lease.clone());
        tokio::spawn(async move {
            tokio::time::sleep(Self::PAUSE).await;
            log.release(&lease);
        });
    }

    forward_log!(self => self.0, except append, release);
}
