//! Text for people.

use std::fmt::{self, Write as _};

/// A moment, in nanoseconds since 1970, as people write it.
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

/// Text from elsewhere, without what a terminal would obey.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' && c != '\t' {
            // Writing to a string does not fail.
            let _ = write!(plain, "{}", c.escape_default());
        } else {
            plain.push(c);
        }
    }
    plain
}

/// The beginning of a text, on one line.
pub(crate) fn short(text: &str, limit: usize) -> String {
    let line = plain(text).replace(['\n', '\t'], " ");
    match line.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// A count with its noun.
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_terminal_is_not_told_what_to_do() {
        assert_eq!(plain("a\u{1b}[2Jb\n\tc\r"), "a\\u{1b}[2Jb\n\tc\\r");
        assert_eq!(short("one\ntwo three", 7), "one two…");
        assert_eq!(short("äöü", 3), "äöü");
    }
}
