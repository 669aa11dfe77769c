//! Composes the plan from model and tasks: no files, no devices.

use std::collections::BTreeMap;

use loraloom_config::{DeviceChoice, RunConfig, StageLocation};
use loraloom_model::cost::{
    ActivationStorage, GRADIENT_BYTES, STORED_BYTES, dense_copy_bytes, weight_bytes,
};
use loraloom_pipeline::{
    StageLayers,
    simulate::{StageReport, gantt_text},
};

use super::{
    Plan, PlannedLink, PlannedStage, Speeds,
    gather::{Gathered, TaskPlan},
    groups::{Groups, partitioned},
    notes,
    predict::{Pipeline, Prediction, most_held, steady_bubble},
};
use crate::error::Result;

/// Columns of the chart.
const CHART_COLUMNS: f64 = 72.0;
/// The largest `extra_warmup` that is tried, and the largest fraction of the time for which one is recommended.
const MOST_TRIED: usize = 4;
const WORTH: f64 = 0.98;

/// True if some adapter has dropout and some stage may be on a GPU.
fn keeps_masks(config: &RunConfig) -> bool {
    let cpu = StageLocation::Device(DeviceChoice::Cpu);
    let mut adapters = config.adapters.iter();
    let dropout = adapters.any(|adapter| adapter.dropout() > 0.0);
    dropout && config.pipeline.stages.iter().any(|stage| *stage != cpu)
}

pub(super) fn compose(config: &RunConfig, gathered: &Gathered, speeds: Speeds) -> Result<Plan> {
    let pipeline = &config.pipeline;
    let dtype = gathered.dtype;
    let storage = ActivationStorage {
        element_bytes: dtype.size(),
        gradient_checkpointing: config.gradient_checkpointing,
        dropout_masks: keeps_masks(config),
    };
    let partitions = partitioned(config, &gathered.model)?;
    let layers = partitions.stages();
    let groups = Groups::new(config, gathered, &layers)?;
    let microbatches = groups.microbatches();
    let row_bytes = (gathered.model.d_model * dtype.size()) as f64;
    let planned = pipeline_of(config, &groups, &layers, row_bytes);
    let prediction = planned.predict(speeds)?;
    let step_bytes = planned.step_bytes;

    let better = better_warmup(config, gathered, speeds, &layers, &prediction)?;
    let simulated = &prediction.long.stages;
    let stages = stages(config, &groups, storage, &layers, simulated);
    let per_microbatch = step_bytes.iter().zip(&microbatches);
    let per_microbatch = per_microbatch.map(|(bytes, &count)| bytes / count as f64);
    let links = (1..layers.len()).map(|to| PlannedLink {
        from: to - 1,
        to,
        estimated_bytes_per_microbatch: per_microbatch.clone().collect(),
        estimated_bytes_per_iteration: 2.0 * step_bytes.iter().sum::<f64>(),
    });
    let column = prediction.drawn.makespan / CHART_COLUMNS;
    let mut notes = Vec::from_iter(gathered.dtype_note.clone());
    notes.extend(notes::notes(
        speeds,
        layers.len(),
        &microbatches,
        groups.waiting.len(),
        gathered.tasks.len(),
    ));
    notes.extend(better);
    notes.extend(notes::staggered(config, &partitions));
    Ok(Plan {
        dtype: dtype.to_string(),
        schedule: pipeline.schedule,
        stages,
        partitions: partitions.are_staggered().then(|| partitions.counts()),
        groups: groups.planned(),
        waiting: groups
            .waiting
            .iter()
            .map(|(task, _)| task.name.clone())
            .collect(),
        refused: groups
            .refused
            .iter()
            .map(|task| task.name.clone())
            .collect(),
        waiting_reasons: reasons(&groups.waiting),
        may_not_fit: reasons(&groups.tight),
        links: links.collect(),
        bubble: prediction.bubble,
        estimated_seconds_per_iteration: speeds.tflops.map(|_| prediction.seconds_per_iteration),
        gantt: if column > 0.0 {
            gantt_text(&prediction.drawn, column)
        } else {
            String::new()
        },
        notes,
        warnings: gathered.warnings.clone(),
        chart: prediction.drawn,
    })
}

/// Reasons by the name of the task.
fn reasons(tasks: &[(&TaskPlan, String)]) -> BTreeMap<String, String> {
    let reasons = tasks.iter();
    reasons
        .map(|(task, reason)| (task.name.clone(), reason.clone()))
        .collect()
}

/// The pipeline to simulate.
fn pipeline_of(
    config: &RunConfig,
    groups: &Groups<'_>,
    layers: &[StageLayers],
    row_bytes: f64,
) -> Pipeline {
    let step_bytes = groups.tokens().into_iter().map(|tokens| tokens * row_bytes);
    let operations = layers.iter().map(|layers| groups.operations(layers));
    Pipeline {
        schedule: config.pipeline.schedule,
        microbatches: groups.microbatches().into_iter().max().unwrap_or(1),
        extra_warmup: config.pipeline.extra_warmup,
        operations: operations.collect(),
        step_bytes: step_bytes.collect(),
    }
}

/// A note if another `extra_warmup` is better for links and stages of these speeds, with its groups.
fn better_warmup(
    config: &RunConfig,
    gathered: &Gathered,
    speeds: Speeds,
    layers: &[StageLayers],
    planned: &Prediction,
) -> Result<Option<String>> {
    let row_bytes = (gathered.model.d_model * gathered.dtype.size()) as f64;
    let known = speeds.tflops.is_some() && speeds.link_bytes_per_second.is_some();
    if !known || config.pipeline.stages.len() < 2 {
        return Ok(None);
    }
    let now = planned.seconds_per_iteration;
    let mut best = (config.pipeline.extra_warmup, now);
    for extra in 0..=MOST_TRIED {
        let mut other = config.clone();
        other.pipeline.extra_warmup = extra;
        let groups = Groups::new(&other, gathered, layers)?;
        let prediction = pipeline_of(&other, &groups, layers, row_bytes).predict(speeds)?;
        if prediction.seconds_per_iteration < best.1 * WORTH {
            best = (extra, prediction.seconds_per_iteration);
        }
    }
    let (extra, seconds) = best;
    Ok((extra != config.pipeline.extra_warmup).then(|| {
        format!(
            "`pipeline.extra_warmup: {extra}` would take {seconds:.3} s per iteration instead of \
             {now:.3} s, with more activations in memory"
        )
    }))
}

/// Bytes of a stage at the moments that may be its peak, without what it always holds.
struct Moments {
    /// Kept activations of all micro-batches under way, and those of the largest.
    held: usize,
    largest: usize,
    layers: usize,
    /// A layer that is computed again.
    again: usize,
    /// Buffers of the loss and of a layer's backward pass.
    loss: usize,
    backward: usize,
    gradients: usize,
    /// Gradients of an earlier micro-batch are held, or of another group.
    sums: bool,
}

impl Moments {
    fn peak(&self) -> usize {
        let sums = if self.sums { self.gradients } else { 0 };
        let loss = self.held + self.loss + sums;
        let pass = self.again + self.backward;
        let top = self.held + pass + sums;
        // Layers above have freed their activations, and all have gradients.
        let freed = self.largest - self.largest / self.layers.max(1);
        let bottom = self.held.saturating_sub(freed) + pass + self.gradients;
        loss.max(top).max(bottom)
    }
}

fn stages(
    config: &RunConfig,
    groups: &Groups<'_>,
    storage: ActivationStorage,
    layers: &[StageLayers],
    simulated: &[StageReport],
) -> Vec<PlannedStage> {
    let model = groups.model;
    let operations: Vec<f64> = layers
        .iter()
        .map(|layers| groups.operations(layers).iter().map(|o| o.total()).sum())
        .collect();
    let all_operations: f64 = operations.iter().sum();
    config
        .pipeline
        .stages
        .iter()
        .zip(layers)
        .zip(simulated)
        .zip(operations)
        .map(|(((name, layers), simulated), operations)| {
            let held = layers.held();
            let on_host = *name == StageLocation::Device(DeviceChoice::Cpu);
            let weight_bytes = weight_bytes(model, &held, storage.element_bytes);
            let dense_copy = dense_copy_bytes(model, &held, storage.element_bytes);
            // Operators of half precision on the CPU keep their operands in `float32`.
            let storage = ActivationStorage {
                element_bytes: if on_host { 4 } else { storage.element_bytes },
                ..storage
            };
            let parameters = groups.adapter_parameters(layers);
            let adapter_bytes = parameters * STORED_BYTES;
            let gradient_bytes = parameters * GRADIENT_BYTES;
            let activations = groups.activations(layers, storage);
            let kept: Vec<usize> = activations.iter().map(|bytes| bytes.kept).collect();
            let again = activations.iter().map(|bytes| bytes.computed_again).max();
            let again = again.unwrap_or(0);
            let moments = Moments {
                held: most_held(simulated, &kept),
                largest: kept.iter().copied().max().unwrap_or(0),
                layers: held.len(),
                again,
                loss: groups.loss_bytes(layers, storage.element_bytes, on_host),
                backward: groups.backward_bytes(layers, storage.element_bytes),
                gradients: gradient_bytes,
                sums: groups.tasks.len() > 1
                    || groups.microbatches().iter().any(|&count| count > 1),
            };
            PlannedStage {
                on: name.to_string(),
                first_layer: held.start,
                layers: held.len(),
                embedding: held.start == 0,
                head: held.end == model.num_hidden_layers,
                weight_bytes,
                adapter_bytes,
                gradient_bytes,
                estimated_copy_bytes: adapter_bytes,
                estimated_activation_bytes_per_microbatch: moments.largest,
                microbatches_in_flight: simulated.most_in_flight(),
                estimated_activation_bytes: moments.held + again,
                estimated_buffer_bytes: dense_copy + moments.loss.max(moments.backward),
                estimated_bytes: weight_bytes + dense_copy + 2 * adapter_bytes + moments.peak(),
                estimated_share: if all_operations > 0.0 {
                    operations / all_operations
                } else {
                    0.0
                },
                simulated_bubble: steady_bubble(simulated),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::Moments;

    #[test]
    fn the_peak_is_in_the_loss_or_at_either_end_of_the_backward_pass() {
        let moments = |loss, backward, gradients, sums| Moments {
            held: 800,
            largest: 800,
            layers: 8,
            again: 30,
            loss,
            backward,
            gradients,
            sums,
        };
        assert_eq!(moments(100, 20, 50, false).peak(), 800 + 100);
        assert_eq!(moments(100, 20, 50, true).peak(), 800 + 100 + 50);
        assert_eq!(moments(10, 20, 50, false).peak(), 800 + 30 + 20);
        assert_eq!(moments(10, 20, 900, false).peak(), 100 + 30 + 20 + 900);
    }
}
