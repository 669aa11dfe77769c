//! DoRA against its equation in double precision, whose gradients are finite differences.

use batchlora::{
    AdapterBank, AdapterState, BatchLoraLinear, DropoutDraw, LoraPair, LoraSpec, Segment, Segments,
    seed_gradient,
};
use burn::{
    module::Module,
    nn::LinearConfig,
    tensor::{Device, FloatDType, Tensor},
};

use crate::support::{Random, assert_close, bits, device, host, state_bits, wide};

const SHAPE: [usize; 2] = [13, 9];
const ROWS: usize = 14;
/// By slot.
const LOSS_SCALES: [f32; 4] = [4.0, 1.0, 0.5, 1.0];

/// With and without magnitudes, scales and dropout.
fn specs() -> [LoraSpec; 4] {
    [
        LoraSpec::new(4, 8.0).with_use_dora(true),
        LoraSpec::new(3, 3.0).with_lora_dropout(0.3),
        LoraSpec::new(2, 4.0)
            .with_use_dora(true)
            .with_lora_dropout(0.4),
        LoraSpec::new(5, 2.0)
            .with_use_rslora(true)
            .with_use_dora(true)
            .with_lora_dropout(0.2),
    ]
}

/// Rows of no adapter, and two adapters with two segments each.
fn segments() -> Segments {
    let places = [
        (0..2, 2),
        (3..6, 0),
        (6..8, 1),
        (8..11, 3),
        (11..12, 2),
        (12..14, 0),
    ];
    let segments = places.map(|(rows, slot)| Segment { rows, slot });
    let scales = segments
        .iter()
        .map(|segment| LOSS_SCALES[segment.slot])
        .collect();
    let segments = Segments::new(ROWS, segments.to_vec()).expect("in order");
    segments.with_loss_scales(scales).expect("one for a slot")
}

/// In mid-training.
fn layer(specs: &[LoraSpec], device: &Device) -> BatchLoraLinear {
    let mut linear = LinearConfig::new(SHAPE[0], SHAPE[1]).init(device);
    let weight = Random::new(1).tensor(SHAPE, device);
    linear.weight = linear.weight.map(|_| weight);
    let bias = Random::new(4).tensor([1, SHAPE[1]], device).flatten(0, 1);
    linear.bias = linear.bias.map(|param| param.map(|_| bias));
    let mut layer = BatchLoraLinear::new(linear, 5);
    for (spec, seed) in specs.iter().zip(7..) {
        let adapter = Random::new(seed).adapter(*spec, SHAPE, device);
        layer
            .push(Some(adapter), DropoutDraw { seed, step: 3 })
            .expect("of its shape");
    }
    layer
}

/// All operands in double precision.
#[derive(Clone)]
struct Operands {
    x: Vec<f64>,
    /// A, B and magnitude of each slot.
    adapters: Vec<[Vec<f64>; 3]>,
    weight: Vec<f64>,
    bias: Vec<f64>,
}

impl Operands {
    fn of(layer: &BatchLoraLinear, x: &[f32]) -> Self {
        let adapters = (0..layer.bank().num_slots()).map(|slot| {
            let state = layer
                .bank()
                .extract(slot)
                .expect("a slot")
                .expect("an adapter");
            let LoraPair { a, b, magnitude } = state.weights;
            let magnitude = magnitude.map_or_else(Vec::new, host);
            [host(a), host(b), magnitude].map(|values| wide(&values))
        });
        Self {
            x: wide(x),
            adapters: adapters.collect(),
            weight: wide(&host(layer.linear.weight.val())),
            bias: wide(&host(layer.linear.bias.as_ref().expect("a bias").val())),
        }
    }

    /// `W + s·A B` of a slot, `[d_in, d_out]`.
    fn adapted(&self, slot: usize, spec: &LoraSpec) -> Vec<f64> {
        let [a, b, _] = &self.adapters[slot];
        let [d_in, d_out] = SHAPE;
        let element = |at: usize| {
            let (row, column) = (at / d_out, at % d_out);
            let products = (0..spec.r).map(|k| a[k * d_in + row] * b[k * d_out + column]);
            self.weight[at] + spec.scale() * products.sum::<f64>()
        };
        (0..d_in * d_out).map(element).collect()
    }

    /// The norms of its columns.
    fn norms(&self, slot: usize, spec: &LoraSpec) -> Vec<f64> {
        let adapted = self.adapted(slot, spec);
        let column = |column: usize| adapted.iter().skip(column).step_by(SHAPE[1]);
        let norm = |at| column(at).map(|value| value * value).sum::<f64>().sqrt();
        (0..SHAPE[1]).map(norm).collect()
    }
}

/// PEFT's output in training: `x W + b` without an adapter, `x W + b + s·D(x) A B` with LoRA, and with DoRA
/// `x W + b + (m / n - 1) ∘ D(x) W + m / n ∘ s·D(x) A B`.
fn forward(
    layer: &BatchLoraLinear,
    specs: &[LoraSpec],
    operands: &Operands,
    norms: &[Vec<f64>],
) -> Vec<f64> {
    let [d_in, d_out] = SHAPE;
    let routing = layer
        .bank()
        .route(&segments(), Some(layer.draws()))
        .expect("slots exist");
    let times = |x: &[f64], matrix: &[f64], column: usize| -> f64 {
        x.iter()
            .zip(matrix.iter().skip(column).step_by(d_out))
            .map(|(x, w)| x * w)
            .sum()
    };
    let mut output = Vec::new();
    for row in 0..ROWS {
        let x = &operands.x[row * d_in..][..d_in];
        let slot = segments()
            .iter()
            .find(|segment| segment.rows.contains(&row))
            .map(|segment| segment.slot);
        let mask = routing
            .segments()
            .iter()
            .find(|segment| segment.rows.contains(&row))
            .and_then(|segment| {
                Some(wide(
                    &segment
                        .dropout?
                        .mask(routing.dropout_rows(row..row + 1), d_in),
                ))
            });
        let mask = mask.unwrap_or_else(|| vec![1.0; d_in]);
        let dropped: Vec<f64> = x.iter().zip(mask).map(|(x, mask)| x * mask).collect();
        for column in 0..d_out {
            let base = times(x, &operands.weight, column);
            let part = slot.map_or(0.0, |slot| {
                let of_dropped = times(&dropped, &operands.weight, column);
                let lora =
                    times(&dropped, &operands.adapted(slot, &specs[slot]), column) - of_dropped;
                match operands.adapters[slot][2].get(column) {
                    Some(magnitude) => {
                        let scale = magnitude / norms[slot][column];
                        (scale - 1.0) * of_dropped + scale * lora
                    }
                    None => lora,
                }
            });
            output.push(base + operands.bias[column] + part);
        }
    }
    output
}

#[test]
fn a_layer_and_its_gradients_are_the_equations() {
    let device = device().autodiff();
    let (specs, layer) = (specs(), layer(&specs(), &device));
    let mut random = Random::new(2);
    let (x, gradient) = (
        random.values(ROWS * SHAPE[0]),
        random.values(ROWS * SHAPE[1]),
    );
    let operands = Operands::of(&layer, &x);
    let norms: Vec<_> = specs
        .iter()
        .enumerate()
        .map(|(slot, spec)| operands.norms(slot, spec))
        .collect();

    let leaf = crate::support::tensor(x, [ROWS, SHAPE[0]], &device).require_grad();
    let found = layer.forward(leaf.clone(), &segments()).expect("it fits");
    let expected = forward(&layer, &specs, &operands, &norms);
    assert_close("output", &host(found.clone()), &expected, 2e-6);

    let seed = crate::support::tensor(gradient.clone(), [ROWS, SHAPE[1]], &device);
    let mut gradients = seed_gradient(found, seed).backward();
    let of_x = host(leaf.grad(&gradients).expect("a gradient"));
    let of_bank = layer.bank().take_gradient(&mut gradients).expect("leaves");
    // No gradient passes through the norms: they stay as they are.
    let loss = |operands: &Operands| -> f64 {
        let output = forward(&layer, &specs, operands, &norms);
        output
            .iter()
            .zip(&gradient)
            .map(|(h, g)| h * f64::from(*g))
            .sum()
    };
    let slope = |place: &dyn Fn(&mut Operands) -> &mut f64| {
        let mut moved = [operands.clone(), operands.clone()];
        for (operands, step) in moved.iter_mut().zip([1e-4, -1e-4]) {
            *place(operands) += step;
        }
        (loss(&moved[0]) - loss(&moved[1])) / 2e-4
    };
    let expected: Vec<f64> = (0..of_x.len()).map(|at| slope(&|o| &mut o.x[at])).collect();
    assert_close("gradient of x", &of_x, &expected, 2e-6);
    let found = [
        host(of_bank.a),
        host(of_bank.b),
        host(of_bank.magnitude.expect("magnitudes")),
    ];
    for (part, (name, found)) in ["A", "B", "magnitude"].into_iter().zip(found).enumerate() {
        let mut expected = Vec::new();
        for slot in 0..specs.len() {
            let values = operands.adapters[slot][part].len();
            let scale = f64::from(LOSS_SCALES[slot]);
            let slope = |at| slope(&|o| &mut o.adapters[slot][part][at]) / scale;
            expected.extend((0..values).map(slope));
        }
        assert_close(&format!("gradient of {name}"), &found, &expected, 2e-6);
    }
}

/// Output, and the gradients of x, A, B and magnitudes, of more rows than a kernel sums at once.
fn large(device: &Device, dtype: FloatDType) -> [Vec<f32>; 5] {
    const LARGE: [usize; 2] = [64, 136];
    let device = device.clone().autodiff();
    let mut bank = AdapterBank::new(LARGE[0], LARGE[1], 2, &device);
    for (spec, seed) in specs().into_iter().zip(9..) {
        let mut state = Random::new(seed).adapter(spec, LARGE, &device);
        // As large as norms are.
        state.weights.magnitude = state.weights.magnitude.map(|magnitude| magnitude + 6.0);
        bank.push(Some(state)).expect("of the bank's shape");
    }
    let places = [
        (0..700, 2),
        (700..1300, 0),
        (1301..1340, 1),
        (1340..1500, 2),
    ];
    let segments = places.map(|(rows, slot)| Segment { rows, slot });
    let scales = segments.iter().map(|s| LOSS_SCALES[s.slot]).collect();
    let segments = Segments::new(1503, segments.to_vec()).expect("in order");
    let segments = segments.with_loss_scales(scales).expect("one for a slot");
    let draws = [DropoutDraw { seed: 4, step: 2 }; 4];
    let lora = bank.attach(&segments, Some(&draws)).expect("slots exist");
    let lora = lora.expect("adapters").require_grad();
    let mut random = Random::new(3);
    let mut next = |shape| random.tensor(shape, &device).cast(dtype);
    let (x, weight) = (next([1503, LARGE[0]]).require_grad(), next(LARGE));
    let h = lora.forward(x.clone(), weight).expect("it fits");
    let mut gradients = seed_gradient(h.clone(), next([1503, LARGE[1]])).backward();
    let of_x = x.grad(&gradients).expect("a gradient");
    let LoraPair { a, b, magnitude } = lora.take_gradient(&mut gradients).expect("leaves");
    let magnitude = magnitude.expect("magnitudes");
    [h, of_x, a, b, magnitude].map(host)
}

/// On a GPU the CPU is the reference, in half precision `float32`.
#[test]
fn many_rows_in_each_precision() {
    let expected = large(&Device::flex(), FloatDType::F32).map(|values| wide(&values));
    for (dtype, tolerance) in [
        (FloatDType::F32, 2e-5),
        (FloatDType::F16, 5e-3),
        (FloatDType::BF16, 3e-2),
    ] {
        if !device().supports_dtype(dtype) {
            continue;
        }
        let found = large(&device(), dtype);
        let names = ["output", "dx", "dA", "dB", "magnitude"];
        for ((name, found), expected) in names.iter().zip(&found).zip(&expected) {
            let what = format!("{name} in {dtype:?}");
            assert_close(&what, found, expected, tolerance);
        }
    }
}

/// `∂L/∂m = Σ ∂L/∂H ∘ X W / ‖W‖` before B has learnt anything, over more columns than are summed at once.
#[test]
fn magnitudes_of_many_columns_have_their_gradients() {
    const WIDE: [usize; 2] = [8, 600];
    let device = device().autodiff();
    let mut random = Random::new(5);
    let (x, weight) = (
        random.tensor([ROWS, WIDE[0]], &device),
        random.tensor(WIDE, &device),
    );
    let spec = LoraSpec::new(4, 8.0).with_use_dora(true);
    let state = AdapterState::init(spec, WIDE, 1, 0, &device).expect("a legal spec");
    let mut bank = AdapterBank::new(WIDE[0], WIDE[1], 0, &device);
    bank.push(Some(state.with_norms_of(&weight)))
        .expect("of its shape");
    let rows = 0..ROWS;
    let all = Segments::new(ROWS, vec![Segment { rows, slot: 0 }]).expect("one");
    let lora = bank
        .attach(&all, None)
        .expect("a slot")
        .expect("an adapter");
    let lora = lora.require_grad();
    let h = lora.forward(x.clone(), weight.clone()).expect("it fits");
    let mut gradients = h.square().sum().backward();
    let of_bank = lora.take_gradient(&mut gradients).expect("leaves");
    let on_cpu = |tensor: Tensor<2>| Tensor::<2>::from_data(tensor.into_data(), &Device::flex());
    let (x, weight) = (on_cpu(x), on_cpu(weight));
    let norms = weight.clone().square().sum_dim(0).sqrt();
    let expected = x.matmul(weight).square().sum_dim(0) * 2.0 / norms;
    let found = host(of_bank.magnitude.expect("magnitudes"));
    assert_close("magnitudes", &found, &wide(&host(expected)), 1e-4);
}

/// A column of zeros stays one, and nothing becomes no number.
#[test]
fn a_column_of_zeros_is_finite() {
    let device = device().autodiff();
    let mut layer = layer(&[], &device);
    layer.linear.weight = layer.linear.weight.map(|weight| {
        let rest = weight.slice([0..SHAPE[0], 1..SHAPE[1]]);
        Tensor::cat(vec![rest.clone().slice([0..SHAPE[0], 0..1]) * 0.0, rest], 1)
    });
    let spec = LoraSpec::new(4, 8.0).with_use_dora(true);
    let fresh = AdapterState::init(spec, SHAPE, 1, 0, &device).expect("a legal spec");
    layer
        .push(Some(fresh), DropoutDraw { seed: 1, step: 1 })
        .expect("of its shape");
    let x = Random::new(2).tensor([ROWS, SHAPE[0]], &device);
    let rows = 0..ROWS;
    let all = Segments::new(ROWS, vec![Segment { rows, slot: 0 }]).expect("one");
    let h = layer.forward(x, &all).expect("it fits");
    let mut gradients = h.clone().square().sum().backward();
    let of_bank = layer.bank().take_gradient(&mut gradients).expect("leaves");
    let magnitude = of_bank.magnitude.expect("magnitudes");
    for values in [host(h), host(of_bank.a), host(of_bank.b), host(magnitude)] {
        assert!(values.iter().all(|value| value.is_finite()), "{values:?}");
    }
}

/// Magnitudes of an adapter in mid-training, and their moments, enter a layer as they are.
#[test]
fn trained_magnitudes_are_kept() {
    let device = device();
    for (slot, spec) in specs().into_iter().enumerate() {
        let state = Random::new(7).adapter(spec, SHAPE, &device);
        let mut layer = layer(&specs()[..slot], &device);
        layer
            .push(Some(state.clone()), DropoutDraw { seed: 1, step: 1 })
            .expect("of its shape");
        let kept = layer.bank().extract(slot).expect("a slot");
        let kept = kept.expect("an adapter");
        assert_eq!(state_bits(&kept), state_bits(&state));
    }
}

/// A record has another weight: norms of the one before do not stay.
#[test]
fn norms_follow_a_loaded_record() {
    let device = device();
    let specs = specs();
    let (first, mut other) = (layer(&specs, &device), layer(&specs, &device));
    other.linear.weight = other.linear.weight.map(|weight| weight * 3.0);
    let x = Random::new(2).tensor([ROWS, SHAPE[0]], &device);
    let output = |layer: &BatchLoraLinear| {
        bits(&host(
            layer.forward(x.clone(), &segments()).expect("it fits"),
        ))
    };
    assert_ne!(output(&first), output(&other));
    let loaded = first.load_record(other.clone().into_record());
    assert_eq!(output(&loaded), output(&other));
}

/// A fresh adapter has the norms of the weight, and its layer computes what it computes without: to the bit.
#[test]
fn a_fresh_adapter_changes_nothing() {
    let device = device();
    let mut layer = layer(&[], &device);
    let spec = LoraSpec::new(4, 8.0).with_use_dora(true);
    let fresh = AdapterState::init(spec, SHAPE, 1, 0, &device).expect("a legal spec");
    let x = Random::new(2).tensor([ROWS, SHAPE[0]], &device);
    let none = Segments::new(ROWS, Vec::new()).expect("none");
    let base = host(layer.forward(x.clone(), &none).expect("it fits"));
    layer
        .push(Some(fresh), DropoutDraw { seed: 1, step: 1 })
        .expect("of its shape");
    let all = Segments::new(
        ROWS,
        vec![Segment {
            rows: 0..ROWS,
            slot: 0,
        }],
    )
    .expect("one");
    let adapted = host(layer.forward(x, &all).expect("it fits"));
    assert_eq!(bits(&adapted), bits(&base));

    let state = layer
        .bank()
        .extract(0)
        .expect("a slot")
        .expect("an adapter");
    let norms = Operands::of(&layer, &[0.0]).norms(0, &spec);
    let magnitude = host(state.weights.magnitude.expect("a magnitude"));
    assert_close("magnitude", &magnitude, &norms, 1e-6);
}

/// The norms follow the weights: after a step they are those of the new A and B.
#[test]
fn norms_are_those_of_the_present_weights() {
    let device = device().autodiff();
    let specs = specs();
    let mut layer = layer(&specs, &device);
    let x = Random::new(2).values(ROWS * SHAPE[0]);
    for _ in 0..2 {
        let leaf = crate::support::tensor(x.clone(), [ROWS, SHAPE[0]], &device);
        let found = layer.forward(leaf, &segments()).expect("it fits");
        let operands = Operands::of(&layer, &x);
        let norms: Vec<_> = specs
            .iter()
            .enumerate()
            .map(|(slot, spec)| operands.norms(slot, spec))
            .collect();
        let expected = forward(&layer, &specs, &operands, &norms);
        assert_close("output", &host(found.clone()), &expected, 4e-6);
        let gradients = found.square().sum().backward();
        let optimizer = batchlora::BatchAdamW::new();
        optimizer
            .step(&mut [&mut layer], gradients, &[Some(0.1); 4])
            .expect("a step");
    }
}

/// An adapter's results have the same bits alone and among others, on the CPU.
#[test]
fn an_adapter_is_bit_identical_alone_and_among_others() {
    if device() != Device::flex() {
        return;
    }
    let device = device().autodiff();
    let x = Random::new(2).tensor([ROWS, SHAPE[0]], &device);
    let seed = Random::new(3).tensor([ROWS, SHAPE[1]], &device);
    // Output, and the gradients of the adapter in `slot`.
    let run =
        |layer: &BatchLoraLinear, x: Tensor<2>, seed: Tensor<2>, segments: &Segments, slot| {
            let x = x.require_grad();
            let output = layer.forward(x.clone(), segments).expect("it fits");
            let mut gradients = seed_gradient(output.clone(), seed).backward();
            let of_x = x.grad(&gradients).expect("a gradient");
            let gradient = layer.bank().take_gradient(&mut gradients).expect("leaves");
            let only = layer.bank().keep_slots(gradient, |other| other == slot);
            let LoraPair { a, b, magnitude } = only;
            let nonzero = |t: Tensor<2>| {
                let values = host(t).into_iter().filter(|value| *value != 0.0);
                bits(&values.collect::<Vec<_>>())
            };
            let of_adapter = [
                nonzero(a),
                nonzero(b),
                magnitude.map_or_else(Vec::new, nonzero),
            ];
            (output, of_x, of_adapter)
        };
    let specs = specs();
    let together = layer(&specs, &device);
    for slot in [0, 2, 3] {
        let rows: Vec<_> = segments()
            .iter()
            .filter(|s| s.slot == slot)
            .map(|s| s.rows.clone())
            .collect();
        let own = |t: &Tensor<2>| {
            let parts = rows.iter().map(|rows| t.clone().slice_dim(0, rows.clone()));
            Tensor::cat(parts.collect(), 0)
        };
        let (output, of_x, among) = run(&together, x.clone(), seed.clone(), &segments(), slot);
        let mut alone = layer(&[], &device);
        let state = together.bank().extract(slot).expect("a slot");
        alone
            .push(state, together.draws()[slot])
            .expect("of its shape");
        let (mut own_segments, mut start) = (Vec::new(), 0);
        for rows in &rows {
            own_segments.push(Segment {
                rows: start..start + rows.len(),
                slot: 0,
            });
            start += rows.len();
        }
        let scales = vec![LOSS_SCALES[slot]; own_segments.len()];
        let own_segments = Segments::new(start, own_segments).expect("in order");
        let own_segments = own_segments
            .with_loss_scales(scales)
            .expect("one for a slot");
        let (output_alone, of_x_alone, by_itself) =
            run(&alone, own(&x), own(&seed), &own_segments, 0);
        assert_eq!(
            bits(&host(own(&output))),
            bits(&host(output_alone)),
            "{slot}"
        );
        assert_eq!(bits(&host(own(&of_x))), bits(&host(of_x_alone)), "{slot}");
        assert_eq!(among, by_itself, "{slot}");
    }
}

#[test]
fn an_adapter_that_has_no_magnitude_is_refused() {
    let device = device();
    let mut bank = AdapterBank::new(SHAPE[0], SHAPE[1], 0, &device);
    let spec = LoraSpec::new(4, 8.0).with_use_dora(true);
    let fresh = AdapterState::init(spec, SHAPE, 1, 0, &device).expect("a legal spec");
    let error = bank
        .push(Some(fresh))
        .expect_err("no magnitude")
        .to_string();
    assert!(error.contains("use_dora"), "{error}");
}
