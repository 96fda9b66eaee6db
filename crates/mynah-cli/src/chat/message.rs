//! A line that a person entered, as a message.

use std::{
    env,
    path::{Path, PathBuf},
};

use mynah::{Message, Part};

use crate::{Failure, generate::read_image, input};

/// Whether a word was meant as a command, and not as a path.
pub(super) fn is_command(word: &str) -> bool {
    let rest = word.strip_prefix('/').unwrap_or_default();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !rest.is_empty() && rest.chars().all(is_name) && !Path::new(word).exists()
}

/// A message with the files that it names: images are attached, texts follow it. Also says which files these are, and which names are none.
///
/// # Errors
/// A name of something that cannot be attached. A name of nothing is a word like any other.
pub(super) fn message(text: &str) -> Result<(Message, Vec<String>), Failure> {
    let (mut images, mut files, mut notes) = (Vec::new(), String::new(), Vec::new());
    for name in names(text) {
        let Some(path) = file(&name) else {
            let has_extension = Path::new(&name).extension().is_some_and(|end| end.len() <= 5);
            if has_extension || name.contains('/') {
                notes.push(format!("there is no file {name}; the message is sent without it"));
            }
            continue;
        };
        let name = path.to_string_lossy();
        match String::from_utf8(input::bytes(&path)?) {
            Ok(content) => {
                let mut fence = "```".to_owned();
                while content.contains(&fence) {
                    fence.push('`');
                }
                files += &format!("\n\n{name}:\n{fence}\n{}\n{fence}", content.trim_end());
            }
            Err(_) => images.push(Part::image(read_image(&name).map_err(|_| {
                Failure::input(format!(
                    "{name} is neither a text nor a PNG, JPEG, GIF or WebP image"
                ))
            })?)),
        }
        notes.push(format!("attached {name}"));
    }
    let text = format!("{text}{files}");
    let message = match images.is_empty() {
        true => Message::user(text),
        false => Message::user_parts([vec![Part::text(text)], images].concat()),
    };
    Ok((message, notes))
}

/// The words behind an @. Spaces in them are escaped, or the word is in quotes.
fn names(text: &str) -> Vec<String> {
    let (mut names, mut rest, mut is_start) = (Vec::new(), text.chars().peekable(), true);
    while let Some(c) = rest.next() {
        if c == '@' && is_start {
            let quote = rest.next_if(|c| ['"', '\''].contains(c));
            let mut name = String::new();
            while let Some(c) = rest.next_if(|c| quote.is_some() || !c.is_whitespace()) {
                match c {
                    _ if Some(c) == quote => break,
                    // On Windows it is a part of paths.
                    '\\' if quote.is_none() && !cfg!(windows) => name.extend(rest.next()),
                    _ => name.push(c),
                }
            }
            names.push(name);
        }
        is_start = c.is_whitespace() || "([{<".contains(c);
    }
    names
}

/// The file of this name, without the punctuation of the sentence that names it.
fn file(name: &str) -> Option<PathBuf> {
    let ends = [
        name,
        name.trim_end_matches([',', '.', ';', ':', '!', '?', ')', ']', '}', '>', '"', '\'']),
    ];
    let paths = ends.into_iter().map(|name| match name.strip_prefix("~/") {
        Some(rest) => env::home_dir().unwrap_or_default().join(rest),
        None => PathBuf::from(name),
    });
    paths.into_iter().find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_or_escaped() {
        let table = [
            ("see @a.txt, and @b/c", &["a.txt,", "b/c"][..]),
            ("@my\\ notes.txt", &["my notes.txt"]),
            ("@\"my notes.txt\" @'x y'.", &["my notes.txt", "x y"]),
            ("mail a@b.example", &[]),
            ("(@a.txt)", &["a.txt)"]),
        ];
        for (text, expected) in table {
            if !cfg!(windows) || !text.contains('\\') {
                assert_eq!(names(text), expected, "{text}");
            }
        }
    }
}
