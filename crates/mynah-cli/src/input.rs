//! Files that a person names.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek as _},
    path::Path,
};

use serde::{Deserialize, Deserializer};

use crate::Failure;

/// The largest file that is read. Parsed, JSON can take more than a hundred times its size.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// How much of a file shows whether it is a bundle.
const BEGINNING: u64 = 1 << 16;

/// The bytes of a file; `-` is standard input.
pub(crate) fn bytes(file: &Path) -> Result<Vec<u8>, Failure> {
    let unusable = |error: io::Error| unusable(file, &error);
    let input: Box<dyn Read> = if is_stdin(file) {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(file).map_err(unusable)?)
    };
    let mut bytes = Vec::new();
    input.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(unusable)?;
    if bytes.len() as u64 > MAX_BYTES {
        let limit = MAX_BYTES >> 20;
        return Err(Failure::input(format!("{}: larger than {limit} MiB", name(file))));
    }
    Ok(bytes)
}

/// That a file cannot be read, and why.
fn unusable(file: &Path, error: &io::Error) -> Failure {
    let name = name(file);
    match !is_stdin(file) && file.is_dir() {
        true => Failure::file(format!("{name}: it is a folder; give a file")),
        false => Failure::file(format!("{name}: {error}")),
    }
}

/// The text of a file; `-` is standard input.
pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    String::from_utf8(bytes(file)?).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        Failure::input(format!("{}: not UTF-8 at byte {place}", name(file)))
    })
}

/// The text of a JSON file; `-` is standard input. Invisible characters are named in errors.
pub(crate) fn read_json(file: &Path) -> Result<String, Failure> {
    let text = read(file)?;
    let why = match text.trim_ascii() {
        "" => "it is empty",
        marked if marked.starts_with('\u{feff}') => {
            "it begins with a byte order mark; save it as UTF-8 without one"
        }
        _ => return Ok(text),
    };
    Err(Failure::input(format!("{}: {why}", name(file))))
}

/// A file that `mynah export` wrote, or one that is like it; `-` is standard input. It can be read more than once, also where a
/// pipe is named.
pub(crate) fn bundle(file: &Path) -> Result<BufReader<File>, Failure> {
    let unusable = |error: io::Error| unusable(file, &error);
    let mut input = if is_stdin(file) {
        spooled(&mut io::stdin().lock()).map_err(unusable)?
    } else {
        let mut named = File::open(file).map_err(unusable)?;
        let is_file = named.metadata().map_err(unusable)?.is_file();
        if is_file { named } else { spooled(&mut named).map_err(unusable)? }
    };
    let mut beginning = Vec::new();
    (&mut input).take(BEGINNING).read_to_end(&mut beginning).map_err(unusable)?;
    input.rewind().map_err(unusable)?;
    let has = |text: &[u8]| beginning.windows(text.len()).any(|window| window == text);
    // One that was changed is still one.
    if has(b"{\"bundle\":") || has(b"{\"record\":") || has(b"{\"tombstone\":") {
        return Ok(BufReader::new(input));
    }
    let advice = match beginning.starts_with(b"SQLite format 3\0") && !is_stdin(file) {
        true => format!("; it is a SQLite file: --log sqlite:{} names it", name(file)),
        false => String::new(),
    };
    Err(Failure::input(format!("{}: not a file that `mynah export` wrote{advice}", name(file))))
}

/// Everything from a pipe, in an anonymous file.
fn spooled(pipe: &mut impl Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(pipe, &mut file)?;
    file.rewind()?;
    Ok(file)
}

/// What a file is called in messages.
pub(crate) fn name(file: &Path) -> String {
    if is_stdin(file) { "standard input".to_owned() } else { file.display().to_string() }
}

/// Whether standard input is meant.
pub(crate) fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

/// Reads a value that a person wrote: a member that it does not have is a mistake. Values that programs wrote may have more.
pub(crate) fn strict<'de, T, D>(value: D) -> Result<T, String>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
    D::Error: std::fmt::Display,
{
    let mut unknown = None;
    let read = serde_ignored::deserialize(value, |path| {
        unknown.get_or_insert_with(|| path.to_string());
    });
    match (read, unknown) {
        (Ok(_), Some(path)) => Err(match path.rsplit_once('.') {
            Some((place, name)) => format!("{place}: unknown field `{name}`"),
            None => format!("unknown field `{path}`"),
        }),
        (read, _) => read.map_err(|error: D::Error| error.to_string()),
    }
}
