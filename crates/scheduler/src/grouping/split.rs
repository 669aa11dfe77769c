use std::cmp::Ordering;

use super::profile::Profile;
use crate::TaskId;

/// A task's step becomes spread over `parts` iterations instead of half as many.
#[derive(Debug, Clone, Copy)]
pub(super) struct Split {
    /// Cost of a part, were it alone: the largest are split first.
    cost: f64,
    id: TaskId,
    pub(super) parts: usize,
    /// The task's seat.
    pub(super) seat: usize,
}

impl Split {
    /// Those of a task, in their order.
    pub(super) fn of(profile: &Profile, seat: usize) -> impl Iterator<Item = Self> + '_ {
        let doublings = 1..=profile.most_parts.ilog2();
        doublings.map(move |doubling| Self {
            cost: profile.alone / (1_usize << doubling) as f64,
            id: profile.id,
            parts: 1 << doubling,
            seat,
        })
    }

    /// The order in which steps are split.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        let key = |split: &Self| (split.id, split.parts);
        other
            .cost
            .total_cmp(&self.cost)
            .then_with(|| key(self).cmp(&key(other)))
    }
}
