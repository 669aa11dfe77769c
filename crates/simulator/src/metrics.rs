use serde::Serialize;

use super::{Costs, Replay, ReplayedJob, SimulatedPolicy, Simulation};

/// Results of a replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metrics {
    /// Mean of the seconds from a job's arrival to its end.
    pub average_completion_seconds: f64,
    /// The same, 95th percentile.
    pub p95_completion_seconds: f64,
    /// Seconds from the first arrival to the last end.
    pub makespan_seconds: f64,
    /// Tokens trained, without padding, over the makespan.
    pub tokens_per_second: f64,
    /// The same until the last arrival: at the end only a few long jobs are left.
    pub arriving_tokens_per_second: f64,
    /// Tokens trained per second in which a device was not idle.
    pub tokens_per_busy_second: f64,
    /// The part of all devices' makespan that the same tokens would have taken without constant costs and
    /// padding.
    pub utilisation: f64,
    /// The part of all devices' makespan in which they trained.
    pub busy: f64,
    /// Number of times that a task was parked.
    pub preemptions: usize,
    /// Decisions that moved tasks between groups.
    pub regroupings: usize,
    /// Largest difference of service between two tenants in tokens, over all spans in which both have a task
    /// waiting.
    pub fairness_gap: u64,
    /// Number of decisions.
    pub decisions: usize,
    /// Median time of a decision on this machine. This and the next two are the only numbers that differ
    /// from run to run.
    pub decision_milliseconds_p50: f64,
    /// The same, 99th percentile.
    pub decision_milliseconds_p99: f64,
    /// The same over decisions with at least 1,000 waiting jobs; `None` if there were none.
    pub decision_milliseconds_p99_of_1000_waiting: Option<f64>,
    /// Largest number of training jobs.
    pub most_running: usize,
    /// Largest number of waiting jobs.
    pub most_waiting: usize,
    /// Iterations that would have needed more memory than a device has.
    pub iterations_out_of_memory: u64,
    /// Bytes of the largest iteration.
    pub largest_iteration_bytes: f64,
}

impl Metrics {
    /// The metrics of a replay.
    pub fn of(replay: &Replay) -> Self {
        let mut completions = completion_seconds(replay);
        completions.sort_by(f64::total_cmp);
        let nanoseconds = |end: Option<u64>| end.unwrap_or(0) as f64 / 1e9;
        let makespan = nanoseconds(replay.jobs.iter().map(|job| job.finished).max());
        let arriving = nanoseconds(replay.jobs.iter().map(|job| job.arrival).max());
        let device_seconds = makespan * replay.devices as f64;
        let busy_seconds = replay.busy_nanoseconds as f64 / 1e9;
        let milliseconds = |least: usize| {
            let decisions = replay.decisions.iter().filter(|d| d.waiting >= least);
            let mut times: Vec<f64> = decisions.map(|d| d.seconds * 1e3).collect();
            times.sort_by(f64::total_cmp);
            times
        };
        let of_1000 = milliseconds(1000);
        Self {
            average_completion_seconds: ratio(completions.iter().sum(), completions.len() as f64),
            p95_completion_seconds: quantile(&completions, 0.95),
            makespan_seconds: makespan,
            tokens_per_second: ratio(replay.tokens as f64, makespan),
            arriving_tokens_per_second: ratio(replay.tokens_while_arriving as f64, arriving),
            tokens_per_busy_second: ratio(replay.tokens as f64, busy_seconds),
            utilisation: ratio(replay.useful_seconds, device_seconds),
            busy: ratio(busy_seconds, device_seconds),
            preemptions: replay.preemptions,
            regroupings: replay.regroupings,
            fairness_gap: replay.fairness_gap,
            decisions: replay.decisions.len(),
            decision_milliseconds_p50: quantile(&milliseconds(0), 0.5),
            decision_milliseconds_p99: quantile(&milliseconds(0), 0.99),
            decision_milliseconds_p99_of_1000_waiting: (!of_1000.is_empty())
                .then(|| quantile(&of_1000, 0.99)),
            most_running: replay
                .job_counts
                .iter()
                .map(|m| m.running)
                .max()
                .unwrap_or(0),
            most_waiting: replay
                .job_counts
                .iter()
                .map(|m| m.waiting)
                .max()
                .unwrap_or(0),
            iterations_out_of_memory: replay.iterations_out_of_memory,
            largest_iteration_bytes: replay.largest_bytes,
        }
    }
}

/// Several policies on the same jobs.
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
    /// Offered load of the arrivals, spread or recorded; `None` if all arrive at once.
    pub offered_load: Option<f64>,
    /// Number of tenants.
    pub tenants: usize,
    /// Tokens of all jobs.
    pub tokens: u64,
    /// Bound of the grouping policies.
    pub max_slowdown: f64,
    /// Tasks that `rpm` lets a tenant submit within 24 hours.
    pub rate_limit: usize,
    /// Noise of measured seconds.
    pub noise: f64,
    /// Costs of iterations.
    pub costs: Costs,
    /// The policies.
    pub policies: Vec<PolicyResult>,
}

/// A policy and its results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyResult {
    /// The policy.
    pub policy: SimulatedPolicy,
    /// The results.
    #[serde(flatten)]
    pub metrics: Metrics,
}

impl Comparison {
    /// The comparison of these replays of a simulation.
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

/// Seconds from arrival to end of every job, in order of arrival.
pub(super) fn completion_seconds(replay: &Replay) -> Vec<f64> {
    let seconds = |job: &ReplayedJob| (job.finished - job.arrival) as f64 / 1e9;
    replay.jobs.iter().map(seconds).collect()
}

/// Quantile by nearest rank; 0 without values.
fn quantile(ascending: &[f64], part: f64) -> f64 {
    let rank = (ascending.len() as f64 * part).ceil() as usize;
    let last = ascending.len().saturating_sub(1);
    ascending
        .get(rank.saturating_sub(1).min(last))
        .copied()
        .unwrap_or(0.0)
}

/// 0 if the whole is 0: a trace without jobs is no error.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::quantile;

    #[test]
    fn quantiles_are_values_by_nearest_rank() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        let of = |part| quantile(&hundred, part);
        let expected = [95.0, 99.0, 100.0, 1.0_f64];
        let found = [0.95, 0.99, 1.0, 0.0].map(of);
        assert_eq!(found.map(f64::to_bits), expected.map(f64::to_bits));
        assert_eq!(quantile(&[3.0, 4.0], 0.5).to_bits(), 3.0_f64.to_bits());
        assert_eq!(quantile(&[], 0.95).to_bits(), 0.0_f64.to_bits());
    }
}
