//! Errors that name the place in a file.

use std::{
    fmt,
    fs::File,
    io::{self, Read as _},
    ops::Range,
    path::{Path, PathBuf},
};

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// What is wrong with an agent file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct FileError {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1; none if the file could not be read or lacks the key.
    pub line: Option<usize>,
    /// The key, as `tools.files.root`; empty if the file as a whole is wrong.
    pub key: String,
    /// What is wrong, and what to do.
    pub message: String,
    /// Whether a file or server could not be reached, as opposed to a file that does not fit.
    pub is_unreachable: bool,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// The largest file that is read: more than any prompt, schema or agent has.
const MAX_BYTES: u64 = 4 << 20;

/// The text of a file.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => io::Error::new(error.kind(), "it is not UTF-8"),
        _ => error,
    })?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(io::Error::other("it is larger than 4 MiB")),
        false => Ok(text),
    }
}

/// Whether a file could not be read at all. One that is no text was read, and does not fit.
fn is_unreachable(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::InvalidData
}

/// The text of a file, to find places in.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) file: PathBuf,
    pub(crate) text: String,
    /// The table of an agent that another one's file describes.
    pub(crate) table: Vec<String>,
}

impl Source {
    /// A file of its own.
    pub(crate) fn new(file: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        Self { file: file.into(), text: text.into(), table: Vec::new() }
    }

    /// That something is wrong with the value of a key.
    pub(crate) fn error(&self, path: &[&str], message: impl Into<String>) -> FileError {
        let document = DeTable::parse(&self.text).ok();
        let path: Vec<&str> =
            self.table.iter().map(String::as_str).chain(path.iter().copied()).collect();
        let span = document.and_then(|document| span_of(document.get_ref(), &path));
        FileError {
            file: self.file.clone(),
            line: span.map(|span| self.line(span.start)),
            key: path.join("."),
            message: message.into(),
            is_unreachable: false,
        }
    }

    /// That what a key names cannot be reached.
    pub(crate) fn unreachable(&self, path: &[&str], message: impl Into<String>) -> FileError {
        FileError { is_unreachable: true, ..self.error(path, message) }
    }

    /// That a file cannot be read.
    pub(crate) fn unreadable(file: &Path, error: &io::Error) -> FileError {
        FileError {
            file: file.to_owned(),
            line: None,
            key: String::new(),
            message: error.to_string(),
            is_unreachable: is_unreachable(error),
        }
    }

    /// That a file that a key names cannot be read.
    pub(crate) fn unreadable_named(
        &self,
        path: &[&str],
        file: &Path,
        error: &io::Error,
    ) -> FileError {
        let message = format!("{}: {error}", file.display());
        FileError { is_unreachable: is_unreachable(error), ..self.error(path, message) }
    }

    /// That the text does not fit, in words that name the key.
    pub(crate) fn misfit(&self, error: &toml::de::Error) -> FileError {
        let document = DeTable::parse(&self.text).ok();
        // A key that the whole file lacks is nowhere.
        let span = error.span().filter(|span| *span != (0..0));
        let path = document.zip(span.clone()).map(|(document, span)| {
            let mut path = Vec::new();
            find(document.get_ref(), &span, &mut path);
            path.join(".")
        });
        FileError {
            file: self.file.clone(),
            line: span.map(|span| self.line(span.start)),
            key: path.unwrap_or_default(),
            message: reworded(error.message()),
            is_unreachable: false,
        }
    }

    fn line(&self, offset: usize) -> usize {
        self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
    }
}

/// The span of the key at a path. In an array, the path has the place of an item.
fn span_of(table: &DeTable<'_>, path: &[&str]) -> Option<Range<usize>> {
    let (first, rest) = path.split_first()?;
    let (key, value) = table.iter().find(|(key, _)| key.get_ref() == first)?;
    let inner = match (value.get_ref(), rest) {
        (DeValue::Table(table), rest) => span_of(table, rest),
        (DeValue::Array(list), [place, rest @ ..]) => {
            let item = place.parse().ok().and_then(|place: usize| list.get(place));
            item.and_then(|item| span_of(item.get_ref().as_table()?, rest))
        }
        _ => None,
    };
    Some(inner.unwrap_or_else(|| key.span()))
}

/// Appends the path of the innermost key whose name or value holds a span. The span of a table that has a header is only the header, so
/// its members are searched in any case.
fn find(table: &DeTable<'_>, span: &Range<usize>, path: &mut Vec<String>) -> bool {
    let holds = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
    table.iter().any(|(key, value)| {
        path.push(key.get_ref().to_string());
        let found = in_value(value, span, path) || holds(key.span()) || holds(value.span());
        if !found {
            path.pop();
        }
        found
    })
}

fn in_value(value: &Spanned<DeValue<'_>>, span: &Range<usize>, path: &mut Vec<String>) -> bool {
    match value.get_ref() {
        DeValue::Table(table) => find(table, span, path),
        DeValue::Array(list) => list.iter().any(|item| in_value(item, span, path)),
        _ => false,
    }
}

/// A message of the parser in the words of a file: with the nearest of the names that would fit.
fn reworded(message: &str) -> String {
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let message = message.trim();
    if let Some(rest) = message.strip_prefix("missing field ") {
        return format!("the key {rest} is missing");
    }
    let what = match message {
        message if message.starts_with("unknown field") => "unknown key",
        message if message.starts_with("unknown variant") => "unknown value",
        message => return in_words(&message.replace('\n', ": ")),
    };
    match names.split_first() {
        Some((wrong, known)) => format!("{what}{}", suggestion(wrong, known)),
        None => message.to_owned(),
    }
}

/// A message of the parser with the types that it expects in the words of a file.
fn in_words(message: &str) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else {
        return message.to_owned();
    };
    let is_large = found.starts_with("invalid value: integer")
        && !found.contains('-')
        && !found.contains("`0`");
    let expected = match expected {
        "f32" | "f64" => "a number",
        "u32" | "a nonzero u32" if is_large => "a whole number, 4294967295 at most",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "a sequence" => "a list",
        "a map" => "a table",
        nonzero if nonzero.starts_with("a nonzero ") => "a whole number, 1 or more",
        table if table.starts_with("struct ") => "a table",
        expected => expected,
    };
    format!("{found}, expected {expected}")
}

/// The nearest of the known names, or all of them.
pub(crate) fn suggestion(wrong: &str, known: &[&str]) -> String {
    match near(wrong, known) {
        Some(near) => format!(" `{wrong}`; did you mean `{near}`?"),
        None => format!(" `{wrong}`; known are {}", known.join(", ")),
    }
}

/// The known name that was probably meant.
pub(crate) fn near<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let distance = |name: &&str| strsim::damerau_levenshtein(wrong, name);
    known.iter().copied().min_by_key(distance).filter(|name| {
        distance(name) <= wrong.chars().count().max(3) / 3
            || (wrong.len() > 2 && name.starts_with(wrong))
    })
}
