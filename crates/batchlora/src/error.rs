use thiserror::Error;

/// What can be wrong with a request to this crate.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum BatchLoraError {
    /// A value that can never work, with the numbers that show it.
    #[error("invalid LoRA configuration: {0}")]
    InvalidConfig(String),
    /// The tensors or segments given do not fit each other.
    #[error("shapes do not fit: {0}")]
    Shape(String),
    /// The device lacks what was asked of it.
    #[error("{device} cannot do this: {lacks}")]
    Unavailable {
        /// The device.
        device: String,
        /// What it lacks.
        lacks: String,
    },
    /// A kernel was refused or failed when it ran.
    #[error("a kernel failed on {device}: {reason}")]
    Launch {
        /// The device.
        device: String,
        /// What it said.
        reason: String,
    },
    /// A slot that the bank does not have.
    #[error("slot {slot} does not exist, the bank has {slots}")]
    NoSuchSlot {
        /// The slot asked for.
        slot: usize,
        /// Slots in the bank.
        slots: usize,
    },
}
