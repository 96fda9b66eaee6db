//! The runs of a log over HTTP: lists, records, events as they come, verification, and the inspector's pages.
//!
//! `docs/server.md` describes the API. [`Server`] serves it on a listener.
//!
//! ```no_run
//! use mynah::log::MemoryLog;
//! use mynah_server::Server;
//!
//! # async fn f() -> std::io::Result<()> {
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:7878").await?;
//! Server::new(MemoryLog::new()).serve(listener, std::future::pending()).await
//! # }
//! ```

mod actions;
mod agents;
mod changes;
mod connections;
mod events;
mod guard;
mod live;
mod log_routes;
mod metrics;
mod openapi;
pub mod page;
mod pages;
mod problem;
mod query;
mod records;
mod reply;
mod routes;
mod runs;
mod search;
mod sessions;
mod signals;
mod stats;
mod trial;
mod work;

use std::{
    collections::HashSet,
    future::Future,
    io,
    sync::{Arc, Mutex as StdMutex},
    time::Duration,
};

use axum::{Router, extract::DefaultBodyLimit, middleware};
use mynah::{RunId, SystemWorld, World as _, log::Log};
use tokio::{
    net::TcpListener,
    sync::{Mutex, OwnedSemaphorePermit, Semaphore},
};
use tokio_util::sync::CancellationToken;

pub use self::agents::Agent;
use self::{
    agents::Agents, changes::Changes, guard::Guard, live::Live, log_routes::KnownTree,
    metrics::Metrics,
};

/// What a handler gets.
pub(crate) type App = Arc<Shared>;

/// What all handlers share.
pub(crate) struct Shared {
    pub(crate) log: Arc<dyn Log>,
    pub(crate) guard: Guard,
    pub(crate) agents: Agents,
    pub(crate) allows_actions: bool,
    pub(crate) live: Live,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) changes: Changes,
    pub(crate) tree: Mutex<KnownTree>,
    /// The runs that a verification found damaged.
    pub(crate) damaged: StdMutex<HashSet<RunId>>,
    /// Is cancelled when the server stops: streams end, and `/readyz` says so.
    pub(crate) stopping: CancellationToken,
    /// How large the body of a request may be, in bytes.
    pub(crate) max_body: usize,
    /// Room for runs that requests need performed.
    room: Arc<Semaphore>,
}

impl Shared {
    /// Whether the last verification of a run found damage.
    pub(crate) fn is_damaged(&self, run: &str) -> bool {
        self.damaged.lock().is_ok_and(|damaged| damaged.contains(run))
    }

    /// Remembers what a verification of a run found.
    pub(crate) fn set_damaged(&self, run: &str, is_damaged: bool) {
        if let Ok(mut damaged) = self.damaged.lock() {
            match is_damaged {
                true => damaged.insert(run.into()),
                false => damaged.remove(run),
            };
        }
    }

    /// Room for one more run, if there is some.
    pub(crate) fn room(&self) -> Option<Room> {
        Arc::clone(&self.room).try_acquire_owned().ok()
    }
}

/// Room for a run, until it is dropped.
pub(crate) type Room = OwnedSemaphorePermit;

/// A server of one log.
#[must_use = "a server does nothing unless it is served"]
pub struct Server {
    log: Arc<dyn Log>,
    guard: Guard,
    agents: Agents,
    allows_actions: bool,
    max_body: usize,
    drain: Duration,
    queues: Vec<String>,
    concurrency: usize,
    keeps_events: bool,
}

impl Server {
    /// Serves this log.
    pub fn new(log: impl Log) -> Self {
        Self {
            log: Arc::new(log),
            guard: Guard::default(),
            agents: Agents::default(),
            allows_actions: false,
            max_body: 4 << 20,
            drain: Duration::from_secs(30),
            queues: Vec::new(),
            concurrency: 64,
            keeps_events: false,
        }
    }

    /// Adds an agent, which clients may start and continue runs with.
    pub fn agent(mut self, agent: Agent) -> Self {
        self.agents.0.push(agent);
        self.allow_actions()
    }

    /// Allows clients to change something without an agent: to cancel and to fork runs.
    pub fn allow_actions(mut self) -> Self {
        self.allows_actions = true;
        self
    }

    /// Performs runs that others put into this queue, with the agents of this server. May be called several times; without it, the
    /// queue is `default`, in which the runs are that servers start.
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.queues.push(name.into());
        self
    }

    /// How many runs of its queues it performs at once, and as many for requests. By default 64. A run that a request starts beyond them waits
    /// in its queue; other requests that need a run performed are refused (503) until there is room.
    pub fn concurrency(mut self, runs: usize) -> Self {
        self.concurrency = runs.max(1);
        self
    }

    /// Keeps answers in the log while they stream, so that other servers of the log show them; see
    /// [`durable_events`](mynah::Chat::durable_events).
    pub fn durable_events(mut self) -> Self {
        self.keeps_events = true;
        self
    }

    /// Demands this token with every request for data. A server that others can reach needs one.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.guard.token = Some(token.into());
        self
    }

    /// Adds a name by which clients address the server, besides `localhost` and IP addresses.
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.guard.hosts.push(name.into());
        self
    }

    /// Sets how large the body of a request may be, in bytes. By default 4 MiB.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }

    /// Sets how long requests and runs may take to end after the server was stopped. By default 30 seconds.
    pub fn drain(mut self, time: Duration) -> Self {
        self.drain = time;
        self
    }

    /// Serves until `stop` is ready. Then it starts nothing more, ends its streams, and waits for requests and runs in progress.
    /// Runs that are left are released, so that another process can continue them at once.
    ///
    /// # Errors
    /// A listener that cannot be used.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let Self { log, guard, mut agents, allows_actions, max_body, drain, .. } = self;
        let (queues, concurrency) = (self.queues, self.concurrency);
        agents.0.iter_mut().for_each(|agent| agent.keeps_events = self.keeps_events);
        let stopping = CancellationToken::new();
        let app = Arc::new(Shared {
            changes: Changes::new(Arc::clone(&log)),
            tree: Mutex::default(),
            damaged: StdMutex::default(),
            log,
            guard,
            agents,
            allows_actions,
            live: Live::default(),
            metrics: Arc::default(),
            stopping: stopping.clone(),
            max_body,
            room: Arc::new(Semaphore::new(concurrency.min(Semaphore::MAX_PERMITS))),
        });
        let router = router(Arc::clone(&app)).layer(DefaultBodyLimit::max(max_body));
        let mut served = tokio::spawn(connections::serve(listener, router, stopping.clone()));
        let worker = Arc::clone(&app);
        let mut work =
            tokio::spawn(async move { work::work(&worker, &queues, concurrency, drain).await });
        tokio::select! {
            served = &mut served => return served.map_err(io::Error::other),
            () = stop => stopping.cancel(),
        }
        let drained = async {
            app.live.drained().await;
            // A worker that panicked has no runs left.
            let _ = (&mut work).await;
            (&mut served).await.map_err(io::Error::other)
        };
        let result = match tokio::time::timeout(drain, drained).await {
            Ok(result) => result,
            // A client that does not read holds its connection.
            Err(_) => {
                served.abort();
                work.abort();
                Ok(())
            }
        };
        app.live.release().await;
        result
    }
}

fn router(app: App) -> Router {
    let router = routes::all()
        .into_iter()
        .fold(pages::routes(), |router, route| router.route(route.path, route.handler));
    router
        .fallback(routes::absent)
        .method_not_allowed_fallback(routes::wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard::guard))
        .with_state(app)
}

/// The time, in nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemWorld.now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
}
