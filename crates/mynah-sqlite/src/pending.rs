//! Rows that a transaction is still to write.
//!
//! Every append writes rows of the same two tables. If many runs append at once, writing one table
//! after the other is faster than alternating, and one statement for many rows is faster again. So
//! rows are gathered until a lookup needs them.

use std::{mem, sync::LazyLock};

use mynah_log::Record;
use rusqlite::{Connection, Error, ToSql, params};

/// How many records are gathered at most, and how many bytes of them, about: a statement has its own copy of what it writes.
const MANY: usize = 16;
const HEAVY: usize = 64 << 10;

/// Behind all others, whose keys are smaller. Anything that is wrong ends the transaction: to end only itself, a statement that
/// writes many rows would copy each page before it is changed.
const INSERT: &str =
    "INSERT OR ROLLBACK INTO records (run, envelope, salt, payload) VALUES (?, ?, ?, ?)";
static INSERT_MANY: LazyLock<String> =
    LazyLock::new(|| INSERT.to_owned() + &", (?, ?, ?, ?)".repeat(MANY - 1));

/// Rows to be written: records by their runs' keys, whose own keys follow each other, and the states of runs.
#[derive(Default)]
pub(crate) struct Pending {
    records: Vec<(i64, Record)>,
    bytes: usize,
    /// The key that the last of them will have.
    last: i64,
    heads: Vec<(i64, Vec<u8>)>,
}

impl Pending {
    /// Takes in a record of a run, whose key follows that of the one before.
    pub(crate) fn insert(&mut self, key: i64, run: i64, record: &Record) {
        self.bytes += record.body().map_or(0, |body| body.payload.len());
        self.last = key;
        self.records.push((run, record.clone()));
    }

    /// Takes in the state of a run, in the place of the one before.
    pub(crate) fn keep(&mut self, run: i64, state: Vec<u8>) {
        self.heads.push((run, state));
    }

    /// Whether it should be written.
    pub(crate) fn is_full(&self) -> bool {
        self.records.len() >= MANY || self.bytes >= HEAVY
    }

    pub(crate) fn write(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let Self { records, bytes, last, heads } = mem::take(self);
        if heads.is_empty() {
            return Ok(());
        }
        let (many, few) =
            if bytes < HEAVY { records.as_chunks::<MANY>() } else { (&[][..], &*records) };
        insert(connection, &INSERT_MANY, many.as_flattened(), MANY)?;
        insert(connection, INSERT, few, 1)?;
        // Their runs know them by the keys that they were to have.
        let key = connection.last_insert_rowid();
        if key != last {
            return Err(Error::IntegralValueOutOfRange(0, key));
        }
        let mut keep =
            connection.prepare_cached("REPLACE INTO heads (run, state) VALUES (?1, ?2)")?;
        heads.iter().try_for_each(|(run, state)| keep.execute(params![run, state]).map(drop))
    }
}

/// Inserts records with a statement for this many of them.
fn insert(
    connection: &Connection,
    sql: &str,
    records: &[(i64, Record)],
    count: usize,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql)?;
    for records in records.chunks(count) {
        let mut place = 1..;
        let mut bind = |value: &dyn ToSql| {
            statement.raw_bind_parameter(place.next().unwrap_or_default(), value)
        };
        for (run, record) in records {
            let body = record.body();
            bind(run)?;
            bind(&record.pack())?;
            bind(&body.map(|body| &body.salt[..]))?;
            bind(&body.map(|body| &body.payload[..]))?;
        }
        statement.raw_execute()?;
    }
    Ok(())
}
