use crate::{AdapterConfig, RunConfig};

/// Warnings about legal but probably unintended sweeps, a sentence each.
pub(crate) fn warn(config: &RunConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    for sweep in &config.sweep {
        let Some(stopping) = &sweep.early_stopping else {
            continue;
        };
        let members: Vec<_> = config
            .adapters
            .iter()
            .filter(|a| sweep.adapters.contains(&a.name))
            .collect();
        let rows = |a: &AdapterConfig| {
            let train = &a.train;
            train
                .batch_size
                .saturating_mul(train.gradient_accumulation_steps)
        };
        if members
            .windows(2)
            .any(|pair| rows(pair[0]) != rows(pair[1]))
        {
            warnings.push(format!(
                "sweep `{}`: its adapters take different numbers of rows in a step, and early \
                 stopping compares them after the same number of steps",
                sweep.name
            ));
        }
        let ends = |a: &&AdapterConfig| {
            a.train
                .max_steps
                .is_some_and(|s| s <= stopping.grace_period)
        };
        if members.iter().copied().all(|a| ends(&a)) {
            warnings.push(format!(
                "sweep `{}`: no adapter takes more than grace_period {} steps, none is stopped \
                 early",
                sweep.name, stopping.grace_period
            ));
        }
    }
    warnings
}
