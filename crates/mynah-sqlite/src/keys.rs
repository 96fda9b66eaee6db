//! Where the records of a run are: the keys of their rows.
//!
//! Rows of records are in the order of their arrival. A run's row of `heads` has the keys of its
//! newest records, and from time to time moves some dozens of them to a row of older ones. So most
//! appends change only the end of the table and that row, for any number and length of runs. Keys
//! are packed, a byte or two each, so that the rows of many runs share a page.

use std::{collections::HashSet, ops::Range};

use mynah_log::Corrupt;
use rusqlite::{Connection, Error, Row, params, types::Type};

use crate::{
    Answer,
    heads::{self, State},
    row::{attempt, blob, lossy, sound, unsigned},
    varint,
};

/// How many keys are handed over at once, at least; always fewer than twice as many.
const CHUNK: usize = 64;

/// The keys of a run's newest records, as they are in its row.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    bytes: Vec<u8>,
    count: usize,
    last: i64,
}

impl Recent {
    /// Reads them from a row of a run with this many records.
    pub(crate) fn from_bytes(bytes: &[u8], records: u64) -> Option<Self> {
        let keys = unpack(bytes)?;
        let (count, last) = (keys.len(), keys.last().copied().unwrap_or_default());
        (count as u64 <= records).then(|| Self { bytes: bytes.to_vec(), count, last })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn keys(&self) -> Vec<i64> {
        unpack(&self.bytes).unwrap_or_default()
    }

    /// Takes in the key of the record in this place, and hands older ones over.
    pub(crate) fn add(
        &mut self,
        connection: &Connection,
        run: i64,
        key: i64,
        seq: u64,
    ) -> rusqlite::Result<()> {
        push(&mut self.bytes, &mut self.last, key);
        self.count += 1;
        // Not the same for all, so that runs that begin together do not all hand over together.
        if self.count >= CHUNK + (run.unsigned_abs() as usize % CHUNK) {
            let first = seq + 1 - self.count as u64;
            let insert = "INSERT INTO older (run, seq, keys) VALUES (?1, ?2, ?3)";
            let mut insert = connection.prepare_cached(insert)?;
            insert.execute(params![run, first.cast_signed(), self.bytes])?;
            *self = Self::default();
        }
        Ok(())
    }

    /// The keys of a run's records in these places, none of which is beyond the last. They end early
    /// where one is missing.
    pub(crate) fn find(
        &self,
        connection: &Connection,
        run: i64,
        places: Range<u64>,
        last: u64,
    ) -> rusqlite::Result<Vec<i64>> {
        let mut found = Found { next: places.start, end: places.end, keys: Vec::new() };
        let begin = last + 1 - self.count as u64;
        if places.start < begin {
            let select = "SELECT seq, keys FROM older WHERE run = ?1 AND seq > ?2 ORDER BY seq";
            let mut select = connection.prepare_cached(select)?;
            let before = places.start.saturating_sub(2 * CHUNK as u64);
            let mut rows = select.query(params![run, before.cast_signed()])?;
            while let Some(row) = rows.next()?.filter(|_| found.next < found.end.min(begin)) {
                found.take(unsigned(row, 0)?, keys(row, 1)?);
            }
        }
        found.take(begin, self.keys());
        Ok(found.keys)
    }
}

/// Looks for records that belong to no run, and for keys of no record.
pub(crate) fn check(connection: &Connection) -> Answer<()> {
    let _snapshot = connection.unchecked_transaction()?;
    attempt!(check_strays(connection, "older")?);
    let mut select =
        connection.prepare("SELECT id, key, state FROM runs LEFT JOIN heads ON run = key")?;
    let mut older = connection.prepare("SELECT keys FROM older WHERE run = ?1")?;
    let (mut rows, mut total) = (select.query([])?, 0);
    while let Some(row) = rows.next()? {
        let run = lossy(row, 0);
        let State { head, recent, .. } = attempt!(sound(heads::read(row, 2), &run, 0)?);
        let mut keys = recent.count;
        let mut rows = older.query([row.get::<_, i64>(1)?])?;
        while let Some(row) = rows.next()? {
            keys += attempt!(sound(self::keys(row, 0), &run, 0)?).len();
        }
        if head.seq != keys as u64 {
            let what = "it has more or fewer keys than records".to_owned();
            return Ok(Err(Corrupt::new(run, 0, what).into()));
        }
        total += head.seq;
    }
    let count = connection.query_row("SELECT count(*) FROM records", [], |row| unsigned(row, 0))?;
    if count <= total {
        return check_strays(connection, "heads");
    }
    let mut known = HashSet::new();
    let mut select = connection.prepare("SELECT state FROM heads JOIN runs ON run = key")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        known.extend(heads::read(row, 0)?.recent.keys());
    }
    let mut select = connection.prepare("SELECT keys FROM older")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        known.extend(keys(row, 0)?);
    }
    let mut select = connection
        .prepare("SELECT records.key, runs.id FROM records LEFT JOIN runs ON runs.key = run")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let key: i64 = row.get(0)?;
        if !known.contains(&key) {
            let what = format!("row {key} of table records is in no place of a run");
            return Ok(Err(Corrupt::new(lossy(row, 1), 0, what).into()));
        }
    }
    Ok(Ok(()))
}

/// Looks for rows of a table that belong to no run.
fn check_strays(connection: &Connection, table: &str) -> Answer<()> {
    let strays = format!("SELECT 1 FROM {table} WHERE run NOT IN (SELECT key FROM runs)");
    if connection.prepare(&strays)?.exists([])? {
        let what = format!("rows of table {table} belong to no run");
        return Ok(Err(Corrupt::new("", 0, what).into()));
    }
    Ok(Ok(()))
}

/// Packs a key by how much it is greater than the one before.
fn push(packed: &mut Vec<u8>, last: &mut i64, key: i64) {
    varint::push(packed, key.wrapping_sub(*last).cast_unsigned());
    *last = key;
}

/// The keys that were packed; none if they are none, or too many.
fn unpack(mut packed: &[u8]) -> Option<Vec<i64>> {
    let (mut keys, mut last) = (Vec::new(), 0_i64);
    while !packed.is_empty() {
        last = last.wrapping_add(varint::pull(&mut packed)?.cast_signed());
        keys.push(last);
        if keys.len() > 2 * CHUNK {
            return None;
        }
    }
    Some(keys)
}

/// The keys that are packed in a column.
fn keys(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<i64>> {
    unpack(blob(row, column)?).ok_or_else(|| {
        let name = row.as_ref().column_name(column).unwrap_or_default().to_owned();
        Error::InvalidColumnType(column, name, Type::Blob)
    })
}

/// Keys of consecutive places.
struct Found {
    next: u64,
    end: u64,
    keys: Vec<i64>,
}

impl Found {
    /// Takes those that are wanted of keys from a place on.
    fn take(&mut self, first: u64, keys: Vec<i64>) {
        for (seq, key) in (first..).zip(keys) {
            if seq == self.next && seq < self.end {
                self.keys.push(key);
                self.next += 1;
            }
        }
    }
}
