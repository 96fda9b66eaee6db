//! Where the records of a run are: the keys of their rows.
//!
//! Rows of records lie in the order in which they come. A run's own row has the keys of its newest
//! records, and from time to time hands some dozens of them over to a row of older ones: so most
//! appends change no more than the end of the table and the run's row, however many runs grow side
//! by side and however long they are.

use std::{collections::HashSet, ops::Range};

use rusqlite::{Connection, Error, OptionalExtension as _, params, types::Type};

use super::{
    Answer,
    row::{attempt, blob, lossy, sound, unsigned},
};
use crate::{Corrupt, Record};

/// How many keys are handed over at once, at least; always fewer than twice as many.
const CHUNK: usize = 32;

/// The keys of a run's newest records.
#[derive(Debug, Default)]
pub(super) struct Recent(Vec<u8>);

impl Recent {
    /// From a row, where the run has so many records.
    pub(super) fn from_row(bytes: Vec<u8>, records: u64) -> Option<Self> {
        let recent = Self(bytes);
        let is_whole = recent.0.len().is_multiple_of(8) && recent.count() <= 2 * CHUNK;
        (is_whole && recent.count() as u64 <= records).then_some(recent)
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn count(&self) -> usize {
        self.0.len() / 8
    }

    /// Takes in the keys of the records up to this place, and hands older ones over.
    pub(super) fn extend(
        &mut self,
        connection: &Connection,
        run: i64,
        keys: Range<i64>,
        seq: u64,
    ) -> rusqlite::Result<()> {
        keys.for_each(|key| self.0.extend_from_slice(&key.to_be_bytes()));
        // Not the same for all, so that runs that begin together do not all hand over together.
        let chunk = CHUNK + (run.unsigned_abs() as usize % CHUNK);
        while self.count() >= chunk {
            let first = seq + 1 - self.count() as u64;
            let insert = "INSERT INTO older (run, seq, keys) VALUES (?1, ?2, ?3)";
            let mut insert = connection.prepare_cached(insert)?;
            insert.execute(params![run, first.cast_signed(), &self.0[..8 * chunk]])?;
            self.0.drain(..8 * chunk);
        }
        Ok(())
    }

    /// The keys of a run's records in these places, none of which is beyond the last. They end early
    /// where one is missing.
    pub(super) fn find(
        &self,
        connection: &Connection,
        run: i64,
        places: Range<u64>,
        last: u64,
    ) -> rusqlite::Result<Vec<i64>> {
        let mut found = Found { next: places.start, end: places.end, keys: Vec::new() };
        let begin = last + 1 - self.count() as u64;
        if places.start < begin {
            let select = "SELECT seq, keys FROM older WHERE run = ?1 AND seq > ?2 ORDER BY seq";
            let mut select = connection.prepare_cached(select)?;
            let before = places.start.saturating_sub(2 * CHUNK as u64);
            let mut rows = select.query(params![run, before.cast_signed()])?;
            while let Some(row) = rows.next()?.filter(|_| found.next < found.end.min(begin)) {
                found.take(unsigned(row, 0)?, blob(row, 1)?)?;
            }
        }
        found.take(begin, &self.0)?;
        Ok(found.keys)
    }
}

/// Looks for records that belong to no run, and for keys of no record.
pub(super) fn check(connection: &Connection) -> Answer<()> {
    let _snapshot = connection.unchecked_transaction()?;
    let strays = "SELECT seq FROM older WHERE run NOT IN (SELECT key FROM runs)";
    if connection.prepare(strays)?.exists([])? {
        let what = "keys of records lie in it that belong to no run".to_owned();
        return Ok(Err(Corrupt { run: String::new(), seq: 0, what }.into()));
    }
    let unequal = "SELECT id FROM runs WHERE 8 * seq <> length(recent) + \
                   (SELECT ifnull(sum(length(keys)), 0) FROM older WHERE run = runs.key)";
    let unequal = connection.prepare(unequal)?.query_row([], |row| Ok(lossy(row, 0))).optional()?;
    if let Some(run) = unequal {
        let what = "it has more or fewer keys than records".to_owned();
        return Ok(Err(Corrupt { run, seq: 0, what }.into()));
    }
    let counts = "SELECT (SELECT count(*) FROM records) > (SELECT total(seq) FROM runs)";
    if !connection.query_row(counts, [], |row| row.get(0))? {
        return Ok(Ok(()));
    }
    let mut known = HashSet::new();
    let mut select =
        connection.prepare("SELECT recent FROM runs UNION ALL SELECT keys FROM older")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let keys = attempt!(sound(blob(row, 0), "", 0)?);
        known.extend(keys.as_chunks().0.iter().copied().map(i64::from_be_bytes));
    }
    let mut select = connection.prepare("SELECT key, envelope FROM records")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let key: i64 = row.get(0)?;
        if known.contains(&key) {
            continue;
        }
        let envelope = attempt!(sound(blob(row, 1), "", 0)?);
        let (run, seq) = match Record::from_parts(envelope, None) {
            Ok(record) => (record.envelope().run.to_string(), record.seq()),
            Err(_) => (String::new(), 0),
        };
        let what = format!("row {key} holds it, but no run has that row");
        return Ok(Err(Corrupt { run, seq, what }.into()));
    }
    Ok(Ok(()))
}

/// Keys of consecutive places.
struct Found {
    next: u64,
    end: u64,
    keys: Vec<i64>,
}

impl Found {
    /// Takes those that are wanted of keys from a place on.
    fn take(&mut self, first: u64, keys: &[u8]) -> rusqlite::Result<()> {
        let (keys, rest) = keys.as_chunks();
        if !rest.is_empty() || keys.len() > 2 * CHUNK {
            return Err(Error::InvalidColumnType(1, "keys".to_owned(), Type::Blob));
        }
        for (seq, key) in (first..).zip(keys) {
            if seq == self.next && seq < self.end {
                self.keys.push(i64::from_be_bytes(*key));
                self.next += 1;
            }
        }
        Ok(())
    }
}
