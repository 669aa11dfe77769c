//! `AdapterBank` against a plain list of separate adapters, and fresh adapters.

use batchlora::{
    AdapterBank, AdapterState, BatchLoraError, DropoutDraw, LoraPair, LoraSpec, Segment, Segments,
    lora_linear,
};
use burn::tensor::{Device, Tensor};
use proptest::{collection::vec, prelude::*, sample::Index};

use crate::support::{Random, bits, device, host, state_bits, wide};

const SHAPE: [usize; 2] = [6, 4];

#[derive(Debug, Clone)]
enum Operation {
    Push(Option<LoraSpec>),
    Remove(Index),
    Reinsert(Index),
}

fn operation() -> impl Strategy<Value = Operation> {
    let spec = (1..9usize, 1.0..32.0f64, any::<bool>())
        .prop_map(|(r, alpha, dora)| LoraSpec::new(r, alpha).with_use_dora(dora));
    prop_oneof![
        3 => proptest::option::weighted(0.75, spec).prop_map(Operation::Push),
        2 => any::<Index>().prop_map(Operation::Remove),
        1 => any::<Index>().prop_map(Operation::Reinsert),
    ]
}

/// Every slot of the bank is the list's adapter bit for bit, moments included, and the packed
/// weights are the list's one after another.
fn assert_same(bank: &AdapterBank, list: &[Option<AdapterState>]) {
    assert_eq!(bank.num_slots(), list.len());
    for (slot, expected) in list.iter().enumerate() {
        let found = bank.extract(slot).expect("a slot");
        assert_eq!(
            found.as_ref().map(|s| s.spec),
            expected.as_ref().map(|s| s.spec)
        );
        assert_eq!(
            found.as_ref().map(state_bits),
            expected.as_ref().map(state_bits),
            "{slot}"
        );
    }
    let rank_sum: usize = list.iter().flatten().map(|state| state.spec.r).sum();
    assert_eq!(bank.rank_sum(), rank_sum);
    let packed = |part: fn(&LoraPair) -> &Tensor<2>| -> Vec<f32> {
        let parts = list.iter().flatten().map(|state| &state.weights);
        parts
            .flat_map(|weights| host(part(weights).clone()))
            .collect()
    };
    match bank.weights() {
        Some(weights) => {
            assert_eq!(weights.a.dims(), [rank_sum, 6]);
            assert_eq!(weights.b.dims(), [rank_sum, 4]);
            assert_eq!(host(weights.a.clone()), packed(|pair| &pair.a));
            assert_eq!(host(weights.b.clone()), packed(|pair| &pair.b));
            let magnitudes = list.iter().flatten();
            let magnitudes = magnitudes.filter_map(|state| state.weights.magnitude.clone());
            let magnitudes: Vec<f32> = magnitudes.flat_map(host).collect();
            assert_eq!(weights.magnitude.map_or_else(Vec::new, host), magnitudes);
        }
        None => assert_eq!(rank_sum, 0),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_bank_is_a_list_of_adapters(operations in vec(operation(), 1..24), seed in any::<u64>()) {
        let device = device();
        let mut random = Random::new(seed);
        let mut bank = AdapterBank::new(SHAPE[0], SHAPE[1], 0, &device);
        let mut list: Vec<Option<AdapterState>> = Vec::new();
        for operation in operations {
            match operation {
                Operation::Push(spec) => {
                    let state = spec.map(|spec| random.adapter(spec, SHAPE, &device));
                    prop_assert_eq!(bank.push(state.clone()).expect("fits"), list.len());
                    list.push(state);
                }
                Operation::Remove(_) | Operation::Reinsert(_) if list.is_empty() => {}
                Operation::Remove(index) => {
                    let slot = index.index(list.len());
                    let (found, expected) = (bank.remove(slot).expect("a slot"), list.remove(slot));
                    let [found, expected] = [found, expected].map(|s| s.as_ref().map(state_bits));
                    prop_assert_eq!(found, expected);
                }
                Operation::Reinsert(index) => {
                    let slot = index.index(list.len());
                    let state = bank.remove(slot).expect("a slot");
                    bank.push(state).expect("it was here before");
                    let state = list.remove(slot);
                    list.push(state);
                }
            }
            assert_same(&bank, &list);
        }
    }
}

fn bank_of_three() -> AdapterBank {
    let slots = [
        Some(LoraSpec::new(2, 4.0)),
        None,
        Some(LoraSpec::new(3, 1.0)),
    ];
    Random::new(5).bank(&slots, SHAPE, 0, &device())
}

fn segments(rows: usize, parts: &[(std::ops::Range<usize>, usize)]) -> Segments {
    let parts = parts.iter().cloned();
    let parts = parts.map(|(rows, slot)| Segment { rows, slot }).collect();
    Segments::new(rows, parts).expect("in order")
}

#[test]
fn a_slot_that_does_not_exist_is_an_error_that_changes_nothing() {
    let mut bank = bank_of_three();
    let expected = BatchLoraError::NoSuchSlot { slot: 3, slots: 3 };
    assert_eq!(
        expected.to_string(),
        "slot 3 does not exist, the bank has 3"
    );
    assert_eq!(bank.extract(3).err(), Some(expected.clone()));
    assert_eq!(bank.remove(3).err(), Some(expected.clone()));
    assert_eq!(
        bank.route(&segments(4, &[(0..4, 3)]), None).err(),
        Some(expected.clone())
    );
    assert_eq!(
        bank.attach(&segments(4, &[(0..0, 3)]), None).err(),
        Some(expected)
    );
    assert_eq!((bank.num_slots(), bank.rank_sum()), (3, 5));
}

#[test]
fn an_adapter_of_another_shape_is_refused_and_takes_no_slot() {
    let mut bank = bank_of_three();
    let state = Random::new(0).adapter(LoraSpec::new(2, 1.0), [4, 6], &device());
    let error = bank.push(Some(state)).expect_err("transposed");
    assert_eq!(
        error.to_string(),
        "shapes do not fit: an adapter for a layer [4, 6] does not fit one of [6, 4]"
    );
    assert_eq!((bank.num_slots(), bank.rank_sum()), (3, 5));
}

#[test]
fn dropout_draws_are_one_per_slot() {
    let draws = [DropoutDraw { seed: 0, step: 0 }; 2];
    let error = bank_of_three().route(&segments(1, &[]), Some(&draws));
    assert_eq!(
        error.expect_err("two for three").to_string(),
        "shapes do not fit: 2 dropout draws for 3 slots"
    );
}

#[test]
fn impossible_specs_and_weights_are_refused() {
    let device = device();
    let message = |spec| AdapterState::init(spec, SHAPE, 0, 0, &device).expect_err("impossible");
    let spec = LoraSpec::new(4, 8.0);
    for (spec, expected) in [
        (LoraSpec::new(0, 8.0), "r must be at least 1, got 0"),
        (
            LoraSpec::new(4, f64::NAN),
            "lora_alpha must be finite, got NaN",
        ),
        (
            spec.with_lora_dropout(1.0),
            "lora_dropout must be in [0, 1), got 1",
        ),
        (
            spec.with_lora_dropout(-0.1),
            "lora_dropout must be in [0, 1), got -0.1",
        ),
        (
            spec.with_lora_dropout(f64::NAN),
            "lora_dropout must be in [0, 1), got NaN",
        ),
    ] {
        let expected = format!("invalid LoRA configuration: {expected}");
        assert_eq!(message(spec).to_string(), expected);
    }
    let error = AdapterState::new(spec, Random::new(0).pair(3, SHAPE, &device));
    assert_eq!(
        error.expect_err("of rank 3").to_string(),
        "shapes do not fit: A [3, 6] and B [3, 4] are not of rank 4"
    );
}

#[test]
fn segments_are_in_order_and_within_the_batch() {
    let segment = |rows, slot| Segment { rows, slot };
    #[expect(
        clippy::reversed_empty_ranges,
        reason = "a range that runs backwards is the mistake"
    )]
    for (wrong, expected) in [
        (
            vec![segment(0..5, 0)],
            "segment 0 covers rows 0..5, but must lie within 0..4",
        ),
        (
            vec![segment(2..1, 0)],
            "segment 0 covers rows 2..1, but must lie within 0..4",
        ),
        (
            vec![segment(0..3, 0), segment(2..4, 1)],
            "segment 1 covers rows 2..4, but must lie within 3..4",
        ),
    ] {
        let error = Segments::new(4, wrong).expect_err("wrong").to_string();
        assert_eq!(error, format!("shapes do not fit: {expected}"));
    }
    let error = segments(4, &[]).with_dropout_rows(vec![0; 3]);
    let error = error.expect_err("three for four").to_string();
    assert_eq!(error, "shapes do not fit: 3 dropout rows for a batch of 4");
}

#[test]
fn loss_scales_are_positive_and_one_for_a_slot() {
    let batch = segments(6, &[(0..2, 0), (2..4, 1), (4..6, 0)]);
    for (scales, expected) in [
        (
            vec![1.0, 2.0],
            "shapes do not fit: 2 loss scales for 3 segments",
        ),
        (
            vec![1.0, 0.0, 1.0],
            "a loss scale is a positive number, not 0",
        ),
        (
            vec![1.0, -2.0, 1.0],
            "a loss scale is a positive number, not -2",
        ),
        (
            vec![1.0, f32::INFINITY, 1.0],
            "a loss scale is a positive number, not inf",
        ),
        (
            vec![1.0, f32::NAN, 1.0],
            "a loss scale is a positive number, not NaN",
        ),
        (
            vec![4.0, 2.0, 8.0],
            "segments of slot 0 have loss scales 4 and 8",
        ),
    ] {
        let error = batch.clone().with_loss_scales(scales).expect_err("wrong");
        let error = error.to_string();
        assert!(error.ends_with(expected), "{error}");
    }
    assert!(batch.with_loss_scales(vec![4.0, 2.0, 4.0]).is_ok());
}

#[test]
fn routing_leaves_out_what_has_no_rows_or_no_adapter() {
    let bank = bank_of_three();
    let batch = segments(9, &[(0..2, 2), (2..4, 1), (4..4, 0), (5..9, 2)]);
    let routing = bank.route(&batch, None).expect("slots exist");
    let found: Vec<_> = routing
        .segments()
        .iter()
        .map(|s| (s.rows.clone(), s.ranks.clone(), s.scale))
        .collect();
    assert_eq!(found, [(0..2, 2..5, 1.0 / 3.0), (5..9, 2..5, 1.0 / 3.0)]);
    assert_eq!(
        (routing.rows(), routing.rank_sum(), routing.rank_max()),
        (9, 5, 3)
    );
    assert_eq!(routing.dropout_rows(0..9), [0, 1, 0, 1, 0, 0, 1, 2, 3]);

    let attached = |parts: &[_]| bank.attach(&segments(9, parts), None).expect("slots exist");
    assert!(attached(&[(0..9, 1)]).is_none());
    assert!(attached(&[(0..0, 0)]).is_none());
    assert!(attached(&[(0..1, 0)]).is_some());
}

#[test]
fn dropout_is_keyed_by_the_draw_of_the_slot_and_the_module_of_the_bank() {
    let dropped = LoraSpec::new(1, 1.0).with_lora_dropout(0.25);
    let slots = [Some(dropped), Some(LoraSpec::new(1, 1.0)), Some(dropped)];
    let bank = Random::new(0).bank(&slots, SHAPE, 17, &device());
    let batch = segments(6, &[(0..2, 2), (2..4, 1), (4..6, 0)]);
    let draw = |seed| DropoutDraw {
        seed,
        step: 40 + seed as u32,
    };
    let draws = [draw(0), draw(1), draw(2)];
    let key = |routing: batchlora::Routing| -> Vec<_> {
        let keys = routing.segments().iter().map(|segment| segment.dropout);
        keys.map(|key| key.map(|k| (k.probability, k.seed, k.step, k.module)))
            .collect()
    };
    let training = bank.route(&batch, Some(&draws)).expect("slots exist");
    let expected = [Some((0.25, 2, 42, 17)), None, Some((0.25, 0, 40, 17))];
    assert_eq!(key(training), expected);
    let evaluation = bank.route(&batch, None).expect("slots exist");
    assert_eq!(key(evaluation), [None; 3]);
}

#[test]
fn an_attached_bank_is_the_operator_with_its_weights() {
    let device = device().autodiff();
    let bank = bank_of_three();
    let batch = segments(7, &[(0..3, 2), (4..7, 0)]);
    let mut random = Random::new(8);
    let x = random.tensor([7, 6], &device).require_grad();
    let weight = random.tensor([6, 4], &device);

    let attached = bank
        .attach(&batch, None)
        .expect("slots exist")
        .expect("adapters");
    let attached = attached.require_grad();
    let h = attached
        .forward(x.clone(), weight.clone())
        .expect("operands that fit");
    let mut gradients = h.clone().sum().backward();
    let taken = attached.take_gradient(&mut gradients).expect("reached");
    assert!(
        attached.take_gradient(&mut gradients).is_none(),
        "taken already"
    );

    let weights = bank.weights().expect("adapters");
    let [a, b] = [weights.a, weights.b].map(|t| t.autodiff().require_grad());
    let routing = bank.route(&batch, None).expect("slots exist");
    let expected =
        lora_linear(x, weight, a.clone(), b.clone(), &routing).expect("operands that fit");
    let gradients = expected.clone().sum().backward();
    let grad = |leaf: Tensor<2>| host(leaf.grad(&gradients).expect("a gradient"));
    assert_eq!(host(h), host(expected));
    assert_eq!(host(taken.a), grad(a));
    assert_eq!(host(taken.b), grad(b));
}

#[test]
fn a_bank_made_on_an_autodiff_device_holds_plain_tensors() {
    let device = device().autodiff();
    let mut bank = AdapterBank::new(SHAPE[0], SHAPE[1], 0, &device);
    let state = AdapterState::init(LoraSpec::new(2, 4.0), SHAPE, 0, 0, &device).expect("valid");
    bank.push(Some(state)).expect("fits");
    bank.push(Some(Random::new(0).adapter(
        LoraSpec::new(1, 1.0),
        SHAPE,
        &device,
    )))
    .expect("fits");
    assert!(!bank.weights().expect("adapters").a.device().is_autodiff());
}

#[test]
fn a_fresh_adapter_is_pefts() {
    let (spec, shape) = (LoraSpec::new(32, 64.0), [300, 20]);
    let state = AdapterState::init(spec, shape, 7, 3, &device()).expect("valid");
    assert_eq!(state.spec, spec);
    assert_eq!(state.weights.a.dims(), [32, 300]);
    assert_eq!(state.weights.b.dims(), [32, 20]);
    let a = host(state.weights.a);
    let bound = 1.0 / 300f64.sqrt();
    let (mut sum, mut squares) = (0.0, 0.0);
    for &value in &a {
        let value = f64::from(value);
        assert!(value.abs() <= bound * (1.0 + 1e-6), "{value}");
        sum += value;
        squares += value * value;
    }
    // A uniform variable in ±bound has variance bound²/3, its square 4/45 bound⁴; five deviations.
    let count = a.len() as f64;
    assert!(
        (sum / count).abs() < 5.0 * bound / (3.0 * count).sqrt(),
        "{}",
        sum / count
    );
    let variance = squares / count / (bound * bound);
    assert!(
        (variance - 1.0 / 3.0).abs() < 5.0 * (4.0 / 45.0 / count).sqrt(),
        "{variance}"
    );
    let rest = [state.weights.b, state.first_moment.a, state.first_moment.b];
    let rest = rest
        .into_iter()
        .chain([state.second_moment.a, state.second_moment.b]);
    assert!(rest.flat_map(host).all(|value| value == 0.0));
}

/// PEFT 0.21.2: `nn.init.normal_(lora_A, std=1 / r)`, and B zero.
#[test]
fn a_gaussian_start_is_pefts() {
    let spec = LoraSpec::new(16, 64.0);
    let state = AdapterState::init_gaussian(spec, [900, 20], 7, 3, &device()).expect("valid");
    let a = wide(&host(state.weights.a));
    let (mean, variance) = moments(&a);
    let (deviation, count) = (1.0 / 16.0, a.len() as f64);
    // A variance of normal values has a deviation of sqrt(2 / count); five of them.
    assert!(mean.abs() < 5.0 * deviation / count.sqrt(), "{mean}");
    let ratio = variance / (deviation * deviation);
    assert!((ratio - 1.0).abs() < 5.0 * (2.0 / count).sqrt(), "{ratio}");
    let within = a.iter().filter(|value| value.abs() < deviation).count() as f64 / count;
    assert!((within - 0.6827).abs() < 0.02, "{within}");
    assert!(host(state.weights.b).iter().all(|&value| value == 0.0));
}

/// PEFT 0.21.2, `orthogonal_init`: `A = (N q_odd)ᵀ / 10` and `B = N' q_even / 10` with the rows of an orthogonal
/// matrix, so that `B A` is zero, and the columns of A lie in one half of the space of ranks, those of B in the other.
#[test]
fn an_orthogonal_start_is_pefts() {
    let (r, shape) = (8, [900, 500]);
    let init = |r| AdapterState::init_orthogonal(LoraSpec::new(r, 8.0), shape, 7, 3, &device());
    let state = init(r).expect("valid");
    let [a, b] = [state.weights.a, state.weights.b].map(|values| wide(&host(values)));
    for (factor, width) in [(&a, shape[0]), (&b, shape[1])] {
        // Every column is half of the ranks of a normal vector: its squares add up to r / 2 / 100.
        let squares = factor.iter().map(|value| value * value).sum::<f64>() / width as f64;
        let ratio = squares / (r as f64 / 2.0 / 100.0);
        assert!(
            (ratio - 1.0).abs() < 5.0 * (4.0 / (r * width) as f64).sqrt(),
            "{ratio}"
        );
        // And so its Gram matrix is near a projection of rank r / 2 times the width over 100.
        let gram = |i: usize, j: usize| -> f64 {
            let rows = [i, j].map(|row| &factor[row * width..][..width]);
            rows[0].iter().zip(rows[1]).map(|(x, y)| x * y).sum::<f64>() * 100.0 / width as f64
        };
        let trace_of_square: f64 = (0..r * r).map(|at| gram(at / r, at % r).powi(2)).sum();
        assert!((trace_of_square - 4.0).abs() < 0.8, "{trace_of_square}");
    }
    let largest = (0..20).flat_map(|out| (0..20).map(move |input| (out, input)));
    let product = |(out, input): (usize, usize)| -> f64 {
        let ranks = 0..r;
        ranks
            .map(|rank| b[rank * shape[1] + out] * a[rank * shape[0] + input])
            .sum()
    };
    let largest = largest
        .map(product)
        .fold(0.0, |most: f64, value| most.max(value.abs()));
    assert!(largest < 1e-8, "{largest}");
    let error = init(7).expect_err("an odd rank").to_string();
    assert!(error.contains("even r, got 7"), "{error}");
}

fn moments(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares = values.iter().map(|value| (value - mean).powi(2));
    (mean, squares.sum::<f64>() / values.len() as f64)
}

#[test]
fn fresh_adapters_are_functions_of_seed_and_module() {
    for init in [
        AdapterState::init,
        AdapterState::init_gaussian,
        AdapterState::init_orthogonal,
    ] {
        check_seed_and_module(init);
    }
}

type Init = fn(LoraSpec, [usize; 2], u64, u32, &Device) -> Result<AdapterState, BatchLoraError>;

fn check_seed_and_module(init: Init) {
    let device = device();
    let fresh = |r, seed, module| {
        let state = init(LoraSpec::new(r, 1.0), SHAPE, seed, module, &device).expect("valid");
        bits(&host(state.weights.a))
    };
    let expected = fresh(4, 7, 3);
    assert_eq!(fresh(4, 7, 3), expected);
    let mut others = vec![fresh(4, 8, 3), fresh(4, 7 + (1 << 32), 3), fresh(4, 7, 4)];
    others.push(expected.clone());
    for (index, one) in others.iter().enumerate() {
        for other in &others[..index] {
            assert_eq!(one.iter().filter(|value| other.contains(value)).count(), 0);
        }
    }
    // Rows do not repeat each other.
    let mut rows: Vec<_> = expected.chunks(6).collect();
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), 4);
}
