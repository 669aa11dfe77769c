use std::fmt;

use super::TaskScheduler;
use crate::{Room, SchedulerError, TaskId, TaskState};

/// Why a task stands where it does.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The task.
    pub task: TaskId,
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub state: TaskState,
    /// Optimizer steps it has taken, and how many it has to take.
    pub steps: (usize, usize),
    /// Its place among those that wait, from 1; `None` unless it waits and a decision was made.
    pub position: Option<usize>,
    /// The first task that does not fit, if it stands behind that.
    pub behind: Option<TaskId>,
    /// When it is predicted to start, in the scheduler's seconds: known of the first task that does
    /// not fit, once step times are.
    pub predicted_start: Option<f64>,
    /// What it waits for, with the numbers, or why it does not wait.
    pub reason: String,
}

impl<R: Room> TaskScheduler<R> {
    /// Why a task waits, as of the last decision.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownTask`].
    pub fn explain(&self, task: TaskId) -> Result<Explanation, SchedulerError> {
        let entry = self
            .entries
            .get(&task)
            .ok_or(SchedulerError::UnknownTask(task))?;
        let waits = entry.state().is_waiting();
        let head = self.head.filter(|_| waits);
        let reason = match entry.state() {
            TaskState::Queued | TaskState::Parked => self.waits_for(&entry.wait),
            TaskState::Running if entry.by_right => "trains".into(),
            TaskState::Running => {
                "trains in a place that the first to wait takes as soon as it fits".into()
            }
            TaskState::Paused => "held by its owner".into(),
            TaskState::Done => "took all its steps, or stopped early".into(),
            TaskState::Failed => "ended by an error of its own".into(),
            TaskState::Cancelled => "ended by its owner".into(),
        };
        Ok(Explanation {
            task,
            name: entry.task().name.clone(),
            state: entry.state(),
            steps: (entry.steps_taken, entry.task().total_steps),
            position: entry.position.filter(|_| waits),
            behind: head.map(|(head, _)| head).filter(|&head| head != task),
            predicted_start: head
                .filter(|&(head, _)| head == task)
                .and_then(|(_, start)| start),
            reason,
        })
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (taken, all) = self.steps;
        write!(
            f,
            "`{}` is {} at step {taken} of {all}",
            self.name, self.state
        )?;
        if let Some(position) = self.position {
            write!(f, ", number {position} of those that wait")?;
        }
        write!(f, ": {}", self.reason)?;
        if let Some(start) = self.predicted_start {
            write!(f, "; predicted to start at {start:.0} s")?;
        }
        Ok(())
    }
}
