//! Runs that wait for a worker, messages that wait for a run, answers in flight, and what changed in a log.

use mynah_data::RunId;
use serde::{Deserialize, Serialize};

use crate::{Head, MAX_PAYLOAD, RunStatus};

/// The queue that a run waits in, and its rank there. It is set by the first append that names one and stays as it is.
///
/// ```
/// # mod mynah { pub use mynah_log as log; }
/// use mynah::log::Queue;
/// let queue = Queue::new("default").priority(5).concurrency("customer-7", 2);
/// assert_eq!((queue.key.as_deref(), queue.limit), (Some("customer-7"), 2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Queue {
    /// The name by which [`Log::claim`](crate::Log::claim) asks for it.
    pub name: String,
    /// Runs with a greater number are claimed first.
    pub priority: i32,
    /// Runs with the same key share a limit, across queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// While so many runs with the key have a living owner, this one is not claimed.
    pub limit: u32,
}

impl Queue {
    /// The queue of this name, with priority 0 and no limit.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), priority: 0, key: None, limit: u32::MAX }
    }

    mynah_data::setters! { self => self;
        /// The same with this priority. The greatest is claimed first.
        priority(priority: i32) = priority;
    }

    /// The same, and not claimed while `limit` runs with this key have a living owner. With a limit of zero the run would never be
    /// claimed, so an engine refuses it.
    pub fn concurrency(mut self, key: impl Into<String>, limit: u32) -> Self {
        (self.key, self.limit) = (Some(key.into()), limit);
        self
    }
}

/// A message that waits in the inbox of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboxMessage {
    /// The id that its sender gave it.
    pub id: String,
    /// When it arrived by the log's time, in nanoseconds since 1970.
    pub at: i64,
    /// What it says.
    pub payload: Vec<u8>,
}

impl InboxMessage {
    /// A message, as a backend returns it.
    pub fn new(id: impl Into<String>, at: i64, payload: impl Into<Vec<u8>>) -> Self {
        Self { id: id.into(), at, payload: payload.into() }
    }
}

/// A part of an answer in flight: some of its events, which a log keeps until the answer is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AnswerPart {
    /// The record that the answer follows: its `turn_started`.
    pub seq: u64,
    /// The place of its first event in the answer, from 0.
    pub first: u64,
    /// How many events it has.
    pub count: u64,
    /// The events, as the writer encodes them.
    pub payload: Vec<u8>,
}

impl AnswerPart {
    /// These events of the answer after a record, from a place on.
    pub fn new(seq: u64, first: u64, count: u64, payload: impl Into<Vec<u8>>) -> Self {
        Self { seq, first, count, payload: payload.into() }
    }

    /// The place after its last event.
    pub fn ends(&self) -> u64 {
        self.first.saturating_add(self.count)
    }
}

/// A run that has new records or messages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunChange {
    /// The run.
    pub run_id: RunId,
    /// Where its chain ends.
    pub head: Head,
    /// Its status.
    pub status: RunStatus,
    /// Whether messages wait in its inbox.
    pub has_messages: bool,
}

impl RunChange {
    /// A change, as a backend returns it.
    pub fn new(
        run_id: impl Into<RunId>,
        head: Head,
        status: RunStatus,
        has_messages: bool,
    ) -> Self {
        Self { run_id: run_id.into(), head, status, has_messages }
    }
}

/// The runs that changed after a cursor, as they are now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changes {
    /// The runs, each once.
    pub runs: Vec<RunChange>,
    /// What to give to [`Log::changes`](crate::Log::changes) for what comes after them.
    pub cursor: String,
    /// Whether changes before these may be missing, because the given cursor is older than what the log
    /// remembers. The reader looks at all runs that it follows.
    pub missed: bool,
}

impl Changes {
    /// These runs, up to this cursor.
    pub fn new(runs: Vec<RunChange>, cursor: impl Into<String>) -> Self {
        Self { runs, cursor: cursor.into(), missed: false }
    }

    /// No runs, for a cursor that is too old: what comes from now on is after this one.
    pub fn expired(cursor: impl Into<String>) -> Self {
        Self { missed: true, ..Self::new(Vec::new(), cursor) }
    }
}

/// The largest values that a log takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The bytes of a record's payload.
    pub record: usize,
    /// The bytes of the records of one append. A batch of a single record may be larger.
    pub batch: usize,
}

impl Limits {
    /// These sizes.
    pub const fn new(record: usize, batch: usize) -> Self {
        Self { record, batch }
    }
}

impl Default for Limits {
    /// Payloads as large as the format allows, and batches of any size.
    fn default() -> Self {
        Self::new(MAX_PAYLOAD, usize::MAX)
    }
}
