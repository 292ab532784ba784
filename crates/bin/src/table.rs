//! Text in columns, for people.

use std::fmt::Write as _;

/// On which side of its column a cell stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under one head.
#[derive(Debug)]
pub struct Table {
    head: Vec<(&'static str, Side)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns and no rows.
    pub fn new(head: impl IntoIterator<Item = (&'static str, Side)>) -> Self {
        Self { head: head.into_iter().collect(), rows: Vec::new() }
    }

    /// Adds a row. A cell that is missing stays empty; control characters in a cell are written out.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| on_one_line(&cell)).collect());
    }

    /// The table, without a line end behind its last row and without blanks behind its lines.
    pub fn text(&self) -> String {
        let heads: Vec<String> = self.head.iter().map(|(name, _)| (*name).to_owned()).collect();
        let lines = || std::iter::once(&heads).chain(&self.rows);
        let widths: Vec<usize> = (0..self.head.len())
            .map(|column| {
                lines().filter_map(|l| l.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for cells in lines() {
            let mut line = String::new();
            for (column, ((_, side), width)) in self.head.iter().zip(&widths).enumerate() {
                let cell = cells.get(column).map_or("", String::as_str);
                let gap = if column == 0 { "" } else { "  " };
                // writing to a string does not fail
                let _ = match side {
                    Side::Left => write!(line, "{gap}{cell:<width$}"),
                    Side::Right => write!(line, "{gap}{cell:>width$}"),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.pop();
        text
    }
}

/// What upstreams and callers wrote, made safe for a terminal: control characters are written out.
pub fn on_one_line(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if c.is_control() {
            out.extend(c.escape_default())
        } else {
            out.push(c)
        }
        out
    })
}

/// The same for text of several lines: line ends and tabs stay.
pub fn on_lines(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if c.is_control() && c != '\n' && c != '\t' {
            out.extend(c.escape_default())
        } else {
            out.push(c)
        }
        out
    })
}

/// A time without its fraction of a second.
pub fn to_the_second(time: &str) -> String {
    time.split_once('.').map_or_else(|| time.to_owned(), |(seconds, _)| format!("{seconds}Z"))
}

/// A length of time in its two largest units: `23h 59m`.
pub fn span(ms: u64) -> String {
    let s = ms / 1000;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m {}s", s / 60, s % 60),
        3600..86400 => format!("{}h {}m", s / 3600, s / 60 % 60),
        _ => format!("{}d {}h", s / 86400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_heads() {
        let mut table =
            Table::new([("REPLAYS", Side::Right), ("UPSTREAM", Side::Left), ("NOTE", Side::Left)]);
        table.row(["3019".into(), "ocr".into()]);
        table.row(["7".into(), "doc-classifier".into(), "größe\u{1b}[2J".into()]);
        let expected =
            "REPLAYS  UPSTREAM        NOTE\n   3019  ocr\n      7  doc-classifier  größe\\u{1b}[2J";
        assert_eq!(table.text(), expected);
        assert_eq!(Table::new([("A", Side::Left)]).text(), "A");
    }

    #[test]
    fn terminals_are_safe() {
        assert_eq!(on_one_line("a\nb\u{9b}1m"), "a\\nb\\u{9b}1m");
        assert_eq!(on_lines("a\n\tb\r\u{7}"), "a\n\tb\\r\\u{7}");
    }

    #[test]
    fn spans_have_two_units() {
        let spans = [0, 59_999, 61_000, 86_340_000, 86_400_000 * 3].map(span);
        assert_eq!(spans, ["0s", "59s", "1m 1s", "23h 59m", "3d 0h"]);
    }
}
