/// Where an adapter is among the groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) group: usize,
    /// Slot within the group.
    pub(crate) slot: usize,
}
