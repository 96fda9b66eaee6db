//! The open file, and how a group of jobs is committed in it.

use std::{
    iter,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use mynah_data::{Error, Result};
use mynah_log::{Durability, backend::Waiters};
use rusqlite::{Connection, ErrorCode, hooks::Wal};

use crate::{
    ahead::Ahead,
    file::{AHEAD, File, PATIENCE, unusable},
    job::Job,
    place::Identity,
    store::Store,
};

/// Jobs that share a commit.
pub(crate) type Group = Vec<Box<dyn Job>>;

pub(crate) struct Committer {
    /// Jobs that are part of the next commit, because the last one failed.
    owed: Group,
    // Closed before SQLite removes it.
    ahead: Ahead,
    store: Store,
    file: File,
    /// The file as it was when it was opened.
    opened: Identity,
    waiters: Arc<Waiters>,
    commits: Arc<AtomicU64>,
    /// How many pages the write-ahead log had after the last commit.
    pages: Arc<AtomicU32>,
    /// How long the last commit took that did not sync; none before the first.
    took: Option<Duration>,
}

impl Committer {
    pub(crate) fn new(
        mut connection: Connection,
        durability: Durability,
        file: File,
        waiters: Arc<Waiters>,
        commits: Arc<AtomicU64>,
    ) -> Result<Self> {
        let opened = file.identity()?;
        // This replaces the checkpoints that SQLite makes by itself, as a part of commits, which then take a hundred times as long.
        let pages = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&pages);
        let hook = move |_: &mut Wal, pages: i32| {
            seen.store(pages.unsigned_abs(), Ordering::Relaxed);
            Ok(())
        };
        connection.wal_hook(Some(hook)).map_err(|error| file.failure(error))?;
        let mut store = Store::new(connection, durability);
        // Data that could not be erased before. If it still cannot be, the next commit retries.
        let _ = store.wipe();
        let (owed, ahead, took) = (Vec::new(), file.ahead(), None);
        Ok(Self { owed, ahead, store, file, opened, waiters, commits, pages, took })
    }

    /// Whether the last commit that did not sync took at most this long, and one of a job on this run has nothing else to do.
    pub(crate) fn is_quick(&self, run: &str, limit: Duration) -> bool {
        let owes = !self.owed.is_empty() || self.store.is_unwiped() || self.is_full();
        !owes && self.store.is_at_hand(run) && self.took.is_some_and(|took| took <= limit)
    }

    /// Whether the write-ahead log should be moved into the file. It stays so until the next commit, which begins that log anew and
    /// waits for the disk, so that one is the thread's too.
    fn is_full(&self) -> bool {
        self.pages.load(Ordering::Relaxed) >= AHEAD
    }

    /// Commits a job, unless another process has the file locked: then the job is returned.
    pub(crate) fn commit_at_once(&mut self, job: Box<dyn Job>) -> Option<Box<dyn Job>> {
        let mut group = vec![job];
        self.store.wait(Duration::ZERO);
        let committed = self.commit(&mut group, iter::empty());
        self.store.wait(PATIENCE);
        if let Err(Failed::ToBegin(error)) = &committed
            && error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
        {
            return group.pop();
        }
        self.conclude(group, committed);
        None
    }

    /// Commits a group, and jobs that come meanwhile. Returns how many there were if they were of several runs; otherwise 1. Then it
    /// does what else is due, which nothing waits for.
    pub(crate) fn commit_with(
        &mut self,
        mut group: Group,
        coming: impl Iterator<Item = Box<dyn Job>>,
    ) -> usize {
        group.splice(..0, self.owed.drain(..));
        let committed = self.commit(&mut group, coming);
        let is_shared = group.iter().any(|job| job.run() != group[0].run());
        let count = if is_shared { group.len() } else { 1 };
        self.conclude(group, committed);
        if self.is_full() {
            // If readers are in the way, the next commit retries.
            let _ = self.store.checkpoint();
        }
        count
    }

    /// Reports a commit. Where one of several jobs made it fail, each is done alone, so that the others do not suffer for it.
    fn conclude(&mut self, group: Group, committed: Result<(), Failed>) {
        match committed {
            Err(Failed::AtWork(_) | Failed::Panicked) if group.len() > 1 => {
                for job in group {
                    let mut alone = vec![job];
                    let committed = self.commit(&mut alone, iter::empty());
                    self.finish(alone, committed);
                }
            }
            committed => self.finish(group, committed),
        }
    }

    /// Does the jobs of a group, and those that arrive meanwhile, in one commit. A panic rolls back
    /// and clears the cache, as any failure does: the log continues for others.
    #[expect(
        clippy::disallowed_methods,
        reason = "says who does the next commit, and nothing else"
    )]
    fn commit(
        &mut self,
        group: &mut Group,
        coming: impl Iterator<Item = Box<dyn Job>>,
    ) -> Result<(), Failed> {
        let began = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| self.try_commit(group, coming)));
        if safest(group) == Durability::Relaxed {
            self.took = Some(began.elapsed());
        }
        done.unwrap_or(Err(Failed::Panicked))
    }

    fn try_commit(
        &mut self,
        group: &mut Group,
        coming: impl Iterator<Item = Box<dyn Job>>,
    ) -> Result<(), Failed> {
        self.store.make(safest(group)).map_err(Failed::ToBegin)?;
        let mut work = self.store.begin().map_err(Failed::ToBegin)?;
        let done = group.iter_mut().try_for_each(|job| job.perform(&mut work));
        done.map_err(Failed::AtWork)?;
        for job in coming {
            // It is registered before it runs, so that its outcome is always reported.
            group.push(job);
            let done = group.last_mut().map_or(Ok(()), |job| job.perform(&mut work));
            done.map_err(Failed::AtWork)?;
        }
        self.file.is_still(self.opened).map_err(Failed::Elsewhere)?;
        if safest(group) > Durability::Relaxed {
            // What keeps the file from growing, SQLite will find out if it matters.
            let _ = self.ahead.enlarge();
        }
        work.commit().map_err(Failed::AtWork)?;
        self.commits.fetch_add(1, Ordering::Relaxed);
        // It is committed, regardless of this: the next commit retries.
        let _ = self.store.wipe();
        Ok(())
    }

    fn finish(&mut self, mut group: Group, committed: Result<(), Failed>) {
        let committed = committed.map_err(|failed| match failed {
            Failed::ToBegin(error) | Failed::AtWork(error) => {
                // What SQLite makes of a file that is gone says less than that it is.
                self.file.is_still(self.opened).err().unwrap_or_else(|| self.file.failure(error))
            }
            Failed::Elsewhere(error) => error,
            // The same would happen again.
            Failed::Panicked => unusable(format!(
                "{}: a write panicked, and nothing of this was kept; verify the log",
                self.file.path().display()
            )),
        });
        if committed.is_err() {
            self.owed.extend(group.extract_if(.., |job| job.postpone()));
        }
        for job in &mut group {
            job.finish(committed.clone());
        }
        if !self.waiters.is_empty() {
            group.iter().for_each(|job| self.waiters.notify(job.run()));
        }
    }
}

/// How safe a commit of these jobs has to be.
pub(crate) fn safest(group: &[Box<dyn Job>]) -> Durability {
    group.iter().map(|job| job.durability()).max().unwrap_or_default()
}

/// When a commit failed.
enum Failed {
    /// Before anything was done.
    ToBegin(rusqlite::Error),
    /// While it was done, or when it was to be made durable.
    AtWork(rusqlite::Error),
    /// Because the path leads to another file.
    Elsewhere(Error),
    /// At a point where a failure was not expected.
    Panicked,
}
