//! Workers: processes that perform the runs which others enqueued.

use std::{
    any::Any,
    collections::HashMap,
    future::{Future, poll_fn, ready},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::FutureExt as _;
use mynah_data::{Error, ErrorKind, LogReason, Result, RunId};
use mynah_log::{Lease, Log, Queue};
use mynah_step::{BoxFuture, Contact, KeptLease, LEASE, Moment, SystemWorld, new_owner};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    task::{Id, JoinError, JoinSet},
    time::{Instant, sleep},
};

use crate::{CancelHandle, Chat, Engine, InFlight, Options, linked::after_end, mailbox::Mailbox};

mod perform;

pub(crate) use perform::fitting;
use perform::{Agents, Performed, perform};

/// The queue of runs that name none.
const DEFAULT_QUEUE: &str = "default";

/// How often a worker looks for what changed: runs to claim, and messages to the runs that it has.
const TICK: Duration = Duration::from_millis(200);

/// How often a worker with room looks for runs although nothing changed: a time has come, or a process has died.
const CLAIM: Duration = Duration::from_millis(500);

/// The longest pause before a run is claimed again that could not be performed.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The longest pause between two looks for runs, if all that there are rest.
const MAX_REST: Duration = Duration::from_secs(5);

/// How long a run waits in a worker for a time, unless the worker says otherwise.
const PARK_AFTER: Duration = Duration::from_secs(5);

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
    #[non_exhaustive]
    Approve {
        /// The call.
        call_id: String,
        /// The arguments in place of the model's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arguments: Option<Value>,
    },
    /// Rejects a call that the run waits for.
    #[non_exhaustive]
    Reject {
        /// The call.
        call_id: String,
        /// What the model reads.
        #[serde(default)]
        reason: String,
    },
    /// The result of a call that the run waits for.
    #[non_exhaustive]
    ToolResult {
        /// The call.
        call_id: String,
        /// The result.
        content: Value,
    },
    /// Ends the run.
    Cancel,
}

impl Signal {
    /// Runs a call that the run waits for.
    ///
    /// ```
    /// use mynah::Signal;
    /// use serde_json::json;
    ///
    /// let approve = Signal::approve("c0");
    /// assert_eq!(serde_json::to_value(&approve)?, json!({"approve": {"call_id": "c0"}}));
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn approve(call_id: impl Into<String>) -> Self {
        Self::Approve { call_id: call_id.into(), arguments: None }
    }

    /// Runs a call that the run waits for with other arguments than the model's. They must fit the tool's schema.
    pub fn approve_with(call_id: impl Into<String>, arguments: impl Into<Value>) -> Self {
        Self::Approve { call_id: call_id.into(), arguments: Some(arguments.into()) }
    }

    /// Rejects a call that the run waits for, for this reason, which may be empty.
    pub fn reject(call_id: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Reject { call_id: call_id.into(), reason: reason.into() }
    }

    /// Gives the result of a call that the run waits for.
    pub fn tool_result(call_id: impl Into<String>, content: impl Into<Value>) -> Self {
        Self::ToolResult { call_id: call_id.into(), content: content.into() }
    }

    /// A message as it was delivered; none if it is not one of ours.
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        serde_json::from_slice(payload).ok()
    }
}

/// Delivers a message to a run. Returns false if the run got a message with this id before.
///
/// A [`Worker`] takes it in the same commit as the fact that it becomes, so it counts once, even if a process dies. A run that is cancelled while a
/// worker performs it stops within about a second. A message of the user is read before the next model call, and before the run ends. Answers
/// and decisions are read when the run waits for them; those that it does not wait for then are dropped. If another run
/// [continues](crate::Engine::resume) this one, the message is delivered to that run.
///
/// Workers read the messages of runs that have a queue. In another run they stay until a program continues it with
/// [`Resume::inbox`](crate::Resume::inbox).
///
/// # Errors
/// `sealed` if the run has ended, `run_not_found` if there is none.
pub async fn deliver(
    log: &dyn Log,
    run: impl AsRef<str>,
    message_id: impl AsRef<str>,
    signal: &Signal,
) -> Result<bool> {
    let payload = serde_json::to_vec(signal)
        .map_err(|why| Error::invalid_option("signal", "not_json").with_message(why.to_string()))?;
    let (run, id) = (RunId::from(run.as_ref()), message_id.as_ref());
    match log.deliver(&run, id, payload.clone()).await {
        Err(error) if error.kind() == ErrorKind::Log(LogReason::Sealed) => {
            let next = after_end(log, &run, error).await?;
            log.deliver(&next, id, payload).await
        }
        delivered => delivered,
    }
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
        let mut start = self.0;
        start.options.queue.get_or_insert_with(|| Queue::new(DEFAULT_QUEUE));
        start.enqueue().await
    }
}

/// Performs the runs of a log's queues.
///
/// ```
/// use mynah::{Engine, testing::Scripted};
/// use std::time::Duration;
/// use mynah::{Worker, log::{Log, MemoryLog, RunStatus}};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::says(["Hello."]));
///
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
/// number of workers may share a log, in any number of processes. On shutdown it claims nothing more, and its runs start no model call and
/// no tools. Model calls in flight and tools that run may come to their end within the drain time. Then the runs are released, so that
/// another worker continues them at once.
///
/// A run whose agent this worker does not have stays where it is: the runs of an agent wait in a queue `QUEUE/AGENT`, which a worker with that
/// agent claims from.
#[must_use = "a worker does nothing unless it runs"]
pub struct Worker {
    log: Arc<dyn Log>,
    agents: Agents,
    queues: Vec<String>,
    concurrency: usize,
    drain: Duration,
    /// What its runs are resumed with.
    options: Options,
    on_run: Option<Arc<OnRun>>,
    on_failure: Option<Box<OnFailure>>,
}

mynah_data::partial_debug! { Worker { queues, concurrency, drain } }

/// Sees that a run could not be performed.
type OnFailure = dyn Fn(&RunId, &Error) + Send + Sync;

/// Sees a run begin. What it returns is held until the run is done.
type OnRun = dyn Fn(&RunId, &CancelHandle) -> Box<dyn Any + Send> + Send + Sync;

/// What a worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerReport {
    /// How often it performed a run until that ended or waited.
    pub performed: u64,
    /// How often a run could not be performed.
    pub failed: u64,
    /// How many runs it released unfinished at the end.
    pub released: u64,
}

/// Why a worker looks around.
enum Woken {
    Shutdown,
    Done(Joined),
    Tick,
}

/// A task that ended: it performed a run, or panicked.
type Joined = std::result::Result<(Id, Result<Performed>), JoinError>;

/// Until when a run is left alone that could not be performed, and for how long the next time.
struct Rest {
    until: Instant,
    pause: Duration,
}

/// The runs that a worker has, and those that it leaves alone for a while.
#[derive(Default)]
struct Runs {
    tasks: JoinSet<Result<Performed>>,
    active: HashMap<Id, (RunId, Mailbox)>,
    /// Stops all of them.
    cancel: CancelHandle,
    /// The owner of the runs that are claimed next. It stays the same until a claim is answered: one whose answer was lost may have
    /// given it runs.
    owner: Option<String>,
    resting: HashMap<RunId, Rest>,
    /// Nothing is claimed just after the log was unavailable: others could not say that they live.
    contact: Contact,
    report: WorkerReport,
}

impl Worker {
    /// A worker of this log, with room for 16 runs, 30 seconds to drain, and the queue `default`.
    pub fn new<L: Log + Clone>(log: &L) -> Self {
        Self {
            log: Arc::new(log.clone()),
            agents: Agents::new(),
            queues: Vec::new(),
            concurrency: 16,
            drain: Duration::from_secs(30),
            options: Options::new().park_after(PARK_AFTER),
            on_run: None,
            on_failure: None,
        }
    }

    /// Performs runs of this agent with this engine. An only agent also performs runs that name none.
    pub fn agent(self, name: impl Into<String>, engine: Engine) -> Self {
        self.agent_with(name, move |_, _| Box::pin(ready(Ok(engine.clone()))))
    }

    /// Performs runs of this agent, each with an engine that is made for it.
    pub fn agent_with(
        mut self,
        name: impl Into<String>,
        make: impl Fn(Arc<dyn Log>, RunId) -> BoxFuture<Result<Engine>> + Send + Sync + 'static,
    ) -> Self {
        self.agents.insert(name.into(), Arc::new(make));
        self
    }

    /// Shares the answers of its runs with readers in this process while they stream; see [`InFlight`].
    pub fn in_flight(mut self, all: &InFlight) -> Self {
        self.options = self.options.in_flight(all);
        self
    }

    /// Calls a function when it begins to perform a run, with a handle that ends the run. What the function returns is dropped when
    /// the worker is done with the run.
    pub fn on_run<T: Send + 'static>(
        mut self,
        begins: impl Fn(&RunId, &CancelHandle) -> T + Send + Sync + 'static,
    ) -> Self {
        let begins = move |run: &RunId, cancel: &CancelHandle| -> Box<dyn Any + Send> {
            Box::new(begins(run, cancel))
        };
        self.on_run = Some(Arc::new(begins));
        self
    }

    mynah_data::setters! { self => self;
        /// Calls a function when a run that it claimed could not be performed: its engine cannot be made or differs from the run's, its loop
        /// is newer, or the log failed. The run stays as it is, and is claimed again after a pause.
        on_failure(fails: impl Fn(&RunId, &Error) + Send + Sync + 'static) = Some(Box::new(fails));

        /// How many runs it performs at once. By default 16. A worker with 0 is refused.
        concurrency(runs: usize) = runs;

        /// How long model calls in flight and running tools may take after shutdown. By default 30 seconds.
        drain(limit: Duration) = limit;
    }

    /// Claims runs of this queue. May be called several times; without it, the queue is `default`.
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.queues.push(name.into());
        self
    }

    /// How long a run waits in this worker for a time: a tool that continues [later](mynah_data::ToolOutcome::later), or a model call that its
    /// provider wants to have later. For a longer time it is parked, and makes room for another. By default five seconds.
    pub fn park_after(mut self, limit: Duration) -> Self {
        self.options = self.options.park_after(limit);
        self
    }

    /// Works until `shutdown` is ready and the runs that it has are done or released. Each run is a task of the runtime.
    ///
    /// # Errors
    /// A worker without agents or with a [`concurrency`](Self::concurrency) of 0, which would never perform a run; and a log that fails for
    /// another reason than being unavailable for a while.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<WorkerReport> {
        self.check()?;
        self.name_queues();
        let mut shutdown = pin!(shutdown.fuse());
        let (mut runs, mut cursor) = (Runs::default(), None);
        let (mut looked, mut claimed, mut deadline) = (None::<Instant>, None::<Instant>, None);
        let (mut has_work, mut pause) = (true, CLAIM);
        loop {
            if looked.is_none_or(|time| time.elapsed() >= TICK) {
                looked = Some(Instant::now());
                has_work |= self.look(&mut runs, &mut cursor).await?;
            }
            let is_time = claimed.is_none_or(|time| time.elapsed() >= pause);
            let has_room = runs.tasks.len() < self.concurrency && runs.contact.is_steady();
            if deadline.is_none() && (has_work || is_time) && has_room {
                claimed = Some(Instant::now());
                (has_work, pause) = self.claim(&mut runs).await?;
            }
            let now = Instant::now();
            let left = deadline.map_or(TICK, |end: Instant| end.saturating_duration_since(now));
            let mut tick = pin!(sleep(TICK.min(left)));
            let woken = poll_fn(|cx| {
                if deadline.is_none() && shutdown.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Woken::Shutdown);
                }
                match runs.tasks.poll_join_next_with_id(cx) {
                    Poll::Ready(Some(done)) => Poll::Ready(Woken::Done(done)),
                    _ => tick.as_mut().poll(cx).map(|()| Woken::Tick),
                }
            });
            match woken.await {
                Woken::Shutdown => {
                    deadline = Some(Instant::now() + self.drain);
                    runs.cancel.release();
                }
                Woken::Done(done) => {
                    self.done(&mut runs, done);
                    while let Some(done) = runs.tasks.try_join_next_with_id() {
                        self.done(&mut runs, done);
                    }
                    has_work = true;
                }
                Woken::Tick => {}
            }
            if deadline.is_some_and(|end| runs.tasks.is_empty() || Instant::now() >= end) {
                runs.report.released += runs.tasks.len() as u64;
                runs.tasks.shutdown().await;
                return Ok(runs.report);
            }
        }
    }

    fn name_queues(&mut self) {
        if self.queues.is_empty() {
            self.queues.push(DEFAULT_QUEUE.to_owned());
        }
        let of_agents = |queue: &String| {
            let names = self.agents.keys().map(|agent| queue_of(queue, agent));
            names.collect::<Vec<_>>()
        };
        let more: Vec<String> = self.queues.iter().flat_map(of_agents).collect();
        self.queues.extend(more);
    }

    /// Refuses a worker that would never perform a run.
    fn check(&self) -> Result<()> {
        let (field, code, why) = match (self.agents.is_empty(), self.concurrency) {
            (true, _) => {
                ("agents", "required", "the worker has no agent; add one with Worker::agent")
            }
            (_, 0) => ("concurrency", "must_be_positive", "the worker has room for no run"),
            _ => return Ok(()),
        };
        Err(Error::invalid_option(field, code).because(&[why.to_owned()]))
    }

    /// Claims runs that can continue and begins them. Returns whether there may be more, and when to look again although nothing changed.
    /// A log that is unavailable has none for now.
    async fn claim(&self, runs: &mut Runs) -> Result<(bool, Duration)> {
        let room = self.concurrency - runs.tasks.len();
        let now = Instant::now();
        runs.resting.retain(|_, rest| rest.until + MAX_PAUSE > now);
        let wanted = room + runs.resting.len();
        let owner = runs.owner.get_or_insert_with(|| new_owner(&*self.log, &SystemWorld));
        let queues: Vec<&str> = self.queues.iter().map(String::as_str).collect();
        let asked = Moment::now();
        let leases = match self.log.claim(owner, LEASE, &queues, wanted).await {
            Err(error) if is_unavailable(&error) => return Ok((false, CLAIM)),
            claimed => claimed?,
        };
        runs.owner = None;
        let (mut begun, mut rest) = (0, MAX_REST);
        let found = leases.len();
        for lease in leases {
            let rests = runs.resting.get(&lease.run_id);
            let left = rests.map(|rest| rest.until.saturating_duration_since(now));
            let left = left.unwrap_or_default();
            if !left.is_zero() || begun == room {
                self.log.release(&lease);
                rest = rest.min(left);
                continue;
            }
            begun += 1;
            self.begin(lease, asked, runs);
        }
        // If there is nothing but runs that rest, they are not claimed and released all the time.
        let pause = if found > 0 && begun == 0 { rest.max(CLAIM) } else { CLAIM };
        Ok((begun == room, pause))
    }

    fn begin(&self, lease: Lease, asked: Moment, runs: &mut Runs) {
        let (log, agents, run) = (Arc::clone(&self.log), self.agents.clone(), lease.run_id.clone());
        let lease = (run.clone(), KeptLease::new(&log, lease, asked));
        let cancel = runs.cancel.child();
        let mailbox = Mailbox::new(Arc::clone(&log), run.clone(), cancel.clone());
        let held = self.on_run.as_ref().map(|begins| begins(&run, &cancel));
        let work = perform(log, agents, lease, (cancel, mailbox.clone()), self.options.clone());
        let task = runs.tasks.spawn(async move {
            let _held = held;
            work.await
        });
        runs.active.insert(task.id(), (run, mailbox));
    }

    /// Looks for what changed since the cursor: messages to the runs that it has are passed to them. Returns whether other runs changed.
    async fn look(&self, runs: &mut Runs, cursor: &mut Option<String>) -> Result<bool> {
        let since = cursor.take();
        let changes = match self.log.changes(since.as_deref(), 1_000).await {
            Err(error) if is_unavailable(&error) => {
                *cursor = since;
                return Ok(false);
            }
            changes => changes?,
        };
        runs.contact.answered();
        *cursor = Some(changes.cursor);
        let active: HashMap<&RunId, &Mailbox> =
            runs.active.values().map(|(run, mailbox)| (run, mailbox)).collect();
        let mut others = changes.missed;
        let mut told: Vec<&Mailbox> = Vec::new();
        if changes.missed {
            // Any run may have messages.
            told.extend(active.values().copied());
            runs.resting.clear();
        }
        for change in changes.runs {
            match active.get(&change.run_id) {
                Some(mailbox) if change.has_messages => told.push(mailbox),
                Some(_) => {}
                None => {
                    others = true;
                    if change.has_messages {
                        runs.resting.remove(&change.run_id);
                    }
                }
            }
        }
        for mailbox in told {
            if let Err(error) = mailbox.refresh().await {
                if !is_unavailable(&error) {
                    return Err(error);
                }
                *cursor = since;
                break;
            }
        }
        Ok(others)
    }

    /// Counts a run that is done, or leaves it alone for a while.
    fn done(&self, runs: &mut Runs, done: Joined) {
        let (id, done) = done.unwrap_or_else(|panic| {
            let message = format!("the run panicked: {panic}");
            (panic.id(), Err(Error::log(LogReason::Unavailable).with_message(message)))
        });
        let Some((run, _)) = runs.active.remove(&id) else { return };
        let mut sleeps = None;
        match done {
            Ok(Performed::Stopped) => {
                runs.report.performed += 1;
                runs.resting.remove(&run);
                return;
            }
            Ok(Performed::Released) => {
                runs.report.released += 1;
                return;
            }
            Ok(Performed::Waits(left)) => sleeps = left,
            Err(error) => {
                runs.report.failed += 1;
                tracing::warn!(run = &*run, %error, "a run could not be performed");
                self.on_failure.iter().for_each(|fails| fails(&run, &error));
            }
        }
        let pause = runs.resting.get(&run).map_or(TICK, |rest| rest.pause);
        let until = Instant::now() + sleeps.map_or(pause, |left| left.min(MAX_PAUSE));
        runs.resting.insert(run, Rest { until, pause: MAX_PAUSE.min(pause * 2) });
    }
}

fn is_unavailable(error: &Error) -> bool {
    error.kind() == ErrorKind::Log(LogReason::Unavailable)
}

pub(crate) fn queue_of(queue: &str, agent: &str) -> String {
    format!("{queue}/{agent}")
}
