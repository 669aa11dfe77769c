use std::{
    fs,
    path::{Path, PathBuf},
};

use loraloom_config::{AdapterConfig, RunConfig};
use loraloom_model::{Checkpoint, LayerAdapter, LlamaConfig, PeftAdapter, PeftLoraConfig};
use loraloom_scheduler::Learnt;

use super::{
    LEARNT, RECORD,
    compare::{Difference, config_value, difference},
    generation::{Generation, Manifest, generations},
    record::{RecordState, RunRecord, TaskRecord},
    staged::remove,
    tensors::decode,
    tensors_file,
    tidy::tidy,
};
use crate::{
    AdapterReport, Best, Outcome, RunReport, TrainerError,
    error::{Result, on},
    run_directory::{self, CHECKPOINTS, Claim},
};

/// The newest complete checkpoint of a run.
#[derive(Debug)]
pub struct SavedRun {
    directory: PathBuf,
    /// The checkpoint's own directory.
    path: PathBuf,
    manifest: Manifest,
    record: RunRecord,
    warnings: Vec<String>,
    /// Present if the run is to be resumed.
    claim: Option<Claim>,
}

/// A task as it was saved.
#[derive(Debug)]
pub struct SavedTask {
    pub(crate) record: TaskRecord,
    /// Adapter and moments of every decoder layer, in host memory; `None` if it has not begun or has ended.
    pub adapter: Option<Vec<LayerAdapter>>,
    /// The adapter's start values, if no check has seen all of it change.
    pub initial: Option<Vec<LayerAdapter>>,
    /// Shape of the PEFT directory that the adapter began from.
    pub shape: Option<PeftLoraConfig>,
}

impl SavedTask {
    /// Optimizer steps it has taken.
    pub fn step(&self) -> usize {
        self.record.step
    }

    /// Optimizer steps until its end.
    pub fn total_steps(&self) -> usize {
        self.record.total_steps
    }
}

impl SavedRun {
    /// Reads the newest complete checkpoint of the run in `directory`: every file has the recorded length and BLAKE3.
    /// A task's tensors are read on request.
    ///
    /// # Errors
    /// [`TrainerError::NoCheckpoint`] if there is none.
    pub fn newest(directory: &Path) -> Result<Self> {
        let mut problems = Vec::new();
        for generation in listed(directory)? {
            let path = generation.path;
            match read(&path) {
                Ok((manifest, record)) => {
                    return Ok(Self {
                        directory: directory.to_owned(),
                        path,
                        manifest,
                        record,
                        warnings: problems,
                        claim: None,
                    });
                }
                Err(problem) => {
                    let name = path.display();
                    problems.push(format!("checkpoint `{name}` cannot be used: {problem}"));
                }
            }
        }
        Err(TrainerError::NoCheckpoint {
            path: directory.to_owned(),
            is_run: run_directory::is_run(directory),
            problems,
        })
    }

    /// Reads all complete checkpoints of the run in `directory`, the newest first.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub(crate) fn all(directory: &Path) -> Result<impl Iterator<Item = Self>> {
        let listed = listed(directory)?;
        let directory = directory.to_owned();
        Ok(listed.into_iter().filter_map(move |generation| {
            let (manifest, record) = read(&generation.path).ok()?;
            Some(Self {
                directory: directory.clone(),
                path: generation.path,
                manifest,
                record,
                warnings: Vec::new(),
                claim: None,
            })
        }))
    }

    /// Reads the newest complete checkpoint in order to resume it, and locks the run while the value lives. Renames
    /// damaged checkpoints and removes what a killed process left half written.
    ///
    /// # Errors
    /// As [`newest`](Self::newest), and [`TrainerError::RunInUse`] while a process trains the run.
    pub fn claim(directory: &Path) -> Result<Self> {
        let claim = run_directory::is_run(directory)
            .then(|| Claim::take(directory))
            .transpose()?;
        let mut saved = Self::newest(directory)?;
        saved.claim = claim;
        let lost = saved.lost_adapters();
        saved.warnings.extend(lost);
        tidy(directory)?;
        for generation in listed(directory)? {
            if generation.path == saved.path {
                break;
            }
            let mut aside = generation.path.clone().into_os_string();
            aside.push(".damaged");
            // After a resume from an older checkpoint, iteration numbers are used again.
            on(&generation.path, remove(aside.as_ref()))?;
            on(&generation.path, fs::rename(&generation.path, &aside))?;
        }
        Ok(saved)
    }

    /// Adapters that have ended and are missing from the run directory, a sentence each. No checkpoint has them any
    /// more.
    pub fn lost_adapters(&self) -> Vec<String> {
        let lost = self.record.tasks.iter().filter_map(|task| {
            let report = self.report_of(task)?;
            let error = PeftAdapter::check(&report.directory?).err()?;
            Some(format!("adapter {} is lost: {error}", task.name))
        });
        lost.collect()
    }

    /// Warnings about the run's checkpoints and adapters.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Iterations of the run so far.
    pub fn iteration(&self) -> u64 {
        self.record.iteration
    }

    /// Names of the adapters.
    pub fn adapters(&self) -> impl Iterator<Item = &str> {
        self.record.tasks.iter().map(|task| task.name.as_str())
    }

    /// The run's report, if every adapter of a configuration has ended.
    pub fn report(&self, config: &RunConfig) -> Option<RunReport> {
        let report = |adapter: &AdapterConfig| {
            let mut tasks = self.record.tasks.iter();
            self.report_of(tasks.find(|task| task.name == adapter.name)?)
        };
        let adapters: Vec<_> = config.adapters.iter().map(report).collect::<Option<_>>()?;
        Some(RunReport {
            sweeps: RunReport::rank(config, &adapters),
            adapters,
            interrupted: false,
            seconds: self.record.seconds,
            tokens: self.record.tokens,
            memory: None,
        })
    }

    /// Checks that a configuration trains the same as this run. Devices, layout and priorities may differ, and
    /// adapters may be added.
    ///
    /// # Errors
    /// [`TrainerError::AdapterGone`], or [`TrainerError::ConfigChanged`] with the first key that differs.
    pub fn check(&self, config: &RunConfig) -> Result<()> {
        let run = self.directory.clone();
        match difference(&self.record.config, &config_value(config)?) {
            None => Ok(()),
            Some(Difference::Value { key, saved, now }) => Err(TrainerError::ConfigChanged {
                key,
                saved,
                now,
                run,
            }),
            Some(Difference::Gone { adapter, new }) => {
                Err(TrainerError::AdapterGone { adapter, new, run })
            }
        }
    }

    /// Checks that the model in `directory` is the run's.
    pub(crate) fn check_model(&self, digest: &str, directory: &Path) -> Result<()> {
        if digest == self.record.model {
            return Ok(());
        }
        let path = |path: &dyn std::fmt::Display| format!("`{path}` with other weights");
        let saved = self.record.config["model"].as_str().unwrap_or_default();
        Err(TrainerError::ConfigChanged {
            key: "model".into(),
            saved: path(&saved),
            now: format!("`{}`", directory.display()),
            run: self.directory.clone(),
        })
    }

    /// The saved task of an adapter; `None` if the run had no adapter of this name.
    ///
    /// # Errors
    /// [`TrainerError::Checkpoint`] if its tensors cannot be read.
    pub fn task(&self, adapter: &str) -> Result<Option<SavedTask>> {
        let mut tasks = self.record.tasks.iter();
        let Some(record) = tasks.find(|task| task.name == adapter) else {
            return Ok(None);
        };
        let (mut adapter, mut initial) = (None, None);
        if let Some(file) = self.tensors_of(record)? {
            let decoded = decode(&file, &record.modules, self.record.layers);
            let (states, before) = decoded.map_err(|problem| self.damaged(&problem))?;
            (adapter, initial) = (Some(states), before);
        }
        let shape = record.peft_config.as_deref().map(PeftLoraConfig::from_json);
        Ok(Some(SavedTask {
            shape: shape.transpose()?,
            record: record.clone(),
            adapter,
            initial,
        }))
    }

    /// The file of a task's tensors, if it has any.
    pub(crate) fn tensors_of(&self, task: &TaskRecord) -> Result<Option<Vec<u8>>> {
        if task.modules.is_empty() {
            return Ok(None);
        }
        let file = self.manifest.read(&self.path, &tensors_file(&task.name));
        file.map(Some).map_err(|problem| self.damaged(&problem))
    }

    fn damaged(&self, problem: &str) -> TrainerError {
        TrainerError::Checkpoint {
            problem: format!("{}: {problem}", self.path.display()),
        }
    }

    /// Measurements of the devices; `None` if there are none or another version wrote them, in which case they are
    /// made again.
    pub(crate) fn learnt(&self) -> Option<Learnt> {
        let text = self.manifest.read(&self.path, LEARNT).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub(crate) fn record(&self) -> &RunRecord {
        &self.record
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Takes the claim on the run directory, for a run that resumes.
    pub(crate) fn take_claim(&mut self) -> Option<Claim> {
        self.claim.take()
    }

    /// The checkpoint's path, relative to the run directory.
    pub(crate) fn relative_path(&self) -> String {
        let path = self.path.strip_prefix(&self.directory);
        path.unwrap_or(&self.path).display().to_string()
    }

    /// The report of a task, if it has ended.
    pub(crate) fn report_of(&self, task: &TaskRecord) -> Option<AdapterReport> {
        match &task.standing {
            RecordState::Ended(outcome) => Some(self.ended_as(task, outcome.clone())),
            RecordState::Queued | RecordState::Begun => None,
        }
    }

    /// The report of a task that ends at its saved step.
    pub(crate) fn ended_as(&self, task: &TaskRecord, outcome: Outcome) -> AdapterReport {
        let directory = run_directory::adapter(&self.directory, &task.name, "last");
        let samples = match outcome {
            Outcome::Done | Outcome::Stopped { .. } => task.samples.clone(),
            _ => Vec::new(),
        };
        AdapterReport {
            name: task.name.clone(),
            outcome,
            steps: task.step,
            total_steps: task.total_steps,
            first_loss: task.first_loss.map(|loss| loss.0),
            last_loss: task.last_loss.map(|loss| loss.0),
            best: task.best.map(Best::from),
            directory: task.saved_steps.map(|_| directory),
            samples,
        }
    }
}

/// The checkpoints of the run in `directory`, the newest first.
fn listed(directory: &Path) -> Result<Vec<Generation>> {
    let path = directory.join(CHECKPOINTS);
    generations(&path).map_err(|source| TrainerError::Unlisted { path, source })
}

/// Digest of the model of the run in `directory`, if it is recorded. Tensors of checkpoints are not read.
pub fn trained_over(directory: &Path) -> Option<String> {
    let generations = generations(&directory.join(CHECKPOINTS)).ok();
    generations.into_iter().flatten().find_map(|generation| {
        let record = fs::read(generation.path.join(RECORD)).ok()?;
        let record: RunRecord = serde_json::from_slice(&record).ok()?;
        Some(record.model)
    })
}

/// Checks that `model` is the model of the run in `directory`, if that is recorded.
///
/// # Errors
/// [`TrainerError::OtherModel`], or the error of reading the model.
pub fn check_model(model: &Path, directory: &Path) -> Result<()> {
    let Some(expected) = trained_over(directory) else {
        return Ok(());
    };
    let checkpoint = Checkpoint::open(model)?;
    let digest = checkpoint.digest(&LlamaConfig::from_directory(model)?)?;
    if digest == expected {
        return Ok(());
    }
    Err(TrainerError::OtherModel {
        model: model.to_owned(),
        run: directory.to_owned(),
    })
}

fn read(path: &Path) -> Result<(Manifest, RunRecord), String> {
    let manifest = Manifest::verify(path)?;
    let record = manifest.read(path, RECORD)?;
    let record: RunRecord =
        serde_json::from_slice(&record).map_err(|error| format!("{RECORD}: {error}"))?;
    Ok((manifest, record))
}
