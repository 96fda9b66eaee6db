//! `shell`, in normal use.
#![cfg(unix)]

use std::{fs, time::Duration};

use mynah_step::Approval;
use mynah_tools::shell;
use serde_json::json;

use crate::common::call;

#[tokio::test]
async fn a_command_returns_its_exit_code_and_both_outputs() {
    let command = json!({"command": "echo out; echo err >&2; exit 3"});
    let ended = call(&shell().tool(), command).await.unwrap();
    assert_eq!(ended, json!({"exit_code": 3, "stdout": "out\n", "stderr": "err\n"}));
    let killed = call(&shell().tool(), json!({"command": "kill -9 $$"})).await.unwrap();
    assert_eq!((&killed["exit_code"], &killed["signal"]), (&json!(null), &json!(9)));
}

#[tokio::test]
async fn a_command_runs_in_its_folder_with_the_variables_that_were_set() {
    let dir = tempfile::tempdir().unwrap();
    let tool = shell().dir(dir.path()).env("WHO", "me").tool();
    let ended = call(&tool, json!({"command": "pwd -P; echo $WHO"})).await.unwrap();
    let expected = format!("{}\nme\n", dir.path().canonicalize().unwrap().display());
    assert_eq!(ended["stdout"], expected);
}

#[tokio::test]
async fn of_a_long_output_the_begin_and_the_end_are_kept() {
    let tool = shell().max_output(20).tool();
    let ended = call(&tool, json!({"command": "seq 1 1000"})).await.unwrap();
    assert_eq!(ended["stdout"], "1\n2\n3\n4\n5\n\n[3873 bytes left out]\n\n999\n1000\n");
    assert_eq!(ended["truncated"], "3873 bytes in the middle of the output were left out");
}

#[tokio::test]
async fn dropping_a_call_kills_all_its_processes() {
    let dir = tempfile::tempdir().unwrap();
    let tool = shell().dir(dir.path()).tool();
    let command = "echo $$ > pids; sleep 600 & echo $! >> pids; wait";
    let running = tokio::spawn(async move { call(&tool, json!({"command": command})).await });
    let pids = || fs::read_to_string(dir.path().join("pids")).unwrap_or_default();
    until(|| pids().lines().count() == 2).await;
    assert!(pids().lines().all(is_running));
    running.abort();
    until(|| !pids().lines().any(is_running)).await;
}

async fn until(is_so: impl Fn() -> bool) {
    for _ in 0..500 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it did not happen within 10 s");
}

/// A process that ended and was not waited for is a zombie.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

#[test]
fn a_shell_is_asked_for_and_never_run_twice() {
    let tool = shell().tool();
    assert_eq!(tool.spec().approval, Approval::Ask);
    assert!(!tool.spec().idempotent && tool.is_recorded());
    assert_eq!(tool.schema_error(), None);
}
