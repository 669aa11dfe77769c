//! Who trains first and in which group, by the scheduler that a run has.

use std::collections::BTreeMap;

use loraloom_config::{DeviceChoice, MemoryLimit, RunConfig, StageLocation};
use loraloom_model::{LlamaConfig, cost::frozen_parameters};
use loraloom_pipeline::{HostMemory, StageLayers};
use loraloom_scheduler::{DeviceMemory, SchedulerError, TaskId};

use super::gather::Gathered;
use crate::scheduling::{HOST_PAGE_BYTES, POOL_PAGE_BYTES, Residents, scheduler};

/// What the scheduler decides first.
#[derive(Debug, Clone)]
pub(super) struct Admitted {
    /// Tasks by group, in the order that they are gathered in.
    pub(super) groups: Vec<Vec<usize>>,
    /// The others, and why they wait.
    pub(super) waiting: Vec<(usize, String)>,
    /// Those of them that no device has room for even alone.
    pub(super) refused: Vec<usize>,
}

/// The first decision of the run's scheduler, with these layers on the stages and weights of elements
/// of so many bytes.
///
/// # Errors
/// [`SchedulerError::NeverFits`] if no task fits even alone, or the scheduler's settings are none.
pub(super) fn admitted(
    config: &RunConfig,
    gathered: &Gathered,
    layers: &[StageLayers],
    element_bytes: usize,
) -> Result<Admitted, SchedulerError> {
    let budgets = budgets(config, &gathered.model, layers, element_bytes)?;
    let groups = config.pipeline.groups();
    let mut scheduler = scheduler(&config.scheduler, groups, budgets)?;
    let mut refused = Vec::new();
    for (index, task) in gathered.tasks.iter().enumerate() {
        match scheduler.submit(task.described.clone(), 0.0) {
            // The rest of the plan says by how much.
            Err(error @ SchedulerError::NeverFits { .. }) => refused.push((index, error)),
            submitted => submitted?,
        }
    }
    let decision = scheduler.decide(0.0);
    let index = |id: TaskId| {
        let mut tasks = gathered.tasks.iter();
        tasks.position(|task| task.described.id == id)
    };
    let groups: Vec<Vec<usize>> = decision
        .groups
        .iter()
        .map(|group| {
            group
                .iter()
                .filter_map(|member| index(member.task))
                .collect()
        })
        .filter(|group: &Vec<usize>| !group.is_empty())
        .collect();
    if groups.is_empty()
        && let Some((_, error)) = refused.pop()
    {
        return Err(error);
    }
    let mut waiting = Vec::new();
    for (index, task) in gathered.tasks.iter().enumerate() {
        if groups.iter().flatten().any(|&running| running == index) {
            continue;
        }
        let reason = match refused.iter().find(|(refused, _)| *refused == index) {
            Some((_, error)) => format!("{error}; a run would be refused for it"),
            None => scheduler.why(task.described.id).unwrap_or_default(),
        };
        waiting.push((index, reason));
    }
    let refused = refused.into_iter().map(|(index, _)| index).collect();
    Ok(Admitted {
        groups,
        waiting,
        refused,
    })
}

/// The devices of this machine of whose memory it is known how much may be used: a limit in bytes says
/// so, a fraction only where the device does, which no device is opened for.
fn budgets(
    config: &RunConfig,
    model: &LlamaConfig,
    layers: &[StageLayers],
    element_bytes: usize,
) -> Result<Vec<DeviceMemory>, SchedulerError> {
    let mut devices: BTreeMap<String, (DeviceChoice, Vec<StageLayers>)> = BTreeMap::new();
    for (stage, layers) in config.pipeline.stages.iter().zip(layers) {
        if let StageLocation::Device(device) = stage {
            let held = devices.entry(stage.to_string());
            let (_, held) = held.or_insert_with(|| (*device, Vec::new()));
            held.push(layers.clone());
        }
    }
    let mut budgets = Vec::new();
    for (name, (device, layers)) in devices {
        let (has, page_bytes) = match device {
            DeviceChoice::Cpu => (HostMemory::installed(), HOST_PAGE_BYTES),
            _ => (None, POOL_PAGE_BYTES),
        };
        let limit = match (config.scheduler.memory_limit, has) {
            (limit, Some(has)) => limit.bytes(has),
            (MemoryLimit::Bytes(bytes), None) => bytes,
            (MemoryLimit::Fraction(_), None) => continue,
        };
        let held = layers.iter().map(StageLayers::held);
        let weights = held.map(|layers| frozen_parameters(model, &layers));
        let residents = Residents {
            model,
            layers: &layers,
            gradient_checkpointing: config.gradient_checkpointing,
            in_use: (weights.sum::<usize>() * element_bytes) as u64,
            page_bytes,
        };
        budgets.push(residents.room(name, limit).memory()?);
    }
    Ok(budgets)
}
