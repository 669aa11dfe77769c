use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ExactF64;
use crate::{AdapterReport, AnswerSample, Best, Outcome};

/// Version of the files of a checkpoint.
pub(crate) const FORMAT: u32 = 1;

/// `run.json`: progress of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    /// [`FORMAT`].
    pub(crate) format: u32,
    /// Version of loraloom that wrote it.
    pub(crate) loraloom: String,
    /// Iterations of the run so far.
    pub(crate) iteration: u64,
    /// Tokens trained on so far.
    pub(crate) tokens: u64,
    /// Wall time so far.
    pub(crate) seconds: f64,
    /// Digest of the model's files.
    pub(crate) model: String,
    /// Decoder layers of the model.
    pub(crate) layers: usize,
    /// The resolved configuration.
    pub(crate) config: serde_json::Value,
    /// Tokens served to the tenants of each priority, under fair sharing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) fair_shares: Vec<LedgerRecord>,
    /// The tasks, in the order of the configuration.
    pub(crate) tasks: Vec<TaskRecord>,
}

impl RunRecord {
    /// Names and steps of the tasks that have begun.
    pub(crate) fn begun(&self) -> impl Iterator<Item = (String, usize)> {
        let tasks = self.tasks.iter();
        let begun = tasks.filter(|task| task.standing == RecordState::Begun);
        begun.map(|task| (task.name.clone(), task.step))
    }
}

/// Tokens served to the tenants of a priority.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LedgerRecord {
    pub(crate) priority: i64,
    pub(crate) level: f64,
    pub(crate) counters: BTreeMap<String, f64>,
}

/// Progress of a task.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TaskRecord {
    /// The adapter's name.
    pub(crate) name: String,
    pub(crate) standing: RecordState,
    /// Optimizer steps it has taken: data, dropout and schedule continue from here.
    pub(crate) step: usize,
    pub(crate) total_steps: usize,
    /// Seconds it had waited for a place.
    #[serde(default)]
    pub(crate) waited: f64,
    /// Digest of its encoded rows; empty once it has ended.
    pub(crate) data: String,
    /// Digest of the `init_from` adapter that its preference compares with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reference: Option<String>,
    pub(crate) first_loss: Option<ExactF64>,
    pub(crate) last_loss: Option<ExactF64>,
    pub(crate) best: Option<BestRecord>,
    pub(crate) evaluations_without_best: usize,
    /// The step after which `last` was written.
    pub(crate) saved_steps: Option<usize>,
    /// Its answers before and after training.
    pub(crate) samples: Vec<AnswerSample>,
    /// True if a check has seen all of it change. Otherwise the tensors include its start values.
    pub(crate) has_moved: bool,
    /// Number of times that its micro-batches were halved because memory ran out.
    #[serde(default)]
    pub(crate) halvings: u32,
    /// `adapter_config.json` of the directory that the adapter began from.
    pub(crate) peft_config: Option<String>,
    /// Its id in the queue that submitted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) number: Option<u64>,
    /// Its results as a trial of a sweep.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) trial: Vec<TrialResult>,
    /// Adapted modules by path; empty before it has begun and after it has ended.
    pub(crate) modules: Modules,
}

impl TaskRecord {
    /// A task that has taken no step.
    pub(crate) fn queued(name: &str, total_steps: usize) -> Self {
        Self {
            name: name.to_owned(),
            total_steps,
            ..Self::default()
        }
    }

    pub(crate) fn ended(report: &AdapterReport) -> Self {
        Self {
            standing: RecordState::Ended(report.outcome.clone()),
            step: report.steps,
            first_loss: report.first_loss.map(ExactF64),
            last_loss: report.last_loss.map(ExactF64),
            best: report.best.map(BestRecord::from),
            saved_steps: report.directory.as_ref().map(|_| report.steps),
            samples: report.samples.clone(),
            has_moved: true,
            ..Self::queued(&report.name, report.total_steps)
        }
    }
}

/// Adapted modules by path.
pub(crate) type Modules = BTreeMap<String, ModuleRecord>;

/// State of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RecordState {
    /// It has not begun.
    #[default]
    Queued,
    /// It runs or is parked.
    Begun,
    /// It has ended.
    Ended(Outcome),
}

/// The value that a sweep compared a trial by at a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct TrialResult {
    pub(crate) step: usize,
    pub(crate) value: ExactF64,
}

/// The best evaluation of a task.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct BestRecord {
    pub(crate) step: usize,
    pub(crate) loss: ExactF64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) margins: Option<ExactF64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) accuracies: Option<ExactF64>,
}

impl From<Best> for BestRecord {
    fn from(best: Best) -> Self {
        Self {
            step: best.step,
            loss: ExactF64(best.loss),
            margins: best.margins.map(ExactF64),
            accuracies: best.accuracies.map(ExactF64),
        }
    }
}

impl From<BestRecord> for Best {
    fn from(record: BestRecord) -> Self {
        Self {
            step: record.step,
            loss: record.loss.0,
            margins: record.margins.map(|margins| margins.0),
            accuracies: record.accuracies.map(|accuracies| accuracies.0),
        }
    }
}

/// Data of an adapted module that are not tensors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModuleRecord {
    pub(crate) lora_alpha: ExactF64,
    pub(crate) lora_dropout: ExactF64,
    pub(crate) use_rslora: bool,
    #[serde(default)]
    pub(crate) freeze_a: bool,
    #[serde(default)]
    pub(crate) use_dora: bool,
    #[serde(default)]
    pub(crate) frozen_ranks: usize,
}

#[cfg(test)]
mod tests {
    use super::{BestRecord, TaskRecord};
    use crate::report::Best;

    #[test]
    fn the_best_evaluation_is_kept_whole() {
        let best = Best {
            step: 3,
            loss: 0.1,
            margins: Some(0.2),
            accuracies: Some(0.3),
        };
        let text = serde_json::to_string(&BestRecord::from(best)).expect("a record");
        let record: BestRecord = serde_json::from_str(&text).expect("a record");
        assert_eq!(Best::from(record), best);
    }

    #[test]
    fn a_task_of_an_older_checkpoint_is_read() {
        let text = r#"{
            "name": "a", "standing": "begun", "step": 3, "total_steps": 9, "data": "d",
            "first_loss": "1.5", "last_loss": null, "best": null, "evaluations_without_best": 0,
            "saved_steps": null, "samples": [], "has_moved": true, "peft_config": null, "modules": {}
        }"#;
        let record: TaskRecord = serde_json::from_str(text).expect("a record");
        assert_eq!((record.step, record.halvings), (3, 0));
    }
}
