//! Who commits: a thread that writes for all runs at once, or the caller where a run has the log to itself.
//!
//! Jobs that arrive during a commit share the next one. A run that is alone has nothing to share, and to hand a commit to the thread and
//! back takes two switches between threads, each about as long as a small commit without a sync. So the caller does it, if it is
//! little, the last one was quick, and nothing is in the way. The caller is a task that also has other work, so work that may take longer is the thread's.

use std::{
    collections::VecDeque,
    iter, mem,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use mynah_data::{Result, RunId};
use mynah_log::{Durability, Lease, backend::Waiters};
use rusqlite::Connection;

use crate::{
    Answer,
    commits::{Committer, Group, safest},
    file::{File, unavailable},
    job::{self, AbandonedWrites, Job, Terms},
    store::Work,
};

/// How many jobs go into one commit at most.
const GROUP: usize = 256;

/// How long a commit waits for one more job if several runs shared the last one: little, against what
/// the commit itself takes.
const PATIENCE: Duration = Duration::from_micros(50);

/// How long jobs that may wait do so: longer than a quick answer of a model takes, which they then share a commit with.
const COMPANY: Duration = Duration::from_millis(1);

/// How long a commit may take that a caller does. Waiting for answers uses up the task's budget, so after 128 of them in a row tokio lets
/// other tasks run.
const QUICK: Duration = Duration::from_micros(100);

pub(crate) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The default durability of a commit.
    durability: Durability,
    commits: Arc<AtomicU64>,
}

/// What the thread and the callers share.
struct Shared {
    queue: Mutex<Queue>,
    /// Wakes the thread.
    more: Condvar,
    /// None once it is closed. It is locked before the queue, or without waiting.
    committer: Mutex<Option<Committer>>,
    left: Arc<AbandonedWrites>,
    limits: Limits,
}

/// How long a commit may take that a caller does, and how long jobs that may wait do so.
struct Limits {
    quick: Duration,
    company: Duration,
}

/// Jobs that the thread is to do.
#[derive(Default)]
struct Queue {
    jobs: VecDeque<Box<dyn Job>>,
    /// Since when the thread has seen some of them wait.
    since: Option<Instant>,
    /// The run of the job that was submitted last.
    last: Option<RunId>,
    /// Whether a job was submitted since the thread last looked.
    is_lively: bool,
    /// Whether the thread ends when the queue is empty. Until then, what jobs leave is still done.
    is_closing: bool,
    is_closed: bool,
    awaits: Awaits,
}

/// For which jobs the thread must be woken.
#[derive(Clone, Copy, Default, PartialEq)]
enum Awaits {
    /// The thread is busy, and looks at the queue afterwards.
    #[default]
    None,
    /// Those that cannot wait.
    Urgent,
    /// Any, when so many are there.
    Several(usize),
}

impl Queue {
    /// Whether all jobs may wait for others.
    fn is_deferrable(&self) -> bool {
        self.jobs.iter().all(|job| job.is_deferrable())
    }
}

/// Where jobs are left that no caller waits for.
#[derive(Clone)]
pub(crate) struct Jobs(Arc<Shared>);

impl Jobs {
    /// Does some work on a run as a part of a later commit.
    pub(crate) fn leave(
        &self,
        run: RunId,
        job: impl FnMut(&mut Work<'_>) -> Answer<()> + Send + 'static,
    ) {
        // Where the thread has stopped, there is nothing to be done about it.
        let _ = self.0.submit(job::left(run, job, &self.0.left), false);
    }

    pub(crate) fn release(&self, lease: Lease) {
        self.leave(lease.run_id.clone(), move |work| work.release(&lease));
    }
}

impl Writer {
    pub(crate) fn start(
        connection: Connection,
        durability: Durability,
        file: File,
        waiters: Arc<Waiters>,
    ) -> Result<Self> {
        let limits = Limits { quick: QUICK, company: COMPANY };
        Self::start_with(connection, durability, file, waiters, limits)
    }

    fn start_with(
        connection: Connection,
        durability: Durability,
        file: File,
        waiters: Arc<Waiters>,
        limits: Limits,
    ) -> Result<Self> {
        let commits = Arc::new(AtomicU64::new(0));
        let committer =
            Committer::new(connection, durability, file, waiters, Arc::clone(&commits))?;
        let (queue, more, left) = (Mutex::default(), Condvar::new(), Arc::default());
        let committer = Mutex::new(Some(committer));
        let shared = Arc::new(Shared { queue, more, committer, left, limits });
        let thread = thread::Builder::new().name("mynah-log-writer".to_owned());
        let served = Arc::clone(&shared);
        let thread = thread.spawn(move || served.serve());
        let thread = thread
            .map_err(|e| unavailable(format!("no thread to write with: {e}")).caused_by(e))?;
        Ok(Self { shared, thread: Some(thread), durability, commits })
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Does some work on a run as a part of the next commit. It is done again if the commit fails because of another job.
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
        let Terms { durability, is_deferrable, is_brief } = terms.into();
        let durability = durability.unwrap_or(self.durability);
        let left = &self.shared.left;
        let (job, pending) = job::asked(run, durability, is_deferrable, job, unclaimed, left);
        self.shared.submit(job, is_brief)?;
        pending.answer().await
    }

    /// Where jobs are left that no caller waits for.
    pub(crate) fn jobs(&self) -> Jobs {
        Jobs(Arc::clone(&self.shared))
    }

    /// Waits until what was left to be written of a run is written, or has failed. It does not wait for another attempt.
    pub(crate) async fn settled(&self, run: &str) {
        self.shared.left.settled(run).await;
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.queue().is_closing = true;
        self.shared.more.notify_one();
        if let Some(thread) = self.thread.take() {
            // It panicked, or it is done: there is nothing more to do either way.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job. It is done at once if it is brief, need not sync, and its run has the log to itself. Otherwise the thread does it.
    fn submit(&self, job: Box<dyn Job>, is_brief: bool) -> Result<()> {
        let mut queue = self.queue();
        if queue.is_closed {
            return Err(job::stopped());
        }
        queue.is_lively = true;
        let is_alone = queue.last.as_ref() == Some(job.run());
        if !is_alone {
            queue.last = Some(job.run().clone());
        }
        let is_synced = job.durability() > Durability::Relaxed;
        if is_brief && is_alone && !is_synced && queue.jobs.is_empty() {
            let committer = match self.committer.try_lock() {
                Ok(committer) => Some(committer),
                Err(TryLockError::Poisoned(committer)) => Some(committer.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            };
            if let Some(mut committer) = committer
                && let Some(committer) = &mut *committer
                && committer.is_quick(job.run(), self.limits.quick)
            {
                drop(queue);
                if let Some(job) = committer.commit_at_once(job) {
                    let mut queue = self.queue();
                    queue.jobs.push_front(job);
                    self.wake(queue);
                }
                return Ok(());
            }
        }
        let is_awaited = match queue.awaits {
            Awaits::None => false,
            Awaits::Urgent => !job.is_deferrable(),
            Awaits::Several(count) => queue.jobs.len() + 1 >= count,
        };
        queue.jobs.push_back(job);
        if is_awaited {
            self.wake(queue);
        }
        Ok(())
    }

    fn wake(&self, mut queue: MutexGuard<'_, Queue>) {
        queue.awaits = Awaits::None;
        drop(queue);
        self.more.notify_one();
    }

    /// Does what is in the queue until it is closed and empty.
    fn serve(&self) {
        let _closing = Closing(self);
        let mut usual = 1_usize;
        while self.wait() {
            let mut committer = self.committer();
            let Some(committer) = &mut *committer else { return };
            let group = self.take();
            let (durability, mut count) = (safest(&group), group.len());
            let coming = iter::from_fn(|| {
                count += 1;
                // Those that came the last time are likely to come again.
                (count <= GROUP)
                    .then(|| self.next(durability, (usual + 1).saturating_sub(count)))
                    .flatten()
            });
            // One run alone has something else to do in between: its model answers, its tools run.
            usual = committer.commit_with(group, coming);
        }
    }

    fn committer(&self) -> MutexGuard<'_, Option<Committer>> {
        self.committer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a job that cannot wait, or until those that can have waited for long enough. Returns false when all is done.
    fn wait(&self) -> bool {
        let mut queue = self.queue();
        loop {
            if queue.jobs.is_empty() && queue.is_closing {
                queue.is_closed = true;
                return false;
            }
            if queue.is_closing || !queue.is_deferrable() || queue.jobs.len() >= GROUP {
                return true;
            }
            let is_quiet = queue.jobs.is_empty() && !mem::take(&mut queue.is_lively);
            let since = if queue.jobs.is_empty() {
                None
            } else {
                Some(*queue.since.get_or_insert_with(now))
            };
            let waited = since.map(|since| now().saturating_duration_since(since));
            let left = self.limits.company.saturating_sub(waited.unwrap_or_default());
            queue = if is_quiet {
                self.await_jobs(queue, Awaits::Several(1), None)
            } else if left.is_zero() {
                return true;
            } else {
                // It looks from time to time while jobs come, so that a job that may wait need not wake it.
                self.await_jobs(queue, Awaits::Urgent, Some(left))
            };
        }
    }

    fn await_jobs<'q>(
        &self,
        mut queue: MutexGuard<'q, Queue>,
        awaits: Awaits,
        limit: Option<Duration>,
    ) -> MutexGuard<'q, Queue> {
        queue.awaits = awaits;
        let mut queue = match limit {
            None => self.more.wait(queue).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                self.more.wait_timeout(queue, limit).unwrap_or_else(PoisonError::into_inner).0
            }
        };
        queue.awaits = Awaits::None;
        queue
    }

    /// The jobs of one commit, which is as safe as the safest of them.
    fn take(&self) -> Group {
        let mut queue = self.queue();
        let count = queue.jobs.len().min(GROUP);
        queue.since = None;
        queue.jobs.drain(..count).collect()
    }

    /// One more job for a commit that is this safe, to which so many more are likely to come. One that needs a safer commit waits for
    /// the next.
    fn next(&self, durability: Durability, likely: usize) -> Option<Box<dyn Job>> {
        let mut queue = self.queue();
        if likely > 0 && queue.jobs.is_empty() {
            // To be woken for each would take longer than the job.
            queue = self.await_jobs(queue, Awaits::Several(likely), Some(PATIENCE));
        }
        queue.jobs.pop_front_if(|job| job.durability() <= durability)
    }
}

/// Ends the queue with its thread, also where that panicked: what is left in it is not done.
struct Closing<'s>(&'s Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        // It waits for a caller that commits: that one may have a job to put back.
        let mut committer = self.0.committer();
        let mut queue = self.0.queue();
        queue.is_closed = true;
        let jobs = mem::take(&mut queue.jobs);
        drop(queue);
        *committer = None;
        drop(committer);
        drop(jobs);
    }
}

#[expect(clippy::disallowed_methods, reason = "says how long a thread waits, and nothing else")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::mpsc,
        task::{self, Waker},
        thread::ThreadId,
    };

    use mynah_data::{ErrorKind, LogReason};
    use mynah_log::{
        AnswerPart,
        backend::{Checked, IndexEntry},
        conformance::Sample,
    };
    use rusqlite::TransactionBehavior;

    use super::*;
    use crate::row::attempt;

    /// A writer whose callers do what they may, however long it takes, and whose jobs wait long for others.
    fn start(durability: Durability) -> (tempfile::TempDir, File, Writer) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = File::new(&folder.path().join("log.db")).expect("a path");
        let connection = file.open_to_write(durability).expect("a log");
        let waiters = Arc::new(Waiters::default());
        let limits = Limits { quick: Duration::MAX, company: Duration::from_secs(1) };
        let writer = Writer::start_with(connection, durability, file.clone(), waiters, limits);
        (folder, file, writer.expect("one"))
    }

    fn brief(durability: Durability, is_deferrable: bool) -> Terms {
        Terms { durability: Some(durability), is_deferrable, is_brief: true }
    }

    /// On which thread a brief job of a run is done.
    async fn done_by(writer: &Writer, run: &str, terms: impl Into<Terms>) -> ThreadId {
        drop(writer.shared.committer()); // The thread may still have it when it has answered.
        let job = |_: &mut Work<'_>| Ok(Ok(thread::current().id()));
        writer.perform(run.into(), terms, job).await.expect("an id")
    }

    #[tokio::test]
    async fn what_is_to_be_safe_is_not_part_of_a_commit_that_is_less() {
        let (_folder, _, writer) = start(Durability::Relaxed);
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
        let (_folder, _, writer) = start(Durability::Relaxed);
        let sound = |time| {
            let checked = Checked::new(Sample::new("sound", time).batch(), || 0).expect("a batch");
            writer.perform("sound".into(), None, move |work| work.append(&checked))
        };
        let broken = writer.perform::<()>("broken".into(), None, |_| panic!("for a test"));
        let (broken, kept) = tokio::join!(broken, sound(0));
        let told = broken.expect_err("a panic").to_string();
        assert!(told.contains("a write panicked"), "{told}");
        assert_eq!(kept.map(|head| head.seq), Ok(1));
        let again = sound(1).await.expect_err("a run that is there");
        assert_eq!(again.kind(), ErrorKind::Log(LogReason::HeadMismatch));
    }

    #[tokio::test]
    async fn a_job_that_panics_on_its_callers_thread_is_reported_too() {
        let (_folder, _, writer) = start(Durability::Relaxed);
        let terms = brief(Durability::Relaxed, false);
        let checked = Checked::new(Sample::new("run", 0).batch(), || 0).expect("a batch");
        let append = writer.perform("run".into(), terms, move |work| work.append(&checked));
        append.await.expect("a new run");
        let here = thread::current().id();
        assert_eq!(done_by(&writer, "run", terms).await, here);
        let broken = writer.perform::<()>("run".into(), terms, move |_| {
            assert_ne!(thread::current().id(), here, "for a test");
            Ok(Ok(()))
        });
        assert!(broken.await.expect_err("a panic").to_string().contains("a write panicked"));
        assert_ne!(done_by(&writer, "run", terms).await, here, "what was known is forgotten");
    }

    #[tokio::test]
    async fn a_caller_commits_for_a_run_that_has_the_log_to_itself() {
        let (_folder, _, writer) = start(Durability::Full);
        let here = thread::current().id();
        let relaxed = brief(Durability::Relaxed, false);
        let synced = brief(Durability::Full, false);
        for run in ["run", "other"] {
            let checked = Checked::new(Sample::new(run, 0).batch(), || 0).expect("a batch");
            let append = writer.perform(run.into(), relaxed, move |work| work.append(&checked));
            append.await.expect("a new run");
        }
        // The other run was the last.
        assert_ne!(done_by(&writer, "run", relaxed).await, here);
        assert_eq!(done_by(&writer, "run", relaxed).await, here);
        // To wait for the disk is not for a task.
        assert_ne!(done_by(&writer, "run", synced).await, here);
        assert_eq!(done_by(&writer, "run", relaxed).await, here);
        // What is not known to be brief.
        assert_ne!(done_by(&writer, "run", Some(Durability::Relaxed)).await, here);
        // Another run is there.
        assert_ne!(done_by(&writer, "other", relaxed).await, here);
        assert_ne!(done_by(&writer, "run", relaxed).await, here);
        assert_eq!(done_by(&writer, "run", relaxed).await, here);
        assert_eq!(writer.commits(), 10);
        // Parts of an answer are removed by the next append, and may be many.
        let keep = |work: &mut Work<'_>| {
            let give = |entry: &mut IndexEntry| entry.lease("me", Duration::from_secs(1), 0);
            let lease = attempt!(work.lease("run", 0, give)?);
            work.keep_part(&lease, &AnswerPart::new(1, 0, 1, "a part"))
        };
        writer.perform("run".into(), relaxed, keep).await.expect("a part");
        assert_ne!(done_by(&writer, "run", relaxed).await, here);
    }

    #[tokio::test]
    async fn a_caller_does_not_overtake_what_waits() {
        let (_folder, _, writer) = start(Durability::Full);
        let order = Arc::new(Mutex::new(Vec::new()));
        let job = |n: u32| {
            let order = Arc::clone(&order);
            move |_: &mut Work<'_>| {
                order.lock().unwrap_or_else(PoisonError::into_inner).push(n);
                Ok(Ok(()))
            }
        };
        let perform = |n, terms| writer.perform("run".into(), terms, job(n));
        perform(0, brief(Durability::Relaxed, false)).await.expect("done");
        let deferred = perform(1, brief(Durability::Full, true));
        let next = perform(2, brief(Durability::Relaxed, false));
        let (deferred, next) = tokio::join!(deferred, next);
        deferred.and(next).expect("done");
        assert_eq!(*order.lock().unwrap_or_else(PoisonError::into_inner), [0, 1, 2]);
        assert_eq!(writer.commits(), 2, "what can wait shares the commit of what cannot");
        // Without company it is done after a moment.
        perform(3, brief(Durability::Full, true)).await.expect("done");
        assert_eq!(writer.commits(), 3);
    }

    #[tokio::test]
    async fn a_caller_does_not_wait_for_a_file_that_another_process_has_locked() {
        let (_folder, file, writer) = start(Durability::Relaxed);
        let relaxed = brief(Durability::Relaxed, false);
        let checked = Checked::new(Sample::new("run", 0).batch(), || 0).expect("a batch");
        let append = writer.perform("run".into(), relaxed, move |work| work.append(&checked));
        append.await.expect("a new run");
        assert_eq!(done_by(&writer, "run", relaxed).await, thread::current().id());
        let mut other = file.open_to_wipe().expect("a log");
        let lock = other.transaction_with_behavior(TransactionBehavior::Immediate).expect("a lock");
        let mut waiting = std::pin::pin!(done_by(&writer, "run", relaxed));
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("the file is locked"),
            () = tokio::task::yield_now() => {}
        }
        drop(lock);
        assert_ne!(waiting.await, thread::current().id(), "the thread waited for it");
    }

    #[tokio::test]
    async fn what_a_dropped_caller_gets_is_given_back_although_the_log_closes() {
        let (_folder, file, writer) = start(Durability::Full);
        let checked = Checked::new(Sample::new("run", 0).batch(), || 0).expect("a batch");
        let append = writer.perform("run".into(), None, move |work| work.append(&checked));
        append.await.expect("a new run");
        let hold = |work: &mut Work<'_>, owner: &'static str| {
            work.lease("run", 0, move |entry| entry.lease(owner, Duration::from_secs(60), 0))
        };
        let jobs = writer.jobs();
        let give_back = move |lease| jobs.release(lease);
        let lease = move |work: &mut Work<'_>| hold(work, "me");
        let leased = writer.perform_or("run".into(), None, lease, give_back);
        let mut leased = Box::pin(leased);
        let _ = leased.as_mut().poll(&mut task::Context::from_waker(Waker::noop()));
        drop(leased);
        drop(writer);
        let connection = file.open_to_write(Durability::Full).expect("a log");
        let limits = Limits { quick: QUICK, company: COMPANY };
        let writer = Writer::start_with(connection, Durability::Full, file, Arc::default(), limits);
        let writer = writer.expect("one");
        let lease = writer.perform("run".into(), None, move |work| hold(work, "other"));
        assert_eq!(lease.await.expect("a free run").owner, "other");
    }

    #[tokio::test]
    async fn the_write_ahead_log_is_moved_into_the_file_and_begins_anew() {
        let (_folder, file, writer) = start(Durability::Relaxed);
        let mut run = Sample::new("run", 0);
        let text = "many words ".repeat(1_000);
        for _ in 0..2_000 {
            let checked = Checked::new(run.batch(), || 0).expect("a batch");
            let terms = brief(Durability::Relaxed, false);
            let appended = writer.perform("run".into(), terms, move |work| work.append(&checked));
            appended.await.expect("what follows");
            run = run.user(&text);
        }
        let len = |path: &std::path::Path| path.metadata().expect("a file").len();
        let ahead = len(&file.path().with_extension("db-wal"));
        assert!(ahead < 8 << 20, "{ahead} bytes");
        assert!(len(file.path()) > 16 << 20, "22 MB were written");
    }
}
