//! Rows of messages and of beats, runs that can be claimed, and runs that changed.

use std::{cmp::Reverse, collections::BTreeSet};

use mynah_log::{
    Changes, Corrupt, InboxMessage, MAINTENANCE, Queue,
    backend::{invalid_cursor, nanos},
};
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::{
    Answer,
    row::{attempt, lossy, sound},
    runs,
};

/// How long a beat is kept after its term, in nanoseconds. A run whose owner has none was abandoned
/// long ago.
const KEPT: i64 = nanos(std::time::Duration::from_secs(86_400));

/// Until when the last beat of a process counts.
pub(crate) fn beat(connection: &Connection, process: &str) -> rusqlite::Result<Option<i64>> {
    let mut select = connection.prepare_cached("SELECT until FROM beats WHERE process = ?1")?;
    select.query_row([process], |row| row.get(0)).optional()
}

/// Writes the beat of a process. The first beat removes those of processes that ended long ago.
pub(crate) fn keep_beat(
    connection: &Connection,
    process: &str,
    until: i64,
    now: i64,
) -> rusqlite::Result<()> {
    let update = "UPDATE beats SET until = ?2 WHERE process = ?1";
    if connection.prepare_cached(update)?.execute(params![process, until])? == 0 {
        let delete = "DELETE FROM beats WHERE until < ?1";
        connection.prepare_cached(delete)?.execute([now.saturating_sub(KEPT)])?;
        let insert = "INSERT INTO beats (process, until) VALUES (?1, ?2)";
        connection.prepare_cached(insert)?.execute(params![process, until])?;
    }
    Ok(())
}

/// Puts a message into an inbox; false if the run had one with this id before.
pub(crate) fn insert(
    connection: &Connection,
    run: i64,
    InboxMessage { id, at, payload, .. }: &InboxMessage,
) -> rusqlite::Result<bool> {
    let insert = "INSERT OR IGNORE INTO inbox (run, id, at, payload) VALUES (?1, ?2, ?3, ?4)";
    Ok(connection.prepare_cached(insert)?.execute(params![run, id, at, payload])? > 0)
}

/// Whether a run ever had a message with this id.
pub(crate) fn knows(connection: &Connection, run: i64, id: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM inbox WHERE run = ?1 AND id = ?2")?
        .exists(params![run, id])
}

pub(crate) fn has_messages(connection: &Connection, run: i64) -> rusqlite::Result<bool> {
    let select = "SELECT 1 FROM inbox WHERE run = ?1 AND payload IS NOT NULL";
    connection.prepare_cached(select)?.exists([run])
}

/// Removes messages; their ids stay.
pub(crate) fn consume(connection: &Connection, run: i64, ids: &[String]) -> rusqlite::Result<()> {
    let update = "UPDATE inbox SET payload = NULL WHERE run = ?1 AND id = ?2";
    for id in ids {
        connection.prepare_cached(update)?.execute(params![run, id])?;
    }
    Ok(())
}

/// Removes all messages of a run; their ids stay.
pub(crate) fn clear(connection: &Connection, run: i64) -> rusqlite::Result<()> {
    let update = "UPDATE inbox SET payload = NULL WHERE run = ?1 AND payload IS NOT NULL";
    connection.prepare_cached(update)?.execute([run]).map(drop)
}

pub(crate) fn list(connection: &Connection, run: &str, limit: usize) -> Answer<Vec<InboxMessage>> {
    let mut select = connection.prepare_cached(
        "SELECT inbox.id, at, payload FROM inbox JOIN runs ON runs.key = run \
         WHERE runs.id = ?1 AND payload IS NOT NULL ORDER BY inbox.key LIMIT ?2",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut rows = select.query(params![run, limit])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let read = || {
            Ok(InboxMessage::new(row.get::<_, String>(0)?, row.get(1)?, row.get::<_, Vec<u8>>(2)?))
        };
        found.push(attempt!(sound(read(), run, 0)?));
    }
    Ok(Ok(found))
}

/// Looks for messages of missing runs.
pub(crate) fn check(connection: &Connection) -> Answer<()> {
    let select = "SELECT id FROM inbox WHERE run NOT IN (SELECT key FROM runs)";
    let stray = connection.prepare(select)?.query_row([], |row| Ok(lossy(row, 0))).optional()?;
    Ok(stray.map_or(Ok(()), |id| {
        let what = format!("message {id} is in the inbox of a run that does not exist");
        Err(Corrupt::new("", 0, what).into())
    }))
}

/// The runs of some queues that can continue at this time and that no other living owner holds, at most this many, those to be
/// claimed first before others.
pub(crate) fn ready(
    connection: &Connection,
    queues: &[String],
    owner: &str,
    now: i64,
    limit: usize,
) -> Answer<Vec<(String, Queue)>> {
    let mut select = connection.prepare_cached(&ready_select())?;
    let count = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut found = Vec::new();
    for queue in queues.iter().collect::<BTreeSet<_>>() {
        let mut rows = select.query(params![queue, owner, now, count])?;
        while let Some(row) = rows.next()? {
            let run = lossy(row, 0);
            let Some(queue) = attempt!(sound(runs::queue(row, 1), &run, 0)?) else { continue };
            let age: (i64, i64) = attempt!(sound((|| Ok((row.get(5)?, row.get(6)?)))(), &run, 0)?);
            found.push((Reverse(queue.priority), age, run, queue));
        }
    }
    found.sort_by_key(|(priority, age, ..)| (*priority, *age));
    found.truncate(limit);
    Ok(Ok(found.into_iter().map(|(.., run, queue)| (run, queue)).collect()))
}

/// Those that can continue at once are in an index of their order; those whose time has come are few.
fn ready_select() -> String {
    let runs = format!(
        "SELECT id, queue, priority, shared, at_most, started, key FROM runs \
         WHERE queue = ?1 AND status < 2 AND (owner IS NULL OR owner = ?2 OR {} <= ?3)",
        runs::UNTIL,
    );
    format!(
        "SELECT * FROM ({runs} AND wake <= 0 ORDER BY priority DESC, started, key LIMIT ?4) \
         UNION ALL {runs} AND wake > 0 AND wake <= ?3"
    )
}

/// How many runs with this concurrency key other living owners have.
pub(crate) fn held(
    connection: &Connection,
    key: &str,
    owner: &str,
    now: i64,
) -> rusqlite::Result<i64> {
    let select = format!(
        "SELECT count(*) FROM runs WHERE shared = ?1 AND owner IS NOT NULL AND owner <> ?2 AND {} > ?3",
        runs::UNTIL
    );
    connection.prepare_cached(&select)?.query_row(params![key, owner, now], |row| row.get(0))
}

/// The runs with records or messages after those of a cursor: the keys of the last record and of the last message.
pub(crate) fn changes(
    connection: &Connection,
    cursor: Option<&str>,
    limit: usize,
) -> Answer<Changes> {
    let _snapshot = connection.unchecked_transaction()?;
    let Some(cursor) = cursor else {
        let last = "SELECT (SELECT ifnull(max(key), 0) FROM records) || '.' || \
                    (SELECT ifnull(max(key), 0) FROM inbox)";
        let last: String = connection.prepare_cached(last)?.query_row([], |row| row.get(0))?;
        return Ok(Ok(Changes::new(Vec::new(), last)));
    };
    let parts = cursor.split_once('.').and_then(|(record, message)| {
        Some((record.parse::<i64>().ok()?, message.parse::<i64>().ok()?))
    });
    let (mut record, mut message) = attempt!(parts.ok_or_else(invalid_cursor));
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut moved: Vec<String> = Vec::new();
    let mut select = connection.prepare_cached(
        "SELECT records.key, runs.id FROM records LEFT JOIN runs ON runs.key = run \
         WHERE records.key > ?1 ORDER BY records.key LIMIT ?2",
    )?;
    let mut rows = select.query([record, limit])?;
    while let Some(row) = rows.next()? {
        record = row.get(0)?;
        moved.push(lossy(row, 1));
    }
    let mut select = connection.prepare_cached(
        "SELECT inbox.key, runs.id FROM inbox LEFT JOIN runs ON runs.key = run \
         WHERE inbox.key > ?1 ORDER BY inbox.key LIMIT ?2",
    )?;
    let mut rows = select.query([message, limit])?;
    while let Some(row) = rows.next()? {
        message = row.get(0)?;
        moved.push(lossy(row, 1));
    }
    moved.sort_unstable();
    moved.dedup();
    let mut found = Vec::new();
    for run in moved.iter().filter(|run| **run != MAINTENANCE) {
        if let Some(known) = attempt!(runs::find(connection, run)?) {
            found.push(known.entry.change(has_messages(connection, known.key)?));
        }
    }
    Ok(Ok(Changes::new(found, format!("{record}.{message}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_reads_runs_in_the_order_of_an_index() {
        let connection = Connection::open_in_memory().expect("SQLite");
        connection.execute_batch(include_str!("schema.sql")).expect("tables");
        let explain = format!("EXPLAIN QUERY PLAN {}", ready_select());
        let mut plan = connection.prepare(&explain).expect("a plan");
        let steps = plan.query_map(params!["q", "me", 0, 9], |row| row.get::<_, String>(3));
        let steps: Vec<String> = steps.expect("rows").map(|step| step.expect("a text")).collect();
        for index in ["runs_ready", "runs_asleep"] {
            assert!(steps.iter().any(|step| step.contains(index)), "{index}: {steps:?}");
        }
        assert!(!steps.iter().any(|step| step.contains("ORDER BY")), "{steps:?}");
    }
}
