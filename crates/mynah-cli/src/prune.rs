//! `mynah prune`: old runs out of a log.

use std::{
    io::{self, BufWriter, Write},
    time::Duration,
};

use clap::Args;
use mynah::{
    Error, ErrorKind,
    log::{Prune, PruneReport, RunStatus, RunSummary},
};
use serde_json::json;

use crate::{
    Failure, LogArgs, RemovalArgs, now, runs, runtime,
    text::{Moment, count, line, plain},
    written,
};

pub(crate) const EXAMPLES: &str = "The oldest runs are removed first. The runs of a session are removed together; a session with more runs than --limit stays. Runs that a process holds stay, as do runs that were changed; both are named. Ids of removed runs are never used again. Export what may be needed later.

Examples:
  mynah prune --older-than 30d --reason age          list what would be removed
  mynah prune --older-than 30d --reason age --yes    remove it
  mynah prune --older-than 12h --status failed --limit 100 --reason noise
  mynah show log:maintenance --records               show everything that was ever removed

Exit codes: 0 done; 1 a run was changed; 2 wrong usage; 4 the log cannot be used.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// Remove runs that began longer ago than this: 90s, 45m, 12h, 30d or 8w.
    #[arg(long, value_name = "AGE", value_parser = age)]
    older_than: Duration,
    /// Remove only runs of this status.
    #[arg(long, value_parser = runs::status, value_name = "STATUS")]
    status: Option<RunStatus>,
    /// Remove at most this many runs.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Remove runs that have not ended, too; they cannot be resumed.
    #[arg(long)]
    include_unfinished: bool,
    #[command(flatten)]
    removal: RemovalArgs,
}

fn age(text: &str) -> Result<Duration, String> {
    let wrong = || "give a number and a unit: 90s, 45m, 12h, 30d or 8w".to_owned();
    let (number, unit) = text.split_at(text.len() - text.chars().last().map_or(0, char::len_utf8));
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: LogArgs { log, json }, removal, .. } = &arguments;
    let log = removal.open(log)?;
    let age = i64::try_from(arguments.older_than.as_nanos()).unwrap_or(i64::MAX);
    let mut prune = Prune::before(now().saturating_sub(age));
    (prune.status, prune.unfinished) = (arguments.status, arguments.include_unfinished);
    prune.limit = arguments.limit.unwrap_or(usize::MAX);
    let runtime = runtime()?;
    let found: mynah::Result<_> = runtime.block_on(async {
        if removal.yes {
            prune.perform(log.as_ref(), &removal.warrant()).await
        } else {
            prune.dry_run(log.as_ref(), now()).await
        }
    });
    let report = found.map_err(|error| match arguments.status {
        Some(status) if matches!(error.kind(), ErrorKind::Validation(_)) => {
            Failure::input(format!(
                "--status {}: those have not ended; --include-unfinished takes them too",
                status.as_str()
            ))
        }
        _ => Failure::of(&error),
    })?;
    let mut out = BufWriter::new(io::stdout().lock());
    written(if *json {
        write_json(&report, removal.yes, &mut out)
    } else {
        write_text(&report, removal.yes, &mut out)
    })?;
    removal.wipe(&runtime, log.as_ref())?;
    match report.damaged.len() as u64 {
        0 => Ok(()),
        stay => Err(Failure::finding(format!(
            "{} left as evidence of damage: restore the log from a copy to prune what is damaged, or leave it there",
            count(stay, "run")
        ))),
    }
}

fn write_json(report: &PruneReport, done: bool, out: &mut impl Write) -> io::Result<()> {
    let PruneReport { pruned: found, in_use, damaged, .. } = report;
    for run in found {
        writeln!(out, "{}", json!(run))?;
    }
    let (runs, records) = (found.len(), records(found));
    let in_use: Vec<&str> = in_use.iter().map(|run| &*run.run_id).collect();
    let damaged = damaged.iter().map(|(run, corrupt)| {
        let err = Error::from(corrupt.clone());
        json!({"run_id": run.run_id, "err": err})
    });
    let damaged: Vec<_> = damaged.collect();
    let told = json!({
        "dry_run": !done, "runs": runs, "records": records, "in_use": in_use, "damaged": damaged
    });
    writeln!(out, "{told}")?;
    out.flush()
}

fn write_text(report: &PruneReport, done: bool, out: &mut impl Write) -> io::Result<()> {
    let PruneReport { pruned: found, in_use, damaged, .. } = report;
    for RunSummary { run_id, .. } in in_use {
        writeln!(out, "{}  stays: it is in use, or a run in use continues it", line(run_id))?;
    }
    for (RunSummary { run_id, .. }, corrupt) in damaged {
        let why = match *corrupt.run_id == **run_id {
            true => format!("it is damaged: record {}: {}", corrupt.seq, plain(&corrupt.what)),
            false => format!("run {}, which is damaged, continues it", line(&corrupt.run_id)),
        };
        writeln!(out, "{}  stays: {why}", line(run_id))?;
    }
    let some_stay = !in_use.is_empty() || !damaged.is_empty();
    for run in found {
        let (started, records) = (Moment(run.started), count(run.records, "record"));
        let (run_id, status) = (line(&run.run_id), runs::shown_status(run));
        writeln!(out, "{run_id}  {started}  {status}  {records}")?;
    }
    let told = match (found.len() as u64, done) {
        (0, true) if some_stay => "nothing pruned".to_owned(),
        (0, false) if some_stay => "nothing would go".to_owned(),
        (0, _) => {
            "nothing to prune; runs that have not ended stay, runs that a remaining run continues, and sessions with more runs than --limit"
                .to_owned()
        }
        (runs, true) => {
            format!("{}, {} pruned", count(runs, "run"), count(records(found), "record"))
        }
        (runs, false) => format!(
            "{}, {} would go; nothing was changed: --yes takes them out",
            count(runs, "run"),
            count(records(found), "record")
        ),
    };
    writeln!(out, "{told}")?;
    out.flush()
}

fn records(found: &[RunSummary]) -> u64 {
    found.iter().map(|run| run.records).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_a_unit() {
        let table = [("90s", 90), ("45m", 2700), ("12h", 43_200), ("30d", 2_592_000), ("0w", 0)];
        for (text, seconds) in table {
            assert_eq!(age(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "d", "30", "30 d", "-1d", "1.5h", "1y", "9999999999999999999d", "3ü"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
    }
}
