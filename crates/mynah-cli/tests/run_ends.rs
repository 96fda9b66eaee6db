//! How `mynah run` and `mynah resume` end: what they print where, and with which exit code.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use crate::common::{
    Store, feed, interrupt, lines, mynah, run,
    server::{Server, answer},
};

/// A scripted answer.
fn says(text: &str) -> String {
    format!(r#"[{{"text": {}}}, {{"finish": "stop"}}]"#, serde_json::json!(text))
}

fn scripts(scripts: &[String]) -> String {
    format!(r#"{{"scripts": [{}]}}"#, scripts.join(","))
}

const CALL: &str = r#"[{"tool_call": {"id": "c0", "name": "shell", "arguments": {"command": "echo OLD"}}}, {"finish": "tool_calls"}]"#;

const FORM: &str = "model = 'scripted:script.json'\n[tools]\nshell = 'ask'\n[output.schema]\n\
    type = 'object'\nrequired = ['a']\nproperties = { a = { type = 'integer' } }\n";

#[test]
fn an_answer_that_does_not_fit_the_schema_is_exit_1_with_the_place() {
    let store = Store::new();
    let agent = store.file("agent.toml", FORM);
    let table = [
        (r#"{"a":1}"#, Some(0), ""),
        ("```json\n{\"a\":1}\n```", Some(0), ""),
        ("not json", Some(1), "the answer is not JSON: "),
        (
            r#"{"a":"x"}"#,
            Some(1),
            r#"the answer does not fit the schema: /a: expected integer, got "x""#,
        ),
    ];
    for (text, code, why) in table {
        store.file("script.json", &scripts(&[says(text)]));
        let ran = store.run(&["run", &agent, "Go."]);
        assert_eq!((ran.code, ran.stdout), (code, format!("{text}\n")), "{}", ran.stderr);
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
        let run = store.json(&["runs", "--limit", "1"])[0]["run_id"].as_str().unwrap().to_owned();
        assert!(ran.stderr.contains(&format!("  mynah show {run} ")), "{}", ran.stderr);
        let is_named = ran.stderr.contains(&format!("mynah: run {run}: "));
        assert_eq!(is_named, code == Some(1), "{}", ran.stderr);
        let chat = mynah(["chat", &agent, "--log", &store.url()]);
        let chatted = feed(chat, b"Go.\n");
        assert_eq!(chatted.code, code, "{}", chatted.stderr);
        assert!(chatted.stderr.contains(why), "{}", chatted.stderr);
        let goldens = store.beside("goldens");
        let name = format!("golden-{}", text.len());
        let added = store.run(&["golden", "add", &run, "--name", &name, "--to", &goldens]);
        assert_eq!(added.code, code.map(|code| 2 * code), "{}", added.stderr);
        assert!(added.stderr.contains(why), "{}", added.stderr);
        if code == Some(1) {
            let checked = crate::common::run(["check", &agent, &goldens, "--what-if"]);
            assert_eq!(checked.code, code, "{}", checked.stderr);
            let found = format!("  output: adapter error: malformed_response: {why}");
            assert!(checked.stdout.contains(&found), "{}", checked.stdout);
        }
        let told = store.run(&["run", &agent, "Go.", "--json"]);
        let last = lines(&told).pop().unwrap();
        assert_eq!((told.code, last.get("ok").is_some()), (code, code == Some(0)), "{last}");
        if code == Some(1) {
            assert_eq!(last["err"]["metadata"]["response"]["output_text"], text, "{last}");
        }
        // The same after an approval.
        store.file("script.json", &scripts(&[CALL.to_owned(), says(text)]));
        for json in [&[][..], &["--json"]] {
            assert_eq!(store.run(&["run", &agent, "Go."]).code, Some(3));
            let resume = ["resume", "last", "--agent", &agent, "--approve", "c0"];
            let resumed = store.run(&[&resume[..], json].concat());
            assert_eq!(resumed.code, code, "{}", resumed.stderr);
            assert!(resumed.stderr.contains(why), "{}", resumed.stderr);
        }
    }
}

#[test]
fn a_resumed_run_prints_only_its_answer_to_standard_output() {
    let store = Store::new();
    let agent = store.file("agent.toml", "model = 'scripted:script.json'\ntools.shell = 'ask'\n");
    store.file("script.json", &scripts(&[CALL.to_owned(), says("Done.")]));
    assert_eq!(store.run(&["run", &agent, "Go."]).code, Some(3));
    let shown = store.run(&["show", "last"]).stdout;
    assert!(
        shown.contains("-- waits: approval of shell {\"command\":\"echo OLD\"} [c0]"),
        "{shown}"
    );
    let edited = r#"c0={"command":"echo NEW"}"#;
    let resumed = store.run(&["resume", "last", "--agent", &agent, "--approve-with", edited]);
    assert_eq!((resumed.code, resumed.stdout.as_str()), (Some(0), "Done.\n"), "{}", resumed.stderr);
    for line in ["  > shell {\"command\":\"echo NEW\"}", "2 turns, 1 tool call", "  mynah show "] {
        assert!(resumed.stderr.contains(line), "{line} in {}", resumed.stderr);
    }
    let tree = store.run(&["show", "last", "--tree"]).stdout;
    let tool = tree.lines().find(|line| line.contains("tool [c0]")).unwrap();
    assert!(tool.contains("echo NEW"), "{tree}");
}

#[test]
fn a_run_that_waits_names_the_flags_of_the_command_in_json() {
    let store = Store::new();
    let agent = store.file("agent.toml", "model = 'scripted:script.json'\ntools.shell = 'ask'\n");
    store.file("script.json", &scripts(&[CALL.to_owned(), says("Done.")]));
    let waits = store.run(&["run", &agent, "Go.", "--json"]);
    let last = lines(&waits).pop().unwrap();
    assert_eq!((waits.code, &last["ok"]["halted_reason"]), (Some(3), &"manual_tool_calls".into()));
    let refused = store.run(&["resume", "last", "--agent", &agent, "--json"]);
    let err = &lines(&refused)[0]["err"];
    let message = err["message"].as_str().unwrap();
    assert!(message.contains("--approve c0") && !message.contains("::"), "{message}");
    assert_eq!(err["metadata"]["manual_tool_calls"][0]["id"], "c0", "{err}");
}

#[test]
fn a_log_in_memory_is_not_named_in_a_command() {
    let store = Store::new();
    let agent = store.file("agent.toml", "model = 'scripted:script.json'\ntools.shell = 'ask'\n");
    store.file("script.json", &scripts(&[says("Done.")]));
    let done = run(["run", &agent, "Go.", "--log", "memory:"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(!done.stderr.contains("memory:"), "{}", done.stderr);
    store.file("script.json", &scripts(&[CALL.to_owned()]));
    let waits = run(["run", &agent, "Go.", "--log", "memory:"]);
    assert_eq!(waits.code, Some(3), "{}", waits.stderr);
    let why = "[c0]; its log is in memory, so it cannot be resumed";
    assert!(waits.stderr.contains(why), "{}", waits.stderr);
    assert!(!waits.stderr.contains("mynah resume"), "{}", waits.stderr);
}

#[test]
fn an_empty_answer_is_reported() {
    let store = Store::new();
    let agent = store.file("agent.toml", "model = 'scripted:script.json'\n");
    store.file("script.json", &scripts(&[r#"[{"finish": "stop"}]"#.to_owned()]));
    let empty = store.run(&["run", &agent, "Go."]);
    assert_eq!((empty.code, empty.stdout.as_str()), (Some(0), ""), "{}", empty.stderr);
    assert!(empty.stderr.contains("the answer is empty"), "{}", empty.stderr);
}

#[test]
fn a_failed_call_names_the_provider_and_status_and_a_fallback_that_answered_is_named() {
    const BOOM: &str = "HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/json\r\ncontent-length: 29\r\nconnection: close\r\n\r\n{\"error\":{\"message\": \"boom\"}}\n";
    let (store, server) = (Store::new(), Server::new(vec![BOOM.to_owned(); 3]));
    let model =
        |url: &str, id: &str| format!("{{ name = 'openai-chat:{id}', base_url = '{url}' }}");
    let text = format!(
        "model = {}\n[params]\nretry = {{ max_attempts = 1 }}\n",
        model(&server.url, "m-0")
    );
    let agent = store.file("agent.toml", &text);
    let go = || {
        let mut command = mynah(["run", &agent, "Go.", "--log", &store.url()]);
        command.env("OPENAI_API_KEY", "sk-test");
        feed(command, b"")
    };
    let failed = go();
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    for part in ["500", "openai-chat", "boom"] {
        assert!(failed.stderr.contains(part), "{part} in {}", failed.stderr);
    }
    let other = Server::new([answer("Hello.", "stop")]);
    let text = text
        .replace("\n[params]", &format!("\nfallback = [{}]\n[params]", model(&other.url, "m-1")));
    store.file("agent.toml", &text);
    let done = go();
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "Hello.\n"), "{}", done.stderr);
    assert!(done.stderr.contains("answered by the fallback m-1"), "{}", done.stderr);
}

#[test]
#[cfg(unix)]
fn a_log_that_cannot_be_written_is_reported_and_nothing_is_said_to_be_kept() {
    let store = Store::new();
    let agent = store.file("agent.toml", "model = 'scripted:script.json'\n");
    store.file("script.json", &scripts(&[says("Done.")]));
    assert_eq!(store.run(&["log", "init"]).code, Some(0));
    // No file may grow beyond 32 kB, and the first record is larger.
    let limited = "trap '' XFSZ; ulimit -f 64; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited, "sh", env!("CARGO_BIN_EXE_mynah"), "run", &agent]);
    command.args([&"x".repeat(40_000), "--log", &store.url()]);
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut told = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut told).unwrap();
    assert!(told.starts_with("mynah: waiting for the log: "), "{told}");
    assert!(told.contains("runs.db"), "{told}");
    let (code, told) = interrupt(child);
    assert_eq!(
        (code, told.as_str()),
        (Some(130), "mynah: interrupted; nothing of this run was kept\n")
    );
}

#[test]
fn in_a_pipe_an_answer_by_a_schema_is_all_that_is_printed() {
    let store = Store::new();
    let agent =
        FORM.replacen("[tools]\nshell = 'ask'", "params = { structured_finalize = true }", 1);
    let agent = store.file("agent.toml", &agent);
    store.file("script.json", &scripts(&[says("It is a bird."), says(r#"{"a":1}"#)]));
    let done = store.run(&["run", &agent, "go"]);
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "{\"a\":1}\n"), "{}", done.stderr);

    let fails = r#"[{"preflight_error": "invalid_request"}]"#.to_owned();
    store.file("script.json", &scripts(&[says("It is a bird."), fails]));
    let failed = store.run(&["run", &agent, "go"]);
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    assert!(failed.stderr.contains("invalid_request"), "{}", failed.stderr);
}

#[test]
#[cfg(unix)]
fn a_run_whose_tool_replaces_the_log_ends_with_an_error() {
    let store = Store::new();
    let agent =
        store.file("agent.toml", "model = 'scripted:script.json'\n[tools]\nshell = 'allow'\n");
    let call = CALL.replace("echo OLD", "echo gone > other; mv other runs.db");
    store.file("script.json", &scripts(&[call, says("Done.")]));
    let ran = store.run(&["run", &agent, "go"]);
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("was replaced by another file while it was open"),
        "{}",
        ran.stderr
    );
}
