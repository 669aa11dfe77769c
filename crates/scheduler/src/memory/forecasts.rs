/// How good predictions were that were made before the iteration they were of.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Forecasts {
    fitted: u64,
    percentage_errors: f64,
    bounds: u64,
    under_predictions: u64,
}

impl Forecasts {
    /// Counts what the fit expected of an iteration and what was measured.
    pub(super) fn add_expected(&mut self, expected_bytes: u64, measured_bytes: u64) {
        if measured_bytes > 0 {
            let error = expected_bytes.abs_diff(measured_bytes) as f64;
            self.percentage_errors += 100.0 * error / measured_bytes as f64;
            self.fitted += 1;
        }
    }

    /// Counts a bound and whether it held.
    pub(super) fn add_bound(&mut self, held: bool) {
        self.bounds += 1;
        self.under_predictions += u64::from(!held);
    }

    /// Mean of |expected − measured| / measured, in percent of all bytes of the device as in mLoRA,
    /// over predictions by the fit, each made before its iteration. `None` before the first.
    pub fn mean_absolute_percentage_error(&self) -> Option<f64> {
        (self.fitted > 0).then(|| self.percentage_errors / self.fitted as f64)
    }

    /// Predictions by the fit that could be compared with a measurement.
    pub fn fitted(&self) -> u64 {
        self.fitted
    }

    /// Bounds that could be compared with a measurement, those of the prior included.
    pub fn bounds(&self) -> u64 {
        self.bounds
    }

    /// Bounds that were too low: less than was measured, or met when memory ran out.
    pub fn under_predictions(&self) -> u64 {
        self.under_predictions
    }
}

#[cfg(test)]
mod tests {
    use super::Forecasts;

    #[test]
    fn errors_are_relative_to_what_was_measured() {
        let mut forecasts = Forecasts::default();
        assert_eq!(forecasts.mean_absolute_percentage_error(), None);
        forecasts.add_expected(110, 100);
        forecasts.add_expected(180, 200);
        forecasts.add_expected(5, 0);
        let mean = forecasts.mean_absolute_percentage_error().unwrap();
        assert!((mean - 10.0).abs() < 1e-12, "{mean}");
        forecasts.add_bound(true);
        forecasts.add_bound(false);
        assert_eq!((forecasts.bounds(), forecasts.under_predictions()), (2, 1));
    }
}
