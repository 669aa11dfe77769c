use std::num::NonZeroUsize;

use loraloom_scheduler::{
    DeviceMemory, GroupedRoom, GroupingOptions, Member, Refusal, Room, StepTimeModel, Task, TaskId,
};

/// The room of runs, which knows from the beginning how long steps take.
pub(crate) struct KnownTimes(GroupedRoom<DeviceMemory>);

impl KnownTimes {
    pub(crate) fn new(max_slowdown: f64) -> Self {
        let options = GroupingOptions {
            max_slowdown,
            keep_places: true,
        };
        let mut room = GroupedRoom::shared(NonZeroUsize::MIN, Vec::new(), options)
            .expect("options that can be used");
        room.use_step_times(StepTimeModel {
            pass: 1e-3,
            token: 1e-3,
            ..StepTimeModel::default()
        });
        Self(room)
    }
}

/// All but what is learnt.
impl Room for KnownTimes {
    fn admits_alone(&self, task: &Task) -> Result<(), Refusal> {
        self.0.admits_alone(task)
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn place(&mut self, task: &Task, group: Option<usize>) -> Result<usize, Refusal> {
        self.0.place(task, group)
    }

    fn remove(&mut self, task: TaskId) {
        self.0.remove(task);
    }

    fn regroup(&mut self) -> Option<String> {
        self.0.regroup()
    }

    fn groups(&self) -> Vec<Vec<Member>> {
        self.0.groups()
    }

    fn seconds_per_step(&self, task: TaskId) -> Option<f64> {
        self.0.seconds_per_step(task)
    }
}
