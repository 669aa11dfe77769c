use std::ops::Range;

use super::balance::explicit;
use crate::{PartitionError, PipelineError};

/// The decoder layers of one stage: all that it holds, and those of them that it runs for a group.
///
/// Groups take its ranges in turn, group `g` the one at `g` modulo their number. With a single range
/// it runs all its layers for every group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageLayers {
    /// Never empty.
    by_partition: Vec<Range<usize>>,
}

impl From<Range<usize>> for StageLayers {
    fn from(layers: Range<usize>) -> Self {
        Self {
            by_partition: vec![layers],
        }
    }
}

impl StageLayers {
    /// Ranges that groups take in turn; `None` if there is none, or one of them is empty.
    pub fn new(by_partition: Vec<Range<usize>>) -> Option<Self> {
        let some = !by_partition.is_empty();
        let whole = some && by_partition.iter().all(|layers| !layers.is_empty());
        whole.then_some(Self { by_partition })
    }

    /// All layers that the stage holds, from the first to the last that any group needs.
    pub fn held(&self) -> Range<usize> {
        let starts = self.by_partition.iter().map(|layers| layers.start);
        let ends = self.by_partition.iter().map(|layers| layers.end);
        starts.min().unwrap_or(0)..ends.max().unwrap_or(0)
    }

    /// The layers that the stage runs for a group.
    pub fn of_group(&self, group: usize) -> Range<usize> {
        self.by_partition[group % self.by_partition.len()].clone()
    }

    /// The ranges that groups take in turn.
    pub fn by_partition(&self) -> &[Range<usize>] {
        &self.by_partition
    }
}

/// The layers of every stage for every group: groups take the partitions in turn, group `g` the one at
/// `g` modulo their number.
///
/// Two stages may hold the same frozen layer, so partitions may differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partitions {
    /// By partition and stage; never empty, nor is any range.
    all: Vec<Vec<Range<usize>>>,
}

/// One partition for all groups.
impl From<Vec<Range<usize>>> for Partitions {
    fn from(partition: Vec<Range<usize>>) -> Self {
        Self {
            all: vec![partition],
        }
    }
}

impl Partitions {
    pub(crate) fn new(all: Vec<Vec<Range<usize>>>) -> Self {
        Self { all }
    }

    /// From the number of layers on each stage, by partition.
    ///
    /// # Errors
    /// [`PartitionError::None`] for no partition; otherwise if there are no stages or more than layers, or a
    /// partition names another number of stages, leaves a stage empty or does not add up to the layers.
    pub fn of_counts(
        counts: &[Vec<usize>],
        stages: usize,
        layers: usize,
    ) -> Result<Self, PartitionError> {
        if counts.is_empty() {
            return Err(PartitionError::None);
        }
        let ranges = |counts: &Vec<usize>| explicit(counts, stages, layers);
        let all = counts.iter().map(ranges).collect::<Result<_, _>>()?;
        Ok(Self { all })
    }

    /// From the layers of each stage.
    ///
    /// # Errors
    /// [`PipelineError::Gap`] if a partition does not begin with layer 0 or leaves layers out, and
    /// [`PipelineError::Turns`] if groups do not take as many turns on every stage.
    pub fn of_stages(stages: &[StageLayers]) -> Result<Self, PipelineError> {
        let turns = |stage: &StageLayers| stage.by_partition().len();
        let count = stages.first().map_or(1, turns);
        if stages.iter().any(|stage| turns(stage) != count) {
            let turns = stages.iter().map(turns).collect();
            return Err(PipelineError::Turns { turns });
        }
        let of_stages = |index| -> Vec<Range<usize>> {
            stages.iter().map(|stage| stage.of_group(index)).collect()
        };
        let all: Vec<_> = (0..count).map(of_stages).collect();
        let last = stages.last().map_or(0, |stage| stage.held().end);
        for layers in &all {
            let starts = layers.iter().map(|range| range.start).chain([last]);
            let ends = layers.iter().map(|range| range.end);
            if !starts.eq([0].into_iter().chain(ends)) {
                let layers = layers.clone();
                return Err(PipelineError::Gap { layers });
            }
        }
        Ok(Self { all })
    }

    /// The layers of each stage for a group.
    pub fn of_group(&self, group: usize) -> &[Range<usize>] {
        &self.all[self.turn(group)]
    }

    /// The index of a group's partition.
    pub(crate) fn turn(&self, group: usize) -> usize {
        group % self.all.len()
    }

    /// All partitions, in the order in which groups take them.
    pub fn all(&self) -> &[Vec<Range<usize>>] {
        &self.all
    }

    /// True if groups have different partitions.
    pub fn are_staggered(&self) -> bool {
        self.all.len() > 1
    }

    /// Number of layers that each stage runs, by partition.
    pub fn counts(&self) -> Vec<Vec<usize>> {
        let count = |layers: &Vec<Range<usize>>| layers.iter().map(Range::len).collect();
        self.all.iter().map(count).collect()
    }

    /// The layers of every stage.
    pub fn stages(&self) -> Vec<StageLayers> {
        let of_stage = |stage: usize| {
            let ranges = self.all.iter().map(|layers| layers[stage].clone());
            StageLayers {
                by_partition: ranges.collect(),
            }
        };
        (0..self.all[0].len()).map(of_stage).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Partitions, StageLayers};
    use crate::{PartitionError, PipelineError};

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

    fn stage(ranges: &[std::ops::Range<usize>]) -> StageLayers {
        StageLayers::new(ranges.to_vec()).unwrap()
    }

    #[test]
    fn stages_and_partitions_are_two_sides_of_one_table() {
        let partitions = Partitions::new(vec![vec![0..2, 2..4], vec![0..3, 3..4]]);
        let stages = [stage(&[0..2, 0..3]), stage(&[2..4, 3..4])];
        assert_eq!(partitions.stages(), stages);
        assert_eq!(Partitions::of_stages(&stages).unwrap(), partitions);
        assert_eq!(partitions.of_group(3), [0..3, 3..4]);
        assert_eq!(partitions.counts(), [[2, 2], [3, 1]]);
        assert!(partitions.are_staggered());
        let held: Vec<_> = partitions.stages().iter().map(StageLayers::held).collect();
        assert_eq!(held, [0..3, 2..4]);
    }

    #[test]
    fn counts_are_checked_by_partition() {
        let of_counts = |counts: &[Vec<usize>]| Partitions::of_counts(counts, 2, 4);
        let partitions = of_counts(&[vec![2, 2], vec![3, 1]]).unwrap();
        assert_eq!(partitions.all(), [[0..2, 2..4], [0..3, 3..4]]);
        assert_eq!(partitions.counts(), [[2, 2], [3, 1]]);
        assert_eq!(of_counts(&[]), Err(PartitionError::None));
        for (second, error) in [
            (
                vec![4],
                PartitionError::Stages {
                    counts: 1,
                    stages: 2,
                },
            ),
            (vec![4, 0], PartitionError::EmptyStage { stage: 1 }),
            (vec![3, 2], PartitionError::Sum { sum: 5, layers: 4 }),
        ] {
            assert_eq!(of_counts(&[vec![2, 2], second]), Err(error));
        }
    }

    #[test]
    fn every_partition_must_be_whole() {
        for second in [[0..3, 2..4], [0..2, 3..4], [1..2, 2..4], [0..2, 2..3]] {
            let stages = [
                stage(&[0..2, second[0].clone()]),
                stage(&[2..4, second[1].clone()]),
            ];
            let error = Partitions::of_stages(&stages).unwrap_err();
            let PipelineError::Gap { layers } = error else {
                panic!("{error}");
            };
            assert_eq!(layers, second);
        }
        let error = Partitions::of_stages(&[stage(&[0..2, 0..3]), (2..4).into()]).unwrap_err();
        assert!(matches!(error, PipelineError::Turns { turns } if turns == [2, 1]));
    }
}
