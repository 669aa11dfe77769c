//! Predicts which tasks train first and in which groups, by the scheduler of a run.

use std::collections::BTreeMap;

use loraloom_config::{DeviceChoice, RunConfig, StageLocation};
use loraloom_model::cost::{dense_copy_bytes, weight_bytes};
use loraloom_pipeline::{HostMemory, StageLayers};
use loraloom_scheduler::{DeviceMemory, SchedulerError, TaskId};

use super::{
    gather::{Gathered, TaskPlan},
    groups::Groups,
};
use crate::scheduling::{DeviceRoom, HOST_PAGE_BYTES, POOL_PAGE_BYTES, allowed, scheduler, shares};

impl<'a> Groups<'a> {
    /// The first decision of the run's scheduler, with these layers on the stages.
    ///
    /// # Errors
    /// [`SchedulerError::NeverFits`] if no task fits even alone; errors of the scheduler's settings.
    pub(super) fn new(
        config: &'a RunConfig,
        gathered: &'a Gathered,
        layers: &[StageLayers],
    ) -> Result<Self, SchedulerError> {
        let memory = budgets(config, gathered, layers)?;
        let groups = config.pipeline.groups();
        let mut scheduler = scheduler(&config.scheduler, groups, memory.clone())?;
        let mut refused: Vec<(&TaskPlan, SchedulerError)> = Vec::new();
        for task in &gathered.tasks {
            match scheduler.submit(task.described.clone(), 0.0) {
                // The rest of the plan shows by how much.
                Err(error @ SchedulerError::NeverFits { .. }) => refused.push((task, error)),
                submitted => submitted?,
            }
        }
        let planned = |id: TaskId| {
            let mut tasks = gathered.tasks.iter();
            tasks.find(|task| task.described.id == id)
        };
        let mut tasks: Vec<Vec<&TaskPlan>> = Vec::new();
        for members in scheduler.decide(0.0).groups {
            let group = members.iter().filter_map(|member| planned(member.task));
            tasks.push(group.collect());
        }
        tasks.retain(|group| !group.is_empty());
        if tasks.is_empty() && !refused.is_empty() {
            // A run stops at the first of them.
            return Err(refused.swap_remove(0).1);
        }
        let tight = tasks.iter().flatten().filter_map(|task| {
            let fits = |memory: &DeviceMemory| memory.fits(task.described.load).err();
            let shortage = memory.iter().find_map(fits)?;
            Some((
                *task,
                format!("{shortage}; a run tries it, with smaller micro-batches if necessary"),
            ))
        });
        let tight = tight.collect();
        let mut waiting = Vec::new();
        for task in &gathered.tasks {
            let id = task.described.id;
            let is_it = |other: &&TaskPlan| other.described.id == id;
            if !tasks.iter().flatten().any(is_it) {
                let reason = match refused.iter().find(|(refused, _)| is_it(refused)) {
                    Some((_, error)) => format!("{error}; a run would fail"),
                    None => scheduler.why(id).unwrap_or_default(),
                };
                waiting.push((task, reason));
            }
        }
        Ok(Self {
            model: &gathered.model,
            config,
            tasks,
            waiting,
            tight,
            refused: refused.into_iter().map(|(task, _)| task).collect(),
        })
    }
}

/// The memory of this machine's devices, if the limit is known: a limit in bytes always is, a fraction only on the
/// CPU, because no device is opened.
fn budgets(
    config: &RunConfig,
    gathered: &Gathered,
    layers: &[StageLayers],
) -> Result<Vec<DeviceMemory>, SchedulerError> {
    let model = &gathered.model;
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
        let (has, read_bytes, page_bytes) = match device {
            DeviceChoice::Cpu => (
                HostMemory::installed(),
                gathered.read_bytes,
                HOST_PAGE_BYTES,
            ),
            _ => (None, 0, POOL_PAGE_BYTES),
        };
        let Some(limit) = allowed(config.scheduler.memory_limit, has) else {
            continue;
        };
        let held = layers.iter().map(StageLayers::held);
        let element_bytes = gathered.dtype.size();
        let weights = held.map(|layers| {
            let copy = dense_copy_bytes(model, &layers, element_bytes);
            weight_bytes(model, &layers, element_bytes) + copy
        });
        let (adapter_share, bytes_per_token) = shares(
            model,
            &layers,
            config.gradient_checkpointing,
            device == DeviceChoice::Cpu,
        );
        let room = DeviceRoom {
            device: name,
            limit_bytes: limit,
            fixed_bytes: weights.sum::<usize>() as u64 + read_bytes,
            adapter_share,
            bytes_per_token,
            page_bytes,
            element_bytes: gathered.dtype.size(),
        };
        budgets.push(room.memory()?);
    }
    Ok(budgets)
}
