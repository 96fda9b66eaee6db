//! What holds for the program as a whole.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use mynah::log::{Append, Chain, Extent, Fact, Log as _, SqliteLog};

use crate::common::{self, Store, feed, file, mynah, run};

const HELLO: &str = r#"{
  "scripts": [ [ {"text": "hello"}, {"finish": "stop"} ] ],
  "ops": [ {"op": "generate", "messages": [{"role": "user", "content": "hi"}], "stream": true} ]
}"#;

#[test]
fn help_names_the_verbs_and_the_exit_codes() {
    let help = run(["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
    for part in ["Usage: mynah [OPTIONS] <COMMAND>", "play", "Examples:", "Exit codes:"] {
        assert!(help.stdout.contains(part), "{part:?} is missing in\n{}", help.stdout);
    }
}

#[test]
fn what_every_verb_takes_may_stand_before_the_verb() {
    let store = Store::with(common::RUNS);
    let (url, scenario) = (store.url(), store.file("hello.json", HELLO));
    let after = run(["runs", "--log", &url, "--json"]);
    assert_eq!((after.code, after.stdout.lines().count()), (Some(0), 5));
    assert_eq!(run(["--log", &url, "--json", "runs"]), after);
    assert_eq!(run(["--json", "runs", "--log", &url]), after);
    // Nearer to the verb wins.
    assert_eq!(run(["--log", "sqlite:/nowhere", "runs", "--json", "--log", &url]), after);

    let played = run(["play", "--stable", &scenario]);
    assert_eq!(played.code, Some(0));
    assert_eq!(run(["play", "--stable", "--json", &scenario]), played);
    assert_eq!(run(["--log", &url, "play", &scenario]).code, Some(0));
    assert_eq!(store.json(&["runs"]).len(), 6, "play kept its run where it was told to");
}

#[test]
fn a_model_is_shown_by_the_name_that_it_was_called_by() {
    let store = Store::new();
    for name in ["openai-chat:m", "openai:m", "gemini:m", "llamacpp:m"] {
        // There is no server, and the call is recorded all the same.
        let call = ["--base-url", "http://127.0.0.1:9", "--retries", "0", "--log", &store.url()];
        let mut command = mynah(["generate", "hi", "-m", name].into_iter().chain(call));
        command.env("OPENAI_API_KEY", "k").env("GEMINI_API_KEY", "k");
        assert_eq!(feed(command, b"").code, Some(4), "{name}");
        assert_eq!(store.json(&["runs", "--limit", "1"])[0]["model"], name);
        assert!(store.run(&["runs"]).stdout.contains(name), "{name}");
        assert!(store.run(&["show", "last"]).stdout.contains(&format!(", {name}\n")), "{name}");
        assert_eq!(store.json(&["runs", "--model", name]).len(), 1, "{name}");
    }
}

#[test]
fn the_id_of_a_run_from_elsewhere_does_nothing_to_a_terminal() {
    let store = Store::new();
    let id = "a\u{1b}[2J\u{202e}b";
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let log = SqliteLog::open(&store.path).unwrap();
        let (thread, extent) = (mynah::Thread::from("hi"), Extent::Chat);
        let started = Fact::RunStarted { thread, extent, about: None };
        let record = Chain::new(id).append(0, [0; 16], &started).unwrap();
        log.append(Append::new(id, None, vec![record])).await.unwrap();
    });
    let bundle = store.path.with_extension("ndjson").display().to_string();
    let verbs: [&[&str]; 10] = [
        &["runs"],
        &["show", "last"],
        &["verify"],
        &["replay", "last"],
        &["export", "last", "-o", &bundle],
        &["redact", "last", "--all", "--reason", "age"],
        &["prune", "--older-than", "1d", "--include-unfinished", "--reason", "age"],
        &["fork", "last", "--at", "7"],
        &["cancel", "last"],
        &["cancel", "last"],
    ];
    for verb in verbs {
        let told = store.run(verb);
        let text = told.stdout + &told.stderr;
        assert!(text.contains(r"a\u{1b}[2J\u{202e}b"), "{verb:?}: {text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']), "{verb:?}: {text}");
    }
}

#[test]
fn version_is_that_of_the_package() {
    let version = run(["--version"]);
    assert_eq!(version.code, Some(0));
    assert_eq!(version.stdout, concat!("mynah ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn help_of_play_has_examples_and_its_scenario_is_one() {
    let (long, short) = (run(["play", "--help"]), run(["play", "-h"]));
    for help in [&long, &short] {
        assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
        for part in ["A scenario:", "Examples:", "--stable", "docs/scenario.md"] {
            assert!(help.stdout.contains(part), "{part:?} is missing in\n{}", help.stdout);
        }
    }
    let (_, rest) = short.stdout.split_once("A scenario:").unwrap();
    let (scenario, _) = rest.split_once("Examples:").unwrap();
    let played = feed(mynah(["play", "-"]), scenario.as_bytes());
    assert_eq!((played.code, played.stderr.as_str()), (Some(0), ""));
    assert!(played.stdout.contains(r#""halted_reason":"completed""#), "{}", played.stdout);
}

#[test]
fn the_documented_example_does_what_is_documented() {
    let guide = include_str!("../../../docs/scenario.md");
    let block = |language: &str| {
        let (_, rest) = guide.split_once(&format!("```{language}\n")).unwrap();
        rest.split_once("```").unwrap().0
    };
    let played = feed(mynah(["play", "--stable", "-"]), block("json").as_bytes());
    assert_eq!((played.code, played.stderr.as_str()), (Some(0), ""));
    let (shown, lines) = (block("text").lines(), played.stdout.lines());
    assert_eq!(shown.clone().count(), lines.clone().count(), "{}", played.stdout);
    for (shown, line) in shown.zip(lines) {
        assert!(is_shortened(shown, line), "{shown}\n{line}");
    }
}

#[test]
fn wrong_usage_is_exit_code_2_and_says_what_is_right() {
    let wrong: [(&[&str], &str); 5] = [
        (&[], "Usage: mynah [OPTIONS] <COMMAND>"),
        (&["sing"], "unrecognized subcommand 'sing'"),
        (&["play"], "<FILE>"),
        (&["play", "--loud", "x.json"], "unexpected argument '--loud'"),
        (&["play", "x.json", "y.json"], "unexpected argument 'y.json'"),
    ];
    for (arguments, said) in wrong {
        let ran = run(arguments.iter().copied());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(ran.stderr.contains(said), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn a_scenario_can_come_from_standard_input() {
    let path = file("hello.json", HELLO);
    let from_file = run(["play", "--stable", &path]);
    assert_eq!(from_file.code, Some(0));
    assert_eq!(from_file.stdout.lines().count(), 5);
    assert_eq!(feed(mynah(["play", "--stable", "-"]), HELLO.as_bytes()), from_file);
}

#[test]
fn only_ids_differ_from_run_to_run() {
    let path = file("ids.json", HELLO);
    let outputs = [0, 1].map(|_| run(["play", &path]).stdout);
    assert_ne!(outputs[0], outputs[1]);
    let ids = outputs.each_ref().map(|output| {
        let (_, rest) = output.split_once(r#""request_id":""#).unwrap();
        rest.split_once('"').unwrap().0
    });
    assert_eq!(outputs[0].replace(ids[0], "id-0"), outputs[1].replace(ids[1], "id-0"));
    let stable = run(["play", "--stable", &path]).stdout;
    assert_eq!(outputs[0].replace(ids[0], "id-0"), stable);
}

#[test]
fn events_are_printed_while_the_operation_runs() {
    let path = file(
        "slow.json",
        r#"{"scripts": [[{"text": "first"}, {"delay_ms": 3600000}, {"finish": "stop"}]],
            "ops": [{"op": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": true}]}"#,
    );
    let mut child = mynah(["play", &path]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let seen = [0, 1].map(|_| lines.next().unwrap().unwrap());
    assert_eq!(child.try_wait().unwrap(), None, "the model is silent for an hour");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(seen[0].contains("message_started"), "{seen:?}");
    assert_eq!(seen[1], r#"{"op":0,"event":{"type":"text_delta","id":null,"delta":"first"}}"#);
}

#[test]
fn a_reader_who_has_seen_enough_is_no_error() {
    let texts = r#"{"text": "again and again"},"#.repeat(20_000);
    let path = file(
        "long.json",
        format!(
            r#"{{"scripts": [[{texts} {{"finish": "stop"}}]],
                 "ops": [{{"op": "chat", "messages": [{{"role": "user", "content": "hi"}}], "stream": true}}]}}"#
        ),
    );
    let mut command = mynah(["play", &path]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("message_started"), "{first}");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"".as_slice()));
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_exit_code_4() {
    let path = file("full.json", HELLO);
    let full = std::fs::File::create("/dev/full").unwrap();
    let output = mynah(["play", &path]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("mynah: standard output: No space left on device"), "{said}");
}

/// Whether a line matches what is shown, with anything in place of `…`.
fn is_shortened(shown: &str, line: &str) -> bool {
    let parts: Vec<&str> = shown.split('…').collect();
    let (first, last) = (parts[0], parts[parts.len() - 1]);
    let in_order = parts.iter().try_fold(line, |rest, part| Some(rest.split_once(part)?.1));
    in_order.is_some() && line.starts_with(first) && line.ends_with(last)
}
