use std::ops::Range;

use burn::tensor::{Device, FloatDType};
use loraloom_model::ModelError;
use loraloom_pipeline::{
    Pipeline, Stage, TrainStage,
    executor::{Driver, GroupPlan, Passes, StepOutcome, StepPlan, Steps},
    schedule::{PipelineShape, Schedule},
};

use super::{
    EndToEndBench,
    count::profile,
    measure::{dtype_name, median, seconds},
    report::EndToEndMeasurement,
    workload::{Task, update},
};
use crate::{
    TrainerError,
    assemble::{TaskRows, assemble},
};

/// Runs a median is taken of.
const RUNS: usize = 3;
/// Steps of every run that are not timed: they compile, tune and fill the allocator.
const WARM_UP: usize = 2;

/// A model and its tasks.
#[derive(Debug)]
pub(super) struct Trial<'a> {
    bench: &'a EndToEndBench,
    device: Device,
    pipeline: Pipeline,
    tasks: Vec<Task>,
}

impl<'a> Trial<'a> {
    pub(super) fn new(bench: &'a EndToEndBench, stage: Stage) -> Result<Self, TrainerError> {
        Ok(Self {
            bench,
            device: stage.device().clone(),
            pipeline: Pipeline::new(vec![stage])?,
            tasks: Vec::new(),
        })
    }

    /// Trains so many adapters together and, if that is asked for, one after another.
    pub(super) fn measure(
        &mut self,
        adapters: usize,
        dtype: FloatDType,
    ) -> Result<EndToEndMeasurement, TrainerError> {
        let bench = self.bench;
        let device = self.device.clone();
        self.tasks = (0..adapters)
            .map(|seed| Task::new(seed as u64, bench))
            .collect();
        device.memory_cleanup();
        let tokens = (adapters * bench.batch * bench.length * bench.steps) as f64;
        let (mut together, mut alone, mut peak_bytes) = (Vec::new(), Vec::new(), None);
        for _ in 0..RUNS {
            let (seconds, host_peak_bytes) = self.train(0..adapters)?;
            together.push(tokens / seconds);
            let usage = device.memory_pool_usage().map(|usage| usage.bytes_reserved);
            peak_bytes = peak_bytes.max(usage).max(host_peak_bytes);
            if bench.vs_sequential {
                let mut total = 0.0;
                for task in 0..adapters {
                    total += self.train(task..task + 1)?.0;
                }
                alone.push(tokens / total);
            }
        }
        let profile = if bench.profile {
            let one = self.measured(0..adapters, |device, run| profile(device, || run(1)));
            one?.0
        } else {
            Vec::new()
        };
        let tokens_per_second = median(together);
        Ok(EndToEndMeasurement {
            shape: bench.shape.clone(),
            adapters,
            rank: bench.rank,
            target_modules: bench.targets.iter().map(|target| target.name()).collect(),
            batch: bench.batch,
            microbatches: bench.microbatches,
            length: bench.length,
            dtype: dtype_name(dtype),
            tokens_per_second,
            sequential_tokens_per_second: bench.vs_sequential.then(|| median(alone)),
            model_tflops: tokens_per_second * bench.operations_per_token() / 1e12,
            peak_bytes,
            profile,
        })
    }

    /// Seconds of the steps of these tasks, all at once, and the most bytes of this process.
    fn train(&mut self, who: Range<usize>) -> Result<(f64, Option<u64>), TrainerError> {
        let steps = self.bench.steps;
        self.measured(who, |device, run| seconds(device, 1, &mut || run(steps)))
    }

    /// Trains these tasks from their beginning, all at once: first steps that are not measured, then
    /// `measure`, which says how many more. What it found, and the most bytes of this process meanwhile.
    fn measured<T>(
        &mut self,
        who: Range<usize>,
        measure: impl FnOnce(
            &Device,
            &mut dyn FnMut(usize) -> Result<(), TrainerError>,
        ) -> Result<T, TrainerError>,
    ) -> Result<(T, Option<u64>), TrainerError> {
        let tasks = &self.tasks[who];
        for task in tasks {
            let adapter = task.adapter(&self.bench.model, &self.device)?;
            self.pipeline.push(0, adapter)?;
        }
        let microbatches = self.bench.microbatches;
        let mut steps = BenchSteps {
            tasks,
            microbatches,
            begun: 0,
            host_peak_bytes: None,
        };
        let pipeline = &mut self.pipeline;
        let mut run = |steps: &mut BenchSteps<'_>, count| {
            let passes = Passes {
                schedule: Schedule::default(),
                shape: PipelineShape::new(1, 1, microbatches, count),
                driver: Driver::default(),
            };
            pipeline.run(&passes, steps)
        };
        run(&mut steps, WARM_UP)?;
        steps.host_peak_bytes = None;
        let found = measure(&self.device, &mut |count| run(&mut steps, count))?;
        for slot in (0..tasks.len()).rev() {
            self.pipeline.remove(0, slot)?;
        }
        Ok((found, steps.host_peak_bytes))
    }
}

/// The same step again and again.
struct BenchSteps<'a> {
    tasks: &'a [Task],
    microbatches: usize,
    begun: usize,
    host_peak_bytes: Option<u64>,
}

impl Steps for BenchSteps<'_> {
    type Error = TrainerError;

    fn plan(&mut self, _step: usize) -> Result<Option<StepPlan>, TrainerError> {
        let draws: Vec<_> = self
            .tasks
            .iter()
            .map(|task| task.draw(self.begun))
            .collect();
        let mut microbatches = Vec::new();
        for part in 0..self.microbatches {
            let tasks = self.tasks.iter().enumerate();
            let rows: Vec<TaskRows<'_>> = tasks
                .map(|(slot, task)| task.rows(slot, part, self.microbatches))
                .collect();
            microbatches.push(assemble(&rows, Some(draws.clone()))?.microbatch);
        }
        let group = GroupPlan {
            microbatches,
            updates: vec![Some(update(self.begun)); self.tasks.len()],
        };
        self.begun += 1;
        let groups = vec![group];
        Ok(Some(StepPlan { groups }))
    }

    fn book(&mut self, outcome: StepOutcome) -> Result<bool, TrainerError> {
        self.host_peak_bytes = self.host_peak_bytes.max(outcome.host_peak_bytes);
        let mut losses = outcome
            .groups
            .iter()
            .flat_map(|group| &group.losses)
            .flatten();
        match losses.find(|loss| !loss.is_finite()) {
            None => Ok(true),
            Some(loss) => {
                let reason = format!("a benchmark's loss came to {loss}");
                Err(ModelError::Device { reason }.into())
            }
        }
    }
}
