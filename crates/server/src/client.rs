use std::{
    fs,
    path::{Path, PathBuf},
};

use loraloom_config::{LoadOptions, RunConfig};
use loraloom_scheduler::{TaskId, TaskState};
use loraloom_trainer::{ADAPTERS, DeviceRoom, check_model, inspect, trained_over};
use serde_json::json;

use crate::{
    Result, ServerError, Status, configuration,
    error::NAME,
    queue::{
        Accepted, Answer, HistoryEntry, Presence, Queue, QueueError, QueuedTask, Request,
        Submission,
    },
    queue_bridge::{ROOMS, stored},
    spec::Spec,
};

/// Access to the queue of a run directory, whose server need not run.
#[derive(Debug, Clone)]
pub struct Client {
    directory: PathBuf,
    /// The server's configuration.
    config: RunConfig,
}

/// A task that was submitted.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Submitted {
    /// Its number; a [rehearsal](Client::rehearse) gives new tasks none.
    pub id: Option<TaskId>,
    /// Its name.
    pub name: String,
    /// False if it was accepted before with the same key.
    pub new: bool,
    /// Optimizer steps in all.
    pub total_steps: Option<u64>,
}

impl Client {
    pub(crate) fn new(directory: &Path, config: RunConfig) -> Self {
        Self {
            directory: directory.to_owned(),
            config,
        }
    }

    /// Opens the directory of a server.
    ///
    /// # Errors
    /// [`ServerError::Queue`] if no server was ever started there.
    pub fn open(directory: &Path) -> Result<Self> {
        Queue::open(directory)?;
        let (config, _) = configuration(directory, None, &LoadOptions::default())?;
        Ok(Self::new(directory, config))
    }

    /// The run directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The server's model directory.
    pub fn model(&self) -> &Path {
        &self.config.model
    }

    /// Submits all adapters of a configuration, or none; also returns warnings. A submission that is
    /// repeated with the same key is accepted once.
    ///
    /// # Errors
    /// If data or adapters cannot be read, the model is not the server's, a task can never fit, or a name
    /// is taken.
    pub fn submit(
        &self,
        config: &RunConfig,
        key: Option<&str>,
    ) -> Result<(Vec<Submitted>, Vec<String>)> {
        self.offer(config, key, Queue::submit_all)
    }

    /// Returns and refuses the same as [`submit`](Self::submit), and submits nothing.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn rehearse(
        &self,
        config: &RunConfig,
        key: Option<&str>,
    ) -> Result<(Vec<Submitted>, Vec<String>)> {
        let (mut tasks, warnings) = self.offer(config, key, Queue::rehearse_all)?;
        for task in tasks.iter_mut().filter(|task| task.new) {
            task.id = None;
        }
        Ok((tasks, warnings))
    }

    fn offer(
        &self,
        config: &RunConfig,
        key: Option<&str>,
        to: fn(&mut Queue, &[Submission]) -> Result<Vec<Accepted>, QueueError>,
    ) -> Result<(Vec<Submitted>, Vec<String>)> {
        let mut queue = Queue::open(&self.directory)?;
        // There are none before the first start of the server.
        let rooms: Vec<DeviceRoom> = stored(&queue, ROOMS)?;
        let (submissions, warnings) = self.submissions(config, key, &rooms)?;
        self.refuse_used(&queue, &submissions)?;
        let accepted = to(&mut queue, &submissions)?;
        let submitted = |(submission, accepted): (Submission, Accepted)| Submitted {
            id: Some(accepted.id),
            name: submission.name,
            new: accepted.new,
            total_steps: submission.total_steps,
        };
        let submitted = submissions.into_iter().zip(accepted).map(submitted);
        Ok((submitted.collect(), warnings))
    }

    /// Submits a copy of a task under another name, with overrides. An override is `KEY=VALUE` with a key
    /// of the adapter, such as `lora.r`, or of its dataset: `datasets.NAME.path`.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn resubmit(
        &self,
        reference: &str,
        name: &str,
        overrides: &[String],
        key: Option<&str>,
    ) -> Result<(Vec<Submitted>, Vec<String>)> {
        if let Some(setting) = overrides.iter().find(|text| key_of(text) == "name") {
            let setting = setting.clone();
            return Err(ServerError::TwoNames { setting });
        }
        let queue = Queue::open(&self.directory)?;
        let task = queue.find(reference)?;
        let text = queue.spec(task.id)?.spec;
        let mut settings = vec![format!("{NAME}{}", json!(name))];
        settings.extend(overrides.iter().map(|setting| {
            if setting.starts_with("datasets.") {
                setting.clone()
            } else {
                format!("adapters.0.{setting}")
            }
        }));
        // A sweep lists its adapters by name; the clone is in no sweep.
        let (mut config, _) = Spec::configuration(&text, &[])?;
        config.sweep.clear();
        let (config, mut warnings) = Spec::configuration(&config.to_yaml()?, &settings)
            .map_err(|error| ServerError::Clone { error })?;
        let (submitted, more) = self.submit(&config, key)?;
        warnings.extend(more);
        Ok((submitted, warnings))
    }

    /// Asks for a task to be paused, resumed or cancelled.
    ///
    /// # Errors
    /// If there is no such task, or its state forbids the request.
    pub fn ask(&self, reference: &str, request: Request) -> Result<(QueuedTask, Answer)> {
        let mut queue = Queue::open(&self.directory)?;
        let id = queue.find(reference)?.id;
        match queue.request(id, request) {
            Ok(answer) => Ok((queue.task(id)?, answer)),
            Err(QueueError::RequestRefused {
                name,
                request: Request::Resume,
                state: TaskState::Running | TaskState::Parked,
                pending: None,
                ..
            }) if queue.server()? == Presence::Absent => Err(ServerError::Unserved {
                name,
                directory: self.directory.clone(),
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// The status of all tasks.
    ///
    /// # Errors
    /// Errors of the queue.
    pub fn status(&self) -> Result<Status> {
        Status::read(&Queue::open(&self.directory)?)
    }

    /// A task and its history.
    ///
    /// # Errors
    /// If there is no such task.
    pub fn history(&self, reference: &str) -> Result<(QueuedTask, Vec<HistoryEntry>)> {
        let queue = Queue::open(&self.directory)?;
        let task = queue.find(reference)?;
        let events = queue.events(task.id)?;
        Ok((task, events))
    }

    /// A task whose name is in the run's events with steps of its own. `None` if they are those of a later task of the
    /// same name.
    ///
    /// # Errors
    /// If there is no such task.
    pub(crate) fn recorded(&self, reference: &str) -> Result<Option<QueuedTask>> {
        let queue = Queue::open(&self.directory)?;
        let task = queue.find(reference)?;
        let is_later =
            |other: &QueuedTask| other.name == task.name && other.id > task.id && other.step > 0;
        let is_followed = queue.tasks()?.iter().any(is_later);
        Ok((!is_followed).then_some(task))
    }

    /// The tasks in order of arrival with their configurations, each of one adapter. A task whose specification
    /// cannot be read is left out: the server fails it.
    ///
    /// # Errors
    /// Errors of the queue.
    pub fn configurations(&self) -> Result<Vec<(QueuedTask, RunConfig)>> {
        let queue = Queue::open(&self.directory)?;
        let mut configurations = Vec::new();
        for task in queue.tasks()? {
            let read = Spec::configuration(&queue.spec(task.id)?.spec, &[]);
            configurations.extend(read.ok().map(|(config, _)| (task, config)));
        }
        Ok(configurations)
    }

    /// The adapters of a configuration as submissions, with warnings.
    pub(crate) fn submissions(
        &self,
        config: &RunConfig,
        key: Option<&str>,
        rooms: &[DeviceRoom],
    ) -> Result<(Vec<Submission>, Vec<String>)> {
        self.check_model(&config.model)?;
        // The server encodes rows with the tokenizer of its own model. What a row takes at the least follows
        // from this setting and from the devices, and not from the rest of a configuration.
        let as_served = RunConfig {
            model: self.config.model.clone(),
            gradient_checkpointing: self.config.gradient_checkpointing,
            quantization: self.config.quantization.clone(),
            ..config.clone()
        };
        let element_bytes = rooms.first().map(|room| room.element_bytes);
        let (inspected, mut warnings) = inspect(&as_served, element_bytes)?;
        if config.quantization.is_some() && config.quantization != self.config.quantization {
            let warning =
                "`quantization` has no effect: the server decides how its model is stored";
            warnings.push(warning.to_owned());
        }
        let mut submissions = Vec::with_capacity(inspected.len());
        let config = config.written()?;
        let model = self.config.written()?.model;
        for (adapter, inspected) in config.adapters.iter().zip(inspected) {
            for room in rooms {
                if let Some(reason) = room.refuses(inspected.load)? {
                    let name = adapter.name.clone();
                    return Err(ServerError::NeverFits { name, reason });
                }
            }
            let spec = Spec::of(&config, adapter);
            submissions.push(Submission {
                name: adapter.name.clone(),
                tenant: adapter.tenant.clone(),
                priority: adapter.priority,
                spec: spec.to_text(&model)?,
                dataset_hash: inspected.digest,
                total_steps: Some(inspected.total_steps as u64),
                sweep: spec.sweep.map(|(name, _)| name),
                key: key.map(|key| format!("{key}/{}", adapter.name)),
            });
        }
        Ok((submissions, warnings))
    }

    /// Refuses a model with other weights than the server's. Before the first checkpoint, the model
    /// directories must be the same.
    fn check_model(&self, model: &Path) -> Result<()> {
        if trained_over(&self.directory).is_some() {
            return Ok(check_model(model, &self.directory)?);
        }
        let real = |path: &Path| {
            fs::canonicalize(path).map_err(|source| ServerError::Path {
                path: path.to_owned(),
                source,
            })
        };
        let server = &self.config.model;
        if real(model)? == real(server)? {
            return Ok(());
        }
        Err(ServerError::OtherModel {
            server: server.clone(),
            task: model.to_owned(),
        })
    }

    /// Refuses a name whose adapter directory exists, unless it belongs to the same submission.
    fn refuse_used(&self, queue: &Queue, submissions: &[Submission]) -> Result<()> {
        let tasks = queue.tasks()?;
        for submission in submissions {
            let path = self.directory.join(ADAPTERS).join(&submission.name);
            let known = |task: &QueuedTask| task.key.is_some() && task.key == submission.key;
            let is_live =
                |task: &QueuedTask| task.name == submission.name && !task.state.is_final();
            // The queue refuses the name of a live task, with a better message.
            if path.exists() && !tasks.iter().any(|task| known(task) || is_live(task)) {
                let name = submission.name.clone();
                return Err(ServerError::NameUsed { name, path });
            }
        }
        Ok(())
    }
}

/// `KEY` of `KEY=VALUE`.
fn key_of(setting: &str) -> &str {
    setting.split('=').next().unwrap_or(setting).trim()
}
