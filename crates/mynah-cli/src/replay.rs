//! `mynah replay`: performs a run again from its records, and compares.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use mynah::{Engine, Error, ErrorKind, LogReason, Mismatch, Tools, log::Log, replay_run};
use mynah_agent::golden::{Answers, Check};
use serde_json::{Value, json};

use crate::{
    Failure, LogArgs,
    agent::{self, VarArgs},
    golden, input, runtime,
    store::{self, LogLocation},
    text::{count, line, plain, short},
    tty::Looks,
    verify::wrong,
    written,
};

pub(crate) const EXAMPLES: &str =
    "An agent is an agent file or a scenario. The model is called only with --what-if.

Examples:
  mynah replay last                        replay the records alone
  mynah replay last --agent agent.toml     compare with this agent; records answer for its tools
  mynah replay last --agent agent.toml --tools rerun
                                           the same, but execute its idempotent tools
  mynah replay last --agent agent.toml --allow-changed-agent
                                           show what the loop does differently with a changed agent
  mynah replay last --agent agent.toml --what-if
                                           call the model again; records answer for equal tool calls
  mynah replay last --system @prompt.txt   compare with another system prompt
  mynah replay last --json | jq .err.metadata.diff

Exit codes: 0 equal; 1 different, or the run was changed; 2 no such run; 4 the log cannot be used.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// Run id, the beginning of one, or `last`.
    run: String,
    /// Compare with this agent: an agent file (.toml) or a scenario.
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    #[command(flatten)]
    vars: VarArgs,
    /// Answer tool calls from the records (default), or execute tools: all of a scenario, the idempotent ones of an agent file.
    /// Approved calls need --rerun.
    #[arg(long, value_name = "HOW")]
    tools: Option<How>,
    /// Execute this tool of the agent, idempotent or not. Repeatable.
    #[arg(long = "rerun", value_name = "TOOL", requires = "agent")]
    rerun: Vec<String>,
    /// Replace the system prompt; @FILE reads it from a file.
    #[arg(long, value_name = "TEXT|@FILE")]
    system: Option<String>,
    /// Ignore a changed model, tools and params; compare behaviour.
    #[arg(long, requires = "agent")]
    allow_changed_agent: bool,
    /// Call the agent's model and show which calls and answer differ; answer equal tool calls from the records.
    #[arg(long, requires = "agent", conflicts_with_all = ["tools", "rerun", "system", "allow_changed_agent"])]
    what_if: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum How {
    Rerun,
    Recorded,
}

impl How {
    fn tools(self, agent: &Path) -> Tools {
        match self {
            How::Rerun if agent::is_agent_file(agent) => Tools::Idempotent,
            // The tools of a scenario are simulated: running them again has no effect.
            How::Rerun => Tools::All,
            How::Recorded => Tools::Recorded,
        }
    }
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments {
        log: LogArgs { log, json },
        run,
        agent,
        vars,
        tools,
        rerun,
        system,
        allow_changed_agent,
        what_if,
    } = arguments;
    if let (None, Some(How::Rerun)) = (&agent, tools) {
        let why = "--tools rerun: the tools are the agent's; --agent FILE names one";
        return Err(Failure::input(why));
    }
    let system = system.map(|said| match said.strip_prefix('@') {
        Some(file) => input::read(Path::new(file)),
        None => Ok(said),
    });
    let system = system.transpose()?;
    let log = LogLocation::parse(&log)?.open_to_read()?;
    runtime()?.block_on(async {
        let engine = match &agent {
            Some(agent) => {
                Some((agent, agent::load(agent, &vars, &agent::Answered::default()).await?))
            }
            None => None,
        };
        let run = store::find(log.as_ref(), &run).await?.run_id;
        if let (Some((_, engine)), true) = (&engine, what_if) {
            return asked_again(engine, log.as_ref(), &run, json).await;
        }
        let mut replay = match &engine {
            Some((agent, engine)) => {
                let tools = tools.unwrap_or(How::Recorded).tools(agent);
                engine.replay(&log, &*run).replay_tools(tools)
            }
            None => replay_run(&log, &*run),
        };
        for tool in rerun {
            replay = replay.rerun_tool(tool);
        }
        if allow_changed_agent {
            replay = replay.allow_changed_engine();
        }
        if let Some(text) = &system {
            replay = replay.system(text);
        }
        let mut out = io::stdout().lock();
        match replay.await {
            Ok(replayed) if json => {
                let records = replayed.records;
                let line = json!({"run_id": run, "status": "equal", "records": records});
                written(writeln!(out, "{line}"))
            }
            Ok(replayed) => {
                let (run, records) = (line(&run), count(replayed.records, "record"));
                written(writeln!(out, "{run}  equal  {records}"))
            }
            Err(error) => {
                let Some(status) = finding(&error) else { return Err(Failure::of(&error)) };
                written(if json {
                    let line = json!({"run_id": run, "status": status, "err": error});
                    writeln!(out, "{line}")
                } else {
                    write_difference(&run, &error, &mut out)
                })?;
                Err(Failure::finding(match (status, engine) {
                    ("corrupt", _) => "the run was changed or damaged",
                    _ if system.is_some() && is_of(&error, "thread.") => {
                        "with these instructions the model would be asked something else"
                    }
                    (_, Some(_)) if is_of(&error, "about.") => {
                        "this agent is not the one that the run ran with; \
                         pass --allow-changed-agent to see what it would do differently"
                    }
                    (_, Some(_)) => "this agent would not do what the run did",
                    (_, None) => "this version does not make of the records what they say",
                }))
            }
        }
    })
}

/// Asks the model again, and shows which calls and answer differ.
async fn asked_again(engine: &Engine, log: &dyn Log, run: &str, json: bool) -> Result<(), Failure> {
    let check = Check::of_run(engine, log, run).await?.answers(Answers::WhatIf);
    let mut out = io::stdout().lock();
    for checked in check.run().await? {
        written(match json {
            true => writeln!(out, "{}", json!(checked)),
            false => writeln!(out, "{}", golden::shown(&checked, Looks::detect())),
        })?;
        if !checked.ok {
            return Err(Failure::finding("this agent does not do what the run did"));
        }
    }
    Ok(())
}

/// The finding, if the error reports something that was looked for.
fn finding(error: &Error) -> Option<&'static str> {
    match error.kind() {
        ErrorKind::Replay(_) => Some("mismatch"),
        ErrorKind::Log(LogReason::Corrupt | LogReason::TooNew) => Some(error.reason()),
        _ => None,
    }
}

/// Whether what differs is all under such a path: what the run ran with, or was asked, and not what it did.
fn is_of(error: &Error, under: &str) -> bool {
    let differences = error.differences();
    !differences.is_empty() && differences.iter().all(|place| place.path.starts_with(under))
}

/// How much of a value fits on a line.
const LINE: usize = 160;

fn write_difference(run: &str, error: &Error, out: &mut impl Write) -> io::Result<()> {
    let run = line(run);
    let Some(Mismatch { seq, recorded, produced, .. }) = error.mismatch() else {
        return writeln!(out, "{run}  corrupt: {}", plain(&wrong(error)));
    };
    let produced = produced.as_deref().unwrap_or("nothing");
    let expected = recorded.as_deref();
    match expected {
        Some(expected) if expected == produced => {
            writeln!(out, "{run}  differs at record {seq}, {expected}")?;
        }
        expected => {
            writeln!(out, "{run}  differs at record {seq}")?;
            writeln!(out, "    recorded  {}", expected.unwrap_or("nothing"))?;
            writeln!(out, "    produced  {produced}")?;
        }
    }
    // The call and the tool that it is about, and its outcome.
    let message = error.message();
    let told = message.split_once(&format!("record {seq}: ")).map_or("", |(_, told)| told);
    if expected != Some(produced) || told.starts_with("call ") {
        writeln!(out, "  {}", short(told, LINE))?;
    }
    let diff = error.metadata().get("diff").and_then(Value::as_array);
    write_fields(diff.map_or(&[], Vec::as_slice), ["recorded", "produced"], out)
}

/// The places in a record that differ, one after the other.
pub(crate) fn write_fields(
    diff: &[Value],
    sides: [&str; 2],
    out: &mut impl Write,
) -> io::Result<()> {
    for difference in diff {
        writeln!(out, "  {}", short(difference["path"].as_str().unwrap_or("it"), LINE))?;
        for side in sides {
            let told = difference.get(side).map_or("nothing".to_owned(), Value::to_string);
            writeln!(out, "    {side}  {}", short(&told, LINE))?;
        }
    }
    Ok(())
}
