//! Work continues when its output is not read.

#[cfg(target_os = "linux")]
use std::fs;
use std::process::Stdio;

use crate::common::{RUNS, Store, mynah, text};

#[test]
fn whoever_has_seen_enough_may_close_the_pipe() {
    let store = Store::with(RUNS);
    let url = store.url();
    let verbs: [&[&str]; 5] = [
        &["show", "run-1", "--records", "--json"],
        &["show", "run-1", "--tree"],
        &["replay", "run-1"],
        &["doctor"],
        &["completions", "zsh"],
    ];
    for verb in verbs {
        let log: &[&str] = if verb[0] == "completions" { &[] } else { &["--log", &url] };
        let mut command = mynah(verb.iter().chain(log).copied());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), output.stderr.as_slice()),
            (Some(0), b"".as_slice()),
            "{verb:?}"
        );
    }
}

#[test]
fn a_run_goes_on_to_its_end_though_nobody_reads() {
    const SLOW: &str = r#"{
      "scripts": [ [ {"text": "Well,"}, {"delay_ms": 300}, {"text": " yes."}, {"finish": "stop"} ] ],
      "ops": [ {"op": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": true} ]
    }"#;
    let store = Store::new();
    let (slow, url) = (store.file("slow.json", SLOW), store.url());
    let fork = || text(&store.json(&["fork", "last", "--at", "1"])[0], "run_id");
    let unread = |arguments: &[&str]| {
        let mut command = mynah(arguments.iter().copied().chain(["--log", &url]));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {said}");
        // Only what the run used, and commands for it.
        assert!(said.lines().all(|line| line.starts_with("  ")), "{arguments:?}: {said}");
        let run = &store.json(&["runs", "--limit", "1"])[0];
        assert_eq!(run["status"], "completed", "{arguments:?}");
    };
    unread(&["play", &slow]);
    unread(&["resume", &fork(), "--agent", &slow]);
    unread(&["resume", &fork(), "--agent", &slow, "--json"]);
    let model = format!("scripted:{slow}");
    unread(&["generate", "hi", "--stream", "--model", &model]);
}

#[cfg(target_os = "linux")]
#[test]
fn what_could_not_be_written_is_told_when_the_run_is_done() {
    let store = Store::new();
    let quick = r#"{ "scripts": [ [ {"text": "Yes."}, {"finish": "stop"} ] ],
                     "ops": [ {"op": "chat", "messages": [{"role": "user", "content": "hi"}]} ] }"#;
    let quick = store.file("quick.json", quick);
    let mut command = mynah(["play", &quick, "--log", &store.url()]);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = command.stdout(full).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.starts_with("mynah: standard output: No space left"), "{said}");
    assert_eq!(store.json(&["runs"])[0]["status"], "completed");
}
