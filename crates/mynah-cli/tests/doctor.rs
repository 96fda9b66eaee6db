//! `mynah doctor`: what is in order, and what is not.

use std::fs;

use serde_json::json;

use crate::common::{RUNS, Ran, Store, feed, lines, mynah, run};

#[test]
fn everything_that_was_looked_at_is_told() {
    let store = Store::with(RUNS);
    let told = examine(&store, &[]);
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""));
    let url = store.url();
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!(
        "version   mynah {version}
format    version 1
keys      OPENAI_API_KEY, TOGETHER_API_KEY
log       {url}: reachable, tables of version 1
storage   sound
runs      5
sample    5 runs verified
"
    );
    assert_eq!(told.stdout, expected);

    let told = examine(&store, &["--json"]);
    let expected = [
        json!({"check": "version", "version": version}),
        json!({"check": "format", "format": 1}),
        json!({"check": "keys", "keys": ["OPENAI_API_KEY", "TOGETHER_API_KEY"]}),
        json!({"check": "log", "log": url, "schema": 1, "read_only": false}),
        json!({"check": "storage", "err": null}),
        json!({"check": "runs", "runs": 5}),
        json!({"check": "sample", "verified": 5, "corrupt": []}),
    ];
    assert_eq!(lines(&told), expected);
    assert!(!told.stdout.contains("k-secret"), "a key is never told");
}

#[test]
fn a_run_that_is_not_what_it_was_is_a_finding() {
    let store = Store::with(RUNS);
    store.tamper(b"It is on its way.", b"It is in its way.");
    let told = examine(&store, &[]);
    assert_eq!(told.code, Some(1));
    assert!(told.stdout.ends_with("sample    4 verified, 1 corrupt\n"), "{}", told.stdout);
    assert!(told.stderr.contains("run run-1, record 7"), "{}", told.stderr);
    let told = lines(&examine(&store, &["--json"]));
    assert_eq!(told[6]["corrupt"][0]["metadata"]["seq"], 7);
}

#[cfg(feature = "postgres")]
#[test]
fn the_password_of_a_database_is_never_shown() {
    // Nothing listens there.
    let url = "postgres://ann:pass-word@127.0.0.1:1/d?connect_timeout=1&password=other-word";
    let script = r#"{"scripts": [[{"text": "hi"}, {"finish": "stop"}]], "tools": [],
        "ops": [{"op": "chat", "messages": [{"role": "user", "content": "hi"}]}]}"#;
    let scenario = crate::common::file("password.json", script);
    for arguments in [
        vec!["doctor"],
        vec!["doctor", "--json"],
        vec!["runs"],
        vec!["runs", "--json"],
        vec!["show", "run-1"],
        vec!["verify"],
        vec!["resume", "run-1", "--agent", &scenario],
        vec!["log", "init"],
    ] {
        for (variable, flags) in [(None, vec!["--log", url]), (Some(url), vec![])] {
            let mut command = mynah(arguments.iter().copied().chain(flags));
            command.env_remove("MYNAH_LOG").envs(variable.map(|url| ("MYNAH_LOG", url)));
            let told = feed(command, b"");
            assert_ne!(told.code, Some(0), "{arguments:?}");
            let all = told.stdout + &told.stderr;
            assert!(!all.contains("pass-word") && !all.contains("other-word"), "{all}");
        }
    }
    // A URL that cannot be read is shown without it as well.
    let told = run(["runs", "--log", "mysql://ann:pass-word@h/d"]);
    assert!(told.stderr.contains("mysql://ann@h/d"), "{}", told.stderr);
}

#[test]
fn a_sample_is_told_from_the_whole() {
    let chat = json!({"op": "chat", "messages": [{"role": "user", "content": "hi"}]});
    let script = json!([{"text": "hello"}, {"finish": "stop"}]);
    let store =
        Store::with(&json!({"scripts": vec![script; 12], "ops": vec![chat; 12]}).to_string());
    let told = examine(&store, &[]);
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""));
    let said = "runs      12\nsample    10 of 12 runs verified; `mynah verify` checks all\n";
    assert!(told.stdout.ends_with(said), "{}", told.stdout);
}

#[test]
fn one_damaged_row_of_the_index_is_named_and_the_other_runs_are_told() {
    let store = Store::with(RUNS);
    let damage = "UPDATE runs SET status = 99 WHERE id = 'run-1'";
    rusqlite::Connection::open(&store.path).unwrap().execute_batch(damage).unwrap();

    let listed = store.run(&["runs"]);
    assert_eq!((listed.code, listed.stdout.lines().count()), (Some(1), 5), "{}", listed.stdout);
    let said = "mynah: not listed, as the log's index is damaged: run run-1: its row is not";
    assert!(listed.stderr.starts_with(said), "{}", listed.stderr);
    let listed = lines(&store.run(&["runs", "--json"]));
    let told: Vec<_> = listed.iter().map(|run| (&run["run_id"], &run["status"])).collect();
    assert_eq!(told.last(), Some(&(&json!("run-1"), &json!("corrupt"))));
    assert_eq!((told.len(), &listed[4]["err"]["reason"]), (5, &json!("corrupt")));

    let found = store.run(&["verify"]);
    assert_eq!((found.code, found.stdout.lines().count()), (Some(1), 6), "{}", found.stdout);
    assert!(found.stdout.contains("\nrun-1  corrupt: its row is not as"), "{}", found.stdout);
    assert_eq!(found.stdout.matches("  verified  ").count(), 2, "{}", found.stdout);
    assert!(found.stdout.contains("\n5 runs, 3 seals, root "), "{}", found.stdout);

    let alone = store.run(&["verify", "run-1", "--json"]);
    assert_eq!((alone.code, &lines(&alone)[0]["status"]), (Some(1), &json!("corrupt")));

    let told = examine(&store, &[]);
    assert_eq!(told.code, Some(1));
    assert!(
        told.stdout.ends_with("runs      5\nsample    4 verified, 1 corrupt\n"),
        "{}",
        told.stdout
    );
}

#[test]
fn a_folder_without_a_log_is_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = mynah(["doctor"]);
    command.env_remove("MYNAH_LOG").current_dir(folder.path());
    let told = feed(command, b"");
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""));
    assert!(told.stdout.contains("\nlog       sqlite:mynah.db: none yet; "), "{}", told.stdout);
    assert_eq!(folder.path().read_dir().unwrap().count(), 0, "looking makes no file");
}

#[test]
#[cfg(target_os = "linux")]
fn a_folder_that_cannot_be_written_is_not_usable() {
    let mut command = mynah(["doctor"]);
    // No file can be created there.
    command.env_remove("MYNAH_LOG").current_dir("/proc");
    let told = feed(command, b"");
    assert_eq!(told.code, Some(4), "{}", told.stdout);
    assert!(told.stderr.contains("its folder cannot be written: "), "{}", told.stderr);
}

#[test]
fn a_damaged_file_is_found_though_every_run_can_be_read() {
    let store = Store::with(RUNS);
    store.damage("runs_by_session", |page| page[5..9].fill(0x3f));
    assert_eq!(store.run(&["show", "run-1"]).code, Some(0), "nobody looks there");
    let told = examine(&store, &[]);
    assert_eq!(told.code, Some(1), "{}", told.stderr);
    assert!(told.stdout.ends_with("storage   not sound\n"), "{}", told.stdout);
    let said = "the file is damaged; restore it from a copy: ";
    assert!(told.stderr.contains(said), "{}", told.stderr);
    let told = lines(&examine(&store, &["--json"]));
    assert_eq!(told[4]["err"]["reason"], "corrupt");

    let verified = store.run(&["verify"]);
    assert_eq!(verified.code, Some(1));
    assert!(verified.stdout.contains("\nthe log's file  corrupt: "), "{}", verified.stdout);
    assert!(verified.stdout.contains(said), "{}", verified.stdout);
}

#[test]
fn a_run_whose_id_is_damaged_is_a_finding() {
    let store = Store::with(RUNS);
    // In its row, and not in the index by which it is found.
    store.damage("runs", |page| {
        let place = page.windows(5).position(|bytes| bytes == b"run-1").unwrap();
        page[place + 1] = b'v';
    });
    let found = store.run(&["verify"]);
    assert_eq!(found.code, Some(1));
    let said =
        "the log lists run rvn-1, and finds no run of that id: its index is damaged, or the id is";
    assert!(found.stdout.contains(&format!("rvn-1  corrupt: {said}\n")), "{}", found.stdout);
    for verb in ["show", "verify", "replay", "export"] {
        let found = store.run(&[verb, "rvn-1"]);
        assert_eq!((found.code, found.stdout.as_str()), (Some(1), ""), "{verb}");
        assert!(found.stderr.contains(said), "{}", found.stderr);
    }
    assert_eq!(examine(&store, &[]).code, Some(1));
}

#[test]
fn a_log_that_cannot_be_used_is_told_with_the_rest() {
    let store = Store::new();
    let told = examine(&store, &[]);
    assert_eq!(told.code, Some(4));
    let url = store.url();
    assert!(told.stdout.ends_with(&format!("log       {url}: not usable\n")), "{}", told.stdout);
    assert!(told.stderr.contains("there is no such log"), "{}", told.stderr);
    fs::write(&store.path, "this is no database, however long one looks at it".repeat(40)).unwrap();
    let told = examine(&store, &["--json"]);
    assert_eq!(told.code, Some(4));
    let last = lines(&told).pop().unwrap();
    assert!(last["err"]["message"].as_str().unwrap().contains("not a SQLite file"), "{last}");
    assert_eq!(run(["doctor", "--log", "memory:"]).code, Some(0));
    assert_eq!(run(["doctor", "--log", "paper:"]).code, Some(2));
}

fn examine(store: &Store, flags: &[&str]) -> Ran {
    let url = store.url();
    let mut command = mynah(["doctor", "--log", &url].into_iter().chain(flags.iter().copied()));
    command
        .env_clear()
        .env("TOGETHER_API_KEY", "tk-secret")
        .env("OPENAI_API_KEY", "sk-secret")
        .env("GROQ_API_KEY", "");
    feed(command, b"")
}

#[test]
fn models_that_their_provider_ends_are_named_with_the_date() {
    let store = Store::with(
        r#"{
          "engine": {"model": "openai:gpt-4o-mini"},
          "scripts": [[{"text": "hi"}, {"finish": "stop"}]],
          "ops": [{"op": "chat", "messages": [{"role": "user", "content": "hi"}]}]
        }"#,
    );
    let told = examine(&store, &[]);
    assert!(told.stdout.contains("models    gpt-4o-mini ends on 2027-01-14"), "{}", told.stdout);
    let told = lines(&examine(&store, &["--json"]));
    assert_eq!(told[6]["shutdown_dates"], json!({"gpt-4o-mini": "2027-01-14"}));
}
