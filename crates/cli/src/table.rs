//! Rows of text under their headings.

use std::fmt::Write;

/// A table of these columns, each with true for alignment to the left; every row ends with a line feed.
pub(crate) fn aligned<const N: usize>(columns: [(&str, bool); N], rows: &[[String; N]]) -> String {
    let heading = columns.map(|(name, _)| name.to_owned());
    let lines = || std::iter::once(&heading).chain(rows);
    let widths: Vec<usize> = (0..N)
        .map(|column| lines().map(|line| line[column].chars().count()).max())
        .map(|width| width.unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in lines() {
        let cells: Vec<String> = line
            .iter()
            .zip(&widths)
            .zip(columns)
            .map(|((cell, width), (_, left))| {
                if left {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            })
            .collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::aligned;

    #[test]
    fn text_stands_left_and_numbers_right() {
        let rows = [["a", "1.0"], ["long", "10.0"]].map(|row| row.map(str::to_owned));
        let text = aligned([("name", true), ("ms", false)], &rows);
        assert_eq!(text, "name    ms\na      1.0\nlong  10.0\n");
    }
}
