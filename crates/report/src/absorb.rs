//! Builds a history from the events of a log.

use std::fmt::Write;

use crate::{
    RunHistory,
    adapter::{AdapterHistory, EvalRow, ReportedState, StepRow},
    events::{Begin, Ended, Eval, LoggedEvent, MeasuredIteration, TakenStep},
    history::{IterationRow, RunEvent, drop_last},
};

/// Iterations whose passes are kept: the last consecutive ones.
const PASSES: usize = 3;

impl RunHistory {
    /// Adds a line of the log.
    pub(crate) fn line(&mut self, line: &[u8]) {
        // A line without its end is still being written, or its process was killed.
        if line.trim_ascii().is_empty() || line.last() != Some(&b'\n') {
            return;
        }
        self.lines += 1;
        match serde_json::from_slice(line) {
            Ok(event) => self.absorb(event),
            Err(_) => self.unread += 1,
        }
    }

    fn absorb(&mut self, event: LoggedEvent) {
        match event {
            LoggedEvent::RunStart(begin) => self.begin(begin, "run_start"),
            LoggedEvent::Resume(begin) => self.begin(begin, "resume"),
            LoggedEvent::Admit(admit) => {
                let adapter = self.adapter(&admit.adapter);
                self.adapters[adapter].admit(admit.step, admit.total_steps, self.clock);
                self.add_event("admit", Some(adapter), Some(admit.step), admit.reason);
            }
            LoggedEvent::Park(park) => {
                let adapter = self.adapter(&park.adapter);
                self.adapters[adapter].leave(ReportedState::Parked, self.clock);
                let by = park.by.map(|by| format!(", for {by}")).unwrap_or_default();
                let reason = park.reason + &by;
                self.add_event("park", Some(adapter), Some(park.step), reason);
            }
            LoggedEvent::OutOfMemory(event) => {
                self.rewind(event.iteration, |_| false);
                let parked = event.parked.map(|name| self.adapter(&name));
                let mut reason = event.reason;
                if let Some(rows) = event.microbatch_rows {
                    // Writing to a string cannot fail.
                    let _ = write!(reason, "; continues with micro-batches of {rows} rows");
                }
                self.add_event("out_of_memory", parked, None, reason);
            }
            LoggedEvent::Step(step) => self.step(step),
            LoggedEvent::Iteration(iteration) => self.iterate(&iteration),
            LoggedEvent::Passes(passes) => {
                let follows = self.passes.last().is_some_and(|last| passes.follow(last));
                if !follows || self.passes.len() == PASSES {
                    self.passes.clear();
                }
                self.passes.push(passes);
            }
            LoggedEvent::Regroup(regroup) => {
                let mut indices = |group: &Vec<String>| {
                    let names = group.iter();
                    names.map(|name| self.adapter(name)).collect()
                };
                let groups = regroup.groups.iter().map(&mut indices).collect();
                self.add_event("regroup", None, None, regroup.reason);
                if let Some(last) = self.run_events.last_mut() {
                    last.groups = groups;
                }
            }
            LoggedEvent::Eval(eval) => self.evaluated(&eval),
            LoggedEvent::RunCheckpoint(saved) => {
                self.checkpoints.push((self.clock, saved.iteration));
            }
            LoggedEvent::AdapterDone(ended) => {
                let adapter = self.adapter(&ended.adapter);
                let total = self.adapters[adapter].total_steps;
                let state = if total.is_some_and(|total| ended.step < total) {
                    ReportedState::Stopped
                } else {
                    ReportedState::Done
                };
                self.ended("adapter_done", state, ended);
            }
            LoggedEvent::AdapterFailed(ended) => {
                self.ended("adapter_failed", ReportedState::Failed, ended);
            }
            LoggedEvent::AdapterCancelled(ended) => {
                self.ended("adapter_cancelled", ReportedState::Cancelled, ended);
            }
            LoggedEvent::Warning(warning) => self.warnings.push(warning.message),
            LoggedEvent::RunEnd(end) => {
                self.add_event("run_end", None, None, String::new());
                let state = ReportedState::Interrupted;
                for adapter in &mut self.adapters {
                    adapter.interrupt(state, self.clock);
                }
                self.end = Some(end);
            }
            LoggedEvent::Other => {}
        }
    }

    fn begin(&mut self, begin: Begin, event: &'static str) {
        // A server names no adapters: its queue knows which have ended and trains these no more.
        self.rewind(begin.iteration, |adapter| {
            adapter.is_settled() && !begin.adapters.contains(&adapter.name)
        });
        for adapter in &mut self.adapters {
            adapter.interrupt(ReportedState::Waiting, self.clock);
        }
        for name in &begin.adapters {
            let adapter = self.adapter(name);
            // It continues after the run was stopped.
            if self.adapters[adapter].state == ReportedState::Interrupted {
                self.adapters[adapter].state = ReportedState::Waiting;
            }
        }
        self.add_event(event, None, None, String::new());
        if let Ok(time) = begin.time.parse::<jiff::Timestamp>() {
            self.begins
                .push((self.clock, time.as_millisecond() as f64 / 1e3));
        }
        self.end = None;
        if event == "resume" {
            self.resumes += 1;
            self.resumed = Some(begin);
        } else {
            self.begun = Some(begin);
            self.resumed = None;
        }
    }

    fn step(&mut self, step: TakenStep) {
        self.iteration = self.iteration.max(step.iteration);
        let index = self.adapter(&step.adapter);
        let mut metrics = Vec::new();
        for (name, value) in step.more {
            let Some(value) = value.as_f64() else {
                continue;
            };
            let known = self.metrics.iter().position(|metric| *metric == name);
            let at = known.unwrap_or_else(|| {
                self.metrics.push(name);
                self.metrics.len() - 1
            });
            if metrics.len() <= at {
                metrics.resize(at + 1, f64::NAN);
            }
            metrics[at] = value;
        }
        let adapter = &mut self.adapters[index];
        adapter.total_steps = step.total_steps.or(adapter.total_steps);
        drop_last(&mut adapter.rows, |row| row.step >= step.step);
        adapter.rows.push(StepRow {
            iteration: step.iteration,
            step: step.step,
            loss: or_nan(step.loss),
            grad_norm: or_nan(step.grad_norm),
            learning_rate: or_nan(step.learning_rate),
            tokens: step.tokens,
            target_tokens: step.target_tokens,
            // Set by the iteration's own event.
            seconds: self.clock,
            metrics,
        });
        self.untimed.push(index);
    }

    fn iterate(&mut self, event: &MeasuredIteration) {
        self.clock += event.seconds.unwrap_or(0.0).max(0.0);
        self.iteration = self.iteration.max(event.iteration);
        for adapter in self.untimed.drain(..) {
            if let Some(row) = self.adapters[adapter].rows.last_mut() {
                row.seconds = self.clock;
            }
        }
        for adapter in &mut self.adapters {
            adapter.now(self.clock);
        }
        let bytes = |bytes: Option<u64>| bytes.map_or(f64::NAN, |bytes| bytes as f64);
        drop_last(&mut self.iterations, |row| row.iteration >= event.iteration);
        self.iterations.push(IterationRow {
            iteration: event.iteration,
            tokens: event.tokens,
            clock: self.clock,
            tokens_per_second: or_nan(event.tokens_per_second),
            bubble_ratio: or_nan(event.bubble_ratio),
            transfer_seconds: or_nan(event.transfer_seconds),
            transfer_overlap: or_nan(event.transfer_overlap),
            bytes_reserved: bytes(event.bytes_reserved),
            bytes_predicted: bytes(event.bytes_predicted),
        });
    }

    fn evaluated(&mut self, eval: &Eval) {
        let adapter = self.adapter(&eval.adapter);
        let row = EvalRow {
            iteration: self.iteration,
            step: eval.step,
            loss: or_nan(eval.loss),
            margins: eval.margins,
            accuracies: eval.accuracies,
            seconds: self.clock,
        };
        let evals = &mut self.adapters[adapter].evals;
        drop_last(evals, |before| before.step >= eval.step);
        evals.push(row);
    }

    fn ended(&mut self, event: &'static str, state: ReportedState, ended: Ended) {
        let adapter = self.adapter(&ended.adapter);
        self.add_event(event, Some(adapter), Some(ended.step), ended.reason.clone());
        let (iteration, seconds) = (self.iteration, self.clock);
        self.adapters[adapter].end(state, ended.reason, iteration, seconds);
    }

    /// Drops everything after an iteration, since that is repeated.
    fn rewind(&mut self, iteration: u64, stays: impl Fn(&AdapterHistory) -> bool) {
        self.iteration = iteration;
        self.untimed.clear();
        drop_last(&mut self.passes, |passes| passes.iteration > iteration);
        drop_last(&mut self.iterations, |row| row.iteration > iteration);
        for adapter in self.adapters.iter_mut().filter(|adapter| !stays(adapter)) {
            adapter.rewind(iteration);
        }
    }

    fn add_event(
        &mut self,
        event: &'static str,
        adapter: Option<usize>,
        step: Option<u64>,
        reason: String,
    ) {
        self.run_events.push(RunEvent {
            event,
            seconds: self.clock,
            iteration: self.iteration,
            adapter,
            step,
            reason,
            groups: Vec::new(),
        });
    }

    /// The index of an adapter, which is added if it is new.
    pub(crate) fn adapter(&mut self, name: &str) -> usize {
        if let Some(&index) = self.indices.get(name) {
            return index;
        }
        let index = self.adapters.len();
        self.adapters.push(AdapterHistory::new(name));
        self.indices.insert(name.to_owned(), index);
        index
    }
}

/// Missing numbers are NaN, like numbers that are not finite.
fn or_nan(value: Option<f64>) -> f64 {
    value.unwrap_or(f64::NAN)
}
