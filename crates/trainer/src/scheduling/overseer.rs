use std::{collections::BTreeMap, time::Instant};

use loraloom_config::SchedulerConfig;
use loraloom_scheduler::{
    Decision, Forecasts, GroupedRoom, History, Learnt, Ledger, Load, MeasuredIteration,
    OutOfMemory, Outcome, Past, Scheduler, SchedulerError, StepTimeModel, StepTimes, Task, TaskId,
    TaskScheduler, TaskState,
};

use super::{DeviceBudget, DeviceRoom, task_scheduler};
use crate::checkpoint::LedgerRecord;

/// Iterations after which the step-time model is fitted anew.
const FITTED_EVERY: usize = 16;

/// The largest mean error of a step-time model that is gone by.
const USABLE_ERROR: f64 = 0.25;

/// Iterations between decisions while tasks wait for a place: what is learnt may make room.
const PATIENCE: usize = 8;

/// Decides who trains, from what the iterations of a run take.
#[derive(Debug)]
pub(crate) struct Overseer {
    scheduler: TaskScheduler<GroupedRoom<DeviceBudget>>,
    stages: usize,
    step_times: StepTimes,
    /// The model of them that the scheduler goes by.
    step_time_model: Option<StepTimeModel>,
    measured: usize,
    /// Of tasks that have not ended.
    loads: BTreeMap<TaskId, Load>,
    running: Vec<TaskId>,
    /// What the budgets take to run.
    known: Load,
    begun: Instant,
}

impl Overseer {
    /// A scheduler for a pipeline of `stages` stages on these devices.
    pub(crate) fn new(
        config: &SchedulerConfig,
        stages: usize,
        devices: Vec<DeviceBudget>,
    ) -> Result<Self, SchedulerError> {
        Ok(Self {
            scheduler: task_scheduler(config, stages, devices)?,
            stages,
            step_times: StepTimes::new(),
            step_time_model: None,
            measured: 0,
            loads: BTreeMap::new(),
            running: Vec::new(),
            known: Load::default(),
            begun: Instant::now(),
        })
    }

    fn now(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// What the limited devices had room for before anything was learnt.
    pub(crate) fn rooms(&self) -> Vec<DeviceRoom> {
        let budgets = self.scheduler.room().budgets().iter();
        budgets.filter_map(DeviceBudget::room).cloned().collect()
    }

    /// Holds a task for its owner.
    pub(crate) fn pause(&mut self, task: TaskId) -> Result<(), SchedulerError> {
        self.running.retain(|&running| running != task);
        self.scheduler.pause(task, self.now())
    }

    /// Puts a paused task back into the line.
    pub(crate) fn resume(&mut self, task: TaskId) -> Result<(), SchedulerError> {
        self.scheduler.resume(task, self.now())
    }

    /// Takes up what tenants were served before a restart.
    pub(crate) fn remember(&mut self, fair_shares: &[LedgerRecord]) {
        for record in fair_shares {
            let ledger = Ledger {
                level: record.level,
                counters: record.counters.clone(),
            };
            self.scheduler.set_ledger(record.priority, ledger);
        }
    }

    /// Takes up what was learnt of the devices before a restart, as far as they are the same: where one
    /// is not, neither is how long an iteration takes.
    pub(crate) fn remember_devices(&mut self, mut learnt: Learnt) {
        let mut same = learnt.stages == self.stages;
        for budget in self.scheduler.room_mut().budgets_mut() {
            let memory = learnt.memory.remove(budget.name());
            same &= memory.is_some_and(|memory| budget.remember(memory));
        }
        if same && learnt.memory.is_empty() {
            self.step_times = learnt.step_times;
            self.use_step_times(learnt.step_time_model);
        }
    }

    fn learnt(&self) -> Learnt {
        let budgets = self.scheduler.room().budgets().iter();
        let memory = budgets.map(|budget| (budget.name().to_owned(), budget.learnt()));
        Learnt {
            stages: self.stages,
            memory: memory.collect(),
            step_times: self.step_times.clone(),
            step_time_model: self.step_time_model,
        }
    }

    /// Goes by what iterations were measured to take, if that says how long they take.
    fn fit_step_times(&mut self) {
        if let Some(fit) = self.step_times.fit()
            && fit.mean_error <= USABLE_ERROR
        {
            self.use_step_times(Some(fit.model));
        }
    }

    fn use_step_times(&mut self, model: Option<StepTimeModel>) {
        self.step_time_model = model;
        if let Some(model) = model {
            self.scheduler.room_mut().use_step_times(model);
        }
    }

    /// What all running tasks ask of memory, at the most.
    fn load(&self) -> Load {
        let loads = self.running.iter().filter_map(|task| self.loads.get(task));
        loads.copied().sum()
    }
}

impl Scheduler for Overseer {
    fn submit(&mut self, task: Task) -> Result<(), SchedulerError> {
        let (id, load) = (task.id, task.load);
        self.scheduler.submit(task, self.now())?;
        self.loads.insert(id, load);
        Ok(())
    }

    fn restore(&mut self, task: Task, past: Past) -> Result<(), SchedulerError> {
        let (id, load) = (task.id, task.load);
        self.scheduler.restore(task, past, self.now())?;
        self.loads.insert(id, load);
        Ok(())
    }

    fn decide(&mut self) -> Decision {
        let mut decision = self.scheduler.decide(self.now());
        self.running = decision
            .groups
            .iter()
            .flatten()
            .map(|member| member.task)
            .collect();
        let load = self.load();
        if self.known != load {
            self.known = load;
            for budget in self.scheduler.room_mut().budgets_mut() {
                budget.runs(load);
            }
        }
        let budgets = self.scheduler.room().budgets();
        let limited = budgets.iter().any(|budget| budget.limit().is_some());
        let expected = budgets.iter().map(|budget| budget.expected(load));
        decision.expected_bytes = (!budgets.is_empty()).then(|| expected.sum());
        // A step of those that have just come is measured before others may follow them.
        decision.max_steps = match (decision.admitted.is_empty(), self.scheduler.waiting() > 0) {
            (false, _) if limited => Some(1),
            (_, true) => Some(PATIENCE),
            _ => None,
        };
        decision
    }

    fn finish(&mut self, task: TaskId, outcome: Outcome) -> Result<(), SchedulerError> {
        self.loads.remove(&task);
        self.running.retain(|&running| running != task);
        self.scheduler.finish(task, outcome, self.now())
    }

    fn state(&self, task: TaskId) -> Option<TaskState> {
        self.scheduler.state(task)
    }

    fn measured(&mut self, iteration: &MeasuredIteration) -> Result<(), SchedulerError> {
        for part in &iteration.tasks {
            self.scheduler
                .progress(part.task, part.steps, part.tokens)?;
        }
        let adapters = iteration
            .tasks
            .iter()
            .filter_map(|part| self.loads.get(&part.task));
        let load = Load {
            adapter_bytes: adapters.map(|load| load.adapter_bytes).sum(),
            ..iteration.load
        };
        for budget in self.scheduler.room_mut().budgets_mut() {
            budget.observe(load, iteration.host_peak_bytes);
        }
        if self.step_times.observe(iteration.work, iteration.seconds) {
            self.measured += 1;
        }
        if self.measured.is_multiple_of(FITTED_EVERY) {
            self.fit_step_times();
        }
        Ok(())
    }

    fn out_of_memory(&mut self) -> OutOfMemory {
        let load = self.load();
        let found = self.scheduler.out_of_memory(self.now());
        // The only one goes on with smaller micro-batches, which is another load.
        if !matches!(found, OutOfMemory::OnlyOne(_)) {
            self.known = Load::default();
            for budget in self.scheduler.room_mut().budgets_mut() {
                budget.out_of_memory(load);
            }
        }
        found
    }

    fn why(&self, task: TaskId) -> Option<String> {
        let explanation = self.scheduler.explain(task).ok()?;
        Some(explanation.reason)
    }

    fn history(&self) -> History {
        History {
            learnt: Some(self.learnt()),
            ..self.scheduler.history(self.now())
        }
    }

    fn forecasts(&self) -> Forecasts {
        let budgets = self.scheduler.room().budgets().iter();
        let mut all = budgets.map(DeviceBudget::forecasts);
        let first = all.clone().next();
        let fitted = all.find(|forecasts| forecasts.fitted() > 0);
        fitted.or(first).copied().unwrap_or_default()
    }
}
