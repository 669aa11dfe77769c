use std::collections::BTreeMap;

use super::Ledger;
use crate::TaskId;

/// What a scheduler has to remember from one run of the program to the next, besides how far tasks
/// are.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct History {
    /// What the tenants of each priority have been served; empty unless the policy is fair.
    pub ledgers: BTreeMap<i64, Ledger>,
    /// Seconds that each task which has not ended has waited for a place.
    pub waited: BTreeMap<TaskId, f64>,
}
