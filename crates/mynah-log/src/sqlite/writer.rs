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
};

use mynah_data::Result;
use rusqlite::Connection;
use tokio::sync::{
    Notify,
    oneshot::{self, error::TryRecvError},
};

use super::{
    Answer,
    file::{File, unavailable},
    store::{Store, Work},
};
use crate::{Durability, waiters::Waiters};

/// How many jobs go into one commit at most.
const GROUP: usize = 256;

/// How often a job is looked for that is likely to come soon, some fifty microseconds in all: little against what a commit takes,
/// and less than it takes to be woken.
const LOOKS: usize = 200;

pub(super) struct Writer {
    /// None once it is closed.
    jobs: Option<mpsc::Sender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
    /// How safe a commit is where nobody says.
    durability: Durability,
    commits: Arc<AtomicU64>,
    left: Arc<Left>,
}

/// The runs of which something is to be written that nobody waits for any more, and how much.
#[derive(Default)]
struct Left {
    runs: Mutex<HashMap<Arc<str>, usize>>,
    less: Notify,
}

impl Left {
    fn runs(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, run: &Arc<str>) {
        *self.runs().entry(Arc::clone(run)).or_default() += 1;
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

/// Who waits for a job. One that is dropped before leaves it behind.
struct Asking<'w, T, J> {
    run: Arc<str>,
    answer: oneshot::Receiver<Done<T, J>>,
    left: &'w Left,
    is_over: bool,
}

impl<T, J> Drop for Asking<'_, T, J> {
    fn drop(&mut self) {
        if self.is_over || !matches!(self.answer.try_recv(), Err(TryRecvError::Empty)) {
            return;
        }
        // Whoever does the job sees from here on that nobody waits, unless it was done just before.
        self.left.add(&self.run);
        self.answer.close();
        if self.answer.try_recv().is_ok() {
            self.left.remove(&self.run);
        }
    }
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        durability: Durability,
        file: File,
        waiters: Arc<Waiters>,
    ) -> Result<Self> {
        let (sender, jobs) = mpsc::channel();
        let commits = Arc::new(AtomicU64::new(0));
        let mut store = Store::new(connection, durability);
        // What someone before could not wipe. Where it still cannot be, the next commit tries again.
        let _ = store.wipe();
        let desk = Desk { store, file, waiters, commits: Arc::clone(&commits) };
        let thread = thread::Builder::new().name("mynah-log-writer".to_owned());
        let thread = thread.spawn(move || desk.serve(&jobs));
        let thread = thread.map_err(|e| unavailable(format!("no thread to write with: {e}")))?;
        let (jobs, thread, left) = (Some(sender), Some(thread), Arc::default());
        Ok(Self { jobs, thread, durability, commits, left })
    }

    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Does some work on a run as a part of the next commit. It is done again if the commit fails
    /// for another's sake.
    pub(super) async fn perform<T: Send + 'static>(
        &self,
        run: Arc<str>,
        durability: Option<Durability>,
        job: impl FnMut(&mut Work<'_>) -> Answer<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let stopped = || unavailable("the thread that writes has stopped; open the log again");
        let durability = durability.unwrap_or(self.durability);
        let (reply, left) = (Some(reply), Arc::clone(&self.left));
        let mut asking = Asking { run: Arc::clone(&run), answer, left: &self.left, is_over: false };
        let job = Box::new(Task { run, durability, job: Some(job), result: None, reply, left });
        let jobs = self.jobs.as_ref().ok_or_else(stopped)?;
        jobs.send(job).map_err(|_| stopped())?;
        let answer = (&mut asking.answer).await;
        asking.is_over = true;
        answer.map_err(|_| stopped())?.result
    }

    /// Waits until what was left to be written of a run is written, or has failed.
    pub(super) async fn settled(&self, run: &str) {
        loop {
            let less = self.left.less.notified();
            if !self.left.runs().contains_key(run) {
                return;
            }
            less.await;
        }
    }
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
    fn finish(&mut self, committed: Result<()>);
}

struct Task<J, T> {
    run: Arc<str>,
    durability: Durability,
    /// None once it is given back.
    job: Option<J>,
    result: Option<Result<T>>,
    reply: Option<oneshot::Sender<Done<T, J>>>,
    left: Arc<Left>,
}

/// What comes of a job, and the job itself: whoever made it drops it, as memory is best freed where it was taken.
struct Done<T, J> {
    result: Result<T>,
    _job: Option<J>,
}

impl<J, T> Drop for Task<J, T> {
    fn drop(&mut self) {
        if self.reply.take().is_some_and(|reply| reply.is_closed()) {
            self.left.remove(&self.run);
        }
    }
}

impl<T: Send, J: FnMut(&mut Work<'_>) -> Answer<T> + Send> Job for Task<J, T> {
    fn perform(&mut self, work: &mut Work<'_>) -> rusqlite::Result<()> {
        if let Some(job) = &mut self.job {
            self.result = Some(job(work)?);
        }
        Ok(())
    }

    fn run(&self) -> &str {
        &self.run
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn finish(&mut self, committed: Result<()>) {
        let result = self.result.take().unwrap_or_else(|| Err(unavailable("it was not done")));
        let done = Done { result: committed.and(result), _job: self.job.take() };
        if let Some(reply) = self.reply.take()
            && reply.send(done).is_err()
        {
            self.left.remove(&self.run);
        }
    }
}

/// Where the thread works.
struct Desk {
    store: Store,
    file: File,
    waiters: Arc<Waiters>,
    commits: Arc<AtomicU64>,
}

impl Desk {
    fn serve(mut self, jobs: &mpsc::Receiver<Box<dyn Job>>) {
        let (mut usual, mut safer) = (1, None);
        while let Some(first) = safer.take().or_else(|| next(jobs, usual > 1)) {
            let durability = first.durability();
            let mut group = vec![first];
            let mut count = 1;
            let coming = iter::from_fn(|| {
                let next = match count {
                    GROUP => None,
                    // Those who were here the last time are likely to come again.
                    few if few < usual => soon(jobs),
                    _ => jobs.try_recv().ok(),
                };
                count += 1;
                match next {
                    // What is to be safer than this commit makes it waits for the next.
                    Some(job) if durability < job.durability() => {
                        safer = Some(job);
                        None
                    }
                    next => next,
                }
            });
            let committed = self.commit(&mut group, coming);
            usual = group.len();
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

    /// Does the jobs of a group, and those that come meanwhile, which join it, in one commit. A panic undoes what was done and
    /// forgets what was known, as any failure does: the thread is there for others.
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
        let safest = group.iter().map(|job| job.durability()).max().unwrap_or_default();
        self.store.make(safest).map_err(Failed::ToBegin)?;
        let mut work = self.store.begin().map_err(Failed::ToBegin)?;
        let done = group.iter_mut().try_for_each(|job| job.perform(&mut work));
        done.map_err(Failed::AtWork)?;
        for job in coming {
            // It is one of them before it is done, so that it is told whatever comes of it.
            group.push(job);
            let done = group.last_mut().map_or(Ok(()), |job| job.perform(&mut work));
            done.map_err(Failed::AtWork)?;
        }
        work.commit().map_err(Failed::AtWork)?;
        self.commits.fetch_add(1, Ordering::Relaxed);
        // It is committed, whatever comes of this: the next commit tries again.
        let _ = self.store.wipe();
        Ok(())
    }

    fn finish(&self, mut group: Vec<Box<dyn Job>>, committed: Result<(), Failed>) {
        let committed = committed.map_err(|failed| match failed {
            Failed::ToBegin(error) | Failed::AtWork(error) => self.file.failure(&error),
            Failed::Panicked => unavailable(format!(
                "{}: the thread that writes panicked, and nothing of this was kept; verify the log",
                self.file.path().display()
            )),
        });
        for job in &mut group {
            job.finish(committed.clone());
        }
        if !self.waiters.is_empty() {
            group.iter().for_each(|job| self.waiters.tell(job.run()));
        }
    }
}

/// The next job; none if there will be none.
fn next(jobs: &mpsc::Receiver<Box<dyn Job>>, is_likely: bool) -> Option<Box<dyn Job>> {
    is_likely.then(|| soon(jobs)).flatten().or_else(|| jobs.recv().ok())
}

/// A job that comes within a moment. Whoever else has something to do on this processor does it meanwhile.
fn soon(jobs: &mpsc::Receiver<Box<dyn Job>>) -> Option<Box<dyn Job>> {
    (0..LOOKS).find_map(|_| {
        let job = jobs.try_recv().ok();
        if job.is_none() {
            thread::yield_now();
        }
        job
    })
}

/// When a commit failed.
enum Failed {
    /// Before anything was done.
    ToBegin(rusqlite::Error),
    /// While it was done, or when it was to be made durable.
    AtWork(rusqlite::Error),
    /// In the middle of it, where nobody had thought that it could.
    Panicked,
}

#[cfg(test)]
mod tests {
    use mynah_data::{ErrorKind, LogReason};

    use super::*;
    use crate::{conformance::Sample, entry::Checked};

    #[tokio::test]
    async fn a_job_that_panics_is_told_and_takes_nothing_else_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = File::new(&folder.path().join("log.db")).expect("a path");
        let connection = file.open_to_write(Durability::Relaxed).expect("a log");
        let waiters = Arc::new(Waiters::default());
        let writer = Writer::start(connection, Durability::Relaxed, file, waiters).expect("one");
        let sound = || {
            let checked = Checked::new(Sample::new("sound", 0).batch()).expect("a batch");
            writer.perform(Arc::from("sound"), None, move |work| work.append(&checked))
        };
        let broken = writer.perform::<()>(Arc::from("broken"), None, |_| panic!("for a test"));
        let (broken, kept) = tokio::join!(broken, sound());
        let told = broken.expect_err("a panic").to_string();
        assert!(told.contains("the thread that writes panicked"), "{told}");
        assert_eq!(kept.map(|head| head.seq), Ok(1));
        let again = sound().await.expect_err("a run that is there");
        assert_eq!(again.kind(), ErrorKind::Log(LogReason::HeadMismatch));
    }
}
