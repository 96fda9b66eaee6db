//! A log that is unavailable for a while neither ends a run nor loses or doubles anything.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::StreamExt as _;
use mynah::{
    Engine, Error, ErrorKind, Event, EventStream, LogReason, MetricsSink, Tool,
    log::{Append, Head, Lease, Log, LogFuture, MemoryLog, VerifyStatus, forward_log, verify_run},
    step::AppendMetric,
    testing::{self, Scripted},
};
use serde_json::{Value, json};
use tokio::time::{Instant, advance, sleep};

#[tokio::test(start_paused = true)]
async fn a_log_that_fails_some_times_has_every_record_once_when_the_run_is_complete()
-> mynah::Result<()> {
    let sound = Flaky::default();
    let run = engine(&AtomicU32::new(0).into())?.chat("go").record(&sound).await?.run_id;
    let expected = kinds(&sound.log, &run.unwrap_or_default()).await?;
    let appends = sound.attempts.load(Relaxed);
    assert!(appends >= 3, "{appends}");
    for at in 0..appends {
        for fault in [Fault::Refused, Fault::AnswerLost] {
            let (log, ran) = (Flaky::default(), Arc::new(AtomicU32::new(0)));
            log.fail(at, 6, fault);
            let result = engine(&ran)?.chat("go").record(&log).await?;
            assert_eq!((&*result.text(), ran.load(Relaxed)), ("done", 1), "{at}");
            let run = result.run_id.unwrap_or_default();
            assert_eq!(kinds(&log.log, &run).await?, expected, "{at}");
            assert_eq!(verify_run(&log, &run).await?.status, VerifyStatus::Verified, "{at}");
            assert_eq!(engine(&ran)?.replay(&log, &*run).await?.status, "equal");
            assert_eq!(log.left(), 0, "it failed as often as it should");
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_a_tool_did_while_the_log_was_unavailable_is_recorded_and_the_next_effect_waits()
-> mynah::Result<()> {
    let (log, began) = (Flaky::default(), Instant::now());
    let times = Arc::new(Mutex::new(Vec::new()));
    let (down, told) = (log.clone(), Arc::clone(&times));
    let work = Tool::new("work", "", json!({})).handler(move |arguments: Value, _| {
        let (down, told) = (down.clone(), Arc::clone(&told));
        async move {
            let seconds = arguments["seconds"].as_u64().unwrap_or_default();
            told.lock().expect("nobody panicked").push(("began", began.elapsed().as_secs()));
            // Until it is repaired.
            if seconds > 0 {
                down.fail(0, u32::MAX, Fault::Refused);
            }
            sleep(Duration::from_secs(seconds)).await;
            told.lock().expect("nobody panicked").push(("done", began.elapsed().as_secs()));
            "worked"
        }
    });
    let first = json!([work_call("c0", 1), work_call("c1", 5), {"finish": "tool_calls"}]);
    let second = json!([work_call("c2", 0), {"finish": "tool_calls"}]);
    let engine = Engine::new(Scripted::new([first, second, says_done()])?).tool(work);
    let repaired = log.clone();
    tokio::spawn(async move {
        sleep(Duration::from_secs(60)).await;
        repaired.fail(0, 0, Fault::Refused);
    });
    let result = engine.chat("go").record(&log).await?;
    assert_eq!(result.text(), "done");
    let times = times.lock().expect("nobody panicked").clone();
    // Running tools continued; the last began when the log was back, within the longest pause.
    let (last, before) = times[4..].split_first().expect("three calls");
    assert_eq!(times[..4], [("began", 0), ("began", 0), ("done", 1), ("done", 5)]);
    assert!((60..=63).contains(&last.1), "{last:?}");
    assert_eq!(before.len(), 1);
    let run = result.run_id.unwrap_or_default();
    let kinds = kinds(&log.log, &run).await?;
    assert_eq!(kinds.iter().filter(|kind| *kind == "tool_completed").count(), 3);
    assert_eq!(verify_run(&log, &run).await?.status, VerifyStatus::Verified);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn each_record_is_measured_once_from_its_fact_until_it_is_safe() -> mynah::Result<()> {
    let (log, told) = (Flaky::default(), Arc::new(Told::default()));
    // The pauses are at least 10, 20, 40, 80 and 160 ms.
    log.fail(1, 5, Fault::Refused);
    let engine = engine(&Arc::default())?.metrics(told.clone() as Arc<dyn MetricsSink>);
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    let told = told.0.lock().expect("nobody panicked").clone();
    let appended: Vec<String> = told.iter().map(|(kind, ..)| kind.clone()).collect();
    assert_eq!(appended, kinds(&log.log, &run).await?);
    assert!(told.iter().all(|(_, failure, _)| failure.is_none()), "{told:?}");
    let slow = told.iter().filter(|(.., took)| *took >= Duration::from_millis(310)).count();
    let fast = told.iter().filter(|(.., took)| took.is_zero()).count();
    assert!(slow > 0 && fast > 0 && slow + fast == told.len(), "{told:?}");
    Ok(())
}

/// The kind, the failure and the time of each record.
#[derive(Default)]
struct Told(Mutex<Vec<(String, Option<String>, Duration)>>);

impl MetricsSink for Told {
    fn append(&self, record: &AppendMetric<'_>) {
        let AppendMetric { kind, failure, took, .. } = *record;
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.push((kind.to_string(), failure.map(str::to_owned), took));
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_does_not_come_back_ends_the_run_in_the_end() -> mynah::Result<()> {
    let ran = Arc::new(AtomicU32::new(0));
    for limit in [None, Some(Duration::from_secs(30))] {
        let (log, began) = (Flaky::default(), Instant::now());
        log.fail(1, u32::MAX, Fault::Refused);
        let mut call = engine(&ran)?.chat("go").record(&log);
        if let Some(limit) = limit {
            call = call.emit_timeout(limit);
        }
        let error = call.await.expect_err("a log that is gone");
        assert_eq!(error.kind(), ErrorKind::Log(LogReason::Unavailable));
        assert!(error.to_string().contains("for a test"), "the cause is told: {error}");
        let (took, attempts) = (began.elapsed().as_secs(), log.attempts.load(Relaxed));
        match limit {
            None => assert!((300..=303).contains(&took), "{took} s"),
            Some(limit) => assert_eq!(took, limit.as_secs()),
        }
        // Pauses grow from 10 ms to between two and three seconds.
        let pauses = took / 3..=took / 2 + 12;
        assert!(pauses.contains(&u64::from(attempts)), "{attempts} in {took} s");
        assert_eq!(ran.load(Relaxed), 0, "no effect begins");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_log_that_refuses_for_good_is_not_asked_again() -> mynah::Result<()> {
    use LogReason::{Corrupt, Fenced, HeadMismatch, ReadOnly, Sealed, Unusable};
    for reason in [Fenced, HeadMismatch, Corrupt, Sealed, ReadOnly, Unusable] {
        let (log, began) = (Flaky::default(), Instant::now());
        log.fail(1, u32::MAX, Fault::ForGood(reason));
        let ran = Arc::new(AtomicU32::new(0));
        let error = engine(&ran)?.chat("go").record(&log).await.expect_err("a refusal");
        assert_eq!(error.kind(), ErrorKind::Log(reason));
        assert_eq!((log.attempts.load(Relaxed), began.elapsed()), (2, Duration::ZERO));
        assert_eq!(ran.load(Relaxed), 0);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_cannot_be_renewed_at_once_is_renewed_before_a_tool_starts()
-> mynah::Result<()> {
    let (log, ran) = (Flaky::default(), Arc::new(AtomicU32::new(0)));
    let mut stream = engine(&ran)?.chat("go").record(&log).stream();
    until_a_tool_is_told(&mut stream).await?;
    // The process was suspended, and does not know whether it still has the run.
    advance(Duration::from_secs(60)).await;
    log.leases.store(4, Relaxed);
    let began = Instant::now();
    assert_eq!(testing::text(&testing::collect(stream).await?), "done");
    assert_eq!((log.leases.load(Relaxed), ran.load(Relaxed)), (0, 1));
    assert!(began.elapsed() >= Duration::from_millis(150), "{:?}", began.elapsed());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_waits_when_a_run_is_dropped_is_given_to_the_log_once_more() -> mynah::Result<()> {
    let (log, ran) = (Flaky::default(), Arc::new(AtomicU32::new(0)));
    let mut stream = engine(&ran)?.chat("go").record(&log).stream();
    until_a_tool_is_told(&mut stream).await?;
    let run = stream.run_id().cloned().unwrap_or_default();
    log.fail(0, u32::MAX, Fault::Refused);
    let limit = Duration::from_secs(1);
    let told = tokio::time::timeout(limit, stream.next()).await;
    assert!(told.is_err(), "it is not told before it is on its way: {told:?}");
    assert_eq!(ran.load(Relaxed), 1);
    assert!(!kinds(&log.log, &run).await?.contains(&"tool_completed".to_owned()));
    log.fail(0, 0, Fault::Refused);
    drop(stream);
    assert!(kinds(&log.log, &run).await?.contains(&"tool_completed".to_owned()));
    assert_eq!(log.run(&run).await?.and_then(|run| run.held_until), None, "it is free");
    Ok(())
}

async fn until_a_tool_is_told(stream: &mut EventStream) -> mynah::Result<()> {
    while let Some(event) = stream.next().await {
        if matches!(event?, Event::ToolExecutionStarted { .. }) {
            break;
        }
    }
    Ok(())
}

async fn kinds(log: &MemoryLog, run: &str) -> mynah::Result<Vec<String>> {
    let records = log.read(run, 1, usize::MAX).await?;
    Ok(records.iter().map(|record| record.kind().to_string()).collect())
}

/// An engine with a tool that counts how often it ran.
fn engine(ran: &Arc<AtomicU32>) -> mynah::Result<Engine> {
    let ran = Arc::clone(ran);
    let work = Tool::new("work", "", json!({})).handler(move |_: Value, _| {
        ran.fetch_add(1, Relaxed);
        async { "worked" }
    });
    let call = json!([work_call("c0", 0), {"finish": "tool_calls"}]);
    Ok(Engine::new(Scripted::new([call, says_done()])?).tool(work))
}

fn work_call(id: &str, seconds: u64) -> Value {
    json!({"tool_call": {"id": id, "name": "work", "arguments": {"seconds": seconds}}})
}

fn says_done() -> Value {
    json!([{"text": "done"}, {"finish": "stop"}])
}

#[derive(Clone, Copy, Default)]
enum Fault {
    /// Nothing is kept.
    #[default]
    Refused,
    /// The records are stored, and the caller gets no answer.
    AnswerLost,
    /// Nothing is kept, and never will be.
    ForGood(LogReason),
}

/// A log whose appends fail from one on, so many times.
#[derive(Clone, Default)]
struct Flaky {
    log: MemoryLog,
    faults: Arc<Mutex<(u32, u32, Fault)>>,
    attempts: Arc<AtomicU32>,
    /// How many renewals fail.
    leases: Arc<AtomicU32>,
}

impl Flaky {
    /// Lets appends fail: after so many that do not, so many times.
    fn fail(&self, after: u32, times: u32, fault: Fault) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = (after, times, fault);
    }

    /// How many times it is still to fail.
    fn left(&self) -> u32 {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    fn fault(&self) -> Option<Fault> {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let (after, times, fault) = &mut *faults;
        if *after > 0 || *times == 0 {
            *after = after.saturating_sub(1);
            return None;
        }
        *times = times.saturating_sub(1);
        Some(*fault)
    }
}

impl Log for Flaky {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        self.attempts.fetch_add(1, Relaxed);
        let fault = self.fault();
        Box::pin(async move {
            match fault {
                None => self.log.append(batch).await,
                Some(Fault::ForGood(reason)) => Err(Error::log(reason)),
                Some(fault) => {
                    if matches!(fault, Fault::AnswerLost) {
                        self.log.append(batch).await?;
                    }
                    Err(unavailable())
                }
            }
        })
    }

    fn lease(&self, run: &str, owner: &str, term: Duration) -> LogFuture<'_, Lease> {
        let less = |left: u32| left.checked_sub(1);
        match self.leases.fetch_update(Relaxed, Relaxed, less) {
            Ok(_) => Box::pin(async { Err(unavailable()) }),
            Err(_) => self.log.lease(run, owner, term),
        }
    }

    forward_log!(self => self.log, except append, lease);
}

fn unavailable() -> Error {
    Error::log(LogReason::Unavailable).with_message("log error: unavailable: for a test")
}
