use loraloom_scheduler::{Coefficients, DeviceMemory, Load, MemoryModel, SchedulerError, Shortage};
use serde::{Deserialize, Serialize};

/// Memory of a device before anything was trained on it: enough for another process to decide whether a task can ever
/// fit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceRoom {
    /// Name of the device.
    pub device: String,
    /// Bytes that may be used; [`u64::MAX`] is no limit.
    pub limit_bytes: u64,
    /// Bytes in use without any adapter: mostly the device's part of the backbone.
    pub fixed_bytes: u64,
    /// The part of every adapter that it holds, 0 to 1.
    pub adapter_share: f64,
    /// Estimated bytes of activations per token.
    pub bytes_per_token: f64,
    /// Page size of the allocator.
    pub page_bytes: u64,
    /// Bytes of an element of the backbone and its activations.
    pub element_bytes: usize,
}

impl DeviceRoom {
    pub(crate) fn is_limited(&self) -> bool {
        self.limit_bytes < u64::MAX
    }

    /// The memory of the device, before anything is learnt.
    pub(crate) fn memory(&self) -> Result<DeviceMemory, SchedulerError> {
        let prior = Coefficients::new(0.0, self.bytes_per_token, 0.0)?;
        let model = MemoryModel::new(prior, self.page_bytes);
        let (limit, fixed) = (self.limit_bytes, self.fixed_bytes);
        DeviceMemory::new(&self.device, limit, fixed, self.adapter_share, model)
    }

    /// The reason why a load can never fit here, with the numbers; `None` if it may.
    ///
    /// # Errors
    /// If the fields are out of range.
    pub fn refuses(&self, load: Load) -> Result<Option<String>, SchedulerError> {
        let fits = self.memory()?.fits(load);
        let shortage = fits.err().filter(Shortage::is_certain);
        Ok(shortage.map(|shortage| shortage.to_string()))
    }
}
