use std::ops::Range;

/// The decoder layers of one stage: those that it holds, and those of them that it runs for a group.
///
/// Groups take its ranges in turn, group `g` the one at `g` modulo their number. With a single range
/// it runs for every group all that it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageLayers {
    /// Never empty.
    pub(crate) by_partition: Vec<Range<usize>>,
}

impl From<Range<usize>> for StageLayers {
    fn from(layers: Range<usize>) -> Self {
        Self {
            by_partition: vec![layers],
        }
    }
}

impl StageLayers {
    /// These ranges in turn; `None` if there is none, or one of them is empty.
    pub fn new(by_partition: Vec<Range<usize>>) -> Option<Self> {
        let some = !by_partition.is_empty();
        let whole = some && by_partition.iter().all(|layers| !layers.is_empty());
        whole.then_some(Self { by_partition })
    }

    /// All layers that it holds, from the first to the last that any group needs.
    pub fn held(&self) -> Range<usize> {
        let ranges = self.by_partition.iter();
        let (start, end) = ranges.fold((usize::MAX, 0), |(start, end), layers| {
            (start.min(layers.start), end.max(layers.end))
        });
        start..end
    }

    /// The layers that it runs for a group.
    pub fn of_group(&self, group: usize) -> Range<usize> {
        self.by_partition[group % self.by_partition.len()].clone()
    }

    /// The ranges that groups take in turn.
    pub fn by_partition(&self) -> &[Range<usize>] {
        &self.by_partition
    }
}

#[cfg(test)]
mod tests {
    use super::StageLayers;

    #[test]
    fn a_stage_holds_what_any_group_needs() {
        let layers = StageLayers::new(vec![2..4, 1..3, 2..5]).unwrap();
        assert_eq!(layers.held(), 1..5);
        let of_groups: Vec<_> = (0..5).map(|group| layers.of_group(group)).collect();
        assert_eq!(of_groups, [2..4, 1..3, 2..5, 2..4, 1..3]);
        let one = StageLayers::from(3..7);
        assert_eq!((one.held(), one.of_group(9)), (3..7, 3..7));
    }

    #[test]
    fn every_group_needs_a_layer() {
        assert_eq!(StageLayers::new(Vec::new()), None);
        assert_eq!(StageLayers::new(vec![0..2, 2..2]), None);
    }
}
