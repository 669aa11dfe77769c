use std::fmt;

use super::{Estimate, Forecasts, LearntMemory, Measurement, MemoryModel, size::Scale};
use crate::{Budget, Load, Refusal, SchedulerError};

/// The memory of one device: its limit, the bytes that are always in use, and those that loads take.
///
/// Loads are whole: the sum over all tasks that train there at the same time.
#[derive(Debug, Clone)]
pub struct DeviceMemory {
    name: String,
    limit_bytes: u64,
    fixed_bytes: u64,
    adapter_share: f64,
    model: MemoryModel,
    /// Load of the running tasks.
    running: Load,
}

impl DeviceMemory {
    /// A device of which `limit_bytes` may be used ([`u64::MAX`] is no limit). `fixed_bytes` are always in use:
    /// its part of the backbone and other bytes that do not depend on tasks. `adapter_share` is the part of
    /// every adapter that it holds: 1, or the share of its layers if it is one of several stages, and more where
    /// it holds copies.
    ///
    /// # Errors
    /// If `adapter_share` is negative, infinite or not a number.
    pub fn new(
        name: impl Into<String>,
        limit_bytes: u64,
        fixed_bytes: u64,
        adapter_share: f64,
        model: MemoryModel,
    ) -> Result<Self, SchedulerError> {
        let name = name.into();
        if !(adapter_share.is_finite() && adapter_share >= 0.0) {
            let share = adapter_share.to_string();
            return Err(SchedulerError::AdapterShare {
                device: name,
                share,
            });
        }
        Ok(Self {
            name,
            limit_bytes,
            fixed_bytes,
            adapter_share,
            model,
            running: Load::default(),
        })
    }

    /// Checks that the bound of `load` is within the limit.
    ///
    /// # Errors
    /// A [`Shortage`] with the numbers if it does not.
    pub fn fits(&self, load: Load) -> Result<(), Shortage> {
        let estimate = self.estimate(load);
        if estimate.bound_bytes <= self.limit_bytes {
            Ok(())
        } else {
            Err(self.shortage(estimate))
        }
    }

    fn shortage(&self, estimate: Estimate) -> Shortage {
        Shortage {
            device: self.name.clone(),
            estimate,
            fixed_bytes: self.fixed_bytes,
            limit_bytes: self.limit_bytes,
        }
    }

    /// Tasks with this load train from now on: they, and smaller loads, stay admitted.
    pub fn run(&mut self, load: Load) {
        self.running = load;
    }

    /// True if there is a limit.
    pub fn is_limited(&self) -> bool {
        self.limit_bytes < u64::MAX
    }

    /// The prediction for `load`.
    pub fn estimate(&self, load: Load) -> Estimate {
        let exact = self.exact_bytes(load);
        let certain = exact.saturating_add(self.share_of(load.certain_bytes));
        self.model.estimate(load, exact).of_at_least(certain)
    }

    /// Learns from an iteration; `load` has its real tokens, not their upper bounds.
    pub fn observe(&mut self, load: Load, measured: Measurement) {
        let exact = self.exact_bytes(load);
        self.model.observe(load, exact, measured);
    }

    /// Learns that memory ran out while `load` trained: neither it nor a larger load fits again.
    pub fn out_of_memory(&mut self, load: Load) {
        let exact = self.exact_bytes(load);
        self.model.out_of_memory(load, exact, self.limit_bytes);
    }

    /// Everything learnt of it, for another process.
    pub fn learnt(&self) -> LearntMemory {
        self.model.learnt()
    }

    /// Restores what another process learnt; see [`MemoryModel::remember`].
    pub fn remember(&mut self, learnt: LearntMemory) -> bool {
        self.model.remember(learnt)
    }

    /// Sets what the pools hold now, between iterations; see [`MemoryModel::pools_hold`].
    pub fn pools_hold(&mut self, reserved_bytes: u64) {
        self.model.pools_hold(reserved_bytes);
    }

    /// Bytes that are known and not predicted: the fixed ones, and this device's part of adapters with their
    /// gradients and moments.
    pub fn exact_bytes(&self, load: Load) -> u64 {
        self.fixed_bytes
            .saturating_add(self.share_of(load.adapter_bytes))
    }

    /// This device's part of bytes over the whole model.
    fn share_of(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.adapter_share).ceil() as u64
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that may be used.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// The model of the bytes that loads take.
    pub fn model(&self) -> &MemoryModel {
        &self.model
    }

    /// Errors of past predictions.
    pub fn forecasts(&self) -> &Forecasts {
        self.model.forecasts()
    }
}

impl Budget for DeviceMemory {
    /// Running tasks stay: a changed prediction parks no task, only memory that runs out does. A task alone
    /// is tried unless it certainly cannot fit.
    fn fits(&self, load: Load, tasks: usize) -> bool {
        if !self.is_limited() || self.running.covers(load) {
            return true;
        }
        let estimate = self.estimate(load);
        estimate.bound_bytes <= self.limit_bytes
            || tasks <= 1 && estimate.least_bytes <= self.limit_bytes
    }

    fn refusal(&self, load: Load, _tasks: usize) -> Refusal {
        Refusal {
            reason: self.shortage(self.estimate(load)).to_string(),
        }
    }

    fn learns(&mut self) -> Option<&mut DeviceMemory> {
        Some(self)
    }

    fn learnt(&self) -> Option<&DeviceMemory> {
        Some(self)
    }
}

/// A load that does not fit on a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Shortage {
    /// The device.
    pub device: String,
    /// The prediction for the load.
    pub estimate: Estimate,
    /// Bytes of the device that are in use without any adapter.
    pub fixed_bytes: u64,
    /// Bytes that may be used.
    pub limit_bytes: u64,
}

impl Shortage {
    /// True if no measurement could change it: the known or certain bytes are too many, or memory ran out for
    /// such a load.
    pub fn is_certain(&self) -> bool {
        self.estimate.least_bytes > self.limit_bytes
    }
}

/// "cuda:0 needs 9.1 GiB (8.2 GiB expected + 0.9 GiB margin) of 8.0 GiB", or, if it is certain, "cuda:0
/// needs at least 8.2 GiB (7.5 GiB without any adapter) of 8.0 GiB".
impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Estimate {
            least_bytes,
            expected_bytes,
            bound_bytes,
            ..
        } = self.estimate;
        let limit = self.limit_bytes;
        let device = &self.device;
        if self.is_certain() {
            let scale = Scale::that_tells_apart(least_bytes, limit);
            // Then no setting of an adapter helps.
            let of_what = if self.fixed_bytes > limit {
                ", for the model and data"
            } else {
                ""
            };
            return write!(
                f,
                "{device} needs at least {} ({} without any adapter{of_what}) of {}",
                scale.write(least_bytes),
                scale.write_small(self.fixed_bytes),
                scale.write_small(limit)
            );
        }
        let scale = Scale::that_tells_apart(bound_bytes, limit);
        write!(
            f,
            "{device} needs {} ({} expected + {} margin) of {}",
            scale.write(bound_bytes),
            scale.write(expected_bytes),
            scale.write_rest(bound_bytes, expected_bytes),
            scale.write_small(limit),
        )
    }
}
