use std::{sync::Arc, time::Instant};

use loraloom_config::RunConfig;
use loraloom_scheduler::TaskId;
use serde_json::Value;

use super::{
    Moment, Running, Standby,
    moment::tensors,
    standby::Kept,
    writer::{AdapterFiles, Before, Part, Parts, Writer},
};
use crate::{
    Best, Event, TrainerError,
    adapter::{ModelAdapter, peft_config},
    checkpoint::config_value,
    error::Result,
    events::EventLog,
    tasks::{Snapshot, State, Task, Tasks},
};

/// A run ends when saves have failed at so many moments in a row.
const MOST_FAILURES: usize = 3;

/// Saves a run.
#[derive(Debug)]
pub(crate) struct Saver<'a> {
    run: &'a RunConfig,
    /// Digest of the model's files.
    pub(super) model: &'a str,
    /// The configuration as checkpoints have it.
    pub(super) config: Value,
    /// Wall time of the parts of the run before this one.
    seconds_before: f64,
    /// When this part began.
    started: Instant,
    /// Checkpoints that are kept.
    pub(crate) keep: usize,
    /// Something has changed that a checkpoint should have.
    due: bool,
    /// Writes what was saved at this moment or the one before.
    writer: Option<Writer>,
    /// Bytes that this process may have, if a stage is in its memory and there is a limit.
    pub(crate) limit: Option<u64>,
    /// Saves the run if it is to stop inside a step.
    pub(crate) standby: Option<Arc<Standby>>,
    /// The iteration after which the last checkpoint was begun here.
    written_at: Option<u64>,
    /// Tasks of which `last` or `best` could not be written, and what is there.
    unsaved: Vec<(TaskId, Before)>,
    /// Something was saved since the last moment.
    saved: bool,
    /// What could not be saved since then, and why.
    problems: Vec<String>,
    /// What cannot be saved on any disk.
    fatal: Option<TrainerError>,
    /// Moments in a row at which something could not be saved.
    failures: usize,
}

impl<'a> Saver<'a> {
    /// Saves a run over the model of this digest, which took `seconds_before` in earlier parts.
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

    /// Asks for a checkpoint at the end of this moment.
    pub(crate) fn ask(&mut self) {
        self.due = true;
    }

    /// Tells what was written, if the writer has come to its end.
    pub(crate) fn poll(&mut self, log: &mut EventLog<'_>) {
        if self.writer.as_ref().is_some_and(Writer::is_finished) {
            self.wait(log);
        }
    }

    /// Tells what was written, once the writer has come to its end.
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
                self.unsaved.push((files.task, files.before));
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

    /// As [`wait`](Self::wait), for a task that may have ended since: it knows again what its `last` and
    /// `best` are, if they could not be replaced.
    pub(crate) fn wait_for(&mut self, task: &mut Task, log: &mut EventLog<'_>) {
        self.wait(log);
        self.take_back(task);
    }

    fn take_back(&self, task: &mut Task) {
        for (_, before) in self.unsaved.iter().filter(|(id, _)| *id == task.id) {
            match before {
                Before::Last(step) => task.saved_steps = *step,
                Before::Best(best) => task.best = *best,
            }
        }
    }

    fn take_all_back(&mut self, tasks: &mut Tasks) {
        for task in tasks.live_mut() {
            self.take_back(task);
        }
        self.unsaved.clear();
    }

    /// What was saved, if it was. The run goes on without it if it is the disk's fault.
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

    /// An adapter as it is to be written.
    fn files(&self, log: &EventLog<'_>, task: &Task, states: ModelAdapter, before: Before) -> Part {
        let which = match before {
            Before::Last(_) => "last",
            Before::Best(_) => "best",
        };
        let files = AdapterFiles {
            task: task.id,
            name: task.config.name.clone(),
            step: task.steps,
            path: log.directory.adapter(&task.config.name, which),
            base: self.model.to_owned(),
            before,
        };
        let config = peft_config(self.run, &task.config, task.shape.as_ref());
        Part::Adapter(files, Box::new(config), states)
    }

    fn check(&mut self) -> Result<()> {
        self.fatal.take().map_or(Ok(()), Err)
    }

    /// Tells what could not be saved. Returns the last of it.
    fn report_problems(&mut self, log: &mut EventLog<'_>) -> Option<String> {
        let mut problems = std::mem::take(&mut self.problems);
        for problem in &problems {
            log.warn(format!("not saved: {problem}"));
        }
        problems.pop()
    }
}

impl Moment<'_, '_> {
    /// Has a running adapter written as `last`, and its checkpoint with the same copy of it.
    pub(crate) fn save_last(&mut self, id: TaskId) -> Result<()> {
        let states = self.copy_and_write_last(id)?;
        let (task, _) = self.placed.running(id)?;
        let (step, name) = (task.steps, task.config.name.clone());
        let tensors = tensors(task, states)?;
        self.writer().draft((id, step), name, tensors);
        Ok(())
    }

    /// Has a running adapter written as `best`, now that an evaluation is.
    pub(crate) fn save_best(&mut self, id: TaskId, best: Best) -> Result<()> {
        // Knows first what became of the one before.
        self.writer();
        let task = self.placed.tasks.get_mut(id);
        let before = task.and_then(|task| task.best.replace(best));
        self.copy_and_write(id, Before::Best(before)).map(drop)
    }

    /// Writes a running adapter as `last` at once. Returns whether the disk took it.
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
        let before = task.and_then(|task| task.saved_steps.replace(task.steps));
        self.saver.ask();
        self.copy_and_write(id, Before::Last(before))
    }

    /// Copies a running adapter to the host's memory and has it written as `last` or `best`.
    fn copy_and_write(&mut self, id: TaskId, before: Before) -> Result<ModelAdapter> {
        self.check_directory()?;
        let states = self.placed.copy(id)?;
        let (task, _) = self.placed.running(id)?;
        let part = self.saver.files(self.log, task, states.clone(), before);
        self.writer().send(part);
        Ok(states)
    }

    /// Has every adapter written that has moved on since it was last written.
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
            let (states, before) = (states.clone(), task.saved_steps.replace(task.steps));
            let part = self
                .saver
                .files(self.log, task, states, Before::Last(before));
            self.writer().send(part);
        }
        Ok(())
    }

    /// Tells what could not be saved, and begins to write what is to be written at this moment.
    ///
    /// # Errors
    /// [`TrainerError::SavesFailed`] if that has happened too often.
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

    /// As [`settle`](Self::settle), when everything is written.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub(crate) fn settle_now(&mut self) -> Result<()> {
        self.settle()?;
        self.wait_for_writer();
        self.settle()
    }

    /// Saves all that has begun, and a checkpoint, at the end of a run. Earlier failures are only
    /// reported: everything is saved again.
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

    /// What writes at this moment. What was saved before is written first, and what became of it known.
    fn writer(&mut self) -> &mut Parts {
        if self.saver.writer.as_ref().is_some_and(Writer::is_closed) {
            self.saver.wait(self.log);
        }
        self.saver.take_all_back(&mut self.placed.tasks);
        let (iteration, keep) = (self.iteration, self.saver.keep);
        let start = || Writer::start(self.log.directory.checkpoints(), iteration, keep);
        let parts = self.saver.writer.get_or_insert_with(start).parts();
        parts.room = available_bytes(self.saver.limit, self.bytes_predicted);
        parts
    }

    /// Has a checkpoint written, if one was asked for; all that is to be written at this moment is sent
    /// then.
    fn start_writing(&mut self, running: Running<'_>) -> Result<()> {
        self.check_directory()?;
        if std::mem::take(&mut self.saver.due) {
            self.writer();
            if let Some(mut writer) = self.saver.writer.take() {
                let sent = self.send_checkpoint(writer.parts(), running);
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

    /// Has a stop inside a step write this snapshot, unless the newest checkpoint is as new.
    pub(crate) fn stand_by(&self, snapshot: &Snapshot) -> Result<()> {
        let is_written = self.saver.written_at == Some(snapshot.iteration);
        let Some(standby) = self.saver.standby.as_ref().filter(|_| !is_written) else {
            return Ok(());
        };
        let (mut sender, parts) = Parts::new();
        self.send_checkpoint(&mut sender, Running::Kept(snapshot))?;
        standby.keep(Kept {
            parent: self.log.directory.checkpoints(),
            iteration: snapshot.iteration,
            keep: self.saver.keep,
            parts,
        });
        Ok(())
    }

    /// Waits for what is being written.
    pub(crate) fn wait_for_writer(&mut self) {
        self.saver.wait(self.log);
        self.saver.take_all_back(&mut self.placed.tasks);
    }

    /// Writes a checkpoint with what is left of a run that lost a stage: running tasks as the last
    /// checkpoint has them, parked ones as they are. Nothing is written if nothing is parked.
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
    /// A process that ends would cut off what is being written.
    fn drop(&mut self) {
        self.writer.take().map(Writer::join);
    }
}

/// Bytes below `limit` that the running tasks are not expected to need.
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
            placed: &mut Placement::new(pipeline, device),
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
            assert_eq!(moment.writer().room, room, "{limit:?} {predicted:?}");
        }
    }
}
