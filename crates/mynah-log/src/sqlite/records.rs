//! Rows of records: written from what was checked, read as if anyone could have written them.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use rusqlite::{Connection, OptionalExtension as _, Row, types::Type};

use super::{
    Answer,
    row::{attempt, blob, lossy, sound},
    runs::{self, Known},
};
use crate::{Body, Corrupt, Hash, MAINTENANCE, Record, Removed, RunSummary, Tombstone};

/// How many bytes of records are read at once, about.
const PORTION: usize = 16 << 20;

pub(super) fn read(
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
pub(super) fn read_now(
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
        bytes += record.envelope_bytes().len() + record.body().map_or(0, |b| b.payload.len());
        records.push(record);
        if bytes >= PORTION {
            return Ok(Ok(records));
        }
    }
    let next = from + records.len() as u64;
    if places.contains(&next) {
        let what = format!("it is missing: the index counts {last} records");
        return Ok(Err(Corrupt { run: run.into(), seq: next, what }.into()));
    }
    Ok(Ok(records))
}

/// Looks whether the ids that are not given again are those of the runs that are gone, as tombstones tell.
pub(super) fn check_pruned(connection: &Connection) -> Answer<()> {
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
            // One that is none is found by whoever verifies them.
            let Ok(Tombstone { run_id, removed: Removed::Run { .. }, .. }) = Tombstone::of(record)
            else {
                continue;
            };
            if !ids.remove(&*run_id) {
                let what =
                    format!("it says that run {run_id} is gone, and its id could be given again");
                return Ok(Err(Corrupt { run: MAINTENANCE.into(), seq, what }.into()));
            }
        }
        if tombstones.is_empty() {
            break;
        }
    }
    let what = "its id is not given again, as if it were gone, and no tombstone says so";
    Ok(match ids.pop_first() {
        Some(run) => Err(Corrupt { run: run.into(), seq: 0, what: what.to_owned() }.into()),
        None => Ok(()),
    })
}

/// The rows of records of a run, if all of them are there.
pub(super) fn rows(connection: &Connection, known: &Known, places: Range<u64>) -> Answer<Vec<i64>> {
    let RunSummary { run_id: run, records, .. } = &known.entry.summary;
    let keys = known.recent.find(connection, known.key, places.clone(), *records);
    let keys = attempt!(sound(keys, run, places.start)?);
    let next = places.start + keys.len() as u64;
    if places.contains(&next) {
        let what = format!("it is missing: the index counts {records} records");
        return Ok(Err(Corrupt { run: run.clone(), seq: next, what }.into()));
    }
    Ok(Ok(keys))
}

/// The greatest key of all records; 0 if there are none.
pub(super) fn last_key(connection: &Connection) -> rusqlite::Result<i64> {
    let mut select = connection.prepare_cached("SELECT ifnull(max(key), 0) FROM records")?;
    select.query_row([], |row| row.get(0))
}

/// The hash of the record in a row; none if there is no such row, or no record in it.
pub(super) fn hash(connection: &Connection, key: i64) -> rusqlite::Result<Option<Hash>> {
    let mut select = connection.prepare_cached("SELECT envelope FROM records WHERE key = ?1")?;
    let envelope: Option<Vec<u8>> = select.query_row([key], |row| row.get(0)).optional()?;
    let record = envelope.and_then(|envelope| Record::from_parts(envelope, None).ok());
    Ok(record.map(|record| record.hash()))
}

/// Takes the body out of a row.
pub(super) fn strip(connection: &Connection, key: i64) -> rusqlite::Result<usize> {
    let update = "UPDATE records SET salt = NULL, payload = NULL WHERE key = ?1";
    connection.prepare_cached(update)?.execute([key])
}

pub(super) fn delete(connection: &Connection, key: i64) -> rusqlite::Result<usize> {
    connection.prepare_cached("DELETE FROM records WHERE key = ?1")?.execute([key])
}

/// The record in a row, if it is the one that has to be there.
fn check(row: &Row<'_>, run: &str, seq: u64) -> Answer<Record> {
    let (envelope, body) = attempt!(sound(parts(row), run, seq)?);
    let judge = || {
        let record = Record::from_parts(envelope, body)?;
        let envelope = record.envelope();
        if *envelope.run != *run || envelope.seq != seq {
            return Err(format!("record {} of run {} is in its place", envelope.seq, envelope.run));
        }
        Ok(record)
    };
    Ok(judge().map_err(|what| Corrupt { run: run.into(), seq, what }.into()))
}

/// What a row has: an envelope, and a body unless it was taken away.
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
