//! The end of a run.

use loraloom_scheduler::Forecasts;

use crate::{
    AdapterReport, Event, Outcome, RunReport, SweepReport, TrainerError, announce::now,
    session::Session,
};

impl Session<'_> {
    /// What ended the training, with what is left saved if that was an error.
    pub(crate) fn saved_if_it_failed(
        &mut self,
        trained: Result<(), TrainerError>,
    ) -> Result<(), TrainerError> {
        trained.map_err(|error| {
            // A read that failed does not know why.
            let error = self.pipeline.failure().map_or(error, TrainerError::from);
            self.rescue();
            error
        })
    }

    /// Says how the run ended, and how good predictions of memory were.
    ///
    /// # Errors
    /// [`TrainerError::DirectoryGone`] if what it says was saved is not there.
    pub(crate) fn end(&mut self, forecasts: &Forecasts) -> Result<RunReport, TrainerError> {
        self.check_directory()?;
        let interrupted = self
            .ended
            .values()
            .any(|report: &AdapterReport| report.outcome == Outcome::Interrupted)
            || !self.waiting.is_empty();
        self.report_waiting();
        let adapters: Vec<AdapterReport> = self.ended.values().cloned().collect();
        let count = |wanted: fn(&Outcome) -> bool| {
            adapters
                .iter()
                .filter(|adapter| wanted(&adapter.outcome))
                .count()
        };
        let (seconds, tokens) = (self.saving.seconds(), self.ledger.tokens);
        self.ledger.emit(Event::RunEnd {
            time: now(),
            seconds,
            tokens,
            done: count(|outcome| matches!(outcome, Outcome::Done | Outcome::Stopped { .. })),
            failed: count(|outcome| matches!(outcome, Outcome::Failed { .. })),
            interrupted,
            memory_error_percent: forecasts.mean_absolute_percentage_error(),
            memory_predictions: forecasts.fitted(),
            memory_unfitted_error_percent: forecasts.unfitted_percentage_error(),
        });
        Ok(RunReport {
            sweeps: SweepReport::of_run(self.ledger.config, &adapters),
            adapters,
            interrupted,
            seconds,
            tokens,
        })
    }
}
