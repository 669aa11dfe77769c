//! Resolves names of the Hugging Face Hub to paths in its cache on this machine.

use std::path::{Path, PathBuf};

use loraloom_hub::{Cache, HubFiles, Kind, NotCached, Repository};

use super::{Anchor, pattern};
use crate::{
    Absent, ConfigError, OnHub,
    suggest::Candidates,
    tree::{Node, Value},
};

impl Anchor<'_> {
    /// Rewrites the path of a directory; if that does not exist, `org/name` is a repository of the Hub. Returns the
    /// repository if the cache lacks it.
    pub(super) fn model(
        &self,
        key: &str,
        node: Option<&mut Node>,
    ) -> Result<Option<Absent>, ConfigError> {
        let Some(node) = node else { return Ok(None) };
        let Some(name) = node.text().map(str::to_owned) else {
            return Ok(None);
        };
        self.input(key, Some(node))?;
        if node.text().is_some_and(|path| Path::new(path).exists()) {
            return Ok(None);
        }
        let Some(repository) = Repository::model(&name) else {
            if name.starts_with("hf:") {
                let problem = format!(
                    "`{name}` is not the name of a model: write ORG/NAME or ORG/NAME@REVISION"
                );
                return Err(self.source.invalid(node.location, key, problem));
            }
            return Ok(None);
        };
        let local = format!(
            "`{name}` is not in `{}`, and ",
            self.start(node.location).display()
        );
        let local = local.replace("``", "`.`");
        match self.snapshot(&repository) {
            Ok(snapshot) => node.value = Value::String(snapshot.to_string_lossy().into_owned()),
            Err((problem, hint)) => {
                let absent = self.absent(node.location, key, local + &problem, hint);
                return Ok(Some(Absent {
                    on_hub: Some(OnHub::Model(repository)),
                    ..absent
                }));
            }
        }
        Ok(None)
    }

    /// Files of a dataset in the cache.
    pub(super) fn of_hub(
        &self,
        key: &str,
        node: &Node,
        files: &HubFiles,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<PathBuf>, ConfigError> {
        let absent = |(problem, hint)| {
            let absent = Absent {
                on_hub: Some(OnHub::Files(files.clone())),
                ..self.absent(node.location, key, problem, hint)
            };
            ConfigError::Absent(Box::new(absent))
        };
        let snapshot = self.snapshot(&files.repository).map_err(absent)?;
        let is_pattern = pattern::is_pattern(&files.path);
        let found = if snapshot.join(&files.path).exists() {
            vec![snapshot.join(&files.path)]
        } else if is_pattern {
            let invalid = |problem: String| self.source.invalid(node.location, key, problem);
            pattern::matches(&snapshot, Path::new(&files.path)).map_err(invalid)?
        } else {
            Vec::new()
        };
        if found.is_empty() {
            let problem = format!(
                "`{}` is not in the cache: `{}` does not exist",
                files,
                snapshot.join(&files.path).display()
            );
            let option = if is_pattern { " --include " } else { " " };
            let hint = format!(
                "download it with `{}{option}\"{}\"`",
                files.repository.download_command(),
                files.path
            );
            return Err(absent((problem, hint)));
        }
        if is_pattern {
            warnings.push(format!(
                "{key}: `{files}` matches only downloaded files, {} in the cache",
                found.len()
            ));
        }
        Ok(found)
    }

    /// The folder of a repository in the cache; or the reason why there is none, and a hint.
    fn snapshot(&self, repository: &Repository) -> Result<PathBuf, (String, String)> {
        let command = repository.download_command();
        let Some(cache) = self.cache else {
            let problem = "there is no home directory, and so no Hugging Face cache".to_owned();
            return Err((problem, "set HF_HOME".to_owned()));
        };
        let id = &repository.id;
        let found = match repository.kind {
            Kind::Model => cache.model(repository),
            Kind::Dataset => cache.snapshot(repository),
        };
        found.map_err(|reason| match reason {
            NotCached::Revision(commits) => (
                format!(
                    "the Hugging Face cache `{cache}` has `{id}`, but not its revision `{}`",
                    repository.revision
                ),
                format!(
                    "download it with `{command}`; the cache has {}",
                    commits.join(", ")
                ),
            ),
            NotCached::Files(folder) => (
                format!(
                    "`{}` in the Hugging Face cache lacks a configuration or *.safetensors",
                    folder.display()
                ),
                format!("download the rest with `{command}`"),
            ),
            NotCached::Repository => (
                format!(
                    "the Hugging Face cache `{cache}` has no {} `{id}`",
                    repository.kind.singular()
                ),
                similar(cache, repository)
                    .unwrap_or_else(|| format!("if the Hub has it, download it with `{command}`")),
            ),
        })
    }
}

/// A question that suggests a similar name in the cache.
fn similar(cache: &Cache, repository: &Repository) -> Option<String> {
    let mut cached = cache.repositories(repository.kind);
    cached.retain(|id| *id != repository.id);
    let nearest = Candidates::of(&repository.id, cached.iter().map(String::as_str)).nearest?;
    let command = repository.download_command();
    Some(format!(
        "did you mean `{nearest}`, which is in the cache? Download the other with `{command}`"
    ))
}
