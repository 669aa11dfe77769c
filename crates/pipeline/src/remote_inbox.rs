use std::fmt;

use burn::tensor::Tensor;

use crate::{PipelineError, Tag};

/// The way to a stage in another process, which keeps what is sent to it until a pass takes it.
pub trait RemoteInbox: fmt::Debug + Send + Sync {
    /// Starts a tensor on its way.
    ///
    /// # Errors
    /// If the stage is lost.
    fn send(&self, tag: Tag, tensor: Tensor<2>) -> Result<(), PipelineError>;
}
