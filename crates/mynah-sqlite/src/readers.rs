//! Threads that read, each with its own connection.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use mynah_data::Result;
use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::{
    Answer,
    file::{File, unavailable},
};

/// How many threads there are at most; they come as they are needed.
const THREADS: usize = 4;

type Job = Box<dyn FnOnce(Result<&Connection>) + Send>;

pub(crate) struct Readers {
    pool: Arc<ReaderPool>,
}

struct ReaderPool {
    file: File,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    closed: bool,
}

impl Readers {
    pub(crate) fn new(file: File) -> Self {
        let pool = ReaderPool { file, queue: Mutex::default(), changed: Condvar::new() };
        Self { pool: Arc::new(pool) }
    }

    /// Reads something.
    pub(crate) async fn perform<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Answer<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let file = self.pool.file.clone();
        self.submit(Box::new(move |connection| {
            let result = connection.and_then(|connection| match work(connection) {
                Ok(found) => found,
                Err(error) => Err(file.failure(error)),
            });
            // The caller may be gone.
            let _ = reply.send(result);
        }))?;
        answer.await.unwrap_or_else(|_| Err(unavailable("a thread that reads panicked")))
    }

    fn submit(&self, job: Job) -> Result<()> {
        let mut queue = self.pool.queue();
        if queue.jobs.len() >= queue.idle && queue.threads.len() < THREADS {
            let pool = Arc::clone(&self.pool);
            let thread = thread::Builder::new().name("mynah-log-reader".to_owned());
            match thread.spawn(move || pool.serve()) {
                Ok(thread) => queue.threads.push(thread),
                Err(error) if queue.threads.is_empty() => {
                    return Err(
                        unavailable(format!("no thread to read with: {error}")).caused_by(error)
                    );
                }
                Err(_) => {}
            }
        }
        queue.jobs.push_back(job);
        self.pool.changed.notify_one();
        Ok(())
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let mut queue = self.pool.queue();
        queue.closed = true;
        let threads = std::mem::take(&mut queue.threads);
        drop(queue);
        self.pool.changed.notify_all();
        // They panicked, or they are done: there is nothing more to do either way.
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl ReaderPool {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut connection = None;
        while let Some(job) = self.next() {
            let done = catch_unwind(AssertUnwindSafe(|| match &connection {
                Some(connection) => job(Ok(connection)),
                None => match self.file.open_to_read() {
                    Ok(opened) => job(Ok(connection.insert(opened))),
                    Err(error) => job(Err(error)),
                },
            }));
            // The caller notices that no reply comes. The thread continues for others.
            if done.is_err() {
                connection = None;
            }
        }
    }

    /// The next job, when there is one; none at the end.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            if queue.closed {
                return None;
            }
            queue.idle += 1;
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use mynah_log::Durability;

    use super::*;

    #[tokio::test]
    async fn however_many_jobs_panic_the_next_is_done() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = File::new(&folder.path().join("log.db")).expect("a path");
        file.open_to_write(Durability::Relaxed).expect("a log");
        let readers = Readers::new(file);
        for _ in 0..=THREADS {
            let broken = readers.perform::<()>(|_| panic!("for a test")).await;
            let told = broken.expect_err("a panic").to_string();
            assert_eq!(told, "log error: unavailable: a thread that reads panicked");
        }
        assert_eq!(readers.perform(|_| Ok(Ok(7))).await, Ok(7));
    }
}
