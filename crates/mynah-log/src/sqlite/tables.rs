//! How each version of the tables is made from the one before.
//!
//! What is wrong with what is found there is left for whoever verifies it.

use rusqlite::{Connection, Row, params};

use super::{heads, keys, records, row::blob, runs};
use crate::{Hash, Head, MAINTENANCE, Totals};

type Migration = fn(&Connection) -> rusqlite::Result<()>;

pub(super) const MIGRATIONS: [Migration; 5] = [
    |tables| tables.execute_batch(include_str!("schema_1.sql")),
    |tables| tables.execute_batch(include_str!("schema_2.sql")),
    |tables| {
        tables.execute_batch(include_str!("schema_3.sql"))?;
        list_tombstones(tables)
    },
    |tables| tables.execute_batch(include_str!("schema_4.sql")),
    |tables| {
        tables.execute_batch(include_str!("schema_5.sql"))?;
        pack_heads(tables)?;
        pack_older(tables)?;
        tables.execute_batch("DROP TABLE runs_4; DROP TABLE older_4")
    },
];

/// The version of the tables that are written.
pub(super) const SCHEMA: u32 = MIGRATIONS.len() as u32;

/// The tables of that version.
pub(super) const TABLES: [&str; 7] =
    ["runs", "heads", "older", "records", "seals", "pruned", "unwiped"];

/// Makes the tombstones that a log has leaves of its tree.
fn list_tombstones(tables: &Connection) -> rusqlite::Result<()> {
    let mut select = tables.prepare(
        "SELECT keys FROM (SELECT older.seq, keys FROM older JOIN runs ON run = key WHERE id = ?1 \
         UNION ALL SELECT seq, recent FROM runs WHERE id = ?1) ORDER BY seq",
    )?;
    let mut rows = select.query([MAINTENANCE])?;
    while let Some(row) = rows.next()? {
        for key in unpacked(blob(row, 0)?) {
            if let Some(hash) = records::hash(tables, key)? {
                runs::add_leaf(tables, MAINTENANCE, hash)?;
            }
        }
    }
    Ok(())
}

fn pack_heads(tables: &Connection) -> rusqlite::Result<()> {
    let mut select = tables.prepare(
        "SELECT updated, seq, hash, turns, tool_calls, input_tokens, output_tokens, cost, recent, key FROM runs_4",
    )?;
    let mut insert = tables.prepare("INSERT INTO heads (run, state) VALUES (?1, ?2)")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        insert.execute(params![row.get::<_, i64>(9)?, state(row).unwrap_or_default()])?;
    }
    Ok(())
}

fn state(row: &Row<'_>) -> rusqlite::Result<Vec<u8>> {
    let count = |column| row.get(column).map(i64::cast_unsigned);
    let head = Head { seq: count(1)?, hash: Hash(row.get(2)?) };
    let totals = Totals {
        turns: count(3)?,
        tool_calls: count(4)?,
        input_tokens: count(5)?,
        output_tokens: count(6)?,
        // There was no other way to say that a sum is not a number.
        cost: row.get::<_, Option<f64>>(7)?.unwrap_or(f64::NAN),
    };
    let recent = keys::pack(unpacked(blob(row, 8)?));
    Ok(heads::pack(row.get(0)?, head, &totals, &recent))
}

fn pack_older(tables: &Connection) -> rusqlite::Result<()> {
    let mut select = tables.prepare("SELECT run, seq, keys FROM older_4")?;
    let mut insert = tables.prepare("INSERT INTO older (run, seq, keys) VALUES (?1, ?2, ?3)")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (run, seq) = (row.get::<_, i64>(0)?, row.get::<_, i64>(1)?);
        insert.execute(params![run, seq, keys::pack(unpacked(blob(row, 2)?))])?;
    }
    Ok(())
}

/// Keys as they were before they were packed: eight bytes each.
fn unpacked(keys: &[u8]) -> impl Iterator<Item = i64> {
    keys.as_chunks().0.iter().map(|key| i64::from_be_bytes(*key))
}
