//! Running the real program.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses a part of this, and a helper may fail the test that calls it"
)]

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// What a run of the program came to.
#[derive(Debug, PartialEq)]
pub(crate) struct Ran {
    /// None if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The program with these arguments, yet to be run.
pub(crate) fn mynah<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mynah"));
    command.args(arguments);
    command
}

/// Runs the program to its end, with nothing to read.
pub(crate) fn run<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Ran {
    feed(mynah(arguments), b"")
}

/// Runs a command to its end, with this to read.
pub(crate) fn feed(mut command: Command, input: &[u8]) -> Ran {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that refuses its input may be gone before it was read.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A file of this name with this content, for this test alone.
pub(crate) fn file(name: &str, content: impl AsRef<[u8]>) -> String {
    let path: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}
