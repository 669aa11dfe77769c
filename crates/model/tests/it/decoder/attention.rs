//! Attention against the naive form: all scores of a head at once.

use batchlora::seed_gradient;
use burn::tensor::{Bool, DType, Device, FloatDType, Tensor, TensorData, activation};
use loraloom_model::{AttentionShape, Sequences, self_attention};

use crate::decoder::{
    ops::compare,
    support::{Random, assert_close_values, device, host},
};

/// Every sequence and head for itself, with all scores.
pub(crate) fn composed_attention([q, k, v]: [Tensor<2>; 3], shape: &AttentionShape) -> Tensor<2> {
    let (width, group) = (shape.head_dim, shape.num_heads / shape.num_kv_heads);
    let device = q.device();
    let sequence = |rows: std::ops::Range<usize>| {
        let length = rows.len();
        let hidden = (0..length * length).map(|at| {
            let (query, key) = (at / length, at % length);
            key > query || shape.window.is_some_and(|window| query - key >= window)
        });
        let hidden = TensorData::new(hidden.collect::<Vec<_>>(), [length, length]);
        let hidden = Tensor::<2, Bool>::from_data(hidden, &device);
        let head = |head: usize| {
            let part = |x: &Tensor<2>, head: usize| {
                x.clone()
                    .slice([rows.clone(), head * width..(head + 1) * width])
            };
            let scores = part(&q, head).matmul(part(&k, head / group).transpose());
            let scale = shape.score_scale.unwrap_or(1.0 / (width as f64).sqrt());
            let scores = scores.mul_scalar(scale);
            let scores = match shape.softcap {
                Some(cap) => scores.div_scalar(cap).tanh().mul_scalar(cap),
                None => scores,
            };
            let scores = scores.mask_fill(hidden.clone(), f32::NEG_INFINITY);
            activation::softmax(scores, 1).matmul(part(&v, head / group))
        };
        Tensor::cat((0..shape.num_heads).map(head).collect(), 1)
    };
    let sequences = shape.sequences.iter().filter(|rows| !rows.is_empty());
    Tensor::cat(sequences.map(sequence).collect(), 0)
}

#[track_caller]
fn compare_attention(lengths: &[usize], [heads, kv_heads, head_dim]: [usize; 3], spread: f32) {
    let windows = [None, Some(1), Some(3), Some(16), Some(1000)].map(|window| (window, None));
    let bounded = [(None, Some(1.0)), (Some(16), Some(0.2))];
    for (window, softcap) in windows.into_iter().chain(bounded) {
        // Of its own where scores are bounded, too.
        let score_scale = softcap.map(|_| 0.4);
        let shape = AttentionShape {
            sequences: Sequences::from_lengths(lengths.iter().copied()),
            num_heads: heads,
            num_kv_heads: kv_heads,
            head_dim,
            window,
            score_scale,
            softcap,
        };
        let rows = shape.sequences.rows();
        compare(
            &format!(
                "attention {lengths:?} {heads}/{kv_heads}·{head_dim} window {window:?} \
                 softcap {softcap:?}"
            ),
            [
                [rows, heads * head_dim],
                [rows, kv_heads * head_dim],
                [rows, kv_heads * head_dim],
            ],
            spread,
            |[q, k, v]| self_attention(q, k, v, &shape),
            |inputs| composed_attention(inputs, &shape),
        );
    }
}

#[test]
fn attention_of_single_sequences() {
    for length in [1, 2, 7, 33, 130] {
        compare_attention(&[length], [2, 2, 8], 1.5);
    }
}

#[test]
fn attention_with_grouped_queries() {
    for heads in [
        [4, 2, 12],
        [8, 1, 4],
        [6, 3, 16],
        [1, 1, 2],
        [4, 4, 64],
        [9, 3, 10],
    ] {
        compare_attention(&[19], heads, 1.5);
    }
}

#[test]
fn attention_of_sequences_of_mixed_lengths() {
    for lengths in [
        &[1, 1, 1][..],
        &[5, 1, 17],
        &[64, 3, 1, 40],
        &[2, 70],
        &[9, 9, 9, 9],
    ] {
        compare_attention(lengths, [4, 2, 12], 1.5);
    }
}

/// On a GPU these are several chunks, and parts of queries whose gradients of keys add up.
#[test]
fn attention_of_long_sequences() {
    compare_attention(&[300, 5, 150, 270], [8, 4, 8], 1.5);
}

/// Random shapes, with the widths of heads that models have.
#[test]
fn attention_of_random_shapes() {
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let head_dim = [64, 80, 128, 6][random.below(4)];
        let kv_heads = 1 + random.below(3);
        let heads = kv_heads * (1 + random.below(3));
        let count = 1 + random.below(5);
        let lengths: Vec<_> = (0..count).map(|_| random.below(40)).chain([1]).collect();
        println!("seed {seed}: {lengths:?} {heads}/{kv_heads}·{head_dim}");
        compare_attention(&lengths, [heads, kv_heads, head_dim], 1.0);
    }
}

/// Scores of several hundred: the softmax must not overflow.
#[test]
fn attention_with_large_scores() {
    compare_attention(&[12, 30], [4, 2, 16], 12.0);
}

/// Output and gradients of attention in this type, of inputs in ±`spread` that are rounded to another.
fn attention_in(
    device: &Device,
    [rounded, dtype]: [FloatDType; 2],
    shape: &AttentionShape,
    spread: f32,
) -> Vec<Vec<f32>> {
    let device = device.clone().autodiff();
    let mut random = Random::new(11);
    let (rows, heads, kv_heads) = (shape.sequences.rows(), shape.num_heads, shape.num_kv_heads);
    let mut input = |heads: usize| {
        let values = random.tensor([rows, heads * shape.head_dim], &device);
        (values * spread).cast(rounded).cast(dtype)
    };
    let seed = input(heads).without_autodiff() / spread;
    let inputs = [heads, kv_heads, kv_heads].map(|heads| input(heads).detach().require_grad());
    let [q, k, v] = inputs.clone();
    let out = self_attention(q, k, v, shape);
    let gradients = seed_gradient(out.clone(), seed).backward();
    let mut found = vec![host(out.without_autodiff().cast(FloatDType::F32))];
    for input in inputs {
        let gradient = input.grad(&gradients).expect("a gradient");
        found.push(host(gradient.cast(FloatDType::F32)));
    }
    found
}

fn grouped(lengths: &[usize]) -> AttentionShape {
    AttentionShape {
        sequences: Sequences::from_lengths(lengths.iter().copied()),
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 16,
        window: None,
        score_scale: None,
        softcap: None,
    }
}

/// Several parts, whose gradients of keys and values add up in `float32`.
#[test]
fn attention_in_half_precision_is_rounded_float32() {
    let bounded = AttentionShape {
        softcap: Some(1.0),
        ..grouped(&[300, 5, 192])
    };
    let cases = [grouped(&[300, 5, 150]), bounded];
    let types = [(FloatDType::F16, 4e-3), (FloatDType::BF16, 3e-2)];
    for (shape, (dtype, tolerance)) in cases.iter().flat_map(|shape| types.map(|of| (shape, of))) {
        if !device().supports_dtype(DType::from(dtype)) {
            continue;
        }
        let found = attention_in(&device(), [dtype, dtype], shape, 1.5);
        let expected = attention_in(&Device::flex(), [dtype, FloatDType::F32], shape, 1.5);
        for (what, (found, expected)) in ["out", "dq", "dk", "dv"]
            .into_iter()
            .zip(found.iter().zip(&expected))
        {
            assert_close_values(&format!("{what} in {dtype:?}"), found, expected, tolerance);
        }
    }
}

/// Scores beyond 65,504, which `float16` does not have.
#[test]
fn scores_of_float16_inputs_do_not_overflow() {
    if !device().supports_dtype(DType::F16) {
        return;
    }
    let (shape, half) = (grouped(&[40, 9]), FloatDType::F16);
    let found = attention_in(&device(), [half, half], &shape, 400.0);
    let expected = attention_in(&Device::flex(), [half, FloatDType::F32], &shape, 400.0);
    assert_close_values("out", &found[0], &expected[0], 2e-2);
    assert!(found.iter().flatten().all(|value| value.is_finite()));
}

#[test]
fn a_sequence_without_tokens_changes_nothing() {
    for lengths in [&[0, 5, 3][..], &[5, 0, 3], &[5, 3, 0], &[0, 0, 7, 0]] {
        compare_attention(lengths, [4, 2, 8], 1.5);
    }
}

#[test]
fn nothing_at_all_is_nothing() {
    let shape = AttentionShape {
        sequences: Sequences::from_lengths([]),
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 4,
        window: None,
        score_scale: None,
        softcap: None,
    };
    let empty = |width: usize| Tensor::<2>::zeros([0, width], &device());
    let out = self_attention(empty(8), empty(4), empty(4), &shape);
    assert_eq!(out.dims(), [0, 8]);
}

/// A sequence's rows do not feel their neighbours' values or lengths; on Flex not even in the last
/// digit.
#[test]
fn attention_stays_within_the_sequence() {
    let run = |lengths: &[usize], own: usize| {
        let shape = AttentionShape {
            sequences: Sequences::from_lengths(lengths.iter().copied()),
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 12,
            window: Some(9),
            score_scale: None,
            softcap: None,
        };
        let device = device().autodiff();
        let (mut inside, mut outside) = (Random::new(1), Random::new(2));
        let mut values = |width: usize| {
            let parts = shape.sequences.iter().enumerate().map(|(index, rows)| {
                let random = if index == own {
                    &mut inside
                } else {
                    &mut outside
                };
                random.tensor([rows.len(), width], &device)
            });
            Tensor::<2>::cat(parts.collect(), 0).detach().require_grad()
        };
        let leaves = [values(48), values(24), values(24)];
        let [q, k, v] = leaves.clone();
        let out = self_attention(q, k, v, &shape);
        let mut inside = Random::new(3);
        let seeds = shape.sequences.iter().enumerate().map(|(index, rows)| {
            let random = if index == own {
                &mut inside
            } else {
                &mut outside
            };
            random.tensor([rows.len(), 48], &device)
        });
        let seeds = Tensor::<2>::cat(seeds.collect(), 0);
        let gradients = seed_gradient(out.clone(), seeds).backward();
        let rows = shape.sequences.iter().nth(own).expect("the sequence");
        let own = |t: Tensor<2>| host(t.clone().slice([rows.clone(), 0..t.dims()[1]]));
        let [dq, dk, dv] = leaves.map(|leaf| own(leaf.grad(&gradients).expect("a gradient")));
        [own(out.inner()), dq, dk, dv]
    };
    let alone = run(&[23], 0);
    let tolerance = if device() == Device::flex() {
        0.0
    } else {
        1e-6
    };
    for (lengths, own) in [(&[23, 23][..], 1), (&[5, 23, 1], 1), (&[23, 60], 0)] {
        for (index, (found, expected)) in run(lengths, own).iter().zip(&alone).enumerate() {
            let what = format!("part {index} among {lengths:?}");
            assert_close_values(&what, found, expected, tolerance);
        }
    }
}
