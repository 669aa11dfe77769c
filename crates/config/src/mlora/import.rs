//! Translates an mLoRA tree to a loraloom tree, keeping the places of the original.
//!
//! Implicit settings of mLoRA are written out: `AdamW` with torch's weight decay of 0.01, no
//! clipping, a loss on every position. Settings without an equivalent are refused by name.

use super::{
    file::{Adapter, Dataset, MloraFile, Optimizer, Preprocess, PromptType, Task},
    kinds::refuse_kinds,
    rows,
};
use crate::{
    ConfigError,
    place::{Location, Source},
    suggest::Candidates,
    tree::{Node, Value},
};

/// torch's default, which mLoRA does not change.
const TORCH_ADAMW_WEIGHT_DECAY: f64 = 0.01;
/// mLoRA's defaults of a task.
const CUTOFF_LEN: usize = 256;
const SAVE_STEP: usize = 2000;

/// True if the tree is an mLoRA configuration: only those have tasks or a dispatcher.
pub(crate) fn is_mlora(tree: &Node) -> bool {
    tree.get("tasks").is_some() || tree.get("dispatcher").is_some()
}

/// Translates an mLoRA configuration. The result has no `model`.
///
/// # Errors
///
/// A key mLoRA does not have, or something of mLoRA's that is not supported, with the reason.
pub(crate) fn import(
    tree: &Node,
    source: &Source<'_>,
    warnings: &mut Vec<String>,
) -> Result<Node, ConfigError> {
    refuse_kinds(tree, source)?;
    let file: MloraFile = tree.deserialize(source, "")?;
    let mut import = Import {
        tree,
        source,
        file: &file,
        warnings,
    };
    let mut datasets = Node::new(Value::Mapping(Vec::new())).at(import.location("datasets"));
    for index in 0..file.datasets.len() {
        let (name, dataset) = import.dataset(index)?;
        if datasets.get(&name).is_some() {
            return Err(import.invalid("datasets", index, "name", format!("`{name}` is taken")));
        }
        datasets.set(&name, dataset);
    }
    let mut adapters = Vec::new();
    for index in 0..file.tasks.len() {
        adapters.push(import.task(index)?);
    }
    import.warn_unused();
    let mut run = Node::new(Value::Mapping(Vec::new())).at(tree.location);
    run.set("datasets", datasets);
    run.set(
        "adapters",
        Node::new(Value::Sequence(adapters)).at(import.location("tasks")),
    );
    if let Some(concurrent) = file.dispatcher.as_ref().and_then(|d| d.concurrency_num) {
        let location = tree
            .find("dispatcher.concurrency_num")
            .unwrap_or(tree)
            .location;
        run.set(
            "scheduler",
            Node::mapping([("max_adapters", whole(concurrent).at(location))]),
        );
    }
    Ok(run)
}

struct Import<'a> {
    tree: &'a Node,
    source: &'a Source<'a>,
    file: &'a MloraFile,
    warnings: &'a mut Vec<String>,
}

impl Import<'_> {
    fn location(&self, section: &str) -> Location {
        self.tree.get(section).unwrap_or(self.tree).location
    }

    /// The item of a section and the place of its key, or its own if it has no such key.
    fn at(&self, section: &str, index: usize, key: &str) -> Location {
        let items = self.tree.get(section).map(Node::items).unwrap_or_default();
        let item = items.get(index).unwrap_or(self.tree);
        item.find(key).unwrap_or(item).location
    }

    fn invalid(&self, section: &str, index: usize, key: &str, problem: String) -> ConfigError {
        ConfigError::Invalid {
            place: self.source.place(self.at(section, index, key)),
            key: format!("{section}[{index}].{key}"),
            problem,
        }
    }

    fn unsupported(&self, section: &str, index: usize, key: &str, reason: &str) -> ConfigError {
        ConfigError::Unsupported {
            place: self.source.place(self.at(section, index, key)),
            key: format!("{section}[{index}].{key}"),
            reason: reason.to_owned(),
        }
    }

    fn dataset(&self, index: usize) -> Result<(String, Node), ConfigError> {
        let dataset: &Dataset = &self.file.datasets[index];
        if dataset
            .prompt_type
            .is_some_and(|kind| kind != PromptType::Instruction)
        {
            let reason = "only `instruction` prompts are supported";
            return Err(self.unsupported("datasets", index, "prompt_type", reason));
        }
        if dataset.preprocess == Some(Preprocess::Sort) {
            let reason = "`sort` is not supported: mLoRA stops on it, so there is no order to keep";
            return Err(self.unsupported("datasets", index, "preprocess", reason));
        }
        let template = rows::template(&dataset.prompt, self.source.path)?;
        let at = |key: &str| self.at("datasets", index, key);
        let node = Node::mapping([
            ("path", Node::string(&dataset.data).at(at("data"))),
            ("template", Node::string(template).at(at("prompt"))),
        ]);
        Ok((dataset.name.clone(), node.at(at("name"))))
    }

    fn task(&mut self, index: usize) -> Result<Node, ConfigError> {
        let file = self.file;
        let task = &file.tasks[index];
        let position = |names: Vec<&str>, key: &str, what: &'static str, name: &str| {
            names
                .iter()
                .position(|other| *other == name)
                .ok_or_else(|| ConfigError::UnknownName {
                    place: self.source.place(self.at("tasks", index, key)),
                    key: format!("tasks[{index}].{key}"),
                    what,
                    name: name.to_owned(),
                    valid: Candidates::of(name, names.iter().copied()),
                })
        };
        let adapters = file.adapters.iter().map(|a| a.name.as_str()).collect();
        let adapter_index = position(adapters, "adapter", "adapter", &task.adapter)?;
        let datasets = file.datasets.iter().map(|d| d.name.as_str()).collect();
        let dataset_index = position(datasets, "dataset", "dataset", &task.dataset)?;
        if let Some(first) = file.tasks[..index]
            .iter()
            .position(|t| t.adapter == task.adapter)
        {
            let adapter = &task.adapter;
            let problem = format!("adapter `{adapter}` is trained by tasks[{first}] already");
            return Err(self.invalid("tasks", index, "adapter", problem));
        }
        let adapter = &file.adapters[adapter_index];
        let dataset = &file.datasets[dataset_index];
        let accumulation = self.accumulation(task, index)?;
        self.check_schedule(adapter, adapter_index, task, dataset)?;
        if let Some(path) = &adapter.path {
            self.warnings.push(format!(
                "adapter `{}` is written below output_dir, not to its `path` {path}",
                adapter.name
            ));
        }
        let of_task = |key: &str| self.at("tasks", index, key);
        // mLoRA counts micro-batches here, and this counts optimizer steps.
        let save = task.save_step.unwrap_or(SAVE_STEP).div_ceil(accumulation);
        Ok(Node::mapping([
            (
                "name",
                Node::string(&adapter.name).at(self.at("adapters", adapter_index, "name")),
            ),
            (
                "dataset",
                Node::string(&task.dataset).at(of_task("dataset")),
            ),
            ("lora", self.lora(adapter, adapter_index)),
            (
                "train",
                self.train(adapter, adapter_index, task, index, accumulation, dataset),
            ),
            (
                "save",
                Node::mapping([("steps", whole(save).at(of_task("save_step")))]),
            ),
        ])
        .at(of_task("type")))
    }

    /// Micro-batches of a step.
    fn accumulation(&self, task: &Task, index: usize) -> Result<usize, ConfigError> {
        let (batch, mini) = (task.batch_size, task.mini_batch_size);
        if mini > 0 && batch > 0 && batch % mini == 0 {
            return Ok(batch / mini);
        }
        let problem = format!("must divide batch_size {batch}, got {mini}");
        Err(self.invalid("tasks", index, "mini_batch_size", problem))
    }

    fn lora(&self, adapter: &Adapter, index: usize) -> Node {
        let at = |key: &str| self.at("adapters", index, key);
        let chosen = adapter
            .target_modules
            .iter()
            .filter(|(_, adapted)| **adapted);
        let modules = chosen.map(|(name, _)| Node::string(name)).collect();
        Node::mapping([
            ("r", whole(adapter.r).at(at("r"))),
            (
                "lora_alpha",
                Node::new(Value::Float(adapter.alpha)).at(at("alpha")),
            ),
            (
                "lora_dropout",
                Node::new(Value::Float(adapter.dropout)).at(at("dropout")),
            ),
            (
                "target_modules",
                Node::new(Value::Sequence(modules)).at(at("target_modules")),
            ),
        ])
    }

    fn train(
        &self,
        adapter: &Adapter,
        adapter_index: usize,
        task: &Task,
        index: usize,
        accumulation: usize,
        dataset: &Dataset,
    ) -> Node {
        let of_task = |key: &str| self.at("tasks", index, key);
        let of_adapter = |key: &str| self.at("adapters", adapter_index, key);
        let number = |value| Node::new(Value::Float(value));
        let schedule = if adapter.lrscheduler.is_some() {
            "cosine"
        } else {
            "constant"
        };
        let shuffle = dataset.preprocess == Some(Preprocess::Shuffle);
        let length = task.cutoff_len.unwrap_or(CUTOFF_LEN);
        Node::mapping([
            (
                "batch_size",
                whole(task.mini_batch_size).at(of_task("mini_batch_size")),
            ),
            (
                "gradient_accumulation_steps",
                whole(accumulation).at(of_task("batch_size")),
            ),
            ("max_seq_len", whole(length).at(of_task("cutoff_len"))),
            (
                "num_epochs",
                number(task.num_epochs).at(of_task("num_epochs")),
            ),
            ("learning_rate", number(adapter.lr).at(of_adapter("lr"))),
            (
                "lr_scheduler_type",
                Node::string(schedule).at(of_adapter("lrscheduler")),
            ),
            ("weight_decay", number(TORCH_ADAMW_WEIGHT_DECAY)),
            ("max_grad_norm", number(0.0)),
            ("shuffle", Node::new(Value::Bool(shuffle))),
            ("train_on_prompt", Node::new(Value::Bool(true))),
        ])
    }

    fn check_schedule(
        &mut self,
        adapter: &Adapter,
        index: usize,
        task: &Task,
        dataset: &Dataset,
    ) -> Result<(), ConfigError> {
        if adapter.optimizer == Optimizer::Sgd {
            let reason = "`sgd` is not supported, only `adamw` is: mLoRA stops on it";
            return Err(self.unsupported("adapters", index, "optimizer", reason));
        }
        if adapter.lrscheduler.is_none() {
            if adapter.t_max.is_some() || adapter.eta_min.is_some() {
                let problem = "has no meaning without `lrscheduler`".to_owned();
                let key = if adapter.t_max.is_some() {
                    "t_max"
                } else {
                    "eta_min"
                };
                return Err(self.invalid("adapters", index, key, problem));
            }
            return Ok(());
        }
        let name = &adapter.name;
        match adapter.eta_min {
            Some(eta_min) if eta_min.abs() >= 1.0 => {
                let reason = "the cosine ends at 0; another minimum is not supported";
                return Err(self.unsupported("adapters", index, "eta_min", reason));
            }
            Some(eta_min) if eta_min != 0.0 => self.warnings.push(format!(
                "adapter `{name}`: the cosine ends at 0, as it does in mLoRA, which rounds \
                 eta_min {eta_min} down to 0"
            )),
            _ => {}
        }
        if let Some(t_max) = adapter.t_max {
            let steps = rows::count(&dataset.data, self.source.path)
                .map(|rows| (rows as f64 / task.batch_size as f64).ceil() * task.num_epochs);
            match steps {
                Some(steps) if (steps - t_max).abs() < 0.5 => {}
                Some(steps) => self.warnings.push(format!(
                    "adapter `{name}`: the cosine takes all {steps} steps of the training, not \
                     t_max {t_max}"
                )),
                None => self.warnings.push(format!(
                    "adapter `{name}`: the cosine takes all steps of the training, which may not \
                     be t_max {t_max}"
                )),
            }
        }
        Ok(())
    }

    fn warn_unused(&mut self) {
        for adapter in &self.file.adapters {
            if !self
                .file
                .tasks
                .iter()
                .any(|task| task.adapter == adapter.name)
            {
                self.warnings.push(format!(
                    "adapter `{}` is in no task: not trained",
                    adapter.name
                ));
            }
        }
        if let Some(name) = self
            .file
            .dispatcher
            .as_ref()
            .and_then(|d| d.name.as_deref())
            && name != "default"
        {
            self.warnings.push(format!(
                "dispatcher `{name}` is not used: adapters are trained together, over the devices that \
                 `pipeline.stages` names"
            ));
        }
    }
}

fn whole(value: usize) -> Node {
    Node::new(Value::Integer(value as i128))
}
