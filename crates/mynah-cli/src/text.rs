//! Text for people.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
    io::{self, IsTerminal as _},
    ops::Range,
    sync::LazyLock,
};

use unicode_width::UnicodeWidthChar as _;

/// A moment, in nanoseconds since 1970, as people write it.
#[derive(Clone, Copy)]
pub(crate) struct Moment(pub(crate) i64);

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.div_euclid(1_000_000_000);
        let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let (year, month, day) = date(days);
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
    }
}

/// The date of a day, counted from 1970. The year begins in March, so that the leap day is its last.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

impl Moment {
    /// Reads a date (`2026-11-01`), or a date and a time (`2026-11-01 09:30`, `2026-11-01T09:30:00Z`).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (day, time) = match text.split_once(['T', ' ']) {
            Some((day, time)) => (day, time.strip_suffix('Z').unwrap_or(time)),
            None => (text, "0:0"),
        };
        let number = |text: &str| {
            let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<i64>().ok().filter(|_| plain)
        };
        let numbers = |text: &str, between: char| {
            text.split(between).map(number).collect::<Option<Vec<i64>>>()
        };
        let &[year, month, day] = numbers(day, '-')?.as_slice() else { return None };
        let (hour, minute, second) = match *numbers(time, ':')?.as_slice() {
            [hour, minute] => (hour, minute, 0),
            [hour, minute, second] => (hour, minute, second),
            _ => return None,
        };
        let is_time = hour < 24 && minute < 60 && second < 60;
        if !is_time || !(1970..2262).contains(&year) || month > 12 || day > 31 {
            return None;
        }
        let days = days(year, month, day);
        let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
        (date(days) == (year, month, day)).then_some(Self(seconds * 1_000_000_000))
    }
}

/// The day of a date, counted from 1970: the way back from [`date`], if there is such a date.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let month = if month > 2 { month - 3 } else { month + 9 };
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    era * 146_097 + year * 365 + year / 4 - year / 100 + (153 * month + 2) / 5 + day - 719_469
}

/// How long something took, in nanoseconds, as people write it.
pub(crate) struct Span(pub(crate) i64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.max(0) / 1_000_000;
        match millis {
            0..1000 => write!(f, "{millis} ms"),
            1000..60_000 => write!(f, "{}.{} s", millis / 1000, millis / 100 % 10),
            60_000..3_600_000 => write!(f, "{} min {} s", millis / 60_000, millis / 1000 % 60),
            _ => write!(f, "{} h {} min", millis / 3_600_000, millis / 60_000 % 60),
        }
    }
}

/// How wide a column gets for the longest of its cells: what is longer sticks out.
const WIDEST: usize = 255;

/// Writes rows under their headings. The columns in `numbers` are aligned to the right.
pub(crate) fn write_columns<const N: usize>(
    headings: [&str; N],
    rows: &[[String; N]],
    numbers: Range<usize>,
    out: &mut impl io::Write,
) -> io::Result<()> {
    Columns::new(&headings, rows, numbers).write(out)
}

/// A table, column by column.
pub(crate) struct Columns<'a>(Vec<Column<'a>>);

struct Column<'a> {
    heading: &'a str,
    cells: Vec<Cow<'a, str>>,
    width: usize,
    is_number: bool,
}

impl<'a> Columns<'a> {
    pub(crate) fn new<const N: usize>(
        headings: &[&'a str; N],
        rows: &'a [[String; N]],
        numbers: Range<usize>,
    ) -> Self {
        let column = |(place, heading): (usize, &&'a str)| {
            let cells: Vec<Cow<'_, str>> =
                rows.iter().map(|row| row[place].as_str().into()).collect();
            let widths = cells.iter().map(|cell| cell.chars().count());
            let width = widths.chain([heading.chars().count()]).max().unwrap_or(0).min(WIDEST);
            Column { heading, cells, width, is_number: numbers.contains(&place) }
        };
        Self(headings.iter().enumerate().map(column).collect())
    }

    /// Leaves out columns in this order, until the rest fits a width. If it still does not, the first column is cut.
    pub(crate) fn within(mut self, width: usize, less: &[&str]) -> Self {
        let needed = |columns: &[Column<'_>]| columns.iter().map(|it| it.width + 2).sum::<usize>();
        for heading in less {
            if needed(&self.0) <= width.saturating_add(2) {
                break;
            }
            self.0.retain(|column| column.heading != *heading);
        }
        let over = needed(&self.0).saturating_sub(width.saturating_add(2));
        if let Some(first) = self.0.first_mut().filter(|_| over > 0) {
            first.width = first.width.saturating_sub(over).max(1);
            for cell in first.cells.iter_mut().filter(|cell| cell.chars().count() > first.width) {
                *cell = short(cell, first.width - 1).into();
            }
        }
        self
    }

    pub(crate) fn write(&self, out: &mut impl io::Write) -> io::Result<()> {
        let rows = self.0.first().map_or(0, |column| column.cells.len());
        for row in 0..=rows {
            let mut line = String::new();
            for Column { heading, cells, width, is_number } in &self.0 {
                let cell = row.checked_sub(1).map_or(*heading, |row| &*cells[row]);
                // Writing to a string does not fail.
                let _ = match is_number {
                    true => write!(line, "{cell:>width$}  "),
                    false => write!(line, "{cell:<width$}  "),
                };
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Text from elsewhere, without what a terminal would obey.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if is_obeyed(c) && c != '\n' && c != '\t' {
            // Writing to a string does not fail.
            let _ = write!(plain, "{}", c.escape_default());
        } else {
            plain.push(c);
        }
    }
    plain
}

/// Whether a terminal does something else with it than to show it: also those that turn the order of what follows.
fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// What a model answers, for standard output: as it is for a file or a pipe, where it is data, and without what a terminal
/// would obey for one.
pub(crate) fn for_stdout(text: &str) -> Cow<'_, str> {
    static IS_TERMINAL: LazyLock<bool> = LazyLock::new(|| io::stdout().is_terminal());
    if *IS_TERMINAL { plain(text).into() } else { text.into() }
}

/// Text from elsewhere as [`plain`] returns it, on one line.
pub(crate) fn line(text: &str) -> String {
    plain(text).replace(['\n', '\t'], " ")
}

/// The beginning of a text, on one line: at most this many columns, and a mark if there is more.
pub(crate) fn short(text: &str, limit: usize) -> String {
    let line = line(text);
    let mut taken = 0;
    let end = line.char_indices().find(|(_, c)| {
        taken += columns(*c);
        taken > limit
    });
    match end {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// The columns that a character takes in a terminal.
pub(crate) fn columns(c: char) -> usize {
    // The selector makes the character before it an image, which is wider.
    if c == '\u{fe0f}' { 1 } else { c.width().unwrap_or(0) }
}

/// The columns that a text takes in a terminal.
pub(crate) fn width(text: &str) -> usize {
    text.chars().map(columns).sum()
}

/// A word of a command, quoted for a shell.
pub(crate) fn quoted(word: &str) -> String {
    // A tilde has a meaning only at the beginning of a word.
    let is_plain = |c: char| c.is_alphanumeric() || "_-.,:/@%+=~".contains(c);
    if !word.is_empty() && !word.starts_with('~') && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", plain(word).replace('\'', r"'\''"))
    }
}

/// A cost in dollars, after their sign; none if there is none.
pub(crate) fn cost(dollars: f64, sign: &str) -> Option<String> {
    match dollars {
        none if none <= 0.0 => None,
        little if little < 0.000_05 => Some(format!("<{sign}0.0001")),
        dollars => Some(format!("{sign}{dollars:.4}")),
    }
}

/// The first lines of a text, and how many more there are.
pub(crate) fn folded(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    let mut shown: Vec<String> =
        all.iter().take(lines).map(|line| short(line, LONG_LINE)).collect();
    if all.len() > lines {
        shown.push(format!("… {}", count((all.len() - lines) as u64, "more line")));
    }
    shown.join("\n")
}

/// How much of a line is shown of a text that is folded.
const LONG_LINE: usize = 160;

/// A count with its noun.
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_of_any_length_is_written() {
        let (long, mut out) = ("x".repeat(1 << 16), Vec::new());
        write_columns(["a", "b"], &[[long.clone(), "1".to_owned()]], 1..2, &mut out).expect("room");
        let written = String::from_utf8(out).expect("text");
        assert_eq!(written.lines().nth(1), Some(&*format!("{long}  1")));
    }

    #[test]
    fn moments_are_dates_and_times() {
        let table = [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_251_200, "2024-03-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ];
        for (seconds, text) in table {
            assert_eq!(Moment(seconds * 1_000_000_000).to_string(), text);
        }
        assert_eq!(Moment(i64::MAX).to_string(), "2262-04-11 23:47:16");
    }

    #[test]
    fn dates_and_times_are_read_as_they_are_written() {
        for seconds in [0, 951_782_399, 951_782_400, 1_709_251_200, 4_107_542_400, 1_793_491_200] {
            let moment = Moment(seconds * 1_000_000_000);
            assert_eq!(Moment::parse(&moment.to_string()).unwrap().0, moment.0, "{moment}");
        }
        let table = [
            ("2026-11-01", "2026-11-01 00:00:00"),
            ("2026-11-01T09:30", "2026-11-01 09:30:00"),
            ("2026-11-01T09:30:15Z", "2026-11-01 09:30:15"),
        ];
        for (text, read) in table {
            assert_eq!(Moment::parse(text).unwrap().to_string(), read);
        }
        let wrong = [
            "",
            "2026",
            "2026-11",
            "2026-13-01",
            "2026-02-29",
            "2026-00-10",
            "2026-11-00",
            "x-11-01",
            "+2026-11-01",
            "1969-12-31",
            "9999-01-01",
            "2026-11-01T24:00",
            "2026-11-01T9",
            "2026-11-01-02",
            "2026-11-99999999999999999999",
            "2026-99999999999-01",
        ];
        for text in wrong {
            assert!(Moment::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn spans_have_the_unit_that_fits() {
        let table = [
            (0, "0 ms"),
            (999, "999 ms"),
            (1000, "1.0 s"),
            (59_999, "59.9 s"),
            (60_000, "1 min 0 s"),
            (3_600_000, "1 h 0 min"),
        ];
        for (millis, text) in table {
            assert_eq!(Span(millis * 1_000_000).to_string(), text);
        }
    }

    #[test]
    fn words_of_commands_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(quoted("sqlite:/tmp/runs-1.db"), "sqlite:/tmp/runs-1.db");
        assert_eq!(quoted("sqlite:my runs.db"), "'sqlite:my runs.db'");
        assert_eq!(quoted("it's; $HOME"), r"'it'\''s; $HOME'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_terminal_is_not_told_what_to_do() {
        assert_eq!(plain("a\u{1b}[2Jb\n\tc\r"), "a\\u{1b}[2Jb\n\tc\\r");
        assert_eq!(plain("\u{202e}fdp.\u{2066}x"), "\\u{202e}fdp.\\u{2066}x");
        assert_eq!(line("one\n\ttwo"), "one  two");
        assert_eq!(short("one\ntwo three", 7), "one two…");
        assert_eq!(short("äöü", 3), "äöü");
        assert_eq!(short("鳥と猫", 5), "鳥と…");
    }
}
