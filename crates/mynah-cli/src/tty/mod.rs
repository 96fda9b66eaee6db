//! The terminal: what it can show, rows that change, Markdown, and lines that a person types.

mod code;
mod editor;
mod live;
mod markdown;
mod prompt;
mod rows;
#[cfg(unix)]
mod suspend;

use std::{
    env,
    io::{self, IsTerminal as _},
};

use anstyle::{AnsiColor, Style};

pub(crate) use self::{
    editor::edited,
    live::Live,
    markdown::Markdown,
    prompt::{Entered, Prompt, Reads},
    rows::{painted, wrapped},
};

/// What is less important than the answer.
pub(crate) const DIM: Style = Style::new().dimmed();
/// What failed.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// What is done.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// What wants attention.
pub(crate) const ASKS: Style = AnsiColor::Yellow.on_default().bold();

/// What the terminal can do.
#[derive(Clone, Copy)]
pub(crate) struct Looks {
    /// Whether rows can be replaced: standard output and standard error are one terminal that moves its cursor.
    pub(crate) is_rich: bool,
    pub(crate) colours: bool,
}

impl Looks {
    pub(crate) fn detect() -> Self {
        let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let is_dumb = set("TERM").is_none_or(|term| term == "dumb");
        let is_terminal = io::stdout().is_terminal() && io::stderr().is_terminal();
        let is_rich = is_terminal && (!is_dumb || cfg!(windows));
        Self { is_rich, colours: is_rich && set("NO_COLOR").is_none() }
    }

    /// A text in a style, if there are colours.
    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        if self.colours { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// The columns and rows of the terminal.
pub(crate) fn size() -> (usize, usize) {
    let size = terminal_size::terminal_size();
    let (columns, rows) = size.map_or((80, 24), |(columns, rows)| (columns.0, rows.0));
    // Some pseudo terminals have no size.
    let or = |size: u16, default: usize| if size == 0 { default } else { size.into() };
    (or(columns, 80).max(10), or(rows, 24).max(4))
}
