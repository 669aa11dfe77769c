use std::time::Instant;

use batchlora::Segments;
use burn::tensor::{DType, Device, Distribution, FloatDType, Tensor};
use loraloom_model::{LlamaConfig, ModelError, Sequences, Targets};

use crate::{
    Microbatch, MicrobatchId, PartCosts, PipelineError, PipelineStage, Stage, TrainStage,
    simulate::PassCosts,
};

/// Passes that are timed, after one that compiles and tunes kernels.
const SAMPLES: usize = 3;

impl PartCosts {
    /// Measures the seconds of a layer, and of a layer with the head, with random weights and without
    /// adapters, on about `rows` tokens in sequences of `length`. A fraction `predicting` of the tokens are
    /// targets. All layers count alike, and the embedding as nothing. `None` for a model of fewer than three
    /// layers.
    ///
    /// # Errors
    /// If the device fails.
    pub fn measure(
        model: &LlamaConfig,
        dtype: FloatDType,
        device: &Device,
        [rows, length]: [usize; 2],
        predicting: f64,
    ) -> Result<Option<Self>, PipelineError> {
        let last = model.num_hidden_layers.saturating_sub(1);
        if last < 2 {
            return Ok(None);
        }
        let count = rows.div_ceil(length.max(1)).max(1);
        let rows = count * length.max(1);
        let targets = ((rows as f64 * predicting) as usize).clamp(1, rows);
        let microbatch = Microbatch {
            ids: vec![0; rows],
            sequences: Sequences::from_lengths(vec![rows / count; count]),
            cached: None,
            rope_lengths: vec![rows / count; count],
            segments: Segments::new(rows, Vec::new())?,
            draws: None,
            targets: Targets {
                rows: (0..targets).collect(),
                ids: vec![0; targets],
                weights: vec![1.0; targets],
                ..Targets::default()
            },
        };
        let layer = Stage::random(model, 1..2, dtype, device)?;
        let layer = seconds(layer, &microbatch, dtype)?;
        let with_head = Stage::random(model, last..last + 1, dtype, device)?;
        let with_head = seconds(with_head, &microbatch, dtype)?;
        let beyond = |whole: f64, part: f64| (whole - part).max(0.0);
        Ok(Some(Self {
            layers: vec![layer; model.num_hidden_layers],
            embedding: PassCosts::default(),
            head: PassCosts {
                forward: beyond(with_head.forward, layer.forward),
                backward: beyond(with_head.backward, layer.backward),
                step: 0.0,
            },
        }))
    }
}

/// Median seconds of a stage's passes.
fn seconds(
    mut stage: Stage,
    microbatch: &Microbatch,
    dtype: FloatDType,
) -> Result<PassCosts, PipelineError> {
    stage.reserve_groups(1)?;
    let device = stage.device().clone();
    let shape = [microbatch.ids.len(), stage.config().d_model];
    let random = || {
        let options = (&device, DType::from(dtype));
        Tensor::<2>::random(shape, Distribution::Uniform(-1.0, 1.0), options)
    };
    let (hidden, gradient) = (random(), random());
    let at = MicrobatchId {
        group: 0,
        microbatch: 0,
    };
    let (mut forward, mut backward) = (Vec::new(), Vec::new());
    for _ in 0..=SAMPLES {
        sync(&device)?;
        let begun = Instant::now();
        let out = stage.forward(at, microbatch, Some(hidden.clone()))?;
        sync(&device)?;
        forward.push(begun.elapsed().as_secs_f64());
        let above = out.hidden.is_some().then(|| gradient.clone());
        let begun = Instant::now();
        stage.backward(at, above)?;
        sync(&device)?;
        backward.push(begun.elapsed().as_secs_f64());
    }
    Ok(PassCosts {
        forward: median(&mut forward[1..]),
        backward: median(&mut backward[1..]),
        step: 0.0,
    })
}

fn sync(device: &Device) -> Result<(), PipelineError> {
    let synced = device.sync();
    synced.map_err(|error| {
        let reason = error.to_string();
        ModelError::Device { reason }.into()
    })
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, FloatDType};
    use loraloom_model::LlamaConfig;

    use crate::PartCosts;

    #[test]
    fn layers_and_head_take_time_and_a_model_of_two_layers_is_not_measured() {
        let mut model = LlamaConfig::named("micro").unwrap();
        model.num_hidden_layers = 3;
        model.vocab_size = 64;
        let measure = |model: &LlamaConfig| {
            PartCosts::measure(model, FloatDType::F32, &Device::flex(), [32, 16], 0.5).unwrap()
        };
        let seconds = measure(&model).unwrap();
        assert_eq!(seconds.layers.len(), 3);
        assert!(seconds.layers[1].forward > 0.0 && seconds.layers[1].backward > 0.0);
        assert!(seconds.head.forward >= 0.0);
        model.num_hidden_layers = 2;
        assert_eq!(measure(&model), None);
    }
}
