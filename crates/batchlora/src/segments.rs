use std::{collections::BTreeMap, ops::Range, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::BatchLoraError;

/// Contiguous rows of a batch that belong to one adapter slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Rows of the batch.
    pub rows: Range<usize>,
    /// Slot of the adapter bank.
    pub slot: usize,
}

/// The adapters of a batch's rows: made once per batch, shared by all layers.
///
/// Segments are in row order and do not overlap. A slot may have no rows; rows in no segment take
/// the frozen weight alone.
#[derive(Debug, Clone)]
pub struct Segments(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rows: usize,
    segments: Vec<Segment>,
    dropout_rows: Vec<u32>,
    loss_scales: Vec<f32>,
    /// Device tables of this batch: one for all banks whose adapters have the same shapes.
    #[cfg(feature = "cubecl")]
    tables: std::sync::Mutex<Vec<(crate::kernels::TablesKey, crate::kernels::Tables)>>,
}

impl Inner {
    fn new(rows: usize, segments: Vec<Segment>) -> Self {
        let mut dropout_rows = vec![0; rows];
        for segment in &segments {
            for (within, row) in segment.rows.clone().enumerate() {
                dropout_rows[row] = within as u32;
            }
        }
        Self {
            rows,
            loss_scales: vec![1.0; segments.len()],
            segments,
            dropout_rows,
            #[cfg(feature = "cubecl")]
            tables: std::sync::Mutex::default(),
        }
    }
}

impl Segments {
    /// Lays out `rows` rows of a batch.
    ///
    /// # Errors
    /// [`BatchLoraError::Shape`] if a segment ends beyond `rows`, runs backwards, or begins before
    /// the previous one ends.
    pub fn new(rows: usize, segments: Vec<Segment>) -> Result<Self, BatchLoraError> {
        let mut end = 0;
        for (index, segment) in segments.iter().enumerate() {
            let Range { start, end: stop } = segment.rows;
            if start < end || stop < start || stop > rows {
                return Err(BatchLoraError::Shape(format!(
                    "segment {index} covers rows {start}..{stop}, but must lie within {end}..{rows}"
                )));
            }
            end = stop;
        }
        Ok(Self(Arc::new(Inner::new(rows, segments))))
    }

    /// Gives every row a coordinate in the dropout counter: its place within its adapter's step, independent of the
    /// batch. By default rows count from the beginning of their segment; rows of one slot in several segments, or in
    /// several batches of a step, need coordinates to get masks of their own.
    ///
    /// # Errors
    /// [`BatchLoraError::Shape`] if there is not one coordinate per row.
    pub fn with_dropout_rows(self, dropout_rows: Vec<u32>) -> Result<Self, BatchLoraError> {
        if dropout_rows.len() != self.rows() {
            return Err(BatchLoraError::Shape(format!(
                "{} dropout rows for a batch of {}",
                dropout_rows.len(),
                self.rows()
            )));
        }
        Ok(Self(Arc::new(Inner {
            dropout_rows,
            loss_scales: self.0.loss_scales.clone(),
            ..Inner::new(self.0.rows, self.0.segments.clone())
        })))
    }

    /// Sets the factor by which each segment's incoming gradient is too large, 1 by default: gradients of A
    /// and B are divided by it, that of x is not. Powers of two keep small gradients from vanishing in
    /// `float16` and change nothing else. Segments of one slot have one scale.
    ///
    /// # Errors
    /// [`BatchLoraError::Shape`] if there is not one scale per segment,
    /// [`BatchLoraError::InvalidConfig`] if one is not a positive number, or a slot has two.
    pub fn with_loss_scales(self, loss_scales: Vec<f32>) -> Result<Self, BatchLoraError> {
        if loss_scales.len() != self.0.segments.len() {
            return Err(BatchLoraError::Shape(format!(
                "{} loss scales for {} segments",
                loss_scales.len(),
                self.0.segments.len()
            )));
        }
        if let Some(scale) = loss_scales
            .iter()
            .find(|scale| !(scale.is_normal() && **scale > 0.0))
        {
            return Err(BatchLoraError::InvalidConfig(format!(
                "a loss scale is a positive number, not {scale}"
            )));
        }
        let mut of_slots = BTreeMap::new();
        for (segment, scale) in self.iter().zip(&loss_scales) {
            let of_slot = *of_slots.entry(segment.slot).or_insert(*scale);
            if of_slot.total_cmp(scale).is_ne() {
                return Err(BatchLoraError::InvalidConfig(format!(
                    "segments of slot {} have loss scales {of_slot} and {scale}",
                    segment.slot
                )));
            }
        }
        Ok(Self(Arc::new(Inner {
            loss_scales,
            dropout_rows: self.0.dropout_rows.clone(),
            ..Inner::new(self.0.rows, self.0.segments.clone())
        })))
    }

    /// Rows of the batch.
    pub fn rows(&self) -> usize {
        self.0.rows
    }

    /// The segments in row order.
    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.0.segments.iter()
    }

    /// Every row's coordinate in the dropout counter, `[rows]`.
    pub fn dropout_rows(&self) -> &[u32] {
        &self.0.dropout_rows
    }

    /// For each segment, the divisor of the gradients of A and B.
    pub fn loss_scales(&self) -> &[f32] {
        &self.0.loss_scales
    }

    /// The tables of that key, made on first use.
    #[cfg(feature = "cubecl")]
    pub(crate) fn tables(
        &self,
        key: crate::kernels::TablesKey,
        make: impl FnOnce() -> crate::kernels::Tables,
    ) -> crate::kernels::Tables {
        // Tables are added complete, so a panic elsewhere leaves no partial one.
        let mut tables = self
            .0
            .tables
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((_, found)) = tables.iter().find(|(of, _)| *of == key) {
            return found.clone();
        }
        let made = make();
        tables.push((key, made.clone()));
        made
    }
}
