//! A run belongs to one process at a time.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    task::Poll,
    time::{Duration, SystemTime},
};

use futures_util::StreamExt as _;
use mynah::{
    BoxFuture, ChatResult, Engine, Event, EventStream, Message, OnUncertain, RunId, Thread, Tool,
    ToolCall, ToolContext, ToolOutcome, World, cancel_run,
    log::{
        Append, Extent, Fact, Head, Kind, Lease, Log, LogFuture, MemoryLog, RunFilter, RunStatus,
        SqliteLog,
    },
    step::{Config, Context},
    testing::{self, Scripted},
};
use mynah_step::LEASE;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, advance},
};

use crate::param::Param as _;

#[tokio::test]
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
    assert!(waited < Duration::from_millis(500), "{waited:?}");
    let second = second.as_mut().expect("it is nobody's");
    until_a_tool_runs(second).await?;
    let refused = beside(second, resumed(&log, &run)).await.expect_err("it lives");
    assert_eq!(refused.reason(), "leased");
    assert!(refused.metadata()["owner"].is_string() && refused.metadata()["until"].is_i64());
    Ok(())
}

#[tokio::test]
async fn a_new_run_keeps_its_lease_while_its_first_answer_is_awaited() -> mynah::Result<()> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = SqliteLog::open(folder.path().join("runs.db"))?;
    let engine = Engine::new(Scripted::new([json!([{"delay_ms": 600_000}])])?);
    let mut stream = engine.chat("go").record(&log).stream();
    let awaited = async { while stream.next().await.is_some() {} };
    let renewed = async {
        let mut first = None;
        loop {
            let run = log.runs(RunFilter::default()).await?.runs.into_iter().next();
            match (first, run.and_then(|run| run.held_until)) {
                (Some(first), Some(until)) if until > first => return mynah::Result::Ok(()),
                (None, until) => first = until,
                _ => {}
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = awaited => panic!("the model does not answer"),
        renewed = tokio::time::timeout(Duration::from_secs(30), renewed) => {
            renewed.expect("the lease is renewed")
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_dropped_run_still_had_to_write_does_not_stop_who_goes_on_with_it_or_ends_it()
-> mynah::Result<()> {
    for how in ["resume", "message", "rerun", "cancel"] {
        let (log, ran) = (Behind::default(), Arc::default());
        let mut first = paying("first", &ran)?.chat("go").record(&log).stream();
        while let Some(event) = first.next().await {
            match event? {
                // What stands before the answer is there already.
                Event::ToolCallCompleted { .. } => log.is_behind.store(true, Relaxed),
                Event::MessageCompleted { .. } => break,
                _ => {}
            }
        }
        let run = first.run_id().cloned().unwrap_or_default();
        drop(first);
        let read = log.head(&run).await?;
        let resume = paying("second", &ran)?.adapter(done()?).resume(&log, &run);
        match how {
            // The model is not asked again for the answer that was on its way.
            "resume" => assert_eq!(resume.await?.steps.len(), 2),
            // What is said may be meant for the run as it was.
            "message" => {
                let refused = resume.message(Message::user("hello?")).await.expect_err("it moved");
                assert_eq!(refused.reason(), "head_mismatch");
            }
            "rerun" => {
                let refused = resume.on_uncertain(OnUncertain::Rerun).await.expect_err("it moved");
                assert_eq!(refused.reason(), "head_mismatch");
            }
            _ => assert_eq!(cancel_run(&log, &run).await?, RunStatus::Cancelled),
        }
        let facts = log.read(&run, 1, 100).await?;
        let place = |kind: &str| facts.iter().position(|record| record.kind().as_str() == kind);
        let after = read.map_or(0, |head| head.seq as usize);
        assert!(place("assistant_completed") >= Some(after), "it was on its way");
    }
    Ok(())
}

#[tokio::test]
async fn who_is_overtaken_says_nothing_to_the_run_as_it_is_by_then() -> mynah::Result<()> {
    let (log, ran) = (Overtaken::default(), Arc::new(AtomicU32::new(0)));
    // Each call of the model asks to pay, under the same id.
    let engine = || {
        let ran = Arc::clone(&ran);
        let tool = Tool::new("pay", "", json!({})).manual().handler(move |_, _| {
            ran.fetch_add(1, Relaxed);
            async { "paid" }
        });
        Ok::<_, mynah::Error>(Engine::new(Scripted::new([pay()])?).tool(tool))
    };
    let run = engine()?.chat("go").record(&log).await?.run_id.unwrap_or_default().to_string();
    let first = engine()?.resume(&log.log, &run).approve("c0");
    *log.by.lock().expect("nobody panicked") = Some(Box::pin(first.into_future()));
    let refused = engine()?.resume(&log, &run).approve("c0").await.expect_err("it was overtaken");
    assert_eq!((refused.reason(), ran.load(Relaxed)), ("head_mismatch", 1));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_process_held_is_watched_for_as_long_as_a_lease_lasts() -> mynah::Result<()> {
    let log = MemoryLog::new();
    // The end of the lease's time proves nothing, however long ago it was killed.
    for ago in [0, 120] {
        let process = Process::new(&log);
        let mut first = slow()?.chat("go").record(&process).stream();
        let run = until_a_tool_runs(&mut first).await?;
        process.suspend();
        advance(Duration::from_secs(ago)).await;
        let (second, waited) = timed(resumed(&log, &run)).await;
        assert_eq!(waited, LEASE);
        let events = testing::collect(second?).await?;
        assert_eq!(testing::text(&events), "done");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn one_wait_serves_all_runs_that_a_killed_process_held() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let mut runs = Vec::new();
    for n in 0..4 {
        let mut stream = slow()?.chat("go").record(&log).stream();
        let run = until_a_tool_runs(&mut stream).await?;
        drop(stream);
        log.lease(&run, &format!("elsewhere/{n}"), LEASE).await?;
        runs.push(run);
    }
    let together = async { tokio::join!(resumed(&log, &runs[0]), resumed(&log, &runs[1])) };
    let ((first, second), waited) = timed(together).await;
    assert_eq!(waited, LEASE);
    // Those that come later know that the process is silent.
    let (third, waited) = timed(resumed(&log, &runs[2])).await;
    assert_eq!(waited, Duration::ZERO);
    drop((first?, second?, third?));
    // Unless it gave a sign of life.
    log.beat("elsewhere", LEASE).await?;
    let (fourth, waited) = timed(resumed(&log, &runs[3])).await;
    assert_eq!(waited, LEASE);
    drop(fourth?);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn silence_counts_while_the_log_is_watched_and_not_before() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let mut stream = slow()?.chat("go").record(&log).stream();
    let run = until_a_tool_runs(&mut stream).await?;
    drop(stream);
    log.lease(&run, "unheard/1", LEASE).await?;
    let cut_off = tokio::time::timeout(LEASE / 3, resumed(&log, &run)).await;
    assert!(cut_off.is_err(), "it still waits");
    advance(Duration::from_secs(60)).await;
    let (second, waited) = timed(resumed(&log, &run)).await;
    assert_eq!(waited, LEASE);
    drop(second?);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_process_held_is_free_in_time_whatever_its_clock_said() -> mynah::Result<()> {
    for offset in [-HOUR, HOUR] {
        let log = MemoryLog::new();
        let process = Process::new(&off(&log, offset));
        let mut first = slow()?.chat("go").record(&process).stream();
        let run = until_a_tool_runs(&mut first).await?;
        process.suspend();
        let (second, waited) = timed(resumed(&log, &run)).await;
        assert_eq!(waited, LEASE);
        drop(second?);

        log.lease(&run, &format!("forever {offset}"), Duration::MAX).await?;
        let (status, waited) = timed(cancel_run(&log, &run).into_future()).await;
        assert_eq!((status?, waited), (RunStatus::Cancelled, LEASE));
    }
    Ok(())
}

#[tokio::test]
async fn a_run_is_kept_while_its_process_lives() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let mut first = slow_for(5)?.chat("go").record(&log).stream();
    let run = until_a_tool_runs(&mut first).await?;
    let first = tokio::spawn(testing::collect(first));
    for _ in 0..3 {
        assert_eq!(resumed(&log, &run).await.expect_err("it is under way").reason(), "leased");
    }
    let events = first.await.expect("a task")?;
    assert_eq!(testing::names(&events).last(), Some(&"chat_completed"));
    Ok(())
}

#[tokio::test]
async fn a_process_whose_clock_is_minutes_behind_or_ahead_is_not_robbed() -> mynah::Result<()> {
    let robbed = async |offset: i64| -> mynah::Result<()> {
        let log = MemoryLog::new();
        let mut first = slow()?.chat("go").record(&off(&log, offset)).stream();
        let run = until_a_tool_runs(&mut first).await?;
        let second = beside(&mut first, resumed(&log, &run)).await;
        assert_eq!(second.expect_err("it lives").reason(), "leased", "{offset}");
        Ok(())
    };
    let minutes = HOUR / 30;
    let (behind, ahead) = tokio::join!(robbed(-minutes), robbed(minutes));
    behind.and(ahead)
}

#[tokio::test(start_paused = true)]
async fn who_lost_a_run_starts_none_of_its_tools_whatever_its_clock_says() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let (process, ran) = (Process::new(&log), Arc::new(Mutex::new(Vec::new())));
    let mut first = paying("first", &ran)?.world(Stopped).chat("go").record(&process).stream();
    let run = until_a_tool_is_told(&mut first).await?;
    process.suspend();
    let second = paying("second", &ran)?.adapter(done()?);
    let waiting = second.resume(&log, &run).await?;
    assert_eq!(waiting.halted_reason.as_str(), "uncertain_tools");
    process.wake();
    let told = testing::collect(first).await.expect_err("it is not the first one's any more");
    assert_eq!(told.reason(), "fenced");
    assert_eq!(*ran.lock().expect("nobody panicked"), [""; 0]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_suspended_for_long_loses_its_run_and_is_told() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let process = Process::new(&log);
    let mut first = slow()?.chat("go").record(&process).stream();
    let run = until_a_tool_runs(&mut first).await?;
    process.suspend();
    let mut second = resumed(&log, &run).await?;
    until_a_tool_runs(&mut second).await?;
    process.wake();
    let told = testing::collect(first).await.expect_err("it is another's");
    assert!(matches!(told.reason(), "leased" | "fenced"), "{told}");
    let events = testing::collect(second).await?;
    assert_eq!(testing::text(&events), "done");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn who_lost_a_run_starts_none_of_its_tools() -> mynah::Result<()> {
    for seals in [true, false] {
        let log = MemoryLog::new();
        let (process, ran) = (Process::new(&log), Arc::new(Mutex::new(Vec::new())));
        let mut first = paying("first", &ran)?.chat("go").record(&process).stream();
        let run = until_a_tool_is_told(&mut first).await?;
        process.suspend();
        let second = paying("second", &ran)?.adapter(done()?);
        let waiting = second.resume(&log, &run).await?;
        assert_eq!(waiting.halted_reason.as_str(), "uncertain_tools");
        if seals {
            assert_eq!(second.resume(&log, &run).approve("c0").await?.text(), "done");
        }
        process.wake();
        let told = testing::collect(first).await.expect_err("it is not the first one's any more");
        assert_eq!(told.reason(), if seals { "sealed" } else { "fenced" });
        let ran_in = if seals { vec!["second"] } else { vec![] };
        assert_eq!(*ran.lock().expect("nobody panicked"), ran_in);
        if !seals {
            let resumed = timed(second.resume(&log, &run).approve("c0").into_future()).await;
            assert_eq!((resumed.0?.text(), resumed.1), ("done".into(), Duration::ZERO));
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_run_that_is_over_is_not_kept_for_longer() -> mynah::Result<()> {
    for (outcome, reason) in
        [(ToolOutcome::from("paid"), "completed"), (ToolOutcome::ask("How much?"), "ask_user")]
    {
        let tool = Tool::new("pay", "", json!({})).handler(move |_, _| {
            let outcome = outcome.clone();
            async {
                tokio::time::sleep(Duration::from_millis(100)).await;
                outcome
            }
        });
        let log = Tardy::default();
        let engine = Engine::new(Scripted::new([pay(), says_done()])?).tool(tool);
        let result = engine.chat("go").record(&log).await?;
        assert_eq!(result.halted_reason.as_str(), reason);
        let run = result.run_id.unwrap_or_default();
        let free = log.lease(&run, "another", LEASE).await;
        assert_eq!(free.is_ok(), reason == "ask_user", "{free:?}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn who_was_away_and_still_has_the_run_goes_on() -> mynah::Result<()> {
    let log = MemoryLog::new();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let engine = paying("first", &ran)?;
    let mut first =
        engine.adapter(Scripted::new([pay(), says_done()])?).chat("go").record(&log).stream();
    until_a_tool_is_told(&mut first).await?;
    advance(Duration::from_secs(60)).await;
    assert_eq!(testing::text(&testing::collect(first).await?), "done");
    assert_eq!(*ran.lock().expect("nobody panicked"), ["first"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_lost_its_run_starts_no_tool_that_waited_for_a_place() -> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let ran = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&ran);
    let nap = Tool::new("nap", "", json!({})).handler(move |_, context: ToolContext| {
        telling.lock().expect("nobody panicked").push(context.call.id.clone());
        async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            "slept"
        }
    });
    let config = Config::new(&log, "run").tools([nap]).world(Tokio::new()).max_concurrency(1);
    let context = Context::new(config)?;
    let thread = Thread::from("go");
    context.emit(Fact::RunStarted { thread, extent: Extent::Chat, about: None }).await?;
    let calls = ["c0", "c1"].map(|id| ToolCall::new(id, "nap", "{}"));
    let mut calls = pin!(context.call_tools(calls));
    assert!(now(&mut calls).await.is_pending());
    advance(Duration::from_secs(4)).await;
    let seen = log.run("run").await?.and_then(|run| run.held_until);
    let taken = log.take("run", "another", LEASE, seen).await?;
    assert_eq!(taken.token, 2);
    let told = calls.await.expect_err("it is another's");
    assert_eq!(told.reason(), "fenced");
    assert_eq!(*ran.lock().expect("nobody panicked"), ["c0"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_loop_that_lost_its_run_does_no_side_effect() -> mynah::Result<()> {
    let log = Arc::new(MemoryLog::new());
    let config = Config::new(&log, "run").world(Tokio::new());
    let context = Context::new(config)?;
    let thread = Thread::from("go");
    context.emit(Fact::RunStarted { thread, extent: Extent::Chat, about: None }).await?;
    let done = Mutex::new(0);
    let effect = async || {
        *done.lock().expect("nobody panicked") += 1;
        Ok::<_, std::io::Error>(())
    };
    context.side_effect("pay", effect()).await?;
    advance(Duration::from_secs(4)).await;
    let seen = log.run("run").await?.and_then(|run| run.held_until);
    log.take("run", "another", LEASE, seen).await?;
    let told = context.side_effect("pay", effect()).await.expect_err("it is another's");
    assert!(matches!(told.reason(), "leased" | "fenced"), "{told}");
    assert_eq!(*done.lock().expect("nobody panicked"), 1);
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

/// What a single poll gives.
async fn now<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

/// Resumes a run as another process does.
async fn resumed(log: &MemoryLog, run: &str) -> mynah::Result<EventStream> {
    slow()?
        .adapter(done()?)
        .resume(log, run)
        .on_uncertain(OnUncertain::Rerun)
        .stream()
        .started()
        .await
}

async fn until_a_tool_runs(stream: &mut EventStream) -> mynah::Result<RunId> {
    let run = until_a_tool_is_told(stream).await?;
    // The tool is in flight when the stream has no event.
    assert!(now(&mut stream.next()).await.is_pending());
    Ok(run)
}

/// The run, whose announced tool was not polled yet.
async fn until_a_tool_is_told(stream: &mut EventStream) -> mynah::Result<RunId> {
    while let Some(event) = stream.next().await {
        if matches!(event?, Event::ToolExecutionStarted { .. }) {
            break;
        }
    }
    Ok(stream.run_id().cloned().unwrap_or_default())
}

/// An engine that calls a tool which must not run twice, and reports where it ran.
fn paying(who: &'static str, ran: &Arc<Mutex<Vec<&'static str>>>) -> mynah::Result<Engine> {
    let ran = Arc::clone(ran);
    let tool = Tool::new("pay", "", json!({})).handler(move |_, _| {
        ran.lock().unwrap_or_else(PoisonError::into_inner).push(who);
        async { "paid" }
    });
    Ok(Engine::new(Scripted::new([pay()])?).tool(tool).world(Tokio::new()))
}

fn pay() -> Value {
    json!([{"tool_call": {"id": "c0", "name": "pay"}}, {"finish": "tool_calls"}])
}

/// An engine whose tool takes almost a minute.
fn slow() -> mynah::Result<Engine> {
    slow_for(55)
}

fn slow_for(seconds: u64) -> mynah::Result<Engine> {
    let call = json!([{"tool_call": {"id": "c0", "name": "wait"}}, {"finish": "tool_calls"}]);
    let wait = Tool::new("wait", "", json!({})).handler(move |_, _| async move {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        "waited"
    });
    let engine = Engine::new(Scripted::new([call, says_done()])?).tool(wait).world(Tokio::new());
    Ok(engine.param("tool_timeout", 120_000))
}

fn done() -> mynah::Result<Scripted> {
    Scripted::new([says_done()])
}

fn says_done() -> Value {
    json!([{"text": "done"}, {"finish": "stop"}])
}

const HOUR: i64 = 3_600_000_000_000;

/// The log, by a clock that is so many nanoseconds off.
fn off(log: &MemoryLog, nanos: i64) -> MemoryLog {
    log.clone().with_clock(move || {
        let now = mynah::SystemWorld.now().duration_since(SystemTime::UNIX_EPOCH);
        now.unwrap_or_default().as_nanos() as i64 + nanos
    })
}

/// The log as a process sees it that can be suspended. One that is not woken was killed.
#[derive(Clone)]
struct Process {
    log: MemoryLog,
    is_awake: Arc<watch::Sender<bool>>,
}

impl Process {
    fn new(log: &MemoryLog) -> Self {
        Self { log: log.clone(), is_awake: Arc::new(watch::Sender::new(true)) }
    }

    fn suspend(&self) {
        self.is_awake.send_replace(false);
    }

    fn wake(&self) {
        self.is_awake.send_replace(true);
    }

    async fn awake(&self) {
        let _ = self.is_awake.subscribe().wait_for(|is_awake| *is_awake).await;
        tokio::task::yield_now().await;
    }
}

impl Log for Process {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        Box::pin(async move {
            self.awake().await;
            self.log.append(batch).await
        })
    }

    fn lease(&self, run: &str, owner: &str, term: Duration) -> LogFuture<'_, Lease> {
        let (run, owner) = (run.to_owned(), owner.to_owned());
        Box::pin(async move {
            self.awake().await;
            self.log.lease(&run, &owner, term).await
        })
    }

    fn beat(&self, owner: &str, term: Duration) -> LogFuture<'_, ()> {
        let owner = owner.to_owned();
        Box::pin(async move {
            self.awake().await;
            self.log.beat(&owner, term).await
        })
    }

    mynah::log::forward_log!(self => self.log, except append, lease, beat);
}

/// A log whose word that the end of a run is kept takes longer than a lease waits for its renewal.
#[derive(Clone, Default)]
struct Tardy(Arc<MemoryLog>);

impl Log for Tardy {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        let last = batch.records.last().map(|record| record.kind());
        let ends = matches!(last, Some(Kind::Sealed | Kind::Suspended));
        Box::pin(async move {
            let head = self.0.append(batch).await;
            if ends {
                tokio::time::sleep(Duration::from_millis(1_500)).await;
            }
            head
        })
    }

    mynah::log::forward_log!(self => self.0);
}

/// A log that, once it is behind, does its work when a run is taken.
#[derive(Clone, Default)]
struct Behind {
    log: Arc<MemoryLog>,
    asked: Arc<Mutex<Vec<Asked>>>,
    is_behind: Arc<AtomicBool>,
}

enum Asked {
    Append(Append),
    Release(Lease),
}

impl Behind {
    fn ask(&self, asked: Asked) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
    }
}

impl Log for Behind {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        if !self.is_behind.load(Relaxed) {
            return self.log.append(batch);
        }
        self.ask(Asked::Append(batch));
        Box::pin(std::future::pending())
    }

    fn release(&self, lease: &Lease) {
        self.ask(Asked::Release(lease.clone()));
    }

    fn take(
        &self,
        run: &str,
        owner: &str,
        term: Duration,
        seen: Option<i64>,
    ) -> LogFuture<'_, Lease> {
        let (run, owner) = (run.to_owned(), owner.to_owned());
        let asked = std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner));
        self.is_behind.store(false, Relaxed);
        Box::pin(async move {
            for asked in asked {
                match asked {
                    Asked::Append(batch) => drop(self.log.append(batch).await?),
                    Asked::Release(lease) => self.log.release(&lease),
                }
            }
            self.log.take(&run, &owner, term, seen).await
        })
    }

    mynah::log::forward_log!(self => self.log, except append, take, release);
}

/// A log in which another process resumes a run just before it is taken.
#[derive(Clone, Default)]
struct Overtaken {
    log: Arc<MemoryLog>,
    by: Arc<Mutex<Option<BoxFuture<mynah::Result<ChatResult>>>>>,
}

impl Log for Overtaken {
    fn take(
        &self,
        run: &str,
        owner: &str,
        term: Duration,
        seen: Option<i64>,
    ) -> LogFuture<'_, Lease> {
        let (run, owner) = (run.to_owned(), owner.to_owned());
        let faster = self.by.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            if let Some(faster) = faster {
                faster.await?;
            }
            self.log.take(&run, &owner, term, seen).await
        })
    }

    mynah::log::forward_log!(self => self.log, except take);
}

/// A world whose clock does not go.
struct Stopped;

impl World for Stopped {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }

    fn random(&self) -> u64 {
        mynah::SystemWorld.random()
    }
}

/// A world whose time is tokio's.
struct Tokio {
    began: Instant,
    system: mynah::SystemWorld,
}

impl Tokio {
    fn new() -> Self {
        Self { began: Instant::now(), system: mynah::SystemWorld }
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

    fn new_run_id(&self) -> RunId {
        self.system.new_run_id()
    }
}
