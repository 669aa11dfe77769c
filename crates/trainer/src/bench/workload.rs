//! Tasks that nobody wrote: random tokens, fresh adapters.

use batchlora::{AdapterState, DropoutDraw, LoraSpec, SlotUpdate};
use burn::tensor::Device;
use loraloom_data::Sample;
use loraloom_model::{LayerAdapter, LlamaConfig, Projection};

use super::EndToEndBench;
use crate::{TrainerError, adapter::ModelAdapter, assemble::TaskRows};

/// A task of the paper's workload: dropout 0.05, over the same random tokens in every step.
#[derive(Debug)]
pub(super) struct Task {
    seed: u64,
    rank: usize,
    targets: Vec<Projection>,
    samples: Vec<Sample>,
}

impl Task {
    /// Task number `seed`, of whose sequences all tokens but the first are predicted.
    pub(super) fn new(seed: u64, bench: &EndToEndBench) -> Self {
        let mut tokens = tokens(seed, bench.model.vocab_size);
        let samples = (0..bench.batch).map(|_| Sample {
            ids: tokens.by_ref().take(bench.length + 1).collect(),
            is_target: (0..=bench.length).map(|position| position > 0).collect(),
        });
        Self {
            seed,
            rank: bench.rank,
            targets: bench.targets.clone(),
            samples: samples.collect(),
        }
    }

    /// The adapter before its first step.
    pub(super) fn adapter(
        &self,
        model: &LlamaConfig,
        device: &Device,
    ) -> Result<ModelAdapter, TrainerError> {
        let spec = LoraSpec::new(self.rank, 2.0 * self.rank as f64).with_lora_dropout(0.05);
        let shapes = model.linears();
        let layer = |layer: usize| {
            let mut adapter = LayerAdapter::default();
            for &projection in &self.targets {
                let shape = &shapes[projection as usize];
                let (widths, module) = ([shape.d_in, shape.d_out], projection.number(layer));
                let state = AdapterState::init(spec, widths, self.seed, module, device)?;
                adapter[projection as usize] = Some(state);
            }
            Ok(adapter)
        };
        (0..model.num_hidden_layers).map(layer).collect()
    }

    /// The task's rows of one of so many parts of a batch, every one of them a prediction.
    pub(super) fn rows(&self, slot: usize, part: usize, parts: usize) -> TaskRows<'_> {
        let targets: usize = self.samples.iter().map(Sample::num_targets).sum();
        let first = part * self.samples.len() / parts;
        let end = (part + 1) * self.samples.len() / parts;
        TaskRows {
            slot,
            samples: self.samples[first..end].iter().collect(),
            first_sample: first,
            max_seq_len: self.samples.first().map_or(0, Sample::len),
            longest: self.samples.iter().map(Sample::len).max().unwrap_or(0),
            step_targets: targets,
        }
    }

    pub(super) fn draw(&self, step: usize) -> DropoutDraw {
        DropoutDraw {
            seed: self.seed,
            step: step as u32,
        }
    }
}

/// The optimizer's settings in step `step`, counted from 0.
pub(super) fn update(step: usize) -> SlotUpdate {
    SlotUpdate {
        learning_rate: 1e-4,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
        max_grad_norm: 1.0,
        step: step as u64 + 1,
    }
}

/// Endless tokens below `vocabulary`; a linear congruential generator's upper bits.
fn tokens(seed: u64, vocabulary: usize) -> impl Iterator<Item = u32> {
    let next = |state: &u64| {
        let next = state.wrapping_mul(6_364_136_223_846_793_005);
        Some(next.wrapping_add(1_442_695_040_888_963_407))
    };
    std::iter::successors(Some(seed), next)
        .skip(1)
        .map(move |state| ((state >> 33) % vocabulary as u64) as u32)
}
