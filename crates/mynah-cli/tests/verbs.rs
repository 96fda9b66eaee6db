//! The verbs that look at runs that are kept, `runs`, `show`, `verify`, and what holds for every verb.

use std::fs;
#[cfg(unix)]
use std::{
    path::{Path, PathBuf},
    process::Command,
};

#[cfg(unix)]
use serde_json::{Value, json};

use crate::common::{RUNS, Ran, Store, feed, lines, mynah, run, text};

/// Every verb on one run.
const ON_LAST: [&[&str]; 8] = [
    &["cancel", "last"],
    &["show", "last"],
    &["show", "last", "--tree"],
    &["verify", "last"],
    &["replay", "last"],
    &[
        "resume",
        "last",
        "--agent",
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/chat/tool_turn.json"),
    ],
    &["fork", "last", "--at", "1"],
    &["diff", "last", "last"],
];

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
        let runs = lines(&page);
        seen.extend(runs.iter().map(|run| text(run, "run_id")));
        let ended: Vec<&str> = runs.iter().filter_map(|run| run["next"].as_str()).collect();
        let Some((_, next)) = page.stderr.trim().split_once("there are more: --after ") else {
            assert_eq!((ended, runs.len()), (vec![], 1));
            break;
        };
        assert_eq!((ended, runs[1]["next"].as_str()), (vec![next], Some(next)));
        page = store.run(&["runs", "--json", "--limit", "2", "--after", next]);
    }
    assert_eq!(seen, ["run-4", "run-3", "run-2", "run-1", "run-0"]);
    assert_eq!(store.run(&["runs", "--model", "other"]).stdout, "no runs\n");
    store.play(&RUNS.replacen("{\"price\"", "{\"model\": \"openai:m0\", \"price\"", 1), true);
    for (model, runs) in [("openai:m0", 5), ("m0", 5), ("openai", 0), ("m", 0)] {
        assert_eq!(store.json(&["runs", "--model", model]).len(), runs, "{model}");
    }
}

#[test]
fn a_root_that_was_kept_elsewhere_tells_whether_something_is_missing() {
    let store = Store::with(RUNS);
    let root = text(store.json(&["verify"]).last().unwrap(), "root");
    let kept = ["verify", "--root", &root];
    let told = store.run(&kept);
    let said = format!("\nroot {root}  verified: the log had it at leaf 3\n");
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert!(told.stdout.ends_with(&said), "{}", told.stdout);
    store.play(RUNS, true);
    let told = store.json(&kept);
    assert_eq!(told.last(), Some(&json!({"kept": {"root": root, "leaves": 3}})), "it has grown");

    // All there is of the first run that has a seal, and of its seal.
    let gone = "DELETE FROM records WHERE run = (SELECT key FROM runs WHERE id = 'run-1');
         DELETE FROM heads WHERE run = (SELECT key FROM runs WHERE id = 'run-1');
         DELETE FROM runs WHERE id = 'run-1';
         DELETE FROM seals WHERE place = 0;
         UPDATE seals SET place = -place; UPDATE seals SET place = -place - 1";
    rusqlite::Connection::open(&store.path).unwrap().execute_batch(gone).unwrap();
    assert_eq!(store.run(&["verify"]).code, Some(0), "nobody else can tell");
    let told = store.run(&kept);
    assert_eq!(told.code, Some(1));
    let said = format!("\nroot {root}  corrupt: the log does not begin with what had it\n");
    assert!(told.stdout.ends_with(&said), "{}", told.stdout);
    assert_eq!(store.run(&["verify", "--root", "5f"]).code, Some(2));
    assert_eq!(store.run(&["verify", "run-1", "--root", &root]).code, Some(2));
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
fn a_run_is_shown_on_a_timeline() {
    let store = Store::with(
        r#"{
          "scripts": [
            [ {"text": "Let me see."}, {"tool_call": {"id": "c0", "name": "shaky"}}, {"tool_call": {"id": "c1", "name": "lookup", "arguments": {"of": "EUR"}}}, {"finish": "tool_calls"} ],
            [ {"tool_call": {"id": "c2", "name": "ask"}}, {"finish": "tool_calls"} ],
            [ {"text": "Done."}, {"finish": "stop"} ]
          ],
          "tools": [
            {"name": "shaky", "idempotent": true, "max_attempts": 2, "returns": [{"error": "busy", "transient": true}, {"ok": 7}]},
            {"name": "lookup", "returns": {"side_effect": {"name": "rate", "value": 1.5}}},
            {"name": "ask", "returns": {"ask_user": "How many?"}}
          ],
          "ops": [
            {"op": "chat", "messages": [{"role": "user", "content": "Go."}]},
            {"op": "resume", "answer": "two"}
          ]
        }"#,
    );
    let shown = store.run(&["show", "last", "--tree"]);
    assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""));
    let (_, timeline) = shown.stdout.split_once("\n\n").unwrap();
    let (timeline, seal) = timeline.trim_end().rsplit_once('\n').unwrap();
    let expected = r#"   1        0 ms              run_started  Go.
   2       1.0 s       8.0 s  turn 1
   3       1.0 s       1.0 s    answer  Let me see. > shaky {} > lookup {"of":"EUR"}
   4       3.0 s       6.0 s    tool [c0]  shaky {}
   4       3.0 s       2.0 s      try 1  failed: tool error (shaky): busy
   9       8.0 s       1.0 s      try 2  7
   5       4.0 s       3.0 s    tool [c1]  lookup {"of":"EUR"}
   5       4.0 s       3.0 s      try 1  1.5
   7       6.0 s                    side_effect rate  1.5
  11      10.0 s       3.0 s  turn 2
  12      10.0 s       1.0 s    answer  > ask {}
  13      12.0 s       1.0 s    tool [c2]  ask {}
  13      12.0 s       1.0 s      try 1  <awaiting user response>
  15      14.0 s              suspended  ask_user: How many?
  16      15.0 s              resumed  two
  17      16.0 s       1.0 s  turn 3
  18      16.0 s       1.0 s    answer  Done.
  19      18.0 s              completed  completed"#;
    assert_eq!(timeline, expected);
    assert!(seal.starts_with("  20      19.0 s              sealed  "), "{seal}");

    let told = store.json(&["show", "last", "--tree"]);
    let (begun, turn) = (&told[1], &told[2]);
    assert_eq!((&begun["id"], &begun["children"]), (&json!(""), &json!([])), "no key is missing");
    assert_eq!(
        (text(turn, "type"), text(turn, "id"), &turn["seq"]),
        ("turn".into(), "1".into(), &json!(2))
    );
    let tool = &turn["children"][1];
    assert_eq!((text(tool, "type"), text(tool, "id")), ("tool".into(), "c0".into()));
    assert_eq!(tool["children"][1]["says"], "7");
    let effect = &turn["children"][2]["children"][0]["children"][0];
    assert_eq!((text(effect, "type"), text(effect, "id")), ("side_effect".into(), "rate".into()));
    assert!(turn["ended"].as_i64() > turn["started"].as_i64());
    let refused = store.run(&["show", "last", "--tree", "--records"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""));
}

#[test]
fn what_a_run_went_on_with_is_on_the_timeline_too() {
    let store = Store::with(
        r#"{
          "scripts": [
            [ {"tool_call": {"id": "c0", "name": "pay"}}, {"tool_call": {"id": "c1", "name": "pay"}}, {"tool_call": {"id": "c2", "name": "pay"}}, {"finish": "tool_calls"} ],
            [ {"text": "Done."}, {"finish": "stop"} ]
          ],
          "tools": [{"name": "pay", "manual": true, "returns": {"ok": "paid"}}],
          "ops": [
            {"op": "chat", "messages": [{"role": "user", "content": "Pay."}]},
            {"op": "resume", "approve": ["c1"], "reject": ["c2"], "tool_results": [["c0", "cash"]]}
          ]
        }"#,
    );
    let shown = store.run(&["show", "last", "--tree"]).stdout;
    let (_, timeline) = shown.split_once("\n\n").unwrap();
    let expected = r"   1        0 ms              run_started  Pay.
   2       1.0 s       1.0 s  turn 1
   3       1.0 s       1.0 s    answer  > pay {} > pay {} > pay {}
   4       3.0 s              suspended  the results of pay {} [c0], pay {} [c1], pay {} [c2]
   5       4.0 s       2.0 s  resumed
   5       4.0 s                tool [c0]  pay {}
   5       4.0 s                  result  cash
   5       4.0 s                tool [c2]  pay {}
   5       4.0 s                  result  rejected
   6       5.0 s       1.0 s    tool [c1]  pay {}
   6       5.0 s       1.0 s      try 1  paid
   8       7.0 s       1.0 s  turn 2
   9       7.0 s       1.0 s    answer  Done.
  10       9.0 s              completed  completed
";
    assert!(timeline.starts_with(expected), "{timeline}");
}

#[test]
fn a_little_money_is_not_told_as_none() {
    let cheap =
        RUNS.replace("\"input\": 1000, \"output\": 1000", "\"input\": 0.01, \"output\": 0.01");
    let listed = Store::with(&cheap).run(&["runs"]).stdout;
    assert!(listed.contains("  <0.0001  "), "{listed}");
}

#[test]
fn runs_are_listed_since_a_moment() {
    let store = Store::with(RUNS);
    let count = |since: &str| store.json(&["runs", "--since", since]).len();
    assert_eq!((count("1970-01-01"), count("1970-01-02"), count("2h")), (5, 0, 0));
    let started = store.json(&["runs"])[2]["started"].as_i64().unwrap() / 1_000_000_000;
    assert!(started < 60, "{started}");
    assert_eq!(count(&format!("1970-01-01T00:00:{started:02}Z")), 3);
    let recent = Store::new();
    recent.play(RUNS, false);
    for since in ["90s", "30m", "2h", "7d", "4294967295w"] {
        assert_eq!(recent.json(&["runs", "--since", since]).len(), 5, "{since}");
    }
    let future = store.run(&["runs", "--since", "2261-01-01"]);
    assert_eq!((future.code, future.stdout.as_str()), (Some(2), ""));
    assert!(future.stderr.contains("that is in the future"), "{}", future.stderr);
    for since in ["", "2", "h", "2300-01-01", "-2h", "2y", "yesterday", "2026-02-30"] {
        let refused = store.run(&["runs", &format!("--since={since}")]);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{since}");
        assert!(refused.stderr.contains("give 90s, 30m, 2h, 7d or 4w"), "{}", refused.stderr);
    }
}

#[test]
fn runs_that_an_id_may_mean_are_all_there_are_unless_it_says_so() {
    let begin = r#"{"scripts": [[{"text": "Hi."}, {"finish": "stop"}], [{"text": "Ho."}, {"finish": "stop"}]],
        "ops": [{"op": "chat", "messages": [{"role": "user", "content": "hi"}]},
                {"op": "chat", "messages": [{"role": "user", "content": "ho"}]}]}"#;
    let refused = Store::with(begin).run(&["show", "run"]);
    let said = "mynah: more than one run has an id that begins with \"run\": run-1, run-0; give more of it\n";
    assert_eq!((refused.code, refused.stderr.as_str()), (Some(2), said));
}

#[test]
fn a_run_is_named_by_its_id_the_beginning_of_it_or_last() {
    let store = Store::with(RUNS);
    assert_eq!(store.json(&["verify", "last"])[0]["run_id"], "run-4");
    let wrong = [
        ("run-", "more than one run has an id that begins with \"run-\": run-4, run-3, …"),
        ("ruin", "no run has an id that begins with \"ruin\"; `mynah runs` lists them"),
        ("", "the run's id is empty"),
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
fn a_log_without_runs_has_no_last_one() {
    let store = Store::with(r#"{"ops": []}"#);
    for verb in ON_LAST {
        let refused = store.run(verb);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{verb:?}");
        assert_eq!(refused.stderr, "mynah: there are no runs in this log\n", "{verb:?}");
    }
    assert_eq!(store.run(&["runs"]).stdout, "no runs\n");
}

#[cfg(unix)]
#[test]
fn a_pipe_is_not_waited_for_as_if_it_were_a_log() {
    let store = Store::new();
    assert!(Command::new("mkfifo").arg(&store.path).status().unwrap().success());
    for arguments in [&["runs"] as &[_], &["doctor"]] {
        let refused = store.run(arguments);
        assert_eq!(refused.code, Some(4), "{arguments:?}");
        let told = format!("{}{}", refused.stdout, refused.stderr);
        assert!(told.contains("is not a file that can hold a log"), "{told}");
    }
}

#[test]
fn a_log_that_cannot_be_used_is_exit_code_4_and_is_not_made() {
    let store = Store::new();
    for verb in ON_LAST.into_iter().chain([&["runs"] as &[_], &["verify"]]) {
        let refused = store.run(verb);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(4), ""), "{verb:?}");
        assert!(refused.stderr.contains("there is no such log"), "{}", refused.stderr);
        assert!(!store.path.exists());
    }
    fs::write(&store.path, "this is no database, however long one looks at it".repeat(40)).unwrap();
    let refused = store.run(&["runs"]);
    assert_eq!(refused.code, Some(4));
    assert!(refused.stderr.contains("not a SQLite file"), "{}", refused.stderr);
    fs::write(&store.path, "").unwrap();
    let refused = store.run(&["runs"]);
    assert_eq!(refused.code, Some(4));
    assert!(
        refused.stderr.ends_with("runs.db is empty: there is no log in it\n"),
        "{}",
        refused.stderr
    );
    let refused = run(["runs", "--log", &format!("sqlite:{}", env!("CARGO_TARGET_TMPDIR"))]);
    assert_eq!(refused.code, Some(4));
    assert!(refused.stderr.ends_with(" is a folder, and a log is a file\n"), "{}", refused.stderr);
    let nowhere = feed(mynah(["play", "--log", "sqlite:/nowhere/at.all", "-"]), RUNS.as_bytes());
    assert_eq!(nowhere.code, Some(4));
    assert_eq!(nowhere.stderr.matches("/nowhere/at.all").count(), 1, "{}", nowhere.stderr);
    let nowhere = format!("sqlite:{}/nosuch/../y.db", store.path.parent().unwrap().display());
    let refused = feed(mynah(["play", "--log", &nowhere, "-"]), br#"{"ops": []}"#);
    assert_eq!(refused.code, Some(4));
    assert!(refused.stderr.contains("is in a folder that does not exist"), "{}", refused.stderr);
    assert!(!store.path.with_file_name("y.db").exists());
    let refused = run(["runs", "--log", "mynah.db"]);
    assert_eq!(refused.code, Some(2));
    assert_eq!(refused.stderr, "mynah: --log mynah.db: a log is a URL; give sqlite:mynah.db\n");
    for url in ["", "sqlite:", "sqlite::memory:", "memory:x"] {
        let refused = run(["runs", "--log", url]);
        assert_eq!(refused.code, Some(2), "{url}");
        assert!(
            refused.stderr.contains("give memory:, sqlite:PATH or postgres://"),
            "{}",
            refused.stderr
        );
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
    let mut empty = mynah(["runs", "--json"]);
    empty.current_dir(store.path.parent().unwrap()).env("MYNAH_LOG", "");
    assert_eq!(feed(empty, b"").stdout, listed, "a variable that is empty says nothing");
    let mut told = mynah(["runs", "--log", "memory:"]);
    told.env("MYNAH_LOG", "sqlite:/nowhere/at.all");
    assert_eq!(feed(told, b"").stdout, "no runs\n");
}

#[cfg(unix)]
#[test]
fn a_log_that_may_only_be_read_can_be_read_and_not_written() {
    let store = Store::with(RUNS);
    let guest = Guest::of(&store);
    let verbs: [&[&str]; 7] = [
        &["runs"],
        &["show", "run-1"],
        &["show", "run-1", "--tree"],
        &["verify"],
        &["replay", "run-1"],
        &["export", "run-1"],
        &["prune", "--older-than", "1d", "--reason", "age"],
    ];
    for verb in verbs {
        let read = guest.run(verb);
        assert_eq!((read.code, read.stderr.as_str()), (Some(0), ""), "{verb:?}");
        assert_eq!(read, store.run(verb), "{verb:?}");
    }
    assert_eq!(guest.run(&["diff", "run-0", "run-1"]).code, Some(1));
    let (examined, own) = (guest.run(&["doctor"]), store.run(&["doctor"]));
    assert_eq!((examined.code, examined.stderr.as_str()), (Some(0), ""));
    assert_eq!(examined.stdout.replace(": reachable, read-only,", ": reachable,"), own.stdout);
    assert_ne!(examined.stdout, own.stdout);
    for verb in [&["fork", "run-1", "--at", "2"] as &[_], &["cancel", "run-0"]] {
        let refused = guest.run(verb);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(4), ""), "{verb:?}");
        assert!(refused.stderr.contains("runs.db"), "{}", refused.stderr);
    }

    // What a killed process has committed is not in the file yet.
    let path = &store.path;
    let ahead = format!("{}-wal", path.display());
    let writer = rusqlite::Connection::open(path).unwrap();
    writer.execute("UPDATE runs SET owner = 'ann' WHERE id = 'run-0'", []).unwrap();
    let left = fs::read(&ahead).unwrap();
    drop(writer);
    fs::write(&ahead, left).unwrap();
    let refused = Guest::of(&store).run(&["runs"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(4), ""), "{}", refused.stderr);
    let said = "runs.db-wal, and the folder cannot be written; copy both to a folder that can be written, and read it there\n";
    assert!(refused.stderr.ends_with(said), "{}", refused.stderr);
}

/// A user who may read a log, and not write it.
#[cfg(unix)]
struct Guest<'s> {
    store: &'s Store,
    program: PathBuf,
}

#[cfg(unix)]
impl<'s> Guest<'s> {
    fn of(store: &'s Store) -> Self {
        // Where everybody may run it.
        let program = store.path.with_file_name("mynah");
        if !program.exists() {
            // By another process: what this one has open to write, a child of another test has too, and it cannot be run.
            let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_mynah")).arg(&program).status();
            assert!(copied.unwrap().success());
        }
        Self { store, program }
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        use std::os::unix::{fs::PermissionsExt as _, process::CommandExt as _};
        let folder = self.store.path.parent().unwrap();
        let allow = |mode: u32, path: &Path| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        fs::read_dir(folder).unwrap().flatten().for_each(|file| allow(0o555, &file.path()));
        allow(0o555, folder);
        let mut command = Command::new(&self.program);
        command.args(arguments).args(["--log", &self.store.url()]);
        // The superuser is not restricted, so it becomes another user.
        if fs::write(folder.join("probe"), "").is_ok() {
            fs::remove_file(folder.join("probe")).unwrap();
            command.uid(65534).gid(65534);
        }
        let ran = feed(command, b"");
        allow(0o755, folder);
        fs::read_dir(folder).unwrap().flatten().for_each(|file| allow(0o755, &file.path()));
        ran
    }
}

#[test]
fn shells_are_told_the_verbs() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let told = run(["completions", shell]);
        assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""), "{shell}");
        assert!(told.stdout.contains("replay") && told.stdout.contains("on-uncertain"), "{shell}");
    }
    assert_eq!(run(["completions", "abacus"]).code, Some(2));
}

#[test]
fn every_verb_has_help_with_examples() {
    let verbs = ["runs", "show", "verify", "replay", "resume", "cancel", "fork", "diff", "doctor"];
    for verb in verbs {
        let help = run([verb, "-h"]);
        assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
        for part in ["Usage: mynah ", "--log <URL>", "--json", "Examples:", "MYNAH_LOG"] {
            assert!(help.stdout.contains(part), "{part:?} is missing in\n{}", help.stdout);
        }
    }
}
