//! Columns of numbers for the curves.

use serde::{Serialize, Serializer};

use crate::{
    adapter::{AdapterHistory, EvalRow, StepRow},
    history::IterationRow,
    thin::{kept, smoothed},
};

/// Most numbers of all adapters' curves together; least and most rows of one.
const NUMBERS: usize = 180_000;
/// Columns of a curve without further metrics.
const COLUMNS: usize = 9;
const FEWEST_ROWS: usize = 24;
const MOST_ROWS: usize = 1000;
/// Rows of the curves of the run.
const ITERATIONS: usize = 1000;
/// Evaluations of an adapter.
const EVALS: usize = 400;

/// Numbers of a column, written in 32-bit precision, which is enough for a plot. `null` is a missing one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Column(Vec<f64>);

impl Column {
    fn of<T>(rows: &[usize], all: &[T], value: impl Fn(&T) -> f64) -> Self {
        Self(rows.iter().map(|&row| value(&all[row])).collect())
    }

    /// True if no row has a number.
    fn is_empty(&self) -> bool {
        !self.0.iter().any(|value| value.is_finite())
    }
}

impl Serialize for Column {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = |&value: &f64| {
            let number = value as f32;
            number.is_finite().then_some(number)
        };
        serializer.collect_seq(self.0.iter().map(number))
    }
}

/// Rows of each adapter's curve, for a number of adapters and further metrics.
pub(crate) fn rows_of_each(adapters: usize, metrics: usize) -> usize {
    let rows = NUMBERS / (adapters.max(1) * (COLUMNS + metrics));
    rows.clamp(FEWEST_ROWS, MOST_ROWS)
}

/// Steps of an adapter, a column each.
#[derive(Debug, Serialize)]
pub(crate) struct Curve {
    step: Vec<u64>,
    /// Tokens of the adapter up to and with the step.
    tokens: Vec<u64>,
    /// Seconds of the run's training.
    seconds: Column,
    loss: Column,
    #[serde(skip_serializing_if = "Column::is_empty")]
    grad_norm: Column,
    /// Smoothed losses and norms; empty if there are too few steps.
    #[serde(skip_serializing_if = "Column::is_empty")]
    smooth_loss: Column,
    #[serde(skip_serializing_if = "Column::is_empty")]
    smooth_grad_norm: Column,
    #[serde(skip_serializing_if = "Column::is_empty")]
    learning_rate: Column,
    /// In the order of the run's metrics.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    metrics: Vec<Column>,
}

impl Curve {
    /// A curve with at most `most` rows.
    pub(crate) fn of(adapter: &AdapterHistory, metrics: usize, most: usize) -> Self {
        let all = &adapter.rows;
        let rows = kept(
            all.len(),
            most,
            &[&|row| all[row].loss, &|row| all[row].grad_norm],
        );
        let tokens = sums(all.iter().map(|row| row.tokens));
        let smooth = |value: fn(&StepRow) -> f64| {
            let values: Vec<f64> = all.iter().map(value).collect();
            let means = smoothed(&values).unwrap_or_default();
            let mean = |&row: &usize| means.get(row).copied().unwrap_or(f64::NAN);
            Column(rows.iter().map(mean).map(five_digits).collect())
        };
        let metric = |metric: usize| {
            let value = |row: &StepRow| row.metrics.get(metric).copied().unwrap_or(f64::NAN);
            Column::of(&rows, all, value)
        };
        Self {
            step: rows.iter().map(|&row| all[row].step).collect(),
            tokens: rows.iter().map(|&row| tokens[row]).collect(),
            seconds: Column::of(&rows, all, |row| row.seconds),
            loss: Column::of(&rows, all, |row| row.loss),
            grad_norm: Column::of(&rows, all, |row| row.grad_norm),
            smooth_loss: smooth(|row| row.loss),
            smooth_grad_norm: smooth(|row| row.grad_norm),
            learning_rate: Column::of(&rows, all, |row| row.learning_rate),
            metrics: (0..metrics).map(metric).collect(),
        }
    }
}

/// Evaluations of an adapter.
#[derive(Debug, Serialize)]
pub(crate) struct Evals {
    step: Vec<u64>,
    tokens: Vec<u64>,
    seconds: Column,
    loss: Column,
    #[serde(rename = "rewards/margins", skip_serializing_if = "Option::is_none")]
    margins: Option<Column>,
    #[serde(rename = "rewards/accuracies", skip_serializing_if = "Option::is_none")]
    accuracies: Option<Column>,
}

impl Evals {
    pub(crate) fn of(adapter: &AdapterHistory) -> Self {
        let all = &adapter.evals;
        let rows = kept(all.len(), EVALS, &[&|row| all[row].loss]);
        let sums = sums(adapter.rows.iter().map(|row| row.tokens));
        let tokens = |&row: &usize| {
            let taken = adapter
                .rows
                .partition_point(|step| step.step <= all[row].step);
            taken.checked_sub(1).map_or(0, |last| sums[last])
        };
        let optional = |of: fn(&EvalRow) -> Option<f64>| {
            let is_there = all.iter().any(|row| of(row).is_some());
            is_there.then(|| Column::of(&rows, all, |row| of(row).unwrap_or(f64::NAN)))
        };
        Self {
            step: rows.iter().map(|&row| all[row].step).collect(),
            tokens: rows.iter().map(tokens).collect(),
            seconds: Column::of(&rows, all, |row: &EvalRow| row.seconds),
            loss: Column::of(&rows, all, |row| row.loss),
            margins: optional(|row| row.margins),
            accuracies: optional(|row| row.accuracies),
        }
    }
}

/// Iterations of the run, a column each.
#[derive(Debug, Serialize)]
pub(crate) struct Iterations {
    /// Number of all iterations.
    count: usize,
    step: Vec<u64>,
    tokens: Vec<u64>,
    seconds: Column,
    tokens_per_second: Column,
    #[serde(skip_serializing_if = "Column::is_empty")]
    bytes_reserved: Column,
    #[serde(skip_serializing_if = "Column::is_empty")]
    bytes_predicted: Column,
    #[serde(skip_serializing_if = "Column::is_empty")]
    bubble_ratio: Column,
    #[serde(skip_serializing_if = "Column::is_empty")]
    transfer_seconds: Column,
    #[serde(skip_serializing_if = "Column::is_empty")]
    transfer_overlap: Column,
}

impl Iterations {
    pub(crate) fn of(all: &[IterationRow]) -> Self {
        let rows = kept(
            all.len(),
            ITERATIONS,
            &[&|row| all[row].tokens_per_second, &|row| {
                all[row].bytes_reserved
            }],
        );
        let tokens = sums(all.iter().map(|row| row.tokens));
        let column = |value: fn(&IterationRow) -> f64| Column::of(&rows, all, value);
        Self {
            count: all.len(),
            step: rows.iter().map(|&row| all[row].iteration).collect(),
            tokens: rows.iter().map(|&row| tokens[row]).collect(),
            seconds: column(|row| row.clock),
            tokens_per_second: column(|row| row.tokens_per_second),
            bytes_reserved: column(|row| row.bytes_reserved),
            bytes_predicted: column(|row| row.bytes_predicted),
            bubble_ratio: column(|row| row.bubble_ratio),
            transfer_seconds: column(|row| row.transfer_seconds),
            transfer_overlap: column(|row| row.transfer_overlap),
        }
    }
}

/// Rounds a mean to five digits, enough for a plot.
fn five_digits(value: f64) -> f64 {
    let power = 10f64.powi(4 - value.abs().log10().floor() as i32);
    let rounded = (value * power).round() / power;
    if rounded.is_finite() { rounded } else { value }
}

/// Cumulative sums.
fn sums(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sum = 0;
    values
        .map(|value| {
            sum += value;
            sum
        })
        .collect()
}
