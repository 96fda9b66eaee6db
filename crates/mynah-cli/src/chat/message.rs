//! A line that a person entered, as a message.

use std::path::Path;

use mynah::{Message, Part};

use crate::{Failure, generate::read_image, input};

/// Whether a word was meant as a command, and not as a path.
pub(super) fn is_command(word: &str) -> bool {
    let rest = word.strip_prefix('/').unwrap_or_default();
    !rest.is_empty() && rest.chars().all(|c| c.is_ascii_lowercase()) && !Path::new(word).exists()
}

/// A message with the files that it names: images are attached, texts follow it.
pub(super) fn message(text: &str) -> Result<Message, Failure> {
    let (mut images, mut files) = (Vec::new(), String::new());
    let names = text.split_whitespace().filter_map(|word| word.strip_prefix('@'));
    for name in names.filter(|name| Path::new(name).is_file()) {
        let bytes = input::bytes(Path::new(name))?;
        match String::from_utf8(bytes) {
            Ok(content) => files += &format!("\n\n{name}:\n```\n{}\n```", content.trim_end()),
            Err(_) => images.push(Part::image(read_image(name)?)),
        }
    }
    let mut parts = vec![Part::text(format!("{text}{files}"))];
    parts.extend(images);
    Ok(match parts.len() {
        1 => Message::user(format!("{text}{files}")),
        _ => Message::user_parts(parts),
    })
}
