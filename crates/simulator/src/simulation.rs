use std::{collections::BTreeSet, fmt};

use loraloom_scheduler::{
    Coefficients, DeviceMemory, GroupedRoom, GroupingOptions, MemoryModel, Policy, Room, Scheduler,
    SchedulerError, SchedulerOptions,
};
use serde::{Serialize, Serializer};

use super::{
    ClockStep, Costs, Devices, Job, Padding, Replay, SimulationError, TracedJob, Workload,
    rate_limit::limit_rate,
    replay,
    rooms::{FilledRoom, Filling},
    workload::seconds_alone,
};

/// Seconds between decisions of the fair policies: counters grow without arrivals and ends.
const FAIR_SECONDS: f64 = 600.0;
/// Nanoseconds of the window of [`Simulation::rate_limit`].
const DAY: u64 = 86_400 * 1_000_000_000;
/// Pages of the host's allocator.
const PAGE_BYTES: u64 = 1 << 20;

/// The policies that a trace is replayed under: baselines, and those of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimulatedPolicy {
    /// A task has a device to itself; strictly first come, first served.
    OneTaskPerDevice,
    /// All that fits trains together; strictly first come, first served.
    NaiveGrouping,
    /// A task joins the device with the fewest tokens among those with room; strictly first come, first
    /// served.
    LeastLoaded,
    /// As [`StrictFifo`](Self::StrictFifo), and a tenant may submit a limited number of tasks a day. It stands
    /// for the limit of requests per minute (RPM) that VTC (Sheng et al., OSDI 2024) is compared with.
    RequestRate,
    /// As [`Fair`](Self::Fair), without the lift of the counter of a tenant that returns: the other
    /// baseline of VTC, least counter first (LCF).
    LeastCounterFirst,
    /// Grouped under a bound on slowdown; strictly first come, first served.
    StrictFifo,
    /// As [`StrictFifo`](Self::StrictFifo), and a task that fits may start before an earlier one that
    /// does not, if it does not delay that one.
    BestEffortFifo,
    /// Grouped under a bound on slowdown; the tenant that was served least is next.
    Fair,
}

impl SimulatedPolicy {
    /// All of them, baselines first.
    pub const ALL: [Self; 8] = [
        Self::OneTaskPerDevice,
        Self::NaiveGrouping,
        Self::LeastLoaded,
        Self::RequestRate,
        Self::LeastCounterFirst,
        Self::StrictFifo,
        Self::BestEffortFifo,
        Self::Fair,
    ];

    /// Its name in arguments and output.
    pub fn name(self) -> &'static str {
        match self {
            Self::OneTaskPerDevice => "one_task_per_device",
            Self::NaiveGrouping => "naive_grouping",
            Self::LeastLoaded => "least_loaded",
            Self::RequestRate => "rpm",
            Self::LeastCounterFirst => "lcf",
            Self::StrictFifo => "strict_fifo",
            Self::BestEffortFifo => "best_effort_fifo",
            Self::Fair => "fair",
        }
    }

    /// The policy of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

impl fmt::Display for SimulatedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Serialize for SimulatedPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Jobs of a trace, and devices to replay them on.
#[derive(Debug, Clone)]
pub struct Simulation {
    /// How the jobs were selected and drawn.
    pub workload: Workload,
    /// Place of the first job in the trace, from 0 in order of arrival.
    pub first_job: usize,
    /// The jobs, in order of arrival.
    pub jobs: Vec<Job>,
    /// Costs of iterations.
    pub costs: Costs,
    /// Standard deviation of measured seconds, relative to the true ones.
    pub noise: f64,
    /// Bound of the grouping policies.
    pub max_slowdown: f64,
    /// Padding of naive grouping; all other policies have loraloom's batches, which have none.
    pub naive_padding: Padding,
    /// Most tasks that a tenant may submit within any 24 hours under [`SimulatedPolicy::RequestRate`].
    pub rate_limit: usize,
}

impl Simulation {
    /// The jobs of a trace that a workload selects, without noise, with the default bound, and with padding
    /// for naive grouping.
    ///
    /// # Errors
    /// [`SimulationError`] if there are too few jobs, or a number is out of its range.
    pub fn new(
        trace: &[TracedJob],
        workload: Workload,
        costs: Costs,
    ) -> Result<Self, SimulationError> {
        Ok(Self {
            first_job: workload.first_job(trace.len())?,
            jobs: workload.jobs_of(trace, &costs)?,
            workload,
            costs,
            noise: 0.0,
            max_slowdown: GroupingOptions::default().max_slowdown,
            naive_padding: Padding::ToLongest,
            rate_limit: 64,
        })
    }

    /// Replays the jobs under a policy.
    ///
    /// # Errors
    /// [`SimulationError`] if a task fits no device, or an option is out of its range.
    pub fn run(&self, policy: SimulatedPolicy) -> Result<Replay, SimulationError> {
        self.run_at(policy, ClockStep::Events)
    }

    /// As [`run`](Self::run), with a clock that takes these steps.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_at(
        &self,
        simulated: SimulatedPolicy,
        step: ClockStep,
    ) -> Result<Replay, SimulationError> {
        let filling = match simulated {
            SimulatedPolicy::OneTaskPerDevice => Some(Filling::OneTask),
            SimulatedPolicy::NaiveGrouping => Some(Filling::FirstFit(self.naive_padding)),
            SimulatedPolicy::LeastLoaded => Some(Filling::LeastLoaded),
            _ => None,
        };
        let policy = match simulated {
            SimulatedPolicy::BestEffortFifo => Policy::BestEffortFifo,
            SimulatedPolicy::Fair => Policy::FAIR,
            SimulatedPolicy::LeastCounterFirst => Policy::LEAST_COUNTER_FIRST,
            _ => Policy::StrictFifo,
        };
        let mut jobs = self.jobs.clone();
        if simulated == SimulatedPolicy::RequestRate {
            limit_rate(&mut jobs, self.rate_limit, DAY);
        }
        let memory = vec![self.device()?; self.workload.devices];
        if let Some(filling) = filling {
            let padding = filling.padding();
            let room = FilledRoom::new(memory, filling);
            return self.replay(&jobs, room, policy, padding, step);
        }
        let options = GroupingOptions {
            max_slowdown: self.max_slowdown,
            keep_places: true,
        };
        let room = GroupedRoom::per_group(memory, options)?;
        self.replay(&jobs, room, policy, Padding::None, step)
    }

    /// The memory of a device before any measurement.
    fn device(&self) -> Result<DeviceMemory, SchedulerError> {
        let costs = &self.costs;
        let prior = Coefficients::new(0.0, costs.bytes_per_token, costs.bytes_per_squared_token)?;
        DeviceMemory::new(
            "device",
            costs.device_bytes as u64,
            costs.bytes_constant as u64,
            1.0,
            MemoryModel::new(prior, PAGE_BYTES),
        )
    }

    fn replay<R: Room>(
        &self,
        jobs: &[Job],
        room: R,
        policy: Policy,
        padding: Padding,
        step: ClockStep,
    ) -> Result<Replay, SimulationError> {
        let is_fair = matches!(policy, Policy::Fair { .. });
        let options = SchedulerOptions {
            policy,
            ..SchedulerOptions::default()
        };
        let devices = Devices {
            count: self.workload.devices,
            costs: self.costs,
            padding,
            noise: self.noise,
            seed: self.workload.seed,
            decide_every: is_fair.then_some(FAIR_SECONDS),
        };
        replay(jobs, devices, Scheduler::new(room, options)?, step)
    }

    /// Seconds that all jobs take alone, over the seconds of all devices from the first arrival to the last;
    /// `None` if all arrive at once.
    pub fn offered_load(&self) -> Option<f64> {
        let span = self.jobs.last().map_or(0, |job| job.arrival) as f64 / 1e9;
        let alone = |job: &Job| seconds_alone(&job.task, &self.costs);
        let seconds: f64 = self.jobs.iter().map(alone).sum();
        (span > 0.0).then(|| seconds / (span * self.workload.devices as f64))
    }

    /// Tokens of all jobs.
    pub fn tokens(&self) -> u64 {
        let tokens = |job: &Job| (job.task.tokens_per_step * job.task.total_steps) as u64;
        self.jobs.iter().map(tokens).sum()
    }

    /// Number of tenants.
    pub fn tenants(&self) -> usize {
        let names = self.jobs.iter().map(|job| job.task.tenant.as_str());
        names.collect::<BTreeSet<_>>().len()
    }
}
