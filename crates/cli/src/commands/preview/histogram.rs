use std::fmt::{self, Write};

use serde::Serialize;

use crate::table;

/// Approximate number of bars of a histogram, without that of the cut rows.
const BARS: usize = 10;
/// Characters of the longest bar.
const LONGEST_BAR: usize = 40;

/// Number of rows with `from` to `to` tokens.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Bin {
    from: usize,
    to: usize,
    rows: usize,
}

/// The tokens of a row that 50, 90 or 99 percent of all rows do not exceed.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Percentiles {
    p50: usize,
    p90: usize,
    p99: usize,
}

impl Percentiles {
    pub(super) fn of(lengths: &[usize]) -> Self {
        let mut sorted = lengths.to_vec();
        sorted.sort_unstable();
        let at = |percent: usize| {
            let rank = (percent * sorted.len()).div_ceil(100).saturating_sub(1);
            sorted.get(rank).copied().unwrap_or(0)
        };
        Self {
            p50: at(50),
            p90: at(90),
            p99: at(99),
        }
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "p50 {}, p90 {}, p99 {}",
            self.p50, self.p90, self.p99
        )
    }
}

/// Rows by their tokens: bins of one width up to `max_seq_len`, and one for longer rows.
pub(super) fn bins(lengths: &[usize], max_seq_len: usize) -> Vec<Bin> {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let top = longest.clamp(1, max_seq_len.max(1));
    let shortest = lengths.iter().copied().min().unwrap_or(0).clamp(1, top);
    let width = round_width(top - shortest + 1);
    let first = (shortest - 1) / width;
    let mut bins: Vec<Bin> = (first..top.div_ceil(width))
        .map(|bin| Bin {
            from: bin * width + 1,
            to: ((bin + 1) * width).min(max_seq_len),
            rows: 0,
        })
        .collect();
    if longest > top {
        bins.push(Bin {
            from: top + 1,
            to: longest,
            rows: 0,
        });
    }
    let last = bins.len() - 1;
    for &length in lengths {
        let bin = if length > top {
            last
        } else {
            length.saturating_sub(1) / width - first
        };
        bins[bin].rows += 1;
    }
    bins
}

/// The first of 1, 2, 5, 10, 20, 50, ... with which this many lengths fill at most [`BARS`] bins.
fn round_width(lengths: usize) -> usize {
    let mut tens = 1;
    loop {
        for digit in [1, 2, 5] {
            if lengths.div_ceil(digit * tens) <= BARS {
                return digit * tens;
            }
        }
        tens *= 10;
    }
}

pub(super) fn bars(bins: &[Bin], max_seq_len: usize) -> String {
    let most = bins.iter().map(|bin| bin.rows).max().unwrap_or(0).max(1);
    let rows = bins.iter().map(|bin| {
        // A bar with any rows has at least one character.
        let length = (bin.rows * LONGEST_BAR).div_ceil(most);
        let cut = if bin.from > max_seq_len { ", cut" } else { "" };
        let range = if bin.from == bin.to {
            bin.to.to_string()
        } else {
            format!("{}-{}", bin.from, bin.to)
        };
        let bar = format!("{} {}{cut}", "█".repeat(length), bin.rows);
        [format!("  {range}"), bar]
    });
    let rows: Vec<_> = rows.collect();
    let lines = table::aligned(["", "<"], &rows);
    // Skips the headings.
    lines.lines().skip(1).fold(String::new(), |mut all, line| {
        let _ = writeln!(all, "{line}");
        all
    })
}

#[cfg(test)]
mod tests {
    use super::{BARS, Bin, Percentiles, bars, bins};

    /// As numpy's percentile with `method="inverted_cdf"`.
    #[test]
    fn percentiles_are_lengths_of_rows() {
        let hundred: Vec<usize> = (1..=100).rev().collect();
        for (lengths, p50, p90, p99) in [
            (&[][..], 0, 0, 0),
            (&[7], 7, 7, 7),
            (&[9, 1], 1, 9, 9),
            (&hundred, 50, 90, 99),
        ] {
            assert_eq!(Percentiles::of(lengths), Percentiles { p50, p90, p99 });
        }
    }

    #[test]
    fn lengths_are_binned_up_to_the_limit_and_beyond_it() {
        let bin = |from, to, rows| Bin { from, to, rows };
        assert_eq!(
            bins(&[1, 2, 3, 3], 64),
            [bin(1, 1, 1), bin(2, 2, 1), bin(3, 3, 2)]
        );
        assert_eq!(
            bins(&[1, 20, 21, 64, 65, 900], 64),
            [
                bin(1, 10, 1),
                bin(11, 20, 1),
                bin(21, 30, 1),
                bin(31, 40, 0),
                bin(41, 50, 0),
                bin(51, 60, 0),
                bin(61, 64, 1),
                bin(65, 900, 2)
            ]
        );
        for longest in [0, 1, 9, 10, 11, 99, 101, 4096, 1_000_000] {
            for limit in [1, 7, 4096] {
                let lengths = [0, 1, longest / 2, longest];
                let bins = bins(&lengths, limit);
                assert!(bins.len() <= BARS + 2, "{bins:?}");
                let counted: usize = bins.iter().map(|bin| bin.rows).sum();
                assert_eq!(counted, lengths.len(), "{bins:?}");
            }
        }
        assert_eq!(
            bars(
                &[bin(1, 5, 80), bin(6, 6, 1), bin(7, 10, 0), bin(11, 99, 8)],
                10
            ),
            format!(
                "    1-5  {} 80\n      6  █ 1\n   7-10   0\n  11-99  ████ 8, cut\n",
                "█".repeat(40)
            )
        );
    }
}
