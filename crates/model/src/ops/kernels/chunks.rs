//! The sequences that attend side by side, and the queries that attend at a time.

use std::ops::Range;

use crate::AttentionShape;

/// Places are a multiple of this, or 16 or 32: whole tiles of products, and few different shapes.
const PLACES: usize = 64;
/// Sequences up to this length join longer ones for any padding, since a launch costs more.
pub(super) const SHORT: usize = 256;

/// Limits of the work at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Queries of a part, a multiple of [`PLACES`]. Keys end with the part's last query, so that small
    /// parts compute little more than the half of all scores that is seen.
    pub(super) queries: usize,
    /// Scores of a part.
    pub(super) scores: usize,
}

/// Sequences that attend side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Indices of the sequences, longest first.
    pub(super) sequences: Range<usize>,
    /// Places of each sequence.
    pub(super) places: usize,
    /// Queries of each part but the last, which may have fewer.
    pub(super) queries: usize,
    /// In the order of their queries.
    pub(super) parts: Vec<Part>,
}

/// Queries that attend together, and the keys that they see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
}

fn padded(length: usize) -> usize {
    if length < PLACES {
        length.next_power_of_two().max(16)
    } else {
        length.next_multiple_of(PLACES)
    }
}

/// Chunks of sequences of these lengths, longest first, within the limits; at least one sequence a chunk,
/// and [`PLACES`] queries a part or all of a shorter sequence.
///
/// Sequences go into one chunk as long as the padding is below half of the work. Parts begin at the same positions in
/// every chunk, and a row of scores has as many units for any padding ([`row_layout`](super::softmax::row_layout)):
/// without a window a sequence is summed in the same order in any chunk.
pub(super) fn chunks(lengths: &[usize], shape: &AttentionShape, limits: Limits) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut start = 0;
    while start < lengths.len() {
        let places = padded(lengths[start]);
        let of_query = shape.num_heads * places;
        let queries = limits.scores / of_query / PLACES * PLACES;
        let queries = queries.clamp(PLACES, limits.queries).min(places);
        let most = limits.scores / (of_query * queries);
        let alike = lengths[start..]
            .iter()
            .take_while(|&&length| places <= SHORT || 4 * padded(length) >= 3 * places);
        let end = start + alike.take(most.max(1)).count();
        let part = |start: usize| {
            let end = (start + queries).min(places);
            Part {
                queries: start..end,
                keys: shape.first_key(start) / PLACES * PLACES..end,
            }
        };
        chunks.push(Chunk {
            sequences: start..end,
            places,
            queries,
            parts: (0..places).step_by(queries).map(part).collect(),
        });
        start = end;
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sequences, ops::kernels::softmax::row_layout};

    const ANY: Limits = Limits {
        queries: 256,
        scores: usize::MAX,
    };

    fn shape(window: Option<usize>) -> AttentionShape {
        AttentionShape {
            sequences: Sequences::from_lengths([]),
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 8,
            window,
            score_scale: None,
            softcap: None,
        }
    }

    fn queries_of_parts(chunk: &Chunk) -> Vec<Range<usize>> {
        chunk
            .parts
            .iter()
            .map(|part| part.queries.clone())
            .collect()
    }

    #[test]
    fn sequences_of_one_length_are_one_chunk_as_far_as_the_limit_goes() {
        let limits = Limits {
            scores: 4 * 64 * 64 * 4,
            ..ANY
        };
        let found = chunks(&[60; 10], &shape(None), limits);
        let sequences: Vec<_> = found.into_iter().map(|chunk| chunk.sequences).collect();
        assert_eq!(sequences, [0..4, 4..8, 8..10]);
    }

    #[test]
    fn much_shorter_sequences_go_apart_unless_all_are_short() {
        let ends = |lengths: &[usize]| -> Vec<usize> {
            let found = chunks(lengths, &shape(None), ANY);
            found.iter().map(|chunk| chunk.sequences.end).collect()
        };
        assert_eq!(ends(&[1000, 760, 700, 100, 3]), [2, 3, 5]);
        assert_eq!(ends(&[256, 1, 1]), [3]);
        assert_eq!(ends(&[257, 200, 192]), [2, 3]);
        assert_eq!(ends(&[520, 513, 512, 385, 384]), [4, 5]);
        assert!(ends(&[]).is_empty());
    }

    #[test]
    fn places_are_few_sizes_that_hold_all_sequences() {
        let places = |length| chunks(&[length, 1], &shape(None), ANY)[0].places;
        assert_eq!(
            [1, 16, 17, 23, 33, 64, 65].map(places),
            [16, 16, 32, 32, 64, 64, 128]
        );
    }

    /// In parts of equal keys, as many as one sequence has.
    #[test]
    fn any_number_of_long_sequences_attends_in_as_many_parts() {
        for count in [1, 4, 16] {
            let found = chunks(&vec![1024; count], &shape(None), ANY);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].sequences, 0..count);
            let keys: Vec<_> = found[0]
                .parts
                .iter()
                .map(|part| part.keys.clone())
                .collect();
            assert_eq!(keys, [0..256, 0..512, 0..768, 0..1024]);
        }
    }

    #[test]
    fn a_row_of_scores_has_the_units_that_it_has_alone() {
        let lengths: Vec<usize> = (1..5000).rev().collect();
        let mut shared = 0;
        for chunk in chunks(&lengths, &shape(None), ANY) {
            for &length in &lengths[chunk.sequences.clone()] {
                let alone = &chunks(&[length], &shape(None), ANY)[0];
                shared += usize::from(alone.places < chunk.places);
                for (alone, padded) in alone.parts.iter().zip(&chunk.parts) {
                    assert_eq!(alone.queries.start, padded.queries.start);
                    for size in [1, 4] {
                        let lanes = |part: &Part| row_layout(part.keys.len(), size).lanes;
                        assert_eq!(lanes(alone), lanes(padded), "{length}: {padded:?}");
                    }
                }
            }
        }
        assert!(shared > 1000, "{shared}");
    }

    /// Every key that a query sees is in the query's part, and parts cover the queries in order.
    #[test]
    fn parts_of_a_long_sequence_have_all_keys_they_see() {
        for window in [None, Some(1), Some(50), Some(400)] {
            for scores in [1, 4 * 640 * 64, 4 * 640 * 150, usize::MAX] {
                let shape = shape(window);
                let found = chunks(&[600], &shape, Limits { scores, ..ANY });
                assert_eq!((found.len(), found[0].places), (1, 640));
                assert!(found[0].parts.len() > 1);
                let mut next = 0;
                for Part { queries, keys } in &found[0].parts {
                    assert_eq!(queries.start, next);
                    next = queries.end;
                    assert!(keys.start <= shape.first_key(queries.start));
                    assert_eq!(keys.end, queries.end);
                    assert!(queries.len() == 64 || 4 * queries.len() * keys.len() <= scores);
                    assert!(keys.start % 64 == 0 && queries.len() % 64 == 0);
                }
                assert_eq!(next, found[0].places);
            }
        }
        let halves = chunks(&[100], &shape(None), Limits { queries: 64, ..ANY });
        assert_eq!(queries_of_parts(&halves[0]), [0..64, 64..128]);
    }
}
