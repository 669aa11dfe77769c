use std::num::NonZeroUsize;

use super::{
    Budget, GroupingOptions,
    budget::Memory,
    group::Rejection,
    layout::Layout,
    options::{MIN_GAIN, Rules},
    planner::{Regrouping, regrouped},
    profile::Profile,
};
use crate::{
    DeviceMemory, Forecasts, Learnt, Load, MeasuredIteration, Member, Refusal, Room,
    SchedulerError, StepTimeModel, StepTimes, Task, TaskId,
};

/// Iterations between two fits of the step-time model.
const FITTED_EVERY: usize = 16;
/// The largest mean error of a step-time model in use.
const USABLE_ERROR: f64 = 0.25;
/// Iterations between decisions while tasks wait: a measurement may admit one.
const PATIENCE: usize = 8;

/// A room that groups tasks as tLoRA does. A task joins an empty group if there is one, so that a pipeline
/// is full; otherwise the group where it adds most tokens a second without slowing a task down beyond a
/// bound. Long steps are spread over several iterations for that. `grouping/mod.rs` defines
/// slowdown and throughput.
///
/// Tasks that are placed again in the same order, each with its group, get the same places, also after
/// [`regroup`](Room::regroup). If tasks end or step times change, [`place`](Room::place) may refuse a
/// task that had a place. After [`regroup`](Room::regroup) has moved tasks, tasks that were refused before
/// may fit.
#[derive(Debug, Clone)]
pub struct GroupedRoom<B> {
    memory: Memory<B>,
    options: GroupingOptions,
    step_times: StepTimes,
    /// Iterations whose times were measured.
    measured: usize,
    model: Option<StepTimeModel>,
    rules: Rules,
    layout: Layout,
    /// The group of each task after the last regrouping.
    settled: Vec<(TaskId, usize)>,
}

impl<B: Budget> GroupedRoom<B> {
    /// A pipeline: `groups` groups, one for each stage, that all need memory of each stage's device. Without
    /// stages, memory has no limit.
    ///
    /// # Errors
    /// [`SchedulerError::OutOfRange`] if the bound is below 1.
    pub fn shared(
        groups: NonZeroUsize,
        stages: Vec<B>,
        options: GroupingOptions,
    ) -> Result<Self, SchedulerError> {
        Self::new(Memory::Shared(stages), groups.get(), options)
    }

    /// Devices with the whole backbone and one group each.
    ///
    /// # Errors
    /// As [`shared`](Self::shared), and [`SchedulerError::NoDevices`].
    pub fn per_group(devices: Vec<B>, options: GroupingOptions) -> Result<Self, SchedulerError> {
        let groups = devices.len();
        if groups == 0 {
            return Err(SchedulerError::NoDevices);
        }
        Self::new(Memory::PerGroup(devices), groups, options)
    }

    fn new(
        memory: Memory<B>,
        groups: usize,
        options: GroupingOptions,
    ) -> Result<Self, SchedulerError> {
        let options = options.checked()?;
        Ok(Self {
            layout: Layout::new(&memory, groups),
            rules: Rules::new(&options, matches!(memory, Memory::Shared(_)), None),
            memory,
            options,
            step_times: StepTimes::new(),
            measured: 0,
            model: None,
            settled: Vec::new(),
        })
    }

    fn memories(&self) -> impl Iterator<Item = &DeviceMemory> {
        let (Memory::Shared(budgets) | Memory::PerGroup(budgets)) = &self.memory;
        budgets.iter().filter_map(Budget::learnt)
    }

    fn memories_mut(&mut self) -> impl Iterator<Item = &mut DeviceMemory> {
        let (Memory::Shared(budgets) | Memory::PerGroup(budgets)) = &mut self.memory;
        budgets.iter_mut().filter_map(Budget::learns)
    }

    /// Restores the measurements from before a restart, for devices that are unchanged. Step times are restored only
    /// if all are.
    pub fn remember(&mut self, mut learnt: Learnt) {
        let mut same = learnt.stages == self.layout.groups.len();
        for memory in self.memories_mut() {
            let known = learnt.memory.remove(memory.name());
            same &= known.is_some_and(|known| memory.remember(known));
        }
        if same && learnt.memory.is_empty() {
            self.step_times = learnt.step_times;
            if let Some(model) = learnt.step_time_model {
                self.use_step_times(model);
            }
        }
    }

    /// Uses `model` from now on if there was none, if the room is empty, or if the predicted seconds of a
    /// group change by more than the least gain of a regrouping: small corrections must not push tasks
    /// over the bound. Returns whether it is used.
    pub fn use_step_times(&mut self, model: StepTimeModel) -> bool {
        let rules = Rules::new(&self.options, self.rules.pipeline, Some(model));
        let mut layout = self.layout.clone();
        layout.reprice(&rules);
        layout.level(&rules);
        let seconds = |layout: &Layout, rules: &Rules| -> Vec<f64> {
            layout
                .groups
                .iter()
                .map(|group| group.whole_seconds(&rules.prices))
                .collect()
        };
        let before = seconds(&self.layout, &self.rules);
        let after = seconds(&layout, &rules);
        let moved = |(a, b): (&f64, &f64)| (a - b).abs() > MIN_GAIN * a.min(*b);
        let empty = self.settled.is_empty() && self.layout.members().is_empty();
        if self.model.is_some() && !empty && !before.iter().zip(&after).any(moved) {
            return false;
        }
        self.model = Some(model);
        self.rules = rules;
        self.layout = layout;
        self.settled.clear();
        true
    }

    fn refusal(&self, task: &Task, rejection: Rejection) -> Refusal {
        let reason = match rejection {
            Rejection::Memory {
                device,
                load,
                tasks,
            } => return self.memory.refusal(device, load, tasks),
            Rejection::Slowdown(slowdown) => format!(
                "with `{}` the slowdown of a task would be at least {slowdown:.2}, and max_slowdown is \
                 {}",
                task.name, self.options.max_slowdown
            ),
            Rejection::Throughput { together, apart } => format!(
                "with `{}` an iteration would take {together:.3} s, but its steps one after another \
                 {apart:.3} s",
                task.name
            ),
        };
        Refusal { reason }
    }

    fn places(&self) -> Vec<(TaskId, usize)> {
        self.layout
            .members()
            .into_iter()
            .map(|(member, group)| (member.profile.id, group))
            .collect()
    }
}

impl<B: Budget> Room for GroupedRoom<B> {
    fn admits_alone(&self, task: &Task) -> Result<(), Refusal> {
        self.memory.admits_alone(task)
    }

    fn clear(&mut self) {
        self.layout.clear();
    }

    /// A task that is already here stays where it is.
    fn place(&mut self, task: &Task, group: Option<usize>) -> Result<usize, Refusal> {
        if let Some((group, _)) = self.layout.find(task.id) {
            return Ok(group);
        }
        let profile = Profile::new(task, &self.rules.prices);
        let stay = group
            .filter(|&group| group < self.layout.groups.len())
            .and_then(|group| {
                let (memory, rules) = (&self.memory, &self.rules);
                let iteration = if self.options.keep_places {
                    self.layout.kept(&profile, group, memory, rules)
                } else {
                    self.layout.with(&profile, group, memory, rules)
                };
                Some((group, iteration.ok()?))
            });
        let found = stay.map_or_else(
            || self.layout.best(&profile, None, &self.memory, &self.rules),
            Ok,
        );
        let (group, iteration) = found.map_err(|rejection| self.refusal(task, rejection))?;
        self.layout.add(profile, group, iteration);
        self.layout.level(&self.rules);
        Ok(group)
    }

    fn remove(&mut self, task: TaskId) {
        self.layout.remove(task, &self.rules);
        self.layout.level(&self.rules);
    }

    fn regroup(&mut self) -> Option<String> {
        let places = self.places();
        if places == self.settled {
            return None;
        }
        let found = regrouped(&self.layout, &self.memory, &self.rules);
        let Some(Regrouping { layout, reason }) = found else {
            self.settled = places;
            return None;
        };
        self.layout = layout;
        self.settled = self.places();
        Some(reason)
    }

    fn groups(&self) -> Vec<Vec<Member>> {
        self.layout.decision()
    }

    fn seconds_per_step(&self, task: TaskId) -> Option<f64> {
        let (group, member) = self.layout.find(task)?;
        self.model?;
        Some(member.parts as f64 * self.layout.iteration_seconds(group, &self.rules))
    }

    fn run(&mut self) -> Option<u64> {
        let loads: Vec<Load> = self.layout.groups.iter().map(|group| group.load).collect();
        let all: Load = loads.iter().copied().sum();
        let shared = matches!(self.memory, Memory::Shared(_));
        let mut expected = None;
        for (index, memory) in self.memories_mut().enumerate() {
            let load = if shared { all } else { loads[index] };
            memory.run(load);
            *expected.get_or_insert(0) += memory.estimate(load).expected_bytes;
        }
        expected
    }

    fn learns_after(&self, admitted: bool, waiting: bool) -> Option<usize> {
        // One step with the new tasks is measured before more are admitted.
        if admitted && self.memories().any(DeviceMemory::is_limited) {
            Some(1)
        } else {
            waiting.then_some(PATIENCE)
        }
    }

    fn measured(&mut self, iteration: &MeasuredIteration) {
        for (memory, measured) in self.memories_mut().zip(&iteration.memory) {
            memory.observe(iteration.load, *measured);
        }
        if self.step_times.observe(iteration.work, iteration.seconds) {
            self.measured += 1;
        }
        if self.measured.is_multiple_of(FITTED_EVERY)
            && let Some(fit) = self.step_times.fit()
            && fit.mean_error <= USABLE_ERROR
        {
            self.use_step_times(fit.model);
        }
    }

    fn out_of_memory(&mut self, load: Load) {
        for memory in self.memories_mut() {
            memory.run(Load::default());
            memory.out_of_memory(load);
        }
    }

    fn learnt(&self) -> Option<Learnt> {
        Some(Learnt {
            stages: self.layout.groups.len(),
            memory: self
                .memories()
                .map(|memory| (memory.name().to_owned(), memory.learnt()))
                .collect(),
            step_times: self.step_times.clone(),
            step_time_model: self.model,
        })
    }

    fn forecasts(&self) -> Forecasts {
        let fitted = self
            .memories()
            .find(|memory| memory.forecasts().fitted() > 0);
        fitted
            .or(self.memories().next())
            .map(|memory| *memory.forecasts())
            .unwrap_or_default()
    }
}
