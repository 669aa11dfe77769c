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
        let adapters = tree.get("adapters").map(Node::items).unwrap_or_default();
        let node = adapters.get(adapter).unwrap_or(tree);
        if point.paths.iter().any(|path| path == field) {
            let location = node.find(field).unwrap_or(node).location;
            (location, format!("sweep[{sweep}].grid.{field}"))
        } else if field == "name" {
            (node.location, format!("sweep[{sweep}].name"))
        } else if let Some(base) = point.base {
            locate_written(tree, base, field)
        } else {
            let written = tree.get("defaults").and_then(|node| node.find(field));
            let location = written.unwrap_or(node).location;
            (location, format!("defaults.{field}"))
        }
    }

    /// The adapters that are points of this sweep, in the order of the grid.
    pub(super) fn points(&self, sweep: usize) -> impl Iterator<Item = usize> {
        let points = self.points.iter().enumerate();
        points
            .filter_map(move |(adapter, point)| (point.as_ref()?.sweep == sweep).then_some(adapter))
    }
}

fn locate_written(tree: &Node, index: usize, field: &str) -> (Location, String) {
    let adapters = tree.get("adapters").map(Node::items).unwrap_or_default();
    let adapter = adapters.get(index);
    let written = |node: Option<&Node>| node.and_then(|node| node.find(field)).map(|n| n.location);
    let own = format!("adapters[{index}].{field}");
    if let Some(location) = written(adapter) {
        (location, own)
    } else if let Some(location) = written(tree.get("defaults")) {
        (location, format!("defaults.{field}"))
    } else {
        (adapter.unwrap_or(tree).location, own)
    }
}
