//! Erases removed data from the files.
//!
//! Pages of the file itself are overwritten when rows are deleted. The write-ahead log beside it
//! still has their old contents, until all of it is in the file and it can be truncated. That is
//! impossible while a reader uses the old data. So the commit that removes data leaves a note,
//! which is deleted by the process that truncated the log.

use std::{thread, time::Duration};

use mynah_data::Result;
use rusqlite::{Connection, OptionalExtension as _};
use tokio::sync::oneshot;

use crate::file::{File, PATIENCE, unavailable};

/// How long to wait for readers of the old data.
const READERS: Duration = Duration::from_secs(2);

const PAUSE: Duration = Duration::from_millis(20);

/// Notes that data removed up to this tombstone must be erased.
pub(crate) fn note(connection: &Connection, tombstone: u64) -> rusqlite::Result<usize> {
    let insert = "INSERT OR IGNORE INTO unwiped (tombstone) VALUES (?1)";
    connection.prepare_cached(insert)?.execute([tombstone.cast_signed()])
}

/// Erases what is noted, if no reader blocks it. Returns whether nothing is left to erase.
pub(crate) fn attempt(connection: &Connection) -> rusqlite::Result<bool> {
    let select = "SELECT tombstone FROM unwiped ORDER BY tombstone DESC LIMIT 1";
    let noted = connection.query_row(select, [], |row| row.get::<_, i64>(0)).optional()?;
    let Some(noted) = noted else { return Ok(true) };
    // Waiting here would block all writers.
    connection.busy_timeout(Duration::ZERO)?;
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
    let held_up = connection.query_row(checkpoint, [], |row| row.get::<_, bool>(0));
    connection.busy_timeout(PATIENCE)?;
    if held_up? {
        return Ok(false);
    }
    // What others took away meanwhile has a note of its own.
    connection.execute("DELETE FROM unwiped WHERE tombstone <= ?1", [noted])?;
    Ok(true)
}

/// Erases what is noted, and waits for readers, on a thread of its own.
pub(crate) async fn patiently(file: File) -> Result<()> {
    let (reply, answer) = oneshot::channel();
    let thread = thread::Builder::new().name("mynah-log-wiper".to_owned());
    let wiper = thread.spawn(move || {
        // The caller may be gone.
        let _ = reply.send(wait(&file));
    });
    wiper.map_err(|error| {
        unavailable(format!("no thread to wipe with: {error}")).caused_by(error)
    })?;
    answer.await.unwrap_or_else(|_| Err(unavailable("the thread that wipes has stopped")))
}

#[expect(clippy::disallowed_methods, reason = "it has a thread of its own")]
fn wait(file: &File) -> Result<()> {
    let connection = file.open_to_wipe()?;
    for _ in 0..READERS.as_millis() / PAUSE.as_millis() {
        if attempt(&connection).map_err(|error| file.failure(error))? {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
    let path = file.path().display();
    Err(unavailable(format!(
        "what was taken away is out of {path}, but still lies in {path}-wal: another process reads what was there before; \
         end it, and whoever opens the log to write next wipes it"
    )))
}
