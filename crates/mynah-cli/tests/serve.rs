//! `mynah serve` and `mynah inspect`.

#![cfg(feature = "serve")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::common::{self, file, mynah, run};

const AGENT: &str = r#"{
  "engine": {"model": "scripted-1"},
  "scripts": [
    [ {"tool_call": {"id": "c0", "name": "refund", "arguments": {"order": 17}}}, {"finish": "tool_calls"} ],
    [ {"text": "Order 17 is refunded."}, {"finish": "stop"} ],
    [ {"text": "You are welcome."}, {"finish": "stop"} ]
  ],
  "tools": [ {"name": "refund", "manual": true, "returns": {"ok": "refunded"}} ]
}"#;

/// A server that is running, and is killed when it is dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(verb: &str, arguments: &[&str]) -> Self {
        let mut command = mynah([verb, "--listen", "127.0.0.1:0", "--json"]);
        let mut child =
            command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said: Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let url = said["listening"].as_str().unwrap().trim_end_matches('/').to_owned();
        Self { child, url }
    }

    fn curl(&self, arguments: &[&str], path: &str) -> String {
        let mut command = Command::new("curl");
        let output = command.args(["-sS", "--max-time", "60"]).args(arguments);
        let output = output.arg(format!("{}{path}", self.url)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, path: &str) -> Value {
        let text = self.curl(&[], path);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of a log that does not exist yet.
fn log(name: &str) -> String {
    let path = file(name, "");
    for end in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(format!("{path}{end}"));
    }
    format!("sqlite:{path}")
}

#[test]
fn the_examples_of_the_documentation_work_as_they_stand() {
    let docs = include_str!("../../../docs/server.md");
    let (_, examples) = docs.split_once("## With curl").unwrap();
    let script: String =
        examples.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap()).collect();
    let (agent, log) = (file("serve-examples.json", AGENT), log("serve-examples.db"));
    let server = Server::start("serve", &[&agent, "--log", &log]);
    let script = format!("set -eu\n{}", script.replace("http://127.0.0.1:7878", &server.url));
    let output = Command::new("sh").arg("-c").arg(&script).output().unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{text}");
    for expected in [
        "\"suspended\"",
        "\"completed\"",
        "event: end",
        "\"verified\"",
        "\"equal\"",
        "f-1",
        "mynah_runs_started_total",
    ] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    assert!(!text.contains("http_error") && !text.contains("log_error"), "{text}");
    assert_eq!(run(["verify", "--log", &log]).code, Some(0));
}

#[test]
fn a_scripted_agent_continues_after_the_answers_of_its_run() {
    let (agent, log) = (file("serve-scripted.json", AGENT), log("serve-scripted.db"));
    let server = Server::start("serve", &[&agent, "--log", &log]);
    let post = |path: &str, body: &str| -> Value {
        let header = ["-H", "mynah-request: 1", "-H", "content-type: application/json", "-d", body];
        serde_json::from_str(&server.curl(&header, path)).unwrap()
    };
    let waits = post("/v1/runs?wait=30", r#"{"input": "Refund order 17", "key": "r"}"#);
    assert_eq!(waits["waiting"]["calls"][0]["arguments"]["order"], 17, "{waits}");
    assert_eq!(waits["agent"], "serve-scripted");
    let done = post("/v1/runs/r/signals?wait=30", r#"{"approve": ["c0"]}"#);
    assert_eq!(done["status"], "completed", "{done}");
    let events = server.json("/v1/runs/r/events?limit=1000").to_string();
    assert!(events.contains("Order 17 is refunded."), "{events}");
}

#[cfg(unix)]
#[test]
fn a_signal_stops_the_server_with_success() {
    for signal in ["TERM", "INT"] {
        let (agent, log) = (file("serve-signal.json", AGENT), log("serve-signal.db"));
        let mut server = Server::start("serve", &[&agent, "--log", &log]);
        assert_eq!(server.curl(&[], "/healthz"), "ok\n");
        let mut follower = Command::new("curl");
        let follower = follower.args([
            "-sSN",
            "-H",
            "accept: text/event-stream",
            &format!("{}/v1/changes", server.url),
        ]);
        let mut follower = follower.stdout(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 5];
        follower.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        let kill = Command::new("kill")
            .args([&format!("-{signal}"), &server.child.id().to_string()])
            .status();
        assert!(kill.unwrap().success());
        let status = server.child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{signal}");
        assert!(follower.wait().unwrap().success(), "its stream came to an end");
    }
}

#[test]
fn a_run_in_a_file_can_be_inspected_without_its_log() {
    let (agent, log) = (file("serve-bundle.json", common::RUNS), log("serve-bundle.db"));
    assert_eq!(run(["play", &agent, "--log", &log]).code, Some(0));
    let runs = run(["runs", "--log", &log, "--status", "completed", "--json"]).stdout;
    let listed: Value = serde_json::from_str(runs.lines().next().unwrap()).unwrap();
    let id = listed["run_id"].as_str().unwrap();
    let bundle = file("serve-bundle.ndjson", run(["export", id, "--log", &log]).stdout);
    let server = Server::start("inspect", &[&bundle]);
    let shown = server.json("/v1/runs");
    assert_eq!(shown["runs"].as_array().unwrap().len(), 1);
    assert_eq!(shown["runs"][0]["hash"], listed["hash"]);
    let refused = server.curl(&["-H", "mynah-request: 1", "-X", "POST"], "/v1/runs/x/signals");
    assert!(refused.contains("http_error/"), "{refused}");
}

#[test]
fn inspecting_changes_nothing_unless_that_is_allowed() {
    let (agent, log) = (file("serve-inspect.json", common::RUNS), log("serve-inspect.db"));
    assert_eq!(run(["play", &agent, "--log", &log]).code, Some(0));
    let id = {
        let server = Server::start("inspect", &["--log", &log]);
        let waiting = server.json("/v1/runs?status=suspended");
        let id = waiting["runs"][0]["run_id"].as_str().unwrap().to_owned();
        let cancel = [
            "-H",
            "mynah-request: 1",
            "-H",
            "content-type: application/json",
            "-d",
            r#"{"cancel": true}"#,
        ];
        assert!(
            server
                .curl(&cancel, &format!("/v1/runs/{id}/signals"))
                .contains("http_error/read_only")
        );
        id
    };
    let server = Server::start("inspect", &["--log", &log, "--allow-actions"]);
    let cancel = [
        "-H",
        "mynah-request: 1",
        "-H",
        "content-type: application/json",
        "-d",
        r#"{"cancel": true}"#,
    ];
    let cancelled = server.curl(&cancel, &format!("/v1/runs/{id}/signals?wait=10"));
    assert!(cancelled.contains("\"status\":\"cancelled\""), "{cancelled}");
}

#[test]
fn what_cannot_be_served_is_refused_before_anything_listens() {
    let log = log("serve-refused.db");
    let agent = file("serve-refused.json", AGENT);
    let short = file("serve-short-token", "short\n");
    let odd = file("serve-odd-token", "a token; with what a cookie cannot hold\n");
    for (arguments, code, says) in [
        (vec!["serve", "--listen", "0.0.0.0:0"], 2, "--token-file"),
        (vec!["serve", "--listen", "[::]:0"], 2, "--token-file"),
        (
            vec!["serve", "--listen", "0.0.0.0:0", "--token-file", "/no/such/file"],
            4,
            "/no/such/file",
        ),
        (vec!["serve", "--listen", "0.0.0.0:0", "--token-file", &short], 2, "at least 16"),
        (vec!["serve", "--listen", "0.0.0.0:0", "--token-file", &odd], 2, "at least 16"),
        (vec!["serve", "--listen", "localhost"], 2, "--listen"),
        (vec!["serve", "--listen", "192.0.2.1:1", "--token-file", &agent], 2, "token"),
        (vec!["serve", "/no/such/agent.json"], 4, "/no/such/agent.json"),
        (vec!["serve", &agent, &agent], 2, "serve-refused"),
        (vec!["inspect"], 4, "no such log"),
        (vec!["inspect", "/no/such/run.ndjson"], 4, "/no/such/run.ndjson"),
        (vec!["inspect", &agent], 2, "serve-refused.json"),
    ] {
        let ran = run(arguments.iter().copied().chain(["--log", &log]));
        assert_eq!(ran.code, Some(code), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(says), "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn a_server_beyond_loopback_demands_its_token() {
    let token = file("serve-token", "correct-horse-battery-staple\nsecond line\n");
    let log = log("serve-token.db");
    let mut command =
        mynah(["serve", "--listen", "0.0.0.0:0", "--json", "--log", &log, "--token-file", &token]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let said: Value = serde_json::from_str(&line).unwrap();
    let url = said["listening"].as_str().unwrap().replace("0.0.0.0", "127.0.0.1");
    let server = Server { child, url: url.trim_end_matches('/').to_owned() };
    assert!(server.curl(&[], "/v1/runs").contains("http_error/token_required"));
    let header = "authorization: Bearer correct-horse-battery-staple";
    assert!(server.curl(&["-H", header], "/v1/runs").contains("\"runs\":[]"));
    let named = server.curl(&["-H", header, "-H", "host: rebound.example"], "/v1/runs");
    assert!(named.contains("http_error/host_refused"), "{named}");
}

/// The ids and events of a stream, as far as they are whole.
fn events(text: &str) -> Vec<(String, Value)> {
    let whole = text.split_inclusive("\n\n").filter(|block| block.ends_with("\n\n"));
    let read = whole.filter_map(|block| {
        let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name));
        let data: Value = serde_json::from_str(field("data: ")?).unwrap();
        Some((field("id: ")?.to_owned(), data["event"].clone()))
    });
    read.collect()
}

#[cfg(unix)]
#[test]
fn a_client_of_a_killed_server_continues_where_it_was_and_hears_of_the_lost_answer_once() {
    let slow: Vec<Value> = (0..30)
        .flat_map(|n| {
            [serde_json::json!({"text": format!("{n} ")}), serde_json::json!({"delay_ms": 40})]
        })
        .chain([serde_json::json!({"finish": "stop"})])
        .collect();
    let agent = file("serve-killed.json", serde_json::json!({"scripts": [slow]}).to_string());
    let log = log("serve-killed.db");
    let mut server = Server::start("serve", &[&agent, "--log", &log]);
    let json = ["-H", "mynah-request: 1", "-H", "content-type: application/json"];
    server.curl(&[&json[..], &["-d", r#"{"input": "count", "key": "r"}"#]].concat(), "/v1/runs");

    let mut reader = Command::new("curl");
    let reader = reader.args(["-sN", "-H", "accept: text/event-stream"]);
    let reader = reader.arg(format!("{}/v1/runs/r/events", server.url));
    let mut reader = reader.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(reader.stdout.take().unwrap());
    let mut text = String::new();
    while text.matches("id: 2~1.").count() < 4 {
        assert_ne!(lines.read_line(&mut text).unwrap(), 0, "{text}");
    }
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    lines.read_to_string(&mut text).unwrap();
    reader.wait().unwrap();
    let mut seen = events(&text);
    let (last, _) = seen.last().unwrap().clone();
    assert!(last.starts_with("2~1."), "{last}");

    // Another process continues the run, and the client comes back with the last id that it had.
    let server = Server::start("serve", &[&agent, "--log", &log]);
    server.curl(&[&json[..], &["-d", r#"{"resume": true}"#]].concat(), "/v1/runs/r/signals");
    let header = format!("last-event-id: {last}");
    let rest =
        server.curl(&["-N", "-H", "accept: text/event-stream", "-H", &header], "/v1/runs/r/events");
    assert!(rest.contains("event: end"), "{rest}");
    seen.extend(events(&rest));

    let recorded = server.json("/v1/runs/r/events?limit=1000");
    let recorded: Vec<&Value> =
        recorded["events"].as_array().unwrap().iter().map(|event| &event["event"]).collect();
    let kept: Vec<&Value> =
        seen.iter().filter(|(id, _)| !id.starts_with("2~")).map(|(_, event)| event).collect();
    assert_eq!(kept, recorded);
    let restarts = kept.iter().filter(|event| event["type"] == "turn_restarted").count();
    assert_eq!(restarts, 1);
    assert_eq!(run(["verify", "r", "--log", &log]).code, Some(0));
}
