//! Files that cannot be performed: exit code 2, or 4 if they cannot even be read, and a message that names the place.

use serde_json::json;

use crate::common::{Ran, feed, file, mynah, run};

#[test]
fn text_that_is_not_json_is_refused_with_line_and_column() {
    refused_each(&[
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("{\n  \"ops\": [\n", "EOF while parsing a list at line 3 column 0"),
        ("{\n  \"ops\": [],\n}", "trailing comma at line 3 column 1"),
        ("{\"ops\": []} x", "trailing characters at line 1 column 13"),
        ("{\"ops\": [1e999]}", "number out of range at line 1 column 14"),
        ("{\"ops\": [\"\u{1}\"]}", "control character"),
        ("{'ops': []}", "key must be a string at line 1 column 2"),
        ("\u{feff}{\"ops\": []}", "it begins with a byte order mark; save it as UTF-8 without one"),
    ]);
}

#[test]
fn a_key_that_stands_twice_is_refused_with_its_line() {
    refused_each(&[
        ("{\"ops\": [],\n \"ops\": []}", "the key \"ops\" occurs twice at line 2 column 6"),
        (r#"{"ops": [{"op": "verify", "op": "chat"}]}"#, "the key \"op\" occurs twice at line 1"),
        (
            "{\"ops\": [], \"tools\": [{\"name\": \"t\",\n\"returns\": {\"ok\": {\"a\": 1, \"\\u0061\": 2}}}]}",
            "the key \"a\" occurs twice at line 2",
        ),
    ]);
    let fine =
        r#"{"ops": [], "engine": {"params": {}, "context": {"a": {"a": [{"a": 1}, {"a": 2}]}}}}"#;
    assert_eq!(feed(mynah(["play", "-"]), fine.as_bytes()).code, Some(0));
}

#[test]
fn a_file_of_another_structure_is_refused() {
    refused_each(&[
        ("[]", "invalid type: sequence, expected a map at line 1 column 0"),
        (r#"[{}, [], [], []]"#, "invalid type: sequence, expected a map"),
        ("7", "invalid type: integer `7`, expected a map at line 1 column 1"),
        ("null", "invalid type: null, expected a map at line 1 column 4"),
        ("{}", "missing key \"ops\""),
        (r#"{"ops": [], "opps": []}"#, "unknown key \"opps\" for a scenario"),
        (r#"{"ops": null}"#, "ops: invalid type: null, expected a sequence"),
        (r#"{"ops": {}}"#, "ops: invalid type: map, expected a sequence"),
        (r#"{"ops": [7]}"#, "ops.0: invalid type: integer `7`, expected a map"),
        (r#"{"ops": [["chat"]]}"#, "ops.0: invalid type: sequence, expected a map"),
        (r#"{"ops": [], "scripts": {}}"#, "scripts: invalid type: map, expected a sequence"),
        (r#"{"ops": [], "scripts": [{"text": "a"}]}"#, "scripts.0: expected a list of entries"),
        (r#"{"ops": [], "tools": {}}"#, "tools: invalid type: map, expected a sequence"),
    ]);
}

#[test]
fn an_engine_that_does_not_fit_is_refused() {
    refused_in(
        |engine| format!(r#"{{"ops": [], "engine": {engine}}}"#),
        "engine: ",
        &[
            ("[]", "invalid type: sequence, expected a map"),
            (r#"{"modell": "m"}"#, "unknown key \"modell\" for the engine"),
            (r#"{"model": 7}"#, "model: invalid type: integer `7`, expected a string"),
            (r#"{"params": []}"#, "params: invalid type: sequence, expected a map"),
            (r#"{"context": "x"}"#, "context: invalid type: string \"x\", expected a map"),
            (r#"{"price": 1}"#, "price: invalid type: integer `1`, expected a map"),
            (r#"{"price": [1, 2]}"#, "price: invalid type: sequence, expected a map"),
            (r#"{"price": {"input": 1}}"#, "price: missing field `output`"),
            (r#"{"price": {"input": "1", "output": 1}}"#, "price: invalid type: string \"1\""),
            (r#"{"price": {"input": 1, "output": 1, "euro": 1}}"#, "price: unknown field `euro`"),
        ],
    );
}

#[test]
fn a_script_entry_that_does_not_fit_is_refused_with_its_place() {
    refused_in(
        |entry| format!(r#"{{"ops": [], "scripts": [[], [{{"text": "a"}}, {entry}]]}}"#),
        "scripts.1.1: ",
        &[
            ("7", "expected an object"),
            ("{}", "expected one of text, reasoning, tool_call"),
            (r#"{"song": "la"}"#, "expected one of text, reasoning, tool_call"),
            (r#"{"text": 7}"#, "text: invalid type: integer `7`, expected a string"),
            (r#"{"text": "a", "volume": 3}"#, "unknown key \"volume\" beside \"text\""),
            (r#"{"text": "a", "finish": "stop"}"#, "unknown key"),
            (r#"{"finish": "done"}"#, "finish: unknown variant `done`, expected one of `stop`"),
            (r#"{"finish": null}"#, "finish: "),
            (
                r#"{"tool_call": ["c0", "echo"]}"#,
                "tool_call: invalid type: sequence, expected a map",
            ),
            (r#"{"tool_call": {"name": "echo"}}"#, "tool_call: missing field `id`"),
            (r#"{"tool_call": {"id": "c0"}}"#, "tool_call: missing field `name`"),
            (r#"{"tool_call": {"id": "c0", "name": "a", "args": {}}}"#, "unknown field `args`"),
            (
                r#"{"tool_call": {"id": "c0", "name": "a", "raw_arguments": {}}}"#,
                "expected a string",
            ),
            (
                r#"{"tool_call": {"id": "c0", "name": "a", "arguments": {}, "raw_arguments": "{}"}}"#,
                "tool_call: give one of arguments, raw_arguments",
            ),
            (r#"{"tool_call_start": {"id": "c0"}}"#, "tool_call_start: missing field `name`"),
            (r#"{"tool_call_delta": {"id": "c0", "delta": "x"}}"#, "unknown field `delta`"),
            (r#"{"reasoning": "a", "signature": 7}"#, "signature: invalid type"),
            (r#"{"usage": []}"#, "usage: "),
            (r#"{"usage": {"input_tokens": "many"}}"#, "usage: "),
            (r#"{"usage": {"input_tokens": -1}}"#, "usage: "),
            (r#"{"error": 7}"#, "error: invalid type"),
            (r#"{"error": "timeout", "retry_after_ms": "soon"}"#, "retry_after_ms: invalid type"),
            (r#"{"error": "timeout", "why": "x"}"#, "unknown key \"why\" beside \"error\""),
            (r#"{"preflight_error": "timeout"}"#, "preflight_error may only be the first entry"),
            (r#"{"delay_ms": -5}"#, "delay_ms: invalid value"),
            (r#"{"delay_ms": 1.5}"#, "delay_ms: invalid type"),
            (r#"{"disconnect": false}"#, "disconnect: expected true"),
        ],
    );
}

#[test]
fn an_entry_that_is_never_played_is_refused_too() {
    refused_each(&[(
        r#"{"ops": [], "scripts": [[{"finish": "stop"}, {"song": "la"}]]}"#,
        "scripts.0.1: expected one of text",
    )]);
}

#[test]
fn a_tool_that_does_not_fit_is_refused_with_its_place() {
    refused_in(
        |tool| format!(r#"{{"ops": [], "tools": [{{"name": "fine"}}, {tool}]}}"#),
        "tools.1: ",
        &[
            (r#"["a"]"#, "invalid type: sequence, expected a map"),
            ("{}", "missing field `name`"),
            (r#"{"name": 7}"#, "expected a string"),
            (r#"{"name": "a", "retruns": {}}"#, "unknown field `retruns`, expected one of `name`"),
            (r#"{"name": "a", "description": 7}"#, "expected a string"),
            (r#"{"name": "a", "schema": []}"#, "expected a map"),
            (r#"{"name": "a", "manual": "yes"}"#, "expected a boolean"),
            (r#"{"name": "a", "manual": null}"#, "expected a boolean"),
            (r#"{"name": "a", "idempotent": 1}"#, "expected a boolean"),
            (r#"{"name": "a", "max_attempts": -1}"#, "expected u32"),
            (r#"{"name": "a", "timeout_ms": "1s"}"#, "expected u64"),
            (
                r#"{"name": "a", "replay": "again"}"#,
                "unknown variant `again`, expected `rerun` or `recorded`",
            ),
            (r#"{"name": "a", "returns": []}"#, "returns: an empty list"),
            (r#"{"name": "a", "returns": "x"}"#, "returns: expected an object"),
            (
                r#"{"name": "a", "returns": {}}"#,
                "returns: expected one of ok, error, ask_user, halt",
            ),
            (r#"{"name": "a", "returns": {"okay": 1}}"#, "random, side_effect, hang, found okay"),
            (r#"{"name": "a", "returns": [{"ok": 1}, {"okay": 1}]}"#, "returns.1: expected one of"),
            (r#"{"name": "a", "returns": {"delay_ms": 1}}"#, "found nothing"),
            (
                r#"{"name": "a", "returns": {"ok": 1, "delay_ms": "x"}}"#,
                "returns: delay_ms: invalid type",
            ),
            (
                r#"{"name": "a", "returns": {"ok": 1, "error": 2}}"#,
                "expected one of ok, parts, error, ",
            ),
            (r#"{"name": "a", "returns": {"ok": 1, "echo": true}}"#, "unknown field `echo`"),
            (r#"{"name": "a", "returns": {"error": 1, "transient": "yes"}}"#, "expected a boolean"),
            (r#"{"name": "a", "returns": {"ask_user": 7}}"#, "expected a string"),
            (r#"{"name": "a", "returns": {"ask_user": "q", "opts": []}}"#, "returns: "),
            (r#"{"name": "a", "returns": {"halt": 7, "result": 1}}"#, "expected a string"),
            (r#"{"name": "a", "returns": {"panic": 7}}"#, "expected a string"),
            (r#"{"name": "a", "returns": {"echo": false}}"#, "returns: expected true"),
            (r#"{"name": "a", "returns": {"echo": true, "hang": true}}"#, "returns: "),
            (r#"{"name": "a", "returns": {"context": 7}}"#, "expected a string"),
            (
                r#"{"name": "a", "returns": {"side_effect": ["x", 1]}}"#,
                "returns: invalid type: sequence",
            ),
            (
                r#"{"name": "a", "returns": {"side_effect": {"name": "x"}}}"#,
                "missing field `value`",
            ),
            (
                r#"{"name": "a", "returns": {"side_effect": {"name": "x", "value": 1, "cost": 2}}}"#,
                "`cost`",
            ),
        ],
    );
}

#[test]
fn an_operation_that_does_not_fit_is_refused_with_its_place() {
    refused_in(
        |op| format!(r#"{{"ops": [{{"op": "session.step"}}, {op}]}}"#),
        "ops.1: ",
        &[
            ("{}", "missing key \"op\""),
            (r#"{"op": 7}"#, "op: invalid type"),
            (r#"{"op": "sing"}"#, "op: unknown operation \"sing\""),
            (r#"{"op": "session.sing"}"#, "op: unknown operation"),
            (r#"{"op": "verify"}"#, "op: \"verify\" needs a log"),
            (r#"{"op": "replay", "tools": "rerun"}"#, "op: \"replay\" needs a log"),
            (r#"{"op": "resume", "answer": "two"}"#, "op: \"resume\" needs a log"),
            (r#"{"op": "fork", "at": 1}"#, "op: \"fork\" needs a log"),
            (r#"{"op": "session.step", "crash_after": 1}"#, "crash_after: needs a log"),
            (r#"{"op": "chat"}"#, "missing key \"messages\""),
            (r#"{"op": "chat", "messages": null}"#, "messages: invalid type: null"),
            (r#"{"op": "chat", "messages": "hi"}"#, "messages: invalid type"),
            (
                r#"{"op": "chat", "messages": [], "mesages": []}"#,
                "unknown key \"mesages\" for chat",
            ),
            (r#"{"op": "chat", "messages": [], "text": "hi"}"#, "unknown key \"text\" for chat"),
            (
                r#"{"op": "chat", "messages": [], "thread": "last"}"#,
                "thread: give either messages or thread",
            ),
            (r#"{"op": "chat", "thread": "first"}"#, "thread: expected \"last\", found \"first\""),
            (r#"{"op": "chat", "thread": 7}"#, "thread: invalid type"),
            (r#"{"op": "chat", "messages": [], "stream": "yes"}"#, "stream: invalid type"),
            (r#"{"op": "chat", "messages": [], "take": -1}"#, "take: invalid value"),
            (
                r#"{"op": "chat", "messages": [], "cancel_after": "x"}"#,
                "cancel_after: invalid type",
            ),
            (r#"{"op": "chat", "messages": [], "options": []}"#, "options: invalid type"),
            (r#"{"op": "session.start"}"#, "missing key \"messages\""),
            (r#"{"op": "session.start", "thread": "last"}"#, "missing key \"messages\""),
            (r#"{"op": "session.start", "messages": [], "id": 7}"#, "id: invalid type"),
            (r#"{"op": "session.start", "messages": [], "context": []}"#, "context: invalid type"),
            (r#"{"op": "session.reply"}"#, "missing key \"text\""),
            (r#"{"op": "session.reply", "text": ["hi"]}"#, "text: invalid type"),
            (r#"{"op": "session.continue", "message": "hi"}"#, "message: expected an object"),
            (
                r#"{"op": "session.continue", "text": "hi"}"#,
                "unknown key \"text\" for session.continue",
            ),
            (
                r#"{"op": "session.step", "messages": []}"#,
                "unknown key \"messages\" for session.step",
            ),
            (r#"{"op": "session.submit_tool_result", "id": "c0"}"#, "missing key \"content\""),
            (
                r#"{"op": "session.submit_tool_result", "id": 7, "content": "x"}"#,
                "id: invalid type",
            ),
            (
                r#"{"op": "session.submit_tool_results", "results": {"c0": "x"}}"#,
                "results: invalid type",
            ),
            (
                r#"{"op": "session.submit_tool_results", "results": [["c0"]]}"#,
                "results: invalid length 1",
            ),
            (r#"{"op": "session.submit_tool_results", "results": [["c0", 1, 2]]}"#, "results: "),
            (r#"{"op": "session.recover", "id": "s1"}"#, "unknown key \"id\" for session.recover"),
        ],
    );
}

#[test]
fn an_operation_on_a_log_that_does_not_fit_is_refused_with_its_place() {
    let cases = [
        (r#"{"op": "verify", "run": "x"}"#, "unknown key \"run\" for verify"),
        (r#"{"op": "verify", "run_id": 7}"#, "run_id: invalid type"),
        (r#"{"op": "replay", "tools": "never"}"#, "tools: expected one of rerun, recorded"),
        (r#"{"op": "fork"}"#, "missing key \"at\""),
        (r#"{"op": "fork", "at": -1}"#, "at: invalid value"),
        (r#"{"op": "resume", "answer": 7}"#, "answer: invalid type"),
        (r#"{"op": "resume", "answer": "a", "message": "b"}"#, "give either message or answer"),
        (r#"{"op": "resume", "message": {"role": "user"}}"#, "message: missing key \"content\""),
        (r#"{"op": "resume", "tool_results": {"c0": 1}}"#, "tool_results: invalid type"),
        (r#"{"op": "resume", "tool_results": [["c0"]]}"#, "tool_results: invalid length 1"),
        (r#"{"op": "resume", "approve": "c0"}"#, "approve: invalid type"),
        (r#"{"op": "resume", "on_uncertain": "hope"}"#, "expected one of suspend, rerun, fail"),
        (r#"{"op": "session.step", "crash_after": 0}"#, "records are counted from 1"),
        (r#"{"op": "session.step", "crash_after": "end"}"#, "crash_after: invalid type"),
    ];
    for (op, why) in cases {
        let text = format!(r#"{{"ops": [{{"op": "session.step"}}, {op}]}}"#);
        let ran = feed(mynah(["play", "--log", "memory:", "-"]), text.as_bytes());
        refused(&ran, "standard input: ops.1", why);
    }
}

#[test]
fn a_message_of_another_shape_is_refused_with_its_place() {
    refused_in(
        |message| {
            let fine = r#"{"role": "user", "content": "hi"}"#;
            format!(r#"{{"ops": [{{"op": "chat", "messages": [{fine}, {message}]}}]}}"#)
        },
        "ops.0: messages.1: ",
        &[
            (r#""hi""#, "expected an object"),
            (r#"{"role": "user"}"#, "missing key \"content\""),
            (r#"{"content": "hi"}"#, "missing key \"role\""),
            (r#"{"role": 7, "content": "hi"}"#, "expected"),
            (r#"{"role": "user", "content": "hi", "mood": "fine"}"#, "unknown key \"mood\""),
            (r#"{"role": "user", "content": "hi", "name": 7}"#, "expected a string"),
            (r#"{"role": "user", "content": "hi", "metadata": 7}"#, "expected a map"),
            (r#"{"role": "user", "content": [{"type": "text"}]}"#, "missing field `text`"),
            (
                r#"{"role": "assistant", "content": "", "tool_calls": [{"id": "c0"}]}"#,
                "missing field `name`",
            ),
        ],
    );
}

#[test]
fn deep_nesting_is_refused_at_the_place_where_it_is_too_deep() {
    const DEPTH: usize = 100_000;
    let (open, close) = ("[".repeat(DEPTH), "]".repeat(DEPTH));
    let objects = r#"{"a":"#.repeat(DEPTH);
    let deep = [
        objects.clone(),
        format!(r#"{{"ops": {open}"#),
        format!(r#"{{"ops": {open}{close}}}"#),
        format!(r#"{{"ops": [], "scripts": [[{{"raw_chunk": {open}{close}}}]]}}"#),
        format!(r#"{{"ops": [], "tools": [{{"name": "a", "returns": {{"ok": {objects}"#),
        format!(r#"{{"ops": [{{"op": "chat", "messages": [], "options": {objects}"#),
    ];
    for (index, text) in deep.iter().enumerate() {
        let path = file(&format!("deep_{index}.json"), text);
        refused(&run(["play", &path]), &path, "recursion limit exceeded at line 1 column");
    }
}

#[test]
fn a_line_of_100_megabytes_is_refused_without_reading_it_all() {
    let mut text = br#"{"ops": [{"op": "session.reply", "text": ""#.to_vec();
    text.resize(100_000_000, b'x');
    text.extend(br#""}]}"#);
    let path = file("long_line.json", &text);
    refused(&run(["play", &path]), &path, "larger than 16 MiB");
    refused(&feed(mynah(["play", "-"]), &text), "standard input", "larger than 16 MiB");
    std::fs::remove_file(path).unwrap();
}

#[cfg(unix)]
#[test]
fn a_large_file_is_refused_in_little_memory() {
    let path = file("little_memory.json", "x".repeat(100_000_000));
    let mut limited = std::process::Command::new("sh");
    let script = format!("ulimit -v 200000; exec {} play {path}", env!("CARGO_BIN_EXE_mynah"));
    limited.args(["-c", &script]);
    refused(&feed(limited, b""), &path, "larger than 16 MiB");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_file_as_large_as_is_allowed_is_performed() {
    let mut text =
        br#"{"ops": [{"op": "generate", "messages": [{"role": "user", "content": ""#.to_vec();
    let end = br#""}]}], "scripts": [[{"text": "a lot"}, {"finish": "stop"}]]}"#;
    text.resize((16 << 20) - end.len(), b'x');
    text.extend(end);
    let path = file("largest.json", &text);
    let ran = run(["play", &path]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.contains(r#""output_text":"a lot""#), "{}", ran.stdout);
    text.push(b' ');
    let path = file("largest.json", &text);
    refused(&run(["play", &path]), &path, "larger than 16 MiB");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn bytes_that_are_not_utf_8_are_refused_with_their_place() {
    let path = file("latin1.json", b"{\"ops\": [], \"engine\": {\"model\": \"M\xfcller\"}}");
    refused(&run(["play", &path]), &path, "not UTF-8 at byte 34");
    let path = file("cut_off.json", b"{\"ops\": []} \xc3");
    refused(&run(["play", &path]), &path, "not UTF-8 at byte 12");
}

#[test]
fn a_file_that_cannot_be_read_is_exit_code_4() {
    let missing = format!("{}/no/such/file.json", env!("CARGO_TARGET_TMPDIR"));
    let unusable = [
        (missing.as_str(), "No such file or directory"),
        (env!("CARGO_TARGET_TMPDIR"), "it is a folder; give a file"),
    ];
    for (path, why) in unusable {
        let ran = run(["play", path]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(4), ""), "{path}");
        assert!(ran.stderr.starts_with(&format!("mynah: {path}: {why}")), "{}", ran.stderr);
    }
}

#[test]
fn an_unknown_operation_is_told_those_that_are_known() {
    let told = |op: &str| {
        let scenario = json!({"ops": [{"op": op}]}).to_string();
        feed(mynah(["play", "-"]), scenario.as_bytes()).stderr
    };
    let unknown = told("chatt");
    let (_, known) =
        unknown.trim_end().split_once("unknown operation \"chatt\"; known are ").unwrap();
    let known: Vec<&str> = known.split(", ").collect();
    assert_eq!((known.len(), known[0], known[14]), (15, "generate", "fork"));
    for name in known {
        assert!(!told(name).contains("unknown operation"), "{name}");
    }
}

#[test]
fn nothing_is_performed_of_a_file_that_is_wrong_at_its_end() {
    refused_each(&[(
        r#"{"scripts": [[{"finish": "stop"}]], "ops": [
            {"op": "generate", "messages": [{"role": "user", "content": "hi"}]}, {"op": "sing"}]}"#,
        "ops.1: op: unknown operation \"sing\"",
    )]);
}

/// Each text is refused, with something like this in the message.
fn refused_each(cases: &[(&str, &str)]) {
    for (text, why) in cases {
        refused(&feed(mynah(["play", "-"]), text.as_bytes()), "standard input", why);
    }
}

/// Each piece is refused in the middle of a file, with its place and something like this in the message.
fn refused_in(around: impl Fn(&str) -> String, place: &str, cases: &[(&str, &str)]) {
    for (piece, why) in cases {
        let ran = feed(mynah(["play", "-"]), around(piece).as_bytes());
        refused(&ran, &format!("standard input: {}", place.trim_end_matches(": ")), why);
    }
}

fn refused(ran: &Ran, place: &str, why: &str) {
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{why}: {}", ran.stderr);
    let begins = format!("mynah: {place}: ");
    assert!(ran.stderr.starts_with(&begins), "expected {begins:?}, found {}", ran.stderr);
    assert!(ran.stderr.contains(why), "expected {why:?}, found {}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
}
