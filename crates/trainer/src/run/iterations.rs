use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    time::Instant,
};

use burn::tensor::Device;
use loraloom_objective::Sums;
use loraloom_pipeline::{MemoryGauge, Pipeline, executor::IterationOutcome};
use loraloom_scheduler::{MeasuredIteration, MeasuredTask, Measurement, TaskId, Work, sizes};

use crate::{
    Event, Rewards,
    events::EventLog,
    iteration::{StepResult, SubmittedIteration},
    report::PeakMemory,
    scheduling::{DeviceRoom, devices, measured as measure},
    tasks::{SubmittedStep, Tasks, not_finite},
};

/// The iterations of a run: those under way, and the results of the others.
#[derive(Debug)]
pub(super) struct Iterations {
    /// Devices of this process that have stages.
    devices: Vec<Watched>,
    /// Memory of the stages' devices, each device once.
    memory: Vec<MemoryGauge>,
    /// Iterations submitted.
    pub(super) submitted: u64,
    /// Tokens trained on.
    pub(super) tokens: u64,
    /// Iterations under way, the oldest first.
    pub(super) pending: VecDeque<SubmittedIteration>,
    /// Tasks that failed, with the reasons.
    pub(super) failures: Vec<(TaskId, String)>,
    /// When the results of the last booked iteration arrived.
    arrived: Option<Instant>,
    /// Iterations that are not yet reported to the scheduler.
    pub(super) measured: Vec<MeasuredIteration>,
    /// Upper bound on the bytes of the running tasks, by the scheduler.
    pub(super) bytes_predicted: Option<u64>,
    /// The iteration with the most memory.
    pub(super) peak: Option<PeakMemory>,
    /// Bytes of host memory that do not belong to running tasks.
    pub(super) aside_bytes: u64,
    /// Selects the iterations whose passes become events.
    timed: TimedIterations,
}

/// Selects the iterations whose passes become events: three in a row of the same groups, then none for a while.
#[derive(Debug, Default)]
struct TimedIterations {
    groups: Vec<Vec<String>>,
    /// Iterations of these groups so far.
    count: usize,
    /// Earliest iteration of the next selection.
    not_before: u64,
}

impl TimedIterations {
    /// Iterations of a set of groups that are selected; the first may also compile kernels.
    const SHOWN: Range<usize> = 1..4;
    /// Iterations between two selections.
    const APART: u64 = 200;

    /// True if the passes of an iteration with these groups become an event.
    fn include(&mut self, iteration: u64, groups: &[Vec<String>]) -> bool {
        if self.groups != groups {
            self.groups = groups.to_vec();
            self.count = 0;
        }
        if self.count == Self::SHOWN.start && iteration < self.not_before {
            return false;
        }
        let shown = Self::SHOWN.contains(&self.count);
        self.count += 1;
        if shown {
            self.not_before = iteration + Self::APART;
        }
        shown
    }
}

/// A device of this process.
#[derive(Debug)]
struct Watched {
    device: Device,
    room: DeviceRoom,
    /// True if the warning about its pools was given.
    told: bool,
}

impl Watched {
    /// A warning that its pools hold more than the run may use, once.
    fn above_limit(&mut self, measured: Measurement) -> Option<String> {
        let limit = self.room.limit_bytes;
        let reserved = measured.reserved_bytes.filter(|&bytes| bytes > limit)?;
        if std::mem::replace(&mut self.told, true) {
            return None;
        }
        let [reserved, limit] = sizes(reserved, limit);
        Some(format!(
            "{} has reserved {reserved} for this run, but `scheduler.memory_limit` allows {limit}: its \
             pools keep freed memory, which other programs cannot use",
            self.room.device
        ))
    }
}

impl Iterations {
    /// Begins after `submitted` iterations with `tokens` tokens; `rooms` are those of the pipeline's
    /// [devices](crate::scheduling::devices).
    pub(super) fn after(
        submitted: u64,
        tokens: u64,
        pipeline: &Pipeline,
        rooms: Vec<DeviceRoom>,
    ) -> Self {
        let devices = devices(pipeline).into_iter().zip(rooms);
        let watched = devices.map(|((device, _), room)| Watched {
            device,
            room,
            told: false,
        });
        Self {
            devices: watched.collect(),
            memory: pipeline.memory_gauges(),
            submitted,
            tokens,
            pending: VecDeque::new(),
            failures: Vec::new(),
            arrived: None,
            measured: Vec::new(),
            bytes_predicted: None,
            peak: None,
            aside_bytes: 0,
            timed: TimedIterations::default(),
        }
    }

    /// Bytes that the pools of limited devices hold, as the end of a sentence.
    pub(super) fn held_by_pools(&self) -> String {
        let held = self.devices.iter().filter_map(|watched| {
            let room = &watched.room;
            let held = measure(&watched.device, None).reserved_bytes?;
            room.is_limited().then(|| {
                let sizes = sizes(held, room.limit_bytes);
                format!("; the pools of {} hold {}", room.device, sizes.join(" of "))
            })
        });
        held.collect()
    }

    /// Drops the iterations under way and those that are not yet reported to the scheduler.
    pub(super) fn abandon(&mut self) {
        self.pending.clear();
        self.failures.clear();
        self.measured.clear();
        self.arrived = None;
    }

    /// Records the results of the oldest iteration under way.
    pub(super) fn book(
        &mut self,
        outcome: &IterationOutcome,
        tasks: &mut Tasks,
        log: &mut EventLog<'_>,
    ) {
        let Some(submitted) = self.pending.pop_front() else {
            return;
        };
        let (iteration, begun) = (submitted.number, submitted.begun);
        let since = self.arrived.map_or(begun, |before| before.max(begun));
        self.arrived = Some(outcome.at);
        let seconds = outcome.at.saturating_duration_since(since).as_secs_f64();
        let steps = submitted.groups.iter().flat_map(|group| &group.steps);
        let tokens = steps.map(|step| step.tokens).sum();
        self.tokens += tokens as u64;
        let bubble_ratio = bubble_ratio(&outcome.busy, seconds);
        let devices = self.devices.iter();
        let peak = outcome.host_peak_bytes;
        let peak = peak.map(|bytes| bytes.saturating_sub(self.aside_bytes));
        let memory: Vec<Measurement> = devices
            .map(|watched| measure(&watched.device, peak))
            .collect();
        for (watched, measured) in self.devices.iter_mut().zip(&memory) {
            if let Some(warning) = watched.above_limit(*measured) {
                log.warn(warning);
            }
        }
        let mut measured = MeasuredIteration {
            tasks: Vec::new(),
            work: Work::default(),
            seconds: seconds * (1.0 - bubble_ratio.unwrap_or(0.0)),
            load: submitted.groups.iter().map(|group| group.load).sum(),
            memory,
        };
        let mut names = Vec::with_capacity(submitted.groups.len());
        let mut parts = BTreeMap::new();
        for (index, group) in submitted.groups.into_iter().enumerate() {
            let steps = group.steps.iter();
            names.push(steps.map(|step| step.name.clone()).collect());
            measured.work += group.work;
            let sums = |id| tasks.get(id).map_or(Sums::default(), |task| task.sums);
            let before = group.steps.iter().map(|step| sums(step.task));
            let results = group.results(&outcome.groups[index], before.collect());
            for (step, result) in group.steps.into_iter().zip(results) {
                measured.tasks.push(MeasuredTask {
                    task: step.task,
                    steps: usize::from(step.part.ends_step()),
                    tokens: step.tokens as u64,
                });
                if step.part.of > 1 {
                    parts.insert(step.name.clone(), [step.part.number, step.part.of]);
                }
                if let Some(event) = self.record(iteration, index, step, result, tasks) {
                    log.emit(event);
                }
            }
        }
        self.measured.push(measured);
        let timed = !outcome.passes.is_empty() && self.timed.include(iteration, &names);
        let reserved: Option<u64> = self.memory.iter().map(MemoryGauge::reserved_bytes).sum();
        let bytes = reserved.or(outcome.host_peak_bytes);
        self.peak = self.peak.max(bytes.map(|bytes| PeakMemory {
            bytes,
            predicted_bytes: self.bytes_predicted,
        }));
        log.emit(Event::Iteration {
            iteration,
            seconds,
            tokens,
            tokens_per_second: tokens as f64 / seconds,
            bubble_ratio,
            transfer_seconds: outcome.transfers.map(|transfers| transfers.seconds),
            transfer_overlap: outcome.transfers.and_then(|transfers| transfers.overlap()),
            bytes_reserved: bytes,
            bytes_predicted: self.bytes_predicted,
            groups: names,
            parts,
        });
        if timed {
            let passes = outcome.passes.clone();
            log.emit(Event::Passes { iteration, passes });
        }
    }

    /// Records a task's step, or a part of it. Steps after a failed one do not count.
    fn record(
        &mut self,
        iteration: u64,
        group: usize,
        submitted: SubmittedStep,
        result: StepResult,
        tasks: &mut Tasks,
    ) -> Option<Event> {
        let (id, part) = (submitted.task, submitted.part);
        let StepResult { sums, grad_norm } = result;
        if self.failures.iter().any(|(failed, _)| *failed == id) {
            return None;
        }
        let task = tasks.get_mut(id)?;
        // The norm of a part of a gradient says nothing about the whole.
        if !part.ends_step() && sums.loss.is_finite() {
            task.sums = sums;
            return None;
        }
        let preference = task.preference.is_some().then(|| Rewards::new(&sums));
        let loss = match preference {
            Some(_) => sums.loss / submitted.step_rows as f64,
            None => sums.loss / submitted.step_target_tokens as f64,
        };
        if !loss.is_finite() || !grad_norm.is_finite() {
            let reason = not_finite(task, loss, grad_norm, submitted.learning_rate);
            self.failures.push((id, reason));
            return None;
        }
        task.steps = submitted.step;
        task.sums = Sums::default();
        task.first_loss.get_or_insert(loss);
        task.last_loss = Some(loss);
        Some(Event::Step {
            iteration,
            adapter: submitted.name,
            step: submitted.step,
            total_steps: task.total_steps,
            loss,
            target_tokens: submitted.step_target_tokens,
            tokens: submitted.step_tokens,
            grad_norm,
            learning_rate: submitted.learning_rate,
            group,
            rewards: preference,
        })
    }
}

/// Mean share of an iteration in which stages did not work, from the seconds that each spent on it. One stage never
/// waits for another; `None` for devices that work asynchronously.
fn bubble_ratio(busy: &[Option<f64>], seconds: f64) -> Option<f64> {
    if busy.len() == 1 {
        return Some(0.0);
    }
    let busy: f64 = busy.iter().copied().sum::<Option<f64>>()? / busy.len() as f64;
    Some((1.0 - busy / seconds).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use loraloom_scheduler::Measurement;

    use super::{TimedIterations, Watched, bubble_ratio};
    use crate::DeviceRoom;

    #[test]
    fn pools_above_the_limit_are_told_of_once() {
        let mut watched = Watched {
            device: Device::flex(),
            room: DeviceRoom {
                device: "cuda:0".to_owned(),
                limit_bytes: 4 << 30,
                fixed_bytes: 0,
                adapter_share: 1.0,
                bytes_per_token: 1.0,
                page_bytes: 0,
                element_bytes: 4,
            },
            told: false,
        };
        let mut told = |reserved_bytes| {
            watched.above_limit(Measurement {
                peak_in_use_bytes: Some(u64::MAX),
                reserved_bytes,
            })
        };
        assert_eq!(told(None), None);
        assert_eq!(told(Some(4 << 30)), None);
        let said = told(Some(5 << 30)).expect("above the limit");
        assert!(
            said.starts_with(
                "cuda:0 has reserved 5.00 GiB for this run, but `scheduler.memory_limit` allows 4.00 GiB"
            ),
            "{said}"
        );
        assert_eq!(told(Some(6 << 30)), None, "once");
    }

    #[test]
    fn passes_are_written_of_three_iterations_in_a_row_and_rarely() {
        let mut timed = TimedIterations::default();
        let one = [vec!["a".to_owned()]];
        let other = [vec!["a".to_owned(), "b".to_owned()]];
        let mut shown = Vec::new();
        for iteration in 1..=1000 {
            let groups = match iteration {
                1..10 => &one,
                10..400 => &other,
                // Groups that change every time have no two iterations in a row.
                _ if iteration % 2 == 0 => &one,
                _ => &other,
            };
            if timed.include(iteration, groups) {
                shown.push(iteration);
            }
        }
        assert_eq!(shown, [2, 3, 4, 204, 205, 206]);
    }

    #[test]
    fn stages_that_wait_leave_a_bubble() {
        let found = bubble_ratio(&[Some(1.0), Some(3.0)], 4.0);
        assert!(found.is_some_and(|ratio| (ratio - 0.5).abs() < 1e-12));
        assert_eq!(bubble_ratio(&[None], 1.0), Some(0.0));
        assert_eq!(bubble_ratio(&[Some(1.0), None], 1.0), None);
        // Iterations overlap: a stage may work on one in the time of another.
        assert_eq!(bubble_ratio(&[Some(3.0), Some(3.0)], 2.0), Some(0.0));
    }
}
