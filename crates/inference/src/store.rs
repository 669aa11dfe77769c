use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
};

use loraloom_model::{
    LayerAdapter,
    cost::{STORED_BYTES, adapter_parameters},
};
use loraloom_pipeline::{Pipeline, PipelineError};

use crate::{
    BankSlot, BankSlots, FindWeights, FoundWeights, Generation, ModelCard, ReadAdapter, ReadFiles,
    Replace, ServiceError, reading::changed,
};

/// Stands for the digest of no adapter.
const BASE: &str = "base";

/// Adapters by name. Their weights are generations that never change: a name that is replaced stands for another one,
/// and requests keep the one that they began with.
///
/// An adapter is read from disk when it is registered, stays in host memory as long as there is room, and is copied
/// into a group of the pipeline when a request needs it. The one that was used longest ago makes way.
pub struct AdapterStore {
    /// Name of the base model.
    base: String,
    group: usize,
    limits: StoreLimits,
    read: ReadAdapter,
    find: Option<FindWeights>,
    names: BTreeMap<String, Generation>,
    held: HashMap<Generation, Held>,
    /// Generations in the pipeline, by slot of the group.
    slots: Vec<Generation>,
    next: u64,
    clock: u64,
    fetches: u64,
}

impl std::fmt::Debug for AdapterStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdapterStore")
            .field("names", &self.names)
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

/// Bytes that adapters may take.
#[derive(Debug, Clone, Copy)]
pub struct StoreLimits {
    /// In the pipeline.
    pub device: u64,
    /// In host memory. Adapters that requests use are there beyond it.
    pub host: u64,
}

#[derive(Debug)]
struct Held {
    /// Directories with the same files. Weights without any stay in host memory.
    directories: Vec<PathBuf>,
    digest: String,
    rank: usize,
    bytes: u64,
    /// In host memory.
    parts: Option<Vec<LayerAdapter>>,
    /// Requests that use it.
    requests: usize,
    last_used: u64,
}

impl AdapterStore {
    /// A store without adapters over the model that requests call `base`. Weights are copied into `group`, which is its
    /// own.
    pub fn new(base: String, group: usize, limits: StoreLimits, read: ReadAdapter) -> Self {
        Self {
            base,
            group,
            limits,
            read,
            find: None,
            names: BTreeMap::new(),
            held: HashMap::new(),
            slots: Vec::new(),
            next: 0,
            clock: 0,
            fetches: 0,
        }
    }

    /// Looks for names that the store does not have.
    #[must_use]
    pub fn with_find(self, find: FindWeights) -> Self {
        Self {
            find: Some(find),
            ..self
        }
    }

    /// Gives an adapter a name.
    ///
    /// # Errors
    /// If the name is taken and may not be replaced, or the adapter would not fit in the device's memory.
    pub fn register(
        &mut self,
        name: &str,
        files: ReadFiles,
        replaces: &Replace,
    ) -> Result<ModelCard, ServiceError> {
        if name == self.base {
            let name = name.to_owned();
            return Err(ServiceError::BaseName { name });
        }
        if let Some(old) = self.names.get(name) {
            let found = &self.held[old].digest;
            match replaces {
                Replace::Nothing => {
                    let name = name.to_owned();
                    return Err(ServiceError::NameTaken { name });
                }
                Replace::Generation(expected) if expected != found => {
                    return Err(ServiceError::OtherGeneration {
                        name: name.to_owned(),
                        expected: expected.clone(),
                        found: found.clone(),
                    });
                }
                _ => {}
            }
        } else if let Replace::Generation(_) = replaces {
            return Err(self.unknown(name));
        }
        let ReadFiles {
            directory,
            digest,
            parts,
        } = files;
        let generation = self.hold(FoundWeights { digest, parts }, directory)?;
        let old = self.names.insert(name.to_owned(), generation);
        if let Some(old) = old.filter(|old| *old != generation) {
            self.forget_unused(old);
        }
        self.make_room_on_host();
        Ok(self.card(name, generation))
    }

    /// The generation of weights in host memory, which can be read again from `directory`.
    fn hold(
        &mut self,
        FoundWeights { digest, parts }: FoundWeights,
        directory: Option<PathBuf>,
    ) -> Result<Generation, ServiceError> {
        let bytes = (adapter_parameters(&parts) * STORED_BYTES) as u64;
        let limit = self.limits.device;
        if bytes > limit {
            return Err(ServiceError::AdapterTooLarge {
                adapter: directory.map_or(digest, |path| path.display().to_string()),
                bytes,
                limit,
            });
        }
        let same = self.held.iter().find(|(_, held)| held.digest == digest);
        let same = same.map(|(&generation, _)| generation);
        if let Some(held) = same.and_then(|same| self.held.get_mut(&same))
            && let Some(directory) = &directory
            && !held.directories.contains(directory)
        {
            held.directories.push(directory.clone());
        }
        let generation = same.unwrap_or_else(|| {
            self.next += 1;
            let ranks = parts.iter().flatten().flatten().map(|state| state.spec.r);
            let held = Held {
                directories: directory.into_iter().collect(),
                digest,
                rank: ranks.max().unwrap_or(0),
                bytes,
                parts: Some(parts),
                requests: 0,
                last_used: 0,
            };
            self.held.insert(Generation(self.next), held);
            Generation(self.next)
        });
        self.touch(generation);
        Ok(generation)
    }

    /// Takes a name away. Requests that run keep the weights.
    ///
    /// # Errors
    /// If there is no such name.
    pub fn unregister(&mut self, name: &str) -> Result<(), ServiceError> {
        if name == self.base {
            let name = name.to_owned();
            return Err(ServiceError::BaseName { name });
        }
        let generation = self.names.remove(name);
        let generation = generation.ok_or_else(|| self.unknown(name))?;
        self.forget_unused(generation);
        Ok(())
    }

    /// The base model, and the names of adapters with what they stand for.
    pub fn cards(&self) -> Vec<ModelCard> {
        let base = ModelCard {
            name: self.base.clone(),
            parent: None,
            generation: BASE.to_owned(),
            rank: 0,
            bytes: 0,
        };
        let names = self.names.iter();
        let names = names.map(|(name, generation)| self.card(name, *generation));
        [base].into_iter().chain(names).collect()
    }

    /// Number of names of adapters.
    pub fn adapters(&self) -> usize {
        self.names.len()
    }

    /// The weights of a name and their digest. They stay until [`end`](Self::end).
    ///
    /// # Errors
    /// If there is no such name.
    pub fn begin(&mut self, name: &str) -> Result<(Generation, String), ServiceError> {
        if name == self.base {
            return Ok((Generation::BASE, BASE.to_owned()));
        }
        let generation = *self.names.get(name).ok_or_else(|| self.unknown(name))?;
        self.touch(generation);
        let Some(held) = self.held.get_mut(&generation) else {
            return Err(self.unknown(name));
        };
        held.requests += 1;
        Ok((generation, held.digest.clone()))
    }

    /// Weights without a name and their digest. They stay until [`end`](Self::end).
    ///
    /// # Errors
    /// If they would not fit in the device's memory.
    pub fn begin_with(
        &mut self,
        found: FoundWeights,
    ) -> Result<(Generation, String), ServiceError> {
        let digest = found.digest.clone();
        let generation = self.hold(found, None)?;
        if let Some(held) = self.held.get_mut(&generation) {
            held.requests += 1;
        }
        Ok((generation, digest))
    }

    /// Ends a use that [`begin`](Self::begin) began.
    pub fn end(&mut self, generation: Generation) {
        if let Some(held) = self.held.get_mut(&generation) {
            held.requests -= 1;
        }
        self.forget_unused(generation);
    }

    /// Copies the first of the weights that are needed and not there into the pipeline, if there is room without those
    /// in use and those that are needed before. At most one, so that others do not wait for long. Returns weights that
    /// cannot be had.
    ///
    /// # Errors
    /// If the pipeline fails.
    pub fn fetch(
        &mut self,
        pipeline: &mut Pipeline,
        mut in_use: HashSet<Generation>,
        needed: &[Generation],
    ) -> Result<Option<(Generation, ServiceError)>, PipelineError> {
        // Weights without a name and without requests were forgotten.
        while let Some(slot) = self
            .slots
            .iter()
            .position(|held| !self.held.contains_key(held))
        {
            self.evict(pipeline, slot)?;
        }
        for &generation in needed {
            let Some(held) = self.held.get(&generation) else {
                continue;
            };
            if self.slots.contains(&generation) {
                in_use.insert(generation);
                continue;
            }
            if !self.make_room(pipeline, held.bytes, &in_use)? {
                break;
            }
            if let Err(error) = self.read_again(generation) {
                return Ok(Some((generation, error)));
            }
            let held = self.held.get(&generation);
            if let Some(parts) = held.and_then(|held| held.parts.clone()) {
                pipeline.push(self.group, parts)?;
                self.slots.push(generation);
                self.fetches += 1;
                self.touch(generation);
            }
            break;
        }
        Ok(None)
    }

    /// Where weights are now.
    pub fn places(&self) -> BankSlots {
        let base = BankSlot {
            group: self.group,
            slot: None,
        };
        let slots = self.slots.iter().enumerate().map(|(slot, &generation)| {
            let slot = Some(slot);
            (generation, BankSlot { slot, ..base })
        });
        slots.chain([(Generation::BASE, base)]).collect()
    }

    /// What reads adapters.
    pub(crate) fn reader(&self) -> ReadAdapter {
        self.read.clone()
    }

    /// What looks for other names.
    pub(crate) fn finder(&self) -> Option<FindWeights> {
        self.find.clone()
    }

    /// How often weights were copied into the pipeline.
    pub fn fetches(&self) -> u64 {
        self.fetches
    }

    /// Bytes of the weights in the pipeline.
    pub fn device_bytes(&self) -> u64 {
        self.slots
            .iter()
            .filter_map(|generation| self.held.get(generation))
            .map(|held| held.bytes)
            .sum()
    }

    /// Number of adapters in the pipeline, without those that are to leave it.
    pub fn resident(&self) -> usize {
        let slots = self.slots.iter();
        slots.filter(|slot| self.held.contains_key(slot)).count()
    }

    /// Makes way for this many bytes in the pipeline. `false` if those in use leave too little.
    fn make_room(
        &mut self,
        pipeline: &mut Pipeline,
        bytes: u64,
        in_use: &HashSet<Generation>,
    ) -> Result<bool, PipelineError> {
        while self.device_bytes() + bytes > self.limits.device {
            let idle = self
                .slots
                .iter()
                .enumerate()
                .filter(|(_, slot)| !in_use.contains(slot));
            let oldest =
                idle.min_by_key(|(_, slot)| self.held.get(slot).map(|held| held.last_used));
            let Some((slot, _)) = oldest else {
                return Ok(false);
            };
            self.evict(pipeline, slot)?;
        }
        Ok(true)
    }

    fn evict(&mut self, pipeline: &mut Pipeline, slot: usize) -> Result<(), PipelineError> {
        pipeline.remove(self.group, slot)?;
        self.slots.remove(slot);
        Ok(())
    }

    /// Reads weights that are no longer in host memory.
    fn read_again(&mut self, generation: Generation) -> Result<(), ServiceError> {
        let Some(held) = self
            .held
            .get_mut(&generation)
            .filter(|held| held.parts.is_none())
        else {
            return Ok(());
        };
        let mut failed = None;
        for directory in &held.directories {
            match ReadFiles::new(directory, &self.read) {
                Ok(files) if files.digest == held.digest => held.parts = Some(files.parts),
                Ok(_) => failed = Some(changed(directory)),
                Err(error) => failed = Some(error),
            }
            if held.parts.is_some() {
                break;
            }
        }
        if held.parts.is_none()
            && let Some(error) = failed
        {
            return Err(error);
        }
        self.touch(generation);
        self.make_room_on_host();
        Ok(())
    }

    /// Drops copies in host memory, those used longest ago first. They can be read again.
    fn make_room_on_host(&mut self) {
        let on_host = self.held.iter().filter(|(_, held)| held.parts.is_some());
        let mut bytes: u64 = on_host.clone().map(|(_, held)| held.bytes).sum();
        let mut idle: Vec<_> = on_host
            .filter(|(_, held)| held.requests == 0 && !held.directories.is_empty())
            .filter(|(_, held)| held.last_used < self.clock)
            .map(|(generation, held)| (held.last_used, *generation))
            .collect();
        idle.sort_unstable();
        for (_, generation) in idle {
            if bytes <= self.limits.host {
                break;
            }
            if let Some(held) = self.held.get_mut(&generation) {
                held.parts = None;
                bytes -= held.bytes;
            }
        }
    }

    fn forget_unused(&mut self, generation: Generation) {
        let is_named = self.names.values().any(|named| *named == generation);
        if !is_named
            && self
                .held
                .get(&generation)
                .is_some_and(|held| held.requests == 0)
        {
            self.held.remove(&generation);
        }
    }

    fn touch(&mut self, generation: Generation) {
        self.clock += 1;
        if let Some(held) = self.held.get_mut(&generation) {
            held.last_used = self.clock;
        }
    }

    fn card(&self, name: &str, generation: Generation) -> ModelCard {
        let held = self.held.get(&generation);
        ModelCard {
            name: name.to_owned(),
            parent: Some(self.base.clone()),
            generation: held.map(|held| held.digest.clone()).unwrap_or_default(),
            rank: held.map_or(0, |held| held.rank),
            bytes: held.map_or(0, |held| held.bytes),
        }
    }

    fn unknown(&self, name: &str) -> ServiceError {
        let names = self.names.keys().cloned();
        ServiceError::UnknownModel {
            name: name.to_owned(),
            known: [self.base.clone()].into_iter().chain(names).collect(),
        }
    }
}
