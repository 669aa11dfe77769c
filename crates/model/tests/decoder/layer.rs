//! A decoder layer with adapters against the same layer with the adapters merged into its weights.

use std::{collections::HashMap, path::Path};

use batchlora::{AdapterState, DropoutDraw, LoraPair, LoraSpec, Segment, Segments, seed_gradient};
use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Device, FloatDType, Gradients, Tensor},
};
use loraloom_model::{
    Checkpoint, DecoderLayer, LayerAdapter, LayerBanks, LayerLora, LlamaConfig, Projection,
    SequenceBatch, Sequences,
};
use safetensors::{Dtype, tensor::TensorView};

use crate::support::{Random, assert_close, config, device, fixture, host};

const MODELS: [&str; 4] = ["llama-gqa", "qwen2-sharded", "qwen3", "mistral-sliding"];
const LAYER: usize = 1;
const LENGTHS: [usize; 4] = [9, 14, 6, 1];
const TOLERANCE: f32 = 2e-5;

fn load(directory: &Path, config: &LlamaConfig) -> DecoderLayer {
    let checkpoint = Checkpoint::open(directory).expect("a checkpoint");
    DecoderLayer::load(&checkpoint, config, LAYER, FloatDType::F32, &device()).expect("a layer")
}

/// The layer with `W + s · A B` in place of W.
fn merged(model: &str, config: &LlamaConfig, adapter: &LayerAdapter) -> DecoderLayer {
    let checkpoint = Checkpoint::open(&fixture(model)).expect("a checkpoint");
    let mut tensors: HashMap<String, (Vec<usize>, Vec<f32>)> = checkpoint
        .names()
        .map(|name| {
            let tensor = checkpoint.tensor(name).expect("there");
            (name.to_owned(), (tensor.shape.to_vec(), tensor.to_f32()))
        })
        .collect();
    for (projection, state) in Projection::ALL.into_iter().zip(adapter) {
        let Some(state) = state else { continue };
        let name = format!("{}.weight", projection.module(LAYER));
        let (shape, weight) = tensors.get_mut(&name).expect("a weight");
        let LoraPair { a, b } = state.weights.clone();
        let delta = host(b.transpose().matmul(a).mul_scalar(state.spec.scale()));
        assert_eq!(delta.len(), shape.iter().product::<usize>());
        for (weight, delta) in weight.iter_mut().zip(delta) {
            *weight += delta;
        }
    }
    let bytes: Vec<_> = tensors
        .into_iter()
        .map(|(name, (shape, values))| {
            let values = values.iter().flat_map(|value| value.to_le_bytes());
            (name, shape, values.collect::<Vec<u8>>())
        })
        .collect();
    let views = bytes.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("consistent");
        (name, view)
    });
    let bytes = safetensors::serialize(views, None::<HashMap<_, _>>).expect("serializable");
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("model.safetensors"), bytes).expect("written");
    load(directory.path(), config)
}

/// An adapter at the projections chosen, as large as the weights it is added to.
fn adapter(
    random: &mut Random,
    config: &LlamaConfig,
    spec: LoraSpec,
    chosen: impl Fn(Projection) -> bool,
) -> LayerAdapter {
    let shapes = config.linears();
    Projection::ALL.map(|projection| {
        chosen(projection).then(|| {
            let shape = &shapes[projection as usize];
            let size = 0.3 / (spec.scale() * (spec.r as f64).sqrt()).sqrt();
            let mut part = |width: usize| {
                let values: Tensor<2> = random.tensor([spec.r, width], &device());
                values.mul_scalar(size)
            };
            let weights = LoraPair {
                a: part(shape.d_in),
                b: part(shape.d_out),
            };
            AdapterState::new(spec, weights).expect("a valid adapter")
        })
    })
}

/// Two adapters, the first at all seven projections and the second at three, of two sequences and
/// one; and a sequence of the base alone.
fn adapters(config: &LlamaConfig) -> Vec<LayerAdapter> {
    let mut random = Random::new(7);
    let all = LoraSpec::new(5, 10.0);
    let some = LoraSpec::new(16, 8.0).with_use_rslora(true);
    let chosen = |p| matches!(p, Projection::K | Projection::O | Projection::Up);
    vec![
        adapter(&mut random, config, all, |_| true),
        adapter(&mut random, config, some, chosen),
    ]
}

fn banks(config: &LlamaConfig, adapters: &[LayerAdapter]) -> LayerBanks {
    let mut banks = LayerBanks::new(config, LAYER, &device());
    for (slot, adapter) in adapters.iter().enumerate() {
        assert_eq!(banks.push(adapter.clone()).expect("fits"), slot);
    }
    banks
}

/// The slot of each sequence.
const SLOTS: [Option<usize>; 4] = [Some(1), Some(0), None, Some(0)];

fn sequences() -> Sequences {
    Sequences::from_lengths(LENGTHS)
}

fn segments() -> Segments {
    let sequences = sequences();
    let segments = sequences.iter().zip(SLOTS);
    let segments = segments.filter_map(|(rows, slot)| slot.map(|slot| Segment { rows, slot }));
    Segments::new(sequences.rows(), segments.collect()).expect("in order")
}

fn batch(config: &LlamaConfig, lengths: &[usize]) -> SequenceBatch {
    let sequences = Sequences::from_lengths(lengths.iter().copied());
    SequenceBatch::new(config, sequences, lengths, &device())
}

fn rows(x: &Tensor<2>, index: usize) -> Tensor<2> {
    let rows = sequences().iter().nth(index).expect("a sequence");
    x.clone().slice([rows, 0..x.dims()[1]])
}

fn input(config: &LlamaConfig, device: &Device) -> Tensor<2> {
    Random::new(3).tensor([LENGTHS.iter().sum(), config.d_model], device)
}

fn layers(model: &str, config: &LlamaConfig, adapters: &[LayerAdapter]) -> [DecoderLayer; 4] {
    SLOTS.map(|slot| match slot {
        Some(slot) => merged(model, config, &adapters[slot]),
        None => load(&fixture(model), config),
    })
}

#[test]
fn every_sequence_goes_through_its_own_adapter() {
    for model in MODELS {
        let config = config(model);
        let adapters = adapters(&config);
        let lora = banks(&config, &adapters)
            .attach(&segments(), None)
            .expect("slots exist");
        let x = input(&config, &device());
        let layer = load(&fixture(model), &config);
        let found = layer.forward(x.clone(), &batch(&config, &LENGTHS), &lora);
        let base = layer.forward(x.clone(), &batch(&config, &LENGTHS), &LayerLora::default());
        let merged = layers(model, &config, &adapters);
        for (index, merged) in merged.iter().enumerate() {
            let alone = batch(&config, &LENGTHS[index..=index]);
            let expected = merged.forward(rows(&x, index), &alone, &LayerLora::default());
            let what = format!("{model}, sequence {index}");
            assert_close(&what, rows(&found, index), expected.clone(), TOLERANCE);
            let change = (rows(&base, index) - expected)
                .abs()
                .max()
                .into_scalar::<f32>();
            assert_eq!(
                change > 0.1,
                SLOTS[index].is_some(),
                "{what} changes by {change}"
            );
        }
    }
}

/// Makes every weight a leaf.
struct Trainable;

impl ModuleMapper for Trainable {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.autodiff().require_grad())
    }
}

/// Collects the gradients `[d_in, d_out]` of the linear weights, in their order.
struct Weights<'a> {
    gradients: &'a Gradients,
    found: Vec<Tensor<2>>,
}

impl ModuleVisitor for Weights<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if D == 2 {
            let gradient = value.grad(self.gradients).expect("a gradient");
            let dims = gradient.dims();
            self.found.push(gradient.reshape([dims[0], dims[1]]));
        }
    }
}

/// dA = s · B dWᵀ and dB = s · A dW, with dW the gradient of the merged weight.
#[test]
fn gradients_are_those_of_the_merged_weights() {
    for model in MODELS {
        let config = config(model);
        let adapters = adapters(&config);
        let device = device().autodiff();
        let banks = banks(&config, &adapters);
        let lora = banks
            .attach(&segments(), None)
            .expect("slots exist")
            .require_grad();
        let x = input(&config, &device).require_grad();
        let layer = load(&fixture(model), &config);
        let y = layer.forward(x.clone(), &batch(&config, &LENGTHS), &lora);
        let seed: Tensor<2> = Random::new(4).tensor(y.dims(), &device);
        let mut gradients = seed_gradient(y, seed.clone()).backward();
        let dx = x.grad(&gradients).expect("a gradient");
        let found = lora.take_gradients(&mut gradients);

        let mut of_weights: [Vec<Vec<Tensor<2>>>; 2] = Default::default();
        let merged = layers(model, &config, &adapters);
        for (index, merged) in merged.into_iter().enumerate() {
            let merged = merged.map(&mut Trainable);
            let own = rows(&x, index).detach().require_grad();
            let alone = batch(&config, &LENGTHS[index..=index]);
            let y = merged.forward(own.clone(), &alone, &LayerLora::default());
            let gradients = seed_gradient(y, rows(&seed, index)).backward();
            let expected = own.grad(&gradients).expect("a gradient");
            let what = format!("{model}, dx of sequence {index}");
            assert_close(&what, rows(&dx, index), expected, TOLERANCE);
            let mut weights = Weights {
                gradients: &gradients,
                found: Vec::new(),
            };
            merged.visit(&mut weights);
            if let Some(slot) = SLOTS[index] {
                of_weights[slot].push(weights.found);
            }
        }

        for (projection, found) in Projection::ALL.into_iter().zip(found.0) {
            let found = found.expect("every projection has an adapter");
            let mut rank = 0;
            for (slot, adapter) in adapters.iter().enumerate() {
                let Some(state) = &adapter[projection as usize] else {
                    continue;
                };
                let of_weight = of_weights[slot]
                    .iter()
                    .map(|found| found[projection as usize].clone());
                let of_weight = of_weight
                    .reduce(|sum, part| sum + part)
                    .expect("a sequence");
                let LoraPair { a, b } = state.weights.clone();
                let da = b
                    .matmul(of_weight.clone().transpose())
                    .mul_scalar(state.spec.scale());
                let db = a.matmul(of_weight).mul_scalar(state.spec.scale());
                let own = |packed: &Tensor<2>| packed.clone().narrow(0, rank, state.spec.r);
                let what = format!("{model}, {projection:?} of slot {slot}");
                assert_close(&format!("{what}, A"), own(&found.a), da, TOLERANCE);
                assert_close(&format!("{what}, B"), own(&found.b), db, TOLERANCE);
                rank += state.spec.r;
            }
            assert_eq!(found.a.dims()[0], rank);
        }
    }
}

/// Dropout reaches all seven projections, and each has a mask of its own.
#[test]
fn dropout_is_drawn_for_every_projection() {
    let config = config("llama-gqa");
    let spec = LoraSpec::new(4, 8.0).with_lora_dropout(0.5);
    let x = input(&config, &device());
    let batch = batch(&config, &LENGTHS);
    let layer = load(&fixture("llama-gqa"), &config);
    let mut outputs = Vec::new();
    for projection in Projection::ALL {
        let adapter = adapter(&mut Random::new(1), &config, spec, |p| p == projection);
        let banks = banks(&config, std::slice::from_ref(&adapter));
        let all = vec![Segment {
            rows: 0..x.dims()[0],
            slot: 0,
        }];
        let segments = Segments::new(x.dims()[0], all).expect("in order");
        let run = |draws: Option<&[DropoutDraw]>| {
            let lora = banks.attach(&segments, draws).expect("slots exist");
            host(layer.forward(x.clone(), &batch, &lora))
        };
        let draw = |seed, step| [DropoutDraw { seed, step }];
        let one = run(Some(&draw(1, 1)));
        assert_eq!(one, run(Some(&draw(1, 1))), "{projection:?}");
        for other in [run(None), run(Some(&draw(2, 1))), run(Some(&draw(1, 2)))] {
            assert_ne!(one, other, "{projection:?}");
        }
        let keys = banks.bank(projection).route(&segments, Some(&draw(1, 1)));
        let keys = keys.expect("slots exist");
        outputs.extend(
            keys.iter()
                .map(|segment| segment.dropout.expect("dropout").module),
        );
    }
    assert_eq!(outputs, [7, 8, 9, 10, 11, 12, 13]);
}
