use std::path::PathBuf;

use loraloom_config::RunConfig;
use loraloom_report::{SweepEntry, SweepReport};
use serde::{Deserialize, Serialize};

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunReport {
    /// The adapters in the order of the configuration.
    pub adapters: Vec<AdapterReport>,
    /// Whether the run was stopped from outside.
    pub interrupted: bool,
    /// Wall time, of all parts of a run that was resumed.
    pub seconds: f64,
    /// Tokens trained on.
    pub tokens: u64,
    /// Its sweeps, with their adapters from the best to the worst.
    pub sweeps: Vec<SweepReport>,
}

impl RunReport {
    /// The sweeps of a configuration, as its run left them.
    pub(crate) fn rank(config: &RunConfig, adapters: &[AdapterReport]) -> Vec<SweepReport> {
        let sweeps = config.sweep.iter().map(|sweep| {
            let entries = sweep.adapters.iter().filter_map(|name| {
                let report = adapters.iter().find(|report| report.name == *name)?;
                Some(SweepEntry {
                    name: name.clone(),
                    eval_loss: report.best.map(|best| best.loss),
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

/// What one adapter came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AdapterReport {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Steps it took.
    pub steps: usize,
    /// Steps it was to take.
    pub total_steps: usize,
    /// Loss of its first step.
    pub first_loss: Option<f64>,
    /// Loss of its last step.
    pub last_loss: Option<f64>,
    /// Its best evaluation, if it has validation rows.
    pub best: Option<Best>,
    /// Where it was last saved; `None` if it never was.
    pub directory: Option<PathBuf>,
    /// What it answers before and after.
    pub samples: Vec<AnswerSample>,
}

impl AdapterReport {
    /// How it ended, in a word.
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
        /// Why.
        reason: String,
    },
    /// It could not go on.
    Failed {
        /// Why.
        reason: String,
        /// True if it is that it does not fit in memory.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        does_not_fit: bool,
    },
    /// Its owner ended it.
    Cancelled,
    /// The run was stopped before it had taken all its steps.
    Interrupted,
}

impl Outcome {
    /// It could not go on, for this reason.
    pub(crate) fn failed(reason: impl Into<String>) -> Self {
        Self::Failed {
            reason: reason.into(),
            does_not_fit: false,
        }
    }

    /// It does not fit in memory, for this reason.
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
    /// After this step.
    pub step: usize,
    /// Its validation loss.
    pub loss: f64,
}

/// One prompt of an adapter's dataset and its continuations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerSample {
    /// What was asked.
    pub prompt: String,
    /// What the dataset answers.
    pub reference: String,
    /// What was answered before training.
    pub before: String,
    /// What is answered after it.
    pub after: String,
}
