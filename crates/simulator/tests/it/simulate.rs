//! A trace under every policy: the same each time, nothing lost, nothing out of memory.
#![expect(
    clippy::unwrap_used,
    reason = "a failure here is a failed test, in helpers too"
)]

use std::fmt::Write;

use loraloom_scheduler::{Load, Task, TaskId};
use loraloom_simulator::{
    ClockStep, Comparison, Costs, Job, Padding, SimulatedPolicy, Simulation, SimulationError,
    Workload, read_trace,
};

use crate::without_decision_times;

/// 150 jobs of four tenants in bursts, most short, a few long.
fn trace() -> String {
    let mut text = String::from("timestamp,duration,num_gpus,gpu_time,cluster\n");
    for job in 0..150_u64 {
        let draw = job.wrapping_mul(2_654_435_761) % 1009;
        let seconds = 10 * (job / 10) + draw % 7;
        let duration = if draw < 60 {
            400 + draw
        } else {
            15 + draw % 90
        };
        let tenant = ["a", "b", "c", "d"][(draw % 7).min(3) as usize];
        let _ = writeln!(
            text,
            "2017-10-09 07:{:02}:{:02},{duration}.5,1,1.0,{tenant}",
            seconds / 60,
            seconds % 60
        );
    }
    text
}

fn simulation(seed: u64, noise: f64) -> Simulation {
    let workload = Workload {
        jobs: 120,
        seed,
        devices: 3,
        ..Workload::default()
    };
    let trace = read_trace(&trace()).unwrap();
    let mut simulation = Simulation::new(&trace, workload, Costs::default()).unwrap();
    simulation.noise = noise;
    simulation.rate_limit = 20;
    simulation
}

#[test]
fn every_policy_finishes_every_job_within_memory() {
    for seed in 0..4 {
        let mut simulation = simulation(seed, 0.05);
        if seed % 2 == 0 {
            simulation.naive_padding = Padding::None;
        }
        for policy in SimulatedPolicy::ALL {
            let replay = simulation.run(policy).unwrap();
            for (job, replayed) in simulation.jobs.iter().zip(&replay.jobs) {
                assert_eq!(
                    replayed.steps, job.task.total_steps,
                    "{policy}, seed {seed}"
                );
            }
            assert_eq!(replay.tokens, simulation.tokens(), "{policy}, seed {seed}");
            assert_eq!(replay.iterations_out_of_memory, 0, "{policy}, seed {seed}");
            assert!(replay.largest_bytes <= simulation.costs.device_bytes);
        }
    }
}

#[test]
fn a_seed_gives_the_same_bytes_and_another_does_not() {
    let json = |seed| {
        let simulation = simulation(seed, 0.05);
        let run = |policy| {
            let replay = simulation.run(policy).unwrap();
            (policy, without_decision_times(replay))
        };
        let replays = SimulatedPolicy::ALL.map(run);
        serde_json::to_string_pretty(&Comparison::of(&simulation, &replays)).unwrap()
    };
    let first = json(7);
    assert_eq!(first, json(7));
    assert_ne!(first, json(8));
}

#[test]
fn skipping_iterations_changes_nothing_under_the_real_scheduler() {
    let simulation = simulation(1, 0.05);
    for policy in SimulatedPolicy::ALL {
        let run = |clock| without_decision_times(simulation.run_at(policy, clock).unwrap());
        assert_eq!(
            run(ClockStep::Events),
            run(ClockStep::Iterations),
            "{policy}"
        );
    }
}

#[test]
fn scripts_find_what_the_interface_names() {
    let simulation = simulation(0, 0.0);
    let run = |policy| (policy, simulation.run(policy).unwrap());
    let comparison = Comparison::of(&simulation, &SimulatedPolicy::ALL.map(run));
    let json = serde_json::to_value(&comparison).unwrap();
    assert_eq!(json["jobs"], 120);
    assert_eq!(json["devices"], 3);
    assert_eq!(json["seed"], 0);
    let policies = json["policies"].as_array().unwrap();
    let names: Vec<_> = policies.iter().map(|policy| &policy["policy"]).collect();
    assert_eq!(
        names,
        [
            "one_task_per_device",
            "naive_grouping",
            "least_loaded",
            "rpm",
            "lcf",
            "strict_fifo",
            "best_effort_fifo",
            "fair"
        ]
    );
    for policy in policies {
        for field in [
            "average_completion_seconds",
            "p95_completion_seconds",
            "makespan_seconds",
            "tokens_per_second",
            "utilisation",
            "preemptions",
            "decision_milliseconds_p99",
            "fairness_gap",
        ] {
            assert!(policy[field].is_number(), "{field} of {policy}");
        }
        let used = policy["utilisation"].as_f64().unwrap();
        assert!(used > 0.0 && used <= 1.0, "{policy}");
    }
}

#[test]
fn a_replay_beyond_its_clock_ends() {
    let mut simulation = simulation(0, 0.0);
    let last = simulation.jobs.last_mut().unwrap();
    (last.arrival, last.submitted) = (u64::MAX, u64::MAX);
    for policy in SimulatedPolicy::ALL {
        let error = simulation.run(policy).unwrap_err();
        assert!(matches!(error, SimulationError::TooLong { .. }), "{error}");
        let hint = error.hint().unwrap();
        assert!(hint.contains("--load"), "{hint}");
    }
}

const HOUR: u64 = 3600 * 1_000_000_000;

/// Jobs of one row on one device, by tenant and hour of arrival, each of about two hours alone.
fn of_tenants(arrivals: &[(&str, u64)]) -> Simulation {
    let trace = read_trace(&trace()).unwrap();
    let workload = Workload {
        jobs: 1,
        devices: 1,
        ..Workload::default()
    };
    let mut simulation = Simulation::new(&trace, workload, Costs::default()).unwrap();
    let job = |(id, &(tenant, hour)): (u64, &(&str, u64))| Job {
        arrival: hour * HOUR,
        submitted: hour * HOUR,
        task: Task {
            id: TaskId(id),
            name: format!("job-{id}"),
            tenant: tenant.to_owned(),
            priority: 0,
            arrival: id,
            rank: 8,
            // Two take more memory than a device has.
            rows_per_step: 10,
            tokens_per_step: 10_000,
            total_steps: 670,
            passes_per_step: 1,
            max_parts: 1,
            load: Load {
                tokens: 10_000,
                squared_tokens: 10_000_000,
                adapter_bytes: 0,
                certain_bytes: 0,
            },
        },
    };
    simulation.jobs = (0..).zip(arrivals).map(job).collect();
    simulation
}

/// Hours from arrival to end, by job.
fn hours(simulation: &Simulation, policy: SimulatedPolicy) -> Vec<f64> {
    let jobs = simulation.run(policy).unwrap().jobs;
    let hours = |job: &loraloom_simulator::ReplayedJob| job.finished - job.arrival;
    jobs.iter()
        .map(|job| hours(job) as f64 / HOUR as f64)
        .collect()
}

#[test]
fn a_tenant_that_returns_from_idle_starves_others_under_lcf_and_not_under_fair() {
    // One tenant trains alone for 20 hours; the other comes with four jobs at once.
    let mut arrivals: Vec<(&str, u64)> = (0..11).map(|job| ("steady", 2 * job)).collect();
    arrivals.extend([("returns", 20); 4]);
    arrivals.push(("steady", 22));
    let simulation = of_tenants(&arrivals);
    let lcf = hours(&simulation, SimulatedPolicy::LeastCounterFirst);
    let fair = hours(&simulation, SimulatedPolicy::Fair);
    // The eleventh job comes in the same hour as the four: it shares the device with them by turns, or
    // begins after the last of them.
    let last_of_four = lcf[11..15].iter().copied().fold(0.0, f64::max);
    assert!(lcf[10] > last_of_four, "{lcf:?}");
    assert!(fair[10] < 0.7 * lcf[10], "{fair:?} {lcf:?}");
    assert!(fair[10] < fair[14], "{fair:?}");
}

#[test]
fn a_rate_limit_leaves_devices_idle_that_fair_uses() {
    let mut simulation = of_tenants(&[("a", 0); 6]);
    simulation.rate_limit = 2;
    let limited = simulation.run(SimulatedPolicy::RequestRate).unwrap();
    let fair = simulation.run(SimulatedPolicy::Fair).unwrap();
    let end =
        |replay: &loraloom_simulator::Replay| replay.jobs.iter().map(|job| job.finished).max();
    // Two jobs of two hours on each of three days.
    assert!(end(&limited) > Some(48 * HOUR) && end(&fair) < Some(16 * HOUR));
    assert_eq!(limited.busy_nanoseconds, fair.busy_nanoseconds);
    let waiting = limited.job_counts.iter().map(|counts| counts.waiting);
    assert_eq!(waiting.max(), Some(5), "jobs over the limit wait");
    simulation.rate_limit = 6;
    let free = simulation.run(SimulatedPolicy::RequestRate).unwrap();
    let strict = simulation.run(SimulatedPolicy::StrictFifo).unwrap();
    assert_eq!(without_decision_times(free), without_decision_times(strict));
}
