use std::ops::Range;

use burn::tensor::{FloatDType, Tensor};
use loraloom_model::{ModelError, to_host};
use loraloom_pipeline::Stage;

use super::{
    EndToEndBench,
    measure::{dtype_name, median, seconds},
    report::EndToEndMeasurement,
    workload::{Task, update},
};
use crate::{
    TrainerError,
    assemble::{TaskRows, assemble},
    train_step::train_step,
};

/// Runs a median is taken of.
const RUNS: usize = 3;
/// Steps of every run that are not timed: they compile, tune and fill the allocator.
const WARM_UP: usize = 2;

/// A model and its tasks.
#[derive(Debug)]
pub(super) struct Trial<'a> {
    bench: &'a EndToEndBench,
    stage: Stage,
    tasks: Vec<Task>,
}

impl<'a> Trial<'a> {
    pub(super) fn new(bench: &'a EndToEndBench, stage: Stage) -> Self {
        Self {
            bench,
            stage,
            tasks: Vec::new(),
        }
    }

    /// Trains so many adapters together and, if that is asked for, one after another.
    pub(super) fn measure(
        &mut self,
        adapters: usize,
        dtype: FloatDType,
    ) -> Result<EndToEndMeasurement, TrainerError> {
        let bench = self.bench;
        let device = self.stage.device().clone();
        let sizes = [bench.batch, bench.length];
        let tasks = (0..adapters).map(|seed| Task::new(seed as u64, &bench.model, sizes, &device));
        self.tasks = tasks.collect::<Result<_, _>>()?;
        device.memory_cleanup();
        let tokens = (adapters * bench.batch * bench.length * bench.steps) as f64;
        let (mut together, mut alone, mut reserved) = (Vec::new(), Vec::new(), None);
        for _ in 0..RUNS {
            together.push(tokens / self.train(0..adapters)?);
            let usage = device.memory_pool_usage().map(|usage| usage.bytes_reserved);
            reserved = reserved.max(usage);
            if bench.vs_sequential {
                let mut total = 0.0;
                for task in 0..adapters {
                    total += self.train(task..task + 1)?;
                }
                alone.push(tokens / total);
            }
        }
        let tokens_per_second = median(together);
        Ok(EndToEndMeasurement {
            shape: bench.shape.clone(),
            adapters,
            batch: bench.batch,
            length: bench.length,
            dtype: dtype_name(dtype),
            tokens_per_second,
            sequential_tokens_per_second: bench.vs_sequential.then(|| median(alone)),
            model_tflops: tokens_per_second * bench.operations_per_token() / 1e12,
            peak_bytes: reserved,
        })
    }

    /// Trains these tasks from their beginning, all at once; seconds of the steps that count.
    fn train(&mut self, who: Range<usize>) -> Result<f64, TrainerError> {
        for task in &self.tasks[who.clone()] {
            self.stage.push(task.adapter.clone())?;
        }
        let (device, steps) = (self.stage.device().clone(), self.bench.steps);
        let mut step = 0;
        let mut losses = Vec::new();
        let mut next = || {
            losses = self.step(&who, step)?;
            step += 1;
            Ok(())
        };
        seconds(&device, WARM_UP, &mut next)?;
        let seconds = seconds(&device, steps, &mut next)?;
        for slot in (0..who.len()).rev() {
            self.stage.remove(slot)?;
        }
        // Only who reads learns that a device failed.
        for losses in losses {
            let loss = to_host(losses.mean())?;
            if !loss.iter().all(|loss| loss.is_finite()) {
                let reason = format!("a benchmark's loss came to {loss:?}");
                return Err(ModelError::Device { reason }.into());
            }
        }
        Ok(seconds)
    }

    /// One optimizer step of these tasks; the losses of their targets, still on the device.
    fn step(&mut self, who: &Range<usize>, step: usize) -> Result<Vec<Tensor<1>>, TrainerError> {
        let tasks = &self.tasks[who.clone()];
        let rows: Vec<TaskRows<'_>> = tasks
            .iter()
            .enumerate()
            .map(|(slot, task)| task.rows(slot))
            .collect();
        let draws = tasks.iter().map(|task| task.draw(step)).collect();
        let batch = assemble(&self.bench.model, &rows, Some(draws), self.stage.device())?;
        let updates = vec![Some(update(step)); tasks.len()];
        Ok(train_step(&mut self.stage, &[batch], &updates)?.losses)
    }
}
