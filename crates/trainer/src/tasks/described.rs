//! The scheduler's view of a task.

use loraloom_config::{RunConfig, TargetModule};
use loraloom_model::{
    LlamaConfig, Projection,
    cost::{GRADIENT_BYTES, TRAINED_BYTES, least_bytes_per_token},
};
use loraloom_scheduler::{Load, Past, Room, Scheduler, SchedulerError, TaskState};

use super::{State, Task, step_rows::estimates_divergence};
use crate::adapter::{ModelAdapter, adapter_bytes, fresh_bytes};

/// Properties of a run that the memory of each of its tasks depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunShape<'a> {
    model: &'a LlamaConfig,
    /// Number of micro-batches of a batch.
    split: usize,
    /// Least bytes of activations per token, at all layers.
    token_bytes: usize,
}

impl<'a> RunShape<'a> {
    /// For a run whose activations have at least `element_bytes` bytes an element.
    pub(crate) fn new(model: &'a LlamaConfig, config: &RunConfig, element_bytes: usize) -> Self {
        let checkpointing = config.gradient_checkpointing;
        Self {
            model,
            split: config.pipeline.microbatches,
            token_bytes: least_bytes_per_token(model, element_bytes, checkpointing),
        }
    }
}

impl Task {
    /// The scheduler's view of it.
    pub(crate) fn described(&self, run: RunShape<'_>) -> loraloom_scheduler::Task {
        let samples = self.microbatch_samples(run.split) as u64;
        let (train, report) = (&self.config.train, self.train_report());
        // A prompt with the completion of another row may be longer than any row.
        let longest = if estimates_divergence(self.preference.as_ref()) {
            train.max_seq_len
        } else {
            report.longest.min(train.max_seq_len)
        } as u64;
        let microbatches = self.microbatches_per_step(run.split).max(1);
        let adapter_bytes = self.adapter_bytes(run.model);
        loraloom_scheduler::Task {
            id: self.id,
            name: self.config.name.clone(),
            tenant: self.config.tenant.clone(),
            priority: self.config.priority,
            arrival: self.id.0,
            rank: self.config.lora.ranks(),
            rows_per_step: self.order.rows_per_step(),
            tokens_per_step: report.tokens.div_ceil(self.steps_per_epoch()),
            total_steps: self.total_steps,
            passes_per_step: microbatches,
            max_parts: microbatches,
            load: Load {
                tokens: samples * longest,
                squared_tokens: samples * longest * longest,
                adapter_bytes,
                certain_bytes: self.certain_bytes(run, adapter_bytes),
            },
        }
    }

    /// Submits it to a scheduler at `now`, without a place.
    pub(crate) fn submit_to<R: Room>(
        &self,
        scheduler: &mut Scheduler<R>,
        run: RunShape<'_>,
        now: f64,
    ) -> Result<(), SchedulerError> {
        let state = match self.state {
            State::Waiting => TaskState::Queued,
            State::Parked(_) | State::Running => TaskState::Parked,
        };
        let past = Past {
            state,
            steps_taken: self.steps,
            waited: self.waited,
        };
        scheduler.restore(self.described(run), past, now)
    }

    /// Its adapter, if it exists already.
    fn made(&self) -> Option<&ModelAdapter> {
        match &self.state {
            State::Parked(adapter) => Some(adapter),
            State::Waiting | State::Running => self.initial.as_ref(),
        }
    }

    /// Bytes of its adapter during training.
    fn adapter_bytes(&self, model: &LlamaConfig) -> u64 {
        match self.made() {
            Some(adapter) => adapter_bytes(adapter),
            None => fresh_bytes(&self.config.lora, model),
        }
    }

    /// Bytes that its longest row keeps until the backward pass, in a micro-batch of its own.
    fn certain_bytes(&self, run: RunShape<'_>, adapter_bytes: u64) -> u64 {
        // Layers below the first with an adapter keep nothing; the output projection is above all layers.
        let keeps = if let Some(adapter) = self.made() {
            adapter.first().is_none_or(|layer| {
                let parts = Projection::ALL.iter().zip(layer.iter());
                let mut kept = parts.filter(|(projection, _)| **projection != Projection::LmHead);
                kept.any(|(_, part)| part.is_some())
            })
        } else {
            let mut targets = self.config.lora.target_modules.iter();
            targets.any(|&module| module != TargetModule::LmHead)
        };
        if !keeps {
            return 0;
        }
        let activations = (self.longest_met() * run.token_bytes) as u64;
        // The last gradients are computed when most activations are freed.
        let gradients = adapter_bytes * GRADIENT_BYTES as u64 / TRAINED_BYTES as u64;
        activations.saturating_sub(gradients)
    }

    /// Tokens of the longest row of its steps, for any order of rows.
    fn longest_met(&self) -> usize {
        let mut taken = self.order.rows_per_step().saturating_mul(self.total_steps);
        let mut longest = 0;
        for (&length, &rows) in self.train_rows().predicting_lengths() {
            if taken == 0 {
                break;
            }
            longest = length;
            taken = taken.saturating_sub(rows);
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use loraloom_config::{InitLoraWeights, LoadOptions, RunConfig, TargetModule};
    use loraloom_data::{EncodeReport, Encoded, EncodedDataset, Sample, Samples};
    use loraloom_model::{
        LayerAdapter, LlamaConfig,
        cost::{GRADIENT_BYTES, TRAINED_BYTES},
    };
    use loraloom_scheduler::TaskId;

    use burn::tensor::Device;

    use super::{RunShape, State, Task};
    use crate::{
        adapter::{bytes_of, fresh, fresh_bytes},
        checkpoint::ExactF64,
        tasks::{Prepared, TaskData},
    };

    const LENGTHS: [usize; 4] = [5, 9, 3, 3];

    fn config(train: &str) -> RunConfig {
        let text = format!(
            "model: m\ndatasets: {{d: {{path: p}}}}\npipeline: {{microbatches: 2}}\n\
             adapters: [{{name: a, lora: {{r: 2}}, train: {{batch_size: 2, max_seq_len: 64, {train}}}}}]"
        );
        let loaded = RunConfig::load_yaml(&text, Path::new("a.yaml"), &LoadOptions::default());
        loaded.unwrap().config
    }

    fn task(config: &RunConfig) -> Task {
        let sample = |&length: &usize| Sample {
            ids: vec![1; length],
            is_target: (0..length).map(|at| at > 0).collect(),
            preferred: None,
        };
        let mut samples = Samples::default();
        for length in &LENGTHS {
            samples.push(&sample(length)).unwrap();
        }
        let train = EncodedDataset {
            samples,
            report: EncodeReport {
                rows: LENGTHS.len(),
                kept: LENGTHS.len(),
                tokens: LENGTHS.iter().sum(),
                longest: 9,
                ..EncodeReport::default()
            },
        };
        let data = TaskData {
            rows: Encoded {
                train,
                validation: None,
                warnings: Vec::new(),
            },
            digest: String::new(),
            warnings: Vec::new(),
            references: Arc::default(),
        };
        Task::new(TaskId(0), config.adapters[0].clone(), Arc::new(data)).unwrap()
    }

    #[test]
    fn a_task_asks_for_what_its_rows_take() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-llama");
        let model = LlamaConfig::from_directory(&directory).unwrap();
        for (train, longest_met) in [
            ("num_epochs: 1", 8),
            // At least one of the two shortest rows may be the only row that it takes.
            ("max_steps: 1", 2),
            ("max_steps: 2", 8),
        ] {
            let config = config(train);
            let run = RunShape::new(&model, &config, 4);
            let mut task = task(&config);
            let described = task.described(run);
            assert_eq!(described.tokens_per_step, 10, "{train}");
            assert_eq!(described.rows_per_step, 2, "{train}");
            assert_eq!(described.passes_per_step, 2, "{train}");
            let load = described.load;
            assert_eq!((load.tokens, load.squared_tokens), (9, 81), "{train}");
            let adapter_bytes = fresh_bytes(&config.adapters[0].lora, &model);
            assert_eq!(load.adapter_bytes, adapter_bytes);
            let gradients = adapter_bytes * GRADIENT_BYTES as u64 / TRAINED_BYTES as u64;
            let activations = (longest_met * run.token_bytes) as u64;
            assert!(activations > 0 && load.certain_bytes == activations.saturating_sub(gradients));
            assert!(load.certain_bytes > 0 || longest_met < 8, "{train}");

            // A task that begins from an adapter of upper layers only.
            task.initial = Some(vec![LayerAdapter::default(); model.num_hidden_layers]);
            assert_eq!(task.described(run).load.certain_bytes, 0, "{train}");
        }
    }

    #[test]
    fn an_adapter_of_the_output_projection_keeps_nothing_of_the_layers() {
        let model = LlamaConfig::named("micro").unwrap();
        let mut config = config("num_epochs: 1");
        config.adapters[0].lora.target_modules = vec![TargetModule::LmHead];
        let run = RunShape::new(&model, &config, 4);
        let mut task = task(&config);
        assert_eq!(task.described(run).load.certain_bytes, 0);
        let made = fresh(&config.adapters[0], &model, &Device::flex());
        task.initial = Some(made.unwrap());
        assert_eq!(task.described(run).load.certain_bytes, 0);
    }

    /// Patience continues after a restart.
    #[test]
    fn a_task_is_restored_as_it_was_recorded() {
        let config = config("max_steps: 4");
        let mut record = task(&config).record().unwrap();
        (
            record.step,
            record.evaluations_without_best,
            record.halvings,
        ) = (3, 2, 1);
        record.first_loss = Some(ExactF64(1.5));
        let mut restored = task(&config);
        restored.restore(&record);
        assert_eq!(restored.steps, 3);
        assert_eq!(restored.evaluations_without_best, 2);
        assert_eq!(restored.halvings, 1);
        assert_eq!(restored.first_loss, Some(1.5));
        let mut prepared = Prepared::default();
        prepared.tasks.push(restored);
        let trial = prepared.trial(TaskId(0)).unwrap();
        assert_eq!(trial.first_loss, Some(1.5));
    }

    /// On the CPU, where waiting adapters compete with training for memory, a reproducible one is dropped.
    #[test]
    fn an_adapter_that_has_learnt_nothing_waits_without_memory() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/tiny-llama");
        let model = LlamaConfig::from_directory(&directory).unwrap();
        let config = config("max_steps: 4");
        let adapter = fresh(&config.adapters[0], &model, &Device::flex()).unwrap();
        let one = bytes_of(&adapter);
        assert!(one > 0);
        for (steps, begins_with, waits_with) in
            [(0, None, 0), (1, None, 2 * one), (0, Some("p"), 2 * one)]
        {
            let mut task = task(&config);
            task.steps = steps;
            task.config.init_from = begins_with.map(Into::into);
            task.initial = Some(adapter.clone());
            task.wait_with(|| Ok(adapter.clone())).unwrap();
            assert_eq!(task.waiting_bytes(), waits_with, "{steps} {begins_with:?}");
            assert_eq!(matches!(task.state, State::Waiting), waits_with == 0);
        }
        // Start values that took computing are not computed again.
        let mut task = task(&config);
        task.config.lora.init_lora_weights = InitLoraWeights::Eva;
        task.wait_with(|| Ok(adapter.clone())).unwrap();
        assert_eq!(task.waiting_bytes(), one);
    }
}
