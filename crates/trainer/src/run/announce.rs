//! The first events of a run, or of a part of it.

use loraloom_config::{BalanceChoice, RunConfig};

use crate::{
    Event, Outcome, SavedRun, Versions, events::EventLog, plan::NOT_STAGGERED, tasks::Placement,
};

/// Emits the start or resume event and its warnings.
pub(super) fn announce(
    log: &mut EventLog<'_>,
    config: &RunConfig,
    placed: &Placement,
    saved: Option<&SavedRun>,
) {
    let pipeline = &placed.pipeline;
    let names = config.adapters.iter();
    let adapters = names.map(|adapter| adapter.name.clone()).collect();
    let stages: Vec<String> = pipeline.names().collect();
    let layers = pipeline.layers();
    let layers = layers.map(|layers| [layers.start, layers.end]).collect();
    let partitions = pipeline.partitions();
    let partitions = partitions.are_staggered().then(|| partitions.counts());
    let products: Vec<String> = pipeline.products().collect();
    let mut warnings: Vec<String> = stages
        .iter()
        .zip(&products)
        // A user who turned cuBLAS off needs no warning.
        .filter(|(_, by)| by.contains("without cuBLAS") && !by.ends_with(" is off"))
        .map(|(stage, by)| format!("matrix products on {stage} are by {by}"))
        .collect();
    let (time, versions) = (now(), Versions::default());
    let asked = config.pipeline.balance == BalanceChoice::Staggered;
    if asked && partitions.is_none() {
        warnings.push(NOT_STAGGERED.to_owned());
    }
    if let Some(saved) = saved {
        let written_by = &saved.record().loraloom;
        if written_by != versions.loraloom {
            log.warn(format!("the run was saved by loraloom {written_by}"));
        }
        let parts = config.pipeline.microbatches;
        let before = &saved.record().config["pipeline"]["microbatches"];
        if *before != parts {
            log.warn(format!(
                "`pipeline.microbatches` was {before} and is {parts} now: sums are computed in another \
                 order, and last digits differ from an uninterrupted run"
            ));
        }
        log.emit(Event::Resume {
            time,
            iteration: saved.iteration(),
            path: saved.relative_path(),
            adapters,
            stages,
            layers,
            partitions,
            products,
            versions,
        });
        warnings.extend_from_slice(saved.warnings());
    } else {
        log.emit(Event::RunStart {
            time,
            adapters,
            stages,
            layers,
            partitions,
            weight_bytes: pipeline.weight_bytes().collect(),
            products,
            versions,
        });
    }
    for message in warnings {
        log.warn(message);
    }
    // These tasks have failed just now, when their rows were compared.
    let tasks = &placed.tasks;
    for report in tasks.held.iter().filter_map(|id| tasks.ended.get(id)) {
        if let Outcome::Failed { reason, .. } = &report.outcome {
            log.emit(Event::AdapterFailed {
                adapter: report.name.clone(),
                step: report.steps + 1,
                reason: reason.clone(),
            });
        }
    }
}

/// The time, in RFC 3339.
pub(super) fn now() -> String {
    jiff::Timestamp::now().to_string()
}
