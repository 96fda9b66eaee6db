//! `mynah verify`: whether runs are what they were.

use std::{
    io::{self, BufRead, BufWriter, Write},
    path::Path,
};

use clap::Args;
use mynah::{
    Error, ErrorKind, LogReason,
    log::{
        Auditor, Hash, Head, Log, RunFilter, VerifyReport,
        bundle::{self, Bundle, Inclusion},
        merkle::Tree,
    },
};
use serde_json::{Value, json};

use crate::{
    Failure, LogArgs, input, runtime,
    store::{self, LogLocation},
    text::{count, line, plain},
    written,
};

pub(crate) const EXAMPLES: &str = "Examples:
  mynah verify                             verify every run of the log, and its list of seals
  mynah verify last                        verify the newest run, and the runs of its agents
  mynah verify RUN --json                  verify a run by its id, or the beginning of it
  mynah verify --root 5f1c…                verify that the log still contains all that had this root
  mynah verify run.ndjson                  verify a file that `mynah export` wrote, without the log
  mynah verify run.html                    verify the run in an exported page
  gunzip < run.gz | mynah verify -         verify a file on standard input

Exit codes: 0 nothing is wrong; 1 something is; 2 no such run, or another kind of file; 4 the log or file cannot be used.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// Run id, the beginning of one, or `last`; or an exported file, or `-` for standard input [default: every run].
    #[arg(value_name = "RUN|FILE")]
    run: Option<String>,
    /// Check that the log contains everything under this earlier root.
    #[arg(long, value_name = "HEX", value_parser = root, conflicts_with = "run")]
    root: Option<Hash>,
}

fn root(text: &str) -> Result<Hash, String> {
    text.parse().map_err(|_| "give the 64 digits that `mynah verify` prints".to_owned())
}

/// What was looked at, and what was found wrong.
struct Tally<'l> {
    auditor: Auditor<'l>,
    runs: u64,
    corrupt: u64,
    /// How many of these only a newer version can read.
    newer: u64,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: LogArgs { log, json }, run, root } = arguments;
    if let Some(file) = run.as_deref().map(Path::new)
        && (input::is_stdin(file)
            // A path of a folder is never a run's name.
            || (file.exists() && (!file.is_dir() || file.components().count() > 1))
            || file.extension().is_some_and(|extension| extension == "ndjson"))
    {
        return verify_file(file, json);
    }
    let place = LogLocation::parse(&log)?;
    let verified = place
        .open_to_read()
        .and_then(|log| runtime()?.block_on(verify(log.as_ref(), run.as_deref(), root, json)));
    verified.map_err(|failure| match run {
        Some(name) if name != "last" && (failure.is_of_absence() || place.is_there().is_err()) => {
            failure.adding(&match Path::new(&name).is_dir() {
                true => format!("; and {name:?} is a folder, not a file"),
                false => format!("; nor is there a file {name:?}"),
            })
        }
        _ => failure,
    })
}

fn verify_file(path: &Path, json: bool) -> Result<(), Failure> {
    input::bundles(path)?.into_iter().try_for_each(|file| verify_bundle(file, path, json))
}

fn verify_bundle(file: impl BufRead, path: &Path, json: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let Bundle { run_id, report, inclusion, .. } = match bundle::verify(file) {
        Ok(bundle) => bundle,
        Err(error) if json && is_found(&error) => {
            written(writeln!(
                out,
                "{}",
                json!({"file": path, "status": error.reason(), "err": error})
            ))?;
            let why = match error.kind() {
                ErrorKind::Log(LogReason::TooNew) => "a newer version of Mynah wrote it",
                _ => "it was changed or damaged",
            };
            return Err(Failure::finding(why).in_file(path));
        }
        Err(error) => return Err(Failure::of(&error).in_file(path)),
    };
    if json {
        let mut told = with_run(&run_id, json!(report));
        told["inclusion"] = json!(inclusion);
        return written(writeln!(out, "{told}"));
    }
    written(writeln!(out, "{}  {}", line(&run_id), described(&report)))?;
    let Some(Inclusion { index, size, root, .. }) = inclusion else { return Ok(()) };
    written(writeln!(out, "leaf {} of {size} in the log with root {root}", index + 1))
}

async fn verify(
    log: &dyn Log,
    run: Option<&str>,
    root: Option<Hash>,
    json: bool,
) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    let mut tally = Tally { auditor: Auditor::new(log), runs: 0, corrupt: 0, newer: 0 };
    if let Some(name) = run {
        let run = match log.run(name).await {
            // It is the run in question, with any problem.
            Err(error) if is_found(&error) => name.into(),
            _ => store::find(log, name).await?.run_id,
        };
        tally.look(&run, json, &mut out).await?;
        if tally.corrupt == 0 {
            for started in mynah::log::sub_runs(log, &run).await? {
                tally.look(&started, json, &mut out).await?;
            }
        }
    } else {
        let mut filter = RunFilter::new();
        loop {
            let page = log.runs(filter.clone()).await.map_err(|error| Failure::of(&error))?;
            let damaged = page.damaged.iter().map(|damaged| &*damaged.run_id);
            for run in page.runs.iter().map(|run| &*run.run_id).chain(damaged) {
                tally.look(run, json, &mut out).await?;
            }
            let Some(next) = page.next else { break };
            filter = filter.after(next);
        }
        tally.look_at_seals(json, &mut out).await?;
        if let Some(root) = root {
            tally.look_for(&root, json, &mut out).await?;
        }
    }
    written(out.flush())?;
    match (tally.corrupt, tally.runs) {
        (0, _) => Ok(()),
        (1, 1) if tally.newer == 1 => {
            Err(Failure::finding("a newer version of Mynah wrote the run"))
        }
        (1, 1) => Err(Failure::finding("the run was changed or damaged")),
        (wrong, all) => Err(Failure::finding(format!(
            "{} found corrupt, {} looked at",
            count(wrong, "thing"),
            count(all, "run")
        ))),
    }
}

impl Tally<'_> {
    async fn look(&mut self, run: &str, json: bool, out: &mut impl Write) -> Result<(), Failure> {
        self.runs += 1;
        let found = match self.auditor.verify_run(run).await {
            Ok(report) => Ok(report),
            // It was there when it was listed.
            Err(error) if error.kind() == ErrorKind::Log(LogReason::Pruned) => {
                self.runs -= 1;
                return Ok(());
            }
            Err(error) if is_found(&error) => Err(error),
            // It was listed, so it is not for want of a run.
            Err(error) if error.kind() == ErrorKind::Log(LogReason::RunNotFound) => {
                Err(store::lost(run))
            }
            Err(error) => return Err(Failure::of(&error)),
        };
        self.corrupt += u64::from(found.is_err());
        let is_newer = |error: &Error| error.kind() == ErrorKind::Log(LogReason::TooNew);
        self.newer += u64::from(found.as_ref().is_err_and(is_newer));
        written(match (json, &found) {
            (true, Ok(report)) => writeln!(out, "{}", with_run(run, json!(report))),
            (true, Err(error)) => {
                let told = json!({"status": error.reason(), "err": error});
                writeln!(out, "{}", with_run(run, told))
            }
            (false, Ok(report)) => writeln!(out, "{}  {}", line(run), described(report)),
            (false, Err(error)) => {
                writeln!(out, "{}  {}: {}", line(run), error.reason(), plain(&wrong(error)))
            }
        })
    }

    async fn look_at_seals(&mut self, json: bool, out: &mut impl Write) -> Result<(), Failure> {
        let found = match self.auditor.verify_seals().await {
            Ok(tree) => self.auditor.removals().await.map(|removals| (tree, removals.head())),
            Err(error) => Err(error),
        };
        match found {
            Ok((tree, removals)) if json => {
                let seals = seals(&tree, removals);
                let mut told = json!({"seals": seals, "leaves": tree.size(), "root": tree.root()});
                if let Some(head) = removals {
                    told["removals"] = json!({"count": head.seq, "hash": head.hash});
                }
                written(writeln!(out, "{told}"))
            }
            Ok((tree, removals)) => {
                let (runs, sealed) = (count(self.runs, "run"), seals(&tree, removals));
                let mut told = format!("{runs}, {}", count(sealed, "seal"));
                if let Some(head) = removals {
                    told += &format!(", {}", count(head.seq, "removal"));
                }
                written(writeln!(out, "{told}, root {}", tree.root()))
            }
            Err(error) if is_found(&error) => {
                self.corrupt += 1;
                written(if json {
                    writeln!(out, "{}", json!({"seals": null, "err": error}))
                } else {
                    let place = if error.seq().is_some() { "list of seals" } else { "file" };
                    writeln!(
                        out,
                        "the log's {place}  {}: {}",
                        error.reason(),
                        plain(without_class(&error.message()))
                    )
                })
            }
            Err(error) => Err(Failure::of(&error)),
        }
    }

    /// Checks that the log's tree once had this root.
    async fn look_for(
        &mut self,
        root: &Hash,
        json: bool,
        out: &mut impl Write,
    ) -> Result<(), Failure> {
        let leaves = match self.auditor.leaves_under(root).await {
            // That was reported with the list of seals.
            Err(error) if is_found(&error) => return Ok(()),
            leaves => leaves?,
        };
        self.corrupt += u64::from(leaves.is_none());
        written(match leaves {
            _ if json => writeln!(out, "{}", json!({"kept": {"root": root, "leaves": leaves}})),
            Some(leaves) => {
                writeln!(out, "root {root}  verified: the log had it at leaf {leaves}")
            }
            None => writeln!(out, "root {root}  corrupt: the log does not begin with what had it"),
        })
    }
}

/// How many leaves of a log's tree are seals: the others are removals.
fn seals(tree: &Tree, removals: Option<Head>) -> u64 {
    tree.size().saturating_sub(removals.map_or(0, |head| head.seq))
}

/// Whether it is a finding: changed data, or data that this version cannot check.
fn is_found(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Log(LogReason::Corrupt | LogReason::TooNew))
}

pub(crate) fn with_run(run: &str, told: Value) -> Value {
    let mut line = json!({"run_id": run});
    if let (Value::Object(line), Value::Object(told)) = (&mut line, told) {
        line.extend(told);
    }
    line
}

pub(crate) fn described(report: &VerifyReport) -> String {
    let mut text = report.status.as_str().replace('_', " ");
    text += &format!("  {}", count(report.records, "record"));
    if report.redacted > 0 {
        text += &format!(", {} redacted", report.redacted);
    }
    if let Some(fingerprint) = report.fingerprint {
        text += &format!("  fingerprint {fingerprint}");
    }
    text
}

/// What is wrong and where, without the run: it was named already.
pub(crate) fn wrong(error: &Error) -> String {
    match (error.seq(), error.damage()) {
        (Some(0), Some(what)) => what.to_owned(),
        (Some(seq), Some(what)) => format!("record {seq}: {what}"),
        _ => without_class(&error.message()).to_owned(),
    }
}

/// An error's message, where it was said already of what kind it is.
fn without_class(told: &str) -> &str {
    let told = told.strip_prefix("log error: ").unwrap_or(told);
    let classes = [LogReason::Corrupt, LogReason::TooNew];
    let class = classes.iter().find_map(|class| told.strip_prefix(class.as_str()));
    class.and_then(|told| told.strip_prefix(": ")).unwrap_or(told)
}

#[cfg(test)]
mod tests {
    use mynah::log::{MemoryLog, Prune, Warrant, conformance::Sample};

    use super::*;

    #[test]
    fn a_run_that_is_pruned_after_it_was_listed_is_passed_over() {
        let done = runtime().map(|runtime| runtime.block_on(pruned_after_it_was_listed()));
        assert!(done.is_ok(), "a runtime");
    }

    async fn pruned_after_it_was_listed() {
        let log = MemoryLog::new();
        for run in ["gone", "there"] {
            log.append(Sample::new(run, 0).sealed().batch()).await.expect("a run");
        }
        let listed = log.runs(RunFilter::new()).await.expect("a page").runs;
        let mut tally = Tally { auditor: Auditor::new(&log), runs: 0, corrupt: 0, newer: 0 };
        tally.auditor.removals().await.expect("nothing is gone yet");
        let prune = Prune::before(i64::MAX).limit(1);
        let report = prune.perform(&log, &Warrant::new("me", "age", 9)).await.expect("one goes");
        assert_eq!(report.pruned.len(), 1);
        let mut out = Vec::new();
        for run in listed {
            assert!(tally.look(&run.run_id, false, &mut out).await.is_ok());
        }
        assert_eq!((tally.runs, tally.corrupt), (1, 0));
        assert_eq!(String::from_utf8_lossy(&out).lines().count(), 1);
    }
}
