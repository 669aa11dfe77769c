use nalgebra::{DMatrix, DVector, Matrix3, Vector3};

use super::{
    coefficients::{Coefficients, terms},
    proportion,
    window::Row,
};
use crate::{Load, nnls::nnls};

/// How many of the largest error seen the bound is above what is expected.
const DEVIATIONS: f64 = 2.0;

/// The largest error of few measurements is smaller than that of many: with so many, the bound is
/// twice as many deviations above what is expected.
const FEW: f64 = 8.0;

/// No device is taken to be more regular than this, relative to the largest measurement.
const SMALLEST_DEVIATION: f64 = 1e-4;

/// An error of a measurement that decides the fit alone is enlarged at most 1 / this.
const SMALLEST_FREEDOM: f64 = 0.05;

/// b ≥ 0 fitted to measurements, and how far it may be off.
#[derive(Debug, Clone)]
pub(super) struct Regression {
    coefficients: Coefficients,
    /// Largest error of a measurement against the fit to all others.
    deviation: f64,
    /// What `terms` are divided by.
    scales: Vector3<f64>,
    /// Of b in units of `scales`, were errors normal with `deviation` and each coefficient unknown
    /// but for its ceiling: where no measurement tells coefficients apart, it is as wide as that.
    covariance: Matrix3<f64>,
    /// How many deviations above what is expected the bound is.
    deviations: f64,
    /// How far measurements are off because they are in whole pages: half a page.
    rounding: f64,
    /// Measured loads, and their bounds.
    anchors: Vec<(Load, f64)>,
}

impl Regression {
    /// Fits b to the measurements; `None` if there are none. `page_bytes` is 0 unless they are in whole
    /// pages.
    pub(super) fn fit(rows: &[Row], page_bytes: u64) -> Option<Self> {
        let mut scales = Vector3::repeat(1.0_f64);
        for row in rows {
            scales = scales.sup(&Vector3::from(terms(row.load)));
        }
        let scaled = |load| Vector3::from(terms(load)).component_div(&scales);
        let x: Vec<Vector3<f64>> = rows.iter().map(|row| scaled(row.load)).collect();
        let a = DMatrix::from_fn(rows.len(), 3, |row, term| x[row][term]);
        let y = DVector::from_iterator(rows.len(), rows.iter().map(|row| row.bytes));
        let b = nnls(&a, &y)?;
        let [b0, b1, b2] = [b[0], b[1], b[2]];
        let normal: Matrix3<f64> = x.iter().map(|x| x * x.transpose()).sum();
        let largest = y.amax().max(1.0);

        let errors = &y - &a * &b;
        let inverse = (normal + Matrix3::identity() * 1e-9).cholesky()?.inverse();
        let deviation = x
            .iter()
            .zip(&errors)
            .map(|(x, error)| {
                let freedom = 1.0 - x.dot(&(inverse * x));
                error.abs() / freedom.max(SMALLEST_FREEDOM)
            })
            .fold(SMALLEST_DEVIATION * largest, f64::max);

        // b ≥ 0: no term takes more than a measurement that has it.
        let ceilings = Vector3::from_fn(|term, _| {
            let having = x.iter().zip(&y).filter(|(x, _)| x[term] > 0.0);
            let most = having.map(|(x, y)| (y.max(0.0) + deviation) / x[term]);
            most.fold(1e3 * (largest + deviation), f64::min)
        });
        let known = normal / deviation.powi(2);
        let assumed = Matrix3::from_diagonal(&ceilings.map(|most| most.powi(-2)));
        let mut regression = Self {
            coefficients: Coefficients::solved([b0 / scales[0], b1 / scales[1], b2 / scales[2]]),
            deviation,
            scales,
            covariance: (known + assumed).cholesky()?.inverse(),
            deviations: DEVIATIONS * (1.0 + FEW / rows.len() as f64),
            rounding: page_bytes as f64 / 2.0,
            anchors: Vec::new(),
        };
        let loads = rows.iter().map(|row| row.load);
        regression.anchors = loads
            .map(|load| (load, regression.expected(load) + regression.margin(load)))
            .collect();
        Some(regression)
    }

    pub(super) fn coefficients(&self) -> Coefficients {
        self.coefficients
    }

    /// Bytes that `load` is expected to take.
    pub(super) fn expected(&self, load: Load) -> f64 {
        self.coefficients.bytes(load)
    }

    /// Bytes that `load` should not exceed: what is expected and a margin, or less if it is in
    /// proportion to the bound of a load that was measured.
    pub(super) fn bound(&self, load: Load) -> f64 {
        let own = self.expected(load) + self.margin(load);
        let scaled = |&(known, bound): &(Load, f64)| bound * proportion::at_most(load, known);
        self.anchors.iter().map(scaled).fold(own, f64::min)
    }

    fn margin(&self, load: Load) -> f64 {
        let x = Vector3::from(terms(load)).component_div(&self.scales);
        let of_fit = x.dot(&(self.covariance * x)).max(0.0);
        // Rounding to pages is off by half a page and never more, so it is not multiplied.
        let beyond = (self.deviation - self.rounding).max(0.0);
        self.rounding + self.deviations * (beyond.powi(2) + of_fit).sqrt()
    }
}
