//! What can be read over HTTP.

use std::{sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use mynah::{
    follow,
    log::{
        Body, Hash, Log as _, MemoryLog, Prune, Record, Redact, Warrant, bundle,
        conformance::Sample, merkle,
    },
};
use mynah_server::Server;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::common::{Forgetful, Running, Sent, engine, json_of, parse, problem_of, sampled, says};

fn ids(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn runs_are_listed_newest_first_with_what_the_index_knows() {
    let (server, log) = sampled().await;
    let list = server.json("/v1/runs").await;
    assert_eq!(ids(&list["runs"])[2..], ["failed", "pays", "asks", "done"]);
    assert_eq!((&list["next"], &list["damaged"]), (&Value::Null, &json!([])));
    let done = &list["runs"][5];
    let mut indexed = json!(log.run("done").await.unwrap());
    indexed["abandoned"] = json!(false);
    indexed["caller"] = json!(null);
    assert_eq!(done, &indexed);
    assert_eq!((&done["status"], &done["totals"]["turns"]), (&json!("completed"), &json!(2)));
}

#[tokio::test]
async fn runs_are_filtered_and_paged() {
    let (server, log) = sampled().await;
    let listed = async |query: &str| {
        let list = server.json(&format!("/v1/runs?{query}")).await;
        ids(&list["runs"]).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(listed("status=suspended").await, ["pays", "asks"]);
    assert_eq!(listed("status=abandoned").await, [""; 0]);
    assert_eq!(listed("status=sleeping").await, [""; 0]);
    assert_eq!(listed("prefix=do").await, ["done"]);
    assert_eq!(listed("session=s").await.len(), 2);
    assert_eq!(listed("model=scripted-1&limit=1000").await.len(), 6);
    assert_eq!(listed("model=other").await, [""; 0]);
    let started = log.run("failed").await.unwrap().unwrap().started;
    assert_eq!(listed(&format!("since={started}&order=oldest")).await[0], "failed");
    assert_eq!(listed(&format!("before={started}")).await, ["pays", "asks", "done"]);

    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.json(&format!("/v1/runs?limit=4{after}")).await;
        all.extend(ids(&page["runs"]).into_iter().map(str::to_owned));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(all, listed("").await);
}

#[tokio::test]
async fn parameters_that_do_not_fit_are_refused() {
    let (server, _) = sampled().await;
    for path in [
        "/v1/runs?status=odd",
        "/v1/runs?limit=0",
        "/v1/runs?limit=1001",
        "/v1/runs?limit=many",
        "/v1/runs?since=yesterday",
        "/v1/runs?before=1.5",
        "/v1/runs?order=random",
        "/v1/runs?after=nowhere",
        "/v1/runs?unknown=1",
        "/v1/runs?limit=1&limit=2",
        "/v1/runs/done?x=1",
        "/v1/runs/%FF",
        "/v1/runs/done/records?from=x",
        "/v1/runs/done/records?from=0",
        "/v1/runs?min_seconds=NaN",
        "/v1/runs?min_cost=-1",
        "/v1/runs/done/records?raw=perhaps",
        "/v1/runs/done/events?after=x",
        "/v1/runs/done/events?after=0.0",
        "/v1/runs/done/verify?x",
        "/v1/runs/done/proof?x",
        "/v1/runs/done/export?x",
        "/v1/sessions/s?x",
        "/v1/log?x",
        "/v1/log/verify?x",
        "/v1/stats?buckets=0",
        "/v1/stats?since=5&before=4",
        "/v1/changes?after=x",
    ] {
        assert_eq!(
            server.problem(path).await,
            (400, "http_error/bad_request".to_owned()),
            "{path}"
        );
    }
    let header = server.request(Method::GET, "/v1/runs/done/events").header("last-event-id", "x");
    assert_eq!(problem_of(header.send().await.unwrap()).await.0, 400);
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let (server, log) = sampled().await;
    for path in ["", "/records", "/events", "/verify", "/proof", "/export"] {
        let found = server.problem(&format!("/v1/runs/none{path}")).await;
        assert_eq!(found, (404, "log_error/run_not_found".to_owned()), "{path}");
    }
    assert_eq!(
        server.problem("/v1/sessions/none").await,
        (404, "session_error/no_session".to_owned())
    );
    assert_eq!(server.problem("/v1/nothing").await, (404, "http_error/not_found".to_owned()));
    let posted = server.post("/v1/log", &json!({})).await;
    assert_eq!(problem_of(posted).await, (405, "http_error/method_not_allowed".to_owned()));

    let prune = Prune::before(i64::MAX).limit(1);
    let pruned = prune.perform(&log, &Warrant::new("me", "age", 9)).await.unwrap();
    let id = &pruned.pruned[0].run_id;
    assert_eq!(
        server.problem(&format!("/v1/runs/{id}")).await,
        (410, "log_error/pruned".to_owned())
    );
}

#[tokio::test]
async fn a_run_is_described_with_its_end_and_what_it_waits_for() {
    let (server, log) = sampled().await;
    let done = server.json("/v1/runs/done").await;
    assert_eq!(done["end"]["reason"], "completed");
    assert_eq!(done["end"]["kind"], "completed");
    assert_eq!(done["fingerprint"], json!(log.run("done").await.unwrap().unwrap().hash));
    assert_eq!(
        (&done["waiting"], &done["error"], &done["parent"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );

    let asks = server.json("/v1/runs/asks").await;
    assert_eq!(asks["waiting"], json!({"for": "answer", "question": "How many?"}));
    assert_eq!((&asks["fingerprint"], &asks["status"]), (&Value::Null, &json!("suspended")));
    let pays = server.json("/v1/runs/pays").await;
    assert_eq!(pays["waiting"]["for"], "approval");
    assert_eq!(pays["waiting"]["calls"][0]["name"], "pay");
    assert_eq!(pays["waiting"]["calls"][0]["arguments"], json!({"euros": 7}));
    let failed = server.json("/v1/runs/failed").await;
    assert_eq!(
        (&failed["error"]["reason"], &failed["end"]["kind"]),
        (&json!("rate_limited"), &json!("failed"))
    );

    let turns = server.json("/v1/runs?session=s&order=oldest").await;
    let second = server.json(&format!("/v1/runs/{}", ids(&turns["runs"])[1])).await;
    assert_eq!(second["previous"]["run_id"], ids(&turns["runs"])[0]);
    let fork = mynah::fork_run(&log, "done", 3).await.unwrap().run_id;
    let fork = server.json(&format!("/v1/runs/{fork}")).await;
    assert_eq!((&fork["parent"]["run_id"], &fork["parent"]["seq"]), (&json!("done"), &json!(3)));
    assert_eq!((&fork["abandoned"], &fork["end"]), (&json!(true), &Value::Null));
}

#[tokio::test]
async fn an_id_may_have_any_characters() {
    let log = std::sync::Arc::new(mynah::log::MemoryLog::new());
    let id = "a/b c%?#ü<script>";
    engine([says("hi")]).chat("hi").record(&log).run_id(id).await.unwrap();
    let server = Running::start(Server::new(log)).await;
    let run = server.json("/v1/runs/a%2Fb%20c%25%3F%23%C3%BC%3Cscript%3E").await;
    assert_eq!(run["run_id"], id);
    let verified = server.json("/v1/runs/a%2Fb%20c%25%3F%23%C3%BC%3Cscript%3E/verify").await;
    assert_eq!(verified["status"], "verified");
}

#[tokio::test]
async fn records_come_in_pages_and_their_bytes_make_the_same_records() {
    let (server, log) = sampled().await;
    let expected = log.read("done", 1, 100).await.unwrap();
    let (mut all, mut from) = (Vec::new(), 1);
    loop {
        let page =
            server.json(&format!("/v1/runs/done/records?from={from}&limit=4&raw=true")).await;
        all.extend(page["records"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_u64() else { break };
        from = next;
    }
    assert_eq!(all.len(), expected.len());
    for (shown, record) in all.iter().zip(&expected) {
        let bytes =
            |name: &str| BASE64_STANDARD.decode(shown["raw"][name].as_str().unwrap()).unwrap();
        let body =
            Body { salt: bytes("salt").try_into().unwrap(), payload: bytes("payload").into() };
        let made = Record::from_parts(bytes("envelope"), Some(body)).unwrap();
        assert_eq!(&made, record);
        assert_eq!(shown["hash"], json!(record.hash()));
        assert_eq!(shown["fact"], json!(record.fact().unwrap()));
    }
    let plain = server.json("/v1/runs/done/records?limit=1").await;
    assert_eq!(plain["records"][0].get("raw"), None);
    let beyond = server.json("/v1/runs/done/records?from=100").await;
    assert_eq!(beyond, json!({"records": [], "next": null}));
}

#[tokio::test]
async fn a_redacted_record_has_no_fact_and_no_payload() {
    let (server, log) = sampled().await;
    let redact = Redact::records("done", [3]);
    redact.perform(&log, &Warrant::new("me", "private", 9)).await.unwrap();
    let page = server.json("/v1/runs/done/records?from=3&limit=1&raw=true").await;
    assert_eq!(
        (&page["records"][0]["fact"], page["records"][0]["raw"].get("payload")),
        (&Value::Null, None)
    );
    let events = server.json("/v1/runs/done/events").await;
    let events = events["events"].as_array().unwrap();
    assert!(
        events
            .iter()
            .any(|event| event["event"]
                == json!({"type": "redacted", "kind": "assistant_completed"}))
    );
    assert_eq!(server.json("/v1/runs/done/verify").await["redacted"], 1);
}

/// The ids and data of a stream.
fn told(sent: &[Sent]) -> Vec<(String, Value)> {
    let events = sent.iter().filter(|sent| sent.event.is_none());
    events.map(|sent| (sent.id.clone().unwrap(), sent.data.clone())).collect()
}

#[tokio::test]
async fn events_of_a_run_that_ended_are_streamed_to_an_end() {
    let (server, log) = sampled().await;
    let sent = server.stream("/v1/runs/done/events").await;
    assert_eq!(sent.last().unwrap().event.as_deref(), Some("end"));
    let (mut expected, mut events) = (Vec::new(), follow(&log, "done", None));
    while let Some(event) = events.try_next().await.unwrap() {
        expected.push((event.id.to_string(), json!(event)));
    }
    assert_eq!(told(&sent), expected);

    // From each event on, by header and by parameter.
    for (place, (id, _)) in expected.iter().enumerate().take(expected.len() - 1) {
        let rest = server.stream(&format!("/v1/runs/done/events?after={id}")).await;
        assert_eq!(told(&rest), expected[place + 1..]);
    }
    let (id, _) = &expected[2];
    let request = server.request(Method::GET, "/v1/runs/done/events?after=1.0");
    let request = request.header("accept", "text/event-stream").header("last-event-id", id);
    let rest = parse(&request.send().await.unwrap().text().await.unwrap());
    assert_eq!(told(&rest), expected[3..]);

    let (last, _) = expected.last().unwrap();
    let request = server.request(Method::GET, &format!("/v1/runs/done/events?after={last}"));
    let ended = request.header("accept", "text/event-stream").send().await.unwrap();
    assert_eq!(ended.status(), StatusCode::NO_CONTENT);
}

#[tokio::test]
async fn events_come_as_json_pages() {
    let (server, _) = sampled().await;
    let whole = told(&server.stream("/v1/runs/done/events").await);
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.json(&format!("/v1/runs/done/events?limit=5{after}")).await;
        all.extend(page["events"].as_array().unwrap().clone());
        after = format!("&after={}", page["next"].as_str().unwrap());
        if page["done"] == true {
            break;
        }
    }
    assert_eq!(all, whole.into_iter().map(|(_, data)| data).collect::<Vec<_>>());
    let waits = server.json("/v1/runs/asks/events").await;
    assert_eq!(waits["done"], false);
    let last = waits["next"].as_str().unwrap();
    let none = server.json(&format!("/v1/runs/asks/events?after={last}")).await;
    assert_eq!(none, json!({"events": [], "next": last, "done": false}));
}

#[tokio::test]
async fn a_stream_of_a_run_that_waits_continues_with_it() {
    let (server, log) = sampled().await;
    let request = server.request(Method::GET, "/v1/runs/asks/events");
    let mut response = request.header("accept", "text/event-stream").send().await.unwrap();
    let mut text = String::new();
    while !text.contains("\"suspended\"") {
        text += std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap();
    }
    let engine = engine([says("Two it is.")]);
    engine.resume(&log, "asks").answer("two").await.unwrap();
    while let Some(chunk) = response.chunk().await.unwrap() {
        text += std::str::from_utf8(&chunk).unwrap();
    }
    let sent = parse(&text);
    assert_eq!(sent, server.stream("/v1/runs/asks/events").await);
    assert!(sent.iter().any(|sent| sent.data["event"]["type"] == "resumed"));
}

#[tokio::test]
async fn runs_verify_and_prove_that_they_are_in_the_log() {
    let (server, log) = sampled().await;
    let verified = server.json("/v1/runs/done/verify").await;
    assert_eq!((&verified["run_id"], &verified["status"]), (&json!("done"), &json!("verified")));
    let posted = server.post("/v1/runs/done/verify", &json!({})).await;
    assert_eq!(json_of(posted).await, verified);
    assert_eq!(server.json("/v1/runs/asks/verify").await["status"], "in_progress");

    let proof = server.json("/v1/runs/done/proof").await;
    let hash = |value: &Value| value.as_str().unwrap().parse::<Hash>().unwrap();
    assert_eq!(proof["fingerprint"], verified["fingerprint"]);
    let leaf = merkle::leaf(&hash(&proof["fingerprint"]).0);
    assert_eq!(hash(&proof["leaf"]), leaf);
    let path: Vec<Hash> = proof["proof"].as_array().unwrap().iter().map(hash).collect();
    let (index, size) = (proof["index"].as_u64().unwrap(), proof["size"].as_u64().unwrap());
    assert!(merkle::verify_inclusion(&leaf, index, size, &hash(&proof["root"]), &path));
    assert_eq!(
        server.problem("/v1/runs/asks/proof").await,
        (409, "http_error/not_sealed".to_owned())
    );

    let about = server.json("/v1/log").await;
    assert_eq!((&about["root"], &about["leaves"]), (&proof["root"], &json!(4)));
    assert_eq!(about["counts"]["suspended"], 2);
    assert_eq!((&about["counted"], &about["complete"]), (&json!(6), &json!(true)));
    // The tree is read further, not again.
    engine([says("hi")]).chat("hi").record(&log).await.unwrap();
    assert_eq!(server.json("/v1/log").await["leaves"], 5);

    let whole = server.json("/v1/log/verify").await;
    assert_eq!(
        (&whole["runs"], &whole["wrong"], &whole["err"]),
        (&json!(7), &json!([]), &Value::Null)
    );
    assert_eq!(whole["root"], server.json("/v1/log").await["root"]);
    let sent = server.stream("/v1/log/verify").await;
    assert_eq!(sent.iter().filter(|sent| sent.event.as_deref() == Some("run")).count(), 7);
    assert_eq!(
        sent.last().map(|sent| (sent.event.as_deref(), &sent.data)),
        Some((Some("end"), &whole))
    );
}

#[tokio::test]
async fn an_exported_run_is_a_bundle() {
    let (server, log) = sampled().await;
    let response = server.get("/v1/runs/done/export").await;
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let file = response.bytes().await.unwrap();
    let mut expected = Vec::new();
    bundle::export(&log, "done", &mut expected).await.unwrap();
    assert_eq!(file, expected);
}

#[tokio::test]
async fn a_session_is_given_with_its_runs() {
    let (server, _) = sampled().await;
    let session = server.json("/v1/sessions/s").await;
    assert_eq!((&session["session_id"], &session["unfinished"]), (&json!("s"), &Value::Null));
    assert_eq!(session["runs"].as_array().unwrap().len(), 2);
    assert!(session["session"].to_string().contains("again"), "{session}");
}

#[tokio::test]
async fn sums_over_time_count_each_run_once() {
    let (server, log) = sampled().await;
    let started = log.run("done").await.unwrap().unwrap().started;
    let stats = server.json(&format!("/v1/stats?since={started}&buckets=7")).await;
    let buckets = stats["buckets"].as_array().unwrap();
    assert_eq!((buckets.len(), &stats["complete"]), (7, &json!(true)));
    let sum = |name: &str| buckets.iter().map(|bucket| bucket[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("runs"), sum("failed")), (6, 1));
    assert_eq!(buckets[0]["from"], started);
    // Without a first time, all runs that there are.
    let all = server.json("/v1/stats").await;
    let counted =
        all["buckets"].as_array().unwrap().iter().map(|one| one["runs"].as_u64().unwrap());
    assert_eq!(
        counted.sum::<u64>(),
        log.runs(mynah::log::RunFilter::default()).await.unwrap().runs.len() as u64
    );
    let none = server.json("/v1/stats?before=1000").await;
    assert!(none["buckets"].as_array().unwrap().iter().all(|bucket| bucket["runs"] == 0));
}

#[tokio::test]
async fn changes_come_as_json_after_a_cursor() {
    let (server, log) = sampled().await;
    let first = server.json("/v1/changes").await;
    assert_eq!(first["changes"], json!([]));
    engine([says("hi")]).chat("hi").record(&log).run_id("new").await.unwrap();
    engine([says("two")]).resume(&log, "asks").answer("two").await.unwrap();
    let mut after = first["next"].as_str().unwrap().to_owned();
    let mut seen: Vec<(String, String)> = Vec::new();
    while !["asks", "new"].iter().all(|id| seen.iter().any(|(run, _)| run == id)) {
        let page = server.json(&format!("/v1/changes?after={after}")).await;
        for change in page["changes"].as_array().unwrap() {
            let text = |name: &str| change["run"][name].as_str().unwrap().to_owned();
            seen.push((text("run_id"), text("status")));
        }
        after = page["next"].as_str().unwrap().to_owned();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    seen.sort();
    seen.dedup();
    let expected = [("asks", "completed"), ("new", "completed")];
    assert_eq!(seen, expected.map(|(run, status)| (run.to_owned(), status.to_owned())));
}

#[tokio::test]
async fn changes_are_streamed() {
    let (server, log) = sampled().await;
    let request = server.request(Method::GET, "/v1/changes");
    let mut response = request.header("accept", "text/event-stream").send().await.unwrap();
    let mut text = String::new();
    while !text.contains("ready") {
        text += std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap();
    }
    log.append(Sample::new("new", 0).sealed().batch()).await.unwrap();
    while !text.contains("\"new\"") {
        text += std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap();
    }
    let sent = parse(&text);
    assert_eq!(sent.last().unwrap().data["run"]["run_id"], "new");
    // A client that returns with the earlier cursor gets it again.
    let first = sent[0].id.clone().unwrap();
    let again = server.json(&format!("/v1/changes?after={first}")).await;
    assert_eq!(again["changes"][0]["run"]["run_id"], "new");
}

#[tokio::test]
async fn a_client_with_a_cursor_that_is_too_old_begins_again() {
    let server = Running::start(Server::new(Arc::new(Forgetful(MemoryLog::new())))).await;
    let page = server.json("/v1/changes?after=old").await;
    assert_eq!(page, json!({"changes": [], "next": "end", "missed": true}));
    let request = server.request(Method::GET, "/v1/changes?after=old");
    let mut response = request.header("accept", "text/event-stream").send().await.unwrap();
    let mut text = String::new();
    while !text.contains("ready") {
        text += std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap();
    }
    assert_eq!(parse(&text)[0].event.as_deref(), Some("reset"));
}

#[tokio::test]
async fn the_server_tells_how_it_is() {
    let (server, _) = sampled().await;
    assert_eq!(server.get("/healthz").await.text().await.unwrap(), "ok\n");
    assert_eq!(server.get("/readyz").await.text().await.unwrap(), "ok\n");
    server.get("/v1/none").await;
    let metrics = server.get("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("mynah_http_responses_total{status=\"4xx\"} 1\n"), "{metrics}");
    assert!(metrics.contains("mynah_streams_open 0\n"), "{metrics}");
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
}

#[tokio::test]
async fn pages_have_a_strict_policy() {
    let (server, _) = sampled().await;
    let page = server.get("/").await;
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    let policy = page.headers()["content-security-policy"].to_str().unwrap();
    for part in
        ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"]
    {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let data = server.get("/v1/runs").await;
    assert_eq!(data.headers()["x-content-type-options"], "nosniff");
    assert_eq!(data.headers()["cache-control"], "no-store");
}

#[tokio::test]
async fn every_route_is_described_and_what_is_described_is_there() {
    let (server, _) = sampled().await;
    let document = server.json("/v1/openapi.json").await;
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    let docs = include_str!("../../../docs/server.md");
    for (path, methods) in paths {
        assert!(docs.contains(path), "docs/server.md does not describe {path}");
        for (method, operation) in methods.as_object().unwrap() {
            assert!(!operation["summary"].as_str().unwrap().is_empty());
            let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let path = path.replace("{id}", "done");
            let request = server.request(method.clone(), &path).header("mynah-request", "1");
            let status = request.send().await.unwrap().status();
            assert_ne!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
            if !path.contains("/sessions/") {
                assert_ne!(status, StatusCode::NOT_FOUND, "{method} {path}");
            }
            // So is each member of a body, and it has a type.
            let schema = operation.pointer("/requestBody/content/application~1json/schema");
            let members = schema.and_then(|schema| schema["properties"].as_object());
            for (name, member) in members.into_iter().flatten() {
                assert!(member["type"].is_string() || member["oneOf"].is_array(), "{name}");
                let body = json!({name.as_str(): null});
                let text = server.post(&path, &body).await.text().await.unwrap();
                assert!(!text.contains("unknown field"), "{method} {path} {name}: {text}");
            }
            let required = schema.map(|schema| schema["required"].as_array().unwrap());
            for name in required.into_iter().flatten() {
                assert!(members.unwrap().contains_key(name.as_str().unwrap()), "{name}");
            }
            // Each parameter is known: what is wrong is at most its value.
            for parameter in operation["parameters"].as_array().unwrap() {
                let name = parameter["name"].as_str().unwrap();
                assert!(parameter["schema"]["type"].is_string(), "{name}");
                if parameter["in"] != "query" {
                    continue;
                }
                let request = server.request(method.clone(), &format!("{path}?{name}=1"));
                let request = request.header("mynah-request", "1");
                let text = request.send().await.unwrap().text().await.unwrap();
                assert!(!text.contains("no such parameter"), "{method} {path}?{name}: {text}");
            }
        }
    }
}
