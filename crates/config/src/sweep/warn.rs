use crate::{RunConfig, TrainSettings};

/// Warnings about legal but probably unintended sweeps, a sentence each.
pub(crate) fn warn(config: &RunConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    for sweep in &config.sweep {
        let Some(stopping) = &sweep.early_stopping else {
            continue;
        };
        let mut members: Vec<&TrainSettings> = Vec::new();
        for adapter in &config.adapters {
            if sweep.adapters.contains(&adapter.name) {
                members.push(&adapter.train);
            }
        }
        let rows = |t: &TrainSettings| t.batch_size.saturating_mul(t.gradient_accumulation_steps);
        if members.iter().any(|train| rows(train) != rows(members[0])) {
            warnings.push(format!(
                "sweep `{}`: its adapters take different numbers of rows in a step, and early \
                 stopping compares them after the same number of steps",
                sweep.name
            ));
        }
        let ends = |t: &&TrainSettings| t.max_steps.is_some_and(|s| s <= stopping.grace_period);
        if members.iter().all(ends) {
            warnings.push(format!(
                "sweep `{}`: no adapter takes more than grace_period {} steps, none is stopped \
                 early",
                sweep.name, stopping.grace_period
            ));
        }
    }
    warnings
}
