use std::cmp::Reverse;

use super::{
    budget::{Budget, Memory},
    group::Seat,
    layout::Layout,
    options::{ROUNDING, Rules},
};
use crate::TaskId;

/// Most tasks for which all single moves and exchanges are tried.
const SEARCHED: usize = 12;

/// More tasks than this are placed anew in fewer orders.
const MANY: usize = 100;

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
            let mut empty = (0..layout.groups.len()).filter(|&group| layout.tasks_in(group) == 0);
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
        let groups = 0..layout.groups.len();
        let several = groups.clone().filter(|&group| layout.tasks_in(group) > 1);
        let mut donors: Vec<usize> = several.collect();
        if donors.is_empty() {
            let last = groups.rev().find(|&group| layout.tasks_in(group) > 0)?;
            let renames = matches!(self.memory, Memory::Shared(_)) && last > empty;
            let rename = |_, group| Some(if group == last { empty } else { group });
            return renames.then(|| self.rebuilt(layout, rename)).flatten();
        }
        let seconds = |&group: &usize| layout.groups[group].whole_seconds(&self.rules.prices);
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

    /// More than any layout of these tasks can be worth: no pass costs anything, and all tokens cost
    /// as little as those that cost least.
    pub(super) fn most_worth(&self, layout: &Layout) -> f64 {
        let profiles = || layout.seats().into_iter().map(|(seat, _)| &seat.profile);
        let groups = layout.groups.len().min(profiles().count());
        if !self.rules.prices.known {
            let sum: f64 = profiles().map(|profile| profile.work).sum();
            let longest = profiles().map(|profile| profile.work).fold(0.0, f64::max);
            return 1.0 / longest.max(sum / groups as f64);
        }
        let rates = profiles().map(|profile| profile.tokens / profile.work.max(f64::MIN_POSITIVE));
        let best = rates.fold(0.0, f64::max);
        match self.memory {
            Memory::Shared(_) => best,
            Memory::PerGroup(_) => best * groups as f64,
        }
    }

    /// Everybody placed anew, in several orders: the most urgent and then those with the least
    /// residual capacity first, as tLoRA does; those with the least residual capacity first; and, if
    /// they are not many, as they came. The less of a device's
    /// time is left to share in a step that is alone on it, the less its residual capacity; so that
    /// is the longest step.
    pub(super) fn laid_out_anew(&self, layout: &Layout) -> Vec<Layout> {
        let came = layout.seats();
        let mut longest = came.clone();
        longest.sort_by(|(a, _), (b, _)| b.profile.alone.total_cmp(&a.profile.alone));
        let mut orders = Vec::new();
        if self.rules.prices.known {
            let urgency = |(seat, _): &(&Seat, usize)| Reverse(seat.profile.priority);
            if !longest.is_sorted_by_key(urgency) {
                let mut urgent = longest.clone();
                urgent.sort_by_key(urgency);
                orders.push(urgent);
            }
            if came.len() <= MANY {
                orders.push(came.clone());
            }
        }
        orders.push(longest);
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
        rebuilt.level(self.rules);
        Some(rebuilt)
    }

    /// The layout, improved step by step, each time by the change that gains most, until none does.
    /// Nothing is tried with many tasks.
    pub(super) fn improved(&self, mut layout: Layout) -> Layout {
        if layout.seats().len() > SEARCHED {
            return layout;
        }
        while let Some(better) = self.best_change(&layout) {
            layout = better;
        }
        layout
    }

    /// The best of all layouts in which one task has moved, or in which a second one has taken the
    /// place of the first, and no group has become empty; if it is worth more.
    fn best_change(&self, layout: &Layout) -> Option<Layout> {
        let places: Vec<_> = layout
            .seats()
            .into_iter()
            .map(|(seat, at)| (seat.profile.id, at))
            .collect();
        let several = |group| layout.tasks_in(group) > 1;
        let mut changes = Vec::new();
        for &(task, from) in &places {
            for to in (0..layout.groups.len()).filter(|&to| to != from) {
                let first = (task, to);
                if several(from) {
                    changes.push((first, first));
                }
                let seconds = places.iter().filter(|&&(_, at)| at != from);
                let seconds = seconds.filter(|&&(_, at)| at == to || several(at));
                changes.extend(seconds.map(|&(second, _)| (first, (second, from))));
            }
        }
        let worth = |layout: &Layout| layout.worth(self.rules);
        let layouts = changes.into_iter().filter_map(|(first, second)| {
            self.rebuilt(layout, |task, group| {
                let changed = [first, second].into_iter().find(|change| change.0 == task);
                Some(changed.map_or(group, |(_, to)| to))
            })
        });
        let best = layouts.max_by(|a, b| worth(a).total_cmp(&worth(b)))?;
        (worth(&best) > worth(layout) * (1.0 + ROUNDING)).then_some(best)
    }

    fn empty(&self, layout: &Layout) -> Layout {
        Layout::new(self.memory, layout.groups.len())
    }

    pub(super) fn within_bound(&self, layout: &Layout) -> bool {
        let bound = self.rules.max_slowdown * (1.0 + ROUNDING);
        layout
            .groups
            .iter()
            .map(|group| group.now.slowdown)
            .all(|slowdown| slowdown <= bound)
    }
}
