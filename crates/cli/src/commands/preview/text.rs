use std::fmt::Write;

use loraloom_data::{Preview, Split};

use crate::printer::{Printer, printable};

/// Characters of a row that is not shown in full; two thirds of them from its beginning.
const LONGEST_TEXT: usize = 1200;
/// Token ids of a row that is not shown in full.
const MOST_IDS: usize = 16;

/// A row below its location and flags.
pub(super) fn row(
    row: &Preview,
    split: Split,
    max_seq_len: usize,
    in_full: bool,
    printer: &Printer,
) -> String {
    let side = match row.sample.preferred {
        Some(true) => ", preferred",
        Some(false) => ", not preferred",
        None => "",
    };
    let mut text = format!(
        "{}, {}{side}: {} tokens, {} trained{}\n",
        row.location,
        split.name(),
        row.tokens,
        row.sample.num_targets(),
        flags(row, max_seq_len)
    );
    let (most, most_ids) = if in_full {
        (usize::MAX, usize::MAX)
    } else {
        (LONGEST_TEXT, MOST_IDS)
    };
    let mut shown = String::new();
    for (run, is_target) in shortened(&row.runs, most) {
        let run = printable(&run);
        if is_target {
            // A colour ends with its line, since pagers and the indentation below start each line anew.
            let lines = run.split('\n').map(|line| printer.trained(line));
            let lines = lines.collect::<Vec<_>>().join("\n");
            shown.extend(["⟦", &lines, "⟧"]);
        } else {
            shown.push_str(&run);
        }
    }
    for line in shown.trim_end_matches('\n').split('\n') {
        let _ = writeln!(text, "  {line}");
    }
    let _ = writeln!(text, "  ids {}", ids(row, most_ids));
    text
}

/// The flags of a row.
fn flags(row: &Preview, max_seq_len: usize) -> String {
    let mut flags = String::new();
    if row.truncated {
        let _ = write!(flags, "; cut to {max_seq_len}");
    }
    if row.dropped {
        let reason = row.reason.as_ref().map(ToString::to_string);
        let reason = reason.unwrap_or_else(|| "all its targets are cut off".to_owned());
        let _ = write!(flags, "; dropped: {reason}");
    } else if !row.trains_eos {
        flags.push_str("; does not train the end of text");
    }
    for at in &row.extra_bos {
        let _ = write!(flags, "; BOS again at token {}", at + 1);
    }
    flags
}

/// Runs of text with `most` characters, from the beginning and the end.
fn shortened(runs: &[(String, bool)], most: usize) -> Vec<(String, bool)> {
    let all: Vec<(char, bool)> = runs
        .iter()
        .flat_map(|(run, is_target)| run.chars().map(|character| (character, *is_target)))
        .collect();
    if all.len() <= most {
        return runs.to_vec();
    }
    let (start, end) = (2 * most / 3, all.len() - most / 3);
    let together = |part: &[(char, bool)]| {
        let runs = part.chunk_by(|left, right| left.1 == right.1);
        let runs = runs.map(|run| {
            (
                run.iter().map(|(character, _)| character).collect(),
                run[0].1,
            )
        });
        runs.collect::<Vec<(String, bool)>>()
    };
    let left_out = (format!("\n… {} characters …\n", end - start), false);
    [
        together(&all[..start]),
        vec![left_out],
        together(&all[end..]),
    ]
    .concat()
}

/// Token ids with runs of targets in brackets, `most` of them from the beginning and the end.
fn ids(row: &Preview, most: usize) -> String {
    let sample = &row.sample;
    let is_target = |at: usize| sample.is_target.get(at).copied().unwrap_or(false);
    let id = |(at, id): (usize, &u32)| {
        let begins = is_target(at) && (at == 0 || !is_target(at - 1));
        let ends = is_target(at) && !is_target(at + 1);
        let (before, after) = (if begins { "⟦" } else { "" }, if ends { "⟧" } else { "" });
        format!("{before}{id}{after}")
    };
    let mut ids: Vec<String> = sample.ids.iter().enumerate().map(id).collect();
    if ids.len() > most {
        ids.splice(2 * most / 3..ids.len() - most / 3, ["…".to_owned()]);
    }
    ids.join(" ")
}

#[cfg(test)]
mod tests {
    use super::shortened;

    #[test]
    fn long_text_loses_its_middle_and_keeps_its_mask() {
        let runs = [("aaaa".to_owned(), false), ("bbbbbb".to_owned(), true)];
        assert_eq!(shortened(&runs, 10), runs);
        let part = |text: &str, is_target| (text.to_owned(), is_target);
        assert_eq!(
            shortened(&runs, 9),
            [
                part("aaaa", false),
                part("bb", true),
                part("\n… 1 characters …\n", false),
                part("bbb", true)
            ]
        );
    }
}
