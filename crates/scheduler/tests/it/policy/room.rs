use loraloom_scheduler::{Load, Member, Refusal, Room, Task, TaskId};

/// A room of groups with so many units each; a task takes as many units as its rank.
#[derive(Debug, Clone)]
pub(crate) struct StubRoom {
    pub(crate) capacity: usize,
    pub(crate) pace: Pace,
    groups: Vec<Vec<Task>>,
}

/// Seconds of an iteration, in which every task takes one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Pace {
    Unknown,
    /// So many, and for each unit so many more.
    Linear(f64, f64),
    /// At least so many, or so many for each unit: small neighbours cost nothing.
    Flat(f64, f64),
}

impl StubRoom {
    pub(crate) fn new(groups: usize, capacity: usize, pace: Pace) -> Self {
        Self {
            capacity,
            pace,
            groups: vec![Vec::new(); groups],
        }
    }

    fn units(group: &[Task]) -> usize {
        group.iter().map(|task| task.rank).sum()
    }

    pub(crate) fn seconds(&self) -> Option<f64> {
        let units = self
            .groups
            .iter()
            .map(|group| Self::units(group))
            .sum::<usize>() as f64;
        match self.pace {
            Pace::Unknown => None,
            Pace::Linear(base, unit) => Some(base + unit * units),
            Pace::Flat(least, unit) => Some(least.max(unit * units)),
        }
    }
}

impl Room for StubRoom {
    fn admits_alone(&self, task: &Task) -> Result<(), Refusal> {
        if task.rank <= self.capacity {
            return Ok(());
        }
        Err(Refusal {
            reason: format!("{} of {} units", task.rank, self.capacity),
        })
    }

    fn clear(&mut self) {
        self.groups.iter_mut().for_each(Vec::clear);
    }

    fn place(&mut self, task: &Task, group: Option<usize>) -> Result<usize, Refusal> {
        let free = |group: usize| {
            self.capacity
                .saturating_sub(Self::units(&self.groups[group]))
        };
        let fits = |&group: &usize| free(group) >= task.rank;
        let emptiest = || {
            (0..self.groups.len())
                .rev()
                .max_by_key(|&group| free(group))
        };
        let group = group.filter(fits).or_else(|| emptiest().filter(fits));
        let Some(group) = group else {
            let most = emptiest().map_or(0, free);
            return Err(Refusal {
                reason: format!("{} units, {most} left", task.rank),
            });
        };
        self.groups[group].push(task.clone());
        Ok(group)
    }

    fn remove(&mut self, task: TaskId) {
        for group in &mut self.groups {
            group.retain(|there| there.id != task);
        }
    }

    fn regroup(&mut self) -> Option<String> {
        None
    }

    fn groups(&self) -> Vec<Vec<Member>> {
        let member = |task: &Task| Member {
            task: task.id,
            parts: 1,
        };
        let groups = self.groups.iter();
        groups
            .map(|group| group.iter().map(member).collect())
            .collect()
    }

    fn seconds_per_step(&self, task: TaskId) -> Option<f64> {
        let there = self.groups.iter().flatten().any(|other| other.id == task);
        self.seconds().filter(|_| there)
    }
}

/// A task of so many units and steps; its arrival is its number.
pub(crate) fn task(id: u64, priority: i64, tenant: &str, units: usize, steps: usize) -> Task {
    Task {
        id: TaskId(id),
        name: format!("adapter-{id}"),
        tenant: tenant.into(),
        priority,
        arrival: id,
        rank: units,
        rows_per_step: 1,
        tokens_per_step: 10 * units,
        total_steps: steps,
        passes_per_step: 1,
        max_parts: 1,
        load: Load::default(),
    }
}
