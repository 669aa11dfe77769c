use batchlora::{DropoutDraw, Segment, Segments};
use loraloom_model::{BlockTable, BlockTables, Sequences, Targets};
use serde::{Deserialize, Serialize};

use crate::{Microbatch, remote::WorkerError};

/// A [`Microbatch`], reduced to the fields that a stage uses.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::remote) struct WireMicrobatch {
    /// At the first stage.
    ids: Vec<u32>,
    lengths: Vec<usize>,
    cached: Option<Vec<BlockTable>>,
    rope_lengths: Vec<usize>,
    rows: usize,
    segments: Vec<Segment>,
    /// With dropout.
    dropout_rows: Vec<u32>,
    loss_scales: Vec<f32>,
    draws: Option<Vec<DropoutDraw>>,
    /// At the last stage.
    targets: Targets,
}

impl WireMicrobatch {
    /// Keeps token ids for the stage that begins the model, targets for the one that ends it.
    pub(in crate::remote) fn new(
        microbatch: &Microbatch,
        begins_model: bool,
        ends_model: bool,
    ) -> Self {
        let segments = &microbatch.segments;
        let ids = begins_model.then(|| microbatch.ids.clone());
        let dropout_rows = microbatch.draws.as_ref().map(|_| segments.dropout_rows());
        let targets = ends_model.then(|| microbatch.targets.clone());
        Self {
            ids: ids.unwrap_or_default(),
            lengths: microbatch.sequences.iter().map(|rows| rows.len()).collect(),
            cached: microbatch
                .cached
                .as_ref()
                .map(|tables| tables.sequences().to_vec()),
            rope_lengths: microbatch.rope_lengths.clone(),
            rows: segments.rows(),
            segments: segments.iter().cloned().collect(),
            dropout_rows: dropout_rows.unwrap_or_default().to_vec(),
            loss_scales: segments.loss_scales().to_vec(),
            draws: microbatch.draws.clone(),
            targets: targets.unwrap_or_default(),
        }
    }

    /// # Errors
    /// If its segments do not fit its rows.
    pub(in crate::remote) fn microbatch(self) -> Result<Microbatch, WorkerError> {
        let mut segments = Segments::new(self.rows, self.segments)
            .and_then(|segments| segments.with_loss_scales(self.loss_scales))
            .map_err(|error| WorkerError::failed(&error))?;
        if self.draws.is_some() {
            segments = segments
                .with_dropout_rows(self.dropout_rows)
                .map_err(|error| WorkerError::failed(&error))?;
        }
        Ok(Microbatch {
            ids: self.ids,
            sequences: Sequences::from_lengths(self.lengths),
            cached: self.cached.map(BlockTables::new),
            rope_lengths: self.rope_lengths,
            segments,
            draws: self.draws,
            targets: self.targets,
        })
    }
}
