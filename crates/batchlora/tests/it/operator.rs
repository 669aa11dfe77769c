//! Values and gradients of `lora_linear` on random shapes.

use batchlora::{LoraSpec, frozen_linear, lora_linear, seed_gradient};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use proptest::prelude::*;

use crate::{
    case::{Case, case, config, mixed},
    oracle::{Operands, Problem, composed},
    support::{Random, assert_close, bits, device, host, tensor, wide},
};

pub(crate) const TOLERANCE: f64 = 1e-5;
/// Of the sum of an element's terms in absolute value, where they cancel.
pub(crate) const ROUNDING: f64 = 1e-6;

/// The output and the gradients of x, a and b.
type Results = [Vec<f32>; 4];
const NAMES: [&str; 4] = ["h", "dx", "da", "db"];

fn by_operator(problem: &Problem, device: &Device) -> Results {
    let [x, a, b, weight] = problem.leaves(device);
    // A cheap operation in front, so that checkpointing has something to compute again.
    let input = x.clone() * 1.0;
    let h = lora_linear(input, weight, a.clone(), b.clone(), &problem.routing)
        .expect("operands that fit");
    let gradient = tensor(problem.gradient.clone(), h.dims(), device);
    let gradients = seed_gradient(h.clone(), gradient).backward();
    results(h, [x, a, b], &gradients)
}

fn by_composition(problem: &Problem, device: &Device) -> Results {
    let leaves = problem.leaves(device);
    let [x, a, b, _] = leaves.clone();
    let h = composed(leaves, &problem.routing, device);
    let gradient = tensor(problem.gradient.clone(), h.dims(), device);
    let gradients = (h.clone() * gradient).sum().backward();
    results(h, [x, a, b], &gradients)
}

fn results(h: Tensor<2>, leaves: [Tensor<2>; 3], gradients: &burn::tensor::Gradients) -> Results {
    // A leaf that no row uses is not reached, which means zero.
    let [dx, da, db] = leaves.map(|leaf| {
        let zeros = vec![0.0; leaf.dims().iter().product()];
        leaf.grad(gradients).map_or(zeros, host)
    });
    [host(h), dx, da, db]
}

fn by_oracle(problem: &Problem) -> [Vec<f64>; 4] {
    let operands = problem.operands();
    let [dx, da, db] = problem.gradients(&operands);
    [problem.forward(&operands), dx, da, db]
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn values_and_gradients_are_those_of_the_oracle(case in case()) {
        let problem = case.problem();
        let found = by_operator(&problem, &case.device());
        assert_results(&problem, &found, &by_oracle(&problem));
    }

    #[test]
    fn values_and_gradients_are_those_of_the_composition(case in case()) {
        let problem = case.problem();
        prop_assume!(problem.rows() > 0 && problem.routing.rank_sum() > 0);
        let found = by_operator(&problem, &case.device());
        // On the CPU: elsewhere Burn would first try many kernels for every shape.
        let expected = by_composition(&problem, &Device::flex().autodiff());
        assert_results(&problem, &found, &expected.map(|values| wide(&values)));
    }
}

/// Within the tolerance of the largest element; or, where the terms of an element cancel, within
/// what rounding them may do.
fn assert_results(problem: &Problem, found: &Results, expected: &[Vec<f64>; 4]) {
    let absolute = |values: &[f32]| values.iter().map(|value| value.abs()).collect();
    let terms = by_oracle(&Problem {
        x: absolute(&problem.x),
        weight: absolute(&problem.weight),
        a: absolute(&problem.a),
        b: absolute(&problem.b),
        gradient: absolute(&problem.gradient),
        ..problem.clone()
    });
    for (name, ((found, expected), terms)) in
        NAMES.iter().zip(found.iter().zip(expected).zip(terms))
    {
        assert_eq!(found.len(), expected.len(), "{name}: number of elements");
        let largest = expected
            .iter()
            .fold(0f64, |max, value| max.max(value.abs()));
        for (index, ((&found, &expected), terms)) in
            found.iter().zip(expected).zip(terms).enumerate()
        {
            let error = (f64::from(found) - expected).abs();
            assert!(
                error <= (TOLERANCE * largest).max(ROUNDING * terms),
                "{name}[{index}] is {found}, expected {expected}: off by {error:.2e}; the largest \
                 is {largest:.2e}, its terms' sum {terms:.2e}"
            );
        }
    }
}

/// The operator is linear in each operand, so a central difference is exact but for rounding.
#[test]
fn the_oracle_agrees_with_central_differences() {
    let problem = mixed().problem();
    let operands = problem.operands();
    let expected = problem.gradients(&operands);
    let loss = |operands: &Operands| -> f64 {
        let h = problem.forward(operands);
        h.iter()
            .zip(wide(&problem.gradient))
            .map(|(h, g)| h * g)
            .sum()
    };
    let fields: [fn(&mut Operands) -> &mut Vec<f64>; 3] =
        [|o| &mut o.x, |o| &mut o.a, |o| &mut o.b];
    for (field, expected) in fields.into_iter().zip(expected) {
        for (index, expected) in expected.into_iter().enumerate() {
            let at = |delta: f64| {
                let mut moved = operands.clone();
                field(&mut moved)[index] += delta;
                loss(&moved)
            };
            let found = (at(0.5) - at(-0.5)) / 1.0;
            assert!(
                (found - expected).abs() < 1e-11,
                "{index}: {found} {expected}"
            );
        }
    }
}

/// The adapters' share of the output must matter, or the tests above compare frozen products.
#[test]
fn the_adapters_are_a_large_part_of_the_mixed_case() {
    let problem = mixed().problem();
    let mut without = problem.operands();
    without.b.fill(0.0);
    let (with, without) = (
        problem.forward(&problem.operands()),
        problem.forward(&without),
    );
    let norm = |values: Vec<f64>| values.iter().map(|v| v * v).sum::<f64>().sqrt();
    let share = norm(with.iter().zip(&without).map(|(a, b)| a - b).collect()) / norm(without);
    assert!(share > 0.5, "{share}");
}

#[test]
fn dropout_differs_between_training_and_evaluation_only() {
    let training = mixed();
    let evaluation = Case {
        training: false,
        ..mixed()
    };
    let [with, without] =
        [training, evaluation].map(|case| by_operator(&case.problem(), &case.device())[0].clone());
    let d_out = mixed().d_out;
    let differs = |row: usize| with[row * d_out..][..d_out] != without[row * d_out..][..d_out];
    let dropped: Vec<_> = (0..20).filter(|&row| differs(row)).collect();
    assert_eq!(
        dropped,
        [0, 1, 2, 3, 4, 14, 15, 16, 17],
        "slot 0 alone has dropout"
    );
}

#[test]
fn rows_without_an_adapter_take_the_frozen_weight_alone() {
    let problem = mixed().problem();
    let mut operands = problem.operands();
    operands.a.fill(f64::NAN);
    let bare = problem.forward(&operands);
    let [h, ..] = by_operator(&problem, &mixed().device());
    let d_out = problem.d_out;
    let base: Vec<_> = (0..20).filter(|row| !bare[row * d_out].is_nan()).collect();
    assert_eq!(base, [5, 6, 7, 8, 9, 13, 18, 19]);
    for row in base {
        let place = row * d_out..(row + 1) * d_out;
        assert_close("h", &h[place.clone()], &bare[place], TOLERANCE);
    }
}

#[test]
fn adapters_without_rows_get_gradients_of_exactly_zero() {
    let problem = mixed().problem();
    let [_, _, da, db] = by_operator(&problem, &mixed().device());
    // Slot 3 has the last two of the thirteen rows of rank.
    assert!(da[11 * problem.d_in..].iter().all(|&value| value == 0.0));
    assert!(db[11 * problem.d_out..].iter().all(|&value| value == 0.0));
    assert!(da[..11 * problem.d_in].iter().any(|&value| value != 0.0));
}

#[test]
fn the_frozen_weight_gets_no_gradient() {
    let (problem, device) = (mixed().problem(), device().autodiff());
    let [x, a, b, weight] = problem.leaves(&device);
    let weight = weight.require_grad();
    let h = lora_linear(
        x.clone(),
        weight.clone(),
        a.clone(),
        b.clone(),
        &problem.routing,
    )
    .expect("operands that fit");
    let gradients = h.sum().backward();
    assert!(weight.grad(&gradients).is_none());
    assert!([x, a, b].iter().all(|leaf| leaf.grad(&gradients).is_some()));
}

#[test]
fn a_frozen_product_is_a_product_without_a_gradient_of_its_weight() {
    for device in [
        device().autodiff(),
        device().autodiff().gradient_checkpointing(),
    ] {
        let problem = mixed().problem();
        // On the CPU: a GPU may multiply `float32` with fewer bits where Burn chooses the kernel.
        let [x, _, _, weight] = problem.leaves(&Device::flex().autodiff());
        let expected = x.clone().matmul(weight);
        let seed = tensor(problem.gradient.clone(), expected.dims(), &x.device());
        let gradients = (expected.clone() * seed).sum().backward();
        let expected_dx = host(x.grad(&gradients).expect("a gradient"));

        let [x, _, _, weight] = problem.leaves(&device);
        let weight = weight.require_grad();
        let found = frozen_linear(x.clone() * 1.0, weight.clone());
        let seed = tensor(problem.gradient.clone(), found.dims(), &device);
        let gradients = seed_gradient(found.clone(), seed).backward();
        assert!(weight.grad(&gradients).is_none());
        assert_close("h", &host(found), &wide(&host(expected)), TOLERANCE);
        let found = host(x.grad(&gradients).expect("a gradient"));
        assert_close("dx", &found, &wide(&expected_dx), TOLERANCE);
    }
}

/// As in a model's first layer: only the adapters are to be trained.
#[test]
fn an_input_outside_the_graph_changes_no_gradient() {
    let problem = mixed().problem();
    for device in [
        device().autodiff(),
        device().autodiff().gradient_checkpointing(),
    ] {
        let [_, _, da, db] = by_operator(&problem, &device);
        let [x, a, b, weight] = problem.leaves(&device);
        let x = x.set_require_grad(false);
        let h = lora_linear(x.clone(), weight, a.clone(), b.clone(), &problem.routing)
            .expect("operands that fit");
        let gradient = tensor(problem.gradient.clone(), h.dims(), &device);
        let gradients = seed_gradient(h, gradient).backward();
        assert!(x.grad(&gradients).is_none());
        let found = [a, b].map(|leaf| bits(&host(leaf.grad(&gradients).expect("a gradient"))));
        assert_eq!(found, [bits(&da), bits(&db)]);
    }
}

#[test]
fn without_autodiff_the_values_are_the_same() {
    let problem = mixed().problem();
    let [expected, ..] = by_operator(&problem, &device().autodiff());
    let [x, a, b, weight] = problem.leaves(&device().autodiff()).map(Tensor::inner);
    let found = host(lora_linear(x, weight, a, b, &problem.routing).expect("operands that fit"));
    assert_eq!(bits(&found), bits(&expected));
}

/// As many rows as a large batch has, ranks from the least to the most, one of them over nearly all
/// rows: sums of 45,000 terms in blocks.
#[test]
fn sixty_five_thousand_rows() {
    let case = Case {
        d_in: 16,
        d_out: 12,
        slots: [1, 64, 256]
            .map(|r| Some(LoraSpec::new(r, 8.0).with_lora_dropout(0.1)))
            .to_vec(),
        parts: vec![(0, 0, 20_000), (0, 1, 45_000), (0, 2, 536)],
        tail: 0,
        ..mixed()
    };
    let problem = case.problem();
    assert_eq!(problem.rows(), 65_536);
    let found = by_operator(&problem, &case.device());
    assert_results(&problem, &found, &by_oracle(&problem));
}

/// Operands that are views with offsets and strides, as transposes and slices leave them; the
/// caller's own tensors are as they were afterwards.
#[test]
fn views_are_read_as_what_they_show() {
    let problem = mixed().problem();
    let device = device().autodiff();
    let expected = by_operator(&problem, &device);
    let [x, a, b, weight] = problem.leaves(&device);
    let before = [&x, &a, &b, &weight].map(|t| bits(&host(t.clone())));

    let inside = |t: Tensor<2>| {
        let [rows, columns] = t.dims();
        let side = |width| Tensor::<2>::full([rows, width], 7.0, &device);
        let wide = Tensor::cat(vec![side(3), t, side(2)], 1);
        let end = Tensor::<2>::full([2, columns + 5], 8.0, &device);
        let tall = Tensor::cat(vec![end.clone(), wide, end], 0);
        tall.slice([2..rows + 2, 3..columns + 3])
    };
    let turned = |t: Tensor<2>| t.transpose().mul_scalar(1.0).transpose();
    for view in [&inside as &dyn Fn(Tensor<2>) -> Tensor<2>, &turned] {
        let h = lora_linear(
            view(x.clone()),
            view(weight.clone()),
            view(a.clone()),
            view(b.clone()),
            &problem.routing,
        )
        .expect("operands that fit");
        let gradient = view(tensor(problem.gradient.clone(), h.dims(), &device));
        let gradients = seed_gradient(h.clone(), gradient).backward();
        let found = results(h, [x.clone(), a.clone(), b.clone()], &gradients);
        for ((name, found), expected) in NAMES.iter().zip(found).zip(&expected) {
            assert_close(name, &found, &wide(expected), TOLERANCE);
        }
    }
    let after = [&x, &a, &b, &weight].map(|t| bits(&host(t.clone())));
    assert_eq!(after, before);
}

#[test]
fn seeded_gradients_arrive_exactly() {
    let device = device().autodiff();
    let mut values = Random::new(3).values(6 * 5);
    values[..4].copy_from_slice(&[0.0, -0.0, f32::MIN_POSITIVE, 3e38]);
    let y = Random::new(4).tensor([6, 5], &device).require_grad();
    let root = seed_gradient(y.clone(), tensor(values.clone(), [6, 5], &device));
    assert_eq!(root.dims(), [1]);
    let gradients = root.backward();
    let found = host(y.grad(&gradients).expect("a gradient"));
    assert_eq!(bits(&found), bits(&values));
}

#[test]
fn a_batch_without_rows_has_no_output_and_no_gradient() {
    let case = Case {
        parts: vec![(0, 0, 0), (0, 2, 0)],
        tail: 0,
        ..mixed()
    };
    let problem = case.problem();
    assert_eq!((problem.rows(), problem.routing.rank_sum()), (0, 13));
    let [h, dx, da, db] = by_operator(&problem, &case.device());
    assert_eq!((h.len(), dx.len()), (0, 0));
    assert!(da.iter().chain(&db).all(|&value| value == 0.0));
}

/// Activations of half the width: adapters are cast to it, their gradients come back in `float32`.
#[test]
fn half_precision_activations_with_float32_adapters() {
    for (dtype, tolerance) in [(FloatDType::F16, 3e-3), (FloatDType::BF16, 2e-2)] {
        if device().supports_dtype(DType::from(dtype)) {
            assert_half_precision(&mixed(), &device(), dtype, tolerance);
        }
    }
}

pub(crate) fn assert_half_precision(
    case: &Case,
    device: &Device,
    dtype: FloatDType,
    tolerance: f64,
) {
    let problem = case.problem();
    let device = device.clone().autodiff();
    let [x, a, b, weight] = problem.leaves(&device);
    let (input, weight) = (x.clone().cast(dtype), weight.cast(dtype));
    let h = lora_linear(input, weight, a.clone(), b.clone(), &problem.routing)
        .expect("operands that fit");
    assert_eq!(h.dtype(), DType::from(dtype));
    let gradient = tensor(problem.gradient.clone(), h.dims(), &device).cast(dtype);
    let gradients = seed_gradient(h.clone(), gradient).backward();
    for leaf in [&a, &b] {
        let gradient = leaf.grad(&gradients).expect("a gradient");
        assert_eq!(gradient.dtype(), DType::F32);
    }
    let found = results(h, [x, a, b], &gradients);
    let expected = by_oracle(&problem);
    for ((name, found), expected) in NAMES.iter().zip(found).zip(&expected) {
        assert_close(&format!("{name} in {dtype:?}"), &found, expected, tolerance);
    }
}

/// Of A and B alone: the gradient of x goes on to layers that have a scale, too.
#[test]
fn adapters_gradients_are_divided_by_the_loss_scale() {
    let scaled = Case {
        loss_scale: 8.0,
        ..mixed()
    };
    let (problem, scaled) = (mixed().problem(), scaled.problem());
    let [h, dx, mut da, mut db] = by_operator(&problem, &device().autodiff());
    for segment in problem.routing.segments() {
        // Ranks tell the slots apart; slot 0 has two segments.
        let slot = [4, 0, 7, 2]
            .iter()
            .position(|&rank| rank == segment.ranks.len());
        let scale = 8f32.powi(slot.expect("a slot of this rank") as i32 + 1);
        let first = problem.routing.segments().iter();
        let seen = first.take_while(|other| other.rows != segment.rows);
        if seen.clone().all(|other| other.ranks != segment.ranks) {
            for (values, width) in [(&mut da, problem.d_in), (&mut db, problem.d_out)] {
                let of_slot = &mut values[segment.ranks.start * width..segment.ranks.end * width];
                for value in of_slot {
                    *value /= scale;
                }
            }
        }
    }
    let found = by_operator(&scaled, &device().autodiff());
    for ((name, found), expected) in NAMES.iter().zip(found).zip([h, dx, da, db]) {
        assert_eq!(bits(&found), bits(&expected), "{name}");
    }
}

/// Gradients below what `float16` can hold arrive with a loss scale.
#[test]
fn a_loss_scale_keeps_small_gradients() {
    const SCALE: f32 = (1 << 26) as f32;
    if !device().supports_dtype(DType::F16) {
        return;
    }
    let case = Case {
        parts: vec![(0, 0, 5)],
        loss_scale: SCALE,
        ..mixed()
    };
    let problem = case.problem();
    let device = device().autodiff();
    let [x, a, b, weight] = problem.leaves(&device);
    let (input, weight) = (
        x.clone().cast(FloatDType::F16),
        weight.cast(FloatDType::F16),
    );
    let h = lora_linear(input, weight, a.clone(), b.clone(), &problem.routing)
        .expect("operands that fit");
    let gradient = tensor(problem.gradient.clone(), h.dims(), &device);
    let small = (gradient.clone() / SCALE).cast(FloatDType::F16);
    assert!(host(small).iter().all(|&value| value == 0.0));
    let gradients = seed_gradient(h, gradient.cast(FloatDType::F16)).backward();
    let [_, _, da, db] = by_oracle(&problem);
    for (leaf, expected) in [(a, da), (b, db)] {
        let found = host(leaf.grad(&gradients).expect("a gradient"));
        let expected: Vec<f64> = expected
            .iter()
            .map(|value| value / f64::from(SCALE))
            .collect();
        assert_close("a small gradient", &found, &expected, 3e-3);
    }
}
