//! The scheduler of runs, told what it would measure.

use std::num::NonZeroUsize;

use loraloom_scheduler::{
    Decision, GroupedRoom, GroupingOptions, MeasuredIteration, Outcome, Scheduler, SchedulerError,
    SchedulerOptions, StepTimeModel, Task, TaskId, TaskScheduler, TaskState, Unlimited,
};

/// The scheduler of runs, which knows from the beginning how long steps take.
pub(crate) struct Knowing(TaskScheduler<GroupedRoom<Unlimited>>);

impl Knowing {
    pub(crate) fn new(max_slowdown: f64) -> Self {
        let options = GroupingOptions {
            max_slowdown,
            keep_places: true,
            ..GroupingOptions::default()
        };
        let mut room = GroupedRoom::shared(NonZeroUsize::MIN, Vec::new(), options)
            .expect("options that can be used");
        room.use_step_times(StepTimeModel {
            pass: 1e-3,
            token: 1e-3,
            ..StepTimeModel::default()
        });
        let scheduler = TaskScheduler::new(room, SchedulerOptions::default());
        Self(scheduler.expect("options that can be used"))
    }
}

impl Scheduler for Knowing {
    fn submit(&mut self, task: Task) -> Result<(), SchedulerError> {
        self.0.submit(task, 0.0)
    }

    fn decide(&mut self) -> Decision {
        self.0.decide(0.0)
    }

    fn finish(&mut self, task: TaskId, outcome: Outcome) -> Result<(), SchedulerError> {
        self.0.finish(task, outcome, 0.0)
    }

    fn state(&self, task: TaskId) -> Option<TaskState> {
        self.0.state(task)
    }

    fn measured(&mut self, iteration: &MeasuredIteration) -> Result<(), SchedulerError> {
        let mut tasks = iteration.tasks.iter();
        tasks.try_for_each(|part| self.0.progress(part.task, part.steps, part.tokens))
    }
}
