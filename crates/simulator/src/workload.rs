use super::{
    Costs, Padding, SimulationError, TracedJob,
    costs::Share,
    random::Random,
    replay::{MOST_YEARS, YEAR},
};
use loraloom_scheduler::{Task, TaskId};

/// With more devices a decision takes seconds, and a replay days.
const MOST_DEVICES: usize = 1024;
/// Steps of all jobs; their parts and tokens are counted in 64 bits.
const MOST_STEPS: f64 = 1e13;

/// The jobs of a trace that are replayed, and how they become tasks.
///
/// A trace of a cluster has the arrival, tenant and duration of each job. Rank and batch size of the LoRA
/// job are drawn from the ranges that tLoRA (arXiv 2602.07263) evaluates on, the length from powers of two
/// around mLoRA's 512. Each is uniform, and drawn by the job's place in the trace, so that a job is the
/// same in every selection.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Number of jobs, one after another in order of arrival.
    pub jobs: usize,
    /// The first of them, from 0 in order of arrival; `None` draws it.
    pub start: Option<usize>,
    /// Seed of every draw.
    pub seed: u64,
    /// Offered load: the seconds that all jobs take alone, over the seconds that the devices have
    /// from the first arrival to the last. At 1 the devices could just keep up with one task each.
    /// `None` leaves arrivals as they are in the trace.
    pub load: Option<f64>,
    /// Devices that the load is for.
    pub devices: usize,
    /// Ranks to draw from.
    pub ranks: Vec<usize>,
    /// Rows of an optimizer step to draw from.
    pub batch_sizes: Vec<usize>,
    /// Tokens of a row to draw from.
    pub lengths: Vec<usize>,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            jobs: 2000,
            start: None,
            seed: 0,
            load: Some(2.0),
            devices: 8,
            ranks: vec![2, 4, 8, 16],
            batch_sizes: vec![1, 2, 4, 8],
            lengths: vec![128, 256, 512, 1024],
        }
    }
}

/// A task and its arrival.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// Nanoseconds after the first job.
    pub arrival: u64,
    /// When it is submitted to the scheduler, on the same clock: its arrival, or later under a rate limit.
    pub submitted: u64,
    /// The task; its steps fill the recorded duration of the job on a device of its own.
    pub task: Task,
}

impl Workload {
    /// The jobs to replay, in order of arrival.
    ///
    /// # Errors
    /// [`SimulationError`] if there are too few jobs, or a number is out of its range.
    pub fn jobs_of(&self, trace: &[TracedJob], costs: &Costs) -> Result<Vec<Job>, SimulationError> {
        costs.validate()?;
        if self.devices > MOST_DEVICES {
            return Err(SimulationError::OutOfRange {
                name: "the number of devices",
                value: self.devices as f64,
                expected: "at most 1024: a decision compares every task with every device",
            });
        }
        let start = self.first_job(trace.len())?;
        let traced = trace.iter().skip(start).take(self.jobs);
        let begun = traced.clone().next().map_or(0, |job| job.arrival);
        let mut jobs = Vec::with_capacity(self.jobs);
        for (arrival, job) in traced.enumerate() {
            let task = self.task(start + arrival, arrival, job, costs)?;
            jobs.push((job.arrival - begun, task));
        }
        let stretch = self.stretch(&jobs, costs)?;
        self.refuse_too_long(&jobs, costs, stretch)?;
        let job = |(seconds, task)| {
            let arrival = (seconds as f64 * stretch * 1e9) as u64;
            Job {
                arrival,
                submitted: arrival,
                task,
            }
        };
        Ok(jobs.into_iter().map(job).collect())
    }

    /// Place of the first job in a trace with `available` jobs, from 0 in order of arrival.
    ///
    /// # Errors
    /// [`SimulationError::TooFewJobs`] if the last would be beyond the trace's end.
    pub fn first_job(&self, available: usize) -> Result<usize, SimulationError> {
        let too_few = |start| SimulationError::TooFewJobs {
            asked: self.jobs,
            start,
            available,
        };
        let last_start = available.checked_sub(self.jobs);
        let last_start = last_start.ok_or_else(|| too_few(self.start.unwrap_or(0)))?;
        match self.start {
            Some(start) if start > last_start => Err(too_few(start)),
            Some(start) => Ok(start),
            None => Ok(Random::new(self.seed).below(last_start + 1)),
        }
    }

    fn task(
        &self,
        place: usize,
        arrival: usize,
        job: &TracedJob,
        costs: &Costs,
    ) -> Result<Task, SimulationError> {
        let mut random = Random::of_job(self.seed, place as u64);
        let rank = draw(&mut random, &self.ranks, "rank")?;
        let rows = draw(&mut random, &self.batch_sizes, "batch size")?;
        let length = draw(&mut random, &self.lengths, "length")?;
        let mut task = Task {
            id: TaskId(arrival as u64),
            name: format!("job-{place}"),
            tenant: job.tenant.clone(),
            priority: 0,
            arrival: arrival as u64,
            rank,
            rows_per_step: rows,
            tokens_per_step: rows * length,
            total_steps: 1,
            passes_per_step: 1,
            max_parts: rows,
            load: costs.load(rank, rows, length),
        };
        let bytes = costs.bytes(&[Share::of(&task, 1)], Padding::None);
        if bytes > costs.device_bytes {
            return Err(SimulationError::TooLarge {
                job: task.name,
                bytes,
                device_bytes: costs.device_bytes,
            });
        }
        let steps = job.duration / costs.seconds_alone(&task);
        task.total_steps = steps.round().max(1.0) as usize;
        Ok(task)
    }

    /// Refuses jobs that the replay's clock, or its counters, cannot take.
    fn refuse_too_long(
        &self,
        jobs: &[(u64, Task)],
        costs: &Costs,
        stretch: f64,
    ) -> Result<(), SimulationError> {
        let last = jobs.last().map_or(0.0, |(arrival, _)| *arrival as f64) * stretch;
        let alone = || jobs.iter().map(|(_, task)| seconds_alone(task, costs));
        let work = alone().sum::<f64>() / self.devices.max(1) as f64;
        let least = alone().fold(last.max(work), f64::max);
        if least > MOST_YEARS * YEAR {
            return Err(SimulationError::too_long(least));
        }
        let steps: f64 = jobs.iter().map(|(_, task)| task.total_steps as f64).sum();
        if steps > MOST_STEPS {
            return Err(SimulationError::OutOfRange {
                name: "the number of steps of all jobs",
                value: steps,
                expected: "at most 1e13; check whether the costs of an iteration are too small",
            });
        }
        Ok(())
    }

    /// Seconds between arrivals for one second in the trace.
    fn stretch(&self, jobs: &[(u64, Task)], costs: &Costs) -> Result<f64, SimulationError> {
        let Some(load) = self.load else {
            return Ok(1.0);
        };
        if !(load.is_finite() && load > 0.0) {
            return Err(SimulationError::OutOfRange {
                name: "the load",
                value: load,
                expected: "above 0",
            });
        }
        let span = jobs.last().map_or(0, |(seconds, _)| *seconds);
        if span == 0 {
            return match jobs.len() {
                0 | 1 => Ok(1.0),
                jobs => Err(SimulationError::NoSpacing { jobs }),
            };
        }
        let seconds: f64 = jobs
            .iter()
            .map(|(_, task)| seconds_alone(task, costs))
            .sum();
        Ok(seconds / (load * self.devices.max(1) as f64 * span as f64))
    }
}

/// Seconds that a job takes on a device of its own.
pub(super) fn seconds_alone(task: &Task, costs: &Costs) -> f64 {
    costs.seconds_alone(task) * task.total_steps as f64
}

/// One of the values, which must not be 0.
fn draw(random: &mut Random, from: &[usize], name: &'static str) -> Result<usize, SimulationError> {
    match random.choose(from) {
        None => Err(SimulationError::NothingToDraw { name }),
        Some(0) => Err(SimulationError::OutOfRange {
            name,
            value: 0.0,
            expected: "above 0",
        }),
        Some(drawn) => Ok(drawn),
    }
}

#[cfg(test)]
mod tests {
    use super::Workload;
    use crate::{Costs, Job, SimulationError, TracedJob};

    fn trace(jobs: u64) -> Vec<TracedJob> {
        let job = |index| TracedJob {
            arrival: 1000 + 7 * index,
            duration: 50.0 + (index % 13) as f64 * 100.0,
            devices: 1,
            tenant: format!("tenant-{}", index % 3),
        };
        (0..jobs).map(job).collect()
    }

    fn work(jobs: &[Job], costs: &Costs) -> f64 {
        let seconds = |job: &Job| costs.seconds_alone(&job.task) * job.task.total_steps as f64;
        jobs.iter().map(seconds).sum()
    }

    #[test]
    fn a_job_takes_its_duration_alone_and_arrivals_make_the_load() {
        let (costs, trace) = (Costs::default(), trace(300));
        let workload = Workload {
            jobs: 200,
            load: Some(0.5),
            ..Workload::default()
        };
        let jobs = workload.jobs_of(&trace, &costs).unwrap();
        assert_eq!((jobs.len(), jobs[0].arrival), (200, 0));
        for job in &jobs {
            let place: usize = job.task.name["job-".len()..].parse().unwrap();
            let alone = costs.seconds_alone(&job.task);
            let seconds = alone * job.task.total_steps as f64;
            assert!((seconds - trace[place].duration).abs() <= alone / 2.0 + 1e-9);
            assert_eq!(job.task.tenant, trace[place].tenant);
        }
        let load = work(&jobs, &costs) / (8.0 * jobs[199].arrival as f64 / 1e9);
        assert!((load - 0.5).abs() < 1e-6, "{load}");
        let recorded = Workload {
            load: None,
            ..workload
        };
        let recorded = recorded.jobs_of(&trace, &costs).unwrap();
        assert_eq!(recorded[199].arrival, 7 * 199 * 1_000_000_000);
    }

    #[test]
    fn seeds_choose_window_and_draws_and_a_job_is_the_same_in_every_window() {
        let (costs, trace) = (Costs::default(), trace(300));
        let window = |start, seed| {
            let workload = Workload {
                jobs: 100,
                start,
                seed,
                load: None,
                ..Workload::default()
            };
            workload.jobs_of(&trace, &costs).unwrap()
        };
        assert_eq!(window(None, 5), window(None, 5));
        assert_ne!(window(None, 5), window(None, 6));
        let (early, late) = (window(Some(0), 5), window(Some(40), 5));
        assert_eq!(early[40].task.name, late[0].task.name);
        assert_eq!(early[40].task.load, late[0].task.load);
        let ranks: Vec<_> = early.iter().map(|job| job.task.rank).collect();
        for rank in [2, 4, 8, 16] {
            let drawn = ranks.iter().filter(|&&drawn| drawn == rank).count();
            assert!((12..40).contains(&drawn), "rank {rank}: {drawn}");
        }
    }

    #[test]
    fn what_cannot_be_replayed_is_refused() {
        let costs = Costs::default();
        let refused = |change: fn(&mut Workload), trace: &[TracedJob]| {
            let mut workload = Workload {
                jobs: 10,
                ..Workload::default()
            };
            change(&mut workload);
            workload.jobs_of(trace, &costs).unwrap_err()
        };
        let trace = trace(20);
        let error = refused(|workload| workload.jobs = 21, &trace);
        assert!(matches!(
            error,
            SimulationError::TooFewJobs { asked: 21, .. }
        ));
        let error = refused(|workload| workload.start = Some(11), &trace);
        assert!(matches!(
            error,
            SimulationError::TooFewJobs { start: 11, .. }
        ));
        let error = refused(|workload| workload.load = Some(0.0), &trace);
        assert!(matches!(error, SimulationError::OutOfRange { .. }));
        let error = refused(|workload| workload.devices = 1025, &trace);
        assert!(matches!(error, SimulationError::OutOfRange { .. }));
        let error = refused(|workload| workload.load = Some(1e-12), &trace);
        assert!(matches!(error, SimulationError::TooLong { .. }));
        let long = TracedJob {
            duration: 3e9,
            ..trace[0].clone()
        };
        let error = refused(
            |workload| (workload.devices, workload.load) = (2, None),
            &vec![long; 20],
        );
        assert!(matches!(error, SimulationError::TooLong { .. }));
        let error = refused(|workload| workload.ranks.clear(), &trace);
        assert!(matches!(
            error,
            SimulationError::NothingToDraw { name: "rank" }
        ));
        let error = refused(|workload| workload.lengths = vec![0], &trace);
        assert!(matches!(error, SimulationError::OutOfRange { .. }));
        let at_once = vec![trace[0].clone(); 20];
        let error = refused(|_| (), &at_once);
        assert!(matches!(error, SimulationError::NoSpacing { jobs: 10 }));
    }

    #[test]
    fn a_job_that_no_device_holds_is_refused() {
        let costs = Costs {
            device_bytes: 2e8,
            ..Costs::default()
        };
        let error = Workload::default()
            .jobs_of(&trace(2000), &costs)
            .unwrap_err();
        assert!(matches!(error, SimulationError::TooLarge { .. }), "{error}");
    }
}
