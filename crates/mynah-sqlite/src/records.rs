//! Rows of records: written from what was checked, read as if anyone could have written them.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use mynah_log::{Body, Corrupt, Fact, MAINTENANCE, Record, Removed, RunSummary, Tombstone};
use rusqlite::{Connection, OptionalExtension as _, Row, params, types::Type};

use crate::{
    Answer,
    row::{attempt, blob, lossy, sound},
    runs::{self, Known},
};

/// How many bytes of records are read at once, about.
const PORTION: usize = 16 << 20;

const SELECT: &str = "SELECT run, envelope, salt, payload FROM records WHERE key = ?1";

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
    let mut select = connection.prepare_cached(SELECT)?;
    let (mut records, mut bytes) = (Vec::new(), 0);
    for (seq, key) in places.clone().zip(&keys) {
        let record = select.query_row([key], |row| check(row, &known, seq)).optional()?;
        let Some(record) = record else { break };
        let record = attempt!(record);
        bytes += record.size();
        records.push(record);
        if bytes >= PORTION {
            return Ok(Ok(records));
        }
    }
    let next = from + records.len() as u64;
    Ok(if places.contains(&next) { Err(missing(&known, next).into()) } else { Ok(records) })
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
    Ok(if places.contains(&next) { Err(missing(known, next).into()) } else { Ok(keys) })
}

/// The record of a run in this place, and in this row.
pub(crate) fn find(connection: &Connection, known: &Known, seq: u64, key: i64) -> Answer<Record> {
    let mut select = connection.prepare_cached(SELECT)?;
    let record = select.query_row([key], |row| check(row, known, seq)).optional()?;
    Ok(record.unwrap_or_else(|| Err(missing(known, seq).into())))
}

fn missing(known: &Known, seq: u64) -> Corrupt {
    let RunSummary { run_id, records, .. } = &known.entry.summary;
    Corrupt::new(run_id, seq, format!("it is missing: the index counts {records} records"))
}

/// The greatest key of all records; 0 if there are none.
pub(crate) fn last_key(connection: &Connection) -> rusqlite::Result<i64> {
    let mut select = connection.prepare_cached("SELECT ifnull(max(key), 0) FROM records")?;
    select.query_row([], |row| row.get(0))
}

/// Takes the body of a record out of its row. The envelope is whole then, as part of it would follow from the body.
pub(crate) fn strip(connection: &Connection, key: i64, record: &Record) -> rusqlite::Result<usize> {
    let update = "UPDATE records SET envelope = ?2, salt = NULL, payload = NULL WHERE key = ?1";
    connection.prepare_cached(update)?.execute(params![key, record.envelope_bytes()])
}

pub(crate) fn delete(connection: &Connection, key: i64) -> rusqlite::Result<usize> {
    connection.prepare_cached("DELETE FROM records WHERE key = ?1")?.execute([key])
}

/// The record in a row, if it is the expected one.
fn check(row: &Row<'_>, known: &Known, seq: u64) -> Answer<Record> {
    let run = &known.entry.summary.run_id;
    let (key, envelope, body) = attempt!(sound(parts(row), run, seq)?);
    if key != known.key {
        let what = "its row names another run".to_owned();
        return Ok(Err(Corrupt::new(run, seq, what).into()));
    }
    Ok(Record::unpack(envelope, run, seq, body).map_err(Into::into))
}

/// What a row has: the key of its run, an envelope, and a body unless it was removed.
fn parts<'r>(row: &'r Row<'_>) -> rusqlite::Result<(i64, &'r [u8], Option<Body>)> {
    let payload = row.get_ref(3)?.as_blob_or_null()?;
    let body = match (row.get(2)?, payload) {
        (Some(salt), Some(payload)) => Some(Body { salt, payload: Arc::from(payload) }),
        (None, None) => None,
        (salt, _) => {
            let name = if salt.is_some() { "payload" } else { "salt" };
            return Err(rusqlite::Error::InvalidColumnType(2, name.to_owned(), Type::Null));
        }
    };
    Ok((row.get(0)?, blob(row, 1)?, body))
}
