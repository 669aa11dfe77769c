use super::profile::Prices;
use crate::{SchedulerError, StepTimeModel};

/// Options of a [`GroupedRoom`](crate::GroupedRoom).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupingOptions {
    /// Largest slowdown of a task by its neighbours, compared with having its share of the devices to
    /// itself; at least 1, infinite for no bound.
    pub max_slowdown: f64,
    /// True if a task that is put back into its group needs only memory there: it then keeps its place even
    /// where the bound on slowdown would refuse a new task, and steps are spread as far as that lowers the
    /// largest slowdown.
    pub keep_places: bool,
}

impl Default for GroupingOptions {
    fn default() -> Self {
        Self {
            max_slowdown: 1.2,
            keep_places: false,
        }
    }
}

impl GroupingOptions {
    pub(super) fn checked(self) -> Result<Self, SchedulerError> {
        if self.max_slowdown.is_nan() || self.max_slowdown < 1.0 {
            return Err(SchedulerError::OutOfRange {
                option: "max_slowdown".to_owned(),
                given: self.max_slowdown.to_string(),
                wanted: "the slowdown of a task alone is 1",
            });
        }
        Ok(self)
    }
}

/// Rounding errors of sums.
pub(super) const ROUNDING: f64 = 1e-9;

/// Least predicted gain in tokens a second, as a fraction, for which tasks are moved between groups.
pub(super) const MIN_GAIN: f64 = 0.05;

/// The options, with the prices they are applied with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) prices: Prices,
    pub(super) max_slowdown: f64,
    /// True if groups are those of one pipeline, rather than of a device each.
    pub(super) pipeline: bool,
}

impl Rules {
    pub(super) fn new(
        options: &GroupingOptions,
        pipeline: bool,
        model: Option<StepTimeModel>,
    ) -> Self {
        Self {
            prices: Prices::new(model),
            max_slowdown: options.max_slowdown,
            pipeline,
        }
    }

    /// True if slowdown and throughput count: only if they are known.
    pub(super) fn bounded(&self) -> bool {
        self.prices.known
    }
}
