//! `mynah golden`: keeps runs as regression tests. `mynah check`: holds an agent against them.

use std::{
    fs,
    io::{self, Write as _},
    path::PathBuf,
};

use clap::{Args, Subcommand};
use mynah_agent::golden::{Answers, Checked, GoldenError, add, check};
use serde_json::json;

use crate::{
    Failure, LogArgs,
    agent::{self, VarArgs},
    runtime,
    store::{self, LogLocation},
    text::{count, line, plain},
    written,
};

pub(crate) const GOLDEN_EXAMPLES: &str = "Examples:
  mynah golden add last --name refund      write goldens/refund.ndjson and goldens/refund.toml
  mynah check agent.toml                   check the agent against all goldens

docs/agents.md describes what refund.toml can expect.
Exit codes: 0 done; 1 the run is corrupt; 2 no such run, or one that has not ended; 4 a log or file that cannot be used.";

pub(crate) const CHECK_EXAMPLES: &str = "Examples:
  mynah check agent.toml                   from the records of goldens/: no model is asked, no tool runs
  mynah check agent.toml goldens --what-if ask the model; tools answer from the records
  mynah check agent.toml --what-if --update
                                           keep the new runs, after a look at what differs
  mynah check agent.toml --junit report.xml
                                           for CI

Exit codes: 0 everything is as expected; 1 something differs; 2 wrong usage, a bad agent file; 4 a file or server that cannot be used.";

#[derive(Args)]
pub(crate) struct GoldenArguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Subcommand)]
enum Act {
    /// Keep a run that has ended as a golden.
    Add {
        #[command(flatten)]
        log: LogArgs,
        /// The run: its id, the beginning of it, or `last`.
        run: String,
        /// Name of the golden.
        #[arg(long)]
        name: String,
        /// Folder of the goldens.
        #[arg(long, value_name = "FOLDER", default_value = "goldens")]
        to: PathBuf,
    },
}

#[derive(Args)]
pub(crate) struct CheckArguments {
    /// The agent file, or a scenario.
    agent: PathBuf,
    /// Folder of the goldens.
    #[arg(default_value = "goldens")]
    goldens: PathBuf,
    #[command(flatten)]
    vars: VarArgs,
    /// Ask the model. Tools answer from the records where the call is the same.
    #[arg(long, conflicts_with = "live")]
    what_if: bool,
    /// Ask the model and run the tools.
    #[arg(long)]
    live: bool,
    /// Replace goldens whose run differs by the new run. Needs --what-if or --live.
    #[arg(long)]
    update: bool,
    /// Write a JUnit report to this file.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// One JSON value a line.
    #[arg(long)]
    json: bool,
}

impl From<GoldenError> for Failure {
    fn from(error: GoldenError) -> Self {
        match error {
            GoldenError::Run(error) => Self::of(&error),
            other => Self::file(other.to_string()),
        }
    }
}

pub(crate) fn main(arguments: GoldenArguments) -> Result<(), Failure> {
    let Act::Add { log, run, name, to } = arguments.act;
    let opened = LogLocation::parse(&log.log)?.open_to_read()?;
    let (run, file) = runtime()?.block_on(async {
        let run = store::find(opened.as_ref(), &run).await?.run_id;
        if !store::needed(opened.as_ref(), &run).await?.is_empty() {
            let why = "it continues a session; a golden is a run that stands alone";
            return Err(Failure::input(format!("run {run}: {why}")));
        }
        let file = add(opened.as_ref(), &run, &to, &name).await?;
        Ok((run, file))
    })?;
    let mut out = io::stdout().lock();
    written(if log.json {
        writeln!(out, "{}", json!({"run_id": run, "file": file}))
    } else {
        let expectations = file.with_extension("toml");
        let (file, expectations) = (file.display(), expectations.display());
        writeln!(out, "{file}: {}\n{expectations}: what it must do", line(&run))
    })
}

pub(crate) fn check_main(arguments: CheckArguments) -> Result<(), Failure> {
    let CheckArguments { agent, goldens, vars, what_if, live, update, junit, json } = arguments;
    let answers = match (what_if, live) {
        (true, _) => Answers::WhatIf,
        (_, true) => Answers::Live,
        _ if update => {
            let why = "--update: records make no new run; add --what-if or --live";
            return Err(Failure::input(why));
        }
        _ => Answers::Records,
    };
    let checked = runtime()?.block_on(async {
        let engine = agent::load(&agent, &vars, &[]).await?;
        Ok::<_, Failure>(check(&engine, &goldens, answers, update).await?)
    })?;
    if let Some(file) = junit {
        fs::write(&file, report(&checked))
            .map_err(|error| Failure::file(format!("{}: {error}", file.display())))?;
    }
    let mut out = io::stdout().lock();
    for golden in &checked {
        written(if json {
            writeln!(out, "{}", json!(golden))
        } else {
            let how = match (golden.findings.is_empty(), golden.updated) {
                (_, true) => "updated",
                (true, _) => "ok",
                (false, _) => "differs",
            };
            let findings: String = golden
                .findings
                .iter()
                .map(|finding| format!("\n  {}", plain(finding).replace('\n', "\n  ")))
                .collect();
            writeln!(out, "{}  {how}{findings}", line(&golden.name))
        })?;
    }
    let failed = checked.iter().filter(|golden| !golden.findings.is_empty() && !golden.updated);
    match failed.count() as u64 {
        0 => Ok(()),
        failed => {
            let all = count(checked.len() as u64, "golden");
            Err(Failure::finding(format!("{failed} of {all} differ from what is expected")))
        }
    }
}

/// A JUnit report.
fn report(checked: &[Checked]) -> String {
    let escaped = |text: &str| {
        let text = plain(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        text.replace('"', "&quot;").replace('\n', "&#10;")
    };
    let failed = checked.iter().filter(|golden| !golden.findings.is_empty()).count();
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"goldens\" tests=\"{}\" failures=\"{failed}\">\n",
        checked.len()
    );
    for golden in checked {
        xml += &format!("    <testcase classname=\"goldens\" name=\"{}\"", escaped(&golden.name));
        xml += &match golden.findings.is_empty() {
            true => "/>\n".to_owned(),
            false => {
                let message = escaped(&golden.findings.join("\n"));
                format!(">\n      <failure message=\"{message}\"/>\n    </testcase>\n")
            }
        };
    }
    xml + "  </testsuite>\n</testsuites>\n"
}
