//! Seeing to it that what was taken away is nowhere in the files.
//!
//! The pages of the file itself are overwritten as rows go. The write-ahead log beside it still has them as they were, until
//! all of it is in the file and it can be cut to nothing: that cannot be done while somebody reads what was there before. So
//! the commit that takes something away leaves a note, which goes when that was done, whoever does it.

use std::{thread, time::Duration};

use mynah_data::Result;
use rusqlite::{Connection, OptionalExtension as _};
use tokio::sync::oneshot;

use crate::file::{File, PATIENCE, unavailable};

/// How long whoever reads what was there before is waited for.
const READERS: Duration = Duration::from_secs(2);

const PAUSE: Duration = Duration::from_millis(20);

/// Notes that what was taken away up to this tombstone is to be wiped.
pub(crate) fn note(connection: &Connection, tombstone: u64) -> rusqlite::Result<usize> {
    let insert = "INSERT OR IGNORE INTO unwiped (tombstone) VALUES (?1)";
    connection.prepare_cached(insert)?.execute([tombstone.cast_signed()])
}

/// Wipes what is noted, if nobody is in the way. Tells whether nothing is left to wipe.
pub(crate) fn attempt(connection: &Connection) -> rusqlite::Result<bool> {
    let select = "SELECT tombstone FROM unwiped ORDER BY tombstone DESC LIMIT 1";
    let noted = connection.query_row(select, [], |row| row.get::<_, i64>(0)).optional()?;
    let Some(noted) = noted else { return Ok(true) };
    // It would hold up everybody who writes for as long as it waits.
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

/// Wipes what is noted, and waits for readers, on a thread of its own.
pub(crate) async fn patiently(file: File) -> Result<()> {
    let (reply, answer) = oneshot::channel();
    let thread = thread::Builder::new().name("mynah-log-wiper".to_owned());
    let wiper = thread.spawn(move || {
        // Whoever asked may have gone.
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
