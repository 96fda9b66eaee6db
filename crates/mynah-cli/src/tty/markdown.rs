//! Markdown that arrives in pieces, as rows for the terminal.

use anstyle::{AnsiColor, Style};
use pulldown_cmark::{Alignment, CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use super::{
    code::Highlighter,
    rows::{Row, painted, styled, width, wrapped},
};
use crate::text::plain;

/// The most lines that are rendered together. Longer blocks are split.
const LONGEST: usize = 200;

/// A text that may continue.
///
/// A block is rendered again with each piece, until it ends. Code is rendered line by line.
#[derive(Default)]
pub(crate) struct Markdown {
    colours: bool,
    /// The lines of the block that may still change.
    block: String,
    /// The line that has no end yet.
    line: String,
    /// The code block that the lines belong to.
    fence: Option<(String, Highlighter)>,
    /// Whether the last line was blank.
    after_blank: bool,
    /// Whether rows were returned.
    has_rows: bool,
}

impl Markdown {
    pub(crate) fn new(colours: bool) -> Self {
        Self { colours, ..Self::default() }
    }

    /// Adds a piece. Returns the rows that do not change any more.
    pub(crate) fn push(&mut self, piece: &str, columns: usize) -> Vec<String> {
        let mut done = Vec::new();
        for piece in plain(piece).split_inclusive('\n') {
            self.line += piece;
            if self.line.ends_with('\n') {
                let line = std::mem::take(&mut self.line);
                self.take(line.trim_end_matches('\n'), columns, &mut done);
            }
        }
        done
    }

    /// The rows that may still change.
    pub(crate) fn pending(&self, columns: usize) -> Vec<String> {
        // Markup that is still ambiguous would flicker.
        let is_mark =
            !self.line.is_empty() && self.line.trim().chars().all(|c| "`~*_#-".contains(c));
        let line = if is_mark { "" } else { &*self.line };
        let rows = match &self.fence {
            Some(_) => code_rows(styled(line, Style::new()).collect(), columns),
            None => render(&format!("{}{line}", self.block), columns),
        };
        let blank = self.has_rows && self.fence.is_none() && !rows.is_empty();
        let rows = rows.iter().map(|row| painted(row, self.colours));
        blank.then(String::new).into_iter().chain(rows).collect()
    }

    /// Ends the text. Returns the rest of its rows.
    pub(crate) fn finish(&mut self, columns: usize) -> Vec<String> {
        let (mut done, line) = (Vec::new(), std::mem::take(&mut self.line));
        if !line.is_empty() {
            self.take(&line, columns, &mut done);
        }
        self.end_block(columns, &mut done);
        *self = Self::new(self.colours);
        done
    }

    fn take(&mut self, line: &str, columns: usize, done: &mut Vec<String>) {
        let trimmed = line.trim();
        if let Some((mark, highlighter)) = &mut self.fence {
            if fence(line).is_some_and(|(end, rest)| rest.is_empty() && end.starts_with(&**mark)) {
                self.fence = None;
            } else {
                let rows = code_rows(highlighter.line(line), columns);
                done.extend(rows.iter().map(|row| painted(row, self.colours)));
            }
            return;
        }
        if let Some((mark, language)) = fence(line) {
            self.end_block(columns, done);
            if std::mem::replace(&mut self.has_rows, true) {
                done.push(String::new());
            }
            let language = language.split([' ', ',', '{']).next().unwrap_or_default();
            self.fence = Some((mark.to_owned(), Highlighter::new(language)));
            return;
        }
        let is_list = is_item(&self.block);
        if trimmed.is_empty() {
            if !is_list {
                self.end_block(columns, done);
            }
            self.after_blank = true;
            return;
        }
        let continues = line.starts_with([' ', '\t']) || is_item(line);
        if (self.after_blank && !continues) || self.block.lines().count() >= LONGEST {
            self.end_block(columns, done);
        } else if self.after_blank && !self.block.is_empty() {
            self.block += "\n";
        }
        self.after_blank = false;
        self.block += line;
        self.block += "\n";
    }

    fn end_block(&mut self, columns: usize, done: &mut Vec<String>) {
        let rows = render(&std::mem::take(&mut self.block), columns);
        if rows.is_empty() {
            return;
        }
        if std::mem::replace(&mut self.has_rows, true) {
            done.push(String::new());
        }
        done.extend(rows.iter().map(|row| painted(row, self.colours)));
    }
}

/// The mark of a code fence and what stands behind it, if a line is one.
pub(super) fn fence(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let mark = line.chars().next().filter(|c| "`~".contains(*c))?;
    let rest = line.trim_start_matches(mark);
    let is_fence = line.len() - rest.len() >= 3 && !(mark == '`' && rest.contains('`'));
    is_fence.then(|| (&line[..line.len() - rest.len()], rest.trim()))
}

/// Whether a text begins with an item of a list.
fn is_item(text: &str) -> bool {
    let text = text.trim_start();
    let numbered = text.trim_start_matches(|c: char| c.is_ascii_digit());
    ["- ", "* ", "+ "].iter().any(|mark| text.starts_with(mark))
        || (numbered.len() < text.len()
            && (numbered.starts_with(". ") || numbered.starts_with(") ")))
}

fn code_rows(line: Row, columns: usize) -> Vec<Row> {
    let indented = |row: Row| styled("  ", Style::new()).chain(row).collect();
    wrapped(line, columns.saturating_sub(2)).into_iter().map(indented).collect()
}

/// The rows of whole blocks.
fn render(text: &str, columns: usize) -> Vec<Row> {
    let options =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    let mut page = Page { columns, ..Page::default() };
    for event in Parser::new_ext(text, options) {
        page.take(event);
    }
    page.flush();
    page.rows
}

#[derive(Default)]
struct Page {
    columns: usize,
    rows: Vec<Row>,
    /// The text of the block so far.
    text: Row,
    styles: Vec<Style>,
    /// The prefix of the rows: marks of items and quotes. The first row of an item has its own.
    margins: Vec<(Option<String>, String)>,
    /// The next numbers of the lists.
    lists: Vec<Option<u64>>,
    code: Option<Highlighter>,
    link: Option<String>,
    table: Vec<Vec<Row>>,
    /// The side of each column.
    aligned: Vec<Alignment>,
}

impl Page {
    fn style(&self) -> Style {
        self.styles.last().copied().unwrap_or_default()
    }

    fn with(&mut self, change: impl FnOnce(Style) -> Style) {
        self.styles.push(change(self.style()));
    }

    fn say(&mut self, text: &str) {
        self.text.extend(styled(text, self.style()));
    }

    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => match &mut self.code {
                Some(highlighter) => {
                    let lines: Vec<Row> = text.lines().map(|line| highlighter.line(line)).collect();
                    for line in lines {
                        self.text = line;
                        self.flush();
                    }
                }
                None => self.say(&text),
            },
            Event::Code(text) => {
                self.with(|style| style.fg_color(Some(AnsiColor::Cyan.into())));
                self.say(&text);
                self.styles.pop();
            }
            Event::Html(text) | Event::InlineHtml(text) => self.say(&text),
            Event::SoftBreak => self.say(" "),
            Event::HardBreak => self.say("\n"),
            Event::Rule => {
                self.text = styled(&"─".repeat(self.columns.min(40)), super::DIM).collect();
                self.flush();
            }
            Event::TaskListMarker(done) => self.say(if done { "[x] " } else { "[ ] " }),
            _ => {}
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { .. } => self.with(|style| style.bold().underline()),
            Tag::Strong | Tag::TableHead => self.with(Style::bold),
            Tag::Emphasis => self.with(Style::italic),
            Tag::Strikethrough => self.with(Style::strikethrough),
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => {
                self.link = Some(dest_url.into_string());
                self.with(Style::underline);
            }
            Tag::BlockQuote(_) => {
                self.flush();
                self.margins.push((None, "│ ".to_owned()));
            }
            Tag::List(first) => {
                self.flush();
                self.lists.push(first);
            }
            Tag::Item => {
                let mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{}. ", *number - 1)
                    }
                    _ => "• ".to_owned(),
                };
                let rest = " ".repeat(mark.chars().count());
                self.margins.push((Some(mark), rest));
            }
            Tag::CodeBlock(kind) => {
                self.flush();
                let language = match &kind {
                    CodeBlockKind::Fenced(language) => language,
                    CodeBlockKind::Indented => "",
                };
                self.code = Some(Highlighter::new(language));
                self.margins.push((None, "  ".to_owned()));
            }
            Tag::TableRow => self.table.push(Vec::new()),
            Tag::Table(aligned) => (self.table, self.aligned) = (vec![Vec::new()], aligned),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph => self.flush(),
            TagEnd::Heading(_) => {
                self.styles.pop();
                self.flush();
            }
            TagEnd::Strong | TagEnd::Emphasis | TagEnd::Strikethrough | TagEnd::TableHead => {
                self.styles.pop();
            }
            TagEnd::Link | TagEnd::Image => {
                self.styles.pop();
                let url = self.link.take().unwrap_or_default();
                let said: String = self.text.iter().map(|(c, _)| *c).collect();
                if !url.is_empty() && !said.ends_with(&url) {
                    self.text.extend(styled(&format!(" ({url})"), super::DIM));
                }
            }
            TagEnd::BlockQuote(_) | TagEnd::Item => {
                self.flush();
                self.margins.pop();
            }
            TagEnd::List(_) => {
                self.lists.pop();
            }
            TagEnd::CodeBlock => {
                self.code = None;
                self.margins.pop();
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.text);
                if let Some(row) = self.table.last_mut() {
                    row.push(cell);
                }
            }
            TagEnd::Table => self.flush_table(),
            _ => {}
        }
    }

    /// Ends the text of a block.
    fn flush(&mut self) {
        let has_mark = self.margins.iter().any(|(mark, _)| mark.is_some());
        if self.text.is_empty() && self.code.is_none() && !has_mark {
            return;
        }
        let text = std::mem::take(&mut self.text);
        // A loose item ends with a paragraph, which already ended the line.
        if text.is_empty() && self.code.is_none() && !has_mark {
            return;
        }
        let margin: usize = self.margins.iter().map(|(_, rest)| rest.chars().count()).sum();
        for row in wrapped(text, self.columns.saturating_sub(margin)) {
            let before: String = self
                .margins
                .iter_mut()
                .map(|(mark, rest)| mark.take().unwrap_or_else(|| rest.clone()))
                .collect();
            self.rows.push(styled(&before, super::DIM).chain(row).collect());
        }
    }

    /// Writes a table in columns. Cells of one that is too wide are wrapped.
    fn flush_table(&mut self) {
        let table = std::mem::take(&mut self.table);
        let count = table.iter().map(Vec::len).max().unwrap_or_default();
        let cell = |row: &[Row], column: usize| row.get(column).map_or(0, |cell| width(cell));
        let widths = (0..count)
            .map(|column| table.iter().map(|row| cell(row, column)).max().unwrap_or_default());
        let widths = fitted(widths.collect(), self.columns.saturating_sub(2 * count));
        for (place, row) in table.into_iter().enumerate() {
            let cells = row.into_iter().zip(&widths);
            let cells: Vec<Vec<Row>> = cells.map(|(cell, width)| wrapped(cell, *width)).collect();
            for line in 0..cells.iter().map(Vec::len).max().unwrap_or_default() {
                for ((cell, column), side) in cells.iter().zip(&widths).zip(&self.aligned) {
                    let part = cell.get(line).map_or(&[][..], Vec::as_slice);
                    let room = column.saturating_sub(width(part));
                    let before = match side {
                        Alignment::Right => room,
                        Alignment::Center => room / 2,
                        _ => 0,
                    };
                    let [left, right] = [before, room - before + 2].map(|gap| " ".repeat(gap));
                    self.text.extend(styled(&left, Style::new()));
                    self.text.extend(part.iter().copied().chain(styled(&right, Style::new())));
                }
                while self.text.pop_if(|(c, _)| *c == ' ').is_some() {}
                self.flush();
            }
            if place == 0 {
                let line = widths.iter().map(|width| "─".repeat(*width)).collect::<Vec<_>>();
                self.text = styled(&line.join("  "), super::DIM).collect();
                self.flush();
            }
        }
    }
}

/// Takes columns from the widest ones until all of them fit.
fn fitted(mut widths: Vec<usize>, columns: usize) -> Vec<usize> {
    const NARROWEST: usize = 4;
    while widths.iter().sum::<usize>() > columns {
        match widths.iter_mut().max() {
            Some(widest) if *widest > NARROWEST => *widest -= 1,
            _ => break,
        }
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, columns: usize) -> Vec<String> {
        let mut markdown = Markdown::new(false);
        let mut rows = Vec::new();
        // Any split into pieces renders the same rows.
        for c in text.chars() {
            rows.extend(markdown.push(&c.to_string(), columns));
            markdown.pending(columns);
        }
        rows.extend(markdown.finish(columns));
        let mut whole = Markdown::new(false);
        let mut at_once = whole.push(text, columns);
        at_once.extend(whole.finish(columns));
        assert_eq!(rows, at_once);
        rows
    }

    #[test]
    fn markdown_becomes_rows() {
        let table = [
            ("# Birds\n\nA **mynah** *talks* `hi`.", 40, &["Birds", "", "A mynah talks hi."][..]),
            ("- one\n- two\n  - three\n", 40, &["• one", "• two", "  • three"]),
            ("1. one\n\n2. two\n\nEnd.", 40, &["1. one", "2. two", "", "End."]),
            ("- one two three", 9, &["• one two", "  three"]),
            ("> quoted", 40, &["│ quoted"]),
            (
                "```rust\nfn main() {}\n\n// x\n```\nAfter",
                40,
                &["  fn main() {}", "  ", "  // x", "", "After"],
            ),
            ("````md\n```\ncode\n```\n````\nAfter", 40, &["  ```", "  code", "  ```", "", "After"]),
            ("```inline``` code", 40, &["inline code"]),
            ("a\tb", 40, &["a b"]),
            ("[Rust](https://rust-lang.org)", 60, &["Rust (https://rust-lang.org)"]),
            ("| a | bb |\n|---|---|\n| ccc | d |", 40, &["a    bb", "───  ──", "ccc  d"]),
            (
                "| a | bb |\n|---|---|\n| one two three | four five |",
                18,
                &["a        bb", "───────  ───────", "one two  four", "three    five"],
            ),
            (
                "| a | b |\n|--:|---|\n| 1 | x |\n| 22 | y |",
                40,
                &[" a  b", "──  ─", " 1  x", "22  y"],
            ),
            ("a\u{1b}[2Jb", 40, &["a\\u{1b}[2Jb"]),
            ("one\ntwo", 40, &["one two"]),
        ];
        for (text, columns, expected) in table {
            assert_eq!(shown(text, columns), expected, "{text}");
        }
    }

    #[test]
    fn no_row_is_wider_than_the_terminal() {
        let text = "# A long heading about birds\n\n- an item `with some code` that is long\n\n> a quote that is long enough\n\n\
                    | a table | with columns |\n|---|---|\n| that does | not fit |\n\n```\ncode that is longer than the terminal\n```\n";
        for columns in 10..40 {
            for row in shown(text, columns) {
                assert!(row.chars().count() <= columns, "{columns}: {row:?}");
            }
        }
    }

    #[test]
    #[cfg(feature = "highlight")]
    fn code_has_the_colours_of_its_language() {
        let mut markdown = Markdown::new(true);
        let rows = markdown.push("```rust\nlet x = \"y\"; // z\n```\n", 40).join("\n");
        for part in ["\u{1b}[32m", "\u{1b}[2m", "\"y\"", "// z"] {
            assert!(rows.contains(part), "{part:?} in {rows:?}");
        }
    }
}
