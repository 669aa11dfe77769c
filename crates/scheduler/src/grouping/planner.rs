use std::cmp::Reverse;

use super::{
    budget::{Budget, Memory},
    layout::Layout,
    options::Rules,
};
use crate::TaskId;

/// Lays tasks out in other ways.
pub(super) struct Planner<'a, B> {
    pub(super) memory: &'a Memory<B>,
    pub(super) rules: &'a Rules,
}

impl<B: Budget> Planner<'_, B> {
    /// Each group that is empty gets a task of the longest group that has several; or, in a
    /// pipeline, its number goes to the last group. Nothing if no group is to fill.
    pub(super) fn fill_empty_groups(&self, layout: &Layout) -> Option<(Layout, String)> {
        let mut filled: Option<(Layout, String)> = None;
        loop {
            let layout = filled.as_ref().map_or(layout, |(filled, _)| filled);
            let mut empty = (0..layout.groups()).filter(|&group| layout.tasks_in(group) == 0);
            let next = empty.find_map(|empty| {
                let next = self.fill(layout, empty)?;
                Some((next, format!("group {empty} had no task left")))
            });
            if next.is_none() {
                return filled;
            }
            filled = next;
        }
    }

    fn fill(&self, layout: &Layout, empty: usize) -> Option<Layout> {
        let groups = 0..layout.groups();
        let several = groups.clone().filter(|&group| layout.tasks_in(group) > 1);
        let mut donors: Vec<usize> = several.collect();
        if donors.is_empty() {
            let last = groups.rev().find(|&group| layout.tasks_in(group) > 0)?;
            let renames = matches!(self.memory, Memory::Shared(_)) && last > empty;
            let rename = |_, group| Some(if group == last { empty } else { group });
            return renames.then(|| self.rebuilt(layout, rename)).flatten();
        }
        let seconds = |&group: &usize| layout.group_seconds(group, self.rules);
        donors.sort_by(|a, b| seconds(b).total_cmp(&seconds(a)));
        let mut moved = donors
            .into_iter()
            .map(|donor| self.best_move(layout, donor, empty));
        moved.find_map(|moved| moved)
    }

    /// The layout with the task of `from` in `to` whose move is worth most.
    fn best_move(&self, layout: &Layout, from: usize, to: usize) -> Option<Layout> {
        let places = layout.seats();
        let movable = places.iter().filter(|(_, group)| *group == from);
        let layouts = movable.filter_map(|(moved, _)| {
            let place = |task, group| Some(if task == moved.profile.id { to } else { group });
            self.rebuilt(layout, place)
        });
        layouts.max_by(|a, b| {
            let (worth_a, worth_b) = (a.worth(self.rules), b.worth(self.rules));
            worth_a.total_cmp(&worth_b)
        })
    }

    /// Everybody placed anew, in several orders: the most urgent and then those with the least
    /// residual capacity first, as tLoRA does; those with the least residual capacity first; and in
    /// the order in which they came. The less of a device's time is left to share in a step that is
    /// alone on it, the less its residual capacity; so that is the longest step.
    pub(super) fn laid_out_anew(&self, layout: &Layout) -> Vec<Layout> {
        let came = layout.seats();
        let mut longest = came.clone();
        longest.sort_by(|(a, _), (b, _)| b.profile.alone.total_cmp(&a.profile.alone));
        let mut urgent = longest.clone();
        urgent.sort_by_key(|(seat, _)| Reverse(seat.profile.priority));
        let orders = if self.rules.prices.known {
            vec![urgent, longest, came.clone()]
        } else {
            vec![longest]
        };
        let plans = orders.iter().filter_map(|order| {
            let mut planned = self.empty(layout);
            for (seat, group) in order {
                let profile = &seat.profile;
                let (group, iteration) = planned
                    .best(profile, Some(*group), self.memory, self.rules)
                    .ok()?;
                planned.seat(profile.clone(), group, iteration);
            }
            self.rebuilt(layout, |task, _| planned.find(task).map(|found| found.0))
        });
        plans.collect()
    }

    /// A layout with everybody in the group that `place` makes of the one they are in, if all find
    /// room when they are placed in the order in which they came: so they will be placed again.
    fn rebuilt(
        &self,
        layout: &Layout,
        place: impl Fn(TaskId, usize) -> Option<usize>,
    ) -> Option<Layout> {
        let mut rebuilt = self.empty(layout);
        for (seat, group) in layout.seats() {
            let profile = &seat.profile;
            let group = place(profile.id, group)?;
            let iteration = rebuilt.with(profile, group, self.memory, self.rules).ok()?;
            rebuilt.seat(profile.clone(), group, iteration);
        }
        Some(rebuilt)
    }

    fn empty(&self, layout: &Layout) -> Layout {
        Layout::new(self.memory, layout.groups())
    }

    pub(super) fn within_bound(&self, layout: &Layout) -> bool {
        let bound = self.rules.max_slowdown * (1.0 + 1e-9);
        let companies = layout.companies.iter();
        companies
            .map(|company| company.now.slowdown)
            .all(|slowdown| slowdown <= bound)
    }
}
