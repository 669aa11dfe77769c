use std::collections::BTreeMap;

use loraloom_config::StoppingMetric;
use loraloom_queue::{Presence, Queue, Task, TaskState};
use loraloom_trainer::{SweepEntry, SweepReport};
use serde::Serialize;

use crate::{ServerError, queue_bridge::PACES, spec::Spec};

/// How the tasks of a queue stand.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// Whether a server trains them now.
    pub served: bool,
    /// Its process, where that can be read.
    pub pid: Option<u32>,
    /// Every task, in order of arrival.
    pub tasks: Vec<TaskStatus>,
    /// Sweeps, each with its adapters from the best to the worst.
    pub sweeps: Vec<SweepReport>,
}

/// How a task stands.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskStatus {
    /// Its number in the queue.
    pub id: u64,
    /// The adapter's name.
    pub name: String,
    /// queued, running, parked, paused, done, failed or cancelled.
    pub state: String,
    /// What its owner asked for and was not carried out yet.
    pub requested: Option<String>,
    /// Optimizer steps taken.
    pub step: u64,
    /// Optimizer steps that a checkpoint holds.
    pub saved_step: u64,
    /// Optimizer steps until it is done, once known.
    pub total_steps: Option<u64>,
    /// Seconds until it is done at its pace of late, if it trains now.
    pub seconds_left: Option<f64>,
    /// Loss of its last step.
    pub last_loss: Option<f64>,
    /// Its lowest validation loss.
    pub best_eval_loss: Option<f64>,
    /// Larger runs first.
    pub priority: i64,
    /// Who asked for it.
    pub tenant: String,
    /// The sweep that it belongs to.
    pub sweep: Option<String>,
    /// Why it stands where it does.
    pub reason: String,
}

impl Status {
    /// What a queue says of its tasks.
    pub(crate) fn read(queue: &Queue) -> Result<Self, ServerError> {
        let (served, pid) = match queue.server()? {
            Presence::Absent => (false, None),
            Presence::Alive { pid } => (true, pid),
        };
        let tasks = queue.tasks()?;
        let paces = if served {
            paces(queue)?
        } else {
            BTreeMap::new()
        };
        let mut sweeps: BTreeMap<&str, (Option<StoppingMetric>, Vec<SweepEntry>)> = BTreeMap::new();
        for task in &tasks {
            if let Some(sweep) = &task.sweep {
                if !sweeps.contains_key(sweep.as_str()) {
                    sweeps.insert(sweep, (stopping_metric(queue, task)?, Vec::new()));
                }
                let (_, entries) = sweeps.entry(sweep).or_default();
                entries.push(SweepEntry {
                    name: task.name.clone(),
                    eval_loss: task.best_metric,
                    train_loss: task.last_loss,
                    steps: task.step,
                    state: state(task).to_owned(),
                });
            }
        }
        let sweeps = sweeps.into_iter();
        let sweeps =
            sweeps.map(|(name, (metric, entries))| SweepReport::rank(name, metric, &entries));
        Ok(Self {
            served,
            pid,
            sweeps: sweeps.collect(),
            tasks: tasks
                .into_iter()
                .map(|task| {
                    let pace = paces.get(&task.id.0).copied();
                    TaskStatus::of(task, pace)
                })
                .collect(),
        })
    }
}

impl TaskStatus {
    /// `pace` has the seconds of a step.
    fn of(task: Task, pace: Option<f64>) -> Self {
        let trains = task.state == TaskState::Running;
        let steps = task
            .total_steps
            .map(|total| total.saturating_sub(task.step));
        let explained = is_explained(&task);
        Self {
            id: task.id.0,
            state: task.state.to_string(),
            requested: task.requested.map(|request| request.to_string()),
            step: task.step,
            saved_step: task.saved_step,
            total_steps: task.total_steps,
            seconds_left: pace
                .filter(|_| trains)
                .zip(steps)
                .map(|(pace, steps)| pace * steps as f64),
            last_loss: task.last_loss,
            best_eval_loss: task.best_metric,
            priority: task.priority,
            tenant: task.tenant,
            sweep: task.sweep,
            reason: if explained {
                task.explanation
            } else {
                task.reason
            },
            name: task.name,
        }
    }
}

/// Whether the server says from decision to decision why a task stands where it does.
pub fn is_explained(task: &Task) -> bool {
    let live = matches!(
        task.state,
        TaskState::Queued | TaskState::Running | TaskState::Parked
    );
    live && !task.explanation.is_empty()
}

/// Seconds of a step of the tasks that train, by their numbers.
fn paces(queue: &Queue) -> Result<BTreeMap<u64, f64>, ServerError> {
    let stored = queue.stored()?;
    let Some(text) = stored.get(PACES) else {
        return Ok(BTreeMap::new());
    };
    serde_json::from_str(text).map_err(|error| ServerError::Record {
        key: PACES,
        problem: error.to_string(),
    })
}

/// What stops the trials of a task's sweep early, if anything does.
fn stopping_metric(queue: &Queue, task: &Task) -> Result<Option<StoppingMetric>, ServerError> {
    // A specification that is of no use fails its task with the reason.
    let spec = Spec::from_text(&queue.spec(task.id)?.spec).ok();
    let stopping = spec
        .and_then(|spec| spec.sweep)
        .and_then(|(_, stopping)| stopping);
    Ok(stopping.map(|stopping| stopping.metric))
}

/// A trial that is done before its last step was stopped.
fn state(task: &Task) -> &'static str {
    let early = task.total_steps.is_some_and(|total| task.step < total);
    match task.state {
        TaskState::Done if early => "stopped",
        state => state.as_str(),
    }
}
