use loraloom_scheduler::{TaskId, TaskOutcome, TaskState};
use proptest::{collection::vec, prelude::*, sample::Index};

use crate::policy::{room::Pace, world::World};

/// What the world does between two decisions.
#[derive(Debug, Clone)]
pub(crate) enum Happening {
    Submit {
        priority: i64,
        tenant: usize,
        units: usize,
        steps: usize,
    },
    Cancel(Index),
    Pause(Index),
    Resume(Index),
    OutOfMemory,
    /// Something was measured, and nothing follows from it.
    Measure,
    /// Iterations without a decision that changes anything.
    Train(usize),
}

pub(crate) const CAPACITY: usize = 8;

pub(crate) fn paces() -> impl Strategy<Value = Pace> {
    prop_oneof![
        Just(Pace::Unknown),
        Just(Pace::Linear(1.0, 0.25)),
        Just(Pace::Flat(1.0, 0.125)),
    ]
}

pub(crate) fn submissions(priorities: std::ops::Range<i64>) -> impl Strategy<Value = Happening> {
    (priorities, 0..3_usize, 1..=CAPACITY, 1..20_usize).prop_map(
        |(priority, tenant, units, steps)| Happening::Submit {
            priority,
            tenant,
            units,
            steps,
        },
    )
}

pub(crate) fn happenings() -> impl Strategy<Value = Vec<Vec<Happening>>> {
    let happening = prop_oneof![
        6 => submissions(-1..2),
        1 => any::<Index>().prop_map(Happening::Cancel),
        1 => any::<Index>().prop_map(Happening::Pause),
        1 => any::<Index>().prop_map(Happening::Resume),
        1 => Just(Happening::OutOfMemory),
        1 => Just(Happening::Measure),
        6 => (1..8_usize).prop_map(Happening::Train),
    ];
    vec(vec(happening, 0..5), 1..30)
}

impl World {
    fn pick(&self, which: Index, states: &[TaskState]) -> Option<TaskId> {
        let mut those = Vec::new();
        for &task in self.tasks.keys() {
            if states.contains(&self.state(task)) {
                those.push(task);
            }
        }
        (!those.is_empty()).then(|| *which.get(&those))
    }

    pub(crate) fn happen(&mut self, happening: &Happening) {
        let live = [TaskState::Queued, TaskState::Running, TaskState::Parked];
        match happening {
            Happening::Submit {
                priority,
                tenant,
                units,
                steps,
            } => {
                self.arrive(*priority, &format!("tenant-{tenant}"), *units, *steps);
            }
            Happening::Cancel(which) => {
                if let Some(task) = self.pick(*which, &live) {
                    self.scheduler
                        .finish(task, TaskOutcome::Cancelled, self.now)
                        .unwrap();
                    self.running.remove(&task);
                }
            }
            Happening::Pause(which) => {
                if let Some(task) = self.pick(*which, &live) {
                    self.scheduler.pause(task, self.now).unwrap();
                    self.running.remove(&task);
                }
            }
            Happening::Resume(which) => {
                if let Some(task) = self.pick(*which, &[TaskState::Paused]) {
                    self.scheduler.resume(task, self.now).unwrap();
                }
            }
            Happening::OutOfMemory => {
                self.out_of_memory();
            }
            Happening::Measure => {
                self.scheduler.room_mut();
            }
            Happening::Train(iterations) => {
                for _ in 0..*iterations {
                    self.train();
                }
            }
        }
    }
}
