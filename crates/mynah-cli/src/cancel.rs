//! `mynah cancel`: ends a run that has no end.

use std::{
    io::{self, Write as _},
    sync::Arc,
};

use clap::Args;
use mynah::{cancel_run, log::Log as _};
use serde_json::json;

use crate::{
    Failure, LogArgs,
    ledger::Ledger,
    runtime,
    store::{self, Place},
    text::{count, line},
    written,
};

pub(crate) const EXAMPLES: &str = "Examples:
  mynah runs --status suspended            see which runs wait
  mynah cancel last                        end the newest

What the run did stays, and its seal is written. Nothing can follow that: `mynah fork` goes on elsewhere.
A run that had come to its end and only lacked the seal gets that, and is as it ended.
Exit codes: 0 done; 1 the run is not what it was; 2 no such run, or one that has ended; 4 a log that
could not be used, or a run in other hands.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// The run: its id, the beginning of it, or `last`.
    run: String,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: LogArgs { log, json }, run } = arguments;
    let log = Arc::new(Ledger::new(Place::parse(&log)?.open_to_write()?));
    runtime()?.block_on(async {
        let run = store::find(log.as_ref(), &run).await?;
        let (status, run) = (cancel_run(&log, &run.run_id).await?.as_str(), run.run_id);
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
