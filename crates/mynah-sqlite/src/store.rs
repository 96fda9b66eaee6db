//! The writer's state: the file, and a cache of the runs in it.

use std::{
    collections::{
        HashMap,
        hash_map::Entry::{Occupied, Vacant},
    },
    time::Duration,
};

use mynah_data::RunId;
use mynah_log::{
    AnswerPart, Append, Corrupt, Durability, Head, InboxMessage, Lease, MAINTENANCE, Queue, Record,
    Removed, RunSummary, Stripped, Tombstone,
    backend::{self as entry, Checked, Holder, IndexEntry, previous_run},
};
use rusqlite::Connection;

use crate::{
    Answer, file, heads, inbox, parts,
    pending::Pending,
    records,
    row::attempt,
    runs::{self, Known},
    wipe,
};

/// How many runs it knows at most.
const KNOWN: usize = 1024;

pub(crate) struct Store {
    connection: Connection,
    /// Valid until another process writes.
    known: Memory,
    /// Changes when another process writes.
    version: i64,
    /// How safe a commit is.
    durability: Durability,
    /// Whether what was removed may still lie in the write-ahead log.
    unwiped: bool,
}

impl Store {
    pub(crate) fn new(connection: Connection, durability: Durability) -> Self {
        Self { connection, known: Memory::default(), version: 0, durability, unwiped: true }
    }

    /// Erases removed data from the files. If a reader still uses the old data, it is retried
    /// later.
    pub(crate) fn wipe(&mut self) -> rusqlite::Result<()> {
        if self.unwiped {
            self.unwiped = !wipe::attempt(&self.connection)?;
        }
        Ok(())
    }

    /// Whether removed data is still to be erased.
    pub(crate) fn is_unwiped(&self) -> bool {
        self.unwiped
    }

    /// Whether a run need not be looked up, and has no parts of an answer that its next append removes.
    pub(crate) fn is_at_hand(&self, run: &str) -> bool {
        self.known.runs.get(run).is_some_and(|known| !known.may_have_parts)
    }

    /// Moves what is in the write-ahead log into the file, as far as no reader needs it there.
    pub(crate) fn checkpoint(&self) -> rusqlite::Result<()> {
        let checkpoint = "PRAGMA wal_checkpoint(PASSIVE)";
        self.connection.prepare_cached(checkpoint)?.query_row([], |_| Ok(()))
    }

    /// Waits this long from here on if another process has the file locked.
    pub(crate) fn wait(&self, limit: Duration) {
        // It is refused for a closed connection alone.
        let _ = self.connection.busy_timeout(limit);
    }

    /// Makes what is committed from here on this safe.
    pub(crate) fn make(&mut self, durability: Durability) -> rusqlite::Result<()> {
        if self.durability != durability {
            file::make(&self.connection, durability)?;
            self.durability = durability;
        }
        Ok(())
    }

    /// Begins a transaction that excludes other writers.
    pub(crate) fn begin(&mut self) -> rusqlite::Result<Work<'_>> {
        let connection = &self.connection;
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        let (known, unwiped, pending) = (&mut self.known, &mut self.unwiped, Pending::default());
        let work = Work { connection, known, unwiped, pending, committed: false };
        let mut version = connection.prepare_cached("PRAGMA data_version")?;
        let version = version.query_row([], |row| row.get(0))?;
        if version != self.version {
            *work.known = Memory::default();
            self.version = version;
        }
        Ok(work)
    }
}

/// A transaction. It is rolled back, and its cache entries are dropped, unless it is committed.
pub(crate) struct Work<'s> {
    connection: &'s Connection,
    known: &'s mut Memory,
    unwiped: &'s mut bool,
    /// Rows that are not in the tables yet. They are written before the tables are queried for runs
    /// or records.
    pending: Pending,
    committed: bool,
}

impl Work<'_> {
    pub(crate) fn append(&mut self, checked: &Checked) -> Answer<Head> {
        if !checked.tombstones.is_empty() {
            self.pending.write(self.connection)?;
            let known =
                self.known.find(self.connection, &mut self.pending, &checked.batch.run_id)?;
            if attempt!(known).is_some_and(|known| known.entry.ends_with(checked)) {
                return Ok(Ok(checked.head));
            }
        }
        // All is looked up first: what is refused must not have changed anything.
        let mut going = Vec::new();
        for tombstone in &checked.tombstones {
            going.extend(attempt!(self.look_up(tombstone, checked.now)?));
            attempt!(self.is_needed(tombstone, checked)?);
        }
        let head = attempt!(self.extend(checked)?);
        let connection = self.connection;
        if !going.is_empty() {
            // Rows that come after these are gone are numbered from what is left.
            self.pending.write(connection)?;
            self.known.last = None;
            *self.unwiped = true;
            wipe::note(connection, head.seq)?;
        }
        for going in &going {
            match going {
                RemovedRows::Bodies(rows) => {
                    let strip = |(row, record): &(i64, Record)| {
                        records::strip(connection, *row, record).map(drop)
                    };
                    rows.iter().try_for_each(strip)?;
                }
                RemovedRows::Run { key, run, rows } => {
                    rows.iter().try_for_each(|row| records::delete(connection, *row).map(drop))?;
                    runs::remove(connection, *key, run)?;
                    self.known.runs.remove(run);
                }
            }
        }
        Ok(Ok(head))
    }

    /// Where what a tombstone names lies, if it may go; none if there is nothing.
    fn look_up(&mut self, tombstone: &Tombstone, now: i64) -> Answer<Option<RemovedRows>> {
        let connection = self.connection;
        let Tombstone { run_id, removed, .. } = tombstone;
        let Some(known) = attempt!(self.known.find(connection, &mut self.pending, run_id)?) else {
            let is_pruned = runs::is_pruned(connection, run_id)?;
            return Ok(entry::check_missing(removed, run_id, is_pruned).map(|()| None));
        };
        attempt!(known.entry.check_removal(removed, now));
        let run = known.entry.summary.run_id.clone();
        let going = match removed {
            Removed::Run { records, .. } => {
                let rows = attempt!(records::rows(connection, known, 1..records + 1)?);
                RemovedRows::Run { key: known.key, run, rows }
            }
            Removed::Bodies(named) => {
                let mut rows = Vec::with_capacity(named.len());
                let there = known.entry.summary.records;
                for Stripped { seq, hash, .. } in named.iter().filter(|named| named.seq <= there) {
                    let found = attempt!(records::rows(connection, known, *seq..*seq + 1)?);
                    for row in found {
                        let record = attempt!(records::find(connection, known, *seq, row)?);
                        if record.hash() != *hash {
                            return Ok(Err(entry::wrong_tombstone(run_id, *seq)));
                        }
                        rows.push((row, record));
                    }
                }
                RemovedRows::Bodies(rows)
            }
            _ => return Ok(Err(file::unusable("a tombstone of an unknown kind"))),
        };
        Ok(Ok(Some(going)))
    }

    /// Refuses to remove a run that a remaining run continues.
    fn is_needed(&mut self, tombstone: &Tombstone, checked: &Checked) -> Answer<()> {
        let Tombstone { run_id, removed: Removed::Run { .. }, .. } = tombstone else {
            return Ok(Ok(()));
        };
        let connection = self.connection;
        for later in runs::after_in_session(connection, run_id)? {
            if checked.prunes(&later) {
                continue;
            }
            let first = attempt!(records::read_now(connection, &later, 1, 1)?);
            if first.first().and_then(previous_run).as_ref() == Some(run_id) {
                return Ok(Err(entry::still_needed(run_id, &later)));
            }
        }
        Ok(Ok(()))
    }

    fn extend(&mut self, checked: &Checked) -> Answer<Head> {
        let Self { connection, known: memory, pending, .. } = self;
        let Append { run_id: run, records, .. } = &checked.batch;
        let mut key = memory.last_key(connection)?;
        if key.checked_add_unsigned(records.len() as u64).is_none() {
            let what = format!("row {key} of table records leaves no room for another");
            return Ok(Err(Corrupt::new("", 0, what).into()));
        }
        let (before, known) = match attempt!(memory.find(connection, pending, run)?) {
            Some(known) if known.entry.ends_with(checked) => return Ok(Ok(checked.head)),
            Some(known) => {
                let before = known.entry.clone();
                attempt!(known.entry.follow(checked));
                (Some(before), known)
            }
            None if runs::is_pruned(connection, run)? => return Ok(Err(entry::pruned(run))),
            None => {
                let entry = attempt!(IndexEntry::begin(checked));
                (None, memory.know(runs::insert(connection, entry)?))
            }
        };
        for record in records {
            key += 1;
            pending.insert(key, known.key, record);
            known.recent.add(connection, known.key, key, record.seq())?;
        }
        let RunSummary { updated, totals, .. } = &known.entry.summary;
        let head = known.entry.summary.head();
        let state = heads::pack(*updated, head, totals, known.recent.as_bytes());
        pending.keep(known.key, state);
        if pending.is_full() {
            pending.write(connection)?;
        }
        if let Some(before) = &before {
            runs::update(connection, before, known)?;
        }
        if std::mem::take(&mut known.may_have_parts) {
            parts::clear(connection, known.key)?;
        }
        inbox::consume(connection, known.key, &checked.batch.consumed)?;
        if checked.sealing {
            inbox::clear(connection, known.key)?;
        }
        // Only runs of a queue are looked for by this.
        let is_queued = known.entry.summary.queue.is_some() && before.is_some();
        let has_messages = is_queued && inbox::has_messages(connection, known.key)?;
        runs::wake(connection, known, known.entry.wakes_at(has_messages))?;
        let holder = known.entry.holder.clone();
        let before = before.and_then(|before| before.holder);
        memory.keep_beat(connection, before, holder, checked.now)?;
        memory.last = Some(key);
        if checked.sealing {
            runs::add_leaf(connection, run, head.hash)?;
            // Its place among the seals is in the file, and nothing may follow.
            memory.runs.remove(run);
        }
        if **run == *MAINTENANCE {
            for record in records {
                runs::add_leaf(connection, run, record.hash())?;
            }
        }
        Ok(Ok(head))
    }

    pub(crate) fn lease(
        &mut self,
        run: &str,
        now: i64,
        give: impl FnOnce(&mut IndexEntry) -> mynah_data::Result<Lease>,
    ) -> Answer<Lease> {
        let connection = self.connection;
        let Some(known) = attempt!(self.known.find(connection, &mut self.pending, run)?) else {
            return Ok(Err(entry::not_found(run)));
        };
        let before = known.entry.clone();
        let lease = attempt!(give(&mut known.entry));
        runs::update(connection, &before, known)?;
        let holder = known.entry.holder.clone();
        self.known.keep_beat(connection, before.holder, holder, now)?;
        Ok(Ok(lease))
    }

    pub(crate) fn beat(&mut self, process: &str, term: Duration, now: i64) -> Answer<()> {
        let before = self.known.beat(self.connection, process)?;
        let until = entry::beat(before, term, now);
        self.known.write_beat(self.connection, process, until, now)?;
        Ok(Ok(()))
    }

    pub(crate) fn claim(
        &mut self,
        owner: &str,
        term: Duration,
        queues: &[String],
        limit: usize,
        now: i64,
    ) -> Answer<Vec<Lease>> {
        // Limits may rule out some of those that come first.
        let mut looked_at = limit.saturating_mul(4).max(64);
        let chosen = loop {
            let ready = attempt!(inbox::ready(self.connection, queues, owner, now, looked_at)?);
            let is_all = ready.len() < looked_at;
            let chosen = self.choose(ready, owner, limit, now)?;
            if is_all || chosen.len() == limit {
                break chosen;
            }
            looked_at = looked_at.saturating_mul(8);
        };
        let mut leases = Vec::with_capacity(chosen.len());
        for run in chosen {
            let lease = self.lease(&run, now, |entry| entry.claim(owner, term, now))?;
            leases.push(attempt!(lease));
        }
        Ok(Ok(leases))
    }

    /// The first runs that the limits of concurrency keys admit.
    fn choose(
        &self,
        ready: Vec<(String, Queue)>,
        owner: &str,
        limit: usize,
        now: i64,
    ) -> rusqlite::Result<Vec<String>> {
        let (mut held, mut chosen) = (HashMap::<String, i64>::new(), Vec::new());
        for (run, queue) in ready {
            if chosen.len() == limit {
                break;
            }
            if let Some(key) = queue.key {
                let held = match held.entry(key) {
                    Occupied(held) => held.into_mut(),
                    Vacant(new) => {
                        let count = inbox::held(self.connection, new.key(), owner, now)?;
                        new.insert(count)
                    }
                };
                if *held >= i64::from(queue.limit) {
                    continue;
                }
                *held += 1;
            }
            chosen.push(run);
        }
        Ok(chosen)
    }

    pub(crate) fn deliver(&mut self, run: &str, message: &InboxMessage) -> Answer<bool> {
        let connection = self.connection;
        let Some(known) = attempt!(self.known.find(connection, &mut self.pending, run)?) else {
            let is_pruned = runs::is_pruned(connection, run)?;
            return Ok(Err(if is_pruned { entry::pruned(run) } else { entry::not_found(run) }));
        };
        if known.entry.has_ended() {
            let is_known = inbox::knows(connection, known.key, &message.id)?;
            return Ok(if is_known { Ok(false) } else { Err(entry::ended(run)) });
        }
        let is_new = inbox::insert(connection, known.key, message)?;
        if is_new {
            runs::wake(connection, known, known.entry.wakes_at(true))?;
        }
        Ok(Ok(is_new))
    }

    pub(crate) fn keep_part(&mut self, lease: &Lease, part: &AnswerPart) -> Answer<()> {
        let connection = self.connection;
        let found = attempt!(self.known.find(connection, &mut self.pending, &lease.run_id)?);
        if let Some(known) = found.filter(|known| known.entry.admits_part(lease, part.seq)) {
            known.may_have_parts = true;
            parts::keep(connection, known.key, part)?;
        }
        Ok(Ok(()))
    }

    pub(crate) fn release(&mut self, lease: &Lease) -> Answer<()> {
        let connection = self.connection;
        if let Some(known) =
            attempt!(self.known.find(connection, &mut self.pending, &lease.run_id)?)
        {
            let before = known.entry.clone();
            known.entry.release(lease);
            runs::update(connection, &before, known)?;
        }
        Ok(Ok(()))
    }

    /// How this transaction will be synced, in SQLite's words.
    #[cfg(test)]
    pub(crate) fn synchronous(&self) -> rusqlite::Result<i64> {
        self.connection.query_row("PRAGMA synchronous", [], |row| row.get(0))
    }

    pub(crate) fn commit(mut self) -> rusqlite::Result<()> {
        self.pending.write(self.connection)?;
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        self.committed = true;
        Ok(())
    }
}

/// A cache of the tables: most appends are to a run that was appended to before, and need no
/// lookup.
#[derive(Default)]
struct Memory {
    /// In boxes, as a table of them has much room to spare.
    runs: HashMap<RunId, Box<Known>>,
    /// The greatest key of a record, including pending ones. None before the first lookup; then
    /// nothing is pending.
    last: Option<i64>,
    /// Until when the last beats of processes count.
    beats: HashMap<String, Option<i64>>,
}

impl Memory {
    fn find(
        &mut self,
        connection: &Connection,
        pending: &mut Pending,
        run: &str,
    ) -> Answer<Option<&mut Known>> {
        let Some(owner) = self.runs.get(run).map(|known| known.entry.holder.as_ref()) else {
            pending.write(connection)?;
            return Ok(Ok(attempt!(runs::find(connection, run)?).map(|found| self.know(found))));
        };
        // The owner may have beaten since.
        let until = match owner.map(|holder| entry::process(&holder.owner).to_owned()) {
            Some(process) => self.beat(connection, &process)?.unwrap_or(0),
            None => 0,
        };
        let mut known = self.runs.get_mut(run).map(Box::as_mut);
        if let Some(holder) = known.as_mut().and_then(|known| known.entry.holder.as_mut()) {
            holder.until = until;
        }
        Ok(Ok(known))
    }

    /// Until when the last beat of a process counts.
    fn beat(&mut self, connection: &Connection, process: &str) -> rusqlite::Result<Option<i64>> {
        if let Some(until) = self.beats.get(process) {
            return Ok(*until);
        }
        let until = inbox::beat(connection, process)?;
        self.beats.insert(process.to_owned(), until);
        Ok(until)
    }

    fn write_beat(
        &mut self,
        connection: &Connection,
        process: &str,
        until: i64,
        now: i64,
    ) -> rusqlite::Result<()> {
        inbox::keep_beat(connection, process, until, now)?;
        if self.beats.len() >= KNOWN {
            self.beats.clear();
        }
        self.beats.insert(process.to_owned(), Some(until));
        Ok(())
    }

    /// Writes the beat that came with a lease or an append, if there was one.
    fn keep_beat(
        &mut self,
        connection: &Connection,
        before: Option<Holder>,
        holder: Option<Holder>,
        now: i64,
    ) -> rusqlite::Result<()> {
        match holder.filter(|holder| before.as_ref() != Some(holder)) {
            Some(Holder { owner, until }) => {
                self.write_beat(connection, entry::process(&owner), until, now)
            }
            None => Ok(()),
        }
    }

    fn know(&mut self, known: Known) -> &mut Known {
        if self.runs.len() >= KNOWN {
            self.runs.clear();
        }
        let run = known.entry.summary.run_id.clone();
        self.runs.entry(run).insert_entry(Box::new(known)).into_mut()
    }

    fn last_key(&self, connection: &Connection) -> rusqlite::Result<i64> {
        match self.last {
            Some(last) => Ok(last),
            None => records::last_key(connection),
        }
    }
}

/// What a tombstone removes, by its rows.
enum RemovedRows {
    Bodies(Vec<(i64, Record)>),
    Run { key: i64, run: RunId, rows: Vec<i64> },
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        if self.committed {
            return;
        }
        *self.known = Memory::default();
        // What a full disk ends is rolled back already.
        if !self.connection.is_autocommit() {
            // Nothing can be done about it here. The next transaction reports it.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use mynah_data::{ErrorKind, LogReason};
    use mynah_log::{Chain, Fact, Log as _, conformance::Sample};
    use rusqlite::ErrorCode;
    use tempfile::TempDir;

    use super::*;
    use crate::{SqliteLog, file::File};

    fn open() -> (TempDir, PathBuf, Connection) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log.db");
        (folder, path.clone(), connect(&path))
    }

    fn connect(path: &Path) -> Connection {
        File::new(path).expect("a path").open_to_write(Durability::Relaxed).expect("a log")
    }

    fn append(work: &mut Work<'_>, batch: Append) -> mynah_data::Result<Head> {
        work.append(&Checked::new(batch, || 0).expect("a batch")).expect("room")
    }

    fn tombstone(chain: &mut Chain, run: &str, removed: Removed) -> Append {
        let (by, reason) = ("me".to_owned(), "a test".to_owned());
        let tombstone = Tombstone { run_id: run.into(), removed, by, reason };
        let expected = chain.head();
        let record = chain.append(9, [7; 16], &Fact::Removed(tombstone)).expect("a fact");
        Append::new(MAINTENANCE, expected, vec![record])
    }

    #[test]
    fn what_a_full_disk_ended_is_not_known_to_be_there() {
        let (_folder, _, connection) = open();
        let pages = |pages: u32, connection: &Connection| {
            connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))
        };
        pages(1, &connection).expect("no more than there are");
        let mut store = Store::new(connection, Durability::Relaxed);
        let small = || Sample::new("small", 0).batch();
        let mut work = store.begin().expect("a transaction");
        append(&mut work, small()).expect("a new run");
        let full = (1..10_000).find_map(|run| {
            let more =
                Checked::new(Sample::new(format!("run-{run}"), 0).batch(), || 0).expect("a batch");
            work.append(&more).err()
        });
        assert_eq!(full.expect("no room").sqlite_error_code(), Some(ErrorCode::DiskFull));
        assert!(work.connection.is_autocommit(), "SQLite rolled it back");
        drop(work);
        pages(u32::MAX, &store.connection).expect("room");
        let mut work = store.begin().expect("a transaction");
        append(&mut work, small()).expect("a new run, as nothing was kept of it");
        work.commit().expect("a commit");
    }

    #[tokio::test]
    async fn whatever_a_transaction_gathers_is_in_the_tables_afterwards() {
        let (_folder, path, connection) = open();
        let mut store = Store::new(connection, Durability::Relaxed);
        let mut runs: Vec<Sample> = (0..40).map(|n| Sample::new(format!("run-{n}"), n)).collect();
        let mut kept: Vec<Vec<Record>> = vec![Vec::new(); runs.len()];
        // As many appends as there are runs, fewer and more than one statement writes, and runs that come twice.
        for counts in [vec![1; 40], vec![1; 17], vec![1; 3], vec![2; 16], vec![3; 33]] {
            let mut work = store.begin().expect("a transaction");
            for (n, count) in counts.into_iter().enumerate() {
                for _ in 0..count {
                    let batch = runs[n].batch();
                    kept[n].extend(batch.records.iter().cloned());
                    append(&mut work, batch).expect("what follows");
                    runs[n] = runs[n].clone().tool_turn();
                }
            }
            work.commit().expect("a commit");
        }
        drop(store);
        let log = SqliteLog::open(&path).expect("a log");
        log.check().await.expect("nothing strange");
        for (run, kept) in runs.iter().zip(&kept) {
            let found = log.read(run.run_id(), 1, usize::MAX).await.expect("records");
            assert_eq!(found, *kept, "{}", run.run_id());
            mynah_log::verify_run(&log, run.run_id()).await.expect("a sound run");
        }
    }

    #[test]
    fn who_looks_something_up_sees_what_the_same_transaction_did_before() {
        let (_folder, _, connection) = open();
        let mut store = Store::new(connection, Durability::Relaxed);
        let mut work = store.begin().expect("a transaction");
        let mut ended = Sample::new("ended", 0).sealed();
        let mut open = Sample::new("open", 0);
        append(&mut work, ended.batch()).expect("a new run");
        append(&mut work, open.batch()).expect("a new run");
        let again = append(&mut work, ended.user("more").batch()).expect_err("a sealed run");
        assert_eq!(again.kind(), ErrorKind::Log(LogReason::Sealed));
        let second = std::time::Duration::from_secs(1);
        let leased =
            work.lease("ended", 0, |entry| entry.lease("me", second, 0)).expect("an answer");
        assert_eq!(leased.expect_err("it ended").kind(), ErrorKind::Log(LogReason::Sealed));
        work.known.runs.clear();
        let mut open = open.tool_turn();
        let Head { seq, hash } = open.head();
        assert_eq!(append(&mut work, open.batch()).expect("what follows"), open.head());
        let run = Removed::Run { records: seq, hash, sealed: false };
        let gone = tombstone(&mut Chain::new(MAINTENANCE), "open", run);
        append(&mut work, gone).expect("a run of this very transaction");
        let gone = append(&mut work, Sample::new("open", 0).batch()).expect_err("a pruned run");
        assert_eq!(gone.kind(), ErrorKind::Log(LogReason::Pruned));
        work.commit().expect("a commit");
        let count = |table| {
            let count = format!("SELECT count(*) FROM {table}");
            store.connection.query_row(&count, [], |row| row.get::<_, i64>(0)).expect("a count")
        };
        assert_eq!(["records", "heads", "runs", "pruned"].map(count), [4, 2, 2, 1]);
    }

    #[test]
    fn what_is_to_be_written_is_taken_away_like_what_was() {
        let (_folder, _, connection) = open();
        let mut store = Store::new(connection, Durability::Relaxed);
        let mut work = store.begin().expect("a transaction");
        let mut runs = ["a", "b"].map(|run| Sample::new(run, 0));
        for run in &mut runs {
            append(&mut work, run.batch()).expect("a new run");
        }
        let mut chain = Chain::new(MAINTENANCE);
        for run in &mut runs {
            // The second time, the run of tombstones is known, and need not be looked up.
            *run = run.clone().user("secret");
            let batch = run.batch();
            let last = batch.records[0].clone();
            append(&mut work, batch).expect("what follows");
            let bodies = Removed::Bodies(vec![Stripped::new(last.seq(), last.hash())]);
            let head = run.head();
            let whole = Removed::Run { records: head.seq, hash: head.hash, sealed: false };
            let removed = if run.run_id() == "a" { bodies } else { whole };
            append(&mut work, tombstone(&mut chain, run.run_id(), removed)).expect("a tombstone");
        }
        let mut next = Sample::new("c", 0).tool_turn();
        append(&mut work, next.batch()).expect("a run behind what is gone");
        work.commit().expect("a commit");
        let rows = "SELECT group_concat(key || iif(payload IS NULL, '-', ''), ' ') FROM records";
        let rows = store.connection.query_row(rows, [], |row| row.get::<_, String>(0));
        assert_eq!(rows.expect("rows"), "1 3- 4 6 7 8 9 10 11 12");
    }

    #[test]
    fn a_transaction_that_is_not_committed_leaves_nothing_known() {
        let (_folder, _, connection) = open();
        let mut store = Store::new(connection, Durability::Relaxed);
        let mut run = Sample::new("run", 0);
        let first = run.batch();
        let mut work = store.begin().expect("a transaction");
        append(&mut work, first.clone()).expect("a new run");
        drop(work);
        let mut work = store.begin().expect("a transaction");
        append(&mut work, first).expect("a new run, again");
        append(&mut work, run.tool_turn().batch()).expect("what follows");
        work.commit().expect("a commit");
        let keys = "SELECT group_concat(key, ' ') FROM records";
        let keys = store.connection.query_row(keys, [], |row| row.get::<_, String>(0));
        assert_eq!(keys.expect("keys"), "1 2 3 4 5 6");
    }

    #[test]
    fn a_row_behind_which_there_is_no_room_is_damage() {
        let (_folder, path, connection) = open();
        let mut store = Store::new(connection, Durability::Relaxed);
        let last =
            "INSERT INTO records (key, run, envelope) VALUES (9223372036854775802, 1, x'00')";
        connect(&path).execute(last, []).expect("a row");
        let mut work = store.begin().expect("a transaction");
        let mut run = Sample::new("run", 0).tool_turn();
        let full = append(&mut work, run.batch()).expect_err("six records, and room for five");
        let what = "row 9223372036854775802 of table records leaves no room for another";
        assert_eq!(full.to_string(), format!("log error: corrupt: {what}"));
        append(&mut work, Sample::new("run", 0).batch()).expect("one record");
    }
}
