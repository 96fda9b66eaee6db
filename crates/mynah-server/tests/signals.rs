//! Signals and queues: what one server gets, another may perform.

use std::{sync::Arc, time::Duration};

use mynah::{
    Engine, Signal, deliver,
    log::{Append, Head, Lease, Log, LogFuture, MemoryLog, RunStatus, forward_log},
    testing::Scripted,
};
use mynah_server::{Agent, Server};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::common::{self, Forgetful, Running, calls, engine, json_of, paced, problem_of, says};

/// An agent that pays, whose runs say so once it is approved.
fn cashier() -> Agent {
    let make = |begun: bool| match begun {
        false => engine([calls("pay")]),
        true => engine([says("Paid.")]),
    };
    let agent = Agent::new("cashier", make(false));
    agent.made_by(move |log, run| {
        Box::pin(async move {
            let begun = match run {
                Some(run) => log.head(&run).await?.is_some_and(|head| head.seq > 1),
                None => false,
            };
            Ok(make(begun))
        })
    })
}

/// An agent that answers.
fn greeter() -> Agent {
    let make = || Engine::new(Scripted::new([says("Hello!")]).unwrap());
    Agent::new("greeter", make()).made_by(move |_, _| {
        let engine = make();
        Box::pin(async move { Ok(engine) })
    })
}

async fn kinds(log: &MemoryLog, run: &str) -> Vec<&'static str> {
    let records = log.read(run, 1, 100).await.unwrap();
    records.iter().map(|record| record.kind().as_str()).collect()
}

#[tokio::test]
async fn a_signal_with_a_key_counts_once() {
    let log = Arc::new(MemoryLog::new());
    let server = Running::start(Server::new(Arc::clone(&log)).agent(cashier())).await;
    let body = json!({"input": "pay", "key": "r"});
    let waits = json_of(server.post("/v1/runs?wait=30", &body).await).await;
    assert_eq!(waits["status"], "suspended");

    let approve = json!({"approve": ["c0"], "key": "click-1"});
    let (first, second) = tokio::join!(
        server.post("/v1/runs/r/signals?wait=30", &approve),
        server.post("/v1/runs/r/signals?wait=30", &approve)
    );
    for response in [first, second, server.post("/v1/runs/r/signals?wait=30", &approve).await] {
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(json_of(response).await["status"], "completed");
    }
    let resumed = kinds(&log, "r").await.iter().filter(|kind| **kind == "resumed").count();
    assert_eq!(resumed, 1);
    assert!(log.inbox("r", 9).await.unwrap().is_empty());
    // Another click is another signal, and comes too late.
    let other = json!({"approve": ["c0"], "key": "click-2"});
    let refused = problem_of(server.post("/v1/runs/r/signals", &other).await).await;
    assert_eq!(refused, (409, "log_error/sealed".to_owned()));
    for key in [String::new(), "k".repeat(201)] {
        let refused = server.post("/v1/runs/r/signals", &json!({"cancel": true, "key": key})).await;
        assert_eq!(problem_of(refused).await.0, 400);
    }
}

/// Sends a signal three times, to one server and to another, and returns the run that each answer has.
async fn thrice(servers: &[Running; 2], run: &str, signal: Value) -> (Value, Value) {
    let path = format!("/v1/runs/{run}/signals?wait=30");
    let mut answers = Vec::new();
    for server in [&servers[0], &servers[0], &servers[1]] {
        let response = server.post(&path, &signal).await;
        assert_eq!(response.status(), StatusCode::OK, "{signal}");
        let run = json_of(response).await;
        answers.push((run["run_id"].clone(), run["status"].clone()));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{signal}: {answers:?}");
    // Another signal is another one, and the run has ended.
    let other = servers[0].post(&path, &json!({"cancel": true, "key": "other"})).await;
    assert_eq!(problem_of(other).await, (409, "log_error/sealed".to_owned()));
    answers.remove(0)
}

#[tokio::test]
async fn a_cancel_and_a_resume_with_a_key_count_once() {
    let log = Arc::new(MemoryLog::new());
    let down = Agent::new(
        "down",
        engine([json!([{"error": "rate_limited"}]), says("Back."), says("Again.")]),
    );
    let (slow, permits) = paced(3);
    let serve = async || {
        let server = Server::new(Arc::clone(&log)).agent(cashier()).agent(down.clone());
        Running::start(server.agent(Agent::new("slow", slow.clone()))).await
    };
    let servers = [serve().await, serve().await];
    let start = async |server: &Running, query: &str, agent: &str, key: &str| {
        let body = json!({"input": "pay", "key": key, "agent": agent});
        server.post(&format!("/v1/runs{query}"), &body).await;
    };

    start(&servers[0], "?wait=30", "cashier", "waits").await;
    let cancel = json!({"cancel": true, "key": "c"});
    assert_eq!(
        thrice(&servers, "waits", cancel.clone()).await,
        (json!("waits"), json!("cancelled"))
    );
    permits.add_permits(2);
    for (server, run) in servers.iter().zip(["here", "elsewhere"]) {
        start(server, "", "slow", run).await;
        let ended = thrice(&servers, run, cancel.clone()).await;
        assert_eq!(ended, (json!(run), json!("cancelled")));
    }

    let resume = json!({"resume": true, "key": "r"});
    start(&servers[0], "?wait=30", "down", "failed").await;
    let ended = thrice(&servers, "failed", resume.clone()).await;
    assert_eq!(ended, (json!("failed~2"), json!("completed")));
    assert!(log.run("failed~3").await.unwrap().is_none());
    let queue = async |run: &str| log.run(run).await.unwrap().unwrap().queue.unwrap();
    assert_eq!(queue("failed~2").await.name, "default/down", "it is in the queue of the first");

    let fork = json!({"at": 1, "key": "fork"});
    servers[0].post("/v1/runs/failed~2/fork", &fork).await;
    let ended =
        thrice(&servers, "fork", json!({"resume": true, "key": "r", "agent": "down"})).await;
    assert_eq!(ended, (json!("fork"), json!("completed")));
}

#[tokio::test]
async fn a_signal_that_its_server_did_not_finish_is_finished_by_its_repetition() {
    let log = Arc::new(MemoryLog::new());
    let server = Running::start(Server::new(Arc::clone(&log)).agent(cashier())).await;
    engine([calls("pay")]).chat("pay").record(&log).run_id("r").await.unwrap();
    assert!(deliver(&log, "r", "c.0", &Signal::Cancel).await.unwrap());
    let cancel = json!({"cancel": true, "key": "c"});
    let ended = json_of(server.post("/v1/runs/r/signals?wait=30", &cancel).await).await;
    assert_eq!(ended["status"], "cancelled");
}

/// A log where another process takes what was delivered just before this one does.
#[derive(Clone)]
struct Overtaken(MemoryLog);

impl Log for Overtaken {
    fn append(&self, batch: Append) -> LogFuture<'_, Head> {
        self.0.append(batch)
    }

    fn take(
        &self,
        run: &str,
        owner: &str,
        term: Duration,
        seen: Option<i64>,
    ) -> LogFuture<'_, Lease> {
        let (run, owner) = (run.to_owned(), owner.to_owned());
        Box::pin(async move {
            if !self.0.inbox(&run, 1).await?.is_empty() {
                engine([calls_again()]).resume(&self.0, &run).inbox().await?;
            }
            self.0.take(&run, &owner, term, seen).await
        })
    }

    forward_log!(self => self.0, except append, take);
}

/// A second payment.
fn calls_again() -> Value {
    let call = json!({"id": "c1", "name": "pay", "arguments": {"euros": 8}});
    json!([{"tool_call": call}, {"finish": "tool_calls"}])
}

#[tokio::test]
async fn a_signal_that_another_process_took_succeeds_although_the_run_waits_again() {
    let log = MemoryLog::new();
    let server = Running::start(Server::new(Overtaken(log.clone())).agent(cashier())).await;
    let body = json!({"input": "pay", "key": "r"});
    let waits = json_of(server.post("/v1/runs?wait=30", &body).await).await;
    assert_eq!(waits["status"], "suspended");

    let taken = server.post("/v1/runs/r/signals?wait=30", &json!({"approve": ["c0"]})).await;
    assert_eq!(taken.status(), StatusCode::OK);
    assert_eq!(json_of(taken).await["status"], "suspended");
    let resumed = kinds(&log, "r").await.iter().filter(|kind| **kind == "resumed").count();
    assert_eq!(resumed, 1);
}

#[tokio::test]
async fn the_calls_of_an_agent_are_decided_in_the_answer_to_its_parent() {
    let log = Arc::new(MemoryLog::new());
    let cashier = engine([calls("pay"), says("Paid.")]);
    let task = json!([
        {"tool_call": {"id": "c0", "name": "cashier", "arguments": {"task": "Pay."}}},
        {"finish": "tool_calls"},
    ]);
    let front = engine([task, says("Done.")]).tool(cashier.as_tool("cashier", "Pays."));
    let server = Server::new(Arc::clone(&log)).agent(Agent::new("front", front));
    let server = Running::start(server).await;
    let body = json!({"input": "pay", "key": "r"});
    let waits = json_of(server.post("/v1/runs?wait=30", &body).await).await["waiting"].clone();
    assert_eq!((&waits["for"], &waits["about"]), (&json!("answer"), &json!("approval")), "{waits}");
    assert_eq!(waits["calls"][0]["arguments"], json!({"euros": 7}));
    let runs = log.runs(Default::default()).await.unwrap().runs;
    let child = runs.iter().find(|run| run.run_id.starts_with("r+cashier-")).unwrap();
    let path = format!("/v1/runs/{}", child.run_id.replace('+', "%2B"));
    let agent = json_of(server.get(&path).await).await;
    assert_eq!((&agent["caller"], &agent["status"]), (&json!("r"), &json!("suspended")));
    let approve = json!({"answer": json!({"c0": true}).to_string()});
    let done = json_of(server.post("/v1/runs/r/signals?wait=30", &approve).await).await;
    assert_eq!((&done["status"], &done["caller"]), (&json!("completed"), &Value::Null), "{done}");
}

#[tokio::test]
async fn a_signal_that_does_not_fit_leaves_nothing_in_the_inbox() {
    let log = Arc::new(MemoryLog::new());
    let server =
        Running::start(Server::new(Arc::clone(&log)).agent(cashier()).agent(greeter())).await;
    let body = json!({"input": "pay", "key": "r", "agent": "cashier"});
    server.post("/v1/runs?wait=30", &body).await;
    for (signal, status) in [
        (json!({"answer": "two"}), 409),
        (json!({"approve": ["c9"]}), 409),
        (json!({"approve": ["c0"], "agent": "greeter"}), 422),
    ] {
        let refused = server.post("/v1/runs/r/signals", &signal).await;
        assert_eq!(problem_of(refused).await.0, status, "{signal}");
    }
    assert!(log.inbox("r", 9).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_run_of_one_server_is_cancelled_through_another() {
    cancelled_through_another(MemoryLog::new()).await;
}

#[tokio::test]
async fn a_server_sees_that_a_run_is_cancelled_although_the_log_forgot_what_changed() {
    cancelled_through_another(Forgetful(MemoryLog::new())).await;
}

async fn cancelled_through_another(log: impl Log) {
    let log = Arc::new(log);
    let (slow, permits) = paced(3);
    let serve = async || {
        Running::start(Server::new(Arc::clone(&log)).agent(Agent::new("slow", slow.clone()))).await
    };
    let (first, second) = (serve().await, serve().await);
    permits.add_permits(2);
    first.post("/v1/runs", &json!({"input": "hi", "key": "r"})).await;
    let cancelled = second.post("/v1/runs/r/signals?wait=30", &json!({"cancel": true})).await;
    assert_eq!(cancelled.status(), StatusCode::OK);
    assert_eq!(json_of(cancelled).await["status"], "cancelled");
}

#[tokio::test]
async fn a_message_from_elsewhere_continues_a_run_that_a_server_started() {
    let log = Arc::new(MemoryLog::new());
    let server = Running::start(Server::new(Arc::clone(&log)).agent(cashier())).await;
    server.post("/v1/runs?wait=30", &json!({"input": "pay", "key": "r"})).await;
    let approve = Signal::approve("c0");
    assert!(deliver(&log, "r", "m1", &approve).await.unwrap());
    let done = server.stream("/v1/runs/r/events");
    let events = timeout(Duration::from_secs(30), done).await.unwrap();
    assert_eq!(events.last().unwrap().event.as_deref(), Some("end"));
    assert_eq!(log.run("r").await.unwrap().unwrap().status, RunStatus::Completed);
}

#[tokio::test]
async fn an_enqueued_run_is_performed_by_the_server_that_has_its_queue() {
    let log = Arc::new(MemoryLog::new());
    let first = Running::start(Server::new(Arc::clone(&log)).agent(greeter())).await;
    let body = json!({"input": "hi", "key": "r", "queue": "slow"});
    let queued = first.post("/v1/runs", &body).await;
    assert_eq!(queued.status(), StatusCode::ACCEPTED);
    assert_eq!(json_of(first.post("/v1/runs?wait=1", &body).await).await["status"], "running");
    let second = Running::start(Server::new(Arc::clone(&log)).agent(greeter()).queue("slow")).await;
    let done = first.post("/v1/runs?wait=30", &body).await;
    assert_eq!(done.status(), StatusCode::OK);
    assert_eq!(json_of(done).await["status"], "completed");
    let metrics = second.get("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("mynah_runs_started_total 1\n"), "{metrics}");
    let of_session = json!({"input": "hi", "session": "s", "queue": "slow"});
    assert_eq!(problem_of(first.post("/v1/runs", &of_session).await).await.0, 400);
}

#[tokio::test]
async fn another_server_shows_an_answer_that_is_kept_while_it_streams() {
    let log = Arc::new(MemoryLog::new());
    let (slow, permits) = paced(3);
    let first = Server::new(Arc::clone(&log)).agent(Agent::new("slow", slow)).durable_events();
    let first = Running::start(first).await;
    let second = Running::start(Server::new(Arc::clone(&log))).await;
    first.post("/v1/runs", &json!({"input": "hi", "key": "r"})).await;
    let request = second.request(reqwest::Method::GET, "/v1/runs/r/events");
    let mut response = request.header("accept", "text/event-stream").send().await.unwrap();
    permits.add_permits(3);
    let mut text = String::new();
    while !text.contains("id: 2~1.2\n") {
        let chunk = timeout(Duration::from_secs(30), response.chunk()).await.unwrap();
        text += std::str::from_utf8(&chunk.unwrap().unwrap()).unwrap();
    }
    permits.add_permits(9);
    let rest = timeout(Duration::from_secs(30), response.text()).await.unwrap().unwrap();
    let sent = common::parse(&(text + &rest));
    let deltas = sent.iter().filter(|sent| sent.data["event"]["type"] == "text_delta");
    let deltas: Vec<&Value> = deltas.map(|sent| &sent.data["event"]["delta"]).collect();
    assert_eq!(deltas, ["0 ", "1 ", "2 "]);
}
