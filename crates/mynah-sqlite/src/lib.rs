//! A log in a SQLite file, for runs on one machine.
//!
//! ```
//! # mod mynah { pub mod log { pub use {mynah_log::*, mynah_sqlite::SqliteLog}; } }
//! use mynah::log::{Log, RunFilter, SqliteLog};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah_data::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("mynah.db");
//! let log = SqliteLog::open(&path)?;
//! assert_eq!(log.runs(RunFilter::new()).await?.runs, []);
//! # Ok(()) }
//! ```

mod ahead;
mod commits;
mod file;
mod heads;
mod inbox;
mod job;
mod keys;
mod parts;
mod pending;
mod place;
mod readers;
mod records;
mod row;
mod runs;
mod store;
mod varint;
mod watcher;
mod wipe;
mod writer;

use std::{fmt, path::Path, sync::Arc, time::Duration};

use mynah_data::{Error, LogReason, Result, RunId};
use mynah_log::{
    AnswerPart, Append, Changes, Durability, Head, InboxMessage, Lease, Log, LogFuture, Record,
    RunFilter, RunPage, RunSummary, SealedRun,
    backend::{self, Checked, Clock, IndexEntry, Waiters},
};

use crate::{
    file::File, job::Terms, readers::Readers, row::attempt, store::Work, watcher::Watcher,
    writer::Writer,
};

/// How many bytes a caller appends itself at most.
const BRIEF: usize = 16 << 10;

/// What SQLite gives: its own failure outside, which undoes what was done so far, and a log's
/// refusal or result inside.
type Answer<T> = rusqlite::Result<Result<T>>;

/// A log in a SQLite file.
///
/// Several processes may use the file at once. In each of them one thread writes for all runs: jobs
/// that arrive during a commit go into the next one, so that many runs share the cost of a durable
/// commit. Only a small append that need not be synced is written by its caller, if no other run writes at the time.
/// Readers have their own connections, and do not wait for the writer.
///
/// A durable commit waits for `fsync`. SQLite chooses that when it is compiled: a program that is built with
/// `LIBSQLITE3_FLAGS=-DHAVE_FDATASYNC=1` in the environment waits for `fdatasync` on systems that have it, which is as safe and takes less
/// time. Builds in Mynah's own workspace set it in `.cargo/config.toml`; a program of yours can do the same.
///
/// A clone is the same log; the last of them closes the file.
///
/// ```
/// # mod mynah { pub mod log { pub use {mynah_log::*, mynah_sqlite::SqliteLog}; } }
/// use mynah::log::{Log, RunFilter, SqliteLog};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah_data::Result<()> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("mynah.db");
/// let log = SqliteLog::open(&path)?;
/// assert_eq!(log.runs(RunFilter::new()).await?.runs, []);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SqliteLog(Arc<Inner>, Clock);

struct Inner {
    // In the order in which they are closed: the last to close the file tidies it up.
    watcher: Watcher,
    readers: Readers,
    writer: Option<Writer>,
    waiters: Arc<Waiters>,
    file: File,
}

impl SqliteLog {
    /// The version of the tables that this library reads and writes.
    pub const SCHEMA: u32 = file::SCHEMA;

    /// Opens a log, and makes it if there is none.
    ///
    /// # Errors
    /// A file that cannot be used: its folder is missing, it is not a log, or another version of
    /// Mynah made it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, Durability::Full)
    }

    /// Opens a log whose appends are this safe, where they do not say themselves.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: impl AsRef<Path>, durability: Durability) -> Result<Self> {
        let file = File::new(path.as_ref())?;
        let connection = file.open_to_write(durability)?;
        let waiters = Arc::new(Waiters::default());
        let writer = Writer::start(connection, durability, file.clone(), Arc::clone(&waiters))?;
        Ok(Self::with(file, Some(writer), waiters))
    }

    /// Opens an existing log read-only. Other processes may write it meanwhile. A log in a folder
    /// that this process cannot write, or on a full disk, is read as it was when it was closed.
    ///
    /// # Errors
    /// A file that cannot be used: missing, not a log, of another version, or not closed in a
    /// folder that cannot be written.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self> {
        let file = File::new(path.as_ref())?;
        file.open_to_read()?;
        Ok(Self::with(file, None, Arc::new(Waiters::default())))
    }

    fn with(file: File, writer: Option<Writer>, waiters: Arc<Waiters>) -> Self {
        let watcher = Watcher::new(file.clone(), Arc::clone(&waiters));
        let readers = Readers::new(file.clone());
        Self(Arc::new(Inner { watcher, readers, writer, waiters, file }), Clock::default())
    }

    /// The same log, whose leases are counted by this clock, in nanoseconds since 1970. It is for tests.
    pub fn with_clock(mut self, clock: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        self.1 = Clock::new(clock);
        self
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        self.0.file.path()
    }

    /// How many commits this log made since it was opened: fewer than there were appends where runs
    /// shared them.
    pub fn commits(&self) -> u64 {
        self.0.writer.as_ref().map_or(0, Writer::commits)
    }

    /// Waits for abandoned writes of a run, so that the run is in its final state.
    async fn settled(&self, run: &str) {
        if let Some(writer) = &self.0.writer {
            writer.settled(run).await;
        }
    }

    async fn summary(&self, run: &RunId) -> Result<Option<RunSummary>> {
        let run = run.clone();
        self.0.readers.perform(move |connection| runs::summary(connection, &run)).await
    }

    fn writer(&self) -> Result<&Writer> {
        self.0.writer.as_ref().ok_or_else(|| {
            let path = self.path().display();
            Error::log(LogReason::ReadOnly).with_message(format!(
                "log error: read_only: {path} was opened to read alone; open it to write"
            ))
        })
    }

    /// Leases a run as its entry in the index permits it now.
    fn leased(
        &self,
        run: &str,
        give: impl Fn(&mut IndexEntry, i64) -> Result<Lease> + Send + 'static,
    ) -> LogFuture<'_, Lease> {
        let run = RunId::from(run);
        Box::pin(async move {
            let (of, now) = (run.clone(), self.1.now());
            let job = move |work: &mut Work<'_>| work.lease(&of, now, |entry| give(entry, now));
            self.writer()?.perform(run, None, job).await
        })
    }
}

impl fmt::Debug for SqliteLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteLog").field("path", &self.path()).finish_non_exhaustive()
    }
}

impl Log for SqliteLog {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        // Many may wait at once: what each holds is allocated by itself, and not in its future as often as it is moved there.
        let checked = Checked::new(batch, || self.1.now()).map(Box::new);
        Box::pin(async move {
            let (writer, checked) = (self.writer()?, checked?);
            let Append { run_id, durability, deferrable, records, consumed, .. } = &checked.batch;
            let bytes: usize = records.iter().map(Record::size).sum();
            // Tombstones, seals and consumed messages have more rows removed.
            let adds_only =
                checked.tombstones.is_empty() && !checked.sealing && consumed.is_empty();
            let is_brief = adds_only && bytes <= BRIEF;
            let terms = Terms { durability: *durability, is_deferrable: *deferrable, is_brief };
            writer.perform(run_id.clone(), terms, move |work| work.append(&checked)).await
        })
    }

    fn read(&self, run: &str, from: u64, limit: usize) -> LogFuture<'_, Vec<Record>> {
        let run = RunId::from(run);
        Box::pin(
            self.0.readers.perform(move |connection| records::read(connection, &run, from, limit)),
        )
    }

    fn head(&self, run: &str) -> LogFuture<'_, Option<Head>> {
        let run = RunId::from(run);
        Box::pin(async move {
            self.settled(&run).await;
            self.0.readers.perform(move |connection| runs::head(connection, &run)).await
        })
    }

    fn wait(&self, run: &str, beyond: u64) -> LogFuture<'_, ()> {
        let run = RunId::from(run);
        Box::pin(async move {
            let mut waiting = self.0.waiters.subscribe(&run);
            self.0.watcher.watch()?;
            loop {
                match self.summary(&run).await? {
                    Some(summary) if summary.records > beyond => return Ok(()),
                    Some(summary) if summary.seal.is_some() => return Err(backend::sealed(&run)),
                    _ => waiting.notified().await,
                }
            }
        })
    }

    fn run(&self, run: &str) -> LogFuture<'_, Option<RunSummary>> {
        let run = RunId::from(run);
        Box::pin(async move {
            self.settled(&run).await;
            self.summary(&run).await
        })
    }

    fn runs(&self, filter: RunFilter) -> LogFuture<'_, RunPage> {
        Box::pin(self.0.readers.perform(move |connection| runs::page(connection, &filter)))
    }

    fn seals(&self, from: u64, limit: usize) -> LogFuture<'_, Vec<SealedRun>> {
        Box::pin(self.0.readers.perform(move |connection| runs::seals(connection, from, limit)))
    }

    fn check(&self) -> LogFuture<'_, ()> {
        let file = self.0.file.clone();
        Box::pin(self.0.readers.perform(move |connection| {
            attempt!(file.check(connection)?);
            attempt!(keys::check(connection)?);
            attempt!(inbox::check(connection)?);
            attempt!(parts::check(connection)?);
            attempt!(runs::check_leaves(connection)?);
            records::check_pruned(connection)
        }))
    }

    fn check_writable(&self) -> LogFuture<'_, ()> {
        Box::pin(async move { self.writer().map(drop) })
    }

    fn wipe(&self) -> LogFuture<'_, ()> {
        Box::pin(async move {
            self.writer()?;
            wipe::patiently(self.0.file.clone()).await
        })
    }

    fn lease(&self, run: &str, owner: &str, term: Duration) -> LogFuture<'_, Lease> {
        let owner = owner.to_owned();
        self.leased(run, move |entry, now| entry.lease(&owner, term, now))
    }

    fn take(
        &self,
        run: &str,
        owner: &str,
        term: Duration,
        seen: Option<i64>,
    ) -> LogFuture<'_, Lease> {
        let owner = owner.to_owned();
        self.leased(run, move |entry, now| entry.take(&owner, term, now, seen))
    }

    fn beat(&self, owner: &str, term: Duration) -> LogFuture<'_, ()> {
        let process = backend::process(owner).to_owned();
        Box::pin(async move {
            let now = self.1.now();
            let job = move |work: &mut Work<'_>| work.beat(&process, term, now);
            self.writer()?.perform(RunId::from(""), Some(Durability::Relaxed), job).await
        })
    }

    fn release(&self, lease: &Lease) {
        if let Some(writer) = &self.0.writer {
            writer.jobs().release(lease.clone());
        }
    }

    fn claim(
        &self,
        owner: &str,
        term: Duration,
        queues: &[&str],
        limit: usize,
    ) -> LogFuture<'_, Vec<Lease>> {
        let owner = owner.to_owned();
        let queues: Vec<String> = queues.iter().map(|&queue| queue.to_owned()).collect();
        Box::pin(async move {
            let now = self.1.now();
            let job = move |work: &mut Work<'_>| work.claim(&owner, term, &queues, limit, now);
            let jobs = self.writer()?.jobs();
            let give_back = move |leases: Vec<Lease>| {
                leases.into_iter().for_each(|lease| jobs.release(lease));
            };
            self.writer()?.perform_or(RunId::from(""), None, job, give_back).await
        })
    }

    fn deliver(&self, run: &str, id: &str, payload: Vec<u8>) -> LogFuture<'_, bool> {
        let (run, id) = (RunId::from(run), id.to_owned());
        Box::pin(async move {
            backend::check_message_id(&id)?;
            let message = InboxMessage::new(id, self.1.now(), payload);
            let to = run.clone();
            let job = move |work: &mut Work<'_>| work.deliver(&to, &message);
            self.writer()?.perform(run, None, job).await
        })
    }

    fn inbox(&self, run: &str, limit: usize) -> LogFuture<'_, Vec<InboxMessage>> {
        let run = RunId::from(run);
        Box::pin(async move {
            self.settled(&run).await;
            self.0.readers.perform(move |connection| inbox::list(connection, &run, limit)).await
        })
    }

    fn was_delivered(&self, run: &str, id: &str) -> LogFuture<'_, bool> {
        let (run, id) = (RunId::from(run), id.to_owned());
        Box::pin(async move {
            self.settled(&run).await;
            let read = move |connection: &_| {
                let known = attempt!(runs::find(connection, &run)?);
                Ok(Ok(match known {
                    Some(known) => inbox::knows(connection, known.key, &id)?,
                    None => false,
                }))
            };
            self.0.readers.perform(read).await
        })
    }

    fn keep_part(&self, lease: &Lease, part: AnswerPart) -> LogFuture<'_, ()> {
        let (run, lease) = (lease.run_id.clone(), lease.clone());
        Box::pin(async move {
            let job = move |work: &mut Work<'_>| work.keep_part(&lease, &part);
            self.writer()?.perform(run, Some(Durability::Relaxed), job).await
        })
    }

    fn parts(&self, run: &str, seq: u64, first: u64) -> LogFuture<'_, Vec<AnswerPart>> {
        let run = RunId::from(run);
        Box::pin(async move {
            let mut waiting = self.0.waiters.subscribe(&run);
            self.0.watcher.watch()?;
            loop {
                let name = run.clone();
                let read = move |connection: &_| parts::read(connection, &name, seq, first);
                match self.0.readers.perform(read).await? {
                    Some(parts) => return Ok(parts),
                    None => waiting.notified().await,
                }
            }
        })
    }

    fn changes(&self, cursor: Option<&str>, limit: usize) -> LogFuture<'_, Changes> {
        let cursor = cursor.map(str::to_owned);
        Box::pin(
            self.0
                .readers
                .perform(move |connection| inbox::changes(connection, cursor.as_deref(), limit)),
        )
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}
