//! Workers: processes that perform the runs which others enqueued.

use std::{
    collections::{BTreeMap, HashMap},
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use mynah_data::{Error, ErrorKind, LogReason, Message, Result, RunId};
use mynah_log::{Fact, Lease, Log};
use mynah_step::{BoxFuture, LEASE, SystemWorld, new_owner};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{CancelHandle, Chat, Engine, cancel_run, resume::Resume};

/// The queue of runs that name none.
pub(crate) const DEFAULT_QUEUE: &str = "default";

/// How often a worker with room looks for runs, and for messages to the runs that it has.
const TICK: Duration = Duration::from_millis(200);

/// The longest pause before a run is claimed again that could not be performed.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// How many messages of a run are read at once.
const MESSAGES: usize = 100;

/// A message to a run, from any process; see [`deliver`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Signal {
    /// The answer to the question that the run waits for.
    Answer(String),
    /// A message of the user.
    Message(String),
    /// Runs a call that the run waits for, with other arguments if some are given.
    Approve {
        /// The call.
        call_id: String,
        /// The arguments in place of the model's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arguments: Option<Value>,
    },
    /// Rejects a call that the run waits for.
    Reject {
        /// The call.
        call_id: String,
        /// What the model reads.
        #[serde(default)]
        reason: String,
    },
    /// The result of a call that the run waits for.
    ToolResult {
        /// The call.
        call_id: String,
        /// The result.
        content: Value,
    },
    /// Ends the run.
    Cancel,
}

/// Delivers a message to a run. Returns false if the run got a message with this id before.
///
/// A [`Worker`] takes it in the same commit as the fact that it becomes, so it counts once, even if a process dies. A run that is cancelled while a
/// worker performs it stops within about a second. Other messages are taken when the run waits, or when it is next claimed.
///
/// # Errors
/// `sealed` if the run has ended, `run_not_found` if there is none.
pub async fn deliver<L: Log + ?Sized>(
    log: &L,
    run: impl AsRef<str>,
    message_id: &str,
    signal: &Signal,
) -> Result<bool> {
    let payload = serde_json::to_vec(signal)
        .map_err(|why| Error::invalid_option("signal", "not_json").with_message(why.to_string()))?;
    log.deliver(run.as_ref(), message_id, payload).await
}

impl Chat {
    /// Records the start of the run and returns its id. Some [`Worker`] performs it.
    ///
    /// A run with the same [id](Chat::run_id) and input is not started twice; with another input it is refused (`run_exists`).
    /// [`Chat::agent`] names the worker's engine that performs it, and [`Chat::queue`] its queue and priority.
    ///
    /// # Errors
    /// As the call itself. A call without a log is refused.
    pub async fn enqueue(self) -> Result<RunId> {
        self.into_start().enqueue().await
    }
}

/// Performs the runs of a log's queues.
///
/// ```
/// # use mynah::{Engine, testing::Scripted};
/// # use serde_json::json;
/// use std::time::Duration;
/// use mynah::{Worker, log::{Log, MemoryLog, RunStatus}};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::new([json!([{"text": "Hello."}, {"finish": "stop"}])])?);
/// let log = MemoryLog::new();
/// let run = engine.chat("Hi!").record(&log).run_id("greeting-1").enqueue().await?;
///
/// let shutdown = tokio::time::sleep(Duration::from_millis(500)); // a program waits for SIGTERM
/// Worker::new(&log).agent("support", engine).concurrency(64).run(shutdown).await?;
/// assert_eq!(log.run(&run).await?.unwrap().status, RunStatus::Completed);
/// # Ok(()) }
/// ```
///
/// A worker claims as many runs as it has room for: new ones, those whose owner died, and those that wait and got a [message](deliver). Any
/// number of workers may share a log, in any number of processes. On shutdown it claims nothing more, lets its runs finish within the
/// drain time, and releases the rest, so that another worker continues them at once.
///
/// A run whose agent this worker does not have stays in its queue.
#[must_use = "a worker does nothing unless it runs"]
pub struct Worker {
    log: Arc<dyn Log>,
    agents: BTreeMap<String, Engine>,
    queues: Vec<String>,
    concurrency: usize,
    drain: Duration,
}

/// What a worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerReport {
    /// How often it performed a run until that ended or waited.
    pub performed: u64,
    /// How often a run could not be performed.
    pub failed: u64,
    /// How many runs it released unfinished at the end.
    pub released: usize,
}

/// Why a worker looks around.
enum Woken {
    Shutdown,
    Done(RunId, Result<()>),
    Tick,
}

/// Until when a run is left alone that could not be performed, and for how long the next time.
struct Parked {
    until: Instant,
    pause: Duration,
}

impl Worker {
    /// A worker of this log, with room for 16 runs, 30 seconds to drain, and the queue `default`.
    pub fn new<L: Log + Clone>(log: &L) -> Self {
        Self {
            log: Arc::new(log.clone()),
            agents: BTreeMap::new(),
            queues: Vec::new(),
            concurrency: 16,
            drain: Duration::from_secs(30),
        }
    }

    /// Performs runs of this agent with this engine. An only agent also performs runs that name none.
    pub fn agent(mut self, name: impl Into<String>, engine: Engine) -> Self {
        self.agents.insert(name.into(), engine);
        self
    }

    /// Claims runs of this queue. May be called several times; without it, the queue is `default`.
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.queues.push(name.into());
        self
    }

    /// How many runs it performs at once.
    pub fn concurrency(mut self, runs: usize) -> Self {
        self.concurrency = runs.max(1);
        self
    }

    /// How long runs may continue after shutdown.
    pub fn drain(mut self, limit: Duration) -> Self {
        self.drain = limit;
        self
    }

    /// Works until `shutdown` is ready and the runs that it has are done or released.
    ///
    /// # Errors
    /// A log that fails for another reason than being unavailable for a while.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<WorkerReport> {
        if self.queues.is_empty() {
            self.queues.push(DEFAULT_QUEUE.to_owned());
        }
        let mut shutdown = pin!(shutdown.fuse());
        let mut report = WorkerReport::default();
        let mut active: HashMap<RunId, CancelHandle> = HashMap::new();
        let mut parked: HashMap<RunId, Parked> = HashMap::new();
        let mut runs: FuturesUnordered<BoxFuture<(RunId, Result<()>)>> = FuturesUnordered::new();
        let mut cursor = self.log.changes(None, 0).await?.cursor;
        let mut deadline: Option<Instant> = None;
        loop {
            if deadline.is_none() && runs.len() < self.concurrency {
                let room = self.concurrency - runs.len();
                for lease in self.claim(room + parked.len()).await? {
                    let run = lease.run.clone();
                    let rests = parked.get(&run).is_some_and(|rest| rest.until > Instant::now());
                    if rests || runs.len() >= self.concurrency {
                        self.log.release(&lease);
                        continue;
                    }
                    let cancel = CancelHandle::new();
                    active.insert(run.clone(), cancel.clone());
                    let (log, engine) = (Arc::clone(&self.log), self.agents.clone());
                    let work = perform(log, engine, lease, cancel);
                    runs.push(Box::pin(async move { (run, work.await) }));
                }
            }
            cursor = self.stop_cancelled(&active, cursor).await?;
            let left = deadline.map_or(TICK, |end| end.saturating_duration_since(Instant::now()));
            let mut tick = pin!(sleep(TICK.min(left)));
            let woken = poll_fn(|cx| {
                if deadline.is_none() && shutdown.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Woken::Shutdown);
                }
                match runs.poll_next_unpin(cx) {
                    Poll::Ready(Some((run, done))) => Poll::Ready(Woken::Done(run, done)),
                    _ => tick.as_mut().poll(cx).map(|()| Woken::Tick),
                }
            });
            match woken.await {
                Woken::Shutdown => deadline = Some(Instant::now() + self.drain),
                Woken::Done(run, done) => {
                    active.remove(&run);
                    match done {
                        Ok(()) => {
                            report.performed += 1;
                            parked.remove(&run);
                        }
                        Err(error) => {
                            report.failed += 1;
                            tracing::warn!(run = &*run, %error, "a run could not be performed");
                            let pause = parked.get(&run).map_or(TICK, |rest| rest.pause);
                            let next = MAX_PAUSE.min(pause * 2);
                            let until = Instant::now() + pause;
                            parked.insert(run, Parked { until, pause: next });
                        }
                    }
                }
                Woken::Tick => {}
            }
            if deadline.is_some_and(|end| runs.is_empty() || Instant::now() >= end) {
                report.released = runs.len();
                return Ok(report);
            }
        }
    }

    /// Takes runs that can continue. A log that is unavailable has none for now.
    async fn claim(&self, room: usize) -> Result<Vec<Lease>> {
        let owner = new_owner(&*self.log, &SystemWorld);
        let queues: Vec<&str> = self.queues.iter().map(String::as_str).collect();
        match self.log.claim(&owner, LEASE, &queues, room).await {
            Err(error) if error.kind() == ErrorKind::Log(LogReason::Unavailable) => Ok(Vec::new()),
            claimed => claimed,
        }
    }

    /// Stops the runs that got a message to do so.
    async fn stop_cancelled(
        &self,
        active: &HashMap<RunId, CancelHandle>,
        cursor: String,
    ) -> Result<String> {
        let changes = match self.log.changes(Some(&cursor), 1_000).await {
            Err(error) if error.kind() == ErrorKind::Log(LogReason::Unavailable) => {
                return Ok(cursor);
            }
            changes => changes?,
        };
        for change in changes.runs.iter().filter(|change| change.has_messages) {
            let Some(cancel) = active.get(&change.run) else { continue };
            let messages = self.log.inbox(&change.run, MESSAGES).await?;
            if messages.iter().any(|message| signal(&message.payload) == Some(Signal::Cancel)) {
                cancel.cancel();
            }
        }
        Ok(changes.cursor)
    }
}

/// Performs a run that was claimed until it ends or waits.
async fn perform(
    log: Arc<dyn Log>,
    agents: BTreeMap<String, Engine>,
    lease: Lease,
    cancel: CancelHandle,
) -> Result<()> {
    let run = lease.run.clone();
    let released = Released(Some((Arc::clone(&log), lease)));
    let engine = engine_of(&log, &agents, &run).await?;
    let messages = log.inbox(&run, MESSAGES).await?;
    let signals: Vec<Signal> = messages.iter().filter_map(|m| signal(&m.payload)).collect();
    if signals.contains(&Signal::Cancel) {
        drop(released);
        return cancel_run(&log, &run).await.map(drop);
    }
    let mut resume = Resume::new(engine, Arc::clone(&log), run).cancel_handle(&cancel);
    for signal in signals {
        resume = match signal {
            Signal::Answer(text) => resume.answer(text),
            Signal::Message(text) => resume.message(Message::user(text)),
            Signal::Approve { call_id, arguments: None } => resume.approve(call_id),
            Signal::Approve { call_id, arguments: Some(arguments) } => {
                resume.approve_with(call_id, arguments)
            }
            Signal::Reject { call_id, reason } => resume.reject(call_id, reason),
            Signal::ToolResult { call_id, content } => resume.tool_result(call_id, content),
            Signal::Cancel => resume,
        };
    }
    let consumed = messages.into_iter().map(|message| message.id).collect();
    let mut stream = resume.claimed(released, consumed).stream();
    stream.drain(drop).await.map(drop)
}

/// A message as it was delivered; none if it is not one of ours.
fn signal(payload: &[u8]) -> Option<Signal> {
    serde_json::from_slice(payload).ok()
}

/// The engine of the run's agent.
async fn engine_of(
    log: &Arc<dyn Log>,
    agents: &BTreeMap<String, Engine>,
    run: &RunId,
) -> Result<Engine> {
    let first = log.read(run, 1, 1).await?;
    let began = first.first().and_then(|record| record.fact().ok().flatten());
    let name = match &began {
        Some(Fact::RunStarted { about: Some(about), .. }) => about.options.get("agent"),
        _ => None,
    };
    let name = name.and_then(Value::as_str);
    let engine = match name {
        Some(name) => agents.get(name),
        None if agents.len() == 1 => agents.values().next(),
        None => None,
    };
    engine.cloned().ok_or_else(|| {
        let known = agents.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        Error::invalid_option("agent", "unknown").with_message(format!(
            "validation failed: agent: run {run} needs the agent {}, and this worker has: {known}",
            name.unwrap_or("that started it")
        ))
    })
}

/// A lease that is released unless it is taken.
pub(crate) struct Released(Option<(Arc<dyn Log>, Lease)>);

impl Released {
    /// Takes the lease.
    pub(crate) fn take(&mut self) -> Option<Lease> {
        self.0.take().map(|(_, lease)| lease)
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        if let Some((log, lease)) = self.0.take() {
            log.release(&lease);
        }
    }
}

impl crate::start::Start {
    /// Records the start of the run, unless it is there.
    async fn enqueue(mut self) -> Result<RunId> {
        let log = self.options.log.take().ok_or_else(crate::handle::unnamed)?;
        loop {
            if log.head(&self.run_id).await?.is_some() {
                let loaded = crate::loaded::Loaded::read(&*log, &self.run_id).await?;
                self.compare(&loaded)?;
                return Ok(self.run_id);
            }
            let (mut driver, _) = self.prepare(Some(&log))?;
            match poll_fn(|cx| driver.poll_begun(cx)).await {
                Ok(()) => return Ok(self.run_id),
                Err(error) if log.head(&self.run_id).await?.is_none() => return Err(error),
                Err(_) => {}
            }
        }
    }
}
