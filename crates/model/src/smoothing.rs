//! Cross-entropies with label smoothing, as in transformers' `LabelSmoother`.
//!
//! With the factor ε the loss of a target is `(1 - ε) · -log p + ε · mean(-log p)`, with the mean over the vocabulary. That
//! is the cross-entropy, and ε times the difference between the target's logit and the mean logit. The difference is
//! linear in the logits, and is added for the targets that have a factor alone: others keep their bits and their time.

use std::ops::Range;

use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};
use serde::{Deserialize, Serialize};

use crate::{head::joined, ops::cross_entropy};

/// Rows whose logits are copied at a time.
const ROWS: usize = 128;

/// Targets of one task with a factor above 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SmoothedTargets {
    /// The first of them; the others follow.
    pub first: usize,
    /// Their number.
    pub count: usize,
    /// Share of a target's probability that is spread over the vocabulary.
    pub factor: f64,
}

/// Rows of a chunk, few at a time, and their factor.
pub(crate) type SmoothedRows = Vec<(Range<usize>, f64)>;

/// The smoothed targets among those of a chunk, counted from its first.
pub(crate) fn in_chunk(smoothed: &[SmoothedTargets], chunk: &Range<usize>) -> SmoothedRows {
    let mut rows = Vec::new();
    for targets in smoothed {
        let first = targets.first.max(chunk.start);
        let end = (targets.first + targets.count).min(chunk.end);
        for start in (first..end).step_by(ROWS) {
            let part = start - chunk.start..end.min(start + ROWS) - chunk.start;
            rows.push((part, targets.factor));
        }
    }
    rows
}

/// Losses and the gradient of `Σ weight · loss` for logits, as [`cross_entropy`] has them without smoothed rows.
pub(crate) fn smoothed_cross_entropy(
    logits: Tensor<2>,
    ids: Tensor<1, Int>,
    weights: Tensor<1>,
    smoothed: &SmoothedRows,
) -> (Tensor<1>, Tensor<2>) {
    if smoothed.is_empty() {
        return cross_entropy(logits, ids, weights);
    }
    let [count, vocabulary] = logits.dims();
    let index = |rows: &Range<usize>| {
        let index = ids.clone().narrow(0, rows.start, rows.len());
        index.reshape([rows.len(), 1])
    };
    let differences = smoothed.iter().map(|(rows, factor)| {
        let logits = logits.clone().slice([rows.clone(), 0..vocabulary]);
        let logits = logits.cast(DType::F32);
        let own = logits.clone().gather(1, index(rows));
        (own - logits.mean_dim(1))
            .reshape([rows.len()])
            .mul_scalar(*factor)
    });
    let differences: Vec<Tensor<1>> = differences.collect();
    let (losses, mut gradient) = cross_entropy(logits, ids.clone(), weights.clone());
    let (mut all, mut end) = (Vec::new(), 0);
    for ((rows, factor), difference) in smoothed.iter().zip(differences) {
        if rows.start > end {
            all.push(losses.clone().narrow(0, end, rows.start - end));
        }
        all.push(losses.clone().narrow(0, rows.start, rows.len()) + difference);
        end = rows.end;
        let shares = weights.clone().narrow(0, rows.start, rows.len());
        let shares = shares.mul_scalar(*factor).reshape([rows.len(), 1]);
        let shares = shares.cast(gradient.dtype());
        let place = [rows.clone(), 0..vocabulary];
        let part = gradient.clone().slice(place.clone());
        let part = part - shares.clone().div_scalar(vocabulary as f64);
        let part = part.scatter(1, index(rows), shares, IndexingUpdateOp::Add);
        gradient = gradient.slice_assign(place, part);
    }
    if count > end {
        all.push(losses.narrow(0, end, count - end));
    }
    (joined(all, 0), gradient)
}

#[cfg(test)]
mod tests {
    use super::{SmoothedTargets, in_chunk};

    #[test]
    fn rows_of_a_chunk_are_counted_from_its_first() {
        let targets = |first, count, factor| SmoothedTargets {
            first,
            count,
            factor,
        };
        let smoothed = [targets(2, 3, 0.1), targets(9, 200, 0.2)];
        assert_eq!(in_chunk(&smoothed, &(0..2)), []);
        assert_eq!(in_chunk(&smoothed, &(3..10)), [(0..2, 0.1), (6..7, 0.2)]);
        let two = [(0..128, 0.2), (128..190, 0.2)];
        assert_eq!(in_chunk(&smoothed, &(19..400)), two);
    }
}
