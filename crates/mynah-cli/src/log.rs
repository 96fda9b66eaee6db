//! `mynah log`: prepares a log.

use std::io::{self, Write as _};

use clap::{Args, Subcommand};
use mynah::log::RunFilter;
use serde_json::json;

use crate::{Failure, LogArgs, runtime, store::LogLocation, written};

pub(crate) const EXAMPLES: &str = "A log is also created by the first verb that writes to it, if that may create it. A log that is there is left as it is.

Examples:
  mynah log init --log postgres://owner@db/mynah   create the tables in a database
  mynah log init --log sqlite:runs.db              create the file

Exit codes: 0 done; 4 the log cannot be used.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Create the file or the tables of a log.
    Init {
        #[command(flatten)]
        log: LogArgs,
    },
}

pub(crate) fn main(Arguments { action: Action::Init { log } }: Arguments) -> Result<(), Failure> {
    let LogArgs { log: url, json } = log;
    let log = LogLocation::parse(&url)?.open()?;
    // Connecting creates the tables.
    runtime()?.block_on(log.runs(RunFilter::new().limit(1)))?;
    let mut out = io::stdout().lock();
    written(if json { writeln!(out, "{}", json!({"ready": true})) } else { writeln!(out, "ready") })
}
