//! Engines whose runs are kept, and logs with a part of their records.

#![allow(
    dead_code,
    clippy::expect_used,
    reason = "each test file uses a part of this, and helpers fail as tests do"
)]

use std::{path::Path, sync::Arc};

use mynah::{
    Engine,
    log::{Append, Log, MemoryLog, RunFilter},
    testing::Scripted,
};
use serde_json::{Value, json};

/// The log with one of its runs cut off.
pub(crate) async fn copy(log: &MemoryLog, cut_run: &str, last: u64) -> MemoryLog {
    let copy = MemoryLog::new();
    let mut runs = log.runs(RunFilter::new().limit(1000)).await.unwrap_or_default().runs;
    runs.reverse();
    for run in runs {
        let mut records = log.read(&run.run_id, 1, 10_000).await.unwrap_or_default();
        if *run.run_id == *cut_run {
            records.retain(|record| record.seq() <= last);
        }
        copy.append(Append::new(run.run_id, None, records)).await.expect("a copy");
    }
    copy
}

/// A log of each kind.
#[cfg(feature = "sqlite")]
pub(crate) fn logs(folder: &Path) -> Vec<Arc<dyn Log>> {
    let file = mynah::log::SqliteLog::open(folder.join("log.db")).expect("a log");
    vec![Arc::new(MemoryLog::new()), Arc::new(file)]
}

/// A log of each kind.
#[cfg(not(feature = "sqlite"))]
pub(crate) fn logs(_: &Path) -> Vec<Arc<dyn Log>> {
    vec![Arc::new(MemoryLog::new())]
}

pub(crate) async fn kinds(log: &MemoryLog, run: &str) -> Vec<String> {
    let records = log.read(run, 1, 10_000).await.expect("a run");
    records.iter().map(|record| record.kind().to_string()).collect()
}

pub(crate) fn says(text: &str) -> Value {
    json!([{"text": text}, {"finish": "stop"}])
}

/// An engine that says something so many times.
pub(crate) fn talker(times: usize) -> mynah::Result<Engine> {
    Ok(Engine::new(Scripted::new((0..times).map(|n| says(&format!("said {n}"))))?))
}

/// An engine that calls a tool so many times at once, and is done.
pub(crate) fn calls<const N: usize>(ids: [&str; N]) -> mynah::Result<Engine> {
    let call = |(n, id)| json!({"tool_call": {"id": id, "name": "pick", "arguments": {"x": n}}});
    let mut script: Vec<Value> = ids.into_iter().enumerate().map(call).collect();
    script.push(json!({"finish": "tool_calls"}));
    Ok(Engine::new(Scripted::new([json!(script), says("done")])?))
}
