//! `mynah golden`: keeps runs as regression tests. `mynah check`: compares an agent with them.

use std::{
    fs,
    io::{self, Write as _},
    num::{NonZeroU32, NonZeroUsize},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use mynah::{Engine, Error, ErrorKind};
use mynah_agent::golden::{Added, Answers, Check, Checked, GoldenError, RULES, Rules, add};
use serde_json::json;

use crate::{
    Failure, LogArgs,
    agent::{self, VarArgs},
    generate::failed,
    model::script,
    play, runtime,
    store::{self, LogLocation},
    text::{count, line, plain},
    tty::{BAD, DIM, GOOD, Live, Looks},
    written,
};

pub(crate) const GOLDEN_EXAMPLES: &str = "Keys, tokens and mail addresses are replaced in any case; goldens/redact.toml holds rules for all goldens. docs/regression-tests.md describes the rules, and what refund.toml can expect.

Examples:
  mynah golden add last --name refund      write goldens/refund.ndjson and goldens/refund.toml
  mynah golden add last --name refund --redact 'customer=C-[0-9]{6}'
                                           replace customer numbers by [customer-1], [customer-2], …
  mynah check agent.toml                   check the agent against all goldens

Exit codes: 0 done; 1 the run is corrupt; 2 no such run, one that has not ended or failed, or a bad rule; 4 a log or file that cannot be used.";

pub(crate) const CHECK_EXAMPLES: &str = "MCP servers of the agent are started in any case, because their tools are part of the agent. Agents that it calls are not replayed: they have goldens of their own.

Examples:
  mynah check agent.toml                   from the records of goldens/: no model is called, no tool runs
  mynah check agent.toml goldens --what-if call the model; tools answer from the records
  mynah check agent.toml --what-if --repeat 10
                                           show how often each golden passes
  mynah check agent.toml --what-if --update
                                           keep the new runs, after you checked the differences
  mynah check agent.toml --junit report.xml
                                           for CI

Exit codes: 0 everything is as expected; 1 something differs, a run could not be made, or a golden or its expectations cannot be read; 2 wrong usage or a bad agent file; 4 a folder without goldens, or a file or MCP server that cannot be used.";

#[derive(Args)]
pub(crate) struct GoldenArguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Subcommand)]
enum Act {
    /// Keep an ended run as a golden.
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
        /// Replace texts that match a pattern, now and in updates of the golden. Repeatable.
        #[arg(long, value_name = "NAME=PATTERN")]
        redact: Vec<String>,
        /// Keep the run unredacted.
        #[arg(long, conflicts_with = "redact")]
        no_redact: bool,
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
    /// Call the model; answer equal tool calls from the records.
    #[arg(long, conflicts_with = "live")]
    what_if: bool,
    /// Call the model and run the tools.
    #[arg(long)]
    live: bool,
    /// Run each golden N times, and show its pass rate. Needs --what-if or --live.
    #[arg(long, value_name = "N", default_value = "1")]
    repeat: NonZeroU32,
    /// Execute N runs at the same time.
    #[arg(long, value_name = "N", default_value = "4")]
    jobs: NonZeroUsize,
    /// Replace goldens that differ with the new run. Needs --what-if or --live.
    #[arg(long)]
    update: bool,
    /// Write a JUnit report to this file.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Print JSON, one value per line.
    #[arg(long)]
    json: bool,
}

impl From<GoldenError> for Failure {
    fn from(error: GoldenError) -> Self {
        match error {
            GoldenError::Run(error) => match error.kind() {
                ErrorKind::Engine(_) | ErrorKind::Adapter(_) => failed(&error, 1),
                _ => Self::of(&error),
            },
            GoldenError::Misfit(error) => error.into(),
            unfit @ GoldenError::Unfit { .. } => Self::input(unfit.to_string()),
            other => Self::file(other.to_string()),
        }
    }
}

pub(crate) fn main(arguments: GoldenArguments) -> Result<(), Failure> {
    let Act::Add { log, run, name, to, redact, no_redact } = arguments.act;
    let mut rules = if no_redact { Rules::none() } else { Rules::read(&to.join(RULES))? };
    for rule in &redact {
        let (name, pattern) = rule.split_once('=').unwrap_or(("text", rule));
        let wrong = |why| Failure::input(format!("--redact {rule}: {why}"));
        rules = rules.rule(name, pattern).map_err(wrong)?;
    }
    let opened = LogLocation::parse(&log.log)?.open_to_read()?;
    let (run, added) = runtime()?.block_on(async {
        let run = store::find(opened.as_ref(), &run).await?.run_id;
        let added = add(opened.as_ref(), &run, &to, &name, &rules).await?;
        Ok::<_, Failure>((run, added))
    })?;
    let Added { file, redacted, .. } = added;
    let mut out = io::stdout().lock();
    written(if log.json {
        writeln!(out, "{}", json!({"run_id": run, "file": file, "redacted": redacted.0}))
    } else {
        let expectations = file.with_extension("toml");
        let (file, expectations) = (file.display(), expectations.display());
        let replaced =
            if redacted.0.is_empty() { String::new() } else { format!("; replaced: {redacted}") };
        writeln!(out, "{file}: {}{replaced}\n{expectations}: what it must do", line(&run))
    })
}

pub(crate) fn check_main(arguments: CheckArguments) -> Result<(), Failure> {
    let CheckArguments { agent, goldens, vars, what_if, live, repeat, jobs, update, junit, json } =
        arguments;
    let answers = match (what_if, live) {
        (true, _) => Answers::WhatIf,
        (_, true) => Answers::Live,
        _ if update => {
            let why = "--update: records make no new run; add --what-if or --live";
            return Err(Failure::input(why));
        }
        _ if repeat.get() > 1 => {
            let why = "--repeat: records give the same each time; add --what-if or --live";
            return Err(Failure::input(why));
        }
        _ => Answers::Records,
    };
    let looks = Looks::detect();
    let checked = runtime()?.block_on(async {
        let engine = agent::load(&agent, &vars, &agent::Answered::per_run()).await?;
        let folder = goldens.clone();
        let check = Check::new(&engine, goldens).answers(answers).update(update);
        let check = check.repeat(repeat).jobs(jobs).on_progress(progress(looks, json));
        Ok::<_, Failure>(check.judges(move |name| judge(name, &folder)).run().await?)
    })?;
    if let Some(file) = junit {
        fs::write(&file, report(&checked))
            .map_err(|error| Failure::file(format!("{}: {error}", file.display())))?;
    }
    let mut out = io::stdout().lock();
    for golden in &checked {
        written(match json {
            true => writeln!(out, "{}", json!(golden)),
            false => writeln!(out, "{}", shown(golden, looks)),
        })?;
    }
    match checked.iter().filter(|golden| !golden.ok).count() as u64 {
        0 => Ok(()),
        failed => {
            let (all, verb) = (
                count(checked.len() as u64, "golden"),
                if failed == 1 { "differs" } else { "differ" },
            );
            Err(Failure::finding(format!("{failed} of {all} {verb} from what is expected")))
        }
    }
}

/// The engine of a judge. A script is in the folder of the goldens.
fn judge(name: &str, folder: &Path) -> mynah::Result<Engine> {
    let unusable = |failure: Failure| {
        Error::invalid_option("judge", "unusable").with_message(failure.message())
    };
    match script(name) {
        Some(file) => play::agent(&folder.join(file), &[], false).map_err(unusable),
        None => Engine::named(name),
    }
}

/// Draws a bar in a terminal.
fn progress(looks: Looks, json: bool) -> impl FnMut(usize, usize) + Send + 'static {
    const WIDTH: usize = 30;
    let mut live = Live::default();
    move |done, all| {
        if !looks.is_rich || json {
            return;
        }
        let filled = WIDTH * done / all.max(1);
        let (full, empty) = ("━".repeat(filled), "─".repeat(WIDTH - filled));
        let bar = format!("{}{} {done}/{all}", looks.paint(GOOD, &full), looks.paint(DIM, &empty));
        // A bar that cannot be drawn stops no check.
        let _ = match done == all {
            true => live.clear(&mut io::stderr()),
            false => live.draw(&mut io::stderr(), vec![bar]),
        };
    }
}

/// A golden for people: how it went, and what differs, field by field.
pub(crate) fn shown(golden: &Checked, looks: Looks) -> String {
    let (how, style) = match (golden.ok, golden.updated) {
        (true, true) => ("updated", GOOD),
        (true, false) => ("ok", GOOD),
        (false, true) => ("updated; it does not do what is expected", BAD),
        (false, false) if golden.runs == 0 => ("cannot be checked", BAD),
        (false, false) => ("differs", BAD),
    };
    let mut text = format!("{}  {}", line(&golden.name), looks.paint(style, how));
    if let Some([low, high]) = golden.interval {
        let percent = |share: f64| format!("{:.0}%", 100.0 * share);
        let rate = percent(f64::from(golden.passed) / f64::from(golden.runs));
        let (low, high) = (percent(low), percent(high));
        text += &format!("  {} of {} runs passed: {rate}", golden.passed, golden.runs);
        text += &format!(" (95% confidence: {low} to {high})");
    }
    let answer = golden.answer.iter().map(|answer| (DIM, format!("another {answer}")));
    let findings =
        golden.findings.iter().map(|finding| (anstyle::Style::new(), finding.to_string()));
    let notes = golden.notes.iter().map(|note| (DIM, note.clone()));
    for (style, finding) in findings.chain(notes).chain(answer) {
        for row in plain(&finding).lines() {
            text += &format!("\n  {}", looks.paint(style, row));
        }
    }
    text
}

/// A JUnit report.
fn report(checked: &[Checked]) -> String {
    let escaped = |text: &str| {
        let text = plain(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        text.replace('"', "&quot;").replace('\n', "&#10;")
    };
    let failed = checked.iter().filter(|golden| !golden.ok).count();
    let seconds: f64 = checked.iter().map(|golden| golden.seconds).sum();
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"goldens\" tests=\"{}\" failures=\"{failed}\" time=\"{seconds:.3}\">\n",
        checked.len()
    );
    for golden in checked {
        let (name, seconds) = (escaped(&golden.name), golden.seconds);
        xml +=
            &format!("    <testcase classname=\"goldens\" name=\"{name}\" time=\"{seconds:.3}\"");
        xml += &match golden.ok {
            true => "/>\n".to_owned(),
            false => {
                let findings: Vec<String> =
                    golden.findings.iter().map(ToString::to_string).collect();
                let first = golden.findings.first().map(|finding| finding.message.as_str());
                let (first, all) =
                    (escaped(first.unwrap_or_default()), escaped(&findings.join("\n")));
                format!(">\n      <failure message=\"{first}\">{all}</failure>\n    </testcase>\n")
            }
        };
    }
    xml + "  </testsuite>\n</testsuites>\n"
}
