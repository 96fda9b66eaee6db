//! How long it takes until the runs of a killed process are done by another worker, after its heartbeat expired.

#![allow(missing_docs, clippy::expect_used, reason = "a benchmark says what is wrong by panicking")]

use std::{
    env,
    process::Command,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::stream;
use mynah::{
    Adapter, BoxFuture, FinishReason, ModelCall, ModelStream, Worker,
    log::{RunFilter, RunStatus},
    prelude::*,
};
use mynah_postgres::PostgresLog;
use serde_json::{Value, json};
use tokio::time::sleep;

#[path = "../tests/server/mod.rs"]
mod server;

const RUNS: usize = 1_000;

/// The records of a run whose tool is announced: it began, was claimed, asked the model, had its answer, announced the tool.
const ANNOUNCED: u64 = 5;

/// The member of the environment that makes this process the one that is killed.
const LOG: &str = "MYNAH_RECOVER_LOG";

/// A model that calls the tool, and then is done.
struct Model;

impl Adapter for Model {
    fn name(&self) -> &str {
        "model"
    }

    fn open(self: Arc<Self>, request: Request, _: ModelCall) -> BoxFuture<Result<ModelStream>> {
        let is_done = request.messages.iter().any(|message| message.tool_call_id().is_some());
        let mut events = vec![Event::message_started()];
        if is_done {
            events.push(Event::text_delta("done"));
        } else {
            events.push(Event::ToolCallCompleted(Arc::new(ToolCall::new("c0", "work", "{}"))));
        }
        let reason = if is_done { FinishReason::Stop } else { FinishReason::ToolCalls };
        events.push(Event::message_completed(Some(reason)));
        let events = Box::pin(stream::iter(events.into_iter().map(Ok)));
        Box::pin(async move { Ok(events as ModelStream) })
    }
}

/// An agent whose tool never ends in the process that is killed.
fn agent(hangs: bool) -> Engine {
    let work = Tool::new("work", "", json!({})).idempotent(1).timeout(Duration::from_secs(600));
    let work = work.handler(move |_: Value, _| async move {
        if hangs {
            std::future::pending::<()>().await;
        }
        json!("done")
    });
    Engine::new(Model).tool(work)
}

fn worker<L: Log + Clone>(log: &L, hangs: bool) -> Worker {
    Worker::new(log).agent("agent", agent(hangs)).concurrency(RUNS)
}

async fn recover<L: Log + Clone>(name: &str, log: L, url: &str) {
    let engine = agent(false);
    for n in 0..RUNS {
        let chat = engine.chat("go").record(&log).run_id(format!("run-{n:04}"));
        chat.agent("agent").enqueue().await.expect("a run");
    }
    let this = env::current_exe().expect("this program");
    let mut victim = Command::new(this).env(LOG, url).spawn().expect("a process");
    let runs = async |status| {
        let filter = RunFilter::new().status(status).limit(RUNS);
        log.runs(filter).await.expect("an index").runs
    };
    loop {
        let running = runs(RunStatus::Running).await;
        if running.iter().filter(|run| run.records >= ANNOUNCED).count() == RUNS {
            break;
        }
        sleep(Duration::from_millis(100)).await;
    }
    victim.kill().expect("a process that lives");
    victim.wait().expect("its end");
    let held = runs(RunStatus::Running).await.iter().filter_map(|run| run.held_until).max();
    let expires = Duration::from_nanos(held.expect("a heartbeat") as u64);
    let done = async {
        while runs(RunStatus::Completed).await.len() < RUNS {
            sleep(Duration::from_millis(20)).await;
        }
    };
    worker(&log, false).run(done).await.expect("a worker");
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
    println!(
        "{name}: {RUNS} runs of a killed process done {:.2} s after its heartbeat expired",
        now.saturating_sub(expires).as_secs_f64()
    );
}

#[expect(clippy::disallowed_methods, reason = "the process that is killed has its log from here")]
fn victims_log() -> Option<String> {
    env::var(LOG).ok()
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if let Some(url) = victims_log() {
        return runtime.block_on(async {
            let never = std::future::pending();
            if url.starts_with("postgres:") {
                let log = PostgresLog::open(&url).expect("a URL");
                worker(&log, true).run(never).await.expect("a worker");
            } else {
                let log = SqliteLog::open(&url).expect("a file");
                worker(&log, true).run(never).await.expect("a worker");
            }
        });
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log.db").display().to_string();
    runtime.block_on(async {
        recover("SQLite", SqliteLog::open(&path).expect("a file"), &path).await;
        let Some(server) = server::start() else { return };
        let url = server.fresh();
        recover("PostgreSQL", PostgresLog::open(&url).expect("a URL"), &url).await;
    });
}
