/// How good predictions were that were made before the iteration they were of.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Forecasts {
    fitted: Errors,
    unfitted: Errors,
    bounds: u64,
    under_predictions: u64,
}

/// Relative errors, added up.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Errors {
    count: u64,
    percentages: f64,
}

impl Errors {
    fn add(&mut self, expected_bytes: u64, measured_bytes: u64) {
        if measured_bytes > 0 {
            let error = expected_bytes.abs_diff(measured_bytes) as f64;
            self.percentages += 100.0 * error / measured_bytes as f64;
            self.count += 1;
        }
    }

    fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.percentages / self.count as f64)
    }
}

impl Forecasts {
    /// Counts what the fit expected of an iteration and what was measured.
    pub(super) fn add_expected(&mut self, expected_bytes: u64, measured_bytes: u64) {
        self.fitted.add(expected_bytes, measured_bytes);
    }

    /// Counts what was expected of an iteration while there was no fit, and what was measured.
    pub(super) fn add_unfitted(&mut self, expected_bytes: u64, measured_bytes: u64) {
        self.unfitted.add(expected_bytes, measured_bytes);
    }

    /// Counts a bound and whether it held.
    pub(super) fn add_bound(&mut self, held: bool) {
        self.bounds += 1;
        self.under_predictions += u64::from(!held);
    }

    /// Mean of |expected − measured| / measured, in percent of all bytes of the device as in mLoRA,
    /// over predictions by the fit, each made before its iteration. `None` before the first.
    pub fn mean_absolute_percentage_error(&self) -> Option<f64> {
        self.fitted.mean()
    }

    /// The same over what was expected while there was no fit: by the prior, or scaled up from loads
    /// that had run. Where peaks are not reported, what the pools hold after iterations that made them
    /// grow is what was measured.
    pub fn unfitted_percentage_error(&self) -> Option<f64> {
        self.unfitted.mean()
    }

    /// Predictions by the fit that could be compared with a measurement.
    pub fn fitted(&self) -> u64 {
        self.fitted.count
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
        forecasts.add_unfitted(150, 100);
        let mean = forecasts.mean_absolute_percentage_error().unwrap();
        assert!((mean - 10.0).abs() < 1e-12, "{mean}");
        let unfitted = forecasts.unfitted_percentage_error().unwrap();
        assert!((unfitted - 50.0).abs() < 1e-12, "{unfitted}");
        assert_eq!(forecasts.fitted(), 2);
        forecasts.add_bound(true);
        forecasts.add_bound(false);
        assert_eq!((forecasts.bounds(), forecasts.under_predictions()), (2, 1));
    }
}
