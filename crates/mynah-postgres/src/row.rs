//! Rows of runs, read as if anyone could have written them.

use std::sync::Arc;

use mynah_data::{Result, RunId};
use mynah_log::{
    Corrupt, Hash, Queue, RunStatus, RunSummary, Totals,
    backend::{Holder, IndexEntry},
};
use tokio_postgres::{Row, types::FromSql};

/// The columns of every lookup of a run, in the order in which [`Known::read`] takes them, and where they come from.
pub(crate) const SELECT: &str = "SELECT r.id, r.key, h.version, r.status, r.started, h.updated, h.records, h.hash, r.model, \
     r.session, r.turns, r.tool_calls, r.input_tokens, r.output_tokens, r.cost, r.sealed, r.token, r.owner, \
     coalesce(b.until, 0), r.queue, r.priority, r.shared, r.at_most, r.wake, r.delivered, \
     (SELECT s.place FROM mynah_seals s WHERE s.id = r.id AND r.sealed AND s.id <> 'log:maintenance'), \
     CASE WHEN r.delivered > 0 THEN (SELECT array_agg(i.id) FROM mynah_inbox i \
     WHERE i.run = r.id AND i.payload IS NOT NULL) END \
     FROM mynah_runs r LEFT JOIN mynah_heads h ON h.run = r.id LEFT JOIN mynah_beats b ON b.process = split_part(r.owner, '/', 1) ";

/// The rows of a run: of itself, and of its head.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) entry: IndexEntry,
    /// Its version in the table; 0 if it does not exist yet.
    pub(crate) version: i64,
    /// What the columns that change less often than its head are in the table.
    stored: Option<Changing>,
    /// Whether its seal has no place among the log's yet.
    pub(crate) is_unplaced: bool,
    /// The ids of the messages that wait for it.
    pub(crate) messages: Vec<String>,
    /// How many messages it got.
    pub(crate) delivered: i64,
    /// Whether parts of an answer may be kept for it.
    pub(crate) may_have_parts: bool,
    /// Whether it must be written.
    pub(crate) is_changed: bool,
}

/// The columns of a run that change, but not with every record.
#[derive(Clone, Debug, PartialEq)]
struct Changing {
    status: RunStatus,
    model: Option<Arc<str>>,
    totals: Totals,
    is_sealed: bool,
    token: u64,
    owner: Option<String>,
    has_queue: bool,
    wake: i64,
    delivered: i64,
}

impl Known {
    /// A run that is not in the table yet.
    pub(crate) fn new(entry: IndexEntry) -> Self {
        Self {
            entry,
            version: 0,
            stored: None,
            is_unplaced: false,
            messages: Vec::new(),
            delivered: 0,
            may_have_parts: false,
            is_changed: true,
        }
    }

    pub(crate) fn wake(&self) -> i64 {
        self.entry.wakes_at(!self.messages.is_empty())
    }

    /// What a row says, or that it cannot be true.
    pub(crate) fn read(row: &Row) -> Result<Self, Corrupt> {
        let run: String = get(row, 0, "")?;
        let wrong = |column: &str| unsound(&run, column);
        let unsigned = |at: usize, column: &str| {
            u64::try_from(get::<i64>(row, at, &run)?).map_err(|_| wrong(column))
        };
        let status = usize::try_from(get::<i16>(row, 3, &run)?).ok();
        let status = status.and_then(|status| RunStatus::ALL.get(status).copied());
        let hash: Vec<u8> = get(row, 7, &run)?;
        let text = |at| Ok::<_, Corrupt>(get::<Option<String>>(row, at, &run)?.map(Arc::from));
        let is_sealed: bool = get(row, 15, &run)?;
        let place: Option<i64> = get(row, 25, &run)?;
        let wake: i64 = get(row, 23, &run)?;
        let queue = match get::<Option<String>>(row, 19, &run)? {
            Some(name) => {
                let priority =
                    get::<Option<i32>>(row, 20, &run)?.ok_or_else(|| wrong("priority"))?;
                let mut queue = Queue::new(name).priority(priority);
                queue.key = get(row, 21, &run)?;
                let limit = get::<Option<i64>>(row, 22, &run)?;
                let limit = limit.and_then(|limit| u32::try_from(limit).ok());
                queue.limit = limit.ok_or_else(|| wrong("at_most"))?;
                Some(Arc::new(queue))
            }
            None => None,
        };
        let records = unsigned(6, "records")?;
        let token = unsigned(16, "token")?;
        // What follows must be a number as well.
        if records >= i64::MAX.cast_unsigned() || token >= i64::MAX.cast_unsigned() {
            return Err(wrong("records or token"));
        }
        let mut summary = RunSummary::empty(RunId::from(&*run));
        summary.status = status.ok_or_else(|| wrong("status"))?;
        summary.started = get(row, 4, &run)?;
        summary.updated = get(row, 5, &run)?;
        summary.records = records;
        summary.hash = Hash(hash.try_into().map_err(|_| wrong("hash"))?);
        summary.model = text(8)?;
        summary.session_id = text(9)?;
        let totals = &mut summary.totals;
        totals.turns = unsigned(10, "turns")?;
        totals.tool_calls = unsigned(11, "tool_calls")?;
        totals.input_tokens = unsigned(12, "input_tokens")?;
        totals.output_tokens = unsigned(13, "output_tokens")?;
        totals.cost = get(row, 14, &run)?;
        // Where it has no place yet, any number says that it has a seal.
        summary.seal = is_sealed.then(|| place.unwrap_or(i64::MAX).cast_unsigned());
        summary.queue = queue;
        summary.wake_at = Some(wake).filter(|wake| ![i64::MIN, i64::MAX].contains(wake));
        let owner: Option<String> = get(row, 17, &run)?;
        let until: i64 = get(row, 18, &run)?;
        let holder = owner.map(|owner| Holder { owner, until });
        let mut known = Self {
            entry: IndexEntry { summary, token, holder },
            version: get(row, 2, &run)?,
            stored: None,
            is_unplaced: is_sealed && place.is_none(),
            messages: get::<Option<Vec<String>>>(row, 26, &run)?.unwrap_or_default(),
            delivered: get(row, 24, &run)?,
            may_have_parts: true,
            is_changed: false,
        };
        known.stored = Some(Changing { wake, ..known.changing() });
        Ok(known)
    }

    fn changing(&self) -> Changing {
        let RunSummary { status, model, totals, seal, queue, .. } = &self.entry.summary;
        Changing {
            status: *status,
            model: model.clone(),
            totals: totals.clone(),
            is_sealed: seal.is_some(),
            token: self.entry.token,
            owner: self.entry.holder.as_ref().map(|holder| holder.owner.clone()),
            has_queue: queue.is_some(),
            wake: self.wake(),
            delivered: self.delivered,
        }
    }

    /// Whether nothing but its head has changed.
    pub(crate) fn is_stored(&self) -> bool {
        self.stored.as_ref() == Some(&self.changing())
    }

    /// Takes note that it was written.
    pub(crate) fn wrote(&mut self) {
        if std::mem::take(&mut self.is_changed) {
            self.version += 1;
            self.stored = Some(self.changing());
        }
    }
}

/// A value of a row of this run.
pub(crate) fn get<'r, T: FromSql<'r>>(row: &'r Row, at: usize, run: &str) -> Result<T, Corrupt> {
    row.try_get(at).map_err(|_| unsound(run, row.columns().get(at).map_or("", |c| c.name())))
}

fn unsound(run: &str, column: &str) -> Corrupt {
    let what = format!("its row is not as it was written: {column} is not what it has to be");
    Corrupt::new(run, 0, what)
}
