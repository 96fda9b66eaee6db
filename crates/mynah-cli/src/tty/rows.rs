//! Text in styles, as rows that fit the terminal.

use anstyle::Style;

use crate::text::columns;

/// A row: characters with their styles.
pub(crate) type Row = Vec<(char, Style)>;

/// A text in one style. How far a tab reaches depends on the terminal, so it becomes a space.
pub(crate) fn styled(text: &str, style: Style) -> impl Iterator<Item = (char, Style)> + '_ {
    text.chars().map(move |c| (if c == '\t' { ' ' } else { c }, style))
}

/// The columns that a row takes.
pub(crate) fn width(row: &[(char, Style)]) -> usize {
    row.iter().map(|(c, _)| columns(*c)).sum()
}

/// Breaks a text into rows of at most this width: at spaces, and within words that are longer than a row.
pub(crate) fn wrapped(text: impl IntoIterator<Item = (char, Style)>, limit: usize) -> Vec<Row> {
    let limit = limit.max(2);
    let (mut rows, mut row, mut taken, mut space) = (Vec::new(), Row::new(), 0, None);
    for (c, style) in text {
        if c == '\n' {
            rows.push(std::mem::take(&mut row));
            (taken, space) = (0, None);
            continue;
        }
        taken += columns(c);
        if taken > limit {
            let rest = match space.take() {
                _ if c == ' ' => Row::new(),
                Some(place) => {
                    let rest = row.split_off(place + 1);
                    row.pop();
                    rest
                }
                None => Row::new(),
            };
            rows.push(std::mem::replace(&mut row, rest));
            taken = width(&row);
            if c == ' ' {
                continue;
            }
            taken += columns(c);
        }
        if c == ' ' {
            space = Some(row.len());
        }
        row.push((c, style));
    }
    rows.push(row);
    rows
}

/// A painted row, without what does not fit.
pub(crate) fn cut(row: &str, limit: usize) -> String {
    let (mut text, mut taken, mut is_style) = (String::new(), 0, false);
    for c in row.chars() {
        is_style |= c == '\x1b';
        taken += if is_style { 0 } else { columns(c) };
        // Styles behind the end still apply: one of them is the reset.
        if is_style || taken <= limit {
            text.push(c);
        }
        is_style &= c != 'm';
    }
    text
}

/// The columns that a painted row takes.
pub(crate) fn painted_width(row: &str) -> usize {
    let mut is_style = false;
    let of = |c: char| {
        is_style |= c == '\x1b';
        let taken = if is_style { 0 } else { columns(c) };
        is_style &= c != 'm';
        taken
    };
    row.chars().map(of).sum()
}

/// A row as the terminal takes it.
pub(crate) fn painted(row: &[(char, Style)], colours: bool) -> String {
    let (mut text, mut now) = (String::new(), Style::new());
    for (c, style) in row {
        if colours && *style != now {
            text += &format!("{now:#}{style}");
            now = *style;
        }
        text.push(*c);
    }
    text + &if colours { format!("{now:#}") } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_break_at_spaces_and_wide_characters_count_twice() {
        let table = [
            ("one two three", 8, &["one two", "three"][..]),
            ("one two", 3, &["one", "two"]),
            ("abcdefgh ij", 4, &["abcd", "efgh", "ij"]),
            ("鳥鳥鳥", 4, &["鳥鳥", "鳥"]),
            ("a\n\nb", 4, &["a", "", "b"]),
            ("", 4, &[""]),
        ];
        for (text, limit, expected) in table {
            let rows = wrapped(styled(text, Style::new()), limit);
            let rows: Vec<String> = rows.iter().map(|row| painted(row, false)).collect();
            assert_eq!(rows, expected, "{text}");
        }
    }
}
