use std::collections::BTreeMap;

use loraloom_pipeline::executor::StagePass;
use serde::Serialize;

/// Version of the lines in `events.jsonl`.
pub const EVENT_VERSION: u32 = 1;

/// What happened in a run: one line of `events.jsonl`, and what a display is told.
///
/// Numbers that do not exist are `null`: a loss that is not finite, bytes that a device does not
/// report.
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
        /// Where they are staggered: how many of them each stage runs, by partition. Groups begin with
        /// the partition at their number modulo how many there are.
        #[serde(skip_serializing_if = "Option::is_none")]
        partitions: Option<Vec<Vec<usize>>>,
        /// Bytes of the weights that each stage has in memory.
        weight_bytes: Vec<u64>,
        /// What multiplies the matrices of each stage: cuBLAS, or Burn's kernels and why.
        products: Vec<String>,
        /// Versions of what computes.
        versions: Versions,
    },
    /// The run goes on after it was interrupted or killed. What events before this one say of
    /// iterations after `iteration` is done again.
    Resume {
        /// When, in RFC 3339.
        time: String,
        /// Iterations of the run that are kept.
        iteration: u64,
        /// The checkpoint, relative to the run directory.
        path: String,
        /// Names of all adapters.
        adapters: Vec<String>,
        /// Devices, one per stage.
        stages: Vec<String>,
        /// First decoder layer that each stage holds and the one after its last.
        layers: Vec<[usize; 2]>,
        /// Where they are staggered: how many of them each stage runs, by partition. Groups begin with
        /// the partition at their number modulo how many there are.
        #[serde(skip_serializing_if = "Option::is_none")]
        partitions: Option<Vec<Vec<usize>>>,
        /// What multiplies the matrices of each stage: cuBLAS, or Burn's kernels and why.
        products: Vec<String>,
        /// Versions of what computes.
        versions: Versions,
    },
    /// An adapter begins to train, or goes on after it was parked.
    Admit {
        /// Its name.
        adapter: String,
        /// Steps it has taken.
        step: usize,
        /// Steps it will take.
        total_steps: usize,
        /// Why now.
        reason: String,
    },
    /// An adapter gives its place away; nothing of it is lost.
    Park {
        /// Its name.
        adapter: String,
        /// Steps it has taken.
        step: usize,
        /// Why.
        reason: String,
        /// Name of the adapter that takes its place, if it is one.
        by: Option<String>,
    },
    /// A device ran out of memory. What events before this one say of iterations after `iteration` is
    /// done again, with less.
    OutOfMemory {
        /// Iterations of the run that are kept.
        iteration: u64,
        /// What ran out.
        reason: String,
        /// Name of the adapter that gives its place away, if one does.
        parked: Option<String>,
        /// Rows of the micro-batches of the only adapter, if these were halved: its sums are taken
        /// in another order from now on.
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
        /// Sum of token cross-entropies over the number of target tokens.
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
    },
    /// All running adapters took a step, or a part of one. Results are read while the next iteration is computed, so
    /// this and the step events before it come up to one iteration late; whatever follows from a
    /// step comes after its event.
    Iteration {
        /// Iteration of the run, counted from 1.
        iteration: u64,
        /// Wall time until its results were there: since those of the iteration before, or since
        /// it was submitted if that was later. Evaluation and saving are left out.
        seconds: f64,
        /// Tokens of all adapters, also of one that turns out to have failed.
        tokens: usize,
        /// Tokens over seconds.
        tokens_per_second: f64,
        /// Mean share of the time that stages waited: 0 for one stage. Of stages on devices that
        /// work on their own nothing is known.
        bubble_ratio: Option<f64>,
        /// Sum over all hops between stages in different processes, from the end of the pass whose
        /// result is sent until the other stage has it. `null` without such stages, or where one
        /// is on a device that works on its own.
        transfer_seconds: Option<f64>,
        /// Share of `transfer_seconds` in which the stage that needed the tensor worked on something
        /// else: 1 is a network that costs no time.
        transfer_overlap: Option<f64>,
        /// Bytes that the stages' devices have reserved, if all of them report them; of workers as
        /// of about a second before. Of stages on the CPU, the most that the process had allocated
        /// in this iteration.
        bytes_reserved: Option<u64>,
        /// Bytes that the running adapters were expected to take at the most, with the longest rows
        /// of all of them at once; `None` where nothing is known of the devices' memory.
        bytes_predicted: Option<u64>,
        /// Names of the adapters of each group.
        groups: Vec<Vec<String>>,
        /// Adapters whose step is spread over several iterations, so that their neighbours need not
        /// wait for all of it: which part of it this was, counted from 1, and of how many.
        parts: BTreeMap<String, [usize; 2]>,
    },
    /// When the stages worked on an iteration: of a few that follow each other, some time after the groups
    /// have changed. Only of several stages that all know when their passes end.
    Passes {
        /// Iteration of the run.
        iteration: u64,
        /// The passes, in seconds of a clock of the run.
        passes: Vec<StagePass>,
    },
    /// Adapters train in other groups than before.
    Regroup {
        /// Names of the adapters of each group.
        groups: Vec<Vec<String>>,
        /// Why.
        reason: String,
    },
    /// An adapter was evaluated on its validation rows.
    Eval {
        /// The adapter.
        adapter: String,
        /// After this step.
        step: usize,
        /// Token-normalised cross-entropy over all validation rows.
        loss: Option<f64>,
        /// Whether this is its lowest so far.
        best: bool,
    },
    /// Adapters at their end answer prompts of their datasets, for the report.
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
        /// Where, relative to the run directory.
        path: String,
    },
    /// Everything that `--resume` needs was written.
    RunCheckpoint {
        /// Iteration of the run after which it was taken.
        iteration: u64,
        /// Where, relative to the run directory.
        path: String,
        /// Steps of the adapters that train or are parked, as it has them.
        steps: BTreeMap<String, usize>,
    },
    /// An adapter came to its end.
    AdapterDone {
        /// The adapter.
        adapter: String,
        /// Steps it took.
        step: usize,
        /// Why it ended.
        reason: String,
    },
    /// An adapter cannot go on; the others do.
    AdapterFailed {
        /// The adapter.
        adapter: String,
        /// The step that failed.
        step: usize,
        /// Why.
        reason: String,
    },
    /// An adapter was ended by its owner; what it saved stays.
    AdapterCancelled {
        /// The adapter.
        adapter: String,
        /// Steps it took.
        step: usize,
    },
    /// Something worth knowing.
    Warning {
        /// What.
        message: String,
    },
    /// The run ends.
    RunEnd {
        /// When, in RFC 3339.
        time: String,
        /// Wall time, of all parts of a run that was resumed.
        seconds: f64,
        /// Tokens trained on.
        tokens: u64,
        /// Adapters that came to their end.
        done: usize,
        /// Adapters that failed.
        failed: usize,
        /// Whether the run was stopped from outside.
        interrupted: bool,
        /// Mean of how far predictions of an iteration's memory were off, in percent of what it took,
        /// each made before the iteration; `None` if none was made or nothing was measured.
        memory_error_percent: Option<f64>,
        /// How many predictions that is.
        memory_predictions: u64,
        /// The same before there was a fit, of what the model's shape suggests and what had run; null
        /// where nothing was measured.
        memory_unfitted_error_percent: Option<f64>,
    },
}

/// Versions of what computes.
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
