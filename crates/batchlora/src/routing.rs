use std::{ops::Range, sync::Arc};

use crate::{DropoutKey, Segments};

/// One segment's way through one bank.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutedSegment {
    /// Rows of the batch.
    pub rows: Range<usize>,
    /// Rows of the bank's packed weights.
    pub ranks: Range<usize>,
    /// The factor s of `s · x A B`.
    pub scale: f32,
    /// The mask of the adapter's input; `None` keeps every element.
    pub dropout: Option<DropoutKey>,
}

/// Which rows of a batch go through which rows of one bank's packed weights: [`Segments`] seen by
/// one [`AdapterBank`](crate::AdapterBank) at one step.
///
/// Segments without rows, and those whose slot has no adapter at this module, are left out.
/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Routing(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    segments: Segments,
    routed: Vec<RoutedSegment>,
    rank_sum: usize,
    rank_max: usize,
}

impl Routing {
    pub(crate) fn new(segments: Segments, routed: Vec<RoutedSegment>, rank_sum: usize) -> Self {
        let rank_max = routed.iter().map(|s| s.ranks.len()).max().unwrap_or(0);
        Self(Arc::new(Inner {
            segments,
            routed,
            rank_sum,
            rank_max,
        }))
    }

    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.0.segments.rows()
    }

    /// Rows of the packed weights: the sum of all slots' ranks.
    pub fn rank_sum(&self) -> usize {
        self.0.rank_sum
    }

    /// The largest rank among the routed segments, the width of the compact rank-r product.
    pub fn rank_max(&self) -> usize {
        self.0.rank_max
    }

    /// The segments in row order.
    pub fn segments(&self) -> &[RoutedSegment] {
        &self.0.routed
    }

    /// Coordinates in the dropout counter of these rows of the batch.
    pub fn dropout_rows(&self, rows: Range<usize>) -> &[u32] {
        &self.0.segments.dropout_rows()[rows]
    }

    /// The layout of the batch.
    #[cfg(feature = "cubecl")]
    pub(crate) fn batch(&self) -> &Segments {
        &self.0.segments
    }
}
