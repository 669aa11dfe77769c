//! The decoder's operations, values and gradients, against compositions of Burn's own. The
//! compositions run on the CPU, whatever device is tested.

use batchlora::seed_gradient;
use burn::tensor::{DType, Device, FloatDType, Gradients, Tensor, TensorData, activation};
use loraloom_model::{
    Activation, AttentionShape, Sequences, glu, rms_norm, rotate, self_attention,
};

use crate::decoder::support::{Random, assert_close, assert_close_values, device, host};

pub(crate) const TOLERANCE: f32 = 1e-5;

/// Backward from a random gradient of `y`; the gradients of `leaves`.
fn gradients<const N: usize>(y: Tensor<2>, leaves: &[Tensor<2>; N], seed: u64) -> [Tensor<2>; N] {
    let gradient = Random::new(seed).tensor(y.dims(), &y.device());
    let gradients: Gradients = seed_gradient(y, gradient).backward();
    leaves
        .each_ref()
        .map(|leaf| leaf.grad(&gradients).expect("a gradient"))
}

/// The same values in the middle of a larger, transposed tensor.
fn view(x: Tensor<2>) -> Tensor<2> {
    let [rows, columns] = x.dims();
    let side = Tensor::<2>::full([rows, 3], 7.0, &x.device());
    let wide = Tensor::cat(vec![side.clone(), x, side], 1).transpose();
    let end = Tensor::<2>::full([columns + 6, 1], 8.0, &wide.device());
    let all = Tensor::cat(vec![end.clone(), wide, end], 1).transpose();
    all.slice([1..rows + 1, 3..columns + 3])
}

/// Value and gradients of an operation and of its composition on leaves of the same values, with and
/// without gradient checkpointing.
#[track_caller]
pub(crate) fn compare<const N: usize>(
    what: &str,
    shapes: [[usize; 2]; N],
    spread: f32,
    operation: impl Fn([Tensor<2>; N]) -> Tensor<2>,
    composition: impl Fn([Tensor<2>; N]) -> Tensor<2>,
) {
    let leaves_on = |device: Device| {
        let mut random = Random::new(shapes[0][0] as u64 * 31 + shapes[0][1] as u64);
        shapes.map(|shape| {
            let values = random.tensor(shape, &device);
            values.mul_scalar(spread).detach().require_grad()
        })
    };
    let oracle_leaves = leaves_on(Device::flex().autodiff());
    let expected = composition(oracle_leaves.clone());
    let expected_gradients = gradients(expected.clone(), &oracle_leaves, 9);
    for device in [
        device().autodiff(),
        device().autodiff().gradient_checkpointing(),
    ] {
        let leaves = leaves_on(device);
        // A cheap operation in front, so that checkpointing has something to compute again.
        let inputs = || leaves.each_ref().map(|leaf| leaf.clone() * 1.0);
        let found = operation(inputs());
        assert_close(what, found.clone(), expected.clone(), TOLERANCE);
        // Views with offsets and strides are read as what they show.
        let views = inputs().map(view);
        assert_close(what, operation(views), found.clone(), 1e-6);
        let found = gradients(found, &leaves, 9);
        let expected = expected_gradients.clone();
        for (index, (found, expected)) in found.into_iter().zip(expected).enumerate() {
            let what = format!("{what}: gradient {index}");
            assert_close(&what, found, expected, TOLERANCE);
        }
    }
}

pub(crate) fn composed_rms_norm(x: Tensor<2>, weight: Tensor<1>, epsilon: f64) -> Tensor<2> {
    let mean = x.clone().powi_scalar(2).mean_dim(1);
    x / mean.add_scalar(epsilon).sqrt() * weight.unsqueeze()
}

#[test]
fn rms_norm_is_its_definition() {
    for [rows, width] in [
        [1, 3],
        [1, 48],
        [7, 5],
        [33, 64],
        [3, 1027],
        [300, 96],
        [130, 96],
    ] {
        for epsilon in [1e-6, 0.3] {
            let weight = |device: &Device| Random::new(4).tensor::<1>([width], device);
            compare(
                &format!("rms_norm [{rows}, {width}] {epsilon}"),
                [[rows, width]],
                2.0,
                |[x]| rms_norm(x, weight(&device()), epsilon),
                |[x]| composed_rms_norm(x, weight(&Device::flex()), epsilon),
            );
        }
    }
}

#[test]
fn rms_norm_of_zero_is_zero_and_its_gradient_finite() {
    let device = device().autodiff();
    let x = Tensor::<2>::zeros([2, 8], &device).require_grad();
    let y = rms_norm(x.clone(), Tensor::ones([8], &device), 1e-6);
    assert_eq!(host(y.clone()), [0.0; 16]);
    let [dx] = gradients(y, &[x], 1);
    assert!(host(dx).iter().all(|value| value.is_finite()));
}

/// Inputs whose squares overflow in half precision.
#[test]
fn rms_norm_of_large_half_precision_values_is_finite() {
    let device = device();
    if !device.supports_dtype(DType::F16) {
        return;
    }
    let x = Tensor::<2>::full([1, 64], 3e4, &device).cast(FloatDType::F16);
    let weight = Tensor::<1>::ones([64], &device).cast(FloatDType::F16);
    let y = rms_norm(x, weight, 1e-6);
    assert_eq!(y.dtype(), DType::F16);
    assert_eq!(host(y), [1.0; 64]);
}

pub(crate) fn composed_swiglu(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    gate.clone() * activation::sigmoid(gate) * up
}

/// With transformers' `gelu_pytorch_tanh`.
pub(crate) fn composed_geglu(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    let cube = gate.clone().powi_scalar(3).mul_scalar(0.044_715);
    let inner = (gate.clone() + cube).mul_scalar((2.0 / std::f64::consts::PI).sqrt());
    gate.mul_scalar(0.5) * inner.tanh().add_scalar(1.0) * up
}

fn swiglu(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    glu(gate, up, Activation::Silu)
}

fn geglu(gate: Tensor<2>, up: Tensor<2>) -> Tensor<2> {
    glu(gate, up, Activation::GeluTanh)
}

#[test]
fn glus_are_their_definitions() {
    for shape in [[1, 1], [5, 7], [16, 112], [3, 1031], [70, 300]] {
        compare(
            &format!("swiglu {shape:?}"),
            [shape; 2],
            6.0,
            |[gate, up]| swiglu(gate, up),
            |[gate, up]| composed_swiglu(gate, up),
        );
        compare(
            &format!("geglu {shape:?}"),
            [shape; 2],
            6.0,
            |[gate, up]| geglu(gate, up),
            |[gate, up]| composed_geglu(gate, up),
        );
    }
}

/// More units than cubes in one dimension hold, as the elements do not fit whole vectors.
#[test]
fn swiglu_of_very_many_elements() {
    let on = |device: &Device| {
        let mut random = Random::new(5);
        let mut values = || random.tensor::<2>([3, 5_600_001], device);
        [values(), values()]
    };
    let [gate, up] = on(&device());
    let [oracle_gate, oracle_up] = on(&Device::flex());
    let expected = composed_swiglu(oracle_gate, oracle_up);
    assert_close("swiglu", swiglu(gate, up), expected, TOLERANCE);
}

#[test]
fn glus_saturate_without_nan() {
    saturates(swiglu);
    saturates(geglu);
}

fn saturates(glu: fn(Tensor<2>, Tensor<2>) -> Tensor<2>) {
    let device = device().autodiff();
    let values = [-1e10, -200.0, -90.0, -0.0, 0.0, 90.0, 200.0, 1e10];
    let gate = Tensor::<2>::from_data(TensorData::new(values.to_vec(), [1, 8]), &device);
    let (gate, up) = (
        gate.require_grad(),
        Tensor::ones([1, 8], &device).require_grad(),
    );
    let y = glu(gate.clone(), up.clone());
    let expected: Vec<f32> = values.iter().map(|&z: &f32| z.max(0.0)).collect();
    assert_near(&host(y.clone()), &expected);
    let gradients = y.sum().backward();
    let slope = [0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 1.0];
    let found = host(gate.grad(&gradients).expect("a gradient"));
    assert_near(&found, &slope);
    assert_near(&host(up.grad(&gradients).expect("a gradient")), &expected);
}

#[track_caller]
fn assert_near(found: &[f32], expected: &[f32]) {
    let pairs = found.iter().zip(expected);
    let near = |(found, expected): (&f32, &f32)| (found - expected).abs() <= 1e-6;
    assert!(pairs.into_iter().all(near), "{found:?} {expected:?}");
}

/// transformers' `apply_rotary_pos_emb`: `x · cos + rotate_half(x) · sin`.
pub(crate) fn composed_rotate(x: Tensor<2>, cos: Tensor<2>, sin: Tensor<2>) -> Tensor<2> {
    let ([rows, width], half) = (x.dims(), cos.dims()[1]);
    let x = x.reshape([rows, width / (2 * half), 2 * half]);
    let (first, second) = (
        x.clone().narrow(2, 0, half),
        x.clone().narrow(2, half, half),
    );
    let turned = Tensor::cat(vec![second.neg(), first], 2);
    let table = |table: Tensor<2>| Tensor::cat(vec![table.clone(), table], 1).unsqueeze_dim::<3>(1);
    (x * table(cos) + turned * table(sin)).reshape([rows, width])
}

#[test]
fn rotate_is_transformers() {
    for (rows, heads, head_dim) in [(1, 1, 2), (9, 4, 12), (333, 3, 64), (5, 8, 128), (4, 1, 6)] {
        // Not on the unit circle: yarn scales the tables.
        let table =
            |seed, device: &Device| Random::new(seed).tensor::<2>([rows, head_dim / 2], device);
        compare(
            &format!("rotate {rows} {heads} {head_dim}"),
            [[rows, heads * head_dim]],
            1.0,
            |[x]| rotate(x, table(1, &device()), table(2, &device())),
            |[x]| composed_rotate(x, table(1, &Device::flex()), table(2, &Device::flex())),
        );
    }
}

#[test]
fn elementwise_operations_of_random_shapes() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let (rows, heads) = (1 + random.below(90), 1 + random.below(5));
        let half = [32, 40, 64, 1 + random.below(100)][random.below(4)];
        let width = 2 * half * heads;
        let shape = [rows, width];
        println!("seed {seed}: {shape:?}, {heads} heads");
        let what = |name: &str| format!("{name} {shape:?}, seed {seed}");
        let vector = |device: &Device| Random::new(seed).tensor::<1>([width], device);
        compare(
            &what("rms_norm"),
            [shape],
            1.0,
            |[x]| rms_norm(x, vector(&device()), 1e-5),
            |[x]| composed_rms_norm(x, vector(&Device::flex()), 1e-5),
        );
        compare(
            &what("swiglu"),
            [shape; 2],
            3.0,
            |[gate, up]| swiglu(gate, up),
            |[gate, up]| composed_swiglu(gate, up),
        );
        compare(
            &what("geglu"),
            [shape; 2],
            3.0,
            |[gate, up]| geglu(gate, up),
            |[gate, up]| composed_geglu(gate, up),
        );
        let table = |seed, device: &Device| Random::new(seed).tensor::<2>([rows, half], device);
        compare(
            &what("rotate"),
            [shape],
            1.0,
            |[x]| rotate(x, table(1, &device()), table(2, &device())),
            |[x]| composed_rotate(x, table(1, &Device::flex()), table(2, &Device::flex())),
        );
    }
}

#[test]
fn no_rows_are_no_rows() {
    let empty = |width: usize| Tensor::<2>::zeros([0, width], &device());
    let weight = Tensor::<1>::ones([8], &device());
    assert_eq!(rms_norm(empty(8), weight, 1e-6).dims(), [0, 8]);
    assert_eq!(swiglu(empty(8), empty(8)).dims(), [0, 8]);
    assert_eq!(rotate(empty(8), empty(2), empty(2)).dims(), [0, 8]);
}

type Operation<'a> = Box<dyn Fn([Tensor<2>; 3], FloatDType) -> Tensor<2> + 'a>;

/// In half precision the result is that of `float32` on the same rounded inputs, rounded.
#[test]
fn half_precision_is_rounded_float32() {
    let plain = device();
    for (dtype, tolerance) in [(FloatDType::F16, 2e-3), (FloatDType::BF16, 2e-2)] {
        if !plain.supports_dtype(DType::from(dtype)) {
            continue;
        }
        // The long one is split on a GPU.
        let shape = AttentionShape {
            sequences: Sequences::from_lengths([5, 11, 260]),
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 8,
            window: None,
            score_scale: None,
            softcap: None,
        };
        let rows = shape.sequences.rows();
        let table = |seed| Random::new(seed).tensor::<2>([rows, 4], &plain);
        let gamma = |dtype| Random::new(3).tensor::<1>([32], &plain).cast(dtype);
        let operations: [(&str, Operation<'_>); 6] = [
            (
                "rms_norm",
                Box::new(|[x, ..], dtype| rms_norm(x, gamma(dtype), 1e-6)),
            ),
            (
                "rms_norm with a weight in float32",
                Box::new(|[x, ..], _| rms_norm(x, gamma(FloatDType::F32), 1e-6)),
            ),
            ("swiglu", Box::new(|[x, ..], _| swiglu(x.clone(), x))),
            ("geglu", Box::new(|[x, ..], _| geglu(x.clone(), x))),
            (
                "rotate",
                Box::new(|[x, ..], _| rotate(x, table(1), table(2))),
            ),
            (
                "attention",
                Box::new(|[q, k, v], _| self_attention(q, k, v, &shape)),
            ),
        ];
        for (name, operation) in operations {
            let run = |with: FloatDType| {
                let autodiff = plain.clone().autodiff();
                let mut random = Random::new(6);
                // Rounded to the narrow type first, whatever type it runs in.
                let leaves = [[rows, 32], [rows, 16], [rows, 16]].map(|shape| {
                    let values: Tensor<2> = random.tensor(shape, &autodiff);
                    values.cast(dtype).cast(with).detach().require_grad()
                });
                let y = operation(leaves.clone(), with);
                assert_eq!(y.dtype(), DType::from(with), "{name}");
                let gradient: Tensor<2> = Random::new(9).tensor(y.dims(), &autodiff);
                let gradient = gradient.cast(dtype).cast(with);
                let gradients = seed_gradient(y.clone(), gradient).backward();
                let dx = leaves[0].grad(&gradients).expect("a gradient");
                assert_eq!(dx.dtype(), DType::from(with), "{name}");
                [host(y), host(dx)]
            };
            for (found, expected) in run(dtype).iter().zip(run(FloatDType::F32)) {
                assert_close_values(&format!("{name} in {dtype:?}"), found, &expected, tolerance);
            }
        }
    }
}
