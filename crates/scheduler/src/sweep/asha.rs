use std::collections::BTreeMap;

use super::Rungs;
use crate::TaskId;

/// Asynchronous successive halving: at each rung, trials that are not among the best one in eta of
/// those that got so far are stopped.
///
/// Rungs are at steps `grace · eta^k` ([`Rungs`]). The first report of a trial at or after a rung is
/// its result there. [`judge`](Self::judge) decides on all results since the last time together: of the n
/// results that a rung has then, the best `⌈n / eta⌉` are the top; a new one outside it stops its
/// trial, one inside it lets it go on to the next rung. The lower value is the better one; of equal
/// values an earlier one, then that of the trial that was submitted first; a value that is not finite
/// is never in the top.
///
/// This is the stopping form of the algorithm, as in Ray Tune's `ASHAScheduler`: trials do not wait for
/// each other, and a decision is never revised. So the first trial at a rung always passes it, and a trial
/// may pass that would not later. The form of the paper promotes paused trials instead, which would hold
/// the memory of all of them.
///
/// A trial is compared with others at its own number of steps only, so a slow start costs it nothing
/// as long as it is short of the grace period. Values are taken as they are. Trials that see the same
/// rows in the same order are comparable even by the loss of one step.
///
/// Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020.
#[derive(Debug, Clone)]
pub struct Asha {
    rungs: Rungs,
    trials: BTreeMap<TaskId, Trial>,
    /// Judged results by rung, in ascending order.
    results: BTreeMap<usize, Vec<f64>>,
    /// Results that are not judged yet.
    reports: Vec<Report>,
}

#[derive(Debug, Clone, Copy)]
struct Trial {
    total_steps: usize,
    /// The highest rung with a result of this trial.
    passed: Option<usize>,
    stopped: bool,
}

#[derive(Debug, Clone, Copy)]
struct Report {
    rung: usize,
    trial: TaskId,
    step: usize,
    value: f64,
}

/// A trial that stops, and its rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stop {
    /// The trial.
    pub trial: TaskId,
    /// The rung, from 0.
    pub rung: usize,
    /// The step of the report, which may be later than the rung's.
    pub step: usize,
    /// The reported value.
    pub value: f64,
    /// Its rank at the rung, from 1.
    pub rank: usize,
    /// Results that the rung has, those judged with this one included.
    pub results: usize,
    /// Number of them in the top.
    pub top: usize,
}

impl Asha {
    /// A comparison at these rungs, without trials.
    pub fn new(rungs: Rungs) -> Self {
        Self {
            rungs,
            trials: BTreeMap::new(),
            results: BTreeMap::new(),
            reports: Vec::new(),
        }
    }

    /// Adds a task of `total_steps` optimizer steps. Entered again, it keeps its results.
    ///
    /// Rungs at or after its last step do not concern it: it ends there by itself.
    pub fn enter(&mut self, trial: TaskId, total_steps: usize) {
        self.trials.entry(trial).or_insert(Trial {
            total_steps,
            passed: None,
            stopped: false,
        });
    }

    /// Adds the metric of `trial` after `step` optimizer steps, for the next [`judge`](Self::judge).
    ///
    /// A report that brings a trial to no new rung changes nothing; one that passes several rungs at
    /// once counts at the highest. Reports of tasks that were not entered, or come after the stop, are
    /// ignored.
    pub fn report(&mut self, trial: TaskId, step: usize, value: f64) {
        if let Some(rung) = self.pass(trial, step) {
            self.reports.push(Report {
                rung,
                trial,
                step,
                value,
            });
        }
    }

    /// Decides on all reports since the last call. Returns the trials that stop now, by rung and rank; each
    /// stops once at most.
    pub fn judge(&mut self) -> Vec<Stop> {
        let mut reports = std::mem::take(&mut self.reports);
        reports.sort_by(|a, b| {
            let by_value = || comparable(a.value).total_cmp(&comparable(b.value));
            let by_trial = || a.trial.cmp(&b.trial);
            a.rung.cmp(&b.rung).then_with(by_value).then_with(by_trial)
        });
        let mut stops = Vec::new();
        for together in reports.chunk_by(|a, b| a.rung == b.rung) {
            let rung = together[0].rung;
            let earlier = self.results.entry(rung).or_default();
            let results = earlier.len() + together.len();
            let top = results.div_ceil(self.rungs.reduction_factor());
            for (better, report) in together.iter().enumerate() {
                let value = comparable(report.value);
                let rank = earlier.partition_point(|&other| other <= value) + better + 1;
                if report.value.is_finite() && rank <= top {
                    continue;
                }
                match self.trials.get_mut(&report.trial) {
                    Some(trial) if !trial.stopped => trial.stopped = true,
                    _ => continue,
                }
                stops.push(Stop {
                    trial: report.trial,
                    rung,
                    step: report.step,
                    value: report.value,
                    rank,
                    results,
                    top,
                });
            }
            earlier.extend(together.iter().map(|report| comparable(report.value)));
            earlier.sort_by(f64::total_cmp);
        }
        stops
    }

    /// Restores a result that was decided on before a restart: others are compared with it, and no trial
    /// stops by it. Results of a trial come in order.
    pub fn restore(&mut self, trial: TaskId, step: usize, value: f64) {
        if let Some(rung) = self.pass(trial, step) {
            let results = self.results.entry(rung).or_default();
            let place = results.partition_point(|&other| other <= comparable(value));
            results.insert(place, comparable(value));
        }
    }

    /// The rung that a trial reaches by a report, if it had not reached it before.
    fn pass(&mut self, trial: TaskId, step: usize) -> Option<usize> {
        let entered = self.trials.get_mut(&trial)?;
        let rung = self.rungs.reached(step)?;
        let is_new = entered.passed.is_none_or(|passed| passed < rung);
        if entered.stopped || !is_new || self.rungs.step(rung)? >= entered.total_steps {
            return None;
        }
        entered.passed = Some(rung);
        Some(rung)
    }
}

/// A value that is not finite is worse than any other.
fn comparable(value: f64) -> f64 {
    if value.is_finite() {
        value
    } else {
        f64::INFINITY
    }
}
