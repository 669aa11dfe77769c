//! Passes that sleep and return zeros.

use std::{collections::HashMap, thread, time::Duration};

use burn::tensor::Tensor;
use loraloom_pipeline::{
    Forwarded, Microbatch, MicrobatchId, PipelineStage, Stage, TrainStage, remote::StandIn,
};

#[derive(Debug)]
pub(crate) struct Sleeping {
    pass: Duration,
    /// Rows of micro-batches that are under way.
    under_way: HashMap<MicrobatchId, usize>,
    /// Outputs, by rows.
    zeros: HashMap<usize, Tensor<2>>,
}

impl Sleeping {
    /// For [`WorkerOptions::stand_in`](loraloom_pipeline::remote::WorkerOptions::stand_in): every pass
    /// takes `pass`.
    pub(crate) fn boxed(pass: Duration) -> Box<dyn StandIn> {
        Box::new(Self {
            pass,
            under_way: HashMap::new(),
            zeros: HashMap::new(),
        })
    }

    fn zeros(&mut self, stage: &Stage, rows: usize) -> Tensor<2> {
        let zeros = || {
            let options = (stage.device(), stage.dtype().into());
            Tensor::zeros([rows, stage.config().d_model], options)
        };
        self.zeros.entry(rows).or_insert_with(zeros).clone()
    }
}

impl StandIn for Sleeping {
    fn forward(&mut self, stage: &Stage, at: MicrobatchId, microbatch: &Microbatch) -> Forwarded {
        thread::sleep(self.pass);
        let rows = microbatch.segments.rows();
        self.under_way.insert(at, rows);
        let ends_model = stage.layers().held().end == stage.config().num_hidden_layers;
        let losses =
            ends_model.then(|| Tensor::zeros([microbatch.targets.rows.len()], stage.device()));
        Forwarded {
            hidden: (!ends_model).then(|| self.zeros(stage, rows)),
            losses,
        }
    }

    fn backward(&mut self, stage: &Stage, at: MicrobatchId) -> Option<Tensor<2>> {
        thread::sleep(self.pass);
        let rows = self.under_way.remove(&at)?;
        (stage.layers().held().start > 0).then(|| self.zeros(stage, rows))
    }
}
