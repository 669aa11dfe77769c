//! Time of every part of a training step on the CPU: the part alone, forward and backward, times its
//! number in a step. 8 adapters of batch 2 and length 128 over the `micro` shape, rank 16 on q, k, v and
//! o with dropout 0.05.
//!
//!     cargo bench -p loraloom-benches --bench components

use anyhow::Context;
use batchlora::{
    AdamWStep, AdapterBank, AdapterState, GradientNorms, LoraSpec, SlotUpdate, frozen_linear,
    seed_gradient,
};
use burn::tensor::{Device, Distribution, FloatDType, Int, Tensor};
use loraloom_benches::{KernelBench, median_seconds};
use loraloom_model::{
    AttentionShape, LlamaConfig, Projection, Sequences, cross_entropy, glu, rms_norm, rotate,
    self_attention,
};
use serde_json::json;

const ADAPTERS: usize = 8;
const RANK: usize = 16;
const ADAPTED: [Projection; 4] = [Projection::Q, Projection::K, Projection::V, Projection::O];
const LENGTH: usize = 128;
const SEQUENCES: usize = 2 * ADAPTERS;
const ROWS: usize = SEQUENCES * LENGTH;

fn main() -> anyhow::Result<()> {
    let model = LlamaConfig::named("micro").context("no shape `micro`")?;
    let layers = model.num_hidden_layers as f64;
    let (frozen, adapted) = products(&model)?;
    let parts = [
        ("frozen products", layers * frozen),
        ("LoRA beside them", layers * adapted),
        ("attention", layers * attention(&model)?),
        ("norms, rotary, SwiGLU", layers * elementwise(&model)?),
        ("output projection and loss", loss(&model)?),
        ("optimizer", layers * optimizer(&model)?),
    ];
    let total: f64 = parts.iter().map(|(_, time)| time).sum();
    let parts: Vec<_> = parts
        .iter()
        .map(|(name, time)| json!({"part": name, "milliseconds": time, "share": time / total}))
        .collect();
    let report = json!({"rows": ROWS, "milliseconds": total, "parts": parts});
    #[expect(clippy::print_stdout, reason = "a benchmark prints its report")]
    {
        println!("{report}");
    }
    Ok(())
}

fn random(shape: [usize; 2]) -> Tensor<2> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::flex())
}

fn leaf(shape: [usize; 2]) -> Tensor<2> {
    random(shape).autodiff().require_grad()
}

/// Forward and backward of a graph from the gradient of its output.
fn both_ways(output: Tensor<2>, gradient: &Tensor<2>) {
    std::hint::black_box(seed_gradient(output, gradient.clone()).backward());
}

fn milliseconds(mut work: impl FnMut()) -> anyhow::Result<f64> {
    let work = || {
        work();
        Ok(())
    };
    Ok(1e3 * median_seconds(&Device::flex(), vec![work])?[0])
}

/// One layer's seven products with frozen weights, and what the adapters add to four of them.
fn products(model: &LlamaConfig) -> anyhow::Result<(f64, f64)> {
    let (mut frozen, mut adapted) = (0.0, 0.0);
    for linear in model.linears() {
        let bench = KernelBench {
            rows: ROWS,
            d_in: linear.d_in,
            d_out: linear.d_out,
            adapters: Vec::new(),
            dtype: FloatDType::F32,
            nf4: false,
            composed: false,
        };
        for measured in bench.measure(&[RANK; ADAPTERS], &Device::flex())? {
            match measured.name {
                "frozen" => frozen += measured.milliseconds,
                "fused" if ADAPTED.contains(&linear.projection) => {
                    adapted += measured.milliseconds - measured.frozen_milliseconds;
                }
                _ => {}
            }
        }
    }
    Ok((frozen, adapted))
}

fn attention(model: &LlamaConfig) -> anyhow::Result<f64> {
    let shape = AttentionShape {
        sequences: Sequences::from_lengths([LENGTH; SEQUENCES]),
        num_heads: model.num_attention_heads,
        num_kv_heads: model.num_key_value_heads,
        head_dim: model.head_dim,
        window: None,
        score_scale: None,
        softcap: None,
    };
    let kv = model.num_key_value_heads * model.head_dim;
    let [q, k, v] = [model.d_model, kv, kv].map(|width| leaf([ROWS, width]));
    let gradient = random([ROWS, model.d_model]);
    milliseconds(|| {
        let output = self_attention(q.clone(), k.clone(), v.clone(), &shape);
        both_ways(output, &gradient);
    })
}

fn elementwise(model: &LlamaConfig) -> anyhow::Result<f64> {
    let (hidden, mlp) = (model.d_model, model.d_ffn);
    let table = || random([ROWS, model.head_dim / 2]);
    let (cos, sin) = (table(), table());
    let norm = {
        let (x, gradient) = (leaf([ROWS, hidden]), random([ROWS, hidden]));
        let weight = Tensor::<1>::ones([hidden], &Device::flex());
        milliseconds(|| both_ways(rms_norm(x.clone(), weight.clone(), 1e-6), &gradient))?
    };
    let rotary = |width| {
        let (x, gradient) = (leaf([ROWS, width]), random([ROWS, width]));
        milliseconds(|| both_ways(rotate(x.clone(), cos.clone(), sin.clone()), &gradient))
    };
    let swiglu = {
        let (gate, up) = (leaf([ROWS, mlp]), leaf([ROWS, mlp]));
        let gradient = random([ROWS, mlp]);
        milliseconds(|| both_ways(glu(gate.clone(), up.clone(), model.activation), &gradient))?
    };
    let keys = model.num_key_value_heads * model.head_dim;
    Ok(2.0 * norm + rotary(hidden)? + rotary(keys)? + swiglu)
}

fn loss(model: &LlamaConfig) -> anyhow::Result<f64> {
    let (hidden, vocabulary) = (model.d_model, model.vocab_size);
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
fn optimizer(model: &LlamaConfig) -> anyhow::Result<f64> {
    let device = Device::flex();
    let mut banks = Vec::new();
    for projection in ADAPTED {
        let linear = model.linear(projection).context("a linear layer")?;
        let mut bank = AdapterBank::new(linear.d_in, linear.d_out, 0, &device);
        for seed in 0..ADAPTERS {
            let spec = LoraSpec::new(RANK, 32.0).with_lora_dropout(0.05);
            let size = [linear.d_in, linear.d_out];
            let state = AdapterState::init(spec, size, seed as u64, 0, &device)?;
            bank.push(Some(state))?;
        }
        banks.push(bank);
    }
    let update = SlotUpdate {
        learning_rates: 1e-4.into(),
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
        max_grad_norm: 1.0,
        step: 1,
    };
    milliseconds(|| {
        for bank in &mut banks {
            let Some(gradient) = bank.weights() else {
                continue;
            };
            let norms = GradientNorms::new(ADAPTERS, &device)
                .add(bank, &gradient)
                .finish();
            AdamWStep::new(&[Some(update); ADAPTERS], norms).apply(bank, gradient);
        }
    })
}
