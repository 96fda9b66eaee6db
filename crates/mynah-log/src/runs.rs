//! The index of runs: summaries that need no records.

use std::sync::Arc;

use mynah_data::{Error, Result, RunId};
use serde::{Deserialize, Serialize};

use crate::{Corrupt, Hash, Head, Queue, Record, Totals};

mynah_data::words! {
    /// The status of a run.
    #[non_exhaustive]
    pub enum RunStatus {
        /// It has no end yet.
        Running => "running",
        /// It waits for a person or for tool results.
        Suspended => "suspended",
        /// It ended in an expected way.
        Completed => "completed",
        /// It failed.
        Failed => "failed",
        /// It was cancelled.
        Cancelled => "cancelled",
    }
}

impl RunStatus {
    /// Every status. Backends store the place in this list, so new ones come at its end.
    pub const ALL: &'static [Self] =
        &[Self::Running, Self::Suspended, Self::Completed, Self::Failed, Self::Cancelled];

    /// Whether the run has ended.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

/// The index entry of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunSummary {
    /// The run's id.
    pub run_id: RunId,
    /// Its status.
    pub status: RunStatus,
    /// When it began, in nanoseconds since 1970.
    pub started: i64,
    /// When its last record was made, in nanoseconds since 1970.
    pub updated: i64,
    /// How many records it has.
    pub records: u64,
    /// The hash of the last of them.
    pub hash: Hash,
    /// The model that it began with; if it did not say, the one that answered first.
    pub model: Option<Arc<str>>,
    /// The session that it is a turn of; none for a branch of one.
    pub session_id: Option<Arc<str>>,
    /// What its records add up to, as far as they had their bodies when they came.
    pub totals: Totals,
    /// The place of its seal among the log's, from 0; none without a seal.
    pub seal: Option<u64>,
    /// Until when its owner holds it without another sign of life, in nanoseconds since 1970; none if it has no owner.
    #[serde(default)]
    pub held_until: Option<i64>,
    /// The queue from which workers claim it; none if it is not for workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Arc<Queue>>,
    /// When it can continue if it is parked, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_at: Option<i64>,
}

impl RunSummary {
    /// Where its chain ends.
    pub fn head(&self) -> Head {
        Head { seq: self.records, hash: self.hash }
    }

    /// Whether it neither ended nor waits, and has no holder at this time in nanoseconds since
    /// 1970: its process ended, or it was dropped, or branched off and not resumed yet.
    pub fn is_abandoned(&self, now: i64) -> bool {
        self.status == RunStatus::Running && self.held_until.is_none_or(|until| until <= now)
    }

    /// The status in a word for people: `queued`, `abandoned` or `sleeping` if that says more.
    #[doc(hidden)]
    pub fn status_word(&self, now: i64) -> &'static str {
        match self.queue {
            _ if self.wake_at.is_some() && self.status == RunStatus::Suspended => "sleeping",
            Some(_) if self.is_abandoned(now) => "queued",
            None if self.is_abandoned(now) => "abandoned",
            _ => self.status.as_str(),
        }
    }

    /// A run without any data. For backends.
    pub fn empty(run_id: impl Into<RunId>) -> Self {
        Self {
            run_id: run_id.into(),
            status: RunStatus::Running,
            started: 0,
            updated: 0,
            records: 0,
            hash: Hash([0; 32]),
            model: None,
            session_id: None,
            totals: Totals::default(),
            seal: None,
            held_until: None,
            queue: None,
            wake_at: None,
        }
    }

    /// A run that begins with this record, which is not counted yet. For backends.
    pub fn begin(first: &Record) -> Self {
        let envelope = first.envelope();
        Self {
            started: envelope.ts,
            updated: envelope.ts,
            hash: first.hash(),
            ..Self::empty(envelope.run_id.clone())
        }
    }

    /// Counts one more record. For backends.
    pub fn count(&mut self, record: &Record) {
        let envelope = record.envelope();
        self.status = record.kind().status().unwrap_or(self.status);
        self.updated = envelope.ts;
        self.records = envelope.seq;
        self.hash = record.hash();
        let gist = record.gist();
        self.totals.add(&gist.adds);
        if gist.session.is_some() {
            self.session_id.clone_from(&gist.session);
        }
        if self.model.is_none() {
            // A model's server can answer with any name. Not every log can store this character.
            self.model = gist.model.as_deref().map(|model| model.replace('\0', "\u{fffd}").into());
        }
    }
}

/// Which runs are listed.
///
/// ```
/// # mod mynah { pub use mynah_log as log; }
/// use mynah::log::{RunFilter, RunStatus};
/// let failures = RunFilter::new().status(RunStatus::Failed).model("gpt-4.1-mini").limit(20);
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RunFilter {
    /// Only those of this status.
    pub status: Option<RunStatus>,
    /// Only those that are abandoned at this time, in nanoseconds since 1970; see [`RunSummary::is_abandoned`].
    pub abandoned: Option<i64>,
    /// Only those with this model; see [`model`](Self::model).
    pub model: Option<String>,
    /// Only those of this session.
    pub session: Option<String>,
    /// Only those that began at this time or later, in nanoseconds since 1970.
    pub since: Option<i64>,
    /// Only those that began before this time, in nanoseconds since 1970.
    pub before: Option<i64>,
    /// Only those whose id begins so.
    pub prefix: Option<String>,
    /// From where the page before ended.
    pub after: Option<String>,
    /// Whether the oldest come first.
    pub oldest_first: bool,
    /// At most this many; 100 if it is 0.
    pub limit: usize,
}

impl RunFilter {
    /// All runs, 100 at a time.
    pub fn new() -> Self {
        Self::default()
    }

    mynah_data::setters! { self => self;
        /// Only those of this status.
        status(status: RunStatus) = Some(status);

        /// Only those that are abandoned at this time, in nanoseconds since 1970; see [`RunSummary::is_abandoned`].
        abandoned(now: i64) = Some(now);

        /// Only those with this model: its whole name, as in the index, or the part after the adapter
        /// (`gpt-4.1-mini` for `openai:gpt-4.1-mini`).
        model(model: impl Into<String>) = Some(model.into());

        /// Only those of this session.
        session(session: impl Into<String>) = Some(session.into());

        /// Only those that began at this time or later, in nanoseconds since 1970.
        since(since: i64) = Some(since);

        /// Only those that began before this time, in nanoseconds since 1970.
        before(before: i64) = Some(before);

        /// Only those whose id begins so.
        prefix(prefix: impl Into<String>) = Some(prefix.into());

        /// From where the page before ended: its [`RunPage::next`].
        after(page_end: impl Into<String>) = Some(page_end.into());

        /// At most this many.
        limit(limit: usize) = limit;
    }

    /// The oldest come first.
    pub fn oldest_first(mut self) -> Self {
        self.oldest_first = true;
        self
    }

    /// How many runs a page has.
    pub fn page_size(&self) -> usize {
        if self.limit == 0 { 100 } else { self.limit }
    }

    /// The least id that is greater than every id with the [prefix](Self::prefix); none if there is none.
    pub fn prefix_end(&self) -> Option<String> {
        let mut chars: Vec<char> = self.prefix.as_deref()?.chars().collect();
        while let Some(last) = chars.pop() {
            let greater = u32::from(last) + 1..=u32::from(char::MAX);
            // Not every number is a character.
            if let Some(next) = { greater }.find_map(char::from_u32) {
                chars.push(next);
                return Some(chars.into_iter().collect());
            }
        }
        None
    }

    /// The place after which the page begins.
    ///
    /// # Errors
    /// An `after` that no page ended with.
    pub fn place(&self) -> Result<Option<Place>> {
        self.after.as_deref().map(Place::parse).transpose()
    }

    /// Whether a run is listed, its place aside.
    pub fn matches(&self, run: &RunSummary) -> bool {
        let is_of = |model: &String| {
            let whole = run.model.as_deref();
            let id = whole.and_then(|whole| whole.split_once(':')).map(|(_, id)| id);
            [whole, id].contains(&Some(model))
        };
        self.status.is_none_or(|status| run.status == status)
            && self.abandoned.is_none_or(|now| run.is_abandoned(now))
            && self.model.as_ref().is_none_or(is_of)
            && (self.session.is_none() || self.session.as_deref() == run.session_id.as_deref())
            && self.since.is_none_or(|since| run.started >= since)
            && self.before.is_none_or(|before| run.started < before)
            && self.prefix.as_ref().is_none_or(|prefix| run.run_id.starts_with(&**prefix))
    }
}

/// A page of runs, and the cursor to the next.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RunPage {
    /// The runs, newest first unless asked otherwise; of those that began at the same time, the one that came last.
    pub runs: Vec<RunSummary>,
    /// The problems of runs in the index that cannot be read. They count towards the size of a
    /// page.
    pub damaged: Vec<Corrupt>,
    /// What to give as `after` for more; none if there is no more.
    pub next: Option<String>,
}

impl RunPage {
    /// The runs, for who needs all of them.
    ///
    /// # Errors
    /// The first that is damaged.
    pub fn sound(&self) -> Result<&[RunSummary]> {
        match self.damaged.first() {
            Some(corrupt) => Err(corrupt.clone().into()),
            None => Ok(&self.runs),
        }
    }

    /// A page of runs with their positions. One more than the page holds was read.
    pub fn cut(mut found: Vec<(Place, Result<RunSummary, Corrupt>)>, size: usize) -> Self {
        let has_more = found.len() > size;
        found.truncate(size);
        let next = found.last().filter(|_| has_more).map(|(place, _)| place.to_string());
        let mut page = Self { next, ..Self::default() };
        for (_, run) in found {
            match run {
                Ok(run) => page.runs.push(run),
                Err(corrupt) => page.damaged.push(corrupt),
            }
        }
        page
    }
}

/// A run's position in the list. It never changes, so pages stay stable while runs come and change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// When it began, in nanoseconds since 1970.
    pub started: i64,
    /// Grows with each run that comes.
    pub key: i64,
}

impl Place {
    fn parse(text: &str) -> Result<Self> {
        let parts = text.split_once('.');
        let place = parts.and_then(|(started, key)| {
            Some(Self { started: started.parse().ok()?, key: key.parse().ok()? })
        });
        place.ok_or_else(|| Error::invalid_option("after", "not_a_page_end"))
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.started, self.key)
    }
}
