use super::Expansion;
use crate::{AdapterConfig, RunConfig, target_module::canonical};

/// Drops each point that is its base in everything but the name: the base takes its place in the sweep.
///
/// A sweep with early stopping keeps the point, since no sweep over a base stops the base itself; and so does
/// one whose base is in another sweep, since an adapter is in one sweep at most.
pub(crate) fn take_bases(config: &mut RunConfig, expansion: &Expansion) {
    let mut dropped = Vec::new();
    for index in 0..config.sweep.len() {
        if config.sweep[index].early_stopping.is_some() {
            continue;
        }
        let is_free = |name| !config.sweep.iter().any(|s| s.adapters.contains(name));
        let equal = expansion.points(index).find_map(|point| {
            let base = &config.adapters[expansion.base(point)?];
            let point = &config.adapters[point];
            let mut renamed = AdapterConfig {
                name: base.name.clone(),
                ..point.clone()
            };
            let (ours, theirs) = (&point.lora.target_modules, &base.lora.target_modules);
            if canonical(ours) == canonical(theirs) {
                renamed.lora.target_modules.clone_from(theirs);
            }
            (renamed == *base && is_free(&base.name))
                .then(|| (point.name.clone(), base.name.clone()))
        });
        if let Some((point, base)) = equal {
            let mut members = config.sweep[index].adapters.iter_mut();
            if let Some(member) = members.find(|name| **name == point) {
                *member = base;
            }
            dropped.push(point);
        }
    }
    config
        .adapters
        .retain(|adapter| !dropped.contains(&adapter.name));
}
