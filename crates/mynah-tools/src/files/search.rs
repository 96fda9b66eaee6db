//! Searching files.

use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobSet};
use mynah_data::ToolOutcome;
use regex::{Regex, RegexBuilder};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{Files, failed, relative, shown};
use crate::text::prefix;
use crate::typed::{Outcome, refused};

/// The longest pattern, in bytes.
const MAX_PATTERN: usize = 1_000;
/// The largest compiled pattern, in bytes.
const MAX_COMPILED: usize = 1 << 20;
/// How much of a line is searched, in bytes. The time that a pattern takes is bounded by its compiled size times this.
const MAX_SEARCHED: usize = 16 << 10;
/// The longest line of a result, in bytes.
const MAX_LINE: usize = 400;
/// How deep folders are followed.
const MAX_DEPTH: usize = 64;
/// The most entries that are looked at.
const MAX_VISITED: usize = 200_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchFiles {
    /// Regular expression that a line must match. Lists the names of files if not set.
    pattern: Option<String>,
    /// Pattern for paths below the searched folder, such as `**/*.rs`; `*` stays within a folder. All files if not set.
    glob: Option<String>,
    /// The folder to search, relative to the root folder. The root folder if not set.
    path: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Found {
    matches: Vec<Match>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
}

#[derive(Serialize)]
struct Match {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl Files {
    pub(super) fn search_description(&self) -> String {
        let skipped = match self.limits.skipped.is_empty() {
            true => String::new(),
            false => format!(" Skips the folders {}.", self.limits.skipped.join(", ")),
        };
        format!(
            "Searches text files below a folder: returns lines that match a regular expression, or the paths that match a glob. \
             Of a long line, the first {MAX_SEARCHED} bytes are searched. \
             Symbolic links are not followed.{skipped}"
        )
    }

    pub(super) fn search_files(&self, args: SearchFiles) -> Outcome<Found> {
        let base = relative(args.path.as_deref().unwrap_or("."))?;
        let mut search = Search {
            pattern: args.pattern.as_deref().map(pattern).transpose()?,
            glob: args.glob.as_deref().map(glob).transpose()?,
            deadline: Instant::now().checked_add(self.limits.search_time),
            visited: 0,
            text: 0,
            found: Found { matches: Vec::new(), truncated: None },
            files: self,
        };
        // A missing folder is an error; those that vanish during the search are not.
        self.root.dir.read_dir(&base).map_err(|error| failed(&base, &error))?;
        let mut folders = vec![(base.clone(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            if let Err(why) = search.look(&base, &folder, depth, &mut folders) {
                search.found.truncated = Some(why);
                break;
            }
        }
        Ok(search.found)
    }
}

fn pattern(pattern: &str) -> Outcome<Regex> {
    check_length(pattern)?;
    RegexBuilder::new(pattern)
        .size_limit(MAX_COMPILED)
        .dfa_size_limit(MAX_COMPILED)
        .build()
        .map_err(|error| invalid("pattern", &error))
}

fn glob(pattern: &str) -> Outcome<GlobSet> {
    check_length(pattern)?;
    let glob = GlobBuilder::new(pattern)
        .literal_separator(true)
        .build()
        .map_err(|error| invalid("glob", &error))?;
    GlobSet::builder().add(glob).build().map_err(|error| invalid("glob", &error))
}

fn check_length(pattern: &str) -> Outcome<()> {
    if pattern.len() > MAX_PATTERN {
        return refused(format!(
            "a pattern of {} bytes is too long; at most {MAX_PATTERN} are allowed",
            pattern.len()
        ));
    }
    Ok(())
}

fn invalid(what: &str, error: &dyn std::error::Error) -> ToolOutcome {
    // The lines before the last repeat the pattern.
    let error = error.to_string();
    let why = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
    ToolOutcome::error(format!("the {what} cannot be used: {}", prefix(why, 300)))
}

struct Search<'f> {
    files: &'f Files,
    pattern: Option<Regex>,
    glob: Option<GlobSet>,
    /// None if the time limit is beyond any.
    deadline: Option<Instant>,
    visited: usize,
    /// The bytes of text in the matches.
    text: usize,
    found: Found,
}

impl Search<'_> {
    /// Looks through one folder, and returns why the search ends early.
    fn look(
        &mut self,
        base: &Path,
        folder: &Path,
        depth: usize,
        folders: &mut Vec<(PathBuf, usize)>,
    ) -> Result<(), String> {
        let Ok(entries) = self.files.root.dir.read_dir(folder) else { return Ok(()) };
        let mut names = Vec::new();
        for entry in entries.flatten() {
            self.visited += 1;
            if self.visited > MAX_VISITED {
                return Err(format!("more than {MAX_VISITED} entries; search a smaller folder"));
            }
            self.check_time()?;
            // Links are neither files nor folders here.
            if let Ok(kind) = entry.file_type()
                && (kind.is_file() || kind.is_dir())
            {
                names.push((entry.file_name(), kind.is_dir()));
            }
        }
        names.sort();
        let path_of = |name| match folder == Path::new(".") {
            true => PathBuf::from(name),
            false => folder.join(name),
        };
        for (name, _) in names.iter().rev().filter(|(_, is_dir)| *is_dir) {
            let is_skipped =
                self.files.limits.skipped.iter().any(|skipped| name == skipped.as_str());
            if !is_skipped && depth < MAX_DEPTH {
                folders.push((path_of(name), depth + 1));
            }
        }
        for (name, _) in names.iter().filter(|(_, is_dir)| !*is_dir) {
            let path = path_of(name);
            let below = path.strip_prefix(base).unwrap_or(&path);
            if self.glob.as_ref().is_none_or(|glob| glob.is_match(below)) {
                self.look_into(&path)?;
            }
        }
        Ok(())
    }

    fn look_into(&mut self, path: &Path) -> Result<(), String> {
        self.check_time()?;
        let Some(pattern) = self.pattern.clone() else {
            return self.push(path, None);
        };
        // A file that is not text, too large or removed has no lines.
        let Ok(text) = self.files.text(path) else { return Ok(()) };
        for (number, line) in text.lines().enumerate() {
            self.check_time()?;
            if pattern.is_match(prefix(line, MAX_SEARCHED)) {
                self.push(path, Some((number + 1, prefix(line, MAX_LINE))))?;
            }
        }
        Ok(())
    }

    fn push(&mut self, path: &Path, line: Option<(usize, &str)>) -> Result<(), String> {
        let limits = &self.files.limits;
        let path = shown(path);
        let size = path.len() + line.map_or(0, |(_, line)| line.len());
        if self.found.matches.len() >= limits.max_results || self.text + size > limits.max_text {
            return Err("there are more matches; make the pattern or the glob narrower".to_owned());
        }
        self.text += size;
        let (number, text) = line.unzip();
        self.found.matches.push(Match { path, line: number, text: text.map(str::to_owned) });
        Ok(())
    }

    fn check_time(&self) -> Result<(), String> {
        if self.deadline.is_none_or(|deadline| Instant::now() < deadline) {
            return Ok(());
        }
        let limit = self.files.limits.search_time.as_millis();
        Err(format!("the search took longer than {limit} ms; search a smaller folder"))
    }
}
