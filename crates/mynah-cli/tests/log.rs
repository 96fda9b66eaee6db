//! Scenarios that are kept, beyond what one process can show.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::{Ran, Store, feed, mynah, run};

const SCRIPTS: &str = r#"[
  [ {"tool_call": {"id": "c0", "name": "echo", "arguments": {"x": 1}}}, {"finish": "tool_calls"} ],
  [ {"text": "done"}, {"finish": "stop"} ]
]"#;

#[test]
fn a_log_that_does_not_exist_is_made_and_one_that_cannot_be_is_exit_code_4() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.db");
    let played = play(&url(&path), &[], &scenario(0, json!([chat()])));
    assert_eq!((played.code, played.stderr.as_str()), (Some(0), ""));
    assert!(path.exists());
    let unusable = play("sqlite:/no/such/folder/x.db", &[], &scenario(0, json!([chat()])));
    assert_eq!((unusable.code, unusable.stdout.as_str()), (Some(4), ""));
    assert!(unusable.stderr.contains("/no/such/folder/x.db"), "{}", unusable.stderr);
}

#[test]
fn a_log_that_cannot_be_opened_is_exit_code_4_and_one_that_fails_later_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.db");
    assert_eq!(play(&url(&path), &[], &scenario(0, json!([chat()]))).code, Some(0));
    let bytes = std::fs::read(&path).unwrap();
    let (cut_off, mut overwritten) = (&bytes[..bytes.len() / 4], bytes.clone());
    let log = rusqlite::Connection::open(&path).unwrap();
    let select =
        "SELECT page_size, rootpage FROM sqlite_schema, pragma_page_size WHERE rootpage > 0";
    let mut roots = log.prepare(select).unwrap();
    let mut roots = roots.query([]).unwrap();
    while let Some(row) = roots.next().unwrap() {
        let [size, page] = [0, 1].map(|column| row.get::<_, i64>(column).unwrap());
        let [size, page] = [size, page].map(|number| usize::try_from(number).unwrap());
        overwritten[(page - 1) * size..][..size].fill(b'x');
    }
    drop(roots);
    for (damaged, code, lines_told) in [(cut_off, 4, 0), (&overwritten, 0, 2)] {
        std::fs::write(&path, damaged).unwrap();
        let played = play(&url(&path), &[], &scenario(0, json!([chat(), {"op": "verify"}])));
        assert_eq!(played.code, Some(code), "{}", played.stderr);
        let told = lines(&played);
        assert_eq!(
            told.len(),
            lines_told,
            "an operation that fails does not keep the next from it"
        );
        assert!(told.iter().all(|line| line["err"]["type"] == "log_error"), "{told:?}");
    }
}

#[test]
fn what_a_newer_version_wrote_is_too_new_and_not_corrupt() {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mynah-log/tests/vectors");
    let folder = tempfile::tempdir().unwrap();
    let log = url(&folder.path().join("runs.db"));
    for name in ["too_new-kind.ndjson", "too_new-member.ndjson", "too_new-version.ndjson"] {
        let file = vectors.join(name);
        let verified = run(["verify", "--json", file.to_str().unwrap()]);
        assert_eq!(verified.code, Some(1), "{}", verified.stderr);
        assert_eq!(lines(&verified)[0]["status"], "too_new", "{name}");
        let told = run(["verify", file.to_str().unwrap()]).stderr;
        assert!(told.contains("this version of Mynah does not know"), "{told}");
        let imported = run(["import", "--log", &log, file.to_str().unwrap()]);
        assert_ne!(imported.code, Some(0));
        assert!(imported.stderr.contains("too_new"), "{}", imported.stderr);
    }
}

#[test]
fn a_damaged_row_is_told_in_words_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.db");
    assert_eq!(play(&url(&path), &[], &scenario(0, json!([chat()]))).code, Some(0));
    for (damage, what) in [
        ("UPDATE heads SET state = x'00'", "it was written: state is not what it has to be"),
        ("UPDATE seals SET hash = x'00'", "its row is not as it was written"),
    ] {
        rusqlite::Connection::open(&path).unwrap().execute_batch(damage).unwrap();
        let found = feed(mynah(["verify", "--log", &url(&path)]), b"");
        assert_eq!(found.code, Some(1));
        assert!(found.stdout.contains(what), "{}", found.stdout);
        assert!(!found.stdout.contains("at index"), "{}", found.stdout);
    }
}

#[test]
fn a_log_that_nobody_knows_is_exit_code_2() {
    for (wrong, why) in [
        ("", "not a log that this program knows"),
        ("mynah.db", "a log is a URL; give sqlite:mynah.db"),
        ("sqlite:", "the path is missing"),
        ("sqlite://", "the path is missing"),
        ("sqlite:runs.db?mode=ro", "a log takes no options"),
        ("memory:x", "takes no path"),
        ("memory", "give memory:, sqlite:PATH or postgres://"),
    ] {
        let refused = play(wrong, &[], &scenario(0, json!([chat()])));
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{wrong:?}");
        assert!(refused.stderr.contains(why), "{wrong:?}: {}", refused.stderr);
    }
    let mut set = mynah(["runs"]);
    set.env("MYNAH_LOG", "mynah.db");
    let said = "mynah: MYNAH_LOG=mynah.db: a log is a URL; give sqlite:mynah.db\n";
    assert_eq!(feed(set, b"").stderr, said);
}

#[test]
fn the_last_run_is_the_newest_also_in_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let log = url(&folder.path().join("runs.db"));
    for stable in [&["--stable"] as &[_], &[]] {
        let first = play(&log, stable, &scenario(0, json!([chat(), {"op": "fork", "at": 3}])));
        let told = lines(&first);
        let (run, fork) = (&told[0]["run_id"], &told[1]["ok"]["run_id"]);
        assert_ne!(run, fork);
        let ops = json!([
            {"op": "verify"}, {"op": "verify", "run_id": run},
            {"op": "resume"}, {"op": "verify"}, {"op": "replay", "tools": "recorded"},
        ]);
        let told = lines(&play(&log, stable, &scenario(1, ops)));
        assert_eq!(told[0]["ok"]["records"], 3);
        assert_eq!(
            (&told[1]["ok"]["status"], &told[1]["ok"]["records"]),
            (&json!("verified"), &json!(9))
        );
        assert_eq!(
            (&told[2]["run_id"], &told[2]["ok"]["halted_reason"]),
            (fork, &json!("completed"))
        );
        assert_eq!(told[3]["ok"]["status"], "verified");
        assert_eq!(told[4]["ok"]["status"], "equal");
    }
}

#[test]
fn only_ids_times_and_hashes_differ_from_run_to_run() {
    let ops = json!([chat(), {"op": "verify"}, {"op": "replay"}]);
    let outputs = [0, 1].map(|_| lines(&play("memory:", &[], &scenario(0, ops.clone()))));
    assert_ne!(outputs[0][0]["run_id"], outputs[1][0]["run_id"]);
    assert_ne!(
        outputs[0][1]["ok"]["root"], outputs[1][1]["ok"]["root"],
        "salts keep payloads secret"
    );
    let threads = outputs.each_ref().map(|lines| &lines[0]["ok"]["thread"]);
    assert_eq!(threads[0], threads[1]);
    assert_eq!(outputs[0][2], outputs[1][2]);
}

#[test]
fn a_result_names_its_run_once() {
    let ops = json!([chat(), {"op": "session.start", "messages": [{"role": "user", "content": "hi"}], "stream": true}]);
    let played = play("memory:", &["--stable"], &scenario(0, ops));
    assert_eq!(played.stdout.matches("\"run_id\"").count(), 2, "{}", played.stdout);
}

#[test]
fn what_is_told_of_800_turns_is_eight_times_what_is_told_of_100() {
    let told = |turns: usize| {
        let call = |turn| json!([{"tool_call": {"id": format!("c{turn:03}"), "name": "echo", "arguments": {"x": 1}}}, {"finish": "tool_calls"}]);
        let mut file = scenario(0, json!([]));
        file["scripts"] = (0..turns).map(call).collect();
        file["ops"] = json!([{"op": "chat", "messages": [{"role": "user", "content": "go"}], "stream": true, "options": {"max_turns": turns}}]);
        let played = play("memory:", &["--stable"], &file);
        let ended = lines(&played);
        assert_eq!(ended[ended.len() - 1]["ok"]["steps"].as_array().unwrap().len(), turns);
        played.stdout.len()
    };
    let (few, many) = (told(100), told(800));
    assert!(many < 9 * few, "{many} bytes for 800 turns, {few} for 100");
}

#[test]
fn a_crash_ends_the_process_in_the_middle_of_an_operation() {
    let folder = tempfile::tempdir().unwrap();
    let log = url(&folder.path().join("runs.db"));
    let mut chat = chat();
    chat["stream"] = json!(true);
    chat["crash_after"] = json!(4);
    let crashed = play(&log, &["--stable"], &scenario(0, json!([chat, {"op": "verify"}])));
    assert_eq!((crashed.code, crashed.stderr.as_str()), (Some(137), ""));
    let events: Vec<Value> =
        lines(&crashed).into_iter().map(|line| line["event"]["type"].clone()).collect();
    let expected =
        ["message_started", "tool_call_started", "tool_call_completed", "message_completed"];
    assert_eq!(events, expected, "the tool is announced, and does not start");
    let told = lines(&play(&log, &["--stable"], &scenario(1, json!([{"op": "verify"}]))));
    assert_eq!(told[0]["ok"]["records"], 4);
}

#[test]
fn a_run_that_was_tampered_with_is_corrupt_for_every_operation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let played = play(&url(&path), &["--stable"], &scenario(0, json!([chat()])));
    assert_eq!(played.code, Some(0));
    let mut bytes = std::fs::read(&path).unwrap();
    let places: Vec<usize> =
        (0..bytes.len() - 4).filter(|place| bytes[*place..].starts_with(b"done")).collect();
    assert!(!places.is_empty());
    places.into_iter().for_each(|place| bytes[place] ^= 1);
    std::fs::write(&path, bytes).unwrap();
    let ops =
        json!([{"op": "verify"}, {"op": "replay"}, {"op": "resume"}, {"op": "fork", "at": 2}]);
    for line in lines(&play(&url(&path), &["--stable"], &scenario(2, ops))) {
        let (error, metadata) = (&line["err"], &line["err"]["metadata"]);
        assert_eq!(
            (&error["type"], &error["reason"]),
            (&json!("log_error"), &json!("corrupt")),
            "{line}"
        );
        assert_eq!((&metadata["run_id"], &metadata["seq"]), (&json!("run-0"), &json!(7)), "{line}");
        assert!(metadata["what"].is_string(), "{line}");
    }
}

#[test]
fn steps_and_single_calls_that_are_resumed_give_what_they_would_have_given() {
    let messages = json!([{"role": "user", "content": "go"}]);
    for (op, records) in [("step", 7), ("generate", 5), ("chat", 9)] {
        let whole = json!([{"op": op, "messages": messages}]);
        let expected = lines(&play("memory:", &["--stable"], &scenario(0, whole))).remove(0);
        // A run that has its seal is not gone on with.
        for seq in 1..records {
            let folder = tempfile::tempdir().unwrap();
            let log = url(&folder.path().join("runs.db"));
            let ops = json!([{"op": op, "messages": messages, "crash_after": seq}]);
            assert_eq!(play(&log, &["--stable"], &scenario(0, ops)).code, Some(137));
            let answered = usize::from(seq >= 3) + usize::from(seq >= 7);
            let ops = json!([{"op": "resume", "on_uncertain": "rerun"}, {"op": "verify"}]);
            let told = lines(&play(&log, &["--stable"], &scenario(answered, ops)));
            assert_eq!(told[0], expected, "{op}, record {seq}");
            assert_eq!(told[1]["ok"]["status"], "verified", "{op}, record {seq}");
        }
    }
}

#[test]
fn a_step_that_may_have_run_its_tool_says_so_when_it_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let log = url(&folder.path().join("runs.db"));
    let messages = json!([{"role": "user", "content": "go"}]);
    let ops = json!([{"op": "step", "messages": messages, "crash_after": 4}]);
    assert_eq!(play(&log, &["--stable"], &scenario(0, ops)).code, Some(137));
    let ops = json!([{"op": "resume"}, {"op": "resume", "tool_results": [["c0", 2]]}]);
    let told = lines(&play(&log, &["--stable"], &scenario(1, ops)));
    let waits = &told[0]["ok"];
    assert_eq!(waits["halted_reason"], "uncertain_tools");
    assert_eq!(waits["metadata"]["uncertain_tool_calls"], json!(["c0"]));
    assert_eq!(waits["thread"]["messages"].as_array().unwrap().len(), 2, "{waits}");
    assert_eq!(told[1]["ok"]["tool_results"][0]["content"], "2");
}

#[test]
fn a_chat_that_may_have_run_a_tool_tells_the_steps_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let log = url(&folder.path().join("runs.db"));
    let file = |used: usize, ops: Value| {
        let mut file = scenario(0, ops);
        let call = file["scripts"][0].clone();
        let scripts = [call.clone(), call, file["scripts"][1].clone()];
        file["scripts"] = json!(scripts[used..]);
        file
    };
    let mut chat = chat();
    chat["crash_after"] = json!(8);
    assert_eq!(play(&log, &["--stable"], &file(0, json!([chat]))).code, Some(137));
    let ops = json!([{"op": "resume"}, {"op": "resume", "approve": ["c0"]}]);
    let told = lines(&play(&log, &["--stable"], &file(2, ops)));
    let [waits, done] = [&told[0]["ok"], &told[1]["ok"]];
    assert_eq!(waits["halted_reason"], "uncertain_tools");
    let steps = |result: &Value| result["steps"].as_array().unwrap().clone();
    assert_eq!((steps(waits).len(), steps(done).len()), (1, 3));
    assert_eq!(steps(waits)[0], steps(done)[0]);
    let last = waits["thread"]["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(last["content"][0]["type"], "tool_call");
}

#[test]
fn a_changed_engine_goes_on_where_the_operation_allows_it() {
    let folder = tempfile::tempdir().unwrap();
    let log = url(&folder.path().join("runs.db"));
    let mut chat = chat();
    chat["crash_after"] = json!(3);
    assert_eq!(play(&log, &["--stable"], &scenario(0, json!([chat]))).code, Some(137));
    let ops = json!([
        {"op": "resume", "options": {"max_turns": 3}},
        {"op": "resume", "options": {"max_turns": 3}, "allow_changed_engine": true},
        {"op": "verify"}, {"op": "replay"},
        {"op": "replay", "options": {"max_turns": 4}},
        {"op": "replay", "options": {"max_turns": 4}, "allow_changed_engine": true},
    ]);
    let mut scenario = scenario(1, ops);
    scenario["engine"] = json!({"model": "another"});
    let told = lines(&play(&log, &["--stable"], &scenario));
    let refused = &told[0]["err"];
    assert_eq!(refused["type"], "replay_mismatch");
    assert_eq!(refused["metadata"]["diff"][0]["path"], "about.model");
    assert!(refused["message"].as_str().unwrap().contains("allow_changed_engine"), "{refused}");
    assert_eq!(told[1]["ok"]["halted_reason"], "completed");
    assert_eq!(
        (&told[2]["ok"]["status"], &told[3]["ok"]["status"]),
        (&json!("verified"), &json!("equal"))
    );
    assert_eq!(told[4]["err"]["metadata"]["diff"][0]["path"], "about.options.max_turns");
    assert_eq!(told[5]["ok"]["status"], "equal");
}

#[test]
fn other_options_change_nothing_of_what_a_run_had_done() {
    // Before its seal, which is all that is missing then, and before its second answer.
    for (seq, used, take) in [(8, 2, None), (6, 1, Some(2))] {
        let resumed = [json!({}), json!({"max_turns": 3})].map(|options| {
            let folder = tempfile::tempdir().unwrap();
            let log = url(&folder.path().join("runs.db"));
            let mut chat = chat();
            chat["crash_after"] = json!(seq);
            assert_eq!(play(&log, &["--stable"], &scenario(0, json!([chat]))).code, Some(137));
            let resume = json!({"op": "resume", "options": options, "take": take});
            let ops = json!([resume, {"op": "replay"}]);
            let told = lines(&play(&log, &["--stable"], &scenario(used, ops)));
            assert_eq!(told[1]["ok"]["status"], "equal", "{seq}: {}", told[1]);
            told[0].clone()
        });
        assert_eq!(resumed[0], resumed[1]);
        assert_eq!(resumed[0]["ok"]["thread"]["messages"].as_array().unwrap().len(), 4);
    }
}

#[test]
fn a_crash_after_a_record_that_never_comes_changes_nothing() {
    let ops = |seq: [Option<u64>; 3]| {
        let [mut chat, mut verify, mut replay] =
            [chat(), json!({"op": "verify"}), json!({"op": "replay"})];
        chat["crash_after"] = json!(seq[0]);
        verify["crash_after"] = json!(seq[1]);
        replay["crash_after"] = json!(seq[2]);
        play("memory:", &["--stable"], &scenario(0, json!([chat, verify, replay])))
    };
    let plain = ops([None; 3]);
    assert_eq!((plain.code, lines(&plain).len()), (Some(0), 3));
    // The run has nine records, and the other two operations write none.
    assert_eq!(ops([Some(10), Some(9), Some(1)]), plain);
}

fn chat() -> Value {
    json!({"op": "chat", "messages": [{"role": "user", "content": "go"}]})
}

/// These operations, after so many of the scripts were used.
fn scenario(used: usize, ops: Value) -> Value {
    let scripts: Vec<Value> = serde_json::from_str(SCRIPTS).unwrap();
    let tool = json!({"name": "echo", "returns": {"echo": true}});
    json!({"scripts": scripts[used..], "tools": [tool], "ops": ops})
}

fn url(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

fn play(log: &str, more: &[&str], scenario: &Value) -> Ran {
    let arguments = ["play", "--log", log, "-"].into_iter().chain(more.iter().copied());
    feed(mynah(arguments), scenario.to_string().as_bytes())
}

fn lines(ran: &Ran) -> Vec<Value> {
    ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn an_answer_that_was_cut_off_is_shown_as_such() {
    let scenario = r#"{
      "scripts": [[ {"text": "half a"}, {"finish": "length"} ], [ {"text": "whole"}, {"finish": "stop"} ]],
      "ops": [
        {"op": "chat", "messages": [{"role": "user", "content": "hi"}]},
        {"op": "chat", "messages": [{"role": "user", "content": "hi"}]}
      ]
    }"#;
    let store = Store::with(scenario);
    let shown = store.ok(&["show", "run-0"]);
    let told = "assistant: half a\n\n-- the answer was cut off at its token limit\n";
    assert!(shown.contains(told), "{shown}");
    let lines = store.json(&["show", "run-0"]);
    assert!(lines.iter().any(|line| line["how"] == "at its token limit"), "{lines:?}");
    assert!(!store.ok(&["show", "run-1"]).contains("cut off"));
}
