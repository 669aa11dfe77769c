use super::{
    options::ROUNDING,
    profile::{Prices, Profile},
};

/// What one group does in an iteration.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pass {
    pub(super) tasks: usize,
    work: f64,
    pub(super) tokens: f64,
    rows: f64,
    longest: f64,
}

impl Pass {
    /// With one more task, which gives `share` of its step to each iteration.
    pub(super) fn with(mut self, profile: &Profile, share: f64) -> Self {
        self.tasks += 1;
        self.longest = self.longest.max(profile.length);
        self.shed(profile, -share);
        self
    }

    /// Takes `share` of a task's step out of the iteration.
    pub(super) fn shed(&mut self, profile: &Profile, share: f64) {
        self.work -= profile.work * share;
        self.tokens -= profile.tokens * share;
        self.rows -= profile.rows * share;
    }

    pub(super) fn seconds(&self, prices: &Prices) -> f64 {
        if self.tasks == 0 {
            return 0.0;
        }
        let model = &prices.model;
        model.pass + model.segment * self.tasks as f64 + self.work + self.padding(prices)
    }

    /// Whether padding to the longest row costs no more than sharing a pass saves.
    pub(super) fn padding_pays(&self, prices: &Prices) -> bool {
        let saved = prices.model.pass * self.tasks.saturating_sub(1) as f64;
        self.padding(prices) <= saved + ROUNDING * self.seconds(prices)
    }

    fn padding(&self, prices: &Prices) -> f64 {
        prices.model.padding * (self.rows * self.longest - self.tokens).max(0.0)
    }
}
