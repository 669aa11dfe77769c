use burn::tensor::{DType, Device, FloatDType};
use loraloom_model::{
    LlamaConfig, Projection,
    cost::{frozen_parameters, weight_bytes},
};
use loraloom_pipeline::{
    Pipeline, PipelineError, Stage,
    executor::{GroupPlan, IterationOutcome, IterationPlan, IterationPlanner, Passes},
    schedule::{PipelineShape, Schedule},
};
use loraloom_scheduler::size;
use serde::Serialize;

use crate::{
    launches::{KernelShare, profile},
    tasks::{Task, adapter, microbatch, update},
    timing::{device_failure, dtype_name, median, median_seconds, seconds},
};

/// Runs of which the median is taken.
const RUNS: usize = 3;
/// Steps of every run that are not timed: they compile, tune and fill the allocator.
const WARM_UP: usize = 2;

/// Whole training steps over a model with random weights: forward, loss, backward, clipping and
/// `AdamW` of adapters of one rank with dropout 0.05.
#[derive(Debug, Clone, PartialEq)]
pub struct EndToEndBench {
    /// Name of the model's shape, for the report.
    pub shape: String,
    /// The model.
    pub model: LlamaConfig,
    /// Numbers of adapters trained at once, each a case.
    pub adapters: Vec<usize>,
    /// Rank of every adapter.
    pub rank: usize,
    /// Adapters with `DoRA`.
    pub use_dora: bool,
    /// The adapted projections.
    pub targets: Vec<Projection>,
    /// Sequences of each adapter in a step.
    pub batch: usize,
    /// Micro-batches of a step, at most `batch`; each has a share of every adapter's sequences.
    pub microbatches: usize,
    /// Tokens of a sequence, each of which predicts its successor.
    pub length: usize,
    /// Type of frozen weights and activations.
    pub dtype: FloatDType,
    /// Timed steps of a run, after two that are not.
    pub steps: usize,
    /// Keep only the inputs of layers and compute the rest again in the backward pass.
    pub gradient_checkpointing: bool,
    /// Also train the same adapters one after another.
    pub vs_sequential: bool,
    /// Also time every kernel of a step.
    pub profile: bool,
}

/// Training steps of several adapters at once.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EndToEndMeasurement {
    /// Name of the model's shape.
    pub shape: String,
    /// Adapters trained at once.
    pub adapters: usize,
    /// Rank of each.
    pub rank: usize,
    /// True if they have `DoRA`.
    pub use_dora: bool,
    /// Names of the adapted projections.
    pub target_modules: Vec<&'static str>,
    /// Sequences of each adapter in a step.
    pub batch: usize,
    /// Micro-batches of a step.
    pub microbatches: usize,
    /// Tokens of a sequence.
    pub length: usize,
    /// Type of frozen weights and activations.
    pub dtype: &'static str,
    /// `nf4` if linear layers are in NF4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<&'static str>,
    /// Tokens per second of all adapters together, median of three runs.
    pub tokens_per_second: f64,
    /// The same for the same adapters, trained one after another.
    pub sequential_tokens_per_second: Option<f64>,
    /// 10¹² floating-point operations per second, as PEFT's yardstick counts them: 4 a token for every
    /// weight of the frozen products, output projection included (forward 2, gradient of the input 2),
    /// and `6 · layers · width · length` for causal attention. The adapters' own products are left out.
    pub model_tflops: f64,
    /// Bytes that the device's allocator held after the adapters trained together; on a CPU, the peak of this
    /// process's allocations during it, if they are [counted](loraloom_pipeline::HostMemory).
    pub peak_bytes: Option<u64>,
    /// Time of one step by kernel; empty unless requested, and on the CPU.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profile: Vec<KernelShare>,
}

impl EndToEndBench {
    /// Measures every number of adapters; `progress` gets a line before each.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(
        &self,
        device: &Device,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<EndToEndMeasurement>, PipelineError> {
        let layers = 0..self.model.num_hidden_layers;
        let parameters = frozen_parameters(&self.model, &layers);
        let bytes = weight_bytes(&self.model, &layers, DType::from(self.dtype).size());
        progress(&format!(
            "{}: {:.1} M parameters, {} in {}{}",
            self.shape,
            parameters as f64 / 1e6,
            size(bytes as u64),
            dtype_name(self.dtype),
            self.model.quantization.as_ref().map_or("", |_| " and NF4"),
        ));
        let mut pipeline = self.pipeline(device)?;
        self.adapters
            .iter()
            .filter(|&&adapters| adapters > 0)
            .map(|&adapters| {
                progress(&format!(
                    "{}: adapters {adapters}, batch {}, length {}",
                    self.shape, self.batch, self.length
                ));
                self.measure(adapters, &mut pipeline, device)
            })
            .collect()
    }

    /// Median seconds of a step of this and of another bench, with their first numbers of adapters, in turns.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step_seconds(&self, other: &Self, device: &Device) -> Result<Vec<f64>, PipelineError> {
        let [(tasks, mut pipeline), (other_tasks, mut other_pipeline)] =
            [self.prepare(device)?, other.prepare(device)?];
        let (seconds, _) = self.train(&tasks, &mut pipeline, device, |run| {
            let both = other.train(&other_tasks, &mut other_pipeline, device, |run_other| {
                let (mut step, mut other_step) = (|| run(1), || run_other(1));
                let pieces: Vec<&mut dyn FnMut() -> Result<(), PipelineError>> =
                    vec![&mut step, &mut other_step];
                median_seconds(device, pieces)
            });
            both.map(|(seconds, _)| seconds)
        })?;
        Ok(seconds)
    }

    fn prepare(&self, device: &Device) -> Result<(Vec<Task>, Pipeline), PipelineError> {
        let adapters = self.adapters.first().copied().unwrap_or(1);
        Ok((self.tasks(adapters), self.pipeline(device)?))
    }

    pub(crate) fn tasks(&self, adapters: usize) -> Vec<Task> {
        let seeds = 0..adapters as u64;
        seeds.map(|seed| Task::new(seed, self)).collect()
    }

    /// The model with random weights on one stage.
    pub(crate) fn pipeline(&self, device: &Device) -> Result<Pipeline, PipelineError> {
        let layers = 0..self.model.num_hidden_layers;
        let stage = Stage::random(&self.model, layers, self.dtype, device)?;
        Pipeline::new(vec![
            stage.with_gradient_checkpointing(self.gradient_checkpointing),
        ])
    }

    fn measure(
        &self,
        adapters: usize,
        pipeline: &mut Pipeline,
        device: &Device,
    ) -> Result<EndToEndMeasurement, PipelineError> {
        let tasks = self.tasks(adapters);
        device.memory_cleanup();
        let mut train = |tasks: &[Task]| {
            self.train(tasks, pipeline, device, |run| {
                seconds(device, 1, || run(self.steps))
            })
        };
        let tokens = (adapters * self.batch * self.length * self.steps) as f64;
        let (mut together, mut sequential, mut peak_bytes) = (Vec::new(), Vec::new(), None);
        for _ in 0..RUNS {
            let (seconds, host_peak_bytes) = train(&tasks)?;
            together.push(tokens / seconds);
            let reserved = device.memory_pool_usage().map(|usage| usage.bytes_reserved);
            peak_bytes = peak_bytes.max(reserved).max(host_peak_bytes);
            if self.vs_sequential {
                let mut total = 0.0;
                for task in tasks.chunks(1) {
                    total += train(task)?.0;
                }
                sequential.push(tokens / total);
            }
        }
        let profile = if self.profile {
            self.train(&tasks, pipeline, device, |run| profile(device, || run(1)))?
                .0
        } else {
            Vec::new()
        };
        let tokens_per_second = median(together);
        Ok(EndToEndMeasurement {
            shape: self.shape.clone(),
            adapters,
            rank: self.rank,
            use_dora: self.use_dora,
            target_modules: self.targets.iter().map(|target| target.name()).collect(),
            batch: self.batch,
            microbatches: self.microbatches,
            length: self.length,
            dtype: dtype_name(self.dtype),
            quantization: self.model.quantization.as_ref().map(|_| "nf4"),
            tokens_per_second,
            sequential_tokens_per_second: self.vs_sequential.then(|| median(sequential)),
            model_tflops: tokens_per_second * flops_per_token(&self.model, self.length) / 1e12,
            peak_bytes,
            profile,
        })
    }

    /// Trains tasks together from their beginning: the warm-up steps, then those that `measure` runs. Returns its
    /// result, and the peak of this process's allocations.
    pub(crate) fn train<T>(
        &self,
        tasks: &[Task],
        pipeline: &mut Pipeline,
        device: &Device,
        measure: impl FnOnce(
            &mut dyn FnMut(usize) -> Result<(), PipelineError>,
        ) -> Result<T, PipelineError>,
    ) -> Result<(T, Option<u64>), PipelineError> {
        for task in tasks {
            pipeline.push(0, adapter(self, self.rank, task.seed, device)?)?;
        }
        let mut steps = RepeatedSteps {
            bench: self,
            tasks,
            begun: 0,
            host_peak_bytes: None,
        };
        let mut run = |steps: &mut RepeatedSteps<'_>, count| {
            let passes = Passes {
                schedule: Schedule::default(),
                shape: PipelineShape::new(1, 1, self.microbatches, count),
            };
            pipeline.run(&passes, steps)
        };
        run(&mut steps, WARM_UP)?;
        steps.host_peak_bytes = None;
        let measured = measure(&mut |count| run(&mut steps, count))?;
        for slot in (0..tasks.len()).rev() {
            pipeline.remove(0, slot)?;
        }
        Ok((measured, steps.host_peak_bytes))
    }
}

/// Floating-point operations of a step for one token, forward and backward.
fn flops_per_token(model: &LlamaConfig, length: usize) -> f64 {
    let linears = model.linears().into_iter();
    let weights: usize = linears.map(|linear| linear.d_in * linear.d_out).sum();
    let frozen = model.num_hidden_layers * weights + model.vocab_size * model.d_model;
    let width = model.num_attention_heads * model.head_dim;
    let attention = model.num_hidden_layers * width * length;
    4.0 * frozen as f64 + 6.0 * attention as f64
}

/// The same step again and again.
struct RepeatedSteps<'a> {
    bench: &'a EndToEndBench,
    tasks: &'a [Task],
    begun: usize,
    host_peak_bytes: Option<u64>,
}

impl IterationPlanner for RepeatedSteps<'_> {
    type Error = PipelineError;

    fn plan(&mut self, _step: usize) -> Result<Option<IterationPlan>, PipelineError> {
        let microbatches = (0..self.bench.microbatches)
            .map(|part| microbatch(self.bench, self.tasks, part, self.begun))
            .collect::<Result<_, _>>()?;
        let group = GroupPlan {
            microbatches,
            updates: vec![Some(update(self.begun)); self.tasks.len()],
        };
        self.begun += 1;
        Ok(Some(IterationPlan {
            groups: vec![group],
        }))
    }

    fn book(&mut self, outcome: IterationOutcome) -> Result<bool, PipelineError> {
        self.host_peak_bytes = self.host_peak_bytes.max(outcome.host_peak_bytes);
        let mut losses = outcome
            .groups
            .iter()
            .flat_map(|group| &group.losses)
            .flatten();
        match losses.find(|loss| !loss.is_finite()) {
            None => Ok(true),
            Some(loss) => Err(device_failure(format!("a benchmark's loss is {loss}"))),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use burn::tensor::{Device, FloatDType};
    use loraloom_model::{LlamaConfig, Projection};

    use super::EndToEndBench;

    pub(crate) fn tiny() -> EndToEndBench {
        let mut model = LlamaConfig::named("micro").unwrap();
        model.num_hidden_layers = 2;
        model.sliding_window.truncate(2);
        model.vocab_size = 64;
        EndToEndBench {
            shape: "tiny".to_owned(),
            model,
            adapters: vec![1, 2],
            rank: 16,
            use_dora: false,
            targets: Projection::applied(false).to_vec(),
            batch: 1,
            microbatches: 1,
            length: 4,
            dtype: FloatDType::F32,
            steps: 1,
            gradient_checkpointing: false,
            vs_sequential: true,
            profile: true,
        }
    }

    #[test]
    fn every_number_of_adapters_is_measured() {
        let bench = tiny();
        let found = bench.run(&Device::flex(), &mut |_| ()).unwrap();
        assert_eq!(found.len(), 2);
        for (measured, adapters) in found.iter().zip([1, 2]) {
            assert_eq!(measured.adapters, adapters);
            assert_eq!(measured.dtype, "float32");
            assert!(measured.tokens_per_second > 0.0);
            assert!(
                measured
                    .sequential_tokens_per_second
                    .is_some_and(|rate| rate > 0.0)
            );
            assert_eq!(measured.peak_bytes, None);
            assert!(measured.profile.is_empty());
            let operations = measured.model_tflops * 1e12 / measured.tokens_per_second;
            // Two layers of 2·512² + 2·512·256 + 3·512·1376 weights, a head of 64·512.
            let weights = 2 * (2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 1376) + 64 * 512;
            let expected = f64::from(4 * weights + 6 * 2 * 512 * 4);
            assert!(
                (operations / expected - 1.0).abs() < 1e-9,
                "{operations} {expected}"
            );
        }
    }

    #[test]
    fn without_a_comparison_there_is_none() {
        let bench = EndToEndBench {
            adapters: vec![1],
            batch: 3,
            microbatches: 2,
            vs_sequential: false,
            use_dora: true,
            gradient_checkpointing: true,
            ..tiny()
        };
        let found = bench.run(&Device::flex(), &mut |_| ()).unwrap();
        assert_eq!(found[0].sequential_tokens_per_second, None);
    }
}
