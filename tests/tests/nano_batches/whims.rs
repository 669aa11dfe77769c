//! A scheduler that changes its mind.

use std::{
    collections::BTreeMap,
    env,
    time::{SystemTime, UNIX_EPOCH},
};

use loraloom_scheduler::{
    Admission, Decision, Member, Outcome, Parking, Scheduler, SchedulerError, Task, TaskId,
    TaskState,
};

/// Random numbers; splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Changes parts all the time, and often who runs and where.
pub(crate) struct Whims {
    random: Random,
    tasks: BTreeMap<TaskId, (TaskState, usize)>,
    groups: Vec<Vec<TaskId>>,
}

impl Whims {
    pub(crate) fn new(seed: u64, groups: usize) -> Self {
        Self {
            random: Random(seed),
            tasks: BTreeMap::new(),
            groups: vec![Vec::new(); groups],
        }
    }

    fn runs(&self, task: TaskId) -> bool {
        self.groups.iter().flatten().any(|&other| other == task)
    }

    /// Takes a task out, if it runs.
    fn take(&mut self, task: TaskId) {
        for group in &mut self.groups {
            group.retain(|&other| other != task);
        }
    }
}

impl Scheduler for Whims {
    fn submit(&mut self, task: Task) -> Result<(), SchedulerError> {
        self.tasks
            .insert(task.id, (TaskState::Queued, task.max_parts));
        Ok(())
    }

    fn decide(&mut self) -> Decision {
        let mut decision = Decision::default();
        let tasks = self.tasks.iter();
        let open = tasks.filter(|(_, (state, _))| !state.is_final());
        let open: Vec<TaskId> = open.map(|(&task, _)| task).collect();
        for &task in &open {
            let (ran, group) = (self.runs(task), self.random.below(self.groups.len()));
            let others = self.groups.iter().flatten().count() > usize::from(ran);
            let reason = "a whim".to_owned();
            if ran && others && self.random.one_in(6) {
                self.take(task);
                let by = None;
                decision.parked.push(Parking { task, by, reason });
            } else if !ran && (!others || self.random.one_in(2)) {
                self.groups[group].push(task);
                decision.admitted.push(Admission { task, reason });
            } else if ran && self.random.one_in(8) {
                self.take(task);
                self.groups[group].push(task);
            }
        }
        if self.random.one_in(8) {
            self.groups.reverse();
        }
        for group in self.groups.clone() {
            let members = group.into_iter().map(|task| {
                let most = self.tasks[&task].1;
                let parts = 1 + self.random.below(most + 1);
                Member { task, parts }
            });
            decision.groups.push(members.collect());
        }
        decision.max_steps = Some(1 + self.random.below(7));
        decision
    }

    fn finish(&mut self, task: TaskId, outcome: Outcome) -> Result<(), SchedulerError> {
        self.take(task);
        if let Some((state, _)) = self.tasks.get_mut(&task) {
            *state = outcome.into();
        }
        Ok(())
    }

    fn state(&self, task: TaskId) -> Option<TaskState> {
        self.tasks.get(&task).map(|(state, _)| *state)
    }
}

#[expect(clippy::print_stdout, reason = "a failure must be repeatable")]
pub(crate) fn seed() -> u64 {
    let seed = match env::var("LORALOOM_TEST_SEED") {
        Ok(text) => text.parse().expect("LORALOOM_TEST_SEED is a number"),
        Err(_) => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64),
    };
    println!("LORALOOM_TEST_SEED={seed}");
    seed
}
