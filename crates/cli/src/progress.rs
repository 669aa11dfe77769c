//! Progress of a run: bars if stderr is a terminal, plain lines otherwise.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    time::{Duration, Instant},
};

use indicatif::ProgressBar;
use loraloom_trainer::{Event, Pace};

use crate::{
    frame::{self, Row, Size},
    printer::{self, Printer},
};

/// Longest time between plain lines; a tenth of the steps also prints one.
const PLAIN_INTERVAL: Duration = Duration::from_secs(15);
/// Shortest time between frames.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);
/// With more adapters, lines summarise all of them; `events.jsonl` has each.
const MANY: usize = 16;
const TOTAL_NAME: &str = "all";

/// Shows the events of a run.
#[derive(Debug)]
pub(crate) struct Progress<'a> {
    printer: &'a Printer,
    adapters: BTreeMap<String, Line>,
    /// Adapters that took a step in the current iteration; its end has their duration.
    stepped: Vec<String>,
    /// Number of known adapters.
    known: usize,
    /// Number of ended adapters, and the steps they took.
    ended: (usize, usize),
    /// Names of those that failed.
    failed: BTreeSet<String>,
    /// Steps taken, and total steps, of adapters that are not admitted yet.
    to_come: (usize, usize),
    began: Instant,
    pace: Pace,
    tokens_per_second: f64,
    printed: Printed,
    /// A single bar draws all lines, so that they change together.
    bar: Option<ProgressBar>,
    drawn: Option<Drawn>,
    spinner: Option<ProgressBar>,
}

/// Display state of one adapter.
#[derive(Debug)]
struct Line {
    /// Adapters are shown in the order of their admission.
    order: usize,
    /// Its last step; the time left is not among the cells.
    row: Row,
    /// Tokens of its last step.
    tokens: usize,
    pace: Pace,
    printed: Printed,
}

/// The last frame that was drawn.
#[derive(Debug, Clone, Copy)]
struct Drawn {
    at: Instant,
    columns: usize,
    lines: usize,
}

/// The step and time of the last plain line.
#[derive(Debug, Clone, Copy, Default)]
struct Printed(Option<(usize, Instant)>);

impl<'a> Progress<'a> {
    /// Nothing is shown until the first event. `adapters` has the steps that each adapter has taken,
    /// and will; it is empty where they come and go.
    pub(crate) fn new(printer: &'a Printer, adapters: &[(usize, usize)]) -> Self {
        let taken = adapters.iter().map(|(taken, _)| taken).sum();
        let total = adapters.iter().map(|(_, total)| total).sum();
        Self {
            printer,
            adapters: BTreeMap::new(),
            stepped: Vec::new(),
            known: adapters.len(),
            ended: (0, 0),
            failed: BTreeSet::new(),
            to_come: (taken, total),
            began: Instant::now(),
            pace: Pace::default(),
            tokens_per_second: 0.0,
            printed: Printed::default(),
            bar: None,
            drawn: None,
            spinner: None,
        }
    }

    /// Shows what an event changes.
    pub(crate) fn show(&mut self, event: &Event) {
        if self.bar.is_some()
            && let Some(spinner) = self.spinner.take()
        {
            spinner.finish_and_clear();
        }
        self.show_at(event, Instant::now());
    }

    fn show_at(&mut self, event: &Event, now: Instant) {
        let printer = self.printer;
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
            } => {
                if let Some(line) = self.adapters.get_mut(adapter) {
                    line.row.trains = false;
                    line.pace.pause();
                }
                printer.note(&format!("{adapter} is parked at step {step}: {reason}"));
            }
            Event::OutOfMemory {
                iteration,
                reason,
                parked,
                microbatch_rows,
            } => {
                let with = match (parked, microbatch_rows) {
                    (Some(parked), _) => format!(" without {parked}"),
                    (None, Some(rows)) => format!(" with micro-batches of {rows} rows"),
                    (None, None) => String::new(),
                };
                let warning = format!("{reason}; continues from iteration {iteration}{with}");
                printer.warning(&warning);
            }
            Event::Step { adapter, .. } => {
                if let Some(line) = self.adapters.get_mut(adapter) {
                    line.take_step(event);
                }
                self.stepped.push(adapter.clone());
            }
            Event::Iteration {
                seconds,
                tokens_per_second,
                ..
            } => {
                self.tokens_per_second = *tokens_per_second;
                self.iteration(*seconds, now);
            }
            Event::Eval {
                adapter,
                step,
                loss,
                best,
            } => {
                let best = if *best { ", the best so far" } else { "" };
                let loss = loss.map(|loss| format!("{loss:.4}"));
                let loss = loss.as_deref().unwrap_or("not finite");
                self.note_on_one(&format!("{adapter} {step} | validation loss {loss}{best}"));
            }
            Event::AdapterCancelled { adapter, step } => {
                self.end(adapter);
                printer.note(&format!("{adapter} was cancelled after step {step}"));
            }
            Event::AdapterDone {
                adapter,
                step,
                reason,
            } => {
                self.end(adapter);
                self.note_on_one(&format!("{adapter} is done at step {step}: {reason}"));
            }
            Event::AdapterFailed {
                adapter,
                step,
                reason,
            } => {
                self.end(adapter);
                self.failed.insert(adapter.clone());
                printer.error(&format!("{adapter} failed at step {step}: {reason}"));
            }
            Event::Warning { message } => printer.warning(message),
            Event::Resume {
                iteration, path, ..
            } => printer.note(&format!("resumed after iteration {iteration}, from {path}")),
            Event::Answers { .. } => self.spinner = printer.spinner("answering prompts"),
            Event::RunStart { .. } if self.is_many() => {
                let count = self.known;
                printer.note(&format!(
                    "{count} adapters: events.jsonl has the steps of each"
                ));
            }
            Event::RunStart { .. }
            | Event::Regroup { .. }
            | Event::Passes { .. }
            | Event::Checkpoint { .. }
            | Event::RunCheckpoint { .. }
            | Event::RunEnd { .. } => {}
        }
    }

    /// Takes the bars off the screen. Returns the names of adapters whose failure was told.
    pub(crate) fn finish(self) -> BTreeSet<String> {
        let bars = self.bar.iter().chain(&self.spinner);
        bars.for_each(ProgressBar::finish_and_clear);
        self.failed
    }

    fn admit(&mut self, adapter: &str, step: usize, total_steps: usize) {
        if let Some(line) = self.adapters.get_mut(adapter) {
            line.row.trains = true;
            return;
        }
        self.to_come.0 = self.to_come.0.saturating_sub(step);
        self.to_come.1 = self.to_come.1.saturating_sub(total_steps);
        if self.bar.is_none() && self.spinner.is_none() {
            self.spinner = self.printer.spinner("first steps");
        }
        let order = self.ended.0 + self.adapters.len();
        self.known = self.known.max(order + 1);
        let line = Line {
            order,
            row: Row {
                name: adapter.to_owned(),
                step,
                total_steps,
                trains: true,
                cells: Vec::new(),
                more: Vec::new(),
            },
            tokens: 0,
            pace: Pace::default(),
            printed: Printed::default(),
        };
        self.adapters.insert(adapter.to_owned(), line);
    }

    /// The adapters took the steps that were told of before.
    fn iteration(&mut self, seconds: f64, now: Instant) {
        let many = self.is_many();
        let drawn = self.printer.bars().is_some();
        let stepped = std::mem::take(&mut self.stepped);
        self.pace.add(stepped.len(), seconds, now);
        for adapter in stepped {
            let Some(line) = self.adapters.get_mut(&adapter) else {
                continue;
            };
            line.pace.add(1, seconds, now);
            if seconds > 0.0 {
                let rate = line.tokens as f64 / seconds;
                line.row.more.push(format!("{rate:.0} tok/s"));
            }
            if !drawn && !many && line.printed.is_due(&line.row, now) {
                self.printer.note(&plain(&line.row()));
            }
        }
        if drawn {
            self.draw(now);
        } else if many {
            let all = self.all(now);
            if self.printed.is_due(&all, now) {
                self.printer.note(&plain(&all));
            }
        }
    }

    fn end(&mut self, adapter: &str) {
        if let Some(line) = self.adapters.remove(adapter) {
            self.ended.0 += 1;
            self.ended.1 += line.row.step;
        }
    }

    /// True if there are too many adapters for a line each.
    fn is_many(&self) -> bool {
        self.known > MANY
    }

    /// A line on something that every adapter comes to.
    fn note_on_one(&self, line: &str) {
        if !self.is_many() {
            self.printer.note(line);
        }
    }

    /// All adapters in one line.
    fn all(&self, now: Instant) -> Row {
        let (mut step, mut total_steps) = self.to_come;
        step += self.ended.1;
        total_steps += self.ended.1;
        let mut longest = Duration::ZERO;
        for line in self.adapters.values() {
            step += line.row.step;
            total_steps += line.row.total_steps;
            longest = longest.max(line.time_left().unwrap_or_default());
        }
        // Fewer adapters do not train faster at the end: there is at least what the longest takes.
        let left = left(&self.pace, step, total_steps);
        Row {
            name: TOTAL_NAME.to_owned(),
            step,
            total_steps,
            trains: true,
            cells: vec![
                format!("{:.0} tok/s", self.tokens_per_second),
                time_left(left.map(|left| left.max(longest))),
            ],
            more: vec![
                format!("{} of {} done", self.ended.0, self.known),
                format!("after {}", frame::time(now.duration_since(self.began))),
            ],
        }
    }

    fn frame(&self, size: Size, now: Instant) -> Vec<String> {
        let mut lines: Vec<&Line> = self.adapters.values().collect();
        lines.sort_by_key(|line| line.order);
        let rows: Vec<Row> = lines.into_iter().map(Line::row).collect();
        frame::compose(&rows, &self.all(now), size)
    }

    fn draw(&mut self, now: Instant) {
        let Some(bars) = self.printer.bars() else {
            return;
        };
        let early = |drawn: Drawn| now.duration_since(drawn.at) < FRAME_INTERVAL;
        if self.drawn.is_some_and(early) {
            return;
        }
        let size = Size::of_stderr();
        if let Some(drawn) = self.drawn.filter(|drawn| drawn.columns != size.columns) {
            self.printer.wipe(drawn.lines, drawn.columns);
        }
        let frame = self.frame(size, now);
        self.drawn = Some(Drawn {
            at: now,
            columns: size.columns,
            lines: frame.len(),
        });
        if let Some(spinner) = self.spinner.take() {
            spinner.finish_and_clear();
        }
        let bar = self.bar.get_or_insert_with(|| {
            // It is drawn once it has something to show: whatever a bar shows before it is among the
            // others stays on the screen.
            let bar = bars.insert(0, ProgressBar::new_spinner());
            bar.set_style(printer::style("{msg}"));
            bar
        });
        bar.set_message(frame.join("\n"));
    }
}

impl Line {
    /// Takes the measures of a step.
    fn take_step(&mut self, event: &Event) {
        if let Event::Step {
            step,
            loss,
            grad_norm,
            learning_rate,
            tokens,
            ..
        } = event
        {
            let (grad_norm, rate) = (format!("grad_norm {grad_norm:.3}"), learning_rate);
            self.row.step = *step;
            self.row.cells = vec![format!("loss {loss:.4}")];
            self.row.more = vec![grad_norm, format!("lr {rate:.2e}")];
            self.tokens = *tokens;
        }
    }

    fn time_left(&self) -> Option<Duration> {
        left(&self.pace, self.row.step, self.row.total_steps).filter(|_| self.row.trains)
    }

    /// The row with the time left, after a first step.
    fn row(&self) -> Row {
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

impl Printed {
    /// True if a plain line is due: at the first and last step, at every tenth of the steps, and after
    /// a long time.
    fn is_due(&mut self, row: &Row, now: Instant) -> bool {
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
fn left(pace: &Pace, step: usize, total_steps: usize) -> Option<Duration> {
    let steps = total_steps.saturating_sub(step);
    let seconds = pace.seconds_per_step()? * steps as f64;
    Duration::try_from_secs_f64(seconds).ok()
}

fn time_left(left: Option<Duration>) -> String {
    left.map_or_else(String::new, |left| format!("{} left", frame::time(left)))
}

fn plain(row: &Row) -> String {
    let (step, total) = (row.step, row.total_steps);
    let percent = step * 100 / total.max(1);
    let mut text = format!("{} {step}/{total} ({percent}%)", row.name);
    // The time left comes last, and not at all when it is over.
    let (left, cells) = row.cells.split_last().unzip();
    let left = left.filter(|left| !left.is_empty() && step < total);
    for cell in cells.into_iter().flatten().chain(&row.more).chain(left) {
        let _ = write!(text, " | {cell}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        time::{Duration, Instant},
    };

    use loraloom_trainer::Event;

    use super::{PLAIN_INTERVAL, Printed, Progress, Row};
    use crate::{arguments::OutputArguments, frame::Size, printer::Printer};

    fn admit(adapter: &str, step: usize, total_steps: usize) -> Event {
        Event::Admit {
            adapter: adapter.to_owned(),
            step,
            total_steps,
            reason: String::new(),
        }
    }

    fn step(adapter: &str, step: usize) -> Event {
        Event::Step {
            iteration: 1,
            adapter: adapter.to_owned(),
            step,
            total_steps: 0,
            loss: 1.93,
            target_tokens: 1024,
            tokens: 4096,
            grad_norm: 0.7,
            learning_rate: 2.9e-4,
            group: 0,
        }
    }

    fn iteration(seconds: f64) -> Event {
        Event::Iteration {
            iteration: 1,
            seconds,
            tokens: 8192,
            tokens_per_second: 8192.0 / seconds,
            bubble_ratio: None,
            transfer_seconds: None,
            transfer_overlap: None,
            bytes_reserved: None,
            bytes_predicted: None,
            groups: Vec::new(),
            parts: BTreeMap::new(),
        }
    }

    fn quiet() -> Printer {
        Printer::new(&OutputArguments {
            quiet: true,
            no_progress: true,
        })
    }

    fn frame(progress: &Progress<'_>, columns: usize, now: Instant) -> String {
        progress.frame(Size { columns, lines: 24 }, now).join("\n")
    }

    #[test]
    fn the_time_left_is_that_of_the_slowest_and_of_those_to_come() {
        let printer = quiet();
        let mut progress = Progress::new(&printer, &[(0, 20), (0, 60), (0, 20)]);
        let began = progress.began;
        let at = |seconds: f64| began + Duration::from_secs_f64(seconds);
        progress.show_at(&admit("shout-r4", 0, 20), at(0.0));
        progress.show_at(&admit("b", 0, 60), at(0.0));
        for number in 1..=10 {
            progress.show_at(&step("shout-r4", number), at(0.0));
            progress.show_at(&step("b", number), at(0.0));
            progress.show_at(&iteration(0.5), at(number as f64 * 0.5));
        }
        insta::assert_snapshot!(frame(&progress, 80, at(5.0)), @"
        shout-r4 ███████████████████░░░░░░░░░░░░░░░░░░░░  10/20 | loss 1.9300 | 5s left
        b        ██████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░  10/60 | loss 1.9300 | 25s left
        all      ███████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 20/100 | 16384 tok/s | 25s left
        ");
        let done = Event::AdapterDone {
            adapter: "shout-r4".to_owned(),
            step: 10,
            reason: String::new(),
        };
        progress.show_at(&done, at(5.0));
        let park = Event::Park {
            adapter: "b".to_owned(),
            step: 10,
            reason: String::new(),
            by: None,
        };
        progress.show_at(&park, at(5.0));
        insta::assert_snapshot!(frame(&progress, 120, at(65.0)), @"
        b   ██████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 10/60 | loss 1.9300 | parked   | grad_norm 0.700 | lr 2.90e-4  | 8192 tok/s
        all ████████░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 20/90 | 16384 tok/s | 18s left | 1 of 3 done     | after 1m05s
        ");
    }

    #[test]
    fn plain_lines_come_at_both_ends_every_tenth_and_after_a_while() {
        let now = Instant::now();
        let mut printed = Printed::default();
        let row = |step| Row {
            name: String::new(),
            step,
            total_steps: 100,
            trains: true,
            cells: Vec::new(),
            more: Vec::new(),
        };
        let due: Vec<usize> = (1..=100)
            .filter(|&step| printed.is_due(&row(step), now))
            .collect();
        assert_eq!(due, [1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]);
        let mut printed = Printed(Some((41, now)));
        assert!(!printed.is_due(&row(42), now));
        assert!(printed.is_due(&row(42), now + PLAIN_INTERVAL));
    }
}
