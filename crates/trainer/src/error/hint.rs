use loraloom_config::Preference;
#[cfg(feature = "remote")]
use loraloom_pipeline::remote::WorkerError;
use loraloom_pipeline::{PartitionError, PipelineError};
use loraloom_scheduler::SchedulerError;

use super::{TrainerError, quoted};

/// Advice for an adapter that does not fit in memory.
pub const TO_FIT: &str = "lower `train.batch_size`, `train.max_seq_len` or `lora.r`, set \
                          `gradient_checkpointing: true`, or allow more (`scheduler.memory_limit`)";

/// Advice for rows that do not have what an objective needs.
fn for_other_rows(needed: Option<Preference>, found: Option<Preference>) -> &'static str {
    match (needed, found) {
        (_, Some(Preference::Pairs)) => "set `objective: {type: dpo}`, or name other columns",
        (_, Some(Preference::Rated)) => "set `objective: {type: kto}`, or name other columns",
        (_, Some(Preference::Paraphrases)) => {
            "set `objective: {type: cit}`, or remove `is_origin` from `template`"
        }
        (Some(Preference::Paraphrases), _) => {
            "write a `template` that reads `is_origin`: true for the text, false for its paraphrase"
        }
        (Some(Preference::Pairs), _) => {
            "give the rows the columns `prompt`, `chosen` and `rejected`, or name them in `columns`"
        }
        _ => {
            "give the rows the columns `prompt`, `completion` and `label`, or name them in `columns`; a label is \
             `true` or `false`, not 1 or 0"
        }
    }
}

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
            Self::OtherRows { needed, found, .. } => for_other_rows(*needed, *found),
            Self::RunExists { .. } => {
                "continue it with `--resume`, choose another `output_dir`, or move it away"
            }
            Self::NoCheckpoint { is_run: true, .. } => {
                "start a new run with another `output_dir`; `init_from: RUN/adapters/NAME/last` \
                 continues from the weights of an adapter"
            }
            Self::NoCheckpoint { is_run: false, .. } => "start the run without `--resume`",
            Self::RunInUse { .. } => "wait until it ends, or stop it",
            Self::AdapterGone { run, .. } => {
                return Some(format!(
                    "a run keeps its adapters and their names; `loraloom train --resume {}` uses its \
                     own configuration",
                    quoted(run)
                ));
            }
            Self::ConfigChanged { key, run, .. } => {
                let resume = format!(
                    "`loraloom train --resume {}` uses the run's own configuration",
                    quoted(run)
                );
                return Some(match longer(key) {
                    Some(adapter) => format!(
                        "{resume}, on which the learning rates of all steps depend; to train longer, start a \
                         new run with `init_from: {}`",
                        run.join(format!("adapters/{adapter}/last")).display()
                    ),
                    None => format!("{resume}; other changes need a new run"),
                });
            }
            Self::DirectoryGone { .. } => {
                "if it was moved, `--resume` or `serve` with its new path continues from its last \
                 checkpoint"
            }
            Self::OtherModel { .. } => {
                "if the run's model was moved, give its new directory; for another model of the same \
                 shape name the adapter's directory instead of the run: `--model DIR --adapter \
                 RUN/adapters/NAME/last` (`NAME=RUN/…` for `serve`)"
            }
            Self::SavesFailed { .. } => "free space, or repair the disk",
            Self::NoTarget { has, .. } => {
                let has = has.join(", ");
                return Some(format!(
                    "the default of `lora.target_modules` is Llama's attention: set it to some of {has}, or to \
                     all-linear"
                ));
            }
            Self::Start { init, .. } => start_hint(init),
            Self::OneToken { .. } => {
                "train longer rows, or leave q_proj and k_proj out of `lora.target_modules`"
            }
            Self::ChangedAdapter { path, .. } => {
                return Some(format!(
                    "restore it; `loraloom verify {}` shows all checks",
                    quoted(path)
                ));
            }
            Self::TokenBeyondVocabulary { .. } => {
                "check that `tokenizer.json` belongs to this model"
            }
            Self::Partition(PartitionError::TooManyStages { layers, .. }) => {
                return Some(format!(
                    "name at most {layers} in `pipeline.stages`, one per layer"
                ));
            }
            Self::Partition(_) => "`pipeline.balance: auto` spreads the layers evenly",
            Self::NoToken => "set it to a file with the token of the workers",
            #[cfg(feature = "remote")]
            Self::Pipeline(PipelineError::Worker { problem, .. }) => worker_hint(problem)?,
            Self::Pipeline(PipelineError::TooLarge { .. }) => {
                "use a smaller model, a narrower `dtype` if the device supports it, or several devices \
                 in `pipeline.stages`"
            }
            Self::UnsupportedDtype { .. } => "use `dtype: float32`",
            Self::Scheduler(SchedulerError::NeverFits { .. }) | Self::DoesNotFit(_) => TO_FIT,
            Self::NoChatTemplate { .. } => "give the prompt as raw text",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

/// Advice for an adapter that cannot begin with these start values.
fn start_hint(init: &str) -> &'static str {
    match init {
        "eva" => {
            "lower `lora.r` or `lora.eva_config.rho`, raise `train.batch_size`, or set \
             `lora.eva_config.use_label_mask: false`"
        }
        "slora" => {
            "raise `lora.slora_config.density`, lower `lora.slora_config.learning_rate`, target fewer modules, or \
             leave an adapter that cannot begin out of the group"
        }
        _ => "lower `lora.r`, or target other modules",
    }
}

/// The adapter whose number of steps is at `key`.
fn longer(key: &str) -> Option<&str> {
    let key = key.strip_prefix("adapters.")?;
    let steps = [".train.max_steps", ".train.num_epochs"];
    steps.iter().find_map(|steps| key.strip_suffix(steps))
}

#[cfg(feature = "remote")]
fn worker_hint(problem: &WorkerError) -> Option<&'static str> {
    Some(match problem {
        WorkerError::Unreachable { .. } => {
            "check that `loraloom worker` runs there, that this is the line that it printed, and that \
             every machine reaches its port over UDP"
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
