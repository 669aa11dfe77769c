use serde::{Deserialize, Serialize};

use crate::Load;

/// Most measurements that are kept.
pub(super) const CAPACITY: usize = 128;

/// What a load took beside the exact bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) load: Load,
    /// Below zero if what is known exactly was counted too high.
    pub(super) bytes: f64,
}

/// The measurements that a fit is made of. A run trains the same few loads over and over; so that they
/// do not drive out all others, the older of the two most alike is forgotten, not the oldest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Window {
    rows: Vec<Row>,
}

impl Window {
    /// Oldest first.
    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(super) fn push(&mut self, row: Row) {
        self.rows.push(row);
        if self.rows.len() > CAPACITY {
            let older = self.older_of_most_alike();
            self.rows.remove(older);
        }
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }

    fn older_of_most_alike(&self) -> usize {
        let places: Vec<_> = self.rows.iter().map(|row| place(row.load)).collect();
        let mut nearest = (f64::INFINITY, 0);
        for (older, a) in places.iter().enumerate() {
            for b in &places[older + 1..] {
                let apart = (a[0] - b[0]).powi(2) + (a[1] - b[1]).powi(2);
                if apart < nearest.0 {
                    nearest = (apart, older);
                }
            }
        }
        nearest.1
    }
}

/// Loads are alike if they are in proportion.
fn place(load: Load) -> [f64; 2] {
    [load.tokens, load.squared_tokens].map(|term| (term as f64).ln_1p())
}

#[cfg(test)]
mod tests {
    use super::{CAPACITY, Row, Window};
    use crate::Load;

    fn row(tokens: u64, bytes: f64) -> Row {
        let load = Load {
            tokens,
            squared_tokens: 512 * tokens,
            adapter_bytes: 0,
        };
        Row { load, bytes }
    }

    #[test]
    fn repetition_forgets_itself_first() {
        let mut window = Window::default();
        for tokens in [100, 1000, 10_000] {
            window.push(row(tokens, 0.0));
        }
        for time in 0..10 * CAPACITY {
            window.push(row(5000, time as f64));
        }
        let rows = window.rows();
        assert_eq!(rows.len(), CAPACITY);
        assert_eq!(
            rows[..3].iter().map(|row| row.load.tokens).sum::<u64>(),
            11_100
        );
        let times: Vec<f64> = rows[3..].iter().map(|row| row.bytes).collect();
        let newest = (10 * CAPACITY - times.len()..10 * CAPACITY).map(|time| time as f64);
        assert_eq!(times, newest.collect::<Vec<_>>());
    }
}
