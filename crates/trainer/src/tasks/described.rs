//! A task as a scheduler sees it.

use loraloom_config::RunConfig;
use loraloom_data::Sample;
use loraloom_model::{
    LlamaConfig,
    cost::{GRADIENT_BYTES, TRAINED_BYTES, least_bytes_per_token},
};
use loraloom_scheduler::{Load, Past, Room, Scheduler, SchedulerError, TaskState};

use super::{State, Task};
use crate::adapter::{ModelAdapter, adapter_bytes, fresh_bytes};

/// What a task asks of devices depends on, beside itself: the same for all tasks of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunShape<'a> {
    model: &'a LlamaConfig,
    /// Micro-batches that batches are cut into.
    split: usize,
    /// Bytes of activations that a token needs for certain, at all layers.
    token_bytes: usize,
}

impl<'a> RunShape<'a> {
    /// Of a run with activations of so many bytes an element, at the least.
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
        let rows = self.microbatch_rows(run.split) as u64;
        let (train, report) = (&self.config.train, self.train_report());
        let longest = report.longest.min(train.max_seq_len) as u64;
        let microbatches = self.microbatches_per_step(run.split).max(1);
        let adapter_bytes = self.adapter_bytes(run.model);
        loraloom_scheduler::Task {
            id: self.id,
            name: self.config.name.clone(),
            tenant: self.config.tenant.clone(),
            priority: self.config.priority,
            arrival: self.id.0,
            rank: self.config.lora.r,
            rows_per_step: self.order.rows_per_step(),
            tokens_per_step: report.tokens.div_ceil(self.steps_per_epoch()),
            total_steps: self.total_steps,
            passes_per_step: microbatches,
            max_parts: microbatches,
            load: Load {
                tokens: rows * longest,
                squared_tokens: rows * longest * longest,
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

    /// Its adapter, if that was made.
    fn made(&self) -> Option<&ModelAdapter> {
        match &self.state {
            State::Parked(adapter) => Some(adapter),
            State::Waiting | State::Running => self.initial.as_ref(),
        }
    }

    /// Bytes that its adapter takes while it trains.
    fn adapter_bytes(&self, model: &LlamaConfig) -> u64 {
        match self.made() {
            Some(adapter) => adapter_bytes(adapter),
            None => fresh_bytes(&self.config.lora, model),
        }
    }

    /// Bytes that its longest row keeps until the backward pass, in a micro-batch of its own.
    fn certain_bytes(&self, run: RunShape<'_>, adapter_bytes: u64) -> u64 {
        // Layers below the first with an adapter keep nothing.
        let lowest = self.made().and_then(|adapter| adapter.first());
        if lowest.is_some_and(|layer| layer.iter().all(Option::is_none)) {
            return 0;
        }
        let activations = (self.longest_met() * run.token_bytes) as u64;
        // The last gradients are made when most activations are gone.
        let gradients = adapter_bytes * GRADIENT_BYTES as u64 / TRAINED_BYTES as u64;
        activations.saturating_sub(gradients)
    }

    /// Tokens of the longest row that its steps take, whatever their order.
    fn longest_met(&self) -> usize {
        let lengths = self.train_rows().iter().map(Sample::predicting_len);
        let mut lengths: Vec<usize> = lengths.collect();
        let taken = self.order.rows_per_step().saturating_mul(self.total_steps);
        let Some(last) = taken.min(lengths.len()).checked_sub(1) else {
            return 0;
        };
        *lengths.select_nth_unstable(last).1
    }
}
