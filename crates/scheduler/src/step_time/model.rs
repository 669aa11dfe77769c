use serde::{Deserialize, Serialize};

use super::Work;

/// Seconds of an iteration as a sum over what is done in it:
///
/// t = c₀ · passes + c₁ · tokens + c₂ · Σ rank · tokens + c₃ · segments, all c ≥ 0.
///
/// c₀ is what a pass costs whatever is in it (launches, reading the backbone's weights): the part
/// that tasks of one group share, and so the reason to group them. c₁ is the backbone's arithmetic,
/// c₂ the adapters', c₃ what each adapter in a batch adds.
///
/// With several pipeline stages, a stage's seconds are meant.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct StepTimeModel {
    /// Seconds a pass: c₀.
    pub pass: f64,
    /// Seconds a token: c₁.
    pub token: f64,
    /// Seconds a token and unit of rank: c₂.
    pub rank_token: f64,
    /// Seconds an adapter in a batch: c₃.
    pub segment: f64,
}

impl StepTimeModel {
    /// Seconds that `work` takes.
    pub fn seconds(&self, work: &Work) -> f64 {
        let products = self.coefficients().into_iter().zip(work.features());
        products
            .map(|(coefficient, feature)| coefficient * feature)
            .sum()
    }

    fn coefficients(&self) -> [f64; 4] {
        [self.pass, self.token, self.rank_token, self.segment]
    }

    pub(super) fn from_coefficients([pass, token, rank_token, segment]: [f64; 4]) -> Self {
        Self {
            pass,
            token,
            rank_token,
            segment,
        }
    }
}
