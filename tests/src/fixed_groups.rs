use std::collections::BTreeMap;

use loraloom_scheduler::{Member, Refusal, Room, Task, TaskId};

/// The same groups for as long as their tasks run, each task with the same parts.
#[derive(Debug)]
pub struct FixedGroups {
    /// Parts of the tasks, by group and in the order of arrival.
    parts: Vec<Vec<usize>>,
    max_steps: Option<usize>,
    /// Tasks that have their places, by arrival.
    placed: BTreeMap<usize, TaskId>,
}

impl FixedGroups {
    /// Groups of tasks in the order of their arrival, with the parts of each, and the iterations from
    /// one decision to the next at the most.
    pub fn new(parts: Vec<Vec<usize>>, max_steps: Option<usize>) -> Self {
        Self {
            parts,
            max_steps,
            placed: BTreeMap::new(),
        }
    }

    fn group_of(&self, place: usize) -> Option<usize> {
        let mut before = 0;
        self.parts.iter().position(|group| {
            before += group.len();
            place < before
        })
    }
}

impl Room for FixedGroups {
    fn clear(&mut self) {
        self.placed.clear();
    }

    fn place(&mut self, task: &Task, _: Option<usize>) -> Result<usize, Refusal> {
        let place = task.arrival as usize;
        let group = self.group_of(place).ok_or(Refusal {
            reason: "all places are taken".to_owned(),
        })?;
        self.placed.insert(place, task.id);
        Ok(group)
    }

    fn remove(&mut self, task: TaskId) {
        self.placed.retain(|_, placed| *placed != task);
    }

    fn groups(&self) -> Vec<Vec<Member>> {
        let mut places = 0..;
        self.parts
            .iter()
            .map(|group| {
                group
                    .iter()
                    .zip(places.by_ref())
                    .filter_map(|(&parts, place)| {
                        let &task = self.placed.get(&place)?;
                        Some(Member { task, parts })
                    })
                    .collect()
            })
            .collect()
    }

    fn learns_after(&self, _admitted: bool, _waiting: bool) -> Option<usize> {
        self.max_steps
    }
}
