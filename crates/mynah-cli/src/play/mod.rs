//! `mynah play`: performs a scenario and prints what happens, one JSON value a line.

mod hashes;
mod kept;
mod options;
mod per_run;
mod perform;
mod scenario;
mod tools;
mod world;

use std::{
    io::{self, BufWriter},
    path::Path,
    sync::Arc,
};

use mynah::{Engine, Message, Options, SystemWorld, World};

pub(crate) use self::options::{condition, last_about};
use self::{hashes::Hashes, world::Counters};
use crate::{
    Failure,
    best_effort::BestEffortWriter,
    input::{is_stdin, name, read_json},
    ledger::Ledger,
    near, runtime,
    store::{LogLocation, shown},
    text::quoted,
    unless_interrupted, written,
};

pub(crate) const EXAMPLES: &str = r#"A scenario:
  {
    "scripts": [ [ {"text": "hello"}, {"finish": "stop"} ] ],
    "ops":     [ {"op": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": true} ]
  }

Examples:
  mynah play agent.json                    run it
  mynah play agent.json | jq .ok           print the results
  mynah play --stable agent.json           print the same bytes each time
  mynah play --log sqlite:mynah.db agent.json
                                           record every run; operations on runs need this

`mynah demo` leaves such a file. The format is described in docs/scenario.md.

Exit codes: 0 the scenario ran, also if operations failed: see their lines; 2 wrong usage or a bad file; 4 a file
or log cannot be used; 130 interrupted."#;

pub(crate) fn main(file: &Path, url: Option<&str>, stable: bool) -> Result<(), Failure> {
    let place = url.map(LogLocation::parse).transpose()?;
    let mut scenario = scenario::parse(&read_json(file)?, place.is_some())
        .map_err(|why| Failure::input(format!("{}: {why}", name(file))))?;
    near::warn("engine.params", &scenario.engine.resolve_params(&Options::new()));
    for (index, op) in scenario.ops.iter().enumerate() {
        near::warn(&format!("ops.{index}.options"), &op.options);
    }
    let log = place.map(|place| place.open()).transpose()?;
    let runtime = runtime()?;
    let world: Arc<dyn World> = match &log {
        _ if !stable => Arc::new(SystemWorld),
        Some(log) => Arc::new(runtime.block_on(Counters::after(log))?),
        None => Arc::new(Counters::default()),
    };
    scenario.engine = scenario.engine.world(Arc::clone(&world));
    let log = log.map(|log| Arc::new(Ledger::new(log)));
    let mut out = BestEffortWriter::new(BufWriter::new(io::stdout().lock()));
    let hashes = if stable { Hashes::counted() } else { Hashes::Shown };
    let performed = perform::perform(scenario, world, log.clone(), hashes, &mut out);
    let performed = runtime.block_on(async {
        let performed = unless_interrupted(performed).await;
        if let Some(log) = &log {
            log.settle().await;
        }
        performed
    });
    if let Some(performed) = performed {
        return written(performed.and_then(|()| out.end()));
    }
    let run = log.and_then(|log| log.written());
    let told = match (&run, url) {
        (Some(run), Some(url)) => {
            let agent = if is_stdin(file) { "FILE".into() } else { file.to_string_lossy() };
            let (agent, url) = (quoted(&agent), quoted(&shown(url)));
            let command = format!("mynah resume {} --agent {agent} --log {url}", quoted(run));
            format!("interrupted; run {run} can be resumed:\n  {command}")
        }
        _ => "interrupted; nothing was recorded".to_owned(),
    };
    Err(Failure::interrupted(told, run.as_deref()))
}

/// The engine of a scenario, with its scripts and tools. Its model continues after these answers,
/// which are those of the runs in order. With `per_run`, each run begins with the first script.
pub(crate) fn agent(
    file: &Path,
    answers: &[Vec<Arc<Message>>],
    per_run: bool,
) -> Result<Engine, Failure> {
    scenario::agent(&read_json(file)?, answers, per_run)
        .map_err(|why| Failure::input(format!("{}: {why}", name(file))))
}
