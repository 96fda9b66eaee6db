//! A log in PostgreSQL, for runs that several machines share.
//!
//! ```no_run
//! use mynah_log::{Log, RunFilter};
//! use mynah_postgres::PostgresLog;
//!
//! # async fn example() -> mynah_data::Result<()> {
//! let log = PostgresLog::open("postgres://mynah@db.example.com/mynah?sslmode=verify-full")?;
//! println!("{} runs", log.runs(RunFilter::new()).await?.runs.len());
//! # Ok(()) }
//! ```

mod batch;
mod claim;
mod connection;
mod fail;
mod job;
mod pending;
mod reads;
mod removal;
mod round;
mod row;
mod target;
mod writer;

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use mynah_data::{Error, LogReason, Result, RunId};
use mynah_log::{
    AnswerPart, Append, Changes, Head, InboxMessage, Lease, Limits, Log, LogFuture, MAX_PAYLOAD,
    Record, RunFilter, RunPage, RunSummary, SealedRun,
    backend::{self, Checked, Waiters},
};
use tokio::{
    runtime::{Builder, Handle},
    sync::{
        Mutex as AsyncMutex, mpsc,
        oneshot::{self, error::RecvError},
    },
    time::timeout,
};
use tokio_postgres::Client;

use crate::{
    connection::{Connector, PATIENCE},
    fail::{failure, log_error, unavailable},
    job::{Ask, Job, Reply},
    pending::Pending,
    row::Known,
    target::{Target, no_thread},
    writer::Writer,
};

/// How often a log looks for what other processes wrote of the runs that are waited for.
const PACE: Duration = Duration::from_millis(100);

/// How many bytes of records one append holds at most, unless a single record is larger.
const BATCH: usize = 64 << 20;

/// A log in PostgreSQL.
///
/// A dedicated thread talks to the server over two connections. One writes for all runs of this
/// process: jobs that arrive during a commit go into the next one. The other reads. Both are opened
/// when they are needed, and again when they are lost. Operations that fail meanwhile have the
/// reason `unavailable` and can be retried.
///
/// The tables are made by the first process that connects, if its role may do so; [`open_existing`](Self::open_existing) makes none.
/// A clone is the same log; the last of them waits
/// for what is still to be written, for a while.
#[derive(Clone)]
pub struct PostgresLog(Arc<Inner>);

struct Inner {
    target: Target,
    /// None once it is closed.
    jobs: Option<mpsc::UnboundedSender<Ask>>,
    runtime: Handle,
    reader: Arc<Reader>,
    pending: Arc<Pending>,
    waiters: Arc<Waiters>,
    is_watched: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Reader {
    connector: Connector,
    client: Mutex<Option<Arc<Client>>>,
    /// Held while a connection is opened.
    opening: AsyncMutex<()>,
}

impl PostgresLog {
    /// The version of the tables that this library reads and writes.
    pub const SCHEMA: u32 = 1;

    /// A log in the database that a URL names, as libpq reads it. Nothing is sent to the server yet.
    ///
    /// A password that the URL does not have is taken from `PGPASSWORD` or from the password file, `PGPASSFILE`. The modes `require`,
    /// `verify-ca` and `verify-full` of `sslmode` all verify the server's certificate, by `sslrootcert` or the system's roots.
    ///
    /// # Errors
    /// A URL that cannot be read, or a system that has no more threads.
    pub fn open(url: &str) -> Result<Self> {
        Self::connecting(url, true)
    }

    /// The same, of a log that exists: where the tables are missing, operations fail instead of making them.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_existing(url: &str) -> Result<Self> {
        Self::connecting(url, false)
    }

    fn connecting(url: &str, creates: bool) -> Result<Self> {
        let target = Target::parse(url)?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let (jobs, asked) = mpsc::unbounded_channel();
        let waiters = Arc::new(Waiters::default());
        let mut connector = Connector::new(target.clone());
        connector.creates = creates;
        let writer = Writer::new(connector.another(), Arc::clone(&waiters));
        let reader = Reader { connector, client: Mutex::default(), opening: AsyncMutex::default() };
        let handle = runtime.handle().clone();
        let thread = thread::Builder::new().name("mynah-postgres".to_owned());
        // It ends when the log is closed and nothing is left to write.
        let thread =
            thread.spawn(move || runtime.block_on(writer.serve(asked))).map_err(no_thread)?;
        Ok(Self(Arc::new(Inner {
            target,
            jobs: Some(jobs),
            runtime: handle,
            reader: Arc::new(reader),
            pending: Arc::default(),
            waiters,
            is_watched: Arc::default(),
            thread: Mutex::new(Some(thread)),
        })))
    }

    /// Connects, and makes the tables if there are none.
    ///
    /// # Errors
    /// A server that cannot be reached, a role that may not create tables, or tables of another version.
    pub async fn init(&self) -> Result<()> {
        self.read_by(async |_| Ok(())).await
    }

    /// Sends a job to the writer. It is done even if the caller does not wait for it.
    fn ask(&self, run: Option<&RunId>, job: Job) -> oneshot::Receiver<Result<Reply>> {
        let (reply, answer) = oneshot::channel();
        self.send(run, job, Some(reply));
        answer
    }

    fn send(&self, run: Option<&RunId>, job: Job, reply: Option<oneshot::Sender<Result<Reply>>>) {
        let pending = run.map(|run| self.0.pending.add(run));
        if let Some(jobs) = &self.0.jobs {
            // If the thread has ended, the caller gets no answer, which is an error.
            let _ = jobs.send(Ask { job, reply, pending });
        }
    }

    async fn answered(
        &self,
        answer: impl Future<Output = Result<Result<Reply>, RecvError>> + Send,
    ) -> Result<Reply> {
        let stopped = |_| {
            unavailable(format!(
                "{}: the thread that writes has ended; open the log again",
                self.0.target.name
            ))
        };
        answer.await.map_err(stopped)?
    }

    /// Reads something.
    async fn read_by<T, F>(&self, read: impl Fn(Arc<Client>) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send,
    {
        let reader = Arc::clone(&self.0.reader);
        self.spawn(async move { reader.read(read).await }).await
    }

    /// Does work on the log's own runtime: the caller's may have no timers.
    async fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let work = self.0.runtime.spawn(work).await;
        work.unwrap_or_else(|_| Err(unavailable("the thread that reads has ended")))
    }

    /// Does work that may take long, over a connection of its own. Gives its warnings as well.
    async fn maintain<F>(
        &self,
        work: impl FnOnce(Client) -> F + Send + 'static,
    ) -> Result<Vec<String>>
    where
        F: Future<Output = Result<()>> + Send,
    {
        let connector = self.0.reader.connector.another();
        self.spawn(async move {
            let client = connector.connect().await?;
            // Those of the connection itself.
            connector.take_warnings();
            work(client).await?;
            Ok(connector.take_warnings())
        })
        .await
    }

    /// Looks for changes by other processes from now on, while there is a waiter.
    fn watch(&self) {
        let Inner { reader, waiters, is_watched, runtime, .. } = &*self.0;
        if !is_watched.swap(true, SeqCst) {
            let (reader, waiters) = (Arc::clone(reader), Arc::clone(waiters));
            runtime.spawn(watch(reader, waiters, Arc::clone(is_watched)));
        }
    }

    async fn known(&self, run: &RunId) -> Result<Option<Known>> {
        let run = run.clone();
        self.read_by(move |client| {
            let run = run.clone();
            async move { reads::run(&client, &run).await }
        })
        .await
    }
}

impl Reader {
    /// Reads something, over a new connection if the current one is lost.
    async fn read<T, F: Future<Output = Result<T>>>(
        &self,
        read: impl Fn(Arc<Client>) -> F,
    ) -> Result<T> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let client = self.client().await?;
            match timeout(PATIENCE, read(Arc::clone(&client))).await {
                Ok(Err(_)) if client.is_closed() && attempts < 3 => {}
                Ok(result) => return result,
                Err(_) => {
                    *self.current() = None;
                    return Err(unavailable("PostgreSQL does not answer"));
                }
            }
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, unless it is lost.
    fn open_client(&self) -> Option<Arc<Client>> {
        self.current().clone().filter(|client| !client.is_closed())
    }

    async fn client(&self) -> Result<Arc<Client>> {
        if let Some(client) = self.open_client() {
            return Ok(client);
        }
        // Before it waits for others that open one.
        self.connector.check()?;
        let _opening = self.opening.lock().await;
        if let Some(client) = self.open_client() {
            return Ok(client);
        }
        let client = Arc::new(self.connector.connect().await?);
        *self.current() = Some(Arc::clone(&client));
        Ok(client)
    }
}

/// A claim whose leases are given back if the caller is gone before it has them.
struct PendingClaim<'a> {
    log: &'a PostgresLog,
    answer: oneshot::Receiver<Result<Reply>>,
}

impl Drop for PendingClaim<'_> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok(Reply::Leases(leases))) = self.answer.try_recv() {
            leases.iter().for_each(|lease| self.log.release(lease));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.jobs = None;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id())
        {
            // It panicked, or it is done: there is nothing more to do either way.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for PostgresLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresLog").field("url", &self.0.target.name).finish_non_exhaustive()
    }
}

/// What another job's reply would be.
fn strange(reply: &Reply) -> Error {
    unavailable(format!("the writer answered {reply:?}"))
}

impl Log for PostgresLog {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        Box::pin(async move {
            let checked = Checked::new(batch, || 0)?;
            let run = checked.batch.run_id.clone();
            match self.answered(self.ask(Some(&run), Job::Append(Box::new(checked)))).await? {
                Reply::Head(head) => Ok(head),
                other => Err(strange(&other)),
            }
        })
    }

    fn read(&self, run: &str, from: u64, limit: usize) -> LogFuture<'_, Vec<Record>> {
        let run = RunId::from(run);
        Box::pin(self.read_by(move |client| {
            let run = run.clone();
            async move { reads::records(&client, &run, from, limit).await }
        }))
    }

    fn head(&self, run: &str) -> LogFuture<'_, Option<Head>> {
        let run = RunId::from(run);
        Box::pin(async move {
            self.0.pending.settled(&run).await;
            Ok(self.known(&run).await?.map(|known| known.entry.summary.head()))
        })
    }

    fn wait(&self, run: &str, beyond: u64) -> LogFuture<'_, ()> {
        let run = RunId::from(run);
        Box::pin(async move {
            let mut waiting = self.0.waiters.subscribe(&run);
            self.watch();
            loop {
                match self.known(&run).await?.map(|known| known.entry.summary) {
                    Some(summary) if summary.records > beyond => return Ok(()),
                    Some(summary) if summary.seal.is_some() => return Err(backend::sealed(&run)),
                    _ => {}
                }
                waiting.notified().await;
            }
        })
    }

    fn run(&self, run: &str) -> LogFuture<'_, Option<RunSummary>> {
        let run = RunId::from(run);
        Box::pin(async move {
            self.0.pending.settled(&run).await;
            Ok(self.known(&run).await?.map(|known| known.entry.to_summary()))
        })
    }

    fn runs(&self, filter: RunFilter) -> LogFuture<'_, RunPage> {
        Box::pin(self.read_by(move |client| {
            let filter = filter.clone();
            async move { reads::runs(&client, &filter).await }
        }))
    }

    fn seals(&self, from: u64, limit: usize) -> LogFuture<'_, Vec<SealedRun>> {
        Box::pin(
            self.read_by(move |client| async move { reads::seals(&client, from, limit).await }),
        )
    }

    fn check(&self) -> LogFuture<'_, ()> {
        Box::pin(async move {
            let check = |client: Client| async move { reads::check(&client).await };
            self.maintain(check).await.map(drop)
        })
    }

    fn check_writable(&self) -> LogFuture<'_, ()> {
        Box::pin(self.read_by(|client| async move { reads::check_rights(&client).await }))
    }

    /// Lets the server reuse what the removed rows took. Its own log and its backups may have them for longer.
    fn wipe(&self) -> LogFuture<'_, ()> {
        Box::pin(async move {
            let vacuum = |client: Client| async move {
                let vacuum =
                    "VACUUM mynah_records, mynah_runs, mynah_heads, mynah_inbox, mynah_parts";
                client.batch_execute(vacuum).await.map_err(failure)
            };
            // The server only warns a role that may not do it.
            match self.maintain(vacuum).await?.first() {
                None => Ok(()),
                Some(warning) => Err(log_error(
                    LogReason::Unusable,
                    format!(
                        "PostgreSQL: {warning}: what was removed stays in the server's files until it vacuums them itself; \
                         use the role that owns the tables to erase it now"
                    ),
                )),
            }
        })
    }

    fn lease(&self, run: &str, owner: &str, term: Duration) -> LogFuture<'_, Lease> {
        let (run, owner) = (RunId::from(run), owner.to_owned());
        Box::pin(self.leased(run.clone(), Job::Lease { run, owner, term, seen: None }))
    }

    fn take(
        &self,
        run: &str,
        owner: &str,
        term: Duration,
        seen: Option<i64>,
    ) -> LogFuture<'_, Lease> {
        let (run, owner) = (RunId::from(run), owner.to_owned());
        Box::pin(self.leased(run.clone(), Job::Lease { run, owner, term, seen: Some(seen) }))
    }

    fn beat(&self, owner: &str, term: Duration) -> LogFuture<'_, ()> {
        let process = backend::process(owner).to_owned();
        Box::pin(async move {
            self.answered(self.ask(None, Job::Beat { process, term })).await.map(drop)
        })
    }

    fn release(&self, lease: &Lease) {
        self.send(Some(&lease.run_id), Job::Release(lease.clone()), None);
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
            let job = Job::Claim { owner, term, queues, limit };
            let mut claim = PendingClaim { log: self, answer: self.ask(None, job) };
            match self.answered(&mut claim.answer).await? {
                Reply::Leases(leases) => Ok(leases),
                other => Err(strange(&other)),
            }
        })
    }

    fn deliver(&self, run: &str, id: &str, payload: Vec<u8>) -> LogFuture<'_, bool> {
        let (run, id) = (RunId::from(run), id.to_owned());
        Box::pin(async move {
            backend::check_message_id(&id)?;
            let job = Job::Deliver { run: run.clone(), id, payload };
            match self.answered(self.ask(Some(&run), job)).await? {
                Reply::IsNew(is_new) => Ok(is_new),
                other => Err(strange(&other)),
            }
        })
    }

    fn inbox(&self, run: &str, limit: usize) -> LogFuture<'_, Vec<InboxMessage>> {
        let run = RunId::from(run);
        Box::pin(async move {
            self.0.pending.settled(&run).await;
            self.read_by(move |client| {
                let run = run.clone();
                async move { reads::inbox(&client, &run, limit).await }
            })
            .await
        })
    }

    fn was_delivered(&self, run: &str, id: &str) -> LogFuture<'_, bool> {
        let (run, id) = (RunId::from(run), id.to_owned());
        Box::pin(async move {
            self.0.pending.settled(&run).await;
            self.read_by(move |client| {
                let (run, id) = (run.clone(), id.clone());
                async move { reads::was_delivered(&client, &run, &id).await }
            })
            .await
        })
    }

    fn keep_part(&self, lease: &Lease, part: AnswerPart) -> LogFuture<'_, ()> {
        let lease = lease.clone();
        Box::pin(async move {
            let run = lease.run_id.clone();
            self.answered(self.ask(Some(&run), Job::KeepPart(lease, part))).await.map(drop)
        })
    }

    fn parts(&self, run: &str, seq: u64, first: u64) -> LogFuture<'_, Vec<AnswerPart>> {
        let run = RunId::from(run);
        Box::pin(async move {
            let mut waiting = self.0.waiters.subscribe(&run);
            self.watch();
            loop {
                let name = run.clone();
                let read = move |client: Arc<Client>| {
                    let run = name.clone();
                    async move { reads::parts(&client, &run, seq, first).await }
                };
                match self.read_by(read).await? {
                    Some(parts) => return Ok(parts),
                    None => waiting.notified().await,
                }
            }
        })
    }

    fn changes(&self, cursor: Option<&str>, limit: usize) -> LogFuture<'_, Changes> {
        let cursor = cursor.map(str::to_owned);
        Box::pin(self.read_by(move |client| {
            let cursor = cursor.clone();
            async move { reads::changes(&client, cursor.as_deref(), limit).await }
        }))
    }

    fn limits(&self) -> Limits {
        Limits::new(MAX_PAYLOAD, BATCH)
    }

    fn identity(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl PostgresLog {
    async fn leased(&self, run: RunId, job: Job) -> Result<Lease> {
        match self.answered(self.ask(Some(&run), job)).await? {
            Reply::Lease(lease) => Ok(lease),
            other => Err(strange(&other)),
        }
    }
}

/// Looks for changes of the runs that are waited for, by one query for all of them, while there are any.
async fn watch(reader: Arc<Reader>, waiters: Arc<Waiters>, is_watched: Arc<AtomicBool>) {
    let mut seen: HashMap<RunId, Option<i64>> = HashMap::new();
    loop {
        tokio::time::sleep(PACE).await;
        let runs = waiters.awaited();
        if runs.is_empty() {
            is_watched.store(false, SeqCst);
            // One that came in between leaves it to this task.
            if waiters.is_empty() || is_watched.swap(true, SeqCst) {
                return;
            }
            continue;
        }
        seen.retain(|run, _| runs.contains(run));
        let names = runs.clone();
        let read = move |client: Arc<Client>| {
            let names = names.clone();
            async move { reads::versions(&client, &names).await }
        };
        match reader.read(read).await {
            Ok(mut versions) => {
                for run in runs {
                    let version = versions.remove(&run);
                    if seen.get(&run) != Some(&version) {
                        waiters.notify(&run);
                        seen.insert(run, version);
                    }
                }
            }
            // Those who wait find out why.
            Err(_) => waiters.notify_all(),
        }
    }
}

/// Compiles the code of the chapter.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/postgres.md")]
mod book {}
