use crate::{place::Location, tree::Node};

/// Where each adapter of the run comes from, in their order.
#[derive(Debug, Default)]
pub(crate) struct Expansion {
    pub(super) origins: Vec<Origin>,
}

#[derive(Debug)]
pub(super) struct Origin {
    /// Its index among the adapters of the tree.
    pub(super) index: usize,
    pub(super) point: Option<Point>,
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
    /// Where the value of an adapter's field comes from, and the path of the key that sets it: the
    /// adapter itself, a grid, `defaults`, or the adapter as a whole if none sets it.
    pub(crate) fn locate(&self, tree: &Node, adapter: usize, field: &str) -> (Location, String) {
        let origin = self.origins.get(adapter);
        let index = origin.map_or(adapter, |origin| origin.index);
        let Some(point) = origin.and_then(|origin| origin.point.as_ref()) else {
            return locate_written(tree, index, field);
        };
        let sweep = point.sweep;
        let adapters = tree.get("adapters").map(Node::items).unwrap_or_default();
        let node = adapters.get(index).unwrap_or(tree);
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
        let of = move |origin: &Origin| origin.point.as_ref().is_some_and(|p| p.sweep == sweep);
        (0..self.origins.len()).filter(move |&index| of(&self.origins[index]))
    }

    /// The adapter that this one is a point over, if it is one and names one.
    pub(super) fn base(&self, adapter: usize) -> Option<usize> {
        self.origins.get(adapter)?.point.as_ref()?.base
    }

    /// Forgets an adapter that is no longer one of the run.
    pub(super) fn remove(&mut self, adapter: usize) {
        self.origins.remove(adapter);
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
