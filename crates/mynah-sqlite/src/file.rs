//! The file: how it is opened, which tables it has, what its failures mean.

use std::{
    fs, io,
    path::{Path, PathBuf, absolute},
    sync::Arc,
    thread,
    time::Duration,
};

use mynah_data::{Error, LogReason, Result};
use mynah_log::Durability;
use rusqlite::{
    Connection, ErrorCode, MAIN_DB, OpenFlags, TransactionBehavior, config::DbConfig,
    ffi::SQLITE_IOERR_SHMSIZE,
};

use crate::{
    Answer,
    ahead::Ahead,
    place::{self, Identity},
    row::is_unsound,
};

/// In the header of every file of ours.
const APPLICATION: i32 = i32::from_be_bytes(*b"Myna");

/// The version of the tables.
pub(crate) const SCHEMA: u32 = 1;

const TABLES: [&str; 10] =
    ["runs", "beats", "inbox", "parts", "heads", "older", "records", "seals", "pruned", "unwiped"];

/// Small: every commit writes whole pages, most of them for a record or two, and every table has one from the beginning. A record that does
/// not fit into a page leaves little of its last one empty.
const PAGE: u32 = 1024;

/// How many pages are written ahead before they are moved into the file: four megabytes.
pub(crate) const AHEAD: u32 = (4 << 20) / PAGE;

/// How many statements a connection remembers: all that the thread that writes has, and some more.
const STATEMENTS: usize = 32;

/// How long to wait for another process that has the file locked.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A file that is, or may become, a log.
#[derive(Clone, Debug)]
pub(crate) struct File(Arc<PathBuf>);

impl File {
    pub(crate) fn new(path: &Path) -> Result<Self> {
        if path.as_os_str().is_empty() || path == Path::new(":memory:") {
            let why = "a SQLite log needs a file; for a log in memory, take a MemoryLog";
            return Err(unusable(why));
        }
        let path = absolute(path)
            .map_err(|e| unavailable(format!("{}: {e}", path.display())).caused_by(e))?;
        let wrong = |what: &str| Err(unusable(format!("{} {what}", path.display())));
        match fs::metadata(&path) {
            Ok(found) if found.is_dir() => return wrong("is a folder, and a log is a file"),
            // SQLite would wait for a writer of a pipe.
            Ok(found) if !found.is_file() => return wrong("is not a file that can hold a log"),
            _ => {}
        }
        // SQLite would look no further at a folder that `..` follows.
        if path.parent().is_some_and(|folder| !folder.is_dir()) {
            return wrong("is in a folder that does not exist; create it, or give another path");
        }
        path.parent().map_or(Ok(()), place::check_local)?;
        Ok(Self(Arc::new(path)))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Opens it, and makes its tables if there are none.
    pub(crate) fn open_to_write(&self, durability: Durability) -> Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let mut connection = self.open(&self.0, flags)?;
        self.has_tables(&connection)?;
        // Otherwise it would be found out when the first run has something to write, and a model has answered.
        if connection.is_readonly(MAIN_DB).map_err(|error| self.failure(error))? {
            let path = self.0.display();
            return Err(Error::log(LogReason::ReadOnly).with_message(format!(
                "log error: read_only: {path}: see that the file and its folder may be written, or only read it"
            )));
        }
        self.prepare(&connection, durability)?;
        self.make_tables(&mut connection)?;
        Ok(connection)
    }

    /// The write-ahead log beside it.
    pub(crate) fn ahead(&self) -> Ahead {
        // SQLite writes it beside the file that a link leads to.
        let path = fs::canonicalize(&*self.0).unwrap_or_else(|_| self.0.to_path_buf());
        Ahead::of(&path, u64::from(AHEAD) * u64::from(PAGE))
    }

    /// Which file the path leads to.
    pub(crate) fn identity(&self) -> Result<Identity> {
        place::identity(&self.0).map_err(|error| {
            unavailable(format!("{}: {error}; see that it may be read", self.0.display()))
                .caused_by(error)
        })
    }

    /// Refuses a file that the path no longer leads to: data written there would be lost.
    pub(crate) fn is_still(&self, opened: Identity) -> Result<()> {
        let what = match place::identity(&self.0) {
            Ok(found) if found == opened => return Ok(()),
            Ok(_) => "replaced by another file",
            Err(error) if error.kind() == io::ErrorKind::NotFound => "removed",
            Err(error) => {
                return Err(unavailable(format!("{}: {error}", self.0.display())).caused_by(error));
            }
        };
        let path = self.0.display();
        Err(unusable(format!(
            "{path} was {what} while it was open; nothing more is written; put it back, or open the log again"
        )))
    }

    /// Opens a log that is open already, to wipe what is left in the file beside it.
    pub(crate) fn open_to_wipe(&self) -> Result<Connection> {
        self.open(&self.0, OpenFlags::SQLITE_OPEN_READ_WRITE)
    }

    /// Opens it read-only. In a folder that cannot be written, or on a full disk, the file is read as
    /// it is, on the assumption that no process writes it.
    pub(crate) fn open_to_read(&self) -> Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let mut connection = self.open(&self.0, flags)?;
        if let Err(error) = header(&connection) {
            let why = match error.sqlite_error_code() {
                Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly) => "the folder cannot be written",
                _ if is_full(&error) => "the disk is full",
                _ => return Err(self.failure(error)),
            };
            connection = self.open_as_it_stands(why)?;
        }
        if !self.has_tables(&connection)? {
            return Err(unavailable(format!(
                "{} is empty: there is no log in it",
                self.0.display()
            )));
        }
        Ok(connection)
    }

    /// Opens it without the files beside it that readers and writers share. That is sound if all
    /// data is in the file itself.
    fn open_as_it_stands(&self, why: &str) -> Result<Connection> {
        let path = self.0.display();
        let mut ahead = self.0.as_os_str().to_owned();
        ahead.push("-wal");
        if fs::metadata(&ahead).is_ok_and(|ahead| ahead.len() > 0) {
            return Err(unavailable(format!(
                "{path} was not closed: what was written last is in {}, and {why}; \
                 copy both to a folder that can be written, and read it there",
                Path::new(&ahead).display()
            )));
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
        self.open(Path::new(&format!("{}?immutable=1", uri(&self.0))), flags)
    }

    fn open(&self, path: &Path, flags: OpenFlags) -> Result<Connection> {
        // One thread at a time uses a connection. A path is a path, even if it looks like a URI.
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let opened = Connection::open_with_flags(path, flags).and_then(|connection| {
            connection.busy_timeout(PATIENCE)?;
            connection.set_prepared_statement_cache_capacity(STATEMENTS);
            // The file is untrusted: its schema must not call functions or run triggers.
            connection.pragma_update(None, "trusted_schema", false)?;
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, false)?;
            // Otherwise a statement is compiled anew for each value that it is given.
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
            Ok(connection)
        });
        opened.map_err(|error| self.failure(error))
    }

    fn prepare(&self, connection: &Connection, durability: Durability) -> Result<()> {
        let failed = |error| self.failure(error);
        connection.pragma_update(None, "page_size", PAGE).map_err(failed)?;
        let mode = write_ahead(connection).map_err(failed)?;
        if mode != "wal" {
            return Err(unusable(format!(
                "{}: SQLite cannot write ahead here (journal_mode is {mode}), so that processes could not share the file; \
                 give a path on a local disk",
                self.0.display()
            )));
        }
        // Removed data must leave no copy behind, not even the time of its writing.
        connection.pragma_update(None, "secure_delete", true).map_err(failed)?;
        make(connection, durability).map_err(failed)
    }

    /// Whether it has the tables of a log. An empty file has none.
    fn has_tables(&self, connection: &Connection) -> Result<bool> {
        match header(connection).map_err(|error| self.failure(error))? {
            (0, 0, _) => Ok(false),
            (1.., APPLICATION, 0) => {
                Err(self.damaged("it has tables, and their version is missing"))
            }
            (_, APPLICATION, version) if version == SCHEMA.cast_signed() => Ok(true),
            (_, APPLICATION, version) => Err(self.foreign(version)),
            _ => {
                let path = self.0.display();
                Err(unusable(format!("{path} is a SQLite file, but not a log of Mynah")))
            }
        }
    }

    fn make_tables(&self, connection: &mut Connection) -> Result<()> {
        let failed = |error| self.failure(error);
        let behavior = TransactionBehavior::Immediate;
        let transaction = connection.transaction_with_behavior(behavior).map_err(failed)?;
        // Under the lock: another process may have been faster.
        if self.has_tables(&transaction)? {
            return Ok(());
        }
        let made = transaction
            .execute_batch(include_str!("schema.sql"))
            .and_then(|()| transaction.pragma_update(None, "application_id", APPLICATION))
            .and_then(|()| transaction.pragma_update(None, "user_version", SCHEMA))
            .and_then(|()| transaction.commit());
        made.map_err(failed)
    }

    /// Checks that SQLite can read every page and every index.
    pub(crate) fn check(&self, connection: &Connection) -> Answer<()> {
        // Once it is damaged, more of the same is no news.
        let mut check = connection.prepare("PRAGMA integrity_check(3)")?;
        let found = check.query_map([], |row| row.get(0))?;
        let found = found.collect::<rusqlite::Result<Vec<String>>>()?;
        if found != ["ok"] {
            let (path, what) = (self.0.display(), found.join("; "));
            return Ok(Err(Error::log(LogReason::Corrupt).with_message(format!(
                "log error: corrupt: {path}: the file is damaged; restore it from a copy: {what}"
            ))));
        }
        let select = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1";
        let mut select = connection.prepare(select)?;
        for table in TABLES {
            if !select.exists([table])? {
                return Ok(Err(self.damaged(&format!("no such table: {table}"))));
            }
        }
        Ok(Ok(()))
    }

    fn damaged(&self, what: &str) -> Error {
        let path = self.0.display();
        Error::log(LogReason::Corrupt).with_message(format!(
            "log error: corrupt: {path}: {what}: the file is damaged; restore it from a copy"
        ))
    }

    fn foreign(&self, version: i32) -> Error {
        let path = self.0.display();
        Error::log(LogReason::SchemaTooNew)
            .with_message(format!(
                "log error: schema_too_new: {path} was made by another version of Mynah: it has tables of version {version}, \
                 and this one reads {SCHEMA}; use the version that made it, or another file"
            ))
            .with("schema", version)
            .with("known", SCHEMA)
    }

    /// What a failure of SQLite means, and what to do.
    pub(crate) fn failure(&self, error: rusqlite::Error) -> Error {
        let path = self.0.display().to_string();
        let (code, what) = match &error {
            // Without the statement, which is internal.
            rusqlite::Error::SqlInputError { error, msg, .. } => (Some(error.code), msg.clone()),
            error => (error.sqlite_error_code(), error.to_string()),
        };
        // SQLite names the file that it could not open.
        let what = what.strip_suffix(&format!(": {path}")).unwrap_or(&what);
        let (reason, advice) = match code {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                let seconds = PATIENCE.as_secs();
                (
                    LogReason::Unavailable,
                    format!("another process kept it locked for {seconds} s; try again"),
                )
            }
            Some(ErrorCode::CannotOpen) => (
                LogReason::Unavailable,
                "see that it may be read, and that its folder is there and may be written"
                    .to_owned(),
            ),
            Some(ErrorCode::ReadOnly) => (
                LogReason::ReadOnly,
                "see that the file and its folder may be written, or only read it".to_owned(),
            ),
            _ if is_full(&error) => {
                (LogReason::Unavailable, "the disk is full; make room and go on".to_owned())
            }
            Some(ErrorCode::NotADatabase) => {
                (LogReason::Unusable, "it is not a SQLite file; give another path".to_owned())
            }
            // SQLite reports an unknown table or column: the file claims to be a log, and is not.
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::Unknown | ErrorCode::SchemaChanged) => {
                (LogReason::Corrupt, "the file is damaged; restore it from a copy".to_owned())
            }
            Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch) => {
                (LogReason::Corrupt, "its index and its records disagree; verify it".to_owned())
            }
            None if is_unsound(&error) => {
                (LogReason::Corrupt, "the file is damaged; restore it from a copy".to_owned())
            }
            _ => (LogReason::Unavailable, "see that the file can be used".to_owned()),
        };
        let message = format!("log error: {reason}: {path}: {what}: {advice}");
        Error::log(reason).with_message(message).caused_by(error)
    }
}

/// Whether there was no room on the disk for what was to be written.
fn is_full(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| (error.code, error.extended_code));
    // The file that processes share beside a log could not be enlarged.
    matches!(code, Some((ErrorCode::DiskFull, _) | (_, SQLITE_IOERR_SHMSIZE)))
}

/// How many tables there are, whose file it says to be, and the version of the tables.
fn header(connection: &Connection) -> rusqlite::Result<(i64, i32, i32)> {
    // In one statement, since another process may be making the tables just now.
    let select = "SELECT (SELECT count(*) FROM sqlite_schema), \
                  (SELECT application_id FROM pragma_application_id), \
                  (SELECT user_version FROM pragma_user_version)";
    connection.query_row(select, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
}

/// A path as SQLite takes it with options.
fn uri(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    if cfg!(windows) {
        uri.push('/');
    }
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'\\' if cfg!(windows) => uri.push('/'),
            b'/' | b':' | b'-' | b'.' | b'_' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

/// Lets readers and the writer work concurrently. If two processes create a file at once, SQLite
/// refuses this to one of them without waiting, so this waits. Returns the mode of the file, which
/// differs if SQLite does not support it.
#[expect(clippy::disallowed_methods, reason = "opening a file blocks, and nothing runs yet")]
fn write_ahead(connection: &Connection) -> rusqlite::Result<String> {
    const PAUSE: Duration = Duration::from_millis(10);
    let ask = || connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0));
    connection.busy_timeout(Duration::ZERO)?;
    for _ in 0..PATIENCE.as_millis() / PAUSE.as_millis() {
        match ask() {
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
                thread::sleep(PAUSE);
            }
            Err(error) => return Err(error),
            Ok::<String, _>(_) => break,
        }
    }
    connection.busy_timeout(PATIENCE)?;
    ask()
}

/// Refuses a file, or the place where it lies, for good.
pub(crate) fn unusable(why: impl std::fmt::Display) -> Error {
    Error::log(LogReason::Unusable).with_message(format!("log error: unusable: {why}"))
}

pub(crate) fn unavailable(why: impl std::fmt::Display) -> Error {
    Error::log(LogReason::Unavailable).with_message(format!("log error: unavailable: {why}"))
}

/// Makes what is committed from here on this safe.
pub(crate) fn make(connection: &Connection, durability: Durability) -> rusqlite::Result<()> {
    let synchronous = match durability {
        Durability::Relaxed => "normal",
        _ => "full",
    };
    connection.pragma_update(None, "synchronous", synchronous)
}

#[cfg(test)]
mod tests {
    use mynah_data::ErrorKind;

    use super::*;

    #[test]
    fn a_commit_is_synced_as_it_is_asked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = File::new(&folder.path().join("log.db")).expect("a path");
        let connection = file.open_to_write(Durability::Full).expect("a log");
        let synchronous = || -> i64 {
            let value = connection.pragma_query_value(None, "synchronous", |row| row.get(0));
            value.expect("it is known")
        };
        // Synced with every commit, or only when what was committed is moved into the file.
        let (full, normal) = (2, 1);
        assert_eq!(synchronous(), full);
        for (durability, expected) in [(Durability::Relaxed, normal), (Durability::Full, full)] {
            make(&connection, durability).expect("a log");
            assert_eq!(synchronous(), expected, "{durability:?}");
        }
        let mode = connection.pragma_query_value(None, "journal_mode", |row| row.get(0));
        assert_eq!(mode, Ok("wal".to_owned()));
    }

    #[test]
    #[cfg(unix)]
    fn a_file_that_cannot_be_written_ahead_is_refused_with_the_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log.db");
        let file = File::new(&path).expect("a path");
        // It locks with files beside the database, and has no shared memory.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let connection = Connection::open_with_flags_and_vfs(&path, flags, "unix-dotfile");
        let connection = connection.expect("a file");
        let refused = file.prepare(&connection, Durability::Full).expect_err("no shared memory");
        assert_eq!(refused.kind(), ErrorKind::Log(LogReason::Unusable));
        assert!(refused.to_string().contains("journal_mode is delete"), "{refused}");
    }

    #[test]
    fn a_file_is_read_as_it_stands_only_if_all_is_in_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("what? 100% #1 ö.db");
        let file = File::new(&path).expect("a path");
        let writer = file.open_to_write(Durability::Full).expect("a log");
        let error = file
            .open_as_it_stands("the folder cannot be written")
            .expect_err("a log that is being written");
        assert!(
            error.to_string().contains("ö.db-wal, and the folder cannot be written"),
            "{error}"
        );
        drop(writer);
        let reader = file.open_as_it_stands("").expect("a log that was closed");
        assert_eq!(file.has_tables(&reader), Ok(true));
        assert_eq!(file.check(&reader), Ok(Ok(())));
        let names: Vec<_> = folder.path().read_dir().expect("a folder").flatten().collect();
        assert_eq!(names.len(), 1, "no file beside it: {names:?}");
    }
}
