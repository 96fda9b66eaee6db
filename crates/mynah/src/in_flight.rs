//! Answers that are not recorded yet, for readers in the same process.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use mynah_data::{Event, RunId};
use tokio::sync::watch;

/// The answers in flight of runs in this process.
///
/// A call with [`in_flight`](crate::Chat::in_flight) shares what its model says as it comes, and the progress of its tools. A reader
/// with [`Follow::in_flight`](crate::Follow::in_flight) sees it before it is recorded. Of each run the answer in flight is held, and
/// the latest progress of each tool that runs.
///
/// ```
/// use mynah::{Engine, testing::Scripted};
/// use mynah::{InFlight, follow, log::MemoryLog};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
/// # let engine = Engine::new(Scripted::says(["hi"]));
///
/// let (log, in_flight) = (MemoryLog::new(), InFlight::new());
/// let chat = engine.chat("hello").record(&log).run_id("r-1").in_flight(&in_flight);
/// let events = follow(&log, "r-1", None).in_flight(&in_flight);
/// # chat.await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct InFlight(Arc<Mutex<HashMap<RunId, watch::Sender<Answer>>>>);

/// The answer in flight of a run.
#[derive(Default)]
pub(crate) struct Answer {
    /// Changes when an answer begins and when it ends.
    pub(crate) generation: u64,
    /// Its events so far; none between answers.
    pub(crate) events: Vec<Event>,
    is_open: bool,
    /// The latest progress of each tool that runs.
    pub(crate) progress: Vec<Report>,
}

/// What a tool call reported last.
#[derive(Clone)]
pub(crate) struct Report {
    pub(crate) call_id: Arc<str>,
    /// Rises from report to report, in the whole process.
    pub(crate) number: u64,
    pub(crate) event: Event,
}

/// Where the tools of a run report their progress.
pub(crate) struct Reports(watch::Sender<Answer>);

impl Reports {
    /// A call reports. Its report before is replaced.
    pub(crate) fn report(&self, call_id: &str, event: &Event) {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Relaxed);
        let report = Report { call_id: call_id.into(), number, event: event.clone() };
        self.0.send_modify(|answer| {
            answer.progress.retain(|other| *other.call_id != *call_id);
            answer.progress.push(report);
        });
    }

    pub(crate) fn end(&self, call_id: &str) {
        self.0.send_if_modified(|answer| {
            answer.progress.retain(|other| *other.call_id != *call_id);
            false
        });
    }
}

impl InFlight {
    /// Nothing in flight.
    pub fn new() -> Self {
        Self::default()
    }

    fn runs(&self) -> MutexGuard<'_, HashMap<RunId, watch::Sender<Answer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a run that begins or continues in this process.
    pub(crate) fn open(&self, run: &RunId) -> Flight {
        let sender = watch::Sender::new(Answer::default());
        self.runs().insert(run.clone(), sender.clone());
        Flight { all: self.clone(), run: run.clone(), sender }
    }

    /// The answer of a run that this process performs.
    pub(crate) fn of(&self, run: &str) -> Option<watch::Receiver<Answer>> {
        self.runs().get(run).map(watch::Sender::subscribe)
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InFlight").field(&self.runs().len()).finish()
    }
}

/// A run's own entry. Dropping it ends the readers' streams.
pub(crate) struct Flight {
    all: InFlight,
    run: RunId,
    sender: watch::Sender<Answer>,
}

impl Flight {
    pub(crate) fn subscribe(&self) -> watch::Receiver<Answer> {
        self.sender.subscribe()
    }

    pub(crate) fn begin(&self) {
        self.next(true);
    }

    /// The model said something. The end of an answer is not shown before it is recorded.
    pub(crate) fn hear(&self, event: &Event) {
        if matches!(event, Event::MessageCompleted { .. } | Event::Error { .. }) {
            return self.end();
        }
        self.sender.send_if_modified(|answer| {
            if answer.is_open {
                answer.events.push(event.clone());
            }
            answer.is_open
        });
    }

    pub(crate) fn reports(&self) -> Reports {
        Reports(self.sender.clone())
    }

    pub(crate) fn end(&self) {
        self.next(false);
    }

    fn next(&self, is_open: bool) {
        self.sender.send_modify(|answer| {
            let generation = answer.generation + 1;
            *answer = Answer { generation, is_open, ..Answer::default() };
        });
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut runs = self.all.runs();
        // Another call may have continued the run since.
        if runs.get(&self.run).is_some_and(|sender| sender.same_channel(&self.sender)) {
            runs.remove(&self.run);
        }
    }
}
