//! What the writer works on: the file, and what it knows of the runs in it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use rusqlite::{CachedStatement, Connection};

use super::{
    Answer, file, heads, records,
    row::attempt,
    runs::{self, Known},
    wipe,
};
use crate::{
    Durability, Head, Lease, MAINTENANCE, Removed, Stripped, Tombstone,
    entry::{self, Checked, Entry},
    removal::goes_on_from,
};

/// How many runs it knows at most.
const KNOWN: usize = 1024;

pub(super) struct Store {
    connection: Connection,
    /// It holds for as long as nobody else writes.
    known: Runs,
    /// Changes when somebody else writes.
    version: i64,
    /// How safe a commit is.
    durability: Durability,
    /// Whether what was taken away may still lie in the write-ahead log.
    unwiped: bool,
}

impl Store {
    pub(super) fn new(connection: Connection, durability: Durability) -> Self {
        Self { connection, known: Runs::default(), version: 0, durability, unwiped: true }
    }

    /// Sees to it that what was taken away is nowhere in the files. Where somebody still reads what was there before, that
    /// is left for the next time.
    pub(super) fn wipe(&mut self) -> rusqlite::Result<()> {
        if self.unwiped {
            self.unwiped = !wipe::attempt(&self.connection)?;
        }
        Ok(())
    }

    /// Makes what is committed from here on this safe.
    pub(super) fn make(&mut self, durability: Durability) -> rusqlite::Result<()> {
        if self.durability != durability {
            file::make(&self.connection, durability)?;
            self.durability = durability;
        }
        Ok(())
    }

    /// Begins a transaction that nobody else can write into.
    pub(super) fn begin(&mut self) -> rusqlite::Result<Work<'_>> {
        let connection = &self.connection;
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let (known, unwiped) = (&mut self.known, &mut self.unwiped);
        let begun = Begun { connection, known, unwiped, committed: false };
        let mut version = connection.prepare_cached("PRAGMA data_version")?;
        let version = version.query_row([], |row| row.get(0))?;
        if version != self.version {
            begun.known.0.clear();
            file::still_known(connection)?;
            self.version = version;
        }
        let insert = connection.prepare_cached(records::INSERT)?;
        let keep = connection.prepare_cached(heads::KEEP)?;
        Ok(Work { insert, keep, begun })
    }
}

/// A transaction. It is rolled back if it is dropped before it is committed.
pub(super) struct Work<'s> {
    // Kept at hand from the first job to the last.
    insert: CachedStatement<'s>,
    keep: CachedStatement<'s>,
    begun: Begun<'s>,
}

impl Work<'_> {
    pub(super) fn append(&mut self, checked: &Checked) -> Answer<Head> {
        // All is looked up first: what is refused must not have changed anything.
        let mut going = Vec::new();
        for (at, tombstone) in &checked.tombstones {
            going.extend(attempt!(self.look_up(tombstone, *at)?));
            attempt!(self.is_needed(tombstone, checked)?);
        }
        let head = attempt!(self.extend(checked)?);
        let connection = self.begun.connection;
        if !going.is_empty() {
            *self.begun.unwiped = true;
            wipe::note(connection, head.seq)?;
        }
        for going in &going {
            match going {
                Going::Bodies(rows) => {
                    rows.iter().try_for_each(|row| records::strip(connection, *row).map(drop))?;
                }
                Going::Run { key, run, rows } => {
                    rows.iter().try_for_each(|row| records::delete(connection, *row).map(drop))?;
                    runs::remove(connection, *key, run)?;
                    self.begun.known.0.remove(run);
                }
            }
        }
        Ok(Ok(head))
    }

    /// Where what a tombstone names lies, if it may go; none if there is nothing.
    fn look_up(&mut self, tombstone: &Tombstone, at: i64) -> Answer<Option<Going>> {
        let connection = self.begun.connection;
        let Tombstone { run_id, removed, .. } = tombstone;
        let Some(known) = attempt!(self.begun.known.find(connection, run_id)?) else {
            let is_pruned = runs::is_pruned(connection, run_id)?;
            return Ok(entry::absent(removed, run_id, is_pruned).map(|()| None));
        };
        attempt!(known.entry.yields(removed, at));
        let run = Arc::clone(&known.entry.summary.run_id);
        let going = match removed {
            Removed::Run { records, .. } => {
                let rows = attempt!(records::rows(connection, known, 1..records + 1)?);
                Going::Run { key: known.key, run, rows }
            }
            Removed::Bodies(named) => {
                let mut rows = Vec::with_capacity(named.len());
                let there = known.entry.summary.records;
                for Stripped { seq, hash, .. } in named.iter().filter(|named| named.seq <= there) {
                    let found = attempt!(records::rows(connection, known, *seq..*seq + 1)?);
                    for row in found {
                        if records::hash(connection, row)? != Some(*hash) {
                            return Ok(Err(entry::strange(run_id, *seq)));
                        }
                        rows.push(row);
                    }
                }
                Going::Bodies(rows)
            }
        };
        Ok(Ok(Some(going)))
    }

    /// Refuses to take out a run that one goes on from which stays.
    fn is_needed(&mut self, tombstone: &Tombstone, checked: &Checked) -> Answer<()> {
        let Tombstone { run_id, removed: Removed::Run { .. }, .. } = tombstone else {
            return Ok(Ok(()));
        };
        let connection = self.begun.connection;
        for later in runs::after_in_session(connection, run_id)? {
            if checked.takes_out(&later) {
                continue;
            }
            let first = attempt!(records::read_now(connection, &later, 1, 1)?);
            if first.first().and_then(goes_on_from).as_ref() == Some(run_id) {
                return Ok(Err(entry::needed(run_id, &later)));
            }
        }
        Ok(Ok(()))
    }

    fn extend(&mut self, checked: &Checked) -> Answer<Head> {
        let (connection, runs) = (self.begun.connection, &mut self.begun.known);
        let run = &checked.batch.run;
        let (before, known) = match attempt!(runs.find(connection, run)?) {
            Some(known) => {
                let before = known.entry.clone();
                attempt!(known.entry.follow(checked));
                (Some(before), known)
            }
            None if runs::is_pruned(connection, run)? => return Ok(Err(entry::pruned(run))),
            None => {
                let entry = attempt!(Entry::begin(checked));
                (None, runs.know(runs::insert(connection, entry)?))
            }
        };
        for record in &checked.batch.records {
            let key = records::insert(&mut self.insert, record)?;
            known.recent.add(connection, known.key, key, record.seq())?;
        }
        heads::keep(&mut self.keep, known.key, &known.entry.summary, &known.recent)?;
        if let Some(before) = before {
            runs::update(connection, &before, known)?;
        }
        let head = known.entry.summary.head();
        if checked.sealing {
            runs::add_leaf(connection, run, head.hash)?;
            // Its place among the seals is in the file, and nothing is to follow.
            runs.0.remove(run);
        }
        if **run == *MAINTENANCE {
            for record in &checked.batch.records {
                runs::add_leaf(connection, run, record.hash())?;
            }
        }
        Ok(Ok(head))
    }

    pub(super) fn lease(
        &mut self,
        run: &str,
        owner: &str,
        term: Duration,
        now: i64,
    ) -> Answer<Lease> {
        let connection = self.begun.connection;
        let Some(known) = attempt!(self.begun.known.find(connection, run)?) else {
            return Ok(Err(entry::not_found(run)));
        };
        let before = known.entry.clone();
        let lease = attempt!(known.entry.lease(owner, term, now));
        runs::update(connection, &before, known)?;
        Ok(Ok(lease))
    }

    pub(super) fn release(&mut self, lease: &Lease) -> Answer<()> {
        let connection = self.begun.connection;
        if let Some(known) = attempt!(self.begun.known.find(connection, &lease.run)?) {
            let before = known.entry.clone();
            known.entry.release(lease);
            runs::update(connection, &before, known)?;
        }
        Ok(Ok(()))
    }

    pub(super) fn commit(mut self) -> rusqlite::Result<()> {
        self.begun.connection.prepare_cached("COMMIT")?.execute([])?;
        self.begun.committed = true;
        Ok(())
    }
}

/// What is known of runs: most appends are to a run that was appended to before, and need not look it up.
#[derive(Default)]
struct Runs(HashMap<Arc<str>, Known>);

impl Runs {
    fn find(&mut self, connection: &Connection, run: &str) -> Answer<Option<&mut Known>> {
        if !self.0.contains_key(run) {
            return Ok(Ok(attempt!(runs::find(connection, run)?).map(|found| self.know(found))));
        }
        Ok(Ok(self.0.get_mut(run)))
    }

    fn know(&mut self, known: Known) -> &mut Known {
        if self.0.len() >= KNOWN {
            self.0.clear();
        }
        let run = Arc::clone(&known.entry.summary.run_id);
        self.0.entry(run).insert_entry(known).into_mut()
    }
}

/// What a tombstone takes away, by its rows.
enum Going {
    Bodies(Vec<i64>),
    Run { key: i64, run: Arc<str>, rows: Vec<i64> },
}

/// A transaction's end: rolled back, and what was learned in it forgotten, unless it was committed.
struct Begun<'s> {
    connection: &'s Connection,
    known: &'s mut Runs,
    unwiped: &'s mut bool,
    committed: bool,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        self.known.0.clear();
        // What a full disk ends is rolled back already.
        if !self.connection.is_autocommit() {
            // There is nothing to be done about it, and the next to begin will tell.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ErrorCode;

    use super::*;
    use crate::{conformance::Sample, sqlite::file::File};

    #[test]
    fn what_a_full_disk_ended_is_not_known_to_be_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = File::new(&folder.path().join("log.db")).expect("a path");
        let connection = file.open_to_write(Durability::Relaxed).expect("a log");
        let pages = |pages: u32, connection: &Connection| {
            connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
        };
        pages(1, &connection).expect("no more than there are");
        let mut store = Store::new(connection, Durability::Relaxed);
        let batch = || Checked::new(Sample::new("small", 0).batch()).expect("a batch");
        let mut work = store.begin().expect("a transaction");
        work.append(&batch()).expect("room for one").expect("a new run");
        let full = (1..10_000).find_map(|run| {
            let more = Checked::new(Sample::new(format!("run-{run}"), 0).batch()).expect("a batch");
            work.append(&more).err()
        });
        assert_eq!(full.expect("no room").sqlite_error_code(), Some(ErrorCode::DiskFull));
        assert!(work.begun.connection.is_autocommit(), "SQLite rolled it back");
        drop(work);
        pages(u32::MAX, &store.connection).expect("room");
        let mut work = store.begin().expect("a transaction");
        work.append(&batch()).expect("room").expect("a new run, as nothing was kept of it");
        work.commit().expect("a commit");
    }
}
