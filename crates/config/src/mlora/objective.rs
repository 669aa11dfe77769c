//! The losses of mLoRA's tasks.

use serde::Deserialize;

use super::{
    file::Task,
    import::{Import, number},
    rows,
};
use crate::{ConfigError, tree::Node};

/// A variant of a loss, of `dpo` or `cpo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LossType {
    Sigmoid,
    Hinge,
    Ipo,
}

/// The hidden state that stands for a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Pooling {
    Last,
}

impl Import<'_> {
    /// The `objective` of a task; `None` is the cross-entropy.
    pub(super) fn objective(
        &mut self,
        task: &Task,
        index: usize,
    ) -> Result<Option<Node>, ConfigError> {
        self.refuse_other_keys(task, index)?;
        match task.kind.as_str() {
            "dpo" => self.dpo(task, index).map(Some),
            "cpo" => self.cpo(task, index).map(Some),
            "cit" => Ok(Some(self.cit(task, index))),
            _ => Ok(None),
        }
    }

    /// Refuses the keys of other types of tasks.
    fn refuse_other_keys(&self, task: &Task, index: usize) -> Result<(), ConfigError> {
        let kind = task.kind.as_str();
        for (key, is_set, of) in [
            ("reference", task.reference.is_some(), &["dpo"][..]),
            ("loss_type", task.loss_type.is_some(), &["dpo", "cpo"]),
            ("beta", task.beta.is_some(), &["dpo", "cpo"]),
            (
                "label_smoothing",
                task.label_smoothing.is_some(),
                &["dpo", "cpo"],
            ),
            (
                "contrastive_pooling_method",
                task.contrastive_pooling_method.is_some(),
                &["cit"],
            ),
            ("lambda", task.lambda.is_some(), &["cit"]),
            ("temperature", task.temperature.is_some(), &["cit"]),
        ] {
            if is_set && !of.contains(&kind) {
                let problem = format!("has no effect on `type: {kind}`; remove it");
                return Err(self.invalid("tasks", index, key, problem));
            }
        }
        Ok(())
    }

    fn dpo(&mut self, task: &Task, index: usize) -> Result<Node, ConfigError> {
        let unsupported = |key, reason| Err(self.unsupported("tasks", index, key, reason));
        match task.loss_type {
            None | Some(LossType::Sigmoid) => {}
            Some(LossType::Ipo) => {
                let reason = "`ipo` is not supported: mLoRA's is of sums of log-probabilities, that of \
                              loraloom and TRL of means over tokens";
                return unsupported("loss_type", reason);
            }
            Some(LossType::Hinge) => {
                let problem = "must be `sigmoid` for `type: dpo`, got `hinge`".to_owned();
                return Err(self.invalid("tasks", index, "loss_type", problem));
            }
        }
        if task
            .label_smoothing
            .is_some_and(|smoothing| smoothing != 0.0)
        {
            let reason = "must be 0: loraloom's `sigmoid` has no label smoothing, as TRL's";
            return unsupported("label_smoothing", reason);
        }
        let path = self.reference_adapter(task, index)?.map(str::to_owned);
        self.warn_of_reference(task, path.as_deref());
        let of = if path.is_some() { "init" } else { "base" };
        let reference = Node::string(of).at(self.at("tasks", index, "reference"));
        Ok(self.preference(task, index, [("reference", Some(reference))]))
    }

    /// The directory of the adapter that a task is compared with, if it has one and the directory exists.
    ///
    /// # Errors
    /// No adapter has this name.
    pub(super) fn reference_adapter(
        &self,
        task: &Task,
        index: usize,
    ) -> Result<Option<&str>, ConfigError> {
        let Some(name) = task.reference.as_deref().filter(|name| *name != "base") else {
            return Ok(None);
        };
        let names = self.file.adapters.iter().map(|a| a.name.as_str());
        let at = self.named(index, "reference", name, names.chain(["base"]))?;
        let path = self.file.adapters[at].path.as_deref();
        Ok(path.filter(|path| rows::is_adapter(path, self.source.path)))
    }

    /// Warns of what a reference other than the base model becomes.
    fn warn_of_reference(&mut self, task: &Task, path: Option<&str>) {
        let (adapter, Some(name)) = (&task.adapter, task.reference.as_deref()) else {
            return;
        };
        if name == "base" {
            return;
        }
        self.warnings.push(match path {
            Some(path) => format!(
                "adapter `{adapter}` begins from `{name}` in {path} and is compared with it; mLoRA does not load it, and \
                 compares with the base model"
            ),
            None => format!(
                "adapter `{adapter}`: the reference is the base model, as it is in mLoRA, which does not load `{name}`; \
                 its `path` has no adapter_model.safetensors to begin from and to compare with"
            ),
        });
    }

    fn cpo(&mut self, task: &Task, index: usize) -> Result<Node, ConfigError> {
        let name = match task.loss_type {
            None | Some(LossType::Sigmoid) => "sigmoid",
            Some(LossType::Hinge) => "hinge",
            Some(LossType::Ipo) => {
                let problem = "must be `sigmoid` or `hinge` for `type: cpo`, got `ipo`".to_owned();
                return Err(self.invalid("tasks", index, "loss_type", problem));
            }
        };
        let loss_type = Node::string(name).at(self.at("tasks", index, "loss_type"));
        let smoothing = task.label_smoothing.filter(|smoothing| *smoothing != 0.0);
        if smoothing.is_some() {
            self.warnings.push(format!(
                "adapter `{}`: label_smoothing is applied; mLoRA does not read it",
                task.adapter
            ));
        }
        let smoothing =
            smoothing.map(|value| number(value).at(self.at("tasks", index, "label_smoothing")));
        let keys = [
            ("loss_type", Some(loss_type)),
            ("label_smoothing", smoothing),
        ];
        Ok(self.preference(task, index, keys))
    }

    fn cit(&mut self, task: &Task, index: usize) -> Node {
        self.warnings.push(format!(
            "adapter `{}`: paraphrases are compared by the hidden states that predict their last tokens; mLoRA \
             compares logits, and those of padding",
            task.adapter
        ));
        let at = |key: &str| self.at("tasks", index, key);
        let mut objective = Node::mapping([("type", Node::string("cit").at(at("type")))]);
        for (key, value) in [("lambda", task.lambda), ("temperature", task.temperature)] {
            if let Some(value) = value {
                objective.set(key, number(value).at(at(key)));
            }
        }
        objective.at(at("type"))
    }

    /// An objective with keys of its own, and those that `dpo` and `cpo` share. Dropout is that of the adapter, as in
    /// mLoRA.
    fn preference<const N: usize>(
        &self,
        task: &Task,
        index: usize,
        own: [(&str, Option<Node>); N],
    ) -> Node {
        let at = |key: &str| self.at("tasks", index, key);
        let kind = Node::string(&task.kind).at(at("type"));
        let mut objective = Node::mapping([("type", kind)]);
        let beta = task.beta.map(|beta| number(beta).at(at("beta")));
        let dropout = Node::new(crate::tree::Value::Bool(false));
        for (key, value) in own
            .into_iter()
            .chain([("beta", beta), ("disable_dropout", Some(dropout))])
        {
            if let Some(value) = value {
                objective.set(key, value);
            }
        }
        objective.at(at("type"))
    }
}
