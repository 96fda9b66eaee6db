//! Connections that are cut, a server that crashes, workers that are killed: nothing is lost, and nothing comes twice.

use std::{
    env,
    process::{Child, Command},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::future::join_all;
use mynah_data::{ErrorKind, HaltReason, LogReason, Metadata, Result};
use mynah_log::{
    AnswerPart, Append, Chain, End, Fact, Head, Lease, Log, Queue, RunFilter, RunStatus, Seal,
    Totals, VerifyStatus, conformance::Sample, verify_run, verify_seals,
};
use mynah_postgres::PostgresLog;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    time::Instant,
};

use crate::server;

const HOUR: Duration = Duration::from_secs(3_600);

#[expect(clippy::disallowed_methods, reason = "how much is tested is said by the environment")]
fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// Appends a batch, with retries while the log is unavailable.
async fn attempt(log: &PostgresLog, batch: &Append) -> Result<Head> {
    loop {
        match log.append(batch.clone()).await {
            Err(error) if error.kind() == ErrorKind::Log(LogReason::Unavailable) => {}
            appended => return appended,
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn append(log: &PostgresLog, batch: &Append) -> Head {
    attempt(log, batch).await.expect("an append that nothing speaks against")
}

/// How many bytes go each way before connections are cut; negative for any number. And how many went.
#[derive(Default)]
struct Budget {
    left: [AtomicI64; 2],
    went: [AtomicI64; 2],
    /// How many messages to the server are left before everything stands still; none for any number.
    messages: Mutex<Option<usize>>,
}

impl Budget {
    fn set(&self, to_server: i64, to_client: i64) {
        self.left[0].store(to_server, SeqCst);
        self.left[1].store(to_client, SeqCst);
    }

    /// Takes one of the messages that are left, or never returns: the client is frozen.
    async fn message(&self) {
        let is_left = match &mut *self.messages.lock().expect("a lock") {
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
            None => true,
        };
        if !is_left {
            std::future::pending::<()>().await;
        }
    }
}

/// A proxy before the server. Gives its port.
async fn proxy(port: u16, budget: Arc<Budget>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let own = listener.local_addr().expect("a port").port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
            // Small messages are not held back.
            for stream in [&client, &server] {
                stream.set_nodelay(true).expect("a socket");
            }
            let ((from_client, to_client), (from_server, to_server)) =
                (client.into_split(), server.into_split());
            let (one, other) = (Arc::clone(&budget), Arc::clone(&budget));
            tokio::spawn(async move {
                // When one direction ends, the other goes with it.
                tokio::select! {
                    () = forward(from_client, to_server, &one, 0) => {}
                    () = forward(from_server, to_client, &other, 1) => {}
                }
            });
        }
    });
    own
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, budget: &Budget, way: usize) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if way == 0 {
            budget.message().await;
        }
        let left = budget.left[way].load(SeqCst);
        let count = if left < 0 { count } else { count.min(left as usize) };
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
        budget.went[way].fetch_add(count as i64, SeqCst);
        if left >= 0 {
            budget.left[way].fetch_sub(count as i64, SeqCst);
            if left == count as i64 {
                return;
            }
        }
    }
}

/// Sends some appends over a new connection.
async fn send(
    log: &PostgresLog,
    budget: &Budget,
    appends: usize,
    next: &mut impl FnMut() -> (Append, Head),
) {
    budget.set(0, 0);
    let _ = log.beat("me", HOUR).await;
    budget.set(-1, -1);
    while log.beat("me", HOUR).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..appends {
        append(log, &next().0).await;
    }
}

/// How many bytes go each way for an append after some others of a new connection.
async fn bytes_of(
    log: &PostgresLog,
    budget: &Budget,
    appends: usize,
    next: &mut impl FnMut() -> (Append, Head),
) -> [i64; 2] {
    send(log, budget, appends, next).await;
    let went = || [0, 1].map(|way| budget.went[way].load(SeqCst));
    // The proxy counts what it has passed on, which may be a moment after the answer arrived.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = went();
    append(log, &next().0).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let after = went();
    [after[0] - before[0], after[1] - before[1]]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_at_any_byte_of_an_append_lose_and_repeat_nothing() {
    let Some(server) = server::start() else { return };
    let budget = Arc::new(Budget::default());
    budget.set(-1, -1);
    let port = proxy(server.port, Arc::clone(&budget)).await;
    server.sql("CREATE SCHEMA cut");
    let log = PostgresLog::open(&server.url("cut", port)).expect("a URL");
    let observer = PostgresLog::open(&server.url("cut", server.port)).expect("a URL");
    let mut run = Sample::new("run", 0);
    append(&log, &run.batch().held("me", HOUR)).await;
    let lease = Lease::new("run", "me", 1, 0);
    let mut next = || {
        run = run.clone().user("more");
        (run.batch().fenced(&lease), run.head())
    };
    // Every byte with `MYNAH_POSTGRES_CUTS=1`; by default some of them.
    let step = variable("MYNAH_POSTGRES_CUTS").and_then(|step| step.parse().ok());
    let mut ambiguous = 0;
    // A connection sends the text of an append, then prepares it, then sends what is prepared. The retry of the last is by the process
    // itself; those of the others are by one that has a connection, which saves the server most of the time.
    for (sent_before, retrying) in [&observer, &observer, &log].into_iter().enumerate() {
        let [up, down] = bytes_of(&log, &budget, sent_before, &mut next).await;
        assert!(up > 300 && down > 20, "{up} and {down} bytes");
        let there = (0..=up).step_by(step.unwrap_or(97)).map(|cut| (cut, -1));
        let back = (0..=down).step_by(step.unwrap_or(29)).map(|cut| (-1, cut));
        for (to_server, to_client) in there.chain(back) {
            send(&log, &budget, sent_before, &mut next).await;
            budget.set(to_server, to_client);
            let (batch, head) = next();
            let first = log.append(batch.clone()).await;
            budget.set(-1, -1);
            if first.is_err() {
                let there = observer.head("run").await.expect("a server");
                ambiguous += u32::from(there == Some(head));
            }
            let cut = format!("after {sent_before}: {to_server} {to_client}");
            assert_eq!(append(retrying, &batch).await, head, "{cut}");
        }
    }
    assert!(ambiguous > 0, "some were committed, and the answer was cut");
    assert_eq!(verify_run(&log, "run").await.map(|report| report.records), Ok(run.head().seq));
    log.check().await.expect("nothing strange");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_under_load_loses_nothing_that_was_confirmed() {
    let Some(server) = server::start() else { return };
    let url = server.fresh();
    let log = PostgresLog::open(&url).expect("a URL");
    log.init().await.expect("tables");
    let cursor = log.changes(None, 9).await.expect("a cursor").cursor;
    let tasks: Vec<_> = (0..12)
        .map(|n| {
            let log = log.clone();
            tokio::spawn(async move {
                let mut run = Sample::new(format!("run-{n}"), n);
                for _ in 0..60 {
                    append(&log, &run.batch()).await;
                    run = run.user("more");
                }
                run = run.sealed();
                append(&log, &run.batch()).await;
                run
            })
        })
        .collect();
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(400)).await;
        server.crash();
        tokio::time::sleep(Duration::from_millis(200)).await;
        server.up();
    }
    let mut runs = Vec::new();
    for task in tasks {
        runs.push(task.await.expect("a task"));
    }
    for run in &runs {
        assert_eq!(log.head(run.run_id()).await, Ok(Some(run.head())));
        let report = verify_run(&log, run.run_id()).await.expect("a sound run");
        assert_eq!(report.status, VerifyStatus::Verified);
    }
    assert_eq!(verify_seals(&log).await.map(|tree| tree.size()), Ok(12));
    log.check().await.expect("nothing strange");
    let (mut cursor, mut seen) = (cursor, std::collections::HashMap::new());
    loop {
        let changes = log.changes(Some(&cursor), 50).await.expect("changes");
        seen.extend(changes.runs.into_iter().map(|change| (change.run_id, change.head)));
        if changes.cursor == cursor {
            break;
        }
        cursor = changes.cursor;
    }
    assert!(runs.iter().all(|run| seen.get(run.run_id()) == Some(&run.head())), "each is followed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_was_taken_for_dead_is_followed_again() {
    let Some(server) = server::start() else { return };
    server.sql("CREATE SCHEMA silent");
    let log = PostgresLog::open(&server.url("silent", server.port)).expect("a URL");
    let mut run = Sample::new("run", 0);
    append(&log, &run.batch()).await;
    let cursor = log.changes(None, 9).await.expect("a cursor").cursor;
    // As another process does after a day without a sign of life.
    server.sql("DELETE FROM silent.mynah_writers");
    run = run.user("more");
    append(&log, &run.batch()).await;
    let changes = log.changes(Some(&cursor), 9).await.expect("changes");
    assert_eq!(changes.runs.first().map(|change| change.head), Some(run.head()));
}

#[tokio::test]
async fn a_reader_of_changes_that_comes_after_a_day_learns_that_it_missed_some() {
    let Some(server) = server::start() else { return };
    let log = PostgresLog::open(&server.fresh()).expect("a URL");
    append(&log, &Sample::new("first", 0).batch()).await;
    let cursor = log.changes(None, 9).await.expect("a cursor").cursor;
    for run in ["run-1", "run-2"] {
        append(&log, &Sample::new(run, 0).batch()).await;
    }
    // The cursor as it was hours ago.
    let (hour, seen) = cursor["pg".len()..].split_once(',').expect("an hour and connections");
    let old = |hours| format!("pg{},{seen}", hour.parse::<i64>().expect("an hour") - hours);
    let changes = async |cursor: &str, limit| {
        let changes = log.changes(Some(cursor), limit).await.expect("changes");
        (changes.runs.len(), changes.missed, changes.cursor)
    };
    let (runs, missed, _) = changes(&old(22), 9).await;
    assert_eq!((runs, missed), (2, false));
    let (runs, missed, end) = changes(&old(24), 9).await;
    assert_eq!((runs, missed), (0, true));
    let (runs, missed, _) = changes(&end, 9).await;
    assert_eq!((runs, missed), (0, false), "from now on");
    // What a part leaves may be removed as if it had never been read.
    let (runs, _, part) = changes(&old(22), 1).await;
    assert_eq!((runs, part.split(',').next()), (1, old(22).split(',').next()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_freezes_in_a_claim_holds_up_no_other() {
    let Some(server) = server::start() else { return };
    let budget = Arc::new(Budget::default());
    budget.set(-1, -1);
    let port = proxy(server.port, Arc::clone(&budget)).await;
    server.sql("CREATE SCHEMA frozen");
    let other = PostgresLog::open(&server.url("frozen", server.port)).expect("a URL");
    for messages in 0..8 {
        let run = format!("run-{messages}");
        let queue = Queue::new("q").concurrency("customer", 1_000);
        append(&other, &Sample::new(run, 0).batch().queue(queue)).await;
        let frozen = PostgresLog::open(&server.url("frozen", port)).expect("a URL");
        frozen.beat("frozen", Duration::ZERO).await.expect("a connection");
        *budget.messages.lock().expect("a lock") = Some(messages);
        let claim = tokio::spawn(async move {
            // Without a term, so that it keeps no run that it got.
            frozen.claim("frozen", Duration::ZERO, &["q"], 9).await.map(drop)
        });
        while !claim.is_finished() && *budget.messages.lock().expect("a lock") != Some(0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // What it sent last is in progress.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let claimed = other.claim("other", Duration::ZERO, &["q"], 9).await;
        let claimed = claimed.expect("a log that is available").len();
        assert_eq!(claimed, messages + 1, "after {messages} messages");
        claim.abort();
        *budget.messages.lock().expect("a lock") = None;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_answer_is_cut_off_loses_no_run() {
    let Some(server) = server::start() else { return };
    let budget = Arc::new(Budget::default());
    budget.set(-1, -1);
    let port = proxy(server.port, Arc::clone(&budget)).await;
    server.sql("CREATE SCHEMA cut");
    let log = PostgresLog::open(&server.url("cut", port)).expect("a URL");
    append(&log, &Sample::new("run", 0).batch().queue(Queue::new("q"))).await;
    let before = budget.went[1].load(SeqCst);
    let lease = log.claim("p/0", HOUR, &["q"], 9).await.expect("a log")[0].clone();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let down = budget.went[1].load(SeqCst) - before;
    log.release(&lease);
    let mut lost = 0;
    // Every byte of the end, where the answer of the commit is.
    for cut in (0..=down).filter(|cut| cut % 61 == 0 || down - cut < 40) {
        let owner = format!("p/{}", cut + 1);
        while log.beat("p", HOUR).await.is_err() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        budget.set(-1, cut);
        let claimed = log.claim(&owner, HOUR, &["q"], 9).await;
        budget.set(-1, -1);
        let leases = match claimed {
            Ok(leases) => leases,
            // Who has no answer asks again by the same name, and its process lives.
            Err(_) => loop {
                let held = server.sql("SELECT count(owner) FROM cut.mynah_runs");
                lost += u32::from(held == "1");
                if let Ok(leases) = log.claim(&owner, HOUR, &["q"], 9).await {
                    break leases;
                }
            },
        };
        assert_eq!(leases.len(), 1, "cut after {cut} of {down} bytes");
        log.release(&leases[0]);
    }
    assert!(lost > 0, "some were committed, and the answer was cut");
}

#[tokio::test]
async fn a_process_that_lost_a_run_keeps_no_part_of_an_answer() {
    let Some(server) = server::start() else { return };
    server.sql("CREATE SCHEMA lost");
    let url = server.url("lost", server.port);
    let [first, second] = [(); 2].map(|()| PostgresLog::open(&url).expect("a URL"));
    let mut run = Sample::new("run", 0);
    append(&first, &run.batch().held("one", Duration::ZERO)).await;
    let lost = Lease::new("run", "one", 1, 0);
    let lease = second.lease("run", "two", HOUR).await.expect("a silent owner");
    let part = AnswerPart::new(1, 0, 1, "[]");
    first.keep_part(&lost, part.clone()).await.expect("a log that can be written");
    let parts = || server.sql("SELECT count(*) FROM lost.mynah_parts");
    assert_eq!(parts(), "0");
    second.keep_part(&lease, part).await.expect("a log that can be written");
    assert_eq!(parts(), "1");
    run = run.user("more");
    append(&second, &run.batch().fenced(&lease)).await;
    assert_eq!(parts(), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_wait_for_a_run_ask_the_server_once() {
    let Some(server) = server::start() else { return };
    let budget = Arc::new(Budget::default());
    budget.set(-1, -1);
    let port = proxy(server.port, Arc::clone(&budget)).await;
    server.sql("CREATE SCHEMA awaited");
    let log = PostgresLog::open(&server.url("awaited", port)).expect("a URL");
    let other = PostgresLog::open(&server.url("awaited", server.port)).expect("a URL");
    let mut run = Sample::new("run", 0);
    append(&other, &run.batch()).await;
    let wait = |count: usize| {
        let wait = |_| {
            let log = log.clone();
            tokio::spawn(async move { log.wait("run", 1).await })
        };
        (0..count).map(wait).collect::<Vec<_>>()
    };
    let sent = async |count| {
        let waits = wait(count);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = budget.went[0].load(SeqCst);
        tokio::time::sleep(Duration::from_secs(1)).await;
        (waits, budget.went[0].load(SeqCst) - before)
    };
    let (mut waits, one) = sent(1).await;
    let (more, many) = sent(40).await;
    assert!(one > 0 && many < 5 * one, "one sends {one} bytes, and forty {many}");
    waits.extend(more);
    run = run.user("more");
    append(&other, &run.batch()).await;
    for wait in waits {
        assert_eq!(wait.await.expect("a task"), Ok(()));
    }
}

/// How many records a worker's run has before its end.
const STEPS: u64 = 12;

const TERM: Duration = Duration::from_secs(1);

/// What a worker does: claims runs, and appends to them until they end.
async fn work(url: &str) {
    let log = PostgresLog::open(url).expect("a URL");
    let owner = format!("worker-{}/it", std::process::id());
    let beating = log.clone();
    let name = owner.clone();
    tokio::spawn(async move {
        loop {
            let _ = beating.beat(&name, TERM).await;
            tokio::time::sleep(TERM / 4).await;
        }
    });
    loop {
        // A log that is unavailable has none for now.
        let leases = log.claim(&owner, TERM, &["q"], 4).await.unwrap_or_default();
        if leases.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Who lost a run leaves it to the one who has it.
        join_all(leases.iter().map(|lease| finish(&log, lease))).await;
    }
}

async fn finish(log: &PostgresLog, lease: &Lease) -> Result<()> {
    let mut chain = Chain::new(lease.run_id.clone());
    for record in log.read(&lease.run_id, 1, 1_000).await? {
        chain.follow(&record).expect("a sound chain");
    }
    while let Some(head) = chain.head() {
        let time = head.seq as i64;
        let fact = |n: u64| {
            let message = mynah_data::Message::user(format!("{n}"));
            Fact::UserMessage { message: Arc::new(message) }
        };
        let mut records = Vec::new();
        if head.seq < STEPS {
            records.push(chain.append(time, [7; 16], &fact(head.seq))?);
        } else {
            let end = End::new(HaltReason::Completed, Metadata::new()).into_fact();
            records.push(chain.append(time, [7; 16], &end)?);
            let seal = Fact::Sealed(Seal::new(chain.root(), Totals::default()));
            records.push(chain.append(time, [7; 16], &seal)?);
        }
        let is_last = records.len() > 1;
        let batch = Append::new(lease.run_id.clone(), Some(head), records).fenced(lease);
        attempt(log, &batch).await?;
        if is_last {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

#[test]
fn workers_that_are_killed_at_random_lose_no_run_and_repeat_nothing() {
    if let Some(url) = variable("MYNAH_POSTGRES_WORKER") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        return runtime.expect("a runtime").block_on(work(&url));
    }
    let Some(server) = server::start() else { return };
    server.sql("CREATE SCHEMA killed");
    let url = server.url("killed", server.port);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        // As many as `MYNAH_POSTGRES_KILLS` says.
        let kills: usize =
            variable("MYNAH_POSTGRES_KILLS").and_then(|kills| kills.parse().ok()).unwrap_or(24);
        let log = PostgresLog::open(&url).expect("a URL");
        let count = 8 * kills;
        for n in 0..count {
            let batch = Sample::new(format!("run-{n:05}"), n as i64).batch();
            append(&log, &batch.queue(Queue::new("q"))).await;
        }
        let start = || {
            let this = env::current_exe().expect("this program");
            let name = "failures::workers_that_are_killed_at_random_lose_no_run_and_repeat_nothing";
            let mut worker = Command::new(this);
            worker.args(["--exact", name, "--nocapture"]).env("MYNAH_POSTGRES_WORKER", &url);
            worker.spawn().expect("a worker")
        };
        let mut workers: Vec<Child> = (0..3).map(|_| start()).collect();
        for n in 0..kills {
            tokio::time::sleep(Duration::from_millis(60 + 37 * (n as u64 % 5))).await;
            let worker = &mut workers[n % 3];
            // On Unix this is SIGKILL.
            worker.kill().expect("a worker that lives");
            worker.wait().expect("its end");
            *worker = start();
        }
        let mut last = (String::new(), Instant::now());
        loop {
            let open = RunFilter::new().status(RunStatus::Running).limit(1);
            if log.runs(open).await.expect("an index").runs.is_empty() {
                break;
            }
            let records = server.sql("SELECT sum(records) FROM killed.mynah_heads");
            if records != last.0 {
                last = (records, Instant::now());
            }
            assert!(last.1.elapsed() < Duration::from_secs(30), "they do not come to an end");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for mut worker in workers {
            worker.kill().expect("a worker that lives");
            worker.wait().expect("its end");
        }
        assert_eq!(verify_seals(&log).await.map(|tree| tree.size()), Ok(count as u64));
        for n in 0..count {
            let report = verify_run(&log, &format!("run-{n:05}")).await.expect("a sound run");
            assert_eq!((report.status.as_str(), report.records), ("verified", STEPS + 2));
        }
        log.check().await.expect("nothing strange");
    });
}
