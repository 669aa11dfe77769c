//! Reasons of admissions, waits and parkings, as text.

use super::{Policy, Scheduler, entry::Wait, order::Candidate};
use crate::{Parking, Task, TaskId, TaskState};

impl<R> Scheduler<R> {
    /// A task's name, or its number if it is unknown.
    pub(super) fn name(&self, task: TaskId) -> String {
        match self.entries.get(&task) {
            Some(entry) => format!("`{}`", entry.task.name),
            None => task.to_string(),
        }
    }

    /// The reason of a wait.
    pub(super) fn waits_for(&self, wait: &Wait) -> String {
        match wait {
            Wait::Undecided => "no decision since its arrival".into(),
            Wait::Missing(reason) => format!("does not fit: {reason}"),
            Wait::NeverFits(reason) => format!("does not fit even alone: {reason}"),
            Wait::Cap(cap) => format!("max_adapters {cap} is reached"),
            Wait::OutOfMemory(beside) => {
                let names: Vec<String> = beside.iter().map(|&task| self.name(task)).collect();
                let names = names.join(", ");
                format!("ran out of memory together with {names}; waits until one of them stops")
            }
            Wait::Behind(head) => format!("{} is ahead and does not fit yet", self.name(*head)),
            Wait::Delays(head, seconds) => {
                let head = self.name(*head);
                format!("{head} is ahead and would start {seconds:.1} s later with it")
            }
            Wait::TooDeep(head) => format!(
                "{} is ahead and does not fit yet, and only {} are tried after it",
                self.name(*head),
                self.options.backfill_depth
            ),
            Wait::OverShare(tenant, tokens) => format!(
                "its tenant has trained {tokens:.0} more tokens than `{}`, which waits",
                self.tenants.get(*tenant).map_or("another", String::as_str)
            ),
        }
    }
}

/// The reason of an admission.
pub(super) fn admission<R>(
    scheduler: &Scheduler<R>,
    candidate: &Candidate,
    protected: bool,
    head: Option<TaskId>,
) -> String {
    let Some(entry) = scheduler.entries.get(&candidate.task) else {
        return String::new();
    };
    let raised = if candidate.class > candidate.priority {
        format!(", raised to {} by waiting", candidate.class)
    } else {
        String::new()
    };
    let reason = match (protected, head) {
        (false, Some(head)) => format!(
            "fits while {} waits (priority {}{raised})",
            scheduler.name(head),
            candidate.priority
        ),
        _ => match &scheduler.options.policy {
            Policy::Fair { .. } => {
                let tenant = &entry.task.tenant;
                let counters = scheduler.tenant_counters.get(&candidate.priority);
                let tokens = counters.map_or(0.0, |counters| counters.counter(tenant));
                format!(
                    "turn of `{tenant}`, served {tokens:.0} tokens (priority {}{raised})",
                    candidate.priority
                )
            }
            Policy::StrictFifo | Policy::BestEffortFifo => {
                format!("next in line at priority {}{raised}", candidate.priority)
            }
        },
    };
    if entry.state == TaskState::Parked {
        format!("{reason}; resumes after step {}", entry.steps_taken)
    } else {
        reason
    }
}

/// The reason of a parking, and the task that takes the place.
pub(super) fn parking<R>(
    scheduler: &Scheduler<R>,
    candidate: &Candidate,
    wait: &Wait,
    admitted: Option<TaskId>,
) -> Parking {
    let by = match wait {
        Wait::Delays(..) | Wait::NeverFits(_) => None,
        _ => admitted,
    };
    let why = scheduler.waits_for(wait);
    let reason = match by.and_then(|by| Some((by, &scheduler.entries.get(&by)?.task))) {
        Some((by, Task { priority, .. })) => format!(
            "parked for {} (priority {priority}, its own {}): {why}",
            scheduler.name(by),
            candidate.priority
        ),
        None => why,
    };
    Parking {
        task: candidate.task,
        by,
        reason,
    }
}
