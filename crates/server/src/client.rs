use std::{
    fs,
    path::{Path, PathBuf},
};

use loraloom_config::{AdapterConfig, LoadOptions, RunConfig};
use loraloom_queue::{Answer, Presence, Queue, QueueError, Request, Submission, Task, TaskState};
use loraloom_trainer::{DeviceRoom, check_model, inspect, trained_over};

use crate::{ServerError, Status, configuration, queue_bridge::ROOMS, spec::Spec};

/// A process that talks to a run directory's server, which need not run.
#[derive(Debug)]
pub struct Client {
    directory: PathBuf,
    /// The server's.
    config: RunConfig,
}

/// A task that was accepted.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Submitted {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Whether it is new; not if it was accepted before with the same key.
    pub new: bool,
    /// Optimizer steps it will take.
    pub total_steps: Option<u64>,
}

impl Client {
    pub(crate) fn new(directory: &Path, config: RunConfig) -> Self {
        Self {
            directory: directory.to_owned(),
            config,
        }
    }

    /// The client of a directory that a server was started in.
    ///
    /// # Errors
    /// [`ServerError::Queue`] if there was none.
    pub fn open(directory: &Path) -> Result<Self, ServerError> {
        Queue::open(directory)?;
        let (config, _) = configuration(directory, None, &LoadOptions::default())?;
        Ok(Self::new(directory, config))
    }

    /// The model that tasks are trained over.
    pub fn model(&self) -> &Path {
        &self.config.model
    }

    /// Submits all adapters of a configuration, or none. With a key, whoever is unsure whether they
    /// were accepted submits them again, and they are accepted once. Also returns what is odd.
    ///
    /// # Errors
    /// If data or adapters cannot be read, the model is another one, a task can never fit, or a name
    /// is taken.
    pub fn submit(
        &self,
        config: &RunConfig,
        key: Option<&str>,
    ) -> Result<(Vec<Submitted>, Vec<String>), ServerError> {
        let mut queue = Queue::open(&self.directory)?;
        let rooms = rooms(&queue)?;
        let (submissions, warnings) = self.submissions(config, key, &rooms)?;
        self.refuse_used(&queue, &submissions)?;
        let accepted = queue.submit_all(&submissions)?;
        let submitted = submissions.into_iter().zip(accepted);
        let submitted = submitted.map(|(submission, accepted)| Submitted {
            id: accepted.id.0,
            name: submission.name,
            new: accepted.new,
            total_steps: submission.total_steps,
        });
        Ok((submitted.collect(), warnings))
    }

    /// Submits a task like one that was submitted before, under another name and with other settings.
    /// An override is `KEY=VALUE` with a key of the adapter, such as `lora.r`, or of its dataset:
    /// `datasets.NAME.path`.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn resubmit(
        &self,
        reference: &str,
        name: &str,
        overrides: &[String],
        key: Option<&str>,
    ) -> Result<(Vec<Submitted>, Vec<String>), ServerError> {
        if let Some(setting) = overrides.iter().find(|text| key_of(text) == "name") {
            let setting = setting.clone();
            return Err(ServerError::TwoNames { setting });
        }
        let queue = Queue::open(&self.directory)?;
        let task = queue.find(reference)?;
        let text = queue.spec(task.id)?.spec;
        let prefixed = overrides.iter().map(|setting| {
            if setting.starts_with("datasets.") {
                setting.clone()
            } else {
                format!("adapters.0.{setting}")
            }
        });
        let mut settings = vec![format!("adapters.0.name={name}")];
        settings.extend(prefixed);
        // A sweep names its adapters; the clone is in none.
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
    /// If there is no such task, or it cannot be.
    pub fn ask(&self, reference: &str, request: Request) -> Result<(Task, Answer), ServerError> {
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

    /// How all tasks stand.
    ///
    /// # Errors
    /// What is wrong with the queue.
    pub fn status(&self) -> Result<Status, ServerError> {
        Status::read(&Queue::open(&self.directory)?)
    }

    /// A task, and what happened to it.
    ///
    /// # Errors
    /// If there is no such task.
    pub fn history(
        &self,
        reference: &str,
    ) -> Result<(Task, Vec<loraloom_queue::Event>), ServerError> {
        let queue = Queue::open(&self.directory)?;
        let task = queue.find(reference)?;
        let events = queue.events(task.id)?;
        Ok((task, events))
    }

    /// What the adapters of a configuration are to the queue.
    pub(crate) fn submissions(
        &self,
        config: &RunConfig,
        key: Option<&str>,
        rooms: &[DeviceRoom],
    ) -> Result<(Vec<Submission>, Vec<String>), ServerError> {
        self.check_model(&config.model)?;
        // The server encodes rows with its own model's tokenizer.
        let as_served = RunConfig {
            model: self.config.model.clone(),
            pipeline: self.config.pipeline.clone(),
            scheduler: self.config.scheduler.clone(),
            ..config.clone()
        };
        let (inspected, warnings) = inspect(&as_served)?;
        let several = config.adapters.len() > 1;
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
                key: key.map(|key| own_key(key, adapter, several)),
            });
        }
        Ok((submissions, warnings))
    }

    /// Refuses a model with other weights than the server's. Before there is a checkpoint, the
    /// directories must be the same.
    fn check_model(&self, model: &Path) -> Result<(), ServerError> {
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

    /// Refuses a name whose directory a task before has filled, unless the submission is that task.
    fn refuse_used(&self, queue: &Queue, submissions: &[Submission]) -> Result<(), ServerError> {
        let tasks = queue.tasks()?;
        for submission in submissions {
            let path = self.directory.join("adapters").join(&submission.name);
            let known = |task: &Task| task.key.is_some() && task.key == submission.key;
            let is_live = |task: &Task| task.name == submission.name && !task.state.is_final();
            // Of a live task the queue says more.
            if path.exists() && !tasks.iter().any(|task| known(task) || is_live(task)) {
                let name = submission.name.clone();
                return Err(ServerError::NameUsed { name, path });
            }
        }
        Ok(())
    }
}

/// The key of a `KEY=VALUE`.
fn key_of(setting: &str) -> &str {
    setting.split('=').next().unwrap_or(setting).trim()
}

/// What the server's devices have room for, as far as it was ever started.
fn rooms(queue: &Queue) -> Result<Vec<DeviceRoom>, ServerError> {
    let stored = queue.stored()?;
    let Some(text) = stored.get(ROOMS) else {
        return Ok(Vec::new());
    };
    serde_json::from_str(text).map_err(|error| ServerError::Record {
        key: ROOMS,
        problem: error.to_string(),
    })
}

/// The key of one of several adapters.
fn own_key(key: &str, adapter: &AdapterConfig, several: bool) -> String {
    if several {
        format!("{key}/{}", adapter.name)
    } else {
        key.to_owned()
    }
}
