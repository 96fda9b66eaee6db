//! Opening logs, and finding runs in them.

use std::{env, path::Path, sync::Arc};

use mynah::{
    Error, LogReason, RunId,
    log::{
        Fact, Log, MAINTENANCE, MemoryLog, Previous, Pruned, Record, Removals, RunFilter, RunPage,
        RunSummary, SqliteLog,
    },
};

use crate::{
    Failure,
    text::{Moment, plain},
};

/// The location of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogLocation {
    Memory,
    Sqlite(String),
    /// The URL of a database.
    #[cfg(feature = "postgres")]
    Postgres(String),
}

/// A URL as people may see it: without the password of a database. In a command it works with `PGPASSWORD` or a password file.
pub(crate) fn shown(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (user, place) = rest.rsplit_once('@').unwrap_or(("", rest));
    // A password that is not encoded as it must be could be anywhere.
    if user.contains(['/', '?']) {
        return format!("{scheme}://***");
    }
    let user = user.split(':').next().unwrap_or_default();
    let at = if user.is_empty() { "" } else { "@" };
    let (place, options) = place.split_once('?').unwrap_or((place, ""));
    let options = options.split('&').filter(|option| !option.starts_with("password="));
    let options = options.collect::<Vec<_>>().join("&");
    let mark = if options.is_empty() { "" } else { "?" };
    format!("{scheme}://{user}{at}{place}{mark}{options}")
}

/// The URLs that a log can have.
pub(crate) const URLS: &str = if cfg!(feature = "postgres") {
    "memory:, sqlite:PATH or postgres://…"
} else {
    "memory: or sqlite:PATH"
};

impl LogLocation {
    /// Reads a URL. The error is wrong usage.
    pub(crate) fn parse(url: &str) -> Result<Self, Failure> {
        let is_set = env::var_os("MYNAH_LOG").is_some_and(|set| set == url);
        let shown = shown(url);
        let said = if is_set { format!("MYNAH_LOG={shown}") } else { format!("--log {shown}") };
        let wrong = |why: &str| Failure::input(format!("{said}: {why}; give {URLS}"));
        match url.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("memory", _)) => Err(wrong("memory: takes no path")),
            // What stands behind two slashes is a path as well, relative unless a third follows.
            Some(("sqlite", path)) => match path.strip_prefix("//").unwrap_or(path) {
                "" => Err(wrong("the path is missing")),
                ":memory:" => Err(wrong("a SQLite log is a file")),
                path if path.split_once('?').is_some_and(|(_, more)| more.contains('=')) => {
                    Err(wrong("a log takes no options"))
                }
                path => Ok(Self::Sqlite(path.to_owned())),
            },
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", _)) => Ok(Self::Postgres(url.to_owned())),
            None if url == "memory" => Err(wrong("a log is a URL")),
            None if !url.is_empty() => {
                Err(Failure::input(format!("{said}: a log is a URL; give sqlite:{url}")))
            }
            _ => Err(wrong("not a log that this program knows")),
        }
    }

    /// Opens it to write, and makes it where there is none. Damage is not what was looked for: such a log cannot be used.
    pub(crate) fn open(&self) -> Result<Arc<dyn Log>, Failure> {
        match self {
            Self::Memory => Ok(Arc::new(MemoryLog::new())),
            Self::Sqlite(path) => opened(SqliteLog::open(path)).map_err(Failure::unusable),
            #[cfg(feature = "postgres")]
            Self::Postgres(url) => opened(mynah_postgres::PostgresLog::open(url)),
        }
    }

    /// Opens an existing log for writing. A server finds out with the first call whether it is there.
    pub(crate) fn open_to_write(&self) -> Result<Arc<dyn Log>, Failure> {
        self.is_there()?;
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(url) => opened(mynah_postgres::PostgresLog::open_existing(url)),
            _ => self.open(),
        }
    }

    /// Opens an existing log read-only.
    pub(crate) fn open_to_read(&self) -> Result<Arc<dyn Log>, Failure> {
        self.is_there()?;
        match self {
            Self::Sqlite(path) => opened(SqliteLog::open_read_only(path)),
            _ => self.open_to_write(),
        }
    }

    /// Refuses a log on a full disk, before a model is called whose answer could not be kept.
    pub(crate) fn check_room(&self) -> Result<(), Failure> {
        let Self::Sqlite(path) = self else { return Ok(()) };
        match free_space(folder_of(path)) {
            Some(free) if free < ROOM => Err(Failure::file(format!(
                "{path}: the disk is full; make room, and try again: no model was called"
            ))
            .because(Error::log(LogReason::Unavailable))),
            _ => Ok(()),
        }
    }

    /// Refuses a file that is missing.
    pub(crate) fn is_there(&self) -> Result<(), Failure> {
        match self {
            Self::Sqlite(path) if !Path::new(path).exists() => {
                let why = format!("{path}: there is no such log; --log names another");
                Err(Failure::file(why).because(Error::log(LogReason::Unavailable)))
            }
            _ => Ok(()),
        }
    }
}

/// How much room the first records of a run may take, in bytes.
const ROOM: u64 = 64 << 10;

/// The folder of a file.
pub(crate) fn folder_of(path: &str) -> &Path {
    let folder = Path::new(path).parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// How many bytes are free on the disk of a folder, if that is known.
#[cfg(unix)]
pub(crate) fn free_space(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(not(unix))]
pub(crate) fn free_space(_: &Path) -> Option<u64> {
    None
}

fn opened(log: mynah::Result<impl Log>) -> Result<Arc<dyn Log>, Failure> {
    log.map(|log| Arc::new(log) as _).map_err(|error| Failure::of(&error))
}

/// The run that an id, the beginning of one, or `last` means.
pub(crate) async fn find(log: &dyn Log, name: &str) -> Result<RunSummary, Failure> {
    if name != "last"
        && let Some(run) = log.run(name).await?
    {
        return Ok(run);
    }
    let page = match name {
        "last" => newest(log).await?,
        prefix => log.runs(RunFilter::new().prefix(prefix).limit(2)).await?,
    };
    let more = if page.next.is_some() { ", …" } else { "" };
    let mut runs = page.sound()?.to_vec();
    match (runs.pop(), runs.pop()) {
        (Some(_), _) if name.is_empty() => Err(Failure::input("the run's id is empty")),
        (Some(run), None) if log.run(&run.run_id).await?.is_none() => Err(lost(&run.run_id).into()),
        (Some(run), None) => Ok(run),
        (None, _) if name == MAINTENANCE => {
            Err(not_found("nothing was ever removed from this log"))
        }
        (None, _) if name == "last" => Err(not_found("there are no runs in this log")),
        (None, _) => Err(absent(log, name).await?),
        (Some(a), Some(b)) => Err(Error::log(LogReason::AmbiguousRun)
            .with_message(format!(
                "more than one run has an id that begins with {name:?}: {}, {}{more}; give more of it",
                b.run_id, a.run_id
            ))
            .into()),
    }
}

/// The page of the newest run that is not the run of another one's agent.
async fn newest(log: &dyn Log) -> Result<RunPage, Failure> {
    let mut filter = RunFilter::new().limit(1);
    loop {
        let page = log.runs(filter.clone()).await?;
        let above = page.runs.first().and_then(|run| run.run_id.rsplit_once('+'));
        let is_agent = match above {
            Some((above, _)) => log.run(above).await?.is_some(),
            None => false,
        };
        match &page.next {
            Some(next) if is_agent => filter = filter.after(next.clone()),
            _ => return Ok(page),
        }
    }
}

fn not_found(why: impl Into<String>) -> Failure {
    Error::log(LogReason::RunNotFound).with_message(why).into()
}

/// That a log lists a run which it does not find.
pub(crate) fn lost(run: &str) -> Error {
    Error::log(LogReason::Corrupt)
        .with_message(format!(
            "log error: corrupt: the log lists run {run}, and finds no run of that id: its index is damaged, or the id is"
        ))
        .with("run_id", run)
}

/// Why there is no run whose id begins so.
async fn absent(log: &dyn Log, name: &str) -> mynah::Result<Failure> {
    let removals = Removals::read(log).await?;
    let pruned = removals.pruned().filter(|(run, _)| run.starts_with(name));
    if let Some((run, Pruned { tombstone, at, .. })) = pruned.min_by_key(|(run, _)| run.len()) {
        return Ok(Error::log(LogReason::Pruned)
            .with_message(format!(
                "run {} was pruned on {} UTC; `mynah show {MAINTENANCE} --record {tombstone}` shows by whom and why",
                plain(run),
                Moment(at)
            ))
            .with("run_id", run)
            .into());
    }
    let mut filter = RunFilter::new().limit(1000);
    loop {
        let page = log.runs(filter.clone()).await?;
        if page.runs.iter().any(|run| *run.run_id == *name) {
            return Ok(lost(name).into());
        }
        let Some(next) = page.next else { break };
        filter = filter.after(next);
    }
    let why = format!("no run has an id that begins with {name:?}; `mynah runs` lists them");
    Ok(not_found(why))
}

/// The previous run of a run that continues it.
pub(crate) fn previous(first: &Fact) -> Option<&Previous> {
    match first {
        Fact::RunStarted { about: Some(about), .. } => {
            about.session.as_ref()?.previous.as_ref().filter(|previous| previous.messages > 0)
        }
        _ => None,
    }
}

/// The runs that a run continues, the latest first, as far as the log has them.
pub(crate) async fn needed(log: &dyn Log, run: &str) -> Result<Vec<RunId>, Failure> {
    Ok(all_previous(log, run).await?.into_iter().map(|before| before.run_id).collect())
}

/// The same, each with the record up to which it is needed.
pub(crate) async fn all_previous(log: &dyn Log, run: &str) -> Result<Vec<Previous>, Failure> {
    let (mut all, mut next) = (Vec::<Previous>::new(), RunId::from(run));
    loop {
        let first = log.read(&next, 1, 1).await?;
        let first = first.first().map(fact).transpose()?.flatten();
        let Some(before) = first.as_ref().and_then(previous) else { return Ok(all) };
        // Forged records may form a cycle.
        if all.iter().any(|known| known.run_id == before.run_id) {
            return Ok(all);
        }
        next = before.run_id.clone();
        all.push(before.clone());
    }
}

/// Every record of a run, with the fact in it; none where it was removed.
pub(crate) async fn facts(
    log: &dyn Log,
    run: &str,
) -> Result<Vec<(Record, Option<Fact>)>, Failure> {
    const PORTION: usize = 256;
    let mut facts: Vec<(Record, Option<Fact>)> = Vec::new();
    loop {
        let page = log.read(run, facts.len() as u64 + 1, PORTION).await?;
        if page.is_empty() {
            return Ok(facts);
        }
        for record in page {
            let fact = fact(&record)?;
            facts.push((record, fact));
        }
    }
}

/// The fact in a record; none if it was removed.
pub(crate) fn fact(record: &Record) -> Result<Option<Fact>, Failure> {
    record.fact().map_err(|corrupt| Error::from(corrupt).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        for (url, expected) in [
            ("postgres://ann:secret@h/d", "postgres://ann@h/d"),
            (
                "postgres://ann:se:cr@et@h:5/d?sslmode=require",
                "postgres://ann@h:5/d?sslmode=require",
            ),
            ("postgres://ann@h/d?a=b&password=secret&c=d", "postgres://ann@h/d?a=b&c=d"),
            ("postgres://ann:se?cr/et@h/d", "postgres://***"),
            ("postgres://ann@h/d?password=sec@ret", "postgres://***"),
            ("mysql://ann:secret@h/d", "mysql://ann@h/d"),
            ("postgres://ann@h/d", "postgres://ann@h/d"),
            ("sqlite://mynah.db", "sqlite://mynah.db"),
            ("memory:", "memory:"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }

    #[test]
    fn a_log_is_named_by_a_url() {
        for (url, path) in [
            ("sqlite:q.db", "q.db"),
            ("sqlite:/q.db", "/q.db"),
            ("sqlite://q.db", "q.db"),
            ("sqlite:///q.db", "/q.db"),
            ("sqlite://../what?.db", "../what?.db"),
        ] {
            let place = LogLocation::parse(url).ok();
            assert_eq!(place, Some(LogLocation::Sqlite(path.to_owned())), "{url}");
        }
        assert_eq!(LogLocation::parse("memory:").ok(), Some(LogLocation::Memory));
        #[cfg(feature = "postgres")]
        for url in ["postgres://me@host/db", "postgresql://host/db?sslmode=require"] {
            assert_eq!(LogLocation::parse(url).ok(), Some(LogLocation::Postgres(url.to_owned())));
        }
    }
}
