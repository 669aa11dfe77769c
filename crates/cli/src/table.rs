//! Rows of text under their headings.

use std::fmt::Write;

/// A table of rows under these headings. Columns whose heading begins with `<` are aligned to the left, as in a
/// format string; every row ends with a line feed.
pub(crate) fn aligned<const N: usize>(headings: [&str; N], rows: &[[String; N]]) -> String {
    let names = headings.map(|heading| heading.trim_start_matches('<').to_owned());
    let lines = || std::iter::once(&names).chain(rows);
    let width = |column: usize| lines().map(|line| line[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for line in lines() {
        let cells: [String; N] = std::array::from_fn(|column| {
            let (cell, width) = (&line[column], widths[column]);
            if headings[column].starts_with('<') {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

/// The text of a value, or a dash.
pub(crate) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::aligned;

    #[test]
    fn text_stands_left_and_numbers_right() {
        let rows = [["a", "1.0"], ["long", "10.0"]].map(|row| row.map(str::to_owned));
        let text = aligned(["<name", "ms"], &rows);
        assert_eq!(text, "name    ms\na      1.0\nlong  10.0\n");
    }
}
