use std::{sync::Arc, time::Instant};

use loraloom_config::RunConfig;
use loraloom_scheduler::TaskId;
use serde_json::Value;

use super::{
    Moment, Running, Standby,
    moment::tensors,
    standby::PendingCheckpoint,
    writer::{AdapterFiles, PreviousVersion, SaveItem, Writer, WriterQueue},
};
use crate::{
    Best, Event, TrainerError,
    adapter::{ModelAdapter, is_fused, peft_config},
    checkpoint::config_value,
    error::Result,
    events::EventLog,
    tasks::{Snapshot, State, Task, Tasks},
};

/// A run ends after this many consecutive moments at which saves failed.
const MOST_FAILURES: usize = 3;

/// Saves a run.
#[derive(Debug)]
pub(crate) struct Saver<'a> {
    run: &'a RunConfig,
    /// Digest of the model's files.
    pub(super) model: &'a str,
    /// The configuration as checkpoints have it.
    pub(super) config: Value,
    /// Wall time of earlier parts of the run.
    seconds_before: f64,
    /// When this part began.
    started: Instant,
    /// Number of checkpoints to keep.
    pub(crate) keep: usize,
    /// True if something changed that a checkpoint should contain.
    due: bool,
    /// Writes the saves of this moment or the one before.
    writer: Option<Writer>,
    /// Bytes that this process may use, if it has a stage in its memory and there is a limit.
    pub(crate) limit: Option<u64>,
    /// Saves the run if a stop comes inside a step.
    pub(crate) standby: Option<Arc<Standby>>,
    /// Iteration of the last checkpoint that was begun here.
    written_at: Option<u64>,
    /// Tasks whose `last` or `best` could not be written, with the version on the disk.
    unsaved: Vec<(TaskId, PreviousVersion)>,
    /// True if anything was saved since the last moment.
    saved: bool,
    /// Save errors since then.
    problems: Vec<String>,
    /// An error that is not the disk's.
    fatal: Option<TrainerError>,
    /// Number of consecutive moments with a save error.
    failures: usize,
}

impl<'a> Saver<'a> {
    /// A saver for the model of this digest; earlier parts of the run took `seconds_before`.
    pub(crate) fn new(run: &'a RunConfig, model: &'a str, seconds_before: f64) -> Result<Self> {
        let keep = run.adapters.iter().map(|adapter| adapter.save.keep);
        Ok(Self {
            run,
            model,
            config: config_value(run)?,
            seconds_before,
            started: Instant::now(),
            keep: keep.max().unwrap_or(1),
            due: false,
            writer: None,
            limit: None,
            standby: None,
            written_at: None,
            unsaved: Vec::new(),
            saved: false,
            problems: Vec::new(),
            fatal: None,
            failures: 0,
        })
    }

    /// Wall time of the run.
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds_before + self.started.elapsed().as_secs_f64()
    }

    /// Requests a checkpoint at the end of this moment.
    pub(crate) fn ask(&mut self) {
        self.due = true;
    }

    /// Reports written files, if the writer has finished.
    pub(crate) fn poll(&mut self, log: &mut EventLog<'_>) {
        if self.writer.as_ref().is_some_and(Writer::is_finished) {
            self.wait(log);
        }
    }

    /// Waits for the writer, and reports written files.
    pub(crate) fn wait(&mut self, log: &mut EventLog<'_>) {
        let Some(writer) = self.writer.take() else {
            return;
        };
        let written = writer.join();
        for (files, result) in written.adapters {
            if self.attempt(result).is_some() {
                log.emit(Event::Checkpoint {
                    adapter: files.name,
                    step: files.step,
                    path: log.directory.relative(&files.path),
                });
            } else {
                self.unsaved.push((files.task, files.previous));
            }
        }
        let Some(checkpoint) = written.checkpoint else {
            return;
        };
        if let Some(path) = self.attempt(checkpoint.path) {
            log.emit(Event::RunCheckpoint {
                iteration: checkpoint.iteration,
                path: log.directory.relative(&path),
                steps: checkpoint.steps.into_iter().collect(),
            });
        }
    }

    /// As [`wait`](Self::wait), for a task that may have ended since: restores its record of `last` and `best` if
    /// they could not be replaced.
    pub(crate) fn wait_for(&mut self, task: &mut Task, log: &mut EventLog<'_>) {
        self.wait(log);
        self.take_back(task);
    }

    fn take_back(&self, task: &mut Task) {
        for (_, previous) in self.unsaved.iter().filter(|(id, _)| *id == task.id) {
            match previous {
                PreviousVersion::Last(step) => task.saved_steps = *step,
                PreviousVersion::Best(best) => task.best = *best,
            }
        }
    }

    fn take_all_back(&mut self, tasks: &mut Tasks) {
        for task in tasks.live_mut() {
            self.take_back(task);
        }
        self.unsaved.clear();
    }

    /// Returns the result of a save, if it succeeded. Disk errors do not end the run.
    fn attempt<T>(&mut self, saved: Result<T>) -> Option<T> {
        match saved {
            Ok(saved) => {
                self.saved = true;
                return Some(saved);
            }
            Err(error) if error.is_of_storage() => self.problems.push(error.to_string()),
            Err(error) => self.fatal = Some(error),
        }
        None
    }

    /// The description of an adapter to be written.
    fn files(
        &self,
        log: &EventLog<'_>,
        task: &Task,
        states: ModelAdapter,
        previous: PreviousVersion,
    ) -> SaveItem {
        let which = match previous {
            PreviousVersion::Last(_) => "last",
            PreviousVersion::Best(_) => "best",
        };
        let files = AdapterFiles {
            task: task.id,
            name: task.config.name.clone(),
            step: task.steps,
            path: log.directory.adapter(&task.config.name, which),
            base: self.model.to_owned(),
            previous,
        };
        let config = peft_config(
            self.run,
            &task.config,
            task.shape.as_ref(),
            is_fused(&states),
        );
        SaveItem::Adapter(files, Box::new(config), states)
    }

    fn check(&mut self) -> Result<()> {
        self.fatal.take().map_or(Ok(()), Err)
    }

    /// Reports save errors. Returns the last one.
    fn report_problems(&mut self, log: &mut EventLog<'_>) -> Option<String> {
        let mut problems = std::mem::take(&mut self.problems);
        for problem in &problems {
            log.warn(format!("not saved: {problem}"));
        }
        problems.pop()
    }
}

impl Moment<'_, '_> {
    /// Writes a running adapter as `last`, and its checkpoint from the same copy.
    pub(crate) fn save_last(&mut self, id: TaskId) -> Result<()> {
        let states = self.copy_and_write_last(id)?;
        let (task, _) = self.placed.running(id)?;
        let (step, name) = (task.steps, task.config.name.clone());
        let tensors = tensors(task, states)?;
        self.writer().send_tensors((id, step), name, tensors);
        Ok(())
    }

    /// Writes a running adapter as `best`, after an evaluation.
    pub(crate) fn save_best(&mut self, id: TaskId, best: Best) -> Result<()> {
        // The result of the previous write must be known first.
        self.writer();
        let task = self.placed.tasks.get_mut(id);
        let previous = task.and_then(|task| task.best.replace(best));
        self.copy_and_write(id, PreviousVersion::Best(previous))
            .map(drop)
    }

    /// Writes a running adapter as `last` immediately. Returns whether that succeeded.
    pub(crate) fn save_now(&mut self, id: TaskId) -> Result<bool> {
        self.copy_and_write_last(id)?;
        self.wait_for_writer();
        self.saver.check()?;
        let (task, _) = self.placed.running(id)?;
        Ok(task.saved_steps == Some(task.steps))
    }

    fn copy_and_write_last(&mut self, id: TaskId) -> Result<ModelAdapter> {
        self.writer();
        let task = self.placed.tasks.get_mut(id);
        let previous = task.and_then(|task| task.saved_steps.replace(task.steps));
        self.saver.ask();
        self.copy_and_write(id, PreviousVersion::Last(previous))
    }

    /// Copies a running adapter to host memory and starts writing it as `last` or `best`.
    fn copy_and_write(&mut self, id: TaskId, previous: PreviousVersion) -> Result<ModelAdapter> {
        self.check_directory()?;
        let states = self.placed.copy(id)?;
        let (task, _) = self.placed.running(id)?;
        let item = self.saver.files(self.log, task, states.clone(), previous);
        self.writer().send(item);
        Ok(states)
    }

    /// Writes every adapter that took steps since it was last written.
    pub(crate) fn save_begun(&mut self) -> Result<()> {
        self.writer();
        let is_unsaved = |task: &Task| task.saved_steps != Some(task.steps);
        let running = self.placed.tasks.running();
        let running = running.filter(|task| is_unsaved(task)).map(|task| task.id);
        for id in running.collect::<Vec<_>>() {
            self.save_last(id)?;
        }
        let parked = self.placed.tasks.waiting();
        let parked = parked.filter(|task| task.steps > 0 && is_unsaved(task));
        for id in parked.map(|task| task.id).collect::<Vec<_>>() {
            let Some(task) = self.placed.tasks.get_mut(id) else {
                continue;
            };
            let State::Parked(states) = &task.state else {
                continue;
            };
            let (states, previous) = (states.clone(), task.saved_steps.replace(task.steps));
            let item = self
                .saver
                .files(self.log, task, states, PreviousVersion::Last(previous));
            self.writer().send(item);
        }
        Ok(())
    }

    /// Reports save errors, and starts writing the saves of this moment.
    ///
    /// # Errors
    /// [`TrainerError::SavesFailed`] after too many consecutive failures.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.check_directory()?;
        self.saver.poll(self.log);
        self.saver.take_all_back(&mut self.placed.tasks);
        self.saver.check()?;
        let saved = std::mem::take(&mut self.saver.saved);
        if let Some(problem) = self.saver.report_problems(self.log) {
            self.saver.failures += 1;
            let times = self.saver.failures;
            if times >= MOST_FAILURES {
                return Err(TrainerError::SavesFailed { times, problem });
            }
        } else if saved {
            self.saver.failures = 0;
        }
        self.start_writing(Running::There)
    }

    /// As [`settle`](Self::settle), and waits until everything is written.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub(crate) fn settle_now(&mut self) -> Result<()> {
        self.settle()?;
        self.wait_for_writer();
        self.settle()
    }

    /// Saves all tasks that have begun and a checkpoint, at the end of a run. Earlier failures are only reported,
    /// since everything is saved again.
    ///
    /// # Errors
    /// [`TrainerError::SavesFailed`] if anything could not be saved.
    pub(crate) fn save_all(&mut self) -> Result<()> {
        self.wait_for_writer();
        self.saver.report_problems(self.log);
        self.save_begun()?;
        self.saver.ask();
        self.start_writing(Running::There)?;
        self.wait_for_writer();
        self.saver.check()?;
        let times = self.saver.failures + 1;
        match self.saver.report_problems(self.log) {
            Some(problem) => Err(TrainerError::SavesFailed { times, problem }),
            None => Ok(()),
        }
    }

    /// The writer of this moment, after the saves of the previous one are written and their results known.
    fn writer(&mut self) -> &mut WriterQueue {
        if self.saver.writer.as_ref().is_some_and(Writer::is_closed) {
            self.saver.wait(self.log);
        }
        self.saver.take_all_back(&mut self.placed.tasks);
        let (iteration, keep) = (self.iteration, self.saver.keep);
        let start = || Writer::start(self.log.directory.checkpoints(), iteration, keep);
        let queue = self.saver.writer.get_or_insert_with(start).queue();
        queue.limit = available_bytes(self.saver.limit, self.bytes_predicted);
        queue
    }

    /// Starts writing a checkpoint, if one was requested, and sends the rest of this moment's saves.
    fn start_writing(&mut self, running: Running<'_>) -> Result<()> {
        self.check_directory()?;
        if std::mem::take(&mut self.saver.due) {
            self.writer();
            if let Some(mut writer) = self.saver.writer.take() {
                let sent = self.send_checkpoint(writer.queue(), running);
                let writing = writer.writing();
                self.saver.writer = Some(writer);
                sent?;
                self.saver.written_at = Some(self.iteration);
                if let Some(standby) = &self.saver.standby {
                    standby.has_begun(writing);
                }
            }
        }
        if let Some(writer) = &mut self.saver.writer {
            writer.close();
        }
        Ok(())
    }

    /// Registers this snapshot for a stop inside a step, unless the newest checkpoint is as new.
    pub(crate) fn stand_by(&self, snapshot: &Snapshot) -> Result<()> {
        let is_written = self.saver.written_at == Some(snapshot.iteration);
        let Some(standby) = self.saver.standby.as_ref().filter(|_| !is_written) else {
            return Ok(());
        };
        let (mut queue, items) = WriterQueue::new();
        self.send_checkpoint(&mut queue, Running::Kept(snapshot))?;
        standby.keep(PendingCheckpoint {
            parent: self.log.directory.checkpoints(),
            iteration: snapshot.iteration,
            keep: self.saver.keep,
            items,
        });
        Ok(())
    }

    /// Waits for the current writes.
    pub(crate) fn wait_for_writer(&mut self) {
        self.saver.wait(self.log);
        self.saver.take_all_back(&mut self.placed.tasks);
    }

    /// Writes a checkpoint after a stage was lost: running tasks as in the last checkpoint, parked ones as they are.
    /// Writes nothing if nothing is parked.
    pub(crate) fn rescue(&mut self) {
        self.wait_for_writer();
        if self.placed.tasks.waiting().any(|task| task.steps > 0) {
            self.saver.ask();
            if let Err(error) = self.start_writing(Running::Lost) {
                self.saver.problems.push(error.to_string());
            }
            self.wait_for_writer();
        }
        self.saver.report_problems(self.log);
    }
}

impl Drop for Saver<'_> {
    /// The end of the process would cut off the current writes.
    fn drop(&mut self) {
        self.writer.take().map(Writer::join);
    }
}

/// Bytes below `limit` that the running tasks are not expected to use.
fn available_bytes(limit: Option<u64>, expected: Option<u64>) -> Option<u64> {
    limit.map(|limit| limit.saturating_sub(expected.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use burn::tensor::{Device, FloatDType};
    use loraloom_config::RunConfig;
    use loraloom_model::LlamaConfig;
    use loraloom_pipeline::{Pipeline, Stage};
    use loraloom_scheduler::History;

    use super::{super::Moment, Saver};
    use crate::{
        Event,
        events::EventLog,
        run_directory::RunDirectory,
        tasks::{Placement, Trials},
    };

    #[test]
    fn copies_have_what_the_running_tasks_leave() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("config.yaml");
        let text = "{model: m, output_dir: run, datasets: {d: {path: d.jsonl}}, \
                    adapters: [{name: a, dataset: d}]}";
        fs::write(&path, text).expect("written");
        let config = RunConfig::load(&path, &[]).expect("a configuration").config;
        let model = LlamaConfig::named("micro").expect("a model");
        let (layers, device) = (0..model.num_hidden_layers, Device::flex());
        let stage = Stage::random(&model, layers, FloatDType::F32, &device).expect("a stage");
        let pipeline = Pipeline::new(vec![stage]).expect("a pipeline");
        let run = RunDirectory::create(&config.output_dir, "").expect("a run directory");
        let mut source = |_: &Event| ();
        let mut moment = Moment {
            saver: &mut Saver::new(&config, "", 0.0).expect("a saver"),
            placed: &mut Placement::new(pipeline, device, 1),
            log: &mut EventLog::new(run, &mut source),
            trials: &Trials::default(),
            history: &History::default(),
            iteration: 0,
            tokens: 0,
            bytes_predicted: None,
            numbered: false,
        };
        for (limit, predicted, room) in [
            (Some(10), Some(4), Some(6)),
            (Some(3), Some(4), Some(0)),
            (Some(3), None, Some(3)),
            (None, Some(4), None),
        ] {
            (moment.saver.limit, moment.bytes_predicted) = (limit, predicted);
            assert_eq!(moment.writer().limit, room, "{limit:?} {predicted:?}");
        }
    }
}
