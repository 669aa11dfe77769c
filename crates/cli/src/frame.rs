//! Lines of the progress display.

use std::time::Duration;

use console::Term;

/// Columns at which a line has room for all cells.
const WIDE: usize = 100;
/// Smallest useful width of a bar.
const NARROWEST_BAR: usize = 5;
/// Minimum number of lines for bars, even if it is more than half of the terminal.
const FEWEST_LINES: usize = 4;

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) lines: usize,
}

impl Size {
    /// The size of the terminal on stderr.
    pub(crate) fn of_stderr() -> Self {
        let (lines, columns) = Term::stderr().size();
        Self {
            columns: columns.into(),
            lines: lines.into(),
        }
    }
}

/// One line, for an adapter or the total.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) step: usize,
    pub(crate) total_steps: usize,
    /// True if it trains at the moment.
    pub(crate) trains: bool,
    /// Cells that fit every line.
    pub(crate) cells: Vec<String>,
    /// Further cells for wide terminals.
    pub(crate) more: Vec<String>,
}

impl Row {
    fn share(&self) -> f64 {
        (self.step as f64 / self.total_steps.max(1) as f64).min(1.0)
    }
}

/// The lines for these adapters, followed by the total. No line is wider than the terminal. If
/// there are more adapters than lines, those furthest behind are shown.
pub(crate) fn compose(adapters: &[Row], all: &Row, size: Size) -> Vec<String> {
    let room = (size.lines / 2).max(FEWEST_LINES).min(size.lines.max(1)) - 1;
    let mut shown: Vec<&Row> = adapters.iter().collect();
    let left_out = match adapters.len() {
        count if count > room => count - room.saturating_sub(1),
        _ => 0,
    };
    if left_out > 0 {
        let mut order: Vec<usize> = (0..adapters.len()).collect();
        order.sort_by(|&a, &b| {
            let (a, b) = (&adapters[a], &adapters[b]);
            b.trains
                .cmp(&a.trains)
                .then(a.share().total_cmp(&b.share()))
        });
        order.truncate(adapters.len() - left_out);
        order.sort_unstable();
        shown = order.into_iter().map(|index| &adapters[index]).collect();
    }
    shown.push(all);
    let mut lines = aligned(&shown, size.columns);
    if left_out > 0 && room > 0 {
        let more = format!("… and {left_out} more adapters, further along");
        lines.insert(lines.len() - 1, cut(&more, size.columns));
    }
    lines
}

fn aligned(rows: &[&Row], columns: usize) -> Vec<String> {
    let names = rows.iter().map(|row| length(&row.name)).max().unwrap_or(0);
    let names = names.min((columns / 3).max(1));
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let more: &[String] = if columns >= WIDE { &row.more } else { &[] };
            let steps = format!("{}/{}", row.step, row.total_steps);
            let mut cells = vec![steps];
            cells.extend(row.cells.iter().chain(more).cloned());
            cells
        })
        .collect();
    let count = cells.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = cells.iter().filter_map(|cells| cells.get(column));
        cells.map(|cell| length(cell)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let tail = widths.iter().sum::<usize>() + 3 * count.saturating_sub(1);
    let bar = columns.saturating_sub(names + tail + 2);
    let line = |(row, cells): (&&Row, &Vec<String>)| {
        let bar = if bar < NARROWEST_BAR {
            String::new()
        } else {
            let full = (row.share() * bar as f64) as usize;
            format!("{}{} ", "█".repeat(full), "░".repeat(bar - full))
        };
        let padded = cells.iter().zip(&widths).enumerate();
        let padded = padded.map(|(column, (cell, width))| match column {
            0 => format!("{cell:>width$}"),
            _ => format!("{cell:<width$}"),
        });
        let tail = padded.collect::<Vec<_>>().join(" | ");
        let line = format!("{:<names$} {bar}{tail}", cut(&row.name, names));
        cut(line.trim_end(), columns)
    };
    rows.iter().zip(&cells).map(line).collect()
}

/// A time, such as `12s`, `3m05s` or `2h07m`.
pub(crate) fn time(time: Duration) -> String {
    // Rounded up, so that a rest never shows as 0.
    let seconds = time.as_secs_f64().ceil() as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, _, _) => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// The first characters of a text; the last is `…` if it was cut.
fn cut(text: &str, columns: usize) -> String {
    if length(text) <= columns {
        return text.to_owned();
    }
    let kept = text.chars().take(columns.saturating_sub(1));
    kept.chain((columns > 0).then_some('…')).collect()
}

/// Columns of a text: names of adapters are ASCII, and all other text is written here.
fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Row, Size, compose, time};

    fn row(name: &str, step: usize, total_steps: usize, cells: [&str; 2]) -> Row {
        let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        Row {
            name: name.to_owned(),
            step,
            total_steps,
            trains: true,
            cells: owned(&cells),
            more: owned(&["grad_norm 0.043", "lr 3.15e-3", "3357 tok/s"]),
        }
    }

    fn size(columns: usize, lines: usize) -> Size {
        Size { columns, lines }
    }

    fn adapters(count: usize) -> Vec<Row> {
        let name = |index| format!("adapter-{index}");
        let cells = ["loss 0.5000", "9s left"];
        (0..count)
            .map(|index| row(&name(index), 90 - index, 100, cells))
            .collect()
    }

    fn three() -> (Vec<Row>, Row) {
        let adapters = vec![
            row("shout-r4", 90, 200, ["loss 0.0126", "12s left"]),
            row("codenames-r32", 0, 1000, ["loss 12.4242", "3m12s left"]),
        ];
        let mut all = row("all", 90, 1200, ["17146 tok/s", "3m12s left"]);
        all.more = vec!["0 of 2 done".to_owned()];
        (adapters, all)
    }

    #[test]
    fn narrow_lines_have_the_steps_the_loss_and_the_time_left() {
        let (adapters, all) = three();
        insta::assert_snapshot!(compose(&adapters, &all, size(80, 24)).join("\n"), @"
        shout-r4      █████████████░░░░░░░░░░░░░░░░░  90/200 | loss 0.0126  | 12s left
        codenames-r32 ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  0/1000 | loss 12.4242 | 3m12s left
        all           ██░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 90/1200 | 17146 tok/s  | 3m12s left
        ");
    }

    #[test]
    fn wide_lines_have_more() {
        let (adapters, all) = three();
        insta::assert_snapshot!(compose(&adapters, &all, size(120, 40)).join("\n"), @"
        shout-r4      ███████████░░░░░░░░░░░░░░░  90/200 | loss 0.0126  | 12s left   | grad_norm 0.043 | lr 3.15e-3 | 3357 tok/s
        codenames-r32 ░░░░░░░░░░░░░░░░░░░░░░░░░░  0/1000 | loss 12.4242 | 3m12s left | grad_norm 0.043 | lr 3.15e-3 | 3357 tok/s
        all           █░░░░░░░░░░░░░░░░░░░░░░░░░ 90/1200 | 17146 tok/s  | 3m12s left | 0 of 2 done
        ");
    }

    #[test]
    fn those_furthest_behind_and_the_total_stay() {
        let all = row("all", 10, 100, ["17146 tok/s", "9s left"]);
        let mut many = adapters(64);
        many[63].trains = false;
        insta::assert_snapshot!(compose(&many, &all, size(60, 10)).join("\n"), @"
        adapter-60 █████░░░░░░░░░░░░░ 30/100 | loss 0.5000 | 9s left
        adapter-61 █████░░░░░░░░░░░░░ 29/100 | loss 0.5000 | 9s left
        adapter-62 █████░░░░░░░░░░░░░ 28/100 | loss 0.5000 | 9s left
        … and 61 more adapters, further along
        all        █░░░░░░░░░░░░░░░░░ 10/100 | 17146 tok/s | 9s left
        ");
    }

    #[test]
    fn no_line_is_wider_and_no_frame_higher_than_the_terminal() {
        let all = row("all", 10, 100, ["17146 tok/s", "9s left"]);
        for columns in 1..140 {
            for lines in 1..12 {
                for count in [0, 1, 3, 40] {
                    let frame = compose(&adapters(count), &all, size(columns, lines));
                    assert!(frame.len() <= lines, "{frame:?} in {lines}");
                    let fits = |line: &String| line.chars().count() <= columns;
                    assert!(frame.iter().all(fits), "{frame:?} in {columns}");
                }
            }
        }
    }

    #[test]
    fn times_are_short() {
        let of = |seconds| time(Duration::from_secs_f64(seconds));
        let texts = [0.2, 59.0, 185.0, 7620.0, 200_000.0].map(of);
        assert_eq!(texts, ["1s", "59s", "3m05s", "2h07m", "2d07h"]);
    }
}
