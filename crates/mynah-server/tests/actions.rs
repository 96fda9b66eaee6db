//! What can be done over HTTP.

use std::{sync::Arc, time::Duration};

use mynah::{
    Engine, Error, LogReason, Thread, Tool, follow,
    log::{Append, Head, Log, LogFuture, MemoryLog, RunStatus, forward_log},
    testing::Scripted,
};
use mynah_server::{Agent, Server};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::common::{Running, calls, engine, json_of, paced, parse, problem_of, sample, says};

/// An agent that pays: a new run needs approval, and one that exists says that it was done.
fn cashier() -> Agent {
    let make = |exists: bool| match exists {
        false => engine([calls("pay"), says("Paid.")]),
        true => engine([says("Done.")]),
    };
    let agent = Agent::new("cashier", make(false));
    agent.made_by(move |_, run| {
        let engine = make(run.is_some());
        Box::pin(async move { Ok(engine) })
    })
}

/// An agent that answers at once.
fn greeter() -> Agent {
    let make = || Engine::new(Scripted::new([says("Hello!")]).unwrap()).model("greeter-1");
    Agent::new("greeter", make()).made_by(move |_, _| {
        let engine = make();
        Box::pin(async move { Ok(engine) })
    })
}

pub(crate) async fn serving() -> (Running, Arc<MemoryLog>) {
    let log = Arc::new(MemoryLog::new());
    sample(&log).await;
    let server = Server::new(Arc::clone(&log)).agent(cashier()).agent(greeter());
    (Running::start(server).await, log)
}

#[tokio::test]
async fn agents_are_listed() {
    let (server, _) = serving().await;
    let agents = server.json("/v1/agents").await;
    assert_eq!(agents["actions"], true);
    assert_eq!(agents["agents"][0]["name"], "cashier");
    assert_eq!(
        agents["agents"][0]["tools"][2],
        json!({"name": "pay", "description": "Pays", "asks": true})
    );
    assert_eq!(agents["agents"][1]["model"], "greeter-1");
    let read_only = Running::start(Server::new(MemoryLog::new())).await;
    assert_eq!(read_only.json("/v1/agents").await, json!({"actions": false, "agents": []}));
}

#[tokio::test]
async fn a_run_that_no_agent_could_have_begun_has_none() {
    let log = Arc::new(MemoryLog::new());
    sample(&log).await;
    let alone = Running::start(Server::new(Arc::clone(&log)).agent(greeter())).await;
    assert_eq!(alone.json("/v1/runs/pays").await["agent"], json!(null));
}

#[tokio::test]
async fn a_run_is_started_and_waited_for() {
    let (server, log) = serving().await;
    let body = json!({"agent": "greeter", "input": "hi", "key": "a b/c"});
    let response = server.post("/v1/runs?wait=30", &body).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["location"], "/v1/runs/a%20b%2Fc");
    let place = response.headers()["location"].to_str().unwrap().to_owned();
    let run = json_of(response).await;
    assert_eq!((&run["run_id"], &run["status"]), (&json!("a b/c"), &json!("completed")));
    assert_eq!((&run["agent"], &run["answer"]), (&json!("greeter"), &json!("Hello!")));
    assert_eq!(server.json(&place).await, run);
    assert!(log.run("a b/c").await.unwrap().unwrap().seal.is_some());
}

#[tokio::test]
async fn a_run_that_is_started_at_once_can_be_followed() {
    let (server, log) = serving().await;
    let body = json!({"agent": "greeter", "input": [{"role": "user", "content": "hi"}]});
    let response = server.post("/v1/runs", &body).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let run = json_of(response).await["run_id"].as_str().unwrap().to_owned();
    let sent = server.stream(&format!("/v1/runs/{run}/events")).await;
    assert_eq!(sent.last().unwrap().event.as_deref(), Some("end"));
    let said: Vec<&Value> = sent.iter().map(|sent| &sent.data["event"]["type"]).collect();
    assert!(said.contains(&&json!("sealed")), "{said:?}");
    let (mut events, mut count) = (follow(&log, &run, None), 0);
    while events.try_next().await.unwrap().is_some() {
        count += 1;
    }
    assert_eq!(sent.len(), count + 1);
}

#[tokio::test]
async fn a_run_streams_in_the_response_until_it_waits_and_from_there_to_its_end() {
    let (server, _) = serving().await;
    let streamed = async |path: &str, body: Value| {
        let request = server.request(Method::POST, path).header("mynah-request", "1");
        let request = request.header("accept", "text/event-stream");
        let request = request.header("content-type", "application/json").body(body.to_string());
        let sent = parse(&request.send().await.unwrap().text().await.unwrap());
        let (end, events) = sent.split_last().unwrap();
        assert_eq!(end.event.as_deref(), Some("end"));
        events
            .iter()
            .map(|sent| sent.data["event"]["type"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let first = streamed("/v1/runs", json!({"agent": "cashier", "input": "pay", "key": "r"})).await;
    assert_eq!(
        (first.first().unwrap().as_str(), first.last().unwrap().as_str()),
        ("run_started", "suspended")
    );
    let rest = streamed("/v1/runs/r/signals", json!({"approve": ["c0"]})).await;
    assert_eq!(
        (rest.first().unwrap().as_str(), rest.last().unwrap().as_str()),
        ("resumed", "sealed")
    );
    assert!(rest.contains(&"tool_execution_started".to_owned()), "{rest:?}");
}

#[tokio::test]
async fn a_key_starts_one_run() {
    let (server, log) = serving().await;
    let body = json!({"agent": "greeter", "input": "hi", "key": "once"});
    let (first, second) = tokio::join!(
        server.post("/v1/runs?wait=30", &body),
        server.post("/v1/runs?wait=30", &body)
    );
    let (first, second) = (json_of(first).await, json_of(second).await);
    assert_eq!(first["fingerprint"], second["fingerprint"], "{first} {second}");
    let again = json_of(server.post("/v1/runs?wait=30", &body).await).await;
    assert_eq!(again["hash"], first["hash"]);
    assert_eq!(log.run("once").await.unwrap().unwrap().totals.turns, 1);
    let other = json!({"agent": "greeter", "input": "something else", "key": "once"});
    let refused = server.post("/v1/runs", &other).await;
    assert_eq!(problem_of(refused).await, (409, "log_error/run_exists".to_owned()));
}

#[tokio::test]
async fn signals_continue_runs_that_wait() {
    let (server, log) = serving().await;
    let signal = async |run: &str, body: Value| {
        let response = server.post(&format!("/v1/runs/{run}/signals?wait=30"), &body).await;
        assert_eq!(response.status(), StatusCode::OK, "{run}");
        json_of(response).await["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(signal("asks", json!({"answer": "two", "agent": "cashier"})).await, "completed");
    assert_eq!(signal("pays", json!({"reject": {"c0": "too much"}})).await, "completed");
    for run in ["approved", "edited", "given"] {
        engine([calls("pay")]).chat("pay").record(&log).run_id(run).await.unwrap();
    }
    assert_eq!(signal("approved", json!({"approve": ["c0"]})).await, "completed");
    assert_eq!(signal("edited", json!({"approve_with": {"c0": {"euros": 5}}})).await, "completed");
    assert_eq!(signal("given", json!({"results": {"c0": {"paid": true}}})).await, "completed");
    let facts = |run: &'static str| {
        let log = Arc::clone(&log);
        async move {
            let records = log.read(run, 1, 100).await.unwrap();
            json!(records.iter().map(|record| record.fact().unwrap()).collect::<Vec<_>>())
                .to_string()
        }
    };
    assert!(facts("asks").await.contains("two"));
    assert!(facts("pays").await.contains("too much"));
    assert!(facts("given").await.contains("paid"));
    assert!(facts("edited").await.contains("\\\"euros\\\":5"), "{}", facts("edited").await);
    for run in ["asks", "pays", "approved", "given"] {
        assert_eq!(server.json(&format!("/v1/runs/{run}/verify")).await["status"], "verified");
    }
}

#[tokio::test]
async fn a_run_that_waits_is_cancelled_and_one_that_died_is_resumed() {
    let (server, log) = serving().await;
    let cancelled = server.post("/v1/runs/asks/signals?wait=30", &json!({"cancel": true})).await;
    assert_eq!(json_of(cancelled).await["status"], "cancelled");
    let again = server.post("/v1/runs/asks/signals", &json!({"cancel": true})).await;
    assert_eq!(problem_of(again).await, (409, "log_error/sealed".to_owned()));

    let fork = mynah::fork_run(&log, "done", 2).await.unwrap().run_id;
    let resumed =
        server.post(&format!("/v1/runs/{fork}/signals?wait=30"), &json!({"resume": true})).await;
    assert_eq!(json_of(resumed).await["status"], "completed");
    let fork = mynah::fork_run(&log, "done", 2).await.unwrap().run_id;
    let said = json!({"message": "and the sea?"});
    let resumed = server.post(&format!("/v1/runs/{fork}/signals?wait=30"), &said).await;
    assert_eq!(json_of(resumed).await["status"], "completed");
    let events = server.json(&format!("/v1/runs/{fork}/events?limit=1000")).await;
    assert!(events.to_string().contains("and the sea?"));
}

#[tokio::test]
async fn a_run_in_progress_is_cancelled_and_takes_no_other_signal() {
    let log = Arc::new(MemoryLog::new());
    let (slow, permits) = paced(3);
    let server =
        Running::start(Server::new(Arc::clone(&log)).agent(Agent::new("slow", slow))).await;
    permits.add_permits(2);
    let started = server.post("/v1/runs", &json!({"input": "hi", "key": "r"})).await;
    assert_eq!(started.status(), StatusCode::ACCEPTED);
    let waited = server.post("/v1/runs?wait=1", &json!({"input": "hi", "key": "r"})).await;
    assert_eq!(waited.status(), StatusCode::ACCEPTED, "it goes on after the wait");
    let refused = server.post("/v1/runs/r/signals", &json!({"resume": true})).await;
    assert_eq!(problem_of(refused).await, (409, "http_error/run_is_live".to_owned()));
    let cancelled = server.post("/v1/runs/r/signals?wait=30", &json!({"cancel": true})).await;
    assert_eq!(json_of(cancelled).await["status"], "cancelled");
    assert_eq!(log.run("r").await.unwrap().unwrap().status, RunStatus::Cancelled);
}

#[tokio::test]
async fn a_run_is_replayed_alone_and_with_an_agent() {
    let (server, _) = serving().await;
    let replayed = async |body: Value| {
        let response = server.post("/v1/runs/done/replay", &body).await;
        assert_eq!(response.status(), StatusCode::OK, "{body}");
        json_of(response).await
    };
    let equal = replayed(json!({})).await;
    assert_eq!(equal["status"], "equal", "{equal}");
    let differs = replayed(json!({"agent": "greeter"})).await;
    assert_eq!(
        (&differs["status"], &differs["err"]["type"]),
        (&json!("differs"), &json!("replay_mismatch"))
    );
    let other = replayed(json!({"system": "Be kind."})).await;
    assert_eq!(other["status"], "differs");
    let refused = server.post("/v1/runs/done/replay", &json!({"agent": "none"})).await;
    assert_eq!(problem_of(refused).await.0, 404);
}

#[tokio::test]
async fn a_session_is_begun_and_continued() {
    let (server, log) = serving().await;
    let say = async |text: &str| {
        let body = json!({"agent": "greeter", "text": text});
        let response = server.post("/v1/sessions/new/messages?wait=30", &body).await;
        assert_eq!(response.status(), StatusCode::OK);
        json_of(response).await
    };
    let first = say("hi").await;
    assert_eq!((&first["session_id"], &first["status"]), (&json!("new"), &json!("completed")));
    let second = say("and again").await;
    assert_eq!(second["previous"]["run_id"], first["run_id"]);
    let body = json!({"agent": "greeter", "input": "once more", "session": "new"});
    let third = json_of(server.post("/v1/runs?wait=30", &body).await).await;
    assert_eq!(third["previous"]["run_id"], second["run_id"]);
    let session = server.json("/v1/sessions/new").await;
    assert_eq!(session["runs"].as_array().unwrap().len(), 3);

    // A turn whose process died blocks the next one.
    let restored = mynah::restore_session(&log, "new").await.unwrap().session;
    let (slow, permits) = paced(3);
    permits.add_permits(1);
    let mut turn = slow.reply(&restored, "slowly").record(&log).stream().started().await.unwrap();
    futures_util::StreamExt::next(&mut turn).await.unwrap().unwrap();
    drop(turn);
    let refused =
        server.post("/v1/sessions/new/messages", &json!({"agent": "greeter", "text": "x"})).await;
    assert_eq!(problem_of(refused).await, (409, "http_error/unfinished_turn".to_owned()));
}

#[tokio::test]
async fn requests_that_do_not_fit_are_refused() {
    let (server, _) = serving().await;
    for (path, body, status) in [
        ("/v1/runs", json!({}), 400),
        ("/v1/runs", json!({"input": 7}), 400),
        ("/v1/runs", json!(["greeter", "hi"]), 400),
        ("/v1/runs/pays/signals", json!(["cashier", null, null, ["c0"]]), 400),
        ("/v1/runs/a%00b/signals", json!({"cancel": true}), 404),
        ("/v1/runs", json!({"input": "hi"}), 400),
        ("/v1/runs", json!({"agent": "none", "input": "hi"}), 404),
        ("/v1/runs", json!({"agent": "greeter", "input": "hi", "odd": 1}), 400),
        ("/v1/runs", json!({"agent": "greeter", "input": [{"role": "odd", "content": "x"}]}), 400),
        ("/v1/runs", json!({"agent": "greeter", "input": [], "key": "k"}), 422),
        ("/v1/runs", json!({"agent": "greeter", "input": "hi", "key": ""}), 422),
        ("/v1/runs", json!({"agent": "greeter", "input": "hi", "key": "x".repeat(256)}), 422),
        ("/v1/runs", json!({"agent": "greeter", "input": "hi", "key": "k", "session": "s"}), 400),
        ("/v1/runs", json!({"agent": "greeter", "input": "hi", "queue": ""}), 400),
        ("/v1/runs", json!({"agent": "greeter", "input": "hi", "session": ""}), 400),
        ("/v1/runs?wait=601", json!({"agent": "greeter", "input": "hi"}), 400),
        ("/v1/runs?wait=x", json!({"agent": "greeter", "input": "hi"}), 400),
        ("/v1/runs?odd=1", json!({"agent": "greeter", "input": "hi"}), 400),
        ("/v1/runs/none/signals", json!({"cancel": true}), 404),
        ("/v1/runs/asks/signals", json!({}), 400),
        ("/v1/runs/asks/signals", json!({"cancel": true, "resume": true}), 400),
        ("/v1/runs/asks/signals", json!({"resume": true, "on_uncertain": "odd"}), 400),
        ("/v1/runs/asks/signals", json!({"approve": ["c0"]}), 409),
        ("/v1/runs/pays/signals", json!({"answer": "x"}), 409),
        ("/v1/runs/pays/signals", json!({"approve": ["other"]}), 409),
        ("/v1/runs/pays/signals", json!({"reject": {"c0": 7}}), 400),
        ("/v1/runs/pays/signals", json!({"resume": true}), 409),
        ("/v1/runs/pays/signals", json!({"approve": ["c0"], "agent": "none"}), 404),
        ("/v1/runs/pays/signals", json!({"approve": ["c0"], "agent": "greeter"}), 422),
        ("/v1/runs/done/signals", json!({"resume": true}), 409),
        ("/v1/runs/none/fork", json!({"at": 1}), 404),
        ("/v1/runs/none/replay", json!({}), 404),
        ("/v1/runs/done/replay", json!({"odd": 1}), 400),
        ("/v1/runs/done/replay?odd=1", json!({}), 400),
        ("/v1/sessions/s/messages", json!({"agent": "greeter"}), 400),
        ("/v1/sessions/s/messages", json!({"text": "x", "agent": "none"}), 404),
        ("/v1/login", json!({}), 400),
        ("/v1/login", json!({"token": "x"}), 401),
    ] {
        let refused = server.post(path, &body).await;
        let (found, code) = problem_of(refused).await;
        assert_eq!(found, status, "{path} {body}: {code}");
    }
    let send = async |kind: &str, body: String| {
        let request = server.request(Method::POST, "/v1/runs").header("mynah-request", "1");
        problem_of(request.header("content-type", kind).body(body).send().await.unwrap()).await.0
    };
    assert_eq!(send("text/plain", "{}".to_owned()).await, 415);
    assert_eq!(send("application/json", "{".to_owned()).await, 400);
    assert_eq!(send("application/json; charset=utf-8", "\u{0}".to_owned()).await, 400);
    let large = format!("{{\"input\": \"{}\"}}", "x".repeat(5 << 20));
    assert_eq!(send("application/json", large.clone()).await, 413);
    for (body, said) in [
        (large, "body: it has more than 4194304 bytes, which `--max-body` allows"),
        (String::new(), "body: it is empty; give a JSON object"),
    ] {
        let request = server.request(Method::POST, "/v1/runs").header("mynah-request", "1");
        let request = request.header("content-type", "application/json").body(body);
        assert_eq!(json_of(request.send().await.unwrap()).await["detail"], said);
    }
    // Nothing was started or changed by any of them.
    assert_eq!(server.json("/v1/runs").await["runs"].as_array().unwrap().len(), 6);
    assert_eq!(server.json("/v1/runs/pays").await["status"], "suspended");
}

#[tokio::test]
async fn a_server_without_actions_changes_nothing() {
    let log = Arc::new(MemoryLog::new());
    sample(&log).await;
    let before = log.runs(mynah::log::RunFilter::new()).await.unwrap();
    let server = Running::start(Server::new(Arc::clone(&log))).await;
    for (path, body) in [
        ("/v1/runs", json!({"input": "hi"})),
        ("/v1/runs/asks/signals", json!({"cancel": true})),
        ("/v1/runs/done/fork", json!({"at": 2})),
        ("/v1/runs/done/replay", json!({"rerun_tools": true})),
        ("/v1/sessions/s/messages", json!({"text": "hi"})),
    ] {
        let refused = server.post(path, &body).await;
        assert_eq!(problem_of(refused).await, (403, "http_error/read_only".to_owned()), "{path}");
    }
    assert_eq!(server.post("/v1/runs/done/replay", &json!({})).await.status(), StatusCode::OK);
    assert_eq!(log.runs(mynah::log::RunFilter::new()).await.unwrap(), before);

    // Without an agent, actions that need none are possible.
    let server = Running::start(Server::new(Arc::clone(&log)).allow_actions()).await;
    assert_eq!(
        server.post("/v1/runs/done/fork", &json!({"at": 2})).await.status(),
        StatusCode::CREATED
    );
    let cancelled = server.post("/v1/runs/asks/signals", &json!({"cancel": true})).await;
    assert_eq!(cancelled.status(), StatusCode::ACCEPTED);
    let refused = server.post("/v1/runs", &json!({"input": "hi"})).await;
    assert_eq!(problem_of(refused).await, (404, "http_error/not_found".to_owned()));
}

#[tokio::test]
async fn what_a_run_begins_with_may_be_a_whole_thread() {
    let (server, log) = serving().await;
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]);
    let body = json!({"agent": "greeter", "input": messages, "key": "t"});
    assert_eq!(server.post("/v1/runs?wait=30", &body).await.status(), StatusCode::OK);
    let kept = mynah::recorded_call(&log, "t").await.unwrap();
    assert_eq!(kept.thread, Thread::new().with_system("Be brief.").with_user("hi"));
}

#[tokio::test]
async fn what_a_server_has_no_room_for_waits_in_its_queue_or_is_refused() {
    let log = Arc::new(MemoryLog::new());
    let (slow, permits) = paced(1);
    let server = Server::new(Arc::clone(&log)).agent(Agent::new("slow", slow)).concurrency(1);
    let server = Running::start(server.queue("none")).await;
    for key in ["first", "second"] {
        let started = server.post("/v1/runs", &json!({"input": "hi", "key": key})).await;
        assert_eq!(started.status(), StatusCode::ACCEPTED);
    }
    let held = async |run: &str| log.run(run).await.unwrap().unwrap().held_until.is_some();
    assert!(held("first").await && !held("second").await);
    let turn = server.post("/v1/sessions/s/messages", &json!({"text": "hi"})).await;
    assert_eq!(turn.headers()["retry-after"], "1");
    assert_eq!(problem_of(turn).await, (503, "http_error/busy".to_owned()));
    // A message for a run that is performed needs no room.
    let said = server.post("/v1/runs/first/signals", &json!({"message": "hurry"})).await;
    assert_eq!(said.status(), StatusCode::ACCEPTED);
    permits.add_permits(100);
    let done = server.post("/v1/runs?wait=30", &json!({"input": "hi", "key": "first"})).await;
    assert_eq!(json_of(done).await["status"], "completed");
    let turn = server.post("/v1/sessions/s/messages?wait=30", &json!({"text": "hi"})).await;
    assert_eq!(turn.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_message_to_a_run_that_a_request_started_is_read() {
    let log = Arc::new(MemoryLog::new());
    let (slow, permits) = paced(1);
    let server = Server::new(Arc::clone(&log)).agent(Agent::new("slow", slow));
    let server = Running::start(server).await;
    server.post("/v1/runs", &json!({"input": "hi", "key": "r"})).await;
    let said = server.post("/v1/runs/r/signals", &json!({"message": "hurry"})).await;
    assert_eq!(said.status(), StatusCode::ACCEPTED);
    permits.add_permits(100);
    let done = server.post("/v1/runs?wait=30", &json!({"input": "hi", "key": "r"})).await;
    assert_eq!(json_of(done).await["status"], "completed");
    let records = server.json("/v1/runs/r/records?limit=100").await;
    let said = records["records"].as_array().unwrap().iter();
    let kinds: Vec<&Value> = said.map(|record| &record["kind"]).collect();
    assert!(kinds.contains(&&json!("user_message")), "{kinds:?}");
}

#[tokio::test]
async fn a_message_to_a_run_inside_a_tool_is_read_after_it() {
    let log = Arc::new(MemoryLog::new());
    let permits = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&permits);
    let slow = Tool::new("slow", "Waits", json!({})).handler(move |_, _| {
        let waits = Arc::clone(&waits);
        async move { waits.acquire().await.map_or("closed", |_| "done") }
    });
    let engine = engine([calls("slow"), says("Right away.")]).tool(slow);
    let server = Server::new(Arc::clone(&log)).agent(Agent::new("slow", engine));
    let server = Running::start(server).await;
    server.post("/v1/runs", &json!({"input": "hi", "key": "r"})).await;
    while log.run("r").await.unwrap().unwrap().totals.tool_calls == 0 {
        log.wait("r", log.head("r").await.unwrap().unwrap().seq).await.unwrap();
    }
    let said = server.post("/v1/runs/r/signals", &json!({"message": "hurry"})).await;
    assert_eq!(said.status(), StatusCode::ACCEPTED);
    permits.add_permits(1);
    let done = server.post("/v1/runs?wait=30", &json!({"input": "hi", "key": "r"})).await;
    assert_eq!(json_of(done).await["status"], "completed");
    let records = server.json("/v1/runs/r/records?limit=100").await.to_string();
    assert!(records.contains("hurry"), "{records}");
}

#[tokio::test]
async fn a_run_of_another_agent_is_not_shown_as_the_only_ones() {
    let log = Arc::new(MemoryLog::new());
    let work = engine([says("Never.")]).chat("hi").record(&log).run_id("r").agent("work");
    work.enqueue().await.unwrap();
    let server = Running::start(Server::new(Arc::clone(&log)).agent(greeter())).await;
    assert_eq!(server.json("/v1/runs/r").await["agent"], Value::Null);
    // A changed agent is refused with what to send.
    let refused = server.post("/v1/runs/r/signals", &json!({"resume": true})).await;
    assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let problem = json_of(refused).await;
    assert!(problem["detail"].as_str().unwrap().contains("allow_changed_agent"), "{problem}");
}

#[tokio::test]
async fn tools_are_run_again_by_the_agent_of_the_run() {
    let log = Arc::new(MemoryLog::new());
    sample(&log).await;
    let agent = Agent::new("looker", engine([calls("look"), says("It is blue.")]));
    let server = Running::start(Server::new(Arc::clone(&log)).agent(agent)).await;
    let replayed = server.post("/v1/runs/done/replay", &json!({"rerun_tools": true})).await;
    assert_eq!(replayed.status(), StatusCode::OK);
}

/// A log on a full disk.
#[derive(Clone)]
struct Full(MemoryLog);

impl Log for Full {
    fn append(&self, _: Append) -> LogFuture<'_, Head> {
        Box::pin(async { Err(Error::log(LogReason::Unavailable)) })
    }

    fn beat(&self, _: &str, _: Duration) -> LogFuture<'_, ()> {
        Box::pin(async { Err(Error::log(LogReason::Unavailable)) })
    }

    forward_log!(self => self.0, except append, beat);
}

#[tokio::test]
async fn a_log_that_cannot_be_written_is_reported() {
    let server = Running::start(Server::new(Full(MemoryLog::new())).agent(greeter())).await;
    assert_eq!(server.problem("/readyz").await, (503, "http_error/log_unavailable".to_owned()));
    let text = server.get("/metrics").await.text().await.unwrap();
    assert!(text.contains("mynah_log_up 0\n"), "{text}");
    let refused = server.post("/v1/runs", &json!({"input": "hi"})).await;
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(problem_of(refused).await, (503, "log_error/unavailable".to_owned()));
}

#[tokio::test]
async fn names_with_nul_are_refused_and_texts_with_it_are_kept() {
    let server = Running::start(Server::new(MemoryLog::new()).agent(greeter())).await;
    for body in [
        json!({"input": "hi", "key": "a\0b"}),
        json!({"input": "hi", "session": "a\0b"}),
        json!({"input": "hi", "queue": "a\0b"}),
    ] {
        let refused = server.post("/v1/runs", &body).await;
        assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY, "{body}");
        let problem = json_of(refused).await;
        assert!(problem["detail"].as_str().unwrap().contains("U+0000"), "{problem}");
    }
    assert_eq!(server.problem("/v1/runs/a%00b").await.0, 404);
    assert_eq!(server.json("/v1/runs?session=a%00b").await["runs"], json!([]));
    let started = server.post("/v1/runs?wait=9", &json!({"input": "a\0b", "key": "r"})).await;
    assert_eq!(started.status(), StatusCode::OK);
    let records = server.json("/v1/runs/r/records").await;
    assert!(records["records"][0].to_string().contains("a\\u0000b"), "{records}");
}
