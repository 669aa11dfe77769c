use burn::tensor::{Device, FloatDType};
use loraloom_config::DtypeChoice;
use loraloom_model::{LlamaConfig, Projection, TensorDtype, parameter_shapes};
use loraloom_pipeline::Stage;

use super::{measure::dtype_name, report::EndToEndMeasurement, trial::Trial};
use crate::{TrainerError, dtype::resolve_stored};

/// Whole training steps over a model with random weights: forward, loss, backward, clipping and
/// `AdamW` of adapters of one rank with dropout 0.05.
///
/// `model_tflops` counts what PEFT's yardstick counts: 4 operations a token for every weight of the
/// frozen products, output projection included (forward 2, gradient of the input 2), and
/// `6 · layers · width · length` for causal attention. The adapters' own products are left out, as
/// is everything else.
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
    /// The adapted projections.
    pub targets: Vec<Projection>,
    /// Sequences of each adapter in a step.
    pub batch: usize,
    /// Micro-batches that each adapter's sequences of a step are cut into: fewer are held at a time.
    pub microbatches: usize,
    /// Tokens of a sequence, each of which predicts its successor.
    pub length: usize,
    /// Type of frozen weights and activations; `auto` is `bfloat16` where a device other than the
    /// CPU has it, else `float32`.
    pub dtype: DtypeChoice,
    /// Steps of a run that are timed, two more come before them. A figure is the median of three
    /// runs.
    pub steps: usize,
    /// Keep the inputs of layers only and compute the rest again in the backward pass.
    pub gradient_checkpointing: bool,
    /// Also train the same adapters one after another.
    pub vs_sequential: bool,
    /// Also time every kernel of a step.
    pub profile: bool,
}

impl EndToEndBench {
    /// Measures every number of adapters; `progress` is told what is about to be done.
    ///
    /// # Errors
    /// If the device lacks the type or fails.
    pub fn run(
        &self,
        device: &Device,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Vec<EndToEndMeasurement>, TrainerError> {
        let dtype = resolve_stored(self.dtype, device, Some(TensorDtype::Bfloat16))?;
        let shapes = parameter_shapes(&self.model);
        let sizes = shapes
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>());
        let parameters = sizes.sum::<usize>() as f64;
        progress(&format!(
            "{}: {:.1} M parameters, {:.2} GB in {}",
            self.shape,
            parameters / 1e6,
            parameters * bytes(dtype) / 1e9,
            dtype_name(dtype),
        ));
        let layers = 0..self.model.num_hidden_layers;
        let stage = Stage::random(&self.model, layers, dtype, device)?
            .with_gradient_checkpointing(self.gradient_checkpointing);
        let mut trial = Trial::new(self, stage)?;
        self.adapters
            .iter()
            .filter(|&&adapters| adapters > 0)
            .map(|&adapters| {
                progress(&format!(
                    "{}: adapters {adapters}, batch {}, length {}",
                    self.shape, self.batch, self.length
                ));
                trial.measure(adapters, dtype)
            })
            .collect()
    }

    /// Operations of the model for one token, forward and backward.
    pub(super) fn operations_per_token(&self) -> f64 {
        let model = &self.model;
        let linears = model.linears().map(|linear| linear.d_in * linear.d_out);
        let layer: usize = linears.iter().sum();
        let width = model.num_attention_heads * model.head_dim;
        let frozen = model.num_hidden_layers * layer + model.vocab_size * model.d_model;
        let attention = model.num_hidden_layers * width * self.length;
        4.0 * frozen as f64 + 6.0 * attention as f64
    }
}

fn bytes(dtype: FloatDType) -> f64 {
    match dtype {
        FloatDType::F64 => 8.0,
        FloatDType::F32 | FloatDType::Flex32 => 4.0,
        FloatDType::F16 | FloatDType::BF16 => 2.0,
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use loraloom_config::DtypeChoice;
    use loraloom_model::{LlamaConfig, Projection};

    use super::{super::workload::Task, EndToEndBench};

    fn tiny() -> EndToEndBench {
        let mut model = LlamaConfig::named("micro").unwrap();
        model.num_hidden_layers = 2;
        model.sliding_window.truncate(2);
        model.vocab_size = 64;
        EndToEndBench {
            shape: "tiny".to_owned(),
            model,
            adapters: vec![1, 2],
            rank: 16,
            targets: Projection::ALL.to_vec(),
            batch: 1,
            microbatches: 1,
            length: 4,
            dtype: DtypeChoice::Auto,
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
    fn microbatches_have_every_sequence_once() {
        let bench = EndToEndBench { batch: 5, ..tiny() };
        let task = Task::new(1, &bench);
        let whole = task.rows(0, 0, 1);
        assert_eq!(
            (whole.samples.len(), whole.step_targets),
            (5, 5 * bench.length)
        );
        for parts in 1..=5 {
            let mut samples = Vec::new();
            for part in 0..parts {
                let rows = task.rows(0, part, parts);
                assert_eq!(
                    (rows.first_sample, rows.step_targets),
                    (samples.len(), whole.step_targets)
                );
                assert!((5 / parts..=5usize.div_ceil(parts)).contains(&rows.samples.len()));
                samples.extend(rows.samples);
            }
            assert_eq!(samples, whole.samples);
        }
    }

    #[test]
    fn without_a_comparison_there_is_none() {
        let bench = EndToEndBench {
            adapters: vec![1],
            batch: 3,
            microbatches: 2,
            vs_sequential: false,
            gradient_checkpointing: true,
            ..tiny()
        };
        let found = bench.run(&Device::flex(), &mut |_| ()).unwrap();
        assert_eq!(found[0].sequential_tokens_per_second, None);
    }
}
