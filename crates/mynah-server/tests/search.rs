//! Runs that are found by what was said in them, by their agent, cost and duration.

use std::sync::Arc;

use mynah::log::{Log as _, MemoryLog, conformance::Sample};
use mynah_server::{Agent, Server};
use serde_json::{Value, json};

use crate::common::{Running, engine, sample, sampled};

async fn found(server: &Running, query: &str) -> Vec<String> {
    let list = server.json(&format!("/v1/runs?{query}")).await;
    let runs = list["runs"].as_array().unwrap().iter();
    runs.map(|run| run["run_id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn runs_are_found_by_what_people_models_and_tools_said() {
    let (server, _) = sampled().await;
    // A person, the model, a tool, the arguments of a call, a question.
    assert_eq!(found(&server, "text=what%20COLOUR").await, ["done"]);
    assert_eq!(found(&server, "text=it%20is%20blue").await, ["done"]);
    assert_eq!(found(&server, "text=euros").await, ["pays", "asks", "done"]);
    assert_eq!(found(&server, "text=how%20many").await, ["asks"]);
    // Not what only the format says.
    assert_eq!(found(&server, "text=run_started").await, [""; 0]);
    // With the other filters.
    assert_eq!(found(&server, "text=euros&status=suspended").await, ["pays", "asks"]);
    let list = server.json("/v1/runs?text=colour").await;
    let place = json!({"seq": 1, "before": "What ", "text": "colour", "after": "?"});
    assert_eq!((&list["runs"][0]["match"], &list["searched"]), (&place, &json!(6)));
    let long = "x".repeat(201);
    assert_eq!(server.problem(&format!("/v1/runs?text={long}")).await.0, 400);
}

#[tokio::test]
async fn runs_are_found_by_their_cost_duration_and_agent() {
    let log = Arc::new(MemoryLog::new());
    sample(&log).await;
    let mut dear = Sample::new("dear", 7).tool_turn().sealed();
    log.append(dear.batch()).await.unwrap();
    let agents = [
        Agent::new("shop", engine([])),
        Agent::new(
            "other",
            mynah::Engine::new(mynah::testing::Scripted::new([]).unwrap()).model("other"),
        ),
    ];
    let server = Server::new(Arc::clone(&log));
    let server = Running::start(agents.into_iter().fold(server, Server::agent)).await;
    assert_eq!(found(&server, "min_cost=0.1").await, ["dear"]);
    assert_eq!(found(&server, "min_cost=0.2").await, [""; 0]);
    assert_eq!(found(&server, "min_seconds=3600").await, [""; 0]);
    assert_eq!(found(&server, "min_seconds=0").await.len(), 7);
    assert_eq!(found(&server, "agent=shop").await.len(), 6);
    assert_eq!(found(&server, "agent=other").await, [""; 0]);
    assert_eq!(server.problem("/v1/runs?agent=nobody").await.0, 404);
}

#[tokio::test]
async fn the_first_words_of_the_input_are_listed_if_they_are_asked_for() {
    let (server, _) = sampled().await;
    let list = server.json("/v1/runs?input=true").await;
    let inputs: Vec<&str> =
        list["runs"].as_array().unwrap().iter().map(|run| run["input"].as_str().unwrap()).collect();
    assert_eq!(inputs, ["and?", "hi", "hi", "pay", "order", "What colour?"]);
    assert!(server.json("/v1/runs").await["runs"][0].get("input").is_none());
}

#[tokio::test]
async fn a_search_through_many_runs_continues_where_it_stopped() {
    let log = Arc::new(MemoryLog::new());
    for n in 0..120 {
        let said = if n % 3 == 0 { "a needle" } else { "hay" };
        let mut run = Sample::new(format!("r-{n:03}"), 1000 * n).user(said).sealed();
        log.append(run.batch()).await.unwrap();
    }
    let server = Running::start(Server::new(log)).await;
    let (mut all, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = server.json(&format!("/v1/runs?text=needle&limit=30{after}")).await;
        let runs = page["runs"].as_array().unwrap();
        assert!(runs.len() <= 30);
        all.extend(runs.iter().map(|run| run["run_id"].clone()));
        pages += 1;
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    let expected: Vec<Value> =
        (0..120).rev().filter(|n| n % 3 == 0).map(|n| json!(format!("r-{n:03}"))).collect();
    assert_eq!(all, expected);
    assert!(pages > 1);
}

#[tokio::test]
async fn a_long_run_does_not_hold_a_search_up() {
    let log = Arc::new(MemoryLog::new());
    let mut long = (0..4200).fold(Sample::new("long", 9), |run, _| run.tool_turn());
    log.append(long.batch()).await.unwrap();
    let mut short = Sample::new("short", 1).user("a needle").sealed();
    log.append(short.batch()).await.unwrap();
    let server = Running::start(Server::new(log)).await;
    let first = server.json("/v1/runs?text=needle&limit=1").await;
    assert_eq!((&first["runs"], &first["searched"]), (&json!([]), &json!(1)));
    let after = first["next"].as_str().unwrap();
    assert_eq!(found(&server, &format!("text=needle&limit=1&after={after}")).await, ["short"]);
}
