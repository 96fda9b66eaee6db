//! The verbs on runs that are kept: `runs`, `show`, `verify`.

#![allow(clippy::unwrap_used, reason = "a helper may fail the test that calls it")]

mod common;

use std::{fs, path::PathBuf};

use common::{Ran, feed, mynah, run};
use serde_json::{Value, json};

/// A run that waits, one that is complete, one that failed, one that was cancelled, one without an end.
const RUNS: &str = r#"{
  "engine": {"price": {"input": 1000, "output": 1000}},
  "scripts": [
    [ {"tool_call": {"id": "c0", "name": "ask", "arguments": {"dish": "soup"}}}, {"finish": "tool_calls"} ],
    [ {"text": "Soup comes\u001b[2J."}, {"tool_call": {"id": "c1", "name": "order"}}, {"usage": {"input_tokens": 9, "output_tokens": 2}}, {"finish": "tool_calls"} ],
    [ {"text": "It is on its way."}, {"finish": "stop"} ],
    [ {"text": "well"}, {"error": "rate_limited", "message": "too fast"} ],
    [ {"text": "never heard"}, {"finish": "stop"} ],
    [ {"text": "half of it"}, {"finish": "stop"} ]
  ],
  "tools": [
    {"name": "ask", "returns": {"ask_user": "How many?"}},
    {"name": "order", "returns": {"error": "no bowls"}}
  ],
  "ops": [
    {"op": "chat", "messages": [{"role": "user", "content": "Soup?"}]},
    {"op": "chat", "messages": [{"role": "system", "content": "Be quick."}, {"role": "user", "content": "Soup!"}]},
    {"op": "chat", "messages": [{"role": "user", "content": "hi"}]},
    {"op": "chat", "messages": [{"role": "user", "content": "hi"}], "cancel_after": 1},
    {"op": "chat", "messages": [{"role": "user", "content": "hi"}], "take": 2}
  ]
}"#;

#[test]
fn runs_are_listed_newest_first() {
    let store = Store::with(RUNS);
    let listed = store.json(&["runs"]);
    let told: Vec<_> =
        listed.iter().map(|run| (text(run, "run_id"), text(run, "status"))).collect();
    let expected = [
        ("run-4", "running"),
        ("run-3", "cancelled"),
        ("run-2", "failed"),
        ("run-1", "completed"),
        ("run-0", "suspended"),
    ];
    assert_eq!(told, expected.map(|(run, status)| (run.to_owned(), status.to_owned())));
    assert_eq!(listed[3]["totals"]["turns"], 2);
    assert_eq!(listed[3]["totals"]["cost"], 0.011);

    let table = store.run(&["runs"]);
    assert_eq!((table.code, table.stderr.as_str()), (Some(0), ""));
    let lines: Vec<Vec<&str>> =
        table.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 6);
    assert_eq!(lines[0][..2], ["RUN", "STARTED"]);
    let row = &lines[4];
    assert_eq!((row[0], row[1], row[3]), ("run-1", "1970-01-01", "completed"));
    assert_eq!(row[5..9], ["2", "1", "11", "0.0110"]);
    assert!(table.stdout.lines().all(|line| line == line.trim_end()), "{}", table.stdout);
}

#[test]
fn runs_can_be_chosen_and_paged() {
    let store = Store::with(RUNS);
    for (status, run) in [("suspended", "run-0"), ("cancelled", "run-3"), ("running", "run-4")] {
        let chosen = store.json(&["runs", "--status", status]);
        assert_eq!(chosen.iter().map(|run| text(run, "run_id")).collect::<Vec<_>>(), [run]);
    }
    let mut seen = Vec::new();
    let mut page = store.run(&["runs", "--json", "--limit", "2"]);
    loop {
        assert_eq!(page.code, Some(0));
        seen.extend(lines(&page).iter().map(|run| text(run, "run_id")));
        let Some((_, next)) = page.stderr.trim().split_once("there are more: --after ") else {
            break;
        };
        page = store.run(&["runs", "--json", "--limit", "2", "--after", next]);
    }
    assert_eq!(seen, ["run-4", "run-3", "run-2", "run-1", "run-0"]);
    assert_eq!(store.run(&["runs", "--model", "other"]).stdout, "no runs\n");
}

#[test]
fn verify_looks_at_every_run_and_at_the_seals() {
    let store = Store::with(RUNS);
    let verified = store.run(&["verify"]);
    assert_eq!((verified.code, verified.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = verified.stdout.lines().collect();
    assert_eq!(lines.len(), 6);
    assert!(lines[0].starts_with("run-4  in progress  "), "{}", lines[0]);
    assert!(lines[3].starts_with("run-1  verified  9 records  fingerprint "), "{}", lines[3]);
    assert!(lines[5].starts_with("5 runs, 3 seals, root "), "{}", lines[5]);

    let told = store.json(&["verify"]);
    assert_eq!(told[0]["status"], "in_progress");
    assert_eq!(told[5]["seals"], 3);
    let one = store.json(&["verify", "run-1"]);
    assert_eq!(one, [told[3].clone()]);
    assert_eq!((&one[0]["status"], &one[0]["records"]), (&json!("verified"), &json!(9)));
}

#[test]
fn a_flipped_byte_is_found_and_named() {
    let store = Store::with(RUNS);
    store.tamper(b"It is on its way.", b"It is in its way.");
    let verified = store.run(&["verify"]);
    assert_eq!(verified.code, Some(1), "{}", verified.stderr);
    let line = verified.stdout.lines().nth(3).unwrap();
    assert!(line.starts_with("run-1  corrupt: record 7: "), "{line}");
    assert_eq!(verified.stderr, "mynah: 1 thing found corrupt, 5 runs looked at\n");

    let one = store.run(&["verify", "run-1", "--json"]);
    assert_eq!(one.code, Some(1));
    let line = &lines(&one)[0];
    assert_eq!((&line["status"], &line["err"]["reason"]), (&json!("corrupt"), &json!("corrupt")));
    assert_eq!(line["err"]["metadata"]["seq"], 7);
    assert_eq!(store.run(&["verify", "run-0"]).code, Some(0), "the others are what they were");
    assert_eq!(store.run(&["show", "run-1"]).code, Some(1));
}

#[test]
fn a_run_reads_as_a_transcript() {
    let store = Store::with(RUNS);
    let shown = store.run(&["show", "run-1"]);
    assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""));
    let (head, transcript) = shown.stdout.split_once("\n\n").unwrap();
    assert!(head.starts_with("run run-1  completed\n1970-01-01 00:"), "{head}");
    assert!(head.ends_with("2 turns, 1 tool call, 9 + 2 tokens, 9 records"), "{head}");
    // What a terminal would obey is written out.
    let expected = "system: Be quick.\n\nuser: Soup!\n\nassistant: Soup comes\\u{1b}[2J.\n\n  > order {}  [c1]\n  < [c1] \
                    failed: {\"error\":\"no bowls\"}\n\nassistant: It is on its way.\n\n-- completed\n";
    assert_eq!(transcript, expected);

    let waiting = store.run(&["show", "run-0"]).stdout;
    assert!(waiting.ends_with("-- waits: ask_user: How many?\n\n"), "{waiting}");
    let failed = store.run(&["show", "run-2"]).stdout;
    assert!(failed.ends_with("assistant: well\n\n-- failed: error: too fast\n"), "{failed}");
    let cancelled = store.run(&["show", "run-3"]).stdout;
    assert!(cancelled.ends_with("-- cancelled\n"), "{cancelled}");
}

#[test]
fn a_transcript_is_one_value_a_line_in_json() {
    let store = Store::with(RUNS);
    let told = store.json(&["show", "run-1"]);
    assert_eq!(told[0]["run"]["run_id"], "run-1");
    let types: Vec<String> = told.iter().map(|line| text(line, "type")).collect();
    let expected = [
        "run",
        "message",
        "message",
        "message",
        "tool_call",
        "tool_result",
        "message",
        "completed",
    ];
    assert_eq!(types, expected);
    assert_eq!(
        told[5],
        json!({"type": "tool_result", "seq": 5, "id": "c1", "content": "{\"error\":\"no bowls\"}", "failed": true})
    );
}

#[test]
fn records_are_shown_one_a_line_or_one_whole() {
    let store = Store::with(RUNS);
    let records = store.json(&["show", "run-1", "--records"]);
    let kinds: Vec<String> = records.iter().map(|record| text(record, "kind")).collect();
    let expected = [
        "run_started",
        "turn_started",
        "assistant_completed",
        "tool_scheduled",
        "tool_failed",
        "turn_started",
        "assistant_completed",
        "completed",
        "sealed",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(records[0]["prev"], Value::Null);
    for pair in records.windows(2) {
        assert_eq!(pair[1]["prev"], pair[0]["hash"], "each names the one before");
    }
    let one = store.run(&["show", "run-1", "--record", "4"]);
    assert_eq!(serde_json::from_str::<Value>(&one.stdout).unwrap(), records[3]);
    let lines = store.run(&["show", "run-1", "--records"]).stdout;
    assert_eq!(lines.lines().count(), 9);
    assert!(
        lines
            .lines()
            .nth(3)
            .unwrap()
            .ends_with(r#"tool_scheduled        {"call_id":"c1","attempt":1}"#),
        "{lines}"
    );
}

#[test]
fn a_run_is_named_by_its_id_the_beginning_of_it_or_last() {
    let store = Store::with(RUNS);
    assert_eq!(store.json(&["verify", "last"])[0]["run_id"], "run-4");
    let wrong = [
        ("run-", "more than one run has an id that begins with \"run-\": run-4, run-3, …"),
        ("ruin", "no run has an id that begins with \"ruin\"; `mynah runs` lists them"),
    ];
    for verb in ["show", "verify"] {
        for (name, said) in wrong {
            let refused = store.run(&[verb, name]);
            assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{verb} {name}");
            assert!(refused.stderr.contains(said), "{}", refused.stderr);
        }
    }
    let refused = store.run(&["show", "run-1", "--record", "10"]);
    assert_eq!(refused.code, Some(2));
    assert_eq!(refused.stderr, "mynah: record 10: the run has records 1 to 9\n");
    // Ids that the program makes up can be shortened.
    let made_up = Store::new();
    made_up.play(RUNS, false);
    let id = text(&made_up.json(&["runs", "--limit", "1"])[0], "run_id");
    assert_eq!(text(&made_up.json(&["verify", &id[..22]])[0], "run_id"), id);
}

#[test]
fn a_log_that_cannot_be_used_is_exit_code_4_and_is_not_made() {
    let store = Store::new();
    for verb in [&["runs"] as &[_], &["verify"], &["show", "last"]] {
        let refused = store.run(verb);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(4), ""), "{verb:?}");
        assert!(refused.stderr.contains("there is no such log"), "{}", refused.stderr);
        assert!(!store.path.exists());
    }
    fs::write(&store.path, "this is no database, however long one looks at it".repeat(40)).unwrap();
    let refused = store.run(&["runs"]);
    assert_eq!(refused.code, Some(4));
    assert!(refused.stderr.contains("not a SQLite file"), "{}", refused.stderr);
    for url in ["mynah.db", "sqlite:", "memory:x", "postgres://here"] {
        let refused = run(["runs", "--log", url]);
        assert_eq!(refused.code, Some(2), "{url}");
        assert!(refused.stderr.contains("give memory: or sqlite:PATH"), "{}", refused.stderr);
    }
}

#[test]
fn the_log_is_that_of_the_folder_unless_the_environment_or_the_command_says_otherwise() {
    let store = Store::with(RUNS);
    let listed = store.run(&["runs", "--json"]).stdout;
    let mut of_environment = mynah(["runs", "--json"]);
    of_environment.env("MYNAH_LOG", store.url());
    assert_eq!(feed(of_environment, b"").stdout, listed);
    let mut of_folder = mynah(["runs", "--json"]);
    fs::rename(&store.path, store.path.with_file_name("mynah.db")).unwrap();
    of_folder.current_dir(store.path.parent().unwrap()).env_remove("MYNAH_LOG");
    assert_eq!(feed(of_folder, b"").stdout, listed);
    let mut told = mynah(["runs", "--log", "memory:"]);
    told.env("MYNAH_LOG", "sqlite:/nowhere/at.all");
    assert_eq!(feed(told, b"").stdout, "no runs\n");
}

#[test]
fn every_verb_has_help_with_examples() {
    for verb in ["runs", "show", "verify"] {
        let help = run([verb, "-h"]);
        assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
        for part in ["Usage: mynah ", "--log <URL>", "--json", "Examples:", "MYNAH_LOG"] {
            assert!(help.stdout.contains(part), "{part:?} is missing in\n{}", help.stdout);
        }
    }
}

/// A log in a file of its own.
struct Store {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Store {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.db");
        Self { _folder: folder, path }
    }

    /// With the runs of a scenario.
    fn with(scenario: &str) -> Self {
        let store = Self::new();
        store.play(scenario, true);
        store
    }

    fn play(&self, scenario: &str, stable: bool) {
        let url = self.url();
        let arguments =
            ["play", "--log", &url, "-"].into_iter().chain(stable.then_some("--stable"));
        let played = feed(mynah(arguments), scenario.as_bytes());
        assert_eq!((played.code, played.stderr.as_str()), (Some(0), ""));
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let url = self.url();
        run(arguments.iter().copied().chain(["--log", &url]))
    }

    fn json(&self, arguments: &[&str]) -> Vec<Value> {
        let ran = self.run(&[arguments, &["--json"]].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        lines(&ran)
    }

    /// Writes something else into the file, wherever this stands.
    fn tamper(&self, from: &[u8], to: &[u8]) {
        let mut bytes = fs::read(&self.path).unwrap();
        let mut found = 0;
        for start in 0..bytes.len() - from.len() {
            if bytes[start..].starts_with(from) {
                bytes[start..start + to.len()].copy_from_slice(to);
                found += 1;
            }
        }
        assert!(found > 0, "there is nothing to change");
        fs::write(&self.path, bytes).unwrap();
    }
}

fn lines(ran: &Ran) -> Vec<Value> {
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text(value: &Value, member: &str) -> String {
    value[member].as_str().unwrap().to_owned()
}
