//! Picked tokens against sorting all of them, in `float64`.

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use loraloom_model::{SampledRow, Sampling, sample};

use crate::decoder::support::{Random, device, host};

/// The part of the weight within which a draw is at the border of two tokens.
const BORDER: f64 = 1e-4;

/// Tokens in their order with their log-probabilities.
fn sorted(logits: &[f32]) -> Vec<(u32, f64)> {
    let finite = logits.iter().filter(|logit| !logit.is_nan());
    let largest = finite.clone().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = finite.map(|&logit| f64::from(logit - largest).exp()).sum();
    let of = |logit: f32| f64::from(logit - largest) - total.ln();
    let mut all: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|&logit| of(logit))).collect();
    all.retain(|(_, log_prob)| !log_prob.is_nan());
    all.sort_by(|(a, x), (b, y)| y.total_cmp(x).then(a.cmp(b)));
    all
}

/// The tokens that a row may give: two where the draw is at their border.
fn allowed(logits: &[f32], row: &SampledRow) -> Vec<u32> {
    let Sampling {
        temperature,
        top_k,
        top_p,
        min_p,
        repetition_penalty,
        ..
    } = row.sampling;
    let mut logits = logits.to_vec();
    for &token in &row.penalised {
        let logit = &mut logits[token as usize];
        if *logit > 0.0 {
            *logit /= repetition_penalty as f32;
        } else {
            *logit *= repetition_penalty as f32;
        }
    }
    let mut order = sorted(&logits);
    if temperature <= 0.0 {
        return vec![order[0].0];
    }
    if top_k > 0 {
        order.truncate(top_k);
    }
    let likeliest = order[0].1;
    let weights = order
        .iter()
        .map(|(_, log_prob)| ((log_prob - likeliest) / temperature).exp());
    let weights: Vec<f64> = weights.take_while(|&weight| weight >= min_p).collect();
    let total: f64 = weights.iter().sum();
    // Where the nucleus ends may be a matter of rounding, too.
    let mut found = Vec::new();
    for part in [top_p - BORDER, top_p, top_p + BORDER] {
        let (mut kept, mut nucleus) = (0.0, 0);
        while nucleus < weights.len() && (nucleus == 0 || kept < part * total) {
            kept += weights[nucleus];
            nucleus += 1;
        }
        for draw in [row.draw - BORDER, row.draw, row.draw + BORDER] {
            let mut sum = 0.0;
            let at = weights[..nucleus].iter().position(|weight| {
                sum += weight;
                sum > draw * kept
            });
            found.push(order[at.unwrap_or(nucleus - 1)].0);
        }
    }
    found
}

fn rows(count: usize, vocabulary: usize, random: &mut Random) -> Vec<SampledRow> {
    let row = |index: usize| {
        let mut unit = || random.below(1 << 20) as f64 / f64::from(1 << 20);
        let sampling = Sampling {
            temperature: [0.0, 1.0, 0.5, 2.0][index % 4],
            top_k: [0, 0, 1, 7, vocabulary, 40][index / 4 % 6],
            top_p: [1.0, 0.9, 0.3, 1e-6][index / 2 % 4],
            min_p: [0.0, 0.05, 0.5][index % 3],
            repetition_penalty: [1.0, 1.3, 0.7][index / 3 % 3],
            seed: index as u64,
        };
        let draw = [unit(), 0.0, unit()][index % 3];
        let before: Vec<u32> = (0..index % 9)
            .map(|at| (at * 7 % vocabulary) as u32)
            .collect();
        SampledRow {
            draw,
            ..sampling.row(&before, 0, index % 5)
        }
    };
    (0..count).map(row).collect()
}

fn check(logits: &[f32], vocabulary: usize, rows: &[SampledRow], tensor: Tensor<2>) {
    let found = sample(tensor, rows).expect("tokens");
    assert_eq!(found.len(), rows.len());
    for ((row, found), logits) in rows.iter().zip(&found).zip(logits.chunks_exact(vocabulary)) {
        let allowed = allowed(logits, row);
        assert!(
            allowed.contains(&found.id),
            "{row:?}: {found:?} where {allowed:?} are right"
        );
        let order = sorted(logits);
        let log_prob = |id: u32| {
            order
                .iter()
                .find(|(token, _)| *token == id)
                .expect("a token")
                .1
        };
        let close = |found: f32, id: u32| (f64::from(found) - log_prob(id)).abs() < 1e-4;
        assert!(close(found.log_prob, found.id), "{row:?}: {found:?}");
        assert_eq!(found.top.len(), row.top.min(vocabulary));
        for ((id, value), (expected, _)) in found.top.iter().zip(&order) {
            assert!(id == expected && close(*value, *id), "{row:?}: {found:?}");
        }
    }
}

#[test]
fn tokens_are_those_of_sorting_all() {
    for (count, vocabulary, spread) in [
        (3, 1, 1.0),
        (40, 5, 2.0),
        (72, 384, 4.0),
        (24, 1031, 30.0),
        (24, 32_003, 3.0),
    ] {
        let mut random = Random::new(vocabulary as u64);
        let logits: Tensor<2> = random.tensor([count, vocabulary], &Device::flex());
        let logits = host(logits.mul_scalar(spread));
        let rows = rows(count, vocabulary, &mut random);
        // As they are, and with many equal ones.
        for step in [0.0, 0.5] {
            let round = |&logit: &f32| {
                if step > 0.0 {
                    (logit / step).round() * step
                } else {
                    logit
                }
            };
            let logits: Vec<f32> = logits.iter().map(round).collect();
            let data = TensorData::new(logits.clone(), [count, vocabulary]);
            check(
                &logits,
                vocabulary,
                &rows,
                Tensor::from_data(data, &device()),
            );
        }
        // Alone a row has the same token.
        let all = Tensor::from_data(
            TensorData::new(logits.clone(), [count, vocabulary]),
            &device(),
        );
        let together = sample(all, &rows).expect("tokens");
        for at in [0, count / 2, count - 1] {
            let row = TensorData::new(
                logits[at * vocabulary..][..vocabulary].to_vec(),
                [1, vocabulary],
            );
            let alone = sample(Tensor::from_data(row, &device()), &rows[at..=at]).expect("a token");
            assert_eq!(alone[0], together[at]);
        }
    }
}

#[test]
fn logits_in_half_precision_and_without_numbers_are_read() {
    let mut random = Random::new(9);
    let logits: Tensor<2> = random.tensor([48, 777], &Device::flex());
    let rows = rows(48, 777, &mut random);
    let plain = rows.iter().map(|row| SampledRow {
        penalised: Vec::new(),
        ..row.clone()
    });
    let plain: Vec<SampledRow> = plain.collect();
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        let tensor =
            Tensor::<2>::from_data(logits.clone().mul_scalar(3).into_data(), &device()).cast(dtype);
        let rounded = host(tensor.clone().cast(DType::F32));
        check(&rounded, 777, &plain, tensor);
    }
    let mut values = host(logits);
    for (at, value) in values.iter_mut().enumerate() {
        match at % 11 {
            3 => *value = f32::NAN,
            5 => *value = f32::NEG_INFINITY,
            _ => {}
        }
    }
    // The log-probabilities of such rows are NaN on the CPU.
    let data = TensorData::new(values.clone(), [48, 777]);
    let found = sample(Tensor::from_data(data, &device()), &plain).expect("tokens");
    for ((row, found), logits) in plain.iter().zip(&found).zip(values.chunks_exact(777)) {
        assert!(
            allowed(logits, row).contains(&found.id),
            "{row:?}: {found:?}"
        );
    }
}
