//! `mynah golden` and `mynah check`: runs as regression tests.

#![allow(clippy::unwrap_used, reason = "a helper may fail the test that calls it")]

mod common;

use std::fs;

use common::{Store, lines};

const SCRIPTS: &str = r#"{"scripts": [
  [{"tool_call": {"id": "c0", "name": "shell", "arguments": {"command": "echo $((6*7))"}}}, {"usage": {"input_tokens": 9, "output_tokens": 3}}, {"finish": "tool_calls"}],
  [{"text": "It is 42."}, {"finish": "stop"}]
]}"#;

/// Two other calls, and another answer.
const OTHER: &str = r#"{"scripts": [
  [{"tool_call": {"id": "c0", "name": "shell", "arguments": {"command": "echo $((6*7))"}}}, {"finish": "tool_calls"}],
  [{"tool_call": {"id": "c1", "name": "shell", "arguments": {"command": "rm -rf ."}}}, {"finish": "tool_calls"}],
  [{"text": "It may be 42."}, {"finish": "stop"}]
]}"#;

const AGENT: &str =
    "model = 'scripted:script.json'\nsystem = 'Compute.'\n[tools]\nshell = 'allow'\n";

/// A log with a golden beside it.
fn golden() -> (Store, String, String) {
    let store = Store::new();
    store.file("script.json", SCRIPTS);
    let (agent, goldens) = (store.file("agent.toml", AGENT), store.beside("goldens"));
    let run = store.run(&["run", &agent, "What is 6 times 7?"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(0), "It is 42.\n"), "{}", run.stderr);
    let added = store.run(&["golden", "add", "last", "--name", "times", "--to", &goldens]);
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    assert!(added.stdout.contains("times.ndjson"), "{}", added.stdout);
    (store, agent, goldens)
}

#[test]
fn a_golden_is_equal_until_the_prompt_changes_and_the_difference_is_shown() {
    let (store, agent, goldens) = golden();
    let same = common::run(["check", &agent, &goldens]);
    assert_eq!((same.code, same.stdout.as_str()), (Some(0), "times  ok\n"), "{}", same.stderr);
    store.file("agent.toml", &AGENT.replace("Compute.", "Guess."));
    let report = store.beside("report.xml");
    let changed = common::run(["check", &agent, &goldens, "--junit", &report]);
    assert_eq!(changed.code, Some(1));
    for part in ["times  differs", "recorded: \"Compute.\"", "produced: \"Guess.\""] {
        assert!(changed.stdout.contains(part), "{part} in {}", changed.stdout);
    }
    assert_eq!(changed.stderr, "mynah: 1 of 1 golden differ from what is expected\n");
    let report = fs::read_to_string(report).unwrap();
    assert!(report.contains("failures=\"1\"") && report.contains("&quot;Guess.&quot;"), "{report}");
    let twice = store.run(&["golden", "add", "last", "--name", "times", "--to", &goldens]);
    assert_eq!(twice.code, Some(4), "{}", twice.stderr);
}

#[test]
fn expectations_are_checked_one_by_one() {
    let (store, agent, goldens) = golden();
    let table = [
        ("tools = ['shell']", None),
        ("tools = []", Some("tools: expected [], called [\"shell\"]")),
        ("calls = [{ tool = 'shell', arguments = { command = '6.7' } }]", None),
        (
            "calls = [{ tool = 'shell', arguments = { command = '^rm' } }]",
            Some("calls: no call of shell"),
        ),
        ("contains = ['42']\nmatches = '^It is \\d+'", None),
        ("contains = ['43']", Some("contains: the answer has no \"43\"")),
        ("lacks = ['42']", Some("lacks: the answer has \"42\"")),
        ("matches = '^42'", Some("matches: the answer does not match")),
        ("json = { '/total' = 42 }", Some("json: the answer is not JSON")),
        ("max_turns = 2\nmax_tokens = 12", None),
        ("max_turns = 1", Some("max_turns: at most 1 expected, 2 used")),
        ("max_tokens = 11", Some("max_tokens: at most 11 expected, 12 used")),
    ];
    for (expectations, finding) in table {
        store.file("goldens/times.toml", expectations);
        let checked = common::run(["check", &agent, &goldens, "--json"]);
        let line = &lines(&checked)[0];
        let found = line["findings"][0].as_str();
        match finding {
            None => assert_eq!((checked.code, found), (Some(0), None), "{expectations}"),
            Some(finding) => {
                assert_eq!(checked.code, Some(1), "{expectations}");
                assert!(found.unwrap().starts_with(finding), "{expectations}: {found:?}");
            }
        }
    }
    store.file("goldens/times.toml", "max_turn = 1");
    let wrong = common::run(["check", &agent, &goldens]);
    assert_eq!(wrong.code, Some(4));
    assert!(
        wrong.stderr.contains("times.toml") && wrong.stderr.contains("max_turn"),
        "{}",
        wrong.stderr
    );
}

#[test]
fn what_if_asks_the_model_lets_records_answer_for_tools_and_updates_after_a_look() {
    let (store, agent, goldens) = golden();
    store.file("goldens/times.toml", "");
    // The tool does not run: the record answers, whatever it would print now.
    let same = common::run(["check", &agent, &goldens, "--what-if"]);
    assert_eq!((same.code, same.stdout.as_str()), (Some(0), "times  ok\n"), "{}", same.stderr);
    store.file("script.json", OTHER);
    let changed = common::run(["check", &agent, &goldens, "--what-if"]);
    assert_eq!(changed.code, Some(1), "{}", changed.stderr);
    for part in ["call 2", "recorded: nothing", "produced: shell {\"command\":\"rm -rf .\"}"] {
        assert!(changed.stdout.contains(part), "{part} in {}", changed.stdout);
    }
    let refused = common::run(["check", &agent, &goldens, "--update"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let updated = common::run(["check", &agent, &goldens, "--what-if", "--update"]);
    assert_eq!(
        (updated.code, updated.stdout.lines().next()),
        (Some(0), Some("times  updated")),
        "{}",
        updated.stderr
    );
    let again = common::run(["check", &agent, &goldens, "--what-if"]);
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), "times  ok\n"), "{}", again.stderr);
}
