//! The one thread that writes, and commits for all runs at once.

use std::{
    collections::HashMap,
    iter,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use mynah_data::{Error, Result, RunId};
use mynah_log::{Durability, Lease, backend::Waiters};
use rusqlite::Connection;
use tokio::sync::{
    Notify,
    oneshot::{self, error::TryRecvError},
};

use crate::{
    Answer,
    ahead::Ahead,
    file::{File, unavailable, unusable},
    place::Identity,
    store::{Store, Work},
};

/// How many jobs go into one commit at most.
const GROUP: usize = 256;

/// How long a commit waits for one more job if more runs shared the last one: little, against what
/// the commit itself takes.
const PATIENCE: Duration = Duration::from_micros(50);

/// How long jobs wait for one that cannot: about as long as a commit takes.
const COMPANY: Duration = Duration::from_micros(250);

/// What the caller of a job asks for.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// How safe its commit must be; none leaves it to the log.
    durability: Option<Durability>,
    /// Whether it may wait for other jobs.
    deferrable: bool,
}

impl Terms {
    pub(crate) fn new(durability: Option<Durability>, deferrable: bool) -> Self {
        Self { durability, deferrable }
    }
}

impl From<Option<Durability>> for Terms {
    fn from(durability: Option<Durability>) -> Self {
        Self::new(durability, false)
    }
}

pub(crate) struct Writer {
    /// None once it is closed.
    jobs: Option<Jobs>,
    thread: Option<JoinHandle<()>>,
    /// The default durability of a commit.
    durability: Durability,
    commits: Arc<AtomicU64>,
    left: Arc<AbandonedWrites>,
}

/// Where jobs are sent to the thread.
#[derive(Clone)]
pub(crate) struct Jobs {
    sender: mpsc::Sender<Box<dyn Job>>,
    left: Arc<AbandonedWrites>,
}

impl Jobs {
    /// Does some work on a run as a part of a later commit, without a waiting caller. It is retried
    /// with the next commit while the file cannot be written.
    pub(crate) fn leave(
        &self,
        run: RunId,
        job: impl FnMut(&mut Work<'_>) -> Answer<()> + Send + 'static,
    ) {
        // Without a receiver it is work that was left from the beginning.
        self.left.add(&run);
        let (reply, left) = (Some(oneshot::channel().0), Some(Arc::clone(&self.left)));
        let (durability, result, unclaimed) = (Durability::Relaxed, None, drop);
        let (deferrable, is_owed) = (false, true);
        let job =
            Task { run, durability, deferrable, job, result, reply, unclaimed, left, is_owed };
        // Where the thread has stopped, there is nothing to be done about it.
        let _ = self.sender.send(Box::new(job));
    }

    pub(crate) fn release(&self, lease: Lease) {
        self.leave(lease.run_id.clone(), move |work| work.release(&lease));
    }
}

/// Runs with abandoned writes, and how many.
#[derive(Default)]
struct AbandonedWrites {
    runs: Mutex<HashMap<RunId, usize>>,
    less: Notify,
}

impl AbandonedWrites {
    fn runs(&self) -> MutexGuard<'_, HashMap<RunId, usize>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, run: &RunId) {
        *self.runs().entry(run.clone()).or_default() += 1;
    }

    fn remove(&self, run: &str) {
        let mut runs = self.runs();
        if let Some(count) = runs.get_mut(run) {
            *count -= 1;
            if *count == 0 {
                runs.remove(run);
            }
        }
        drop(runs);
        self.less.notify_waiters();
    }
}

/// A caller that waits for a job. If it is dropped, the job is still done.
struct PendingJob<'w, T, U: Fn(T)> {
    run: RunId,
    answer: oneshot::Receiver<Result<T>>,
    left: &'w AbandonedWrites,
    unclaimed: U,
    is_over: bool,
}

impl<T, U: Fn(T)> Drop for PendingJob<'_, T, U> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        match self.answer.try_recv() {
            Err(TryRecvError::Empty) => {}
            result => {
                let _ = result.map(|result| result.map(&self.unclaimed));
                return;
            }
        }
        // From here on the worker sees that the caller is gone, unless the job was done just
        // before.
        self.left.add(&self.run);
        self.answer.close();
        if let Ok(result) = self.answer.try_recv() {
            self.left.remove(&self.run);
            let _ = result.map(&self.unclaimed);
        }
    }
}

impl Writer {
    pub(crate) fn start(
        connection: Connection,
        durability: Durability,
        file: File,
        waiters: Arc<Waiters>,
    ) -> Result<Self> {
        let (sender, jobs) = mpsc::channel();
        let commits = Arc::new(AtomicU64::new(0));
        let opened = file.identity()?;
        let mut store = Store::new(connection, durability);
        // Data that could not be erased before. If it still cannot be, the next commit retries.
        let _ = store.wipe();
        let (owed, commits_here) = (Vec::new(), Arc::clone(&commits));
        let ahead = file.ahead();
        let state =
            WriterThread { owed, ahead, store, file, opened, waiters, commits: commits_here };
        let thread = thread::Builder::new().name("mynah-log-writer".to_owned());
        let thread = thread.spawn(move || state.serve(&jobs));
        let thread = thread
            .map_err(|e| unavailable(format!("no thread to write with: {e}")).caused_by(e))?;
        let left = Arc::default();
        let (jobs, thread) = (Some(Jobs { sender, left: Arc::clone(&left) }), Some(thread));
        Ok(Self { jobs, thread, durability, commits, left })
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Does some work on a run as a part of the next commit. It is done again if the commit fails
    /// for another's sake.
    pub(crate) async fn perform<T: Send + 'static>(
        &self,
        run: RunId,
        terms: impl Into<Terms>,
        job: impl FnMut(&mut Work<'_>) -> Answer<T> + Send + 'static,
    ) -> Result<T> {
        self.perform_or(run, terms, job, drop).await
    }

    /// Does some work as `perform` does. If the caller is gone by then, `unclaimed` gets the result.
    pub(crate) async fn perform_or<T: Send + 'static>(
        &self,
        run: RunId,
        terms: impl Into<Terms>,
        job: impl FnMut(&mut Work<'_>) -> Answer<T> + Send + 'static,
        unclaimed: impl Fn(T) + Clone + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let Terms { durability, deferrable } = terms.into();
        let durability = durability.unwrap_or(self.durability);
        let (reply, left) = (Some(reply), Some(Arc::clone(&self.left)));
        let mut asking = PendingJob {
            run: run.clone(),
            answer,
            left: &self.left,
            unclaimed: unclaimed.clone(),
            is_over: false,
        };
        let (result, is_owed) = (None, false);
        let task =
            Task { run, durability, deferrable, job, result, reply, unclaimed, left, is_owed };
        let job = Box::new(task);
        self.jobs()?.sender.send(job).map_err(|_| stopped())?;
        let answer = (&mut asking.answer).await;
        asking.is_over = true;
        answer.map_err(|_| stopped())?
    }

    /// Where jobs go that no caller waits for.
    pub(crate) fn jobs(&self) -> Result<&Jobs> {
        self.jobs.as_ref().ok_or_else(stopped)
    }

    /// Waits until what was left to be written of a run is written, or has failed. It does not wait for another attempt.
    pub(crate) async fn settled(&self, run: &str) {
        loop {
            let less = self.left.less.notified();
            if !self.left.runs().contains_key(run) {
                return;
            }
            less.await;
        }
    }
}

fn stopped() -> Error {
    unusable("the thread that writes has stopped; open the log again")
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It panicked, or it is done: there is nothing more to do either way.
            let _ = thread.join();
        }
    }
}

/// Something to be done in a commit.
trait Job: Send {
    fn perform(&mut self, work: &mut Work<'_>) -> rusqlite::Result<()>;
    fn run(&self) -> &str;
    fn durability(&self) -> Durability;
    /// Whether it may wait for other jobs.
    fn is_deferrable(&self) -> bool;
    fn finish(&mut self, committed: Result<()>);
    /// The commit failed. Returns whether the next one retries it; that may not come soon, so readers no longer wait for it.
    fn postpone(&mut self) -> bool;
}

struct Task<J, T, U> {
    run: RunId,
    durability: Durability,
    deferrable: bool,
    job: J,
    result: Option<Result<T>>,
    reply: Option<oneshot::Sender<Result<T>>>,
    unclaimed: U,
    /// None once it counts no more.
    left: Option<Arc<AbandonedWrites>>,
    is_owed: bool,
}

impl<J, T, U> Task<J, T, U> {
    /// It is no longer counted among the abandoned writes.
    fn uncount(&mut self) {
        if let Some(left) = self.left.take() {
            left.remove(&self.run);
        }
    }
}

impl<J, T, U> Drop for Task<J, T, U> {
    fn drop(&mut self) {
        if self.reply.take().is_some_and(|reply| reply.is_closed()) {
            self.uncount();
        }
    }
}

impl<T, J, U> Job for Task<J, T, U>
where
    T: Send,
    J: FnMut(&mut Work<'_>) -> Answer<T> + Send,
    U: Fn(T) + Send,
{
    fn perform(&mut self, work: &mut Work<'_>) -> rusqlite::Result<()> {
        self.result = Some((self.job)(work)?);
        Ok(())
    }

    fn run(&self) -> &str {
        &self.run
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn is_deferrable(&self) -> bool {
        self.deferrable
    }

    fn finish(&mut self, committed: Result<()>) {
        let result = self.result.take().unwrap_or_else(|| Err(unavailable("it was not done")));
        if let Some(reply) = self.reply.take()
            && let Err(result) = reply.send(committed.and(result))
        {
            let _ = result.map(&self.unclaimed);
            self.uncount();
        }
    }

    fn postpone(&mut self) -> bool {
        if self.is_owed {
            self.uncount();
        }
        self.is_owed
    }
}

/// The state of the writing thread.
struct WriterThread {
    /// Jobs that are part of the next commit, because the last one failed.
    owed: Vec<Box<dyn Job>>,
    // Closed before SQLite removes it.
    ahead: Ahead,
    store: Store,
    file: File,
    /// The file as it was when it was opened.
    opened: Identity,
    waiters: Arc<Waiters>,
    commits: Arc<AtomicU64>,
}

impl WriterThread {
    fn serve(mut self, jobs: &mpsc::Receiver<Box<dyn Job>>) {
        let (mut usual, mut safer) = (1, None);
        while let Some(first) = safer.take().or_else(|| jobs.recv().ok()) {
            let mut group = std::mem::take(&mut self.owed);
            group.push(first);
            // Jobs that wait already go into this commit, which is as safe as the safest of them.
            group.extend(jobs.try_iter().take(GROUP - 1));
            wait_for_company(jobs, &mut group);
            let durability = safest(&group);
            let mut count = group.len();
            let coming = iter::from_fn(|| {
                let next = match count {
                    GROUP.. => None,
                    // Those who were here the last time are likely to come again.
                    few if few < usual => jobs.recv_timeout(PATIENCE).ok(),
                    _ => jobs.try_recv().ok(),
                };
                count += 1;
                match next {
                    // A job that needs more durability than this commit has waits for the next.
                    Some(job) if durability < job.durability() => {
                        safer = Some(job);
                        None
                    }
                    next => next,
                }
            });
            let committed = self.commit(&mut group, coming);
            // One run alone has something else to do in between: its model answers, its tools run.
            let is_shared = group.iter().any(|job| job.run() != group[0].run());
            usual = if is_shared { group.len() } else { 1 };
            match committed {
                // One of them made it fail: each alone, so that the others do not suffer for it.
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
    }

    /// Does the jobs of a group, and those that arrive meanwhile, in one commit. A panic rolls back
    /// and clears the cache, as any failure does: the thread continues for others.
    fn commit(
        &mut self,
        group: &mut Vec<Box<dyn Job>>,
        coming: impl Iterator<Item = Box<dyn Job>>,
    ) -> Result<(), Failed> {
        let done = catch_unwind(AssertUnwindSafe(|| self.try_commit(group, coming)));
        done.unwrap_or(Err(Failed::Panicked))
    }

    fn try_commit(
        &mut self,
        group: &mut Vec<Box<dyn Job>>,
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

    fn finish(&mut self, mut group: Vec<Box<dyn Job>>, committed: Result<(), Failed>) {
        let committed = committed.map_err(|failed| match failed {
            Failed::ToBegin(error) | Failed::AtWork(error) => {
                // What SQLite makes of a file that is gone says less than that it is.
                self.file.is_still(self.opened).err().unwrap_or_else(|| self.file.failure(error))
            }
            Failed::Elsewhere(error) => error,
            // The same would happen again.
            Failed::Panicked => unusable(format!(
                "{}: the thread that writes panicked, and nothing of this was kept; verify the log",
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

/// Waits for a job that cannot wait, if all of these can.
#[expect(clippy::disallowed_methods, reason = "says how long a thread waits, and nothing else")]
fn wait_for_company(jobs: &mpsc::Receiver<Box<dyn Job>>, group: &mut Vec<Box<dyn Job>>) {
    let began = Instant::now();
    while group.len() < GROUP
        && group.iter().all(|job| job.is_deferrable())
        && let Some(left) = COMPANY.checked_sub(began.elapsed())
        && let Ok(next) = jobs.recv_timeout(left)
    {
        group.push(next);
    }
}

/// How safe a commit of these jobs has to be.
fn safest(group: &[Box<dyn Job>]) -> Durability {
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

#[cfg(test)]
mod tests {
    use mynah_data::{ErrorKind, LogReason};
    use mynah_log::{backend::Checked, conformance::Sample};

    use super::*;

    fn start(durability: Durability) -> (tempfile::TempDir, Writer) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = File::new(&folder.path().join("log.db")).expect("a path");
        let connection = file.open_to_write(durability).expect("a log");
        let waiters = Arc::new(Waiters::default());
        (folder, Writer::start(connection, durability, file, waiters).expect("one"))
    }

    #[tokio::test]
    async fn what_is_to_be_safe_is_not_part_of_a_commit_that_is_less() {
        let (_folder, writer) = start(Durability::Relaxed);
        let (begin, begun) = mpsc::channel();
        let (release, released) = mpsc::channel();
        // Keeps the thread busy until the others have come.
        let first = writer.perform("first".into(), None, move |_| {
            let _ = begin.send(());
            let _ = released.recv();
            Ok(Ok(()))
        });
        let synced = |durability| {
            writer.perform("run".into(), Some(durability), |work| Ok(Ok(work.synchronous()?)))
        };
        let (full, relaxed) = (Durability::Full, Durability::Relaxed);
        let others = async {
            begun.recv().expect("a thread that begins");
            tokio::join!(synced(relaxed), synced(full), synced(relaxed))
        };
        let release = async { release.send(()).expect("a thread that waits") };
        let (first, others, ()) = tokio::join!(first, others, release);
        first.expect("nothing to do");
        // Later jobs may be more durable than necessary.
        assert_eq!(others, (Ok(1), Ok(2), Ok(2)));
    }

    #[tokio::test]
    async fn a_job_that_panics_is_told_and_takes_nothing_else_with_it() {
        let (_folder, writer) = start(Durability::Relaxed);
        let sound = |time| {
            let checked = Checked::new(Sample::new("sound", time).batch(), || 0).expect("a batch");
            writer.perform("sound".into(), None, move |work| work.append(&checked))
        };
        let broken = writer.perform::<()>("broken".into(), None, |_| panic!("for a test"));
        let (broken, kept) = tokio::join!(broken, sound(0));
        let told = broken.expect_err("a panic").to_string();
        assert!(told.contains("the thread that writes panicked"), "{told}");
        assert_eq!(kept.map(|head| head.seq), Ok(1));
        let again = sound(1).await.expect_err("a run that is there");
        assert_eq!(again.kind(), ErrorKind::Log(LogReason::HeadMismatch));
    }
}
