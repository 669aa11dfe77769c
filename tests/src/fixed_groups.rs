use loraloom_scheduler::{
    Admission, Decision, Member, OutOfMemory, Outcome, Parking, Scheduler, SchedulerError, Task,
    TaskId, TaskState,
};

/// The same groups for as long as their tasks run, each task with the same parts. Whoever came last
/// gives its place away when memory runs out, and has it back in the next decision.
#[derive(Debug)]
pub struct FixedGroups {
    /// Parts of the tasks, by group and in the order of arrival.
    parts: Vec<Vec<usize>>,
    max_steps: Option<usize>,
    tasks: Vec<(TaskId, TaskState)>,
}

impl FixedGroups {
    /// Groups of tasks in the order of their arrival, with the parts of each, and the iterations from
    /// one decision to the next at the most.
    pub fn new(parts: Vec<Vec<usize>>, max_steps: Option<usize>) -> Self {
        Self {
            parts,
            max_steps,
            tasks: Vec::new(),
        }
    }
}

impl Scheduler for FixedGroups {
    fn submit(&mut self, task: Task) -> Result<(), SchedulerError> {
        self.tasks.push((task.id, TaskState::Queued));
        Ok(())
    }

    fn decide(&mut self) -> Decision {
        let mut decision = Decision {
            max_steps: self.max_steps,
            ..Decision::default()
        };
        let mut tasks = self.tasks.iter_mut();
        for group in &self.parts {
            let mut members = Vec::new();
            for (&parts, (task, state)) in group.iter().zip(tasks.by_ref()) {
                if state.is_waiting() {
                    decision.admitted.push(Admission {
                        task: *task,
                        reason: String::new(),
                    });
                    *state = TaskState::Running;
                }
                if *state == TaskState::Running {
                    members.push(Member { task: *task, parts });
                }
            }
            decision.groups.push(members);
        }
        decision
    }

    fn finish(&mut self, task: TaskId, outcome: Outcome) -> Result<(), SchedulerError> {
        for (id, state) in &mut self.tasks {
            if *id == task {
                *state = outcome.into();
            }
        }
        Ok(())
    }

    fn out_of_memory(&mut self) -> OutOfMemory {
        let mut tasks = self.tasks.iter_mut().rev();
        let Some((task, state)) = tasks.find(|(_, state)| *state == TaskState::Running) else {
            return OutOfMemory::NobodyRuns;
        };
        *state = TaskState::Parked;
        OutOfMemory::Parked(Parking {
            task: *task,
            by: None,
            reason: "memory ran out".to_owned(),
        })
    }

    fn state(&self, task: TaskId) -> Option<TaskState> {
        let mut tasks = self.tasks.iter();
        tasks.find(|(id, _)| *id == task).map(|(_, state)| *state)
    }
}
