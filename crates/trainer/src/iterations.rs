use loraloom_scheduler::{Room, Scheduler};

use crate::{Signals, TrainerError, session::Session};

impl Session<'_> {
    /// Trains until every task has come to its end or a stop is asked for.
    pub(crate) fn train_all<R: Room>(
        &mut self,
        scheduler: &mut Scheduler<R>,
        signals: Signals<'_>,
    ) -> Result<(), TrainerError> {
        self.history = scheduler.history(self.now());
        loop {
            if !self.train_some(scheduler, signals)? {
                self.give_up_waiting(scheduler)?;
                return self.settle_now();
            }
            if signals.stop() {
                return self.interrupt();
            }
        }
    }

    /// Saves if that is asked for, has the scheduler decide, and takes steps until something follows
    /// from one; whether anybody has a place.
    pub(crate) fn train_some<R: Room>(
        &mut self,
        scheduler: &mut Scheduler<R>,
        signals: Signals<'_>,
    ) -> Result<bool, TrainerError> {
        if signals.take_save() {
            self.save_begun()?;
            self.saving.ask();
            self.settle()?;
        }
        let decision = scheduler.decide(self.now());
        let most = decision.max_steps;
        let standby = self.saving.standby.clone();
        if let Some(standby) = &standby {
            standby.compute();
        }
        let trained = self.carry_out(decision).and_then(|()| {
            let any = !self.ledger.running.is_empty();
            any.then(|| self.train(signals, most)).transpose()
        });
        if let Some(standby) = &standby {
            standby.wait();
        }
        let ended = match trained {
            Ok(None) => return Ok(false),
            Ok(Some(ended)) => ended,
            Err(error) if error.is_out_of_memory() => {
                self.go_on_with_less(error, scheduler)?;
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        for iteration in std::mem::take(&mut self.ledger.measured) {
            scheduler.measured(&iteration)?;
        }
        for (task, outcome) in ended {
            scheduler.finish(task, outcome, self.now())?;
        }
        self.history = scheduler.history(self.now());
        self.settle()?;
        Ok(true)
    }
}
