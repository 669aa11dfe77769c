use std::{collections::HashMap, thread, time::Duration};

use burn::tensor::Tensor;

use super::error::WorkerError;
use crate::{Forwarded, Microbatch, MicrobatchId, Stage};

/// How long passes take on a device that a worker only stands in for.
///
/// Such a worker sleeps in place of computing, and gives zeros. Everything else is as ever: what goes
/// over the network, the adapters, the optimizer. So a schedule and a network can be measured where
/// no device is at hand that leaves the processor to the network, as a GPU does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandIn {
    /// A micro-batch forward.
    pub forward: Duration,
    /// A micro-batch backward.
    pub backward: Duration,
}

/// Passes of a stand-in.
#[derive(Debug)]
pub(super) struct StandingIn {
    times: StandIn,
    /// Rows of micro-batches that are under way.
    under_way: HashMap<MicrobatchId, usize>,
    /// What comes out, by rows.
    zeros: HashMap<usize, Tensor<2>>,
}

impl StandingIn {
    pub(super) fn new(times: StandIn) -> Self {
        Self {
            times,
            under_way: HashMap::new(),
            zeros: HashMap::new(),
        }
    }

    pub(super) fn forward(
        &mut self,
        stage: &Stage,
        at: MicrobatchId,
        microbatch: &Microbatch,
    ) -> Forwarded {
        thread::sleep(self.times.forward);
        let rows = microbatch.segments.rows();
        self.under_way.insert(at, rows);
        if stage.ends_model() {
            let losses = Tensor::zeros([microbatch.targets.rows.len()], stage.device());
            return Forwarded {
                hidden: None,
                losses: Some(losses),
            };
        }
        Forwarded {
            hidden: Some(self.zeros(stage, rows)),
            losses: None,
        }
    }

    pub(super) fn backward(
        &mut self,
        stage: &Stage,
        at: MicrobatchId,
    ) -> Result<Option<Tensor<2>>, WorkerError> {
        let Some(rows) = self.under_way.remove(&at) else {
            let reason = "no forward pass before the backward pass".to_owned();
            return Err(WorkerError::Failed { reason });
        };
        thread::sleep(self.times.backward);
        Ok((stage.layers().start > 0).then(|| self.zeros(stage, rows)))
    }

    fn zeros(&mut self, stage: &Stage, rows: usize) -> Tensor<2> {
        let zeros = || {
            let options = (stage.device(), stage.dtype().into());
            Tensor::zeros([rows, stage.config().d_model], options)
        };
        self.zeros.entry(rows).or_insert_with(zeros).clone()
    }
}
