use super::{
    EarlyStopping, StoppingMetric, SweepConfig, SweepFile, file::EarlyStoppingFile, paths::SHARED,
};
use crate::{
    AdapterConfig, ConfigError, RunConfig, tree::Node, validate::unsafe_name,
    written_config::WrittenConfig,
};

/// The sweeps of a run whose adapters are known, points included.
///
/// # Errors
/// A name that is invalid or taken; adapters that do not exist, are in two sweeps, or see other
/// rows than each other; invalid early stopping.
pub(crate) fn resolve(
    files: Vec<SweepFile>,
    config: &RunConfig,
    written: WrittenConfig<'_>,
) -> Result<Vec<SweepConfig>, ConfigError> {
    let mut sweeps: Vec<SweepConfig> = Vec::new();
    for (index, file) in files.into_iter().enumerate() {
        let check = Check {
            index,
            node: written
                .tree
                .list("sweep")
                .get(index)
                .unwrap_or(written.tree),
            config,
            written,
        };
        check.name(&file.name, &sweeps)?;
        let adapters = if let Some(names) = &file.adapters {
            check.members(names, &sweeps)?
        } else {
            let points = written.expansion.points(index);
            points.map(|point| &config.adapters[point]).collect()
        };
        let early_stopping = file
            .early_stopping
            .map(|stopping| check.early_stopping(stopping, &adapters))
            .transpose()?;
        sweeps.push(SweepConfig {
            name: file.name,
            adapters: adapters.iter().map(|a| a.name.clone()).collect(),
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
    written: WrittenConfig<'a>,
}

impl<'a> Check<'a> {
    fn key(&self, path: &str) -> String {
        format!("sweep[{}].{path}", self.index)
    }

    fn invalid(&self, path: &str, problem: impl Into<String>) -> ConfigError {
        let location = self.node.locate(path);
        self.written
            .source
            .invalid(location, self.key(path), problem)
    }

    fn name(&self, name: &str, others: &[SweepConfig]) -> Result<(), ConfigError> {
        if let Some(problem) = unsafe_name(name) {
            return Err(self.invalid("name", problem));
        }
        let same = |other: &SweepConfig| other.name.eq_ignore_ascii_case(name);
        if let Some(first) = others.iter().position(same) {
            let problem = format!("`{name}` is already the name of sweep[{first}]");
            return Err(self.invalid("name", problem));
        }
        Ok(())
    }

    /// The adapters that a sweep names.
    fn members(
        &self,
        names: &[String],
        others: &[SweepConfig],
    ) -> Result<Vec<&'a AdapterConfig>, ConfigError> {
        if names.is_empty() {
            return Err(self.invalid("adapters", "must name at least one adapter"));
        }
        let (source, adapters) = (self.written.source, &self.config.adapters);
        let mut members: Vec<&AdapterConfig> = Vec::new();
        for (position, name) in names.iter().enumerate() {
            let nodes = self.node.list("adapters");
            let location = nodes.get(position).unwrap_or(self.node).location;
            let key = self.key(&format!("adapters[{position}]"));
            let Some(member) = adapters.iter().find(|adapter| adapter.name == *name) else {
                let all = adapters.iter().map(|adapter| adapter.name.as_str());
                return Err(source.unknown_name(location, key, "adapter", name, all));
            };
            let other = others.iter().find(|sweep| sweep.adapters.contains(name));
            let differs = members
                .first()
                .and_then(|first| Some((first, other_rows(first, member)?)));
            let problem = if names[..position].contains(name) {
                format!("`{name}` is named twice")
            } else if let Some(other) = other {
                format!("`{name}` is already in sweep `{}`", other.name)
            } else if let Some((first, field)) = differs {
                format!(
                    "`{name}` and `{}` differ in `{field}`: adapters of a sweep train on the same rows \
                     in the same order",
                    first.name
                )
            } else {
                members.push(member);
                continue;
            };
            return Err(source.invalid(location, key, problem));
        }
        Ok(members)
    }

    fn early_stopping(
        &self,
        file: EarlyStoppingFile,
        adapters: &[&AdapterConfig],
    ) -> Result<EarlyStopping, ConfigError> {
        // Adapters of a sweep share one dataset.
        let dataset = adapters
            .first()
            .and_then(|adapter| self.config.datasets.get_key_value(&adapter.dataset));
        let is_evaluated = dataset.is_some_and(|(_, dataset)| dataset.has_validation());
        let metric = file.metric.unwrap_or(if is_evaluated {
            StoppingMetric::EvalLoss
        } else {
            StoppingMetric::TrainLoss
        });
        if metric.is_evaluated()
            && !is_evaluated
            && let Some((name, _)) = dataset
        {
            let problem = format!(
                "dataset `{name}` has no validation rows; set `datasets.{name}.validation` or \
                 compare by train_loss"
            );
            return Err(self.invalid("early_stopping.metric", problem));
        }
        if let Some(other) = adapters.iter().find(|one| !one.objective.has(metric)) {
            let problem = format!(
                "the objective of `{}`, {}, has no {}; compare by eval_loss or train_loss",
                other.name,
                other.objective.r#type.name(),
                metric.as_str()
            );
            return Err(self.invalid("early_stopping.metric", problem));
        }
        if file.grace_period == 0 {
            let problem = "must be at least 1, got 0";
            return Err(self.invalid("early_stopping.grace_period", problem));
        }
        let reduction_factor = file
            .reduction_factor
            .unwrap_or(EarlyStopping::REDUCTION_FACTOR);
        if reduction_factor < 2 {
            let problem = format!("must be at least 2, got {reduction_factor}");
            return Err(self.invalid("early_stopping.reduction_factor", problem));
        }
        if let Some(multiple) = file.divergence
            && !(multiple.is_finite() && multiple > 1.0)
        {
            let problem = format!("must be finite and above 1, got {multiple}");
            return Err(self.invalid("early_stopping.divergence", problem));
        }
        Ok(EarlyStopping {
            metric,
            grace_period: file.grace_period,
            reduction_factor,
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
        a.train.label_smoothing_factor.to_bits() == b.train.label_smoothing_factor.to_bits(),
    ];
    let differs = SHARED.into_iter().zip(same).find(|(_, same)| !same);
    differs.map(|(field, _)| field)
}
