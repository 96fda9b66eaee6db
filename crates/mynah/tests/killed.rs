//! A process that the operating system kills after each record of its run, and another that resumes
//! it: the result is the same, and nothing that completed starts again. What ran is counted outside
//! the log: tools, side effects and the model write into a file when they begin and when they are
//! done.
//!
//! The processes are this test itself, with orders in its environment.
//! `crates/mynah-cli/tests/crash.rs` has kills at any moment, two of one run, a budget that is used
//! up, unknown outcomes that wait for a decision, and processes that resume at once.

#![cfg(unix)]

use std::{
    collections::HashSet,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::StreamExt as _;
use mynah::{
    Adapter, BoxFuture, Budget, Engine, Error, Event, ModelCall, ModelStream, OnUncertain, Request,
    Result, SystemWorld, Tool, ToolContext, ToolOutcome, Tools, World,
    log::{
        Append, Fact, Head, Log, LogFuture, Record, Resolution, RunFilter, RunStatus, RunSummary,
        SqliteLog, VerifyStatus, forward_log, verify,
    },
    testing::{Scripted, collect},
};
use serde_json::{Value, json};

/// Where a process finds its orders: the folder of its run, how many processes were there before it, and the record after
/// which it is killed.
const ORDERS: &str = "MYNAH_TEST_ORDERS";

#[tokio::test]
async fn a_run_whose_process_is_killed_after_any_record_comes_to_the_same() -> Result<()> {
    let folders = tempfile::tempdir().expect("a folder");
    let whole = folders.path().join("whole");
    let thread = go_on(&whole, 0);
    check(&whole, &[], &thread).await?;
    let last = read(&whole).await?.len() as u64;
    for killed_after in 1..=last {
        let folder = folders.path().join(killed_after.to_string());
        let mut child = start(&folder, 0, Some(killed_after));
        assert_eq!(told(&mut child), json!({"safe": killed_after}));
        child.kill().expect("it is there");
        assert_eq!(child.wait().expect("its end").signal(), Some(9), "SIGKILL");
        let left = read(&folder).await?;
        assert_eq!(left.len() as u64, killed_after, "what is safe is there, and nothing else");
        // What has its seal is not gone on with.
        let expected = if killed_after == last { &Value::Null } else { &thread };
        assert_eq!(go_on(&folder, 1), *expected, "record {killed_after}");
        assert_eq!(read(&folder).await?[..left.len()], left, "record {killed_after}");
        check(&folder, &left, &thread).await?;
    }
    Ok(())
}

/// Checks a run that has ended, whose first process left these records: the run by its records, and what ran by its traces.
async fn check(folder: &Path, left: &[Record], thread: &Value) -> Result<()> {
    let (log, records) = (SqliteLog::open(folder.join("log.db"))?, read(folder).await?);
    let run = newest(&log).await?.expect("a run").run_id;
    let place = format!("record {}", left.len());
    assert_eq!(verify(&run, &records)?.status, VerifyStatus::Verified, "{place}");
    let again = Trace(folder.join("replays"));
    for tools in [Tools::Recorded, Tools::All] {
        let replay = || engine(&again, 0).replay(&log, &*run).replay_tools(tools);
        assert_eq!(replay().await?.records, records.len() as u64, "{place}");
        let last = collect(replay().stream()).await?.pop();
        let Some(Event::ChatCompleted { result }) = last else { panic!("{place}: {last:?}") };
        assert_eq!(json!(result.thread), *thread, "{place}: {tools:?}");
    }
    let is_of_world = |line: &String| line.starts_with("turn") || line.ends_with("paid");
    assert_eq!(again.lines().into_iter().find(is_of_world), None, "{place}: in a replay");

    let [before, after] = [0, 1].map(|process| Trace::of(folder, process).lines());
    let mut turns = 0..;
    let completed = left.iter().filter_map(|record| match record.fact().ok()?? {
        Fact::AssistantCompleted { .. } => Some(format!("turn {} ", turns.next()?)),
        Fact::ToolFailed { call_id, attempt, resolution: Resolution::Retried, .. } => {
            Some(format!("{call_id} {attempt} "))
        }
        Fact::ToolCompleted { call_id, .. } | Fact::ToolFailed { call_id, .. } => {
            Some(format!("{call_id} "))
        }
        _ => None,
    });
    for completed in completed {
        let is_of_it = |line: &&String| line.starts_with(&completed);
        assert_ne!(before.iter().find(is_of_it), None, "{place}: {completed}");
        assert_eq!(after.iter().find(is_of_it), None, "{place}: it was completed");
    }
    // A tool with an unknown outcome runs again as another attempt, with its own side effects; the
    // model gets the same request again.
    let mut seen = HashSet::new();
    let is_twice = |line: &&String| !line.starts_with("turn") && !seen.insert((*line).clone());
    assert_eq!(before.iter().chain(&after).find(is_twice), None, "{place}");
    Ok(())
}

/// One of the processes. Without orders there is nothing to do.
#[test]
fn child_process() -> Result<()> {
    let Some(orders) = std::env::var_os(ORDERS) else { return Ok(()) };
    let orders = serde_json::from_slice(orders.as_encoded_bytes());
    // On one thread: when that stands still, the run does.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    tell(&runtime.expect("a runtime").block_on(perform(orders.expect("orders")))?);
    Ok(())
}

/// Starts or resumes the run, and answers its question. Returns the conversation, if it
/// went on.
async fn perform((folder, before, killed_after): (PathBuf, u32, Option<u64>)) -> Result<Value> {
    let log = SqliteLog::open(folder.join("log.db"))?;
    let log: Arc<dyn Log> = match killed_after {
        Some(last) => Arc::new(StandsStill { log, last }),
        None => Arc::new(log),
    };
    let engine = engine(&Trace::of(&folder, before), before);
    let budget = Budget::new().max_turns(5).max_tool_calls(6).max_total_tokens(10_000);
    let waits = |run: &RunSummary| run.status == RunStatus::Suspended;
    let resume = |run: RunSummary| engine.resume(&log, &*run.run_id);
    let mut result = match newest(&log).await? {
        None => Some(engine.chat("go").budget(budget).record(&log).await?),
        Some(run) if waits(&run) || run.seal.is_some() => None,
        Some(run) => Some(resume(run).on_uncertain(OnUncertain::Rerun).await?),
    };
    if let Some(run) = newest(&log).await?.filter(waits) {
        result = Some(resume(run).answer("two").await?);
    }
    Ok(json!(result.map(|result| result.thread)))
}

/// A log in which nothing follows a record: when that is safe, its process says so and waits to be killed.
struct StandsStill {
    log: SqliteLog,
    last: u64,
}

impl Log for StandsStill {
    fn append(&self, mut batch: Append) -> LogFuture<'_, Head> {
        if batch.records.last().is_none_or(|record| record.seq() < self.last) {
            return self.log.append(batch);
        }
        batch.records.retain(|record| record.seq() <= self.last);
        Box::pin(async move {
            self.log.append(batch).await?;
            tell(&json!({"safe": self.last}));
            // Ends where the caller that was to kill it is gone.
            let _ = std::io::stdin().read(&mut [0]);
            std::process::abort()
        })
    }

    forward_log!(self => self.log);
}

/// An engine with tools of every kind, a model that knows from the conversation where it is, and a clock so many hours ahead
/// that what a process before it held is free.
fn engine(trace: &Trace, hours: u32) -> Engine {
    let tool = |name: &str| {
        let trace = trace.clone();
        Tool::new(name, "", json!({})).handler(move |_, context| act(context, trace.clone()))
    };
    let shaky = tool("shaky").idempotent(3);
    Engine::new(Model(trace.clone()))
        .tools([tool("plain"), shaky, tool("paid"), tool("ask"), tool("failing")])
        .world(Later(hours))
}

async fn act(context: ToolContext, trace: Trace) -> Result<ToolOutcome> {
    let (call, attempt) = (&context.call, context.attempt());
    let note = |what: &str| trace.note(&format!("{} {attempt} {what}", call.id));
    note("begun");
    let outcome = match call.name.as_str() {
        "shaky" if attempt == 1 => ToolOutcome::transient("busy"),
        "paid" => {
            context.now().await?;
            let pay = async {
                note("paid");
                Ok::<_, Error>(7)
            };
            json!({"receipt": context.side_effect("pay", pay).await?}).into()
        }
        "ask" => ToolOutcome::ask("How many?"),
        "failing" => ToolOutcome::error("no such thing"),
        _ => {
            tokio::task::yield_now().await;
            call.id.as_str().into()
        }
    };
    note("done");
    Ok(outcome)
}

struct Model(Trace);

impl Adapter for Model {
    fn name(&self) -> &str {
        "traced"
    }

    fn open(self: Arc<Self>, request: Request, call: ModelCall) -> BoxFuture<Result<ModelStream>> {
        let calls = |calls: &[(&str, &str)]| {
            let calls =
                calls.iter().map(|(id, name)| json!({"tool_call": {"id": id, "name": name}}));
            Value::from_iter(calls.chain([json!({"finish": "tool_calls"})]))
        };
        let messages = request.messages.iter();
        let turn = messages.filter(|said| said.metadata().contains_key("finish_reason")).count();
        let script = match turn {
            0 => calls(&[("c0", "plain"), ("c1", "shaky"), ("c2", "paid")]),
            1 => calls(&[("c3", "ask")]),
            2 => calls(&[("c4", "plain"), ("c5", "failing")]),
            _ => json!([{"text": "do"}, {"text": "ne"}, {"finish": "stop"}]),
        };
        self.0.note(&format!("turn {turn} begun"));
        Box::pin(async move {
            let answer = Arc::new(Scripted::new([script])?).open(request, call).await?;
            let done = async move { self.0.note(&format!("turn {turn} done")) };
            let done = futures_util::stream::once(done).filter_map(async |()| None);
            Ok(Box::pin(answer.chain(done)) as ModelStream)
        })
    }
}

/// The machine's world, so many hours later.
struct Later(u32);

impl World for Later {
    fn now(&self) -> SystemTime {
        SystemWorld.now() + Duration::from_secs(3600) * self.0
    }

    fn random(&self) -> u64 {
        SystemWorld.random()
    }
}

/// A file with what ran, independent of the log.
#[derive(Clone)]
struct Trace(PathBuf);

impl Trace {
    fn of(folder: &Path, process: u32) -> Self {
        Self(folder.join(format!("process-{process}")))
    }

    fn note(&self, line: &str) {
        let file = fs::OpenOptions::new().create(true).append(true).open(&self.0);
        file.and_then(|mut file| writeln!(file, "{line}")).expect("a file");
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(&self.0).unwrap_or_default().lines().map(str::to_owned).collect()
    }
}

/// Starts a process.
fn start(folder: &Path, before: u32, killed_after: Option<u64>) -> Child {
    fs::create_dir_all(folder).expect("a folder");
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "killed::child_process", "--nocapture"])
        .env(ORDERS, json!((folder, before, killed_after)).to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

/// Resumes a run in a process, to its end. Returns what it prints.
fn go_on(folder: &Path, before: u32) -> Value {
    let mut child = start(folder, before, None);
    let told = told(&mut child);
    assert!(child.wait().expect("its end").success());
    told
}

/// The output of a process, without that of the test harness.
fn told(child: &mut Child) -> Value {
    let mut lines = BufReader::new(child.stdout.as_mut().expect("a pipe")).lines();
    let told = lines.find_map(|line| serde_json::from_str(&line.ok()?).ok());
    told.expect("something is told")
}

fn tell(what: &Value) {
    println!("\n{what}");
}

async fn newest(log: &impl Log) -> Result<Option<RunSummary>> {
    Ok(log.runs(RunFilter::new().limit(1)).await?.runs.pop())
}

async fn read(folder: &Path) -> Result<Vec<Record>> {
    let log = SqliteLog::open_read_only(folder.join("log.db"))?;
    log.read(&newest(&log).await?.expect("a run").run_id, 1, 1000).await
}
