use nalgebra::{DMatrix, DVector};
use serde::{Deserialize, Serialize};

use super::{Coefficients, Forecasts, coefficients::terms};
use crate::{
    Load,
    least_squares::{identified, nnls},
};

/// Measurements that are kept; the oldest is dropped.
const CAPACITY: usize = 128;
/// Measurements that a fit needs.
const ENOUGH: usize = 20;
/// Margin of the prior, before any measurement.
const PRIOR_MARGIN: f64 = 0.25;
/// Margin of a load in proportion to one that ran.
const PROPORTION_MARGIN: f64 = 0.05;
/// Assumed error of measurements before there is a fit, relative to all bytes.
const UNKNOWN_ERROR: f64 = 0.01;
/// Margin of the fit, in largest residuals. With few measurements the largest residual is too small, so the
/// margin has the factor 1 + `FEW` / measurements.
const RESIDUALS: f64 = 2.5;
const FEW: f64 = 8.0;
/// Least residual that is assumed, relative to the largest measurement.
const SMALLEST_RESIDUAL: f64 = 1e-4;
/// The fit bounds loads up to this multiple of the largest that it was made from.
const REACH: f64 = 1.5;

/// The memory of a whole device after an iteration, backbone and adapters included, as far as the device
/// reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measurement {
    /// Largest number of bytes in use at any moment of this iteration.
    pub peak_in_use_bytes: Option<u64>,
    /// Bytes that the device's pools hold. Pools give nothing back, so this is the high-water mark of all
    /// iterations until now: it measures a load only if the load made them grow.
    pub reserved_bytes: Option<u64>,
}

/// Predicted bytes of a load on a device, in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// Known and not predicted: backbone, adapters, gradients, moments.
    pub exact_bytes: u64,
    /// Bytes that it takes for certain: the known ones and the certain ones of the load, those that were too few
    /// for a load no larger, or the load's share of those that were too few for a larger one.
    pub least_bytes: u64,
    /// Expected bytes.
    pub expected_bytes: u64,
    /// Bytes that it should not exceed, for admission; at least `expected_bytes`.
    pub bound_bytes: u64,
}

impl Estimate {
    /// The same, where so many bytes are certain.
    pub(super) fn of_at_least(self, certain_bytes: u64) -> Self {
        Self {
            least_bytes: self.least_bytes.max(certain_bytes),
            expected_bytes: self.expected_bytes.max(certain_bytes),
            bound_bytes: self.bound_bytes.max(certain_bytes),
            ..self
        }
    }
}

/// Bytes that a load took, or that were too few for it, beside the exact bytes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Row {
    load: Load,
    bytes: f64,
}

/// Measurements of a device, for a process that goes on with the run. The bytes of pools are left out: each
/// process has its own pools.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LearntMemory {
    /// Prior and page size identify the model and the device.
    prior: Coefficients,
    page_bytes: u64,
    measured: Vec<Row>,
    ran_out: Vec<Row>,
}

/// Learns the bytes that loads take of one device, beside the exact ones.
#[derive(Debug, Clone)]
pub struct MemoryModel {
    prior: Coefficients,
    page_bytes: u64,
    measured: Vec<Row>,
    fit: Option<Fit>,
    /// Loads that ran out of memory; one is dropped only if another implies it.
    ran_out: Vec<Row>,
    /// Loads, with their exact bytes, that fit into the pools as they are.
    held: Vec<(Load, u64)>,
    /// Bytes that the pools hold.
    pools: Option<u64>,
    forecasts: Forecasts,
}

#[derive(Debug, Clone, Copy)]
struct Fit {
    coefficients: Coefficients,
    margin: f64,
    /// The largest load that it bounds; `None` if the measurements do not tell coefficients apart.
    reach: Option<Load>,
}

impl MemoryModel {
    /// A model without measurements. `prior` follows from the shape of the LLM and should rather be too high;
    /// `page_bytes` is the largest page that the device reserves at a time.
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

    /// Sets the bytes that the pools hold now, between iterations. If an iteration makes them grow, it needs
    /// what they hold then.
    pub fn pools_hold(&mut self, reserved_bytes: u64) {
        self.pools = Some(reserved_bytes);
        self.held.clear();
    }

    /// Learns from an iteration; `load` has its real tokens, not an upper bound. `exact_bytes` is the known
    /// part of `measured`.
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
        let errors = match self.fit {
            Some(_) => &mut self.forecasts.fitted,
            None => &mut self.forecasts.unfitted,
        };
        errors.add(forecast.expected_bytes, bytes);
        let bytes = bytes as f64 - exact_bytes as f64;
        self.measured.push(Row { load, bytes });
        self.measured
            .drain(..self.measured.len().saturating_sub(CAPACITY));
        self.fit = fit(&self.measured);
    }

    /// Learns that `load` did not fit into `limit_bytes`: neither it nor a larger load is predicted to fit
    /// there again.
    pub fn out_of_memory(&mut self, load: Load, exact_bytes: u64, limit_bytes: u64) {
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

    /// The prediction for `load`; `exact_bytes` of it are known.
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
            .fold(f64::INFINITY, f64::min);
        let proportion = proportion.is_finite().then(|| {
            let error = match self.fit {
                Some(fit) => fit.margin,
                None => UNKNOWN_ERROR * (exact_bytes as f64 + proportion),
            };
            proportion * (1.0 + PROPORTION_MARGIN) + error
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
        // The pools had room for a larger load.
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

    /// Expected bytes by the prior, scaled to the measurements, and a bound while there are none.
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

    /// Restores what another process learnt, if it was of the same model, layers and pages. Returns whether
    /// it was.
    pub fn remember(&mut self, learnt: LearntMemory) -> bool {
        let same = learnt.prior == self.prior && learnt.page_bytes == self.page_bytes;
        if same {
            self.measured = learnt.measured;
            self.ran_out = learnt.ran_out;
            self.fit = fit(&self.measured);
        }
        same
    }

    /// Coefficients of the fit, or the prior while there is none.
    pub fn coefficients(&self) -> Coefficients {
        self.fit.map_or(self.prior, |fit| fit.coefficients)
    }

    /// True if there are measurements enough for a fit.
    pub fn is_fitted(&self) -> bool {
        self.fit.is_some()
    }

    /// Measurements that are kept.
    pub fn measurements(&self) -> usize {
        self.measured.len()
    }

    /// Errors of past predictions.
    pub fn forecasts(&self) -> &Forecasts {
        &self.forecasts
    }
}

impl Fit {
    fn bound(&self, load: Load) -> Option<f64> {
        let within = self.reach.is_some_and(|reach| {
            reach.covers(Load {
                adapter_bytes: 0,
                certain_bytes: 0,
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
            certain_bytes: 0,
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
