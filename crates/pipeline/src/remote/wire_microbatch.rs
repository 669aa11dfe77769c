use batchlora::{DropoutDraw, Segment, Segments};
use loraloom_model::{Sequences, Targets};
use serde::{Deserialize, Serialize};

use super::error::WorkerError;
use crate::Microbatch;

/// [`Targets`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct WireTargets {
    rows: Vec<usize>,
    ids: Vec<u32>,
    weights: Vec<f32>,
}

impl From<&Targets> for WireTargets {
    fn from(targets: &Targets) -> Self {
        Self {
            rows: targets.rows.clone(),
            ids: targets.ids.clone(),
            weights: targets.weights.clone(),
        }
    }
}

impl From<WireTargets> for Targets {
    fn from(targets: WireTargets) -> Self {
        Self {
            rows: targets.rows,
            ids: targets.ids,
            weights: targets.weights,
        }
    }
}

/// A [`Microbatch`], as far as a stage needs it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireMicrobatch {
    /// At the first stage.
    ids: Vec<u32>,
    lengths: Vec<usize>,
    past: usize,
    rope_lengths: Vec<usize>,
    rows: usize,
    /// First row, one past the last, slot.
    segments: Vec<(usize, usize, usize)>,
    dropout_rows: Vec<u32>,
    loss_scales: Vec<f32>,
    /// Seed and step.
    draws: Option<Vec<(u64, u32)>>,
    /// At the last stage.
    targets: WireTargets,
}

impl WireMicrobatch {
    /// Token ids are for the stage that begins the model, targets for the one that ends it.
    pub(super) fn new(microbatch: &Microbatch, begins_model: bool, ends_model: bool) -> Self {
        let segments = microbatch.segments.iter();
        // Dropout's coordinates are asked for with dropout only.
        let dropout_rows = match microbatch.draws {
            Some(_) => microbatch.segments.dropout_rows().to_vec(),
            None => Vec::new(),
        };
        let draws = microbatch.draws.as_ref();
        Self {
            ids: if begins_model {
                microbatch.ids.clone()
            } else {
                Vec::new()
            },
            lengths: microbatch.sequences.iter().map(|rows| rows.len()).collect(),
            past: microbatch.past,
            rope_lengths: microbatch.rope_lengths.clone(),
            rows: microbatch.segments.rows(),
            segments: segments
                .map(|segment| (segment.rows.start, segment.rows.end, segment.slot))
                .collect(),
            dropout_rows,
            loss_scales: microbatch.segments.loss_scales().to_vec(),
            draws: draws.map(|draws| draws.iter().map(|draw| (draw.seed, draw.step)).collect()),
            targets: if ends_model {
                WireTargets::from(&microbatch.targets)
            } else {
                WireTargets::default()
            },
        }
    }

    /// The micro-batch.
    ///
    /// # Errors
    /// If its segments do not fit its rows.
    pub(super) fn microbatch(self) -> Result<Microbatch, WorkerError> {
        let segments = self.segments.into_iter().map(|(start, end, slot)| Segment {
            rows: start..end,
            slot,
        });
        let mut segments = Segments::new(self.rows, segments.collect())
            .and_then(|segments| segments.with_loss_scales(self.loss_scales))
            .map_err(|error| WorkerError::failed(&error))?;
        if self.draws.is_some() {
            segments = segments
                .with_dropout_rows(self.dropout_rows)
                .map_err(|error| WorkerError::failed(&error))?;
        }
        let draw = |(seed, step)| DropoutDraw { seed, step };
        Ok(Microbatch {
            ids: self.ids,
            sequences: Sequences::from_lengths(self.lengths),
            past: self.past,
            rope_lengths: self.rope_lengths,
            segments,
            draws: self
                .draws
                .map(|draws| draws.into_iter().map(draw).collect()),
            targets: self.targets.into(),
        })
    }
}
