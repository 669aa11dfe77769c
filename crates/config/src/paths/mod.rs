//! Resolves relative paths (docs/adr/0022): in a configuration against the folder of its file, on
//! the command line against the working directory. Files that an mLoRA configuration names are read
//! from the working directory, or else from the folder of the configuration.

mod data;
mod hub;
mod pattern;

use std::{
    env, fs, io,
    path::{Component, Path, PathBuf},
};

use loraloom_hub::Cache;
pub(crate) use pattern::is_match;

use crate::{
    Absent, ConfigError,
    place::{Location, Source},
    tree::{Node, Value},
};

/// The file of an adapter's directory.
const ADAPTER: &str = "adapter_config.json";

/// Rewrites every path of a tree to one from the working directory: expands `~`, `$VAR` and `${VAR}`,
/// and puts the file's folder before relative paths of the file, not of overrides and options.
/// Patterns of data become the files that match, names of the Hugging Face Hub paths in the cache.
///
/// # Errors
/// A variable that is not set; an input that is not in the folder, but in the working directory; a
/// pattern that nothing matches; a dataset of the Hub that the cache does not have.
pub(crate) fn anchor(
    tree: &mut Node,
    source: &Source<'_>,
    is_mlora: bool,
    cache: Option<&Cache>,
    remarks: Remarks<'_>,
) -> Result<(), ConfigError> {
    let anchor = Anchor {
        source,
        folder: folder(source.path),
        is_mlora,
        cache,
    };
    let Remarks { warnings, absent } = remarks;
    absent.extend(anchor.model("model", tree.get_mut("model"))?);
    anchor.output("output_dir", tree.get_mut("output_dir"))?;
    if let Some(pipeline) = tree.get_mut("pipeline") {
        anchor.input("pipeline.token_file", pipeline.get_mut("token_file"))?;
    }
    if let Some(Value::Mapping(datasets)) = tree.get_mut("datasets").map(|node| &mut node.value) {
        for (name, dataset) in datasets {
            let key = format!("datasets.{}.path", name.name);
            anchor.data(&key, dataset.get_mut("path"), warnings)?;
            let key = format!("datasets.{}.validation", name.name);
            anchor.validation(&key, dataset.get_mut("validation"), warnings)?;
        }
    }
    if let Some(adapters) = tree.get_mut("adapters") {
        for (index, adapter) in adapters.items_mut().iter_mut().enumerate() {
            let key = format!("adapters[{index}].init_from");
            absent.extend(anchor.model(&key, adapter.get_mut("init_from"))?);
            if let Some(node) = adapter.get("init_from")
                && let Some(directory) = node.text().map(Path::new)
                && !directory.join(ADAPTER).exists()
                && directory.join("last").join(ADAPTER).exists()
            {
                let directory = directory.display();
                let problem = format!(
                    "`{directory}` holds the adapters that a run has saved: write `{directory}/last`, or \
                     `{directory}/best` if it is there"
                );
                return Err(source.invalid(node.location, key, problem));
            }
        }
    }
    Ok(())
}

/// Collects warnings and missing files.
pub(crate) struct Remarks<'a> {
    pub(crate) warnings: &'a mut Vec<String>,
    pub(crate) absent: &'a mut Vec<Absent>,
}

struct Anchor<'a> {
    source: &'a Source<'a>,
    folder: &'a Path,
    is_mlora: bool,
    cache: Option<&'a Cache>,
}

impl Anchor<'_> {
    fn input(&self, key: &str, node: Option<&mut Node>) -> Result<(), ConfigError> {
        let Some(node) = node else { return Ok(()) };
        let Some(written) = self.output(key, Some(node))? else {
            return Ok(());
        };
        if self.is_mlora {
            let path = mlora_path(&written, self.source.path);
            node.value = Value::String(path.to_string_lossy().into_owned());
            return Ok(());
        }
        let found = Path::new(node.text().unwrap_or_default());
        if found != written && !found.exists() && written.exists() {
            let (written, folder) = (written.display(), self.folder.display());
            let problem = format!(
                "`{written}` is not in `{folder}`, the folder of this file, from which relative paths \
                 start; it is in the working directory: write {}",
                self.seen_from_folder(&written.to_string())
            );
            return Err(self.source.invalid(node.location, key, problem));
        }
        Ok(())
    }

    /// The path without the folder, if the node is a path.
    fn output(&self, key: &str, node: Option<&mut Node>) -> Result<Option<PathBuf>, ConfigError> {
        let Some(Node {
            value: Value::String(text),
            location,
        }) = node
        else {
            return Ok(None);
        };
        let invalid = |problem: String| self.source.invalid(*location, key, problem);
        let written = PathBuf::from(expand(text).map_err(invalid)?);
        let path = if written.as_os_str().is_empty() {
            written.clone()
        } else {
            join(self.start(*location), &written)
        };
        *text = path
            .into_os_string()
            .into_string()
            .map_err(|path| invalid(format!("`{}` is not valid Unicode", path.display())))?;
        Ok(Some(written))
    }

    /// The folder that a relative path starts from.
    fn start(&self, location: Location) -> &Path {
        match location {
            Location::At(..) if !self.is_mlora => self.folder,
            _ => Path::new(""),
        }
    }

    fn absent(&self, location: Location, key: &str, problem: String, hint: String) -> Absent {
        Absent {
            place: self.source.place(location),
            key: key.to_owned(),
            problem,
            hint,
            on_hub: None,
        }
    }

    /// A path from the working directory, rewritten for a file in the folder.
    fn seen_from_folder(&self, path: &str) -> String {
        let parts = self.folder.components();
        if parts
            .clone()
            .all(|part| matches!(part, Component::Normal(_)))
        {
            format!("`{}{path}`", "../".repeat(parts.count()))
        } else {
            "an absolute path".to_owned()
        }
    }
}

/// `~` is the home directory, `$VAR` and `${VAR}` are variables of the environment.
///
/// # Errors
/// A sentence about a variable that is not set.
pub(crate) fn expand(text: &str) -> Result<String, String> {
    match shellexpand::full(text) {
        Ok(expanded) => Ok(expanded.into_owned()),
        Err(error) => Err(format!(
            "the environment variable `{}` cannot be used: {}; write `$$` for a literal `$`",
            error.var_name, error.cause
        )),
    }
}

/// A file that an mLoRA configuration names.
pub(crate) fn mlora_path(written: &Path, config: &Path) -> PathBuf {
    let beside = join(folder(config), written);
    if written.exists() || !beside.exists() {
        written.to_owned()
    } else {
        beside
    }
}

/// `path` as seen from `folder`. A `..` removes the folder before it, unless that is a symbolic link.
fn join(folder: &Path, path: &Path) -> PathBuf {
    if path.is_absolute() {
        return path.to_owned();
    }
    let mut joined = folder.to_owned();
    for part in path.components() {
        let last = joined.components().next_back();
        match part {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(last, Some(Component::Normal(_))) && !joined.is_symlink() =>
            {
                joined.pop();
            }
            part => joined.push(part),
        }
    }
    if joined.as_os_str().is_empty() {
        joined.push(".");
    }
    joined
}

/// The absolute form of a path.
///
/// # Errors
/// If the working directory is unknown.
pub fn absolute(path: &Path) -> io::Result<PathBuf> {
    if path.is_absolute() || path.as_os_str().is_empty() {
        return Ok(path.to_owned());
    }
    Ok(join(&env::current_dir()?, path))
}

/// True if a path is `folder` or inside it.
pub(crate) fn is_within(path: &Path, folder: &Path) -> bool {
    let (Ok(path), Ok(folder)) = (absolute(path), absolute(folder)) else {
        return false;
    };
    let real = fs::canonicalize(&folder).ok();
    let is_folder =
        |above: &Path| above == folder || (real.is_some() && fs::canonicalize(above).ok() == real);
    path.ancestors().any(is_folder)
}

/// The folder of a configuration.
pub(crate) fn folder(config: &Path) -> &Path {
    config.parent().unwrap_or(Path::new(""))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{expand, join};

    #[test]
    fn a_folder_before_dots_is_taken_away() {
        for (folder, path, expected) in [
            ("", "data/a.jsonl", "data/a.jsonl"),
            ("my-run", "data/a.jsonl", "my-run/data/a.jsonl"),
            ("examples", "../runs/a", "runs/a"),
            ("examples", "..", "."),
            ("examples", "../../a", "../a"),
            ("../examples", "../a", "../a"),
            ("..", "../a", "../../a"),
            ("/etc/loraloom", "./../a", "/etc/a"),
            ("examples", "/a/../b", "/a/../b"),
        ] {
            assert_eq!(
                join(Path::new(folder), Path::new(path)),
                Path::new(expected)
            );
        }
    }

    #[cfg(unix)]
    #[test]
    fn dots_after_a_link_lead_to_where_it_leads() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/usr/bin", &link).unwrap();
        assert_eq!(join(&link, Path::new("../lib")), link.join("../lib"));
    }

    #[test]
    fn variables_and_homes_are_expanded() {
        let path = std::env::var("PATH").unwrap();
        assert_eq!(expand("$PATH/x").unwrap(), format!("{path}/x"));
        assert_eq!(expand("${PATH}x").unwrap(), format!("{path}x"));
        assert_eq!(expand("a$$b~").unwrap(), "a$b~");
        let home = std::env::home_dir().unwrap();
        assert_eq!(expand("~/x").unwrap(), format!("{}/x", home.display()));
        let problem = expand("$LORALOOM_UNSET/x").unwrap_err();
        assert!(problem.contains("`LORALOOM_UNSET`"), "{problem}");
    }
}
