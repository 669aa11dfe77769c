use std::cmp::Ordering;

use crate::{Load, StepTimeModel, Task, TaskId, task::passes_in};

/// Costs of work: seconds by the step-time model, or tokens while there is none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prices {
    pub(super) model: StepTimeModel,
    /// True if they are seconds.
    pub(super) known: bool,
}

impl Prices {
    pub(super) fn new(model: Option<StepTimeModel>) -> Self {
        let tokens = StepTimeModel {
            token: 1.0,
            ..StepTimeModel::default()
        };
        Self {
            model: model.unwrap_or(tokens),
            known: model.is_some(),
        }
    }
}

/// The properties of a task that grouping depends on.
#[derive(Debug, Clone)]
pub(super) struct Profile {
    pub(super) id: TaskId,
    pub(super) priority: i64,
    /// Most parts of a step: the largest power of two that leaves each part a row.
    pub(super) most_parts: usize,
    /// Tokens of a step.
    pub(super) tokens: f64,
    rank_tokens: f64,
    /// Passes of a whole step.
    pub(super) passes: usize,
    /// Cost of a step's tokens, without that of the passes.
    pub(super) work: f64,
    /// Cost of a step with nothing beside it.
    pub(super) alone: f64,
    pub(super) load: Load,
}

impl Profile {
    pub(super) fn new(task: &Task, prices: &Prices) -> Self {
        let rows = task.rows_per_step.max(1);
        let mut profile = Self {
            id: task.id,
            priority: task.priority,
            most_parts: 1 << task.max_parts.clamp(1, rows).ilog2(),
            tokens: task.tokens_per_step as f64,
            rank_tokens: task.rank as f64 * task.tokens_per_step as f64,
            passes: task.passes_per_step.max(1),
            work: 0.0,
            alone: 0.0,
            load: task.load,
        };
        profile.price(prices);
        profile
    }

    pub(super) fn price(&mut self, prices: &Prices) {
        let model = prices.model;
        self.work = model.token * self.tokens + model.rank_token * self.rank_tokens;
        // A step that costs nothing would have an infinite slowdown beside any other.
        let passes = self.passes as f64 * (model.pass + model.segment);
        self.alone = (passes + self.work).max(1e-12);
    }

    fn passes_in(&self, parts: usize) -> f64 {
        passes_in(self.passes, parts)
    }
}

/// The work of one group in an iteration.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GroupWork {
    pub(super) tasks: usize,
    /// The most of any task.
    passes: f64,
    /// Those of all tasks.
    segments: f64,
    work: f64,
    pub(super) tokens: f64,
}

impl GroupWork {
    /// With one more task, whose step is spread over so many iterations.
    pub(super) fn with(mut self, profile: &Profile, parts: usize) -> Self {
        let (passes, share) = (profile.passes_in(parts), 1.0 / parts as f64);
        self.tasks += 1;
        self.passes = self.passes.max(passes);
        self.segments += passes;
        self.work += profile.work * share;
        self.tokens += profile.tokens * share;
        self
    }

    /// Spreads a task's step over `parts` iterations instead of half as many. `tasks` are all tasks, this one
    /// among them, with their parts.
    pub(super) fn split<'a>(
        &mut self,
        profile: &Profile,
        parts: usize,
        tasks: impl Iterator<Item = (&'a Profile, usize)>,
    ) {
        let (before, after) = (profile.passes_in(parts / 2), profile.passes_in(parts));
        let share = 1.0 / parts as f64;
        self.segments -= before - after;
        self.work -= profile.work * share;
        self.tokens -= profile.tokens * share;
        // Only a task with the most passes may have been the only one with so many.
        if after < before && before >= self.passes {
            let passes = tasks.map(|(profile, parts)| profile.passes_in(parts));
            self.passes = passes.fold(0.0, f64::max);
        }
    }

    pub(super) fn seconds(&self, prices: &Prices) -> f64 {
        if self.tasks == 0 {
            return 0.0;
        }
        let model = &prices.model;
        model.pass * self.passes + model.segment * self.segments + self.work
    }
}

/// Spreads a task's step over `parts` iterations instead of half as many.
#[derive(Debug, Clone, Copy)]
pub(super) struct Split {
    /// Cost of a part alone: the most costly are split first.
    cost: f64,
    id: TaskId,
    pub(super) parts: usize,
    /// Index of the task in its group.
    pub(super) member: usize,
}

impl Split {
    /// All splits of a task, in order.
    pub(super) fn of(profile: &Profile, member: usize) -> impl Iterator<Item = Self> + '_ {
        let doublings = 1..=profile.most_parts.ilog2();
        doublings.map(move |doubling| Self {
            cost: profile.alone / (1_usize << doubling) as f64,
            id: profile.id,
            parts: 1 << doubling,
            member,
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
