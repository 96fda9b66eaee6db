//! The metrics, read as strictly as Prometheus does.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use mynah::log::{MemoryLog, Queue};
use mynah_server::{Agent, Server};
use serde_json::json;

use crate::common::{Running, engine, sampled, says};

/// The value of each sample, by its name with labels. Every family has a help and a type, once and before its samples.
fn read(text: &str) -> BTreeMap<String, f64> {
    assert!(text.ends_with('\n') && !text.contains('\r'), "lines end with a line feed");
    let is_name = |name: &str| {
        let mut chars = name.chars();
        chars.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && chars.all(|next| next.is_ascii_alphanumeric() || next == '_')
    };
    let (mut samples, mut families) = (BTreeMap::new(), BTreeSet::new());
    let mut family: Option<(String, String)> = None;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, what) = help.split_once(' ').unwrap();
            assert!(is_name(name) && !what.is_empty() && !what.contains('\\'), "{line}");
            assert!(families.insert(name.to_owned()), "{name} comes twice");
            let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
            assert!(["counter", "gauge"].contains(&kind), "{kind}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            family = Some((name.to_owned(), kind.to_owned()));
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
        let (of, kind) = family.as_ref().unwrap();
        assert_eq!(name, of, "it follows its family");
        assert!(value >= 0.0 || kind == "gauge", "{line}");
        for label in labels.strip_suffix('}').unwrap().split(',').filter(|label| !label.is_empty())
        {
            let (label, value) = label.split_once('=').unwrap();
            assert!(is_name(label) && value.starts_with('"') && value.ends_with('"'), "{line}");
        }
        assert_eq!(samples.insert(sample.to_owned(), value), None, "{sample} comes twice");
    }
    samples
}

async fn metrics(server: &Running) -> BTreeMap<String, f64> {
    let response = server.get("/metrics").await;
    assert_eq!(response.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    read(&response.text().await.unwrap())
}

#[tokio::test]
async fn metrics_are_the_text_that_prometheus_reads() {
    let (server, _) = sampled().await;
    let before = metrics(&server).await;
    assert_eq!(before["mynah_log_up"], 1.0);
    assert_eq!(
        before[&format!("mynah_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"))],
        1.0
    );
    server.stream("/v1/runs/done/events").await;
    server.post("/v1/runs", &json!({"input": "hi"})).await;
    let after = metrics(&server).await;
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    assert!(after["mynah_events_sent_total"] > 5.0, "{after:?}");
    assert_eq!(after["mynah_http_responses_total{status=\"4xx\"}"], 1.0);
    assert_eq!((after["mynah_streams_open"], after["mynah_runs_live"]), (0.0, 0.0));
}

#[tokio::test]
async fn every_metric_is_described_in_the_documentation() {
    let docs = include_str!("../../../docs/operations.md");
    let server = Running::start(Server::new(MemoryLog::new())).await;
    for sample in metrics(&server).await.into_keys() {
        let name = sample.split('{').next().unwrap();
        assert!(docs.contains(&format!("`{name}")), "docs/operations.md does not describe {name}");
    }
}

#[tokio::test]
async fn runs_that_nobody_can_perform_are_counted_and_say_why() {
    let log = Arc::new(MemoryLog::new());
    let other = engine([says("Never.")]).model("other-model");
    let chat = other.chat("hi").record(&log).run_id("r").agent("greeter");
    chat.queue(Queue::new("default")).enqueue().await.unwrap();
    let idle = Running::start(Server::new(Arc::clone(&log))).await;
    let before = metrics(&idle).await;
    assert_eq!((before["mynah_runs_waiting"], before["mynah_runs_unperformed_total"]), (1.0, 0.0));
    assert!(before["mynah_runs_waiting_seconds"] >= 0.0);
    let agent = Agent::new("greeter", engine([says("Hello.")]));
    let server = Running::start(Server::new(Arc::clone(&log)).agent(agent)).await;
    while metrics(&server).await["mynah_runs_unperformed_total"] == 0.0 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let run = server.json("/v1/runs/r").await;
    assert_eq!(run["error"]["type"], "replay_mismatch", "{run}");
    assert_eq!(run["status"], "running");
}
