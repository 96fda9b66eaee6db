//! A process that the operating system kills during a call to a server, and one that leaves a
//! question behind: another process continues the run.
//!
//! The processes are this test itself, with orders in its environment.

#![cfg(unix)]
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers fail as tests do"
)]

mod common;

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use common::{hostile, script};
use mynah::{
    Engine, OnUncertain, Result, Role,
    log::{Log as _, RunFilter, RunStatus, SqliteLog},
    testing::Scripted,
};
use serde_json::{Value, json};

/// Where a process finds its orders: the mode of the server and the folder of the run.
const ORDERS: &str = "MYNAH_TEST_ORDERS";

fn engine(mode: &str, folder: &Path, turns: std::ops::RangeFrom<usize>) -> Engine {
    let notes = folder.join("notes");
    let listing = serde_json::from_value(json!([
        {"name": "work", "description": "Works", "schema": {"type": "object"}}
    ]));
    let tools = hostile(mode, Some(&notes)).with_listing(listing.unwrap()).unwrap().tools();
    let script: Vec<Value> = script(&[("work", json!({"n": 1}))]).drain(turns).collect();
    Engine::new(Scripted::new(script).unwrap()).tools(tools)
}

fn log(folder: &Path) -> Result<Arc<SqliteLog>> {
    Ok(Arc::new(SqliteLog::open(folder.join("log.db"))?))
}

/// One of the processes. Without orders there is nothing to do.
#[test]
fn child_process() -> Result<()> {
    let Some(orders) = std::env::var_os(ORDERS) else { return Ok(()) };
    let (mode, folder): (String, PathBuf) =
        serde_json::from_slice(orders.as_encoded_bytes()).expect("orders");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        engine(&mode, &folder, 0..).chat("go").record(&log(&folder)?).await.map(|_| ())
    })
}

fn start(mode: &str, folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process"])
        .env(ORDERS, json!([mode, folder]).to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn noted(folder: &Path) -> usize {
    std::fs::read_to_string(folder.join("notes")).unwrap_or_default().matches("call").count()
}

/// A folder with a run whose process was killed while the server worked.
async fn killed_in_a_call() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut child = start("hangs_once", folder.path());
    for _ in 0..600 {
        if noted(folder.path()) == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(noted(folder.path()), 1, "the server got the call");
    let runs = log(folder.path()).unwrap().runs(RunFilter::default()).await.unwrap();
    let run = runs.runs[0].run_id.to_string();
    (folder, run)
}

#[tokio::test]
async fn a_call_in_doubt_suspends_the_run_and_is_made_again_if_that_is_wanted() -> Result<()> {
    let (folder, run) = killed_in_a_call().await;
    let (log, engine) = (log(folder.path())?, engine("hangs_once", folder.path(), 1..));
    engine.resume(&log, &run).await?;
    assert_eq!(log.run(&run).await?.unwrap().status, RunStatus::Suspended);
    assert_eq!(noted(folder.path()), 1, "it is not made again by itself");

    let done = engine.resume(&log, &run).on_uncertain(OnUncertain::Rerun).await?;
    assert_eq!(done.text(), "Done.");
    assert_eq!(noted(folder.path()), 2);
    let read = done.thread.messages.iter().find(|message| message.role() == Role::Tool).unwrap();
    assert_eq!(read.text(), r#"hangs_once done {"n": 1}"#);
    assert_eq!(engine.replay(&log, &run).await?.status, "equal");
    assert_eq!(noted(folder.path()), 2, "a replay contacts no server");
    Ok(())
}

#[tokio::test]
async fn a_call_in_doubt_can_be_given_up() -> Result<()> {
    let (folder, run) = killed_in_a_call().await;
    let (log, engine) = (log(folder.path())?, engine("hangs_once", folder.path(), 1..));
    let done = engine.resume(&log, &run).on_uncertain(OnUncertain::Fail).await?;
    assert_eq!(done.text(), "Done.");
    let read = done.thread.messages.iter().find(|message| message.role() == Role::Tool).unwrap();
    assert!(read.metadata().contains_key("is_error"), "{read:?}");
    assert_eq!(noted(folder.path()), 1);
    Ok(())
}

#[tokio::test]
async fn a_question_of_a_server_is_answered_in_another_process() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    assert!(start("asks", folder.path()).wait().unwrap().success());
    let (log, engine) = (log(folder.path())?, engine("asks", folder.path(), 1..));
    let run = log.runs(RunFilter::default()).await?.runs[0].run_id.to_string();
    let waiting = engine.resume(&log, &run).answer("2").await?;
    assert_eq!(waiting.pending_question.as_deref(), Some("Who?"));
    let done = engine.resume(&log, &run).answer("Ada").await?;
    assert_eq!(done.text(), "Done.");
    let read = done.thread.messages.iter().find(|message| message.role() == Role::Tool).unwrap();
    let read: Value = serde_json::from_str(&read.text()).unwrap();
    assert_eq!(read["state"], "s-1");
    assert_eq!(read["answers"]["many"]["content"], json!({"count": 2}));
    assert_eq!(noted(folder.path()), 2, "one request before, one after the answers");
    Ok(())
}
