//! The virtual clock: nothing is lost, nothing trains twice, and skipping changes nothing.
#![expect(
    clippy::unwrap_used,
    reason = "a failure here is a failed test, in helpers too"
)]

mod rooms;

use loraloom_scheduler::{
    Load, Member, Policy, Refusal, Room, Scheduler, SchedulerOptions, Task, TaskId,
};
use loraloom_simulator::{
    ClockStep, Costs, Devices, Job, Metrics, Padding, Replay, SimulationError, chart_svg, replay,
};
use proptest::prelude::*;
use rooms::{Chaos, OneEach};

use crate::without_decision_times;

const COSTS: Costs = Costs {
    seconds_constant: 0.013,
    seconds_per_token: 3e-5,
    seconds_per_squared_token: 1e-8,
    seconds_per_padding_token: 2e-5,
    seconds_per_rank_token: 1e-7,
    seconds_per_task: 0.002,
    device_bytes: 1e9,
    bytes_constant: 1e8,
    bytes_per_token: 1e5,
    bytes_per_squared_token: 10.0,
    adapter_bytes_per_rank: 1e5,
};

fn devices(count: usize) -> Devices {
    Devices {
        count,
        costs: COSTS,
        padding: Padding::ToLongest,
        noise: 0.0,
        seed: 0,
        decide_every: None,
    }
}

/// Seconds of arrival, rows, tokens of a row, rank, steps.
type Sketch = (u32, usize, usize, usize, usize);

fn jobs(sketches: &[Sketch]) -> Vec<Job> {
    let mut sketches = sketches.to_vec();
    sketches.sort_by_key(|sketch| sketch.0);
    let job = |(id, (seconds, rows, length, rank, steps)): (usize, Sketch)| Job {
        arrival: u64::from(seconds) * 1_000_000_000,
        submitted: u64::from(seconds) * 1_000_000_000,
        task: Task {
            id: TaskId(id as u64),
            name: format!("job-{id}"),
            tenant: format!("tenant-{}", id % 3),
            priority: 0,
            arrival: id as u64,
            rank,
            rows_per_step: rows,
            tokens_per_step: rows * length,
            total_steps: steps,
            passes_per_step: 1,
            max_parts: rows,
            load: Load::default(),
        },
    };
    sketches.into_iter().enumerate().map(job).collect()
}

/// First come, first served.
fn scheduler<R: Room>(room: R) -> Scheduler<R> {
    let options = SchedulerOptions {
        policy: Policy::StrictFifo,
        ..SchedulerOptions::default()
    };
    Scheduler::new(room, options).unwrap()
}

fn one_each(jobs: &[Job], count: usize, clock: ClockStep) -> Replay {
    let devices = Devices {
        padding: Padding::None,
        ..devices(count)
    };
    let replayed = replay(jobs, devices, scheduler(OneEach::new(count)), clock).unwrap();
    without_decision_times(replayed)
}

fn sketches() -> impl Strategy<Value = Vec<Sketch>> {
    prop::collection::vec(
        (
            0_u32..30,
            1_usize..9,
            1_usize..600,
            1_usize..17,
            1_usize..200,
        ),
        1..20,
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_job_takes_its_steps_and_skipping_changes_nothing(
        sketches in sketches(), count in 1_usize..5, seed in any::<u64>(),
        decide_every in prop::option::of(0.05..5.0_f64),
    ) {
        let jobs = jobs(&sketches);
        let run = |clock| {
            let devices = Devices { decide_every, ..devices(count) };
            let replayed = replay(&jobs, devices, scheduler(Chaos::new(count, seed)), clock);
            without_decision_times(replayed.unwrap())
        };
        let fast = run(ClockStep::Events);
        prop_assert_eq!(&fast, &run(ClockStep::Iterations));
        prop_assert_eq!(&fast, &run(ClockStep::Events));
        let mut tokens = 0;
        for (job, replayed) in jobs.iter().zip(&fast.jobs) {
            prop_assert_eq!(replayed.steps, job.task.total_steps);
            prop_assert!(job.arrival <= replayed.started && replayed.started < replayed.finished);
            // A task that trained in two places at once would be faster than alone. A nanosecond
            // may be rounded away in each of its iterations, five a step at most.
            let alone = COSTS.seconds_alone(&job.task) * 1e9 - 6.0;
            let least = alone * job.task.total_steps as f64;
            let taken = (replayed.finished - replayed.started) as f64;
            prop_assert!(taken >= least, "{} {}", taken, least);
            tokens += (job.task.total_steps * job.task.tokens_per_step) as u64;
        }
        prop_assert_eq!(fast.tokens, tokens);
        let makespan = fast.jobs.iter().map(|job| job.finished).max().unwrap_or(0);
        prop_assert!(fast.busy_nanoseconds <= u128::from(makespan) * count as u128);
    }

    #[test]
    fn one_task_a_device_is_a_queue_with_so_many_servers(
        sketches in sketches(), count in 1_usize..5,
    ) {
        let jobs = jobs(&sketches);
        let replayed = one_each(&jobs, count, ClockStep::Events);
        let mut free = vec![0_u64; count];
        let mut busy = 0;
        for (job, replayed) in jobs.iter().zip(&replayed.jobs) {
            let server = free.iter_mut().min().unwrap();
            let started = job.arrival.max(*server);
            let period = (COSTS.seconds_alone(&job.task) * 1e9) as u64;
            *server = started + period * job.task.total_steps as u64;
            busy += u128::from(*server - started);
            prop_assert_eq!((replayed.started, replayed.finished), (started, *server));
        }
        prop_assert_eq!(replayed.busy_nanoseconds, busy);
        // Asked at every boundary, a scheduler that has no news says the same.
        let slow = one_each(&jobs, count, ClockStep::Decisions);
        prop_assert!(slow.decisions.len() >= replayed.decisions.len());
        prop_assert_eq!(slow.jobs, replayed.jobs);
        prop_assert_eq!(slow.job_counts, replayed.job_counts);
    }
}

#[test]
fn metrics_are_those_of_a_replay_done_by_hand() {
    // 1 s a step, on one device: the second waits 8 s for the first.
    let costs = Costs {
        seconds_constant: 0.5,
        seconds_per_token: 0.5 / 64.0,
        seconds_per_squared_token: 0.0,
        seconds_per_rank_token: 0.0,
        seconds_per_task: 0.0,
        ..COSTS
    };
    let jobs = jobs(&[(0, 1, 64, 8, 10), (2, 1, 64, 8, 5)]);
    let devices = Devices {
        costs,
        ..devices(1)
    };
    let replayed = replay(
        &jobs,
        devices,
        scheduler(OneEach::new(1)),
        ClockStep::Events,
    )
    .unwrap();
    let metrics = Metrics::of(&replayed);
    let seen = [
        metrics.average_completion_seconds,
        metrics.p95_completion_seconds,
        metrics.makespan_seconds,
        metrics.tokens_per_second,
        metrics.arriving_tokens_per_second,
        metrics.utilisation,
        metrics.busy,
    ];
    let expected = [11.5, 13.0, 15.0, 64.0, 64.0, 0.5, 1.0_f64];
    assert_eq!(seen.map(f64::to_bits), expected.map(f64::to_bits));
    assert_eq!((metrics.most_running, metrics.most_waiting), (1, 1));
    assert_eq!(replayed.iterations_out_of_memory, 0);
    let small = Devices {
        costs: Costs {
            device_bytes: 1.0,
            ..costs
        },
        ..devices
    };
    let over = replay(&jobs, small, scheduler(OneEach::new(1)), ClockStep::Events).unwrap();
    assert_eq!(over.iterations_out_of_memory, 15);
    let svg = chart_svg(&[("alone", &replayed), ("again", &over)]);
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches(r#"<path class="curve "#).count(), 2 + 3 * 2);
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

/// Has no place for anybody.
struct Full;

impl Room for Full {
    fn clear(&mut self) {}

    fn place(&mut self, _: &Task, _: Option<usize>) -> Result<usize, Refusal> {
        let reason = "it is full".to_owned();
        Err(Refusal { reason })
    }

    fn remove(&mut self, _: TaskId) {}

    fn groups(&self) -> Vec<Vec<Member>> {
        Vec::new()
    }
}

#[test]
fn jobs_that_wait_for_ever_are_an_error() {
    let jobs = jobs(&[(0, 1, 64, 8, 10), (2, 1, 64, 8, 5)]);
    let starved = replay(&jobs, devices(1), scheduler(Full), ClockStep::Events).unwrap_err();
    assert!(matches!(
        starved,
        SimulationError::Starved { waiting: 2, .. }
    ));
    let none = replay(&[], devices(1), scheduler(Full), ClockStep::Events).unwrap();
    let metrics = Metrics::of(&none);
    assert_eq!(metrics.makespan_seconds.to_bits(), 0.0_f64.to_bits());
    assert!(chart_svg(&[("none", &none)]).ends_with("</svg>\n"));
}
