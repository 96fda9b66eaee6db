//! Writing files.

use std::{
    ffi::OsStr,
    io,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    sync::{
        PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use cap_std::fs::{Dir, File, OpenOptions, Permissions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Files, failed, relative, shown};
use crate::typed::{Outcome, refused};

pub(super) const WRITE_FILE: &str = "Writes a text file with this content, in place of the one that is there. \
     Folders that are missing are created. To change part of a file, use edit_file.";
pub(super) const EDIT_FILE: &str = "Replaces text in a file. The old text must occur exactly as often as count says, \
     so give enough of its surroundings to make it unique.";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct WriteFile {
    /// Path of the file, relative to the root folder.
    path: String,
    /// The whole content of the file.
    content: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EditFile {
    /// Path of the file, relative to the root folder.
    path: String,
    /// The text to replace, exactly as it stands in the file.
    old: String,
    /// The text to put in its place.
    new: String,
    /// How often the old text occurs; every occurrence is replaced. 1 if not set.
    count: Option<usize>,
}

#[derive(Serialize)]
pub(super) struct Written {
    path: String,
    bytes: usize,
    created: bool,
}

impl Files {
    pub(super) fn write_file(&self, args: WriteFile) -> Outcome<Written> {
        let path = relative(&args.path)?;
        let _writing = self.root.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.replace(&path, &args.content, true)
    }

    pub(super) fn edit_file(&self, args: EditFile) -> Outcome<Written> {
        let path = relative(&args.path)?;
        if args.old.is_empty() {
            return refused("the old text is empty; use write_file to write a whole file");
        }
        let _writing = self.root.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let text = self.text(&path)?;
        let (found, wanted) = (text.matches(&args.old).count(), args.count.unwrap_or(1));
        if found != wanted || found == 0 {
            let advice = match found {
                0 => "read the file again",
                _ => "include more of the surrounding text, or set count",
            };
            return refused(format!(
                "the old text occurs {found} times in {}, not {wanted}; {advice}",
                shown(&path)
            ));
        }
        let added = args.new.len().saturating_mul(found);
        self.check_size(&path, (text.len() - args.old.len() * found).saturating_add(added))?;
        self.replace(&path, &text.replace(&args.old, &args.new), false)
    }

    fn check_size(&self, path: &Path, bytes: usize) -> Outcome<()> {
        let max = self.limits.max_file;
        if bytes > max {
            return refused(format!(
                "{} would have {bytes} bytes; the limit is {max}",
                shown(path)
            ));
        }
        Ok(())
    }

    /// Replaces a file by a new one in one step. Readers see the old content or the new, and so they do after a crash.
    fn replace(&self, path: &Path, content: &str, create: bool) -> Outcome<Written> {
        self.check_size(path, content.len())?;
        let failed = |error| failed(path, &error);
        let Some(name) = path.file_name() else {
            return refused(format!("{} is a folder, not a file", shown(path)));
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.map_or_else(|| PathBuf::from("."), Path::to_owned);
        let dir = match self.root.dir.open_dir(&parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && create => {
                self.root.dir.create_dir_all(&parent).map_err(failed)?;
                self.root.dir.open_dir(&parent)
            }
            dir => dir,
        };
        let dir = dir.map_err(failed)?;
        let permissions = match dir.symlink_metadata(name) {
            Ok(metadata) if metadata.is_symlink() => {
                return refused(format!(
                    "{} is a symbolic link; write to the file that it points to",
                    shown(path)
                ));
            }
            Ok(metadata) => {
                super::check_regular(path, &metadata)?;
                Some(metadata.permissions())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && create => None,
            Err(error) => return Err(failed(error)),
        };
        // A new file would not ask the old one whether it may be written.
        if permissions.as_ref().is_some_and(Permissions::readonly) {
            return refused(format!("{} is read-only", shown(path)));
        }
        if is_database(&dir, name) {
            return refused(format!(
                "{} is a SQLite database or a part of one, such as the log of this run; text does not replace it",
                shown(path)
            ));
        }
        let created = permissions.is_none();
        let (file, temporary) = Temporary::create(&dir).map_err(failed)?;
        temporary.fill(file, content, permissions, name).map_err(failed)?;
        Ok(Written { path: shown(path), bytes: content.len(), created })
    }
}

/// Whether this is a SQLite database, or the file that SQLite keeps beside one while it is open.
fn is_database(dir: &Dir, name: &OsStr) -> bool {
    const MAGIC: &[u8; 16] = b"SQLite format 3\0";
    let name = name.to_string_lossy();
    let beside = ["-wal", "-shm", "-journal"].iter().find_map(|end| name.strip_suffix(end));
    let mut head = [0; MAGIC.len()];
    let mut file = match dir.open(beside.unwrap_or(&name)) {
        Ok(file) => file,
        Err(_) => return false,
    };
    file.read_exact(&mut head).is_ok() && head == *MAGIC
}

/// A file beside the one that it will replace. It is removed unless it does.
struct Temporary<'d> {
    dir: &'d Dir,
    name: String,
    is_in_place: bool,
}

impl<'d> Temporary<'d> {
    fn create(dir: &'d Dir) -> io::Result<(File, Self)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!(".mynah-{}-{number}.tmp", std::process::id());
            match dir.open_with(&name, &options) {
                // A process that had the same id left it behind.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => return Ok((file?, Self { dir, name, is_in_place: false })),
            }
        }
    }

    fn fill(
        mut self,
        mut file: File,
        content: &str,
        permissions: Option<Permissions>,
        name: &OsStr,
    ) -> io::Result<()> {
        // Before the content, which others may not be allowed to read.
        if let Some(permissions) = permissions {
            file.set_permissions(permissions)?;
        }
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        self.dir.rename(&self.name, self.dir, name)?;
        self.is_in_place = true;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.is_in_place {
            // It is all that can be done here; the file has a name that says what it is.
            let _ = self.dir.remove_file(&self.name);
        }
    }
}
