//! `BatchLoraLinear` and `BatchAdamW` against plain Burn: the composed expression, and Burn's own `AdamW` for
//! each adapter alone.

use batchlora::{
    AdapterState, BatchAdamW, BatchLoraError, BatchLoraLinear, BatchLoraLinearConfig, DropoutDraw,
    LoraSpec, Routing, Segment, Segments, seed_gradient,
};
use burn::{
    module::Module,
    nn::{Linear, LinearConfig, LinearLayout},
    tensor::{Device, Tensor},
};
use burn_optim::{AdamW, AdamWConfig, Optimizer};

use crate::{
    operator::TOLERANCE,
    oracle::{Problem, composed},
    support::{Random, assert_close, bits, device, host, state_bits, tensor, wide},
};

const ROWS: usize = 12;

/// Different ranks, scales and dropouts.
fn specs() -> [LoraSpec; 3] {
    [
        LoraSpec::new(4, 8.0).with_lora_dropout(0.4),
        LoraSpec::new(7, 3.0).with_use_rslora(true),
        LoraSpec::default().with_lora_dropout(0.1),
    ]
}

/// Rows of no adapter, an adapter in two segments, and adapters in no order.
fn segments() -> Segments {
    let segment = |rows, slot| Segment { rows, slot };
    let segments = vec![
        segment(0..3, 2),
        segment(4..6, 0),
        segment(6..11, 1),
        segment(11..12, 0),
    ];
    Segments::new(ROWS, segments).expect("in order")
}

fn linear([d_in, d_out]: [usize; 2], layout: LinearLayout, seed: u64, device: &Device) -> Linear {
    let mut random = Random::new(seed);
    let mut linear = LinearConfig::new(d_in, d_out)
        .with_layout(layout)
        .init(device);
    let weight = random.tensor([d_in, d_out], device);
    linear.weight = linear.weight.map(|_| weight);
    let bias = random.tensor([1, d_out], device).flatten(0, 1);
    linear.bias = linear.bias.map(|param| param.map(|_| bias));
    linear
}

/// With adapters in mid-training: nothing of them is zero.
fn layer(shape: [usize; 2], module: u32, device: &Device) -> BatchLoraLinear {
    let linear = linear(shape, LinearLayout::Row, u64::from(module), device);
    let mut layer = BatchLoraLinear::new(linear, module);
    for (spec, seed) in specs().into_iter().zip(7..) {
        let adapter = Random::new(seed).adapter(spec, shape, device);
        let draw = DropoutDraw { seed, step: 3 };
        layer.push(Some(adapter), draw).expect("of its shape");
    }
    layer
}

/// The layer's packed weights, weight and routing of the next training pass.
fn problem(layer: &BatchLoraLinear, x: &[f32], gradient: &[f32]) -> Problem {
    let [d_in, d_out] = layer.bank().shape();
    let weights = layer.bank().weights().expect("adapters");
    Problem {
        routing: routing(layer),
        d_in,
        d_out,
        x: x.to_vec(),
        weight: host(layer.linear.weight.val()),
        a: host(weights.a),
        b: host(weights.b),
        gradient: gradient.to_vec(),
    }
}

fn routing(layer: &BatchLoraLinear) -> Routing {
    let draws = Some(layer.draws());
    layer.bank().route(&segments(), draws).expect("slots exist")
}

#[test]
fn a_layer_and_its_gradients_are_the_slow_reference_with_a_bias() {
    let device = device().autodiff();
    for checkpointing in [false, true] {
        let device = if checkpointing {
            device.clone().gradient_checkpointing()
        } else {
            device.clone()
        };
        let layer = layer([13, 9], 5, &device);
        let mut random = Random::new(1);
        let (x, gradient) = (random.values(ROWS * 13), random.values(ROWS * 9));
        let problem = problem(&layer, &x, &gradient);
        let mut expected = problem.forward(&problem.operands());
        let bias = wide(&host(layer.linear.bias.as_ref().expect("a bias").val()));
        for (at, value) in expected.iter_mut().enumerate() {
            *value += bias[at % 9];
        }
        let [dx, da, db] = problem.gradients(&problem.operands());

        // Leading dimensions are rows.
        let input: Tensor<3> = tensor(x, [ROWS, 13], &device).reshape([3, 4, 13]);
        let input = input.require_grad();
        let h = layer.forward(input.clone(), &segments()).expect("it fits");
        assert_eq!(h.dims(), [3, 4, 9]);
        let gradient = tensor(gradient, [ROWS, 9], &device).without_autodiff();
        let root = seed_gradient(h.clone().reshape([ROWS, 9]), gradient);
        let mut gradients = root.backward();
        let found_dx = host(input.grad(&gradients).expect("a gradient"));
        let found = layer.bank().take_gradient(&mut gradients).expect("leaves");
        assert_close("h", &host(h), &expected, TOLERANCE);
        assert_close("dx", &found_dx, &dx, TOLERANCE);
        assert_close("dA", &host(found.a), &da, TOLERANCE);
        assert_close("dB", &host(found.b), &db, TOLERANCE);
        assert!(
            layer.linear.weight.grad(&gradients).is_none(),
            "the layer is frozen"
        );
    }
}

/// One adapter of two layers, trained alone with Burn's optimizer.
struct Alone {
    /// A and B of each layer.
    weights: Vec<Tensor<2>>,
    states: Vec<Option<<AdamW as Optimizer>::State<2>>>,
}

impl Alone {
    fn of(layers: &[BatchLoraLinear; 2], slot: usize) -> Self {
        let states = layers.iter().map(|layer| layer.bank().extract(slot));
        let weights = states.flat_map(|state| {
            let state = state.expect("a slot").expect("an adapter");
            [state.weights.a, state.weights.b]
        });
        Self {
            weights: weights.collect(),
            states: vec![None, None, None, None],
        }
    }
}

/// Two layers whose adapters have taken no step.
fn fresh_layers(device: &Device) -> [BatchLoraLinear; 2] {
    let shapes = [[6, 8], [8, 5]];
    [0, 1].map(|index| {
        let linear = linear(shapes[index], LinearLayout::Col, index as u64, device);
        let mut layer = BatchLoraLinear::new(linear, index as u32);
        for (spec, seed) in specs().into_iter().zip(7..) {
            let weights = Random::new(seed).pair(spec.r, shapes[index], device);
            let state = AdapterState::new(spec, weights).expect("a valid adapter");
            let draw = DropoutDraw { seed, step: 1 };
            layer.push(Some(state), draw).expect("of its shape");
        }
        layer
    })
}

/// Two layers with a nonlinearity, as `composed` has them, with the dropout that `layers` draw.
fn two_layers(
    x: Tensor<2>,
    plain: &[BatchLoraLinear; 2],
    layers: &[BatchLoraLinear; 2],
    leaves: &[Tensor<2>],
    device: &Device,
) -> Tensor<2> {
    let mut h = x;
    for (index, layer) in plain.iter().enumerate() {
        let [a, b] = [leaves[2 * index].clone(), leaves[2 * index + 1].clone()];
        let weight = layer.linear.weight.val();
        let bias = layer.linear.bias.as_ref().expect("a bias").val();
        h = composed([h, a, b, weight], &routing(&layers[index]), device) + bias.unsqueeze();
        if index == 0 {
            h = h.tanh();
        }
    }
    h
}

#[test]
fn steps_are_those_of_burns_adamw_for_each_adapter_alone() {
    const WAITS: (usize, usize) = (1, 2);
    let device = device().autodiff();
    // Betas that float32 has exactly: Burn keeps them in it.
    let optimizer = BatchAdamW::new()
        .with_beta_1(0.875)
        .with_beta_2(0.96875)
        .with_weight_decay(0.125)
        .with_max_grad_norm(Some(0.5));
    let burns = AdamWConfig::new()
        .with_beta_1(0.875)
        .with_beta_2(0.96875)
        .with_weight_decay(0.125)
        .build();

    let mut layers = fresh_layers(&device);
    // Burn's own float32 products on NVIDIA's tensor cores keep 10 bits of mantissa.
    let exact = Device::flex().autodiff();
    let plain = fresh_layers(&exact);
    let mut alone: Vec<_> = (0..3).map(|slot| Alone::of(&plain, slot)).collect();

    for step in 0..6 {
        let inputs = |device: &Device| {
            let mut random = Random::new(100 + step as u64);
            let x = random.tensor([ROWS, 6], device);
            (x, random.tensor([ROWS, 5], device) * 3.0)
        };
        let rates: Vec<_> = (0..3)
            .map(|slot| ((slot, step) != WAITS).then(|| 0.02 / (1 + slot + step) as f64))
            .collect();

        // The gradients of all adapters from Burn's autodiff, and an optimizer for each.
        let leaves: Vec<Tensor<2>> = (0..4)
            .map(|part| {
                let parts = alone.iter().map(|adapter| adapter.weights[part].clone());
                Tensor::cat(parts.collect(), 0).autodiff().require_grad()
            })
            .collect();
        let (x, weigh) = inputs(&exact);
        let expected = two_layers(x, &plain, &layers, &leaves, &exact);
        let gradients = (expected.clone() * weigh).sum().backward();
        let mut first = 0;
        for (slot, adapter) in alone.iter_mut().enumerate() {
            let r = specs()[slot].r;
            let of_adapter: Vec<Tensor<2>> = leaves
                .iter()
                .map(|leaf| leaf.grad(&gradients).expect("a gradient"))
                .map(|gradient| gradient.narrow(0, first, r))
                .collect();
            first += r;
            let Some(rate) = rates[slot] else { continue };
            let squares = of_adapter
                .iter()
                .map(|gradient| gradient.clone().square().sum());
            let norm = squares.reduce(|a, b| a + b).expect("gradients").sqrt();
            let clip = (norm.clone() + 1e-6).recip().mul_scalar(0.5).clamp_max(1.0);
            assert!(host(norm)[0] > 0.5, "every step clips");
            for (part, gradient) in of_adapter.into_iter().enumerate() {
                let gradient = gradient * clip.clone().unsqueeze();
                let (weight, state) = (adapter.weights[part].clone(), adapter.states[part].take());
                let (weight, state) = burns.step(rate, weight, gradient, state);
                (adapter.weights[part], adapter.states[part]) = (weight, state);
            }
        }

        let (x, weigh) = inputs(&device);
        let hidden = layers[0].forward(x, &segments()).expect("it fits").tanh();
        let found = layers[1].forward(hidden, &segments()).expect("it fits");
        let expected = wide(&host(expected));
        assert_close(
            &format!("step {step}"),
            &host(found.clone()),
            &expected,
            1e-5,
        );
        let gradients = (found * weigh).sum().backward();
        let [lower, upper] = &mut layers;
        optimizer
            .step(&mut [lower, upper], gradients, &rates)
            .expect("layers that fit");
    }
    for (slot, adapter) in alone.iter().enumerate() {
        for (index, layer) in layers.iter().enumerate() {
            let found = layer.bank().extract(slot).expect("a slot");
            let found = found.expect("an adapter").weights;
            for (part, found) in [found.a, found.b].into_iter().enumerate() {
                let expected = wide(&host(adapter.weights[2 * index + part].clone()));
                let what = format!("slot {slot}, layer {index}, part {part}");
                assert_close(&what, &host(found), &expected, 1e-5);
            }
            let steps = if slot == WAITS.0 { 6 } else { 7 };
            assert_eq!(layer.draws()[slot].step, steps);
        }
    }
}

#[test]
fn a_snapshot_has_neither_dropout_nor_a_graph() {
    let device = device();
    let trained = layer([13, 9], 2, &device.clone().autodiff());
    let x = Random::new(3).tensor([ROWS, 13], &device);
    let forward = |layer: &BatchLoraLinear| layer.forward(x.clone(), &segments()).expect("fits");
    let valid = trained.valid();
    let evaluated = forward(&valid);
    assert!(!evaluated.is_autodiff());
    let lora = valid.bank().attach(&segments(), None).expect("slots exist");
    let plain = lora
        .expect("rows")
        .forward(x.clone(), valid.linear.weight.val());
    let bias = valid.linear.bias.as_ref().expect("a bias").val();
    let plain = plain.expect("it fits") + bias.unsqueeze();
    assert_eq!(bits(&host(evaluated)), bits(&host(plain)));

    let masked = bits(&host(forward(&trained)));
    assert_ne!(masked, bits(&host(forward(&valid))));
    assert_eq!(masked, bits(&host(forward(&valid.clone().train()))));
    // Frozen, the layer keeps what it has learnt and draws no masks.
    let frozen = bits(&host(forward(&trained.clone().freeze())));
    assert_eq!(frozen, bits(&host(forward(&valid))));
    // A layer of a device without autodiff does not train.
    let plain = layer([13, 9], 2, &device);
    assert_eq!(bits(&host(forward(&plain))), bits(&host(forward(&valid))));
}

#[test]
fn a_record_restores_the_layer_and_its_adapters() {
    let device = device().autodiff();
    let saved = layer([13, 9], 2, &device);
    let rank_sum = specs().iter().map(|spec| spec.r).sum::<usize>();
    assert_eq!(saved.num_params(), 13 * 9 + 9 + rank_sum * (13 + 9));
    let fresh = BatchLoraLinearConfig::new(specs().to_vec())
        .with_seed(7)
        .init(LinearConfig::new(13, 9).init(&device), 2)
        .expect("a legal configuration");
    let x = Random::new(3).tensor([ROWS, 13], &device);
    let evaluate = |layer: &BatchLoraLinear| {
        let h = layer
            .valid()
            .forward(x.clone().without_autodiff(), &segments());
        bits(&host(h.expect("it fits")))
    };
    assert_ne!(evaluate(&fresh), evaluate(&saved));
    let loaded = fresh.load_record(saved.clone().into_record());
    assert_eq!(evaluate(&loaded), evaluate(&saved));
    // It still trains.
    let h = loaded.forward(x, &segments()).expect("it fits");
    let mut gradients = h.sum().backward();
    assert!(loaded.bank().take_gradient(&mut gradients).is_some());
    assert!(loaded.linear.weight.grad(&gradients).is_none());
}

/// One step of an adapter over all rows.
fn step(layer: &mut BatchLoraLinear, slot: usize, at: u64) {
    let segments = Segments::new(
        ROWS,
        vec![Segment {
            rows: 0..ROWS,
            slot,
        }],
    )
    .expect("in order");
    let device = layer.linear.weight.device();
    let x = Random::new(at).tensor([ROWS, 13], &device);
    let h = layer.forward(x, &segments).expect("it fits");
    let mut rates = vec![None; layer.draws().len()];
    rates[slot] = Some(0.01);
    let gradients = h.square().sum().backward();
    BatchAdamW::new()
        .step(&mut [layer], gradients, &rates)
        .expect("a layer that fits");
}

#[test]
fn an_adapter_goes_on_in_another_model_with_the_same_bits() {
    let device = device().autodiff();
    let mut stays = layer([13, 9], 2, &device);
    for at in 0..4 {
        step(&mut stays, 0, at);
    }
    let mut first = layer([13, 9], 2, &device);
    for at in 0..2 {
        step(&mut first, 0, at);
    }
    let (state, draw) = first.remove(0).expect("a slot");
    let mut second = BatchLoraLinear::new(first.linear.clone(), 2);
    let empty = DropoutDraw { seed: 0, step: 1 };
    assert_eq!(second.push(None, empty).expect("an empty slot"), 0);
    assert_eq!(second.push(state, draw).expect("of its shape"), 1);
    for at in 2..4 {
        step(&mut second, 1, at);
    }
    let of = |layer: &BatchLoraLinear, slot| {
        let state = layer.bank().extract(slot).expect("a slot");
        state_bits(&state.expect("an adapter"))
    };
    assert!(of(&second, 1) == of(&stays, 0));
    assert!(of(&first, 0) != of(&stays, 0));
}

#[test]
fn layers_and_rates_that_do_not_fit_are_refused() {
    let device = device().autodiff();
    let mut layers = [layer([13, 9], 0, &device), layer([13, 9], 1, &device)];
    let mut refused = |rates: &[Option<f64>], apart: bool| {
        let [lower, upper] = &mut layers;
        if apart {
            step(upper, 1, 0);
        }
        let gradients = Tensor::<1>::zeros([1], &device).require_grad().backward();
        BatchAdamW::new()
            .step(&mut [lower, upper], gradients, rates)
            .expect_err("refused")
            .to_string()
    };
    assert_eq!(
        refused(&[None; 2], false),
        "shapes do not fit: 2 learning rates, and 3 slots in layer 0"
    );
    assert_eq!(
        refused(&[None; 3], true),
        "invalid LoRA configuration: slot 1 is at step 3 in layer 0 and at step 4 in layer 1"
    );
    let x = Random::new(0).tensor([ROWS - 1, 13], &device);
    assert_eq!(
        layers[0]
            .forward(x, &segments())
            .expect_err("refused")
            .to_string(),
        "shapes do not fit: an input [11, 13] for a layer [13, 9] and segments of 12 rows"
    );
    let impossible = BatchLoraLinearConfig::new(vec![LoraSpec::new(0, 1.0)]);
    let linear = LinearConfig::new(3, 2).init(&device);
    let error = impossible.init(linear, 0).expect_err("refused");
    assert!(matches!(error, BatchLoraError::InvalidConfig(_)), "{error}");
}

/// The README has the example, which its doctest runs.
#[test]
fn the_readme_has_the_example() {
    let readme = include_str!("../../README.md");
    let example = include_str!("../../examples/adapt.rs");
    let (_, example) = example.split_once("\n\n").expect("documentation");
    assert!(
        readme.contains(example),
        "README.md does not have examples/adapt.rs"
    );
}
