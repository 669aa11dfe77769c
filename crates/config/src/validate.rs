//! Ranges and names: what types cannot say.

use crate::{
    AdapterConfig, ConfigError, LrSchedulerType, RunConfig, Validation, paths, pipeline,
    place::{Location, Source},
    suggest::Candidates,
    sweep::Expansion,
    tree::Node,
};

/// The linear layers that can be adapted, by the name each has in a Hugging Face model.
pub const TARGET_MODULES: [&str; 7] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];

/// PEFT's word for every linear layer.
pub(crate) const ALL_LINEAR: &str = "all-linear";

/// More rows in a batch, batches in a step or passes over a dataset are a slip of the keyboard.
const MOST: u32 = 1_000_000;

/// Longer numbers are shown with an exponent.
const MOST_DIGITS: usize = 20;

/// Checks a resolved configuration against the tree it came from; `empty` is one that may be without
/// adapters. Returns warnings.
///
/// # Errors
///
/// The first value out of its range, with the key that sets it and its place.
pub(crate) fn validate(
    config: &RunConfig,
    expansion: &Expansion,
    tree: &Node,
    source: &Source<'_>,
    empty: bool,
) -> Result<Vec<String>, ConfigError> {
    let mut warnings = pipeline::warn(&config.pipeline);
    let run = Run {
        config,
        expansion,
        tree,
        source,
    };
    run.scalars(empty)?;
    run.datasets()?;
    run.names()?;
    for (index, adapter) in config.adapters.iter().enumerate() {
        let check = Check {
            index,
            expansion,
            tree,
            source,
        };
        check.lora(adapter)?;
        check.train(adapter)?;
        check.intervals(adapter)?;
        warn(adapter, &mut warnings);
    }
    for name in config.datasets.keys() {
        if !empty
            && !config
                .adapters
                .iter()
                .any(|adapter| adapter.dataset == *name)
        {
            warnings.push(format!("dataset `{name}` is used by no adapter"));
        }
    }
    Ok(warnings)
}

struct Run<'a> {
    config: &'a RunConfig,
    expansion: &'a Expansion,
    tree: &'a Node,
    source: &'a Source<'a>,
}

impl Run<'_> {
    fn invalid(&self, location: Location, key: String, problem: String) -> ConfigError {
        ConfigError::Invalid {
            place: self.source.place(location),
            key,
            problem,
        }
    }

    fn location(&self, path: &str) -> Location {
        self.tree.find(path).unwrap_or(self.tree).location
    }

    fn scalars(&self, without_adapters: bool) -> Result<(), ConfigError> {
        let empty = |key: &str| {
            let problem = "must not be empty".to_owned();
            Err(self.invalid(self.location(key), key.to_owned(), problem))
        };
        if self.config.model.as_os_str().is_empty() {
            return empty("model");
        }
        if self.config.output_dir.as_os_str().is_empty() {
            return empty("output_dir");
        }
        let (model, run) = (&self.config.model, &self.config.output_dir);
        if paths::is_within(run, model) {
            let problem = "is, or is in, the directory of `model`; a run needs one of its own";
            return Err(self.invalid(
                self.location("output_dir"),
                "output_dir".to_owned(),
                problem.to_owned(),
            ));
        }
        if self.config.adapters.is_empty() && !without_adapters {
            return empty("adapters");
        }
        Ok(())
    }

    fn datasets(&self) -> Result<(), ConfigError> {
        let nodes = self.tree.get("datasets").unwrap_or(self.tree);
        for (name, dataset) in &self.config.datasets {
            let node = nodes.get(name).unwrap_or(nodes);
            let at = |key: &str| node.get(key).unwrap_or(node).location;
            if dataset.path.is_empty() || dataset.path.iter().any(|p| p.as_os_str().is_empty()) {
                let problem = "must name at least one file".to_owned();
                return Err(self.invalid(at("path"), format!("datasets.{name}.path"), problem));
            }
            if let Validation::Fraction(fraction) = dataset.validation
                && !(0.0..1.0).contains(&fraction)
            {
                let key = format!("datasets.{name}.validation");
                let problem = format!("must be at least 0 and below 1, got {fraction}");
                return Err(self.invalid(at("validation"), key, problem));
            }
        }
        Ok(())
    }

    fn names(&self) -> Result<(), ConfigError> {
        for (index, adapter) in self.config.adapters.iter().enumerate() {
            let (location, key) = self.expansion.locate(self.tree, index, "name");
            if let Some(problem) = unsafe_name(&adapter.name) {
                return Err(self.invalid(location, key, problem));
            }
            // Directories differing only in case are one directory on some file systems.
            let taken = |other: &AdapterConfig| other.name.eq_ignore_ascii_case(&adapter.name);
            if let Some(first) = self.config.adapters[..index].iter().position(taken) {
                return Err(ConfigError::DuplicateAdapter {
                    place: self.source.place(location),
                    name: adapter.name.clone(),
                    first: self
                        .source
                        .place(self.expansion.locate(self.tree, first, "name").0),
                });
            }
        }
        Ok(())
    }
}

/// Why a name cannot be a directory's everywhere, if it cannot.
pub(crate) fn unsafe_name(name: &str) -> Option<String> {
    let safe = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() {
        Some("must not be empty".to_owned())
    } else if name.len() > 100 {
        Some(format!(
            "must have at most 100 characters, got {}",
            name.len()
        ))
    } else if let Some(bad) = name.chars().find(|c| !safe(*c)) {
        Some(format!(
            "`{name}` names a directory: letters, digits, `.`, `_` and `-` only, found {bad:?}"
        ))
    } else if name.starts_with(['.', '-']) || name.ends_with('.') {
        Some(format!(
            "`{name}` names a directory: it cannot start with `.` or `-` or end with `.`"
        ))
    } else {
        None
    }
}

struct Check<'a> {
    index: usize,
    expansion: &'a Expansion,
    tree: &'a Node,
    source: &'a Source<'a>,
}

impl Check<'_> {
    fn invalid(&self, field: &str, problem: String) -> ConfigError {
        let (location, key) = self.expansion.locate(self.tree, self.index, field);
        ConfigError::Invalid {
            place: self.source.place(location),
            key,
            problem,
        }
    }

    fn number(
        &self,
        field: &str,
        value: f64,
        range: impl Fn(f64) -> bool,
        words: &str,
    ) -> Result<(), ConfigError> {
        if !(value.is_finite() && range(value)) {
            let mut found = value.to_string();
            if found.len() > MOST_DIGITS {
                found = format!("{value:e}");
            }
            return Err(self.invalid(field, format!("must be {words}, got {found}")));
        }
        let rounded = value as f32;
        if rounded.is_infinite() || (rounded == 0.0 && value != 0.0) {
            let problem = format!("{value:e} is too large or too small for float32");
            return Err(self.invalid(field, problem));
        }
        Ok(())
    }

    fn at_least(&self, field: &str, value: usize, least: usize) -> Result<(), ConfigError> {
        if value >= least {
            Ok(())
        } else {
            Err(self.invalid(field, format!("must be at least {least}, got {value}")))
        }
    }

    fn count(&self, field: &str, value: usize) -> Result<(), ConfigError> {
        self.at_least(field, value, 1)?;
        if value > MOST as usize {
            return Err(self.invalid(field, format!("must be at most {MOST}, got {value}")));
        }
        Ok(())
    }

    fn lora(&self, adapter: &AdapterConfig) -> Result<(), ConfigError> {
        let lora = &adapter.lora;
        self.at_least("lora.r", lora.r, 1)?;
        self.number(
            "lora.lora_alpha",
            lora.lora_alpha,
            |x| x > 0.0,
            "finite and above 0",
        )?;
        let dropout = |x: f64| (0.0..1.0).contains(&x);
        self.number(
            "lora.lora_dropout",
            lora.lora_dropout,
            dropout,
            "at least 0 and below 1",
        )?;
        self.target_modules(&lora.target_modules)
    }

    fn target_modules(&self, modules: &[String]) -> Result<(), ConfigError> {
        let field = "lora.target_modules";
        if modules.is_empty() {
            return Err(self.invalid(field, "must name at least one module".to_owned()));
        }
        let valid = TARGET_MODULES.into_iter().chain([ALL_LINEAR]);
        for (position, module) in modules.iter().enumerate() {
            if module == ALL_LINEAR && modules.len() > 1 {
                let problem = format!("`{ALL_LINEAR}` already includes every module");
                return Err(self.invalid(field, problem));
            }
            if !valid.clone().any(|known| known == module) {
                let (location, key) = self.expansion.locate(self.tree, self.index, field);
                return Err(ConfigError::UnknownName {
                    place: self.source.place(location),
                    key,
                    what: "module",
                    name: module.clone(),
                    valid: Candidates::of(module, valid),
                });
            }
            if modules[..position].contains(module) {
                return Err(self.invalid(field, format!("`{module}` is named twice")));
            }
        }
        Ok(())
    }

    fn train(&self, adapter: &AdapterConfig) -> Result<(), ConfigError> {
        let train = &adapter.train;
        self.count("train.batch_size", train.batch_size)?;
        let accumulation = train.gradient_accumulation_steps;
        self.count("train.gradient_accumulation_steps", accumulation)?;
        self.at_least("train.max_seq_len", train.max_seq_len, 2)?;
        self.number(
            "train.num_epochs",
            train.num_epochs,
            |x| x > 0.0 && x <= f64::from(MOST),
            &format!("above 0 and at most {MOST}"),
        )?;
        let max_steps = train.max_steps.unwrap_or(1);
        self.at_least("train.max_steps", max_steps, 1)?;
        if u32::try_from(max_steps).is_err() {
            let problem = format!("must be at most {}, got {max_steps}", u32::MAX);
            return Err(self.invalid("train.max_steps", problem));
        }
        let positive = |x: f64| x >= 0.0;
        let words = "finite and at least 0";
        self.number("train.learning_rate", train.learning_rate, positive, words)?;
        self.number("train.weight_decay", train.weight_decay, positive, words)?;
        self.number(
            "train.adam_epsilon",
            train.adam_epsilon,
            |x| x > 0.0,
            "finite and above 0 (0 makes weights without a gradient NaN)",
        )?;
        self.number("train.max_grad_norm", train.max_grad_norm, positive, words)?;
        let beta = |x: f64| (0.0..1.0).contains(&x);
        self.number(
            "train.adam_beta1",
            train.adam_beta1,
            beta,
            "at least 0 and below 1",
        )?;
        self.number(
            "train.adam_beta2",
            train.adam_beta2,
            beta,
            "at least 0 and below 1",
        )?;
        let ratio = |x: f64| (0.0..=1.0).contains(&x);
        self.number(
            "train.warmup_ratio",
            train.warmup_ratio,
            ratio,
            "between 0 and 1",
        )
    }

    fn intervals(&self, adapter: &AdapterConfig) -> Result<(), ConfigError> {
        self.at_least("eval.steps", adapter.eval.steps, 1)?;
        self.at_least("eval.patience", adapter.eval.patience.unwrap_or(1), 1)?;
        self.at_least("save.steps", adapter.save.steps, 1)?;
        self.at_least("save.keep", adapter.save.keep, 1)
    }
}

fn warn(adapter: &AdapterConfig, warnings: &mut Vec<String>) {
    let (name, train) = (&adapter.name, &adapter.train);
    let warms = train.warmup_steps > 0 || train.warmup_ratio > 0.0;
    if train.lr_scheduler_type == LrSchedulerType::Constant && warms {
        warnings.push(format!(
            "adapter `{name}`: the `constant` schedule has no warm-up, as in transformers; \
             `constant_with_warmup` has"
        ));
    }
    if train.warmup_steps > 0 && train.warmup_ratio > 0.0 {
        warnings.push(format!(
            "adapter `{name}`: warmup_steps {} is used and warmup_ratio {} is not",
            train.warmup_steps, train.warmup_ratio
        ));
    }
    if let Some(max_steps) = train.max_steps
        && train.lr_scheduler_type != LrSchedulerType::Constant
        && train.warmup_steps >= max_steps
    {
        warnings.push(format!(
            "adapter `{name}`: warm-up takes {} of {max_steps} steps, the learning rate never \
             reaches its peak",
            train.warmup_steps
        ));
    }
    if train.learning_rate == 0.0 {
        warnings.push(format!(
            "adapter `{name}`: the learning rate is 0, nothing is learned"
        ));
    }
}
