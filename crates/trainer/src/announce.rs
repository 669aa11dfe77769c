//! The first events of a run, or of a part of it.

use crate::{Event, Outcome, SavedRun, Versions, session::Session};

impl Session<'_> {
    /// Says that the run begins, or goes on, and what is odd about that.
    pub(crate) fn announce(&mut self, saved: Option<&SavedRun>) {
        let names = self.ledger.config.adapters.iter();
        let adapters = names.map(|adapter| adapter.name.clone()).collect();
        let stages = self.pipeline.names().collect();
        let layers = self.pipeline.layers();
        let layers = layers.map(|layers| [layers.start, layers.end]).collect();
        let (time, versions) = (now(), Versions::default());
        let Some(saved) = saved else {
            self.ledger.emit(Event::RunStart {
                time,
                adapters,
                stages,
                layers,
                weight_bytes: self.pipeline.weight_bytes().collect(),
                versions,
            });
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
            versions,
        });
        for message in saved.warnings().iter().cloned() {
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
