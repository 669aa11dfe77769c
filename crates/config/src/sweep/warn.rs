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
        let stopping = sweep.early_stopping.as_ref();
        let by_loss = stopping.is_none_or(|stopping| {
            let metric = stopping.metric;
            [StoppingMetric::EvalLoss, StoppingMetric::TrainLoss].contains(&metric)
        });
        if by_loss && differ(&members, loss) {
            warnings.push(format!(
                "sweep `{}`: its adapters are ranked by losses of different objectives, which cannot be compared; \
                 `early_stopping: {{metric: eval_rewards/accuracies}}` compares preferences between pairs",
                sweep.name
            ));
        }
    }
    warnings
}

fn differ<T: PartialEq>(members: &[&AdapterConfig], of: impl Fn(&AdapterConfig) -> T) -> bool {
    members.windows(2).any(|pair| of(pair[0]) != of(pair[1]))
}
