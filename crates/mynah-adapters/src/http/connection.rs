//! Connections, which carry one call after the other.
//!
//! The task that waits for an answer drives the connection itself. A task for each connection would cost every piece of an answer two
//! switches of tasks and a system call, since hyper hands over one piece at a time.

use std::{
    error::Error as StdError,
    fmt,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, Uri,
    header::HOST,
    uri::{Authority, Scheme},
};
use http_body_util::Full;
use hyper::{
    body::{self, Frame, Incoming},
    client::conn::{
        TrySendError,
        http1::{self, SendRequest},
    },
};
use tokio::{
    runtime::Handle,
    task::{JoinHandle, coop},
    time::Instant,
};

use super::connector::{BoxError, Connector, Wire};

/// How long a connection is kept that is not used.
const IDLE: Duration = Duration::from_secs(90);

/// How often the connections that are not used are looked at: servers close them too.
const SWEEP: Duration = Duration::from_secs(15);

/// A connection to a server.
struct Connection {
    requests: SendRequest<Full<Bytes>>,
    /// None once it is closed. Large, and moved with each call.
    io: Option<Box<http1::Connection<Wire, Full<Bytes>>>>,
    /// Whether a proxy reads the requests.
    is_proxied: bool,
}

impl Connection {
    async fn open(connector: &Connector, server: &Server) -> Result<Self, SendError> {
        let wire = connector.connect(server.uri()).await.map_err(SendError::Connect)?;
        let is_proxied = wire.is_proxied;
        let (requests, io) = http1::handshake(wire).await.map_err(SendError::Send)?;
        Ok(Self { requests, io: Some(Box::new(io)), is_proxied })
    }

    /// Reads and writes what can be read and written now.
    fn advance(&mut self, cx: &mut Context<'_>) {
        if self.io.as_mut().is_some_and(|io| Pin::new(io).poll(cx).is_ready()) {
            self.io = None;
        }
    }

    /// Polls for what the connection brings. Only the connection wakes the task: what it brings comes while it is polled here.
    fn drive<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let mut unheard = Context::from_waker(Waker::noop());
        self.advance(&mut unheard);
        let brought = poll(&mut unheard);
        if brought.is_ready() {
            return brought;
        }
        self.advance(cx);
        poll(cx)
    }

    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        let mut sent = pin!(self.requests.try_send_request(request));
        std::future::poll_fn(|cx| self.drive(cx, |cx| sent.as_mut().poll(cx))).await
    }

    /// Whether it can carry another call.
    fn is_free(&mut self) -> bool {
        self.advance(&mut Context::from_waker(Waker::noop()));
        self.io.is_some() && self.requests.is_ready()
    }
}

/// What is connected to.
#[derive(Clone, PartialEq)]
struct Server {
    scheme: Scheme,
    authority: Authority,
}

impl Server {
    fn of(uri: &Uri) -> Option<Self> {
        Some(Self { scheme: uri.scheme()?.clone(), authority: uri.authority()?.clone() })
    }

    fn uri(&self) -> Uri {
        let mut parts = http::uri::Parts::default();
        (parts.scheme, parts.authority) = (Some(self.scheme.clone()), Some(self.authority.clone()));
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
        Uri::from_parts(parts).unwrap_or_default()
    }

    /// The host, and the port if that is not the scheme's own.
    fn host(&self) -> Result<HeaderValue, http::header::InvalidHeaderValue> {
        let own_port = if self.scheme == Scheme::HTTPS { 443 } else { 80 };
        match self.authority.port_u16() {
            Some(port) if port != own_port => {
                HeaderValue::try_from(format!("{}:{port}", self.authority.host()))
            }
            _ => HeaderValue::from_str(self.authority.host()),
        }
    }
}

/// Connections that wait for their next call.
#[derive(Default)]
pub(super) struct Pool(Mutex<Idle>);

#[derive(Default)]
struct Idle {
    /// The last one was used last.
    connections: Vec<(Server, Instant, Connection)>,
    /// Closes those that are not used.
    sweeper: Option<JoinHandle<()>>,
}

impl Pool {
    /// Sends a request, and waits for the head of its answer. If a connection was closed before it could carry the request, another does.
    pub(super) async fn send(
        self: Arc<Self>,
        connector: Connector,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<AnswerBody>, SendError> {
        let uri = request.uri().clone();
        let server = Server::of(&uri).ok_or_else(|| SendError::Connect("no address".into()))?;
        let host = server.host().map_err(|error| SendError::Connect(error.into()))?;
        request.headers_mut().entry(HOST).or_insert(host);
        loop {
            let (mut connection, is_used) = match self.take(&server) {
                Some(connection) => (connection, true),
                // Rare, and by far larger than all else that a call waits for.
                None => (Box::pin(Connection::open(&connector, &server)).await?, false),
            };
            *request.uri_mut() = match uri.path_and_query() {
                Some(path) if !connection.is_proxied => path.clone().into(),
                _ => uri.clone(),
            };
            match connection.send(request).await {
                Ok(answer) => {
                    let connection = Some((connection, server));
                    return Ok(answer.map(|incoming| AnswerBody {
                        incoming,
                        connection,
                        pool: self,
                    }));
                }
                Err(mut error) => match error.take_message() {
                    Some(unsent) if is_used => request = unsent,
                    _ => return Err(SendError::Send(error.into_error())),
                },
            }
        }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, server: &Server) -> Option<Connection> {
        let mut idle = self.idle();
        while let Some(place) = idle.connections.iter().rposition(|(to, ..)| to == server) {
            let (_, since, mut connection) = idle.connections.remove(place);
            if since.elapsed() < IDLE && connection.is_free() {
                return Some(connection);
            }
        }
        None
    }

    fn put(self: &Arc<Self>, server: Server, mut connection: Connection) {
        let Some(runtime) = Handle::try_current().ok().filter(|_| connection.is_free()) else {
            return;
        };
        let mut idle = self.idle();
        idle.connections.push((server, Instant::now(), connection));
        if idle.sweeper.as_ref().is_none_or(JoinHandle::is_finished) {
            idle.sweeper = Some(runtime.spawn(sweep(Arc::downgrade(self))));
        }
    }
}

async fn sweep(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut idle = pool.idle();
        idle.connections
            .retain_mut(|(_, since, connection)| since.elapsed() < IDLE && connection.is_free());
        if idle.connections.is_empty() {
            idle.sweeper = None;
            return;
        }
    }
}

/// The body of an answer, with the connection that it comes from. Dropping it before its end closes the connection.
pub struct AnswerBody {
    incoming: Incoming,
    /// None once the body has ended.
    connection: Option<(Connection, Server)>,
    pool: Arc<Pool>,
}

impl body::Body for AnswerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { incoming, connection, pool } = &mut *self;
        let Some((driven, _)) = connection else { return Poll::Ready(None) };
        // A server that is faster than this task must not keep others, and timers, from their turn.
        let progress = ready!(coop::poll_proceed(cx));
        // hyper would wake the task for each piece that it is about to take itself.
        let mut unheard = Context::from_waker(Waker::noop());
        let frame = ready!(driven.drive(cx, |_| Pin::new(&mut *incoming).poll_frame(&mut unheard)));
        progress.made_progress();
        if !matches!(frame, Some(Ok(_)))
            && let Some((connection, server)) = connection.take()
            && frame.is_none()
        {
            pool.put(server, connection);
        }
        Poll::Ready(frame)
    }
}

impl fmt::Debug for AnswerBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerBody").finish_non_exhaustive()
    }
}

/// Why a request has no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum SendError {
    /// The server, or its proxy, was not reached.
    Connect(BoxError),
    /// The connection broke.
    Send(hyper::Error),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect(_) => "the server was not reached",
            Self::Send(_) => "the connection broke",
        })
    }
}

impl StdError for SendError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Connect(error) => Some(&**error),
            Self::Send(error) => Some(error),
        }
    }
}
