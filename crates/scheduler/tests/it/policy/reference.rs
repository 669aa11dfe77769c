//! The slow reference: the line is searched for its first task again and again, the room is copied
//! for every question, and nothing is skipped.

use std::collections::{BTreeMap, BTreeSet};

use loraloom_scheduler::{OutOfMemory, Policy, Room, SchedulerOptions, TaskId, TaskState};
use proptest::prelude::*;

use crate::policy::{
    happenings::{CAPACITY, happenings, paces},
    room::StubRoom,
    world::{World, options},
};

#[derive(Debug, Clone)]
struct Known {
    group: Option<usize>,
    by_right: bool,
    seniority: usize,
    beside: BTreeSet<TaskId>,
    not_before: Option<TaskId>,
}

struct Reference {
    options: SchedulerOptions,
    room: StubRoom,
    known: BTreeMap<TaskId, Known>,
    reserved: Option<(TaskId, BTreeSet<TaskId>, f64)>,
}

impl Reference {
    fn fits(&self, room: &StubRoom, world: &World, task: TaskId) -> Option<usize> {
        let there: BTreeSet<TaskId> = room.groups().concat().iter().map(|it| it.task).collect();
        let known = &self.known[&task];
        let cap = self.options.max_adapters.unwrap_or(usize::MAX);
        let held = !known.beside.is_empty() && known.beside.is_subset(&there);
        if there.len() >= cap || held {
            return None;
        }
        room.clone().place(&world.tasks[&task], known.group).ok()
    }

    fn ends(room: &StubRoom, world: &World, task: TaskId) -> Option<f64> {
        let left = world.tasks[&task].total_steps - world.scheduler.steps_taken(task)?;
        Some(world.now + room.seconds_per_step(task)? * left as f64)
    }

    /// The tasks that have to end before `head` fits, and when the last of them does.
    fn blockers(&self, world: &World, head: TaskId) -> Option<(Vec<TaskId>, f64)> {
        let mut there: Vec<TaskId> = self.room.groups().concat().iter().map(|m| m.task).collect();
        let mut blockers = Vec::new();
        let mut room = self.room.clone();
        let mut last = world.now;
        while self.fits(&room, world, head).is_none() {
            let ends = |&task: &TaskId| Self::ends(&self.room, world, task);
            let first = there
                .iter()
                .copied()
                .map(|task| ends(&task).map(|end| (end, task)))
                .collect::<Option<Vec<_>>>()?
                .into_iter()
                .min_by(|one, other| one.partial_cmp(other).unwrap())?;
            last = first.0;
            room.remove(first.1);
            there.retain(|&task| task != first.1);
            blockers.push(first.1);
        }
        Some((blockers, last))
    }

    /// Who runs, where, according to the states of the tasks before the decision. Those that had a
    /// right to go first and turn out to have it no more are put back into the line, and all begins
    /// anew.
    fn decide(&mut self, world: &World, before: &BTreeMap<TaskId, TaskState>) {
        loop {
            let (known, reserved) = (self.known.clone(), self.reserved.clone());
            self.decide_once(world, before);
            let lost = |task: &TaskId| {
                let ran = before[task] == TaskState::Running;
                let had = known.get(task).is_some_and(|known| known.by_right);
                ran && had && !self.known[task].by_right
            };
            let lost: Vec<TaskId> = before.keys().copied().filter(lost).collect();
            if lost.is_empty() {
                return;
            }
            (self.known, self.reserved) = (known, reserved);
            for task in lost {
                self.known.get_mut(&task).unwrap().by_right = false;
            }
        }
    }

    fn decide_once(&mut self, world: &World, before: &BTreeMap<TaskId, TaskState>) {
        self.room.clear();
        for (&task, state) in before {
            let fresh = Known {
                group: None,
                by_right: false,
                seniority: 0,
                beside: BTreeSet::new(),
                not_before: None,
            };
            let known = self.known.entry(task).or_insert(fresh);
            known.by_right &= *state == TaskState::Running;
        }
        let mut left: BTreeSet<TaskId> = before
            .iter()
            .filter(|(_, state)| state.is_waiting() || **state == TaskState::Running)
            .map(|(&task, _)| task)
            .collect();
        let mut head = None;
        let mut forecast = None;
        let mut reserved = None;
        while !left.is_empty() {
            let place = |task: &TaskId| {
                let it = &world.tasks[task];
                let known = &self.known[task];
                let standing = if known.by_right { known.seniority } else { 0 };
                (-it.priority, !known.by_right, standing, it.arrival)
            };
            let next = *left.iter().min_by_key(|&task| place(task)).unwrap();
            left.remove(&next);
            let ran = before[&next] == TaskState::Running;
            let fits = self.fits(&self.room, world, next);
            let mut room = self.room.clone();
            let placed = fits.is_some_and(|_| {
                let group = self.known[&next].group;
                room.place(&world.tasks[&next], group).is_ok()
            });
            let Some(head) = head else {
                if placed {
                    self.room = room;
                } else {
                    head = Some(next);
                    if let Some((blockers, start)) = self.blockers(world, next) {
                        let ahead: BTreeSet<TaskId> = self
                            .room
                            .groups()
                            .concat()
                            .iter()
                            .map(|it| it.task)
                            .collect();
                        let kept = self
                            .reserved
                            .clone()
                            .filter(|(of, counted, _)| *of == next && ahead.is_subset(counted));
                        let (of, ahead, promised) = kept.unwrap_or((next, ahead, start));
                        forecast = Some((blockers, promised.max(start)));
                        reserved = Some((of, ahead, promised));
                    }
                }
                self.leave(next, placed, true, ran, None);
                continue;
            };
            let may = match self.options.policy {
                Policy::StrictFifo => ran,
                _ => ran || self.known[&next].not_before != Some(head),
            };
            let mut accepted = placed && may;
            let mut late = false;
            if let (true, Policy::BestEffortFifo, Some((blockers, limit))) =
                (accepted, &self.options.policy, &forecast)
            {
                let ends = blockers
                    .iter()
                    .map(|&it| Self::ends(&room, world, it).unwrap());
                let start = ends.fold(world.now, f64::max);
                late = start > limit + 1e-9 * (limit - world.now).max(1.0);
                accepted = !late;
            }
            if accepted {
                self.room = room;
            }
            self.leave(next, accepted, false, ran, late.then_some(head));
        }
        self.reserved = reserved;
        for (group, members) in self.room.groups().into_iter().enumerate() {
            for member in members {
                self.known.get_mut(&member.task).unwrap().group = Some(group);
            }
        }
    }

    fn leave(&mut self, task: TaskId, placed: bool, right: bool, ran: bool, late: Option<TaskId>) {
        let senior = self.known.values().map(|known| known.seniority);
        let next = 1 + senior.max().unwrap_or(0);
        let known = self.known.get_mut(&task).unwrap();
        if placed && right && !known.by_right {
            known.seniority = next;
        }
        known.by_right = placed && right;
        if placed && !ran {
            known.beside.clear();
            known.not_before = None;
        }
        if !placed && ran && late.is_some() {
            known.not_before = late;
        }
    }

    fn running(&self) -> Vec<BTreeSet<TaskId>> {
        let groups = self
            .room
            .groups()
            .into_iter()
            .filter(|group| !group.is_empty());
        groups
            .map(|group| group.into_iter().map(|member| member.task).collect())
            .collect()
    }
}

proptest! {
    #![proptest_config(crate::policy::at_least(400))]
    #[test]
    fn every_walk_is_the_references(
        rounds in happenings(), pace in paces(), groups in 1..4_usize,
        strict in any::<bool>(), cap in prop::option::of(1..6_usize),
    ) {
        let policy = if strict { Policy::StrictFifo } else { Policy::BestEffortFifo };
        let options = SchedulerOptions {
            max_adapters: cap,
            backfill_depth: usize::MAX,
            ..options(policy)
        };
        let room = StubRoom::new(groups, CAPACITY, pace);
        let mut world = World::new(room.clone(), options.clone());
        let mut reference =
            Reference { options, room, known: BTreeMap::new(), reserved: None };
        for round in rounds {
            for happening in &round {
                if matches!(happening, crate::policy::happenings::Happening::OutOfMemory) {
                    if let OutOfMemory::Parked(parking) = world.out_of_memory() {
                        reference.known.get_mut(&parking.task).unwrap().beside =
                            world.running.clone();
                    }
                } else {
                    world.happen(happening);
                }
            }
            world.scheduler.room_mut();
            let before = world.tasks.keys().map(|&task| (task, world.state(task))).collect();
            reference.decide(&world, &before);
            let decision = world.decide();
            let groups: Vec<BTreeSet<TaskId>> = decision
                .groups
                .iter()
                .map(|group| group.iter().map(|member| member.task).collect())
                .collect();
            prop_assert_eq!(groups, reference.running());
        }
    }
}
