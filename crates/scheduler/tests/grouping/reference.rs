//! The definitions of the module's introduction, each computed from nothing.

use loraloom_scheduler::{Padding, StepTimeModel, Task, Work};

/// Tasks whose iterations wait for each other: groups of (task, parts).
pub type Company<'a> = [Vec<(&'a Task, usize)>];

/// What the tasks of a company are trained on.
#[derive(Debug, Clone, Copy)]
pub struct Devices {
    pub stages: usize,
    pub model: StepTimeModel,
    pub padding: Padding,
}

impl Devices {
    fn pass(&self, group: &[(&Task, usize)]) -> f64 {
        let work = Work::of_group(group.iter().copied(), self.padding);
        self.model.seconds(&work)
    }

    fn alone(&self, task: &Task) -> f64 {
        self.pass(&[(task, 1)])
    }

    /// T = max(Σ t(g), D · max t(g)).
    pub fn iteration(&self, company: &Company<'_>) -> f64 {
        let passes: Vec<f64> = company.iter().map(|group| self.pass(group)).collect();
        let longest = passes.iter().copied().fold(0.0, f64::max);
        passes.iter().sum::<f64>().max(self.stages as f64 * longest)
    }

    pub fn slowdown(&self, company: &Company<'_>, task: &Task, parts: usize) -> f64 {
        let tasks = company.iter().map(Vec::len).sum::<usize>();
        let share = tasks.max(self.stages) as f64;
        parts as f64 * self.iteration(company) / (share * self.alone(task))
    }

    pub fn worst_slowdown(&self, company: &Company<'_>) -> f64 {
        let members = company.iter().flatten();
        let slowdowns = members.map(|&(task, parts)| self.slowdown(company, task, parts));
        slowdowns.fold(0.0, f64::max)
    }

    pub fn tokens_per_second(&self, company: &Company<'_>) -> f64 {
        let members = company.iter().flatten();
        let tokens = members.map(|&(task, parts)| task.tokens_per_step as f64 / parts as f64);
        let tokens: f64 = tokens.sum();
        if tokens > 0.0 {
            tokens / self.iteration(company)
        } else {
            0.0
        }
    }

    /// Tokens a second of the same steps, one after another on the same devices.
    pub fn time_sharing(&self, company: &Company<'_>) -> f64 {
        let members = || company.iter().flatten();
        let tokens = members().map(|&(task, parts)| task.tokens_per_step as f64 / parts as f64);
        let seconds = members().map(|&(task, parts)| self.alone(task) / parts as f64);
        tokens.sum::<f64>() / (self.stages as f64 * seconds.sum::<f64>())
    }

    /// Whether padding costs no more than sharing a pass saves, in every group.
    pub fn padding_pays(&self, company: &Company<'_>) -> bool {
        company.iter().all(|group| {
            let padding = Work::of_group(group.iter().copied(), self.padding).padding;
            let cost = self.model.padding * padding;
            let saved = self.model.pass * group.len().saturating_sub(1) as f64;
            cost <= saved + 1e-9
        })
    }

    pub fn allows(&self, company: &Company<'_>, max_slowdown: f64) -> bool {
        company.iter().all(Vec::is_empty)
            || self.worst_slowdown(company) <= max_slowdown + 1e-9
                && self.tokens_per_second(company) >= self.time_sharing(company) - 1e-6
                && self.padding_pays(company)
    }
}
