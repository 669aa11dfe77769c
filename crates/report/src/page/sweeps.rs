//! Leaderboards, and the settings that their adapters differ in.

use serde::Serialize;
use serde_json::Value;

use crate::{RunHistory, SweepEntry, SweepReport, adapter::AdapterHistory};

/// A sweep with the axes of its parallel coordinates.
#[derive(Debug, Serialize)]
pub(crate) struct SweepPage {
    #[serde(flatten)]
    report: SweepReport,
    axes: Vec<SettingAxis>,
}

/// A setting that differs, and the value of each adapter of the leaderboard.
#[derive(Debug, Serialize)]
struct SettingAxis {
    key: String,
    values: Vec<Value>,
}

impl SweepPage {
    /// The sweeps of a run, including adapters that have not begun.
    pub(crate) fn of(run: &RunHistory) -> Vec<Self> {
        let sweeps = run.settings.sweeps.iter().map(|sweep| {
            let named = |name: &String| run.adapters.iter().find(|adapter| adapter.name == *name);
            let entries = sweep.adapters.iter().filter_map(named);
            let entries: Vec<SweepEntry> = entries.map(AdapterHistory::entry).collect();
            let report = SweepReport::rank(&sweep.name, sweep.metric, &entries);
            let names: Vec<&str> = report
                .standings
                .iter()
                .map(|line| line.name.as_str())
                .collect();
            let axes = run.settings.differing(&names).into_iter();
            let axes = axes.map(|(key, values)| SettingAxis { key, values });
            Self {
                axes: axes.collect(),
                report,
            }
        });
        sweeps.collect()
    }
}
