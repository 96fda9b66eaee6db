//! What the server costs beside bare axum handlers in the same run: starting runs, and one run for a thousand clients.
//!
//! `cargo xtask bench server`. Ratios are what to look at; the times depend on the machine.

#![allow(clippy::expect_used, reason = "a bench that cannot run says why")]
#![expect(clippy::disallowed_methods, reason = "a bench measures time")]

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Bytes,
    response::sse::{Event as Sent, Sse},
    routing::{get, post},
};
use futures_util::{StreamExt as _, future::join_all, stream};
use mynah::{
    Adapter, BoxFuture, Engine, Event, ModelCall, ModelStream, Request,
    log::{Log, MemoryLog, SqliteLog},
    testing::Scripted,
};
use mynah_server::{Agent, Server};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

const REQUESTS: usize = 2_000;
const CONNECTIONS: usize = 16;
const CLIENTS: usize = 1_000;
const DELTAS: usize = 200;

#[tokio::main]
async fn main() {
    let bare = serve_bare().await;
    let title = format!("{REQUESTS} times POST, {CONNECTIONS} connections");
    println!("{title:<44} {:>12} {:>12} {:>8}", "mynah", "bare axum", "ratio");
    let folder = tempfile::tempdir().expect("a folder");
    let sqlite = SqliteLog::open(folder.path().join("bench.db")).expect("a log");
    let theirs = post_all(bare, "").await;
    for (name, log) in [
        ("/v1/runs, log in memory", Arc::new(MemoryLog::new()) as Arc<dyn Log>),
        ("/v1/runs, SQLite", Arc::new(sqlite)),
    ] {
        let address = serve(Server::new(log).agent(greeter())).await;
        print(name, post_all(address, "").await, theirs);
        print(&format!("{name}, with the answer"), post_all(address, "?wait=60").await, theirs);
    }

    let title = format!("{DELTAS} deltas to {CLIENTS} clients");
    println!("\n{title:<44} {:>12} {:>12} {:>8}", "mynah", "bare axum", "ratio");
    let theirs = fan_out(bare, "/events", |_| {}).await;
    let permits = Arc::new(Semaphore::new(0));
    let slow = Engine::new(Paced(Arc::clone(&permits)));
    let address = serve(Server::new(MemoryLog::new()).agent(Agent::new("slow", slow))).await;
    send(address, "/v1/runs", &json!({"input": "hi", "key": "r"}).to_string()).await;
    let release = |_| permits.add_permits(DELTAS + 2);
    print(
        "events of a run in progress",
        fan_out(address, "/v1/runs/r/events", release).await,
        theirs,
    );
    print(
        "events of a run that ended",
        fan_out(address, "/v1/runs/r/events", |_| {}).await,
        theirs,
    );
}

fn print(name: &str, ours: Duration, theirs: Duration) {
    let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
    println!("{name:<44} {ours:>12.1?} {theirs:>12.1?} {ratio:>7.1}x");
}

/// An agent that answers at once.
fn greeter() -> Agent {
    let make = || {
        let says = json!([{"text": "Hello!"}, {"finish": "stop"}]);
        Engine::new(Scripted::new([says]).expect("a script"))
    };
    Agent::new("greeter", make()).made_by(move |_, _| {
        let engine = make();
        Box::pin(async move { Ok(engine) })
    })
}

/// A model that answers when it may.
struct Paced(Arc<Semaphore>);

impl Adapter for Paced {
    fn name(&self) -> &str {
        "paced"
    }

    fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<mynah::Result<ModelStream>> {
        let texts = (0..DELTAS).map(|n| Event::text_delta(format!("word {n} ")));
        let pieces = std::iter::once(Event::message_started()).chain(texts);
        let pieces = pieces.chain([Event::message_completed(None)]).collect::<Vec<_>>();
        let stream = stream::unfold((pieces.into_iter(), self), async |(mut pieces, paced)| {
            let piece = pieces.next()?;
            paced.0.acquire().await.ok()?.forget();
            Some((Ok(piece), (pieces, paced)))
        });
        Box::pin(async move { Ok(stream.boxed()) })
    }
}

async fn serve(server: Server) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(server.serve(listener, std::future::pending()));
    address
}

/// Handlers that read and send about as much, and do nothing else.
async fn serve_bare() -> SocketAddr {
    let start = async |body: Bytes| {
        let given: Value = serde_json::from_slice(&body).expect("JSON");
        json!({"run_id": "r", "given": given}).to_string()
    };
    let events = async || {
        let event = |n: usize| {
            let delta = json!({"type": "text_delta", "id": null, "delta": format!("word {n} ")});
            let data = json!({"id": format!("2~1.{n}"), "ts": null, "event": delta}).to_string();
            Ok::<_, Infallible>(Sent::default().id(format!("2~1.{n}")).data(data))
        };
        let end = Ok(Sent::default().event("end").data("{}"));
        Sse::new(stream::iter((0..DELTAS).map(event).chain([end])))
    };
    let router = Router::new().route("/v1/runs", post(start)).route("/events", get(events));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn post_all(address: SocketAddr, query: &str) -> Duration {
    let path = format!("/v1/runs{query}");
    let began = Instant::now();
    join_all((0..CONNECTIONS).map(|_| async {
        let mut connection = TcpStream::connect(address).await.expect("a server");
        for _ in 0..REQUESTS / CONNECTIONS {
            exchange(&mut connection, &path, r#"{"input": "Hello?"}"#).await;
        }
    }))
    .await;
    began.elapsed()
}

async fn send(address: SocketAddr, path: &str, body: &str) {
    exchange(&mut TcpStream::connect(address).await.expect("a server"), path, body).await;
}

/// A request, and its whole answer.
async fn exchange(connection: &mut TcpStream, path: &str, body: &str) {
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nmynah-request: 1\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    connection.write_all(request.as_bytes()).await.expect("a connection");
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let read = connection.read(&mut buffer).await.expect("a connection");
        assert!(read > 0, "the connection was closed: {}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        assert!(head.starts_with("HTTP/1.1 20"), "{text}");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if length.and_then(|length| length.parse().ok()) == Some(body.len()) {
            return;
        }
    }
}

/// How long a thousand clients take from when they are all connected until each has the end.
async fn fan_out(address: SocketAddr, path: &str, release: impl FnOnce(usize)) -> Duration {
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n");
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(TcpStream::connect(address).await.expect("a server"));
    }
    let began = Instant::now();
    join_all(clients.iter_mut().map(|client| client.write_all(request.as_bytes()))).await;
    release(CLIENTS);
    join_all(clients.into_iter().map(|mut client| {
        tokio::spawn(async move {
            let (mut tail, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
            loop {
                let read = client.read(&mut buffer).await.expect("a connection");
                assert!(read > 0, "the connection was closed");
                tail.extend_from_slice(&buffer[..read]);
                if tail.windows(10).any(|part| part == b"event: end") {
                    return;
                }
                let kept = tail.len().saturating_sub(10);
                tail.drain(..kept);
            }
        })
    }))
    .await;
    began.elapsed()
}
