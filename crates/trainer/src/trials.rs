//! Sweeps whose worst trials are stopped early.

use loraloom_config::{RunConfig, StoppingMetric};
use loraloom_scheduler::{Asha, Divergence, Rungs, SweepError, TaskId};

/// The trials of all sweeps that ask for early stopping. A task outside of them is never stopped.
#[derive(Debug, Default)]
pub(crate) struct Trials(Vec<Watched>);

#[derive(Debug)]
struct Watched {
    sweep: String,
    metric: StoppingMetric,
    members: Vec<TaskId>,
    rungs: Rungs,
    asha: Asha,
    divergence: Option<Divergence>,
}

impl Trials {
    /// Those of a configuration. `find` knows the tasks, by name, and how many steps they take.
    pub(crate) fn of(
        config: &RunConfig,
        find: impl Fn(&str) -> Option<(TaskId, usize)>,
    ) -> Result<Self, SweepError> {
        let mut all = Vec::new();
        for sweep in &config.sweep {
            let Some(stopping) = &sweep.early_stopping else {
                continue;
            };
            let rungs = Rungs::new(stopping.grace_period, stopping.reduction_factor)?;
            let mut asha = Asha::new(rungs);
            let mut divergence = stopping.divergence.map(Divergence::new).transpose()?;
            let mut members = Vec::new();
            for (id, total_steps) in sweep.adapters.iter().filter_map(|name| find(name)) {
                asha.enter(id, total_steps);
                if let Some(divergence) = &mut divergence {
                    divergence.enter(id);
                }
                members.push(id);
            }
            all.push(Watched {
                sweep: sweep.name.clone(),
                metric: stopping.metric,
                members,
                rungs,
                asha,
                divergence,
            });
        }
        Ok(Self(all))
    }

    fn watched(&mut self, trial: TaskId) -> Option<&mut Watched> {
        let mut all = self.0.iter_mut();
        all.find(|watched| watched.members.contains(&trial))
    }

    /// Whether a trial is compared with others by its training loss after `step`.
    pub(crate) fn compares_after(&self, trial: TaskId, step: usize) -> bool {
        self.0.iter().any(|watched| {
            let rung = watched.rungs.reached(step);
            watched.metric == StoppingMetric::TrainLoss
                && watched.members.contains(&trial)
                && rung.and_then(|rung| watched.rungs.step(rung)) == Some(step)
        })
    }

    /// Takes the training loss of a trial's step; why it is stopped, if it is.
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
        match watched.metric {
            StoppingMetric::TrainLoss => watched.compare(trial, step, loss),
            StoppingMetric::EvalLoss => None,
        }
    }

    /// Takes the validation loss of a trial; why it is stopped, if it is.
    pub(crate) fn evaluated(&mut self, trial: TaskId, step: usize, loss: f64) -> Option<String> {
        let watched = self.watched(trial)?;
        match watched.metric {
            StoppingMetric::EvalLoss => watched.compare(trial, step, loss),
            StoppingMetric::TrainLoss => None,
        }
    }
}

impl Watched {
    fn compare(&mut self, trial: TaskId, step: usize, value: f64) -> Option<String> {
        let stop = self.asha.report(trial, step, value)?;
        Some(format!(
            "stopped by sweep `{}`: {value:.4} at step {step} is number {} of {} results, and the \
             best {} go on",
            self.sweep, stop.rank, stop.results, stop.top
        ))
    }
}
