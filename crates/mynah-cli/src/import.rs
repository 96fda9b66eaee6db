//! `mynah import`: the runs of a file that `mynah export` wrote.

use std::{
    io::{self, Seek as _, Write},
    path::{Path, PathBuf},
};

use clap::Args;
use mynah::{
    Error, ErrorKind, LogReason, RunId,
    log::{
        Log,
        bundle::{Imported, import, verify},
    },
};
use serde_json::json;

use crate::{
    Failure, LogArgs,
    input::{bundles, name},
    runtime,
    store::{self, LogLocation},
    text::{count, plain},
    verify::described,
    written,
};

pub(crate) const EXAMPLES: &str = "The whole file is verified before anything is stored. A run that the log already has is left unchanged.

Examples:
  mynah import run.ndjson                  import a run into the log
  gunzip < run.gz | mynah import -         read from standard input
  mynah import run.ndjson --log sqlite:archive.db

Exit codes: 0 the run is in the log; 2 the file is not valid, or the log has another run of that id; 4 the log or file cannot be used.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// File that `mynah export` wrote; `-` reads standard input.
    file: PathBuf,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: LogArgs { log, json }, file } = arguments;
    let place = LogLocation::parse(&log)?;
    let failed = |error: io::Error| Failure::file(format!("{}: {error}", name(&file)));
    // All are checked first, so that a bad file does not make a log, and nothing of it comes in.
    let mut inputs = bundles(&file)?;
    for input in &mut inputs {
        verify(&mut *input).map_err(|error| refused(&error, &file))?;
        input.rewind().map_err(failed)?;
    }
    let (log, runtime) = (place.open()?, runtime()?);
    inputs.into_iter().try_for_each(|input| {
        let imported = runtime.block_on(import(log.as_ref(), input));
        let imported = imported.map_err(|error| refused(&error, &file))?;
        let needs = runtime.block_on(missing(log.as_ref(), &imported.run_id))?;
        report_run(&imported, &needs, json)
    })
}

/// Prints the report of an imported run, with the runs that it needs.
fn report_run(imported: &Imported, needs: &[RunId], json: bool) -> Result<(), Failure> {
    let Imported { run_id, report, added, withheld, .. } = imported;
    let mut out = io::stdout().lock();
    if json {
        let line = json!({
            "run_id": run_id, "added": added, "withheld": withheld, "report": report, "needs": needs
        });
        return written(writeln!(out, "{line}"));
    }
    let mut told = match added {
        0 => "it was there already".to_owned(),
        added => format!("{} added", count(*added, "record")),
    };
    if *withheld > 0 {
        let records = count(*withheld, "record");
        told += &format!("; of {records} this log keeps no body, as it was redacted here");
    }
    for needed in needs {
        told += &format!(
            "; its conversation began in run {}, which this log lacks: import that too",
            plain(needed)
        );
    }
    written(writeln!(out, "{}  {}  {told}", plain(run_id), described(report)))?;
    if *added > 0 && report.fingerprint.is_none() {
        let advice = "it has not ended: resume it in one log only, or its tools run in both";
        written(writeln!(out, "{advice}"))?;
    }
    Ok(())
}

/// The runs that a run continues and the log lacks. Runs before those are unknown here.
async fn missing(log: &dyn Log, run: &str) -> Result<Vec<RunId>, Failure> {
    let mut missing = store::needed(log, run).await?;
    for place in (0..missing.len()).rev() {
        if log.run(&missing[place]).await?.is_some() {
            missing.remove(place);
        }
    }
    Ok(missing)
}

/// A bad file, and a run that is not taken in, are bad input.
fn refused(error: &Error, file: &Path) -> Failure {
    let is_bad_input = match error.kind() {
        ErrorKind::Log(LogReason::Corrupt | LogReason::TooNew) => {
            error.metadata().contains_key("line")
        }
        kind => kind == ErrorKind::Log(LogReason::HeadMismatch),
    };
    match is_bad_input {
        true => Failure::input(error.to_string()).because(error.clone()).in_file(file),
        false => Failure::of(error),
    }
}
