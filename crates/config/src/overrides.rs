//! `--set KEY=VALUE`: one value of the tree, by its dotted path.
//!
//! Unknown keys are set in the tree, and deserialization refuses them. A path that ends with the name of a dataset,
//! adapter or sweep replaces or adds it; a longer path must begin with an existing one.

use crate::{
    AdapterConfig, ConfigError,
    file::DatasetFile,
    merge::{NULLABLE, is_null},
    place::{Location, Source},
    sweep::SweepFile,
    tree::{Key, Node, Value, read_fragment},
};

/// Applies every override of the source to the tree, in order.
///
/// # Errors
/// [`ConfigError::Override`] or [`ConfigError::UnknownName`] for the first that cannot be applied.
pub(crate) fn apply(tree: &mut Node, source: &Source<'_>) -> Result<(), ConfigError> {
    for (index, text) in source.overrides.iter().enumerate() {
        let problem = |problem: String| ConfigError::Override {
            text: text.clone(),
            problem,
        };
        let (path, value) = text
            .split_once('=')
            .ok_or_else(|| problem("expected KEY=VALUE".to_owned()))?;
        if value.trim().is_empty() {
            return Err(problem(
                "the value is empty: write `null` to unset the key, or `\"\"` for an empty text"
                    .to_owned(),
            ));
        }
        let location = Location::Set(index);
        let value = read_fragment(value, location)
            .map_err(|error| problem(format!("the value cannot be read: {error}")))?;
        let steps = Steps {
            path: path.trim(),
            text,
            source,
            location,
        };
        if let Some((key, name)) = steps.entry(tree)? {
            steps.put(tree, key, name, value)?;
            continue;
        }
        let (parent, key) = steps.walk(tree)?;
        if !parent.set(key, value) {
            return Err(problem(format!(
                "`{path}` cannot be set inside {}",
                parent.describe()
            )));
        }
    }
    Ok(())
}

/// Refuses an override of `defaults` or `seed` that has no effect because every adapter, those of grids
/// included, sets the same key; and one of any setting of adapters where there are none.
///
/// # Errors
/// [`ConfigError::Override`] for the first of them.
pub(crate) fn refuse_without_effect(tree: &Node, source: &Source<'_>) -> Result<(), ConfigError> {
    let (adapters, defaults) = (tree.list("adapters"), tree.get("defaults"));
    for (index, text) in source.overrides.iter().enumerate() {
        let problem = |problem: String| {
            let text = text.clone();
            Err(ConfigError::Override { text, problem })
        };
        let path = text.split_once('=').map_or("", |(path, _)| path.trim());
        let section = path.split('.').next().unwrap_or_default();
        if adapters.is_empty() && OF_ADAPTERS.contains(&section) {
            return problem(
                "it has no effect without adapters: set it in the configuration that you submit"
                    .to_owned(),
            );
        }
        let fields = match (section, defaults) {
            ("defaults", Some(defaults)) => leaves(defaults, Location::Set(index)),
            // It also chooses validation rows.
            ("seed", _) if !tree.get("datasets").is_some_and(holds_rows_out) => {
                if defaults.is_some_and(|defaults| has(defaults, "seed")) {
                    return problem(
                        "it has no effect, since `defaults` sets `seed`: set `defaults.seed`"
                            .to_owned(),
                    );
                }
                vec!["seed".to_owned()]
            }
            _ => continue,
        };
        for field in fields {
            if adapters.iter().all(|adapter| has(adapter, &field)) {
                return problem(format!(
                    "it has no effect, since every adapter sets `{field}`: set \
                     `adapters.NAME.{field}`"
                ));
            }
        }
    }
    Ok(())
}

/// True if the key at a dotted path has a value that a default does not replace.
fn has(node: &Node, path: &str) -> bool {
    let key = path.rsplit('.').next().unwrap_or_default();
    let found = node.find(path);
    found.is_some_and(|found| !is_null(found) || NULLABLE.contains(&key))
}

/// Keys that affect adapters only.
const OF_ADAPTERS: [&str; 4] = ["datasets", "defaults", "seed", "sweep"];

/// True if a dataset holds out a fraction of its rows for validation.
fn holds_rows_out(datasets: &Node) -> bool {
    let Value::Mapping(datasets) = &datasets.value else {
        return false;
    };
    let mut validation = datasets
        .iter()
        .map(|(_, dataset)| dataset.get("validation"));
    validation.any(|node| match node.map(|node| &node.value) {
        Some(Value::Float(fraction)) => *fraction > 0.0,
        _ => false,
    })
}

/// Paths of the values below a node that were written at `from`.
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
    /// The complete override.
    text: &'a str,
    source: &'a Source<'a>,
    location: Location,
}

impl<'a> Steps<'a> {
    fn problem(&self, problem: String) -> ConfigError {
        ConfigError::Override {
            text: self.text.to_owned(),
            problem,
        }
    }

    /// The key and the name of the dataset, adapter or sweep that the path ends with, if it does.
    fn entry(&self, tree: &Node) -> Result<Option<(&'a str, &'a str)>, ConfigError> {
        let Some((key, name)) = self.path.split_once('.') else {
            return Ok(None);
        };
        if !matches!(key, "adapters" | "sweep" | "datasets") || name.is_empty() {
            return Ok(None);
        }
        let names = names(tree.get(key));
        let Some(whole) = names.iter().position(|known| known == name) else {
            return Ok((!name.contains('.')).then_some((key, name)));
        };
        let (kind, keys) = (kind(key), keys(key));
        if let Some((index, rest)) = longest_prefix(name, &names, &keys)
            && is_key(rest, &keys)
        {
            let way_out = match key {
                "datasets" => "rename one of the two".to_owned(),
                _ => format!("write `{key}.{whole}` or `{key}.{index}.{rest}`"),
            };
            let owner = &names[index];
            return Err(self.problem(format!(
                "it is ambiguous, {kind} `{name}` or `{rest}` of {kind} `{owner}`: {way_out}"
            )));
        }
        Ok(Some((key, name)))
    }

    /// Replaces or adds a whole dataset, adapter or sweep.
    fn put(
        &self,
        tree: &mut Node,
        key: &str,
        name: &str,
        mut value: Node,
    ) -> Result<(), ConfigError> {
        let known = names(tree.get(key));
        let found = known.iter().position(|known| known == name);
        let found = found.or_else(|| {
            let index = name.parse().ok().filter(|_| key != "datasets");
            index.filter(|index| *index < known.len())
        });
        if matches!(value.value, Value::Null) {
            let problem = "it must be a mapping, not null: an override cannot remove an entry";
            return Err(self.problem(problem.to_owned()));
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
            (Some(Value::Mapping(entries)), found) if key == "datasets" => {
                if let Some(index) = found {
                    entries[index].1 = value;
                } else {
                    let (name, location) = (name.to_owned(), self.location);
                    entries.push((Key { name, location }, value));
                }
            }
            (Some(Value::Sequence(items)), found) => {
                let name = found.map_or(name, |index| &known[index]);
                match value.get("name").and_then(Node::text) {
                    Some(other) if other != name => {
                        let problem = format!("`name: {other}` contradicts `{name}`");
                        return Err(self.problem(problem));
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
                return Err(self.problem(format!("`{key}` is {found}")));
            }
        }
        Ok(())
    }

    /// The last key of the path and the mapping that holds it, which is created if it is absent.
    fn walk<'t>(&self, tree: &'t mut Node) -> Result<(&'t mut Node, &'a str), ConfigError> {
        let (first, rest) = self.path.split_once('.').unwrap_or((self.path, ""));
        let (mut node, rest) = match first {
            "adapters" | "sweep" | "datasets" if !rest.is_empty() => {
                self.item(tree, first, rest)?
            }
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
            return Err(self.problem("the key has an empty part".to_owned()));
        }
        for step in parents {
            let empty = || Node::mapping([]).at(self.location);
            if node.get(step).is_none() && !node.set(step, empty()) {
                break;
            }
            node = match node.get_mut(step) {
                Some(node) => node,
                None => return Err(self.problem(format!("`{step}` is not a mapping"))),
            };
        }
        Ok((node, key))
    }

    /// The dataset, or the item of a list of named mappings, that the path begins with: by name, or by
    /// its index in a list.
    fn item<'t>(
        &self,
        tree: &'t mut Node,
        key: &str,
        rest: &'a str,
    ) -> Result<(&'t mut Node, &'a str), ConfigError> {
        let names = names(tree.get(key));
        let (first, after) = rest.split_once('.').unwrap_or((rest, ""));
        let named = longest_prefix(rest, &names, &keys(key));
        let found = match tree.get_mut(key).map(|node| &mut node.value) {
            Some(Value::Mapping(entries)) if key == "datasets" => {
                named.and_then(|(index, after)| Some((&mut entries.get_mut(index)?.1, after)))
            }
            Some(Value::Sequence(items)) if key != "datasets" => named
                .or_else(|| first.parse().ok().zip(Some(after)))
                .and_then(|(index, after)| Some((items.get_mut(index)?, after))),
            _ => None,
        };
        found.ok_or_else(|| self.unknown(key, first, &names))
    }

    fn unknown(&self, key: &str, name: &str, valid: &[String]) -> ConfigError {
        let valid = valid.iter().map(String::as_str);
        self.source
            .unknown_name(self.location, key, kind(key), name, valid)
    }
}

/// The noun for a key's entries.
fn kind(key: &str) -> &'static str {
    match key {
        "adapters" => "adapter",
        "datasets" => "dataset",
        _ => "sweep",
    }
}

/// The keys of every dataset, adapter or sweep.
fn keys(key: &str) -> Vec<String> {
    let schema = match key {
        "adapters" => schemars::schema_for!(AdapterConfig),
        "datasets" => schemars::schema_for!(DatasetFile),
        _ => schemars::schema_for!(SweepFile),
    };
    let properties = schema.get("properties").and_then(|value| value.as_object());
    let keys = properties.into_iter().flat_map(|object| object.keys());
    keys.cloned().collect()
}

/// True if a path begins with one of `keys`.
fn is_key(path: &str, keys: &[String]) -> bool {
    let first = path.split('.').next().unwrap_or_default();
    keys.iter().any(|key| key == first)
}

/// Names of the entries of a mapping, or of a list of mappings; one without a name has an empty one.
fn names(entries: Option<&Node>) -> Vec<String> {
    let name = |item: &Node| {
        item.get("name")
            .and_then(Node::text)
            .unwrap_or_default()
            .to_owned()
    };
    match entries.map(|node| &node.value) {
        Some(Value::Mapping(entries)) => entries.iter().map(|(key, _)| key.name.clone()).collect(),
        Some(Value::Sequence(items)) => items.iter().map(name).collect(),
        _ => Vec::new(),
    }
}

/// The index of the longest name that the path starts with, since names may contain dots, and the rest of the path. A
/// name that is followed by one of `keys` has priority over a longer one: with the adapters `a` and `a.lora`, the
/// path `a.lora.r` belongs to the first.
fn longest_prefix<'p>(
    path: &'p str,
    names: &[String],
    keys: &[String],
) -> Option<(usize, &'p str)> {
    let after = |name: &String| path.strip_prefix(name)?.strip_prefix('.');
    let prefixes = names
        .iter()
        .enumerate()
        .filter(|(_, name)| !name.is_empty());
    prefixes
        .filter_map(|(index, name)| Some((index, after(name)?)))
        .min_by_key(|(_, after)| (!is_key(after, keys), after.len()))
}
