use std::collections::BTreeMap;

use super::Driver;
use crate::{
    Budget, Decision, GroupedRoom, Member, NaiveRoom, OneTaskPerGroup, Outcome, Padding, Room,
    SchedulerError, SchedulerOptions, StepTimeModel, StepTimes, Task, TaskId, TaskScheduler,
    TaskState, Work,
};

/// A room that is told what was learned of step times.
pub(super) trait Learns: Room {
    fn learn(&mut self, model: StepTimeModel);
}

impl<B: Budget> Learns for GroupedRoom<B> {
    fn learn(&mut self, model: StepTimeModel) {
        self.use_step_times(model);
    }
}

/// What the baselines do does not depend on step times.
impl<B: Budget> Learns for NaiveRoom<B> {
    fn learn(&mut self, _: StepTimeModel) {}
}

impl<B: Budget> Learns for OneTaskPerGroup<B> {
    fn learn(&mut self, _: StepTimeModel) {}
}

/// The scheduler of training, told what a trainer tells it.
#[derive(Debug)]
pub(super) struct Trained<R> {
    scheduler: TaskScheduler<R>,
    padding: Padding,
    tasks: BTreeMap<TaskId, Task>,
    times: StepTimes,
    /// Steps of tasks that were parked in the middle of an iteration: the scheduler hears of them
    /// when they go on.
    untold: BTreeMap<TaskId, usize>,
}

impl<R: Learns> Trained<R> {
    pub(super) fn new(
        room: R,
        options: SchedulerOptions,
        padding: Padding,
    ) -> Result<Self, SchedulerError> {
        Ok(Self {
            scheduler: TaskScheduler::new(room, options)?,
            padding,
            tasks: BTreeMap::new(),
            times: StepTimes::new(),
            untold: BTreeMap::new(),
        })
    }

    fn tell(&mut self, task: TaskId, steps: usize) -> Result<(), SchedulerError> {
        let known = self
            .tasks
            .get(&task)
            .ok_or(SchedulerError::UnknownTask(task))?;
        let tokens = (steps * known.tokens_per_step) as u64;
        self.scheduler.progress(task, steps, tokens)
    }
}

impl<R: Learns> Driver for Trained<R> {
    fn submit(&mut self, task: Task, seconds: f64) -> Result<(), SchedulerError> {
        self.tasks.insert(task.id, task.clone());
        self.scheduler.submit(task, seconds)
    }

    fn decide(&mut self, seconds: f64) -> Decision {
        self.scheduler.decide(seconds)
    }

    fn progressed(&mut self, task: TaskId, steps: usize) -> Result<(), SchedulerError> {
        if self.scheduler.state(task) == Some(TaskState::Running) {
            let untold = self.untold.remove(&task).unwrap_or(0);
            self.tell(task, untold + steps)
        } else {
            *self.untold.entry(task).or_default() += steps;
            Ok(())
        }
    }

    fn measured(&mut self, members: &[Member], seconds: f64, _: f64) {
        let tasks = members.iter().filter_map(|member| {
            let task = self.tasks.get(&member.task)?;
            Some((task, member.parts))
        });
        let work = Work::of_group(tasks, self.padding);
        if self.times.observe(work, seconds)
            && let Some(fit) = self.times.fit()
        {
            self.scheduler.room_mut().learn(fit.model);
        }
    }

    fn finish(
        &mut self,
        task: TaskId,
        outcome: Outcome,
        seconds: f64,
    ) -> Result<(), SchedulerError> {
        self.tasks.remove(&task);
        self.untold.remove(&task);
        self.scheduler.finish(task, outcome, seconds)
    }
}
