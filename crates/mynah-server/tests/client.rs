//! The typed client, against a real server.

use std::{error::Error as _, sync::Arc, time::Duration};

use mynah::{
    AdapterReason, Engine, ErrorKind, FollowedEvent, LogReason, RunEvent, Signal, Waiting,
    client::{CheckReport, CheckStatus, Client, ClientError, ListedRun, RunInfo, RunQuery},
    log::{MemoryLog, RunFilter, RunStatus},
    testing::Scripted,
};
use mynah_server::{Agent, Server};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpListener,
    time::timeout,
};

use crate::common::{Running, calls, cutting, engine, paced, sample, says};

/// An agent that asks before it pays; one whose run exists has paid.
fn cashier() -> Agent {
    let make = |exists: bool| match exists {
        false => engine([calls("pay")]),
        true => engine([says("Paid.")]),
    };
    Agent::new("cashier", make(false)).made_by(move |_, run| {
        let engine = make(run.is_some());
        Box::pin(async move { Ok(engine) })
    })
}

fn greeter() -> Agent {
    let make = || Engine::new(Scripted::new([says("Hello!")]).unwrap());
    Agent::new("greeter", make()).made_by(move |_, _| {
        let engine = make();
        Box::pin(async move { Ok(engine) })
    })
}

async fn serving() -> (Running, Client, Arc<MemoryLog>) {
    let log = Arc::new(MemoryLog::new());
    let server = Server::new(Arc::clone(&log)).agent(cashier()).agent(greeter());
    let server = Running::start(server).await;
    let client = Client::new(&server.url("")).unwrap();
    (server, client, log)
}

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn runs_are_started_decided_followed_and_checked() {
    let (_server, client, _) = serving().await;
    let start = || client.start("Pay Ada").agent("cashier").run_id("pay 1/2").wait(LONG);
    let run = start().send().await.unwrap();
    assert_eq!((run.summary.status, run.agent.as_deref()), (RunStatus::Suspended, Some("cashier")));
    let Some(Waiting::Approval(calls)) = &run.waiting else { panic!("{run:?}") };
    assert_eq!((&*calls[0].name, &calls[0].arguments["euros"]), ("pay", &json!(7)));
    assert_eq!(run.end.as_ref().unwrap().reason.as_str(), "manual_tool_calls");
    assert_eq!(start().send().await.unwrap().summary.hash, run.summary.hash, "it attaches");

    let approve = Signal::approve("c0");
    client.signal("pay 1/2", "k", &approve).await.unwrap();
    let mut events = client.events("pay 1/2", None);
    let mut last = None;
    while let Some(event) = timeout(LONG, events.try_next()).await.unwrap().unwrap() {
        last = Some(event);
    }
    assert!(matches!(last.unwrap().event, RunEvent::Sealed { .. }));
    client.signal("pay 1/2", "k", &approve).await.expect("the same key again");

    let run = client.run("pay 1/2").await.unwrap();
    assert_eq!((run.summary.status, &run.error), (RunStatus::Completed, &None));
    assert_eq!(run.end.unwrap().status, RunStatus::Completed);
    assert_eq!(client.verify("pay 1/2").await.unwrap().status, CheckStatus::Verified);
    let replayed = client.replay("pay 1/2").await.unwrap();
    assert_eq!(
        (replayed.status, replayed.members.contains_key("records")),
        (CheckStatus::Equal, true)
    );
    let fork = client.fork("pay 1/2", 2, "fork").await.unwrap();
    assert!(fork.abandoned);
    client.signal("fork", "stop", &Signal::Cancel).await.unwrap();

    let said = client.say("s", "hi").agent("greeter").send().await.unwrap();
    assert_eq!(said.summary.session_id.as_deref(), Some("s"));
    let list = client.runs(RunFilter::new().limit(2)).await.unwrap();
    assert_eq!(list.runs.len(), 2);
    let filter = RunFilter::new().limit(2).after(list.next.unwrap());
    assert_eq!(client.runs(filter).await.unwrap().runs.len(), 1);
    let cancelled = RunFilter::new().status(RunStatus::Cancelled);
    assert_eq!(client.runs(cancelled).await.unwrap().runs[0].summary.run_id, "fork");
}

#[tokio::test]
async fn runs_are_searched() {
    let (_server, client, _) = serving().await;
    client.start("Pay Ada").agent("cashier").run_id("paid").wait(LONG).send().await.unwrap();
    client.start("Hi").agent("greeter").run_id("greeted").wait(LONG).send().await.unwrap();
    let found = async |query: RunQuery| client.runs(query).await.unwrap().runs;
    let all = || RunQuery::from(RunFilter::new().oldest_first());
    let ids = |runs: &[ListedRun]| {
        runs.iter().map(|run| run.summary.run_id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&found(all()).await), ["paid", "greeted"]);
    let said = found(all().text("ADA").with_input()).await;
    assert_eq!((ids(&said), said[0].input.as_deref()), (vec!["paid".to_owned()], Some("Pay Ada")));
    let place = said[0].found.as_ref().unwrap();
    assert_eq!((place.seq, &*place.before, &*place.text), (1, "Pay ", "Ada"));
    assert_eq!(ids(&found(all().agent("greeter")).await), ["greeted"]);
    assert!(found(all().min_cost(100.0)).await.is_empty());
    assert!(found(all().min_duration(Duration::from_secs(3600))).await.is_empty());
    let abandoned = RunFilter::new().abandoned(0);
    assert!(found(abandoned.into()).await.is_empty(), "both have an end or wait");
}

#[tokio::test]
async fn a_wait_is_not_shorter_than_it_was_asked_for() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let start = client.start("hi").wait(Duration::from_millis(900));
    let request = async {
        let (stream, _) = listener.accept().await.unwrap();
        BufReader::new(stream).lines().next_line().await.unwrap().unwrap()
    };
    let (sent, request) = tokio::join!(start.send(), request);
    assert!(sent.is_err(), "the connection was closed");
    assert_eq!(request, "POST /v1/runs?wait=1 HTTP/1.1");
}

#[tokio::test]
async fn what_a_newer_server_adds_is_read() {
    let (_server, client, log) = serving().await;
    sample(&log).await;
    let known = client.run("pays").await.unwrap();
    let mut told = json!(known.summary);
    told["abandoned"] = json!(false);
    told["end"] = json!({"kind": "suspended", "seq": 4, "reason": "ask_user", "mood": "calm"});
    told["waiting"] = json!({"for": "full_moon", "at": 17});
    told["colour"] = json!("blue");
    let run: RunInfo = serde_json::from_value(told).unwrap();
    assert_eq!((run.waiting, run.summary), (Some(Waiting::Other), known.summary));
    assert_eq!(run.end.unwrap().status, RunStatus::Suspended);
    let told = json!({"status": "half_verified", "records": 3});
    let report: CheckReport = serde_json::from_value(told).unwrap();
    assert_eq!(report.status, CheckStatus::Unknown);
}

#[tokio::test]
async fn an_error_becomes_one_of_mynah() {
    async fn asked(client: &Client, run: &str) -> mynah::Result<()> {
        client.run(run).await?;
        Ok(())
    }
    let (server, client, _) = serving().await;
    let error = asked(&client, "none").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Log(LogReason::RunNotFound));
    assert_eq!((&error.metadata()["run_id"], error.status()), (&json!("none"), Some(404)));
    let shown = "log_error/run_not_found (404): there is no run none in this log";
    assert_eq!(error.to_string(), shown);
    drop(server);
    let offline = Client::new("http://127.0.0.1:9").unwrap();
    let error = asked(&offline, "r").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::NetworkError), "{error}");
    let cause = error.source().unwrap().downcast_ref::<ClientError>().unwrap();
    let mut causes = std::iter::successors(cause.source(), |&cause| cause.source());
    assert!(causes.any(|cause| cause.is::<std::io::Error>()), "{cause:?}");
}

#[tokio::test]
async fn what_the_server_refuses_is_an_error_with_its_code() {
    let (_server, client, log) = serving().await;
    sample(&log).await;
    let error = client.run("none").await.unwrap_err();
    assert_eq!((error.status, &*error.code), (Some(404), "log_error/run_not_found"));
    assert_eq!(error.metadata()["run_id"], "none");
    assert!(!error.is_temporary());
    let error = client.events("none", None).try_next().await.unwrap_err();
    assert_eq!(error.status, Some(404));
    let early = Signal::Answer("x".to_owned());
    let error = client.signal("pays", "k", &early).await.unwrap_err();
    assert_eq!(error.to_string().split(':').next(), Some("session_error/invalid_status (409)"));
    let error = client.start("hi").send().await.unwrap_err();
    assert_eq!(error.status, Some(400), "{error}");
    for wrong in ["nowhere", "http://h:78780", "ftp://h", "http://user:secret@h"] {
        let error = Client::new(wrong).unwrap_err();
        assert_eq!(error.code, "invalid_url", "{wrong}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn a_token_is_sent() {
    let server = Server::new(MemoryLog::new()).token("0123456789abcdef");
    let server = Running::start(server).await;
    let client = Client::new(&server.url("/")).unwrap();
    let error = client.runs(RunFilter::new()).await.unwrap_err();
    assert_eq!((error.status, &*error.code), (Some(401), "http_error/token_required"));
    let client = client.token("0123456789abcdef");
    assert_eq!(client.runs(RunFilter::new()).await.unwrap().runs, []);
    assert!(!format!("{client:?}").contains("0123456789abcdef"));
}

#[tokio::test]
async fn events_continue_over_broken_connections() {
    let log = Arc::new(MemoryLog::new());
    let (slow, permits) = paced(60);
    let server = Server::new(Arc::clone(&log)).agent(Agent::new("slow", slow));
    let server = Running::start(server).await;
    let proxy = cutting(server.address, 7).await;
    let client = Client::new(&format!("http://{proxy}")).unwrap();
    Client::new(&server.url("")).unwrap().start("hi").run_id("r").send().await.unwrap();
    let reader = tokio::spawn(async move {
        let (mut events, mut seen) = (client.events("r", None), Vec::new());
        while let Some(event) = events.try_next().await.unwrap() {
            seen.push(event);
        }
        seen
    });
    for _ in 0..62 {
        permits.add_permits(1);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let seen = timeout(LONG, reader).await.unwrap().unwrap();
    let only = |list: &[FollowedEvent]| list.iter().map(|e| e.event.clone()).collect::<Vec<_>>();
    let (mut whole, mut events) = (Vec::new(), mynah::follow(&log, "r", None));
    while let Some(event) = events.try_next().await.unwrap() {
        whole.push(event);
    }
    assert_eq!(only(&seen), only(&whole));
}

#[tokio::test]
async fn a_server_that_stays_away_is_an_error_after_a_while() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::new(&format!("http://{address}")).unwrap();
    let mut events = client.events("r", None).patience(Duration::from_millis(200));
    let error = timeout(LONG, events.try_next()).await.unwrap().unwrap_err();
    assert_eq!((&*error.code, error.is_temporary()), ("unreachable", true), "{error}");
    assert!(error.detail.contains(&address.to_string()), "{error}");
}
