//! Start values that are computed before a task's first step, from its rows over the base model or from its weights.

use std::time::Instant;

use batchlora::{AdapterState, LoraPair, LoraSpec, Segments};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use loraloom_config::InitLoraWeights;
use loraloom_data::Sample;
use loraloom_model::{PeftLoraConfig, Projection, Sequences, TargetModules, Targets, to_host};
use loraloom_pipeline::{Microbatch, Pipeline, PipelineError};

use super::{Task, step_rows::RowBatch};
use crate::{
    TrainerError,
    adapter::{ModelAdapter, configured, fresh, targets},
    error::Result,
    start::{Eva, components, olora, pissa},
};

/// Batches after which components that still move are an error.
const MOST_BATCHES: usize = 1000;

/// Work that start values took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StartCost {
    pub(crate) batches: usize,
    pub(crate) tokens: usize,
    pub(crate) decompositions: usize,
    pub(crate) seconds: f64,
    /// Bytes of adapters that were trained for them.
    pub(crate) bytes: Option<u64>,
}

/// An adapter that begins with computed values, and its shape if that does not follow from its configuration.
pub(super) struct Computed {
    pub(super) adapter: ModelAdapter,
    pub(super) shape: Option<PeftLoraConfig>,
    pub(super) cost: StartCost,
}

/// An adapter as `init_lora_weights` begins it.
///
/// # Errors
/// [`TrainerError::Start`] if that cannot be computed.
pub(super) fn computed(
    task: &Task,
    pipeline: &Pipeline,
    device: &Device,
    split: usize,
) -> Result<Computed> {
    let begun = Instant::now();
    let mut computed = match task.config.lora.init_lora_weights {
        InitLoraWeights::Eva => eva(task, pipeline, device, split),
        init => of_weights(task, pipeline, device, init),
    }?;
    computed.cost.seconds = begun.elapsed().as_secs_f64();
    Ok(computed)
}

/// Gives the first ranks of each module the start values, and as many more, which are not trained, the opposite product.
fn of_weights(
    task: &Task,
    pipeline: &Pipeline,
    device: &Device,
    init: InitLoraWeights,
) -> Result<Computed> {
    let config = &task.config;
    let mut adapter = fresh(config, pipeline.config(), device)?;
    let mut cost = StartCost::default();
    for (layer, states) in adapter.iter_mut().enumerate() {
        for (projection, state) in Projection::ALL.into_iter().zip(states) {
            let Some(made) = state.take() else { continue };
            let module = projection.module(layer);
            let Some(weight) = pipeline.weight(layer, projection)? else {
                let problem = format!("the weight of `{module}` is on another machine");
                return Err(TrainerError::start(config, problem));
            };
            let ([_, d_in], [_, d_out]) = (made.weights.a.dims(), made.weights.b.dims());
            let (r, scale) = (made.spec.r, made.spec.scale());
            let factors = match init {
                InitLoraWeights::Pissa(iterations) => {
                    let seed = config.seed as u32 ^ projection.number(layer);
                    Some(pissa(&weight, d_out, (r, scale), iterations, seed))
                }
                _ => olora(&weight, d_out, r),
            };
            let Some([mut a, mut b]) = factors else {
                let problem = format!("the first {r} inputs of `{module}` depend on each other");
                return Err(TrainerError::start(config, problem));
            };
            a.extend_from_within(..);
            let opposite: Vec<f32> = b.iter().map(|value| -value).collect();
            b.extend(opposite);
            let shape = configured(&config.lora, false);
            let spec = LoraSpec {
                r: shape.r,
                lora_alpha: shape.lora_alpha,
                frozen_ranks: r,
                ..made.spec
            };
            *state = Some(with_values(spec, [(a, d_in), (b, d_out)], &made)?);
            cost.decompositions += 1;
        }
    }
    Ok(Computed {
        adapter,
        shape: None,
        cost,
    })
}

/// A module's adapter of these values of A and B.
pub(super) fn with_values(
    spec: LoraSpec,
    values: [(Vec<f32>, usize); 2],
    made: &AdapterState,
) -> Result<AdapterState> {
    let device = made.weights.a.device();
    let [a, b] = values.map(|(values, width)| {
        Tensor::from_data(
            TensorData::new(values, [spec.r, width]),
            (&device, DType::F32),
        )
    });
    Ok(AdapterState::new(spec, LoraPair::new(a, b))?)
}

/// The principal components of the modules' inputs. A batch has as many rows as a micro-batch in training; rows have
/// no adapter.
fn eva(task: &Task, pipeline: &Pipeline, device: &Device, split: usize) -> Result<Computed> {
    let (lora, model) = (&task.config.lora, pipeline.config());
    let mut eva = Eva::new(lora, &targets(lora, model.fused), model);
    let fails = |problem: String| Err(TrainerError::start(&task.config, problem));
    let mut cost = StartCost::default();
    let rows = task.batch_rows().div_ceil(split);
    'converging: for step in 0.. {
        for batch in task.batches(step) {
            for part in batch?.cut(rows, None) {
                if eva.has_converged() {
                    break 'converging;
                }
                match observe(task, pipeline, &part, &mut eva) {
                    Ok(tokens) => cost.tokens += tokens,
                    Err(TrainerError::Pipeline(error @ PipelineError::NotHere { .. })) => {
                        return fails(format!("{error}, since it is on another machine"));
                    }
                    Err(error) => return Err(error),
                }
                cost.batches += 1;
                eva.rank();
            }
        }
        if step + 1 >= task.steps_per_epoch() && eva.lacks_tokens() {
            return fails(format!(
                "no batch of {rows} rows has {} tokens{}, one for each component",
                components(lora),
                if lora.eva_config().use_label_mask {
                    " to predict"
                } else {
                    ""
                }
            ));
        }
        if cost.batches >= MOST_BATCHES {
            return fails(format!(
                "its components have not converged after {} batches",
                cost.batches
            ));
        }
    }
    cost.decompositions = eva.inputs();
    let mut adapter = fresh(&task.config, model, device)?;
    let (mut names, mut is_whole) = (Vec::new(), true);
    for (layer, states) in adapter.iter_mut().enumerate() {
        for (projection, state) in Projection::ALL.into_iter().zip(states) {
            if let Some((rank, a)) = eva.start(layer, projection)
                && let Some(made) = state.take()
            {
                is_whole &= rank > 0;
                *state = (rank > 0)
                    .then(|| with_a(&made, rank, a, lora.eva_config().adjust_scaling_factors))
                    .transpose()?;
            }
            names.extend(state.as_ref().map(|_| projection.module(layer)));
        }
    }
    let shape = (!is_whole).then(|| PeftLoraConfig {
        target_modules: TargetModules::Names(names),
        ..configured(lora, model.fused)
    });
    Ok(Computed {
        adapter,
        shape,
        cost,
    })
}

/// A module's adapter with another rank and A, and B zero.
fn with_a(made: &AdapterState, r: usize, a: Vec<f32>, keeps_scale: bool) -> Result<AdapterState> {
    let ([_, d_in], [_, d_out]) = (made.weights.a.dims(), made.weights.b.dims());
    let mut spec = LoraSpec { r, ..made.spec };
    if keeps_scale {
        spec.lora_alpha *= r as f64 / made.spec.r as f64;
    }
    with_values(spec, [(a, d_in), (vec![0.0; r * d_out], d_out)], made)
}

/// Runs rows through the base model, for the inputs that are needed. Returns the number of their tokens.
fn observe(task: &Task, pipeline: &Pipeline, part: &RowBatch, eva: &mut Eva) -> Result<usize> {
    let is_own = |sample: &&Sample| task.preference.is_none() || sample.preferred.is_some();
    let samples: Vec<&Sample> = part.samples.iter().filter(is_own).collect();
    let all = !task.config.lora.eva_config().use_label_mask;
    let is_taken = samples.iter().flat_map(|sample| &sample.is_target);
    let taken = is_taken
        .zip(0..)
        .filter(|(is_target, _)| all || **is_target);
    let taken: Vec<i32> = taken.map(|(_, row)| row).collect();
    if taken.is_empty() {
        return Ok(0);
    }
    let ids: Vec<u32> = samples
        .iter()
        .flat_map(|sample| sample.ids.clone())
        .collect();
    let lengths: Vec<usize> = samples.iter().map(|sample| sample.len()).collect();
    let microbatch = Microbatch {
        rope_lengths: vec![part.longest; lengths.len()],
        sequences: Sequences::from_lengths(lengths),
        cached: None,
        segments: Segments::new(ids.len(), Vec::new())?,
        draws: None,
        targets: Targets::default(),
        ids,
    };
    let mut failed = None;
    let observed = pipeline.observe(0, &microbatch, &mut |layer, projection, x| {
        if failed.is_some() || !eva.needs(layer, projection) {
            return;
        }
        let rows = TensorData::new(taken.clone(), [taken.len()]);
        let rows = Tensor::<1, Int>::from_data(rows, &x.device());
        match to_host(x.clone().select(0, rows)) {
            Ok(values) => eva.take(layer, projection, x.dims()[1], &values),
            Err(error) => failed = Some(error),
        }
    });
    observed?;
    failed.map_or(Ok(microbatch.ids.len()), |error| Err(error.into()))
}
