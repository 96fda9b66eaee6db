//! Files that a person names.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use crate::Failure;

/// The largest file that is read. Parsed, JSON can take more than a hundred times its size.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// The bytes of a file; `-` is standard input.
pub(crate) fn bytes(file: &Path) -> Result<Vec<u8>, Failure> {
    let unusable = |error: io::Error| Failure::file(format!("{}: {error}", name(file)));
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

/// The text of a file; `-` is standard input.
pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    String::from_utf8(bytes(file)?).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        Failure::input(format!("{}: not UTF-8 at byte {place}", name(file)))
    })
}

/// What a file is called in messages.
pub(crate) fn name(file: &Path) -> String {
    if is_stdin(file) { "standard input".to_owned() } else { file.display().to_string() }
}

fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}
