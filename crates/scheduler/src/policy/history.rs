use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{LearntMemory, StepTimeModel, StepTimes, TaskId, TaskState};

/// The state that a scheduler needs after a restart, besides the progress of tasks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    /// Service of the tenants, by priority; empty unless the policy is fair.
    pub ledgers: BTreeMap<i64, Ledger>,
    /// Seconds waited for a place, by task that has not ended.
    pub waited: BTreeMap<TaskId, f64>,
    /// Measurements of the room, if it learns.
    pub learnt: Option<Learnt>,
}

/// Measurements of a run's devices, which a restart need not repeat.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Learnt {
    /// Number of stages of the run.
    pub stages: usize,
    /// Memory that loads take, by name of the device.
    pub memory: BTreeMap<String, LearntMemory>,
    /// Times of iterations.
    pub step_times: StepTimes,
    /// The step-time model in use, if there is one.
    pub step_time_model: Option<StepTimeModel>,
}

/// Service of the tenants of one priority: all that fair sharing needs after a restart.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ledger {
    /// Value to which the counter of a tenant is lifted, at least, when the tenant becomes backlogged.
    pub level: f64,
    /// By tenant: tokens trained.
    pub counters: BTreeMap<String, f64>,
}

/// A task's past before a restart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Past {
    /// Its state then. A task that ran is taken as parked.
    pub state: TaskState,
    /// Optimizer steps it has taken.
    pub steps_taken: usize,
    /// Seconds it had waited for a place.
    pub waited: f64,
}
