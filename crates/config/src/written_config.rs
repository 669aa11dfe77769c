use crate::{
    ConfigError,
    place::{Location, Source},
    sweep::Expansion,
    tree::Node,
};

/// A configuration as it is written, for errors that name the place of a setting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WrittenConfig<'a> {
    pub(crate) tree: &'a Node,
    pub(crate) source: &'a Source<'a>,
    pub(crate) expansion: &'a Expansion,
}

impl WrittenConfig<'_> {
    /// The error for the value of a key.
    pub(crate) fn invalid(&self, key: &str, problem: impl Into<String>) -> ConfigError {
        self.source.invalid(self.tree.locate(key), key, problem)
    }

    /// The error for one item of a list.
    pub(crate) fn invalid_item(
        &self,
        list: &str,
        index: usize,
        problem: impl Into<String>,
    ) -> ConfigError {
        let node = self.tree.find(list).unwrap_or(self.tree);
        let location = node.items().get(index).unwrap_or(node).location;
        let key = format!("{list}[{index}]");
        self.source.invalid(location, key, problem)
    }

    /// The place of an adapter's field and the path of the key that sets it.
    pub(crate) fn of_adapter(&self, adapter: usize, field: &str) -> (Location, String) {
        self.expansion.locate(self.tree, adapter, field)
    }
}
