use std::collections::BTreeMap;

use loraloom_scheduler::{Load, MeasuredIteration, Member, Refusal, Room, Task, TaskId};

use crate::Random;

/// A room that refuses tasks, moves them and splits their steps at random. One that has steps to take
/// is never refused: training goes on.
#[derive(Debug)]
pub struct RandomRoom {
    /// Of a hundred tasks, so many are refused, and so many of the others moved.
    refused: usize,
    moved: usize,
    /// Whether steps are split.
    splits: bool,
    /// The most iterations between two decisions.
    most_iterations: usize,
    random: Random,
    groups: Vec<Vec<Member>>,
    /// Steps that each task has to take.
    left: BTreeMap<TaskId, usize>,
    welcome: Option<TaskId>,
    iterations: usize,
    /// Steps were taken back, which `left` does not know of: from then on no task is refused that would
    /// be alone.
    ran_out: bool,
}

impl RandomRoom {
    /// A room of so many groups, which parks tasks at every other step and moves all of them.
    pub fn restless(groups: usize) -> Self {
        Self {
            refused: 90,
            moved: 100,
            splits: false,
            most_iterations: 1,
            random: Random::seeded(),
            groups: vec![Vec::new(); groups],
            left: BTreeMap::new(),
            welcome: None,
            iterations: 1,
            ran_out: false,
        }
    }

    /// A room that splits steps at random, and lets tasks stay for a while.
    pub fn splitting(groups: usize) -> Self {
        Self {
            refused: 40,
            moved: 12,
            splits: true,
            most_iterations: 7,
            ..Self::restless(groups)
        }
    }

    /// Chooses who is not refused by the next decision.
    fn welcome_another(&mut self) {
        let open: Vec<TaskId> = self
            .left
            .iter()
            .filter(|(_, left)| **left > 0)
            .map(|(&task, _)| task)
            .collect();
        self.welcome = match open.len() {
            0 => None,
            count => Some(open[self.random.below(count)]),
        };
    }

    fn happens(&mut self, of_a_hundred: usize) -> bool {
        self.random.below(100) < of_a_hundred
    }
}

impl Room for RandomRoom {
    fn clear(&mut self) {
        self.groups.iter_mut().for_each(Vec::clear);
    }

    fn place(&mut self, task: &Task, group: Option<usize>) -> Result<usize, Refusal> {
        let known = self.left.contains_key(&task.id);
        self.left.entry(task.id).or_insert(task.total_steps);
        let alone = self.ran_out && self.groups.iter().all(Vec::is_empty);
        let welcome = alone || self.welcome == Some(task.id);
        if known && !welcome && self.happens(self.refused) {
            let reason = "a whim".to_owned();
            return Err(Refusal { reason });
        }
        let group = match group {
            Some(group) if !self.happens(self.moved) => group,
            _ => self.random.below(self.groups.len()),
        };
        let parts = if self.splits {
            1 + self.random.below(task.max_parts + 1)
        } else {
            1
        };
        self.groups[group].push(Member {
            task: task.id,
            parts,
        });
        Ok(group)
    }

    fn remove(&mut self, task: TaskId) {
        for group in &mut self.groups {
            group.retain(|member| member.task != task);
        }
    }

    fn groups(&self) -> Vec<Vec<Member>> {
        self.groups.clone()
    }

    fn run(&mut self) -> Option<u64> {
        self.welcome_another();
        self.iterations = 1 + self.random.below(self.most_iterations);
        None
    }

    fn learns_after(&self, _admitted: bool, _waiting: bool) -> Option<usize> {
        Some(self.iterations)
    }

    fn out_of_memory(&mut self, _: Load) {
        self.ran_out = true;
    }

    fn measured(&mut self, iteration: &MeasuredIteration) {
        for part in &iteration.tasks {
            if let Some(left) = self.left.get_mut(&part.task) {
                *left = left.saturating_sub(part.steps);
            }
        }
        if self.welcome.is_some_and(|task| self.left[&task] == 0) {
            self.welcome_another();
        }
    }
}
