use super::{
    bytes::{Scale, written},
    estimate::Estimate,
    forecasts::Forecasts,
    learnt::LearntMemory,
    measurement::Measurement,
    model::MemoryModel,
    verdict::{Fit, Shortage},
};
use crate::{Load, SchedulerError};

/// The memory of one device: what it has, what is always there, and what loads take of it.
///
/// Loads are whole: the sum over all tasks that train there at the same time.
#[derive(Debug, Clone)]
pub struct DeviceMemory {
    name: String,
    limit_bytes: u64,
    fixed_bytes: u64,
    adapter_share: f64,
    model: MemoryModel,
}

impl DeviceMemory {
    /// A device of which `limit_bytes` may be used and `fixed_bytes` are, by its part of the backbone
    /// and whatever else does not depend on tasks. `adapter_share` is the part of every adapter that
    /// it holds: 1, or the share of its layers if it is one of several stages.
    ///
    /// # Errors
    /// If `adapter_share` is not between 0 and 1.
    pub fn new(
        name: impl Into<String>,
        limit_bytes: u64,
        fixed_bytes: u64,
        adapter_share: f64,
        model: MemoryModel,
    ) -> Result<Self, SchedulerError> {
        let name = name.into();
        if !(0.0..=1.0).contains(&adapter_share) {
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
        })
    }

    /// Whether `load` fits, by the bound of what it takes. A fit may ask for a
    /// [`probe`](Fit::probe) first.
    ///
    /// # Errors
    /// A [`Shortage`] with the numbers if it does not.
    pub fn fits(&self, load: Load) -> Result<Fit, Shortage> {
        let estimate = self.estimate(load);
        let limit_bytes = self.limit_bytes;
        if estimate.bound_bytes <= limit_bytes {
            return Ok(Fit {
                estimate,
                limit_bytes,
            });
        }
        Err(Shortage {
            device: self.name.clone(),
            estimate,
            limit_bytes,
        })
    }

    /// What `load` is predicted to take.
    pub fn estimate(&self, load: Load) -> Estimate {
        self.model.estimate(load, self.exact_bytes(load))
    }

    /// Learns from an iteration of `load`: its real tokens, not their upper bounds.
    pub fn observe(&mut self, load: Load, measured: Measurement) {
        let exact = self.exact_bytes(load);
        self.model.observe(load, exact, measured);
    }

    /// Learns that memory ran out while `load` trained: neither it nor a larger one fits again.
    pub fn out_of_memory(&mut self, load: Load) {
        let exact = self.exact_bytes(load);
        self.model.out_of_memory(load, exact, self.limit_bytes);
    }

    /// What was learnt of it, for another process.
    pub fn learnt(&self) -> LearntMemory {
        self.model.learnt()
    }

    /// Takes up what another process learnt; see [`MemoryModel::remember`].
    pub fn remember(&mut self, learnt: LearntMemory) -> bool {
        self.model.remember(learnt)
    }

    /// Says what the pools hold now, between iterations; see [`MemoryModel::pools_hold`].
    pub fn pools_hold(&mut self, reserved_bytes: u64) {
        self.model.pools_hold(reserved_bytes);
    }

    /// The numbers behind [`fits`](Self::fits), in a sentence for people.
    pub fn explain(&self, load: Load) -> String {
        let Estimate {
            exact_bytes,
            expected_bytes,
            bound_bytes,
            basis,
            probe,
            ..
        } = self.estimate(load);
        let scale = Scale::that_tells_apart(bound_bytes, self.limit_bytes);
        let b = self.model.coefficients();
        let source = if self.model.is_fitted() {
            format!("fitted to {} measurements", self.model.measurements())
        } else {
            "estimated from the model's shape".to_owned()
        };
        let forecasts = self.forecasts();
        let errors = match forecasts.mean_absolute_percentage_error() {
            Some(percent) => format!("off by {percent:.2} % on average, "),
            None => String::new(),
        };
        let probe = if probe.is_some() {
            "; a smaller step has to be measured first"
        } else {
            ""
        };
        format!(
            "{}: {} fixed + {} adapters + {} for {} tokens = {} expected, {} with the margin ({basis}), \
             of {}; activations are {} + {} a token + {} a squared token, {source}; predictions were \
             {errors}too low {} of {} times{probe}",
            self.name,
            scale.write(self.fixed_bytes),
            scale.write_rest(exact_bytes, self.fixed_bytes),
            scale.write_rest(expected_bytes, exact_bytes),
            load.tokens,
            scale.write(expected_bytes),
            scale.write(bound_bytes),
            scale.write(self.limit_bytes),
            written(b.base()),
            written(b.per_token()),
            written(b.per_squared_token()),
            forecasts.under_predictions(),
            forecasts.bounds(),
        )
    }

    /// Bytes that are known and not predicted: what is fixed, and this device's part of adapters with
    /// their gradients and moments.
    pub fn exact_bytes(&self, load: Load) -> u64 {
        let adapters = (load.adapter_bytes as f64 * self.adapter_share).ceil();
        self.fixed_bytes.saturating_add(adapters as u64)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes that may be used.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// What was learned.
    pub fn model(&self) -> &MemoryModel {
        &self.model
    }

    /// How good predictions have been until now.
    pub fn forecasts(&self) -> &Forecasts {
        self.model.forecasts()
    }
}
