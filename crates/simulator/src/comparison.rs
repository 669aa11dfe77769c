use serde::Serialize;

use super::{Costs, Metrics, Replay, SimulatedPolicy, Simulation};

/// Policies beside each other, on the same jobs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Number of jobs.
    pub jobs: usize,
    /// Number of devices.
    pub devices: usize,
    /// Seed of window, draws and noise.
    pub seed: u64,
    /// Place of the first job in the trace, from 0 in order of arrival.
    pub first_job: usize,
    /// Offered load; `None` if arrivals are as recorded.
    pub load: Option<f64>,
    /// Load that the arrivals amount to, either way; `None` if all arrive at once.
    pub offered_load: Option<f64>,
    /// Tenants.
    pub tenants: usize,
    /// Tokens of all jobs.
    pub tokens: u64,
    /// Bound of the grouping policies.
    pub max_slowdown: f64,
    /// Tasks that `rpm` lets a tenant submit within 24 hours.
    pub rate_limit: usize,
    /// Noise of measured seconds.
    pub noise: f64,
    /// What iterations take.
    pub costs: Costs,
    /// The policies.
    pub policies: Vec<PolicyResult>,
}

/// A policy and how it did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyResult {
    /// The policy.
    pub policy: SimulatedPolicy,
    /// How it did.
    #[serde(flatten)]
    pub metrics: Metrics,
}

impl Comparison {
    /// Of these replays of a simulation.
    pub fn of(simulation: &Simulation, replays: &[(SimulatedPolicy, Replay)]) -> Self {
        let workload = &simulation.workload;
        let result = |(policy, replay): &(SimulatedPolicy, Replay)| PolicyResult {
            policy: *policy,
            metrics: Metrics::of(replay),
        };
        Self {
            jobs: simulation.jobs.len(),
            devices: workload.devices,
            seed: workload.seed,
            first_job: simulation.first_job,
            load: workload.load,
            offered_load: simulation.offered_load(),
            tenants: simulation.tenants(),
            tokens: simulation.tokens(),
            max_slowdown: simulation.max_slowdown,
            rate_limit: simulation.rate_limit,
            noise: simulation.noise,
            costs: simulation.costs,
            policies: replays.iter().map(result).collect(),
        }
    }
}
