use std::collections::BTreeMap;

use loraloom_objective::Sums;
use loraloom_pipeline::executor::StagePass;
use serde::Serialize;

/// Version of the lines in `events.jsonl`.
pub const EVENT_VERSION: u32 = 1;

/// An event of a run: one line of `events.jsonl`, also sent to displays.
///
/// Numbers that do not exist are `null`: a loss that is not finite, or bytes that a device does not report.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run begins.
    RunStart {
        /// When, in RFC 3339.
        time: String,
        /// Names of all adapters.
        adapters: Vec<String>,
        /// Devices, one per stage.
        stages: Vec<String>,
        /// First decoder layer that each stage holds and the one after its last.
        layers: Vec<[usize; 2]>,
        /// If they are staggered, the number of them that each stage runs, by partition. Group `g` takes partition
        /// `g` modulo their number.
        #[serde(skip_serializing_if = "Option::is_none")]
        partitions: Option<Vec<Vec<usize>>>,
        /// Bytes of the weights that each stage has in memory.
        weight_bytes: Vec<u64>,
        /// Library that multiplies the matrices of each stage: cuBLAS, or Burn's kernels and the reason.
        products: Vec<String>,
        /// Versions of the programs that compute.
        versions: Versions,
    },
    /// The run resumes after it was interrupted or killed. Iterations after `iteration` in earlier events are
    /// repeated.
    Resume {
        /// When, in RFC 3339.
        time: String,
        /// Iterations of the run that remain.
        iteration: u64,
        /// The checkpoint, relative to the run directory.
        path: String,
        /// Names of all adapters.
        adapters: Vec<String>,
        /// Devices, one per stage.
        stages: Vec<String>,
        /// First decoder layer that each stage holds and the one after its last.
        layers: Vec<[usize; 2]>,
        /// If they are staggered, the number of them that each stage runs, by partition. Group `g` takes partition
        /// `g` modulo their number.
        #[serde(skip_serializing_if = "Option::is_none")]
        partitions: Option<Vec<Vec<usize>>>,
        /// Library that multiplies the matrices of each stage: cuBLAS, or Burn's kernels and the reason.
        products: Vec<String>,
        /// Versions of the programs that compute.
        versions: Versions,
    },
    /// An adapter begins to train, or continues after it was parked.
    Admit {
        /// Its name.
        adapter: String,
        /// Steps it has taken.
        step: usize,
        /// Steps it will take.
        total_steps: usize,
        /// The reason.
        reason: String,
    },
    /// An adapter gives up its place; it keeps its state.
    Park {
        /// Its name.
        adapter: String,
        /// Steps it has taken.
        step: usize,
        /// The reason.
        reason: String,
        /// Name of the adapter that takes its place, if one does.
        by: Option<String>,
    },
    /// A device ran out of memory. Iterations after `iteration` in earlier events are repeated, with less memory.
    OutOfMemory {
        /// Iterations of the run that remain.
        iteration: u64,
        /// The memory that ran out.
        reason: String,
        /// Name of the adapter that gives up its place, if one does.
        parked: Option<String>,
        /// Rows of a micro-batch, if those of the only adapter were halved: its sums are taken in another order from
        /// now on.
        microbatch_rows: Option<usize>,
    },
    /// An adapter took an optimizer step.
    Step {
        /// Iteration of the run, counted from 1.
        iteration: u64,
        /// The adapter.
        adapter: String,
        /// Step of the adapter, counted from 1.
        step: usize,
        /// Steps it will take.
        total_steps: usize,
        /// Mean cross-entropy of the target tokens; of a preference, mean loss of the rows.
        loss: f64,
        /// Target tokens of the step.
        target_tokens: usize,
        /// Tokens of the step.
        tokens: usize,
        /// Global norm of the gradient before clipping.
        grad_norm: f64,
        /// Learning rate of the step.
        learning_rate: f64,
        /// Index of the group it was trained in.
        group: usize,
        /// Of a preference.
        #[serde(flatten)]
        rewards: Option<Rewards>,
    },
    /// The start values of an adapter were computed.
    StartValues {
        /// The adapter.
        adapter: String,
        /// Batches that went forward through the base model.
        batches: usize,
        /// Their tokens.
        tokens: usize,
        /// Inputs or weights of projections that were decomposed, or changes of weights.
        decompositions: usize,
        /// Wall time.
        seconds: f64,
        /// With SLoRA, bytes of the change that adapters trained together while it was trained. The first of them that
        /// begins has the event.
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
    },
    /// The log-probabilities of sequences under the reference of an adapter were computed.
    Reference {
        /// The adapter.
        adapter: String,
        /// Number of sequences; those that another adapter has computed are not among them.
        sequences: usize,
        /// Their tokens.
        tokens: usize,
        /// Wall time.
        seconds: f64,
    },
    /// All running adapters took a step, or a part of one. Results are read while the next iteration is computed, so
    /// this and the step events before it come up to one iteration late; consequences of a step come after its event.
    Iteration {
        /// Iteration of the run, counted from 1.
        iteration: u64,
        /// Wall time until its results arrived: since those of the iteration before, or since it was submitted if
        /// that was later. Excludes evaluation and saving.
        seconds: f64,
        /// Tokens of all adapters, including failed ones.
        tokens: usize,
        /// Tokens divided by seconds.
        tokens_per_second: f64,
        /// Mean share of the time that stages waited: 0 for one stage, `null` for stages on devices that work
        /// asynchronously.
        bubble_ratio: Option<f64>,
        /// Sum over all transfers between stages in different processes, from the end of the pass whose result is
        /// sent until the other stage has it. `null` without such stages, or if one is on a device that works
        /// asynchronously.
        transfer_seconds: Option<f64>,
        /// Share of `transfer_seconds` in which the receiving stage had other work; 1 means that the network costs no
        /// time.
        transfer_overlap: Option<f64>,
        /// Bytes that the stages' devices have reserved, if all of them report them; those of workers are about a
        /// second old. For stages on the CPU, the peak of the process's allocations in this iteration.
        bytes_reserved: Option<u64>,
        /// Upper bound on the bytes of the running adapters, with the longest rows of all of them at once; `null` if
        /// the devices' memory is unknown.
        bytes_predicted: Option<u64>,
        /// Names of the adapters of each group.
        groups: Vec<Vec<String>>,
        /// Adapters whose step is spread over several iterations, so that their neighbours need not wait for it: the
        /// part of this iteration, counted from 1, and the number of parts.
        parts: BTreeMap<String, [usize; 2]>,
    },
    /// Times of the passes of an iteration: for a few consecutive iterations after each change of groups. Only with
    /// several stages that all measure their passes.
    Passes {
        /// Iteration of the run.
        iteration: u64,
        /// The passes, in seconds of the run's clock.
        passes: Vec<StagePass>,
    },
    /// The groups of adapters changed.
    Regroup {
        /// Names of the adapters of each group.
        groups: Vec<Vec<String>>,
        /// The reason.
        reason: String,
    },
    /// An adapter was evaluated on its validation rows.
    Eval {
        /// The adapter.
        adapter: String,
        /// After this step.
        step: usize,
        /// Token-normalised cross-entropy over all validation rows; of a preference, mean loss of the rows.
        loss: Option<f64>,
        /// True if this is its lowest loss so far.
        best: bool,
        /// Of a preference.
        #[serde(flatten)]
        rewards: Option<Rewards>,
    },
    /// Adapters answer prompts of their datasets at their end, for the report.
    Answers {
        /// Their names.
        adapters: Vec<String>,
    },
    /// An adapter was written.
    Checkpoint {
        /// The adapter.
        adapter: String,
        /// After this step.
        step: usize,
        /// Its path, relative to the run directory.
        path: String,
    },
    /// A checkpoint for `--resume` was written.
    RunCheckpoint {
        /// Iteration of the run after which it was taken.
        iteration: u64,
        /// Its path, relative to the run directory.
        path: String,
        /// Steps of the running and parked adapters in it.
        steps: BTreeMap<String, usize>,
    },
    /// An adapter finished.
    AdapterDone {
        /// The adapter.
        adapter: String,
        /// Steps it took.
        step: usize,
        /// The reason.
        reason: String,
    },
    /// An adapter failed; the others continue.
    AdapterFailed {
        /// The adapter.
        adapter: String,
        /// The step that failed.
        step: usize,
        /// The reason.
        reason: String,
    },
    /// An adapter was cancelled by its owner; saved files stay.
    AdapterCancelled {
        /// The adapter.
        adapter: String,
        /// Steps it took.
        step: usize,
    },
    /// A warning.
    Warning {
        /// The warning.
        message: String,
    },
    /// The run ends.
    RunEnd {
        /// When, in RFC 3339.
        time: String,
        /// Wall time of all parts of a resumed run.
        seconds: f64,
        /// Tokens trained on.
        tokens: u64,
        /// Adapters that finished.
        done: usize,
        /// Adapters that failed.
        failed: usize,
        /// True if the run was stopped by a signal.
        interrupted: bool,
        /// Mean error of the predictions of an iteration's memory, in percent of the measured bytes; `null` without
        /// predictions or measurements.
        memory_error_percent: Option<f64>,
        /// Number of these predictions.
        memory_predictions: u64,
        /// The same before there was a fit, for predictions from the model's shape and earlier loads; `null` without
        /// measurements.
        memory_unfitted_error_percent: Option<f64>,
    },
}

/// Means over completions, by TRL's names. There are none of a side without completions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Rewards {
    /// Rewards of chosen completions: `beta` times their log-probability over that of the reference, if there is one.
    #[serde(rename = "rewards/chosen")]
    pub chosen: Option<f64>,
    /// Rewards of rejected completions.
    #[serde(rename = "rewards/rejected")]
    pub rejected: Option<f64>,
    /// Difference of both.
    #[serde(rename = "rewards/margins")]
    pub margins: Option<f64>,
    /// Share of the pairs whose chosen completion has the larger reward.
    #[serde(rename = "rewards/accuracies", skip_serializing_if = "Option::is_none")]
    pub accuracies: Option<f64>,
    /// Log-probabilities of chosen completions: means of their tokens for losses over these, otherwise sums.
    #[serde(rename = "logps/chosen")]
    pub log_probs_chosen: Option<f64>,
    /// Log-probabilities of rejected completions.
    #[serde(rename = "logps/rejected")]
    pub log_probs_rejected: Option<f64>,
    /// Estimated KL divergence from the reference, of KTO.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
}

impl Rewards {
    /// From sums over rows.
    pub(crate) fn new(sums: &Sums) -> Self {
        let mean = |sum: f64, count: usize| (count > 0).then(|| sum / count as f64);
        let [chosen, rejected] = sums.completions;
        let rewards = [
            mean(sums.rewards[0], chosen),
            mean(sums.rewards[1], rejected),
        ];
        let is_paired = sums.divergence.is_none();
        Self {
            chosen: rewards[0],
            rejected: rewards[1],
            margins: rewards[0].zip(rewards[1]).map(|(one, other)| one - other),
            accuracies: mean(sums.accurate as f64, sums.rows).filter(|_| is_paired),
            log_probs_chosen: mean(sums.log_probs[0], chosen),
            log_probs_rejected: mean(sums.log_probs[1], rejected),
            kl: sums.divergence.and_then(|sum| mean(sum, sums.rows)),
        }
    }
}

/// Versions of the programs that compute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Versions {
    /// loraloom.
    pub loraloom: &'static str,
    /// Burn.
    pub burn: &'static str,
}

impl Default for Versions {
    fn default() -> Self {
        Self {
            loraloom: env!("CARGO_PKG_VERSION"),
            burn: "0.22.1",
        }
    }
}
