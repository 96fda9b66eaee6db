//! Where runs are kept, and which run is meant.

use std::{path::Path, sync::Arc};

use mynah::{
    Error, ErrorKind, LogReason,
    log::{Log, MemoryLog, RunFilter, RunSummary, SqliteLog},
};

use crate::Failure;

/// A place where runs are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Memory,
    Sqlite(String),
}

impl Place {
    /// Reads a URL. The error is wrong usage.
    pub(crate) fn parse(url: &str) -> Result<Self, Failure> {
        let wrong =
            |why: &str| Failure::input(format!("--log {url}: {why}; give memory: or sqlite:PATH"));
        match url.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("memory", _)) => Err(wrong("memory: takes no path")),
            Some(("sqlite", "")) => Err(wrong("the path is missing")),
            Some(("sqlite", path)) => Ok(Self::Sqlite(path.to_owned())),
            _ => Err(wrong("not a log that this program knows")),
        }
    }

    /// Opens it to write, and makes it where there is none.
    pub(crate) fn open(&self) -> Result<Arc<dyn Log>, Failure> {
        match self {
            Self::Memory => Ok(Arc::new(MemoryLog::new())),
            Self::Sqlite(path) => opened(SqliteLog::open(path)),
        }
    }

    /// Opens what is there, to write.
    pub(crate) fn open_existing(&self) -> Result<Arc<dyn Log>, Failure> {
        match self {
            Self::Sqlite(path) if !Path::new(path).exists() => Err(missing(path)),
            place => place.open(),
        }
    }

    /// Opens what is there, to read alone.
    pub(crate) fn open_to_read(&self) -> Result<Arc<dyn Log>, Failure> {
        match self {
            Self::Memory => Ok(Arc::new(MemoryLog::new())),
            Self::Sqlite(path) if !Path::new(path).exists() => Err(missing(path)),
            Self::Sqlite(path) => opened(SqliteLog::open_read_only(path)),
        }
    }
}

fn missing(path: &str) -> Failure {
    Failure::file(format!("{path}: there is no such log; --log names another"))
}

fn opened(log: mynah::Result<SqliteLog>) -> Result<Arc<dyn Log>, Failure> {
    log.map(|log| Arc::new(log) as _).map_err(|error| Failure::of(&error))
}

/// The run that an id, the beginning of one, or `last` means.
pub(crate) async fn find(log: &dyn Log, name: &str) -> Result<RunSummary, Failure> {
    let failed = |error: Error| Failure::of(&error);
    if name != "last"
        && let Some(run) = log.run(name).await.map_err(failed)?
    {
        return Ok(run);
    }
    let filter = match name {
        "last" => RunFilter::new().limit(1),
        prefix => RunFilter::new().prefix(prefix).limit(2),
    };
    let mut runs = log.runs(filter).await.map_err(failed)?.runs;
    match (runs.pop(), runs.pop()) {
        (Some(run), None) => Ok(run),
        (None, _) if name == "last" => Err(Failure::input("there are no runs in this log")),
        (None, _) => Err(Failure::input(format!(
            "no run has an id that begins with {name:?}; `mynah runs` lists them"
        ))),
        (Some(a), Some(b)) => Err(Failure::input(format!(
            "more than one run has an id that begins with {name:?}: {}, {}, …; give more of it",
            b.run_id, a.run_id
        ))),
    }
}

impl Failure {
    /// What an error of the library means for whoever called the program.
    pub(crate) fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Log(LogReason::Corrupt) | ErrorKind::Replay(_) => {
                Self::finding(error.to_string())
            }
            ErrorKind::Log(
                LogReason::RunNotFound
                | LogReason::Sealed
                | LogReason::Pruned
                | LogReason::Redacted,
            )
            | ErrorKind::Validation(_) => Self::input(error.to_string()),
            _ => Self::file(error.to_string()),
        }
    }
}
