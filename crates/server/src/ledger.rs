//! What fair shares remember, as the queue keeps it.

use std::collections::BTreeMap;

use loraloom_scheduler::Ledger;
use serde::{Deserialize, Serialize};

use crate::ServerError;

/// Where it is kept.
pub(crate) const KEY: &str = "fair_shares";

#[derive(Serialize, Deserialize)]
struct Kept {
    priority: i64,
    level: f64,
    counters: BTreeMap<String, f64>,
}

/// As text.
pub(crate) fn to_text(ledgers: &[(i64, Ledger)]) -> String {
    let kept = ledgers.iter().map(|(priority, ledger)| Kept {
        priority: *priority,
        level: ledger.level,
        counters: ledger.counters.clone(),
    });
    let kept: Vec<Kept> = kept.collect();
    serde_json::json!(kept).to_string()
}

/// From text.
pub(crate) fn from_text(text: &str) -> Result<Vec<(i64, Ledger)>, ServerError> {
    let kept: Vec<Kept> = serde_json::from_str(text).map_err(|error| ServerError::Record {
        key: KEY,
        problem: error.to_string(),
    })?;
    let ledger = |kept: Kept| {
        let Kept {
            priority,
            level,
            counters,
        } = kept;
        (priority, Ledger { level, counters })
    };
    Ok(kept.into_iter().map(ledger).collect())
}
