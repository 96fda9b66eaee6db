//! `mynah play`: performs a scenario and prints what happens, one JSON value a line.

mod hashes;
mod kept;
mod options;
mod perform;
mod scenario;
mod tools;
mod world;

use std::{
    io::{self, BufWriter},
    path::Path,
    sync::Arc,
};

use mynah::{Engine, SystemWorld, World};

use self::{hashes::Hashes, world::Counters};
use crate::{
    Failure,
    input::{name, read},
    ledger::Ledger,
    runtime,
    store::Place,
    text::quoted,
    unless_interrupted, written,
};

pub(crate) const EXAMPLES: &str = r#"A scenario:
  {
    "scripts": [ [ {"text": "hello"}, {"finish": "stop"} ] ],
    "ops":     [ {"op": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": true} ]
  }

Examples:
  mynah play FILE.json                     perform it
  mynah play FILE.json | jq .ok            look at the results
  mynah play --stable FILE.json            the same bytes each time
  mynah play --log sqlite:runs.db FILE.json
                                           keep every run, and perform operations on runs

The format is described in docs/scenario.md."#;

pub(crate) fn main(file: &Path, url: Option<&str>, stable: bool) -> Result<(), Failure> {
    let place = url.map(Place::parse).transpose()?;
    let mut scenario = scenario::parse(&read(file)?, place.is_some())
        .map_err(|why| Failure::input(format!("{}: {why}", name(file))))?;
    let log = place.map(|place| place.open()).transpose()?;
    let runtime = runtime()?;
    let world: Arc<dyn World> = match &log {
        _ if !stable => Arc::new(SystemWorld),
        Some(log) => Arc::new(runtime.block_on(Counters::after(log))?),
        None => Arc::new(Counters::default()),
    };
    scenario.engine = scenario.engine.world(Arc::clone(&world));
    let log = log.map(|log| Arc::new(Ledger::new(log)));
    let mut out = BufWriter::new(io::stdout().lock());
    let hashes = if stable { Hashes::counted() } else { Hashes::Shown };
    let performed = perform::perform(scenario, world, log, hashes, &mut out);
    match runtime.block_on(unless_interrupted(performed)) {
        Some(performed) => written(performed),
        None => Err(Failure::interrupted(match url {
            Some(url) => {
                let (file, url) = (quoted(&file.display().to_string()), quoted(url));
                format!(
                    "interrupted; its last run can go on:\n  mynah resume last --agent {file} --log {url}"
                )
            }
            None => "interrupted; nothing was kept".to_owned(),
        })),
    }
}

/// The engine of a scenario, with its scripts and tools: an agent, until there are files for those alone.
pub(crate) fn agent(file: &Path) -> Result<Engine, Failure> {
    scenario::agent(&read(file)?).map_err(|why| Failure::input(format!("{}: {why}", name(file))))
}
