//! Computes the log-probabilities of references before the steps that compare with them.

use std::time::Instant;

use loraloom_data::Sample;
use loraloom_pipeline::Pipeline;
use loraloom_scheduler::TaskId;

use super::session::Session;
use crate::{
    Event,
    batch::log_probs,
    error::Result,
    tasks::{Sequence, SlotLocation, Task},
};

impl Session<'_> {
    /// Computes what the next iterations of all running tasks need, at most `most`.
    pub(super) fn refer(&mut self, most: usize) -> Result<()> {
        for id in self.placed.tasks.running_ids() {
            let (task, place) = self.placed.running(id)?;
            let unknown = task.unknown_sequences(most)?;
            if !unknown.is_empty() {
                self.compute(id, place, unknown)?;
            } else if let Some(task) = self.placed.tasks.get_mut(id) {
                task.reference = None;
            }
        }
        Ok(())
    }

    fn compute(&mut self, id: TaskId, place: SlotLocation, unknown: Vec<Sequence>) -> Result<()> {
        let begun = Instant::now();
        let split = self.config.pipeline.microbatches;
        let reference = self
            .placed
            .tasks
            .get_mut(id)
            .and_then(|task| task.reference.take());
        let pipeline = &mut self.placed.pipeline;
        // An adapter as it began has a place of its own until it has answered.
        let slot = match &reference {
            Some(adapter) => Some(pipeline.push(place.group, adapter.clone())?),
            None => None,
        };
        let Some(task) = self.placed.tasks.get(id) else {
            return Ok(());
        };
        let found = compute(pipeline, (place.group, slot), task, &unknown, split);
        if let Some(slot) = slot {
            pipeline.remove(place.group, slot)?;
        }
        if let Err(error) = found {
            if let Some(task) = self.placed.tasks.get_mut(id) {
                task.reference = reference;
            }
            return Err(error);
        }
        self.log.emit(Event::Reference {
            adapter: task.config.name.clone(),
            sequences: unknown.len(),
            tokens: unknown.iter().map(|one| one.sample.len()).sum(),
            seconds: begun.elapsed().as_secs_f64(),
        });
        Ok(())
    }
}

/// A pass has no more sequences than a micro-batch in training, and takes less memory.
fn compute(
    pipeline: &Pipeline,
    (group, slot): (usize, Option<usize>),
    task: &Task,
    unknown: &[Sequence],
    split: usize,
) -> Result<()> {
    for sequences in unknown.chunks(task.microbatch_samples(split).max(1)) {
        let samples: Vec<&Sample> = sequences.iter().map(|one| &one.sample).collect();
        let found = log_probs(pipeline, (group, slot), &samples)?;
        for (one, log_prob) in sequences.iter().zip(found) {
            task.references.insert(one.id, log_prob);
        }
    }
    Ok(())
}
