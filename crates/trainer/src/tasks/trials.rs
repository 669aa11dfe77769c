//! Early stopping of sweeps.

use std::collections::BTreeMap;

use loraloom_config::{EarlyStopping, StoppingMetric};
use loraloom_scheduler::{Asha, Divergence, Rungs, Stop, SweepError, TaskId};

use crate::{
    Rewards,
    checkpoint::{ExactF64, TrialResult},
};

/// The trials of all sweeps with early stopping. A task outside of them is never stopped.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    sweeps: Vec<Watched>,
    /// Results of trials in order, for a restart.
    results: BTreeMap<TaskId, Vec<TrialResult>>,
}

#[derive(Debug)]
struct Watched {
    sweep: String,
    metric: StoppingMetric,
    members: Vec<TaskId>,
    rungs: Rungs,
    asha: Asha,
    divergence: Option<Divergence>,
}

/// A task as a trial of a sweep.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    pub(crate) id: TaskId,
    pub(crate) total_steps: usize,
    /// The training loss of its first step, if it has taken one.
    pub(crate) first_loss: Option<f64>,
    /// Its results before a restart.
    pub(crate) results: Vec<TrialResult>,
}

impl Trials {
    /// Adds a task to the comparison of a sweep; the sweep's first task sets the rules.
    pub(crate) fn enter(
        &mut self,
        sweep: &str,
        stopping: &EarlyStopping,
        trial: Trial,
    ) -> Result<(), SweepError> {
        let mut known = self.sweeps.iter_mut();
        if let Some(watched) = known.find(|watched| watched.sweep == sweep) {
            watched.enter(&trial);
        } else {
            let mut watched = Watched::new(sweep, stopping)?;
            watched.enter(&trial);
            self.sweeps.push(watched);
        }
        self.results.insert(trial.id, trial.results);
        Ok(())
    }

    /// The results of a task.
    pub(crate) fn results(&self, trial: TaskId) -> Vec<TrialResult> {
        self.results.get(&trial).cloned().unwrap_or_default()
    }

    fn watched(&mut self, trial: TaskId) -> Option<&mut Watched> {
        let mut all = self.sweeps.iter_mut();
        all.find(|watched| watched.members.contains(&trial))
    }

    /// The metric by which a trial is compared after `step`, if it is then.
    pub(crate) fn compares_after(&self, trial: TaskId, step: usize) -> Option<StoppingMetric> {
        let mut sweeps = self.sweeps.iter();
        let watched = sweeps.find(|watched| watched.members.contains(&trial))?;
        let rung = watched.rungs.reached(step)?;
        (watched.rungs.step(rung) == Some(step)).then_some(watched.metric)
    }

    /// True if every loss of a trial counts, and not only those at rungs.
    pub(crate) fn watches_losses(&self, trial: TaskId) -> bool {
        let mut sweeps = self.sweeps.iter();
        sweeps.any(|watched| watched.divergence.is_some() && watched.members.contains(&trial))
    }

    /// Adds the training loss of a trial's step. Returns the reason if it diverges and stops at once.
    pub(crate) fn trained(&mut self, trial: TaskId, step: usize, loss: f64) -> Option<String> {
        let watched = self.watched(trial)?;
        let diverged = watched.divergence.as_mut();
        if let Some(diverged) = diverged.and_then(|divergence| divergence.report(trial, loss)) {
            let limit = diverged.limit.map(|limit| format!(", above {limit:.4}"));
            return Some(format!(
                "stopped by sweep `{}`: it diverges with a loss of {}{}",
                watched.sweep,
                diverged.loss,
                limit.unwrap_or_default()
            ));
        }
        self.report(trial, StoppingMetric::TrainLoss, step, loss);
        None
    }

    /// Adds the validation loss of a trial, and its rewards if it has any.
    pub(crate) fn evaluated(
        &mut self,
        trial: TaskId,
        step: usize,
        loss: f64,
        rewards: Option<Rewards>,
    ) {
        self.report(trial, StoppingMetric::EvalLoss, step, loss);
        // Rows of one kind alone have no margins, and no others are worse.
        let margins = rewards.and_then(|rewards| rewards.margins);
        self.report(
            trial,
            StoppingMetric::EvalMargins,
            step,
            margins.unwrap_or(f64::NAN),
        );
        let accuracies = rewards.and_then(|rewards| rewards.accuracies);
        self.report(
            trial,
            StoppingMetric::EvalAccuracies,
            step,
            accuracies.unwrap_or(f64::NAN),
        );
    }

    /// Compares new results. Returns the trials to stop, with the reasons.
    pub(crate) fn judge(&mut self) -> Vec<(TaskId, String)> {
        self.sweeps.iter_mut().flat_map(Watched::judge).collect()
    }

    fn report(&mut self, trial: TaskId, metric: StoppingMetric, step: usize, value: f64) {
        let watched = self.watched(trial);
        let Some(watched) = watched.filter(|watched| watched.metric == metric) else {
            return;
        };
        watched.asha.report(trial, step, metric.cost(value));
        let rungs = watched.rungs;
        let Some(rung) = rungs.reached(step) else {
            return;
        };
        let results = self.results.entry(trial).or_default();
        let passed = results.last().and_then(|last| rungs.reached(last.step));
        if passed.is_none_or(|passed| passed < rung) {
            let value = ExactF64(value);
            results.push(TrialResult { step, value });
        }
    }
}

impl Watched {
    fn new(sweep: &str, stopping: &EarlyStopping) -> Result<Self, SweepError> {
        let rungs = Rungs::new(stopping.grace_period, stopping.reduction_factor)?;
        Ok(Self {
            sweep: sweep.to_owned(),
            metric: stopping.metric,
            members: Vec::new(),
            rungs,
            asha: Asha::new(rungs),
            divergence: stopping.divergence.map(Divergence::new).transpose()?,
        })
    }

    fn enter(&mut self, trial: &Trial) {
        let id = trial.id;
        if !self.members.contains(&id) {
            self.members.push(id);
        }
        self.asha.enter(id, trial.total_steps);
        for result in &trial.results {
            let cost = self.metric.cost(result.value.0);
            self.asha.restore(id, result.step, cost);
        }
        if let Some(divergence) = &mut self.divergence {
            divergence.enter(id);
            if let Some(loss) = trial.first_loss {
                divergence.report(id, loss);
            }
        }
    }

    fn judge(&mut self) -> Vec<(TaskId, String)> {
        let stopped = |stop: Stop| {
            let reason = format!(
                "stopped by sweep `{}`: {:.4} at step {} is number {} of {} results, and the best {} \
                 continue",
                self.sweep,
                self.metric.cost(stop.value),
                stop.step,
                stop.rank,
                stop.results,
                stop.top
            );
            (stop.trial, reason)
        };
        self.asha.judge().into_iter().map(stopped).collect()
    }
}

#[cfg(test)]
mod tests {
    use loraloom_config::{EarlyStopping, StoppingMetric};
    use loraloom_scheduler::TaskId;

    use super::{Trial, Trials};
    use crate::Rewards;

    #[test]
    fn evaluations_are_compared_by_the_metric_of_the_sweep() {
        let rewards = Rewards {
            margins: Some(0.2),
            accuracies: Some(0.3),
            ..Rewards::default()
        };
        for (metric, value) in [
            (StoppingMetric::EvalLoss, 0.1),
            (StoppingMetric::EvalMargins, 0.2),
            (StoppingMetric::EvalAccuracies, 0.3),
        ] {
            let stopping = EarlyStopping {
                metric,
                grace_period: 1,
                reduction_factor: 2,
                divergence: None,
            };
            let trial = Trial {
                id: TaskId(0),
                total_steps: 9,
                first_loss: None,
                results: Vec::new(),
            };
            let mut trials = Trials::default();
            trials.enter("s", &stopping, trial).expect("a trial");
            trials.evaluated(TaskId(0), 1, 0.1, Some(rewards));
            let results = trials.results(TaskId(0));
            assert!(
                (results[0].value.0 - value).abs() < 1e-12,
                "{metric:?}: {results:?}"
            );
        }
    }

    #[test]
    fn divergence_is_measured_from_the_first_loss_also_after_a_restart() {
        let stopping = EarlyStopping {
            metric: StoppingMetric::TrainLoss,
            grace_period: 100,
            reduction_factor: 3,
            divergence: Some(2.0),
        };
        let diverges = |first_loss| {
            let trial = Trial {
                id: TaskId(3),
                total_steps: 200,
                first_loss,
                results: Vec::new(),
            };
            let mut trials = Trials::default();
            trials.enter("s", &stopping, trial).expect("a trial");
            trials.trained(TaskId(3), 7, 2.5).is_some()
        };
        assert!(diverges(Some(1.0)));
        assert!(!diverges(Some(2.0)));
        assert!(!diverges(None));
    }
}
