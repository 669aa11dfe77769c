//! Losses over preferences: their references, which are computed before the steps that compare with them, and their
//! validation.

use std::time::Instant;

use loraloom_config::PreferenceLoss;
use loraloom_data::{Sample, Samples};
use loraloom_objective::Sums;
use loraloom_pipeline::Pipeline;
use loraloom_scheduler::TaskId;

use super::session::Session;
use crate::{
    Event,
    batch::{TaskPreference, TaskRows, assemble, log_probs, trained_targets},
    error::Result,
    tasks::{SlotLocation, Task},
};

impl Session<'_> {
    /// Computes what the next iterations of all running tasks need, at most `most`.
    pub(super) fn refer(&mut self, most: usize) -> Result<()> {
        for id in self.placed.tasks.running_ids() {
            let (task, place) = self.placed.running(id)?;
            let (steps, evaluates) = task.refers_ahead(most);
            if !steps.is_empty() || evaluates {
                self.refer_task(id, place, most)?;
            }
        }
        Ok(())
    }

    fn refer_task(&mut self, id: TaskId, place: SlotLocation, most: usize) -> Result<()> {
        let begun = Instant::now();
        let split = self.config.pipeline.microbatches;
        let Some(task) = self.placed.tasks.get(id) else {
            return Ok(());
        };
        let pipeline = &mut self.placed.pipeline;
        // An adapter as it began has a place of its own until it has answered.
        let slot = match &task.reference {
            Some(adapter) => Some(pipeline.push(place.group, adapter.clone())?),
            None => None,
        };
        let computed = compute(pipeline, (place.group, slot), task, most, split);
        if let Some(slot) = slot {
            pipeline.remove(place.group, slot)?;
        }
        let [sequences, tokens] = computed?;
        if sequences > 0 {
            self.log.emit(Event::Reference {
                adapter: task.config.name.clone(),
                sequences,
                tokens,
                seconds: begun.elapsed().as_secs_f64(),
            });
        }
        if let Some(task) = self.placed.tasks.get_mut(id) {
            task.has_all_references = task.refers_to_all();
            task.has_validation_references = true;
            task.reference = None;
        }
        Ok(())
    }
}

/// Computes the references of a task's next steps. Returns the number of sequences, and of their tokens. A pass has no
/// more sequences than a micro-batch in training, and takes less memory.
fn compute(
    pipeline: &Pipeline,
    at: (usize, Option<usize>),
    task: &Task,
    most: usize,
    split: usize,
) -> Result<[usize; 2]> {
    let (steps, evaluates) = task.refers_ahead(most);
    let validation = evaluates.then(|| task.validation_batches());
    let trained = steps.flat_map(|step| task.batches(step));
    let mut counts = [0, 0];
    for batch in validation.into_iter().flatten().chain(trained) {
        let unknown = task.unknown(batch?);
        for sequences in unknown.chunks(task.microbatch_samples(split).max(1)) {
            let samples: Vec<&Sample> = sequences.iter().map(|one| &one.sample).collect();
            let found = log_probs(pipeline, at, &samples)?;
            for (one, log_prob) in sequences.iter().zip(found) {
                task.references.insert(one.id, log_prob);
            }
            counts[0] += samples.len();
            counts[1] += samples.iter().map(|sample| sample.len()).sum::<usize>();
        }
    }
    Ok(counts)
}

/// Scores the validation rows of a task, whose loss is a preference, without dropout. A pass has at most `at_once` rows.
pub(super) fn evaluate_preference(
    pipeline: &Pipeline,
    task: &Task,
    loss: &PreferenceLoss,
    at_once: usize,
    (group, slot): (usize, usize),
) -> Result<Sums> {
    let (mut sums, mut step_chosen_targets) = (Sums::default(), 0);
    for batch in task.validation_batches() {
        let sequences = batch?.sequences();
        let chosen = sequences.filter(|one| one.sample.preferred == Some(true));
        let targets = chosen.map(|one| trained_targets(loss, &one.sample));
        step_chosen_targets += targets.sum::<usize>();
    }
    for batch in task.validation_batches() {
        for rows in batch?.cut(at_once, task.known_references()) {
            let rows = TaskRows {
                slot: Some(slot),
                samples: rows.samples.iter().collect(),
                longest: rows.longest,
                first_sample: 0,
                max_seq_len: rows.longest,
                step_targets: 1,
                label_smoothing: 0.0,
                preference: Some(TaskPreference {
                    loss,
                    references: &rows.references,
                    step_rows: task.validation_rows().map_or(0, Samples::rows),
                    step_chosen_targets,
                }),
                contrast: None,
            };
            let batch = assemble(&[rows], None)?;
            let (losses, _) = pipeline.target_scores(group, &batch.microbatch)?;
            let ranges = batch.targets.into_iter();
            for completions in ranges.filter_map(|range| range.completions) {
                sums += completions.sums(&losses);
            }
        }
    }
    Ok(sums)
}
