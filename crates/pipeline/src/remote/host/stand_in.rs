use std::fmt;

use burn::tensor::Tensor;

use crate::{Forwarded, Microbatch, MicrobatchId, Stage};

/// Makes a stand-in for a stage that was loaded.
pub type MakeStandIn = Box<dyn Fn() -> Box<dyn StandIn> + Send + Sync>;

/// Executes the passes of a worker's stage in its place, such as by sleeping: so schedules and networks
/// are measured without a device that leaves the processor to the network, as a GPU does. The
/// messages, the adapters and the optimizer stay those of the stage.
pub trait StandIn: fmt::Debug + Send {
    /// A micro-batch forward.
    fn forward(&mut self, stage: &Stage, at: MicrobatchId, microbatch: &Microbatch) -> Forwarded;

    /// A micro-batch backward: the gradient for the stage below.
    fn backward(&mut self, stage: &Stage, at: MicrobatchId) -> Option<Tensor<2>>;
}
