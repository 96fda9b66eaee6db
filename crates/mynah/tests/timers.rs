//! Runs that wait for a time: tools that continue later, and retries that are far away.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, SystemTime},
};

use mynah::{
    AdapterReason, Options, RetryPolicy, World,
    log::{Fact, RunStatus, verify_run},
    prelude::*,
    testing::{Script, Scripted, crash_everywhere},
};
use serde_json::{Value, json};

const HOUR: Duration = Duration::from_secs(3600);
const START: u64 = 1_000_000;

/// A clock that stands unless it is set.
#[derive(Clone, Default)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn advance(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, SeqCst);
    }
}

impl World for Clock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(START + self.0.load(SeqCst))
    }

    fn random(&self) -> u64 {
        7
    }
}

fn says(text: &str) -> Script {
    Script::new().text(text).stop()
}

fn calls(name: &str) -> Script {
    Script::new().tool_call("c0", name, json!({})).call_tools()
}

/// A tool that submits a job and looks after this time whether it is done, twice.
fn job(time: Duration) -> Tool {
    let look = move |_: Value, context: ToolContext| {
        let looked = context.continuation().and_then(|now| now.state.as_u64()).unwrap_or(0);
        std::future::ready(match looked {
            2 => ToolOutcome::from(json!({"looked": looked})),
            _ => ToolOutcome::later_with(time, looked + 1),
        })
    };
    Tool::new("job", "", json!({})).idempotent(1).handler(look)
}

fn agent(tool: Tool) -> Engine {
    Engine::new(Scripted::play([calls("job"), says("Done.")])).tool(tool)
}

/// What the tool came to.
fn result(thread: &mynah::Thread) -> String {
    thread.messages.get(2).unwrap().text().into_owned()
}

const LOOKED: &str = r#"{"looked":2}"#;

#[tokio::test(start_paused = true)]
async fn a_short_wait_is_waited_for_in_place() {
    let log = MemoryLog::new();
    let done = agent(job(Duration::from_secs(30))).chat("go").record(&log).run_id("r").await;
    let done = done.unwrap();
    assert_eq!((done.text(), result(&done.thread)), ("Done.".into(), LOOKED.to_owned()));
    verify_run(&log, "r").await.unwrap();
    let began = tokio::time::Instant::now();
    agent(job(Duration::from_secs(30))).replay(&log, "r").await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "a replay does not wait");
    // A run that is not recorded cannot be resumed: it waits for as long as it takes.
    let began = tokio::time::Instant::now();
    assert_eq!(agent(job(HOUR)).chat("go").await.unwrap().text(), "Done.");
    // Times are counted by the machine's own clock, which runs meanwhile.
    assert!(began.elapsed() > HOUR + HOUR / 2);
}

#[tokio::test]
async fn a_long_wait_suspends_the_run_until_its_time() {
    let (log, clock) = (MemoryLog::new(), Clock::default());
    let engine = agent(job(HOUR)).world(clock.clone());
    let asleep = engine.chat("go").record(&log).run_id("r").await.unwrap();
    assert_eq!(asleep.halted_reason, HaltReason::Sleeping);
    let wake = START + 3_600_000;
    assert_eq!(asleep.metadata["wake_at_ms"], wake);
    let run = log.run("r").await.unwrap().unwrap();
    assert_eq!((run.status, run.held_until), (RunStatus::Suspended, None));
    assert_eq!(run.wake_at, Some(wake as i64 * 1_000_000));
    let early = engine.resume(&log, "r").await.unwrap_err();
    assert_eq!((early.reason(), &early.metadata()["wake_at_ms"]), ("invalid_status", &wake.into()));
    assert!(early.to_string().contains("sleeps for another 3600 s"), "{early}");
    assert_eq!(log.run("r").await.unwrap().unwrap().records, run.records);
    let answer = engine.resume(&log, "r").answer("now").await.unwrap_err();
    assert_eq!(answer.reason(), "invalid_status");
    clock.advance(HOUR);
    let asleep = engine.resume(&log, "r").await.unwrap();
    assert_eq!(asleep.metadata["wake_at_ms"], wake + 3_600_000);
    clock.advance(HOUR + HOUR);
    let done = engine.resume(&log, "r").await.unwrap();
    assert_eq!((done.text(), result(&done.thread)), ("Done.".into(), LOOKED.to_owned()));
    verify_run(&log, "r").await.unwrap();
    engine.replay(&log, "r").await.unwrap();
    mynah::replay_run(&log, "r").await.unwrap();
}

#[tokio::test]
async fn a_call_by_its_id_continues_a_run_when_its_time_has_come() {
    let (log, clock) = (MemoryLog::new(), Clock::default());
    let engine = agent(job(HOUR)).world(clock.clone());
    let chat = || engine.chat("go").record(&log).run_id("r").start_or_resume();
    for n in 1..=2 {
        let wake = SystemTime::UNIX_EPOCH + Duration::from_millis(START) + HOUR * n;
        assert_eq!(chat().await.unwrap().waiting(), Some(Waiting::Time(wake)));
        assert_eq!(chat().await.unwrap().waiting(), Some(Waiting::Time(wake)));
        clock.advance(HOUR);
    }
    assert_eq!(chat().await.unwrap().result().text(), "Done.");
}

#[tokio::test(start_paused = true)]
async fn the_loop_that_decides_waits_for_a_time() {
    let (log, engine) = (MemoryLog::new(), agent(job(HOUR)));
    let start = || engine.chat("go").record(&log).run_id("r").start_or_resume();
    let mut run = start().await.unwrap();
    assert!(matches!(run.waiting(), Some(Waiting::Time(_))));
    while run.waiting().is_some() {
        run = run.decide(|call| panic!("{call:?} has run")).await.unwrap();
    }
    assert_eq!(run.result().text(), "Done.");
    assert_eq!(start().await.unwrap().result().text(), "Done.");
    engine.replay(&log, "r").await.unwrap();
}

#[tokio::test]
async fn calls_of_one_turn_wake_at_their_own_times() {
    let (log, clock) = (MemoryLog::new(), Clock::default());
    let wait =
        Tool::new("wait", "", json!({})).handler(async |arguments: Value, context: ToolContext| {
            let hours = arguments["hours"].as_u64().unwrap_or(0);
            match context.attempt() {
                1 if hours > 0 => ToolOutcome::later(HOUR * hours as u32),
                attempt => ToolOutcome::from(json!(format!("{hours} h, attempt {attempt}"))),
            }
        });
    let script = (0..4).fold(Script::new(), |script, n| {
        script.tool_call(format!("c{n}"), "wait", json!({"hours": n % 3}))
    });
    let engine = Engine::new(Scripted::play([script.call_tools(), says("Done.")]));
    let engine = engine.tool(wait).world(clock.clone());
    let asleep = engine.chat("go").record(&log).run_id("r").await.unwrap();
    assert_eq!(asleep.metadata["wake_at_ms"], START + 3_600_000);
    clock.advance(HOUR);
    let asleep = engine.resume(&log, "r").await.unwrap();
    assert_eq!(asleep.metadata["wake_at_ms"], START + 7_200_000);
    clock.advance(HOUR);
    let done = engine.resume(&log, "r").await.unwrap();
    let results: Vec<String> =
        (2..6).map(|n| done.thread.messages.get(n).unwrap().text().into_owned()).collect();
    let expected = ["0 h, attempt 1", "1 h, attempt 2", "2 h, attempt 2", "0 h, attempt 1"];
    assert_eq!(results, expected);
    engine.replay(&log, "r").await.unwrap();
}

#[tokio::test]
async fn a_crash_anywhere_repeats_nothing_and_loses_nothing() {
    for park_after in [Duration::ZERO, HOUR] {
        let options = Options::new().park_after(park_after);
        crash_everywhere(|| agent(job(Duration::from_millis(2))), "go").options(options).await;
    }
}

fn limited() -> Script {
    let error = Error::adapter(AdapterReason::RateLimited).with("retry_after_ms", 50_000);
    Script::new().fail(error)
}

#[tokio::test]
async fn a_provider_that_wants_a_long_pause_parks_the_run() {
    let (log, clock) = (MemoryLog::new(), Clock::default());
    let model = Scripted::play([limited(), limited(), says("Hello.")]);
    let engine = Engine::new(model.clone()).world(clock.clone());
    let chat = engine.chat("hi").record(&log).run_id("r").retry(RetryPolicy::attempts(3));
    let asleep = chat.park_after(Duration::from_secs(10)).await.unwrap();
    assert_eq!(asleep.halted_reason, HaltReason::Sleeping);
    assert_eq!(asleep.metadata["attempts"], 1);
    assert_eq!(asleep.metadata["error"]["reason"], "rate_limited");
    let resume = || engine.resume(&log, "r").park_after(Duration::from_secs(10));
    assert_eq!(resume().await.unwrap_err().reason(), "invalid_status");
    clock.advance(Duration::from_secs(51));
    assert_eq!(resume().await.unwrap().metadata["attempts"], 2);
    clock.advance(Duration::from_secs(51));
    assert_eq!(resume().await.unwrap().text(), "Hello.");
    assert_eq!(model.calls(), 3);
    verify_run(&log, "r").await.unwrap();
    engine.replay(&log, "r").await.unwrap();
}

#[tokio::test]
async fn the_attempts_of_a_model_call_are_counted_over_all_processes() {
    let (log, clock) = (MemoryLog::new(), Clock::default());
    let model = Scripted::play([limited(), limited(), says("never")]);
    let engine = Engine::new(model.clone()).world(clock.clone());
    let chat = engine.chat("hi").record(&log).run_id("r").retry(RetryPolicy::attempts(2));
    chat.park_after(Duration::ZERO).await.unwrap();
    clock.advance(Duration::from_secs(60));
    let failed = engine.resume(&log, "r").park_after(Duration::ZERO).await.unwrap_err();
    assert_eq!((failed.reason(), model.calls()), ("rate_limited", 2));
    assert_eq!(log.run("r").await.unwrap().unwrap().status, RunStatus::Failed);
}

#[tokio::test]
async fn a_tool_that_is_retried_later_keeps_its_attempts() {
    let (log, tries) = (MemoryLog::new(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&tries);
    let flaky = Tool::new("job", "", json!({})).idempotent(3).handler(
        move |_: Value, context: ToolContext| {
            let attempt = counted.fetch_add(1, SeqCst) + 1;
            async move {
                assert!(context.continuation().is_none());
                match attempt {
                    3 => ToolOutcome::from(json!(format!("attempt {}", context.attempt()))),
                    _ => ToolOutcome::transient("busy"),
                }
            }
        },
    );
    let engine = agent(flaky.clone());
    let mut result = engine.chat("go").record(&log).run_id("r").park_after(Duration::ZERO).await;
    let mut parked = 0;
    while let Ok(asleep) = &result
        && asleep.halted_reason == HaltReason::Sleeping
    {
        parked += 1;
        tokio::time::sleep(Duration::from_millis(300)).await;
        result = engine.resume(&log, "r").park_after(Duration::ZERO).await;
    }
    let done = result.unwrap();
    assert_eq!((parked, tries.load(SeqCst)), (2, 3));
    assert_eq!(done.thread.messages.get(2).unwrap().text(), "attempt 3");
    tries.store(0, SeqCst);
    engine.replay(&log, "r").await.unwrap();
    let records = log.read("r", 1, 100).await.unwrap();
    let suspended = |fact: &Fact| matches!(fact, Fact::Suspended(_));
    let facts = records.iter().filter_map(|record| record.fact().unwrap());
    assert_eq!(facts.filter(suspended).count(), 2);
}

#[tokio::test]
async fn a_sleeping_run_can_be_cancelled() {
    let log = MemoryLog::new();
    let engine = agent(job(HOUR));
    engine.chat("go").record(&log).run_id("r").await.unwrap();
    assert_eq!(mynah::cancel_run(&log, "r").await, Ok(RunStatus::Cancelled));
    engine.replay(&log, "r").await.unwrap();
}
