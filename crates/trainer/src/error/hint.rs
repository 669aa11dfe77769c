#[cfg(feature = "remote")]
use loraloom_pipeline::remote::WorkerError;
use loraloom_pipeline::{PartitionError, PipelineError};
use loraloom_scheduler::SchedulerError;

use super::{TrainerError, quoted};

/// Advice for an adapter that does not fit in memory.
pub const TO_FIT: &str = "lower `train.batch_size`, `train.max_seq_len` or `lora.r`, set \
                          `gradient_checkpointing: true`, or allow more (`scheduler.memory_limit`)";

impl TrainerError {
    /// Advice for a `hint:` line.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Config(error) => return error.hint(),
            Self::Data(error) => return error.hint(),
            Self::Model(error) | Self::Pipeline(PipelineError::Model(error)) => {
                return error.hint();
            }
            Self::InitFrom { source, .. } => return source.hint(),
            Self::RunExists { .. } => {
                "`--resume` goes on with it; or choose another `output_dir`, or move it away"
            }
            Self::NoCheckpoint { is_run: true, .. } => {
                "start a new run with another `output_dir`; an adapter goes on from its weights with \
                 `init_from: RUN/adapters/NAME/last`"
            }
            Self::NoCheckpoint { is_run: false, .. } => "start the run without `--resume`",
            Self::RunInUse { .. } => "wait until it has ended, or stop it",
            Self::AdapterGone { run, .. } => {
                return Some(format!(
                    "a run keeps its adapters and their names; `loraloom train --resume {}` goes on \
                     with its own configuration",
                    quoted(run)
                ));
            }
            Self::ConfigChanged { run, .. } => {
                return Some(format!(
                    "`loraloom train --resume {}` goes on with the run's own configuration; anything \
                     else is a new run",
                    quoted(run)
                ));
            }
            Self::DirectoryGone { .. } => {
                "if it was moved, `--resume` or `serve` with its new place goes on from the last \
                 checkpoint in it"
            }
            Self::OtherModel { .. } => {
                "if the run's model was moved, name its directory; an adapter's own directory works \
                 with any model of its shape: `loraloom generate --model DIR --adapter \
                 RUN/adapters/NAME/last`"
            }
            Self::SavesFailed { .. } => "make room, or mend the disk",
            Self::TokenBeyondVocabulary { .. } => {
                "is `tokenizer.json` the one that belongs to this model?"
            }
            Self::Partition(PartitionError::TooManyStages { layers, .. }) => {
                return Some(format!(
                    "name at most {layers} in `pipeline.stages`, one a layer"
                ));
            }
            Self::Partition(_) => "`pipeline.balance: auto` spreads the layers evenly",
            Self::NoToken => "name the file that workers were given, too",
            #[cfg(feature = "remote")]
            Self::Pipeline(PipelineError::Worker { problem, .. }) => worker_hint(problem)?,
            Self::Pipeline(PipelineError::TooLarge { .. }) => {
                "a smaller model, a narrower `dtype` where the device has it, or `pipeline.stages` with \
                 several devices"
            }
            Self::UnsupportedDtype { .. } => "use `dtype: float32`",
            Self::Scheduler(SchedulerError::NeverFits { .. }) | Self::DoesNotFit(_) => TO_FIT,
            Self::NoChatTemplate { .. } => "give the prompt as raw text",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

#[cfg(feature = "remote")]
fn worker_hint(problem: &WorkerError) -> Option<&'static str> {
    Some(match problem {
        WorkerError::Unreachable { .. } => {
            "is `loraloom worker` running there, is this the line that it printed, and does every machine \
             let UDP through to its port?"
        }
        WorkerError::Token => {
            "`pipeline.token_file` and the worker's `--token-file` must hold the same text"
        }
        WorkerError::Busy { .. } => "a worker holds one stage of one run",
        WorkerError::Mismatch { .. } => {
            "every machine needs the same loraloom and the same model directory"
        }
        WorkerError::NoKey => "copy the line that `loraloom worker` printed",
        WorkerError::Failed { .. } => return None,
    })
}
