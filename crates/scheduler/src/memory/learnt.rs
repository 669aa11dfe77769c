use serde::{Deserialize, Serialize};

use super::{coefficients::Coefficients, failures::Failures, window::Window};
use crate::Load;

/// What loads were seen to take of a device, for a process that goes on with the run. What pools held
/// is not in it: those of another process are its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearntMemory {
    /// Of the model and the device that it was learnt of.
    pub(super) prior: Coefficients,
    pub(super) page_bytes: u64,
    pub(super) window: Window,
    pub(super) failures: Failures,
    pub(super) reach: Option<Load>,
    pub(super) peaks: bool,
}
