//! The definitions of the module's introduction, each computed from nothing.

use std::collections::BTreeMap;

use loraloom_scheduler::{Member, Room, StepTimeModel, Task, TaskId, Work};

/// (task, parts) of a group.
pub(crate) type Group<'a> = Vec<(&'a Task, usize)>;

/// The groups of a room, with the tasks themselves.
pub(crate) fn with_tasks<'a>(
    room: &impl Room,
    tasks: &'a BTreeMap<TaskId, Task>,
) -> Vec<Group<'a>> {
    let groups = room.groups().into_iter();
    let member = |member: Member| (&tasks[&member.task], member.parts);
    groups
        .map(|group| group.into_iter().map(member).collect())
        .collect()
}

/// What tasks are trained on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Devices {
    /// One pipeline with a stage for each group, or a device for each.
    pub(crate) pipeline: bool,
    pub(crate) model: StepTimeModel,
}

impl Devices {
    /// t(g).
    fn pass(&self, group: &[(&Task, usize)]) -> f64 {
        let work = Work::of_group(group.iter().copied());
        self.model.seconds(&work)
    }

    /// t(j).
    pub(crate) fn alone(&self, task: &Task) -> f64 {
        self.pass(&[(task, 1)])
    }

    /// Seconds of the iterations in which a group takes part.
    pub(crate) fn iteration(&self, groups: &[Group<'_>], stages: usize, group: usize) -> f64 {
        if !self.pipeline {
            return self.pass(&groups[group]);
        }
        let passes: Vec<f64> = groups.iter().map(|group| self.pass(group)).collect();
        let longest = passes.iter().copied().fold(0.0, f64::max);
        passes.iter().sum::<f64>().max(stages as f64 * longest)
    }

    pub(crate) fn slowdown(&self, group: &[(&Task, usize)], task: &Task, parts: usize) -> f64 {
        parts as f64 * self.pass(group) / (group.len() as f64 * self.alone(task))
    }

    pub(crate) fn worst_slowdown(&self, groups: &[Group<'_>]) -> f64 {
        let members = groups.iter().flat_map(|group| {
            let members = group.iter();
            members.map(|&(task, parts)| self.slowdown(group, task, parts))
        });
        members.fold(0.0, f64::max)
    }

    pub(crate) fn tokens_per_second(&self, groups: &[Group<'_>], stages: usize) -> f64 {
        let numbered = groups.iter().enumerate();
        let rates = numbered.map(|(number, group)| {
            let tokens = group.iter().map(|&(task, parts)| part_tokens(task, parts));
            tokens.sum::<f64>() / self.iteration(groups, stages, number).max(1e-300)
        });
        rates.sum()
    }

    /// Whether nothing takes longer than the same steps one after another on the same devices.
    pub(crate) fn beats_time_sharing(&self, groups: &[Group<'_>], stages: usize) -> bool {
        let apart = |group: &Group<'_>| -> f64 {
            let seconds = group
                .iter()
                .map(|&(task, parts)| self.alone(task) / parts as f64);
            seconds.sum()
        };
        if self.pipeline {
            let apart: f64 = groups.iter().map(apart).sum();
            let together = groups.first().map(|_| self.iteration(groups, stages, 0));
            return together.unwrap_or(0.0) <= stages as f64 * apart * (1.0 + 1e-6);
        }
        groups
            .iter()
            .all(|group| self.pass(group) <= apart(group) * (1.0 + 1e-6))
    }

    pub(crate) fn allows(&self, groups: &[Group<'_>], stages: usize, max_slowdown: f64) -> bool {
        self.worst_slowdown(groups) <= max_slowdown + 1e-6
            && self.beats_time_sharing(groups, stages)
    }
}

fn part_tokens(task: &Task, parts: usize) -> f64 {
    task.tokens_per_step as f64 / parts as f64
}
