//! Streams: clients that reconnect, clients that do not read, a server that stops.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use mynah::{
    Thread, Tool, ToolProgress,
    log::{Append, Chain, Extent, Fact, Log as _, MemoryLog, RunStatus, SqliteLog},
};
use mynah_server::{Agent, Server};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Semaphore,
    time::timeout,
};

use crate::common::{Running, calls, cutting, engine, paced, parse, problem_of, says};

/// Reads all events of a run through a connection that breaks, and gives them with how often it broke.
async fn read_through(address: SocketAddr, run: &str) -> (Vec<Value>, usize) {
    let client = Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
    let (mut events, mut last, mut cuts) = (Vec::new(), None::<String>, 0);
    loop {
        let request = client.get(format!("http://{address}/v1/runs/{run}/events"));
        let request = request.header("accept", "text/event-stream");
        let request = last.iter().fold(request, |request, id| request.header("last-event-id", id));
        let Ok(mut response) = request.send().await else {
            cuts += 1;
            continue;
        };
        if response.status() == StatusCode::NO_CONTENT {
            return (events, cuts);
        }
        let mut text = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            text.extend_from_slice(&chunk);
        }
        for sent in parse(&String::from_utf8_lossy(&text)) {
            if sent.event.as_deref() == Some("end") {
                return (events, cuts);
            }
            last = sent.id;
            events.push(sent.data["event"].clone());
        }
        cuts += 1;
    }
}

#[tokio::test]
async fn a_client_whose_connection_breaks_sees_what_an_undisturbed_one_sees() {
    let log = Arc::new(MemoryLog::new());
    let (slow, permits) = paced(120);
    let server =
        Running::start(Server::new(Arc::clone(&log)).agent(Agent::new("slow", slow))).await;
    let started = server.post("/v1/runs", &json!({"input": "hi", "key": "r"})).await;
    assert_eq!(started.status(), StatusCode::ACCEPTED);
    let mut readers = Vec::new();
    for seed in 1..=4 {
        let proxy = cutting(server.address, seed).await;
        readers.push(tokio::spawn(read_through(proxy, "r")));
    }
    let undisturbed = tokio::spawn(read_through(server.address, "r"));
    // The answer comes piece by piece, while connections break.
    for _ in 0..122 {
        permits.add_permits(1);
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let (whole, cuts) = timeout(Duration::from_secs(60), undisturbed).await.unwrap().unwrap();
    assert_eq!(cuts, 0);
    assert_eq!(whole.iter().filter(|event| event["type"] == "text_delta").count(), 120);
    for reader in readers {
        let (events, cuts) = timeout(Duration::from_secs(60), reader).await.unwrap().unwrap();
        assert!(cuts > 3, "the connection broke {cuts} times");
        assert_eq!(events, whole);
    }
}

#[tokio::test]
async fn an_answer_is_streamed_before_it_is_complete() {
    let (slow, permits) = paced(3);
    let server =
        Running::start(Server::new(MemoryLog::new()).agent(Agent::new("slow", slow))).await;
    server.post("/v1/runs", &json!({"input": "hi", "key": "r"})).await;
    permits.add_permits(2);
    let request = server.request(Method::GET, "/v1/runs/r/events");
    let mut response = request.header("accept", "text/event-stream").send().await.unwrap();
    let mut text = String::new();
    while !text.contains("id: 2~1.1") {
        text += std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap();
    }
    assert!(text.contains("\"delta\":\"0 \""), "{text}");
    permits.add_permits(3);
    while let Some(chunk) = response.chunk().await.unwrap() {
        text += std::str::from_utf8(&chunk).unwrap();
    }
    let sent = parse(&text);
    let ids: Vec<&str> = sent.iter().filter_map(|sent| sent.id.as_deref()).collect();
    assert!(ids.contains(&"3.2") || ids.contains(&"2~1.2"), "{ids:?}");
    assert!(!ids.contains(&"3.0") && !ids.contains(&"3.1"), "{ids:?}");
    assert_eq!(sent.last().unwrap().event.as_deref(), Some("end"));
}

#[tokio::test]
async fn the_progress_of_a_tool_is_streamed_while_it_runs() {
    let (reached, goes_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let steps = (Arc::clone(&reached), Arc::clone(&goes_on));
    let dig = Tool::new("dig", "Digs", json!({"type": "object"})).handler_with_state(
        steps,
        async |(reached, goes_on), _, context| {
            context.progress(ToolProgress::new(3.0).total(4.0).message("clay"));
            reached.add_permits(1);
            goes_on.acquire().await.unwrap().forget();
            json!("done")
        },
    );
    let digger = engine([calls("dig"), says("It is deep.")]).tool(dig);
    let server = Server::new(MemoryLog::new()).agent(Agent::new("digger", digger));
    let server = Running::start(server).await;
    server.post("/v1/runs", &json!({"input": "hi", "key": "r"})).await;
    reached.acquire().await.unwrap().forget();
    let request = server.request(Method::GET, "/v1/runs/r/events");
    let mut response = request.header("accept", "text/event-stream").send().await.unwrap();
    let mut text = String::new();
    while !text.contains("tool_execution_progress") {
        text += std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap();
    }
    goes_on.add_permits(1);
    while let Some(chunk) = response.chunk().await.unwrap() {
        text += std::str::from_utf8(&chunk).unwrap();
    }
    let sent = parse(&text);
    let at = |kind: &str| sent.iter().position(|sent| sent.data["event"]["type"] == kind).unwrap();
    let (started, progress) = (at("tool_execution_started"), at("tool_execution_progress"));
    assert!(started < progress && progress < at("tool_execution_completed"), "{text}");
    assert_eq!(sent[progress].data["event"]["message"], "clay");
    // A client that comes again continues after what is recorded.
    assert_eq!(sent[progress].id, sent[started].id);
    assert!(
        !server.get("/v1/runs/r/events?limit=1000").await.text().await.unwrap().contains("clay")
    );
}

/// The memory of this process, in bytes.
#[cfg(target_os = "linux")]
fn memory() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_cost_little_and_hold_up_nobody() {
    const CLIENTS: usize = 16;
    let folder = tempfile::tempdir().unwrap();
    // Each reader gets bytes of its own.
    let log = Arc::new(SqliteLog::open(folder.path().join("log.db")).unwrap());
    let mut chain = Chain::new("large");
    let text = "x".repeat(256 << 10);
    let first = Fact::RunStarted { thread: Thread::from("hi"), extent: Extent::Chat, about: None };
    let mut records = vec![chain.append(0, [7; 16], &first).unwrap()];
    for n in 1..128 {
        let message = Arc::new(mynah::Message::user(&*text));
        records.push(chain.append(n, [7; 16], &Fact::UserMessage { message }).unwrap());
    }
    log.append(Append::new("large", None, records)).await.unwrap();
    let server =
        Running::start(Server::new(Arc::clone(&log)).drain(Duration::from_millis(200))).await;
    let before = memory();
    let mut slow = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = TcpStream::connect(server.address).await.unwrap();
        let request = "GET /v1/runs/large/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        slow.push(client);
    }
    tokio::time::sleep(Duration::from_millis(1500)).await;
    // All of the run for each of them would be 0.5 GB.
    let grown = memory().saturating_sub(before) >> 20;
    assert!(grown < 50, "{grown} MiB for {CLIENTS} clients");
    let answered = timeout(Duration::from_secs(5), server.get("/v1/runs")).await;
    assert_eq!(answered.unwrap().status(), StatusCode::OK);
    let metrics = server.get("/metrics").await.text().await.unwrap();
    assert!(metrics.contains(&format!("mynah_streams_open {CLIENTS}\n")), "{metrics}");
    // They do not keep the server from stopping either.
    let mut server = server;
    server.stop();
    timeout(Duration::from_secs(10), server.stopped()).await.unwrap().unwrap();
    drop(slow);
}

#[tokio::test]
async fn a_server_that_stops_ends_streams_and_waits_for_its_runs() {
    let log = Arc::new(MemoryLog::new());
    let (slow, permits) = paced(2);
    let server = Server::new(Arc::clone(&log)).agent(Agent::new("slow", slow));
    let mut server = Running::start(server).await;
    server.post("/v1/runs", &json!({"input": "hi", "key": "r"})).await;
    permits.add_permits(2);
    let request = server.request(Method::GET, "/v1/runs/r/events");
    let stream = request.header("accept", "text/event-stream").send().await.unwrap();
    let (client, url) = (server.client.clone(), server.url("/readyz"));
    server.stop();
    let text = timeout(Duration::from_secs(10), stream.text()).await.unwrap().unwrap();
    assert!(!text.contains("event: end"), "the run has not ended: {text}");
    // Connections are refused, or get the answer that the server stops.
    if let Ok(response) = client.get(url).send().await {
        assert_eq!(problem_of(response).await, (503, "http_error/stopping".to_owned()));
    }
    permits.add_permits(9);
    timeout(Duration::from_secs(10), server.stopped()).await.unwrap().unwrap();
    let run = log.run("r").await.unwrap().unwrap();
    assert_eq!(run.status, RunStatus::Completed, "it came to its end");
}

#[tokio::test]
async fn runs_that_do_not_end_in_time_are_released_and_continue_elsewhere_at_once() {
    let log = Arc::new(MemoryLog::new());
    let (slow, permits) = paced(2);
    let server = Server::new(Arc::clone(&log)).agent(Agent::new("slow", slow.clone()));
    let mut server = Running::start(server.drain(Duration::from_millis(100))).await;
    server.post("/v1/runs", &json!({"input": "hi", "key": "r"})).await;
    permits.add_permits(2);
    while log.head("r").await.unwrap().unwrap().seq < 2 {
        tokio::task::yield_now().await;
    }
    server.stop();
    timeout(Duration::from_secs(10), server.stopped()).await.unwrap().unwrap();
    let run = log.run("r").await.unwrap().unwrap();
    assert_eq!((run.status, run.held_until), (RunStatus::Running, None));
    permits.add_permits(9);
    let resumed = timeout(Duration::from_secs(2), async { slow.resume(&log, "r").await }).await;
    assert_eq!(resumed.unwrap().unwrap().text(), "0 1 ");
}

#[tokio::test]
async fn a_run_goes_on_without_the_client_that_started_it() {
    let log = Arc::new(MemoryLog::new());
    let (slow, permits) = paced(2);
    let server =
        Running::start(Server::new(Arc::clone(&log)).agent(Agent::new("slow", slow))).await;
    let request = server.request(Method::POST, "/v1/runs").header("mynah-request", "1");
    let request = request.header("accept", "text/event-stream");
    let request = request.header("content-type", "application/json");
    let response =
        request.body(json!({"input": "hi", "key": "r"}).to_string()).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    drop(response);
    permits.add_permits(9);
    let body = json!({"input": "hi", "key": "r"});
    let ended = server.post("/v1/runs?wait=30", &body).await;
    assert_eq!(ended.status(), StatusCode::OK);
    assert_eq!(log.run("r").await.unwrap().unwrap().status, RunStatus::Completed);
}

#[tokio::test]
async fn two_servers_of_one_log_show_the_same_events() {
    let log = Arc::new(MemoryLog::new());
    let (slow, permits) = paced(3);
    let first = Running::start(Server::new(Arc::clone(&log)).agent(Agent::new("slow", slow))).await;
    let second = Running::start(Server::new(Arc::clone(&log))).await;
    first.post("/v1/runs", &json!({"input": "hi", "key": "r"})).await;
    let here = tokio::spawn(read_through(first.address, "r"));
    let there = tokio::spawn(read_through(second.address, "r"));
    for _ in 0..9 {
        permits.add_permits(1);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (here, there) = (here.await.unwrap(), there.await.unwrap());
    assert_eq!(here, there);
    engine([says("hi")]).chat("hi").record(&log).await.unwrap();
}

#[tokio::test]
async fn a_stream_does_not_end_when_another_process_takes_the_run() {
    let (log, gate) = (Arc::new(MemoryLog::new()), Arc::new(Semaphore::new(0)));
    let (entered, opened) = (Arc::new(Semaphore::new(0)), Arc::clone(&gate));
    let enter = Arc::clone(&entered);
    let wait = Tool::new("wait", "Waits", json!({"type": "object"}))
        .idempotent(1)
        .handler_with_state((enter, opened), async |(enter, opened), _, _| {
            enter.add_permits(1);
            opened.acquire().await.unwrap().forget();
            json!("done")
        });
    let agent = engine([calls("wait"), says("Never.")]).tool(wait.clone());
    let server = Server::new(Arc::clone(&log)).agent(Agent::new("waiter", agent)).queue("none");
    let server = Running::start(server).await;
    let request = server.request(Method::POST, "/v1/runs").header("mynah-request", "1");
    let request = request.header("accept", "text/event-stream");
    let body = json!({"input": "hi", "key": "r"}).to_string();
    let request = request.header("content-type", "application/json").body(body);
    let response = tokio::spawn(async { request.send().await.unwrap().text().await.unwrap() });
    entered.acquire().await.unwrap().forget();
    let seen = log.run("r").await.unwrap().unwrap().held_until;
    let lease = log.take("r", "other/1", Duration::from_secs(60), seen).await.unwrap();
    gate.add_permits(1);
    // The server notices when it writes the outcome of the tool.
    while server.get("/metrics").await.text().await.unwrap().contains("mynah_runs_live 1") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    log.release(&lease);
    let other = engine([says("Continued.")]).tool(wait);
    gate.add_permits(1);
    let resumed = other.resume(&log, "r").allow_changed_engine().await.unwrap();
    assert_eq!(resumed.text(), "Continued.");
    let sent = parse(&timeout(Duration::from_secs(30), response).await.unwrap().unwrap());
    assert_eq!(sent.last().unwrap().event.as_deref(), Some("end"));
    assert!(sent.iter().any(|sent| sent.data["event"]["type"] == "sealed"), "{sent:?}");
}

/// A connection on which this was sent.
async fn sent(server: &Running, text: &str) -> TcpStream {
    let mut connection = TcpStream::connect(server.address).await.unwrap();
    connection.write_all(text.as_bytes()).await.unwrap();
    connection
}

#[tokio::test]
async fn a_connection_whose_request_does_not_come_is_closed() {
    let server = Running::start(Server::new(MemoryLog::new())).await;
    let mut half = sent(&server, "GET /healthz HTTP/1.1\r\nHost: local").await;
    let mut answer = Vec::new();
    let closed = timeout(Duration::from_secs(30), half.read_to_end(&mut answer)).await;
    assert!(closed.is_ok(), "it is still open");
}

#[tokio::test]
async fn a_body_that_does_not_come_does_not_hold_up_the_end() {
    let server = Server::new(MemoryLog::new()).agent(Agent::new("a", engine([says("hi")])));
    let mut server = Running::start(server.drain(Duration::from_secs(600))).await;
    let head = "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nMynah-Request: 1\r\n\
                Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{";
    let _half = sent(&server, head).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.stop();
    timeout(Duration::from_secs(30), server.stopped()).await.unwrap().unwrap();
}
