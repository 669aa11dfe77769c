use crate::{history::drop_last, leaderboard::SweepEntry};

/// A step of the final history.
#[derive(Debug, Clone)]
pub(crate) struct StepRow {
    /// Iteration of the run that it was taken in.
    pub(crate) iteration: u64,
    /// From 1.
    pub(crate) step: u64,
    pub(crate) loss: f64,
    pub(crate) grad_norm: f64,
    pub(crate) learning_rate: f64,
    /// Of this step.
    pub(crate) tokens: u64,
    pub(crate) target_tokens: u64,
    /// Seconds of training when its results arrived.
    pub(crate) seconds: f64,
    /// Further metrics, by their index among those of the run.
    pub(crate) metrics: Vec<f64>,
}

/// An evaluation of the final history.
#[derive(Debug, Clone)]
pub(crate) struct EvalRow {
    /// The last iteration before it.
    pub(crate) iteration: u64,
    pub(crate) step: u64,
    pub(crate) loss: f64,
    pub(crate) margins: Option<f64>,
    pub(crate) accuracies: Option<f64>,
    pub(crate) seconds: f64,
}

/// State of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReportedState {
    #[default]
    Waiting,
    Running,
    Parked,
    /// Paused by its owner.
    Paused,
    Done,
    /// Ended before its last step.
    Stopped,
    Failed,
    Cancelled,
    /// The run was stopped before its last step.
    Interrupted,
}

impl ReportedState {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Parked => "parked",
            Self::Paused => "paused",
            Self::Done => "done",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Interrupted => "interrupted",
        }
    }

    fn has_ended(self) -> bool {
        !matches!(
            self,
            Self::Waiting | Self::Running | Self::Parked | Self::Paused
        )
    }
}

/// The final history of an adapter.
#[derive(Debug, Clone, Default)]
pub(crate) struct AdapterHistory {
    pub(crate) name: String,
    pub(crate) total_steps: Option<u64>,
    pub(crate) rows: Vec<StepRow>,
    pub(crate) evals: Vec<EvalRow>,
    /// Intervals in which it trained, in seconds of the run's training.
    pub(crate) spans: Vec<[f64; 2]>,
    pub(crate) state: ReportedState,
    /// The reason of its end.
    pub(crate) reason: String,
    /// The last iteration before its end.
    ended_at: u64,
}

impl AdapterHistory {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// Records that it begins or continues at a step, and drops later steps, since these are repeated.
    pub(crate) fn admit(&mut self, step: u64, total_steps: Option<u64>, seconds: f64) {
        drop_last(&mut self.rows, |row| row.step > step);
        drop_last(&mut self.evals, |row| row.step > step);
        self.total_steps = total_steps.or(self.total_steps);
        self.leave(ReportedState::Running, seconds);
        self.reason.clear();
        self.spans.push([seconds, seconds]);
    }

    /// Records that it stops training.
    pub(crate) fn leave(&mut self, state: ReportedState, seconds: f64) {
        self.now(seconds);
        self.state = state;
    }

    /// Records its end after an iteration.
    pub(crate) fn end(
        &mut self,
        state: ReportedState,
        reason: String,
        iteration: u64,
        seconds: f64,
    ) {
        self.leave(state, seconds);
        self.reason = reason;
        self.ended_at = iteration;
    }

    /// Advances the time.
    pub(crate) fn now(&mut self, seconds: f64) {
        if self.state == ReportedState::Running
            && let Some(span) = self.spans.last_mut()
        {
            span[1] = seconds;
        }
    }

    /// True if its end is final; an interruption is not.
    pub(crate) fn is_settled(&self) -> bool {
        self.state.has_ended() && self.state != ReportedState::Interrupted
    }

    /// Drops everything after an iteration.
    pub(crate) fn rewind(&mut self, iteration: u64) {
        drop_last(&mut self.rows, |row| row.iteration > iteration);
        drop_last(&mut self.evals, |row| row.iteration > iteration);
        if self.state.has_ended() && self.ended_at > iteration {
            self.state = ReportedState::Waiting;
            self.reason.clear();
        }
    }

    /// Sets its state from a server's queue, which knows states that no event reports.
    pub(crate) fn set_queue_state(&mut self, state: &str) {
        let reported = match state {
            "paused" => ReportedState::Paused,
            "done" if self.state != ReportedState::Stopped => ReportedState::Done,
            "failed" => ReportedState::Failed,
            "cancelled" => ReportedState::Cancelled,
            _ => return,
        };
        self.state = reported;
    }

    /// Records that the run was stopped or ended.
    pub(crate) fn interrupt(&mut self, state: ReportedState, seconds: f64) {
        if !self.state.has_ended() {
            self.leave(state, seconds);
        }
    }

    /// Number of its steps.
    pub(crate) fn steps(&self) -> u64 {
        self.rows.last().map_or(0, |row| row.step)
    }

    pub(crate) fn first_loss(&self) -> Option<f64> {
        finite(self.rows.first().map(|row| row.loss))
    }

    pub(crate) fn last_loss(&self) -> Option<f64> {
        finite(self.rows.last().map(|row| row.loss))
    }

    /// The lowest validation loss; of equal ones the first.
    pub(crate) fn best(&self) -> Option<&EvalRow> {
        let evals = self.evals.iter().filter(|row| row.loss.is_finite());
        evals.min_by(|one, other| one.loss.total_cmp(&other.loss))
    }

    /// Its line in its sweep's leaderboard.
    pub(crate) fn entry(&self) -> SweepEntry {
        let best = self.best();
        SweepEntry {
            name: self.name.clone(),
            eval_loss: best.map(|best| best.loss),
            margins: best.and_then(|best| best.margins),
            accuracies: best.and_then(|best| best.accuracies),
            train_loss: self.last_loss(),
            steps: self.steps(),
            state: self.state.word().to_owned(),
        }
    }
}

fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}
