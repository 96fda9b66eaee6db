//! The file that began a run goes on with it.

#![allow(clippy::unwrap_used, reason = "a helper may fail the test that calls it")]

mod common;

use common::{Store, mynah, text};

/// Three turns of a session, of which the last loses its process before the model answers.
const SESSION: &str = r#"{
  "scripts": [
    [ {"text": "Hi Ada."}, {"finish": "stop"} ],
    [ {"text": "You are Ada."}, {"finish": "stop"} ],
    [ {"text": "Bye."}, {"finish": "stop"} ]
  ],
  "ops": [
    {"op": "session.start", "messages": [{"role": "user", "content": "I am Ada."}]},
    {"op": "session.reply", "text": "Who am I?"},
    {"op": "session.reply", "text": "So long.", "crash_after": 2}
  ]
}"#;

#[test]
fn a_turn_of_a_session_goes_on_with_the_script_after_those_of_the_turns_before() {
    let (store, agent) = crashed(SESSION);
    let fork = text(&store.json(&["fork", "last", "--at", "1"])[0], "run_id");
    for run in ["run-2", &fork] {
        let resumed = store.run(&["resume", run, "--agent", &agent]);
        assert_eq!((resumed.code, resumed.stdout.as_str()), (Some(0), "Bye.\n"), "{resumed:?}");
    }
}

#[test]
fn turns_that_another_agent_answered_use_up_no_script() {
    let (store, _) = crashed(SESSION);
    let other = SESSION.replace("Hi Ada.", "Welcome.");
    let other = store.file("other.json", &other);
    let resumed = store.run(&["resume", "last", "--agent", &other]);
    assert_eq!((resumed.code, resumed.stdout.as_str()), (Some(0), "Bye.\n"), "{resumed:?}");
    let (store, _) = crashed(SESSION);
    let other =
        store.file("other.json", r#"{"scripts": [[{"text": "Adieu."}, {"finish": "stop"}]]}"#);
    let resumed = store.run(&["resume", "last", "--agent", &other]);
    assert_eq!((resumed.code, resumed.stdout.as_str()), (Some(0), "Adieu.\n"), "{resumed:?}");
}

/// The runs of a scenario whose process ends in the middle, and its file.
fn crashed(scenario: &str) -> (Store, String) {
    let store = Store::new();
    let file = store.file("agent.json", scenario);
    let played = mynah(["play", "--stable", "--log", &store.url(), &file]).output().unwrap();
    assert_eq!(played.status.code(), Some(137));
    (store, file)
}
