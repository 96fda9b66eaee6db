//! `mynah cancel`: the end of runs that have none.

use serde_json::json;

use crate::common::{RUNS, Store, run, text};

#[test]
fn a_run_that_waits_or_was_left_is_ended_and_sealed() {
    let store = Store::with(RUNS);
    let cancelled = store.run(&["cancel", "run-0"]);
    assert_eq!((cancelled.code, cancelled.stderr.as_str()), (Some(0), ""));
    assert_eq!(cancelled.stdout, "run-0  cancelled  8 records\n");
    let told = store.json(&["cancel", "last"]);
    assert_eq!(told, [json!({"run_id": "run-4", "status": "cancelled", "records": 4})]);
    for name in ["run-0", "run-4"] {
        assert_eq!(text(&store.json(&["verify", name])[0], "status"), "verified");
        assert_eq!(store.run(&["replay", name]).code, Some(0), "{name}");
        let shown = store.run(&["show", name]).stdout;
        assert!(shown.ends_with("-- cancelled\n"), "{shown}");
    }
    assert_eq!(store.json(&["runs", "--status", "cancelled"]).len(), 3);
    assert_eq!(store.run(&["verify"]).code, Some(0));
    let agent = store.file("agent.json", RUNS);
    let ended = store.run(&["resume", "run-0", "two", "--agent", &agent]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("run run-0 has ended; fork it to continue"), "{}", ended.stderr);
}

#[test]
fn what_cannot_be_ended_is_refused() {
    let store = Store::with(RUNS);
    let cases = [
        ("run-1", "mynah: log error: sealed: run run-1 has ended already: completed\n"),
        ("run-3", "mynah: log error: sealed: run run-3 has ended already: cancelled\n"),
        ("ruin", "mynah: no run has an id that begins with \"ruin\"; `mynah runs` lists them\n"),
    ];
    for (name, said) in cases {
        let refused = store.run(&["cancel", name]);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{name}");
        assert_eq!(refused.stderr, said);
    }
    assert_eq!(store.run(&["cancel", "run-"]).code, Some(2));
    assert_eq!(run(["cancel", "last", "--log", "memory:"]).code, Some(2));
    store.tamper(b"How many?", b"How much?");
    let found = store.run(&["cancel", "run-0"]);
    assert_eq!(found.code, Some(1), "{}", found.stderr);
    assert!(found.stderr.contains("corrupt: run run-0, record 5"), "{}", found.stderr);
}
