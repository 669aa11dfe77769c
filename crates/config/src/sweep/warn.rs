use super::StoppingMetric;
use crate::{AdapterConfig, ObjectiveSettings, RunConfig};

/// Warnings about legal but probably unintended sweeps, a sentence each.
pub(crate) fn warn(config: &RunConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    for sweep in &config.sweep {
        let members = config.adapters.iter();
        let members = members.filter(|adapter| sweep.adapters.contains(&adapter.name));
        let members: Vec<&AdapterConfig> = members.collect();
        let rows = |adapter: &AdapterConfig| {
            let train = &adapter.train;
            train
                .batch_size
                .saturating_mul(train.gradient_accumulation_steps)
        };
        if sweep.early_stopping.is_some() && differ(&members, rows) {
            warnings.push(format!(
                "sweep `{}`: its adapters train on different numbers of rows per step, but early \
                 stopping compares them after the same number of steps",
                sweep.name
            ));
        }
        // How the reference is computed is no part of a loss.
        let loss = |adapter: &AdapterConfig| ObjectiveSettings {
            precompute_ref_log_probs: None,
            ..adapter.objective.clone()
        };
        // A reward has a scale, and may be over a reference; its sign alone has no scale.
        let reward = |adapter: &AdapterConfig| {
            let ObjectiveSettings {
                r#type,
                loss_type,
                reference,
                ..
            } = &adapter.objective;
            let own = reference.is_none().then(|| (*r#type, loss_type.clone()));
            (*reference, own)
        };
        let scaled = |adapter: &AdapterConfig| (reward(adapter), adapter.objective.beta);
        let metric = sweep
            .early_stopping
            .as_ref()
            .map(|stopping| stopping.metric);
        let (ranked_by, differs) = match metric {
            None | Some(StoppingMetric::EvalLoss | StoppingMetric::TrainLoss) => {
                ("losses of different objectives", differ(&members, loss))
            }
            Some(StoppingMetric::EvalMargins) => (
                "margins of rewards with another `beta`, reference or objective",
                differ(&members, scaled),
            ),
            Some(StoppingMetric::EvalAccuracies) => (
                "accuracies of rewards with another reference or objective",
                differ(&members, reward),
            ),
        };
        if differs {
            warnings.push(format!(
                "sweep `{}`: its adapters are ranked by {ranked_by}, which cannot be compared; `loraloom eval` judges \
                 all of them by their log-probabilities over the base model's",
                sweep.name
            ));
        }
    }
    warnings
}

fn differ<T: PartialEq>(members: &[&AdapterConfig], of: impl Fn(&AdapterConfig) -> T) -> bool {
    members.windows(2).any(|pair| of(pair[0]) != of(pair[1]))
}
