use thiserror::Error;

/// An error of this crate.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum BatchLoraError {
    /// A value out of range, with the numbers that show it.
    #[error("invalid LoRA configuration: {0}")]
    InvalidConfig(String),
    /// The given tensors or segments do not match.
    #[error("shapes do not fit: {0}")]
    Shape(String),
    /// The device lacks a feature.
    #[error("{device} cannot do this: {lacks}")]
    Unavailable {
        /// The device.
        device: String,
        /// The feature.
        lacks: String,
    },
    /// A kernel was refused or failed when it ran.
    #[error("a kernel failed on {device}: {reason}")]
    Launch {
        /// The device.
        device: String,
        /// Its message.
        reason: String,
    },
    /// A slot that the bank does not have.
    #[error("slot {slot} does not exist, the bank has {slots}")]
    NoSuchSlot {
        /// The slot.
        slot: usize,
        /// Slots in the bank.
        slots: usize,
    },
}
