//! `--json`: the errors for programs.

use mynah::log::{Log as _, SqliteLog};
use serde_json::{Value, json};

use crate::common::{RUNS, Ran, Store, lines, run};

#[test]
fn a_run_that_is_not_there_is_told_once_by_every_verb() {
    let store = Store::with(RUNS);
    let (url, agent) = (store.url(), store.file("agent.json", RUNS));
    for verb in verbs_of_a_run("ruin", &agent, &url) {
        let (code, kind, _) = err(&verb);
        assert_eq!((code, &*kind), (Some(2), "log_error / run_not_found"), "{verb:?}");
    }
    for verb in verbs_of_a_run("run-", &agent, &url) {
        let (code, kind, _) = err(&verb);
        assert_eq!((code, &*kind), (Some(2), "log_error / ambiguous_run"), "{verb:?}");
    }
}

#[test]
fn a_log_that_cannot_be_used_is_told_once_by_every_verb() {
    let store = Store::new();
    let agent = store.file("agent.json", RUNS);
    let (none, text) = (store.url(), format!("sqlite:{agent}"));
    for (url, codes) in [(&*none, [4, 4]), (&text, [4, 1]), ("mongo:x", [2, 2]), ("x", [2, 2])] {
        let mut verbs = verbs_of_a_run("last", &agent, url);
        verbs.push(vec!["runs", "--log", url]);
        verbs.push(vec!["verify", "--log", url]);
        verbs.push(vec!["doctor", "--log", url]);
        verbs.push(vec!["prune", "--older-than", "1d", "--reason", "age", "--log", url]);
        for verb in verbs {
            let code = err(&verb).0.unwrap();
            assert!(codes.contains(&code), "{verb:?} ended with {code}");
        }
    }
}

#[test]
fn a_run_that_is_not_what_it_was_is_told_once_by_every_verb() {
    let store = Store::with(RUNS);
    let (url, agent) = (store.url(), store.file("agent.json", RUNS));
    store.tamper(b"Soup?", b"Soap!");
    for mut verb in verbs_of_a_run("run-0", &agent, &url) {
        if verb[0] == "diff" {
            verb[2] = "run-1";
        }
        // What stands in a run is told by these as it stands there.
        if ["show", "redact", "diff"].contains(&verb[0]) {
            continue;
        }
        let (code, kind, err) = err(&verb);
        assert_eq!((code, &*kind), (Some(1), "log_error / corrupt"), "{verb:?}");
        assert_eq!(err["metadata"]["seq"], 1, "{verb:?}");
    }
}

#[test]
fn a_run_in_other_hands_is_told_once() {
    let store = Store::with(RUNS);
    let url = store.url();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let log = SqliteLog::open(&store.path).unwrap();
    let hold = move || {
        let term = std::time::Duration::from_secs(3600);
        runtime.block_on(log.lease("run-0", "somebody", term))
    };
    hold().unwrap();
    // Who lives renews its lease.
    std::thread::spawn(move || {
        while hold().is_ok() {
            std::thread::park_timeout(std::time::Duration::from_millis(50));
        }
    });
    let (code, kind, _) = err(&["cancel", "run-0", "--log", &url]);
    assert_eq!((code, &*kind), (Some(4), "log_error / leased"));
}

#[test]
fn wrong_usage_and_bad_files_are_told_once() {
    let store = Store::with(RUNS);
    let (url, agent) = (store.url(), store.file("agent.json", RUNS));
    let bad = store.file("bad.json", r#"{"ops": [{"op": "sing"}]}"#);
    let cases: [&[&str]; 16] = [
        &["sing"],
        &["show"],
        &["runs", "--limit", "many"],
        &["runs", "--status", "happy"],
        &["fork", "last", "--at", "-1", "--log", &url],
        &["fork", "run-1", "--at", "99", "--log", &url],
        &["show", "run-1", "--record", "99", "--log", &url],
        &["cancel", "run-1", "--log", &url],
        &["resume", "run-1", "--agent", &agent, "--log", &url],
        &["resume", "run-0", "--tool-result", "c9=1", "--agent", &agent, "--log", &url],
        &["resume", "run-0", "--agent", &bad, "--answer", "two", "--message", "--log", &url],
        &["replay", "run-0", "--tools", "rerun", "--log", &url],
        &["play", &bad],
        &["verify", &agent],
        &["import", &agent, "--log", &url],
        &["generate", "-m", "nobody:knows", "hi"],
    ];
    for case in cases {
        assert_eq!(err(case).0, Some(2), "{case:?}");
    }
    let nowhere = store.path.with_file_name("nowhere.json").display().to_string();
    for case in [["play", &nowhere], ["import", &nowhere]] {
        let (code, kind, told) = err(&case);
        assert_eq!((code, &*kind), (Some(4), "cli_error / unusable"), "{case:?}");
        assert!(told["message"].as_str().unwrap().contains("nowhere.json"), "{told}");
    }
}

#[test]
fn what_the_verb_was_asked_for_is_no_error_beside_it() {
    let store = Store::with(RUNS);
    let (url, agent) = (store.url(), store.file("agent.json", RUNS));
    let differ = run(["diff", "run-0", "run-1", "--json", "--log", &url]);
    assert_eq!((differ.code, &lines(&differ)[0]["status"]), (Some(1), &json!("different")));
    let waits = run(["resume", "last", "--agent", &agent, "--json", "--log", &url]);
    assert_eq!(waits.code, Some(3), "{waits:?}");
    for ran in [&differ, &waits] {
        assert!(lines(ran).iter().all(|line| line.get("err").is_none()), "{ran:?}");
    }
}

/// The error in one line of standard output, as it is printed for people on standard error.
fn err(arguments: &[&str]) -> (Option<i32>, String, Value) {
    let ran = run(arguments.iter().copied().chain(["--json"]));
    let mut told: Vec<Value> =
        lines(&ran).into_iter().filter(|line| line["err"].is_object()).collect();
    assert_eq!(told.len(), 1, "{arguments:?} told {ran:?}");
    let err = told.remove(0)["err"].take();
    let members: Vec<&String> = err.as_object().unwrap().keys().collect();
    assert_eq!(members, ["type", "reason", "message", "metadata"], "{arguments:?}");
    assert!(!ran.stderr.is_empty(), "{arguments:?} told people nothing");
    let Ran { code, stdout, stderr } = run(arguments.iter().copied());
    let told = ran.stderr.replace(" --json", "");
    assert_eq!((code, stderr), (ran.code, told), "{arguments:?} without --json");
    assert!(!stdout.contains("\"err\""), "{arguments:?} told people JSON");
    let kind = format!("{} / {}", err["type"].as_str().unwrap(), err["reason"].as_str().unwrap());
    (code, kind, err)
}

/// Every verb that names a run, with all else that it needs.
fn verbs_of_a_run<'a>(name: &'a str, agent: &'a str, url: &'a str) -> Vec<Vec<&'a str>> {
    let verbs: [&[&str]; 10] = [
        &["show", name],
        &["verify", name],
        &["replay", name],
        &["resume", name, "--agent", agent],
        &["cancel", name],
        &["fork", name, "--at", "1"],
        &["fork", name, "--at", "1", "--agent", agent],
        &["diff", name, name],
        &["export", name],
        &["redact", name, "--all", "--reason", "age"],
    ];
    verbs.map(|verb| [verb, &["--log", url]].concat()).to_vec()
}
