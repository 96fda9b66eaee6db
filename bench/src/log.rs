//! Mynah's log: appends beside plain SQLite, size on disk, sessions and memory.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures_util::StreamExt as _;
use mynah::{
    Adapter, BoxFuture, Engine, Event, FinishReason, Message, ModelCall, ModelStream, Request,
    ToolCall,
    log::{Append, Body, Chain, Durability, Extent, Fact, Log as _, Record, SqliteLog},
    testing::{Script, Scripted},
};
use rusqlite::Connection;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    Result,
    measure::{Stopwatch, memory},
};

/// How many records are appended.
const APPENDS: usize = 20_000;

/// How long the text of an answer is.
const TEXT: usize = 1_000;

/// How many turns the session has that is restored.
pub const TURNS: usize = 5_000;

/// How many runs wait at once: for the model, and recorded in a tool.
const IDLE: (usize, usize) = (10_000, 1_000);

/// Measures one subject in this process and prints its figures.
#[tokio::main(worker_threads = 2)]
pub async fn measure(subject: &str) -> Result<()> {
    let folder = folder()?;
    let path = folder.path().join("log.db");
    let figures = match subject {
        "append-rusqlite" => append_plain(&path)?.to_vec(),
        "append" => append(&path).await?.to_vec(),
        "disk-100" => vec![disk(&path, 100).await?],
        "disk-1000" => vec![disk(&path, 1_000).await?],
        "session" => restore(&path).await?.to_vec(),
        "idle-model" => vec![idle(None).await?],
        "idle-tool" => vec![idle(Some(path)).await?],
        _ => return Err(format!("no subject `{subject}`").into()),
    };
    println!("{}", figures.iter().map(f64::to_string).collect::<Vec<_>>().join(" "));
    Ok(())
}

/// A folder on the disk that the program itself is on: the folder for temporary files may be in memory.
pub fn folder() -> Result<TempDir> {
    let program = std::env::current_exe()?;
    Ok(tempfile::tempdir_in(program.parent().unwrap_or(Path::new(".")))?)
}

/// The same bytes as [`append`] writes, in a table as simple as can be.
fn append_plain(path: &Path) -> Result<[f64; 2]> {
    let mut chain = chain()?.0;
    let records: Vec<Record> =
        (0..APPENDS).map(|n| record(&mut chain, n)).collect::<Result<_>>()?;
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    let table = "CREATE TABLE records (key INTEGER PRIMARY KEY, envelope BLOB, salt BLOB, payload BLOB) STRICT";
    connection.execute(table, [])?;
    let insert = "INSERT INTO records (envelope, salt, payload) VALUES (?1, ?2, ?3)";
    let mut insert = connection.prepare(insert)?;
    let watch = Stopwatch::start()?;
    for record in &records {
        let Body { salt, payload, .. } = record.body().ok_or("a body")?;
        insert.execute((record.envelope_bytes(), salt, &payload[..]))?;
    }
    watch.each(APPENDS)
}

/// Each record is made, chained, and committed by itself.
async fn append(path: &Path) -> Result<[f64; 2]> {
    let log = SqliteLog::open_with(path, Durability::Relaxed)?;
    let (mut chain, first) = chain()?;
    log.append(Append::new("run", None, vec![first])).await?;
    let watch = Stopwatch::start()?;
    for n in 0..APPENDS {
        let expected = chain.head();
        let record = record(&mut chain, n)?;
        log.append(Append::new("run", expected, vec![record])).await?;
    }
    watch.each(APPENDS)
}

fn chain() -> Result<(Chain, Record)> {
    let mut chain = Chain::new("run");
    let fact = Fact::RunStarted { thread: "bench".into(), extent: Extent::Chat, about: None };
    let first = chain.append(1, [7; 16], &fact)?;
    Ok((chain, first))
}

fn record(chain: &mut Chain, n: usize) -> Result<Record> {
    let fact = Fact::UserMessage { message: Arc::new(Message::user("a short message")) };
    Ok(chain.append(i64::try_from(n)?, [7; 16], &fact)?)
}

fn script() -> Script {
    Script::new().text("lorem ipsum ".repeat(TEXT / 12 + 1)[..TEXT].to_owned())
}

/// Bytes of the file for each byte of the bodies, of a chat with so many turns.
async fn disk(path: &Path, turns: usize) -> Result<f64> {
    let calls = |n| script().tool_call(format!("c{n}"), "echo", json!({"n": n})).call_tools();
    let scripts = (1..turns).map(calls).chain([script().stop()]);
    let echo = mynah::Tool::new("echo", "Returns its arguments.", json!({"type": "object"}));
    let echo = echo.handler(async |arguments: Value, _| arguments);
    let engine = Engine::new(Scripted::play(scripts)).tool(echo).max_turns(u32::MAX);
    let log = SqliteLog::open_with(path, Durability::Relaxed)?;
    let run = engine.chat("go").record(&log).await?.run_id.ok_or("a run")?;
    let (mut from, mut bytes) = (1, 0);
    loop {
        let records = log.read(&run, from, 1_000).await?;
        if records.is_empty() {
            break;
        }
        from += records.len() as u64;
        let bodies = records.iter().filter_map(Record::body);
        bytes += bodies.map(|body| body.payload.len()).sum::<usize>();
    }
    // The last handle moves everything into the file.
    drop((engine, log));
    Ok(fs::metadata(path)?.len() as f64 / bytes as f64)
}

/// Milliseconds to restore a session from the records of its turns. Each turn is a run.
async fn restore(path: &Path) -> Result<[f64; 2]> {
    let engine = Engine::new(Scripted::play((0..TURNS).map(|_| script().stop())));
    let log = SqliteLog::open_with(path, Durability::Relaxed)?;
    let (mut session, mut last) = engine.start("go").record(&log).await?;
    for _ in 1..TURNS {
        (session, last) = engine.reply(&session, "and then?").record(&log).await?;
    }
    let run = last.run_id.ok_or("a run")?;
    let watch = Stopwatch::start()?;
    mynah::restore_turn(&log, &*run).await?;
    watch.each(1)
}

/// A model that never answers, or calls a tool that never returns.
struct Idle {
    calls_tool: bool,
}

impl Adapter for Idle {
    fn name(&self) -> &str {
        "idle"
    }

    fn open(self: Arc<Self>, _: Request, _: ModelCall) -> BoxFuture<mynah::Result<ModelStream>> {
        Box::pin(async move {
            if !self.calls_tool {
                std::future::pending::<()>().await;
            }
            let events = [
                Event::message_started(),
                Event::tool_call_completed(ToolCall::new("c1", "wait", "{}")),
                Event::message_completed(Some(FinishReason::ToolCalls)),
            ];
            let events = futures_util::stream::iter(events.map(Ok));
            Ok(Box::pin(events) as ModelStream)
        })
    }
}

/// Bytes of memory for each run that waits for its model, or recorded in its tool.
async fn idle(path: Option<PathBuf>) -> Result<f64> {
    let log = path.map(|path| SqliteLog::open_with(path, Durability::Relaxed)).transpose()?;
    let wait = mynah::Tool::new("wait", "Never returns.", json!({"type": "object"}));
    let wait = wait.handler(async |_: Value, _| std::future::pending::<Value>().await);
    let engine = Engine::new(Idle { calls_tool: log.is_some() }).tool(wait);
    let start = |n: usize| {
        let chat = engine.chat(format!("job {n}"));
        let chat = if let Some(log) = &log { chat.record(log) } else { chat };
        tokio::spawn(chat.stream().for_each(async |_| {}))
    };
    // What the first run sets up for all.
    start(0);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (before, count) = (memory()?, if log.is_some() { IDLE.1 } else { IDLE.0 });
    let runs: Vec<_> = (1..=count).map(start).collect();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let grown = memory()?.saturating_sub(before);
    runs.iter().for_each(|run| run.abort());
    Ok(grown as f64 / count as f64)
}
