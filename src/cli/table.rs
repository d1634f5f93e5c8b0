//! Tables in kubectl's format.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use pilotlight::redaction::printable;

/// Rows under headings; each column is as wide as its longest cell.
#[derive(Debug)]
pub(super) struct Table {
    columns: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new<const N: usize>(headings: [&str; N]) -> Self {
        Self { columns: N, rows: vec![headings.map(str::to_owned).to_vec()] }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns, "a cell for each column");
        // Cells come from a server: an escape sequence in one could rewrite the others.
        self.rows.push(cells.map(|cell| printable(&cell)).to_vec());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        let width = |column: usize| {
            self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<_> = (0..self.columns).map(width).collect();
        for row in &self.rows {
            let line: Vec<_> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            text.push_str(line.join("   ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// Formats the time since: `5s`, `12m`, `3h4m`, `2d`.
pub(super) fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).max(SignedDuration::ZERO).as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (2.., ..) => format!("{days}d"),
        (_, 1.., _) => format!("{hours}h{}m", minutes % 60),
        (_, _, 2..) => format!("{minutes}m"),
        _ => format!("{seconds}s"),
    }
}

/// Returns the text, or a dash if it is missing or empty.
pub(super) fn or_dash(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or("-").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["NAME", "STATE"]);
        table.row(["a-long-name".into(), "Running".into()]);
        table.row(["b".into(), "two\nlines".into()]);
        table.row(["\u{1b}[2J\u{1b}]0;c\u{7}c".into(), "\u{8}red\u{9b}31m".into()]);

        assert_eq!(
            table.render(),
            "NAME          STATE\na-long-name   Running\nb             two lines\nc             red\n"
        );
    }

    #[test]
    fn ages_are_short() {
        let now = Timestamp::UNIX_EPOCH;
        let check = |seconds, expected: &str| {
            assert_eq!(age(now - SignedDuration::from_secs(seconds), now), expected);
        };

        check(-5, "0s");
        check(90, "90s");
        check(150, "2m");
        check(3700, "1h1m");
        check(90_000, "25h0m");
        check(180_000, "2d");
    }
}
