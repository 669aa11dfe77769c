//! The change that a group trains, and the adapters that begin with its components.

use std::collections::BTreeMap;

use loraloom_model::LoraWeights;
use serde_json::json;

use super::{client, unmoved};

/// `scale · B · A`, `[d_out, d_in]`.
fn product(weights: &LoraWeights) -> Vec<f64> {
    let LoraWeights { r, d_in, d_out, .. } = *weights;
    let mut sums = vec![0.0; d_out * d_in];
    for (row, sums) in sums.chunks_mut(d_in).enumerate() {
        for rank in 0..r {
            let b = weights.scale * f64::from(weights.b[row * r + rank]);
            let a = &weights.a[rank * d_in..][..d_in];
            let pairs = sums.iter_mut().zip(a);
            pairs.for_each(|(sum, a)| *sum += b * f64::from(*a));
        }
    }
    sums
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// `x · matrix`, of rows of this width, or `matrix · x`.
fn times(matrix: &[f64], width: usize, x: &[f64], across: bool) -> Vec<f64> {
    let dot = |row: &[f64]| row.iter().zip(x).map(|(a, b)| a * b).sum();
    if across {
        return matrix.chunks(width).map(dot).collect();
    }
    let mut sums = vec![0.0; width];
    for (row, x) in matrix.chunks(width).zip(x) {
        sums.iter_mut()
            .zip(row)
            .for_each(|(sum, value)| *sum += value * x);
    }
    sums
}

/// The singular values of a matrix, the largest first: the largest, then that of what is left.
fn singular_values(matrix: &[f64], width: usize, count: usize) -> Vec<f64> {
    let (mut rest, mut found) = (matrix.to_vec(), Vec::new());
    for _ in 0..count {
        let mut right: Vec<f64> = (0..width)
            .map(|at| 1.0 + (at as f64 * 0.37).sin())
            .collect();
        for _ in 0..20_000 {
            right = times(&rest, width, &times(&rest, width, &right, true), false);
            let length = norm(&right);
            right = right.into_iter().map(|value| value / length).collect();
        }
        let left = times(&rest, width, &right, true);
        found.push(norm(&left));
        for (row, left) in rest.chunks_mut(width).zip(&left) {
            row.iter_mut()
                .zip(&right)
                .for_each(|(value, right)| *value -= left * right);
        }
    }
    found
}

/// Ranks as many as the modules are wide make the whole change: it has as many elements as asked, at the same places for
/// all, and fewer ranks make its best approximation.
#[test]
fn a_start_is_the_best_approximation_of_a_sparse_change() {
    let clients = |r: usize| {
        let lora = || json!({"r": r, "use_rslora": r > 40});
        [
            client("a", "a", lora(), json!({})),
            client("b", "b", lora(), json!({})),
        ]
    };
    let whole = unmoved(&clients(48));
    let parts = unmoved(&clients(3));
    assert_eq!(whole[0].len(), 2 * 2);
    for (module, weights) in &whole[0] {
        let (d_in, change) = (weights.d_in, product(weights));
        let largest = change
            .iter()
            .fold(0f64, |most, value| most.max(value.abs()));
        let is_trained = |value: &f64| value.abs() > 1e-5 * largest;
        let trained = change.iter().filter(|one| is_trained(one)).count();
        let asked = (0.02 * change.len() as f64).round() as usize;
        // An element whose three steps add up to zero would be missing.
        assert_eq!(trained, asked, "{module}");
        assert!(
            product(&whole[1][module]) == change,
            "{module}: the clients differ"
        );
        assert_eq!(
            (&parts[0][module].a, &parts[0][module].b),
            (&parts[1][module].a, &parts[1][module].b)
        );

        let part = product(&parts[0][module]);
        let rest: Vec<f64> = change.iter().zip(&part).map(|(a, b)| a - b).collect();
        let values = singular_values(&change, d_in, 3);
        let kept: f64 = values.iter().map(|value| value * value).sum();
        let best = (norm(&change).powi(2) - kept).sqrt();
        println!(
            "{module}: {trained} of {}, {values:.5?}, rest {:.7} of {best:.7}",
            change.len(),
            norm(&rest)
        );
        assert!(
            norm(&rest) < best * (1.0 + 1e-6),
            "{module}: {} above {best}",
            norm(&rest)
        );
    }
}

/// A round of both clients has the mean of what each would train alone, by its rows.
#[test]
fn a_change_is_the_mean_over_the_clients_by_their_rows() {
    let of = |one: &str, other: &str| {
        let start = |name, of| {
            client(
                name,
                of,
                json!({"r": 48}),
                json!({"rounds": 1, "local_steps": 3}),
            )
        };
        let both = unmoved(&[start("one", one), start("other", other)]);
        both[0]
            .iter()
            .map(|(module, one)| (module.clone(), product(one)))
            .collect::<BTreeMap<_, _>>()
    };
    let (a, b, both) = (of("a", "a"), of("b", "b"), of("a", "b"));
    for (module, both) in both {
        let pairs = a[&module].iter().zip(&b[&module]);
        // Of 8 and 24 rows.
        let mean: Vec<f64> = pairs.map(|(a, b)| 0.25 * a + 0.75 * b).collect();
        let apart: Vec<f64> = mean.iter().zip(&both).map(|(a, b)| a - b).collect();
        let uneven: Vec<f64> = a[&module].iter().zip(&both).map(|(a, b)| a - b).collect();
        assert!(norm(&apart) < 1e-5 * norm(&both), "{module}");
        assert!(
            norm(&uneven) > 0.1 * norm(&both),
            "{module}: the clients learn the same"
        );
    }
}
