//! Rows of runs and of seals.

use std::sync::Arc;

use mynah_log::{
    Corrupt, Hash, Head, Queue, RunFilter, RunPage, RunStatus, RunSummary, SealedRun,
    backend::{Holder, IndexEntry, Place},
};
use rusqlite::{
    Connection, Error, OptionalExtension as _, Row, params, params_from_iter, types::Value,
};

use crate::{
    Answer,
    heads::{self, State},
    keys::Recent,
    parts,
    row::{attempt, lossy, sound, unsigned},
};

/// Until when a run is held: what the beat of its owner's process says.
macro_rules! until {
    () => {
        "ifnull((SELECT until FROM beats WHERE process = \
         iif(instr(owner, '/'), substr(owner, 1, instr(owner, '/') - 1), owner)), 0)"
    };
}

/// What every lookup of a run gives, in the order in which [`read`] takes it.
macro_rules! select_runs {
    ($condition:literal) => {
        concat!(
            "SELECT key, id, status, started, model, session, token, owner, \
             ",
            until!(),
            ", (SELECT place FROM seals WHERE seals.id = runs.id AND seals.id <> 'log:maintenance'), \
             heads.state, queue, priority, shared, at_most, wake FROM runs LEFT JOIN heads ON run = key WHERE ",
            $condition
        )
    };
}

/// Until when a run is held.
pub(crate) const UNTIL: &str = until!();

/// Reads a run from its row.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) key: i64,
    pub(crate) entry: IndexEntry,
    pub(crate) recent: Recent,
    /// From when on it can continue, as its row has it.
    pub(crate) wake: i64,
    /// Whether parts of an answer may be kept for it.
    pub(crate) may_have_parts: bool,
}

pub(crate) fn summary(connection: &Connection, run: &str) -> Answer<Option<RunSummary>> {
    Ok(find(connection, run)?.map(|found| found.map(|known| known.entry.to_summary())))
}

pub(crate) fn head(connection: &Connection, run: &str) -> Answer<Option<Head>> {
    Ok(summary(connection, run)?.map(|found| found.map(|summary| summary.head())))
}

pub(crate) fn find(connection: &Connection, run: &str) -> Answer<Option<Known>> {
    let mut select = connection.prepare_cached(select_runs!("id = ?1"))?;
    let found = select.query_row([run], |row| Ok(read(row))).optional()?;
    Ok(sound(found.transpose(), run, 0)?.map_err(Into::into))
}

pub(crate) fn page(connection: &Connection, filter: &RunFilter) -> Answer<RunPage> {
    let (mut conditions, mut values) = (String::new(), Vec::<Value>::new());
    let mut and = |condition: &str, value: Value| {
        conditions += condition;
        values.push(value);
    };
    if let Some(status) = filter.status {
        and(" AND status = ?", (status as i64).into());
    }
    if let Some(now) = filter.abandoned {
        and(" AND status = ?", (RunStatus::Running as i64).into());
        and(&format!(" AND (owner IS NULL OR {UNTIL} <= ?)"), now.into());
    }
    if let Some(model) = &filter.model {
        let is_it = " AND ? IN (model, substr(model, instr(model, ':') + 1))";
        and(is_it, model.clone().into());
    }
    if let Some(session) = &filter.session {
        and(" AND session = ?", session.clone().into());
    }
    if let Some(since) = filter.since {
        and(" AND started >= ?", since.into());
    }
    if let Some(before) = filter.before {
        and(" AND started < ?", before.into());
    }
    if let Some(prefix) = &filter.prefix {
        and(" AND id >= ?", prefix.clone().into());
        if let Some(end) = filter.prefix_end() {
            and(" AND id < ?", end.into());
        }
    }
    if let Some(place) = attempt!(filter.place()) {
        let (beyond, started) = (["<", ">"][usize::from(filter.oldest_first)], place.started);
        and(&format!(" AND (started, key) {beyond} (?"), started.into());
        and(", ?)", place.key.into());
    }
    let size = filter.page_size();
    let order = ["DESC", "ASC"][usize::from(filter.oldest_first)];
    let order = format!(" ORDER BY started {order}, key {order} LIMIT ?");
    and(&order, clamped(size.saturating_add(1)).into());
    let select = format!("{}{conditions}", select_runs!("id <> 'log:maintenance'"));
    let mut select = connection.prepare_cached(&select)?;
    let mut rows = select.query(params_from_iter(values))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let run = lossy(row, 1);
        let place = row.get(3).and_then(|started| Ok(Place { started, key: row.get(0)? }));
        let place = attempt!(sound(place, &run, 0)?);
        let known = sound(read(row), &run, 0)?;
        found.push((place, known.map(|known| known.entry.to_summary())));
    }
    Ok(Ok(RunPage::cut(found, size)))
}

/// Makes a record a leaf of the log's tree.
pub(crate) fn add_leaf(connection: &Connection, run: &str, hash: Hash) -> rusqlite::Result<usize> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO seals (place, id, hash) \
         VALUES ((SELECT ifnull(max(place), -1) + 1 FROM seals), ?1, ?2)",
    )?;
    insert.execute(params![run, hash.0])
}

pub(crate) fn seals(connection: &Connection, from: u64, limit: usize) -> Answer<Vec<SealedRun>> {
    let Ok(mut next) = i64::try_from(from) else { return Ok(Ok(Vec::new())) };
    let mut select = connection.prepare_cached(
        "SELECT place, id, hash FROM seals WHERE place >= ?1 ORDER BY place LIMIT ?2",
    )?;
    let mut rows = select.query(params![next, clamped(limit)])?;
    let mut seals = Vec::new();
    while let Some(row) = rows.next()? {
        let read = row.get(0).and_then(|place: i64| Ok((place, row.get::<_, String>(1)?)));
        let (place, run) = attempt!(sound(read, "", 0)?);
        if place != next {
            let what = format!("the seal of another run is missing before its own: number {next}");
            return Ok(Err(Corrupt::new(run, 0, what).into()));
        }
        let hash = attempt!(sound(row.get(2), &run, 0)?);
        seals.push(SealedRun::new(run, Hash(hash)));
        next = next.saturating_add(1);
    }
    Ok(Ok(seals))
}

/// Looks for leaves before the first.
pub(crate) fn check_leaves(connection: &Connection) -> Answer<()> {
    let select = "SELECT id FROM seals WHERE place < 0 ORDER BY place";
    let early = connection.prepare(select)?.query_row([], |row| Ok(lossy(row, 0))).optional()?;
    let what = "the log's list of seals has a seal for it before the first place".to_owned();
    Ok(early.map_or(Ok(()), |run| Err(Corrupt::new(run, 0, what).into())))
}

pub(crate) fn is_pruned(connection: &Connection, run: &str) -> rusqlite::Result<bool> {
    connection.prepare_cached("SELECT 1 FROM pruned WHERE id = ?1")?.exists([run])
}

/// The runs that came after a run of the same session.
pub(crate) fn after_in_session(
    connection: &Connection,
    run: &str,
) -> rusqlite::Result<Vec<String>> {
    let mut select = connection.prepare_cached(
        "SELECT later.id FROM runs JOIN runs AS later \
         ON later.session = runs.session AND later.key > runs.key WHERE runs.id = ?1",
    )?;
    select.query_map([run], |row| Ok(lossy(row, 0)))?.collect()
}

/// Takes out all there is of a run, but its seal.
pub(crate) fn remove(connection: &Connection, key: i64, run: &str) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM older WHERE run = ?1")?.execute([key])?;
    connection.prepare_cached("DELETE FROM heads WHERE run = ?1")?.execute([key])?;
    connection.prepare_cached("DELETE FROM inbox WHERE run = ?1")?.execute([key])?;
    parts::clear(connection, key)?;
    connection.prepare_cached("DELETE FROM runs WHERE key = ?1")?.execute([key])?;
    connection.prepare_cached("INSERT INTO pruned (id) VALUES (?1)")?.execute([run])?;
    Ok(())
}

/// Makes a row for a run whose records are still to come.
pub(crate) fn insert(connection: &Connection, entry: IndexEntry) -> rusqlite::Result<Known> {
    let RunSummary { run_id, status, started, model, session_id, queue, .. } = &entry.summary;
    let mut insert = connection.prepare_cached(
        "INSERT INTO runs (id, status, started, model, session, token, owner, queue, priority, shared, \
         at_most, wake) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?;
    let (model, session) = (model.as_deref(), session_id.as_deref());
    let (status, token) = (*status as i64, entry.token.cast_signed());
    let (owner, queue) = (entry.holder.as_ref().map(|hold| &*hold.owner), queue.as_deref());
    let wake = entry.wakes_at(false);
    let key = insert.insert(params![
        &**run_id,
        status,
        started,
        model,
        session,
        token,
        owner,
        queue.map(|queue| &queue.name),
        queue.map(|queue| queue.priority),
        queue.and_then(|queue| queue.key.as_ref()),
        queue.map(|queue| queue.limit),
        wake
    ])?;
    Ok(Known { key, entry, recent: Recent::default(), wake, may_have_parts: false })
}

/// Writes what has changed of a run: each in a statement of its own, as few appends change it, and indexes are costly.
pub(crate) fn update<'e>(
    connection: &Connection,
    old: &'e IndexEntry,
    Known { key, entry: new, .. }: &'e Known,
) -> rusqlite::Result<()> {
    if old.summary.status != new.summary.status {
        let update = "UPDATE runs SET status = ?2 WHERE key = ?1";
        let status = new.summary.status as i64;
        connection.prepare_cached(update)?.execute(params![key, status])?;
    }
    if old.summary.model != new.summary.model {
        let update = "UPDATE runs SET model = ?2 WHERE key = ?1";
        let model = new.summary.model.as_deref();
        connection.prepare_cached(update)?.execute(params![key, model])?;
    }
    if old.summary.queue.is_none()
        && let Some(queue) = &new.summary.queue
    {
        let update =
            "UPDATE runs SET queue = ?2, priority = ?3, shared = ?4, at_most = ?5 WHERE key = ?1";
        let Queue { name, priority, key: shared, limit, .. } = &**queue;
        let values = params![key, name, priority, shared, limit];
        connection.prepare_cached(update)?.execute(values)?;
    }
    let owner = |entry: &'e IndexEntry| entry.holder.as_ref().map(|hold| &*hold.owner);
    if (old.token, owner(old)) != (new.token, owner(new)) {
        let update = "UPDATE runs SET token = ?2, owner = ?3 WHERE key = ?1";
        let mut update = connection.prepare_cached(update)?;
        update.execute(params![key, new.token.cast_signed(), owner(new)])?;
    }
    Ok(())
}

/// Writes from when on a run can continue, if that has changed.
pub(crate) fn wake(connection: &Connection, known: &mut Known, wake: i64) -> rusqlite::Result<()> {
    if known.wake != wake {
        let update = "UPDATE runs SET wake = ?2 WHERE key = ?1";
        connection.prepare_cached(update)?.execute([known.key, wake])?;
        known.wake = wake;
    }
    Ok(())
}

/// The queue in a row, from this column on.
pub(crate) fn queue(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Queue>> {
    let Some(name) = row.get::<_, Option<String>>(column)? else { return Ok(None) };
    let mut queue = Queue::new(name).priority(row.get(column + 1)?);
    (queue.key, queue.limit) = (row.get(column + 2)?, row.get(column + 3)?);
    Ok(Some(queue))
}

fn read(row: &Row<'_>) -> rusqlite::Result<Known> {
    let text = |column| row.get(column).map(|text: Option<String>| text.map(Arc::from));
    let status = usize::try_from(row.get::<_, i64>(2)?).ok();
    let status = status.and_then(|status| RunStatus::ALL.get(status).copied());
    let wake: i64 = row.get(15)?;
    let State { updated, head, totals, recent } = heads::read(row, 10)?;
    let mut summary = RunSummary::empty(row.get::<_, String>(1)?);
    summary.status = status.ok_or(Error::IntegralValueOutOfRange(2, row.get(2)?))?;
    summary.started = row.get(3)?;
    (summary.updated, summary.totals) = (updated, totals);
    (summary.records, summary.hash) = (head.seq, head.hash);
    summary.model = text(4)?;
    summary.session_id = text(5)?;
    summary.seal = row.get::<_, Option<i64>>(9)?.map(i64::cast_unsigned);
    summary.queue = queue(row, 11)?.map(Arc::new);
    summary.wake_at = Some(wake).filter(|wake| ![i64::MIN, i64::MAX].contains(wake));
    let owner: Option<String> = row.get(7)?;
    let holder = match owner {
        Some(owner) => Some(Holder { owner, until: row.get(8)? }),
        None => None,
    };
    // The next owner gets the next token, which must be a valid number as well.
    let token = unsigned(row, 6)?;
    if token >= i64::MAX.cast_unsigned() {
        return Err(Error::IntegralValueOutOfRange(6, i64::MAX));
    }
    let entry = IndexEntry { summary, token, holder };
    Ok(Known { key: row.get(0)?, entry, recent, wake, may_have_parts: true })
}

fn clamped(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use mynah_log::Durability;
    use rusqlite::StatementStatus;

    use super::*;
    use crate::file::File;

    #[test]
    fn a_lookup_is_compiled_once_for_all_runs() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = File::new(&folder.path().join("log.db")).expect("a path");
        let connection = file.open_to_write(Durability::Relaxed).expect("a log");
        for run in ["a", "b", "c"] {
            assert!(find(&connection, run).expect("an answer").expect("no damage").is_none());
        }
        let select = connection.prepare_cached(select_runs!("id = ?1")).expect("a statement");
        assert_eq!(select.get_status(StatementStatus::Run), 3);
        assert_eq!(select.get_status(StatementStatus::RePrepare), 0);
    }
}
