use crate::{RunConfig, TrainSettings};

/// Warnings about legal but probably unintended sweeps, a sentence each.
pub(crate) fn warn(config: &RunConfig) -> Vec<String> {
    let rows = |t: &TrainSettings| t.batch_size.saturating_mul(t.gradient_accumulation_steps);
    let mut warnings = Vec::new();
    for sweep in &config.sweep {
        let adapters = config.adapters.iter();
        let mut members = adapters.filter(|adapter| sweep.adapters.contains(&adapter.name));
        let first = members.next().map(|adapter| rows(&adapter.train));
        let differ = members.any(|adapter| Some(rows(&adapter.train)) != first);
        if sweep.early_stopping.is_some() && differ {
            warnings.push(format!(
                "sweep `{}`: its adapters train on different numbers of rows per step, but early \
                 stopping compares them after the same number of steps",
                sweep.name
            ));
        }
    }
    warnings
}
