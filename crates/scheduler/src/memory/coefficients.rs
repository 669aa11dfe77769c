use serde::{Deserialize, Serialize};

use crate::{Load, SchedulerError};

/// b of Mem = b₀ + b₁·ΣBL + b₂·ΣBL² (mLoRA, Eq. 5); each finite and not negative.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Coefficients {
    base: f64,
    per_token: f64,
    per_squared_token: f64,
}

impl Coefficients {
    /// From bytes of any load, bytes per token, and bytes per squared token.
    ///
    /// # Errors
    /// If one is negative, infinite or not a number.
    pub fn new(base: f64, per_token: f64, per_squared_token: f64) -> Result<Self, SchedulerError> {
        for (term, value) in [("b0", base), ("b1", per_token), ("b2", per_squared_token)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(SchedulerError::OutOfRange {
                    option: format!("{term} of the memory model"),
                    given: value.to_string(),
                    wanted: "must be finite and not negative",
                });
            }
        }
        Ok(Self::solved([base, per_token, per_squared_token]))
    }

    /// From the values of a solver, which are finite and not negative.
    pub(super) fn solved([base, per_token, per_squared_token]: [f64; 3]) -> Self {
        Self {
            base,
            per_token,
            per_squared_token,
        }
    }

    /// Bytes of any load, of a token and of a squared token: b₀, b₁ and b₂.
    pub fn values(&self) -> [f64; 3] {
        [self.base, self.per_token, self.per_squared_token]
    }

    /// Bytes of a load, without its adapters.
    pub fn bytes(&self, load: Load) -> f64 {
        let [one, tokens, squared] = terms(load);
        self.base * one + self.per_token * tokens + self.per_squared_token * squared
    }
}

/// The factors of the coefficients.
pub(super) fn terms(load: Load) -> [f64; 3] {
    [1.0, load.tokens as f64, load.squared_tokens as f64]
}

#[cfg(test)]
mod tests {
    use super::Coefficients;
    use crate::Load;

    #[test]
    fn bytes_are_the_papers_equation() {
        let b = Coefficients::new(100.0, 2.0, 0.5).unwrap();
        let load = Load {
            tokens: 10,
            squared_tokens: 40,
            adapter_bytes: 7,
            certain_bytes: 0,
        };
        assert_eq!(b.bytes(load).to_bits(), 140_f64.to_bits());
    }

    #[test]
    fn values_that_are_no_sizes_are_refused() {
        for bad in [-1.0, f64::NAN, f64::INFINITY] {
            for place in 0..3 {
                let mut b = [1.0; 3];
                b[place] = bad;
                let error = Coefficients::new(b[0], b[1], b[2]).unwrap_err();
                let message = error.to_string();
                assert!(message.contains(&format!("b{place}")), "{message}");
                assert!(message.contains(&bad.to_string()), "{message}");
            }
        }
    }
}
