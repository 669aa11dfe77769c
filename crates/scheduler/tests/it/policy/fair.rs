use std::collections::BTreeMap;

use loraloom_scheduler::{Policy, SchedulerOptions, TaskId, TaskState};
use proptest::prelude::*;

use crate::policy::{
    happenings::{CAPACITY, Happening, happenings},
    room::{Pace, StubRoom},
    world::{World, fair, options},
};

/// What tenants were served by priority, and the promise about it.
struct Auditor {
    lead: f64,
    served: BTreeMap<(i64, String), f64>,
    at_last_decision: BTreeMap<(i64, String), f64>,
    most_between_decisions: f64,
    /// Of two tenants that are backlogged: the least and the largest difference since both are.
    apart: BTreeMap<(i64, String, String), (f64, f64)>,
    widest: f64,
}

impl Auditor {
    fn new(lead: u64) -> Self {
        Self {
            lead: lead as f64,
            served: BTreeMap::new(),
            at_last_decision: BTreeMap::new(),
            most_between_decisions: 0.0,
            apart: BTreeMap::new(),
            widest: 0.0,
        }
    }

    fn train(&mut self, world: &mut World) {
        for task in &world.running {
            let task = &world.tasks[task];
            let of = (task.priority, task.tenant.clone());
            *self.served.entry(of).or_default() += task.tokens_per_step as f64;
        }
        world.train();
    }

    fn decided(&mut self, world: &World) {
        for (of, served) in &self.served {
            let before = self.at_last_decision.insert(of.clone(), *served);
            let grown = served - before.unwrap_or(0.0);
            self.most_between_decisions = self.most_between_decisions.max(grown);
        }
        let mut backlogged: Vec<(i64, String)> = world
            .tasks
            .values()
            .filter(|task| world.state(task.id).is_waiting())
            .map(|task| (task.priority, task.tenant.clone()))
            .collect();
        backlogged.sort();
        backlogged.dedup();
        let mut apart = BTreeMap::new();
        let bound = self.lead + self.most_between_decisions + 1e-6;
        let ledgers: BTreeMap<_, _> = world.scheduler.ledgers().collect();
        for one in &backlogged {
            for other in backlogged
                .iter()
                .filter(|other| other.0 == one.0 && *other > one)
            {
                let counters = &ledgers[&one.0].counters;
                let gap = (counters[&one.1] - counters[&other.1]).abs();
                assert!(gap <= bound, "{one:?} and {other:?}: {gap} > {bound}");
                let served = |of| self.served.get(of).copied().unwrap_or(0.0);
                let difference = served(one) - served(other);
                let pair = (one.0, one.1.clone(), other.1.clone());
                let (least, most) = self
                    .apart
                    .get(&pair)
                    .copied()
                    .unwrap_or((difference, difference));
                let (least, most) = (least.min(difference), most.max(difference));
                assert!(
                    most - least <= 2.0 * bound,
                    "{pair:?}: {} > 2·{bound}",
                    most - least
                );
                self.widest = self.widest.max(most - least);
                apart.insert(pair, (least, most));
            }
        }
        self.apart = apart;
    }
}

proptest! {
    #![proptest_config(crate::policy::at_least(600))]
    #[test]
    fn backlogged_tenants_are_served_alike(
        rounds in happenings(), groups in 1..3_usize, lead in 0..300_u64,
        cap in prop::option::of(1..5_usize),
    ) {
        let options = SchedulerOptions { max_adapters: cap, ..options(fair(lead)) };
        let mut world = World::new(StubRoom::new(groups, CAPACITY, Pace::Unknown), options);
        let mut auditor = Auditor::new(lead);
        for round in rounds {
            for happening in &round {
                if let Happening::Train(iterations) = happening {
                    for _ in 0..*iterations {
                        world.decide();
                        auditor.decided(&world);
                        auditor.train(&mut world);
                    }
                } else {
                    world.happen(happening);
                }
            }
        }
    }
}

/// One tenant floods the queue with small tasks, one has tasks that fill the room, one comes and
/// goes, and new names appear all the time.
#[test]
fn adversaries_do_not_break_the_bound() {
    for (lead, groups) in [(0, 1), (50, 1), (500, 1), (50, 2), (500, 3)] {
        let mut world = World::new(
            StubRoom::new(groups, CAPACITY, Pace::Unknown),
            options(fair(lead)),
        );
        let mut auditor = Auditor::new(lead);
        for iteration in 0..1500 {
            if iteration % 2 == 0 && iteration < 600 {
                world.arrive(0, "flood", 1, 30);
            }
            if iteration % 60 == 0 {
                world.arrive(0, "large", CAPACITY, 20);
            }
            if iteration % 17 == 0 {
                world.arrive(0, "guest", 3, 4);
            }
            if iteration % 5 == 0 {
                world.arrive(0, &format!("name-{iteration}"), 2, 3);
            }
            world.decide();
            auditor.decided(&world);
            auditor.train(&mut world);
        }
        let bound = 2.0 * (auditor.lead + auditor.most_between_decisions);
        println!(
            "lead {lead}, {groups} groups: served {} apart at most, bound {bound}",
            auditor.widest
        );
        assert!(auditor.widest > 0.0);
    }
}

#[test]
fn two_tenants_share_one_place_and_swap_every_two_leads() {
    let mut world = World::new(StubRoom::new(1, 1, Pace::Unknown), options(fair(100)));
    for tenant in ["a", "b"] {
        world.arrive(0, tenant, 1, 1000);
    }
    let mut swaps = 0;
    for _ in 0..400 {
        swaps += world.decide().parked.len();
        world.train();
    }
    // Steps of 10 tokens: the other takes over at 110 ahead, after 11 steps, and then after 22 each.
    assert_eq!(swaps, 1 + (400 - 1 - 11) / 22);
    let steps = [0, 1].map(|id| world.scheduler.steps_taken(TaskId(id)).unwrap());
    assert!(steps[0].abs_diff(steps[1]) <= 11, "{steps:?}");
}

/// The example against LCF in section 5.3 of the VTC paper: a client is idle while another is served
/// alone, and returns.
#[test]
fn without_the_lift_a_tenant_that_returns_is_served_alone_until_it_has_caught_up() {
    let steps_of_the_other = |lift| {
        let policy = Policy::Fair { lead: 100, lift };
        let mut world = World::new(StubRoom::new(1, 1, Pace::Unknown), options(policy));
        let steady = world.arrive(0, "steady", 1, 10_000);
        world.arrive(0, "steady", 1, 10_000);
        for _ in 0..200 {
            world.decide();
            world.train();
        }
        let alone = world.scheduler.steps_taken(steady).unwrap();
        world.arrive(0, "returns", 1, 10_000);
        for _ in 0..180 {
            world.decide();
            world.train();
        }
        (alone, world.scheduler.steps_taken(steady).unwrap() - alone)
    };
    // Steps of 10 tokens: with the lift both are served half of 180, to within a lead.
    let (alone, shared) = steps_of_the_other(true);
    assert_eq!(alone, 200);
    assert!((80..=101).contains(&shared), "{shared}");
    assert_eq!(steps_of_the_other(false), (200, 0));
}

#[test]
fn service_from_elsewhere_counts() {
    let mut world = World::new(StubRoom::new(1, 1, Pace::Unknown), options(fair(100)));
    let first = world.arrive(0, "a", 1, 1000);
    let second = world.arrive(0, "b", 1, 1000);
    world.decide();
    world.train();
    assert_eq!(world.state(first), TaskState::Running);
    world.scheduler.charge("a", 200.0);
    world.decide();
    assert_eq!(world.state(second), TaskState::Running);
}
