//! `--set KEY=VALUE`: one value of the tree, by its dotted path.
//!
//! A key that does not exist is not found here: it lands in the tree, and deserialization refuses
//! it with the keys that do exist. A path that ends with the name of a dataset, adapter or sweep
//! replaces it, adds it, or with `null` takes it out; a longer one must lead into one that is there.

use crate::{
    ConfigError,
    place::{Location, Source},
    suggest::Candidates,
    tree::{Key, Node, Value, read_fragment},
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
            .map_err(|error| problem(format!("the value cannot be read: {error}")))?;
        let steps = Steps {
            path: path.trim(),
            source,
            location,
        };
        if let Some((key, name)) = steps.entry(tree) {
            let put = steps.put(tree, key, name, value);
            put.map_err(|error| error.into_config(text))?;
            continue;
        }
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

/// Refuses an override of `defaults` that every adapter overrides: it would do nothing. The adapters of
/// grids are in the tree.
///
/// # Errors
///
/// [`ConfigError::Override`] for the first of them.
pub(crate) fn refuse_without_effect(tree: &Node, source: &Source<'_>) -> Result<(), ConfigError> {
    let adapters = tree.get("adapters").map(Node::items).unwrap_or_default();
    for (index, text) in source.overrides.iter().enumerate() {
        let path = text.split_once('=').map_or("", |(path, _)| path.trim());
        let Some(defaults) = tree
            .get("defaults")
            .filter(|_| path.starts_with("defaults"))
        else {
            continue;
        };
        for field in leaves(defaults, Location::Set(index)) {
            let mut own = adapters.iter().map(|adapter| adapter.find(&field));
            if !adapters.is_empty() && own.all(|own| own.is_some()) {
                return Err(ConfigError::Override {
                    text: text.clone(),
                    problem: format!(
                        "it does nothing, since every adapter has its own `{field}`: set \
                         `adapters.NAME.{field}`"
                    ),
                });
            }
        }
    }
    Ok(())
}

/// Paths of the values below a node that are from a place.
fn leaves(node: &Node, from: Location) -> Vec<String> {
    let Value::Mapping(entries) = &node.value else {
        return Vec::new();
    };
    let below = |(key, value): &(Key, Node)| match &value.value {
        Value::Mapping(inner) if !inner.is_empty() => {
            let inner = leaves(value, from).into_iter();
            inner.map(|path| format!("{}.{path}", key.name)).collect()
        }
        _ if value.location == from => vec![key.name.clone()],
        _ => Vec::new(),
    };
    entries.iter().flat_map(below).collect()
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
    /// The key and the name of the dataset, adapter or sweep that the path ends with, if it does.
    fn entry(&self, tree: &Node) -> Option<(&'static str, &'a str)> {
        let (first, name) = self.path.split_once('.')?;
        let mut keys = ["adapters", "sweep", "datasets"].into_iter();
        let key = keys.find(|key| *key == first)?;
        let is_whole = || names(tree.get(key)).iter().any(|known| known == name);
        (!name.is_empty() && (!name.contains('.') || is_whole())).then_some((key, name))
    }

    /// Replaces, adds or takes out a whole dataset, adapter or sweep.
    fn put(
        &self,
        tree: &mut Node,
        key: &'static str,
        name: &str,
        mut value: Node,
    ) -> Result<(), StepError> {
        let known = names(tree.get(key));
        let found = known.iter().position(|known| known == name);
        let found = found.or_else(|| {
            let index = name.parse().ok().filter(|_| key != "datasets");
            index.filter(|index| *index < known.len())
        });
        let is_out = matches!(value.value, Value::Null);
        if is_out && found.is_none() {
            let what = key.strip_suffix('s').unwrap_or(key);
            return Err(self.unknown(what, key, name, known));
        }
        if tree.get(key).is_none() {
            let empty = match key {
                "datasets" => Value::Mapping(Vec::new()),
                _ => Value::Sequence(Vec::new()),
            };
            tree.set(key, Node::new(empty).at(self.location));
        }
        let node = tree.get_mut(key).map(|node| &mut node.value);
        match (node, found) {
            (Some(Value::Mapping(entries)), Some(index)) if key == "datasets" && is_out => {
                entries.remove(index);
            }
            (Some(Value::Mapping(entries)), Some(index)) if key == "datasets" => {
                entries[index].1 = value;
            }
            (Some(Value::Mapping(entries)), None) if key == "datasets" => {
                let (name, location) = (name.to_owned(), self.location);
                entries.push((Key { name, location }, value));
            }
            (Some(Value::Sequence(items)), Some(index)) if is_out => {
                items.remove(index);
            }
            (Some(Value::Sequence(items)), found) => {
                let name = found.map_or(name, |index| &known[index]);
                match value.get("name").and_then(Node::text) {
                    Some(other) if other != name => {
                        let problem = format!("`{name}` and `name: {other}` are two names");
                        return Err(StepError::Problem(problem));
                    }
                    None if matches!(value.value, Value::Mapping(_)) => {
                        value.set("name", Node::string(name).at(self.location));
                    }
                    _ => {}
                }
                match found {
                    Some(index) => items[index] = value,
                    None => items.push(value),
                }
            }
            (node, _) => {
                let found =
                    node.map_or_else(String::new, |value| Node::new(value.clone()).describe());
                return Err(StepError::Problem(format!("`{key}` is {found}")));
            }
        }
        Ok(())
    }

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
        let names = names(tree.get(key));
        let items = tree.get_mut(key).map(Node::items_mut).unwrap_or_default();
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
        let names = names(tree.get("datasets"));
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

/// Names of the entries of a mapping, or of a list of mappings; one without a name has an empty one.
fn names(entries: Option<&Node>) -> Vec<String> {
    let Some(entries) = entries else {
        return Vec::new();
    };
    let name = |item: &Node| {
        item.get("name")
            .and_then(Node::text)
            .unwrap_or_default()
            .to_owned()
    };
    let keys = entries.keys().into_iter().map(str::to_owned);
    keys.chain(entries.items().iter().map(name)).collect()
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
