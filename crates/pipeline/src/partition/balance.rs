use std::ops::Range;

use thiserror::Error;

use crate::simulate::TimelineError;

/// The reason why layers cannot be spread over stages.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PartitionError {
    /// There is no stage.
    #[error("no stage for {layers} layers")]
    NoStage {
        /// Layers of the backbone.
        layers: usize,
    },
    /// There is no partition for groups to take.
    #[error("balance names no partition")]
    None,
    /// A stage would be empty.
    #[error("{stages} stages for {layers} layers: every stage needs a layer")]
    TooManyStages {
        /// Stages asked for.
        stages: usize,
        /// Layers of the backbone.
        layers: usize,
    },
    /// Explicit counts are for another number of stages.
    #[error("balance names {counts} stages, there are {stages}")]
    Stages {
        /// Counts given.
        counts: usize,
        /// Stages asked for.
        stages: usize,
    },
    /// An explicit count is zero.
    #[error("balance gives stage {stage} no layer")]
    EmptyStage {
        /// The stage.
        stage: usize,
    },
    /// Explicit counts do not add up.
    #[error("balance adds up to {sum} layers, the backbone has {layers}")]
    Sum {
        /// Sum of the counts.
        sum: usize,
        /// Layers of the backbone.
        layers: usize,
    },
    /// A cost is negative, infinite or not a number.
    #[error("{part} cannot cost {cost}")]
    Cost {
        /// The layer, the embedding or the head.
        part: String,
        /// The cost.
        cost: f64,
    },
    /// A partition cannot be timed.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
}

/// Spreads layers over stages: contiguous and in order, at least one a stage.
///
/// All costs are in the same unit, such as seconds. The first stage also bears the embedding's cost,
/// the last the head's. The largest cost of a stage is minimal, and among all partitions with that, this
/// is the most even one (with the least sum of squared costs).
///
/// # Errors
/// If there are no stages or more than layers, or a cost is negative or not finite.
pub fn partition(
    layer_costs: &[f64],
    embedding_cost: f64,
    head_cost: f64,
    stages: usize,
) -> Result<Vec<Range<usize>>, PartitionError> {
    let layers = layer_costs.len();
    can_be_spread(layers, stages)?;
    let ends = [
        ("the embedding".to_owned(), embedding_cost),
        ("the head".to_owned(), head_cost),
    ];
    let parts = layer_costs.iter().enumerate();
    let parts = parts.map(|(layer, &cost)| (format!("layer {layer}"), cost));
    for (part, cost) in parts.chain(ends) {
        if !(cost.is_finite() && cost >= 0.0) {
            return Err(PartitionError::Cost { part, cost });
        }
    }
    let mut sums = vec![0.0; layers + 1];
    for (layer, cost) in layer_costs.iter().enumerate() {
        sums[layer + 1] = sums[layer] + cost;
    }
    let stage_cost = |range: Range<usize>| {
        let mut cost = sums[range.end] - sums[range.start];
        if range.start == 0 {
            cost += embedding_cost;
        }
        if range.end == layers {
            cost += head_cost;
        }
        cost
    };
    let (largest, _) = best(layers, stages, &stage_cost, f64::max);
    let squared = |range: Range<usize>| {
        let cost = stage_cost(range);
        // The same sums of the same numbers as above, so the comparison is exact.
        if cost > largest {
            f64::INFINITY
        } else if largest > 0.0 {
            (cost / largest).powi(2)
        } else {
            0.0
        }
    };
    Ok(best(layers, stages, &squared, |left, right| left + right).1)
}

fn can_be_spread(layers: usize, stages: usize) -> Result<(), PartitionError> {
    match stages {
        0 => Err(PartitionError::NoStage { layers }),
        _ if stages > layers => Err(PartitionError::TooManyStages { stages, layers }),
        _ => Ok(()),
    }
}

/// Layers by the number on each stage.
pub(super) fn explicit(
    counts: &[usize],
    stages: usize,
    layers: usize,
) -> Result<Vec<Range<usize>>, PartitionError> {
    can_be_spread(layers, stages)?;
    if counts.len() != stages {
        let counts = counts.len();
        return Err(PartitionError::Stages { counts, stages });
    }
    if let Some(stage) = counts.iter().position(|&count| count == 0) {
        return Err(PartitionError::EmptyStage { stage });
    }
    let sum = counts.iter().copied().fold(0, usize::saturating_add);
    if sum != layers {
        return Err(PartitionError::Sum { sum, layers });
    }
    let mut end = 0;
    let range = |count| {
        end += count;
        end - count..end
    };
    Ok(counts.iter().map(range).collect())
}

/// The partition with the least joined cost of its stages, by dynamic programming over the end of the
/// first `stage` stages.
fn best(
    layers: usize,
    stages: usize,
    cost: &impl Fn(Range<usize>) -> f64,
    join: impl Fn(f64, f64) -> f64,
) -> (f64, Vec<Range<usize>>) {
    // By number of stages and by end: the least cost, and the start of the last stage.
    let mut rows = vec![vec![(f64::INFINITY, 0); layers + 1]];
    rows[0][0].0 = 0.0;
    for stage in 1..=stages {
        let before = &rows[stage - 1];
        let mut row = vec![(f64::INFINITY, stage - 1); layers + 1];
        for end in stage..=layers - (stages - stage) {
            for start in stage - 1..end {
                let joined = join(before[start].0, cost(start..end));
                if joined < row[end].0 {
                    row[end] = (joined, start);
                }
            }
        }
        rows.push(row);
    }
    let mut end = layers;
    let mut ranges = Vec::with_capacity(stages);
    for stage in (1..=stages).rev() {
        let start = rows[stage][end].1;
        ranges.push(start..end);
        end = start;
    }
    ranges.reverse();
    (rows[stages][layers].0, ranges)
}
