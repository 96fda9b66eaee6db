//! `mynah redact`: what records hold, taken away.

use std::io::{self, BufWriter, Write};

use clap::Args;
use mynah::log::{Redact, Redactable, RunSummary};
use serde_json::json;

use crate::{
    Failure, LogArgs, RemovalArgs, runtime, store,
    text::{count, line},
    verify::with_run,
    written,
};

pub(crate) const EXAMPLES: &str = "Examples:
  mynah redact last --record 2 5 --reason \"card number\"           say what would go
  mynah redact last --record 2 5 --reason \"card number\" --yes     take it away
  mynah redact last --kind run_started --reason \"asked to\" --yes
  mynah redact last --all --reason \"asked to\" --yes               all but the seal

`mynah show RUN --records` tells which record is which, and of what kind.
The turn_started records after them go too: they hold a hash over what was said, by which a guess of it could be checked.";

#[derive(Args)]
#[command(group(clap::ArgGroup::new("which").required(true)))]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// The run: its id, the beginning of it, or `last`.
    run: String,
    /// These records, by number.
    #[arg(long, value_name = "N", num_args = 1.., group = "which")]
    record: Vec<u64>,
    /// All records of this kind.
    #[arg(long, value_name = "KIND", group = "which")]
    kind: Option<String>,
    /// All records but the seal.
    #[arg(long, group = "which")]
    all: bool,
    #[command(flatten)]
    removal: RemovalArgs,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: LogArgs { log, json }, run, record, kind, removal, .. } = arguments;
    let log = removal.open(&log)?;
    let runtime = runtime()?;
    let RunSummary { run_id, status, .. } = runtime.block_on(store::find(log.as_ref(), &run))?;
    let run = run_id.to_string();
    let redact = match &kind {
        Some(kind) => Redact::kind(&*run, kind),
        None if record.is_empty() => Redact::all(&*run),
        None => Redact::records(&*run, record),
    };
    let found = runtime.block_on(async {
        if removal.yes {
            redact.perform(log.as_ref(), &removal.warrant()).await
        } else {
            redact.candidates(log.as_ref()).await
        }
    });
    let found = found.map_err(|error| Failure::of(&error))?;
    if !status.is_ended() && !found.is_empty() {
        let then = if removal.yes { "it cannot go on now" } else { "it cannot go on then" };
        // Not among the records, so that whoever reads them need not look for it.
        let _ = writeln!(
            io::stderr(),
            "run {} has not ended, and {then}: `mynah cancel` ends it",
            line(&run)
        );
    }
    let mut out = BufWriter::new(io::stdout().lock());
    written(if json {
        write_json(&run, &found, removal.yes, &mut out)
    } else {
        write_text(&line(&run), kind.as_deref(), &found, removal.yes, &mut out)
    })?;
    removal.wipe(&runtime, log.as_ref())
}

fn write_json(run: &str, found: &[Redactable], done: bool, out: &mut impl Write) -> io::Result<()> {
    for record in found {
        writeln!(out, "{}", with_run(run, json!(record)))?;
    }
    let bytes: u64 = found.iter().map(|record| record.bytes).sum();
    let told = json!({"dry_run": !done, "records": found.len(), "bytes": bytes});
    writeln!(out, "{}", with_run(run, told))?;
    out.flush()
}

fn write_text(
    run: &str,
    kind: Option<&str>,
    found: &[Redactable],
    done: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    for Redactable { seq, kind, bytes, .. } in found {
        writeln!(out, "{seq:>4}  {kind:<20}  {}", count(*bytes, "byte"))?;
    }
    let told = match (found.len() as u64, done) {
        (0, _) => match kind {
            Some(kind) => format!("nothing to redact in run {run}: it has no body of kind {kind}"),
            None => format!("nothing to redact in run {run}"),
        },
        (records, true) => format!("{} of run {run} redacted", count(records, "record")),
        (records, false) => format!(
            "{} of run {run} would be redacted; nothing was changed: --yes does it",
            count(records, "record")
        ),
    };
    writeln!(out, "{told}")?;
    out.flush()
}
