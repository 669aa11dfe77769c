use std::collections::BTreeMap;

use super::Rungs;
use crate::TaskId;

/// Asynchronous successive halving: at each rung, trials that are not among the best one in eta of
/// those that got so far are stopped.
///
/// Rungs are at steps `grace · eta^k` ([`Rungs`]). The first report of a trial at or after a rung is
/// its result there. Of the n results that the rung has then, its own included, the best
/// `⌈n / eta⌉` are the top; a trial outside it is stopped, one inside it goes on to the next rung.
/// The lower value is the better one; of equal values the one that came first; a value that is not
/// finite is never in the top.
///
/// This is the stopping form of the algorithm, as in Ray Tune's `ASHAScheduler`: nobody waits for
/// others, a decision uses what is known when it falls and is never taken back. The first to come to
/// a rung therefore passes it, and some that pass would not do so later. The form of the paper
/// promotes paused trials instead, which would hold the memory of every one of them.
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
    /// Results by rung, in the order they came.
    results: BTreeMap<usize, Vec<f64>>,
}

#[derive(Debug, Clone, Copy)]
struct Trial {
    total_steps: usize,
    /// The highest rung with a result of this trial.
    passed: Option<usize>,
    stopped: bool,
}

/// Why a trial is not worth its remaining steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stop {
    /// The trial.
    pub trial: TaskId,
    /// The rung, from 0.
    pub rung: usize,
    /// The rung's step; the report may be of a later one.
    pub milestone: usize,
    /// What the trial reported.
    pub value: f64,
    /// Its rank at the rung, from 1.
    pub rank: usize,
    /// Results that the rung has, this one included.
    pub results: usize,
    /// How many of them are the top.
    pub top: usize,
}

impl Asha {
    /// A comparison at these rungs, of trials that are yet to be entered.
    pub fn new(rungs: Rungs) -> Self {
        Self {
            rungs,
            trials: BTreeMap::new(),
            results: BTreeMap::new(),
        }
    }

    /// Takes a task of `total_steps` optimizer steps into the comparison. Entered again, it keeps
    /// what is known of it.
    ///
    /// Rungs at or after its last step do not concern it: it ends there by itself.
    pub fn enter(&mut self, trial: TaskId, total_steps: usize) {
        self.trials.entry(trial).or_insert(Trial {
            total_steps,
            passed: None,
            stopped: false,
        });
    }

    /// Takes the metric of `trial` after `step` optimizer steps, and says whether it stops now.
    ///
    /// A trial stops once at most. A report that brings it to no new rung changes nothing; one that
    /// passes several rungs at once counts at the highest. Reports of tasks that were not entered,
    /// or come after the stop, are ignored.
    pub fn report(&mut self, trial: TaskId, step: usize, value: f64) -> Option<Stop> {
        let rung = self.pass(trial, step)?;
        let milestone = self.rungs.step(rung)?;
        let results = self.results.entry(rung).or_default();
        let better = |&&other: &&f64| other <= value || !value.is_finite();
        let rank = results.iter().filter(better).count() + 1;
        results.push(comparable(value));
        let top = results.len().div_ceil(self.rungs.reduction_factor());
        if value.is_finite() && rank <= top {
            return None;
        }
        let results = results.len();
        self.trials.get_mut(&trial)?.stopped = true;
        Some(Stop {
            trial,
            rung,
            milestone,
            value,
            rank,
            results,
            top,
        })
    }

    /// Takes a result from before a restart, which was decided on then: others are compared with it,
    /// and nobody stops. Results of a trial come in their order.
    pub fn restore(&mut self, trial: TaskId, step: usize, value: f64) {
        if let Some(rung) = self.pass(trial, step) {
            self.results
                .entry(rung)
                .or_default()
                .push(comparable(value));
        }
    }

    /// The rung that a report brings a trial to, if it is new to it.
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
