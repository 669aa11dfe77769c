use std::cmp::Reverse;

use super::{
    budget::{Budget, Memory},
    group::GroupMember,
    layout::Layout,
    options::{MIN_GAIN, ROUNDING, Rules},
};
use crate::TaskId;

/// Most tasks for which all single moves and exchanges are tried.
const SEARCHED: usize = 12;

/// With more tasks than this, fewer orders are tried.
const MANY: usize = 100;

/// A better layout, and the reason.
pub(super) struct Regrouping {
    pub(super) layout: Layout,
    pub(super) reason: String,
}

/// Fills empty groups from those with several tasks, in any case; and lays all tasks out again, until that
/// no longer gains [`MIN_GAIN`]. If a task is slowed down beyond the bound, any gain will do.
pub(super) fn regrouped<B: Budget>(
    layout: &Layout,
    memory: &Memory<B>,
    rules: &Rules,
) -> Option<Regrouping> {
    let planner = Planner { memory, rules };
    let filled = planner.fill_empty_groups(layout);
    let mut found = filled.map(|(layout, reason)| Regrouping { layout, reason });
    loop {
        let base = found.as_ref().map_or(layout, |found| &found.layout);
        let kept = !rules.bounded() || planner.within_bound(base);
        let least = if kept {
            base.worth(rules) * (1.0 + MIN_GAIN)
        } else {
            0.0
        };
        if planner.most_worth(base) < least {
            return found;
        }
        let again = planner.laid_out_again(base);
        let layouts = again.into_iter().chain([base.clone()]);
        let best = layouts.max_by(|a, b| a.worth(rules).total_cmp(&b.worth(rules)));
        let best = best.map(|best| planner.improved(best));
        let Some(better) = best.filter(|best| best.worth(rules) >= least && moves(base, best) > 0)
        else {
            return found;
        };
        found = Some(Regrouping {
            reason: reason(layout, &better, rules),
            layout: better,
        });
    }
}

fn reason(before: &Layout, after: &Layout, rules: &Rules) -> String {
    let moved = moves(before, after);
    let tasks = if moved == 1 { "task" } else { "tasks" };
    if rules.prices.known {
        let (a, b) = (before.worth(rules), after.worth(rules));
        let gain = 100.0 * (b / a - 1.0);
        format!("moved {moved} {tasks}: {a:.0} → {b:.0} tokens a second ({gain:+.1} %)")
    } else {
        let longest = |layout: &Layout| layout.longest_group(rules);
        let (a, b) = (longest(before), longest(after));
        format!("moved {moved} {tasks}: the largest group has {b:.0} tokens, not {a:.0}")
    }
}

/// Number of tasks that are in another group.
fn moves(before: &Layout, after: &Layout) -> usize {
    let groups = before.members().into_iter().zip(after.members());
    groups.filter(|((_, a), (_, b))| a != b).count()
}

/// Finds other layouts of the same tasks.
struct Planner<'a, B> {
    memory: &'a Memory<B>,
    rules: &'a Rules,
}

impl<B: Budget> Planner<'_, B> {
    /// Gives each empty group a task of the longest group that has several; in a pipeline without such a
    /// group, the last group takes the empty one's number. `None` if nothing changes.
    fn fill_empty_groups(&self, layout: &Layout) -> Option<(Layout, String)> {
        let mut filled: Option<(Layout, String)> = None;
        loop {
            let layout = filled.as_ref().map_or(layout, |(filled, _)| filled);
            let mut empty = (0..layout.groups.len()).filter(|&group| layout.tasks_in(group) == 0);
            let next = empty.find_map(|empty| {
                let next = self.fill(layout, empty)?;
                Some((next, format!("group {empty} was empty")))
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
        donors
            .into_iter()
            .find_map(|donor| self.best_move(layout, donor, empty))
    }

    /// The best layout with one task of `from` moved to `to`.
    fn best_move(&self, layout: &Layout, from: usize, to: usize) -> Option<Layout> {
        let places = layout.members();
        let movable = places.iter().filter(|(_, group)| *group == from);
        let layouts = movable.filter_map(|(moved, _)| {
            let place = |task, group| Some(if task == moved.profile.id { to } else { group });
            self.rebuilt(layout, place)
        });
        layouts.max_by(|a, b| a.worth(self.rules).total_cmp(&b.worth(self.rules)))
    }

    /// Upper bound on the worth of any layout of these tasks: passes are free, and all tokens cost as little
    /// as the cheapest.
    fn most_worth(&self, layout: &Layout) -> f64 {
        let profiles = || {
            layout
                .members()
                .into_iter()
                .map(|(member, _)| &member.profile)
        };
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

    /// All tasks placed again, in several orders: by priority and then by least residual capacity, as in
    /// tLoRA; by least residual capacity; and, if they are not many, as they came. The residual capacity
    /// is the part of a device's time that a step leaves to others, so the longest step has the least.
    fn laid_out_again(&self, layout: &Layout) -> Vec<Layout> {
        let came = layout.members();
        let mut longest = came.clone();
        longest.sort_by(|(a, _), (b, _)| b.profile.alone.total_cmp(&a.profile.alone));
        let mut orders = Vec::new();
        if self.rules.prices.known {
            let urgency = |(member, _): &(&GroupMember, usize)| Reverse(member.profile.priority);
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
            for (member, group) in order {
                let profile = &member.profile;
                let (group, iteration) = planned
                    .best(profile, Some(*group), self.memory, self.rules)
                    .ok()?;
                planned.add(profile.clone(), group, iteration);
            }
            self.rebuilt(layout, |task, _| planned.find(task).map(|found| found.0))
        });
        plans.collect()
    }

    /// The layout with each task in the group that `place` returns; `None` unless all fit when they are placed
    /// in the order in which they came, as the next decision will place them.
    fn rebuilt(
        &self,
        layout: &Layout,
        place: impl Fn(TaskId, usize) -> Option<usize>,
    ) -> Option<Layout> {
        let mut rebuilt = self.empty(layout);
        for (member, group) in layout.members() {
            let profile = &member.profile;
            let group = place(profile.id, group)?;
            let iteration = rebuilt.with(profile, group, self.memory, self.rules).ok()?;
            rebuilt.add(profile.clone(), group, iteration);
        }
        rebuilt.level(self.rules);
        Some(rebuilt)
    }

    /// The layout after all changes that gain, the best one first. Layouts of many tasks are returned as they
    /// are.
    fn improved(&self, mut layout: Layout) -> Layout {
        if layout.members().len() > SEARCHED {
            return layout;
        }
        while let Some(better) = self.best_change(&layout) {
            layout = better;
        }
        layout
    }

    /// The best layout after one move or one exchange of two tasks that leaves no group empty; `None` if none
    /// is worth more.
    fn best_change(&self, layout: &Layout) -> Option<Layout> {
        let place = |(member, at): (&GroupMember, usize)| (member.profile.id, at);
        let places: Vec<_> = layout.members().into_iter().map(place).collect();
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

    fn within_bound(&self, layout: &Layout) -> bool {
        let bound = self.rules.max_slowdown * (1.0 + ROUNDING);
        layout
            .groups
            .iter()
            .all(|group| group.now.slowdown <= bound)
    }
}
