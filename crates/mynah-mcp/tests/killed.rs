//! Processes that the operating system kills during a call to a server, while a server asks, and while its task runs: another process
//! continues the run.
//!
//! The processes are this test itself, with orders in its environment.

#![cfg(unix)]

use std::{
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use mynah::{
    ChatResult, Engine, OnUncertain, Result, Role,
    log::{Log as _, RunFilter, RunStatus, SqliteLog},
    testing::Scripted,
};
use serde_json::{Value, json};

use crate::common::{hostile, script};

/// Where a process finds its orders: the mode of the server, answers to its questions, and the folder of the run.
const ORDERS: &str = "MYNAH_TEST_ORDERS";

fn engine(mode: &str, folder: &Path, turns: std::ops::RangeFrom<usize>) -> Engine {
    let notes = folder.join("notes");
    let listing = serde_json::from_value(json!([
        {"name": "work", "description": "Works", "schema": {"type": "object"}}
    ]));
    let server = hostile(mode, Some(&notes)).task_wait(Duration::ZERO);
    let tools = server.with_listing(listing.unwrap()).unwrap().tools();
    let script: Vec<Value> = script(&[("work", json!({"n": 1}))]).drain(turns).collect();
    Engine::new(Scripted::new(script).unwrap()).tools(tools)
}

fn log(folder: &Path) -> Result<Arc<SqliteLog>> {
    Ok(Arc::new(SqliteLog::open(folder.join("log.db"))?))
}

/// One of the processes: it starts the run or continues it, and stays when the run waits. Without orders there is nothing to do.
#[test]
fn child_process() -> Result<()> {
    let Some(orders) = std::env::var_os(ORDERS) else { return Ok(()) };
    let (mode, answers, folder): (String, Vec<String>, PathBuf) =
        serde_json::from_slice(orders.as_encoded_bytes()).expect("orders");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let log = log(&folder)?;
        if answers.is_empty() {
            engine(&mode, &folder, 0..).chat("go").record(&log).await?;
        }
        let engine = engine(&mode, &folder, 1..);
        for answer in answers {
            engine.resume(&log, only_run(&folder).await).answer(answer).await?;
        }
        std::fs::write(folder.join("waits"), "").unwrap();
        std::future::pending().await
    })
}

fn start(mode: &str, answers: &[&str], folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::child_process"])
        .env(ORDERS, json!([mode, answers, folder]).to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills a process when something has happened.
async fn kill_when(mut child: Child, happened: impl Fn() -> bool) {
    for _ in 0..1200 {
        if happened() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(happened() && child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

async fn only_run(folder: &Path) -> String {
    let runs = log(folder).unwrap().runs(RunFilter::default()).await.unwrap().runs;
    assert_eq!(runs.len(), 1);
    runs[0].run_id.to_string()
}

fn noted(folder: &Path) -> usize {
    std::fs::read_to_string(folder.join("notes")).unwrap_or_default().matches("call").count()
}

/// A folder with a run whose process was killed while the server worked.
async fn killed_in_a_call() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let child = start("hangs_once", &[], folder.path());
    kill_when(child, || noted(folder.path()) == 1).await;
    let run = only_run(folder.path()).await;
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
    assert_eq!(read(&done), r#"hangs_once done {"n": 1}"#);
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

/// The content of the one tool message.
fn read(result: &ChatResult) -> String {
    let read = result.thread.messages.iter().find(|message| message.role() == Role::Tool).unwrap();
    read.text().into_owned()
}

/// A folder with a run that waits, whose process was killed while it waited.
async fn killed_while_it_waits(mode: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let child = start(mode, &[], folder.path());
    kill_when(child, || folder.path().join("waits").exists()).await;
    let run = only_run(folder.path()).await;
    assert_eq!(
        log(folder.path()).unwrap().run(&run).await.unwrap().unwrap().status,
        RunStatus::Suspended
    );
    (folder, run)
}

#[tokio::test]
async fn a_process_that_is_killed_while_a_server_asks_leaves_the_question_to_another() -> Result<()>
{
    let (folder, run) = killed_while_it_waits("asks").await;
    let (log, engine) = (log(folder.path())?, engine("asks", folder.path(), 1..));
    let waiting = engine.resume(&log, &run).answer("2").await?;
    assert_eq!(waiting.pending_question.as_deref(), Some("Who?"));
    let done = engine.resume(&log, &run).answer("Ada").await?;
    assert_eq!(done.text(), "Done.");
    let read: Value = serde_json::from_str(&read(&done)).unwrap();
    assert_eq!(read["state"], "s-1");
    assert_eq!(read["answers"]["many"]["content"], json!({"count": 2}));
    assert_eq!(noted(folder.path()), 2, "one request before, one after the answers");
    assert_eq!(engine.replay(&log, &run).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn a_process_that_is_killed_with_the_answers_on_their_way_leaves_a_call_in_doubt()
-> Result<()> {
    for (policy, expected) in
        [(OnUncertain::Rerun, "s-1"), (OnUncertain::Fail, "tool error (work)")]
    {
        let (folder, run) = killed_while_it_waits("asks_hangs_once").await;
        let child = start("asks_hangs_once", &["2", "Ada"], folder.path());
        kill_when(child, || noted(folder.path()) == 2).await;
        let (log, engine) = (log(folder.path())?, engine("asks_hangs_once", folder.path(), 1..));
        engine.resume(&log, &run).await?;
        assert_eq!(log.run(&run).await?.unwrap().status, RunStatus::Suspended);
        assert_eq!(noted(folder.path()), 2, "it is not made again by itself");

        let done = engine.resume(&log, &run).on_uncertain(policy).await?;
        assert_eq!(done.text(), "Done.");
        let read = read(&done);
        assert!(read.contains(expected), "{policy:?}: {read}");
        // No person is asked again: the answers are in the record.
        assert_eq!(read.contains("Ada"), policy == OnUncertain::Rerun, "{read}");
        assert_eq!(noted(folder.path()), 2 + usize::from(policy == OnUncertain::Rerun));
        assert_eq!(engine.replay(&log, &run).await?.status, "equal");
    }
    Ok(())
}

#[tokio::test]
async fn a_task_of_a_killed_process_is_continued_by_another() -> Result<()> {
    let (folder, run) = killed_while_it_waits("task").await;
    let (log, engine) = (log(folder.path())?, engine("task", folder.path(), 1..));
    let waiting = engine.resume(&log, &run).answer("").await?;
    let question = waiting.pending_question.unwrap_or_default();
    assert!(question.contains("t-1"), "{question}");
    std::fs::write(folder.path().join("notes"), "begun\nfinish\n").unwrap();
    let done = engine.resume(&log, &run).answer("").await?;
    assert_eq!((&*done.text(), &*read(&done)), ("Done.", "begun 1 times"));
    assert_eq!(engine.replay(&log, &run).await?.status, "equal");
    Ok(())
}
