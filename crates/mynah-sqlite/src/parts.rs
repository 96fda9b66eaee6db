//! Rows of answers in flight.

use mynah_log::{AnswerPart, Corrupt, backend::sealed};
use rusqlite::{Connection, params};

use crate::{
    Answer,
    row::{attempt, sound, unsigned},
    runs,
};

/// Keeps a part, in place of one that begins with the same event.
pub(crate) fn keep(connection: &Connection, run: i64, part: &AnswerPart) -> rusqlite::Result<()> {
    let AnswerPart { seq, first, count, payload, .. } = part;
    let replace =
        "REPLACE INTO parts (run, seq, first, count, payload) VALUES (?1, ?2, ?3, ?4, ?5)";
    let [seq, first, count] = [seq, first, count].map(|number| number.cast_signed());
    connection.prepare_cached(replace)?.execute(params![run, seq, first, count, payload]).map(drop)
}

/// Removes the parts of a run.
pub(crate) fn clear(connection: &Connection, run: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM parts WHERE run = ?1")?.execute([run]).map(drop)
}

/// The parts after a record with events from a place on; an empty list if there are more records, none if there is nothing yet.
pub(crate) fn read(
    connection: &Connection,
    run: &str,
    seq: u64,
    first: u64,
) -> Answer<Option<Vec<AnswerPart>>> {
    let _snapshot = connection.unchecked_transaction()?;
    let Some(known) = attempt!(runs::find(connection, run)?) else { return Ok(Ok(None)) };
    if known.entry.summary.records > seq {
        return Ok(Ok(Some(Vec::new())));
    }
    if known.entry.summary.seal.is_some() {
        return Ok(Err(sealed(run)));
    }
    let mut select = connection.prepare_cached(
        "SELECT first, count, payload FROM parts WHERE run = ?1 AND seq = ?2 AND first + count > ?3 ORDER BY first",
    )?;
    let [place, from] = [seq, first].map(|number| i64::try_from(number).unwrap_or(i64::MAX));
    let mut rows = select.query(params![known.key, place, from])?;
    let mut parts = Vec::new();
    while let Some(row) = rows.next()? {
        let read = || {
            let payload: Vec<u8> = row.get(2)?;
            Ok(AnswerPart::new(seq, unsigned(row, 0)?, unsigned(row, 1)?, payload))
        };
        parts.push(attempt!(sound(read(), run, seq)?));
    }
    Ok(Ok(Some(parts).filter(|parts| !parts.is_empty())))
}

/// Looks for parts of runs that are not there.
pub(crate) fn check(connection: &Connection) -> Answer<()> {
    let select = "SELECT run FROM parts WHERE run NOT IN (SELECT key FROM runs)";
    let stray = connection.prepare(select)?.exists([])?;
    Ok(match stray {
        true => {
            let what = "there is a part of an answer of a run that is not there";
            Err(Corrupt::new("", 0, what).into())
        }
        false => Ok(()),
    })
}
