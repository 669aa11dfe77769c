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

/// A checkpoint on its way to the disk, task by task.
#[derive(Debug)]
pub(crate) struct Draft {
    staged: Staged,
    /// Of the tasks that were added, by name.
    modules: BTreeMap<String, Modules>,
}

/// What a task has learnt, in the host's memory.
#[derive(Debug)]
pub(crate) enum Tensors {
    /// Its adapter, and what that began from until training was seen to reach all of it.
    Adapter(ModelAdapter, Option<ModelAdapter>),
    /// The file of an earlier checkpoint.
    File(Vec<u8>),
}

impl Tensors {
    /// Bytes that these take until they are written: themselves, and as a file.
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

impl Draft {
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

    /// Writes what the task `name` has learnt.
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

    /// Writes the rest and makes the checkpoint appear; where it is. The newest `keep` stay.
    ///
    /// # Errors
    /// If the disk fails; there is no part of the checkpoint then.
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
