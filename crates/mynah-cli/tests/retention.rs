//! The verbs that carry runs along and take them away: `export`, `import`, `prune`, `redact`.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use crate::common::{Store, feed, lines, mynah, run, text};

/// A run with a tool, one that failed, one that waits, all long ago.
const RUNS: &str = r#"{
  "scripts": [
    [ {"tool_call": {"id": "c0", "name": "order", "arguments": {"dish": "soup"}}}, {"usage": {"input_tokens": 9, "output_tokens": 2}}, {"finish": "tool_calls"} ],
    [ {"text": "It is "}, {"text": "on its way."}, {"finish": "stop"} ],
    [ {"text": "well"}, {"error": "rate_limited", "message": "too fast"} ],
    [ {"tool_call": {"id": "c1", "name": "ask"}}, {"finish": "tool_calls"} ]
  ],
  "tools": [
    {"name": "order", "returns": {"ok": {"bowls": 2, "price": 4.5}}},
    {"name": "ask", "returns": {"ask_user": "How many?"}}
  ],
  "ops": [
    {"op": "chat", "messages": [{"role": "user", "content": "Soup for Ann, card 4111!"}]},
    {"op": "chat", "messages": [{"role": "user", "content": "hi"}]},
    {"op": "chat", "messages": [{"role": "user", "content": "More?"}]}
  ]
}"#;

const SESSION: &str = r#"{
  "scripts": [ [ {"text": "Hi."}, {"finish": "stop"} ], [ {"text": "Yes."}, {"finish": "stop"} ] ],
  "ops": [
    {"op": "session.start", "messages": [{"role": "user", "content": "hi"}]},
    {"op": "session.reply", "text": "there?"}
  ]
}"#;

#[test]
fn import_names_the_run_that_a_conversation_began_in_and_the_log_lacks() {
    let store = Store::with(SESSION);
    let (first, second) = (store.beside("first.ndjson"), store.beside("second.ndjson"));
    store.ok(&["export", "run-0", "-o", &first]);
    let exported = store.run(&["export", "run-1", "-o", &second]);
    assert!(exported.stderr.ends_with("export them too: run-0\n"), "{}", exported.stderr);

    let elsewhere = format!("sqlite:{}", store.beside("elsewhere.db"));
    let import = |file: &str, json| {
        let told = run(["import", file, "--log", &elsewhere].into_iter().chain(json));
        assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""));
        told
    };
    let lacks = "; its conversation began in run run-0, which this log lacks: import that too\n";
    let told = import(&second, None).stdout;
    assert!(told.ends_with(&format!("5 records added{lacks}")), "{told}");
    assert_eq!(lines(&import(&second, Some("--json")))[0]["needs"], json!(["run-0"]));
    assert!(import(&first, None).stdout.ends_with("5 records added\n"));
    assert_eq!(lines(&import(&second, Some("--json")))[0]["needs"], json!([]));
}

#[test]
fn the_runs_of_a_session_are_pruned_together() {
    let store = Store::with(SESSION);
    let prune = ["prune", "--older-than", "30d", "--reason", "age", "--yes", "--limit"];
    let told = store.json(&[&prune[..], &["1"]].concat());
    assert_eq!(
        told,
        [json!({"dry_run": false, "runs": 0, "records": 0, "in_use": [], "damaged": []})]
    );
    let told = store.json(&[&prune[..], &["2"]].concat());
    let ids: Vec<_> = told.iter().filter_map(|run| run["run_id"].as_str()).collect();
    assert_eq!((ids, &told[2]["runs"]), (vec!["run-1", "run-0"], &json!(2)));
}

#[test]
fn a_turn_that_goes_on_from_what_was_redacted_is_named() {
    let waits = SESSION.replace(
        r#"[ {"text": "Yes."}, {"finish": "stop"} ] ],"#,
        r#"[ {"tool_call": {"id": "c0", "name": "ask"}}, {"finish": "tool_calls"} ] ],
           "tools": [ {"name": "ask", "returns": {"ask_user": "How many?"}} ],"#,
    );
    let store = Store::with(&waits);
    let redact = ["redact", "run-0", "--record", "1", "--reason", "asked to"];
    let said = |then: &str| {
        format!(
            "run run-1 has not ended, and it {then} no longer be resumed: `mynah cancel` ends it\n"
        )
    };
    assert_eq!(store.run(&redact).stderr, said("could"));
    assert_eq!(store.run(&[&redact[..], &["--yes"]].concat()).stderr, said("can"));
    let refused = store.run(&["replay", "run-1"]).stderr;
    assert!(refused.contains("redacted: the body of record 1 of run run-0"), "{refused}");
    // Nothing goes any more, so nothing is kept from going on by it.
    assert_eq!(store.run(&redact).stderr, "");
}

#[test]
fn ids_that_are_counted_are_not_those_of_pruned_runs() {
    let store = Store::with(RUNS);
    store.ok(&["prune", "--older-than", "30d", "--reason", "age", "--yes", "--limit", "1"]);
    store.play(RUNS, true);
    let listed = store.json(&["runs"]);
    let ids: Vec<_> = listed.iter().map(|run| run["run_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["run-5", "run-4", "run-3", "run-2", "run-1"]);
}

#[test]
fn the_records_of_a_run_are_exported_to_be_read() {
    let store = Store::with(RUNS);
    let exported = store.ok(&["export", "run-0", "--records"]);
    assert_eq!(exported, store.ok(&["show", "run-0", "--records", "--json"]));
    let lines: Vec<Value> =
        exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 9);
    assert!(lines.iter().all(|line| line["run_id"] == "run-0"), "{exported}");
    assert_eq!(lines[8]["fact"]["kind"], "sealed");
    let file = store.path.with_extension("ndjson");
    let both = ["export", "run-0", "--records", "-o", file.to_str().unwrap()];
    assert_eq!(store.run(&both).code, Some(2), "a file is to be checked");
}

#[test]
fn an_exported_run_can_be_checked_and_imported_elsewhere() {
    let store = Store::with(RUNS);
    let file = store.beside("run.ndjson");
    let told = store.ok(&["export", "run-0", "-o", &file]);
    assert!(
        told.starts_with(&format!("{file}: run-0  verified  9 records  fingerprint ")),
        "{told}"
    );
    assert_eq!(store.ok(&["export", "run-0"]), fs::read_to_string(&file).unwrap());
    assert!(!PathBuf::from(format!("{file}.part")).exists());

    let checked = run(["verify", &file, "--log", "sqlite:/nowhere/at.all"]);
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""), "it needs no log");
    assert!(checked.stdout.starts_with("run-0  verified  9 records  "), "{}", checked.stdout);
    assert!(checked.stdout.contains("\nleaf 1 of 2 in the log with root "), "{}", checked.stdout);
    let piped = feed(mynah(["verify", "-"]), &fs::read(&file).unwrap());
    assert_eq!(piped, checked, "it can be piped");
    #[cfg(unix)]
    {
        let named = feed(mynah(["verify", "/dev/stdin"]), &fs::read(&file).unwrap());
        assert_eq!(named, checked, "the pipe can have a name");
    }
    let told = store.json(&["verify", &file]);
    assert_eq!(
        (&told[0]["status"], &told[0]["inclusion"]["size"]),
        (&json!("verified"), &json!(2))
    );

    let other = Store::new();
    let told = other.ok(&["import", &file]);
    assert!(told.ends_with("  9 records added\n"), "{told}");
    assert!(other.ok(&["import", &file]).ends_with("  it was there already\n"));
    let piped = ["import", "-", "--json", "--log", &other.url()];
    let piped = feed(mynah(piped), &fs::read(&file).unwrap());
    assert_eq!(lines(&piped)[0]["added"], 0);
    #[cfg(unix)]
    {
        let named = mynah(["import", "/dev/stdin", "--json", "--log", &other.url()]);
        let named = feed(named, &fs::read(&file).unwrap());
        assert_eq!(named, piped);
    }
    assert_eq!(other.ok(&["show", "run-0"]), store.ok(&["show", "run-0"]));
    assert_eq!(other.ok(&["export", "run-0"]).lines().count(), 11);
    assert!(other.ok(&["verify"]).ends_with('\n'));
}

#[test]
fn a_bad_file_is_refused_and_leaves_nothing_behind() {
    let store = Store::with(RUNS);
    let file = store.beside("run.ndjson");
    store.ok(&["export", "run-0", "-o", &file]);
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("on its way", "in its way")).unwrap();
    let found = run(["verify", &file]);
    assert_eq!((found.code, found.stdout.as_str()), (Some(1), ""));
    let place =
        format!("mynah: {file}: log error: corrupt: line 8 of the bundle: run run-0, record 7: ");
    assert!(found.stderr.starts_with(&place), "{}", found.stderr);
    let found = run(["verify", &file, "--json"]);
    assert_eq!((found.code, &lines(&found)[0]["err"]["metadata"]["seq"]), (Some(1), &json!(7)));

    let other = Store::new();
    let refused = other.run(&["import", &file]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""));
    assert!(refused.stderr.starts_with(&place), "{}", refused.stderr);
    assert!(!other.path.exists(), "a bad file makes no log");
    assert_eq!(other.run(&["import", "/nowhere/at.all"]).code, Some(4));
    assert_eq!(run(["verify", "/nowhere/at.ndjson"]).code, Some(4));
    let folder = store.path.parent().unwrap().to_str().unwrap();
    let said = format!("mynah: {folder}: it is a folder; give a file\n");
    for verb in ["verify", "import"] {
        let refused = run([verb, folder]);
        assert_eq!(refused.code, Some(4), "{verb}");
        assert_eq!(refused.stderr, said, "{verb}");
    }
    // Without a path it may be the beginning of an id.
    fs::create_dir(store.beside("ruins")).unwrap();
    let mut command = mynah(["verify", "ruins", "--log", &store.url()]);
    command.current_dir(folder);
    let refused = feed(command, b"");
    assert_eq!(refused.code, Some(2));
    let said = "`mynah runs` lists them; and \"ruins\" is a folder, not a file\n";
    assert!(refused.stderr.ends_with(said), "{}", refused.stderr);

    let said = "not a file that `mynah export` wrote";
    for bytes in [&b""[..], b"Dear diary,\n", b"\xff\x00\xfe"] {
        for verb in ["verify", "import"] {
            let refused = feed(mynah([verb, "-", "--log", &other.url()]), bytes);
            assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{verb}");
            assert_eq!(refused.stderr, format!("mynah: standard input: {said}\n"));
        }
    }
    let (url, path) = (store.url(), store.path.to_str().unwrap());
    let refused = run(["verify", path]);
    assert_eq!(refused.code, Some(2));
    let said = format!("mynah: {path}: {said}; it is a SQLite file: --log {url} names it\n");
    assert_eq!(refused.stderr, said);
    other.play(&RUNS.replace("Ann", "Bob"), true);
    store.ok(&["export", "run-0", "-o", &file, "--force"]);
    let refused = other.run(&["import", &file]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("another run of this id"), "{}", refused.stderr);
    assert_eq!(store.run(&["export", "nothing"]).code, Some(2));
    assert_eq!(store.run(&["export", "run-0", "-o", "/nowhere/at.all"]).code, Some(4));
}

#[test]
fn a_file_that_is_there_is_written_over_only_by_force() {
    let store = Store::with(RUNS);
    let file = store.beside("run.ndjson");
    fs::write(&file, "precious").unwrap();
    let refused = store.run(&["export", "run-0", "-o", &file]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""));
    let said = format!("mynah: {file}: it is there already; --force writes over it\n");
    assert_eq!(refused.stderr, said);
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    store.ok(&["export", "run-0", "-o", &file, "--force"]);
    let whole = store.ok(&["export", "run-0"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), whole);
    assert_eq!(store.ok(&["export", "run-0", "-o", "-"]), whole);

    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let cut_off = run(["verify", &file]);
    assert_eq!(cut_off.code, Some(1));
    assert!(cut_off.stderr.ends_with("it has no end: the file was cut off\n"), "{cut_off:?}");
    for force in [&[][..], &["--force"]] {
        let folder = store.run(&[&["export", "run-0", "-o", "."], force].concat());
        let said = "mynah: .: it is a folder; give the name of a file in it\n";
        assert_eq!((folder.code, &*folder.stderr), (Some(2), said));
    }
}

#[test]
fn what_is_neither_a_run_nor_a_file_is_said_to_be_neither() {
    let nowhere = Store::new();
    let refused = nowhere.run(&["verify", "typo"]);
    assert_eq!(refused.code, Some(4));
    assert!(refused.stderr.contains("there is no such log"), "{}", refused.stderr);
    assert!(refused.stderr.ends_with("; nor is there a file \"typo\"\n"), "{}", refused.stderr);
    let refused = Store::with(RUNS).run(&["verify", "typo"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("no run has an id that begins with"), "{}", refused.stderr);
    assert!(refused.stderr.ends_with("; nor is there a file \"typo\"\n"), "{}", refused.stderr);
}

#[cfg(unix)]
#[test]
fn a_link_is_written_through_and_a_device_stays_one() {
    use std::os::unix::fs::{FileTypeExt as _, symlink};
    let store = Store::with(RUNS);
    let (file, link) = (store.beside("run.ndjson"), store.beside("link.ndjson"));
    fs::write(&file, "old").unwrap();
    symlink(&file, &link).unwrap();
    store.ok(&["export", "run-0", "-o", &link, "--force"]);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(&file).unwrap(), store.ok(&["export", "run-0"]));
    store.ok(&["export", "run-0", "-o", "/dev/null", "--force"]);
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
}

#[test]
fn prune_says_what_would_go_and_then_takes_it_out() {
    let store = Store::with(RUNS);
    let before = store.ok(&["verify"]);
    let nothing = store.run(&["show", "log:maintenance"]);
    let said = "mynah: nothing was ever removed from this log\n";
    assert_eq!((nothing.code, nothing.stderr.as_str()), (Some(2), said));
    let prune = ["prune", "--older-than", "30d", "--reason", "age", "--by", "ann"];
    let told = store.ok(&prune);
    let told: Vec<&str> = told.lines().collect();
    assert!(told[0].starts_with("run-0  1970-01-01 "), "{}", told[0]);
    assert!(told[0].ends_with("  completed  9 records"), "{}", told[0]);
    assert!(told[2].starts_with("2 runs, 14 records would go; nothing was changed"), "{}", told[2]);
    assert_eq!(store.ok(&["verify"]), before, "a dry run changes nothing");

    let gone = store.json(&[&prune[..], &["--yes", "--status", "completed"]].concat());
    assert_eq!(gone[0]["run_id"], "run-0");
    assert_eq!(
        gone[1],
        json!({"dry_run": false, "runs": 1, "records": 9, "in_use": [], "damaged": []})
    );
    assert_eq!(store.ok(&[&prune[..], &["--limit", "1", "--yes"]].concat()).lines().count(), 2);
    let why = "runs that have not ended stay, runs that a remaining run continues, and sessions with more runs than --limit";
    assert_eq!(store.ok(&prune), format!("nothing to prune; {why}\n"), "the one that waits stays");
    let listed = store.json(&["runs"]);
    assert_eq!(listed.iter().map(|run| &run["run_id"]).collect::<Vec<_>>(), ["run-2"]);
    let after = store.ok(&["verify"]);
    assert!(after.contains("\n1 run, 2 seals, 2 removals, root "), "{after}");
    let told = &store.json(&["verify"])[1];
    let leaves = (&told["seals"], &told["leaves"], &told["removals"]["count"]);
    assert_eq!(leaves, (&json!(2), &json!(4), &json!(2)), "the seals stay");
    let tombstone = &store.json(&["show", "log:maintenance", "--record", "1"])[0];
    let fact = &tombstone["fact"];
    assert_eq!(
        (&fact["run_id"], &fact["by"], &fact["reason"]),
        (&json!("run-0"), &json!("ann"), &json!("age"))
    );

    for verb in ["show", "verify", "replay", "export"] {
        let gone = store.run(&[verb, "run-0"]);
        assert_eq!((gone.code, gone.stdout.as_str()), (Some(2), ""), "{verb}");
        let said = "; `mynah show log:maintenance --record 1` shows by whom and why\n";
        assert!(gone.stderr.starts_with("mynah: run run-0 was pruned on 20"), "{}", gone.stderr);
        assert!(gone.stderr.ends_with(said), "{}", gone.stderr);
    }
    let unfinished = store.run(&[&prune[..], &["--status", "suspended"]].concat());
    assert_eq!(unfinished.code, Some(2));
    let said =
        "mynah: --status suspended: those have not ended; --include-unfinished takes them too\n";
    assert_eq!(unfinished.stderr, said);
    store.ok(&[&prune[..], &["--include-unfinished", "--yes"]].concat());
    assert_eq!(store.ok(&["runs"]), "no runs\n");
    for wrong in [
        &["prune", "--older-than", "30d"][..],
        &["prune", "--reason", "x"],
        &["prune", "--older-than", "30", "--reason", "x"],
    ] {
        assert_eq!(store.run(wrong).code, Some(2), "{wrong:?}");
    }
    assert_eq!(Store::new().run(&[&prune[..], &["--yes"]].concat()).code, Some(4), "no such log");
}

#[test]
fn a_run_that_a_process_goes_on_with_is_named_and_the_others_are_pruned() {
    let store = Store::with(RUNS);
    let hold = "INSERT INTO beats VALUES ('other', 9000000000000000000); \
                UPDATE runs SET owner = 'other' WHERE id = 'run-2'";
    rusqlite::Connection::open(&store.path).unwrap().execute_batch(hold).unwrap();
    let prune = ["prune", "--older-than", "30d", "--reason", "age", "--include-unfinished"];
    let stays = "run-2  stays: it is in use, or a run in use continues it\n";
    // A branch that was not resumed has no holder.
    store.ok(&["fork", "run-0", "--at", "3"]);
    let young = ["prune", "--older-than", "0s", "--reason", "age", "--include-unfinished"];
    assert!(store.ok(&young).contains("  abandoned  3 records\n"));
    store.ok(&[&young[..], &["--status", "running", "--yes"]].concat());
    let told = store.ok(&prune);
    assert!(told.starts_with(stays) && told.contains("\n2 runs, 14 records would go"), "{told}");
    let told = store.json(&prune).pop().unwrap();
    assert_eq!(
        told,
        json!({"dry_run": true, "runs": 2, "records": 14, "in_use": ["run-2"], "damaged": []})
    );
    let told = store.ok(&[&prune[..], &["--yes"]].concat());
    assert!(told.starts_with(stays) && told.ends_with("\n2 runs, 14 records pruned\n"), "{told}");
    let told = store.json(&[&prune[..], &["--yes"]].concat());
    assert_eq!(
        told,
        [json!({"dry_run": false, "runs": 0, "records": 0, "in_use": ["run-2"], "damaged": []})]
    );
    assert_eq!(store.ok(&[&prune[..], &["--yes"]].concat()), format!("{stays}nothing pruned\n"));
    assert_eq!(store.ok(&prune), format!("{stays}nothing would go\n"));
}

#[test]
fn a_run_that_is_damaged_is_named_and_the_others_are_pruned() {
    let prune = ["prune", "--older-than", "0s", "--reason", "x", "--yes"];
    let store = Store::with(RUNS);
    store.tamper(b"It is on its way.", b"It is in its way.");
    let pruned = store.run(&prune);
    assert_eq!(pruned.code, Some(1), "{}", pruned.stderr);
    let stays = "run-0  stays: it is damaged: record 7: it is not the record that was written\n";
    assert!(pruned.stdout.starts_with(stays), "{}", pruned.stdout);
    assert!(pruned.stdout.ends_with("\n1 run, 5 records pruned\n"), "{}", pruned.stdout);
    let said = "mynah: 1 run left as evidence of damage: restore the log from a copy to prune what is damaged, or leave it there\n";
    assert_eq!(pruned.stderr, said);
    let left: Vec<String> = store.json(&["runs"]).iter().map(|run| text(run, "run_id")).collect();
    assert_eq!(left, ["run-2", "run-0"]);
    let again = store.run(&prune);
    assert_eq!((again.code, again.stdout), (Some(1), format!("{stays}nothing pruned\n")));
    let told = lines(&store.run(&[&prune[..], &["--json"]].concat()));
    assert_eq!((told.len(), &told[0]["runs"], &told[0]["in_use"]), (1, &json!(0), &json!([])));
    let damaged = &told[0]["damaged"][0];
    assert_eq!(
        (&damaged["run_id"], &damaged["err"]["metadata"]["seq"]),
        (&json!("run-0"), &json!(7))
    );
}

#[test]
fn what_a_damaged_run_goes_on_from_stays_with_it() {
    let store = Store::with(SESSION);
    store.tamper(b"Yes.", b"Yea.");
    let pruned = store.run(&["prune", "--older-than", "0s", "--reason", "x", "--yes"]);
    assert_eq!(pruned.code, Some(1), "{}", pruned.stderr);
    let told: Vec<&str> = pruned.stdout.lines().collect();
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].starts_with("run-1  stays: it is damaged: record "), "{}", told[0]);
    assert_eq!(told[1], "run-0  stays: run run-1, which is damaged, continues it");
    assert_eq!(told[2], "nothing pruned");
}

#[test]
fn redacted_runs_are_not_told_to_be_the_same() {
    let store = Store::with(SESSION);
    for redacted in ["run-0", "run-1"] {
        store.run(&["redact", redacted, "--all", "--reason", "asked to", "--yes"]);
        let told = store.run(&["diff", "run-0", "run-1"]);
        assert_eq!(told.code, Some(1));
        assert_eq!(
            told.stderr,
            "mynah: the runs cannot be compared from record 1 on: it was redacted\n"
        );
        assert!(told.stdout.contains("\nnothing is known to be the same\n"), "{}", told.stdout);
        assert_eq!(told.stdout.matches(" ? ").count(), 4, "{}", told.stdout);
    }
    let told = lines(&store.run(&["diff", "run-0", "run-1", "--json"]));
    let counts = ["status", "shared", "differences", "redacted"].map(|name| &told[0][name]);
    assert_eq!(counts, [&json!("incomparable"), &json!(0), &json!(0), &json!(4)]);
    assert_eq!((&told[1]["left"]["fact"], &told[1]["diff"]), (&Value::Null, &Value::Null));
    assert!(store.ok(&["diff", "run-0", "run-0"]).ends_with("the same\n"));
}

#[test]
fn redact_takes_away_what_records_hold() {
    let store = Store::with(RUNS);
    let redact = ["redact", "run-0", "--record", "1", "4", "--reason", "card number"];
    let told = store.ok(&redact);
    assert!(told.contains("2 records of run run-0 would be redacted"), "{told}");
    assert!(store.ok(&["show", "run-0"]).contains("card 4111"), "a dry run changes nothing");
    let gone = store.json(&[&redact[..], &["--yes"]].concat());
    assert_eq!((&gone[0]["seq"], &gone[0]["kind"]), (&json!(1), &json!("run_started")));
    assert_eq!((&gone[2]["dry_run"], &gone[2]["records"]), (&json!(false), &json!(2)));
    assert!(!store.ok(&["show", "run-0"]).contains("card 4111"));
    let bytes = fs::read(&store.path).unwrap();
    assert!(!bytes.windows(9).any(|window| window == b"card 4111"), "it is gone from the file");
    assert!(store.ok(&["verify", "run-0"]).starts_with("run-0  verified  9 records, 2 redacted"));

    let file = store.beside("redacted.ndjson");
    store.ok(&["export", "run-0", "-o", &file]);
    let other = Store::new();
    other.ok(&["import", &file]);
    assert!(other.ok(&["verify"]).starts_with("run-0  verified  9 records, 2 redacted"));
    let kind = |kind| store.run(&["redact", "run-0", "--kind", kind, "--reason", "x"]);
    let unknown = kind("tool");
    assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(2), ""));
    let said = "mynah: no record is of kind \"tool\"; the kinds are run_started, resumed, ";
    assert!(unknown.stderr.starts_with(said), "{}", unknown.stderr);
    assert!(!unknown.stderr.contains("sealed"), "{}", unknown.stderr);
    let none = kind("tool_failed");
    assert_eq!((none.code, none.stderr.as_str()), (Some(0), ""));
    assert_eq!(none.stdout, "nothing to redact in run run-0: it has no body of kind tool_failed\n");
    store.ok(&["redact", "run-0", "--kind", "tool_completed", "--reason", "x", "--yes"]);
    store.ok(&["redact", "run-0", "--all", "--reason", "x", "--yes"]);
    assert!(store.ok(&["verify", "run-0"]).starts_with("run-0  verified  9 records, 8 redacted"));
    let nothing = store.ok(&["redact", "run-0", "--all", "--reason", "x"]);
    assert_eq!(nothing, "nothing to redact in run run-0\n");
    for wrong in [
        &["redact", "run-0", "--reason", "x"][..],
        &["redact", "run-0", "--all"],
        &["redact", "run-0", "--all", "--reason", ""],
        &["redact", "run-0", "--all", "--kind", "x", "--reason", "x"],
        &["redact", "run-0", "--record", "9", "--reason", "x"],
        &["redact", "run-0", "--record", "99", "--reason", "x"],
        &["redact", "nothing", "--all", "--reason", "x"],
    ] {
        let refused = store.run(wrong);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{wrong:?}");
    }
}

#[test]
fn redact_says_of_a_run_that_has_not_ended_that_it_cannot_go_on() {
    let store = Store::with(RUNS);
    let redact = ["redact", "run-2", "--record", "1", "--reason", "x"];
    for (flags, then) in [(&[] as &[&str], "could"), (&["--yes"], "can")] {
        let told = store.run(&[&redact[..], flags].concat());
        assert_eq!(told.code, Some(0));
        let said = format!(
            "run run-2 has not ended, and it {then} no longer be resumed: `mynah cancel` ends it\n"
        );
        assert_eq!(told.stderr, said);
    }
}

#[test]
fn a_run_without_an_end_is_imported_with_a_word_of_caution() {
    let store = Store::with(RUNS);
    let file = store.beside("waits.ndjson");
    store.ok(&["export", "run-2", "-o", &file]);
    let other = Store::new();
    let told = other.ok(&["import", &file]);
    let said = "it has not ended: resume it in one log only, or its tools run in both\n";
    assert!(told.ends_with(&format!(" added\n{said}")), "{told}");
    assert!(!other.ok(&["import", &file]).contains(said), "that was said");
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_cannot_be_written_is_named() {
    let store = Store::with(RUNS);
    let full = store.run(&["export", "run-0", "-o", "/dev/full", "--force"]);
    assert_eq!((full.code, full.stdout.as_str()), (Some(4), ""));
    let said = "mynah: /dev/full: No space left on device (os error 28)\n";
    assert_eq!(full.stderr, said);
}

#[test]
fn redact_names_the_runs_that_hold_copies_and_takes_those_away_too() {
    let store = Store::with(RUNS);
    let fork = |run: &str, at| {
        let forked = store.json(&["fork", run, "--at", at]);
        forked[0]["run_id"].as_str().unwrap().to_owned()
    };
    let (child, sibling) = (fork("run-0", "4"), fork("run-0", "1"));
    let grandchild = fork(&child, "2");
    let redact = ["redact", "run-0", "--record", "1", "2", "--reason", "a card"];
    let told = store.run(&redact);
    assert_eq!(told.code, Some(0));
    let command = |run: &str, seqs| {
        format!("mynah redact {run} --record {seqs} --reason 'a card' --log {}\n", store.url())
    };
    let said = [
        format!("run {grandchild} holds copies of 2 records: {}", command(&grandchild, "1 2")),
        format!("run {sibling} holds a copy of 1 record: {}", command(&sibling, "1")),
        format!("run {child} holds copies of 2 records: {}", command(&child, "1 2")),
        "--forks redacts them too\n".to_owned(),
    ];
    assert_eq!(told.stderr, said.concat());
    let copies = |run: &str| {
        let redact = ["redact", run, "--kind", "run_started", "--reason", "x"];
        store.json(&redact).last().unwrap()["copies"].clone()
    };
    let holds = |run: &str| json!({"run_id": run, "records": [1]});
    assert_eq!(copies(&sibling), json!([holds(&grandchild), holds(&child), holds("run-0")]));
    assert_eq!(copies("run-1"), json!([]));

    let gone = store.json(&["redact", &child, "--all", "--reason", "x", "--forks", "--yes"]);
    let sums = gone.iter().filter(|told| told["dry_run"].is_boolean());
    let sums: Vec<_> = sums.map(|told| (told["run_id"].as_str(), &told["records"])).collect();
    let expected = [(&*grandchild, 2), (&sibling, 1), (&child, 4), ("run-0", 4)];
    let expected = expected.map(|(run, records)| (Some(run), json!(records)));
    assert_eq!(sums, expected.each_ref().map(|(run, records)| (*run, records)));
    let bytes = fs::read(&store.path).unwrap();
    assert!(!bytes.windows(9).any(|window| window == b"card 4111"), "it is gone from the file");
    assert!(store.ok(&["show", "run-0"]).contains("It is on its way."), "that was not shared");
}

#[test]
fn what_was_redacted_here_is_not_brought_back_by_an_import() {
    let store = Store::with(RUNS);
    let file = store.beside("whole.ndjson");
    store.ok(&["export", "run-0", "-o", &file]);
    store.ok(&["redact", "run-0", "--record", "1", "--reason", "x", "--yes"]);
    let told = store.ok(&["import", &file]);
    let said =
        "  it was there already; of 1 record this log keeps no body, as it was redacted here\n";
    assert!(told.ends_with(said), "{told}");
    assert_eq!(store.json(&["import", &file])[0]["withheld"], 1);
    assert!(!store.ok(&["show", "run-0"]).contains("card 4111"));
}

#[test]
fn a_later_turn_of_a_session_names_the_runs_that_it_needs() {
    let store = Store::with(
        r#"{
          "scripts": [ [{"text": "one"}, {"finish": "stop"}], [{"text": "two"}, {"finish": "stop"}], [{"text": "three"}, {"finish": "stop"}] ],
          "ops": [
            {"op": "session.start", "id": "s", "messages": [{"role": "user", "content": "a"}]},
            {"op": "session.reply", "text": "b"},
            {"op": "session.reply", "text": "c"}
          ]
        }"#,
    );
    store.ok(&["export", "run-0"]);
    let file = store.beside("turn.ndjson");
    for flags in [&[] as &[&str], &["-o", &file, "--json"]] {
        let exported = store.run(&[&["export", "run-2"], flags].concat());
        let said = "run run-2 continues earlier runs of its session; \
                    to restore its conversation, export them too: run-1, run-0\n";
        assert_eq!((exported.code, exported.stderr.as_str()), (Some(0), said));
        if !flags.is_empty() {
            assert_eq!(lines(&exported)[0]["needs"], json!(["run-1", "run-0"]));
        }
    }
    let shown = store.ok(&["show", "run-2"]);
    assert!(shown.contains("\n-- 4 messages before, up to run run-1\n\nuser: c\n"), "{shown}");
    let told = &store.json(&["show", "run-2"])[1];
    assert_eq!(told, &json!({"type": "before", "seq": 1, "run_id": "run-1", "messages": 4}));
}

#[test]
fn every_verb_of_these_has_help_with_examples() {
    for verb in ["export", "import", "prune", "redact"] {
        let help = run([verb, "-h"]);
        assert_eq!((help.code, help.stderr.as_str()), (Some(0), ""));
        for part in ["Usage: mynah ", "--log <URL>", "--json", "Examples:"] {
            assert!(help.stdout.contains(part), "{part:?} is missing in\n{}", help.stdout);
        }
    }
}

#[test]
fn what_cannot_be_wiped_yet_is_told_and_wiped_the_next_time() {
    let store = Store::with(RUNS);
    let reader = rusqlite::Connection::open(&store.path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM records;").unwrap();
    let redact = ["redact", "last", "--kind", "run_started", "--reason", "asked to", "--yes"];
    let left = store.run(&redact);
    assert_eq!(left.code, Some(4), "{}", left.stdout);
    assert!(left.stdout.ends_with("1 record of run run-2 redacted\n"), "{}", left.stdout);
    assert!(left.stderr.contains("runs.db-wal: another process reads"), "{}", left.stderr);
    reader.execute_batch("COMMIT").unwrap();
    let again = store.run(&redact);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
}
