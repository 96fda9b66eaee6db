//! `mynah resume`: after a crash, and with what a run waits for.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Stdio},
    sync::Arc,
};

#[cfg(target_os = "linux")]
#[cfg(unix)]
use mynah::{
    Approval, Chat, Engine, Tool, ToolErrorDecision, ToolMode, log::SqliteLog, testing::Scripted,
};
use serde_json::{Value, json};

use crate::common::{self, Store, end, interrupt, lines, mynah, run, text};

/// A run that waits for an answer, one that waits for the caller's tool, and one whose process ended in a tool.
const WAITING: &str = r#"{
  "scripts": [
    [ {"text": "Let me ask."}, {"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"} ],
    [ {"tool_call": {"id": "c1", "name": "cook", "arguments": {"dish": "soup"}}}, {"finish": "tool_calls"} ],
    [ {"tool_call": {"id": "c2", "name": "pay"}}, {"finish": "tool_calls"} ]
  ],
  "tools": [
    {"name": "ask", "returns": {"ask_user": "How many?"}},
    {"name": "cook", "manual": true},
    {"name": "pay", "returns": {"ok": "paid"}}
  ],
  "ops": [
    {"op": "chat", "messages": [{"role": "user", "content": "Soup?"}]},
    {"op": "chat", "messages": [{"role": "user", "content": "Cook."}]},
    {"op": "chat", "messages": [{"role": "user", "content": "Pay."}], "crash_after": 4}
  ]
}"#;

/// The same agent, for the resume.
const AGENT: &str = r#"{
  "scripts": [ [ {"text": "Two soups, "}, {"text": "then.\u001b[2J"}, {"finish": "stop"} ] ],
  "tools": [
    {"name": "ask", "returns": {"ask_user": "How many?"}},
    {"name": "cook", "manual": true},
    {"name": "pay", "returns": {"ok": "paid"}}
  ]
}"#;

#[test]
fn a_run_goes_on_with_an_answer_and_its_text_is_told() {
    for flags in [&["two"] as &[_], &["--answer", "two"]] {
        let (store, agent) = waiting();
        let resumed = store.run(&[&["resume", "run-0", "--agent", &agent], flags].concat());
        assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
        assert_eq!(resumed.stdout, "Two soups, then.\u{1b}[2J\n", "a pipe gets it as it is");
        let shown = store.run(&["show", "run-0"]).stdout;
        assert!(shown.contains("-- resumed\n\nuser: two\n\n"), "{shown}");
        assert_eq!(store.run(&["verify", "run-0"]).code, Some(0));
    }
}

#[test]
fn a_message_that_a_run_did_not_hear_is_not_dropped_without_a_word() {
    let (store, agent) = waiting();
    assert_eq!(store.run(&["fork", "run-0", "--at", "3"]).code, Some(0));
    let waits = store.run(&["resume", "last", "Never mind.", "--agent", &agent]);
    assert_eq!(waits.code, Some(3), "{}", waits.stderr);
    let unheard = "\n  your message was not delivered: the run suspended before\n";
    assert!(waits.stderr.ends_with(unheard), "{}", waits.stderr);
    let answered = store.run(&["resume", "last", "two", "--agent", &agent]);
    assert_eq!(answered.code, Some(0), "{}", answered.stderr);
}

#[test]
fn in_json_it_comes_to_what_the_call_would_have_come_to() {
    let begun = r#"{
      "scripts": [ [ {"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"} ] ],
      "tools": [ {"name": "ask", "returns": {"ask_user": "How many?"}} ],
      "ops": [
        {"op": "session.start", "id": "s", "messages": [{"role": "user", "content": "Soup?"}]},
        {"op": "generate", "messages": [{"role": "user", "content": "Hi"}], "crash_after": 1}
      ]
    }"#;
    let (store, _) = waiting_in(begun);
    let agent = r#"{
      "scripts": [ [ {"text": "Two."}, {"finish": "stop"} ] ],
      "tools": [ {"name": "ask", "returns": {"ask_user": "How many?"}} ]
    }"#;
    let agent = store.file("agent.json", agent);
    let last = |lines: Vec<Value>| lines.last().unwrap()["ok"].clone();
    let turn = last(store.json(&["resume", "run-0", "two", "--agent", &agent]));
    let told =
        (&turn["session"]["id"], &turn["session"]["status"], &turn["result"]["halted_reason"]);
    assert_eq!(told, (&json!("s"), &json!("completed"), &json!("completed")));
    let answer = last(store.json(&["resume", "run-1", "--agent", &agent]));
    assert_eq!(answer["output_text"], "Two.");
}

#[test]
fn the_file_that_began_a_run_goes_on_with_it() {
    let begun = r#"{
      "scripts": [
        [ {"text": "Hello."}, {"finish": "stop"} ],
        [ {"preflight_error": "overloaded"} ],
        [ {"text": "Let me "}, {"text": "ask."}, {"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"}, {"text": "not heard"} ],
        [ {"tool_call_start": {"id": "c1", "name": "pay"}}, {"tool_call_delta": {"id": "c1", "arguments_delta": "{}"}}, {"finish": "tool_calls"} ],
        [ {"text": "Paid for two."}, {"finish": "stop"} ]
      ],
      "tools": [ {"name": "ask", "returns": {"ask_user": "How many?"}}, {"name": "pay", "returns": {"ok": "paid"}} ],
      "ops": [
        {"op": "chat", "messages": [{"role": "user", "content": "Hi"}]},
        {"op": "chat", "messages": [{"role": "user", "content": "Soup?"}], "options": {"retry": {"max_attempts": 2, "base_delay_ms": 0}}}
      ]
    }"#;
    let store = Store::with(begun);
    let agent = store.file("agent.json", begun);
    let resumed = store.run(&["resume", "run-1", "two", "--agent", &agent]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    assert!(resumed.stdout.ends_with("Paid for two.\n"), "{}", resumed.stdout);
    // After the call of `pay` is known, only the last answer is left to give.
    let fork = ["fork", "run-1", "--at", "12", "--agent", &agent];
    let forked = store.run(&fork);
    assert_eq!(forked.code, Some(0), "{}", forked.stderr);
    assert_eq!(forked.stdout.lines().skip(1).collect::<Vec<_>>(), ["Paid for two."]);
}

#[test]
fn in_json_its_events_are_told_and_then_what_it_came_to() {
    let (store, agent) = waiting();
    let told = store.json(&["resume", "run-0", "two", "--agent", &agent]);
    let events: Vec<&Value> = told.iter().filter_map(|line| line.get("event")).collect();
    let types: Vec<String> = events.iter().map(|event| text(event, "type")).collect();
    let expected = [
        "message_started",
        "text_delta",
        "text_delta",
        "text_completed",
        "message_completed",
        "step_completed",
        "chat_completed",
    ];
    assert_eq!(types, expected);
    let last = &told[events.len()];
    assert_eq!(told.len(), events.len() + 1);
    assert_eq!(
        (text(last, "run_id"), text(&last["ok"], "halted_reason")),
        ("run-0".into(), "completed".into())
    );
}

#[test]
fn a_run_goes_on_with_the_results_of_its_calls() {
    let (store, agent) = waiting();
    let shown = store.run(&["show", "run-1"]).stdout;
    let waits = "-- waits: the results of cook {\"dish\":\"soup\"} [c1]\n\n";
    assert!(shown.ends_with(waits), "{shown}");
    let refused = store.run(&["resume", "run-1", "--agent", &agent]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(3), ""));
    let url = store.url();
    let said = format!(
        "mynah: run run-1 waits for the results of cook {{\"dish\":\"soup\"}} [c1]\n  \
         mynah resume run-1 --agent {agent} --log {url} --tool-result c1=JSON\n  \
         in place of a result: --approve c1 runs the call, --approve-with c1=JSON with other arguments, \
         --reject c1=TEXT tells the model why not\n"
    );
    assert_eq!(refused.stderr, said);
    let resumed =
        store.run(&["resume", "run-1", "--agent", &agent, "--tool-result", r#"c1={"done":true}"#]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    let shown = store.run(&["show", "run-1"]).stdout;
    assert!(shown.contains("  < [c1] {\"done\":true}\n"), "{shown}");
}

#[test]
fn a_call_is_run_if_a_person_approves_it_and_answered_if_they_reject_it() {
    let cooks = AGENT.replace(r#""manual": true"#, r#""manual": true, "returns": {"ok": "hot"}"#);
    let cases = [
        (["--approve", "c1"], "  < [c1] approved\n\n  < [c1] hot\n"),
        (
            ["--approve-with", r#"c1={"dish":"stew"}"#],
            "  < [c1] approved with {\"dish\":\"stew\"}\n\n  < [c1] hot\n\n\
             [A person changed the arguments of this call before it ran, to {\"dish\":\"stew\"}]\n",
        ),
        (["--reject", "c1=too hot"], "  < [c1] rejected: too hot\n"),
    ];
    for (flags, told) in cases {
        let (store, _) = waiting();
        let agent = store.file("cooks.json", &cooks);
        let resumed = store.run(&[&["resume", "run-1", "--agent", &agent], &flags[..]].concat());
        assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
        let shown = store.run(&["show", "run-1"]).stdout;
        assert!(shown.contains(told), "{shown}");
        assert_eq!(store.run(&["replay", "run-1"]).code, Some(0));
        let again = store.run(&["resume", "run-1", "--agent", &agent, "--approve", "c1"]);
        assert_eq!(again.code, Some(2), "{}", again.stderr);
    }
}

#[test]
fn a_tool_that_changed_since_the_run_asked_is_approved_by_its_new_digest() {
    let changed = r#""manual": true, "description": "Throws it away", "returns": {"ok": "gone"}"#;
    let (store, _) = waiting();
    let agent = store.file("throws.json", &AGENT.replace(r#""manual": true"#, changed));
    let resume = ["resume", "run-1", "--agent", &agent, "--allow-changed-agent"];
    let refused = store.run(&[&resume[..], &["--approve", "c1"]].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let (_, digest) = refused.stderr.trim_end().rsplit_once("--approve-digest ").expect("a hint");
    let resumed = store.run(&[&resume[..], &["--approve-digest", digest]].concat());
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    assert!(store.run(&["show", "run-1"]).stdout.contains("  < [c1] gone\n"));
}

#[test]
fn a_call_that_asks_and_one_that_is_denied_are_shown() {
    let store = Store::new();
    let calls = json!([
        {"tool_call": {"id": "c0", "name": "buy", "arguments": {"euros": 7}}},
        {"tool_call": {"id": "c1", "name": "sell"}},
        {"finish": "tool_calls"},
    ]);
    let tool = |name: &str, approval: Approval| {
        Tool::new(name, "", json!({})).approval(approval).handler(async |_, _| "done")
    };
    let engine = Engine::new(Scripted::new([calls]).unwrap())
        .tools([tool("buy", Approval::Ask), tool("sell", Approval::Deny)]);
    let log = Arc::new(SqliteLog::open(&store.path).unwrap());
    let chat = engine.chat("Trade.").record(&log).run_id("trade");
    tokio::runtime::Runtime::new().unwrap().block_on(async { chat.await.unwrap() });
    let shown = store.run(&["show", "trade"]).stdout;
    assert!(shown.contains("  < [c1] failed: the call is not permitted\n"), "{shown}");
    assert!(shown.ends_with("-- waits: approval of buy {\"euros\":7} [c0]\n\n"), "{shown}");
    let tree = store.run(&["show", "trade", "--tree"]).stdout;
    assert!(tree.contains("the call is not permitted"), "{tree}");
}

#[test]
fn a_tool_that_may_have_run_waits_for_word_on_it() {
    let (store, agent) = waiting();
    let waits = store.run(&["resume", "run-2", "--agent", &agent]);
    assert_eq!((waits.code, waits.stdout.as_str()), (Some(3), ""), "{}", waits.stderr);
    assert!(
        waits.stderr.contains(
            "\nmynah: run run-2 waits for the outcome of tools that may have run: pay {} [c2]\n"
        ) && waits.stderr.ends_with(
            " --tool-result c2=JSON\n  \
             in place of a result: --approve c2 runs the call again, --approve-with c2=JSON with other arguments, \
             --reject c2=TEXT tells the model why not\n  \
             for all of them: --on-uncertain rerun, or --on-uncertain fail\n"
        ),
        "{}",
        waits.stderr
    );
    let shown = store.run(&["show", "run-2"]).stdout;
    assert!(shown.ends_with("-- waits: the unknown outcome of pay {} [c2]\n\n"), "{shown}");
    let rerun = store.run(&["resume", "run-2", "--agent", &agent, "--on-uncertain", "rerun"]);
    assert_eq!(rerun.code, Some(0), "{}", rerun.stderr);
    assert_eq!(rerun.stdout, "Two soups, then.\u{1b}[2J\n");
    assert!(rerun.stderr.starts_with("  > pay {}\n  < pay took "), "{}", rerun.stderr);

    let (store, agent) = waiting();
    let failed = store.run(&["resume", "run-2", "--agent", &agent, "--on-uncertain", "fail"]);
    assert_eq!(failed.code, Some(0), "{}", failed.stderr);
    let shown = store.run(&["show", "run-2"]).stdout;
    let why = "(pay): the process ended during call c2, and its outcome is unknown";
    assert!(shown.contains(why), "{shown}");
}

#[test]
fn a_call_that_is_wrong_named_twice_or_left_out_is_named() {
    let two = WAITING.replace(
        r#""arguments": {"dish": "soup"}}},"#,
        r#""arguments": {"dish": "soup"}}}, {"tool_call": {"id": "c5", "name": "cook"}},"#,
    );
    let (store, agent) = waiting_in(&two);
    let cases: [(&str, &[&str], &str); 6] = [
        ("run-1", &["--approve", "c9"], "it does not wait for a call \"c9\""),
        ("run-1", &["--reject", "c1", "--approve", "c1"], "call \"c1\" is named twice"),
        (
            "run-1",
            &["--tool-result", "c1=1", "--tool-result", "c1=2"],
            "call \"c1\" is named twice",
        ),
        ("run-1", &["--tool-result", "c1=1"], "call \"c5\" has no decision"),
        (
            "run-1",
            &["--tool-result", "c1=1", "--tool-result", "=2"],
            "does not wait for a call \"\"",
        ),
        ("run-0", &["--answer", "two", "--approve", "c0"], "it does not wait for a call \"c0\""),
    ];
    for (run, flags, said) in cases {
        let refused = store.run(&[&["resume", run, "--agent", &agent], flags].concat());
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{flags:?}");
        assert!(refused.stderr.contains(said), "{flags:?}: {}", refused.stderr);
        let open = match run {
            "run-0" => "it waits for an answer: How many?\n",
            _ => "it waits for the results of cook {\"dish\":\"soup\"} [c1], cook {} [c5]\n",
        };
        assert!(refused.stderr.contains(open), "{flags:?}: {}", refused.stderr);
    }
    let refused = store.run(&["resume", "run-1", "--agent", &agent, "--approve", "c9", "--json"]);
    assert_eq!(lines(&refused)[0]["err"]["reason"], "unknown_tool_call_id");
}

#[test]
fn another_agent_is_refused_and_the_flag_that_allows_it_is_named() {
    let (store, _) = waiting();
    let other = store.file("other.json", &AGENT.replace("cook", "bake"));
    let refused = store.run(&["resume", "run-0", "two", "--agent", &other]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""));
    let said = "run run-0 began with another agent; to resume it with this one, pass --allow-changed-agent";
    let diff = "  about.tools.1.name\n    recorded  \"cook\"\n    produced  \"bake\"\n";
    assert_eq!(refused.stderr, format!("mynah: {said}\n{diff}"));
    let refused = store.run(&["resume", "run-0", "two", "--agent", &other, "--json"]);
    assert_eq!(lines(&refused)[0]["err"]["message"], said);
    let allowed = ["resume", "run-0", "two", "--agent", &other, "--allow-changed-agent"];
    assert_eq!(store.run(&allowed).code, Some(0));
}

#[test]
fn a_condition_that_is_written_down_holds_in_the_process_that_goes_on() {
    for condition in [r#"{"step": 1}"#, r#"{"text_contains": "Enough"}"#] {
        let begun = r#"{
          "scripts": [ [ {"tool_call": {"id": "c0", "name": "pay"}}, {"finish": "tool_calls"} ] ],
          "tools": [ {"name": "pay", "returns": {"ok": "paid"}} ],
          "ops": [ {"op": "chat", "options": {"halt_when": CONDITION}, "crash_after": 5,
            "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"},
                         {"role": "user", "content": "Pay."}]} ]
        }"#;
        let goes_on = r#"{
          "scripts": [
            [ {"text": "Enough."}, {"tool_call": {"id": "c1", "name": "pay"}}, {"finish": "tool_calls"} ],
            [ {"text": "never said"}, {"finish": "stop"} ] ],
          "tools": [ {"name": "pay", "returns": {"ok": "paid"}} ],
          "ops": [ {"op": "resume"} ]
        }"#;
        let halted = json!({"halt_when_step_index": 1});
        let (store, _) = waiting_in(&begun.replace("CONDITION", condition));
        let agent = store.file("goes_on.json", goes_on);
        let resumed = lines(&store.run(&["resume", "run-0", "--agent", &agent, "--json"]));
        assert_eq!(resumed.last().unwrap()["ok"]["metadata"], halted, "{condition}");
        let (store, _) = waiting_in(&begun.replace("CONDITION", condition));
        let played =
            lines(&common::feed(mynah(["play", "--log", &store.url(), "-"]), goes_on.as_bytes()));
        assert_eq!(played.last().unwrap()["ok"]["metadata"], halted, "{condition}");
        assert_eq!(store.run(&["replay", "run-0"]).code, Some(0));
    }
}

#[test]
fn code_that_only_a_program_has_is_named_and_can_be_gone_on_without() {
    type Code = fn(Chat) -> Chat;
    let codes: [(&str, Code); 2] = [
        ("halt_when", |chat| chat.halt_when("test", |_| true)),
        ("on_tool_error", |chat| {
            chat.on_tool_error(mynah::OnToolError::decide(|_, _| ToolErrorDecision::Halt))
        }),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for (name, with_code) in codes {
        let store = Store::new();
        let run = runtime.block_on(async {
            let log = Arc::new(SqliteLog::open(&store.path).unwrap());
            let calls =
                json!([{"tool_call": {"id": "c0", "name": "cook"}}, {"finish": "tool_calls"}]);
            let engine = Engine::new(Scripted::new([calls]).unwrap());
            let chat = with_code(engine.chat("Cook.").mode(ToolMode::Manual)).record(&log);
            chat.await.unwrap().run_id.unwrap()
        });
        let agent = r#"{ "scripts": [ [ {"text": "Done."}, {"finish": "stop"} ] ] }"#;
        let agent = store.file("agent.json", agent);
        let resume = ["resume", &*run, "--agent", &agent, "--tool-result", "c0=1"];
        let refused = store.run(&resume);
        let said = format!(
            "mynah: run {run} has a {name} that only the program has which began it; \
             --allow-changed-agent goes on without it\n"
        );
        assert_eq!(refused.code, Some(1));
        assert!(refused.stderr.starts_with(&said), "{}", refused.stderr);
        let allowed = store.run(&[&resume[..], &["--allow-changed-agent"]].concat());
        assert_eq!((allowed.code, allowed.stdout.as_str()), (Some(0), "Done.\n"));
    }
}

#[test]
fn a_run_that_waits_again_or_fails_tells_so_by_its_exit_code() {
    let (store, _) = waiting();
    let asking = r#"{"scripts": [ [ {"tool_call": {"id": "c9", "name": "ask"}}, {"finish": "tool_calls"} ] ],
                     "tools": [{"name": "ask", "returns": {"ask_user": "Really?"}}, {"name": "cook", "manual": true}, {"name": "pay"}]}"#;
    let asking = store.file("asking.json", asking);
    let waits = store.run(&["resume", "run-0", "two", "--agent", &asking]);
    assert_eq!(waits.code, Some(3));
    assert!(
        waits
            .stderr
            .contains("\nmynah: run run-0 waits for an answer: Really?\n  mynah resume run-0 "),
        "{}",
        waits.stderr
    );
    let silent = r#"{"scripts": [ [ {"text": "So"}, {"error": "overloaded"} ] ],
            "tools": [{"name": "ask"}, {"name": "cook", "manual": true}, {"name": "pay"}]}"#;
    let silent = store.file("silent.json", silent);
    let failed = store.run(&["resume", "run-0", "two", "--agent", &silent]);
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    let why = "\nmynah: run run-0 failed: adapter error (scripted): overloaded";
    assert!(failed.stderr.contains(why), "{}", failed.stderr);
    let how = "; resume it to call the model again:\n  mynah resume run-0 --agent ";
    assert!(failed.stderr.contains(how), "{}", failed.stderr);
}

#[test]
fn what_cannot_go_on_is_refused() {
    let (store, agent) = waiting();
    let broken = store.file("broken.json", "{");
    let cases: [(&[&str], i32, &str); 14] = [
        (&["resume", "run-0", "--agent", &agent], 3, "waits for an answer: How many?"),
        (&["resume", "run-1", "two", "--agent", &agent], 2, "an answer is not what it waits for"),
        (&["resume", "run-2", "two", "--agent", &agent], 2, "tools that may have run: pay {} [c2]"),
        (&["resume", "run-2", "--answer", "two", "--agent", &agent], 2, "it does not wait for"),
        (
            &["resume", "run-0", "--agent", &agent, "--base-url", "http://localhost"],
            2,
            "cannot be used with '--base-url <URL>'",
        ),
        (
            &["resume", "run-0", "two"],
            2,
            "no server is known for its model, which is \"scripted\"; name the agent with --agent FILE",
        ),
        (&["resume", "run-0", "--agent", &agent, "--answer", ""], 2, "a value is required"),
        (&["resume", "run-0", "", "--agent", &agent], 2, "a value is required"),
        (
            &["resume", "run-0", "two", "--answer", "three", "--agent", &agent],
            2,
            "cannot be used with",
        ),
        (&["resume", "run-0", "--agent", &agent, "--tool-result", "c1"], 2, "give the call's id"),
        (
            &["resume", "run-0", "--agent", &agent, "--tool-result", "c1=soup"],
            2,
            "not JSON after the =",
        ),
        (&["resume", "run-0", "--agent", &broken], 2, "broken.json: EOF while parsing"),
        (&["resume", "run-0", "--agent", "/nowhere/agent.json"], 4, "/nowhere/agent.json: "),
        (&["resume", "ruin", "--agent", &agent], 2, "no run has an id"),
    ];
    for (arguments, code, said) in cases {
        let refused = store.run(arguments);
        assert_eq!(
            (refused.code, refused.stdout.as_str()),
            (Some(code), ""),
            "{arguments:?}: {}",
            refused.stderr
        );
        assert!(refused.stderr.contains(said), "{arguments:?}: {}", refused.stderr);
    }
    let refused = store.run(&["resume", "run-0", "--agent", &agent, "--json"]);
    let err = &lines(&refused)[0]["err"];
    let asked = (&err["reason"], &err["metadata"]["pending_question"]);
    assert_eq!(asked, (&json!("invalid_status"), &json!("How many?")));
    assert_eq!(store.run(&["resume", "run-0", "two", "--agent", &agent]).code, Some(0));
    let ended = store.run(&["resume", "run-0", "two", "--agent", &agent]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("run run-0 has ended; fork it to continue"), "{}", ended.stderr);
    assert_eq!(run(["resume", "last", "--agent", &agent, "--log", "memory:"]).code, Some(2));
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_can_go_on_at_once() {
    let (store, agent) = waiting();
    let slow = r#"{"scripts": [ [ {"text": "Well,"}, {"delay_ms": 60000}, {"text": "never"}, {"finish": "stop"} ] ],
                   "tools": [{"name": "ask"}, {"name": "cook", "manual": true}, {"name": "pay"}]}"#;
    let slow = store.file("slow.json", slow);
    let url = store.url();
    let arguments = ["resume", "run-0", "two", "--json", "--agent", &slow, "--log", &url];
    let mut command = mynah(arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
    // It is inside an answer.
    assert!(told.any(|line| line.unwrap().contains("Well,")));
    let rivals: [(&[&str], &str); 2] = [
        (
            &["resume", "run-0", "--agent", &agent],
            "mynah: log error: leased: run run-0 is held by another process; wait until it ends or stop it, then resume\n",
        ),
        (
            &["cancel", "run-0"],
            "mynah: run run-0 is held by another process; stop that process, then cancel the run\n",
        ),
    ];
    for (rival, said) in rivals {
        let held = store.run(rival);
        assert_eq!((held.code, held.stdout.as_str()), (Some(4), ""), "{rival:?}");
        assert_eq!(held.stderr, said);
    }
    let status = || {
        let run = store.json(&["show", "run-0"])[0]["run"].clone();
        (run["status"].clone(), run["abandoned"].clone())
    };
    assert_eq!(status(), (json!("running"), json!(false)));
    let (code, said) = interrupt(child);
    assert_eq!(code, Some(130));
    let last: Value = serde_json::from_str(&told.last().unwrap().unwrap()).unwrap();
    assert_eq!(last["err"]["reason"], "interrupted");
    assert_eq!(last["err"]["metadata"], json!({"run_id": "run-0"}));
    let expected = format!(
        "mynah: interrupted; run run-0 can be resumed:\n  mynah resume run-0 --agent {slow} --log {url}\n"
    );
    assert_eq!(said, expected);
    assert_eq!(status(), (json!("running"), json!(true)));
    let resumed = store.run(&["resume", "run-0", "--agent", &agent]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.stderr);
    assert_eq!(resumed.stdout, "Two soups, then.\u{1b}[2J\n");
    let verified = &store.json(&["verify", "run-0"])[0];
    assert_eq!(verified["status"], json!("verified"));
}

#[cfg(unix)]
#[test]
fn a_run_that_is_interrupted_goes_on_with_what_was_said_of_uncertain_tools() {
    let slow = r#"{"scripts": [ [ {"text": "Well,"}, {"delay_ms": 60000}, {"finish": "stop"} ] ],
                   "tools": [{"name": "ask"}, {"name": "cook", "manual": true}, {"name": "pay"}]}"#;
    for (policy, flag) in
        [("suspend", ""), ("rerun", " --on-uncertain rerun"), ("fail", " --on-uncertain fail")]
    {
        let (store, _) = waiting();
        let (slow, url) = (store.file("slow.json", slow), store.url());
        let run = if policy == "suspend" { ["run-0", "two"] } else { ["run-2", "--json"] };
        let said = ["--on-uncertain", policy, "--agent", &slow, "--log", &url];
        let mut command = mynah(["resume"].into_iter().chain(run).chain(said));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut told = child.stdout.take().unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"Well,") {
            let mut byte = [0];
            told.read_exact(&mut byte).unwrap();
            text.extend(byte);
        }
        let (code, said) = interrupt(child);
        let how = format!("mynah resume {} --agent {slow}{flag} --log {url}", run[0]);
        let expected = format!("mynah: interrupted; run {} can be resumed:\n  {how}\n", run[0]);
        assert_eq!((code, said), (Some(130), expected));
    }
}

#[cfg(unix)]
#[test]
fn text_that_is_interrupted_ends_its_line() {
    let (store, _) = waiting();
    let slow = r#"{"scripts": [ [ {"text": "Well,"}, {"delay_ms": 60000}, {"finish": "stop"} ] ],
                   "tools": [{"name": "ask"}, {"name": "cook", "manual": true}, {"name": "pay"}]}"#;
    let slow = store.file("slow.json", slow);
    let mut command = mynah(["resume", "run-0", "two", "--agent", &slow, "--log", &store.url()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = child.stdout.take().unwrap();
    let mut text = [0; 5];
    told.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"Well,");
    assert_eq!(interrupt(child).0, Some(130));
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "\n");
}

#[cfg(target_os = "linux")]
#[test]
fn a_scenario_that_is_interrupted_says_how_its_run_goes_on() {
    let store = Store::new();
    let slow = r#"{"scripts": [ [ {"text": "Well,"}, {"delay_ms": 60000}, {"finish": "stop"} ] ],
                   "ops": [{"op": "chat", "messages": [{"role": "user", "content": "Soup?"}], "stream": true}]}"#;
    let slow = store.file("slow.json", slow);
    let url = store.url();
    for signal in ["-INT", "-TERM", "-HUP"] {
        let mut command = with_hangup("default", &["play", &slow, "--log", &url]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(told.any(|line| line.unwrap().contains("Well,")));
        let (code, said) = end(child, signal);
        assert_eq!(code, Some(130), "{signal}");
        let run = text(&store.json(&["runs"])[0], "run_id");
        let command = format!("mynah resume {run} --agent {slow} --log {url}");
        assert_eq!(said, format!("mynah: interrupted; run {run} can be resumed:\n  {command}\n"));
    }
    let resumed = store.run(&[
        "resume",
        "last",
        "--agent",
        &store.file("quick.json", r#"{"scripts": [[{"text": "Soup."}, {"finish": "stop"}]]}"#),
    ]);
    assert_eq!((resumed.code, resumed.stdout.as_str()), (Some(0), "Soup.\n"), "{}", resumed.stderr);
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_that_was_started_with_nohup_outlives_its_terminal() {
    let store = Store::new();
    let slow = r#"{"scripts": [ [ {"text": "Well,"}, {"delay_ms": 500}, {"finish": "stop"} ] ],
                   "ops": [{"op": "chat", "messages": [{"role": "user", "content": "Soup?"}], "stream": true}]}"#;
    let slow = store.file("slow.json", slow);
    let mut command = with_hangup("ignore", &["play", &slow]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(told.any(|line| line.unwrap().contains("Well,")));
    // Read on: a full pipe would end it as well.
    let reader = std::thread::spawn(move || told.count());
    assert_eq!(end(child, "-HUP"), (Some(0), String::new()));
    reader.join().unwrap();
}

/// The program with a hangup signal that does what it does by `default`, or that it is started to `ignore`. Processes inherit
/// that, so tests that run under `nohup` would start it otherwise than tests in a terminal.
#[cfg(target_os = "linux")]
fn with_hangup(how: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.arg(format!("--{how}-signal=HUP")).arg(env!("CARGO_BIN_EXE_mynah")).args(arguments);
    command
}

#[test]
fn a_run_whose_model_call_fails_has_failed_and_the_log_has_not() {
    let (store, _) = waiting();
    let agent =
        AGENT.replace(r#"{"text": "Two soups, "}, "#, r#"{"preflight_error": "rate_limited"}, "#);
    let agent = store.file("refused.json", &agent);
    let resumed = store.run(&["resume", "run-0", "two", "--agent", &agent]);
    assert_eq!(resumed.code, Some(1), "{}", resumed.stderr);
    assert!(resumed.stderr.contains("rate_limited"), "{}", resumed.stderr);
}

/// The runs of [`WAITING`], and the file of an agent that resumes them.
fn waiting() -> (Store, String) {
    waiting_in(WAITING)
}

fn waiting_in(scenario: &str) -> (Store, String) {
    let store = Store::new();
    let played =
        common::feed(mynah(["play", "--stable", "--log", &store.url(), "-"]), scenario.as_bytes());
    assert_eq!(played.code, Some(137), "{}", played.stderr);
    let agent = store.file("agent.json", AGENT);
    (store, agent)
}
