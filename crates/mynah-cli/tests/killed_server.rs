//! Clients of servers that are killed at random, over connections that break at random, see what an undisturbed reader of the log sees.

#![cfg(all(feature = "serve", unix))]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::SocketAddr,
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use mynah::{
    EventId, FollowedEvent, RunEvent,
    client::{Client, ClientError},
    follow,
    log::{Kind, Log, SqliteLog},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::{sleep, timeout},
};

use crate::common::{file, mynah};
#[cfg(feature = "postgres")]
use crate::postgres;

/// Numbers that are the same in each run of the test.
#[derive(Clone)]
struct Numbers(Arc<Mutex<u64>>);

impl Numbers {
    fn below(&self, limit: u64) -> u64 {
        let mut state = self.0.lock().unwrap();
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (*state >> 33) % limit
    }
}

/// A server process that is killed and started again.
struct Process {
    child: Child,
    arguments: Vec<String>,
}

impl Process {
    fn start(arguments: &[String]) -> (Self, SocketAddr) {
        let mut command = mynah(["serve", "--listen", "127.0.0.1:0", "--json"]);
        let command = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        let url = said["listening"].as_str().unwrap();
        let address = url.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
        (Self { child, arguments: arguments.to_vec() }, address)
    }

    fn kill_and_restart(&mut self) -> SocketAddr {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let (next, address) = Self::start(&self.arguments.clone());
        *self = next;
        address
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A proxy to one of the servers that cuts each connection after some bytes of the answer.
async fn proxy(servers: Arc<Mutex<Vec<SocketAddr>>>, numbers: Numbers) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let target = {
                let servers = servers.lock().unwrap();
                servers[numbers.below(servers.len() as u64) as usize]
            };
            let mut left = 300 + numbers.below(4_000) as usize;
            tokio::spawn(async move {
                let Ok(mut server) = TcpStream::connect(target).await else { return };
                let (mut from_server, mut to_server) = server.split();
                let (mut from_client, mut to_client) = client.split();
                let answer = async {
                    let mut buffer = [0; 256];
                    while left > 0 {
                        let Ok(read @ 1..) = from_server.read(&mut buffer).await else { break };
                        let part = read.min(left);
                        if to_client.write_all(&buffer[..part]).await.is_err() {
                            break;
                        }
                        left -= part;
                    }
                };
                let request = async {
                    let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
                    // A client that has sent its request still reads.
                    std::future::pending::<()>().await;
                };
                tokio::select! { () = answer => {}, () = request => {} }
            });
        }
    });
    address
}

/// What a client has of a run after it discarded the answers that were lost: checks that no event is missing and none comes twice.
fn kept(events: &[FollowedEvent]) -> Vec<RunEvent> {
    let mut kept: Vec<RunEvent> = Vec::new();
    // The answer in flight: its place among those kept, and how many of its events there are.
    let mut answer: Option<(usize, u64)> = None;
    let mut last: Option<EventId> = None;
    for FollowedEvent { id, event, .. } in events {
        match (id.attempt, last) {
            // The first event of an answer in flight, and each that follows it.
            (Some(_), Some(EventId { seq, attempt, index, .. })) => {
                let next = if attempt.is_some() && seq == id.seq { index + 1 } else { 0 };
                assert_eq!(id.index, next, "{id} after {last:?}");
                answer.get_or_insert((kept.len(), 0)).1 = id.index + 1;
            }
            (None, Some(before)) if before.attempt.is_some() => {
                let had = answer.map_or(0, |(_, had)| had);
                let is_rest = id.seq == before.seq + 1 && id.index == had;
                let is_other = id.index == 0;
                assert!(is_rest || is_other, "{id} after {before}");
            }
            (None, Some(before)) if id.seq == before.seq => assert_eq!(id.index, before.index + 1),
            (None, Some(before)) => {
                assert!(id.index == 0 && id.seq == before.seq + 1, "{id} after {before}")
            }
            (_, None) => assert_eq!(id.to_string(), "1.0"),
        }
        if id.attempt.is_none() && matches!(event, RunEvent::TurnRestarted { .. }) {
            if let Some((place, _)) = answer.take() {
                // What other records came since stays.
                let later = kept.split_off(place);
                kept.extend(later.into_iter().filter(|event| !matches!(event, RunEvent::Event(_))));
            }
        } else if id.attempt.is_none() && !matches!(event, RunEvent::Resumed { .. }) {
            answer = None;
        }
        kept.push(event.clone());
        last = Some(*id);
    }
    kept
}

/// An agent whose answers take their time, with a tool between them.
fn agent() -> String {
    let slowly = |words: usize| {
        (0..words).flat_map(|n| [json!({"text": format!("word {n} ")}), json!({"delay_ms": 15})])
    };
    let call = json!({"tool_call": {"id": "c0", "name": "look", "arguments": {}}});
    let first: Vec<Value> = slowly(60).chain([call, json!({"finish": "tool_calls"})]).collect();
    let second: Vec<Value> = slowly(100).chain([json!({"finish": "stop"})]).collect();
    json!({
        "scripts": [first, second],
        "tools": [{"name": "look", "idempotent": true, "returns": {"ok": "blue"}}]
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_see_what_an_undisturbed_reader_sees() {
    let path = file("killed-server.db", "");
    for end in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(format!("{path}{end}"));
    }
    let open = || SqliteLog::open_read_only(&path).unwrap();
    see_what_an_undisturbed_reader_sees("killed-server", &format!("sqlite:{path}"), open).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_see_what_an_undisturbed_reader_sees_in_postgresql() {
    let Some(server) = postgres::start() else { return };
    let url = server.fresh();
    let open = || Arc::new(mynah_postgres::PostgresLog::open(&url).unwrap());
    see_what_an_undisturbed_reader_sees("killed-server-pg", &url, open).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_says_that_its_database_stopped_and_finishes_its_runs_when_that_is_back() {
    let Some(database) = postgres::start() else { return };
    let agent = file("stopped-database.json", agent());
    let arguments = [agent, "--log".to_owned(), database.fresh(), "--durable-events".to_owned()];
    let (_process, address) = Process::start(&arguments);
    let client = Client::new(&format!("http://{address}")).unwrap();
    client.start("look").run_id("before").send().await.unwrap();
    let mut events = client.events("before", None);
    let begun = events.next().await.unwrap().unwrap();
    assert_eq!(begun.id.to_string(), "1.0");

    database.crash();
    let answer = timeout(Duration::from_secs(60), client.start("look").run_id("meanwhile").send());
    let refused = answer.await.unwrap().unwrap_err();
    assert_eq!(refused.status, Some(503), "{refused}");
    let ready = get(address, "/readyz").await;
    assert!(
        ready.starts_with("HTTP/1.1 503") && ready.contains("the log cannot be used"),
        "{ready}"
    );
    assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));

    database.up();
    let started = async {
        while let Err(error) = client.start("look").run_id("meanwhile").send().await {
            assert_eq!(error.status, Some(503), "{error}");
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(60), started).await.unwrap();
    for run in ["before", "meanwhile"] {
        let end = timeout(Duration::from_secs(120), ended(&client, run)).await.unwrap();
        assert_eq!(end, mynah::log::RunStatus::Completed, "{run}");
        assert_eq!(client.verify(run).await.unwrap().status, mynah::client::CheckStatus::Verified);
    }
    assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_role_loses_a_right_is_not_ready() {
    let Some(database) = postgres::start() else { return };
    let owner = mynah_postgres::PostgresLog::open(&database.fresh()).unwrap();
    owner.init().await.unwrap();
    database.sql("CREATE ROLE worker LOGIN; GRANT USAGE ON SCHEMA s0 TO worker");
    // No more than it needs to perform runs.
    database.sql("SET search_path = s0; GRANT SELECT ON ALL TABLES IN SCHEMA s0 TO worker; \
        GRANT INSERT, UPDATE ON mynah_beats, mynah_heads, mynah_inbox, mynah_parts, mynah_runs, mynah_seals, mynah_writers TO worker; \
        GRANT INSERT ON mynah_commits, mynah_records TO worker; GRANT UPDATE ON mynah_turns TO worker; \
        GRANT DELETE ON mynah_beats, mynah_commits, mynah_parts, mynah_writers TO worker");
    let url = database.url("s0", database.port).replace("test@", "worker@");
    let arguments = [file("lost-right.json", agent()), "--log".to_owned(), url];
    let (_process, address) = Process::start(&arguments);
    let client = Client::new(&format!("http://{address}")).unwrap();
    client.start("look").run_id("run").send().await.unwrap();
    timeout(Duration::from_secs(60), ended(&client, "run")).await.unwrap();
    assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
    database.sql("REVOKE INSERT, UPDATE ON s0.mynah_records, s0.mynah_heads FROM worker");
    let ready = get(address, "/readyz").await;
    let lacking = "INSERT on mynah_heads, mynah_records, and UPDATE on mynah_heads";
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains(lacking), "{ready}");
    database.sql("GRANT INSERT, UPDATE ON s0.mynah_records, s0.mynah_heads TO worker");
    assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
}

#[cfg(feature = "postgres")]
async fn ended(client: &Client, run: &str) -> mynah::log::RunStatus {
    loop {
        let run = client.run(run).await.unwrap();
        if run.end.is_some() {
            return run.summary.status;
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// The whole answer of a server.
#[cfg(feature = "postgres")]
async fn get(address: SocketAddr, path: &str) -> String {
    let mut connection = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn see_what_an_undisturbed_reader_sees<L: Log + Clone>(
    name: &str,
    url: &str,
    open: impl FnOnce() -> L,
) {
    const RUNS: usize = 4;
    const KILLS: u64 = 10;
    let agent = file(&format!("{name}.json"), agent());
    let arguments = [agent, "--log".to_owned(), url.to_owned(), "--durable-events".to_owned()];
    let numbers = Numbers(Arc::new(Mutex::new(17)));
    let (mut processes, addresses): (Vec<_>, Vec<_>) =
        (0..2).map(|_| Process::start(&arguments)).unzip();
    let addresses = Arc::new(Mutex::new(addresses));
    let proxy = proxy(Arc::clone(&addresses), numbers.clone()).await;
    let client = Client::new(&format!("http://{proxy}")).unwrap();
    let log = open();

    let in_flight = Arc::new(Notify::new());
    let mut readers = Vec::new();
    for run in (0..RUNS).map(|n| format!("r{n}")) {
        let started = async || -> Result<(), ClientError> {
            client.start("look").run_id(&*run).send().await.map(drop)
        };
        // A start that was cut off is made again: its key makes it one run.
        while let Err(error) = started().await {
            assert!(error.is_temporary() || error.code == "unexpected_answer", "{error}");
        }
        let mut through = client.events(&run, None);
        let disturbed = tokio::spawn(async move {
            let mut seen = Vec::new();
            while let Some(event) = through.try_next().await.unwrap() {
                seen.push(event);
            }
            seen
        });
        let mut direct = follow(&log, &run, None);
        let told = Arc::clone(&in_flight);
        let undisturbed = tokio::spawn(async move {
            let mut seen = Vec::new();
            while let Some(event) = direct.try_next().await.unwrap() {
                if event.id.attempt.is_some() {
                    told.notify_one();
                }
                seen.push(event);
            }
            seen
        });
        readers.push((run, disturbed, undisturbed));
    }
    // Both are killed while an answer streams, then one after the other at random.
    timeout(Duration::from_secs(60), in_flight.notified()).await.unwrap();
    for kill in 0..KILLS {
        if kill > 1 {
            sleep(Duration::from_millis(200 + numbers.below(900))).await;
        }
        let which = if kill > 1 { numbers.below(2) as usize } else { kill as usize };
        let address = processes[which].kill_and_restart();
        addresses.lock().unwrap()[which] = address;
    }
    let mut lost = 0;
    for (run, disturbed, undisturbed) in readers {
        let limit = Duration::from_secs(120);
        let disturbed = timeout(limit, disturbed).await.unwrap().unwrap();
        let undisturbed = timeout(limit, undisturbed).await.unwrap().unwrap();
        let (mut whole, mut events) = (Vec::new(), follow(&log, &run, None));
        while let Some(event) = events.try_next().await.unwrap() {
            whole.push(event.event);
        }
        assert_eq!(kept(&disturbed), whole, "{run}");
        assert_eq!(kept(&undisturbed), whole, "{run}");
        let records = log.read(&run, 1, 1_000).await.unwrap();
        let turns = records.iter().filter(|record| record.kind() == Kind::TurnLost).count();
        for seen in [&disturbed, &undisturbed] {
            let is_restart = |e: &&FollowedEvent| matches!(e.event, RunEvent::TurnRestarted { .. });
            assert_eq!(seen.iter().filter(is_restart).count(), turns, "{run}");
            assert!(
                seen.iter().any(|event| event.id.attempt.is_some()),
                "{run}: nothing in flight"
            );
        }
        lost += turns;
    }
    assert!(lost > 0, "a kill met an answer in flight");
}
