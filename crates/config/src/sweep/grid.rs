use super::paths::{SHARED, candidates, settable};
use crate::{
    ConfigError, LoraSettings, ObjectiveSettings, TrainSettings,
    place::{Location, Source},
    target_module::canonical,
    tree::{Key, Node, Value},
};
use serde::Deserialize;

/// Most points of all grids of a run: more are probably a mistake, and their resolved configuration
/// would be too long for the YAML parser.
pub(super) const MOST_POINTS: usize = 1024;

/// One setting of a grid and its values, in the order of the file.
#[derive(Debug)]
pub(super) struct Axis {
    /// Dotted path of the setting in an adapter.
    pub(super) path: String,
    pub(super) values: Vec<Node>,
}

/// Rewrites every grid so that each of its keys is a whole dotted path, as overrides expect:
/// `{train: {learning_rate: []}}` becomes `{train.learning_rate: []}`.
pub(crate) fn flatten_grids(tree: &mut Node) {
    let Some(sweeps) = tree.get_mut("sweep") else {
        return;
    };
    for sweep in sweeps.items_mut() {
        if let Some(grid) = sweep.get_mut("grid")
            && let Value::Mapping(entries) = &mut grid.value
        {
            let mut flat = Vec::new();
            flatten(std::mem::take(entries), "", &mut flat);
            *entries = flat;
        }
    }
}

fn flatten(entries: Vec<(Key, Node)>, parent: &str, flat: &mut Vec<(Key, Node)>) {
    for (mut key, node) in entries {
        if !parent.is_empty() {
            key.name = format!("{parent}.{}", key.name);
        }
        match node.value {
            Value::Mapping(inner) if !inner.is_empty() => flatten(inner, &key.name, flat),
            _ => flat.push((key, node)),
        }
    }
}

/// The settings of a point that the grid sets.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PointFile {
    lora: Option<LoraSettings>,
    #[expect(dead_code, reason = "only to check that it can be read")]
    objective: Option<ObjectiveSettings>,
    #[expect(dead_code, reason = "only to check that it can be read")]
    train: Option<TrainSettings>,
}

/// Reads a grid.
pub(super) struct GridReader<'a> {
    /// Path of the grid's key, such as `sweep[0].grid`.
    pub(super) key: &'a str,
    pub(super) source: &'a Source<'a>,
}

impl GridReader<'_> {
    /// The axes of a flat grid.
    ///
    /// # Errors
    /// A setting that is unknown, must not differ or is written twice; a value of the wrong type or
    /// written twice; no values.
    pub(super) fn axes(&self, grid: &Node) -> Result<Vec<Axis>, ConfigError> {
        let Value::Mapping(entries) = &grid.value else {
            let found = grid.describe();
            let problem = format!("expected a mapping of settings to lists, found {found}");
            return Err(self.source.invalid(grid.location, self.key, problem));
        };
        if entries.is_empty() {
            let problem = "must name at least one setting, such as lora.r";
            return Err(self.source.invalid(grid.location, self.key, problem));
        }
        let known = settable();
        let mut axes: Vec<Axis> = Vec::new();
        for (key, node) in entries {
            let path = &key.name;
            if SHARED.contains(&path.as_str()) {
                let problem = "cannot differ within a sweep, whose adapters train on the same rows in \
                               the same order and are compared by the same loss";
                return Err(self.invalid(key.location, path, problem));
            }
            if !known.contains(path) {
                return Err(ConfigError::UnknownKey {
                    place: self.source.place(key.location),
                    key: path.clone(),
                    parent: self.key.to_owned(),
                    valid: Box::new(candidates(path)),
                });
            }
            if axes.iter().any(|axis| axis.path == *path) {
                return Err(self.invalid(key.location, path, "appears twice"));
            }
            axes.push(Axis {
                path: path.clone(),
                values: self.values(path, node)?,
            });
        }
        Ok(axes)
    }

    fn values(&self, path: &str, node: &Node) -> Result<Vec<Node>, ConfigError> {
        let Value::Sequence(values) = &node.value else {
            let problem = format!("expected a list of values, found {}", node.describe());
            return Err(self.invalid(node.location, path, problem));
        };
        if values.is_empty() {
            return Err(self.invalid(node.location, path, "must have at least one value"));
        }
        if values.len() > MOST_POINTS {
            let count = values.len();
            let problem = format!("has {count} values; the limit is {MOST_POINTS}");
            return Err(self.invalid(node.location, path, problem));
        }
        let mut modules = Vec::new();
        for (index, value) in values.iter().enumerate() {
            let mut point = Node::mapping([]).at(value.location);
            set(&mut point, path, value.clone());
            let point: PointFile = point.deserialize(self.source, self.key)?;
            if let Some(lora) = point.lora.filter(|_| path == "lora.target_modules") {
                let targeted = canonical(&lora.target_modules);
                if let Some(same) = modules.iter().position(|before| *before == targeted) {
                    let problem = format!(
                        "has the same modules in values {} and {}",
                        same + 1,
                        index + 1
                    );
                    return Err(self.invalid(value.location, path, problem));
                }
                modules.push(targeted);
            }
            if values[..index].iter().any(|other| same(other, value)) {
                let problem = format!("{} appears twice", value.describe());
                return Err(self.invalid(value.location, path, problem));
            }
        }
        Ok(values.clone())
    }

    fn invalid(&self, at: Location, path: &str, problem: impl Into<String>) -> ConfigError {
        self.source
            .invalid(at, format!("{}.{path}", self.key), problem)
    }
}

/// Sets a dotted path, with the mappings that it needs. A value in the way stays and is reported
/// at its place.
pub(super) fn set(node: &mut Node, path: &str, value: Node) {
    let Some((first, rest)) = path.split_once('.') else {
        node.set(path, value);
        return;
    };
    if node.get(first).is_none() {
        node.set(first, Node::mapping([]).at(value.location));
    }
    if let Some(inner) = node.get_mut(first) {
        set(inner, rest, value);
    }
}

/// True if two values are equal; 1 equals 1.0.
#[expect(clippy::float_cmp, reason = "equal as written, not by a computation")]
fn same(a: &Node, b: &Node) -> bool {
    match (&a.value, &b.value) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Integer(a), Value::Integer(b)) => a == b,
        (Value::String(a), Value::String(b)) => a == b,
        (Value::Integer(whole), Value::Float(float))
        | (Value::Float(float), Value::Integer(whole)) => *float == *whole as f64,
        (Value::Float(a), Value::Float(b)) => a == b,
        (Value::Sequence(a), Value::Sequence(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        _ => false,
    }
}
