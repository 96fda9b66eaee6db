//! Forks of runs over HTTP, and runs that are tried with another prompt or model.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use mynah::{
    Engine, Tool, ToolOutcome, fork_run,
    log::{Kind, Log as _, MemoryLog, Record, RunStatus},
    testing::Scripted,
};
use mynah_server::{Agent, Server};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::{
    actions::serving,
    common::{Running, engine, json_of, paced, problem_of, says},
};

#[tokio::test]
async fn a_run_is_forked_and_the_fork_continued() {
    let (server, log) = serving().await;
    let response = server.post("/v1/runs/done/fork", &json!({"at": 3, "key": "f-1"})).await;
    assert_eq!(
        (response.status(), &response.headers()["location"]),
        (StatusCode::CREATED, &"/v1/runs/f-1".parse().unwrap())
    );
    let fork = json_of(response).await;
    assert_eq!((&fork["parent"]["run_id"], &fork["parent"]["seq"]), (&json!("done"), &json!(3)));
    assert_eq!(log.head("f-1").await.unwrap().unwrap().seq, 3);
    let again = server.post("/v1/runs/done/fork", &json!({"at": 3, "key": "f-1"})).await;
    assert_eq!(json_of(again).await, fork, "the same request attaches to it");
    let taken = server.post("/v1/runs/done/fork", &json!({"at": 2, "key": "f-1"})).await;
    assert_eq!(problem_of(taken).await.0, 409);

    let body = json!({"at": 2, "key": "f-2", "resume": true, "message": "And green?"});
    assert_eq!(server.post("/v1/runs/done/fork", &body).await.status(), StatusCode::CREATED);
    let ended = server.stream("/v1/runs/f-2/events").await;
    assert!(ended.iter().any(|sent| sent.data["event"]["type"] == "completed"));
    for (body, status) in [
        (json!({}), 400),
        (json!({"at": 99}), 422),
        (json!({"at": 9}), 422),
        (json!({"at": 2, "message": "x"}), 400),
        (json!({"at": 2, "key": "done~2"}), 422),
        (json!({"at": 2, "resume": true, "agent": "none"}), 404),
    ] {
        let refused = server.post("/v1/runs/done/fork", &body).await;
        assert_eq!(problem_of(refused).await.0, status, "{body}");
    }
}

#[tokio::test]
async fn a_fork_that_waits_for_a_person_is_not_resumed() {
    let (server, log) = serving().await;
    for run in ["pays", "asks"] {
        let at = log.head(run).await.unwrap().unwrap().seq;
        let body = json!({"at": at, "key": format!("{run}-fork"), "resume": true});
        let response = server.post(&format!("/v1/runs/{run}/fork"), &body).await;
        assert_eq!(response.status(), StatusCode::CREATED, "{run}");
        let fork = json_of(response).await;
        assert_eq!(fork["status"], "suspended", "{fork}");
        assert_eq!(fork["waiting"], server.json(&format!("/v1/runs/{run}")).await["waiting"]);
    }
    // A message answers a question, and decides nothing about calls.
    let at = log.head("pays").await.unwrap().unwrap().seq;
    let body = json!({"at": at, "key": "said", "resume": true, "message": "Go on."});
    let refused = server.post("/v1/runs/pays/fork", &body).await;
    assert_eq!(problem_of(refused).await, (409, "http_error/waits_for_decision".to_owned()));
    assert!(log.run("said").await.unwrap().is_none(), "nothing is left behind");
    let at = log.head("asks").await.unwrap().unwrap().seq;
    let body =
        json!({"at": at, "key": "answered", "resume": true, "message": "two", "agent": "cashier"});
    assert_eq!(server.post("/v1/runs/asks/fork", &body).await.status(), StatusCode::CREATED);
    stopped(&log, "answered").await;
    assert_eq!(log.run("answered").await.unwrap().unwrap().status, RunStatus::Completed);
    // A refusal has the words of the API.
    for run in ["pays", "asks"] {
        let refused =
            server.post(&format!("/v1/runs/{run}/signals"), &json!({"resume": true})).await;
        let detail = json_of(refused).await["detail"].as_str().unwrap().to_owned();
        assert!(!detail.contains("::"), "{detail}");
    }
}

#[tokio::test]
async fn a_message_to_a_session_that_waits_is_refused_and_answers_nothing() {
    let log = Arc::new(MemoryLog::new());
    let asks = vec![calling("ask", "a0"), says("Paid.")];
    let agent = payer("asker", &Arc::default(), asks.clone(), asks);
    let server = Running::start(Server::new(Arc::clone(&log)).agent(agent)).await;
    let say = async |text: &str| {
        server.post("/v1/sessions/s/messages?wait=30", &json!({"text": text})).await
    };
    let run = json_of(say("Pay.").await).await;
    assert_eq!(run["waiting"]["question"], "From which account?", "{run}");
    let refused = say("And order tea.").await;
    assert_eq!(refused.status(), StatusCode::CONFLICT);
    let problem = json_of(refused).await;
    assert_eq!(problem["code"], "http_error/unfinished_turn");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("From which account?") && !detail.contains("::"), "{detail}");
    let id = run["run_id"].as_str().unwrap();
    assert_eq!(log.run(id).await.unwrap().unwrap().status, RunStatus::Suspended);
    server.post(&format!("/v1/runs/{id}/signals?wait=30"), &json!({"answer": "The first."})).await;
    assert_eq!(say("And order tea.").await.status(), StatusCode::OK);
}

/// An answer that calls a tool.
fn calling(name: &str, id: &str) -> Value {
    let call = json!({"id": id, "name": name, "arguments": {"place": id}});
    json!([{"tool_call": call}, {"finish": "tool_calls"}])
}

/// An engine with a tool that counts how often it paid, and one that asks.
fn paying(paid: &Arc<AtomicU32>, answers: Vec<Value>) -> Engine {
    let paid = Arc::clone(paid);
    let pay = Tool::new("pay", "Pays", json!({})).manual().handler(move |_, _| {
        let count = paid.fetch_add(1, Relaxed) + 1;
        async move { format!("paid {count}") }
    });
    let ask = Tool::new("ask", "Asks", json!({}));
    let ask = ask.handler(async |_, _| ToolOutcome::ask("From which account?"));
    Engine::new(Scripted::new(answers).unwrap()).model("m").tool(pay).tool(ask)
}

/// An agent with that engine. Runs whose id begins with `tried` have other answers.
fn payer(name: &str, paid: &Arc<AtomicU32>, answers: Vec<Value>, tried: Vec<Value>) -> Agent {
    let paid = Arc::clone(paid);
    let make = move |answers: Vec<Value>| paying(&paid, answers);
    Agent::new(name, make(answers.clone())).made_by(move |log, run| {
        let (make, answers, tried) = (make.clone(), answers.clone(), tried.clone());
        Box::pin(async move {
            let Some(run) = run else { return Ok(make(answers)) };
            let is_answer = |record: &Record| record.kind() == Kind::AssistantCompleted;
            let given = log.read(&run, 1, 100).await?.into_iter().filter(is_answer).count();
            let mut answers = if run.starts_with("tried") { tried } else { answers };
            Ok(make(answers.split_off(given)))
        })
    })
}

/// Waits until a run has ended or waits.
async fn stopped(log: &MemoryLog, run: &str) {
    while let Some(found) = log.run(run).await.unwrap()
        && found.status == RunStatus::Running
    {
        log.wait(run, found.records).await.unwrap();
    }
}

#[tokio::test]
async fn a_run_is_tried_with_another_prompt_and_model_and_no_tool_runs() {
    let (log, paid) = (Arc::new(MemoryLog::new()), Arc::new(AtomicU32::new(0)));
    let pays = vec![calling("pay", "c1"), says("Paid.")];
    let more = vec![calling("pay", "c1"), calling("pay", "c2"), says("Paid twice.")];
    let agent = payer("payer", &paid, pays, more);
    let server = Running::start(Server::new(Arc::clone(&log)).agent(agent)).await;
    server.post("/v1/runs?wait=30", &json!({"input": "Pay.", "key": "once"})).await;
    let approved = server.post("/v1/runs/once/signals?wait=30", &json!({"approve": ["c1"]})).await;
    assert_eq!(json_of(approved).await["status"], "completed");
    assert_eq!(paid.load(Relaxed), 1);

    let body = json!({"at": 1, "key": "tried", "resume": true, "recorded_tools": true, "system": "Pay twice.", "input": "Pay now.", "model": "m-2"});
    let tried = json_of(server.post("/v1/runs/once/fork", &body).await).await;
    assert_eq!(tried["parent"]["run_id"], "once", "{tried}");
    server.stream("/v1/runs/tried/events").await;
    assert_eq!(paid.load(Relaxed), 1);
    let facts = facts(&server, "tried").await;
    let said = facts[0]["thread"]["messages"].as_array().unwrap().iter();
    let said: Vec<&Value> = said.map(|message| &message["content"]).collect();
    assert_eq!(said, ["Pay twice.", "Pay now."]);
    assert_eq!(facts[1]["about"]["model"], "m-2");
    let listed = server.json("/v1/runs?model=m-2").await;
    assert_eq!(listed["runs"][0]["run_id"], "tried", "it is listed under the model that answered");
    assert_eq!(facts[1]["about"]["options"]["tool_executor"], "recorded:once");
    // The first call is approved and answered as it was. The second is not in the other run.
    let find = |kind: &str| facts.iter().filter(|fact| fact["kind"] == kind).collect::<Vec<_>>();
    assert_eq!(find("tool_completed")[0]["content"], "paid 1");
    let decided = find("resumed");
    assert_eq!(decided[1]["approved"], json!(["c1"]));
    assert_eq!(decided[2]["rejected"], json!([["c2", "this call is not in the recorded run"]]));
    assert_eq!(find("completed").len(), 1);
    let replayed = server.post("/v1/runs/tried/replay", &json!({})).await;
    assert_eq!(json_of(replayed).await["status"], "equal");
    for (body, status) in [
        (json!({"at": 2, "system": "x"}), 422),
        (json!({"at": 2, "input": "x"}), 422),
        (json!({"at": 1, "model": "x"}), 400),
        (json!({"at": 1, "recorded_tools": true}), 400),
    ] {
        let refused = server.post("/v1/runs/once/fork", &body).await;
        assert_eq!(problem_of(refused).await.0, status, "{body}");
    }
}

#[tokio::test]
async fn a_fork_that_was_not_continued_has_not_started_and_is_not_running() {
    let (server, _) = serving().await;
    let body = json!({"at": 2, "key": "copy"});
    let forked = json_of(server.post("/v1/runs/done/fork", &body).await).await;
    assert_eq!((&forked["not_started"], &forked["abandoned"]), (&json!(true), &json!(true)));
    let ids = async |query: &str| {
        let list = server.json(&format!("/v1/runs?input=true&{query}")).await;
        let runs = list["runs"].as_array().unwrap().iter();
        runs.map(|run| run["run_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids("status=running").await, [""; 0]);
    assert_eq!(ids("status=abandoned").await, ["copy"]);
    let counts = server.json("/v1/log").await["counts"].clone();
    assert_eq!((&counts["running"], &counts["abandoned"]), (&json!(0), &json!(1)), "{counts}");
    assert_eq!(server.json("/v1/runs?prefix=copy").await["runs"][0]["not_started"], true);
    assert_eq!(
        server.json("/v1/runs?input=true&prefix=copy").await["runs"][0]["not_started"],
        true
    );
    let counted = async |query: &str| {
        let stats = server.json(&format!("/v1/stats?buckets=1&{query}")).await;
        stats["buckets"][0]["runs"].as_u64().unwrap()
    };
    assert_eq!((counted("status=running").await, counted("status=abandoned").await), (0, 1));
    // The time of a run that has not ended passes.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(ids("min_seconds=1").await.contains(&"copy".to_owned()));
    assert!(!ids("min_seconds=1").await.contains(&"done".to_owned()));
}

#[tokio::test]
async fn a_failed_run_tells_whether_a_resume_asks_the_model_again() {
    let log = Arc::new(MemoryLog::new());
    let agent = |name: &str, reason: &str| {
        Agent::new(name, engine([json!([{"error": reason}]), says("Back.")]))
    };
    let server = Server::new(Arc::clone(&log)).agent(agent("down", "rate_limited"));
    let server = server.agent(agent("bad", "invalid_request"));
    let server = Running::start(server).await;
    for (name, resumable) in [("down", true), ("bad", false)] {
        let body = json!({"agent": name, "input": "Hi", "key": name});
        let run = json_of(server.post("/v1/runs?wait=30", &body).await).await;
        assert_eq!(run["status"], "failed", "{run}");
        assert_eq!(
            (&run["resumable"], &run["continued_in"]),
            (&json!(resumable), &Value::Null),
            "{run}"
        );
        let body = json!({"agent": name, "resume": true, "allow_changed_agent": !resumable});
        let again = server.post(&format!("/v1/runs/{name}/signals?wait=30"), &body).await;
        assert_eq!(json_of(again).await["run_id"], format!("{name}~2"));
        let run = server.json(&format!("/v1/runs/{name}")).await;
        assert_eq!(run["continued_in"], format!("{name}~2"));
    }
    assert_eq!(server.json("/v1/runs/bad~2").await["resumable"], Value::Null);
}

#[tokio::test]
async fn another_model_is_one_of_the_agents_provider_and_recorded_with_it() {
    let log = Arc::new(MemoryLog::new());
    let engine = engine([says("Hello."), says("Hi."), says("Hey.")]).model(("near", "small"));
    let agent = Agent::new("greeter", engine);
    let server = Running::start(Server::new(Arc::clone(&log)).agent(agent)).await;
    server.post("/v1/runs?wait=30", &json!({"input": "Hi", "key": "one"})).await;
    let body = |key: &str, model: &str| json!({"at": 1, "key": key, "resume": true, "recorded_tools": true, "model": model});
    for model in ["far:large", "near:"] {
        let refused = server.post("/v1/runs/one/fork", &body("no", model)).await;
        assert_eq!(refused.status(), 400);
        let said = json_of(refused).await["detail"].as_str().unwrap().to_owned();
        assert!(said.starts_with("model: agent greeter calls near"), "{said}");
    }
    assert!(log.run("no").await.unwrap().is_none(), "nothing was forked");
    for (key, model, recorded) in
        [("two", "large", "near:large"), ("three", "near:a:b", "near:a:b")]
    {
        let forked = server.post("/v1/runs/one/fork", &body(key, model)).await;
        assert_eq!(forked.status(), 201, "{model}");
        server.stream(&format!("/v1/runs/{key}/events")).await;
        let run = server.json(&format!("/v1/runs/{key}")).await;
        assert_eq!((&run["model"], &run["status"]), (&json!(recorded), &json!("completed")));
        assert_eq!(facts(&server, key).await[1]["about"]["model"], recorded);
    }
}

#[tokio::test]
async fn an_agent_whose_model_has_no_provider_calls_no_model_of_one() {
    let log = Arc::new(MemoryLog::new());
    let scripted = || Engine::new(Scripted::new([says("Hello.")]).unwrap());
    let server = Server::new(Arc::clone(&log)).agent(Agent::new("none", scripted()));
    let server = server.agent(Agent::new("own", scripted().model("m")));
    let server = Running::start(server).await;
    for (agent, model) in [("none", "gpt-4o"), ("none", "openai:gpt-4o"), ("own", "openai:gpt-4o")]
    {
        let start = json!({"agent": agent, "input": "Hi", "key": agent});
        server.post("/v1/runs?wait=30", &start).await;
        let body = json!({"at": 1, "key": "no", "resume": true, "agent": agent, "model": model});
        let refused = server.post(&format!("/v1/runs/{agent}/fork"), &body).await;
        assert_eq!(problem_of(refused).await, (400, "http_error/bad_request".to_owned()));
    }
    assert!(log.run("no").await.unwrap().is_none(), "nothing was forked");
}

#[tokio::test]
async fn a_fork_whose_server_is_gone_is_continued_by_another() {
    let log = Arc::new(MemoryLog::new());
    let (slow, permits) = paced(3);
    let serve = async || {
        let server = Server::new(Arc::clone(&log)).drain(Duration::from_millis(50));
        let other = Agent::new("other", engine([says("Hi.")]));
        Running::start(server.agent(other).agent(Agent::new("slow", slow.clone().model("m")))).await
    };
    let mut first = serve().await;
    permits.add_permits(100);
    let start = json!({"agent": "slow", "input": "Hi", "key": "one"});
    first.post("/v1/runs?wait=30", &start).await;
    permits.forget_permits(100);
    for (key, more) in [
        ("plain", json!({})),
        ("said", json!({"message": "And?"})),
        ("model", json!({"model": "m-2"})),
        ("tried", json!({"recorded_tools": true})),
    ] {
        let mut body = json!({"at": 1, "key": key, "resume": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(first.post("/v1/runs/one/fork", &body).await.status(), StatusCode::CREATED);
        while log.head(key).await.unwrap().unwrap().seq < 3 {
            log.wait(key, 2).await.unwrap();
        }
    }
    first.stop();
    first.stopped().await.unwrap();
    let second = serve().await;
    permits.add_permits(100);
    for key in ["plain", "said", "model", "tried"] {
        let stopped = tokio::time::timeout(Duration::from_secs(20), stopped(&log, key)).await;
        let run = second.json(&format!("/v1/runs/{key}")).await;
        assert!(stopped.is_ok(), "{run}");
        assert_eq!(run["status"], "completed", "{run}");
    }
}

#[tokio::test]
async fn a_fork_that_is_refused_leaves_nothing_behind() {
    let log = Arc::new(MemoryLog::new());
    let other = Engine::new(Scripted::new([says("Hello.")]).unwrap()).model("other");
    let server = Server::new(Arc::clone(&log));
    let server = server.agent(Agent::new("first", engine([says("Hi."), says("Hi.")])));
    let server = Running::start(server.agent(Agent::new("other", other))).await;
    for key in ["one", "two"] {
        let start = json!({"agent": "first", "input": "Hi", "key": key});
        server.post("/v1/runs?wait=30", &start).await;
    }
    let fork = async |body: Value| problem_of(server.post("/v1/runs/one/fork", &body).await).await;
    let (status, code) =
        fork(json!({"at": 1, "key": "no", "resume": true, "agent": "other"})).await;
    assert_eq!((status, &*code), (422, "replay_mismatch/payload"));
    assert!(log.run("no").await.unwrap().is_none());
    // The id of another run is not free, also if that has ended.
    let exists = (409, "log_error/run_exists".to_owned());
    assert_eq!(fork(json!({"at": 1, "key": "two"})).await, exists);
    let (status, code) = fork(json!({"at": 1, "key": "last"})).await;
    assert_eq!((status, &*code), (422, "validation_error/invalid_options"));
    // A fork with the id of a continuation is none.
    server.post("/v1/runs/one/fork", &json!({"at": 1, "key": "two~2"})).await;
    let cancel = server.post("/v1/runs/two/signals", &json!({"cancel": true})).await;
    assert_eq!(problem_of(cancel).await, (409, "log_error/sealed".to_owned()));
}

#[tokio::test]
async fn a_tried_run_did_not_spend_what_the_recorded_agents_did() {
    let log = Arc::new(MemoryLog::new());
    let front = || {
        let helper = Engine::new(Scripted::new([says("Helped.")]).unwrap());
        let task = json!({"id": "c0", "name": "helper", "arguments": {"task": "Help."}});
        let answers = [json!([{"tool_call": task}, {"finish": "tool_calls"}]), says("Done.")];
        Engine::new(Scripted::new(answers).unwrap()).tool(helper.as_tool("helper", "Helps."))
    };
    let agent = Agent::new("front", front()).made_by(move |_, _| {
        let engine = front();
        Box::pin(async move { Ok(engine) })
    });
    let server = Running::start(Server::new(Arc::clone(&log)).agent(agent)).await;
    let done = server.post("/v1/runs?wait=30", &json!({"input": "Go.", "key": "once"})).await;
    assert_eq!(json_of(done).await["agents"]["turns"], 1);
    let body = json!({"at": 1, "key": "tried", "resume": true, "recorded_tools": true});
    server.post("/v1/runs/once/fork", &body).await;
    stopped(&log, "tried").await;
    let tried = server.json("/v1/runs/tried").await;
    assert_eq!((&tried["status"], &tried["totals"]["turns"]), (&json!("completed"), &json!(2)));
    assert_eq!(tried["agents"], Value::Null, "{tried}");
    // A copy of records in which an agent worked has its work too, as it has the turns before.
    let at = log.head("once").await.unwrap().unwrap().seq - 1;
    server.post("/v1/runs/once/fork", &json!({"at": at, "key": "copy"})).await;
    assert_eq!(server.json("/v1/runs/copy").await["agents"]["turns"], 1);
}

#[tokio::test]
async fn a_tried_run_that_asks_a_person_runs_no_tool_after_the_answer() {
    let (log, paid) = (Arc::new(MemoryLog::new()), Arc::new(AtomicU32::new(0)));
    let asks = vec![calling("ask", "a0"), calling("pay", "c1"), says("Paid.")];
    let agent = payer("asker", &paid, asks.clone(), asks.clone());
    let make = move |log: &Arc<MemoryLog>| Server::new(Arc::clone(log)).agent(agent.clone());
    let server = Running::start(make(&log)).await;
    server.post("/v1/runs?wait=30", &json!({"input": "Pay.", "key": "asks"})).await;
    let body = json!({"at": 1, "key": "tried", "resume": true, "recorded_tools": true});
    server.post("/v1/runs/asks/fork", &body).await;
    stopped(&log, "tried").await;
    let waits = server.json("/v1/runs/tried").await;
    assert_eq!(waits["waiting"]["question"], "From which account?", "{waits}");
    // Another process continues it, and a person approves the call.
    let server = Running::start(make(&log)).await;
    server.post("/v1/runs/tried/signals?wait=30", &json!({"answer": "The first."})).await;
    let approve = json!({"approve": ["c1"]});
    let done = server.post("/v1/runs/tried/signals?wait=30", &approve).await;
    assert_eq!(json_of(done).await["status"], "completed");
    let facts = facts(&server, "tried").await;
    let outcome = facts.iter().rfind(|fact| fact["call_id"] == "c1").unwrap();
    assert!(outcome["content"].as_str().unwrap().contains("not in the recorded run"), "{outcome}");
    assert_eq!(paid.load(Relaxed), 0);
    // The same engine with its real tools does not continue it by itself.
    let branch = fork_run(&log, "tried", 4).await.unwrap().run_id;
    let refused = paying(&paid, asks).resume(&log, &*branch).await.unwrap_err();
    assert!(refused.message().contains("tool_executor"), "{refused}");
}

/// The facts of a run.
async fn facts(server: &Running, run: &str) -> Vec<Value> {
    let records = server.json(&format!("/v1/runs/{run}/records")).await;
    let records = records["records"].as_array().unwrap().iter();
    records.map(|record| record["fact"].clone()).collect()
}
