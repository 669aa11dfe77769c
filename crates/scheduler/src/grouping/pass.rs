use super::profile::{Prices, Profile};

/// What one group does in an iteration.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pass {
    pub(super) tasks: usize,
    work: f64,
    pub(super) tokens: f64,
}

impl Pass {
    /// With one more task, which gives `share` of its step to each iteration.
    pub(super) fn with(mut self, profile: &Profile, share: f64) -> Self {
        self.tasks += 1;
        self.shed(profile, -share);
        self
    }

    /// Takes `share` of a task's step out of the iteration.
    pub(super) fn shed(&mut self, profile: &Profile, share: f64) {
        self.work -= profile.work * share;
        self.tokens -= profile.tokens * share;
    }

    pub(super) fn seconds(&self, prices: &Prices) -> f64 {
        if self.tasks == 0 {
            return 0.0;
        }
        let model = &prices.model;
        model.pass + model.segment * self.tasks as f64 + self.work
    }
}
