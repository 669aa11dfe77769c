//! A trace under every policy: the same each time, nothing lost, nothing out of memory.
#![expect(
    clippy::unwrap_used,
    reason = "a failure here is a failed test, in helpers too"
)]

use std::fmt::Write;

use loraloom_simulator::{
    Comparison, Costs, Pace, Padding, Replay, SimulatedPolicy, Simulation, Workload, read_trace,
};

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
    simulation
}

/// All but what this machine's clock says.
fn without_decision_times(mut replay: Replay) -> Replay {
    for decision in &mut replay.decisions {
        decision.seconds = 0.0;
    }
    replay
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
        let run = |pace| without_decision_times(simulation.run_at(policy, pace).unwrap());
        assert_eq!(run(Pace::Events), run(Pace::Iterations), "{policy}");
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
