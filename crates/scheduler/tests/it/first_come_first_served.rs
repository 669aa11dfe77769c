//! What first come, first served promises, on random arrivals, endings and caps.

use std::collections::BTreeSet;

use loraloom_scheduler::{
    Decision, FirstComeFirstServed, Load, Member, Outcome, Scheduler, SchedulerError, Task, TaskId,
    TaskState,
};
use proptest::{collection::vec, prelude::*, sample::Index};

fn task(id: u64, priority: i64, arrival: u64) -> Task {
    Task {
        id: TaskId(id),
        name: format!("adapter-{id}"),
        tenant: "default".into(),
        priority,
        arrival,
        rank: 8,
        rows_per_step: 4,
        tokens_per_step: 512,
        total_steps: 10,
        max_parts: 4,
        load: Load::default(),
    }
}

fn scheduler(max_adapters: Option<usize>) -> FirstComeFirstServed {
    FirstComeFirstServed::new(max_adapters, 1).expect("a positive cap")
}

fn members(decision: &Decision) -> Vec<TaskId> {
    let members = decision.groups.iter().flatten();
    members.map(|member| member.task).collect()
}

/// What the world does between two decisions.
#[derive(Debug, Clone)]
enum Happening {
    Submit { priority: i64 },
    End { which: Index, outcome: Outcome },
    CancelQueued { which: Index },
}

fn groups(decision: &Decision) -> Vec<Vec<u64>> {
    let ids = |group: &Vec<Member>| group.iter().map(|member| member.task.0).collect();
    decision.groups.iter().map(ids).collect()
}

fn happenings() -> impl Strategy<Value = Vec<Vec<Happening>>> {
    let outcome = prop_oneof![
        Just(Outcome::Done),
        Just(Outcome::Failed),
        Just(Outcome::Cancelled)
    ];
    let happening = prop_oneof![
        3 => (-2..=2_i64).prop_map(|priority| Happening::Submit { priority }),
        2 => (any::<Index>(), outcome)
            .prop_map(|(which, outcome)| Happening::End { which, outcome }),
        1 => any::<Index>().prop_map(|which| Happening::CancelQueued { which }),
    ];
    vec(vec(happening, 0..6), 1..24)
}

/// The slow reference: a plain list searched for the best task, one place at a time.
#[derive(Default)]
struct Reference {
    queue: Vec<Task>,
    running: Vec<TaskId>,
}

impl Reference {
    fn admit(&mut self, cap: Option<usize>) -> Vec<TaskId> {
        let mut admitted = Vec::new();
        while !self.queue.is_empty() && self.running.len() < cap.unwrap_or(usize::MAX) {
            let mut best = 0;
            for (i, other) in self.queue.iter().enumerate() {
                let champion = &self.queue[best];
                let earlier =
                    other.priority == champion.priority && other.arrival < champion.arrival;
                if other.priority > champion.priority || earlier {
                    best = i;
                }
            }
            let id = self.queue.remove(best).id;
            self.running.push(id);
            admitted.push(id);
        }
        admitted
    }
}

proptest! {
    #[test]
    fn every_decision_is_the_references(
        cap in proptest::option::of(1..5_usize),
        rounds in happenings(),
    ) {
        let mut scheduler = scheduler(cap);
        let mut reference = Reference::default();
        let mut next = 0;
        let mut ever_admitted = BTreeSet::new();
        let mut cancelled_in_queue = BTreeSet::new();

        // Enough quiet rounds at the end to empty any queue.
        let quiet = std::iter::repeat_n(Vec::new(), 24 * 6 + 1);
        for (round, happening) in rounds.iter().cloned().chain(quiet).enumerate() {
            for happening in happening {
                match happening {
                    Happening::Submit { priority } => {
                        // Identities fall while arrivals rise: order must come from the arrival.
                        let task = task(1000 - next, priority, next);
                        next += 1;
                        scheduler.submit(task.clone()).expect("a new identity");
                        reference.queue.push(task);
                    }
                    Happening::End { which, outcome } if !reference.running.is_empty() => {
                        let i = which.index(reference.running.len());
                        let id = reference.running.remove(i);
                        scheduler.finish(id, outcome).expect("a running task");
                        prop_assert_eq!(scheduler.state(id), Some(outcome.into()));
                    }
                    Happening::CancelQueued { which } if !reference.queue.is_empty() => {
                        let i = which.index(reference.queue.len());
                        let id = reference.queue.remove(i).id;
                        scheduler.finish(id, Outcome::Cancelled).expect("a queued task");
                        cancelled_in_queue.insert(id);
                    }
                    Happening::End { .. } | Happening::CancelQueued { .. } => {}
                }
            }
            if round >= rounds.len() && !reference.running.is_empty() {
                let id = reference.running.remove(0);
                scheduler.finish(id, Outcome::Done).expect("a running task");
            }

            let expected = reference.admit(cap);
            let decision = scheduler.decide();
            let admitted: Vec<_> = decision.admitted.iter().map(|a| a.task).collect();
            prop_assert_eq!(&admitted, &expected);
            prop_assert!(decision.admitted.iter().all(|a| !a.reason.is_empty()));
            prop_assert!(decision.groups.len() <= 1);
            let group = members(&decision);
            prop_assert_eq!(&group, &reference.running);
            prop_assert!(cap.is_none_or(|cap| group.len() <= cap));
            for id in group {
                prop_assert_eq!(scheduler.state(id), Some(TaskState::Running));
            }
            for id in admitted {
                prop_assert!(ever_admitted.insert(id), "{} was admitted twice", id);
            }

            let again = scheduler.decide();
            prop_assert!(again.admitted.is_empty());
            prop_assert_eq!(again.groups, decision.groups);
        }

        prop_assert!(scheduler.decide().groups.is_empty());
        let submitted: BTreeSet<_> = (0..next).map(|n| TaskId(1000 - n)).collect();
        let seen: BTreeSet<_> = ever_admitted.union(&cancelled_in_queue).copied().collect();
        prop_assert_eq!(seen, submitted);
        prop_assert!(ever_admitted.is_disjoint(&cancelled_in_queue));
    }
}

#[test]
fn a_reason_names_the_turn_and_the_place() {
    let mut scheduler = scheduler(Some(2));
    for (id, priority) in [(0, 0), (1, 5), (2, 0)] {
        scheduler
            .submit(task(id, priority, id))
            .expect("a new identity");
    }
    let first: Vec<_> = scheduler
        .decide()
        .admitted
        .into_iter()
        .map(|a| a.reason)
        .collect();
    assert_eq!(
        first,
        [
            "next in line at priority 5; takes place 1 of 2",
            "next in line at priority 0; takes place 2 of 2",
        ]
    );
}

#[test]
fn a_higher_priority_does_not_preempt() {
    let mut scheduler = scheduler(Some(1));
    scheduler.submit(task(0, 0, 0)).expect("a new identity");
    assert_eq!(members(&scheduler.decide()), [TaskId(0)]);
    scheduler.submit(task(1, 9, 1)).expect("a new identity");
    assert_eq!(members(&scheduler.decide()), [TaskId(0)]);
    scheduler
        .finish(TaskId(0), Outcome::Done)
        .expect("a running task");
    assert_eq!(members(&scheduler.decide()), [TaskId(1)]);
}

#[test]
fn refusals_change_nothing() {
    assert_eq!(
        FirstComeFirstServed::new(Some(0), 1).expect_err("a cap of 0"),
        SchedulerError::NoPlaces
    );

    let mut scheduler = scheduler(None);
    scheduler.submit(task(7, 0, 0)).expect("a new identity");
    let unknown = scheduler
        .finish(TaskId(8), Outcome::Done)
        .expect_err("never submitted");
    assert_eq!(unknown.to_string(), "task 8 was never submitted");
    let twice = scheduler
        .submit(task(7, 1, 1))
        .expect_err("the same identity");
    assert_eq!(
        twice.to_string(),
        "task 7 (`adapter-7`) was already submitted as `adapter-7`"
    );
    let early = scheduler
        .finish(TaskId(7), Outcome::Done)
        .expect_err("still queued");
    assert_eq!(
        early.to_string(),
        "`adapter-7` is queued and cannot become done"
    );

    assert_eq!(members(&scheduler.decide()), [TaskId(7)]);
    scheduler
        .finish(TaskId(7), Outcome::Failed)
        .expect("a running task");
    let late = scheduler
        .finish(TaskId(7), Outcome::Done)
        .expect_err("already failed");
    assert_eq!(
        late.to_string(),
        "`adapter-7` is failed and cannot become done"
    );
    assert_eq!(scheduler.state(TaskId(8)), None);
}

fn sized(id: u64, tokens_per_step: usize) -> Task {
    Task {
        tokens_per_step,
        ..task(id, 0, id)
    }
}

#[test]
fn tasks_of_a_pipeline_are_spread_by_their_tokens_and_empty_groups_are_filled() {
    let mut scheduler = FirstComeFirstServed::new(Some(4), 2).expect("a positive cap");
    for (id, tokens) in [(0, 10), (1, 40), (2, 20), (3, 30), (4, 1), (5, 1)] {
        scheduler.submit(sized(id, tokens)).expect("a new identity");
    }
    let finish = |scheduler: &mut FirstComeFirstServed, id| {
        scheduler
            .finish(TaskId(id), Outcome::Done)
            .expect("a running task");
        scheduler.decide()
    };
    assert_eq!(groups(&scheduler.decide()), [[0, 1], [2, 3]]);
    // Whoever comes later goes to the group with the fewest tokens.
    let decision = finish(&mut scheduler, 1);
    assert_eq!(groups(&decision), [vec![0, 4], vec![2, 3]]);
    assert_eq!(decision.regrouped, None);
    finish(&mut scheduler, 4);
    let decision = finish(&mut scheduler, 0);
    assert_eq!(groups(&decision), [vec![5], vec![2, 3]]);
    // A group without tasks takes the last one of the other; then the other's number.
    let decision = finish(&mut scheduler, 5);
    assert_eq!(groups(&decision), [[3], [2]]);
    assert_eq!(
        decision.regrouped.as_deref(),
        Some("a group had no task left")
    );
    let decision = finish(&mut scheduler, 3);
    assert_eq!(groups(&decision), [[2]]);
    assert!(decision.regrouped.is_some());
    assert!(finish(&mut scheduler, 2).groups.is_empty());
}

proptest! {
    #[test]
    fn there_are_as_many_groups_as_stages_while_there_are_tasks_for_them(
        stages in 0_usize..5,
        cap in proptest::option::of(1..7_usize),
        sizes in vec(0_usize..2000, 1..12),
        ends in vec(any::<Index>(), 0..40),
    ) {
        let mut scheduler = FirstComeFirstServed::new(cap, stages).expect("a positive cap");
        let mut submitted = sizes.iter().enumerate();
        let mut before: Vec<Vec<u64>> = Vec::new();
        for end in ends {
            if let Some((id, &tokens)) = submitted.next() {
                scheduler.submit(sized(id as u64, tokens)).expect("a new identity");
            }
            let decision = scheduler.decide();
            let now = groups(&decision);
            let running: BTreeSet<u64> = now.concat().into_iter().collect();
            prop_assert_eq!(running.len(), now.concat().len(), "a task is in two groups");
            prop_assert_eq!(now.len(), stages.max(1).min(running.len()));
            prop_assert!(now.iter().all(|group| !group.is_empty()));
            // Without a reason nobody has moved, and nobody but the last of a group ever does.
            if decision.regrouped.is_none() {
                for (group, members) in now.iter().enumerate() {
                    for id in members {
                        let was = before.iter().position(|group| group.contains(id));
                        prop_assert!(was.is_none_or(|was| was == group));
                    }
                }
            }
            for group in &now {
                let stayed: Vec<u64> = before
                    .iter()
                    .max_by_key(|before| before.iter().filter(|&id| group.contains(id)).count())
                    .map(|before| before.iter().copied().filter(|id| group.contains(id)).collect())
                    .unwrap_or_default();
                prop_assert!(group.starts_with(&stayed), "{:?} became {:?}", before, now);
            }
            before = now;
            if !running.is_empty() {
                let running: Vec<u64> = running.into_iter().collect();
                let id = running[end.index(running.len())];
                scheduler.finish(TaskId(id), Outcome::Done).expect("a running task");
                for group in &mut before {
                    group.retain(|&member| member != id);
                }
            }
        }
    }
}
