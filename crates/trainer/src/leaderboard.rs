use loraloom_config::RunConfig;
use loraloom_scheduler::{Leaderboard, TaskId};
use serde::Serialize;

use crate::AdapterReport;

/// A sweep's adapters, the best first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepReport {
    /// Its name.
    pub name: String,
    /// What its adapters are ranked by: `eval_loss`, the lowest, if any has one, or else `train_loss`,
    /// that of the last step.
    pub metric: &'static str,
    /// Its adapters.
    pub standings: Vec<SweepStanding>,
}

/// A line of a leaderboard.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepStanding {
    /// From 1; equal ones share one. `None` without a metric.
    pub rank: Option<usize>,
    /// The adapter's name.
    pub name: String,
    /// What it is ranked by.
    pub metric: Option<f64>,
    /// Optimizer steps taken.
    pub steps: u64,
    /// How it stands, in a word.
    pub state: String,
}

/// An adapter of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepEntry {
    /// Its name.
    pub name: String,
    /// Its lowest validation loss.
    pub eval_loss: Option<f64>,
    /// The loss of its last step.
    pub train_loss: Option<f64>,
    /// Optimizer steps taken.
    pub steps: u64,
    /// How it stands, in a word.
    pub state: String,
}

impl SweepReport {
    /// Ranks the adapters of a sweep; of equal ones the first entry is first.
    pub fn rank(name: &str, entries: &[SweepEntry]) -> Self {
        let evaluated = entries.iter().any(|entry| entry.eval_loss.is_some());
        let mut board = Leaderboard::new();
        for (index, entry) in entries.iter().enumerate() {
            let id = TaskId(index as u64);
            board.enter(id, &entry.name);
            let metric = if evaluated {
                entry.eval_loss
            } else {
                entry.train_loss
            };
            if let Some(metric) = metric {
                board.report(id, 0, metric);
            }
        }
        let standings = board.standings().into_iter().filter_map(|standing| {
            let entry = entries.get(usize::try_from(standing.trial.0).ok()?)?;
            Some(SweepStanding {
                rank: standing.rank,
                name: standing.name,
                metric: standing.best,
                steps: entry.steps,
                state: entry.state.clone(),
            })
        });
        Self {
            name: name.to_owned(),
            metric: if evaluated { "eval_loss" } else { "train_loss" },
            standings: standings.collect(),
        }
    }

    /// The sweeps of a configuration, as its run left them.
    pub(crate) fn of_run(config: &RunConfig, adapters: &[AdapterReport]) -> Vec<Self> {
        let sweeps = config.sweep.iter().map(|sweep| {
            let members = sweep.adapters.iter();
            let entries = members.filter_map(|name| {
                let report = adapters.iter().find(|report| report.name == *name)?;
                Some(SweepEntry {
                    name: name.clone(),
                    eval_loss: report.best.map(|best| best.loss),
                    train_loss: report.last_loss,
                    steps: report.steps as u64,
                    state: report.state().to_owned(),
                })
            });
            Self::rank(&sweep.name, &entries.collect::<Vec<_>>())
        });
        sweeps.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{SweepEntry, SweepReport};

    fn entry(name: &str, eval_loss: Option<f64>, train_loss: f64) -> SweepEntry {
        SweepEntry {
            name: name.to_owned(),
            eval_loss,
            train_loss: Some(train_loss),
            steps: 3,
            state: "done".to_owned(),
        }
    }

    fn order(report: &SweepReport) -> Vec<(Option<usize>, &str)> {
        let lines = report.standings.iter();
        lines.map(|line| (line.rank, line.name.as_str())).collect()
    }

    #[test]
    fn validation_losses_rank_where_there_are_any() {
        let entries = [
            entry("a", None, 0.1),
            entry("b", Some(2.0), 0.3),
            entry("c", Some(1.0), 0.2),
        ];
        let report = SweepReport::rank("lr", &entries);
        assert_eq!(report.metric, "eval_loss");
        assert_eq!(
            order(&report),
            [(Some(1), "c"), (Some(2), "b"), (None, "a")]
        );
        let without = entries.map(|entry| SweepEntry {
            eval_loss: None,
            ..entry
        });
        let report = SweepReport::rank("lr", &without);
        assert_eq!(report.metric, "train_loss");
        assert_eq!(
            order(&report),
            [(Some(1), "a"), (Some(2), "c"), (Some(3), "b")]
        );
    }
}
