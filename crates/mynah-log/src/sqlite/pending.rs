//! Rows that a transaction is still to write.
//!
//! Every append writes rows of the same two tables. A statement that writes many of them does a third less for each, so rows are
//! gathered until there are many, the transaction ends, or somebody looks something up.

use std::sync::LazyLock;

use rusqlite::{Connection, Statement};

use crate::Record;

/// How many rows are written by one statement.
const MANY: usize = 16;

const INSERT: &str = "INSERT INTO records (key, envelope, salt, payload) VALUES (?, ?, ?, ?)";
const KEEP: &str = "REPLACE INTO heads (run, state) VALUES (?, ?)";

static INSERT_MANY: LazyLock<String> =
    LazyLock::new(|| INSERT.to_owned() + &", (?, ?, ?, ?)".repeat(MANY - 1));
static KEEP_MANY: LazyLock<String> =
    LazyLock::new(|| KEEP.to_owned() + &", (?, ?)".repeat(MANY - 1));

/// Rows to be written: records by their keys, and the states of runs by theirs.
#[derive(Default)]
pub(super) struct Pending {
    records: Vec<(i64, Record)>,
    heads: Vec<(i64, Vec<u8>)>,
}

impl Pending {
    pub(super) fn insert(
        &mut self,
        connection: &Connection,
        key: i64,
        record: &Record,
    ) -> rusqlite::Result<()> {
        self.records.push((key, record.clone()));
        if self.records.len() < MANY { Ok(()) } else { self.write_records(connection) }
    }

    /// Keeps the state of a run in the place of the one before.
    pub(super) fn keep(
        &mut self,
        connection: &Connection,
        run: i64,
        state: Vec<u8>,
    ) -> rusqlite::Result<()> {
        self.heads.push((run, state));
        if self.heads.len() < MANY { Ok(()) } else { self.write_heads(connection) }
    }

    pub(super) fn write(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        self.write_records(connection)?;
        self.write_heads(connection)
    }

    fn write_records(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        write(connection, INSERT, &INSERT_MANY, &mut self.records, |insert, at, (key, record)| {
            let body = record.body();
            insert.raw_bind_parameter(4 * at + 1, key)?;
            insert.raw_bind_parameter(4 * at + 2, &record.envelope_bytes()[..])?;
            insert.raw_bind_parameter(4 * at + 3, body.map(|body| body.salt))?;
            insert.raw_bind_parameter(4 * at + 4, body.map(|body| &body.payload[..]))
        })
    }

    fn write_heads(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        write(connection, KEEP, &KEEP_MANY, &mut self.heads, |keep, at, (run, state)| {
            keep.raw_bind_parameter(2 * at + 1, run)?;
            keep.raw_bind_parameter(2 * at + 2, state)
        })
    }
}

/// Writes rows by the statement for many where there are as many, and otherwise one by one.
fn write<R>(
    connection: &Connection,
    one: &str,
    many: &str,
    rows: &mut Vec<R>,
    bind: impl Fn(&mut Statement<'_>, usize, &R) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let (sql, portion) = if rows.len() == MANY { (many, MANY) } else { (one, 1) };
    let mut statement = connection.prepare_cached(sql)?;
    for rows in rows.chunks(portion) {
        for (at, row) in rows.iter().enumerate() {
            bind(&mut statement, at, row)?;
        }
        statement.raw_execute()?;
    }
    rows.clear();
    Ok(())
}
