#[cfg(feature = "cubecl")]
use std::sync::OnceLock;
use std::{ops::Range, sync::Arc};

#[cfg(feature = "cubecl")]
use burn_cubecl::tensor::CubeTensor;

use crate::{DropoutKey, Segments, ops::Side};

/// One segment's rows of a batch and of a bank, and their factors.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutedSegment {
    /// Rows of the batch.
    pub rows: Range<usize>,
    /// Rows of the bank's packed weights.
    pub ranks: Range<usize>,
    /// The factor s of `s · x A B`.
    pub scale: f32,
    /// Gradients of A and B are divided by this.
    pub loss_scale: f32,
    /// True if A has a gradient of zero.
    pub freeze_a: bool,
    /// The mask of the adapter's input; `None` keeps every element.
    pub dropout: Option<DropoutKey>,
    /// Row of the bank's magnitudes, with DoRA.
    pub magnitude: Option<usize>,
}

impl RoutedSegment {
    /// True if dropout masks the base's input, too: that of an adapter with DoRA.
    pub(crate) fn drops_all(&self) -> bool {
        self.magnitude.is_some() && self.dropout.is_some()
    }

    /// Factor of the sum of products over the rows in the gradient of A or B.
    pub(crate) fn gradient_factor(&self, side: Side) -> f32 {
        match side {
            Side::Input if self.freeze_a => 0.0,
            Side::Input => 1.0 / self.loss_scale,
            Side::Output => self.scale / self.loss_scale,
        }
    }
}

/// The rows of one bank's packed weights that each row of a batch is multiplied with: [`Segments`] seen by
/// one [`AdapterBank`](crate::AdapterBank) at one step.
///
/// Segments without rows, and those whose slot has no adapter at this module, are left out.
/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Routing {
    inner: Arc<Inner>,
    /// The bits of the dropout mask that forward drew, for backward.
    #[cfg(feature = "cubecl")]
    kept_mask: Option<Arc<OnceLock<CubeTensor>>>,
}

#[derive(Debug)]
struct Inner {
    segments: Segments,
    routed: Vec<RoutedSegment>,
    rank_sum: usize,
    rank_max: usize,
    magnitudes: usize,
}

impl Routing {
    pub(crate) fn new(
        segments: Segments,
        routed: Vec<RoutedSegment>,
        rank_sum: usize,
        magnitudes: usize,
    ) -> Self {
        let rank_max = routed.iter().map(|s| s.ranks.len()).max().unwrap_or(0);
        Self {
            inner: Arc::new(Inner {
                segments,
                routed,
                rank_sum,
                rank_max,
                magnitudes,
            }),
            #[cfg(feature = "cubecl")]
            kept_mask: None,
        }
    }

    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.inner.segments.rows()
    }

    /// Rows of the packed weights: the sum of all slots' ranks.
    pub fn rank_sum(&self) -> usize {
        self.inner.rank_sum
    }

    /// The largest rank among the routed segments, the width of the compact rank-r product.
    pub fn rank_max(&self) -> usize {
        self.inner.rank_max
    }

    /// Number of the bank's magnitudes.
    pub(crate) fn magnitudes(&self) -> usize {
        self.inner.magnitudes
    }

    /// True if a row has an adapter with a magnitude.
    pub(crate) fn uses_dora(&self) -> bool {
        let mut segments = self.segments().iter();
        segments.any(|segment| segment.magnitude.is_some())
    }

    /// The rows of adapters with both magnitude and dropout, neighbours together, and this routing without their dropout;
    /// `None` if there are none.
    pub(crate) fn dora_dropout(&self) -> Option<(Vec<Range<usize>>, Self)> {
        let mut dropped: Vec<Range<usize>> = Vec::new();
        for segment in self.segments().iter().filter(|s| s.drops_all()) {
            match dropped.last_mut() {
                Some(before) if before.end == segment.rows.start => before.end = segment.rows.end,
                _ => dropped.push(segment.rows.clone()),
            }
        }
        if dropped.is_empty() {
            return None;
        }
        let without = self.segments().iter().map(|segment| RoutedSegment {
            dropout: segment.dropout.filter(|_| !segment.drops_all()),
            ..segment.clone()
        });
        let Inner {
            segments,
            rank_sum,
            magnitudes,
            ..
        } = &*self.inner;
        let without = Self::new(segments.clone(), without.collect(), *rank_sum, *magnitudes);
        Some((dropped, without))
    }

    /// The segments in row order.
    pub fn segments(&self) -> &[RoutedSegment] {
        &self.inner.routed
    }

    /// Coordinates in the dropout counter of these rows of the batch.
    pub fn dropout_rows(&self, rows: Range<usize>) -> &[u32] {
        &self.inner.segments.dropout_rows()[rows]
    }

    /// This routing for a forward pass that keeps a graph: backends that keep masks for backward keep its.
    pub(crate) fn keeping_mask(self) -> Self {
        Self {
            #[cfg(feature = "cubecl")]
            kept_mask: Some(Arc::default()),
            ..self
        }
    }

    /// The place of the mask that forward keeps, if it does.
    #[cfg(feature = "cubecl")]
    pub(crate) fn kept_mask(&self) -> Option<&OnceLock<CubeTensor>> {
        self.kept_mask.as_deref()
    }

    /// The layout of the batch.
    #[cfg(feature = "cubecl")]
    pub(crate) fn batch(&self) -> &Segments {
        &self.inner.segments
    }
}
