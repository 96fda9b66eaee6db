//! `mynah run`: lets an agent work on a goal.

use std::{
    io::{self, IsTerminal as _},
    path::PathBuf,
    sync::Arc,
};

use clap::Args;
use mynah::RunId;
use mynah_agent::answer::misfit;
use serde_json::json;

use crate::{
    Failure, LogArgs,
    agent::{self, VarArgs},
    generate::{failed, text_of},
    ledger::Ledger,
    resume, runtime,
    screen::{Followed, Screen, Stop},
    store::LogLocation,
    unless_interrupted, written,
};

pub(crate) const EXAMPLES: &str = "The answer goes to standard output, what tools do to standard error. On a terminal, calls that need approval and questions are answered in place; elsewhere the run waits, and the message says how to continue it.

Examples:
  mynah run agent.toml 'What is in this folder?'
  git diff | mynah run reviewer.toml 'Review this change.' -
  mynah run agent.toml - < goal.txt
  mynah run agent.toml --var language=French 'Translate README.md.'
  mynah run agent.toml --json 'List the tests.' | jq .event.type

Exit codes: 0 done; 1 the run failed, or its answer does not fit the schema; 2 wrong usage, a bad agent file, no key; 3 the run waits; 4 a log, file or server that could not be used; 130 interrupted, and the run can be resumed.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// The agent file, or a scenario.
    agent: PathBuf,
    /// What the agent should do, in quotes; - stands for standard input. If missing, the goal is read from standard input.
    goal: Vec<String>,
    #[command(flatten)]
    vars: VarArgs,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: place, agent, goal, vars } = arguments;
    let words: Vec<&str> = goal.iter().map(String::as_str).collect();
    let goal = text_of(&words, "goal")?;
    if goal.trim().is_empty() {
        return Err(Failure::input("the goal is empty"));
    }
    let location = LogLocation::parse(&place.log)?;
    location.check_room()?;
    let log = Arc::new(Ledger::new(location.open()?));
    let (json, mut screen) = (place.json, Screen::new(place.json));
    let prompt = screen.prompt();
    runtime()?.block_on(async {
        let engine = agent::load(&agent, &vars, &agent::Answered::default()).await?;
        let mut stream = engine.chat(goal).record(&log).stream();
        let resume = |run: &RunId| engine.resume(&log, run);
        let followed = Followed { engine: &engine, resume: &resume, prompt: prompt.as_ref() };
        let work = screen.follow(&mut stream, &followed);
        let done = unless_interrupted(work).await;
        drop(stream);
        log.settle().await;
        let run = log.written();
        log.begin(None).await;
        let Some(run) = run else {
            return Err(match done {
                Some(Err(Stop::Failed(failure))) => failure,
                Some(Err(Stop::Refused(error))) => failed(&error, 1).because(error),
                _ => Failure::interrupted("interrupted; nothing of this run was kept", None),
            });
        };
        let resumed = resume::Arguments::new(place, run.to_string(), agent, vars);
        match done {
            None | Some(Err(Stop::Interrupted)) => {
                written(screen.end())?;
                Err(resumed.interrupted(&run))
            }
            Some(Err(Stop::Failed(failure))) => Err(failure),
            Some(Err(Stop::Refused(error))) => {
                if json {
                    written(screen.line(&json!({"run_id": run, "err": error})))?;
                }
                resumed.judge(&log, &run).await?;
                Err(failed(&error, 1).told())
            }
            Some(Ok(result)) => {
                if json {
                    let facts = resume::facts(log.as_ref(), &run).await?;
                    written(screen.line(&match misfit(&facts) {
                        Some(error) => json!({"run_id": run, "err": error}),
                        None => json!({"run_id": run, "ok": result}),
                    }))?;
                } else if has_unread_input() {
                    screen.note("standard input was not read; - beside the goal adds it");
                }
                resumed.close(&mut screen, &log, &run).await
            }
        }
    })
}

/// Whether something was piped in that the goal does not take.
fn has_unread_input() -> bool {
    #[cfg(unix)]
    let unread = rustix::io::ioctl_fionread(io::stdin()).unwrap_or_default();
    #[cfg(not(unix))]
    let unread = 0;
    unread > 0 && !io::stdin().is_terminal()
}
