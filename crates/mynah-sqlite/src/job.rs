//! What is done in a commit, and how its caller gets the result.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mynah_data::{Error, Result, RunId};
use mynah_log::Durability;
use tokio::sync::{
    Notify,
    oneshot::{self, error::TryRecvError},
};

use crate::{
    Answer,
    file::{unavailable, unusable},
    store::Work,
};

/// What the caller of a job asks for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Terms {
    /// How safe its commit must be; none leaves it to the log.
    pub(crate) durability: Option<Durability>,
    /// Whether it may wait for other jobs.
    pub(crate) is_deferrable: bool,
    /// Whether it writes so little that its caller may do it.
    pub(crate) is_brief: bool,
}

impl From<Option<Durability>> for Terms {
    fn from(durability: Option<Durability>) -> Self {
        Self { durability, ..Self::default() }
    }
}

/// Something to be done in a commit.
pub(crate) trait Job: Send {
    fn perform(&mut self, work: &mut Work<'_>) -> rusqlite::Result<()>;
    fn run(&self) -> &RunId;
    fn durability(&self) -> Durability;
    /// Whether it may wait for other jobs.
    fn is_deferrable(&self) -> bool;
    fn finish(&mut self, committed: Result<()>);
    /// The commit failed. Returns whether the next one retries it; that may not come soon, so readers no longer wait for it.
    fn postpone(&mut self) -> bool;
}

/// A job on a run, and the caller's side of it. It is done again if the commit fails because of another job. If the caller is
/// gone when it is done, `unclaimed` gets the result.
pub(crate) fn asked<T: Send + 'static, U: Fn(T) + Clone + Send + 'static>(
    run: RunId,
    durability: Durability,
    is_deferrable: bool,
    job: impl FnMut(&mut Work<'_>) -> Answer<T> + Send + 'static,
    unclaimed: U,
    left: &Arc<AbandonedWrites>,
) -> (Box<dyn Job>, PendingJob<'_, T, U>) {
    let (reply, answer) = oneshot::channel();
    let pending =
        PendingJob { run: run.clone(), answer, left, unclaimed: unclaimed.clone(), is_over: false };
    let (reply, left) = (Some(reply), Some(Arc::clone(left)));
    let (result, is_owed) = (None, false);
    let task =
        Task { run, durability, is_deferrable, job, result, reply, unclaimed, left, is_owed };
    (Box::new(task), pending)
}

/// A job on a run without a waiting caller. It is retried with the next commit while the file cannot be written.
pub(crate) fn left(
    run: RunId,
    job: impl FnMut(&mut Work<'_>) -> Answer<()> + Send + 'static,
    left: &Arc<AbandonedWrites>,
) -> Box<dyn Job> {
    left.add(&run);
    // Without a receiver it is work that was left from the beginning.
    let (reply, left) = (Some(oneshot::channel().0), Some(Arc::clone(left)));
    let (durability, result, unclaimed) = (Durability::Relaxed, None, drop);
    let (is_deferrable, is_owed) = (false, true);
    Box::new(Task { run, durability, is_deferrable, job, result, reply, unclaimed, left, is_owed })
}

/// Runs with abandoned writes, and how many.
#[derive(Default)]
pub(crate) struct AbandonedWrites {
    runs: Mutex<HashMap<RunId, usize>>,
    less: Notify,
}

impl AbandonedWrites {
    /// Waits until what was left to be written of a run is written, or has failed. It does not wait for another attempt.
    pub(crate) async fn settled(&self, run: &str) {
        loop {
            let less = self.less.notified();
            if !self.runs().contains_key(run) {
                return;
            }
            less.await;
        }
    }

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
pub(crate) struct PendingJob<'w, T, U: Fn(T)> {
    run: RunId,
    answer: oneshot::Receiver<Result<T>>,
    left: &'w AbandonedWrites,
    unclaimed: U,
    is_over: bool,
}

impl<T, U: Fn(T)> PendingJob<'_, T, U> {
    pub(crate) async fn answer(mut self) -> Result<T> {
        let answer = (&mut self.answer).await;
        self.is_over = true;
        answer.map_err(|_| stopped())?
    }
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

pub(crate) fn stopped() -> Error {
    unusable("the thread that writes has stopped; open the log again")
}

struct Task<J, T, U> {
    run: RunId,
    durability: Durability,
    is_deferrable: bool,
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

    fn run(&self) -> &RunId {
        &self.run
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn is_deferrable(&self) -> bool {
        self.is_deferrable
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
