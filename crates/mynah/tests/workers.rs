//! Workers: enqueued runs, messages to runs, shutdown.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use mynah::{
    LogReason, Signal, Worker, deliver,
    log::{
        Changes, Fact, InboxMessage, Interruption, Lease, LogFuture, Queue, RunStatus, forward_log,
    },
    prelude::*,
    testing::{self, Script, Scripted},
};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{Instant, sleep},
};

fn says(text: &str) -> Script {
    Script::new().text(text).stop()
}

fn calls(name: &str) -> Script {
    Script::new().tool_call("c0", name, json!({})).call_tools()
}

/// Waits until a run has this status.
async fn until(log: &impl Log, run: &str, status: RunStatus) {
    for _ in 0..500 {
        if log.run(run).await.unwrap().is_some_and(|found| found.status == status) {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("run {run} is {:?}", log.run(run).await.unwrap().map(|found| found.status));
}

/// Runs a worker while something is done.
async fn working<T>(worker: Worker, work: impl Future<Output = T>) -> T {
    let stop = Arc::new(Notify::new());
    let stopped = Arc::clone(&stop);
    let worker = tokio::spawn(worker.run(async move { stopped.notified().await }));
    let done = work.await;
    stop.notify_one();
    worker.await.unwrap().unwrap();
    done
}

#[tokio::test]
async fn an_enqueued_run_is_performed_once() {
    let log = MemoryLog::new();
    let model = Scripted::play([says("Hello.")]);
    let engine = Engine::new(model.clone());
    let chat = || engine.chat("Hi!").record(&log).run_id("r");
    assert_eq!(chat().enqueue().await.unwrap(), "r");
    assert_eq!(chat().enqueue().await.unwrap(), "r");
    let other = engine.chat("Ho!").record(&log).run_id("r").enqueue().await.unwrap_err();
    assert_eq!(other.reason(), "run_exists");
    assert_eq!(model.calls(), 0);
    let worker = Worker::new(&log).agent("support", engine.clone());
    working(worker, until(&log, "r", RunStatus::Completed)).await;
    assert_eq!(model.calls(), 1);
    assert_eq!(chat().await.unwrap().text(), "Hello.");
}

#[tokio::test]
async fn what_would_never_run_is_refused() {
    let (log, engine) = (MemoryLog::new(), Engine::new(Scripted::play([says("Hello.")])));
    let queue = || Queue::new("q").concurrency("c", 0);
    let chat = || engine.chat("Hi!").record(&log).run_id("r").queue(queue());
    let endless = std::future::pending;
    let worker = || Worker::new(&log).agent("a", engine.clone());
    let hasty = Tool::new("hasty", "", json!({})).timeout(Duration::ZERO);
    let hasty = engine.clone().tool(hasty.handler(async |_, _| "done"));
    let table = [
        (chat().enqueue().await.unwrap_err(), "queue: must_be_positive"),
        (chat().await.unwrap_err(), "queue: must_be_positive"),
        (worker().concurrency(0).run(endless()).await.unwrap_err(), "room for no run"),
        (Worker::new(&log).run(endless()).await.unwrap_err(), "add one with Worker::agent"),
        (hasty.chat("Hi!").await.unwrap_err(), "the timeout of tool \"hasty\" is zero"),
    ];
    for (error, expected) in table {
        assert!(error.to_string().contains(expected), "{error}");
    }
    assert!(log.run("r").await.unwrap().is_none());
}

#[tokio::test]
async fn a_question_is_answered_by_a_message_that_counts_once() {
    let log = MemoryLog::new();
    let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("How many?"));
    let model = Scripted::play([calls("ask"), says("Two it is.")]);
    let engine = Engine::new(model.clone()).tool(ask);
    engine.chat("order").record(&log).run_id("r").enqueue().await.unwrap();
    working(Worker::new(&log).agent("a", engine.clone()), async {
        until(&log, "r", RunStatus::Suspended).await;
        let answer = Signal::Answer("two".to_owned());
        assert!(deliver(&log, "r", "m1", &answer).await.unwrap());
        assert!(!deliver(&log, "r", "m1", &answer).await.unwrap());
        until(&log, "r", RunStatus::Completed).await;
    })
    .await;
    assert_eq!(model.calls(), 2);
    assert!(log.inbox("r", 10).await.unwrap().is_empty());
    let late = deliver(&log, "r", "m2", &Signal::Cancel).await.unwrap_err();
    assert_eq!(late.reason(), "sealed");
}

#[tokio::test]
async fn approvals_and_rejections_come_as_messages() {
    for approve in [true, false] {
        let (log, ran) = (MemoryLog::new(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&ran);
        let pay = Tool::new("pay", "", json!({})).manual().handler(move |_: Value, _| {
            counted.fetch_add(1, SeqCst);
            async { json!("paid") }
        });
        let engine = Engine::new(Scripted::play([calls("pay"), says("Done.")])).tool(pay);
        engine.chat("pay").record(&log).run_id("r").enqueue().await.unwrap();
        let signal = match approve {
            true => Signal::approve("c0"),
            false => Signal::reject("c0", "no money"),
        };
        working(Worker::new(&log).agent("a", engine.clone()), async {
            until(&log, "r", RunStatus::Suspended).await;
            deliver(&log, "r", "m1", &signal).await.unwrap();
            until(&log, "r", RunStatus::Completed).await;
        })
        .await;
        assert_eq!(ran.load(SeqCst), usize::from(approve));
    }
}

#[tokio::test]
async fn a_decision_that_comes_too_late_does_not_hold_up_the_run() {
    let log = MemoryLog::new();
    let pay = Tool::new("pay", "", json!({})).manual().handler(async |_, _| json!("paid"));
    let again = Script::new().tool_call("c1", "pay", json!({})).call_tools();
    let model = Scripted::play([calls("pay"), again, says("Done.")]);
    let engine = Engine::new(model.clone()).tool(pay);
    engine.chat("pay").record(&log).run_id("r").enqueue().await.unwrap();
    working(Worker::new(&log).agent("a", engine.clone()), async {
        until(&log, "r", RunStatus::Suspended).await;
        // Two people approve the same call, and one answers a question that was not asked.
        for id in ["m1", "m2"] {
            assert!(deliver(&log, "r", id, &Signal::approve("c0")).await.unwrap());
        }
        let answer = Signal::Answer("two".to_owned());
        assert!(deliver(&log, "r", "m3", &answer).await.unwrap());
        while model.calls() < 2 {
            sleep(Duration::from_millis(5)).await;
        }
        until(&log, "r", RunStatus::Suspended).await;
        assert!(deliver(&log, "r", "m4", &Signal::approve("c0")).await.unwrap());
        assert!(deliver(&log, "r", "m5", &Signal::approve("c1")).await.unwrap());
        until(&log, "r", RunStatus::Completed).await;
    })
    .await;
    assert_eq!(log.inbox("r", 9).await.unwrap(), []);
}

/// A log that does not remember what changed.
#[derive(Clone)]
struct Forgetful(MemoryLog);

impl Log for Forgetful {
    fn changes(&self, cursor: Option<&str>, limit: usize) -> LogFuture<'_, Changes> {
        let is_first = cursor.is_none();
        Box::pin(async move {
            let end = self.0.changes(None, limit).await?;
            Ok(if is_first { end } else { Changes::expired(end.cursor) })
        })
    }

    forward_log!(self => self.0, except changes);
}

#[tokio::test]
async fn a_run_in_progress_is_cancelled_by_a_message() {
    cancelled_in_progress(MemoryLog::new()).await;
}

#[tokio::test]
async fn a_worker_finds_messages_although_the_log_forgot_what_changed() {
    cancelled_in_progress(Forgetful(MemoryLog::new())).await;
}

async fn cancelled_in_progress(log: impl Log + Clone) {
    let slow = Tool::new("slow", "", json!({})).handler(async |_, _| {
        sleep(Duration::from_secs(20)).await;
        json!("done")
    });
    let engine = Engine::new(Scripted::play([calls("slow"), says("Done.")])).tool(slow);
    engine.chat("go").record(&log).run_id("r").enqueue().await.unwrap();
    working(Worker::new(&log).agent("a", engine.clone()), async {
        while log.run("r").await.unwrap().unwrap().records < 4 {
            sleep(Duration::from_millis(20)).await;
        }
        deliver(&log, "r", "m1", &Signal::Cancel).await.unwrap();
        until(&log, "r", RunStatus::Cancelled).await;
    })
    .await;
}

#[tokio::test]
async fn runs_of_agents_that_a_worker_does_not_have_stay() {
    let log = MemoryLog::new();
    let engine = Engine::new(Scripted::play([says("One."), says("Two.")]));
    engine.chat("a").record(&log).run_id("sales-1").agent("sales").enqueue().await.unwrap();
    engine.chat("b").record(&log).run_id("support-1").agent("support").enqueue().await.unwrap();
    let worker = Worker::new(&log).agent("support", engine.clone());
    working(worker, until(&log, "support-1", RunStatus::Completed)).await;
    let sales = log.run("sales-1").await.unwrap().unwrap();
    assert_eq!((sales.status, sales.records), (RunStatus::Running, 1));
    working(Worker::new(&log).agent("sales", engine), until(&log, "sales-1", RunStatus::Completed))
        .await;
}

#[tokio::test]
async fn a_worker_that_shuts_down_releases_what_it_cannot_finish() {
    let log = MemoryLog::new();
    let (gate, began) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (opened, counted) = (Arc::clone(&gate), Arc::clone(&began));
    let wait = Tool::new("wait", "", json!({})).idempotent(1).handler(move |_: Value, _| {
        let (gate, first) = (Arc::clone(&opened), counted.fetch_add(1, SeqCst) == 0);
        async move {
            if first {
                gate.notified().await;
            }
            json!("done")
        }
    });
    let engine = Engine::new(Scripted::play([calls("wait"), says("Done.")])).tool(wait);
    engine.chat("go").record(&log).run_id("r").enqueue().await.unwrap();
    let shutdown = async {
        while began.load(SeqCst) == 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let worker = Worker::new(&log).agent("a", engine.clone()).drain(Duration::from_millis(50));
    let report = worker.run(shutdown).await.unwrap();
    assert_eq!((report.performed, report.released), (0, 1));
    working(Worker::new(&log).agent("a", engine), until(&log, "r", RunStatus::Completed)).await;
    drop(gate);
    // The other worker waited for no lease to run out: neither an enqueued run nor a released one had a process that died.
    assert_eq!(resumed_after(&log, "r").await, [Interruption::Release, Interruption::Release]);
}

/// Why each of a run's processes was not the first.
async fn resumed_after(log: &MemoryLog, run: &str) -> Vec<Interruption> {
    let records = log.read(run, 1, 1_000).await.unwrap();
    let after = |record: &mynah::log::Record| match record.fact().unwrap().unwrap() {
        Fact::Resumed { after, .. } => Some(after),
        _ => None,
    };
    records.iter().filter_map(after).collect()
}

#[tokio::test]
async fn a_run_whose_owner_is_silent_is_continued_as_after_a_crash() {
    let log = MemoryLog::new();
    let engine = Engine::new(Scripted::play([says("Done.")]));
    engine.chat("go").record(&log).run_id("r").enqueue().await.unwrap();
    log.lease("r", "dead/1", Duration::ZERO).await.unwrap();
    working(Worker::new(&log).agent("a", engine), until(&log, "r", RunStatus::Completed)).await;
    assert_eq!(resumed_after(&log, "r").await, [Interruption::Crash]);
}

/// A log that a worker reaches unless it is away.
#[derive(Clone)]
struct Away {
    log: MemoryLog,
    is_away: Arc<AtomicBool>,
}

impl Away {
    fn reach<'a, T: Send + 'a>(
        &'a self,
        ask: impl FnOnce(&'a MemoryLog) -> LogFuture<'a, T>,
    ) -> LogFuture<'a, T> {
        match self.is_away.load(SeqCst) {
            true => Box::pin(std::future::ready(Err(Error::log(LogReason::Unavailable)))),
            false => ask(&self.log),
        }
    }
}

impl Log for Away {
    fn claim(
        &self,
        owner: &str,
        term: Duration,
        queues: &[&str],
        limit: usize,
    ) -> LogFuture<'_, Vec<Lease>> {
        self.reach(|log| log.claim(owner, term, queues, limit))
    }

    fn changes(&self, cursor: Option<&str>, limit: usize) -> LogFuture<'_, Changes> {
        self.reach(|log| log.changes(cursor, limit))
    }

    fn beat(&self, owner: &str, term: Duration) -> LogFuture<'_, ()> {
        self.reach(|log| log.beat(owner, term))
    }

    forward_log!(self => self.log, except claim, changes, beat);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_log_takes_no_run_from_a_process_that_lives() {
    let began = Instant::now();
    let log = MemoryLog::new().with_clock(move || began.elapsed().as_nanos() as i64);
    let log = Away { log, is_away: Arc::default() };
    let model = Scripted::play([says("Done.")]);
    let engine = Engine::new(model.clone());
    engine.chat("go").record(&log).run_id("r").enqueue().await.unwrap();
    let term = Duration::from_secs(3);
    log.lease("r", "other/1", term).await.unwrap();
    let other = log.clone();
    let other = tokio::spawn(async move {
        loop {
            // A beat that fails is repeated with the next.
            let _ = other.beat("other", term).await;
            sleep(Duration::from_secs(1)).await;
        }
    });
    let outages = async {
        for seconds in [1, 2, 3, 4, 5, 10, 60] {
            sleep(Duration::from_millis(5_700)).await;
            log.is_away.store(true, SeqCst);
            sleep(Duration::from_secs(seconds)).await;
            log.is_away.store(false, SeqCst);
        }
        sleep(Duration::from_secs(10)).await;
        assert_eq!(model.calls(), 0, "it has a living owner");
        other.abort();
        let died = Instant::now();
        until(&log, "r", RunStatus::Completed).await;
        let waited = died.elapsed();
        assert!(waited <= Duration::from_secs(4), "{waited:?}");
    };
    working(Worker::new(&log).agent("a", engine), outages).await;
    assert_eq!(resumed_after(&log.log, "r").await, [Interruption::Crash]);
}

#[tokio::test]
async fn after_shutdown_running_tools_finish_and_no_model_call_starts() {
    let log = MemoryLog::new();
    let (tool, entered, gate) = gated("wait");
    let model = Scripted::play([calls("wait"), says("Done.")]);
    let engine = Engine::new(model.clone()).tool(tool);
    engine.chat("go").record(&log).run_id("r").enqueue().await.unwrap();
    let opens = Arc::clone(&gate);
    let shutdown = async move {
        entered.notified().await;
        tokio::spawn(async move {
            sleep(Duration::from_millis(100)).await;
            opens.notify_one();
        });
    };
    let worker = Worker::new(&log).agent("a", engine.clone()).drain(Duration::from_secs(60));
    let report = worker.run(shutdown).await.unwrap();
    assert_eq!((report.performed, report.failed, report.released), (0, 0, 1));
    let run = log.run("r").await.unwrap().unwrap();
    assert_eq!((run.status, run.held_until, model.calls()), (RunStatus::Running, None, 1));
    // The tool would wait for ever in another attempt.
    working(Worker::new(&log).agent("a", engine), until(&log, "r", RunStatus::Completed)).await;
    assert_eq!(model.calls(), 2);
}

#[tokio::test]
async fn a_run_is_kept_while_its_engine_is_made() {
    let (log, made) = (MemoryLog::new(), Arc::new(AtomicUsize::new(0)));
    let engine = Engine::new(Scripted::play([says("Done.")]));
    engine.chat("go").record(&log).run_id("r").enqueue().await.unwrap();
    let counted = Arc::clone(&made);
    let worker = Worker::new(&log).agent_with("a", move |_, _| {
        let (engine, counted) = (engine.clone(), Arc::clone(&counted));
        Box::pin(async move {
            counted.fetch_add(1, SeqCst);
            // Longer than a lease lasts without a beat.
            sleep(Duration::from_secs(4)).await;
            Ok(engine)
        })
    });
    working(worker, until(&log, "r", RunStatus::Completed)).await;
    assert_eq!(made.load(SeqCst), 1);
}

/// A log whose inboxes are never read to their end.
#[derive(Clone)]
struct Unread(MemoryLog);

impl Log for Unread {
    fn inbox(&self, _: &str, _: usize) -> LogFuture<'_, Vec<InboxMessage>> {
        Box::pin(std::future::pending())
    }

    forward_log!(self => self.0, except inbox);
}

#[tokio::test(start_paused = true)]
async fn an_inbox_that_cannot_be_read_does_not_put_off_a_deadline() {
    let log = Unread(MemoryLog::new());
    let stopped: [(&str, Options); 2] = [
        ("deadline", Options::new().deadline(Duration::from_secs(5))),
        ("budget_exceeded", Options::new().budget(Budget::new().max_wall_clock_ms(5_000))),
    ];
    for (reason, options) in stopped {
        let engine = Engine::new(Scripted::play([says("Done.")]));
        let chat = engine.chat("go").record(&log).run_id(reason).queue(Queue::new("q"));
        let ended = tokio::time::timeout(Duration::from_secs(60), chat.options(options)).await;
        assert_eq!(ended.expect("it ends").unwrap().halted_reason.as_str(), reason);
    }
}

/// A log whose first claim is committed, and whose answer is lost.
#[derive(Clone)]
struct Lossy(MemoryLog, Arc<Mutex<Vec<String>>>);

impl Log for Lossy {
    fn claim(
        &self,
        owner: &str,
        term: Duration,
        queues: &[&str],
        limit: usize,
    ) -> LogFuture<'_, Vec<Lease>> {
        let claimed = self.0.claim(owner, term, queues, limit);
        let owner = owner.to_owned();
        Box::pin(async move {
            let claimed = claimed.await;
            let mut owners = self.1.lock().unwrap();
            owners.push(owner);
            match owners.len() {
                1 => Err(Error::log(LogReason::Unavailable)),
                _ => claimed,
            }
        })
    }

    forward_log!(self => self.0, except claim);
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_repeated_by_the_same_owner() {
    let log = Lossy(MemoryLog::new(), Arc::default());
    let engine = Engine::new(Scripted::play([says("Done.")]));
    engine.chat("go").record(&log).run_id("r").enqueue().await.unwrap();
    let worker = Worker::new(&log).agent("a", engine);
    working(worker, until(&log.0, "r", RunStatus::Completed)).await;
    let owners = log.1.lock().unwrap();
    assert_eq!(owners[0], owners[1]);
    assert_ne!(owners[1], owners[2], "an answer was there");
}

#[tokio::test]
async fn a_cancellation_is_seen_behind_any_number_of_messages() {
    let log = MemoryLog::new();
    let (tool, entered, _gate) = gated("wait");
    let engine = Engine::new(Scripted::play([calls("wait")])).tool(tool);
    engine.chat("go").record(&log).run_id("r").enqueue().await.unwrap();
    working(Worker::new(&log).agent("a", engine), async {
        entered.notified().await;
        for n in 0..150 {
            let message = Signal::Message("hurry".to_owned());
            deliver(&log, "r", &n.to_string(), &message).await.unwrap();
        }
        deliver(&log, "r", "cancel", &Signal::Cancel).await.unwrap();
        until(&log, "r", RunStatus::Cancelled).await;
    })
    .await;
}

#[tokio::test]
async fn a_run_that_its_caller_performs_reads_its_messages() {
    let log = MemoryLog::new();
    let (tool, entered, gate) = gated("wait");
    let model = Scripted::play([calls("wait"), says("First."), says("Second.")]);
    let engine = Engine::new(model.clone()).tool(tool);
    let chat = engine.chat("go").record(&log).run_id("r").queue(Queue::new("default"));
    let other = async {
        entered.notified().await;
        for n in ["one", "two"] {
            deliver(&log, "r", n, &Signal::Message(n.to_owned())).await.unwrap();
        }
        gate.notify_one();
    };
    let (done, ()) = tokio::join!(chat.into_future(), other);
    assert_eq!(done.unwrap().text(), "First.");
    assert_eq!(said(&log, "r").await, ["one", "two"]);
    engine.replay(&log, "r").await.unwrap();
}

#[tokio::test]
async fn a_cancellation_that_comes_before_the_first_model_call_ends_the_run() {
    let log = MemoryLog::new();
    let model = Scripted::play([says("never")]);
    let engine = Engine::new(model.clone());
    let chat = engine.chat("go").record(&log).run_id("r").agent("a").queue(Queue::new("default"));
    let stream = chat.stream().started().await.unwrap();
    deliver(&log, "r", "m", &Signal::Cancel).await.unwrap();
    testing::collect(stream).await.unwrap();
    until(&log, "r", RunStatus::Cancelled).await;
    assert_eq!(model.calls(), 0);
    let queue = log.run("r").await.unwrap().unwrap().queue.unwrap();
    assert_eq!(queue.name, "default/a", "workers without the agent leave it");
}

#[tokio::test]
async fn queues_and_priorities_decide_what_is_claimed_first() {
    let log = MemoryLog::new();
    let engine = Engine::new(Scripted::play([says("1"), says("2"), says("3")]));
    let enqueue = async |id: &str, queue: Queue| {
        engine.chat("x").record(&log).run_id(id).queue(queue).enqueue().await.unwrap();
    };
    enqueue("low", Queue::new("work")).await;
    enqueue("high", Queue::new("work").priority(9)).await;
    enqueue("elsewhere", Queue::new("other")).await;
    let worker = Worker::new(&log).agent("a", engine.clone()).queue("work").concurrency(1);
    working(worker, until(&log, "low", RunStatus::Completed)).await;
    let ended = async |id: &str| log.run(id).await.unwrap().unwrap();
    assert!(ended("high").await.updated < ended("low").await.updated);
    assert_eq!(ended("elsewhere").await.records, 1);
}

/// The user messages of a run's conversation, in order.
async fn said(log: &MemoryLog, run: &str) -> Vec<String> {
    let records = log.read(run, 1, 1_000).await.unwrap();
    let said = |record: &mynah::log::Record| match record.fact().unwrap().unwrap() {
        mynah::log::Fact::UserMessage { message } => Some(message.text().into_owned()),
        mynah::log::Fact::Resumed { message: Some(answer), .. } => Some(answer.text().into_owned()),
        _ => None,
    };
    records.iter().filter_map(said).collect()
}

/// A tool that is entered, and ends when it is let go.
fn gated(name: &str) -> (Tool, Arc<Notify>, Arc<Notify>) {
    let (entered, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (enter, pass) = (Arc::clone(&entered), Arc::clone(&gate));
    let tool = Tool::new(name, "", json!({})).idempotent(1).handler(move |_: Value, _| {
        let (enter, pass) = (Arc::clone(&enter), Arc::clone(&pass));
        async move {
            enter.notify_one();
            pass.notified().await;
            json!("done")
        }
    });
    (tool, entered, gate)
}

#[tokio::test]
async fn messages_to_a_run_in_progress_are_read_in_their_order_and_once() {
    let log = MemoryLog::new();
    let (tool, entered, gate) = gated("wait");
    let model = Scripted::play([calls("wait"), says("Both heard."), says("never")]);
    let engine = Engine::new(model.clone()).tool(tool);
    engine.chat("go").record(&log).run_id("r").enqueue().await.unwrap();
    working(Worker::new(&log).agent("a", engine.clone()), async {
        entered.notified().await;
        for n in ["one", "two"] {
            deliver(&log, "r", n, &Signal::Message(n.to_owned())).await.unwrap();
        }
        // The worker reads them while the tool runs.
        sleep(Duration::from_millis(500)).await;
        gate.notify_one();
        until(&log, "r", RunStatus::Completed).await;
    })
    .await;
    assert_eq!(said(&log, "r").await, ["one", "two"]);
    assert_eq!(model.calls(), 2, "one model call has read both");
    assert!(log.inbox("r", 10).await.unwrap().is_empty());
    engine.replay(&log, "r").await.unwrap();
}

#[tokio::test]
async fn a_message_that_arrives_before_the_end_is_read() {
    let log = MemoryLog::new();
    let (tool, entered, gate) = gated("wait");
    let engine =
        Engine::new(Scripted::play([calls("wait"), says("First."), says("Second.")])).tool(tool);
    engine.chat("go").record(&log).run_id("r").enqueue().await.unwrap();
    working(Worker::new(&log).agent("a", engine.clone()), async {
        entered.notified().await;
        sleep(Duration::from_millis(250)).await;
        // The run ends before the worker looks again.
        deliver(&log, "r", "m", &Signal::Message("wait!".to_owned())).await.unwrap();
        gate.notify_one();
        until(&log, "r", RunStatus::Completed).await;
    })
    .await;
    assert_eq!(said(&log, "r").await, ["wait!"]);
}

#[tokio::test]
async fn an_answer_that_comes_early_waits_for_its_question() {
    let log = MemoryLog::new();
    let (tool, entered, gate) = gated("wait");
    let ask = Tool::new("ask", "", json!({})).handler(async |_, _| ToolOutcome::ask("How many?"));
    let ask_call = Script::new().tool_call("c1", "ask", json!({})).call_tools();
    let engine = Engine::new(Scripted::play([calls("wait"), ask_call, says("Two.")]));
    let engine = engine.tools([tool, ask]);
    engine.chat("order").record(&log).run_id("r").enqueue().await.unwrap();
    working(Worker::new(&log).agent("a", engine.clone()), async {
        entered.notified().await;
        deliver(&log, "r", "m", &Signal::Answer("two".to_owned())).await.unwrap();
        sleep(Duration::from_millis(300)).await;
        gate.notify_one();
        until(&log, "r", RunStatus::Completed).await;
    })
    .await;
    assert_eq!(said(&log, "r").await, ["two"]);
    assert!(log.inbox("r", 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_run_waits_until_each_of_its_calls_has_a_decision() {
    let log = MemoryLog::new();
    let pay = Tool::new("pay", "", json!({})).manual().handler(async |_, _| json!("paid"));
    let both = Script::new().tool_call("c0", "pay", json!({})).tool_call("c1", "pay", json!({}));
    let engine = Engine::new(Scripted::play([both.call_tools(), says("Done.")])).tool(pay);
    engine.chat("pay").record(&log).run_id("r").enqueue().await.unwrap();
    working(Worker::new(&log).agent("a", engine.clone()), async {
        until(&log, "r", RunStatus::Suspended).await;
        // What the run does not wait for is dropped, and does not keep it from continuing. So is what cannot be read.
        log.deliver("r", "strange", b"?".to_vec()).await.unwrap();
        deliver(&log, "r", "m0", &Signal::approve("c9")).await.unwrap();
        deliver(&log, "r", "m1", &Signal::Answer("yes".to_owned())).await.unwrap();
        deliver(&log, "r", "m2", &Signal::approve("c0")).await.unwrap();
        sleep(Duration::from_millis(700)).await;
        let run = log.run("r").await.unwrap().unwrap();
        assert_eq!((run.status, run.held_until), (RunStatus::Suspended, None));
        deliver(&log, "r", "m3", &Signal::reject("c1", "once")).await.unwrap();
        until(&log, "r", RunStatus::Completed).await;
    })
    .await;
    assert!(log.inbox("r", 10).await.unwrap().is_empty());
    engine.replay(&log, "r").await.unwrap();
}

#[tokio::test]
async fn a_run_that_sleeps_makes_room_and_is_continued_at_its_time() {
    let log = MemoryLog::new();
    let nap =
        Tool::new("nap", "", json!({})).handler(async |_, context: ToolContext| {
            match context.continuation() {
                None => ToolOutcome::later_with(Duration::from_millis(800), "slept"),
                Some(_) => ToolOutcome::from(json!("rested")),
            }
        });
    let sleeper = Engine::new(Scripted::play([calls("nap"), says("Good morning.")])).tool(nap);
    let other = Engine::new(Scripted::play([says("Hello.")]));
    sleeper.chat("go").record(&log).run_id("sleeper").agent("s").enqueue().await.unwrap();
    let worker = Worker::new(&log).agent("s", sleeper.clone()).agent("o", other.clone());
    let worker = worker.concurrency(1).park_after(Duration::from_millis(100));
    working(worker, async {
        until(&log, "sleeper", RunStatus::Suspended).await;
        assert!(log.run("sleeper").await.unwrap().unwrap().wake_at.is_some());
        other.chat("hi").record(&log).run_id("other").agent("o").enqueue().await.unwrap();
        until(&log, "other", RunStatus::Completed).await;
        // A message does not wake it before its time, and is read then.
        let hurry = Signal::Message("hurry".to_owned());
        deliver(&log, "sleeper", "m", &hurry).await.unwrap();
        until(&log, "sleeper", RunStatus::Completed).await;
    })
    .await;
    assert_eq!(said(&log, "sleeper").await, ["hurry"]);
    sleeper.replay(&log, "sleeper").await.unwrap();
}

#[tokio::test]
async fn a_run_whose_loop_is_newer_stays() {
    use mynah::log::{About, Append, BEHAVIOUR, Chain, Extent};
    let log = MemoryLog::new();
    let about = About { behaviour: BEHAVIOUR + 1, adapter: "x".to_owned(), ..About::default() };
    let fact = Fact::RunStarted {
        thread: Thread::from("hi"),
        extent: Extent::Chat,
        about: Some(Box::new(about)),
    };
    let first = Chain::new("newer").append(1, [7; 16], &fact).unwrap();
    let batch = Append::new("newer", None, vec![first]).queue(Queue::new("default"));
    log.append(batch).await.unwrap();
    let worker = Worker::new(&log).agent("a", Engine::new(Scripted::play([])));
    let report = worker.run(sleep(Duration::from_millis(400))).await.unwrap();
    assert!(report.failed > 0);
    let run = log.run("newer").await.unwrap().unwrap();
    assert_eq!((run.status, run.records, run.held_until), (RunStatus::Running, 1, None));
}
