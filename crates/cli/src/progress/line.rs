//! One line of the progress of a run.

use std::{
    fmt::Write,
    time::{Duration, Instant},
};

use loraloom_trainer::{Event, Pace};

use crate::frame::{self, Row};

/// Longest time between plain lines; a tenth of the steps also prints one.
pub(super) const PLAIN_INTERVAL: Duration = Duration::from_secs(15);

/// Display state of one adapter.
#[derive(Debug)]
pub(super) struct Line {
    /// Adapters are shown in the order of their admission.
    pub(super) order: usize,
    /// Its last step; the time left is not among the cells.
    pub(super) row: Row,
    /// Tokens of its last step.
    pub(super) tokens: usize,
    pub(super) pace: Pace,
    pub(super) last_plain: LastPlainLine,
}

/// The step and time of the last plain line.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LastPlainLine(pub(super) Option<(usize, Instant)>);

impl Line {
    /// Updates the row from a step.
    pub(super) fn take_step(&mut self, event: &Event) {
        if let Event::Step {
            step,
            loss,
            grad_norm,
            learning_rate,
            tokens,
            rewards,
            ..
        } = event
        {
            let (grad_norm, rate) = (format!("grad_norm {grad_norm:.3}"), learning_rate);
            self.row.step = *step;
            self.row.cells = vec![format!("loss {loss:.4}")];
            self.row.more = vec![grad_norm, format!("lr {rate:.2e}")];
            let accuracy = rewards.and_then(|rewards| rewards.accuracies);
            let margin = rewards.and_then(|rewards| rewards.margins);
            let cells = [("accuracy", accuracy), ("margin", margin)];
            let cells = cells
                .into_iter()
                .filter_map(|(name, value)| Some((name, value?)));
            let cells = cells.map(|(name, value)| format!("{name} {value:.3}"));
            self.row.more.splice(..0, cells);
            self.tokens = *tokens;
        }
    }

    pub(super) fn time_left(&self) -> Option<Duration> {
        left(&self.pace, self.row.step, self.row.total_steps).filter(|_| self.row.trains)
    }

    /// The row with the time left, after a first step.
    pub(super) fn row(&self) -> Row {
        let mut row = self.row.clone();
        if !row.cells.is_empty() {
            row.cells.push(if row.trains {
                time_left(self.time_left())
            } else {
                "parked".to_owned()
            });
        }
        row
    }
}

impl LastPlainLine {
    /// True if a plain line is due: at the first and last step, at every tenth of the steps, and after
    /// a long time.
    pub(super) fn is_due(&mut self, row: &Row, now: Instant) -> bool {
        let step = row.step;
        let tenths = |step: usize| step * 10 / row.total_steps.max(1);
        let due = self.0.is_none_or(|(printed, at)| {
            tenths(step) > tenths(printed) || now.duration_since(at) >= PLAIN_INTERVAL
        });
        if due {
            self.0 = Some((step, now));
        }
        due
    }
}

/// Estimated time of the remaining steps.
pub(super) fn left(pace: &Pace, step: usize, total_steps: usize) -> Option<Duration> {
    let steps = total_steps.saturating_sub(step);
    let seconds = pace.seconds_per_step()? * steps as f64;
    Duration::try_from_secs_f64(seconds).ok()
}

pub(super) fn time_left(left: Option<Duration>) -> String {
    left.map_or_else(String::new, |left| format!("{} left", frame::time(left)))
}

pub(super) fn plain(row: &Row) -> String {
    let (step, total) = (row.step, row.total_steps);
    let percent = step * 100 / total.max(1);
    let mut text = format!("{} {step}/{total} ({percent}%)", row.name);
    // The time left comes last, and is omitted at the end.
    let (left, cells) = row.cells.split_last().unzip();
    let left = left.filter(|left| !left.is_empty() && step < total);
    for cell in cells.into_iter().flatten().chain(&row.more).chain(left) {
        let _ = write!(text, " | {cell}");
    }
    text
}
