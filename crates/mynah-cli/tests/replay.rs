//! `mynah replay`: from the records alone, and against an agent.

use std::{fs, path::PathBuf, sync::Arc};

use mynah::log::{Log as _, RunFilter, SqliteLog};
use serde_json::json;

use crate::common::{self, RUNS, Store, mynah, run, text};

#[test]
fn every_kind_of_run_replays_from_its_records_alone() {
    let store = Store::with(RUNS);
    let expected = [("run-0", 6), ("run-1", 9), ("run-2", 5), ("run-3", 4), ("run-4", 2)];
    for (name, records) in expected {
        let replayed = store.run(&["replay", name]);
        assert_eq!((replayed.code, replayed.stderr.as_str()), (Some(0), ""), "{name}");
        assert_eq!(replayed.stdout, format!("{name}  equal  {records} records\n"));
        let told = store.json(&["replay", name]);
        assert_eq!(told, [json!({"run_id": name, "status": "equal", "records": records})]);
    }
}

#[test]
fn whatever_a_scenario_does_replays_from_its_records_alone() {
    let store = Store::new();
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/log");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files = files.filter(|path| path.extension().is_some_and(|kind| kind == "json"));
    for path in files {
        let url = store.url();
        // A scenario may end its process, or be one for a log of its own.
        mynah(["play", "--log", &url, path.to_str().unwrap()]).output().unwrap();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let log = Arc::new(SqliteLog::open_read_only(&store.path).unwrap());
        let runs = log.runs(RunFilter::new().limit(1000)).await.unwrap().runs;
        assert!(runs.len() > 30, "{} runs", runs.len());
        for run in runs {
            let replayed = mynah::replay_run(&log, &*run.run_id).await;
            assert_eq!(replayed.map(|replayed| replayed.records), Ok(run.records), "{run:?}");
        }
    });
}

#[test]
fn the_agent_of_a_run_makes_the_same_of_it() {
    let store = Store::with(RUNS);
    let agent = store.file("agent.json", RUNS);
    for how in ["rerun", "recorded"] {
        let replayed = store.run(&["replay", "run-1", "--agent", &agent, "--tools", how]);
        assert_eq!((replayed.code, replayed.stderr.as_str()), (Some(0), ""), "{how}");
        assert_eq!(replayed.stdout, "run-1  equal  9 records\n");
    }
}

#[test]
fn what_a_changed_tool_would_change_is_told_field_by_field() {
    let store = Store::with(RUNS);
    let plates = "no plates, and it will be long before there are any, ".repeat(9);
    let agent = store.file("agent.json", &RUNS.replace("no bowls", &plates));
    let differs = store.run(&["replay", "run-1", "--agent", &agent, "--tools", "rerun"]);
    assert_eq!(differs.code, Some(1));
    assert_eq!(differs.stderr, "mynah: this agent would not do what the run did\n");
    let expected = r#"run-1  differs at record 5, tool_failed
  call c1 of order: tool_failed differs at error.message
  error.message
    recorded  "tool error (order): no bowls"
    produced  "tool error (order): no plates, and it will be long"#;
    assert!(differs.stdout.starts_with(expected), "{}", differs.stdout);
    assert!(differs.stdout.lines().all(|line| line.chars().count() < 180), "{}", differs.stdout);

    let told = store.run(&["replay", "run-1", "--agent", &agent, "--tools", "rerun", "--json"]);
    let told = common::lines(&told).remove(0);
    assert_eq!((text(&told, "run_id"), text(&told, "status")), ("run-1".into(), "mismatch".into()));
    let diff = &told["err"]["metadata"]["diff"];
    assert_eq!(
        diff[1],
        json!({"path": "error.metadata.error", "recorded": "no bowls", "produced": plates})
    );
    // A tool can be named; without either, its record answers.
    let named = store.run(&["replay", "run-1", "--agent", &agent, "--rerun", "order"]);
    assert_eq!((named.code, named.stdout), (Some(1), differs.stdout));
    assert_eq!(store.run(&["replay", "run-1", "--agent", &agent]).code, Some(0));
}

#[test]
fn a_tool_that_comes_out_otherwise_is_named_with_what_it_gave() {
    let store = Store::with(RUNS);
    let works = RUNS.replace(r#"{"error": "no bowls"}"#, r#"{"ok": "soup"}"#);
    let agent = store.file("agent.json", &works);
    let differs = store.run(&["replay", "run-1", "--agent", &agent, "--tools", "rerun"]);
    let expected = "run-1  differs at record 5
    recorded  tool_failed
    produced  tool_completed
  call c1 of order: expected tool_failed, got tool_completed: soup\n";
    assert_eq!((differs.code, differs.stdout.as_str()), (Some(1), expected));
}

#[test]
fn what_another_agent_would_do_instead_is_told() {
    let store = Store::with(RUNS);
    let agent = store.file("agent.json", r#"{"engine": {"params": {"max_turns": 1}}}"#);
    let differs = store.run(&["replay", "run-1", "--agent", &agent]);
    assert_eq!(differs.code, Some(1));
    assert!(
        differs.stdout.starts_with("run-1  differs at record 1, run_started\n"),
        "{}",
        differs.stdout
    );
    assert!(
        differs.stdout.contains("  about.params.max_turns\n    recorded  null\n    produced  1\n")
    );
}

#[test]
fn what_an_agent_does_differently_is_told_behind_what_it_is() {
    let store = Store::with(RUNS);
    let works = RUNS.replace(r#"{"error": "no bowls"}"#, r#"{"ok": "soup"}"#);
    let works = works.replace(r#""engine": {"#, r#""engine": {"params": {"seed": 7}, "#);
    let agent = store.file("agent.json", &works);
    let differs = store.run(&["replay", "run-1", "--agent", &agent]);
    assert!(differs.stdout.contains("about.params.seed"), "{}", differs.stdout);
    assert!(differs.stderr.contains("pass --allow-changed-agent"), "{}", differs.stderr);
    let again = ["--allow-changed-agent", "--tools", "rerun"];
    let differs = store.run(&[&["replay", "run-1", "--agent", &agent][..], &again].concat());
    assert!(differs.stdout.starts_with("run-1  differs at record 5\n"), "{}", differs.stdout);
    let alike = ["--allow-changed-agent", "--tools", "recorded"];
    let alike = store.run(&[&["replay", "run-1", "--agent", &agent][..], &alike].concat());
    assert_eq!((alike.code, alike.stdout.as_str()), (Some(0), "run-1  equal  9 records\n"));
    assert_eq!(store.run(&["replay", "run-1", "--allow-changed-agent"]).code, Some(2), "whose?");
}

#[test]
fn what_other_instructions_would_change_is_told() {
    let store = Store::with(RUNS);
    let (agent, prompt) = (store.file("agent.json", RUNS), store.file("prompt.txt", "Be kind."));
    let from_file = format!("@{prompt}");
    for said in ["Be kind.", &from_file] {
        for agent in
            [&[] as &[&str], &["--agent", &agent], &["--agent", &agent, "--allow-changed-agent"]]
        {
            let differs = store.run(&[&["replay", "run-1", "--system", said], agent].concat());
            assert_eq!(differs.code, Some(1), "{}", differs.stderr);
            let expected = r#"run-1  differs at record 1, run_started
  thread.messages.0.content
    recorded  "Be quick."
    produced  "Be kind."
"#;
            assert_eq!(differs.stdout, expected);
            let said = "mynah: with these instructions the model would be asked something else\n";
            assert_eq!(differs.stderr, said);
        }
    }
    assert_eq!(store.run(&["replay", "run-1", "--system", "Be quick."]).code, Some(0));
    assert_eq!(store.run(&["replay", "run-1", "--system", "@nowhere.txt"]).code, Some(4));
    // Where there were none they stand first.
    let added = store.run(&["replay", "run-2", "--system", "Be kind."]);
    assert!(added.stdout.contains("thread.messages.0"), "{}", added.stdout);
}

#[test]
fn a_run_that_is_not_what_it_was_is_not_performed() {
    let store = Store::with(RUNS);
    store.tamper(b"It is on its way.", b"It is in its way.");
    let found = store.run(&["replay", "run-1"]);
    assert_eq!(
        (found.code, found.stderr.as_str()),
        (Some(1), "mynah: the run was changed or damaged\n")
    );
    assert!(found.stdout.starts_with("run-1  corrupt: record "), "{}", found.stdout);
    assert!(found.stdout.contains("record 7"), "{}", found.stdout);
    let found = store.run(&["replay", "run-1", "--json"]);
    assert_eq!(text(&common::lines(&found)[0], "status"), "corrupt");
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let store = Store::with(RUNS);
    let broken = store.file("broken.json", r#"{"tools": [{"name": 7}]}"#);
    let cases: [(&[&str], i32, &str); 6] = [
        (&["replay", "run-"], 2, "more than one run"),
        (&["replay", "ruin"], 2, "no run has an id"),
        (&["replay", "run-1", "--tools", "rerun"], 2, "--agent FILE names one"),
        (&["replay", "run-1", "--agent", "/nowhere/agent.json"], 4, "/nowhere/agent.json: "),
        (&["replay", "run-1", "--agent", &broken], 2, "broken.json: tools.0: "),
        (&["replay", "run-1", "--agent", "agent.json", "--tools", "never"], 2, "rerun, recorded"),
    ];
    for (arguments, code, said) in cases {
        let refused = store.run(arguments);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(code), ""), "{arguments:?}");
        assert!(refused.stderr.contains(said), "{arguments:?}: {}", refused.stderr);
    }
    assert_eq!(store.run(&["replay", "run-1", "--tools", "recorded"]).code, Some(0), "as ever");
    assert_eq!(run(["replay", "last", "--log", "memory:"]).code, Some(2));
}
