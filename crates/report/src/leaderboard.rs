use loraloom_config::StoppingMetric;
use serde::Serialize;

/// The state of an adapter that failed.
const FAILED: &str = "failed";

/// A sweep's adapters, the best first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepReport {
    /// Its name.
    pub name: String,
    /// The metric of the ranking: the lowest `eval_loss`, a reward of the evaluation with it, or the `train_loss` of the
    /// last step.
    pub metric: StoppingMetric,
    /// Its adapters.
    pub standings: Vec<SweepStanding>,
}

/// A line of a leaderboard.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepStanding {
    /// Rank from 1; equal ones share one. `None` without a metric, and for a failed adapter.
    pub rank: Option<usize>,
    /// The adapter's name.
    pub name: String,
    /// Value of the metric.
    pub metric: Option<f64>,
    /// Optimizer steps taken.
    pub steps: u64,
    /// Its state, in a word.
    pub state: String,
}

/// An adapter of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepEntry {
    /// Its name.
    pub name: String,
    /// Its lowest validation loss.
    pub eval_loss: Option<f64>,
    /// The margin of its rewards in the evaluation with the lowest loss.
    pub margins: Option<f64>,
    /// The accuracy of its rewards in that evaluation.
    pub accuracies: Option<f64>,
    /// The loss of its last step.
    pub train_loss: Option<f64>,
    /// Optimizer steps taken.
    pub steps: u64,
    /// Its state, in a word.
    pub state: String,
}

impl SweepReport {
    /// Ranks the adapters of a sweep by the metric of its early stopping, or else by `eval_loss` if any has one;
    /// equal ones stay in order. Failed adapters come last, whatever they reached before.
    pub fn rank(name: &str, metric: Option<StoppingMetric>, entries: &[SweepEntry]) -> Self {
        let evaluated = entries.iter().any(|entry| entry.eval_loss.is_some());
        let metric = metric.unwrap_or(if evaluated {
            StoppingMetric::EvalLoss
        } else {
            StoppingMetric::TrainLoss
        });
        let value = |entry: &SweepEntry| {
            let value = match metric {
                StoppingMetric::EvalLoss => entry.eval_loss,
                StoppingMetric::TrainLoss => entry.train_loss,
                StoppingMetric::EvalMargins => entry.margins,
                StoppingMetric::EvalAccuracies => entry.accuracies,
            };
            value.filter(|value| value.is_finite())
        };
        let cost = |entry: &SweepEntry| value(entry).map(|value| metric.cost(value));
        let ranked = |entry: &SweepEntry| cost(entry).filter(|_| entry.state != FAILED);
        let mut sorted: Vec<&SweepEntry> = entries.iter().collect();
        let order = |entry: &SweepEntry| cost(entry).unwrap_or(f64::INFINITY);
        sorted.sort_by(|a, b| {
            let last = (a.state == FAILED).cmp(&(b.state == FAILED));
            last.then(order(a).total_cmp(&order(b)))
        });
        let standings = sorted.iter().map(|&entry| {
            let own = ranked(entry);
            let is_better =
                |other: &&&SweepEntry| ranked(other).is_some_and(|other| Some(other) < own);
            SweepStanding {
                rank: own.map(|_| sorted.iter().filter(is_better).count() + 1),
                name: entry.name.clone(),
                metric: value(entry),
                steps: entry.steps,
                state: entry.state.clone(),
            }
        });
        Self {
            name: name.to_owned(),
            metric,
            standings: standings.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{StoppingMetric, SweepEntry, SweepReport};

    fn entry(name: &str, eval_loss: Option<f64>, train_loss: f64) -> SweepEntry {
        SweepEntry {
            name: name.to_owned(),
            eval_loss,
            margins: eval_loss,
            accuracies: None,
            train_loss: Some(train_loss),
            steps: 3,
            state: "done".to_owned(),
        }
    }

    fn order(report: &SweepReport) -> Vec<(Option<usize>, &str)> {
        report
            .standings
            .iter()
            .map(|line| (line.rank, line.name.as_str()))
            .collect()
    }

    #[test]
    fn the_metric_that_was_chosen_ranks() {
        let entries = [
            entry("a", None, 0.1),
            entry("b", Some(2.0), 0.3),
            entry("c", Some(1.0), 0.2),
            entry("d", Some(1.0), f64::NAN),
        ];
        let by_eval = [(Some(1), "c"), (Some(1), "d"), (Some(3), "b"), (None, "a")];
        let by_train = [(Some(1), "a"), (Some(2), "c"), (Some(3), "b"), (None, "d")];
        for metric in [None, Some(StoppingMetric::EvalLoss)] {
            let report = SweepReport::rank("lr", metric, &entries);
            assert_eq!(report.metric, StoppingMetric::EvalLoss);
            assert_eq!(order(&report), by_eval);
        }
        let report = SweepReport::rank("lr", Some(StoppingMetric::EvalMargins), &entries[1..3]);
        assert_eq!(order(&report), [(Some(1), "b"), (Some(2), "c")]);
        let report = SweepReport::rank("lr", Some(StoppingMetric::TrainLoss), &entries);
        assert_eq!(order(&report), by_train);
        let without = entries.map(|entry| SweepEntry {
            eval_loss: None,
            ..entry
        });
        let report = SweepReport::rank("lr", None, &without);
        assert_eq!(report.metric, StoppingMetric::TrainLoss);
        assert_eq!(order(&report), by_train);
    }

    /// The lowest loss is that of a step before the loss became NaN.
    #[test]
    fn those_that_failed_come_last_and_have_no_rank() {
        let failed = |name, train_loss| SweepEntry {
            state: "failed".to_owned(),
            ..entry(name, None, train_loss)
        };
        let entries = [
            failed("a", 0.1),
            entry("b", None, 0.3),
            entry("c", None, f64::NAN),
            entry("d", None, 0.2),
        ];
        let report = SweepReport::rank("lr", None, &entries);
        let expected = [(Some(1), "d"), (Some(2), "b"), (None, "c"), (None, "a")];
        assert_eq!(order(&report), expected);
        assert_eq!(report.standings[3].metric, Some(0.1), "still told");
    }
}
