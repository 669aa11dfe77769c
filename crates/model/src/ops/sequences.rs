use std::{ops::Range, sync::Arc};

/// The rows of a batch's sequences, which follow each other without padding, one row per token. Cheap to
/// clone.
#[derive(Debug, Clone)]
pub struct Sequences(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    boundaries: Vec<usize>,
    #[cfg(feature = "cubecl")]
    tables: super::kernels::DeviceTables<super::kernels::SequenceTable>,
}

impl PartialEq for Sequences {
    fn eq(&self, other: &Self) -> bool {
        self.0.boundaries == other.0.boundaries
    }
}

impl Eq for Sequences {}

impl Sequences {
    /// Lays sequences of these lengths one after another.
    pub fn from_lengths(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut boundaries = vec![0];
        for length in lengths {
            boundaries.push(boundaries[boundaries.len() - 1] + length);
        }
        Self(Arc::new(Inner {
            boundaries,
            #[cfg(feature = "cubecl")]
            tables: super::kernels::DeviceTables::default(),
        }))
    }

    /// Rows of each sequence, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Range<usize>> + '_ {
        self.0.boundaries.windows(2).map(|pair| pair[0]..pair[1])
    }

    /// Number of sequences.
    pub fn len(&self) -> usize {
        self.0.boundaries.len() - 1
    }

    /// True without any sequence.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of rows: the tokens of all sequences.
    pub fn rows(&self) -> usize {
        self.0.boundaries[self.len()]
    }

    /// Tokens of the longest sequence.
    pub fn longest(&self) -> usize {
        self.iter().map(|rows| rows.len()).max().unwrap_or(0)
    }

    /// The sequences on a device, uploaded on first use.
    #[cfg(feature = "cubecl")]
    pub(super) fn table(
        &self,
        client: &burn_cubecl::cubecl::client::Client,
        device: &burn_cubecl::CubeDevice,
    ) -> super::kernels::SequenceTable {
        let upload = || super::kernels::SequenceTable::upload(self, client, device);
        self.0.tables.get(device, upload)
    }
}

/// Sequences, heads and window of an attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionShape {
    /// The sequences; a token sees its own sequence only.
    pub sequences: Sequences,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; `num_heads / num_kv_heads` query heads share one.
    pub num_kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Scale of the scores; `None` is `1 / sqrt(head_dim)`.
    pub score_scale: Option<f64>,
    /// A token sees itself and `window - 1` tokens before it; `None` is all before it.
    pub window: Option<usize>,
    /// Scores are bounded: `softcap · tanh(score / softcap)`.
    pub softcap: Option<f32>,
}

impl AttentionShape {
    /// The scale of the scores.
    pub(crate) fn scale(&self) -> f64 {
        self.score_scale
            .unwrap_or_else(|| 1.0 / (self.head_dim as f64).sqrt())
    }

    /// The first key that query `position` sees.
    pub(crate) fn first_key(&self, position: usize) -> usize {
        self.window
            .map_or(0, |window| (position + 1).saturating_sub(window))
    }
}
