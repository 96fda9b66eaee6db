//! Files that a person names.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write as _},
    path::Path,
    sync::Arc,
};

use serde::{Deserialize, Deserializer};

use crate::Failure;

/// The largest file that is read. Parsed, JSON can take more than a hundred times its size.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// How much of a file shows whether it is a bundle.
const BEGINNING: u64 = 1 << 16;

/// How an exported page begins.
const PAGE: &[u8] = b"<!doctype html>\n";

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
/// pipe is named. Of a page the bundle in it is read.
fn bundle(file: &Path) -> Result<BufReader<File>, Failure> {
    let unusable = |error: io::Error| unusable(file, &error);
    let mut input = if is_stdin(file) {
        spooled(&mut io::stdin().lock()).map_err(unusable)?
    } else {
        let mut named = File::open(file).map_err(unusable)?;
        let is_file = named.metadata().map_err(unusable)?.is_file();
        if is_file { named } else { spooled(&mut named).map_err(unusable)? }
    };
    let mut beginning = read_beginning(&mut input).map_err(unusable)?;
    if beginning.starts_with(PAGE) {
        input = bundle_in_page(BufReader::new(input)).map_err(unusable)?;
        beginning = read_beginning(&mut input).map_err(unusable)?;
    }
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

fn read_beginning(input: &mut File) -> io::Result<Vec<u8>> {
    let mut beginning = Vec::new();
    input.take(BEGINNING).read_to_end(&mut beginning)?;
    input.rewind()?;
    Ok(beginning)
}

/// The bundle that a page of `mynah export --html` contains, in an anonymous file: all that is left of it if the page was cut off.
fn bundle_in_page(page: impl BufRead) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    let mut is_inside = false;
    for line in page.split(b'\n') {
        let mut line = line?;
        if is_inside && line.starts_with(b"</script>") {
            break;
        }
        if is_inside {
            line.push(b'\n');
            file.write_all(&line)?;
        }
        is_inside |= line.ends_with(b" id=\"bundle\">");
    }
    file.rewind()?;
    Ok(file)
}

/// The same, each bundle by itself: a file has those of a run and of its agents' runs.
pub(crate) fn bundles(file: &Path) -> Result<Vec<BufReader<Part>>, Failure> {
    let mut whole = bundle(file)?;
    let starts = starts(&mut whole).map_err(|error| unusable(file, &error))?;
    let file = Arc::new(whole.into_inner());
    let ends = starts.iter().skip(1).copied().chain([u64::MAX]);
    // What stands before the first belongs to it.
    let starts = std::iter::once(0).chain(starts.iter().skip(1).copied());
    let parts = starts.zip(ends);
    Ok(parts
        .map(|(start, end)| BufReader::new(Part { file: Arc::clone(&file), start, end, at: start }))
        .collect())
}

/// Where the bundles of a file begin.
fn starts(input: &mut impl BufRead) -> io::Result<Vec<u64>> {
    const MARK: &[u8] = b"{\"bundle\":";
    let (mut starts, mut at, mut is_line_start) = (Vec::new(), 0, true);
    let mut beginning = Vec::new();
    loop {
        let read = input.fill_buf()?;
        if read.is_empty() {
            return Ok(starts);
        }
        // A line may be long: only its beginning is kept.
        let end = read.iter().position(|byte| *byte == b'\n').map_or(read.len(), |end| end + 1);
        if is_line_start {
            beginning.clear();
        }
        let room = MARK.len().saturating_sub(beginning.len()).min(end);
        let was_short = beginning.len() < MARK.len();
        beginning.extend_from_slice(&read[..room]);
        if was_short && beginning == MARK {
            starts.push(at + room as u64 - MARK.len() as u64);
        }
        is_line_start = read[end - 1] == b'\n';
        at += end as u64;
        input.consume(end);
    }
}

/// A part of a file, to be read as if it were a file.
pub(crate) struct Part {
    file: Arc<File>,
    start: u64,
    end: u64,
    at: u64,
}

impl Read for Part {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(self.at))?;
        let read = file.read(&mut buffer[..left])?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for Part {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => self.start.checked_add(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(_) => None,
        };
        let at = at.filter(|at| (self.start..=self.end).contains(at));
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at - self.start)
    }
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
