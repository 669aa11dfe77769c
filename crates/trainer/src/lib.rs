//! A training run: several adapters over one frozen backbone.
//!
//! [`Run::prepare`] reads and checks everything, [`Run::train`] trains every adapter to its end and
//! writes the run directory; [`Generator`] generates text with trained adapters and
//! scores rows with them. The scheduler decides which tasks train; in every iteration each takes the rows of
//! its own next step, and a group's tasks go through the stages in one batch.
//!
//! A module uses only modules of higher rows, which a test enforces:
//!
//! | modules | |
//! |---|---|
//! | `error`, `start` | what can end a run, start values that are computed |
//! | `adapter`, `batch`, `report`, `run_directory`, `saved_adapter`, `scheduling`, `stages` | weights of an adapter, rows as micro-batches, results of a run, its files, adapters on disk, memory and scheduler, layers on devices |
//! | `checkpoint`, `events` | what `--resume` reads, lines of `events.jsonl` and the observer |
//! | `tasks` | an adapter in training, its rows, its state and its place |
//! | `generate`, `iteration`, `plan`, `save` | decoding, the next steps for the stages, the forecast of a run, what a run writes during training |
//! | `run`, `verify` | the loop, checks of what was written |

mod adapter;
mod batch;
mod checkpoint;
mod error;
mod events;
mod generate;
mod iteration;
mod plan;
mod report;
mod run;
mod run_directory;
mod save;
mod saved_adapter;
mod scheduling;
mod stages;
mod start;
mod tasks;
mod verify;

pub use adapter::{check_attention, check_start, check_targets, check_tokens, ranks, targets};
pub use batch::Score;
pub use checkpoint::{SavedRun, SavedTask, check_model, trained_over};
pub use error::{SourceError, TO_FIT, TrainerError, quoted};
pub use events::{EVENT_VERSION, Event, NewTask, Rewards, TaskCommand, TaskSource, Versions};
pub use generate::{
    ExactMatch, GenerateOptions, Generator, LiveAdapters, LiveAsks, adapter_reader, find_weights,
    inference_pipeline,
};
pub use plan::{Plan, PlannedBubble, PlannedGroup, PlannedLink, PlannedStage, Speeds};
pub use report::{AdapterReport, AnswerSample, Best, Outcome, Pace, PeakMemory, RunReport};
pub use run::{Run, Signals};
pub use run_directory::{
    ADAPTERS, CHECKPOINTS, CONFIG_FILE, EVENTS_FILE, Identity, holds_run, refuse_in_use,
};
pub use save::Standby;
pub use saved_adapter::{load_adapter, load_beginning};
pub use scheduling::DeviceRoom;
pub use stages::{OpenedStage, model_config, quantized, resolve_dtype};
pub use tasks::{
    DatasetSummary, EncodedRows, Inspected, advice, check_vocabulary, init_from_warnings, inspect,
    model_warnings, rank_warning, setting_warnings, start_warning, sweep_warnings, total_steps,
};
pub use verify::{CheckResult, Configurations, Verdict, verify};
