use std::{ops::Range, sync::Arc};

/// Where the sequences of a batch begin and end: sequences follow each other without padding, each
/// token is one row. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequences(Arc<[usize]>);

impl Sequences {
    /// Lays sequences of these lengths one after another.
    pub fn from_lengths(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut boundaries = vec![0];
        for length in lengths {
            boundaries.push(boundaries[boundaries.len() - 1] + length);
        }
        Self(boundaries.into())
    }

    /// Rows of each sequence, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        (1..self.0.len()).map(|end| self.0[end - 1]..self.0[end])
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.0.len() - 1
    }

    /// Whether there is no sequence.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of rows: the tokens of all sequences.
    pub fn rows(&self) -> usize {
        self.0[self.0.len() - 1]
    }

    /// Tokens of the longest sequence.
    pub fn longest(&self) -> usize {
        self.iter().map(|rows| rows.len()).max().unwrap_or(0)
    }
}

/// What an attention works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttentionShape {
    /// The sequences; a token sees its own sequence only.
    pub sequences: Sequences,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; `num_heads / num_kv_heads` query heads share one.
    pub num_kv_heads: usize,
    /// Width of a head. Scores are scaled by `1 / sqrt(head_dim)`.
    pub head_dim: usize,
    /// A token sees itself and `window - 1` tokens before it; `None` is all before it.
    pub window: Option<usize>,
}

impl AttentionShape {
    /// The scale of the scores.
    pub(crate) fn scale(&self) -> f64 {
        1.0 / (self.head_dim as f64).sqrt()
    }

    /// The first key that query `position` sees.
    pub(crate) fn first_key(&self, position: usize) -> usize {
        self.window
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }
}
