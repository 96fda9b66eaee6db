//! Text for a model: checked and cut.

/// The longest prefix of a text that has at most this many bytes and ends between characters.
#[cfg(any(feature = "fetch", feature = "files", feature = "now"))]
pub(crate) fn prefix(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

/// The first character of a text that controls how the text is shown: a control character other than tab and line feed, or one that
/// overrides the direction of writing. Terminals obey them, and some parsers drop them.
#[cfg(any(feature = "ask-user", feature = "fetch", feature = "files"))]
pub(crate) fn control_character(text: &str) -> Option<char> {
    text.chars().find(|c| match c {
        '\t' | '\n' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        c => c.is_control(),
    })
}
