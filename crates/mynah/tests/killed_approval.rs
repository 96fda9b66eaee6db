//! A process that is killed while its run waits for approval, and one that is killed in the
//! approved call: another process resumes the run. The processes are this test itself, with orders
//! in its environment.

#![cfg(all(unix, feature = "sqlite"))]

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
};

use mynah::{
    Approval, Engine, OnUncertain, Result, Tool,
    log::SqliteLog,
    recorded_call,
    testing::{Script, Scripted},
};
use serde_json::{Value, json};

/// Where a process finds its orders: the folder of its run, and what it does.
const ORDERS: &str = "MYNAH_TEST_APPROVAL";

#[tokio::test]
async fn a_run_killed_while_it_waits_or_in_the_approved_call_goes_on_elsewhere() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    kill_when_told(start(folder, "ask"), "waits");
    let log = SqliteLog::open(folder.join("log.db"))?;
    let kept = recorded_call(&log, "r").await?;
    let waiting = kept.result.expect("it waits");
    assert_eq!(waiting.manual_tool_calls()[0].arguments, json!({"euros": 700}));
    assert_eq!(kept.digests.len(), 1);
    assert_eq!(paid(folder), Vec::<String>::new());

    kill_when_told(start(folder, "approve"), "paying");
    assert_eq!(paid(folder), [r#"{"euros":7}"#]);
    let engine = engine(folder, true);
    let in_doubt = engine.resume(&log, "r").await?;
    assert_eq!(in_doubt.uncertain_tool_calls()[0].arguments, json!({"euros": 7}));
    assert_eq!(paid(folder).len(), 1, "it may have run, so it is not run again unasked");
    let done = engine.resume(&log, "r").on_uncertain(OnUncertain::Rerun).await?;
    assert_eq!((done.text().as_ref(), paid(folder).len()), ("done", 2));
    assert_eq!(paid(folder)[1], r#"{"euros":7}"#, "with the arguments of the person");
    assert_eq!(engine.replay(&log, "r").await?.status, "equal");
    Ok(())
}

/// One of the processes. Without orders there is nothing to do.
#[test]
fn child_process() -> Result<()> {
    let Some(orders) = std::env::var_os(ORDERS) else { return Ok(()) };
    let (folder, what): (String, String) =
        serde_json::from_slice(orders.as_encoded_bytes()).expect("orders");
    let folder = Path::new(&folder);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (log, engine) = (SqliteLog::open(folder.join("log.db"))?, engine(folder, false));
        if what == "ask" {
            engine.chat("pay").record(&log).run_id("r").start_or_resume().await?.run_id();
            println!("\nwaits");
            return std::future::pending().await;
        }
        engine.resume(&log, "r").approve_with("c0", json!({"euros": 7})).await?;
        Ok(())
    })
}

/// An engine whose tool notes what it pays. It never comes back, unless it ends.
fn engine(folder: &Path, ends: bool) -> Engine {
    let file = folder.join("paid");
    let pay = Tool::new("pay", "Pays an invoice", json!({})).approval(Approval::Ask);
    let pay = pay.handler(move |arguments: Value, _| {
        let file = fs::OpenOptions::new().create(true).append(true).open(&file);
        file.and_then(|mut file| writeln!(file, "{arguments}")).expect("a file");
        println!("\npaying");
        async move { if ends { "paid" } else { std::future::pending().await } }
    });
    let asks = Script::new().tool_call("c0", "pay", json!({"euros": 700})).call_tools();
    let done = Script::new().text("done").stop();
    let script = if ends { vec![done] } else { vec![asks, done] };
    Engine::new(Scripted::play(script)).tool(pay)
}

fn paid(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("paid")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn start(folder: &Path, what: &str) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "killed_approval::child_process", "--nocapture"])
        .env(ORDERS, json!((folder, what)).to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

/// Kills a process with SIGKILL when it says this.
fn kill_when_told(mut child: Child, word: &str) {
    let mut lines = BufReader::new(child.stdout.as_mut().expect("a pipe")).lines();
    assert!(lines.any(|line| line.is_ok_and(|line| line == word)), "{word}");
    child.kill().expect("it is there");
    child.wait().expect("its end");
}
