//! A run while it runs: bars where stderr is a terminal, plain lines everywhere else.

use std::{
    collections::BTreeMap,
    fmt::Write,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use loraloom_trainer::Event;

use crate::printer::Printer;

/// A plain line of an adapter comes after this long, or after a tenth of its steps.
const PLAIN_INTERVAL: Duration = Duration::from_secs(15);

/// An adapter's bar, and the one of all adapters below it.
const ADAPTER_BAR: &str = "{prefix} {wide_bar} {pos}/{len} | {msg}";
const TOTAL_NAME: &str = "all";
const TOTAL_BAR: &str = "{prefix} {wide_bar} {pos}/{len} | {msg} | {elapsed}";

/// Shows the events of a run.
#[derive(Debug)]
pub(crate) struct Progress<'a> {
    printer: &'a Printer,
    adapters: BTreeMap<String, Line>,
    /// Steps of the iteration under way; its end says how long they took.
    steps: Vec<Step>,
    total: Option<ProgressBar>,
    /// Letters of the longest name, so that bars begin in one column.
    width: usize,
}

/// What is shown of one adapter.
#[derive(Debug)]
struct Line {
    bar: Option<ProgressBar>,
    total_steps: usize,
    printed: Option<(usize, Instant)>,
}

/// One step of one adapter.
#[derive(Debug, Clone)]
struct Step {
    adapter: String,
    number: usize,
    loss: f64,
    grad_norm: f64,
    learning_rate: f64,
    tokens: usize,
}

impl<'a> Progress<'a> {
    /// Nothing is shown until the first event.
    pub(crate) fn new(printer: &'a Printer) -> Self {
        let total = printer.bars().map(|bars| {
            let bar = bars.add(ProgressBar::new(0));
            bar.set_style(style(TOTAL_BAR));
            bar
        });
        Self {
            printer,
            adapters: BTreeMap::new(),
            steps: Vec::new(),
            total,
            width: 0,
        }
    }

    /// Shows what an event changes.
    pub(crate) fn show(&mut self, event: &Event) {
        match event {
            Event::Admit {
                adapter,
                step,
                total_steps,
                ..
            } => self.admit(adapter, *step, *total_steps),
            Event::Park {
                adapter,
                step,
                reason,
                ..
            } => self
                .printer
                .note(&format!("{adapter} is parked at step {step}: {reason}")),
            Event::OutOfMemory { .. } => self.printer.warning(&out_of_memory(event)),
            Event::Step {
                adapter,
                step,
                loss,
                grad_norm,
                learning_rate,
                tokens,
                ..
            } => {
                self.steps.push(Step {
                    adapter: adapter.clone(),
                    number: *step,
                    loss: *loss,
                    grad_norm: *grad_norm,
                    learning_rate: *learning_rate,
                    tokens: *tokens,
                });
            }
            Event::Iteration {
                seconds,
                tokens_per_second,
                ..
            } => {
                for step in std::mem::take(&mut self.steps) {
                    self.step(&step, *seconds);
                }
                if let Some(total) = &self.total {
                    total.set_message(format!("{tokens_per_second:.0} tok/s"));
                }
            }
            Event::Eval {
                adapter,
                step,
                loss,
                best,
            } => {
                let best = if *best { ", the best so far" } else { "" };
                let loss =
                    loss.map_or_else(|| "not finite".to_owned(), |loss| format!("{loss:.4}"));
                self.printer
                    .note(&format!("{adapter} {step} | validation loss {loss}{best}"));
            }
            Event::AdapterCancelled { adapter, step } => {
                self.end(adapter);
                self.printer
                    .note(&format!("{adapter} was cancelled after step {step}"));
            }
            Event::AdapterDone {
                adapter,
                step,
                reason,
            } => {
                self.end(adapter);
                self.printer
                    .note(&format!("{adapter} is done at step {step}: {reason}"));
            }
            Event::AdapterFailed {
                adapter,
                step,
                reason,
            } => {
                self.end(adapter);
                self.printer
                    .warning(&format!("{adapter} failed at step {step}: {reason}"));
            }
            Event::Warning { message } => self.printer.warning(message),
            Event::RunStart { adapters, .. } => self.begin(adapters),
            Event::Resume {
                iteration,
                path,
                adapters,
                ..
            } => {
                self.begin(adapters);
                self.printer
                    .note(&format!("resumed after iteration {iteration}, from {path}"));
            }
            Event::Regroup { .. }
            | Event::Checkpoint { .. }
            | Event::RunCheckpoint { .. }
            | Event::RunEnd { .. } => {}
        }
    }

    /// Takes the bars off the screen.
    pub(crate) fn finish(self) {
        for line in self.adapters.into_values() {
            line.bar.iter().for_each(ProgressBar::finish_and_clear);
        }
        self.total.iter().for_each(ProgressBar::finish_and_clear);
    }

    fn begin(&mut self, adapters: &[String]) {
        let longest = adapters.iter().map(|name| name.chars().count()).max();
        self.width = longest.unwrap_or(0).max(TOTAL_NAME.len());
        if let Some(total) = &self.total {
            total.set_prefix(format!("{TOTAL_NAME:<0$}", self.width));
        }
    }

    fn admit(&mut self, adapter: &str, step: usize, total_steps: usize) {
        if self.adapters.contains_key(adapter) {
            // It was parked: its bar stands where it stood.
            return;
        }
        let bar = self.printer.bars().map(|bars| {
            let bar = ProgressBar::new(total_steps as u64);
            bar.set_style(style(ADAPTER_BAR));
            bar.set_prefix(format!("{adapter:<0$}", self.width));
            match &self.total {
                Some(total) => bars.insert_before(total, bar),
                None => bars.add(bar),
            }
        });
        if let Some(bar) = &bar {
            bar.set_position(step as u64);
        }
        if let Some(total) = &self.total {
            total.inc_length(total_steps.saturating_sub(step) as u64);
        }
        let printed = None;
        self.adapters.insert(
            adapter.to_owned(),
            Line {
                bar,
                total_steps,
                printed,
            },
        );
    }

    fn step(&mut self, step: &Step, seconds: f64) {
        let Some(line) = self.adapters.get_mut(&step.adapter) else {
            return;
        };
        if let Some(total) = &self.total {
            total.inc(1);
        }
        if let Some(bar) = &line.bar {
            bar.set_position(step.number as u64);
            bar.set_message(measures(step, seconds));
        } else if line.is_due(step.number, Instant::now()) {
            line.printed = Some((step.number, Instant::now()));
            let text = plain(step, line.total_steps, seconds);
            self.printer.note(&text);
        }
    }

    fn end(&mut self, adapter: &str) {
        if let Some(line) = self.adapters.remove(adapter) {
            line.bar.iter().for_each(ProgressBar::finish_and_clear);
        }
    }
}

impl Line {
    /// Whether a plain line is due: the first and last step, every tenth of the way, and after a
    /// long time.
    fn is_due(&self, step: usize, now: Instant) -> bool {
        let Some((printed, at)) = self.printed else {
            return true;
        };
        let tenths = |step: usize| step * 10 / self.total_steps.max(1);
        tenths(step) > tenths(printed) || now.duration_since(at) >= PLAIN_INTERVAL
    }
}

fn plain(step: &Step, total_steps: usize, seconds: f64) -> String {
    let percent = step.number * 100 / total_steps.max(1);
    format!(
        "{} {}/{total_steps} ({percent}%) | {}",
        step.adapter,
        step.number,
        measures(step, seconds)
    )
}

fn measures(step: &Step, seconds: f64) -> String {
    let mut text = format!(
        "loss {:.4} | grad_norm {:.3} | lr {:.2e}",
        step.loss, step.grad_norm, step.learning_rate
    );
    if seconds > 0.0 {
        let _ = write!(text, " | {:.0} tok/s", step.tokens as f64 / seconds);
    }
    text
}

/// A bar's style; the templates are constants of this file.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// What to say when memory ran out, and how the run goes on; nothing of another event.
fn out_of_memory(event: &Event) -> String {
    let Event::OutOfMemory {
        iteration,
        reason,
        parked,
        microbatch_rows,
    } = event
    else {
        return String::new();
    };
    let with = match (parked, microbatch_rows) {
        (Some(parked), _) => format!(" without {parked}"),
        (None, Some(rows)) => format!(" with micro-batches of {rows} rows"),
        (None, None) => String::new(),
    };
    format!("{reason}; goes on from iteration {iteration}{with}")
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use indicatif::ProgressStyle;

    use super::{ADAPTER_BAR, Line, PLAIN_INTERVAL, Step, TOTAL_BAR, plain};

    #[test]
    fn plain_lines_come_at_both_ends_every_tenth_and_after_a_while() {
        let now = Instant::now();
        let mut line = Line {
            bar: None,
            total_steps: 100,
            printed: None,
        };
        let mut printed = Vec::new();
        for step in 1..=100 {
            if line.is_due(step, now) {
                printed.push(step);
                line.printed = Some((step, now));
            }
        }
        assert_eq!(printed, [1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);
        line.printed = Some((41, now));
        assert!(!line.is_due(42, now));
        assert!(line.is_due(42, now + PLAIN_INTERVAL));
    }

    #[test]
    fn a_plain_line_has_everything_in_order() {
        let step = Step {
            adapter: "math-r16".to_owned(),
            number: 12,
            loss: 1.93,
            grad_norm: 0.7,
            learning_rate: 2.9e-4,
            tokens: 4096,
        };
        assert_eq!(
            plain(&step, 600, 0.5),
            "math-r16 12/600 (2%) | loss 1.9300 | grad_norm 0.700 | lr 2.90e-4 | 8192 tok/s"
        );
        assert!(plain(&step, 600, 0.0).ends_with("lr 2.90e-4"));
    }

    #[test]
    fn the_templates_are_valid() {
        for template in [ADAPTER_BAR, TOTAL_BAR] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
