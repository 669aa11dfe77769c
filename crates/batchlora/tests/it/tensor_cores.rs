//! Tensor cores against the same products in `float32`, of operands rounded as theirs are.
//!
//! Only `bfloat16` takes them.

use batchlora::{
    LoraSpec, has_tensor_cores,
    primitives::{Side, expand_add, shrink, weight_grad},
};
use burn::tensor::{Device, FloatDType, Tensor};
use proptest::prelude::*;

use crate::{
    case::{Case, case, config, mixed},
    operator::assert_half_precision,
    oracle::Problem,
    support::{Random, assert_close, device, host, tensor, wide},
};

/// Of the largest element: sums are `float32`, in another order.
const SUMS: f64 = 1e-5;
/// A result is rounded to eight bits of mantissa.
const ROUNDED: f64 = 1.0 / 256.0;

/// The device, if it has tensor cores. CUDA devices are taken to have them: no test runs on one from before
/// 2020.
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn with_tensor_cores() -> Option<Device> {
    let device = device();
    if has_tensor_cores(&device) {
        return Some(device);
    }
    assert!(
        !format!("{device:?}").to_lowercase().contains("cuda"),
        "{device:?} has tensor cores"
    );
    println!("skipped: no tensor cores for bfloat16 on {device:?}");
    None
}

fn rounded(values: &[f32]) -> Vec<f32> {
    let shape = [1, values.len()];
    host(tensor(values.to_vec(), shape, &Device::flex()).cast(FloatDType::BF16))
}

/// Masks whose factor is a power of two round nothing.
fn halving(mut case: Case) -> Case {
    for slot in case.slots.iter_mut().flatten() {
        let dropout = if slot.lora_dropout > 0.0 { 0.5 } else { 0.0 };
        *slot = slot.with_lora_dropout(dropout);
    }
    case
}

/// The rows and ranks of a narrow operand that are specified.
fn specified(narrow: &[f32], problem: &Problem) -> Vec<f32> {
    let routing = &problem.routing;
    let segments = routing.segments().iter();
    let rows = segments.flat_map(|s| s.rows.clone().map(|row| (row, s.ranks.len())));
    rows.flat_map(|(row, ranks)| &narrow[row * routing.rank_max()..][..ranks])
        .copied()
        .collect()
}

/// Both sides of every kernel.
fn assert_same_products(case: Case, device: &Device) {
    let seed = case.seed;
    let problem = halving(case).problem();
    let routing = &problem.routing;
    let (rows, rank_max) = (routing.rows(), routing.rank_max());
    if rows == 0 || rank_max == 0 {
        return;
    }
    let narrow = Random::new(seed).values(rows * rank_max);
    for (side, width, values, weight) in [
        (Side::Input, problem.d_in, &problem.x, &problem.a),
        (Side::Output, problem.d_out, &problem.gradient, &problem.b),
    ] {
        let operands = |values: [&[f32]; 3], device: &Device| -> [Tensor<2>; 3] {
            let [values, weight, narrow] = values.map(<[f32]>::to_vec);
            [
                tensor(values, [rows, width], device),
                tensor(weight, [routing.rank_sum(), width], device),
                tensor(narrow, [rows, rank_max], device),
            ]
        };
        let [x, w, s] = [values, weight, &narrow].map(|values| rounded(values));
        let [x, w, s] = operands([&x, &w, &s], &Device::flex());
        let expected = [
            specified(&host(shrink(x.clone(), w.clone(), routing, side)), &problem),
            host(expand_add(x.clone(), s.clone(), w, routing, side)),
            host(weight_grad(x, s, routing, side)),
        ];
        // Packed rows and the narrow operand are rounded by the kernels: others would not.
        let [x, w, s] = operands([values, weight, &narrow], device);
        let x = x.cast(FloatDType::BF16);
        let found = [
            specified(&host(shrink(x.clone(), w.clone(), routing, side)), &problem),
            host(expand_add(x.clone(), s.clone(), w, routing, side)),
            host(weight_grad(x, s, routing, side)),
        ];
        let kernels = [
            ("shrink", SUMS),
            ("expand_add", ROUNDED),
            ("weight_grad", SUMS),
        ];
        for (index, (what, tolerance)) in kernels.into_iter().enumerate() {
            let what = format!("{what} at the {side:?}");
            assert_close(&what, &found[index], &wide(&expected[index]), tolerance);
        }
    }
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    #[ignore = "needs tensor cores: LORALOOM_TEST_DEVICE=cuda"]
    fn tensor_cores_sum_rounded_operands_in_float32(case in case()) {
        if let Some(device) = with_tensor_cores() {
            assert_same_products(case, &device);
        }
    }
}

/// Several tiles of the width and several of the ranks, of both sizes of vectors, with columns left
/// over.
#[test]
#[ignore = "needs tensor cores: LORALOOM_TEST_DEVICE=cuda"]
fn wide_operands_in_several_tiles() {
    let Some(device) = with_tensor_cores() else {
        return;
    };
    for (d_in, d_out, ranks) in [(260, 516, [3, 70, 16]), (131, 257, [5, 256, 64])] {
        let spec = |r| Some(LoraSpec::new(r, 8.0).with_lora_dropout(0.5));
        let case = Case {
            d_in,
            d_out,
            slots: ranks.map(spec).to_vec(),
            parts: vec![(2, 0, 67), (0, 1, 3), (1, 2, 30), (0, 0, 1)],
            ..mixed()
        };
        assert_same_products(case, &device);
    }
}

/// The operator as in any other test of half precision, with gradients of S and B from kernels of
/// their own.
#[test]
#[ignore = "needs tensor cores: LORALOOM_TEST_DEVICE=cuda"]
fn the_operator_on_tensor_cores() {
    let Some(device) = with_tensor_cores() else {
        return;
    };
    // More ranks than a cube computes: several cubes have the mask, and one writes it for backward.
    let spec = |r| Some(LoraSpec::new(r, 8.0).with_lora_dropout(0.5));
    let many_ranks = Case {
        d_in: 260,
        d_out: 132,
        slots: [3, 70, 130].map(spec).to_vec(),
        parts: vec![(2, 0, 35), (0, 1, 33), (1, 2, 30), (0, 0, 1)],
        ..mixed()
    };
    // Gradients of B have more columns than those of A, by more than a cube computes.
    let wide_output = Case {
        d_in: 132,
        d_out: 516,
        ..many_ranks.clone()
    };
    for case in [mixed(), many_ranks, wide_output] {
        assert_half_precision(&case, &device, FloatDType::BF16, 2e-2);
    }
}
