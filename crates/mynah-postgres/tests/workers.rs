//! Three worker processes on one PostgreSQL, killed at random: every run ends, and no completed effect is repeated.

use std::{
    collections::HashMap,
    env,
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::Arc,
    time::Duration,
};

use futures_util::stream;
use mynah::{
    Adapter, BoxFuture, FinishReason, ModelCall, ModelStream, Worker,
    log::{Fact, RunFilter, RunStatus, VerifyStatus, verify_run, verify_seals},
    prelude::*,
};
use mynah_postgres::PostgresLog;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::server;

const TEST: &str = "workers::workers_that_are_killed_at_random_end_every_run_and_repeat_no_effect";

#[expect(clippy::disallowed_methods, reason = "how much is tested is said by the environment")]
fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

fn number(name: &str, default: usize) -> usize {
    variable(name).and_then(|number| number.parse().ok()).unwrap_or(default)
}

/// A model that calls the tool twice, and then is done. It answers by what it is asked, so any process can have it.
struct Model;

impl Adapter for Model {
    fn name(&self) -> &str {
        "model"
    }

    fn open(self: Arc<Self>, request: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
        Box::pin(async move {
            sleep(Duration::from_millis(15)).await;
            let results =
                request.messages.iter().filter(|message| message.tool_call_id().is_some());
            let turn = results.count();
            let mut events = vec![Event::message_started()];
            if turn < 2 {
                let call = ToolCall::new(format!("c{turn}"), "effect", "{}");
                events.push(Event::ToolCallCompleted(Arc::new(call)));
                events.push(Event::message_completed(Some(FinishReason::ToolCalls)));
            } else {
                events.push(Event::text_delta("done"));
                events.push(Event::message_completed(Some(FinishReason::Stop)));
            }
            Ok(Box::pin(stream::iter(events.into_iter().map(Ok))) as ModelStream)
        })
    }
}

/// The agent of all workers. Its tool writes a line into a file for each effect. The first call of every fifth run waits for a while
/// before it has one.
fn agent(effects: &Path) -> Engine {
    let effects: Arc<PathBuf> = Arc::new(effects.to_owned());
    let run = move |_: Value, context: ToolContext| {
        let effects = Arc::clone(&effects);
        async move {
            let run = context.run_id().map(ToString::to_string).unwrap_or_default();
            let sleeps = run.ends_with(['0', '5']) && context.call.id == "c0";
            if sleeps && context.continuation().is_none() {
                return ToolOutcome::later_with(Duration::from_millis(300), "slept");
            }
            sleep(Duration::from_millis(10)).await;
            let line = format!("{run} {} {}\n", context.call.id, context.attempt());
            let mut file =
                OpenOptions::new().append(true).create(true).open(&*effects).expect("a file");
            file.write_all(line.as_bytes()).expect("a line");
            ToolOutcome::from(json!("done"))
        }
    };
    let effect = Tool::new("effect", "", json!({})).idempotent(1).recorded().handler(run);
    Engine::new(Model).tool(effect)
}

/// What a worker process does until it is killed.
async fn work(url: &str, effects: &Path) {
    let log = PostgresLog::open(url).expect("a URL");
    let worker = Worker::new(&log).agent("agent", agent(effects)).concurrency(32);
    let worker = worker.park_after(Duration::from_millis(50));
    let report = worker.run(std::future::pending()).await;
    panic!("a worker ended: {report:?}");
}

fn start(url: &str, effects: &Path) -> Child {
    let mut worker = Command::new(env::current_exe().expect("this program"));
    worker.args(["--exact", TEST, "--nocapture"]);
    worker.env("MYNAH_WORKER_URL", url).env("MYNAH_WORKER_EFFECTS", effects);
    worker.spawn().expect("a worker")
}

fn kill(worker: &mut Child) {
    // On Unix this is SIGKILL.
    worker.kill().expect("a worker that lives");
    worker.wait().expect("its end");
}

/// Worker processes, which end with the test.
struct Workers(Vec<Child>);

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.0 {
            let _ = worker.kill().and_then(|()| worker.wait());
        }
    }
}

#[test]
fn workers_that_are_killed_at_random_end_every_run_and_repeat_no_effect() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if let (Some(url), Some(effects)) =
        (variable("MYNAH_WORKER_URL"), variable("MYNAH_WORKER_EFFECTS"))
    {
        return runtime.block_on(work(&url, Path::new(&effects)));
    }
    let Some(server) = server::start() else { return };
    let url = server.fresh();
    let effects = server.folder().join("effects");
    // `MYNAH_WORKER_KILLS=1000 MYNAH_WORKER_RUNS=2000` takes minutes.
    let (runs, kills) = (number("MYNAH_WORKER_RUNS", 100), number("MYNAH_WORKER_KILLS", 12));
    runtime.block_on(async {
        let log = PostgresLog::open(&url).expect("a URL");
        let engine = agent(&effects);
        let enqueue = async |n: usize| {
            let chat = engine.chat("go").record(&log).run_id(format!("run-{n:05}"));
            chat.agent("agent").max_crashes(1_000).enqueue().await.expect("a run");
        };
        let began = Instant::now();
        let mut workers = Workers((0..3).map(|_| start(&url, &effects)).collect());
        let mut enqueued = 0;
        for n in 0..kills {
            // There is work for as long as workers are killed.
            while enqueued < runs * (n + 1) / kills {
                enqueue(enqueued).await;
                enqueued += 1;
            }
            sleep(Duration::from_millis(60 + 41 * (n as u64 * 7 % 11))).await;
            let worker = &mut workers.0[n * 5 % 3];
            kill(worker);
            *worker = start(&url, &effects);
        }
        while enqueued < runs {
            enqueue(enqueued).await;
            enqueued += 1;
        }
        let killed = began.elapsed();
        let ended = async || {
            let completed = RunFilter::new().status(RunStatus::Completed).limit(runs);
            log.runs(completed).await.expect("an index").runs.len()
        };
        while ended().await < runs {
            assert!(began.elapsed() < killed + Duration::from_secs(240), "{} ended", ended().await);
            sleep(Duration::from_millis(100)).await;
        }
        let all = began.elapsed();
        drop(workers);
        let (mut repeated, mut lost) = (0, 0);
        let done = lines(&effects);
        for n in 0..runs {
            let run = format!("run-{n:05}");
            let (calls, crashes) = check(&log, &run, &done).await;
            repeated += calls;
            lost += crashes;
            engine.replay(&log, &run).await.expect("an equal replay");
        }
        assert_eq!(verify_seals(&log).await.map(|tree| tree.size()), Ok(runs as u64));
        log.check().await.expect("nothing strange");
        eprintln!(
            "{runs} runs, {kills} workers killed in {killed:.1?}, all ended after {all:.1?}; {lost} times continued, {repeated} effects \
             without a record repeated"
        );
    });
}

/// The effects by run and call: the attempts that had them.
fn lines(effects: &Path) -> HashMap<(String, String), Vec<u32>> {
    let mut done: HashMap<(String, String), Vec<u32>> = HashMap::new();
    for line in fs::read_to_string(effects).expect("effects").lines() {
        let mut words = line.split(' ').map(str::to_owned);
        let (run, call) = (words.next().expect("a run"), words.next().expect("a call"));
        let attempt = words.next().and_then(|attempt| attempt.parse().ok()).expect("an attempt");
        done.entry((run, call)).or_default().push(attempt);
    }
    done
}

/// Checks a run. Returns how many effects were repeated as they had no record, and how often a process continued it.
async fn check(
    log: &PostgresLog,
    run: &str,
    done: &HashMap<(String, String), Vec<u32>>,
) -> (usize, usize) {
    let report = verify_run(log, run).await.expect("a sound run");
    assert_eq!(report.status, VerifyStatus::Verified);
    let records = log.read(run, 1, 10_000).await.expect("records");
    let (mut repeated, mut crashes, mut completed) = (0, 0, 0);
    for record in records {
        match record.fact().expect("a sound fact").expect("a body") {
            Fact::ToolCompleted { outcome: ToolOutcome::Later { .. }, .. } => {}
            Fact::ToolCompleted { call_id, attempt, .. } => {
                completed += 1;
                let attempts = &done[&(run.to_owned(), call_id.clone())];
                let own = attempts.iter().filter(|other| **other == attempt).count();
                assert_eq!(own, 1, "{run} {call_id}: the completed attempt had its effect once");
                let last = attempts.iter().max();
                assert_eq!(last, Some(&attempt), "{run} {call_id}: nothing ran after it");
                repeated += attempts.len() - 1;
            }
            fact if fact.is_seam() => crashes += 1,
            _ => {}
        }
    }
    assert_eq!(completed, 2, "{run}");
    (repeated, crashes)
}
