//! `mynah cancel`: ends a run that has no end.

use std::{
    io::{self, Write as _},
    sync::Arc,
};

use clap::Args;
use mynah::{Error, ErrorKind, LogReason, cancel_run, log::Log as _};
use serde_json::json;

use crate::{
    Failure, LogArgs,
    ledger::Ledger,
    runtime,
    store::{self, LogLocation},
    text::{count, line},
    written,
};

pub(crate) const EXAMPLES: &str = "The records stay, and the run is sealed. Nothing can be added to it; `mynah fork` branches it. A run that ended without a seal is sealed and keeps its end.

Examples:
  mynah runs --status suspended            list the runs that wait
  mynah cancel last                        end the newest run

Exit codes: 0 done; 1 the run was changed; 2 no such run, or it has ended; 4 the log cannot be used, or another process holds the run.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// Run id, the beginning of one, or `last`.
    run: String,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: LogArgs { log, json }, run } = arguments;
    let log = Arc::new(Ledger::new(LogLocation::parse(&log)?.open_to_write()?));
    runtime()?.block_on(async {
        let run = store::find(log.as_ref(), &run).await?;
        let run = run.run_id;
        let cancelled = cancel_run(&log, &run).await;
        let status = cancelled.map_err(|error| refused(&error, &run))?.as_str();
        let records = log.head(&run).await?.map_or(0, |head| head.seq);
        let mut out = io::stdout().lock();
        written(if json {
            let line = json!({"run_id": run, "status": status, "records": records});
            writeln!(out, "{line}")
        } else {
            writeln!(out, "{}  {status}  {}", line(&run), count(records, "record"))
        })
    })
}

/// Why a run was not ended. A run in progress is ended by the process that holds it.
fn refused(error: &Error, run: &str) -> Failure {
    match error.kind() {
        ErrorKind::Log(LogReason::Leased) => Failure::file(format!(
            "run {run} is held by another process; stop that process, then cancel the run"
        ))
        .because(error.clone()),
        _ => Failure::of(error),
    }
}
