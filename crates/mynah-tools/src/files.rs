//! Files of one folder.

mod edit;
mod read;
mod search;

use std::{
    fmt, io,
    io::Read,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use cap_std::{
    ambient_authority,
    fs::{Dir, File, Metadata, OpenOptions},
};
use mynah_data::{Error, Result, ToolOutcome};
use mynah_step::Tool;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    text::{control_character, prefix},
    typed::{Outcome, blocking, refused},
};

/// The longest path, in bytes.
const MAX_PATH: usize = 4_096;

/// Tools that work on the files of one folder, and on nothing else.
///
/// - [`read_only`](Files::read_only): `read_file`, `list_dir`, `search_files`.
/// - [`read_write`](Files::read_write): these, `write_file` and `edit_file`.
///
/// # What is refused
///
/// The folder is opened once, and every path is resolved beneath that handle by the operating system (`cap-std`). Absolute
/// paths, `..` and symbolic links that lead out of the folder are refused. So is a folder that is replaced by such a link while a tool
/// runs. Only regular files are opened: no device, pipe or socket. Sizes, counts and times are bounded. Paths in results and errors are
/// relative to the folder.
///
/// A hard link looks like a file. A user who may create hard links in the folder can make the
/// linked file readable. A write replaces the link and leaves the linked file unchanged.
///
/// ```
/// # let folder = tempfile::tempdir().expect("a folder");
/// # let project = folder.path();
/// use mynah_step::Tool;
///
/// let tools = mynah_tools::files(project)?.max_file(1 << 20).read_write();
/// let names: Vec<_> = tools.iter().map(Tool::name).collect();
/// assert_eq!(names, ["read_file", "list_dir", "search_files", "write_file", "edit_file"]);
/// # Ok::<(), mynah_data::Error>(())
/// ```
///
/// # Errors
/// A folder that cannot be opened.
pub fn files(root: impl AsRef<Path>) -> Result<Files> {
    let root = root.as_ref();
    let dir = Dir::open_ambient_dir(root, ambient_authority()).map_err(|error| {
        Error::invalid_option("root", "unreadable")
            .with_message(format!("the folder {} cannot be opened: {error}", root.display()))
    })?;
    Ok(Files {
        root: Arc::new(Root { dir, writing: Mutex::new(()) }),
        limits: Limits {
            max_file: 10 << 20,
            max_text: 64 << 10,
            max_results: 500,
            search_time: Duration::from_secs(10),
            skipped: ["node_modules", "target", ".git"].map(str::to_owned).to_vec(),
        },
    })
}

/// The settings of [`files`].
#[derive(Clone)]
#[must_use]
pub struct Files {
    root: Arc<Root>,
    limits: Limits,
}

struct Root {
    dir: Dir,
    /// Held while a file is read and replaced, because calls of one turn run side by side.
    writing: Mutex<()>,
}

#[derive(Clone)]
struct Limits {
    max_file: usize,
    max_text: usize,
    max_results: usize,
    search_time: Duration,
    skipped: Vec<String>,
}

impl Files {
    /// The largest file that is read, searched or written, in bytes; 10 MiB by default.
    pub fn max_file(mut self, bytes: usize) -> Self {
        self.limits.max_file = bytes;
        self
    }

    /// The longest text of one result, in bytes; 64 KiB by default. A longer text is truncated, and the model can read on.
    pub fn max_text(mut self, bytes: usize) -> Self {
        // Room for any character, so that reading on always makes progress.
        self.limits.max_text = bytes.max(4);
        self
    }

    /// The most entries of a folder, or matches of a search, in one result; 500 by default.
    pub fn max_results(mut self, count: usize) -> Self {
        self.limits.max_results = count;
        self
    }

    /// How long a search may take; 10 seconds by default. Then it returns what it has found.
    pub fn search_time(mut self, limit: Duration) -> Self {
        self.limits.search_time = limit;
        self
    }

    /// The names of folders that a search skips; `.git`, `node_modules` and `target` by default.
    pub fn skip<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.limits.skipped = names.into_iter().map(Into::into).collect();
        self
    }

    /// The tools that change nothing. They are idempotent, and a replay answers from the record.
    pub fn read_only(&self) -> Vec<Tool> {
        let reading = |tool: Tool| tool.idempotent(1);
        vec![
            reading(self.tool("read_file", read::READ_FILE, Files::read_file)),
            reading(self.tool("list_dir", read::LIST_DIR, Files::list_dir)),
            reading(self.tool("search_files", &self.search_description(), Files::search_files))
                // The tool's own limit returns what was found.
                .timeout(self.limits.search_time.saturating_add(Duration::from_secs(5))),
        ]
    }

    /// All tools. Those that write are not idempotent, and a replay answers from the record.
    pub fn read_write(&self) -> Vec<Tool> {
        let mut tools = self.read_only();
        tools.push(self.tool("write_file", edit::WRITE_FILE, Files::write_file));
        tools.push(self.tool("edit_file", edit::EDIT_FILE, Files::edit_file));
        tools
    }

    /// A tool that is run on a thread for blocking work.
    fn tool<A, T>(&self, name: &str, description: &str, run: fn(&Self, A) -> Outcome<T>) -> Tool
    where
        A: JsonSchema + DeserializeOwned + 'static,
        T: Serialize + 'static,
    {
        let files = self.clone();
        blocking(name, description, move |args| run(&files, args)).recorded()
    }

    /// The content of a regular file that has at most `max_file` bytes.
    fn content(&self, path: &Path) -> Outcome<Vec<u8>> {
        let mut content = Vec::new();
        let max = self.limits.max_file;
        // A file may grow while it is read, and those of `/proc` do not know their size.
        let limit = (max as u64).saturating_add(1);
        let file = self.open(path)?;
        file.take(limit).read_to_end(&mut content).map_err(|error| failed(path, &error))?;
        if content.len() > max {
            return refused(format!(
                "{} is larger than {max} bytes, which is the limit",
                shown(path)
            ));
        }
        Ok(content)
    }

    /// The content of a text file.
    fn text(&self, path: &Path) -> Outcome<String> {
        String::from_utf8(self.content(path)?)
            .ok()
            .filter(|text| !text.contains('\0'))
            .ok_or_else(|| ToolOutcome::error(format!("{} is not UTF-8 text", shown(path))))
    }

    /// Opens a regular file.
    fn open(&self, path: &Path) -> Outcome<File> {
        let dir = &self.root.dir;
        // Opening a device may already do something, so its type is checked before.
        let metadata = dir.metadata(path).map_err(|error| failed(path, &error))?;
        check_regular(path, &metadata)?;
        let file = dir.open_with(path, &only_reading()).map_err(|error| failed(path, &error))?;
        // It may have been replaced in between.
        let metadata = file.metadata().map_err(|error| failed(path, &error))?;
        check_regular(path, &metadata)?;
        Ok(file)
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files")
            .field("root", &self.root.dir)
            .field("max_file", &self.limits.max_file)
            .finish_non_exhaustive()
    }
}

/// Options to open a file without waiting for the other end of a pipe.
fn only_reading() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use cap_std::fs::OpenOptionsExt as _;
        use rustix::fs::OFlags;
        options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed());
    }
    options
}

fn check_regular(path: &Path, metadata: &Metadata) -> Outcome<()> {
    match metadata.file_type() {
        kind if kind.is_file() => Ok(()),
        kind if kind.is_dir() => refused(format!("{} is a folder, not a file", shown(path))),
        _ => refused(format!("{} is not a regular file but a device, pipe or socket", shown(path))),
    }
}

/// A path relative to the folder, as the model may write it. What the path leads through is checked when it is opened.
fn relative(path: &str) -> Outcome<PathBuf> {
    if path.len() > MAX_PATH {
        return refused(format!(
            "a path of {} bytes is too long; at most {MAX_PATH} are allowed",
            path.len()
        ));
    }
    if path.contains(['\n', '\t']) || control_character(path).is_some() {
        return refused("the path contains control characters");
    }
    let mut clean = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                return refused(format!(
                    "{:?} contains \"..\"; use a path below the folder",
                    prefix(path, 200)
                ));
            }
            Component::RootDir | Component::Prefix(_) => {
                return refused(format!(
                    "{:?} is an absolute path; use a path relative to the folder",
                    prefix(path, 200)
                ));
            }
        }
    }
    Ok(if clean.as_os_str().is_empty() { PathBuf::from(".") } else { clean })
}

/// A path as the model reads it.
fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// What the operating system reports, without its codes.
fn failed(path: &Path, error: &io::Error) -> ToolOutcome {
    use io::ErrorKind;
    let why = match error.kind() {
        ErrorKind::NotFound => "does not exist".to_owned(),
        ErrorKind::NotADirectory => "leads through something that is not a folder".to_owned(),
        ErrorKind::IsADirectory => "is a folder".to_owned(),
        ErrorKind::InvalidFilename => "is too long a name".to_owned(),
        ErrorKind::CrossesDevices => "leads out of the folder".to_owned(),
        // What `cap-std` reports for a path that leaves its folder has no code of the system.
        ErrorKind::PermissionDenied if error.raw_os_error().is_none() => {
            "leads out of the folder".to_owned()
        }
        #[cfg(unix)]
        _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            "leads through a symbolic link that cannot be followed".to_owned()
        }
        ErrorKind::PermissionDenied => "may not be accessed by this process".to_owned(),
        _ => format!("failed: {error}"),
    };
    ToolOutcome::error(format!("{} {why}", shown(path)))
}
