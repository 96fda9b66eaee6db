//! `mynah doctor`: whether everything is in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use mynah::{
    Catalog, ErrorKind, LogReason, ModelInfo,
    adapters::presets::PRESETS,
    log::{FORMAT, Log, RunFilter, SqliteLog, verify_run},
};
use serde_json::{Map, Value, json};

use crate::{
    DEFAULT_LOG, Failure, LogArgs,
    agent::{self, VarArgs},
    runtime,
    store::{LogLocation, folder_of, free_space, lost, shown},
    text::{count, plain},
    written,
};

pub(crate) const EXAMPLES: &str = "Keys are listed by name only. A read-only log can be read; commands that write to it fail.

Examples:
  mynah doctor                             check the log in this folder, and list the keys in the environment
  mynah doctor agent.toml                  also check what an agent needs: keys, models, servers, files
  mynah doctor --log sqlite:runs.db --json

Exit codes: 0 no problem, or no log in this folder yet; 1 the file is damaged, or a run was changed; 2 the agent file does not fit; 4 the log or its folder cannot be used, or something that the agent needs.";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// An agent file to check.
    agent: Option<PathBuf>,
    #[command(flatten)]
    vars: VarArgs,
}

/// How many of the newest runs are verified.
const SAMPLE: usize = 10;

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { log: LogArgs { log: url, json }, agent, vars } = arguments;
    let place = LogLocation::parse(&url)?;
    let is_default = url == DEFAULT_LOG;
    let url = shown(&url);
    let version = env!("CARGO_PKG_VERSION");
    tell(json, "version", &format!("mynah {version}"), json!({"version": version}))?;
    let format = format!("version {FORMAT}");
    tell(json, "format", &format, json!({"format": FORMAT}))?;
    let keys = found_keys();
    let found = if keys.is_empty() { "none found".to_owned() } else { keys.join(", ") };
    tell(json, "keys", &found, json!({"keys": keys}))?;
    // A failed check does not hide the next ones.
    let agent = agent.map_or(Ok(()), |file| check_agent(&file, &vars, json));
    check_log(&place, &url, is_default, json).and(agent)
}

/// Checks an agent file, and what it names.
fn check_agent(file: &Path, vars: &VarArgs, json: bool) -> Result<(), Failure> {
    let name = file.display().to_string();
    match runtime()?.block_on(agent::read(file, vars, &agent::Answered::default())) {
        Ok(agent) => {
            let warnings = agent::warnings(&agent);
            let what = match &warnings[..] {
                [] => format!("{name}: ok"),
                warnings => warnings.join("; "),
            };
            tell(json, "agent", &what, json!({"agent": name, "warnings": warnings}))
        }
        Err(failure) => {
            let found = json!({"agent": name, "err": failure.err()});
            tell(json, "agent", &format!("{name}: not usable"), found)?;
            Err(failure)
        }
    }
}

fn check_log(place: &LogLocation, url: &str, is_default: bool, json: bool) -> Result<(), Failure> {
    // A log that was named explicitly must exist.
    if let LogLocation::Sqlite(path) = place {
        let folder = folder_of(path);
        check_space(folder, json)?;
        if is_default && !Path::new(path).exists() {
            if let Err(error) = tempfile::tempfile_in(folder) {
                let why = format!("{url}: none yet, and its folder cannot be written: {error}");
                tell(json, "log", &why, json!({"log": url, "schema": null}))?;
                return Err(Failure::file(why));
            }
            let none = format!("{url}: none yet; `mynah demo` shows what one is for");
            return tell(json, "log", &none, json!({"log": url, "schema": null}));
        }
    }
    let log = place.open_to_read().and_then(|log| {
        // A file is open by now. A server is first contacted here, with a question about any run.
        if !matches!(place, LogLocation::Sqlite(_) | LogLocation::Memory) {
            runtime()?.block_on(log.head("none"))?;
        }
        Ok(log)
    });
    let log = log.inspect_err(|failure| {
        let why = failure.err();
        // A failed check does not hide the next ones.
        let _ = tell(json, "log", &format!("{url}: not usable"), json!({"log": url, "err": why}));
    });
    let log = log.map_err(Failure::told)?;
    let schema = match place {
        LogLocation::Sqlite(_) => Some(SqliteLog::SCHEMA),
        LogLocation::Memory => None,
        #[cfg(feature = "postgres")]
        LogLocation::Postgres(_) => Some(mynah_postgres::PostgresLog::SCHEMA),
    };
    let tables = schema.map(|schema| format!(", tables of version {schema}")).unwrap_or_default();
    let read_only = place.open().is_err();
    let so_far = if read_only { ", read-only" } else { "" };
    let reachable = format!("{url}: reachable{so_far}{tables}");
    tell(json, "log", &reachable, json!({"log": url, "schema": schema, "read_only": read_only}))?;
    runtime()?.block_on(examine(log.as_ref(), json))
}

/// How little space on a disk is worth a warning, in bytes.
const LITTLE: u64 = 100 << 20;

/// Warns of a disk that is nearly full: runs wait until their records can be written.
fn check_space(folder: &Path, json: bool) -> Result<(), Failure> {
    match free_space(folder) {
        Some(free) if free < LITTLE => {
            let told = format!("{} MiB free in {}: nearly full", free >> 20, folder.display());
            tell(json, "disk", &told, json!({"folder": folder, "free": free}))
        }
        _ => Ok(()),
    }
}

/// The variables with providers' keys that are set.
fn found_keys() -> Vec<&'static str> {
    let is_set = |name: &&str| env::var_os(name).is_some_and(|key| !key.is_empty());
    let variables = PRESETS.iter().flat_map(|preset| preset.key_variables).copied();
    let found: BTreeSet<&str> = variables.filter(is_set).collect();
    found.into_iter().collect()
}

async fn examine(log: &dyn Log, json: bool) -> Result<(), Failure> {
    match log.check().await {
        Ok(()) => tell(json, "storage", "sound", json!({"err": null}))?,
        Err(error) => {
            tell(json, "storage", "not sound", json!({"err": error}))?;
            return Err(Failure::of(&error).told());
        }
    }
    let (mut runs, mut sample, mut models) = (0, Vec::new(), BTreeSet::new());
    let mut filter = RunFilter::new().limit(1000);
    loop {
        let page = log.runs(filter.clone()).await?;
        runs += page.runs.len() + page.damaged.len();
        models.extend(page.runs.iter().filter_map(|run| run.model.clone()));
        let wanted = SAMPLE.saturating_sub(sample.len());
        sample.extend(page.runs.into_iter().take(wanted).map(|run| run.run_id));
        // Of these it is known already that they are worth a look.
        sample.extend(page.damaged.into_iter().map(|damaged| damaged.run_id));
        let Some(next) = page.next else { break };
        filter = filter.after(next);
    }
    tell(json, "runs", &runs.to_string(), json!({"runs": runs}))?;
    let ending = ending(&models);
    if !ending.is_empty() {
        let told = ending.iter().map(|(model, date)| format!("{model} ends on {date}"));
        let told = told.collect::<Vec<_>>().join(", ");
        let told = format!("{told}; use others, as `mynah models` lists them");
        let ending: Map<String, Value> =
            ending.into_iter().map(|(model, date)| (model, date.into())).collect();
        tell(json, "models", &told, json!({"shutdown_dates": ending}))?;
    }
    let mut corrupt = Vec::new();
    for run in &sample {
        match verify_run(log, run).await {
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Log(LogReason::Corrupt | LogReason::TooNew)
                ) =>
            {
                corrupt.push(error);
            }
            Err(error) if error.kind() == ErrorKind::Log(LogReason::RunNotFound) => {
                corrupt.push(lost(run));
            }
            Err(error) => return Err(error.into()),
        }
    }
    let verified = sample.len() - corrupt.len();
    let told = match corrupt.len() {
        0 if verified < runs => {
            format!("{verified} of {runs} runs verified; `mynah verify` checks all")
        }
        0 => format!("{} verified", count(verified as u64, "run")),
        wrong => format!("{verified} verified, {wrong} corrupt"),
    };
    tell(json, "sample", &told, json!({"verified": verified, "corrupt": corrupt}))?;
    match corrupt.first() {
        None => Ok(()),
        Some(error) => Err(Failure::finding(format!("{error}\n  mynah verify lists all problems"))),
    }
}

/// The models of runs that their providers will end or have ended, with the dates.
fn ending(models: &BTreeSet<Arc<str>>) -> BTreeMap<String, String> {
    let catalog = Catalog::built_in();
    let known: Vec<&ModelInfo> =
        catalog.models().filter(|model| model.shutdown_date.is_some()).collect();
    let find = |name: &Arc<str>| {
        let id = name.split_once(':').map_or(&**name, |(_, id)| id);
        let info =
            known.iter().find(|info| info.id == id || info.aliases.iter().any(|a| a == id))?;
        Some((id.to_owned(), info.shutdown_date.clone()?))
    };
    models.iter().filter_map(find).collect()
}

/// Prints the result of one check.
fn tell(json: bool, what: &str, text: &str, found: Value) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    written(if json {
        let mut line = json!({"check": what});
        if let (Value::Object(line), Value::Object(found)) = (&mut line, found) {
            line.extend(found);
        }
        writeln!(out, "{line}")
    } else {
        writeln!(out, "{what:<8}  {}", plain(text))
    })
}
