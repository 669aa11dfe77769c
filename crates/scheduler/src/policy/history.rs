use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Ledger;
use crate::{LearntMemory, StepTimeModel, StepTimes, TaskId};

/// What a scheduler has to remember from one run of the program to the next, besides how far tasks
/// are.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    /// What the tenants of each priority have been served; empty unless the policy is fair.
    pub ledgers: BTreeMap<i64, Ledger>,
    /// Seconds that each task which has not ended has waited for a place.
    pub waited: BTreeMap<TaskId, f64>,
    /// What was learnt of the devices, if anything was.
    pub learnt: Option<Learnt>,
}

/// What was learnt of a run's devices, so that a restart need not measure it again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Learnt {
    /// How many stages the run had.
    pub stages: usize,
    /// What loads take of each device, by its name.
    pub memory: BTreeMap<String, LearntMemory>,
    /// How long iterations take.
    pub step_times: StepTimes,
    /// The model of step times that is gone by, if there is one.
    pub step_time_model: Option<StepTimeModel>,
}
