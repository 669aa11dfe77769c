//! Every operation and transfer of random cases, against the rules.

use std::collections::BTreeMap;

use loraloom_pipeline::{
    schedule::{Operation, PipelineShape, Schedule, operations},
    simulate::{Link, Links, PassCosts, ScheduleCosts, simulate, submission_order},
};
use proptest::{collection::vec, prelude::*};

use crate::simulate::support::ALL;

#[derive(Debug, Clone)]
struct Case {
    schedule: Schedule,
    shape: PipelineShape,
    costs: Vec<Vec<PassCosts>>,
    links: Vec<Link>,
    bytes: Vec<f64>,
}

fn case() -> impl Strategy<Value = Case> {
    let shape = (1..7usize, 1..6usize, 1..4usize, 1..4usize, 0..3usize);
    (prop::sample::select(&ALL), shape).prop_flat_map(|(schedule, shape)| {
        let (stages, groups, microbatches, iterations, extra) = shape;
        let seconds = || prop_oneof![1 => Just(0.0), 4 => 0.0..10.0f64];
        let costs =
            (seconds(), seconds(), seconds()).prop_map(|(forward, backward, step)| PassCosts {
                forward,
                backward,
                step,
            });
        let rate = prop_oneof![1 => Just(f64::INFINITY), 3 => 0.1..10.0f64];
        let link = (rate, seconds()).prop_map(|(bytes_per_second, latency)| Link {
            bytes_per_second,
            latency,
        });
        (
            vec(vec(costs, groups), stages),
            vec(link, stages - 1),
            vec(0.0..10.0f64, groups),
        )
            .prop_map(move |(costs, links, bytes)| Case {
                schedule,
                shape: PipelineShape::new(stages, groups, microbatches, iterations)
                    .with_extra_warmup(extra),
                costs,
                links,
                bytes,
            })
    })
}

/// By stage or link: when operations, or what they made, were there.
type Ends = BTreeMap<(usize, Operation), f64>;

/// When everything that an operation needs besides its stage is there, by the rules alone.
fn ready(stage: usize, operation: Operation, case: &Case, ends: &Ends, arrivals: &Ends) -> f64 {
    match operation {
        Operation::Forward {
            group, iteration, ..
        } => {
            let update = iteration
                .checked_sub(1)
                .map(|iteration| Operation::Step { group, iteration });
            let updated = update.map_or(0.0, |update| ends[&(stage, update)]);
            let below = stage.checked_sub(1);
            below.map_or(updated, |link| updated.max(arrivals[&(link, operation)]))
        }
        Operation::Backward {
            group,
            microbatch,
            iteration,
        } => {
            let forward = Operation::Forward {
                group,
                microbatch,
                iteration,
            };
            let own = ends[&(stage, forward)];
            if stage + 1 == case.shape.stages {
                own
            } else {
                own.max(arrivals[&(stage, operation)])
            }
        }
        Operation::Step { group, iteration } => (0..case.shape.microbatches)
            .map(|microbatch| {
                let backward = Operation::Backward {
                    group,
                    microbatch,
                    iteration,
                };
                ends[&(stage, backward)]
            })
            .fold(0.0, f64::max),
    }
}

proptest! {
    /// Every start is the earliest that the rules allow, and nothing is left out.
    #[test]
    fn operations_start_as_soon_as_they_can(case in case()) {
        let lists = operations(case.schedule, &case.shape);
        let costs = ScheduleCosts::new(case.costs.clone()).unwrap();
        let links = Links::new(case.links.clone(), case.bytes.clone()).unwrap();
        let simulation = simulate(&lists, &costs, &links).unwrap();

        let mut ends = Ends::new();
        for report in &simulation.stages {
            for interval in &report.intervals {
                ends.insert((interval.stage, interval.operation), interval.end);
            }
        }
        let mut arrivals = Ends::new();
        let mut free: BTreeMap<(usize, bool), f64> = BTreeMap::new();
        for transfer in &simulation.transfers {
            let downward = matches!(transfer.operation, Operation::Forward { .. });
            let sender = transfer.link + usize::from(!downward);
            let free = free.entry((transfer.link, downward)).or_insert(0.0);
            let link = case.links[transfer.link];
            prop_assert_eq!(transfer.start, ends[&(sender, transfer.operation)].max(*free));
            *free = transfer.start + case.bytes[transfer.operation.group()] / link.bytes_per_second;
            prop_assert_eq!(transfer.end, *free + link.latency);
            arrivals.insert((transfer.link, transfer.operation), transfer.end);
        }
        for (stage, report) in simulation.stages.iter().enumerate() {
            let done: Vec<Operation> = report.intervals.iter().map(|next| next.operation).collect();
            prop_assert_eq!(&done, &lists[stage]);
            let mut free = 0.0f64;
            for interval in &report.intervals {
                let ready = ready(stage, interval.operation, &case, &ends, &arrivals);
                prop_assert_eq!(interval.start, ready.max(free));
                let costs = case.costs[stage][interval.operation.group()];
                let seconds = match interval.operation {
                    Operation::Forward { .. } => costs.forward,
                    Operation::Backward { .. } => costs.backward,
                    Operation::Step { .. } => costs.step,
                };
                prop_assert_eq!(interval.end, interval.start + seconds);
                free = interval.end;
            }
            prop_assert!(free <= simulation.makespan);
            prop_assert!(report.whole.busy <= simulation.makespan * (1.0 + 1e-12));
            let bound = match case.schedule {
                Schedule::GPipe => case.shape.microbatches,
                _ => (case.shape.stages - 1 - stage) * (1 + case.shape.extra_warmup) + 1,
            };
            prop_assert!(report.most_in_flight() <= bound);
            prop_assert_eq!(report.whole.steps, case.shape.groups * case.shape.iterations);
        }
    }

    /// Submitted in this order, every device finds its work in its list's order, nothing before what
    /// it needs, and nothing later than work that a device of equal speed would do after it.
    #[test]
    fn one_thread_can_submit_for_all_stages(case in case()) {
        let lists = operations(case.schedule, &case.shape);
        let order = submission_order(&lists).unwrap();
        for (stage, list) in lists.iter().enumerate() {
            let own = order.iter().filter(|(of, _)| *of == stage);
            prop_assert_eq!(&own.map(|(_, operation)| *operation).collect::<Vec<_>>(), list);
        }
        // Without links an arrival is the end of what it comes from, of the sending stage.
        let mut ends = Ends::new();
        let mut arrivals = Ends::new();
        let mut free = vec![0.0f64; case.shape.stages];
        let mut latest = 0.0f64;
        for (stage, operation) in order {
            // Fails on a missing entry if something needed has not been submitted.
            let start = ready(stage, operation, &case, &ends, &arrivals).max(free[stage]);
            prop_assert!(start >= latest);
            latest = start;
            let seconds = f64::from(u8::from(!matches!(operation, Operation::Step { .. })));
            free[stage] = start + seconds;
            ends.insert((stage, operation), free[stage]);
            match operation {
                Operation::Forward { .. } => {
                    arrivals.insert((stage, operation), free[stage]);
                }
                Operation::Backward { .. } if stage > 0 => {
                    arrivals.insert((stage - 1, operation), free[stage]);
                }
                _ => {}
            }
        }
    }
}
