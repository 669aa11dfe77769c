//! Layers over stages, against trying everything.

use std::ops::Range;

use loraloom_pipeline::{PartitionError, Partitions, partition};
use proptest::{collection::vec, prelude::*};

/// Whole numbers, so that sums are exact in any order.
fn costs() -> impl Strategy<Value = Vec<f64>> {
    vec((0..20u8).prop_map(f64::from), 1..10)
}

fn stage_costs(ranges: &[Range<usize>], layers: &[f64], embedding: f64, head: f64) -> Vec<f64> {
    let mut costs: Vec<f64> = ranges
        .iter()
        .map(|range| layers[range.clone()].iter().sum())
        .collect();
    costs[0] += embedding;
    *costs.last_mut().expect("a stage") += head;
    costs
}

fn all_partitions(start: usize, layers: usize, stages: usize) -> Vec<Vec<Range<usize>>> {
    if stages == 1 {
        return vec![std::iter::once(start..layers).collect()];
    }
    (start + 1..=layers - (stages - 1))
        .flat_map(|end| {
            let mut rest = all_partitions(end, layers, stages - 1);
            for ranges in &mut rest {
                ranges.insert(0, start..end);
            }
            rest
        })
        .collect()
}

fn largest(costs: &[f64]) -> f64 {
    costs.iter().copied().fold(0.0, f64::max)
}

fn squares(costs: &[f64]) -> f64 {
    costs.iter().map(|cost| cost * cost).sum()
}

proptest! {
    #[test]
    fn no_partition_is_better(
        layers in costs(),
        embedding in (0..30u8).prop_map(f64::from),
        head in (0..30u8).prop_map(f64::from),
        stages in any::<prop::sample::Index>(),
    ) {
        let stages = stages.index(layers.len()) + 1;
        let found = partition(&layers, embedding, head, stages).unwrap();
        let all = all_partitions(0, layers.len(), stages);
        prop_assert!(all.contains(&found), "{:?}", found);
        let found = stage_costs(&found, &layers, embedding, head);
        let others: Vec<Vec<f64>> = all
            .iter()
            .map(|ranges| stage_costs(ranges, &layers, embedding, head))
            .collect();
        let least = others.iter().map(|costs| largest(costs)).fold(f64::INFINITY, f64::min);
        // Sums of whole numbers: exact.
        prop_assert!(largest(&found) <= least);
        let most_even = others
            .iter()
            .filter(|costs| largest(costs) <= least)
            .map(|costs| squares(costs))
            .fold(f64::INFINITY, f64::min);
        prop_assert!((squares(&found) - most_even).abs() <= 1e-9 * most_even);
    }
}

#[test]
fn equal_layers_are_spread_evenly() {
    let ranges = partition(&[1.0; 8], 0.0, 0.0, 3).unwrap();
    let mut counts: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
    counts.sort_unstable();
    assert_eq!(counts, [2, 3, 3]);
}

#[test]
fn a_costly_head_leaves_the_last_stage_fewer_layers() {
    let ranges = partition(&[1.0; 22], 0.0, 4.0, 2).unwrap();
    assert_eq!(ranges, [0..13, 13..22]);
    let ranges = partition(&[1.0; 22], 4.0, 0.0, 2).unwrap();
    assert_eq!(ranges, [0..9, 9..22]);
}

/// The most even stages, 6, 2 and 3, are not those with the least largest cost.
#[test]
fn the_largest_cost_comes_before_evenness() {
    let ranges = partition(&[1.0, 5.0, 2.0, 3.0], 0.0, 0.0, 3).unwrap();
    assert_eq!(ranges, [0..1, 1..2, 2..4]);
}

#[test]
fn explicit_counts_are_taken() {
    let partitions = Partitions::of_counts(&[vec![1, 4, 2]], 3, 7).unwrap();
    assert_eq!(partitions.of_group(0), [0..1, 1..5, 5..7]);
}

#[test]
fn what_cannot_be_is_refused_with_its_numbers() {
    let refusal = |layers: &[f64], stages| partition(layers, 0.0, 0.0, stages).unwrap_err();
    let refused_counts =
        |counts: &[usize]| Partitions::of_counts(&[counts.to_vec()], 2, 4).unwrap_err();
    let too_many = Partitions::of_counts(&[vec![1; 5]], 5, 4);
    assert_eq!(
        too_many,
        Err(PartitionError::TooManyStages {
            stages: 5,
            layers: 4
        })
    );
    let layers = [1.0; 4];
    assert_eq!(refusal(&layers, 0), PartitionError::NoStage { layers: 4 });
    assert_eq!(
        refusal(&layers, 5).to_string(),
        "5 stages for 4 layers: every stage needs a layer"
    );
    assert_eq!(
        refused_counts(&[1, 2, 1]).to_string(),
        "balance names 3 stages, there are 2"
    );
    assert_eq!(
        refused_counts(&[2, 3]).to_string(),
        "balance adds up to 5 layers, the backbone has 4"
    );
    assert_eq!(
        refused_counts(&[4, 0]),
        PartitionError::EmptyStage { stage: 1 }
    );
    assert_eq!(
        refusal(&[1.0, f64::INFINITY], 2).to_string(),
        "layer 1 cannot cost inf"
    );
    let head = partition(&layers, 0.0, -1.0, 2).unwrap_err();
    assert_eq!(head.to_string(), "the head cannot cost -1");
}
