//! The file that began a run resumes it.

use serde_json::json;

use crate::common::{Store, lines, mynah, run, text};

/// Three turns of a session. The last loses its process before the model answers.
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
fn a_server_that_cannot_be_reached_is_exit_code_4_in_run_and_resume() {
    let store = Store::new();
    let text = "model = { name = 'llamacpp:m', base_url = 'http://127.0.0.1:9' }\nparams = { retry = { max_attempts = 1 } }\n";
    let agent = store.file("agent.toml", text);
    let run = store.run(&["run", &agent, "hi"]);
    assert_eq!(run.code, Some(4), "{}", run.stderr);
    let resumed = store.run(&["resume", "last", "--agent", &agent]);
    assert_eq!(resumed.code, Some(4), "{}", resumed.stderr);
    let hint = "`base_url` in the agent file names another";
    assert!(resumed.stderr.contains(hint), "{}", resumed.stderr);
    assert!(!resumed.stderr.contains("--base-url"), "{}", resumed.stderr);
}

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

/// A chat that may call its model once, and would need to call it twice.
const POOR: &str = r#"{
  "scripts": [
    [ {"tool_call": {"id": "c0", "name": "look"}}, {"finish": "tool_calls"} ],
    [ {"text": "Found."}, {"finish": "stop"} ]
  ],
  "tools": [ {"name": "look", "returns": {"ok": 1}} ],
  "ops": [ {"op": "chat", "messages": [{"role": "user", "content": "Look."}],
            "options": {"budget": {"max_turns": 1, "max_tool_calls": 7}}} ]
}"#;

#[test]
fn a_run_that_spent_its_budget_is_resumed_with_a_larger_one() {
    let store = Store::with(POOR);
    let agent = store.file("agent.json", POOR);
    let shown = store.run(&["show", "last"]).stdout;
    assert!(
        shown.ends_with("-- failed: budget_exceeded: turns would be 2, of at most 1\n"),
        "{shown}"
    );
    let why = "budget_exceeded: turns would be 2, of at most 1; resume it with a larger budget:";
    let command = |run, agent: &str| {
        format!("mynah resume {run} --agent {agent} --budget max_turns=N --log {}\n", store.url())
    };
    let ended = store.run(&["resume", "last", "--agent", &agent]);
    let said = format!("mynah: run run-0 has ended: {why}\n  {}", command("run-0", &agent));
    assert_eq!((ended.code, &ended.stderr), (Some(2), &said));
    let ended = store.run(&["resume", "last"]);
    assert_eq!((ended.code, ended.stderr), (Some(2), said.replace(&agent, "FILE")));

    let resume = ["resume", "run-0", "--agent", &agent, "--budget"];
    let too_little = store.run(&[&resume[..], &["max_turns=1"]].concat());
    assert_eq!((too_little.code, too_little.stderr), (Some(2), said));

    let enough = [&resume[..], &["turns=2", "--json"]].concat();
    let told = lines(&store.run(&enough));
    let done = &told.last().unwrap()["ok"];
    assert_eq!(
        (&done["halted_reason"], &done["final_response"]["output_text"]),
        (&json!("completed"), &json!("Found."))
    );
    let records = store.json(&["show", "run-0~2", "--records"]);
    let changed = records.iter().rfind(|record| record["kind"] == "resumed").unwrap();
    let budget = json!({"max_tool_calls": 7, "max_turns": 2});
    assert_eq!(changed["fact"]["about"]["options"]["budget"], budget, "other limits stay");
    assert_eq!(store.run(&["replay", "run-0~2"]).code, Some(0));
}

#[test]
fn a_run_that_had_all_its_turns_is_resumed_with_more() {
    let short = POOR
        .replace("{\"budget\": {\"max_turns\": 1, \"max_tool_calls\": 7}}", "{\"max_turns\": 1}");
    let store = Store::with(&short);
    let agent = store.file("agent.json", &short);
    let ended = store.run(&["resume", "last", "--agent", &agent]);
    let command =
        format!("mynah resume run-0 --agent {agent} --budget max_turns=N --log {}\n", store.url());
    let said =
        format!("mynah: run run-0 has ended: max_turns; resume it with more turns:\n  {command}");
    assert_eq!((ended.code, ended.stderr), (Some(2), said));
    let resume = ["resume", "last", "--agent", &agent, "--budget", "max_turns=2"];
    let resumed = store.run(&resume);
    assert_eq!((resumed.code, resumed.stdout.as_str()), (Some(0), "Found.\n"), "{resumed:?}");
}

#[test]
fn a_run_whose_model_call_was_refused_is_resumed_with_another_agent() {
    let broken = ONE_ANSWER.replace("SCRIPT", r#"{"error": "invalid_request"}"#);
    let store = Store::with(&broken);
    let agent = store.file("agent.json", &ONE_ANSWER.replace("SCRIPT", r#"{"text": "Hi."}"#));
    let ended = store.run(&["resume", "last", "--agent", &agent]);
    assert!(ended.stderr.contains(" --allow-changed-agent "), "{ended:?}");
    let resumed = store.run(&["resume", "last", "--agent", &agent, "--allow-changed-agent"]);
    assert_eq!((resumed.code, resumed.stdout.as_str()), (Some(0), "Hi.\n"), "{resumed:?}");
}

/// A chat with one answer.
const ONE_ANSWER: &str = r#"{
  "scripts": [[ SCRIPT, {"finish": "stop"} ]],
  "ops": [ {"op": "chat", "messages": [{"role": "user", "content": "Hello."}]} ]
}"#;

#[test]
fn what_another_agent_changed_is_shown_where_it_went_on() {
    let (store, _) = crashed(SESSION);
    let other = r#"{
      "engine": {"model": "m:new", "params": {"temperature": 0.5}},
      "scripts": [[{"text": "Adieu."}, {"finish": "stop"}]],
      "tools": [{"name": "look", "returns": {"ok": 1}}]
    }"#;
    let other = store.file("other.json", other);
    let resumed = store.run(&["resume", "last", "--agent", &other, "--allow-changed-agent"]);
    assert_eq!((resumed.code, resumed.stdout.as_str()), (Some(0), "Adieu.\n"), "{resumed:?}");
    let changed = ["model scripted -> m:new", "tools +look", "params +temperature"];
    let shown = store.run(&["show", "last"]).stdout;
    let said = format!("-- resumed, changed: {}\n", changed.join("; "));
    assert!(shown.contains(&said), "{shown}");
    let shown = store.json(&["show", "last"]);
    let told = shown.iter().find(|told| told["type"] == "resumed").unwrap();
    assert_eq!(told["changed"], json!(changed));
    let tree = store.run(&["show", "last", "--tree"]).stdout;
    let said = format!("resumed  ({})", changed.join(") ("));
    assert!(tree.contains(&said), "{tree}");
}

#[test]
fn a_limit_that_is_none_is_refused() {
    for (limit, said) in [
        ("max_turns", "give a limit, =, and a number"),
        ("rounds=3", "no limit is called rounds; give one of max_input_tokens, "),
        ("max_turns=soon", "give a number that is not negative"),
        ("max_turns=-1", "give a number that is not negative"),
    ] {
        let refused = run(["resume", "last", "--agent", "agent.json", "--budget", limit]);
        assert_eq!(refused.code, Some(2));
        assert!(refused.stderr.contains(said), "{limit}: {}", refused.stderr);
    }
}

/// The runs of a scenario whose process ends in the middle, and its file.
fn crashed(scenario: &str) -> (Store, String) {
    let store = Store::new();
    let file = store.file("agent.json", scenario);
    let played = mynah(["play", "--stable", "--log", &store.url(), &file]).output().unwrap();
    assert_eq!(played.status.code(), Some(137));
    (store, file)
}
