use std::collections::BTreeMap;

use crate::TaskId;

/// How the trials of a sweep stand, by the lowest metric each has had.
#[derive(Debug, Clone, Default)]
pub struct Leaderboard {
    /// In the order they were entered.
    trials: Vec<Trial>,
    places: BTreeMap<TaskId, usize>,
}

#[derive(Debug, Clone)]
struct Trial {
    id: TaskId,
    name: String,
    step: usize,
    best: Option<Best>,
    state: TrialState,
}

#[derive(Debug, Clone, Copy)]
struct Best {
    metric: f64,
    step: usize,
}

/// Where a trial stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TrialState {
    /// Waits for a place.
    Queued,
    /// Trains.
    Running,
    /// Took all its steps.
    Done,
    /// Was not among the best at a rung.
    Stopped,
    /// Its loss left every reasonable range.
    Diverged,
    /// Ended by an error of its own.
    Failed,
    /// Ended by its owner.
    Cancelled,
}

/// One line of a leaderboard.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// Rank from 1; trials with equal metrics share one. `None` without a metric.
    pub rank: Option<usize>,
    /// The trial.
    pub trial: TaskId,
    /// Its name.
    pub name: String,
    /// Optimizer steps taken.
    pub step: usize,
    /// Its lowest metric so far.
    pub best: Option<f64>,
    /// After how many steps it had that.
    pub best_step: Option<usize>,
    /// Where it stands.
    pub state: TrialState,
}

impl Leaderboard {
    /// A leaderboard of nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a trial in, queued and without a metric. Entered again, it keeps its place and results.
    pub fn enter(&mut self, trial: TaskId, name: &str) {
        if self.places.contains_key(&trial) {
            return;
        }
        self.places.insert(trial, self.trials.len());
        self.trials.push(Trial {
            id: trial,
            name: name.to_owned(),
            step: 0,
            best: None,
            state: TrialState::Queued,
        });
    }

    /// Notes that `trial` has taken `step` steps; it never goes back.
    pub fn advance(&mut self, trial: TaskId, step: usize) {
        if let Some(trial) = self.trial(trial) {
            trial.step = trial.step.max(step);
        }
    }

    /// Notes the metric of `trial` after `step` steps. One that is not finite is no metric; of equal
    /// ones the first is the best.
    pub fn report(&mut self, trial: TaskId, step: usize, metric: f64) {
        self.advance(trial, step);
        if let Some(trial) = self.trial(trial)
            && metric.is_finite()
            && trial.best.is_none_or(|best| metric < best.metric)
        {
            trial.best = Some(Best { metric, step });
        }
    }

    /// Notes where `trial` stands.
    pub fn set_state(&mut self, trial: TaskId, state: TrialState) {
        if let Some(trial) = self.trial(trial) {
            trial.state = state;
        }
    }

    /// All trials, the lowest metric first, those without one last. Among equals the order in which
    /// they were entered is kept.
    pub fn standings(&self) -> Vec<Standing> {
        let mut sorted: Vec<&Trial> = self.trials.iter().collect();
        let metric = |trial: &Trial| trial.best.map_or(f64::INFINITY, |best| best.metric);
        sorted.sort_by(|a, b| metric(a).total_cmp(&metric(b)));
        let rank = |trial: &Trial| {
            let best = trial.best?.metric;
            let better = sorted.iter().filter(|other| metric(other) < best);
            Some(better.count() + 1)
        };
        sorted
            .iter()
            .map(|&trial| Standing {
                rank: rank(trial),
                trial: trial.id,
                name: trial.name.clone(),
                step: trial.step,
                best: trial.best.map(|best| best.metric),
                best_step: trial.best.map(|best| best.step),
                state: trial.state,
            })
            .collect()
    }

    fn trial(&mut self, trial: TaskId) -> Option<&mut Trial> {
        let place = *self.places.get(&trial)?;
        self.trials.get_mut(place)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Leaderboard, Standing, TrialState};
    use crate::TaskId;

    fn of(names: &[&str]) -> Leaderboard {
        let mut board = Leaderboard::new();
        for (id, name) in names.iter().enumerate() {
            board.enter(TaskId(id as u64), name);
        }
        board
    }

    fn order(board: &Leaderboard) -> Vec<(Option<usize>, String)> {
        let line = |standing: Standing| (standing.rank, standing.name);
        board.standings().into_iter().map(line).collect()
    }

    #[test]
    fn the_lowest_metric_leads_and_equals_keep_their_order_and_share_a_rank() {
        let mut board = of(&["none", "b", "a", "tie", "worst", "broken"]);
        for (id, metric) in [(4, 9.0), (3, 1.0), (1, 1.0), (2, 0.5), (5, f64::NAN)] {
            board.report(TaskId(id), 7, metric);
        }
        let expected = [
            (Some(1), "a"),
            (Some(2), "b"),
            (Some(2), "tie"),
            (Some(4), "worst"),
            (None, "none"),
            (None, "broken"),
        ];
        assert_eq!(order(&board), expected.map(|(r, n)| (r, n.to_owned())));
    }

    #[test]
    fn a_line_says_where_a_trial_stands() {
        let mut board = of(&["only"]);
        board.set_state(TaskId(0), TrialState::Running);
        board.report(TaskId(0), 10, 2.0);
        board.report(TaskId(0), 20, 1.0);
        board.report(TaskId(0), 30, 1.0);
        board.report(TaskId(0), 40, f64::INFINITY);
        board.advance(TaskId(0), 35);
        board.set_state(TaskId(0), TrialState::Stopped);
        board.enter(TaskId(0), "other");
        let expected = Standing {
            rank: Some(1),
            trial: TaskId(0),
            name: "only".to_owned(),
            step: 40,
            best: Some(1.0),
            best_step: Some(20),
            state: TrialState::Stopped,
        };
        assert_eq!(board.standings(), [expected]);
    }

    #[test]
    fn strangers_are_left_out() {
        let mut board = of(&["only"]);
        board.report(TaskId(9), 1, 0.0);
        board.set_state(TaskId(9), TrialState::Done);
        assert_eq!(order(&board), [(None, "only".to_owned())]);
    }

    proptest! {
        #[test]
        fn lines_are_sorted_and_every_trial_has_one(
            metrics in prop::collection::vec(prop::option::of(0_u8..5), 0..30),
        ) {
            let names: Vec<String> = (0..metrics.len()).map(|id| id.to_string()).collect();
            let mut board = of(&names.iter().map(String::as_str).collect::<Vec<_>>());
            for (id, metric) in metrics.iter().enumerate() {
                if let Some(metric) = metric {
                    board.report(TaskId(id as u64), 1, f64::from(*metric));
                }
            }
            let found: Vec<u64> = board.standings().iter().map(|line| line.trial.0).collect();
            let mut expected: Vec<u64> = (0..metrics.len() as u64).collect();
            expected.sort_by_key(|&id| (metrics[id as usize].is_none(), metrics[id as usize], id));
            prop_assert_eq!(found, expected);
            for line in board.standings() {
                let own = metrics[line.trial.0 as usize];
                let better = metrics.iter().flatten().filter(|&&other| Some(other) < own).count();
                prop_assert_eq!(line.rank, own.map(|_| better + 1));
            }
        }
    }
}
