use super::{
    coefficients::Coefficients,
    estimate::{Basis, Estimate, Probe},
    failures::Failures,
    forecasts::Forecasts,
    learnt::LearntMemory,
    measurement::Measurement,
    pools::Pools,
    regression::Regression,
    runs::Runs,
    unfitted,
    window::{Row, Window},
};
use crate::Load;

/// Measurements without which there is no fit: with five, one load in three took more than the
/// largest error of the fit allowed for.
const ENOUGH: usize = 20;

/// Loads up to so many times the largest measured are predicted; beyond, a smaller step comes first.
const REACH: f64 = 1.5;

/// Learns what loads take of one device, beside what is known exactly.
#[derive(Debug, Clone)]
pub struct MemoryModel {
    prior: Coefficients,
    page_bytes: u64,
    window: Window,
    regression: Option<Regression>,
    runs: Runs,
    failures: Failures,
    pools: Pools,
    reach: Option<Load>,
    peaks: bool,
    forecasts: Forecasts,
}

impl MemoryModel {
    /// Knows nothing but what the model's shape suggests: `prior` should rather be too high, and have 0
    /// only where nothing at all is known of a coefficient. `page_bytes` is the largest page that the
    /// device's pools reserve, or 0 if they reserve what is asked for.
    pub fn new(prior: Coefficients, page_bytes: u64) -> Self {
        Self {
            prior,
            page_bytes,
            window: Window::default(),
            regression: None,
            runs: Runs::default(),
            failures: Failures::default(),
            pools: Pools::default(),
            reach: None,
            peaks: false,
            forecasts: Forecasts::default(),
        }
    }

    /// Says what the pools hold now, between iterations: after weights were loaded, or after they were
    /// emptied. An iteration that makes them hold more then has needed what they hold.
    pub fn pools_hold(&mut self, reserved_bytes: u64) {
        self.pools.hold(reserved_bytes);
    }

    /// Learns from an iteration. `load` is what really ran, not an upper bound on it; `exact_bytes` is
    /// what is known of `measured`. Takes well below a millisecond: no more than 128 measurements are
    /// fitted.
    ///
    /// Peaks are fitted as they are. Where they are never reported, the fit is to what the pools hold
    /// after iterations that made them grow.
    pub fn observe(&mut self, load: Load, exact_bytes: u64, measured: Measurement) {
        let forecast = self.estimate(load, exact_bytes);
        let mut exact_measurement = None;
        let mut most_measured = None;
        if let Some(peak) = measured.peak_in_use_bytes {
            if !self.peaks {
                // What pools hold is another quantity; the two make no common fit.
                self.window.clear();
                self.regression = None;
                self.peaks = true;
            }
            self.pools.peak(peak);
            exact_measurement = Some(peak);
            most_measured = Some(peak);
        }
        if let Some(reserved) = measured.reserved_bytes {
            if let Some(before) = self.pools.grow(reserved) {
                most_measured = most_measured.max(Some(reserved));
                match self.runs.enough_for_larger(load, exact_bytes) {
                    // The pools held what had been enough for a larger load: this is not what the
                    // load needs by itself.
                    Some(enough) if before >= enough => self.pools.fragmented(reserved - enough),
                    _ if !self.peaks => exact_measurement = Some(reserved),
                    _ => {}
                }
            }
            self.runs.insert(load, exact_bytes, reserved);
        }
        if let Some(bytes) = most_measured {
            self.forecasts.add_bound(bytes <= forecast.bound_bytes);
            if self.regression.is_none() {
                let expected = forecast.expected_bytes;
                self.forecasts.add_unfitted(expected, bytes);
            }
        }
        if measured != Measurement::default() {
            let reach = self.reach.get_or_insert_default();
            reach.tokens = reach.tokens.max(load.tokens);
            reach.squared_tokens = reach.squared_tokens.max(load.squared_tokens);
        }
        if let Some(bytes) = exact_measurement {
            if let Some(regression) = &self.regression {
                let expected = in_all(exact_bytes, regression.expected(load));
                self.forecasts.add_expected(expected, bytes);
            }
            let bytes = bytes as f64 - exact_bytes as f64;
            self.window.push(Row { load, bytes });
            self.fit();
        }
    }

    fn fit(&mut self) {
        let rows = self.window.rows();
        let page_bytes = if self.peaks { 0 } else { self.page_bytes };
        self.regression = (rows.len() >= ENOUGH)
            .then(|| Regression::fit(rows, page_bytes))
            .flatten();
    }

    /// What was learnt, for another process.
    pub fn learnt(&self) -> LearntMemory {
        LearntMemory {
            prior: self.prior,
            page_bytes: self.page_bytes,
            window: self.window.clone(),
            failures: self.failures.clone(),
            reach: self.reach,
            peaks: self.peaks,
        }
    }

    /// Takes up what another process learnt in place of what was learnt here; whether that was of the
    /// same model, layers and pages. If not, it says nothing of these and is left.
    pub fn remember(&mut self, learnt: LearntMemory) -> bool {
        let same = learnt.prior == self.prior && learnt.page_bytes == self.page_bytes;
        if same {
            self.window = learnt.window;
            self.failures = learnt.failures;
            self.reach = learnt.reach;
            self.peaks = learnt.peaks;
            self.fit();
        }
        same
    }

    /// Learns that `load` did not fit into `limit_bytes`: neither it nor a larger one is predicted to
    /// fit there again, and loads somewhat smaller are predicted to take more than they were.
    pub fn out_of_memory(&mut self, load: Load, exact_bytes: u64, limit_bytes: u64) {
        let estimate = self.estimate(load, exact_bytes);
        if estimate.bound_bytes <= limit_bytes {
            self.forecasts.add_bound(false);
        }
        let expected = estimate.expected_bytes - exact_bytes;
        let too_few = limit_bytes.saturating_sub(exact_bytes);
        self.failures.insert(load, expected, too_few);
    }

    /// What `load` is predicted to take, `exact_bytes` of it known. At most 1.5 times the largest
    /// tokens and squared tokens measured are predicted without asking for a [`Probe`].
    pub fn estimate(&self, load: Load, exact_bytes: u64) -> Estimate {
        let (beside, bound, mut basis) = if let Some(fit) = &self.regression {
            (fit.expected(load), fit.bound(load), Basis::Fitted)
        } else {
            let rows = self.window.rows();
            let unfitted = unfitted::predict(self.prior, rows, &self.runs, load, exact_bytes);
            (unfitted.expected, unfitted.bound, unfitted.basis)
        };
        let mut bound_bytes =
            in_all(exact_bytes, bound).saturating_add(self.pools.overhead_bytes());
        if self.regression.is_none() || self.peaks {
            // What pools are seen to hold is in whole pages, and so is a fit to it.
            bound_bytes = bound_bytes.saturating_add(self.page_bytes);
        }
        if let Some(enough) = self.runs.enough_for(load, exact_bytes) {
            let enough = self.pools.enough_again(enough).max(exact_bytes);
            if enough < bound_bytes {
                (bound_bytes, basis) = (enough, Basis::Ran);
            }
        }
        let mut expected_bytes = in_all(exact_bytes, beside).min(bound_bytes);
        let least = self.failures.least_bytes(load).unwrap_or(0.0);
        let least_bytes = in_all(exact_bytes, least);
        if least_bytes > expected_bytes {
            let margin = bound_bytes - expected_bytes;
            (expected_bytes, bound_bytes) = (least_bytes, least_bytes.saturating_add(margin));
            basis = Basis::RanOut;
        }
        let likely = self.failures.likely_bytes(load).unwrap_or(0.0);
        let likely_bytes = in_all(exact_bytes, likely);
        if likely_bytes > bound_bytes {
            (bound_bytes, basis) = (likely_bytes, Basis::RanOut);
        }
        Estimate {
            exact_bytes,
            least_bytes,
            expected_bytes,
            bound_bytes,
            basis,
            probe: self.probe(load),
        }
    }

    /// b of the fit, or of the prior while there is none.
    pub fn coefficients(&self) -> Coefficients {
        let fitted = self.regression.as_ref().map(Regression::coefficients);
        fitted.unwrap_or(self.prior)
    }

    /// Whether there are measurements enough for a fit.
    pub fn is_fitted(&self) -> bool {
        self.regression.is_some()
    }

    /// Measurements that the fit is made of, or will be.
    pub fn measurements(&self) -> usize {
        self.window.rows().len()
    }

    /// How good predictions have been until now.
    pub fn forecasts(&self) -> &Forecasts {
        &self.forecasts
    }

    /// The largest step that is predicted, if `load` is beyond it.
    fn probe(&self, load: Load) -> Option<Probe> {
        let reach = self.reach.unwrap_or_default();
        let probe = Probe {
            tokens: (reach.tokens as f64 * REACH) as u64,
            squared_tokens: (reach.squared_tokens as f64 * REACH) as u64,
        };
        let beyond = load.tokens > probe.tokens || load.squared_tokens > probe.squared_tokens;
        (self.reach.is_none() || beyond).then_some(probe)
    }
}

/// The sum, rounded up; huge if it is no number.
fn in_all(exact_bytes: u64, beside: f64) -> u64 {
    let beside = if beside.is_nan() {
        f64::INFINITY
    } else {
        beside
    };
    exact_bytes.saturating_add(beside.max(0.0).ceil() as u64)
}
