//! The fields of `events.jsonl` that reports use.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// An event, or an unknown one of another version.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum LoggedEvent {
    RunStart(Begin),
    Resume(Begin),
    Admit(Admit),
    Park(Park),
    OutOfMemory(OutOfMemory),
    Step(TakenStep),
    Iteration(MeasuredIteration),
    Passes(Passes),
    Regroup(Regroup),
    Eval(Eval),
    RunCheckpoint(RunCheckpoint),
    AdapterDone(Ended),
    AdapterFailed(Ended),
    AdapterCancelled(Ended),
    Warning(Warning),
    RunEnd(End),
    #[serde(other)]
    Other,
}

/// The start or resume event.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Begin {
    pub(crate) time: String,
    /// Iterations of the run that remain.
    pub(crate) iteration: u64,
    pub(crate) adapters: Vec<String>,
    pub(crate) stages: Vec<String>,
    pub(crate) layers: Vec<[usize; 2]>,
    pub(crate) products: Vec<String>,
    pub(crate) versions: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Admit {
    pub(crate) adapter: String,
    pub(crate) step: u64,
    pub(crate) total_steps: Option<u64>,
    pub(crate) reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Park {
    pub(crate) adapter: String,
    pub(crate) step: u64,
    pub(crate) reason: String,
    pub(crate) by: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct OutOfMemory {
    pub(crate) iteration: u64,
    pub(crate) reason: String,
    pub(crate) parked: Option<String>,
    pub(crate) microbatch_rows: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TakenStep {
    /// Not a metric.
    #[serde(rename = "v")]
    _version: u64,
    pub(crate) iteration: u64,
    pub(crate) adapter: String,
    pub(crate) step: u64,
    pub(crate) total_steps: Option<u64>,
    pub(crate) loss: Option<f64>,
    pub(crate) grad_norm: Option<f64>,
    pub(crate) learning_rate: Option<f64>,
    pub(crate) tokens: u64,
    pub(crate) target_tokens: u64,
    #[serde(rename = "group")]
    _group: u64,
    /// Further metrics, by their names in objectives.
    #[serde(flatten)]
    pub(crate) more: BTreeMap<String, Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct MeasuredIteration {
    pub(crate) iteration: u64,
    pub(crate) seconds: Option<f64>,
    pub(crate) tokens: u64,
    pub(crate) tokens_per_second: Option<f64>,
    pub(crate) bubble_ratio: Option<f64>,
    pub(crate) transfer_seconds: Option<f64>,
    pub(crate) transfer_overlap: Option<f64>,
    pub(crate) bytes_reserved: Option<u64>,
    pub(crate) bytes_predicted: Option<u64>,
}

/// Times of the passes of an iteration.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Passes {
    pub(crate) iteration: u64,
    pub(crate) passes: Vec<Pass>,
}

impl Passes {
    /// True if these are of the iteration directly after `before`, without a pause: iterations overlap.
    pub(crate) fn follow(&self, before: &Self) -> bool {
        let span = |passes: &Self| {
            let starts = passes.passes.iter().map(|pass| pass.start);
            let ends = passes.passes.iter().map(|pass| pass.end);
            (
                starts.fold(f64::INFINITY, f64::min),
                ends.fold(0.0, f64::max),
            )
        };
        let ((began, ended), (begins, _)) = (span(before), span(self));
        self.iteration == before.iteration + 1 && begins < ended + (ended - began) / 2.0
    }
}

/// A micro-batch on a stage, in seconds of one clock.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Pass {
    pub(crate) stage: usize,
    pub(crate) group: usize,
    pub(crate) microbatch: usize,
    pub(crate) backward: bool,
    pub(crate) start: f64,
    pub(crate) end: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Regroup {
    pub(crate) groups: Vec<Vec<String>>,
    pub(crate) reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Eval {
    pub(crate) adapter: String,
    pub(crate) step: u64,
    pub(crate) loss: Option<f64>,
    #[serde(rename = "rewards/margins")]
    pub(crate) margins: Option<f64>,
    #[serde(rename = "rewards/accuracies")]
    pub(crate) accuracies: Option<f64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RunCheckpoint {
    pub(crate) iteration: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Ended {
    pub(crate) adapter: String,
    pub(crate) step: u64,
    pub(crate) reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Warning {
    pub(crate) message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct End {
    pub(crate) time: String,
    pub(crate) seconds: Option<f64>,
    pub(crate) tokens: Option<u64>,
    pub(crate) interrupted: bool,
    pub(crate) memory_error_percent: Option<f64>,
    pub(crate) memory_predictions: u64,
}
