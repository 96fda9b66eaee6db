//! `mynah fork`: branches a run.

use std::{
    io::{self, Write as _},
    path::PathBuf,
};

use clap::Args;
use mynah::{
    Error, LogReason, fork_run,
    log::{Fact, Log},
};
use serde_json::{Value, json};

use crate::{
    Failure, LogArgs,
    agent::VarArgs,
    model::{CallArgs, cannot_go_on},
    play, resume, runtime,
    store::{self, LogLocation},
    text::line,
    waiting::Waiting,
    written,
};

pub(crate) const EXAMPLES: &str = "Examples:
  mynah show last --records                find the record to branch at
  mynah fork last --at 5                   create a run with records 1 to 5
  mynah resume last --agent agent.json     continue it
  mynah fork last --at 5 --agent agent.json
                                           do both at once

Exit codes: 0 done; 1 the run was changed; 2 no such run or record; 4 the log cannot be used; with --agent also those of `mynah resume`.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// Run id, the beginning of one, or `last`.
    run: String,
    /// Copy the records up to this one.
    #[arg(long, value_name = "SEQ")]
    at: u64,
    /// Continue the new run with this agent: an agent file (.toml) or a scenario.
    #[arg(long, value_name = "FILE")]
    agent: Option<PathBuf>,
    #[command(flatten)]
    vars: VarArgs,
    /// Continue even if the agent differs from the one that began the run.
    #[arg(long, requires = "agent")]
    allow_changed_agent: bool,
    /// Change a limit of the run, such as turns=20. Repeatable. Earlier usage counts.
    #[arg(long, value_name = "LIMIT=N", value_parser = resume::limit, requires = "agent")]
    budget: Vec<(String, Value)>,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: place, run, at, agent, vars, allow_changed_agent, budget } = arguments;
    let resume = agent.map(|agent| {
        let resume = resume::Arguments::new(place.clone(), run.clone(), agent, vars);
        resume.changed(allow_changed_agent, budget)
    });
    let fork = runtime()?.block_on(branch(&place, &run, at, resume.as_ref()))?;
    match resume {
        Some(resume) => resume::main(resume.of_run(fork)),
        None => Ok(()),
    }
}

/// Makes the branch, and prints how to resume it unless that happens now. Returns its id.
async fn branch(
    place: &LogArgs,
    run: &str,
    at: u64,
    resume: Option<&resume::Arguments>,
) -> Result<String, Failure> {
    let goes_on = resume.is_some();
    let log = LogLocation::parse(&place.log)?.open_to_write()?;
    let run = store::find(log.as_ref(), run).await?;
    // A run cannot continue after its end: only the seal follows it.
    let end = run.records.saturating_sub(u64::from(run.seal.is_some()));
    if goes_on && run.status.is_ended() && at >= end {
        let last = end.saturating_sub(1);
        let why = if at == end { "ends there" } else { "has no such record" };
        return Err(Failure::input(format!(
            "--at {at}: run {} {why}; choose one of its records 1 to {last}",
            run.run_id
        )));
    }
    let own_loop = is_of_its_own_loop(log.as_ref(), &run.run_id).await?;
    if own_loop && goes_on {
        return Err(Error::log(LogReason::OwnLoop)
            .with_message(format!(
                "run {} was written by a loop of its caller's own, and no agent can go on with it; \
                 fork it without --agent, and that loop goes on with the fork: `Config::resume` in Rust",
                run.run_id
            ))
            .with("run_id", &*run.run_id)
            .into());
    }
    // A fork that its agent cannot continue would be left behind.
    if let Some(resume) = resume {
        resume.check_fork(&log, &run, at).await?;
    }
    let forked = fork_run(&log, &*run.run_id, at).await?;
    let mut out = io::stdout().lock();
    if place.json {
        written(writeln!(out, "{}", json!(forked)))?;
        return Ok(forked.run_id.to_string());
    }
    let (fork, run) = (&forked.run_id, line(&run.run_id));
    written(writeln!(out, "{fork}  forked from {run} at record {at}"))?;
    match (goes_on, own_loop) {
        (true, _) => {}
        (false, true) => {
            let how = "resume it with the loop that wrote it: `Config::resume` in Rust";
            written(writeln!(out, "{how}"))?;
        }
        (false, false) => {
            let about = play::last_about(log.as_ref(), fork).await?;
            let who = match cannot_go_on(&about, None) {
                Some(_) => " --agent FILE".to_owned(),
                None => CallArgs::kept(&about).flags(),
            };
            let command = place.command("resume", fork, &who);
            let facts = store::facts(log.as_ref(), fork).await?;
            let facts: Vec<Fact> = facts.into_iter().filter_map(|(_, fact)| fact).collect();
            let told = match facts.last() {
                Some(Fact::Suspended(end)) => {
                    format!("it {}", Waiting::new(end, &facts).told(&command))
                }
                _ => format!("resume it with: {command}"),
            };
            written(writeln!(out, "{told}"))?;
        }
    }
    Ok(forked.run_id.to_string())
}

/// Whether a custom loop wrote the run. Redacted records do not show it.
async fn is_of_its_own_loop(log: &dyn Log, run: &str) -> Result<bool, Failure> {
    let first = log.read(run, 1, 1).await?;
    Ok(match first.first().and_then(|record| record.fact().ok().flatten()) {
        Some(Fact::RunStarted { about: Some(about), .. }) => about.is_bare(),
        fact => fact.is_some(),
    })
}
