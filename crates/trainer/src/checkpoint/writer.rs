use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use loraloom_scheduler::Learnt;

use super::{
    LEARNT, RECORD, RunRecord,
    record::Modules,
    staged::{Staged, prune},
    tensors::encode,
    tensors_file,
};
use crate::{
    adapter::{ModelAdapter, bytes_of},
    error::{Result, on},
};

/// A checkpoint that is being written, task by task.
#[derive(Debug)]
pub(crate) struct CheckpointWriter {
    staged: Staged,
    /// Modules of the tasks that were added, by name.
    modules: BTreeMap<String, Modules>,
}

/// The trained state of a task, in host memory.
#[derive(Debug)]
pub(crate) enum Tensors {
    /// The adapter, and its start values until a check has seen all of it change.
    Adapter(ModelAdapter, Option<ModelAdapter>),
    /// A file of an earlier checkpoint.
    File(Vec<u8>),
}

impl Tensors {
    /// Bytes that these take until they are written: the tensors, and the file made of them.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Adapter(adapter, initial) => {
                let initial = initial.as_deref().map_or(0, bytes_of);
                2 * (bytes_of(adapter) + initial)
            }
            Self::File(file) => file.len() as u64,
        }
    }
}

impl CheckpointWriter {
    /// Begins the checkpoint after iteration `number` in the directory `parent`.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn create(parent: &Path, number: u64) -> Result<Self> {
        Ok(Self {
            staged: Staged::create(parent, number)?,
            modules: BTreeMap::new(),
        })
    }

    /// Writes the trained state of the task `name`.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn add(mut self, name: String, tensors: Tensors) -> Result<Self> {
        let file = match tensors {
            Tensors::File(file) => file,
            Tensors::Adapter(adapter, initial) => {
                let (modules, file) = encode(adapter, initial)?;
                self.modules.insert(name.clone(), modules);
                file
            }
        };
        self.staged.write(&tensors_file(&name), &file)?;
        Ok(self)
    }

    /// Writes the rest, makes the checkpoint visible and returns its path. The newest `keep` stay.
    ///
    /// # Errors
    /// If the disk fails; then nothing of the checkpoint remains.
    pub(crate) fn commit(
        mut self,
        mut record: RunRecord,
        learnt: Option<&Learnt>,
        keep: usize,
    ) -> Result<PathBuf> {
        for task in &mut record.tasks {
            if let Some(modules) = self.modules.remove(&task.name) {
                task.modules = modules;
            }
        }
        let (parent, number) = (self.staged.parent.clone(), self.staged.number);
        let record = on(
            &parent,
            serde_json::to_vec_pretty(&record).map_err(Into::into),
        )?;
        self.staged.write(RECORD, &record)?;
        if let Some(learnt) = learnt {
            let learnt = on(&parent, serde_json::to_vec(learnt).map_err(Into::into))?;
            self.staged.write(LEARNT, &learnt)?;
        }
        let path = self.staged.commit()?;
        prune(&parent, number, keep)?;
        Ok(path)
    }
}
