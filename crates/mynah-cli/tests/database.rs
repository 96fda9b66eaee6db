//! Logs in PostgreSQL.

use crate::{
    common::{feed, file, mynah, run},
    postgres,
};

const AGENT: &str = r#"{"scripts": [[{"text": "hi"}, {"finish": "stop"}]], "tools": []}"#;

#[test]
fn verbs_that_need_a_log_create_no_tables() {
    let Some(server) = postgres::start() else { return };
    let url = server.fresh();
    let tables = || server.sql("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'mynah%'");
    for verb in [
        &["runs"] as &[_],
        &["show", "last"],
        &["verify"],
        &["verify", "run-1"],
        &["doctor"],
        &["cancel", "run-1"],
        &["prune", "--older-than", "1d", "--reason", "age", "--yes"],
    ] {
        let told = run(verb.iter().copied().chain(["--log", &url]));
        assert_eq!(told.code, Some(4), "{verb:?}: {told:?}");
        let why = told.stdout + &told.stderr;
        assert!(why.contains("there is no log in this database"), "{why}");
        assert!(!why.contains("reachable"), "{why}");
        assert!(!why.contains("nor is there a file"), "{why}");
        assert_eq!(tables(), "0", "{verb:?}");
    }
    let absent = run(["runs", "--log", &url.replace("/postgres?", "/tyop?")]);
    assert_eq!(absent.code, Some(4));
    assert!(absent.stderr.contains("create the database, or give another name"), "{absent:?}");
    assert_eq!(run(["log", "init", "--log", &url]).code, Some(0));
    let told = run(["runs", "--log", &url]);
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_log_that_failed_says_nothing_of_files() {
    // Nothing listens there.
    let told = run(["verify", "fail-1", "--log", "postgres://ann@127.0.0.1:1/d?connect_timeout=1"]);
    assert_eq!(told.code, Some(4));
    assert!(told.stderr.contains("unavailable") && !told.stderr.contains("fail-1"), "{told:?}");
    let told = run(["verify", "fail-1", "--log", "sqlite:no-such-log.db"]);
    assert!(told.stderr.ends_with("nor is there a file \"fail-1\"\n"), "{told:?}");
}

#[cfg(feature = "serve")]
#[test]
fn a_server_whose_role_may_only_read_does_not_start() {
    let Some(server) = postgres::start() else { return };
    let url = server.fresh();
    assert_eq!(run(["log", "init", "--log", &url]).code, Some(0));
    server.sql("CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA s0 TO reader");
    server.sql("GRANT SELECT ON ALL TABLES IN SCHEMA s0 TO reader");
    let url = url.replace("test@", "reader@");
    let agent = file("reader.json", AGENT);
    let told = feed(mynah(["serve", &agent, "--listen", "127.0.0.1:0", "--log", &url]), b"");
    assert_eq!((told.code, told.stdout.as_str()), (Some(4), ""), "{}", told.stderr);
    assert!(told.stderr.contains("no right to DELETE on mynah_beats"), "{}", told.stderr);
    assert_eq!(run(["runs", "--log", &url]).code, Some(0));
}
