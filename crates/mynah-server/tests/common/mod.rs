//! A server on a loopback port, and runs to serve.

#![allow(
    dead_code,
    clippy::panic,
    clippy::unwrap_used,
    reason = "each test file uses a part of this, and a helper may fail the test that calls it"
)]

use std::{net::SocketAddr, sync::Arc};

use futures_util::{StreamExt as _, stream};
use mynah::{
    Adapter, BoxFuture, Engine, Event, ModelCall, ModelStream, Request, Session, Tool, ToolOutcome,
    log::{Changes, Log, LogFuture, MemoryLog, forward_log},
    testing::Scripted,
};
use mynah_server::Server;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, oneshot},
    task::JoinHandle,
};

/// A server that is running.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) client: Client,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<std::io::Result<()>>,
}

impl Running {
    /// Starts a server on a free port.
    pub(crate) async fn start(server: Server) -> Self {
        // An earlier test may have installed the same provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(server.serve(listener, async {
            let _ = stopped.await;
        }));
        let client = Client::builder().no_proxy().build().unwrap();
        Self { address, client, stop: Some(stop), served }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.url(path))
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    /// The JSON of an answer that says that all is well.
    pub(crate) async fn json(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        json_of(response).await
    }

    /// The status and code of an answer that is a problem.
    pub(crate) async fn problem(&self, path: &str) -> (u16, String) {
        problem_of(self.get(path).await).await
    }

    /// Posts JSON as a page of the server would.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Response {
        let request = self.request(Method::POST, path).header("mynah-request", "1");
        let request = request.header("content-type", "application/json").body(body.to_string());
        request.send().await.unwrap()
    }

    /// The events of a stream, to its end.
    pub(crate) async fn stream(&self, path: &str) -> Vec<Sent> {
        let request = self.request(Method::GET, path).header("accept", "text/event-stream");
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        parse(&response.text().await.unwrap())
    }

    /// Asks the server to stop.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits until the server has stopped.
    pub(crate) async fn stopped(self) -> std::io::Result<()> {
        self.served.await.unwrap()
    }
}

pub(crate) async fn json_of(response: Response) -> Value {
    let text = response.text().await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(crate) async fn problem_of(response: Response) -> (u16, String) {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let status = response.status().as_u16();
    let problem = json_of(response).await;
    assert_eq!(problem["status"], status);
    assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
    (status, problem["code"].as_str().unwrap().to_owned())
}

/// An event as it was sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sent {
    pub(crate) id: Option<String>,
    pub(crate) event: Option<String>,
    pub(crate) data: Value,
}

/// Reads a stream of events. An incomplete event at its end is dropped.
pub(crate) fn parse(text: &str) -> Vec<Sent> {
    let mut list = Vec::new();
    for block in text.split_inclusive("\n\n").filter(|block| block.ends_with("\n\n")) {
        let mut sent = Sent::default();
        for line in block.lines() {
            match line.split_once(':').map(|(name, value)| (name, value.trim_start())) {
                Some(("id", id)) => sent.id = Some(id.to_owned()),
                Some(("event", event)) => sent.event = Some(event.to_owned()),
                Some(("data", data)) => sent.data = serde_json::from_str(data).unwrap(),
                _ => {}
            }
        }
        if !sent.data.is_null() {
            list.push(sent);
        }
    }
    list
}

pub(crate) fn says(text: &str) -> Value {
    json!([{"text": text}, {"finish": "stop"}])
}

pub(crate) fn calls(tool: &str) -> Value {
    json!([{"tool_call": {"id": "c0", "name": tool, "arguments": {"euros": 7}}}, {"finish": "tool_calls"}])
}

/// An engine with tools that look, ask, and need approval.
pub(crate) fn engine<const N: usize>(scripts: [Value; N]) -> Engine {
    let look = Tool::new("look", "Looks", json!({})).handler(async |_, _| "blue");
    let ask =
        Tool::new("ask", "Asks", json!({})).handler(async |_, _| ToolOutcome::ask("How many?"));
    let pay = Tool::new("pay", "Pays", json!({})).manual().handler(async |_, _| "paid");
    Engine::new(Scripted::new(scripts).unwrap()).tools([look, ask, pay]).model("scripted-1")
}

/// A log with runs: `done` (complete, with a tool), `asks` (waits for an answer), `pays` (waits for approval), `failed`, and the
/// two turns of the session `s`.
pub(crate) async fn sample<L: Log + Clone>(log: &L) {
    let ended = engine([calls("look"), says("It is blue.")]);
    let result = ended.chat("What colour?").record(log).run_id("done").await.unwrap();
    assert_eq!(result.text(), "It is blue.");
    engine([calls("ask")]).chat("order").record(log).run_id("asks").await.unwrap();
    engine([calls("pay")]).chat("pay").record(log).run_id("pays").await.unwrap();
    let failed =
        engine([json!([{"text": "well"}, {"error": "rate_limited", "message": "too fast"}])]);
    failed.chat("hi").record(log).run_id("failed").await.unwrap();
    let talk = engine([says("hello"), says("again")]);
    let (session, _) = talk.start(Session::from("hi").with_id("s")).record(log).await.unwrap();
    talk.reply(&session, "and?").record(log).await.unwrap();
}

/// A log that does not remember what changed.
#[derive(Clone)]
pub(crate) struct Forgetful(pub(crate) MemoryLog);

impl Log for Forgetful {
    fn changes(&self, _: Option<&str>, _: usize) -> LogFuture<'_, Changes> {
        Box::pin(async { Ok(Changes::expired("end")) })
    }

    forward_log!(self => self.0, except changes);
}

/// A server of a log with those runs.
pub(crate) async fn sampled() -> (Running, Arc<MemoryLog>) {
    let log = Arc::new(MemoryLog::new());
    sample(&log).await;
    (Running::start(Server::new(Arc::clone(&log))).await, log)
}

/// A model that says its pieces one by one, each when it is allowed to.
struct Paced {
    pieces: Vec<Event>,
    permits: Arc<Semaphore>,
}

impl Adapter for Paced {
    fn name(&self) -> &str {
        "paced"
    }

    fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<mynah::Result<ModelStream>> {
        let pieces = self.pieces.clone().into_iter();
        let stream = stream::unfold((pieces, self), async |(mut pieces, paced)| {
            let piece = pieces.next()?;
            paced.permits.acquire().await.ok()?.forget();
            Some((Ok(piece), (pieces, paced)))
        });
        Box::pin(async move { Ok(stream.boxed()) })
    }
}

/// An engine whose answer has so many pieces of text, and a permit is needed for each of its events.
pub(crate) fn paced(texts: usize) -> (Engine, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(0));
    let texts = (0..texts).map(|n| Event::text_delta(format!("{n} ")));
    let pieces = std::iter::once(Event::message_started()).chain(texts);
    let pieces = pieces.chain([Event::message_completed(None)]).collect();
    (Engine::new(Paced { pieces, permits: Arc::clone(&permits) }), permits)
}

/// A small generator of numbers that are the same in each run of the test.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}

/// A proxy that cuts each connection after some bytes of the answer.
pub(crate) async fn cutting(target: SocketAddr, seed: u64) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut numbers = Numbers(seed);
        while let Ok((mut client, _)) = listener.accept().await {
            let mut left = 150 + usize::try_from(numbers.below(900)).unwrap();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(target).await.unwrap();
                let (mut from_server, mut to_server) = server.split();
                let (mut from_client, mut to_client) = client.split();
                let answer = async {
                    let mut buffer = [0; 256];
                    while left > 0 {
                        let Ok(read @ 1..) = from_server.read(&mut buffer).await else { break };
                        let part = read.min(left);
                        if to_client.write_all(&buffer[..part]).await.is_err() {
                            break;
                        }
                        left -= part;
                    }
                };
                let request = async {
                    let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
                };
                tokio::select! { () = answer => {}, () = request => {} }
            });
        }
    });
    address
}
