//! Metrics of an engine's calls: one for each call, however it ends, and none for replayed ones.

use std::sync::Arc;

use futures_util::StreamExt as _;
use mynah::{
    Breach, CancelHandle, Engine, MetricsSink, Result, RetryPolicy, ToolOutcome,
    log::{Append, Log as _, MemoryLog, Record},
    step::{AppendMetric, ModelCallMetric, ToolCallMetric},
};
use serde_json::{Value, json};

use crate::{common::*, param::Param as _};

#[tokio::test]
async fn a_chat_tells_of_its_model_calls_and_tools() -> Result<()> {
    let (told, engine) = told([call("c0", "echo"), usage("done", 5, 2)]);
    engine.chat("go").await?;
    let expected = [model(None, [0, 0]), tool_told("echo", None), model(None, [5, 2])];
    assert_eq!(told.calls(), expected);
    Ok(())
}

#[tokio::test]
async fn a_tool_that_fails_or_is_not_there_is_told_with_its_reason() -> Result<()> {
    let (told, engine) = told([both("fails", "none"), says("sorry")]);
    engine.chat("go").param("on_unknown_tool", "answer").await?;
    let mut tools = told.calls();
    tools.retain(|told| told.get("tool").is_some());
    tools.sort_by_key(ToString::to_string);
    let expected = [tool_told("fails", Some("failed")), tool_told("none", Some("unknown_tool"))];
    assert_eq!(tools, expected);
    Ok(())
}

#[tokio::test]
async fn a_call_that_is_refused_breaks_off_or_passes_a_limit_is_told_with_its_reason() -> Result<()>
{
    for (script, limit, expected) in [
        (
            json!([{"preflight_error": "invalid_request"}]),
            99,
            vec![model(Some("invalid_request"), [0, 0])],
        ),
        (
            json!([{"text": "hal"}, {"disconnect": true}]),
            99,
            vec![model(Some("network_error"), [0, 0])],
        ),
        (
            json!([{"text": "far too long for this"}, {"finish": "stop"}]),
            2,
            vec![json!({"limit": "output_tokens"}), model(Some("budget_exceeded"), [0, 0])],
        ),
    ] {
        let (told, engine) = told([script]);
        drop(engine.chat("go").param("budget", json!({"max_output_tokens": limit})).await);
        assert_eq!(told.calls(), expected);
    }
    Ok(())
}

#[tokio::test]
async fn a_call_that_is_cancelled_or_dropped_is_told_once() -> Result<()> {
    let (told, engine) = told([says("one"), says("two")]);
    let cancel = CancelHandle::new();
    let mut events = engine.chat("go").cancel_handle(&cancel).stream();
    drop(events.next().await);
    cancel.cancel();
    while events.next().await.is_some() {}
    drop(events);
    assert_eq!(told.calls(), [model(Some("cancelled"), [0, 0])]);
    let mut events = engine.chat("go").stream();
    drop(events.next().await);
    drop(events);
    assert_eq!(told.calls()[1..], [model(Some("cancelled"), [0, 0])]);
    Ok(())
}

#[tokio::test]
async fn nothing_is_told_of_a_replay_and_of_a_resumption_only_what_happens() -> Result<()> {
    let log = Arc::new(MemoryLog::new());
    let scripts = || [call("c0", "echo"), call("c1", "echo"), says("done")];
    let (live, engine) = told(scripts());
    let run = engine.chat("go").record(&log).await?.run_id.unwrap_or_default();
    assert_eq!(live.calls().len(), 5);
    let records = log.read(&run, 1, 100).await?;
    let kinds = |records: &[Record]| -> Vec<Value> {
        records.iter().map(|record| json!(record.kind())).collect()
    };
    assert_eq!(live.appended(), kinds(&records));
    let (again, engine) = told(scripts());
    assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    assert_eq!(again.0.all().len(), 0);
    // The process ended when the first tool was done.
    let cut = Arc::new(MemoryLog::new());
    let done = records.iter().position(|record| record.kind().as_str() == "tool_completed");
    let kept = records[..=done.unwrap_or(0)].to_vec();
    let before = kept.len();
    cut.append(Append::new(&*run, None, kept)).await?;
    let (resumed, engine) = told([call("c1", "echo"), says("done")]);
    engine.resume(&cut, &*run).await?;
    assert_eq!(resumed.calls(), live.calls()[2..]);
    assert_eq!(resumed.appended(), kinds(&cut.read(&run, 1, 100).await?[before..]));
    Ok(())
}

/// Everything that was reported, in order.
#[derive(Default)]
struct Told(Seen<Value>);

impl Told {
    fn calls(&self) -> Vec<Value> {
        self.0.all().into_iter().filter(|told| told.get("append").is_none()).collect()
    }

    /// The kinds of all that was written.
    fn appended(&self) -> Vec<Value> {
        let told = self.0.all();
        told.iter().filter_map(|told| told.get("append")).cloned().collect()
    }
}

impl MetricsSink for Told {
    fn model_call(&self, call: &ModelCallMetric<'_>) {
        let ModelCallMetric { model, failure, input_tokens: input, output_tokens: output, .. } =
            *call;
        self.0.push(json!({"model": model, "failure": failure, "tokens": [input, output]}));
    }

    fn tool_call(&self, call: &ToolCallMetric<'_>) {
        let ToolCallMetric { tool, failure, .. } = *call;
        self.0.push(json!({"tool": tool, "failure": failure}));
    }

    fn append(&self, record: &AppendMetric<'_>) {
        let AppendMetric { kind, failure, .. } = *record;
        self.0.push(json!({"append": kind, "failure": failure}));
    }

    fn budget_exceeded(&self, breach: &Breach) {
        self.0.push(json!({"limit": breach.limit}));
    }
}

/// An engine with these scripts, and its reports.
fn told(scripts: impl IntoIterator<Item = Value>) -> (Arc<Told>, Engine) {
    let told = Arc::new(Told::default());
    let engine = Engine::new(scripted(scripts))
        .model("fake:m")
        .retry(RetryPolicy::never())
        .tool(tool("echo", |arguments| arguments))
        .tool(tool("fails", |_| ToolOutcome::error("no")))
        .metrics(told.clone());
    (told, engine)
}

fn usage(text: &str, input: u64, output: u64) -> Value {
    let usage = json!({"usage": {"input_tokens": input, "output_tokens": output}});
    json!([{"text": text}, usage, {"finish": "stop"}])
}

fn model(failure: Option<&str>, tokens: [u64; 2]) -> Value {
    json!({"model": "fake:m", "failure": failure, "tokens": tokens})
}

fn tool_told(name: &str, failure: Option<&str>) -> Value {
    json!({"tool": name, "failure": failure})
}
