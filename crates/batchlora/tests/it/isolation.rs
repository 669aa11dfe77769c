//! What an adapter computes does not depend on its neighbours in the batch.

use batchlora::{
    AdapterBank, DropoutDraw, LoraSpec, Segment, Segments, frozen_linear, lora_linear,
    seed_gradient,
};
use burn::tensor::{Device, Tensor};

use crate::support::{Random, bits, device, host, tensor};

const D_IN: usize = 96;
/// Several blocks of columns where the backward kernel takes them in blocks.
const D_OUT: usize = 520;

struct Task {
    spec: LoraSpec,
    seed: u64,
    /// Rows of each of its segments.
    segments: &'static [usize],
}

fn tasks() -> Vec<Task> {
    let task = |spec, seed, segments| Task {
        spec,
        seed,
        segments,
    };
    vec![
        task(LoraSpec::new(8, 16.0).with_lora_dropout(0.1), 11, &[33]),
        task(LoraSpec::new(64, 16.0), 12, &[1]),
        task(LoraSpec::new(1, 2.0).with_lora_dropout(0.5), 13, &[57]),
        task(LoraSpec::new(16, 4.0).with_use_rslora(true), 14, &[7, 130]),
    ]
}

/// What one task gets out of a batch.
#[derive(Debug, PartialEq)]
struct Outcome {
    h: Vec<u32>,
    dx: Vec<u32>,
    da: Vec<u32>,
    db: Vec<u32>,
}

/// Runs tasks in the order given, with rows of no adapter between them; a task's operands depend on
/// its seed alone. The outcomes are in the same order.
fn run(tasks: &[&Task], weight: &Tensor<2>, gap: usize, device: &Device) -> Vec<Outcome> {
    let plain = device.clone().without_autodiff();
    let mut bank = AdapterBank::new(D_IN, D_OUT, 3, &plain);
    let (mut segments, mut places) = (Vec::new(), Vec::new());
    let (mut x, mut gradient) = (Vec::new(), Vec::new());
    let mut rows_of = Vec::new();
    for (slot, task) in tasks.iter().enumerate() {
        let mut random = Random::new(task.seed);
        let adapter = random.adapter(task.spec, [D_IN, D_OUT], &plain);
        bank.push(Some(adapter)).expect("fits");
        let (mut own, mut place) = (Vec::new(), 0);
        for &rows in task.segments {
            x.extend(Random::new(gap as u64).values(gap * D_IN));
            gradient.extend(Random::new(gap as u64).values(gap * D_OUT));
            places.extend(vec![0; gap]);
            let start = places.len();
            x.extend(random.values(rows * D_IN));
            gradient.extend(random.values(rows * D_OUT));
            places.extend(place..place + rows as u32);
            place += rows as u32;
            own.extend(start..start + rows);
            segments.push(Segment {
                rows: start..start + rows,
                slot,
            });
        }
        rows_of.push(own);
    }
    let rows = places.len();
    let segments = Segments::new(rows, segments)
        .and_then(|segments| segments.with_dropout_rows(places))
        .expect("in order");
    let draw = |task: &&Task| DropoutDraw {
        seed: task.seed,
        step: 9,
    };
    let draws: Vec<_> = tasks.iter().map(draw).collect();
    let routing = bank.route(&segments, Some(&draws)).expect("slots exist");

    let weights = bank.weights().expect("adapters");
    let [a, b] = [weights.a, weights.b].map(|t| t.autodiff().require_grad());
    let x = tensor(x, [rows, D_IN], device).require_grad();
    let h = lora_linear(x.clone(), weight.clone(), a.clone(), b.clone(), &routing)
        .expect("operands that fit");
    let gradient = tensor(gradient, [rows, D_OUT], device);
    let gradients = seed_gradient(h.clone(), gradient).backward();
    let grad = |leaf: &Tensor<2>| host(leaf.grad(&gradients).expect("a gradient"));
    let (h, dx, da, db) = (host(h), grad(&x), grad(&a), grad(&b));

    let mut rank = 0;
    let picked = |values: &[f32], rows: &[usize], width: usize| {
        let rows = rows.iter().flat_map(|row| &values[row * width..][..width]);
        rows.map(|value| value.to_bits()).collect()
    };
    tasks
        .iter()
        .zip(rows_of)
        .map(|(task, rows)| {
            let ranks: Vec<_> = (rank..rank + task.spec.r).collect();
            rank += task.spec.r;
            Outcome {
                h: picked(&h, &rows, D_OUT),
                dx: picked(&dx, &rows, D_IN),
                da: picked(&da, &ranks, D_IN),
                db: picked(&db, &ranks, D_OUT),
            }
        })
        .collect()
}

/// With a frozen weight of zero all that is left is the adapters' part.
#[test]
fn an_adapters_part_is_bit_identical_alone_and_among_others() {
    let device = device().autodiff();
    let weight = Tensor::<2>::zeros([D_IN, D_OUT], &device);
    let tasks = tasks();
    let all: Vec<_> = tasks.iter().collect();
    let together = run(&all, &weight, 5, &device);
    let reversed: Vec<_> = all.iter().rev().copied().collect();
    let mut backwards = run(&reversed, &weight, 0, &device);
    backwards.reverse();
    for ((task, among), backwards) in tasks.iter().zip(together).zip(backwards) {
        let alone = run(&[task], &weight, 0, &device).remove(0);
        assert!(among == alone, "task {} differs among others", task.seed);
        assert!(
            backwards == alone,
            "task {} differs in another order",
            task.seed
        );
    }
}

/// A frozen A has a gradient of zero. All other results, its own adapter's included, have the bits that they have
/// without it.
#[test]
fn a_frozen_a_has_no_gradient() {
    let device = device().autodiff();
    let weight = Tensor::<2>::zeros([D_IN, D_OUT], &device);
    let mut tasks = tasks();
    let thawed = run(&tasks.iter().collect::<Vec<_>>(), &weight, 5, &device);
    let frozen = |index: usize| index.is_multiple_of(3);
    for (index, task) in tasks.iter_mut().enumerate() {
        task.spec.freeze_a = frozen(index);
    }
    let found = run(&tasks.iter().collect::<Vec<_>>(), &weight, 5, &device);
    for (index, (found, mut expected)) in found.into_iter().zip(thawed).enumerate() {
        if frozen(index) {
            let mut gradient = found.da.iter().map(|bits| f32::from_bits(*bits));
            assert!(gradient.all(|value| value == 0.0), "{index}");
            expected.da.clone_from(&found.da);
        }
        assert!(found == expected, "{index}");
    }
}

/// On the CPU the frozen product keeps that promise too; elsewhere its rounding may depend on the
/// number of rows.
#[test]
fn with_a_frozen_weight_too() {
    let device = device().autodiff();
    let weight = Random::new(1).tensor([D_IN, D_OUT], &device);
    let tasks = tasks();
    let all: Vec<_> = tasks.iter().collect();
    let together = run(&all, &weight, 5, &device);
    for (task, among) in tasks.iter().zip(together) {
        let alone = run(&[task], &weight, 0, &device).remove(0);
        let what = format!("task {}", task.seed);
        assert!(among.da == alone.da && among.db == alone.db, "{what}");
        assert_same_rows(&format!("h of {what}"), &among.h, &alone.h);
        assert_same_rows(&format!("dx of {what}"), &among.dx, &alone.dx);
    }
}

#[track_caller]
fn assert_same_rows(what: &str, found: &[u32], expected: &[u32]) {
    let bound = if device() == Device::flex() {
        0.0
    } else {
        4e-6
    };
    let difference = relative(found, expected);
    assert!(difference <= bound, "{what}: {difference:.1e}");
}

/// The largest difference, over the largest magnitude.
fn relative(found: &[u32], expected: &[u32]) -> f32 {
    let pairs = found.iter().zip(expected);
    let pairs = pairs.map(|(&f, &e)| (f32::from_bits(f), f32::from_bits(e)));
    let (difference, largest) = pairs.fold((0f32, 0f32), |(difference, largest), (f, e)| {
        (difference.max((f - e).abs()), largest.max(e.abs()))
    });
    difference / largest
}

/// Burn's own product on Flex with AVX-512, measured against the same rows of a product of 256, is
/// bit-identical from four rows on for either layout of the weight; one, two or three rows go
/// through other kernels and differ by up to 1.5e-6 of the largest magnitude.
#[test]
fn rows_of_a_frozen_product_do_not_depend_on_their_number() {
    let device = device().autodiff();
    for (d_in, d_out) in [(48, 112), (96, 80), (256, 688), (1024, 256), (2048, 512)] {
        let mut random = Random::new(2);
        let values = random.tensor([256, d_in], &device);
        let seeds = random.tensor([256, d_out], &device);
        let stored = random.tensor([d_out, d_in], &device);
        let contiguous = random.tensor([d_in, d_out], &device);
        for (layout, weight) in [
            ("contiguous", contiguous),
            ("transposed", stored.transpose()),
        ] {
            let run = |rows: usize| {
                let x = values
                    .clone()
                    .slice([0..rows, 0..d_in])
                    .detach()
                    .require_grad();
                let h = frozen_linear(x.clone(), weight.clone());
                let seed = seeds.clone().slice([0..rows, 0..d_out]);
                let gradients = seed_gradient(h.clone(), seed).backward();
                let dx = x.grad(&gradients).expect("a gradient");
                (bits(&host(h)), bits(&host(dx)))
            };
            let (h, dx) = run(256);
            for rows in [
                1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 64, 100, 128, 192, 255,
            ] {
                let what = format!("[{rows}, {d_in}] x [{d_in}, {d_out}], {layout}");
                let found = run(rows);
                assert_same_rows(&what, &found.0, &h[..rows * d_out]);
                assert_same_rows(&format!("{what}, dx"), &found.1, &dx[..rows * d_in]);
            }
        }
    }
}

/// Banks of one batch that differ in the adapters they have: one without rows here gets gradients of zero
/// where it is, and takes no place where it is not.
#[test]
fn banks_over_one_batch_keep_their_own_sums() {
    let device = device();
    let plain = device.clone().without_autodiff();
    let spec = |r| Some(LoraSpec::new(r, 2.0));
    let segments = Segments::new(
        40,
        vec![Segment {
            rows: 0..40,
            slot: 0,
        }],
    )
    .expect("in order");
    for (number, slots) in [[spec(4), None], [spec(4), spec(8)]].iter().enumerate() {
        let mut random = Random::new(7 + number as u64);
        let bank = random.bank(slots, [D_IN, D_OUT], 3, &plain);
        let routing = bank.route(&segments, None).expect("slots exist");
        let weights = bank.weights().expect("adapters");
        let [a, b] = [weights.a, weights.b].map(|t| t.autodiff().require_grad());
        let x = tensor(random.values(40 * D_IN), [40, D_IN], &device);
        let weight = tensor(random.values(D_IN * D_OUT), [D_IN, D_OUT], &device);
        let h = lora_linear(x, weight, a.clone(), b.clone(), &routing).expect("operands that fit");
        let gradient = tensor(random.values(40 * D_OUT), [40, D_OUT], &device);
        let gradients = seed_gradient(h, gradient).backward();
        for (leaf, width) in [(&a, D_IN), (&b, D_OUT)] {
            let found = host(leaf.grad(&gradients).expect("a gradient"));
            assert_eq!(found.len(), routing.rank_sum() * width);
            assert!(found[..4 * width].iter().any(|&value| value != 0.0));
            assert!(found[..4 * width].iter().all(|value| value.is_finite()));
            assert!(found[4 * width..].iter().all(|value| value.to_bits() == 0));
        }
    }
}
