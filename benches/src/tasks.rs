//! Tasks with random tokens and fresh adapters.

use batchlora::{
    AdapterState, BatchLoraError, DropoutDraw, LoraSpec, Segment, Segments, SlotUpdate,
};
use burn::tensor::Device;
use loraloom_model::{LayerAdapter, Sequences, Targets};
use loraloom_pipeline::Microbatch;

use crate::EndToEndBench;

/// A task with dropout 0.05 and the same random sequences in every step.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) seed: u64,
    /// Each one token longer than the model's input: the last is only predicted.
    sequences: Vec<Vec<u32>>,
}

impl Task {
    pub(crate) fn new(seed: u64, bench: &EndToEndBench) -> Self {
        let mut tokens = random_tokens(seed, bench.model.vocab_size);
        let mut sequence = || tokens.by_ref().take(bench.length + 1).collect();
        let sequences = (0..bench.batch).map(|_| sequence());
        Self {
            seed,
            sequences: sequences.collect(),
        }
    }
}

/// Tokens of a linear congruential generator.
pub(crate) fn random_tokens(seed: u64, vocabulary: usize) -> impl Iterator<Item = u32> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocabulary as u64) as u32
    })
}

/// An adapter of this rank before its first step.
pub(crate) fn adapter(
    bench: &EndToEndBench,
    rank: usize,
    seed: u64,
    device: &Device,
) -> Result<Vec<LayerAdapter>, BatchLoraError> {
    let spec = LoraSpec::new(rank, 2.0 * rank as f64)
        .with_lora_dropout(0.05)
        .with_use_dora(bench.use_dora);
    let layer = |layer: usize| {
        let mut adapter = LayerAdapter::default();
        for &projection in &bench.targets {
            let Some(shape) = bench.model.linear(projection) else {
                continue;
            };
            let (widths, module) = ([shape.d_in, shape.d_out], projection.number(layer));
            let state = AdapterState::init(spec, widths, seed, module, device)?;
            adapter[projection as usize] = Some(state);
        }
        Ok(adapter)
    };
    (0..bench.model.num_hidden_layers).map(layer).collect()
}

/// Micro-batch `part` of step `step`: an equal share of every task's sequences, in which every token
/// predicts its successor.
pub(crate) fn microbatch(
    bench: &EndToEndBench,
    tasks: &[Task],
    part: usize,
    step: usize,
) -> Result<Microbatch, BatchLoraError> {
    let (batch, length, parts) = (bench.batch, bench.length, bench.microbatches);
    let share = part * batch / parts..(part + 1) * batch / parts;
    let (sequences, rows) = (tasks.len() * share.len(), share.len() * length);
    let (mut ids, mut predicted) = (Vec::new(), Vec::new());
    for sequence in tasks.iter().flat_map(|task| &task.sequences[share.clone()]) {
        ids.extend_from_slice(&sequence[..length]);
        predicted.extend_from_slice(&sequence[1..]);
    }
    // The loss is the mean over the task's whole step, scaled as in training.
    let loss_scale = (batch * length).next_power_of_two() as f32;
    let segments = (0..tasks.len()).map(|slot| Segment {
        rows: slot * rows..(slot + 1) * rows,
        slot,
    });
    let dropout_rows = tasks
        .iter()
        .flat_map(|_| (share.start * length..share.end * length).map(|row| row as u32));
    let draws = tasks.iter().map(|task| DropoutDraw {
        seed: task.seed,
        step: step as u32,
    });
    Ok(Microbatch {
        sequences: Sequences::from_lengths(vec![length; sequences]),
        cached: None,
        rope_lengths: vec![length; sequences],
        segments: Segments::new(ids.len(), segments.collect())?
            .with_dropout_rows(dropout_rows.collect())?
            .with_loss_scales(vec![loss_scale; tasks.len()])?,
        draws: Some(draws.collect()),
        targets: Targets {
            rows: (0..ids.len()).collect(),
            ids: predicted,
            weights: vec![loss_scale / (batch * length) as f32; ids.len()],
            ..Targets::default()
        },
        ids,
    })
}

/// The optimizer's settings in step `step`, counted from 0.
pub(crate) fn update(step: usize) -> SlotUpdate {
    SlotUpdate {
        learning_rates: 1e-4.into(),
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
        max_grad_norm: 1.0,
        step: step as u64 + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::{Task, microbatch};
    use crate::{EndToEndBench, end_to_end::tests::tiny};

    #[test]
    fn microbatches_have_every_sequence_once() {
        let bench = |microbatches| EndToEndBench {
            batch: 5,
            microbatches,
            ..tiny()
        };
        let tasks = [Task::new(1, &bench(1))];
        let whole = microbatch(&bench(1), &tasks, 0, 0).unwrap();
        assert_eq!(whole.ids.len(), 5 * bench(1).length);
        assert_eq!(whole.targets.rows.len(), whole.ids.len());
        for parts in 1..=5 {
            let (mut ids, mut predicted) = (Vec::new(), Vec::new());
            for part in 0..parts {
                let found = microbatch(&bench(parts), &tasks, part, 0).unwrap();
                assert!((5 / parts..=5usize.div_ceil(parts)).contains(&found.sequences.len()));
                assert_eq!(
                    found.targets.weights,
                    whole.targets.weights[..found.ids.len()]
                );
                ids.extend(found.ids);
                predicted.extend(found.targets.ids);
            }
            assert_eq!(
                (ids, predicted),
                (whole.ids.clone(), whole.targets.ids.clone())
            );
        }
    }
}
