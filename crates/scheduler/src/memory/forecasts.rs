/// Errors of predictions that were made before the iteration was measured.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Forecasts {
    /// Errors of the fit.
    pub(super) fitted: Errors,
    /// Errors from before there was a fit.
    pub(super) unfitted: Errors,
}

/// Relative errors, added up.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Errors {
    count: u64,
    percentages: f64,
}

impl Errors {
    pub(super) fn add(&mut self, expected_bytes: u64, measured_bytes: u64) {
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
    /// Mean of |expected − measured| / measured over predictions by the fit, in percent of all bytes of the
    /// device as in mLoRA. `None` before the first.
    pub fn mean_absolute_percentage_error(&self) -> Option<f64> {
        self.fitted.mean()
    }

    /// The same over predictions from before there was a fit: by the prior, or scaled from loads that had
    /// run. Where peaks are not reported, the bytes of pools that have grown count as measured.
    pub fn unfitted_percentage_error(&self) -> Option<f64> {
        self.unfitted.mean()
    }

    /// Predictions by the fit that were compared with a measurement.
    pub fn fitted(&self) -> u64 {
        self.fitted.count
    }
}

#[cfg(test)]
mod tests {
    use super::Forecasts;

    #[test]
    fn errors_are_relative_to_what_was_measured() {
        let mut forecasts = Forecasts::default();
        assert_eq!(forecasts.mean_absolute_percentage_error(), None);
        forecasts.fitted.add(110, 100);
        forecasts.fitted.add(180, 200);
        forecasts.fitted.add(5, 0);
        forecasts.unfitted.add(150, 100);
        let mean = forecasts.mean_absolute_percentage_error().unwrap();
        assert!((mean - 10.0).abs() < 1e-12, "{mean}");
        let unfitted = forecasts.unfitted_percentage_error().unwrap();
        assert!((unfitted - 50.0).abs() < 1e-12, "{unfitted}");
        assert_eq!(forecasts.fitted(), 2);
    }
}
