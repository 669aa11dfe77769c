use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};

use super::{Coefficients, Forecasts, coefficients::terms};
use crate::{Load, nnls::nnls, step_time::identified};

/// Measurements that are kept; the oldest goes.
const CAPACITY: usize = 128;
/// Measurements without which there is no fit.
const ENOUGH: usize = 20;
/// Margin of the prior, which nothing was measured for.
const PRIOR_MARGIN: f64 = 0.25;
/// Margin of a load in proportion to one that ran.
const PROPORTION_MARGIN: f64 = 0.05;
/// How far measurements may err while nothing is known of their errors, relative to all bytes.
const UNKNOWN_ERROR: f64 = 0.01;
/// Margin of the fit, in largest residuals; of few measurements the largest is smaller than of many.
const RESIDUALS: f64 = 2.5;
const FEW: f64 = 8.0;
/// No device is more regular than this, relative to the largest measurement.
const SMALLEST_RESIDUAL: f64 = 1e-4;
/// The fit bounds loads up to so many times the largest that it was made from.
const REACH: f64 = 1.5;

/// What was read off a device after an iteration. Both numbers are of the whole device, backbone and
/// adapters included; give what the device can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measurement {
    /// Largest number of bytes in use at any moment of this iteration.
    pub peak_in_use_bytes: Option<u64>,
    /// Bytes that the device's pools hold. They give nothing back, so this is the high-water mark of all
    /// iterations until now: it says what a load needs only if the load made them grow.
    pub reserved_bytes: Option<u64>,
}

/// What a load is predicted to take of a device; bytes in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// Known and not predicted: backbone, adapters, gradients, moments.
    pub exact_bytes: u64,
    /// What it takes for certain: what is known, or what was not enough for a load no larger, or its share
    /// of what was not enough for a larger one.
    pub least_bytes: u64,
    /// What is expected.
    pub expected_bytes: u64,
    /// What it should not exceed; admission goes by this. Never below `expected_bytes`.
    pub bound_bytes: u64,
}

/// What a load took, or what was not enough for it, beside the exact bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Row {
    load: Load,
    bytes: f64,
}

/// What loads were seen to take of a device, for a process that goes on with the run. What pools hold is
/// not in it: those of another process are its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearntMemory {
    /// Of the model and the device that it was learnt of.
    prior: Coefficients,
    page_bytes: u64,
    measured: Vec<Row>,
    ran_out: Vec<Row>,
}

/// Learns what loads take of one device, beside what is known exactly.
#[derive(Debug, Clone)]
pub struct MemoryModel {
    prior: Coefficients,
    page_bytes: u64,
    measured: Vec<Row>,
    fit: Option<Fit>,
    /// None is forgotten, unless another says more.
    ran_out: Vec<Row>,
    /// Loads with their exact bytes that the pools had room for as they are.
    held: Vec<(Load, u64)>,
    /// Bytes that the pools hold.
    pools: Option<u64>,
    forecasts: Forecasts,
}

#[derive(Debug, Clone, Copy)]
struct Fit {
    coefficients: Coefficients,
    margin: f64,
    /// The largest load that it bounds; `None` where measurements do not tell coefficients apart.
    reach: Option<Load>,
}

impl MemoryModel {
    /// Knows nothing but what the model's shape suggests: `prior` should rather be too high. `page_bytes`
    /// is the largest page that the device reserves at a time.
    pub fn new(prior: Coefficients, page_bytes: u64) -> Self {
        Self {
            prior,
            page_bytes,
            measured: Vec::new(),
            fit: None,
            ran_out: Vec::new(),
            held: Vec::new(),
            pools: None,
            forecasts: Forecasts::default(),
        }
    }

    /// Says what the pools hold now, between iterations. An iteration that makes them hold more then
    /// needs what they hold.
    pub fn pools_hold(&mut self, reserved_bytes: u64) {
        self.pools = Some(reserved_bytes);
        self.held.clear();
    }

    /// Learns from an iteration of `load`: its real tokens, not an upper bound. `exact_bytes` is what is
    /// known of `measured`.
    pub fn observe(&mut self, load: Load, exact_bytes: u64, measured: Measurement) {
        let forecast = self.estimate(load, exact_bytes);
        let grown = measured.reserved_bytes.filter(|&reserved| {
            let before = self.pools.replace(reserved);
            before.is_some_and(|before| reserved > before)
        });
        if measured.reserved_bytes.is_some() {
            self.held.push((load, exact_bytes));
            self.held.drain(..self.held.len().saturating_sub(CAPACITY));
        }
        let Some(bytes) = measured.peak_in_use_bytes.or(grown) else {
            return;
        };
        self.forecasts.add_bound(bytes <= forecast.bound_bytes);
        if self.fit.is_some() {
            self.forecasts.add_expected(forecast.expected_bytes, bytes);
        } else {
            self.forecasts.add_unfitted(forecast.expected_bytes, bytes);
        }
        let bytes = bytes as f64 - exact_bytes as f64;
        self.measured.push(Row { load, bytes });
        self.measured
            .drain(..self.measured.len().saturating_sub(CAPACITY));
        self.fit = fit(&self.measured);
    }

    /// Learns that `load` did not fit into `limit_bytes`: neither it nor a larger one is predicted to fit
    /// there again.
    pub fn out_of_memory(&mut self, load: Load, exact_bytes: u64, limit_bytes: u64) {
        if self.estimate(load, exact_bytes).bound_bytes <= limit_bytes {
            self.forecasts.add_bound(false);
        }
        let new = Row {
            load,
            bytes: limit_bytes.saturating_sub(exact_bytes) as f64,
        };
        let implies = |one: &Row, other: &Row| {
            one.load.tokens <= other.load.tokens
                && one.load.squared_tokens <= other.load.squared_tokens
                && one.bytes >= other.bytes
        };
        if !self.ran_out.iter().any(|known| implies(known, &new)) {
            self.ran_out.retain(|known| !implies(&new, known));
            self.ran_out.push(new);
        }
        self.held.clear();
    }

    /// What `load` is predicted to take, `exact_bytes` of it known.
    pub fn estimate(&self, load: Load, exact_bytes: u64) -> Estimate {
        let total = |beside: f64| exact_bytes.saturating_add(beside.max(0.0).ceil() as u64);
        let least = self
            .ran_out
            .iter()
            .map(|row| {
                let share = at_least(load, row.load);
                row.bytes * share + if share < 1.0 { 0.0 } else { 1.0 }
            })
            .fold(0.0, f64::max);
        let (expected, bound) = match &self.fit {
            Some(fit) => (fit.coefficients.bytes(load), fit.bound(load)),
            None => self.unfitted(load),
        };
        // b ≥ 0: with at most c times the tokens and squared tokens, a load takes at most c times the bytes.
        let proportion = self
            .measured
            .iter()
            .map(|row| row.bytes.max(0.0) * at_most(load, row.load))
            .filter(|bytes| bytes.is_finite())
            .min_by(f64::total_cmp)
            .map(|bytes| {
                let error = self
                    .fit
                    .map_or(UNKNOWN_ERROR * (exact_bytes as f64 + bytes), |fit| {
                        fit.margin
                    });
                bytes * (1.0 + PROPORTION_MARGIN) + error
            });
        let bound = match (bound, proportion) {
            (Some(bound), Some(proportion)) => bound.min(proportion),
            (bound, proportion) => bound.or(proportion).unwrap_or(f64::INFINITY),
        };
        let least_bytes = total(least);
        let expected_bytes = total(expected).max(least_bytes);
        let margin = (bound - expected).max(0.0);
        let mut bound_bytes = total(bound)
            .max(least_bytes.saturating_add(margin as u64))
            .saturating_add(self.page_bytes);
        // The pools have held this much, and more.
        if let Some(pools) = self.pools
            && self.held.iter().any(|&(held, exact)| {
                exact_bytes <= exact
                    && load.tokens <= held.tokens
                    && load.squared_tokens <= held.squared_tokens
            })
        {
            bound_bytes = bound_bytes.min(pools.max(exact_bytes).saturating_add(self.page_bytes));
        }
        Estimate {
            exact_bytes,
            least_bytes,
            expected_bytes: expected_bytes.min(bound_bytes),
            bound_bytes,
        }
    }

    /// The prior, in proportion to what was measured; once something was, that bounds it.
    fn unfitted(&self, load: Load) -> (f64, Option<f64>) {
        let by_prior = self.prior.bytes(load);
        let measured: f64 = self.measured.iter().map(|row| row.bytes.max(0.0)).sum();
        let predicted: f64 = self
            .measured
            .iter()
            .map(|row| self.prior.bytes(row.load))
            .sum();
        let ratio = measured / predicted;
        let expected = if ratio.is_finite() {
            by_prior * ratio
        } else {
            by_prior
        };
        let bound = by_prior * (1.0 + PRIOR_MARGIN);
        (expected, self.measured.is_empty().then_some(bound))
    }

    /// Everything learnt, for another process.
    pub fn learnt(&self) -> LearntMemory {
        LearntMemory {
            prior: self.prior,
            page_bytes: self.page_bytes,
            measured: self.measured.clone(),
            ran_out: self.ran_out.clone(),
        }
    }

    /// Takes up what another process learnt, if that was of the same model, layers and pages; whether it
    /// was.
    pub fn remember(&mut self, learnt: LearntMemory) -> bool {
        let same = learnt.prior == self.prior && learnt.page_bytes == self.page_bytes;
        if same {
            self.measured = learnt.measured;
            self.ran_out = learnt.ran_out;
            self.fit = fit(&self.measured);
        }
        same
    }

    /// b of the fit, or of the prior while there is none.
    pub fn coefficients(&self) -> Coefficients {
        self.fit.map_or(self.prior, |fit| fit.coefficients)
    }

    /// Whether there are measurements enough for a fit.
    pub fn is_fitted(&self) -> bool {
        self.fit.is_some()
    }

    /// Measurements that the fit is made of, or will be.
    pub fn measurements(&self) -> usize {
        self.measured.len()
    }

    /// How good predictions have been until now.
    pub fn forecasts(&self) -> &Forecasts {
        &self.forecasts
    }
}

impl Fit {
    fn bound(&self, load: Load) -> Option<f64> {
        let within = self.reach.is_some_and(|reach| {
            reach.covers(Load {
                adapter_bytes: 0,
                ..load
            })
        });
        within.then(|| self.coefficients.bytes(load) + self.margin)
    }
}

fn fit(rows: &[Row]) -> Option<Fit> {
    if rows.len() < ENOUGH {
        return None;
    }
    let mut a = DMatrix::from_fn(rows.len(), 3, |row, term| terms(rows[row].load)[term]);
    let y = DVector::from_iterator(rows.len(), rows.iter().map(|row| row.bytes));
    let b = nnls(&a, &y)?;
    let largest = (&y - &a * &b).amax().max(SMALLEST_RESIDUAL * y.amax());
    for mut column in a.column_iter_mut() {
        let norm = column.norm();
        if norm > 0.0 {
            column /= norm;
        }
    }
    let most = |of: fn(&Load) -> u64| {
        let most = rows.iter().map(|row| of(&row.load)).max().unwrap_or(0);
        (most as f64 * REACH) as u64
    };
    let told_apart = identified(&a, &[1, 2, 0]).len() == 3;
    Some(Fit {
        coefficients: Coefficients::solved([b[0], b[1], b[2]]),
        margin: largest * RESIDUALS * (1.0 + FEW / rows.len() as f64),
        reach: told_apart.then(|| Load {
            tokens: most(|load| load.tokens),
            squared_tokens: most(|load| load.squared_tokens),
            adapter_bytes: 0,
        }),
    })
}

/// The least c ≥ 1 such that `load` has at most c times the tokens and squared tokens of `known`.
fn at_most(load: Load, known: Load) -> f64 {
    let [tokens, squared] = ratios(load, known);
    // 0 of 0 is NaN, which `max` and `min` pass over.
    1.0_f64.max(tokens).max(squared)
}

/// The largest c ≤ 1 such that `load` has at least c times the tokens and squared tokens of `known`.
fn at_least(load: Load, known: Load) -> f64 {
    let [tokens, squared] = ratios(load, known);
    1.0_f64.min(tokens).min(squared)
}

fn ratios(load: Load, known: Load) -> [f64; 2] {
    [
        load.tokens as f64 / known.tokens as f64,
        load.squared_tokens as f64 / known.squared_tokens as f64,
    ]
}
