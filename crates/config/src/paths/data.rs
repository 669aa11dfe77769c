//! Files of datasets: paths, patterns, and files of datasets on the Hugging Face Hub.

use std::{
    fs,
    path::{Path, PathBuf},
};

use loraloom_hub::HubFiles;

use super::{Anchor, expand, join, pattern};
use crate::{
    ConfigError,
    tree::{Node, Value},
};

/// Names in a folder that a hint lists at most.
const MOST_NAMES: usize = 8;

impl Anchor<'_> {
    /// Rewrites a path or a list of them, patterns to lists of files.
    pub(super) fn data(
        &self,
        key: &str,
        node: Option<&mut Node>,
        warnings: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        let Some(node) = node else { return Ok(()) };
        if let Value::Sequence(items) = &mut node.value {
            let mut files = Vec::new();
            for (index, mut item) in std::mem::take(items).into_iter().enumerate() {
                let found = self.files(&format!("{key}[{index}]"), &mut item, warnings)?;
                files.extend(found.unwrap_or_else(|| vec![item]));
            }
            *items = files;
        } else if let Some(files) = self.files(key, node, warnings)? {
            node.value = Value::Sequence(files);
        }
        Ok(())
    }

    /// Rewrites the path of one file, also of one that is found by a pattern.
    pub(super) fn validation(
        &self,
        key: &str,
        node: Option<&mut Node>,
        warnings: &mut Vec<String>,
    ) -> Result<(), ConfigError> {
        let Some(node) = node else { return Ok(()) };
        let written = node.text().unwrap_or_default().to_owned();
        let Some(files) = self.files(key, node, warnings)? else {
            return Ok(());
        };
        let problem = format!("`{written}` matches {} files: name one", files.len());
        let mut files = files.into_iter();
        match (files.next(), files.next()) {
            (Some(file), None) => *node = file,
            _ => return Err(self.source.invalid(node.location, key, problem)),
        }
        Ok(())
    }

    /// The files of a pattern or a name of the Hub, at its place; `None` for a path, which is rewritten.
    fn files(
        &self,
        key: &str,
        node: &mut Node,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Vec<Node>>, ConfigError> {
        let invalid = |problem: String| self.source.invalid(node.location, key, problem);
        let Some(text) = node.text() else {
            return Ok(None);
        };
        let written = expand(text).map_err(invalid)?;
        let files = if let Some(files) = HubFiles::parse(&written) {
            self.of_hub(key, node, &files.map_err(invalid)?, warnings)?
        } else {
            let path = join(self.start(node.location), Path::new(&written));
            // A file of this name has priority, and the reader refuses an address.
            if !pattern::is_pattern(&written) || path.exists() || written.contains("://") {
                self.input(key, Some(node))?;
                return Ok(None);
            }
            self.of_pattern(key, node, &written)?
        };
        let nodes = files.into_iter().map(|path| {
            let text = path.into_os_string().into_string();
            let text =
                text.map_err(|path| invalid(format!("`{}` is not valid Unicode", path.display())));
            Ok(Node::string(text?).at(node.location))
        });
        nodes.collect::<Result<_, _>>().map(Some)
    }

    fn of_pattern(
        &self,
        key: &str,
        node: &Node,
        written: &str,
    ) -> Result<Vec<PathBuf>, ConfigError> {
        let (folder, rest) = pattern::split(Path::new(written));
        let start = self.start(node.location);
        let from = if folder.as_os_str().is_empty() {
            start.to_owned()
        } else {
            join(start, &folder)
        };
        let invalid = |problem: String| self.source.invalid(node.location, key, problem);
        let files = pattern::matches(&from, &rest).map_err(invalid)?;
        if !files.is_empty() {
            return Ok(files);
        }
        let is_here =
            from != folder && pattern::matches(&folder, &rest).is_ok_and(|files| !files.is_empty());
        let hint = if is_here {
            format!(
                "files in the working directory match, but relative paths start from the folder of \
                 this file: write {}",
                self.seen_from_folder(written)
            )
        } else if pattern::matches_folders(&from, &rest) {
            format!("only folders match: write `{written}/*.jsonl` for their files")
        } else if written.contains('\\') {
            "write `/` between folders".to_owned()
        } else {
            in_folder(&from)
        };
        let problem = format!("no file matches `{}` in `{}`", rest.display(), shown(&from));
        let absent = self.absent(node.location, key, problem, hint);
        Err(ConfigError::Absent(Box::new(absent)))
    }
}

/// A folder for messages; that of relative paths has no name.
fn shown(folder: &Path) -> String {
    match folder.to_string_lossy() {
        name if name.is_empty() => ".".to_owned(),
        name => name.into_owned(),
    }
}

/// The contents of a folder, for a hint.
fn in_folder(folder: &Path) -> String {
    let entries = match fs::read_dir(shown(folder)) {
        Ok(entries) => entries,
        Err(error) => return format!("`{}` cannot be read: {error}", shown(folder)),
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    let rest = names.len().saturating_sub(MOST_NAMES);
    names.truncate(MOST_NAMES);
    match (names.is_empty(), rest) {
        (true, _) => "it is empty".to_owned(),
        (false, 0) => format!("it has {}", names.join(", ")),
        (false, rest) => format!("it has {} and {rest} more", names.join(", ")),
    }
}
