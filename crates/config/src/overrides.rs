//! `--set KEY=VALUE`: one value of the tree, by its dotted path.
//!
//! A key that does not exist is not found here: it lands in the tree, and deserialization refuses
//! it with the keys that do exist. Names of datasets, adapters and sweeps must be there
//! already.

use crate::{
    ConfigError,
    place::{Location, Source},
    suggest::Candidates,
    tree::{Node, Value, read_fragment},
};

/// Applies every override of the source to the tree, in order.
///
/// # Errors
///
/// [`ConfigError::Override`] or [`ConfigError::UnknownName`] for the first that cannot be.
pub(crate) fn apply(tree: &mut Node, source: &Source<'_>) -> Result<(), ConfigError> {
    for (index, text) in source.overrides.iter().enumerate() {
        let problem = |problem: String| ConfigError::Override {
            text: text.clone(),
            problem,
        };
        let (path, value) = text
            .split_once('=')
            .ok_or_else(|| problem("expected KEY=VALUE".to_owned()))?;
        let location = Location::Set(index);
        let value = read_fragment(value, location)
            .map_err(|error| problem(format!("the value is not valid YAML: {error}")))?;
        let steps = Steps {
            path: path.trim(),
            source,
            location,
        };
        let (parent, key) = steps.walk(tree).map_err(|error| error.into_config(text))?;
        if !parent.set(key, value) {
            return Err(problem(format!(
                "`{path}` leads into {}",
                parent.describe()
            )));
        }
    }
    Ok(())
}

struct Steps<'a> {
    path: &'a str,
    source: &'a Source<'a>,
    location: Location,
}

enum StepError {
    Problem(String),
    Config(ConfigError),
}

impl StepError {
    fn into_config(self, text: &str) -> ConfigError {
        match self {
            Self::Problem(problem) => ConfigError::Override {
                text: text.to_owned(),
                problem,
            },
            Self::Config(error) => error,
        }
    }
}

impl<'a> Steps<'a> {
    /// The mapping that holds the last key of the path, made where it is absent, and that key.
    fn walk<'t>(&self, tree: &'t mut Node) -> Result<(&'t mut Node, &'a str), StepError> {
        let (first, rest) = self.path.split_once('.').unwrap_or((self.path, ""));
        let (node, rest) = match first {
            "adapters" if !rest.is_empty() => self.item(tree, ("adapters", "adapter"), rest)?,
            "sweep" if !rest.is_empty() => self.item(tree, ("sweep", "sweep"), rest)?,
            "datasets" if !rest.is_empty() => self.dataset(tree, rest)?,
            _ => (tree, self.path),
        };
        // A grid's keys are whole paths.
        let setting = rest.strip_prefix("grid.").filter(|_| first == "sweep");
        let split = setting.map(|setting| ("grid", setting));
        let (parents, key) = match split.or_else(|| rest.rsplit_once('.')) {
            Some((parents, key)) => (parents.split('.').collect(), key),
            None => (Vec::new(), rest),
        };
        if key.is_empty() || parents.iter().any(|step| step.is_empty()) {
            return Err(StepError::Problem("the key has an empty part".to_owned()));
        }
        let mut node = node;
        for step in parents {
            if node.get(step).is_none() {
                let empty = Node::new(Value::Mapping(Vec::new())).at(self.location);
                if !node.set(step, empty) {
                    break;
                }
            }
            node = match node.get_mut(step) {
                Some(node) => node,
                None => return Err(StepError::Problem(format!("`{step}` leads nowhere"))),
            };
        }
        Ok((node, key))
    }

    /// The item of a list of named mappings that the path begins with, by name or by index.
    fn item<'t>(
        &self,
        tree: &'t mut Node,
        (key, what): (&str, &'static str),
        rest: &'a str,
    ) -> Result<(&'t mut Node, &'a str), StepError> {
        let items = tree.get_mut(key).map(Node::items_mut).unwrap_or_default();
        let names: Vec<String> = items
            .iter()
            .map(|item| {
                item.get("name")
                    .and_then(Node::text)
                    .unwrap_or_default()
                    .to_owned()
            })
            .collect();
        let (first, after) = rest.split_once('.').unwrap_or((rest, ""));
        let found = match longest_prefix(rest, names.iter().map(String::as_str)) {
            Some((name, after)) => names
                .iter()
                .position(|other| other == name)
                .zip(Some(after)),
            None => first.parse().ok().zip(Some(after)),
        };
        if let Some((index, after)) = found
            && let Some(item) = items.get_mut::<usize>(index)
        {
            return Ok((item, after));
        }
        Err(self.unknown(what, key, first, names))
    }

    fn dataset<'t>(
        &self,
        tree: &'t mut Node,
        rest: &'a str,
    ) -> Result<(&'t mut Node, &'a str), StepError> {
        let keys = tree.get("datasets").map(Node::keys).unwrap_or_default();
        let names: Vec<String> = keys.into_iter().map(str::to_owned).collect();
        if let Some((name, after)) = longest_prefix(rest, names.iter().map(String::as_str))
            && let Some(node) = tree.get_mut("datasets").and_then(|node| node.get_mut(name))
        {
            return Ok((node, after));
        }
        let first = rest.split('.').next().unwrap_or(rest);
        Err(self.unknown("dataset", "datasets", first, names))
    }

    fn unknown(&self, what: &'static str, key: &str, name: &str, valid: Vec<String>) -> StepError {
        StepError::Config(ConfigError::UnknownName {
            place: self.source.place(self.location),
            key: key.to_owned(),
            what,
            name: name.to_owned(),
            valid: Candidates::of(name, valid.iter().map(String::as_str)),
        })
    }
}

/// The longest name that the path starts with, since names may have dots in them, and what follows.
fn longest_prefix<'n, 'p>(
    path: &'p str,
    names: impl Iterator<Item = &'n str>,
) -> Option<(&'n str, &'p str)> {
    names
        .filter_map(|name| {
            let after = path.strip_prefix(name)?;
            if name.is_empty() {
                return None;
            }
            after.strip_prefix('.').map(|after| (name, after))
        })
        .max_by_key(|(name, _)| name.len())
}
