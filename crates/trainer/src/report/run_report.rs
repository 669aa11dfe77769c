use std::path::PathBuf;

use loraloom_config::RunConfig;
use loraloom_report::{SweepEntry, SweepReport};
use serde::{Deserialize, Serialize};

/// Results of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunReport {
    /// The adapters in the order of the configuration.
    pub adapters: Vec<AdapterReport>,
    /// True if the run was stopped by a signal.
    pub interrupted: bool,
    /// Wall time of all parts of a resumed run.
    pub seconds: f64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Its sweeps, with their adapters from the best to the worst.
    pub sweeps: Vec<SweepReport>,
    /// The peak of its memory; `None` where no device reports it.
    pub memory: Option<PeakMemory>,
}

/// The iteration with the most memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct PeakMemory {
    /// Measured bytes of all devices.
    pub bytes: u64,
    /// What the scheduler expected, if the devices have limits.
    pub predicted_bytes: Option<u64>,
}

impl RunReport {
    /// The sweeps of a configuration, with the results of its run.
    pub(crate) fn rank(config: &RunConfig, adapters: &[AdapterReport]) -> Vec<SweepReport> {
        let sweeps = config.sweep.iter().map(|sweep| {
            let entries = sweep.adapters.iter().filter_map(|name| {
                let report = adapters.iter().find(|report| report.name == *name)?;
                Some(SweepEntry {
                    name: name.clone(),
                    eval_loss: report.best.map(|best| best.loss),
                    margins: report.best.and_then(|best| best.margins),
                    accuracies: report.best.and_then(|best| best.accuracies),
                    train_loss: report.last_loss,
                    steps: report.steps as u64,
                    state: report.state().to_owned(),
                })
            });
            let stopping = sweep.early_stopping.as_ref();
            let metric = stopping.map(|stopping| stopping.metric);
            SweepReport::rank(&sweep.name, metric, &entries.collect::<Vec<_>>())
        });
        sweeps.collect()
    }
}

/// Results of an adapter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdapterReport {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Steps it took.
    pub steps: usize,
    /// Steps of its whole training.
    pub total_steps: usize,
    /// Loss of its first step.
    pub first_loss: Option<f64>,
    /// Loss of its last step.
    pub last_loss: Option<f64>,
    /// Its best evaluation, if it has validation rows.
    pub best: Option<Best>,
    /// Directory of its last save; `None` if it was never saved.
    pub directory: Option<PathBuf>,
    /// Its answers before and after training.
    pub samples: Vec<AnswerSample>,
}

impl AdapterReport {
    /// Its outcome as a word.
    pub fn state(&self) -> &'static str {
        match self.outcome {
            Outcome::Stopped { .. } => "stopped",
            Outcome::Done => "done",
            Outcome::Failed { .. } => "failed",
            Outcome::Cancelled => "cancelled",
            Outcome::Interrupted => "interrupted",
        }
    }
}

/// How an adapter ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It took all its steps.
    Done,
    /// It ended early: its patience ran out, or its sweep stopped it.
    Stopped {
        /// The reason.
        reason: String,
    },
    /// It failed.
    Failed {
        /// The reason.
        reason: String,
        /// True if it failed because it does not fit in memory.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        does_not_fit: bool,
    },
    /// Its owner cancelled it.
    Cancelled,
    /// The run was stopped before its last step.
    Interrupted,
}

impl Outcome {
    /// A failure for this reason.
    pub(crate) fn failed(reason: impl Into<String>) -> Self {
        Self::Failed {
            reason: reason.into(),
            does_not_fit: false,
        }
    }

    /// A failure for lack of memory.
    pub(crate) fn does_not_fit(reason: impl Into<String>) -> Self {
        Self::Failed {
            reason: reason.into(),
            does_not_fit: true,
        }
    }
}

/// The best evaluation of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Best {
    /// Step of the evaluation.
    pub step: usize,
    /// Its validation loss.
    pub loss: f64,
    /// Its rewards' margin, of an adapter that trains on preferences.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub margins: Option<f64>,
    /// Its rewards' accuracy, of an adapter that trains on pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracies: Option<f64>,
}

/// One prompt of an adapter's dataset and its answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerSample {
    /// The prompt.
    pub prompt: String,
    /// The dataset's answer.
    pub reference: String,
    /// The answer before training.
    pub before: String,
    /// The answer after training.
    pub after: String,
}
