//! A text in the person's own editor.

use std::{
    env, fs,
    io::{self, Write as _},
    process::Command,
};

/// The editor that the environment names.
fn command() -> Option<String> {
    let set = |name| env::var_os(name)?.into_string().ok().filter(|set| !set.trim().is_empty());
    set("VISUAL").or_else(|| set("EDITOR"))
}

/// Lets a person change a text in their editor; none if the environment names no editor.
pub(crate) fn edited(text: &str) -> Option<io::Result<String>> {
    command().map(|command| edited_by(&command, text))
}

fn edited_by(command: &str, text: &str) -> io::Result<String> {
    let mut file = tempfile::Builder::new().prefix("mynah-").suffix(".txt").tempfile()?;
    file.write_all(text.as_bytes())?;
    let mut words = command.split_whitespace();
    let status =
        Command::new(words.next().unwrap_or_default()).args(words).arg(file.path()).status()?;
    if !status.success() {
        return Err(io::Error::other(format!("it ended with {status}")));
    }
    let mut changed = fs::read_to_string(file.path())?;
    // Editors end the last line.
    if !text.ends_with('\n') && changed.ends_with('\n') {
        changed.pop();
    }
    Ok(changed)
}
