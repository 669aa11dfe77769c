use crate::{place::Location, tree::Node};

/// Origins of the adapters of a run, in their order.
#[derive(Debug, Default)]
pub(crate) struct Expansion {
    /// The point that an adapter is, if it is one.
    pub(super) points: Vec<Option<Point>>,
}

/// A point of a grid.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) sweep: usize,
    pub(super) base: Option<usize>,
    /// The settings of the grid.
    pub(super) paths: Vec<String>,
}

impl Expansion {
    /// The place of an adapter's field, and the path of the key that sets it: the
    /// adapter itself, a grid, `defaults`, or the adapter as a whole if none sets it.
    pub(crate) fn locate(&self, tree: &Node, adapter: usize, field: &str) -> (Location, String) {
        let Some(Some(point)) = self.points.get(adapter) else {
            return locate_written(tree, adapter, field);
        };
        let sweep = point.sweep;
        let node = tree.list("adapters").get(adapter).unwrap_or(tree);
        if point.paths.iter().any(|path| path == field) {
            (node.locate(field), format!("sweep[{sweep}].grid.{field}"))
        } else if field == "name" {
            (node.location, format!("sweep[{sweep}].name"))
        } else if let Some(base) = point.base {
            locate_written(tree, base, field)
        } else {
            let key = format!("defaults.{field}");
            (tree.find(&key).unwrap_or(node).location, key)
        }
    }

    /// The adapter that this one is a point over, if it is one and names one.
    pub(super) fn base(&self, adapter: usize) -> Option<usize> {
        self.points.get(adapter)?.as_ref()?.base
    }

    /// The adapters that are points of this sweep, in the order of the grid.
    pub(super) fn points(&self, sweep: usize) -> impl Iterator<Item = usize> {
        let points = self.points.iter().enumerate();
        points
            .filter_map(move |(adapter, point)| (point.as_ref()?.sweep == sweep).then_some(adapter))
    }
}

fn locate_written(tree: &Node, index: usize, field: &str) -> (Location, String) {
    let adapter = tree.list("adapters").get(index);
    let default = format!("defaults.{field}");
    match (
        adapter.and_then(|node| node.find(field)),
        tree.find(&default),
    ) {
        (None, Some(node)) => (node.location, default),
        (own, _) => {
            let node = own.or(adapter).unwrap_or(tree);
            (node.location, format!("adapters[{index}].{field}"))
        }
    }
}
