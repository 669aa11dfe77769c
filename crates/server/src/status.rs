use std::collections::BTreeMap;

use loraloom_config::StoppingMetric;
use loraloom_report::{SweepEntry, SweepReport};
use loraloom_scheduler::{TaskId, TaskState};
use serde::Serialize;

use crate::{
    Result,
    queue::{Presence, Queue, QueuedTask},
    queue_bridge::{BestRewards, PACES, REWARDS, stored},
    spec::Spec,
};

/// The tasks of a queue.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// True if a server runs.
    pub served: bool,
    /// Its process, if readable.
    pub pid: Option<u32>,
    /// All tasks, in order of arrival.
    pub tasks: Vec<TaskStatus>,
    /// Sweeps, each with its adapters from best to worst.
    pub sweeps: Vec<SweepReport>,
}

/// A task's status.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskStatus {
    /// Its number in the queue.
    pub id: TaskId,
    /// The adapter's name.
    pub name: String,
    /// Its state.
    pub state: TaskState,
    /// A request that the server has not carried out yet: pause, resume or cancel.
    pub requested: Option<String>,
    /// Optimizer steps taken.
    pub step: u64,
    /// Optimizer steps that are on the disk, in a checkpoint or, once it is done, in its adapter.
    pub saved_step: u64,
    /// Optimizer steps in all, once known.
    pub total_steps: Option<u64>,
    /// Estimated seconds until it is done, if it trains now.
    pub seconds_left: Option<f64>,
    /// Loss of its last step.
    pub last_loss: Option<f64>,
    /// Its lowest validation loss.
    pub best_eval_loss: Option<f64>,
    /// Larger runs first.
    pub priority: i64,
    /// Its owner.
    pub tenant: String,
    /// Its sweep.
    pub sweep: Option<String>,
    /// The reason of its state.
    pub reason: String,
}

impl Status {
    /// Reads the queue.
    pub(crate) fn read(queue: &Queue) -> Result<Self> {
        let (served, pid) = match queue.server()? {
            Presence::Absent => (false, None),
            Presence::Alive { pid } => (true, pid),
        };
        let tasks = queue.tasks()?;
        let paces: BTreeMap<TaskId, f64> = if served {
            stored(queue, PACES)?
        } else {
            BTreeMap::new()
        };
        let rewards: BTreeMap<TaskId, BestRewards> = stored(queue, REWARDS)?;
        let mut sweeps: BTreeMap<&str, (Option<StoppingMetric>, Vec<SweepEntry>)> = BTreeMap::new();
        for task in &tasks {
            if let Some(sweep) = &task.sweep {
                if !sweeps.contains_key(sweep.as_str()) {
                    sweeps.insert(sweep, (stopping_metric(queue, task)?, Vec::new()));
                }
                let (_, entries) = sweeps.entry(sweep).or_default();
                let rewards = rewards.get(&task.id).copied().unwrap_or_default();
                entries.push(SweepEntry {
                    name: task.name.clone(),
                    eval_loss: task.best_metric,
                    margins: rewards.margins,
                    accuracies: rewards.accuracies,
                    train_loss: task.last_loss,
                    steps: task.step,
                    state: state(task).to_owned(),
                });
            }
        }
        let rank = |(name, (metric, entries)): (&str, (_, Vec<_>))| {
            SweepReport::rank(name, metric, &entries)
        };
        let sweeps = sweeps.into_iter().map(rank).collect();
        let status = |task: QueuedTask| {
            let pace = paces.get(&task.id).copied();
            TaskStatus::of(task, pace)
        };
        Ok(Self {
            served,
            pid,
            sweeps,
            tasks: tasks.into_iter().map(status).collect(),
        })
    }
}

impl TaskStatus {
    /// `pace` is in seconds per step.
    fn of(task: QueuedTask, pace: Option<f64>) -> Self {
        let trains = task.state == TaskState::Running;
        let steps = task
            .total_steps
            .map(|total| total.saturating_sub(task.step));
        let left = pace.filter(|_| trains).zip(steps);
        Self {
            reason: task.why().to_owned(),
            id: task.id,
            state: task.state,
            requested: task.requested.map(|request| request.to_string()),
            step: task.step,
            saved_step: task.saved_step,
            total_steps: task.total_steps,
            seconds_left: left.map(|(pace, steps)| pace * steps as f64),
            last_loss: task.last_loss,
            best_eval_loss: task.best_metric,
            priority: task.priority,
            tenant: task.tenant,
            sweep: task.sweep,
            name: task.name,
        }
    }
}

/// The metric that stops the trials of a task's sweep early, if any.
fn stopping_metric(queue: &Queue, task: &QueuedTask) -> Result<Option<StoppingMetric>> {
    // The server fails a task whose specification cannot be read.
    let sweep = Spec::from_text(&queue.spec(task.id)?.spec).map_or(None, |spec| spec.sweep);
    let stopping = sweep.and_then(|(_, stopping)| stopping);
    Ok(stopping.map(|stopping| stopping.metric))
}

/// The state of a trial; one that is done before its last step was stopped.
fn state(task: &QueuedTask) -> &'static str {
    let early = task.total_steps.is_some_and(|total| task.step < total);
    match task.state {
        TaskState::Done if early => "stopped",
        state => state.as_str(),
    }
}
