//! The first events of a run, or of a part of it.

use loraloom_config::BalanceChoice;

use crate::{Event, Outcome, SavedRun, Versions, plan::NOT_STAGGERED, session::Session};

impl Session<'_> {
    /// Says that the run begins, or goes on, and what is odd about that.
    pub(crate) fn announce(&mut self, saved: Option<&SavedRun>) {
        let names = self.ledger.config.adapters.iter();
        let adapters = names.map(|adapter| adapter.name.clone()).collect();
        let stages: Vec<String> = self.pipeline.names().collect();
        let layers = self.pipeline.layers();
        let layers = layers.map(|layers| [layers.start, layers.end]).collect();
        let partitions = self.pipeline.partitions();
        let partitions = partitions.are_staggered().then(|| partitions.counts());
        let products: Vec<String> = self.pipeline.products().collect();
        let mut warnings: Vec<String> = stages
            .iter()
            .zip(&products)
            // Whoever turned it off knows.
            .filter(|(_, by)| by.contains("without cuBLAS") && !by.ends_with(" is off"))
            .map(|(stage, by)| format!("products on {stage} are by {by}"))
            .collect();
        let (time, versions) = (now(), Versions::default());
        let asked = self.ledger.config.pipeline.balance == BalanceChoice::Staggered;
        if asked && partitions.is_none() {
            warnings.push(NOT_STAGGERED.to_owned());
        }
        let Some(saved) = saved else {
            self.ledger.emit(Event::RunStart {
                time,
                adapters,
                stages,
                layers,
                partitions,
                weight_bytes: self.pipeline.weight_bytes().collect(),
                products,
                versions,
            });
            for message in warnings {
                self.ledger.emit(Event::Warning { message });
            }
            return;
        };
        let written_by = saved.record().loraloom.clone();
        if written_by != versions.loraloom {
            let message = format!("the run was saved by loraloom {written_by}");
            self.ledger.emit(Event::Warning { message });
        }
        let parts = self.ledger.config.pipeline.microbatches;
        let before = &saved.record().config["pipeline"]["microbatches"];
        if *before != parts {
            let message = format!(
                "`pipeline.microbatches` was {before} and is {parts} now: sums are taken in another \
                 order, and last digits differ from those of an undisturbed run"
            );
            self.ledger.emit(Event::Warning { message });
        }
        self.ledger.emit(Event::Resume {
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
        for message in warnings.into_iter().chain(saved.warnings().iter().cloned()) {
            self.ledger.emit(Event::Warning { message });
        }
        // They have failed just now, when their rows were looked at.
        for report in self.held.iter().filter_map(|id| self.ended.get(id)) {
            if let Outcome::Failed { reason } = &report.outcome {
                self.ledger.emit(Event::AdapterFailed {
                    adapter: report.name.clone(),
                    step: report.steps + 1,
                    reason: reason.clone(),
                });
            }
        }
    }
}

/// The time, in RFC 3339.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().to_string()
}
