//! The write-ahead log beside the file, enlarged before SQLite needs the room.
//!
//! A commit that makes a file longer waits until its new length is on the disk too, which takes more than twice as long as to
//! overwrite what is there. So zeros are written behind the commits, many pages at once. SQLite ignores them: what it wrote has
//! the numbers of the log's header and a checksum.

use std::{
    fs,
    io::{self, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

/// How much is added at once, at least and at most: as much as there is, between these.
const STEPS: (u64, u64) = (32 << 10, 512 << 10);

pub(crate) struct Ahead {
    path: PathBuf,
    file: Option<fs::File>,
    /// How long it was made, or was found to be.
    len: u64,
    /// How long it is made at most. Then SQLite begins at its start again.
    limit: u64,
}

impl Ahead {
    /// Beside this file.
    pub(crate) fn of(path: &Path, limit: u64) -> Self {
        let mut ahead = path.as_os_str().to_owned();
        ahead.push("-wal");
        Self { path: ahead.into(), file: None, len: 0, limit }
    }

    /// Adds room if SQLite has used what there was. The caller excludes other writers: they write behind the end too.
    ///
    /// # Errors
    /// A file that cannot be written, to which SQLite says more.
    pub(crate) fn enlarge(&mut self) -> io::Result<()> {
        if self.file.is_none() {
            let file = fs::OpenOptions::new().write(true).open(&self.path)?;
            // Another process may have added room already.
            self.len = file.metadata()?.len();
            self.file = Some(file);
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        let len = file.metadata()?.len();
        if len > self.len && len < self.limit {
            let (least, most) = STEPS;
            let more = len.clamp(least, most).min(self.limit - len);
            file.seek(SeekFrom::Start(len))?;
            file.write_all(&vec![0; usize::try_from(more).unwrap_or_default()])?;
            self.len = len + more;
        } else {
            self.len = len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use mynah_log::{Log as _, conformance::Sample};

    use super::*;
    use crate::SqliteLog;

    #[test]
    fn room_is_added_when_it_is_used_up_and_not_beyond_the_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, limit) = (folder.path().join("log.db"), 100_000);
        let mut ahead = Ahead::of(&path, limit);
        ahead.enlarge().expect_err("SQLite makes the file");
        let wal = folder.path().join("log.db-wal");
        fs::write(&wal, [7; 9]).expect("a file");
        let mut enlarged = || {
            ahead.enlarge().expect("room");
            fs::metadata(&wal).expect("a file").len()
        };
        let resize = |len| {
            let file = fs::OpenOptions::new().write(true).open(&wal).expect("a file");
            file.set_len(len).expect("another length");
        };
        assert_eq!(enlarged(), 9, "it may have room from another process");
        resize(10);
        let room = STEPS.0 + 10;
        assert_eq!([enlarged(), enlarged()], [room, room], "once");
        assert!(fs::read(&wal).expect("bytes").ends_with(&[0; 100]));
        resize(room + 1);
        assert_eq!(enlarged(), 2 * (room + 1), "as much again");
        resize(limit - 1);
        assert_eq!([enlarged(), enlarged()], [limit, limit]);
        resize(limit + 1);
        assert_eq!(enlarged(), limit + 1);
        resize(0);
        assert_eq!(enlarged(), 0, "truncated, to leave nothing behind");
    }

    #[tokio::test]
    async fn after_a_crash_all_is_read_from_a_file_with_room_to_spare() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let [path, copy] = folders.each_ref().map(|folder| folder.path().join("log.db"));
        let log = SqliteLog::open(&path).expect("a log");
        let mut run = Sample::new("run", 0);
        for _ in 0..20 {
            log.append(run.batch()).await.expect("what follows");
            run = run.tool_turn();
            let wal = fs::read(path.with_extension("db-wal")).expect("bytes");
            for cut in [0, 10_000] {
                // A crash may also leave the file shorter than it was made.
                let end = wal.len() - wal.iter().rev().take(cut).take_while(|b| **b == 0).count();
                fs::copy(&path, &copy).expect("a copy");
                fs::write(copy.with_extension("db-wal"), &wal[..end]).expect("a copy");
                let copied = SqliteLog::open(&copy).expect("a log");
                assert_eq!(copied.head("run").await, log.head("run").await);
                mynah_log::verify_run(&copied, "run").await.expect("a sound run");
                copied.check().await.expect("a sound file");
                drop(copied);
            }
        }
        let wal = fs::read(path.with_extension("db-wal")).expect("bytes");
        assert!(wal.ends_with(&[0; 1024]), "there is room behind {} bytes", wal.len());
    }
}
