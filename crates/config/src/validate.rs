//! Checks of ranges and names, which types do not express.

use std::{collections::BTreeMap, num::FpCategory};

use crate::{
    AdapterConfig, ConfigError, DatasetConfig, InitLoraWeights, LossType, LrSchedulerKwargs,
    LrSchedulerType, ObjectiveType, PipelineConfig, PreferenceLoss, RunConfig, StageLocation,
    TargetModule, TrainSettings, Validation, paths, pipeline, slora,
    without_effect::without_effect, written_config::WrittenConfig,
};

/// Most rows in a batch, batches in a step and passes over a dataset; larger values are typing errors.
const MOST: u32 = 1_000_000;

/// Longer numbers are shown with an exponent.
const MOST_DIGITS: usize = 20;

/// Checks a resolved configuration against its tree; `empty` allows one without adapters. Returns warnings.
///
/// # Errors
/// The first value out of its range, with the key that sets it and its place.
pub(crate) fn validate(
    config: &RunConfig,
    written: WrittenConfig<'_>,
    empty: bool,
) -> Result<Vec<String>, ConfigError> {
    let mut warnings = pipeline::warn(&config.pipeline);
    check_run(config, written, empty)?;
    check_datasets(config, written)?;
    check_names(&config.adapters, written)?;
    for (index, adapter) in config.adapters.iter().enumerate() {
        let check = Check {
            index,
            name: &adapter.name,
            written,
        };
        check.all(adapter)?;
        check.patience(adapter, &config.datasets)?;
        check.start(adapter, &config.pipeline)?;
        if let Some((field, problem)) = slora::problem(adapter, &config.adapters) {
            return Err(check.invalid(field, problem));
        }
        warnings.extend(without_effect(adapter));
    }
    let cut = config.pipeline.microbatches;
    let batches = config.adapters.iter().map(|a| a.train.batch_size);
    if let Some(largest) = batches.max().filter(|&largest| largest < cut) {
        warnings.push(format!(
            "pipeline.microbatches is {cut}, but the largest batch has {largest} rows: a batch has at \
             most as many micro-batches as rows"
        ));
    }
    let is_used = |name: &String| config.adapters.iter().any(|a| a.dataset == *name);
    let unused = config
        .datasets
        .keys()
        .filter(|name| !empty && !is_used(name));
    warnings.extend(unused.map(|name| format!("no adapter uses dataset `{name}`")));
    Ok(warnings)
}

fn check_run(
    config: &RunConfig,
    written: WrittenConfig<'_>,
    empty: bool,
) -> Result<(), ConfigError> {
    let (model, run) = (&config.model, &config.output_dir);
    for (key, is_empty) in [
        ("model", model.as_os_str().is_empty()),
        ("output_dir", run.as_os_str().is_empty()),
    ] {
        if is_empty {
            return Err(written.invalid(key, "must not be empty"));
        }
    }
    if paths::is_within(run, model) {
        let problem = "is the directory of `model` or inside it; choose another directory";
        return Err(written.invalid("output_dir", problem));
    }
    if config.adapters.is_empty() && !empty {
        return Err(written.invalid("adapters", "must not be empty"));
    }
    Ok(())
}

fn check_datasets(config: &RunConfig, written: WrittenConfig<'_>) -> Result<(), ConfigError> {
    let nodes = written.tree.get("datasets").unwrap_or(written.tree);
    for (name, dataset) in &config.datasets {
        let node = nodes.get(name).unwrap_or(nodes);
        let invalid = |key: &str, problem: String| {
            let path = format!("datasets.{name}.{key}");
            Err(written.source.invalid(node.locate(key), path, problem))
        };
        if dataset.path.is_empty() || dataset.path.iter().any(|p| p.as_os_str().is_empty()) {
            return invalid("path", "must name at least one file".to_owned());
        }
        if let Validation::Fraction(fraction) = dataset.validation
            && !(0.0..1.0).contains(&fraction)
        {
            let problem = format!("must be at least 0 and below 1, got {fraction}");
            return invalid("validation", problem);
        }
    }
    Ok(())
}

fn check_names(adapters: &[AdapterConfig], written: WrittenConfig<'_>) -> Result<(), ConfigError> {
    let source = written.source;
    for (index, adapter) in adapters.iter().enumerate() {
        let (location, key) = written.of_adapter(index, "name");
        if let Some(problem) = unsafe_name(&adapter.name) {
            return Err(source.invalid(location, key, problem));
        }
        // Directories differing only in case are one directory on some file systems.
        let taken = |other: &AdapterConfig| other.name.eq_ignore_ascii_case(&adapter.name);
        if let Some(first) = adapters[..index].iter().position(taken) {
            return Err(ConfigError::DuplicateAdapter {
                place: source.place(location),
                name: adapter.name.clone(),
                first: source.place(written.of_adapter(first, "name").0),
            });
        }
    }
    Ok(())
}

/// The reason why a name is not a valid directory name on every system, if it is not.
pub(crate) fn unsafe_name(name: &str) -> Option<String> {
    let safe = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() {
        Some("must not be empty".to_owned())
    } else if name.len() > 100 {
        let length = name.len();
        Some(format!("must have at most 100 characters, got {length}"))
    } else if let Some(bad) = name.chars().find(|c| !safe(*c)) {
        Some(format!(
            "`{name}` names a directory: ASCII letters, digits, `.`, `_` and `-` only, found {bad:?}"
        ))
    } else if name.starts_with(['.', '-']) || name.ends_with('.') {
        Some(format!(
            "`{name}` names a directory: it cannot start with `.` or `-` or end with `.`"
        ))
    } else {
        None
    }
}

/// A range of numbers, and its description.
type Range = (fn(f64) -> bool, &'static str);

const NOT_NEGATIVE: Range = (|x| x >= 0.0, "finite and at least 0");
const POSITIVE: Range = (|x| x > 0.0, "finite and above 0");
const BELOW_ONE: Range = (|x| (0.0..1.0).contains(&x), "at least 0 and below 1");
const AT_LEAST_ONE: Range = (|x| x >= 1.0, "finite and at least 1");
const SHARE: Range = (|x| x > 0.0 && x <= 1.0, "above 0 and at most 1");
const RATIO: Range = (|x| (0.0..=1.0).contains(&x), "between 0 and 1");
const EPOCHS: Range = (
    |x| x > 0.0 && x <= f64::from(MOST),
    "above 0 and at most 1000000",
);
const EPSILON: Range = (
    |x| x > 0.0,
    "finite and above 0 (0 makes weights without a gradient NaN)",
);

/// Checks the fields of one adapter.
struct Check<'a> {
    index: usize,
    name: &'a str,
    written: WrittenConfig<'a>,
}

impl Check<'_> {
    fn all(&self, adapter: &AdapterConfig) -> Result<(), ConfigError> {
        let (lora, train) = (&adapter.lora, &adapter.train);
        let accumulation = train.gradient_accumulation_steps;
        self.whole("lora.r", lora.r, 1, usize::MAX)?;
        if lora.init_lora_weights == InitLoraWeights::Orthogonal
            && lora.r % 2 == 1
            && adapter.init_from.is_none()
        {
            let problem = format!("orthogonal needs an even r, as in PEFT, got {}", lora.r);
            return Err(self.invalid("lora.init_lora_weights", problem));
        }
        if lora.use_dora && lora.target_modules.contains(&TargetModule::EmbedTokens) {
            let problem = "is not supported for embed_tokens; leave it out of target_modules";
            return Err(self.invalid("lora.use_dora", problem.to_owned()));
        }
        let eva = lora.eva_config();
        self.number("lora.eva_config.rho", eva.rho, AT_LEAST_ONE)?;
        self.number("lora.eva_config.tau", eva.tau, RATIO)?;
        let slora = &lora.slora_config;
        self.number("lora.slora_config.density", slora.density, SHARE)?;
        for (field, steps) in [("rounds", slora.rounds), ("local_steps", slora.local_steps)] {
            self.whole(
                &format!("lora.slora_config.{field}"),
                steps,
                1,
                MOST as usize,
            )?;
        }
        self.number(
            "lora.slora_config.learning_rate",
            slora.learning_rate,
            POSITIVE,
        )?;
        self.number("lora.lora_alpha", lora.lora_alpha, POSITIVE)?;
        self.number("lora.lora_dropout", lora.lora_dropout, BELOW_ONE)?;
        self.whole("train.batch_size", train.batch_size, 1, MOST as usize)?;
        self.whole(
            "train.gradient_accumulation_steps",
            accumulation,
            1,
            MOST as usize,
        )?;
        self.whole("train.max_seq_len", train.max_seq_len, 2, usize::MAX)?;
        self.number("train.num_epochs", train.num_epochs, EPOCHS)?;
        self.whole(
            "train.max_steps",
            train.max_steps.unwrap_or(1),
            1,
            u32::MAX as usize,
        )?;
        self.number("train.learning_rate", train.learning_rate, NOT_NEGATIVE)?;
        self.number("train.weight_decay", train.weight_decay, NOT_NEGATIVE)?;
        self.number("train.adam_epsilon", train.adam_epsilon, EPSILON)?;
        self.number("train.max_grad_norm", train.max_grad_norm, NOT_NEGATIVE)?;
        self.number("train.adam_beta1", train.adam_beta1, BELOW_ONE)?;
        self.number("train.adam_beta2", train.adam_beta2, BELOW_ONE)?;
        let smoothing = train.label_smoothing_factor;
        self.number("train.label_smoothing_factor", smoothing, BELOW_ONE)?;
        let objective = adapter.objective.r#type;
        if smoothing > 0.0 && objective != ObjectiveType::Sft {
            let name = objective.name();
            let problem = format!("is of `sft`, not of `{name}`; set it to 0 here, or remove it");
            return Err(self.invalid("train.label_smoothing_factor", problem));
        }
        self.number("train.warmup_ratio", train.warmup_ratio, RATIO)?;
        self.schedule(train)?;
        self.loraplus(train)?;
        self.whole("eval.steps", adapter.eval.steps, 1, usize::MAX)?;
        match adapter.objective.loss() {
            Err((key, problem)) => return Err(self.invalid(&format!("objective.{key}"), problem)),
            Ok(Some(PreferenceLoss::Kto(kto))) if kto.loss == LossType::Kto => {
                if train.batch_size < 2 {
                    let problem = "must be at least 2 for `kto`, which estimates a divergence from the other \
                                   rows of a batch, got 1";
                    return Err(self.invalid("train.batch_size", problem.to_owned()));
                }
            }
            Ok(_) if adapter.objective.contrast().is_some() && train.batch_size < 2 => {
                let problem =
                    "must be at least 2 for `cit`, which compares the rows of a batch, got 1";
                return Err(self.invalid("train.batch_size", problem.to_owned()));
            }
            Ok(_) => {}
        }
        let patience = adapter.eval.patience.unwrap_or(1);
        self.whole("eval.patience", patience, 1, usize::MAX)?;
        self.whole("save.steps", adapter.save.steps, 1, usize::MAX)?;
        self.whole("save.keep", adapter.save.keep, 1, usize::MAX)
    }

    /// Start values that are computed, and what they cannot be combined with.
    fn start(&self, adapter: &AdapterConfig, pipeline: &PipelineConfig) -> Result<(), ConfigError> {
        let lora = &adapter.lora;
        let Some(name) = lora.init_lora_weights.name() else {
            return Ok(());
        };
        if !lora.init_lora_weights.is_computed() || adapter.init_from.is_some() {
            return Ok(());
        }
        let is_remote = |stage: &&StageLocation| matches!(stage, StageLocation::Remote(_));
        let problem = if let Some(worker) = pipeline.stages.iter().find(is_remote) {
            format!("{name} needs all stages on this machine, not on {worker}")
        } else if !lora.init_lora_weights.is_of_weights() {
            return Ok(());
        } else if lora.use_dora {
            format!("{name} cannot be combined with use_dora")
        } else if adapter.dropout() > 0.0 {
            format!(
                "{name} needs `lora_dropout: 0`, got {}: what an adapter begins with belongs to the model",
                adapter.dropout()
            )
        } else if lora.target_modules.contains(&TargetModule::EmbedTokens) {
            format!("{name} cannot begin an adapter of embed_tokens, which begins with A zero")
        } else {
            return Ok(());
        };
        Err(self.invalid("lora.init_lora_weights", problem))
    }

    fn loraplus(&self, train: &TrainSettings) -> Result<(), ConfigError> {
        let (ratio, embedding) = (train.loraplus_lr_ratio, train.loraplus_lr_embedding);
        if embedding.is_some() && ratio.is_none() {
            let problem = "needs loraplus_lr_ratio, which turns LoRA+ on";
            return Err(self.invalid("train.loraplus_lr_embedding", problem.to_owned()));
        }
        for (field, value) in [
            ("train.loraplus_lr_ratio", ratio),
            ("train.loraplus_lr_embedding", embedding),
        ] {
            self.number(field, value.unwrap_or(1.0), POSITIVE)?;
        }
        Ok(())
    }

    /// The keywords of a schedule: those that it has, in their ranges.
    fn schedule(&self, train: &TrainSettings) -> Result<(), ConfigError> {
        let (kind, kwargs) = (train.lr_scheduler_type, &train.lr_scheduler_kwargs);
        let field = |keyword: &str| format!("train.lr_scheduler_kwargs.{keyword}");
        let name = serde_json::to_value(kind).unwrap_or_default();
        let name = name.as_str().unwrap_or_default();
        let has = kind.keywords();
        let written = serde_json::to_value(kwargs).unwrap_or_default();
        let mut written = written.as_object().into_iter().flat_map(|map| map.keys());
        if let Some(keyword) = written.find(|keyword| !has.contains(&keyword.as_str())) {
            let has = match has {
                [] => "it has none".to_owned(),
                has => format!("it has {}", has.join(", ")),
            };
            let problem = format!("the schedule `{name}` has no such keyword: {has}");
            return Err(self.invalid(&field(keyword), problem));
        }
        let rate = train.learning_rate;
        for (keyword, value, range) in [
            ("min_lr", kwargs.min_lr, NOT_NEGATIVE),
            ("min_lr_rate", kwargs.min_lr_rate, RATIO),
            ("num_cycles", kwargs.num_cycles, NOT_NEGATIVE),
            ("lr_end", kwargs.lr_end, NOT_NEGATIVE),
            ("power", kwargs.power, NOT_NEGATIVE),
            ("min_lr_ratio", kwargs.min_lr_ratio, RATIO),
        ] {
            self.number(&field(keyword), value.unwrap_or(0.0), range)?;
        }
        self.whole(
            &field("timescale"),
            kwargs.timescale.unwrap_or(1),
            1,
            usize::MAX,
        )?;
        let (keyword, problem) = match kind {
            LrSchedulerType::CosineWithMinLr => match (kwargs.min_lr, kwargs.min_lr_rate) {
                (Some(_), Some(_)) => ("min_lr", "cannot be combined with min_lr_rate".to_owned()),
                (None, None) => ("", format!("`{name}` needs min_lr or min_lr_rate")),
                (Some(least), None) if least > rate => (
                    "min_lr",
                    format!("must be at most learning_rate {rate}, got {least}"),
                ),
                _ => return Ok(()),
            },
            LrSchedulerType::Polynomial => {
                let last = kwargs.lr_end.unwrap_or(LrSchedulerKwargs::LR_END);
                if last < rate {
                    return Ok(());
                }
                (
                    "lr_end",
                    format!("must be below learning_rate {rate}, got {last}"),
                )
            }
            LrSchedulerType::WarmupStableDecay if kwargs.num_decay_steps.is_none() => {
                ("", format!("`{name}` needs num_decay_steps"))
            }
            _ => return Ok(()),
        };
        let key = match keyword {
            "" => "train.lr_scheduler_kwargs".to_owned(),
            keyword => field(keyword),
        };
        Err(self.invalid(&key, problem))
    }

    fn patience(
        &self,
        adapter: &AdapterConfig,
        datasets: &BTreeMap<String, DatasetConfig>,
    ) -> Result<(), ConfigError> {
        let name = &adapter.dataset;
        if adapter.eval.patience.is_none() || datasets[name].has_validation() {
            return Ok(());
        }
        let problem = format!(
            "adapter `{}` is never evaluated, since dataset `{name}` has no validation rows: set \
             `datasets.{name}.validation`, or leave it out",
            adapter.name
        );
        Err(self.refused("eval.patience", problem))
    }

    /// The error for a setting that conflicts with another one; in `defaults` it names the adapter.
    fn invalid(&self, field: &str, problem: String) -> ConfigError {
        let (_, key) = self.written.of_adapter(self.index, field);
        let of = match key.strip_prefix("defaults.") {
            Some(_) => format!(" (adapter `{}`)", self.name),
            None => String::new(),
        };
        self.refused(field, problem + &of)
    }

    /// The error for a value that no adapter can have.
    fn refused(&self, field: &str, problem: String) -> ConfigError {
        let (location, key) = self.written.of_adapter(self.index, field);
        self.written.source.invalid(location, key, problem)
    }

    fn number(&self, field: &str, value: f64, (range, words): Range) -> Result<(), ConfigError> {
        if !(value.is_finite() && range(value)) {
            let mut found = value.to_string();
            if found.len() > MOST_DIGITS {
                found = format!("{value:e}");
            }
            return Err(self.refused(field, format!("must be {words}, got {found}")));
        }
        let rounded = value as f32;
        let (size, name, limit) = match rounded.classify() {
            FpCategory::Infinite => ("large", "largest number", f32::MAX),
            FpCategory::Zero | FpCategory::Subnormal if value != 0.0 => {
                ("small", "smallest normal number", f32::MIN_POSITIVE)
            }
            _ => return Ok(()),
        };
        let problem = format!("{value:e} is too {size} for float32, whose {name} is {limit:e}");
        Err(self.refused(field, problem))
    }

    fn whole(
        &self,
        field: &str,
        value: usize,
        least: usize,
        most: usize,
    ) -> Result<(), ConfigError> {
        let problem = if value < least {
            format!("must be at least {least}, got {value}")
        } else if value > most {
            format!("must be at most {most}, got {value}")
        } else {
            return Ok(());
        };
        Err(self.refused(field, problem))
    }
}
