//! Where the time of a training step goes on the CPU: every part of it alone, forward and backward,
//! times how often a step does it. The `micro` shape, 8 adapters of batch 2 and length 128, rank 16
//! on q, k, v and o with dropout 0.05, as `train_step` runs it.
//!
//!     cargo bench -p loraloom-benches --bench components

use std::time::Instant;

use batchlora::{
    AdamWStep, AdapterBank, AdapterState, DropoutDraw, GradientNorms, LoraPair, LoraSpec, Segment,
    Segments, SlotUpdate, frozen_linear, seed_gradient,
};
use burn::tensor::{Device, Distribution, Int, Tensor};
use loraloom_benches::Shape;
use loraloom_model::{
    AttentionShape, Sequences, cross_entropy, rms_norm, rotate, self_attention, swiglu,
};
use serde_json::json;

const SHAPE: Shape = Shape::MICRO;
const ADAPTERS: usize = 8;
const LENGTH: usize = 127;
const SEQUENCES: usize = 2 * ADAPTERS;
const ROWS: usize = SEQUENCES * LENGTH;
const RUNS: usize = 7;

fn random(shape: [usize; 2]) -> Tensor<2> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
}

fn leaf(shape: [usize; 2]) -> Tensor<2> {
    random(shape).autodiff().require_grad()
}

/// Forward and backward of a graph whose end has the shape of its gradient.
fn both_ways(output: Tensor<2>, gradient: &Tensor<2>) {
    std::hint::black_box(seed_gradient(output, gradient.clone()).backward());
}

/// Median milliseconds.
fn milliseconds(mut work: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..=RUNS)
        .map(|_| {
            let started = Instant::now();
            work();
            started.elapsed().as_secs_f64() * 1e3
        })
        .skip(1)
        .collect();
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

fn linears() -> [([usize; 2], bool); 7] {
    let (hidden, mlp) = (SHAPE.hidden_size, SHAPE.intermediate_size);
    let kv = hidden / SHAPE.num_attention_heads * SHAPE.num_key_value_heads;
    [
        ([hidden, hidden], true),
        ([hidden, kv], true),
        ([hidden, kv], true),
        ([hidden, hidden], true),
        ([hidden, mlp], false),
        ([hidden, mlp], false),
        ([mlp, hidden], false),
    ]
}

fn bank([d_in, d_out]: [usize; 2]) -> AdapterBank {
    let device = Device::flex();
    let mut bank = AdapterBank::new(d_in, d_out, 0, &device);
    for seed in 0..ADAPTERS {
        let spec = LoraSpec::new(16, 32.0).with_lora_dropout(0.05);
        let state = AdapterState::init(spec, [d_in, d_out], seed as u64, 0, &device);
        bank.push(Some(state.expect("a legal adapter")))
            .expect("it fits");
    }
    bank
}

fn main() {
    let layers = SHAPE.num_hidden_layers as f64;
    let (frozen, adapted) = products();
    let parts = [
        ("frozen products", layers * frozen),
        ("LoRA beside them", layers * adapted),
        ("attention", layers * attention()),
        ("norms, rotary, SwiGLU", layers * elementwise()),
        ("output projection and loss", loss()),
        ("optimizer", layers * optimizer()),
    ];
    let total: f64 = parts.iter().map(|(_, time)| time).sum();
    let parts: Vec<_> = parts
        .iter()
        .map(|(name, time)| json!({"part": name, "milliseconds": time, "share": time / total}))
        .collect();
    #[expect(
        clippy::print_stdout,
        reason = "the report is what the benchmark is for"
    )]
    {
        println!(
            "{}",
            json!({"rows": ROWS, "milliseconds": total, "parts": parts})
        );
    }
}

/// One layer's seven products with frozen weights, and what the adapters add to four of them.
fn products() -> (f64, f64) {
    let segments = (0..ADAPTERS)
        .map(|slot| Segment {
            rows: slot * 2 * LENGTH..(slot + 1) * 2 * LENGTH,
            slot,
        })
        .collect();
    let segments = Segments::new(ROWS, segments).expect("in order");
    let draws = vec![DropoutDraw { seed: 1, step: 1 }; ADAPTERS];
    let (mut frozen, mut adapted) = (0.0, 0.0);
    for (shape, is_adapted) in linears() {
        let (x, gradient) = (leaf([ROWS, shape[0]]), random([ROWS, shape[1]]));
        // As loaded: a transposed view of [d_out, d_in].
        let weight = random([shape[1], shape[0]]).transpose();
        let alone = milliseconds(|| both_ways(frozen_linear(x.clone(), weight.clone()), &gradient));
        frozen += alone;
        if is_adapted {
            let lora = bank(shape)
                .attach(&segments, Some(&draws))
                .expect("slots exist");
            let lora = lora.expect("rows with adapters").require_grad();
            let both = milliseconds(|| {
                let h = lora
                    .forward(x.clone(), weight.clone())
                    .expect("operands that fit");
                both_ways(h, &gradient);
            });
            adapted += both - alone;
        }
    }
    (frozen, adapted)
}

fn attention() -> f64 {
    let head_dim = SHAPE.hidden_size / SHAPE.num_attention_heads;
    let kv = head_dim * SHAPE.num_key_value_heads;
    let shape = AttentionShape {
        sequences: Sequences::from_lengths([LENGTH; SEQUENCES]),
        num_heads: SHAPE.num_attention_heads,
        num_kv_heads: SHAPE.num_key_value_heads,
        head_dim,
        window: None,
    };
    let [q, k, v] = [
        leaf([ROWS, SHAPE.hidden_size]),
        leaf([ROWS, kv]),
        leaf([ROWS, kv]),
    ];
    let gradient = random([ROWS, SHAPE.hidden_size]);
    milliseconds(|| {
        both_ways(
            self_attention(q.clone(), k.clone(), v.clone(), &shape),
            &gradient,
        );
    })
}

fn elementwise() -> f64 {
    let (hidden, mlp) = (SHAPE.hidden_size, SHAPE.intermediate_size);
    let head_dim = hidden / SHAPE.num_attention_heads;
    let kv = head_dim * SHAPE.num_key_value_heads;
    let table = || random([ROWS, head_dim / 2]);
    let (cos, sin) = (table(), table());
    let norm = {
        let (x, gradient) = (leaf([ROWS, hidden]), random([ROWS, hidden]));
        let weight = Tensor::<1>::ones([hidden], &Device::flex());
        milliseconds(|| both_ways(rms_norm(x.clone(), weight.clone(), 1e-6), &gradient))
    };
    let rotary = |width| {
        let (x, gradient) = (leaf([ROWS, width]), random([ROWS, width]));
        milliseconds(|| both_ways(rotate(x.clone(), cos.clone(), sin.clone()), &gradient))
    };
    let swiglu = {
        let (gate, up) = (leaf([ROWS, mlp]), leaf([ROWS, mlp]));
        let gradient = random([ROWS, mlp]);
        milliseconds(|| both_ways(swiglu(gate.clone(), up.clone()), &gradient))
    };
    2.0 * norm + rotary(hidden) + rotary(kv) + swiglu
}

fn loss() -> f64 {
    let (hidden, vocabulary) = (SHAPE.hidden_size, SHAPE.vocab_size);
    let (x, weight) = (random([ROWS, hidden]), random([vocabulary, hidden]));
    let targets = Tensor::<1, Int>::zeros([ROWS], &Device::flex());
    let weights = Tensor::<1>::ones([ROWS], &Device::flex());
    milliseconds(|| {
        let logits = frozen_linear(x.clone(), weight.clone().transpose());
        let (losses, gradient) = cross_entropy(logits, targets.clone(), weights.clone());
        std::hint::black_box((losses, frozen_linear(gradient, weight.clone())));
    })
}

/// Norms and update of one layer's adapters.
fn optimizer() -> f64 {
    let mut banks: Vec<AdapterBank> = linears()
        .into_iter()
        .filter(|(_, adapted)| *adapted)
        .map(|(shape, _)| bank(shape))
        .collect();
    let update = SlotUpdate {
        learning_rate: 1e-4,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
        max_grad_norm: 1.0,
        step: 1,
    };
    milliseconds(|| {
        for bank in &mut banks {
            let LoraPair { a, b } = bank.weights().expect("adapters").clone();
            let gradient = LoraPair { a, b };
            let norms = GradientNorms::new(ADAPTERS, &Device::flex())
                .add(bank, &gradient)
                .finish();
            AdamWStep::new(&[Some(update); ADAPTERS], norms).apply(bank, gradient);
        }
    })
}
