use std::io::{self, Write};

use crate::{RunHistory, history::IterationRow};

/// Columns before those of further metrics.
const COLUMNS: [&str; 12] = [
    "adapter",
    "step",
    "iteration",
    "tokens",
    "seconds",
    "loss",
    "eval_loss",
    "grad_norm",
    "learning_rate",
    "target_tokens",
    "tokens_per_second",
    "bytes_reserved",
];

/// Last columns, if adapters train on preferences.
const REWARDS: [&str; 2] = ["eval_rewards/margins", "eval_rewards/accuracies"];

impl RunHistory {
    /// Writes a line for every step of the final history, adapter by adapter. `tokens` are those of the adapter up to
    /// and including the step, `seconds` the run's training time; `eval_loss` is of the evaluation after the step,
    /// and the last two columns are of the iteration.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_csv(&self, to: &mut impl Write) -> io::Result<()> {
        let metrics = self.metrics.iter().map(String::as_str);
        let of_evals = self.adapters.iter().flat_map(|adapter| &adapter.evals);
        let has_rewards = of_evals.into_iter().any(|eval| eval.margins.is_some());
        let rewards: &[&str] = if has_rewards { &REWARDS } else { &[] };
        let columns = COLUMNS
            .into_iter()
            .chain(metrics)
            .chain(rewards.iter().copied());
        let heading: Vec<String> = columns.map(quoted).collect();
        writeln!(to, "{}", heading.join(","))?;
        for adapter in &self.adapters {
            let mut tokens = 0;
            for row in &adapter.rows {
                tokens += row.tokens;
                let eval = adapter
                    .evals
                    .binary_search_by_key(&row.step, |eval| eval.step);
                let eval = eval.ok().map(|at| &adapter.evals[at]);
                let same = |iteration: &IterationRow| iteration.iteration;
                let iteration = self.iterations.binary_search_by_key(&row.iteration, same);
                let iteration = iteration.ok().map(|at| &self.iterations[at]);
                let mut line = vec![
                    quoted(&adapter.name),
                    row.step.to_string(),
                    row.iteration.to_string(),
                    tokens.to_string(),
                    number(row.seconds),
                    number(row.loss),
                    number(eval.map_or(f64::NAN, |eval| eval.loss)),
                    number(row.grad_norm),
                    number(row.learning_rate),
                    row.target_tokens.to_string(),
                    number(iteration.map_or(f64::NAN, |row| row.tokens_per_second)),
                    number(iteration.map_or(f64::NAN, |row| row.bytes_reserved)),
                ];
                let metric = |at| row.metrics.get(at).copied().unwrap_or(f64::NAN);
                line.extend((0..self.metrics.len()).map(metric).map(number));
                let rewards = [
                    eval.and_then(|eval| eval.margins),
                    eval.and_then(|eval| eval.accuracies),
                ];
                let rewards = rewards.iter().filter(|_| has_rewards);
                line.extend(rewards.map(|value| number(value.unwrap_or(f64::NAN))));
                writeln!(to, "{}", line.join(","))?;
            }
        }
        Ok(())
    }
}

/// The shortest digits that read back as this number; empty for NaN.
fn number(value: f64) -> String {
    if value.is_finite() {
        value.to_string()
    } else {
        String::new()
    }
}

fn quoted(text: &str) -> String {
    if text.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
