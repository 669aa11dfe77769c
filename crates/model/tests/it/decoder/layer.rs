//! A decoder layer with adapters against a layer composed of Burn's own operations, with the
//! adapters merged into its weights. The composition runs on the CPU, whatever device is tested.

use batchlora::{AdapterState, DropoutDraw, LoraPair, LoraSpec, Segment, Segments, seed_gradient};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use loraloom_model::{
    Activation, AttentionShape, Backbone, Checkpoint, DecoderLayer, LayerAdapter, LayerBanks,
    LayerLora, LayerRotation, LinearShape, LlamaConfig, Projection, QkNorm, RotaryTables,
    SequenceBatch, Sequences,
};

use crate::decoder::{
    attention::composed_attention,
    ops::{composed_geglu, composed_rms_norm, composed_rotate, composed_swiglu},
    support::{Random, assert_close, config, device, fixture, host},
};

const MODELS: [&str; 10] = [
    "llama-gqa",
    "qwen2-sharded",
    "qwen3",
    "mistral-sliding",
    "granite",
    "olmo2",
    "smollm3",
    "gemma2",
    "gemma3",
    "phi3",
];
const LAYER: usize = 1;
const LENGTHS: [usize; 4] = [9, 14, 6, 1];
const TOLERANCE: f32 = 2e-5;

fn load(model: &str, config: &LlamaConfig) -> DecoderLayer {
    let checkpoint = Checkpoint::open(&fixture(model)).expect("a checkpoint");
    let (layers, dtype) = (LAYER..LAYER + 1, FloatDType::F32);
    let backbone = Backbone::load(&checkpoint, config, layers, dtype, &device());
    backbone.expect("a layer").layers()[0].clone()
}

/// The layer with `W + s · A B` in place of W, in plain operations on all of its numbers.
struct Merged<'a> {
    checkpoint: Checkpoint,
    config: &'a LlamaConfig,
    /// The weights `[d_in, d_out]` by projection, leaves of a graph.
    weights: Vec<Tensor<2>>,
}

impl<'a> Merged<'a> {
    fn new(model: &str, config: &'a LlamaConfig, adapter: Option<&LayerAdapter>) -> Self {
        let checkpoint = Checkpoint::open(&fixture(model)).expect("a checkpoint");
        let weights = Projection::ALL.map(|projection| {
            let Some(shape) = in_layer(config, projection) else {
                return Tensor::zeros([1, 1], &Device::flex());
            };
            let name = format!("{}.weight", projection.module(LAYER));
            let stored = checkpoint.tensor(&name).expect("there").to_f32();
            let stored = TensorData::new(stored, [shape.d_out, shape.d_in]);
            let weight = Tensor::<2>::from_data(stored, &Device::flex()).transpose();
            let state = adapter.and_then(|adapter| adapter[projection as usize].as_ref());
            let weight = match state {
                Some(state) => {
                    let LoraPair { a, b, .. } = state.weights.clone();
                    weight + a.transpose().matmul(b).mul_scalar(state.spec.scale())
                }
                None => weight,
            };
            weight.autodiff().require_grad()
        });
        Self {
            checkpoint,
            config,
            weights: weights.to_vec(),
        }
    }

    fn vector(&self, name: &str) -> Option<Tensor<1>> {
        let name = format!("model.layers.{LAYER}.{name}");
        let tensor = self.checkpoint.tensor(&name).ok()?.to_f32();
        let data = TensorData::new(tensor.clone(), [tensor.len()]);
        Some(Tensor::from_data(data, &Device::flex().autodiff()))
    }

    fn linear(&self, projection: Projection, x: Tensor<2>) -> Tensor<2> {
        let y = x.matmul(self.weights[projection as usize].clone());
        match self.vector(&format!("{}.bias", projection.path())) {
            Some(bias) => y + bias.unsqueeze(),
            None => y,
        }
    }

    fn norm(&self, name: &str, x: Tensor<2>) -> Tensor<2> {
        let weight = self.vector(&format!("{name}.weight")).expect("a norm");
        let weight = if self.config.norm_plus_one {
            weight.add_scalar(1.0)
        } else {
            weight
        };
        composed_rms_norm(x, weight, self.config.rms_norm_eps)
    }

    fn turned(&self, name: &str, x: Tensor<2>, batch: &SequenceBatch) -> Tensor<2> {
        let ([rows_of, width], dim) = (x.dims(), self.config.head_dim);
        let x = match self.config.qk_norm {
            QkNorm::None => x,
            QkNorm::PerHead => {
                let heads = x.reshape([rows_of * width / dim, dim]);
                self.norm(name, heads).reshape([rows_of, width])
            }
            QkNorm::AllHeads => self.norm(name, x),
        };
        let rows = match self.config.rotations[LAYER] {
            LayerRotation::None => return x,
            LayerRotation::Global => &batch.global,
            LayerRotation::Local => batch.local.as_ref().expect("a rotation of its own"),
        };
        let rotary_dim = 2 * rows.cos.dims()[1];
        let heads = x.reshape([rows_of, width / dim, dim]);
        let part = heads.clone().narrow(2, 0, rotary_dim);
        let part = part.reshape([rows_of, width / dim * rotary_dim]);
        let part = composed_rotate(part, rows.cos.clone(), rows.sin.clone());
        let part = part.reshape([rows_of, width / dim, rotary_dim]);
        match dim - rotary_dim {
            0 => part,
            rest => Tensor::cat(vec![part, heads.narrow(2, rotary_dim, rest)], 2),
        }
        .reshape([rows_of, width])
    }

    fn forward(&self, x: Tensor<2>, batch: &SequenceBatch) -> Tensor<2> {
        use Projection::{Down, Gate, GateUp, K, O, Q, Qkv, Up, V};
        let multipliers = self.config.multipliers;
        let norm_if = |name: Option<&str>, x: Tensor<2>| match name {
            Some(name) => self.norm(name, x),
            None => x,
        };
        let after = |name: Option<&str>, y: Tensor<2>| {
            norm_if(name, y).mul_scalar(multipliers.residual.unwrap_or(1.0))
        };
        let [before_attention, after_attention] = self.config.norms.of_attention();
        let [before_mlp, after_mlp] = self.config.norms.of_mlp();
        let normal = norm_if(before_attention, x.clone());
        let project = |projection| self.linear(projection, normal.clone());
        let shape = AttentionShape {
            sequences: batch.sequences.clone(),
            num_heads: self.config.num_attention_heads,
            num_kv_heads: self.config.num_key_value_heads,
            head_dim: self.config.head_dim,
            window: self.config.sliding_window[LAYER],
            score_scale: self.config.score_scale,
            softcap: self.config.attention_softcap,
        };
        let key = self.config.num_key_value_heads * self.config.head_dim;
        let query = self.config.num_attention_heads * self.config.head_dim;
        let [q, k, v] = if self.config.fused {
            let all = project(Qkv);
            let part = |start, width| all.clone().narrow(1, start, width);
            [part(0, query), part(query, key), part(query + key, key)]
        } else {
            [project(Q), project(K), project(V)]
        };
        let q = self.turned("self_attn.q_norm", q, batch);
        let k = self.turned("self_attn.k_norm", k, batch);
        let attended = composed_attention([q, k, v], &shape);
        let x = x + after(after_attention, self.linear(O, attended));
        let normal = norm_if(before_mlp, x.clone());
        let [gate, up] = if self.config.fused {
            let both = self.linear(GateUp, normal);
            let width = self.config.d_ffn;
            [
                both.clone().narrow(1, 0, width),
                both.narrow(1, width, width),
            ]
        } else {
            [self.linear(Gate, normal.clone()), self.linear(Up, normal)]
        };
        let activated = match self.config.activation {
            Activation::Silu => composed_swiglu(gate, up),
            Activation::GeluTanh => composed_geglu(gate, up),
        };
        x + after(after_mlp, self.linear(Down, activated))
    }
}

/// A linear layer of the decoder layer; `None` if it has none of this kind.
fn in_layer(config: &LlamaConfig, projection: Projection) -> Option<LinearShape> {
    let mut linears = config.linears().into_iter();
    linears.find(|linear| linear.projection == projection)
}

/// An adapter at the projections chosen, as large as the weights it is added to.
fn adapter(
    random: &mut Random,
    config: &LlamaConfig,
    spec: LoraSpec,
    chosen: impl Fn(Projection) -> bool,
    device: &Device,
) -> LayerAdapter {
    Projection::ALL.map(|projection| {
        let shape = in_layer(config, projection)?;
        chosen(projection).then(|| {
            let size = 0.3 / (spec.scale() * (spec.r as f64).sqrt()).sqrt();
            let mut part = |width: usize| {
                let values: Tensor<2> = random.tensor([spec.r, width], device);
                values.mul_scalar(size)
            };
            let weights = LoraPair {
                a: part(shape.d_in),
                b: part(shape.d_out),
                magnitude: None,
            };
            AdapterState::new(spec, weights).expect("a valid adapter")
        })
    })
}

/// Two adapters, the first at all seven projections and the second at three, of two sequences and
/// one; and a sequence of the base alone.
fn adapters(config: &LlamaConfig, device: &Device) -> Vec<LayerAdapter> {
    let mut random = Random::new(7);
    let all = LoraSpec::new(5, 10.0);
    let some = LoraSpec::new(16, 8.0).with_use_rslora(true);
    let chosen = |p| {
        use Projection::{GateUp, K, O, Qkv, Up};
        matches!(p, K | O | Up | Qkv | GateUp)
    };
    vec![
        adapter(&mut random, config, all, |_| true, device),
        adapter(&mut random, config, some, chosen, device),
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

fn batch(config: &LlamaConfig, lengths: &[usize], device: &Device) -> SequenceBatch {
    let sequences = Sequences::from_lengths(lengths.iter().copied());
    SequenceBatch::new(&RotaryTables::new(config, device), sequences, lengths)
}

fn rows(x: &Tensor<2>, index: usize) -> Tensor<2> {
    let rows = sequences().iter().nth(index).expect("a sequence");
    x.clone().slice([rows, 0..x.dims()[1]])
}

fn input(config: &LlamaConfig, device: &Device) -> Tensor<2> {
    Random::new(3).tensor([LENGTHS.iter().sum(), config.d_model], device)
}

/// Besides the values: dA = s · B dWᵀ and dB = s · A dW, with dW the gradient of the merged weight.
#[test]
fn values_and_gradients_are_those_of_the_merged_layer() {
    for model in MODELS {
        let config = config(model);
        let oracle_adapters = adapters(&config, &Device::flex());
        let device = device().autodiff();
        let layer = load(model, &config);
        let batch_of_all = batch(&config, &LENGTHS, &device);
        let forward = |x, lora: &LayerLora| {
            let y = layer.forward(x, &batch_of_all, lora);
            y.expect("adapters that fit")
        };
        let base = forward(input(&config, &device), &LayerLora::default());
        let banks = banks(
            &config,
            &adapters(&config, &crate::decoder::support::device()),
        );
        let lora = banks
            .attach(&segments(), None)
            .expect("slots exist")
            .require_grad();
        let x = input(&config, &device).require_grad();
        let y = forward(x.clone(), &lora);
        let seed = |device: &Device| Random::new(4).tensor::<2>(y.dims(), device);
        let mut gradients = seed_gradient(y.clone(), seed(&device)).backward();
        let dx = x.grad(&gradients).expect("a gradient");
        let found = lora.take_gradients(&mut gradients);
        let oracle_device = Device::flex().autodiff();
        let (oracle_x, oracle_seed) = (input(&config, &oracle_device), seed(&oracle_device));

        let mut of_weights = vec![Vec::new(); oracle_adapters.len()];
        for (index, slot) in SLOTS.into_iter().enumerate() {
            let merged = Merged::new(model, &config, slot.map(|slot| &oracle_adapters[slot]));
            let own = rows(&oracle_x, index).detach().require_grad();
            let own_batch = batch(&config, &LENGTHS[index..=index], &oracle_device);
            let expected = merged.forward(own.clone(), &own_batch);
            let what = format!("{model}, sequence {index}");
            assert_close(&what, rows(&y, index), expected.clone(), TOLERANCE);
            let pairs = host(rows(&base, index)).into_iter();
            let pairs = pairs.zip(host(expected.clone()));
            let change = pairs.fold(0f32, |max, (base, merged)| max.max((base - merged).abs()));
            assert_eq!(change > 0.1, slot.is_some(), "{what} changes by {change}");

            let gradients = (expected * rows(&oracle_seed, index)).sum().backward();
            let expected = own.grad(&gradients).expect("a gradient");
            assert_close(
                &format!("{what}, dx"),
                rows(&dx, index),
                expected,
                TOLERANCE,
            );
            if let Some(slot) = slot {
                let of_weight = |weight: &Tensor<2>| weight.grad(&gradients);
                of_weights[slot].push(merged.weights.iter().map(of_weight).collect::<Vec<_>>());
            }
        }

        for (projection, found) in Projection::ALL.into_iter().zip(found.0) {
            let Some(found) = found else {
                assert_eq!(
                    in_layer(&config, projection),
                    None,
                    "{model}, {projection:?}"
                );
                continue;
            };
            let mut rank = 0;
            for (adapter, of_weights) in oracle_adapters.iter().zip(&of_weights) {
                let Some(state) = &adapter[projection as usize] else {
                    continue;
                };
                let of_weight = of_weights
                    .iter()
                    .map(|found| found[projection as usize].clone().expect("a gradient"));
                let of_weight = of_weight
                    .reduce(|sum, part| sum + part)
                    .expect("a sequence");
                let LoraPair { a, b, .. } = state.weights.clone();
                let da = b
                    .matmul(of_weight.clone().transpose())
                    .mul_scalar(state.spec.scale());
                let db = a.matmul(of_weight).mul_scalar(state.spec.scale());
                let own = |packed: &Tensor<2>| packed.clone().narrow(0, rank, state.spec.r);
                let what = format!("{model}, {projection:?} of rank {}", state.spec.r);
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
    let batch = batch(&config, &LENGTHS, &device());
    let layer = load("llama-gqa", &config);
    let mut outputs = Vec::new();
    for &projection in Projection::applied(false) {
        let own = |p| p == projection;
        let adapter = adapter(&mut Random::new(1), &config, spec, own, &device());
        let banks = banks(&config, std::slice::from_ref(&adapter));
        let all = vec![Segment {
            rows: 0..x.dims()[0],
            slot: 0,
        }];
        let segments = Segments::new(x.dims()[0], all).expect("in order");
        let run = |draws: Option<&[DropoutDraw]>| {
            let lora = banks.attach(&segments, draws).expect("slots exist");
            host(
                layer
                    .forward(x.clone(), &batch, &lora)
                    .expect("adapters that fit"),
            )
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
            keys.segments()
                .iter()
                .map(|segment| segment.dropout.expect("dropout").module),
        );
    }
    assert_eq!(outputs, [7, 8, 9, 10, 11, 12, 13]);
}
