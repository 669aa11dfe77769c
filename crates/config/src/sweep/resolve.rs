use super::{
    EarlyStopping, Expansion, StoppingMetric, SweepConfig, SweepFile, file::EarlyStoppingFile,
    paths::SHARED,
};
use crate::{
    AdapterConfig, ConfigError, RunConfig, Validation,
    place::{Location, Source},
    suggest::Candidates,
    tree::Node,
    validate::unsafe_name,
};

/// The sweeps of a run whose adapters are known, points included.
///
/// # Errors
///
/// A name that cannot be or is taken; adapters that do not exist, are in two sweeps, or see other
/// rows than each other; early stopping that cannot be.
pub(crate) fn resolve(
    files: Vec<SweepFile>,
    config: &RunConfig,
    expansion: &Expansion,
    tree: &Node,
    source: &Source<'_>,
) -> Result<Vec<SweepConfig>, ConfigError> {
    let nodes = tree.get("sweep").map(Node::items).unwrap_or_default();
    let mut sweeps: Vec<SweepConfig> = Vec::new();
    for (index, file) in files.into_iter().enumerate() {
        let check = Check {
            index,
            node: nodes.get(index).unwrap_or(tree),
            config,
            source,
        };
        check.name(&file.name, &sweeps)?;
        let adapters = match &file.adapters {
            Some(names) => check.members(names, &sweeps)?,
            None => expansion
                .points(index)
                .map(|i| &config.adapters[i])
                .collect(),
        };
        let early_stopping = match &file.early_stopping {
            Some(stopping) => Some(check.early_stopping(stopping, &adapters)?),
            None => None,
        };
        sweeps.push(SweepConfig {
            name: file.name,
            adapters: adapters
                .iter()
                .map(|adapter| adapter.name.clone())
                .collect(),
            early_stopping,
        });
    }
    Ok(sweeps)
}

/// One sweep that is being checked.
struct Check<'a> {
    index: usize,
    node: &'a Node,
    config: &'a RunConfig,
    source: &'a Source<'a>,
}

impl<'a> Check<'a> {
    fn location(&self, path: &str) -> Location {
        self.node.find(path).unwrap_or(self.node).location
    }

    fn invalid(&self, path: &str, problem: String) -> ConfigError {
        self.invalid_at(self.location(path), path, problem)
    }

    fn invalid_at(&self, location: Location, path: &str, problem: String) -> ConfigError {
        ConfigError::Invalid {
            place: self.source.place(location),
            key: format!("sweep[{}].{path}", self.index),
            problem,
        }
    }

    fn name(&self, name: &str, others: &[SweepConfig]) -> Result<(), ConfigError> {
        if let Some(problem) = unsafe_name(name) {
            return Err(self.invalid("name", problem));
        }
        let same = |other: &SweepConfig| other.name.eq_ignore_ascii_case(name);
        match others.iter().position(same) {
            None => Ok(()),
            Some(first) => {
                let problem = format!("`{name}` is already the name of sweep[{first}]");
                Err(self.invalid("name", problem))
            }
        }
    }

    /// The adapters that a sweep names.
    fn members(
        &self,
        names: &[String],
        others: &[SweepConfig],
    ) -> Result<Vec<&'a AdapterConfig>, ConfigError> {
        if names.is_empty() {
            return Err(self.invalid("adapters", "must name at least one adapter".to_owned()));
        }
        let nodes = self
            .node
            .get("adapters")
            .map(Node::items)
            .unwrap_or_default();
        let mut members: Vec<&AdapterConfig> = Vec::new();
        for (position, name) in names.iter().enumerate() {
            let location = nodes.get(position).unwrap_or(self.node).location;
            let path = format!("adapters[{position}]");
            let adapters = &self.config.adapters;
            let Some(member) = adapters.iter().find(|adapter| adapter.name == *name) else {
                let all = adapters.iter().map(|adapter| adapter.name.as_str());
                return Err(ConfigError::UnknownName {
                    place: self.source.place(location),
                    key: format!("sweep[{}].{path}", self.index),
                    what: "adapter",
                    name: name.clone(),
                    valid: Candidates::of(name, all),
                });
            };
            if names[..position].contains(name) {
                return Err(self.invalid_at(location, &path, format!("`{name}` is named twice")));
            }
            if let Some(other) = others.iter().find(|sweep| sweep.adapters.contains(name)) {
                let problem = format!("`{name}` is in sweep `{}` already", other.name);
                return Err(self.invalid_at(location, &path, problem));
            }
            if let Some(first) = members.first()
                && let Some(field) = other_rows(first, member)
            {
                let problem = format!(
                    "`{name}` has another `{field}` than `{}`: adapters of a sweep see the same \
                     rows in the same order",
                    first.name
                );
                return Err(self.invalid_at(location, &path, problem));
            }
            members.push(member);
        }
        Ok(members)
    }

    fn early_stopping(
        &self,
        file: &EarlyStoppingFile,
        adapters: &[&AdapterConfig],
    ) -> Result<EarlyStopping, ConfigError> {
        let field = |field: &str| format!("early_stopping.{field}");
        // Adapters of a sweep share one dataset.
        let dataset = adapters
            .first()
            .and_then(|adapter| self.config.datasets.get_key_value(&adapter.dataset));
        let is_evaluated = dataset.is_some_and(|(_, d)| d.validation != Validation::Fraction(0.0));
        let metric = file.metric.unwrap_or(if is_evaluated {
            StoppingMetric::EvalLoss
        } else {
            StoppingMetric::TrainLoss
        });
        if metric == StoppingMetric::EvalLoss
            && !is_evaluated
            && let Some((name, _)) = dataset
        {
            let problem = format!(
                "dataset `{name}` has no validation rows; set `datasets.{name}.validation` or \
                 compare by train_loss"
            );
            return Err(self.invalid(&field("metric"), problem));
        }
        if file.grace_period == 0 {
            let problem = "must be at least 1, got 0".to_owned();
            return Err(self.invalid(&field("grace_period"), problem));
        }
        let factor = file
            .reduction_factor
            .unwrap_or(EarlyStopping::REDUCTION_FACTOR);
        if factor < 2 {
            let problem = format!("must be at least 2, got {factor}");
            return Err(self.invalid(&field("reduction_factor"), problem));
        }
        if let Some(multiple) = file.divergence
            && !(multiple.is_finite() && multiple > 1.0)
        {
            let problem = format!("must be finite and above 1, got {multiple}");
            return Err(self.invalid(&field("divergence"), problem));
        }
        Ok(EarlyStopping {
            metric,
            grace_period: file.grace_period,
            reduction_factor: factor,
            divergence: file.divergence,
        })
    }
}

/// The first of the settings that decide the rows in which two adapters differ.
fn other_rows(a: &AdapterConfig, b: &AdapterConfig) -> Option<&'static str> {
    let same = [
        a.dataset == b.dataset,
        a.seed == b.seed,
        a.train.max_seq_len == b.train.max_seq_len,
        a.train.shuffle == b.train.shuffle,
        a.train.train_on_prompt == b.train.train_on_prompt,
    ];
    let differs = SHARED.into_iter().zip(same).find(|(_, same)| !same);
    differs.map(|(field, _)| field)
}
