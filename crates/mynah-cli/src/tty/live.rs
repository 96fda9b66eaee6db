//! Rows at the end of the output that change while something happens.

use std::io::{self, Write};

use super::{
    rows::{cut, painted_width},
    size,
};

/// The rows that may still change. The cursor is at the end of the last one.
#[derive(Default)]
pub(crate) struct Live {
    rows: Vec<String>,
}

impl Live {
    /// Whether there are rows that change.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes rows that stay in place of those that change.
    pub(crate) fn print(&mut self, out: &mut impl Write, rows: &[String]) -> io::Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        erase(out, height(&self.rows, size().0))?;
        self.rows.clear();
        rows.iter().try_for_each(|row| writeln!(out, "{row}"))?;
        out.flush()
    }

    /// Replaces the rows that change. Of more rows than the terminal has, the last ones are shown, and rows that are too wide are cut:
    /// one that the terminal broke would be two.
    pub(crate) fn draw(&mut self, out: &mut impl Write, mut rows: Vec<String>) -> io::Result<()> {
        let (columns, lines) = size();
        rows.drain(..rows.len().saturating_sub(lines - 1));
        for row in &mut rows {
            *row = cut(row, columns);
        }
        let same = self.rows.iter().zip(&rows).take_while(|(old, new)| old == new).count();
        // The row with the cursor is written again even if only rows below it are new.
        let same = same.min(rows.len().saturating_sub(1)).min(self.rows.len().saturating_sub(1));
        if self.rows == rows {
            return out.flush();
        }
        erase(out, height(&self.rows[same..], columns))?;
        write!(out, "{}", rows.get(same..).unwrap_or_default().join("\n"))?;
        self.rows = rows;
        out.flush()
    }

    /// Removes the rows that change.
    pub(crate) fn clear(&mut self, out: &mut impl Write) -> io::Result<()> {
        self.draw(out, Vec::new())
    }
}

/// How many rows of the terminal these take: one that became narrower has broken the long ones.
fn height(rows: &[String], columns: usize) -> usize {
    rows.iter().map(|row| painted_width(row).div_ceil(columns).max(1)).sum()
}

/// Erases the last rows, and moves to where the first of them began.
fn erase(out: &mut impl Write, rows: usize) -> io::Result<()> {
    match rows {
        0 => Ok(()),
        1 => write!(out, "\r\x1b[J"),
        more => write!(out, "\r\x1b[{}A\x1b[J", more - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_a_narrower_terminal_broke_are_erased_too() {
        let rows = [
            "a row of forty columns, which is not much".to_owned(),
            "\x1b[2mdim\x1b[0m".to_owned(),
        ];
        assert_eq!([80, 40, 20].map(|columns| height(&rows, columns)), [2, 3, 4]);
        assert_eq!(height(&["".to_owned()], 80), 1);
    }
}
