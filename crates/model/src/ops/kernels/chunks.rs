//! Which sequences attend side by side, and in how many blocks of queries.

use std::ops::Range;

use crate::AttentionShape;

/// Places are a multiple of this: whole vectors of every type, and few different shapes.
const PLACES: usize = 8;
/// Sequences up to this length go with longer ones, whatever the padding: a launch costs more.
pub(super) const SHORT: usize = 128;

/// Sequences that attend side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Of the sequences, longest first.
    pub(super) sequences: Range<usize>,
    /// Places that each of them has.
    pub(super) places: usize,
    /// One part, or several of a sequence that is too long for one.
    pub(super) parts: Vec<Part>,
}

/// Queries that attend together, and the keys that they see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
}

/// Chunks of sequences of these lengths, longest first, such that the scores of a part are at most
/// `limit` elements, or those of [`PLACES`] queries.
///
/// Sequences go into one chunk as long as the padding is below half of the work, longer ones only with
/// others of the same power of two: as many units take a row of scores as if the sequence were alone,
/// and sum it in the same order.
pub(super) fn chunks(lengths: &[usize], shape: &AttentionShape, limit: usize) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut start = 0;
    while start < lengths.len() {
        let places = lengths[start].next_multiple_of(PLACES);
        let most = limit / (shape.num_heads * places * places);
        let alike = lengths[start..].iter().take_while(|&&length| {
            let own = length.next_multiple_of(PLACES);
            let same_power = own.next_power_of_two() == places.next_power_of_two();
            places <= SHORT || same_power && 4 * own >= 3 * places
        });
        let end = start + alike.take(most.max(1)).count();
        let parts = if most == 0 {
            parts(places, shape, limit)
        } else {
            vec![Part {
                queries: 0..places,
                keys: 0..places,
            }]
        };
        chunks.push(Chunk {
            sequences: start..end,
            places,
            parts,
        });
        start = end;
    }
    chunks
}

fn parts(places: usize, shape: &AttentionShape, limit: usize) -> Vec<Part> {
    let queries = limit / (shape.num_heads * places) / PLACES * PLACES;
    let part = |start: usize| {
        let end = (start + queries.max(PLACES)).min(places);
        let first_key = shape.first_key(start) / PLACES * PLACES;
        Part {
            queries: start..end,
            keys: first_key..end,
        }
    };
    (0..places).step_by(queries.max(PLACES)).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sequences, ops::kernels::softmax::row_layout};

    fn shape(window: Option<usize>) -> AttentionShape {
        AttentionShape {
            sequences: Sequences::from_lengths([]),
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 8,
            window,
        }
    }

    #[test]
    fn sequences_of_one_length_are_one_chunk_as_far_as_the_limit_goes() {
        let found = chunks(&[16; 10], &shape(None), 4 * 16 * 16 * 4);
        let sequences: Vec<_> = found.into_iter().map(|chunk| chunk.sequences).collect();
        assert_eq!(sequences, [0..4, 4..8, 8..10]);
    }

    #[test]
    fn much_shorter_sequences_go_apart_unless_all_are_short() {
        let ends = |lengths: &[usize]| -> Vec<usize> {
            let found = chunks(lengths, &shape(None), usize::MAX);
            found.iter().map(|chunk| chunk.sequences.end).collect()
        };
        assert_eq!(ends(&[1000, 760, 740, 100, 3]), [2, 3, 5]);
        assert_eq!(ends(&[128, 1, 1]), [3]);
        assert_eq!(ends(&[136, 128, 120]), [1, 3]);
        assert_eq!(ends(&[520, 513, 512, 500]), [2, 4]);
        assert!(ends(&[]).is_empty());
    }

    #[test]
    fn a_row_of_scores_has_the_units_that_it_has_alone() {
        let lengths: Vec<usize> = (1..5000).rev().collect();
        let mut shared = 0;
        for chunk in chunks(&lengths, &shape(None), usize::MAX) {
            for &length in &lengths[chunk.sequences.clone()] {
                let alone = length.next_multiple_of(PLACES);
                shared += usize::from(alone < chunk.places);
                for size in [1, 4] {
                    let [alone, padded] = [alone, chunk.places].map(|keys| row_layout(keys, size));
                    assert_eq!(alone.lanes, padded.lanes, "{length} of {}", chunk.places);
                }
            }
        }
        assert!(shared > 1000, "{shared}");
    }

    /// Every key that a query sees is in the query's part, and parts cover the queries in order.
    #[test]
    fn parts_of_a_long_sequence_have_all_keys_they_see() {
        for window in [None, Some(1), Some(50), Some(400)] {
            for limit in [1, 4 * 304 * 8, 4 * 304 * 100, 4 * 304 * 304 - 1] {
                let shape = shape(window);
                let found = chunks(&[300], &shape, limit);
                assert_eq!(found.len(), 1);
                assert!(found[0].parts.len() > 1);
                let mut next = 0;
                for Part { queries, keys } in &found[0].parts {
                    assert_eq!(queries.start, next);
                    next = queries.end;
                    assert!(keys.start <= shape.first_key(queries.start));
                    assert_eq!(keys.end, queries.end);
                    assert!(queries.len() == 8 || 4 * queries.len() * keys.len() <= limit);
                    assert!(keys.start % 8 == 0 && queries.len() % 8 == 0);
                }
                assert_eq!(next, found[0].places);
            }
        }
    }
}
