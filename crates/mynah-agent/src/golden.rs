//! Regression tests from real runs.
//!
//! A golden is a recorded run that is kept as a file: `NAME.ndjson`, as [`add`] or `mynah golden add` writes it. Beside it `NAME.toml` can say what the
//! run must do. [`check`] holds an agent against all goldens of a folder.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    future::ready,
    io::{self, BufReader},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use mynah::{
    BoxFuture, ChatResult, Engine, ErrorKind, Event, HaltReason, Message, Options, Role, Thread,
    Tool, ToolCall, ToolContext, ToolOutcome,
    log::{Log, MemoryLog, RunSummary, bundle},
    replay_run, testing,
};
use serde::Serialize;
use serde_json::Value;

use crate::expect::Expect;

/// Who answers when a golden is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answers {
    /// The records answer for the model and all tools: free and exact. An agent that differs from the recorded one is a finding.
    #[default]
    Records,
    /// Calls the model. Tools answer from the record if the call is the same, and fail otherwise.
    WhatIf,
    /// Calls the model and runs tools. A call that needs approval runs if the golden has the same
    /// call.
    Live,
}

/// How a golden was checked, and what was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Checked {
    /// The golden's name.
    pub name: String,
    /// The differences from what was expected, in order. Empty if the golden passed.
    pub findings: Vec<String>,
    /// Whether the golden was replaced by the run that was made.
    pub updated: bool,
}

/// Why goldens could not be checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GoldenError {
    /// A file that cannot be read or written.
    #[error("{}: {why}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Why not.
        why: String,
    },
    /// A run that cannot be read or made.
    #[error(transparent)]
    Run(#[from] mynah::Error),
}

fn unusable(file: &Path, why: impl ToString) -> GoldenError {
    GoldenError::File { file: file.to_owned(), why: why.to_string() }
}

/// Keeps a run of a log as a golden: writes `NAME.ndjson`, and `NAME.toml` with the tools that it called. Returns the file of the run.
///
/// # Errors
/// A run that cannot be read, has not ended or continues a session; a file that exists or cannot be written.
pub async fn add(
    log: &dyn Log,
    run: &str,
    folder: &Path,
    name: &str,
) -> Result<PathBuf, GoldenError> {
    let file = folder.join(format!("{name}.ndjson"));
    if file.exists() {
        return Err(unusable(&file, "it exists; choose another name, or remove it"));
    }
    fs::create_dir_all(folder).map_err(|error| unusable(folder, error))?;
    let mut bytes = Vec::new();
    bundle::export(log, run, &mut bytes).await?;
    let golden = Golden::read(&file, io::Cursor::new(&bytes), Expect::default()).await?;
    fs::write(&file, bytes).map_err(|error| unusable(&file, error))?;
    let tools: Vec<Value> = golden.done.calls().map(|call| call.name.as_str().into()).collect();
    let text = format!(
        "# What the run must do; docs/agents.md describes the keys.\ntools = {}\n",
        Value::from(tools)
    );
    let expectations = file.with_extension("toml");
    if !expectations.exists() {
        fs::write(&expectations, text).map_err(|error| unusable(&expectations, error))?;
    }
    Ok(file)
}

/// Checks an engine against all goldens of a folder, in the order of their names. With `update`, goldens whose run differs are replaced by the
/// new run; records alone make none.
///
/// # Errors
/// Files that cannot be read, and a folder without goldens. What differs is a finding.
pub async fn check(
    engine: &Engine,
    folder: &Path,
    answers: Answers,
    update: bool,
) -> Result<Vec<Checked>, GoldenError> {
    let entries = fs::read_dir(folder).map_err(|error| unusable(folder, error))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "ndjson"))
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(unusable(folder, "it has no goldens (*.ndjson)"));
    }
    let mut all = Vec::new();
    for file in files {
        all.push(check_one(engine, &file, answers, update).await?);
    }
    Ok(all)
}

async fn check_one(
    engine: &Engine,
    file: &Path,
    answers: Answers,
    update: bool,
) -> Result<Checked, GoldenError> {
    let input = File::open(file).map_err(|error| unusable(file, error))?;
    let expect = Expect::read(&file.with_extension("toml"))
        .map_err(|why| unusable(&file.with_extension("toml"), why))?;
    let golden = Golden::read(file, BufReader::new(input), expect).await?;
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let (findings, made) = match answers {
        Answers::Records => (golden.replayed(engine).await?, None),
        Answers::WhatIf | Answers::Live => {
            let (made, mut findings) = golden.again(engine, answers == Answers::Live).await?;
            findings.extend(golden.judged(&made.done));
            (findings, Some(made))
        }
    };
    let updated = match made.filter(|made| update && made.done.messages != golden.done.messages) {
        Some(made) => {
            let out = File::create(file).map_err(|error| unusable(file, error))?;
            bundle::export(&made.log, &made.run, out).await?;
            true
        }
        None => false,
    };
    Ok(Checked { name, findings, updated })
}

/// What a run did.
pub(crate) struct Done {
    pub(crate) messages: Vec<Arc<Message>>,
    pub(crate) text: String,
    pub(crate) summary: RunSummary,
}

impl Done {
    /// The tool calls, in order.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.messages.iter().flat_map(|message| message.tool_calls())
    }

    async fn read(log: &MemoryLog, run: &str) -> Result<Self, mynah::Error> {
        let events = testing::collect(replay_run(log, run).stream()).await?;
        let result = events.into_iter().rev().find_map(|event| match event {
            Event::ChatCompleted { result } => Some(*result),
            _ => None,
        });
        let ChatResult { thread, .. } = result.unwrap_or_default();
        let messages: Vec<Arc<Message>> = thread.messages.iter().cloned().collect();
        let said = messages.iter().rev().find(|message| message.role() == Role::Assistant);
        let text = said.map(|message| message.text().into_owned()).unwrap_or_default();
        let summary = log.run(run).await?;
        let missing = || mynah::Error::log(mynah::LogReason::RunNotFound);
        Ok(Self { messages, text, summary: summary.ok_or_else(missing)? })
    }
}

/// A run in a log of its own.
struct Golden {
    log: MemoryLog,
    run: String,
    expect: Expect,
    done: Done,
}

impl Golden {
    async fn read(
        file: &Path,
        input: impl io::BufRead + io::Seek,
        expect: Expect,
    ) -> Result<Self, GoldenError> {
        let log = MemoryLog::new();
        let imported = bundle::import(&log, input).await;
        let run = imported.map_err(|error| unusable(file, error))?.run_id.to_string();
        let done = Done::read(&log, &run).await.map_err(|error| unusable(file, error))?;
        if !done.summary.status.is_ended() {
            return Err(unusable(file, format!("run {run} has not ended")));
        }
        Ok(Self { log, run, expect, done })
    }

    /// What this engine would do differently, from the records.
    async fn replayed(&self, engine: &Engine) -> Result<Vec<String>, GoldenError> {
        let mut findings = match engine.replay(&self.log, &self.run).await {
            Ok(_) => Vec::new(),
            Err(error) if matches!(error.kind(), ErrorKind::Replay(_)) => {
                vec![testing::difference(&error)]
            }
            Err(error) => return Err(error.into()),
        };
        findings.extend(self.expect.findings(&self.done));
        Ok(findings)
    }

    /// Lets the model of this engine do it again.
    async fn again(
        &self,
        engine: &Engine,
        live: bool,
    ) -> Result<(Golden, Vec<String>), GoldenError> {
        let is_question = |message: &&Arc<Message>| message.role() != Role::Assistant;
        let asked: Vec<Arc<Message>> =
            self.done.messages.iter().take_while(is_question).cloned().collect();
        let thread = asked.into_iter().fold(Thread::new(), Thread::with);
        let recorded = Recorded::new(&self.done.messages);
        // Only handlers are replaced, so that the record of the run is one of this agent.
        let tools = if live { Vec::new() } else { recorded.tools(engine) };
        let (log, mut findings) = (MemoryLog::new(), Vec::new());
        let mut result = engine.chat(thread).tools(tools.clone()).record(&log).await?;
        while let Some(run) = result.run_id.clone() {
            let mut resume = engine.resume(&log, run).tools(tools.clone());
            match result.halted_reason {
                HaltReason::ManualToolCalls => {
                    for call in result.manual_tool_calls() {
                        resume = match recorded.answer(&call.name, &call.arguments) {
                            Some(_) if live => resume.approve(&call.id),
                            Some(content) => resume.tool_result(&call.id, content),
                            None => resume.reject(&call.id, UNKNOWN),
                        };
                    }
                }
                HaltReason::AskUser => {
                    let id = result.pending_tool_call_id.clone().unwrap_or_default();
                    let calls =
                        result.thread.messages.iter().flat_map(|message| message.tool_calls());
                    let call = calls.filter(|call| call.id == id).last();
                    let answer = call.and_then(|call| recorded.answer(&call.name, &call.arguments));
                    match answer {
                        Some(answer) => resume = resume.answer(answer),
                        None => {
                            let question = result.pending_question.as_deref().unwrap_or_default();
                            findings
                                .push(format!("asks what the golden does not answer: {question}"));
                            break;
                        }
                    }
                }
                HaltReason::Completed => break,
                ref reason => {
                    let why = result.error().map(|error| format!(": {error}")).unwrap_or_default();
                    findings.push(format!("ended with {reason}{why}"));
                    break;
                }
            }
            result = resume.await?;
        }
        let run = result.run_id.map(|run| run.to_string()).unwrap_or_default();
        let done = Done::read(&log, &run).await?;
        Ok((Golden { log, run, expect: Expect::default(), done }, findings))
    }

    /// The differences in another run of the same agent. Without expectations about tools, the
    /// calls must be the same.
    fn judged(&self, made: &Done) -> Vec<String> {
        let mut findings = Vec::new();
        if !self.expect.has_calls() {
            let shown = |call: Option<&ToolCall>| {
                call.map_or("nothing".to_owned(), |call| {
                    format!("{} {}", call.name, call.arguments)
                })
            };
            let (recorded, now): (Vec<_>, Vec<_>) =
                (self.done.calls().collect(), made.calls().collect());
            for place in 0..recorded.len().max(now.len()) {
                let (recorded, now) =
                    (shown(recorded.get(place).copied()), shown(now.get(place).copied()));
                if recorded != now {
                    findings.push(format!(
                        "call {}\n    recorded: {recorded}\n    produced: {now}",
                        place + 1
                    ));
                    break;
                }
            }
        }
        findings.extend(self.expect.findings(made));
        findings
    }
}

/// What a model reads of a call that the golden does not have.
const UNKNOWN: &str = "this call is not in the recorded run";

/// The results of recorded calls.
#[derive(Clone)]
struct Recorded(Arc<Mutex<BTreeMap<String, Vec<String>>>>);

impl Recorded {
    fn new(messages: &[Arc<Message>]) -> Self {
        let mut results: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for call in messages.iter().flat_map(|message| message.tool_calls()) {
            let is_result = |message: &&Arc<Message>| message.tool_call_id() == Some(&*call.id);
            if let Some(result) = messages.iter().find(is_result) {
                let known = results.entry(key(&call.name, &call.arguments)).or_default();
                known.push(result.text().into_owned());
            }
        }
        Self(Arc::new(Mutex::new(results)))
    }

    /// The next result of a call. The last one stays.
    fn answer(&self, name: &str, arguments: &Value) -> Option<String> {
        let mut results = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = results.get_mut(&key(name, arguments))?;
        if known.len() > 1 { Some(known.remove(0)) } else { known.first().cloned() }
    }
}

/// Returns whether two calls are equal. The order of arguments does not count.
fn key(name: &str, arguments: &Value) -> String {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields: BTreeMap<_, _> =
                    fields.iter().map(|(name, value)| (name.clone(), sorted(value))).collect();
                fields.into_iter().collect()
            }
            Value::Array(items) => items.iter().map(sorted).collect(),
            other => other.clone(),
        }
    }
    format!("{name} {}", sorted(arguments))
}

impl Recorded {
    /// The same tools, whose records answer.
    fn tools(&self, engine: &Engine) -> Vec<Tool> {
        let tools = engine.resolve_tools(&Options::new()).into_iter();
        let answered = |tool: Tool| {
            let (recorded, name) = (self.clone(), tool.name().to_owned());
            tool.with_handler(Arc::new(move |arguments: Value, _: ToolContext| {
                let outcome = match recorded.answer(&name, &arguments) {
                    Some(content) => ToolOutcome::Ok(content.into()),
                    None => ToolOutcome::error(UNKNOWN),
                };
                Box::pin(ready(outcome)) as BoxFuture<ToolOutcome>
            }))
        };
        tools.map(answered).collect()
    }
}
