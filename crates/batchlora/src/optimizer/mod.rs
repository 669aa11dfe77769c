//! Gradient norms, clipping and `AdamW` for all adapters at once: every hyper-parameter is a vector
//! over slots, and the host reads nothing back between the gradient and the update.

mod adamw;
mod batch_adamw;
mod flex;
mod gradient_norms;
mod ops;
mod reference;
mod slot_update;

pub use adamw::AdamWStep;
pub use batch_adamw::BatchAdamW;
pub use gradient_norms::GradientNorms;
pub use slot_update::{LearningRates, SlotUpdate};

pub(crate) use ops::OptimizerOps;
#[cfg(feature = "cubecl")]
pub(crate) use slot_update::{CLIP_EPSILON, column};
