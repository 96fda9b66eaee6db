//! Rows of records: written from what was checked, read as if anyone could have written them.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use mynah_log::{Body, Corrupt, Fact, Hash, MAINTENANCE, Record, Removed, RunSummary, Tombstone};
use rusqlite::{Connection, OptionalExtension as _, Row, types::Type};

use crate::{
    Answer,
    row::{attempt, blob, lossy, sound},
    runs::{self, Known},
};

/// How many bytes of records are read at once, about.
const PORTION: usize = 16 << 20;

pub(crate) fn read(
    connection: &Connection,
    run: &str,
    from: u64,
    limit: usize,
) -> Answer<Vec<Record>> {
    // The records, and how many there are, at one point in time.
    let _snapshot = connection.unchecked_transaction()?;
    read_now(connection, run, from, limit)
}

/// The same, in a transaction that was begun.
pub(crate) fn read_now(
    connection: &Connection,
    run: &str,
    from: u64,
    limit: usize,
) -> Answer<Vec<Record>> {
    let Some(known) = attempt!(runs::find(connection, run)?) else { return Ok(Ok(Vec::new())) };
    let last = known.entry.summary.records;
    let from = from.max(1);
    let places = from..from.saturating_add(limit as u64).min(last + 1);
    let keys = attempt!(rows(connection, &known, places.clone())?);
    let mut select =
        connection.prepare_cached("SELECT envelope, salt, payload FROM records WHERE key = ?1")?;
    let (mut records, mut bytes) = (Vec::new(), 0);
    for (seq, key) in places.clone().zip(&keys) {
        let record = select.query_row([key], |row| check(row, run, seq)).optional()?;
        let Some(record) = record else { break };
        let record = attempt!(record);
        bytes += record.size();
        records.push(record);
        if bytes >= PORTION {
            return Ok(Ok(records));
        }
    }
    let next = from + records.len() as u64;
    if places.contains(&next) {
        let what = format!("it is missing: the index counts {last} records");
        return Ok(Err(Corrupt::new(run, next, what).into()));
    }
    Ok(Ok(records))
}

/// Checks that the reserved ids are those of removed runs, according to the tombstones.
pub(crate) fn check_pruned(connection: &Connection) -> Answer<()> {
    const PORTION: usize = 256;
    let _snapshot = connection.unchecked_transaction()?;
    let mut select = connection.prepare("SELECT id FROM pruned")?;
    let ids = select.query_map([], |row| Ok(lossy(row, 0)))?;
    let mut ids = ids.collect::<rusqlite::Result<BTreeSet<String>>>()?;
    let mut seq = 0;
    loop {
        let tombstones = attempt!(read_now(connection, MAINTENANCE, seq + 1, PORTION)?);
        for record in &tombstones {
            seq = record.seq();
            // An invalid one is found when they are verified.
            let Ok(Some(Fact::Removed(Tombstone { run_id, removed: Removed::Run { .. }, .. }))) =
                record.fact()
            else {
                continue;
            };
            if !ids.remove(&*run_id) {
                let what = format!("it removes run {run_id}, and its id could be reused");
                return Ok(Err(Corrupt::new(MAINTENANCE, seq, what).into()));
            }
        }
        if tombstones.is_empty() {
            break;
        }
    }
    let what = "its id is reserved as if it were removed, and no tombstone explains it";
    Ok(match ids.pop_first() {
        Some(run) => Err(Corrupt::new(run, 0, what.to_owned()).into()),
        None => Ok(()),
    })
}

/// The rows of records of a run, if all of them are there.
pub(crate) fn rows(connection: &Connection, known: &Known, places: Range<u64>) -> Answer<Vec<i64>> {
    let RunSummary { run_id: run, records, .. } = &known.entry.summary;
    let keys = known.recent.find(connection, known.key, places.clone(), *records);
    let keys = attempt!(sound(keys, run, places.start)?);
    let next = places.start + keys.len() as u64;
    if places.contains(&next) {
        let what = format!("it is missing: the index counts {records} records");
        return Ok(Err(Corrupt::new(run.clone(), next, what).into()));
    }
    Ok(Ok(keys))
}

/// The greatest key of all records; 0 if there are none.
pub(crate) fn last_key(connection: &Connection) -> rusqlite::Result<i64> {
    let mut select = connection.prepare_cached("SELECT ifnull(max(key), 0) FROM records")?;
    select.query_row([], |row| row.get(0))
}

/// The hash of the record in a row; none if there is no such row, or no record in it.
pub(crate) fn hash(connection: &Connection, key: i64) -> rusqlite::Result<Option<Hash>> {
    let mut select = connection.prepare_cached("SELECT envelope FROM records WHERE key = ?1")?;
    let envelope: Option<Vec<u8>> = select.query_row([key], |row| row.get(0)).optional()?;
    let record = envelope.and_then(|envelope| Record::from_parts(envelope, None).ok());
    Ok(record.map(|record| record.hash()))
}

/// Takes the body out of a row.
pub(crate) fn strip(connection: &Connection, key: i64) -> rusqlite::Result<usize> {
    let update = "UPDATE records SET salt = NULL, payload = NULL WHERE key = ?1";
    connection.prepare_cached(update)?.execute([key])
}

pub(crate) fn delete(connection: &Connection, key: i64) -> rusqlite::Result<usize> {
    connection.prepare_cached("DELETE FROM records WHERE key = ?1")?.execute([key])
}

/// The record in a row, if it is the expected one.
fn check(row: &Row<'_>, run: &str, seq: u64) -> Answer<Record> {
    let (envelope, body) = attempt!(sound(parts(row), run, seq)?);
    let judge = || {
        let record = Record::from_parts(envelope, body).map_err(|corrupt| corrupt.what)?;
        let envelope = record.envelope();
        if *envelope.run_id != *run || envelope.seq != seq {
            return Err(format!(
                "record {} of run {} is in its place",
                envelope.seq, envelope.run_id
            ));
        }
        Ok(record)
    };
    Ok(judge().map_err(|what| Corrupt::new(run, seq, what).into()))
}

/// What a row has: an envelope, and a body unless it was removed.
fn parts(row: &Row<'_>) -> rusqlite::Result<(Arc<[u8]>, Option<Body>)> {
    let envelope = Arc::from(blob(row, 0)?);
    let payload = row.get_ref(2)?.as_blob_or_null()?;
    let body = match (row.get(1)?, payload) {
        (Some(salt), Some(payload)) => Some(Body { salt, payload: Arc::from(payload) }),
        (None, None) => None,
        (salt, _) => {
            let name = if salt.is_some() { "payload" } else { "salt" };
            return Err(rusqlite::Error::InvalidColumnType(1, name.to_owned(), Type::Null));
        }
    };
    Ok((envelope, body))
}
