use std::collections::BTreeMap;

use loraloom_queue::{Presence, Queue, Task, TaskState};
use loraloom_scheduler::{Leaderboard, TaskId, TrialState};
use serde::Serialize;

use crate::ServerError;

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
    pub sweeps: Vec<SweepStatus>,
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

/// A sweep, best first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepStatus {
    /// Its name.
    pub name: String,
    /// What its adapters are ranked by: `eval_loss` where all have one, or else `train_loss`.
    pub metric: &'static str,
    /// Its adapters.
    pub standings: Vec<Standing>,
}

/// A line of a leaderboard.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Standing {
    /// From 1; equal ones share one. `None` without a metric.
    pub rank: Option<usize>,
    /// The adapter's name.
    pub name: String,
    /// Optimizer steps taken.
    pub step: u64,
    /// What it is ranked by.
    pub metric: Option<f64>,
    /// queued, running, parked, paused, done, failed or cancelled.
    pub state: String,
}

impl Status {
    /// What a queue says of its tasks.
    pub(crate) fn read(queue: &Queue) -> Result<Self, ServerError> {
        let (served, pid) = match queue.server()? {
            Presence::Absent => (false, None),
            Presence::Alive { pid } => (true, pid),
        };
        let tasks = queue.tasks()?;
        let mut sweeps: BTreeMap<&str, Vec<&Task>> = BTreeMap::new();
        for task in &tasks {
            if let Some(sweep) = &task.sweep {
                sweeps.entry(sweep).or_default().push(task);
            }
        }
        let sweeps = sweeps.into_iter();
        let sweeps = sweeps.map(|(name, tasks)| SweepStatus::of(name, &tasks));
        Ok(Self {
            served,
            pid,
            sweeps: sweeps.collect(),
            tasks: tasks.into_iter().map(TaskStatus::of).collect(),
        })
    }
}

impl TaskStatus {
    fn of(task: Task) -> Self {
        let waits = matches!(task.state, TaskState::Queued | TaskState::Parked);
        let explained = waits && !task.explanation.is_empty();
        Self {
            id: task.id.0,
            state: task.state.to_string(),
            requested: task.requested.map(|request| request.to_string()),
            step: task.step,
            saved_step: task.saved_step,
            total_steps: task.total_steps,
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

impl SweepStatus {
    fn of(name: &str, tasks: &[&Task]) -> Self {
        let evaluated = tasks.iter().any(|task| task.best_metric.is_some());
        let metric = |task: &Task| {
            if evaluated {
                task.best_metric
            } else {
                task.last_loss
            }
        };
        let mut board = Leaderboard::new();
        for task in tasks {
            let id = TaskId(task.id.0);
            board.enter(id, &task.name);
            board.advance(id, usize::try_from(task.step).unwrap_or(usize::MAX));
            if let Some(metric) = metric(task) {
                board.report(id, 0, metric);
            }
            board.set_state(id, trial_state(task.state));
        }
        let standings = board.standings().into_iter().filter_map(|standing| {
            let task = tasks.iter().find(|task| task.id.0 == standing.trial.0)?;
            Some(Standing {
                rank: standing.rank,
                name: standing.name,
                step: task.step,
                metric: standing.best,
                state: task.state.to_string(),
            })
        });
        Self {
            name: name.to_owned(),
            metric: if evaluated { "eval_loss" } else { "train_loss" },
            standings: standings.collect(),
        }
    }
}

fn trial_state(state: TaskState) -> TrialState {
    match state {
        TaskState::Queued => TrialState::Queued,
        TaskState::Running | TaskState::Parked | TaskState::Paused => TrialState::Running,
        TaskState::Done => TrialState::Done,
        TaskState::Failed => TrialState::Failed,
        TaskState::Cancelled => TrialState::Cancelled,
    }
}
