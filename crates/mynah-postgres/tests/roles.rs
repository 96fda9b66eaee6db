//! Who makes the tables, and who may use them.

use std::time::Duration;

use mynah_log::{Log as _, RunFilter, conformance::Sample};
use mynah_postgres::PostgresLog;
use tokio_postgres::NoTls;

use crate::server;

#[tokio::test]
async fn a_role_without_the_right_to_create_tables_works_once_they_are_there() {
    let Some(server) = server::start() else { return };
    server.sql("CREATE SCHEMA app; CREATE ROLE worker LOGIN; GRANT USAGE ON SCHEMA app TO worker");
    let worker = server.url("app", server.port).replace("test@", "worker@");
    let early = PostgresLog::open(&worker).expect("a URL").init().await.expect_err("no tables");
    assert_eq!(early.reason(), "unusable");
    assert!(early.to_string().contains("mynah log init"), "{early}");
    let owner = PostgresLog::open(&server.url("app", server.port)).expect("a URL");
    owner.init().await.expect("tables");
    server.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA app TO worker");
    let log = PostgresLog::open(&worker).expect("a URL");
    let mut run = Sample::new("run", 0).tool_turn().sealed();
    log.append(run.batch()).await.expect("a new run");
    assert_eq!(log.run("run").await.expect("an index").expect("the run").seal, Some(0));
    let kept = log.wipe().await.expect_err("tables of another role");
    assert!(kept.to_string().contains("the role that owns the tables"), "{kept}");
    owner.wipe().await.expect("its own tables");
    server.sql("UPDATE app.mynah_schema SET version = 2");
    let newer =
        PostgresLog::open(&worker).expect("a URL").init().await.expect_err("another version");
    assert_eq!(newer.reason(), "schema_too_new");
}

#[tokio::test]
async fn an_existing_log_is_opened_and_none_is_made() {
    let Some(server) = server::start() else { return };
    let url = server.fresh();
    let log = PostgresLog::open_existing(&url).expect("a URL");
    let absent = log.append(Sample::new("run", 0).batch()).await.expect_err("no tables");
    assert_eq!(absent.reason(), "unusable");
    assert!(absent.to_string().contains("there is no log in this database"), "{absent}");
    assert_eq!(server.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 's0'"), "0");
    PostgresLog::open(&url).expect("a URL").init().await.expect("tables");
    let log = PostgresLog::open_existing(&url).expect("a URL");
    log.append(Sample::new("run", 0).batch()).await.expect("a new run");
}

#[tokio::test]
async fn a_schema_that_is_missing_is_to_be_created_first() {
    let Some(server) = server::start() else { return };
    let log = PostgresLog::open(&server.url("absent", server.port)).expect("a URL");
    let absent = log.init().await.expect_err("no schema");
    assert_eq!(absent.reason(), "unusable");
    assert!(absent.to_string().contains("create the schema"), "{absent}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_that_takes_long_holds_up_no_reads() {
    let Some(server) = server::start() else { return };
    let url = server.fresh();
    let log = PostgresLog::open(&url).expect("a URL");
    log.append(Sample::new("run", 0).batch()).await.expect("a new run");
    let (raw, connection) = tokio_postgres::connect(&url, NoTls).await.expect("a server");
    tokio::spawn(connection);
    raw.batch_execute("BEGIN; LOCK mynah_records").await.expect("a lock");
    let checking = log.clone();
    let check = tokio::spawn(async move { checking.check().await });
    let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    while server.sql(waits) == "0" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(log.runs(RunFilter::new()).await.map(|page| page.runs.len()), Ok(1));
    raw.batch_execute("COMMIT").await.expect("its end");
    check.await.expect("a task").expect("a sound log");
}

#[tokio::test]
async fn many_that_connect_at_once_make_the_tables_once() {
    let Some(server) = server::start() else { return };
    let url = server.fresh();
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let log = PostgresLog::open(&url).expect("a URL");
            tokio::spawn(async move { log.init().await })
        })
        .collect();
    for task in tasks {
        task.await.expect("a task").expect("tables");
    }
}

#[tokio::test]
async fn relaxed_appends_do_not_wait_for_the_disk_and_others_do() {
    let Some(server) = server::start() else { return };
    // By default, the server would not wait for any.
    server.sql("ALTER ROLE test SET synchronous_commit = 'off'");
    // By default, the server writes relaxed commits to the disk five times a second, perhaps before the test looks.
    server.sql("ALTER SYSTEM SET wal_writer_delay = '10s'");
    server.sql("SELECT pg_reload_conf()");
    let schema = server.fresh();
    let log = PostgresLog::open(&schema).expect("a URL");
    let mut run = Sample::new("run", 0);
    log.append(run.batch()).await.expect("a new run");
    let flushed = || server.sql("SELECT pg_current_wal_flush_lsn() = pg_current_wal_insert_lsn()");
    assert_eq!(flushed(), "t", "it is on the disk");
    let relaxed = mynah_log::Durability::Relaxed;
    // Still, the server may write them between an append and the look.
    let mut seen = false;
    for _ in 0..20 {
        run = run.user("more");
        log.append(run.batch().durability(relaxed)).await.expect("what follows");
        seen |= flushed() == "f";
    }
    assert!(seen, "some were not on the disk");
}

#[tokio::test]
async fn a_value_that_was_changed_in_the_tables_is_found() {
    let Some(server) = server::start() else { return };
    for (change, is_found_by_check) in [
        ("UPDATE mynah_records SET payload = '\\x00' WHERE seq = 2", false),
        ("UPDATE mynah_records SET salt = '\\x00' WHERE seq = 2", false),
        ("UPDATE mynah_records SET envelope = '\\xa0' WHERE seq = 2", false),
        ("DELETE FROM mynah_records WHERE seq = 2", true),
        ("UPDATE mynah_records SET seq = 9 WHERE seq = 3", true),
        ("UPDATE mynah_heads SET hash = '\\x00'", false),
        ("UPDATE mynah_heads SET records = 1", true),
        ("UPDATE mynah_runs SET token = -1", false),
        ("UPDATE mynah_runs SET status = 77", false),
        ("UPDATE mynah_seals SET place = 7", false),
        ("UPDATE mynah_seals SET hash = '\\x00'", false),
        ("DELETE FROM mynah_runs", true),
        ("DELETE FROM mynah_heads", true),
        ("INSERT INTO mynah_pruned VALUES ('x')", true),
    ] {
        let url = server.fresh();
        let log = PostgresLog::open(&url).expect("a URL");
        let mut run = Sample::new("run", 0).tool_turn().sealed();
        log.append(run.batch()).await.expect("a new run");
        log.seals(0, 9).await.expect("a leaf");
        let schema = url.rsplit_once("%3D").expect("a schema").1;
        server.sql(&format!("SET search_path = {schema}; {change}"));
        let told = [
            log.check().await.err(),
            mynah_log::verify_run(&log, "run").await.err(),
            mynah_log::verify_seals(&log).await.err(),
        ];
        assert!(
            told.iter()
                .flatten()
                .any(|error| error.reason() == "corrupt" || error.reason() == "run_not_found"),
            "{change}: {told:?}"
        );
        assert!(!is_found_by_check || told[0].is_some(), "{change}: {told:?}");
    }
}
