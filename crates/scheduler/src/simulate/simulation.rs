use std::collections::{BTreeMap, BTreeSet};

use super::{
    Costs, Devices, Job, Pace, Replay, SimulatedPolicy, SimulationError, TracedJob, Workload,
    memory::DeviceBytes,
    replay,
    trained::{Learns, Trained},
};
use crate::{
    FairShares, GroupedRoom, GroupingOptions, NaiveRoom, OneTaskPerGroup, Padding, Policy,
    SchedulerOptions,
};

/// Tokens that a tenant may be ahead of another that waits.
const FAIR_LEAD: u64 = 1_000_000;
/// Seconds between decisions of the fair policy: it goes by what was trained, which changes without
/// arrivals and ends.
const FAIR_SECONDS: f64 = 600.0;

/// Jobs of a trace, and devices to replay them on.
#[derive(Debug, Clone)]
pub struct Simulation {
    /// How the jobs were made.
    pub workload: Workload,
    /// Place of the first job in the trace, from 0 in order of arrival.
    pub first_job: usize,
    /// The jobs, in order of arrival.
    pub jobs: Vec<Job>,
    /// What iterations take.
    pub costs: Costs,
    /// Standard deviation of measured seconds, relative to the true ones.
    pub noise: f64,
    /// Bound of the grouping policies.
    pub max_slowdown: f64,
    /// Whether naive grouping pads its batches, as mLoRA does; all other policies have loraloom's
    /// batches, which have no padding.
    pub naive_padding: Padding,
}

impl Simulation {
    /// The jobs of a trace that a workload names, without noise, with the usual bound, and with
    /// padding for naive grouping.
    ///
    /// # Errors
    /// [`SimulationError`] if there are too few jobs, or a number makes no sense.
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
        })
    }

    /// Replays the jobs under a policy.
    ///
    /// # Errors
    /// [`SimulationError`] if a task fits no device, or an option makes no sense.
    pub fn run(&self, policy: SimulatedPolicy) -> Result<Replay, SimulationError> {
        self.run_at(policy, Pace::Events)
    }

    /// Replays the jobs under a policy, iteration by iteration if wanted.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_at(&self, policy: SimulatedPolicy, pace: Pace) -> Result<Replay, SimulationError> {
        let bytes = vec![DeviceBytes::of(&self.costs); self.workload.devices];
        let options = GroupingOptions {
            max_slowdown: self.max_slowdown,
            padding: Padding::None,
            ..GroupingOptions::default()
        };
        match policy {
            SimulatedPolicy::OneTaskPerDevice => {
                let room = OneTaskPerGroup::new(bytes, None)?;
                self.replay(room, Policy::StrictFifo, Padding::None, pace)
            }
            SimulatedPolicy::NaiveGrouping => {
                let room = NaiveRoom::new(bytes, None)?.with_padding(self.naive_padding);
                self.replay(room, Policy::StrictFifo, self.naive_padding, pace)
            }
            SimulatedPolicy::StrictFifo => {
                let room = GroupedRoom::per_group(bytes, options)?;
                self.replay(room, Policy::StrictFifo, Padding::None, pace)
            }
            SimulatedPolicy::BestEffortFifo => {
                let room = GroupedRoom::per_group(bytes, options)?;
                self.replay(room, Policy::BestEffortFifo, Padding::None, pace)
            }
            SimulatedPolicy::Fair => {
                let room = GroupedRoom::per_group(bytes, options)?;
                let shares = FairShares {
                    lead: FAIR_LEAD,
                    shares: BTreeMap::new(),
                };
                self.replay(room, Policy::Fair(shares), Padding::None, pace)
            }
        }
    }

    fn replay<R: Learns>(
        &self,
        room: R,
        policy: Policy,
        padding: Padding,
        pace: Pace,
    ) -> Result<Replay, SimulationError> {
        let is_fair = matches!(policy, Policy::Fair(_));
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
        let mut trained = Trained::new(room, options, padding)?;
        replay(&self.jobs, devices, &mut trained, pace)
    }

    /// Seconds that all jobs take alone, over those of all devices from the first arrival to the
    /// last; `None` if all arrive at once.
    pub fn offered_load(&self) -> Option<f64> {
        let span = self.jobs.last().map_or(0, |job| job.arrival) as f64 / 1e9;
        let alone = |job: &Job| self.costs.seconds_alone(&job.task) * job.task.total_steps as f64;
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
