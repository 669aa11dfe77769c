//! Translates an mLoRA tree to a loraloom tree, keeping the places of the original.
//!
//! Implicit settings of mLoRA are written out: `AdamW` with torch's weight decay of 0.01, no
//! clipping, a loss on every position. Settings without an equivalent are refused by name.

use super::{
    file::{Adapter, Dataset, MloraFile, Optimizer, Preprocess, PromptType, Task},
    kinds::{DORA, LORAPLUS, refuse_kinds},
    rows,
};
use crate::{
    ConfigError,
    place::{Location, Source},
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
/// A key that mLoRA does not have, or a setting of mLoRA that is not supported, with the reason.
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
    let mut datasets = Node::mapping([]).at(tree.locate("datasets"));
    for index in 0..file.datasets.len() {
        let (name, dataset) = import.dataset(index)?;
        if datasets.get(&name).is_some() {
            return Err(import.invalid("datasets", index, "name", format!("`{name}` is taken")));
        }
        datasets.set(&name, dataset);
    }
    let tasks = (0..file.tasks.len()).map(|index| import.task(index));
    let adapters = Value::Sequence(tasks.collect::<Result<_, _>>()?);
    import.warn_unused();
    let mut run = Node::mapping([
        ("datasets", datasets),
        ("adapters", Node::new(adapters).at(tree.locate("tasks"))),
    ]);
    if let Some(concurrent) = file.dispatcher.as_ref().and_then(|d| d.concurrency_num) {
        let cap = whole(concurrent).at(tree.locate("dispatcher.concurrency_num"));
        run.set("scheduler", Node::mapping([("max_adapters", cap)]));
    }
    Ok(run.at(tree.location))
}

pub(super) struct Import<'a> {
    tree: &'a Node,
    pub(super) source: &'a Source<'a>,
    pub(super) file: &'a MloraFile,
    pub(super) warnings: &'a mut Vec<String>,
}

impl Import<'_> {
    /// The place of a key of a section's item, or of the item if it has no such key.
    pub(super) fn at(&self, section: &str, index: usize, key: &str) -> Location {
        let item = self.tree.list(section).get(index).unwrap_or(self.tree);
        item.locate(key)
    }

    pub(super) fn invalid(
        &self,
        section: &str,
        index: usize,
        key: &str,
        problem: String,
    ) -> ConfigError {
        let location = self.at(section, index, key);
        let key = format!("{section}[{index}].{key}");
        self.source.invalid(location, key, problem)
    }

    pub(super) fn unsupported(
        &self,
        section: &str,
        index: usize,
        key: &str,
        reason: &str,
    ) -> ConfigError {
        ConfigError::Unsupported {
            place: self.source.place(self.at(section, index, key)),
            key: format!("{section}[{index}].{key}"),
            reason: reason.to_owned(),
        }
    }

    fn dataset(&self, index: usize) -> Result<(String, Node), ConfigError> {
        let dataset: &Dataset = &self.file.datasets[index];
        let prompt_type = dataset.prompt_type.unwrap_or(PromptType::Instruction);
        if dataset.preprocess == Some(Preprocess::Sort) {
            let reason = "`sort` is not supported: mLoRA itself fails on it";
            return Err(self.unsupported("datasets", index, "preprocess", reason));
        }
        let template = rows::template(&dataset.prompt, self.source.path)?;
        let switch = match prompt_type {
            PromptType::Instruction => None,
            PromptType::Preference => Some("is_chosen"),
            PromptType::ContrastiveInstruction => Some("is_origin"),
            PromptType::Ppo => {
                let reason = "`ppo` is not supported, as tasks of this type";
                return Err(self.unsupported("datasets", index, "prompt_type", reason));
            }
        };
        if let Some(switch) = switch.filter(|switch| !template.contains(switch)) {
            let problem = format!("needs a template that reads `{switch}`");
            return Err(self.invalid("datasets", index, "prompt_type", problem));
        }
        let at = |key: &str| self.at("datasets", index, key);
        let node = Node::mapping([
            ("path", Node::string(&dataset.data).at(at("data"))),
            ("template", Node::string(template).at(at("prompt"))),
        ]);
        Ok((dataset.name.clone(), node.at(at("name"))))
    }

    /// The index of the adapter or dataset that a task names.
    pub(super) fn named<'n>(
        &self,
        task: usize,
        what: &'static str,
        name: &str,
        mut names: impl Iterator<Item = &'n str> + Clone,
    ) -> Result<usize, ConfigError> {
        let known = names.clone();
        names.position(|other| other == name).ok_or_else(|| {
            let key = format!("tasks[{task}].{what}");
            let location = self.at("tasks", task, what);
            self.source.unknown_name(location, key, what, name, known)
        })
    }

    fn task(&mut self, index: usize) -> Result<Node, ConfigError> {
        let file = self.file;
        let task = &file.tasks[index];
        let adapters = file.adapters.iter().map(|a| a.name.as_str());
        let adapter_index = self.named(index, "adapter", &task.adapter, adapters)?;
        let datasets = file.datasets.iter().map(|d| d.name.as_str());
        let dataset = &file.datasets[self.named(index, "dataset", &task.dataset, datasets)?];
        let same = |earlier: &Task| earlier.adapter == task.adapter;
        if let Some(first) = file.tasks[..index].iter().position(same) {
            let adapter = &task.adapter;
            let problem = format!("tasks[{first}] already trains adapter `{adapter}`");
            return Err(self.invalid("tasks", index, "adapter", problem));
        }
        let adapter = &file.adapters[adapter_index];
        let Some(learning_rate) = adapter.lr.filter(|_| adapter.optimizer.is_some()) else {
            let key = if adapter.lr.is_some() {
                "optimizer"
            } else {
                "lr"
            };
            let problem = format!("is missing: tasks[{index}] trains this adapter");
            return Err(self.invalid("adapters", adapter_index, key, problem));
        };
        let objective = self.objective(task, index)?;
        let accumulation = self.accumulation(task, index)?;
        self.check_schedule(adapter, adapter_index, task, dataset)?;
        if let Some(path) = &adapter.path {
            self.warnings.push(format!(
                "adapter `{}` is written below output_dir, not to its `path` {path}",
                adapter.name
            ));
        }
        if adapter.kind == DORA {
            self.warnings.push(format!(
                "adapter `{}`: DoRA is PEFT's; mLoRA's begins with outputs of 0, and neither trains nor saves \
                 magnitudes",
                adapter.name
            ));
        }
        let of_adapter = |key: &str| self.at("adapters", adapter_index, key);
        let of_task = |key: &str| self.at("tasks", index, key);
        let batch_size = whole(task.mini_batch_size).at(of_task("mini_batch_size"));
        let steps = whole(accumulation).at(of_task("batch_size"));
        let length = whole(task.cutoff_len.unwrap_or(CUTOFF_LEN)).at(of_task("cutoff_len"));
        let schedule = match adapter.lrscheduler {
            Some(_) => "cosine",
            None => "constant",
        };
        let schedule = Node::string(schedule).at(of_adapter("lrscheduler"));
        let shuffle = dataset.preprocess == Some(Preprocess::Shuffle);
        let mut train = Node::mapping([
            ("batch_size", batch_size),
            ("gradient_accumulation_steps", steps),
            ("max_seq_len", length),
            (
                "num_epochs",
                number(task.num_epochs).at(of_task("num_epochs")),
            ),
            ("learning_rate", number(learning_rate).at(of_adapter("lr"))),
            ("lr_scheduler_type", schedule),
            ("weight_decay", number(TORCH_ADAMW_WEIGHT_DECAY)),
            ("max_grad_norm", number(0.0)),
            ("shuffle", Node::new(Value::Bool(shuffle))),
            ("train_on_prompt", Node::new(Value::Bool(true))),
        ]);
        if let Some(ratio) = self.lr_ratio(adapter, adapter_index)? {
            train.set(
                "loraplus_lr_ratio",
                number(ratio).at(of_adapter("lr_ratio")),
            );
        }
        // mLoRA counts micro-batches here, loraloom optimizer steps.
        let save = task.save_step.unwrap_or(SAVE_STEP).div_ceil(accumulation);
        let save = Node::mapping([("steps", whole(save).at(of_task("save_step")))]);
        let mut node = Node::mapping([
            ("name", Node::string(&adapter.name).at(of_adapter("name"))),
            (
                "dataset",
                Node::string(&task.dataset).at(of_task("dataset")),
            ),
            ("lora", self.lora(adapter, adapter_index)),
            ("train", train),
            ("save", save),
        ]);
        if let Some(objective) = objective {
            node.set("objective", objective);
        }
        if let Some(path) = self.reference_adapter(task, index)? {
            node.set("init_from", Node::string(path).at(of_task("reference")));
        }
        Ok(node.at(of_task("type")))
    }

    fn lora(&self, adapter: &Adapter, index: usize) -> Node {
        let at = |key: &str| self.at("adapters", index, key);
        let chosen = adapter
            .target_modules
            .iter()
            .filter(|(_, adapted)| **adapted);
        let modules = chosen.map(|(name, _)| Node::string(name)).collect();
        let modules = Node::new(Value::Sequence(modules));
        let mut lora = Node::mapping([
            ("r", whole(adapter.r).at(at("r"))),
            ("lora_alpha", number(adapter.alpha).at(at("alpha"))),
            ("lora_dropout", number(adapter.dropout).at(at("dropout"))),
            ("target_modules", modules.at(at("target_modules"))),
        ]);
        if adapter.kind == DORA {
            lora.set("use_dora", Node::new(Value::Bool(true)).at(at("type")));
        }
        lora
    }

    /// The ratio that `loraplus` needs and `lora` does not have.
    fn lr_ratio(&self, adapter: &Adapter, index: usize) -> Result<Option<f64>, ConfigError> {
        let problem = match (adapter.kind == LORAPLUS, adapter.lr_ratio) {
            (true, None) => "is missing, which `type: loraplus` requires",
            (false, Some(_)) => "requires `type: loraplus`",
            (_, ratio) => return Ok(ratio),
        };
        Err(self.invalid("adapters", index, "lr_ratio", problem.to_owned()))
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

    fn check_schedule(
        &mut self,
        adapter: &Adapter,
        index: usize,
        task: &Task,
        dataset: &Dataset,
    ) -> Result<(), ConfigError> {
        if adapter.optimizer == Some(Optimizer::Sgd) {
            let reason = "`sgd` is not supported, only `adamw` is: mLoRA itself fails on it";
            return Err(self.unsupported("adapters", index, "optimizer", reason));
        }
        if adapter.lrscheduler.is_none() {
            let key = match (adapter.t_max, adapter.eta_min) {
                (Some(_), _) => "t_max",
                (None, Some(_)) => "eta_min",
                (None, None) => return Ok(()),
            };
            let problem = "requires `lrscheduler`".to_owned();
            return Err(self.invalid("adapters", index, key, problem));
        }
        let name = &adapter.name;
        match adapter.eta_min {
            Some(eta_min) if eta_min.abs() >= 1.0 => {
                let reason = "must be 0: the cosine always ends at 0";
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
                    "adapter `{name}`: the cosine decays over all {steps} steps, not over t_max \
                     {t_max}"
                )),
                None => self.warnings.push(format!(
                    "adapter `{name}`: the cosine decays over all steps, which may differ from t_max \
                     {t_max}"
                )),
            }
        }
        Ok(())
    }

    fn warn_unused(&mut self) {
        let file = self.file;
        for Adapter { name, .. } in &file.adapters {
            let uses = |task: &Task| {
                task.adapter == *name || task.reference.as_deref() == Some(name.as_str())
            };
            if !file.tasks.iter().any(uses) {
                let warning = format!("adapter `{name}` is not trained: no task uses it");
                self.warnings.push(warning);
            }
        }
        if let Some(name) = file.dispatcher.as_ref().and_then(|d| d.name.as_deref())
            && name != "default"
        {
            self.warnings.push(format!(
                "dispatcher `{name}` is ignored: adapters train together on the devices in \
                 `pipeline.stages`"
            ));
        }
    }
}

fn whole(value: usize) -> Node {
    Node::new(Value::Integer(value as i128))
}

pub(super) fn number(value: f64) -> Node {
    Node::new(Value::Float(value))
}
