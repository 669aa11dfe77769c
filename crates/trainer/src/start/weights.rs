//! Start values from the frozen weight of a module.

use super::{
    random::normal,
    svd::{Matrix, Svd, dot, orthonormal, svd_lowrank},
};

/// Error of a component, relative to the first singular value, up to which it is the weight's.
pub(super) const EXACT: f64 = 1e-9;

/// Iterations after which components are taken as they are.
const MOST_ITERATIONS: usize = 1024;

/// PEFT's `pissa_init` of a weight `[d_in, d_out]`, for rank r and a scale: rows of A and of B. The components are the
/// weight's first, or those that so many iterations from random numbers find.
pub(crate) fn pissa(
    weight: &[f32],
    d_out: usize,
    (r, scale): (usize, f64),
    iterations: Option<usize>,
    seed: u32,
) -> [Vec<f32>; 2] {
    let matrix = matrix(weight, d_out);
    let random = |count| normal(seed, count, false);
    let svd = match iterations {
        Some(iterations) => svd_lowrank(&matrix, r, iterations, random),
        None => first_components(&matrix, r, random),
    };
    let values = &svd.values[..r.min(svd.values.len())];
    [&svd.left, &svd.right].map(|of| {
        let mut rows = sized(of, values, |value| (value / scale).sqrt());
        // A weight of a lower rank has no more components.
        rows.resize(r * of.columns, 0.0);
        rows
    })
}

/// The first vectors, one for each value, times a function of it.
pub(super) fn sized(rows: &Matrix, values: &[f64], size: impl Fn(f64) -> f64) -> Vec<f32> {
    let rows = rows.rows().zip(values).flat_map(|(row, &value)| {
        let size = size(value);
        row.iter().map(move |one| (one * size) as f32)
    });
    rows.collect()
}

/// The first r components, as exact as double precision has them if they are apart from the others.
pub(super) fn first_components(
    matrix: &Matrix,
    r: usize,
    random: impl Fn(usize) -> Vec<f64>,
) -> Svd {
    let most = 2 * r + 8;
    let mut iterations = 8;
    loop {
        let svd = svd_lowrank(matrix, most, iterations, &random);
        if iterations >= MOST_ITERATIONS || error(matrix, &svd, r) <= EXACT {
            return svd;
        }
        iterations *= 4;
    }
}

/// The largest length of `W v - s u` over `s₁`, and of `Wᵀ u - s v`.
fn error(matrix: &Matrix, svd: &Svd, r: usize) -> f64 {
    let tensor = matrix.tensor();
    let across = tensor.clone().transpose();
    let mut largest = 0f64;
    for (from, product, onto) in [
        (&svd.left, &tensor, &svd.right),
        (&svd.right, &across, &svd.left),
    ] {
        let images = from.times(product);
        let rows = images.rows().zip(onto.rows()).zip(&svd.values).take(r);
        for ((image, row), value) in rows {
            let pairs = image.iter().zip(row);
            let rest: Vec<f64> = pairs.map(|(image, one)| image - value * one).collect();
            largest = largest.max(dot(&rest, &rest).sqrt());
        }
    }
    largest
        / svd
            .values
            .first()
            .copied()
            .unwrap_or(1.0)
            .max(f64::MIN_POSITIVE)
}

/// PEFT's `olora_init` of a weight `[d_in, d_out]`: the first r rows of R are A, the first r columns of Q the rows of
/// B. `None` if the weight's first r inputs depend on each other.
pub(crate) fn olora(weight: &[f32], d_out: usize, r: usize) -> Option<[Vec<f32>; 2]> {
    let matrix = matrix(weight, d_out);
    let b = orthonormal(Matrix {
        columns: d_out,
        values: matrix.values[..r * d_out].to_vec(),
    });
    if b.height() < r {
        return None;
    }
    let a = b.times(&matrix.tensor().transpose());
    Some([a, b].map(|rows| rows.values.iter().map(|&value| value as f32).collect()))
}

fn matrix(weight: &[f32], d_out: usize) -> Matrix {
    Matrix {
        columns: d_out,
        values: weight.iter().copied().map(f64::from).collect(),
    }
}
