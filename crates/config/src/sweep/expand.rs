//! Expands grids to adapters in the tree, so that a point gets defaults, checks and places as any other adapter.

use super::{
    SweepFile,
    expansion::{Expansion, Point},
    grid::{Axis, GridReader, MOST_POINTS, set},
    point_name::point_name,
};
use crate::{
    ConfigError,
    merge::is_null,
    place::Source,
    tree::{Node, Value},
};

/// Appends the points of every sweep to the adapters of the tree.
///
/// # Errors
/// A sweep of the wrong form; a base that does not exist; a grid without points or with too many; a
/// setting that a grid cannot have.
pub(crate) fn expand(tree: &mut Node, source: &Source<'_>) -> Result<Expansion, ConfigError> {
    let written = tree.list("adapters").to_vec();
    let mut of_adapters: Vec<Option<Point>> = written.iter().map(|_| None).collect();
    let mut points = Vec::new();
    if let Some(sweeps) = tree.get("sweep") {
        let files: Option<Vec<SweepFile>> = sweeps.deserialize(source, "sweep")?;
        let files = files.unwrap_or_default();
        for (sweep, (file, node)) in files.iter().zip(sweeps.items()).enumerate() {
            let reader = SweepReader {
                sweep,
                node,
                written: &written,
                taken: points.len(),
                source,
            };
            let base = reader.base(file)?;
            let axes = reader.axes(file)?;
            reader.refuse_kept_shapes(base, &axes)?;
            for values in combinations(&axes) {
                of_adapters.push(Some(Point {
                    sweep,
                    base,
                    paths: axes.iter().map(|axis| axis.path.clone()).collect(),
                }));
                points.push(reader.point(file, base, &axes, &values));
            }
        }
    }
    if !points.is_empty() {
        append(tree, points);
    }
    Ok(Expansion {
        points: of_adapters,
    })
}

/// Adds the points to the list of adapters, or creates it. Another value stays and is reported later.
fn append(tree: &mut Node, points: Vec<Node>) {
    if let Some(adapters) = tree.get_mut("adapters") {
        match &mut adapters.value {
            Value::Sequence(items) => items.extend(points),
            Value::Null => adapters.value = Value::Sequence(points),
            _ => {}
        }
    } else {
        tree.set("adapters", Node::new(Value::Sequence(points)));
    }
}

/// Every choice of one value of each axis; the last axis changes fastest. None without axes.
fn combinations(axes: &[Axis]) -> Vec<Vec<&Node>> {
    if axes.is_empty() {
        return Vec::new();
    }
    axes.iter().fold(vec![Vec::new()], |chosen, axis| {
        let with = |values: &Vec<_>, value| [values.as_slice(), &[value]].concat();
        let longer = |values| axis.values.iter().map(move |value| with(values, value));
        chosen.iter().flat_map(longer).collect()
    })
}

/// One sweep that is being read.
struct SweepReader<'a> {
    sweep: usize,
    node: &'a Node,
    /// The adapters of the file.
    written: &'a [Node],
    /// Points of the sweeps before it; at most [`MOST_POINTS`].
    taken: usize,
    source: &'a Source<'a>,
}

/// Settings that an adapter takes from the one that it begins from.
const SHAPE: [&str; 6] = [
    "lora.r",
    "lora.lora_alpha",
    "lora.use_rslora",
    "lora.use_dora",
    "lora.target_modules",
    "lora.init_lora_weights",
];

impl<'a> SweepReader<'a> {
    fn key(&self, field: &str) -> String {
        format!("sweep[{}].{field}", self.sweep)
    }

    fn invalid(&self, field: &str, problem: impl Into<String>) -> ConfigError {
        self.source
            .invalid(self.node.locate(field), self.key(field), problem)
    }

    /// Index of the base.
    fn base(&self, file: &SweepFile) -> Result<Option<usize>, ConfigError> {
        let Some(name) = &file.base else {
            return Ok(None);
        };
        let name_of = |node: &'a Node| node.get("name")?.text();
        let found = self
            .written
            .iter()
            .position(|node| name_of(node) == Some(name));
        if found.is_none() {
            let (location, names) = (self.node.locate("base"), self.written.iter());
            let names = names.filter_map(name_of);
            return Err(self.source.unknown_name(
                location,
                self.key("base"),
                "adapter",
                name,
                names,
            ));
        }
        Ok(found)
    }

    /// The axes of the grid; none if the sweep names its adapters.
    fn axes(&self, file: &SweepFile) -> Result<Vec<Axis>, ConfigError> {
        if file.adapters.is_some() {
            for (field, is_written) in
                [("grid", file.grid.is_some()), ("base", file.base.is_some())]
            {
                if is_written {
                    return Err(self.invalid(field, "cannot be combined with `adapters`"));
                }
            }
            return Ok(Vec::new());
        }
        let Some(grid) = self.node.get("grid").filter(|_| file.grid.is_some()) else {
            return Err(self.source.missing(self.node.location, self.key("grid")));
        };
        let key = self.key("grid");
        let reader = GridReader {
            key: &key,
            source: self.source,
        };
        let axes = reader.axes(grid)?;
        let sizes = axes.iter().map(|axis| axis.values.len());
        let points = sizes.fold(1_usize, usize::saturating_mul);
        if points > MOST_POINTS - self.taken {
            let problem = format!(
                "has {points} points, and earlier grids have {}: the limit of a run is {MOST_POINTS}",
                self.taken
            );
            return Err(self.invalid("grid", problem));
        }
        Ok(axes)
    }

    /// An adapter with `init_from` keeps its shape, so points of these axes would differ only in their names.
    fn refuse_kept_shapes(&self, base: Option<usize>, axes: &[Axis]) -> Result<(), ConfigError> {
        let base = base.and_then(|base| self.written[base].get("init_from"));
        let begins = base.is_some_and(|path| !is_null(path));
        let is_kept = |axis: &&Axis| {
            let of_start = ["lora.eva_config.", "lora.slora_config."];
            SHAPE.contains(&axis.path.as_str())
                || of_start.iter().any(|prefix| axis.path.starts_with(prefix))
        };
        match axes.iter().find(is_kept) {
            Some(axis) if begins => {
                let problem = format!(
                    "{} cannot differ between adapters with `init_from`, which keep its shape",
                    axis.path
                );
                Err(self.invalid("grid", problem))
            }
            _ => Ok(()),
        }
    }

    /// The adapter at one point. Settings of the grid have the places of the grid, the others those of
    /// the base.
    fn point(
        &self,
        file: &SweepFile,
        base: Option<usize>,
        axes: &[Axis],
        values: &[&Node],
    ) -> Node {
        let settings = axes
            .iter()
            .map(|axis| axis.path.as_str())
            .zip(values.iter().copied());
        let location = self.node.locate("name");
        let base = base.and_then(|base| self.written.get(base)).cloned();
        let mut adapter = base.unwrap_or_else(|| Node::mapping([])).at(location);
        let name = point_name(&file.name, settings.clone());
        adapter.set("name", Node::string(name).at(location));
        for (path, value) in settings {
            set(&mut adapter, path, value.clone());
        }
        adapter
    }
}
