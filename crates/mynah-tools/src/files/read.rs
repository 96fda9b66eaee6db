//! Reading files and folders.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Files, failed, relative, shown};
use crate::text::prefix;
use crate::typed::{Outcome, refused};

pub(super) const READ_FILE: &str =
    "Reads a text file. Long files are truncated; read on with first_line.";
pub(super) const LIST_DIR: &str = "Lists the entries of a folder with their types and sizes.";

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadFile {
    /// Path of the file, relative to the root folder.
    path: String,
    /// The line to begin with, from 1. Begins at the first line if not set.
    first_line: Option<usize>,
    /// How many lines to read. Reads to the end if not set.
    max_lines: Option<usize>,
}

#[derive(Serialize)]
pub(super) struct Text {
    path: String,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ListDir {
    /// Path of the folder, relative to the root folder. The root folder if not set.
    path: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Listing {
    path: String,
    entries: Vec<Entry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<String>,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

impl Files {
    pub(super) fn read_file(&self, args: ReadFile) -> Outcome<Text> {
        let path = relative(&args.path)?;
        let text = self.text(&path)?;
        let first = args.first_line.unwrap_or(1).max(1);
        let mut lines = text.split_inclusive('\n');
        let skipped: usize = lines.by_ref().take(first - 1).map(str::len).sum();
        if skipped == text.len() && first > 1 {
            let count = text.lines().count();
            return refused(format!(
                "{} has {count} lines; {first} is after the end",
                shown(&path)
            ));
        }
        let max_lines = args.max_lines.unwrap_or(usize::MAX);
        let wanted: usize = lines.take(max_lines).map(str::len).sum();
        let wanted = &text[skipped..skipped + wanted];
        let mut cut = prefix(wanted, self.limits.max_text);
        let mut truncated = None;
        if cut.len() < wanted.len() {
            // Whole lines, so that reading on misses nothing.
            cut = cut.rfind('\n').map_or(cut, |end| &cut[..=end]);
            truncated = Some(match cut.ends_with('\n') {
                true => {
                    let next = first + cut.matches('\n').count();
                    format!("the text is longer; read on with first_line {next}")
                }
                false => format!("line {first} is longer than {} bytes", self.limits.max_text),
            });
        }
        Ok(Text { path: shown(&path), text: cut.to_owned(), truncated })
    }

    pub(super) fn list_dir(&self, args: ListDir) -> Outcome<Listing> {
        let path = relative(args.path.as_deref().unwrap_or("."))?;
        let failed = |error| failed(&path, &error);
        // The first entries by name, for a folder of any size.
        let mut entries = BTreeMap::new();
        let mut count = 0_usize;
        for entry in self.root.dir.read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            entries.insert(entry.file_name(), entry);
            count += 1;
            if entries.len() > self.limits.max_results {
                entries.pop_last();
            }
        }
        let truncated = (count > entries.len())
            .then(|| format!("the folder has {count} entries; these are the first by name"));
        let entries = entries.into_iter().map(|(name, entry)| {
            // An entry that was removed meanwhile is listed without details.
            let metadata = entry.metadata().ok();
            let kind = match metadata.as_ref().map(|metadata| metadata.file_type()) {
                Some(kind) if kind.is_file() => "file",
                Some(kind) if kind.is_dir() => "folder",
                Some(kind) if kind.is_symlink() => "symbolic link",
                _ => "other",
            };
            let bytes = metadata.filter(|_| kind == "file").map(|metadata| metadata.len());
            Entry { name: name.to_string_lossy().into_owned(), kind, bytes }
        });
        Ok(Listing { path: shown(&path), entries: entries.collect(), truncated })
    }
}
