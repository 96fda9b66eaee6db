//! `mynah fork`: branches a run.

use std::io::{self, Write as _};

use clap::Args;
use mynah::fork_run;
use serde_json::json;

use crate::{
    Failure, LogArgs, runtime,
    store::{self, Place},
    written,
};

pub(crate) const EXAMPLES: &str = "Examples:
  mynah show last --records                see where to branch
  mynah fork last --at 5                   a new run with the records 1 to 5
  mynah resume last --agent FILE.json      go on with it

Exit codes: 0 done; 1 the run is not what it was; 2 no such run or record; 4 a log that could
not be used.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// The run: its id, the beginning of it, or `last`.
    run: String,
    /// The last record that the new run keeps.
    #[arg(long, value_name = "SEQ")]
    at: u64,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: place, run, at } = arguments;
    let log = Place::parse(&place.log)?.open_to_write()?;
    runtime()?.block_on(async {
        let run = store::find(log.as_ref(), &run).await?;
        // Nothing but the seal follows an end, and nothing follows that.
        let end = u64::from(run.status.is_ended()) + u64::from(run.seal.is_some());
        let last = run.records.saturating_sub(end);
        if !(1..=last).contains(&at) {
            return Err(Failure::input(format!(
                "--at {at}: run {} can be branched at its records 1 to {last}",
                run.run_id
            )));
        }
        let forked = fork_run(&log, &*run.run_id, at).await?;
        let mut out = io::stdout().lock();
        if place.json {
            return written(writeln!(out, "{}", json!(forked)));
        }
        let go_on = place.command("resume", &forked.run_id, " --agent FILE");
        written(writeln!(
            out,
            "{}  forked from {} at record {at}\ngo on with: {go_on}",
            forked.run_id, run.run_id
        ))
    })
}
