//! What the tests of the boundary share: a model that plays a script, a clock that stands still, logs that fail, and a loop that is
//! performed twice.

#![allow(
    dead_code,
    clippy::expect_used,
    reason = "each test file uses a part of this, and a helper may fail the test that calls it"
)]

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use futures_util::stream;
use mynah_data::{
    AdapterReason, Breach, Error, Event, FinishReason, HaltReason, LogReason, Metadata, Request,
    Result, Thread, ToolCall, Usage,
};
use mynah_log::{Append, Chain, End, Extent, Fact, Head, Log, LogFuture, MemoryLog, Record};
use mynah_step::{
    Adapter, AppendMetric, BoxFuture, Config, Context, IntoOutcome, LEASE, MetricsSink, ModelCall,
    ModelCallMetric, ModelStream, RetryPolicy, RunMode, Tool, ToolCallMetric, ToolContext, World,
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

pub(crate) const RUN: &str = "run-1";

/// Runs a loop, and replays it. Both must have the same result.
pub(crate) async fn twice<T: PartialEq + std::fmt::Debug>(
    config: impl Fn(&Arc<MemoryLog>) -> Config,
    agent: impl AsyncFn(&Context) -> T,
) -> (T, Vec<Fact>) {
    let log = Arc::new(MemoryLog::new());
    let live = perform(config(&log), &agent).await.expect("the run goes well");
    let records = read(&log).await;
    let again = perform(config(&log).mode(RunMode::Replay(records.clone())), &agent).await;
    assert_eq!(again.expect("the replay is equal"), live);
    assert_eq!(read(&log).await, records, "a replay writes nothing");
    (live, facts(&records))
}

/// Runs a loop, replays it, and resumes it after each of its records: the result is always the
/// same.
pub(crate) async fn everywhere<T: PartialEq + std::fmt::Debug>(
    config: impl Fn(&Arc<MemoryLog>) -> Config,
    agent: impl AsyncFn(&Context) -> T,
) {
    let whole = Arc::new(MemoryLog::new());
    let live = perform(config(&whole), &agent).await.expect("the run goes well");
    let again = config(&whole).replay().await.expect("records");
    assert_eq!(perform(again, &agent).await.as_ref(), Ok(&live), "again");
    let records = read(&whole).await;
    for kept in 1..records.len() {
        let log = Arc::new(MemoryLog::new());
        assert!(log.append(Append::new(RUN, None, records[..kept].to_vec())).await.is_ok());
        let resumed = config(&log).resume().await.expect("it can go on");
        assert_eq!(perform(resumed, &agent).await.as_ref(), Ok(&live), "after {kept}");
    }
}

/// Performs a loop from its beginning to its end.
pub(crate) async fn perform<T>(config: Config, agent: impl AsyncFn(&Context) -> T) -> Result<T> {
    let context = Context::new(config)?;
    begin(&context).await?;
    let done = agent(&context).await;
    end(&context).await?;
    context.finish().await?;
    Ok(done)
}

/// Records of a run, made by one loop, performed by another.
pub(crate) async fn mismatch(
    recorded: impl AsyncFn(&Context) -> Result<()>,
    performed: impl AsyncFn(&Context) -> Result<()>,
) -> Error {
    let log = Arc::new(MemoryLog::new());
    perform(plain(&log), &recorded).await.expect("the run goes well").expect("so does the loop");
    let again = plain(&log).mode(RunMode::Replay(read(&log).await));
    let done = perform(again, &performed).await;
    done.and_then(|done| done).expect_err("the replay differs")
}

pub(crate) async fn begin(context: &Context) -> Result<()> {
    let thread = Thread::from("go");
    context.emit(Fact::RunStarted { thread, extent: Extent::Chat, about: None }).await
}

pub(crate) async fn end(context: &Context) -> Result<()> {
    context.emit(Fact::Completed(End::new(HaltReason::Completed, Metadata::new()))).await
}

pub(crate) fn plain<L: Log + Clone>(log: &L) -> Config {
    Config::new(log, RUN)
}

/// Leaves the run as a process does that dies: it holds the run, and beats no more.
pub(crate) async fn die(log: &MemoryLog) {
    let held = log.lease(RUN, "dead/1", LEASE).await;
    held.expect("the run has no other holder");
}

/// Ends the run as cancelled, as another process does.
pub(crate) async fn end_from_outside(log: &Arc<MemoryLog>) {
    let records = read(log).await;
    let mut chain = Chain::new(records[0].envelope().run_id.clone());
    records.iter().for_each(|record| chain.follow(record).expect("a chain"));
    let head = chain.head();
    let end = End::new(HaltReason::Cancelled, Metadata::new());
    let cancelled = Fact::Cancelled { end, partial: None, cuts: Vec::new() };
    let record = chain.append(1, [7; 16], &cancelled).expect("a record");
    log.append(Append::new(chain.run_id(), head, vec![record])).await.expect("an append");
}

pub(crate) async fn read(log: &Arc<MemoryLog>) -> Vec<Record> {
    log.read(RUN, 1, 1_000_000).await.expect("the log can be read")
}

pub(crate) fn facts(records: &[Record]) -> Vec<Fact> {
    let fact = |record: &Record| record.fact().ok().flatten().expect("the body is there");
    records.iter().map(fact).collect()
}

pub(crate) fn kinds(facts: &[Fact]) -> Vec<&'static str> {
    facts.iter().map(|fact| fact.kind().as_str()).collect()
}

pub(crate) fn ask(text: &str) -> Request {
    Request::from(Thread::from(text))
}

pub(crate) fn call(id: &str, tool: &str) -> ToolCall {
    ToolCall::new(id, tool, "{}")
}

/// A tool that takes anything.
pub(crate) fn tool<F, T, M: 'static>(
    name: &str,
    run: impl Fn(ToolContext) -> F + Send + Sync + 'static,
) -> Tool
where
    F: Future<Output = T> + Send + 'static,
    T: IntoOutcome<M> + 'static,
{
    Tool::new(name, "", json!({})).handler(move |_, context| run(context))
}

/// A model that plays these scripts, one a call.
#[derive(Clone)]
pub(crate) struct Plays(Arc<Mutex<VecDeque<Vec<Result<Event>>>>>, pub(crate) Arc<AtomicUsize>);

pub(crate) fn plays(scripts: impl IntoIterator<Item = Vec<Result<Event>>>) -> Plays {
    Plays(Arc::new(Mutex::new(scripts.into_iter().collect())), Arc::default())
}

impl Adapter for Plays {
    fn name(&self) -> &str {
        "plays"
    }

    fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        let script = self.0.lock().ok().and_then(|mut scripts| scripts.pop_front());
        Box::pin(async move {
            match script {
                // A model that never says anything more.
                Some(events) if events.is_empty() => Ok(Box::pin(stream::pending()) as ModelStream),
                Some(events) => Ok(Box::pin(stream::iter(events)) as ModelStream),
                None => Err(Error::adapter(AdapterReason::InvalidRequest)),
            }
        })
    }

    fn default_retry(&self) -> RetryPolicy {
        RetryPolicy::never()
    }
}

/// An answer in these pieces.
pub(crate) fn says(pieces: &[&str]) -> Vec<Result<Event>> {
    let pieces = pieces.iter().map(|piece| Event::text_delta(*piece));
    whole(pieces)
}

/// These events, between the beginning and the end of an answer.
pub(crate) fn whole(events: impl IntoIterator<Item = Event>) -> Vec<Result<Event>> {
    let begun = std::iter::once(Event::message_started());
    let end = std::iter::once(Event::message_completed(Some(FinishReason::Stop)));
    begun.chain(events).chain(end).map(Ok).collect()
}

pub(crate) fn usage(input: u64, output: u64) -> Event {
    let usage = Usage::new(input, output);
    Event::Usage { usage: Box::new(usage) }
}

/// A world in which nothing is by chance: each number is one more than the one before.
#[derive(Default)]
pub(crate) struct Counting(pub(crate) AtomicUsize);

impl World for Counting {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.random())
    }

    fn random(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) as u64
    }
}

/// The clock of a test whose time is paused.
pub(crate) struct Clock(tokio::time::Instant, AtomicUsize);

impl Default for Clock {
    fn default() -> Self {
        Self(tokio::time::Instant::now(), AtomicUsize::new(0))
    }
}

impl World for Clock {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1) + self.0.elapsed()
    }

    fn random(&self) -> u64 {
        self.1.fetch_add(1, Ordering::Relaxed) as u64
    }
}

/// A log that keeps its promise for so many appends, and then fails, or hangs.
#[derive(Clone)]
pub(crate) struct Failing {
    pub(crate) log: Arc<MemoryLog>,
    pub(crate) after: Arc<AtomicUsize>,
    pub(crate) hangs: bool,
}

impl Failing {
    pub(crate) fn new(after: usize, hangs: bool) -> Self {
        Self { log: Arc::default(), after: Arc::new(AtomicUsize::new(after)), hangs }
    }
}

impl Log for Failing {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        let left = self.after.load(Ordering::Relaxed);
        if left > 0 {
            self.after.store(left - 1, Ordering::Relaxed);
            self.log.append(batch)
        } else if self.hangs {
            Box::pin(std::future::pending())
        } else {
            Box::pin(async { Err(Error::log(LogReason::Unusable)) })
        }
    }

    mynah_log::forward_log!(self => self.log);
}

/// Everything that was reported, in order.
#[derive(Default)]
pub(crate) struct Told(pub(crate) Mutex<Vec<Value>>);

impl Told {
    /// What was reported, without the appends.
    pub(crate) fn calls(&self) -> Vec<Value> {
        let told = self.0.lock().expect("nobody panicked").clone();
        told.into_iter().filter(|told| told.get("append").is_none()).collect()
    }

    fn tell(&self, what: Value) {
        self.0.lock().expect("nobody panicked").push(what);
    }
}

impl MetricsSink for Told {
    fn model_call(&self, call: &ModelCallMetric<'_>) {
        let ModelCallMetric { model, failure, input_tokens: input, output_tokens: output, .. } =
            *call;
        self.tell(json!({"model": model, "failure": failure, "tokens": [input, output]}));
    }

    fn tool_call(&self, call: &ToolCallMetric<'_>) {
        let ToolCallMetric { tool, failure, .. } = *call;
        self.tell(json!({"tool": tool, "failure": failure}));
    }

    fn append(&self, record: &AppendMetric<'_>) {
        let AppendMetric { kind, failure, .. } = *record;
        self.tell(json!({"append": kind, "failure": failure}));
    }

    fn budget_exceeded(&self, breach: &Breach) {
        self.tell(json!({"limit": breach.limit}));
    }
}

/// A log that answers on demand.
#[derive(Clone)]
pub(crate) struct Slow {
    pub(crate) log: MemoryLog,
    pub(crate) given: Arc<AtomicUsize>,
    pub(crate) answers: Arc<Semaphore>,
}

impl Default for Slow {
    fn default() -> Self {
        Self { log: MemoryLog::new(), given: Arc::default(), answers: Arc::new(Semaphore::new(0)) }
    }
}

impl Log for Slow {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        Box::pin(async move {
            self.given.fetch_add(1, Ordering::Relaxed);
            let head = self.log.append(batch).await;
            if let Ok(answer) = self.answers.acquire().await {
                answer.forget();
            }
            head
        })
    }

    mynah_log::forward_log!(self => self.log);
}
