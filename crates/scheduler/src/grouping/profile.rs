use crate::{Load, StepTimeModel, Task, TaskId};

/// What work costs: seconds by the step-time model, or tokens while there is none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prices {
    pub(super) model: StepTimeModel,
    /// Whether they are seconds.
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

/// What grouping has to know of a task.
#[derive(Debug, Clone)]
pub(super) struct Profile {
    pub(super) id: TaskId,
    pub(super) priority: i64,
    /// Most parts of a step: the largest power of two that leaves each part a row.
    pub(super) most_parts: usize,
    /// Tokens of a step.
    pub(super) tokens: f64,
    rank_tokens: f64,
    /// Cost of a step's tokens, without that of the pass they are in.
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
        self.alone = (model.pass + model.segment + self.work).max(1e-12);
    }
}
