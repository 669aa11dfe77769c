use super::Costs;
use crate::{Budget, Load, Refusal};

/// The memory of a device of the simulation, known to the byte: how a model of it is learned is not
/// what a replay of a trace shows.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceBytes {
    costs: Costs,
}

impl DeviceBytes {
    pub(super) fn of(costs: &Costs) -> Self {
        Self { costs: *costs }
    }

    fn asked(&self, load: Load) -> f64 {
        self.costs.bytes_constant
            + self.costs.bytes_per_token * load.tokens as f64
            + self.costs.bytes_per_squared_token * load.squared_tokens as f64
            + load.adapter_bytes as f64
    }
}

impl Budget for DeviceBytes {
    fn fits(&self, load: Load, _: usize) -> bool {
        self.asked(load) <= self.costs.device_bytes
    }

    fn refusal(&self, load: Load, tasks: usize) -> Refusal {
        let (asked, device) = (self.asked(load), self.costs.device_bytes);
        Refusal {
            reason: format!("{tasks} tasks take {asked:.0} bytes, a device has {device:.0}"),
        }
    }
}
