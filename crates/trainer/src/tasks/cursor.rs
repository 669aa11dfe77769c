//! Steps that are spread over several iterations, so that neighbours need not wait for a whole step: nano-batches.
//!
//! A part takes some of the step's micro-batches, in order, and the stages keep the sum of their gradients until the
//! last part brings the optimizer's update. Order and sums are those of a step that is taken at once.

use std::ops::Range;

/// One iteration's part of a task's step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NanoBatch {
    /// Range of the step's micro-batches.
    pub(crate) microbatches: Range<usize>,
    /// Number of the part, counted from 1.
    pub(crate) number: usize,
    /// Number of parts.
    pub(crate) of: usize,
}

impl NanoBatch {
    /// True if it is the last of its step.
    pub(crate) fn ends_step(&self) -> bool {
        self.number == self.of
    }
}

/// Submitted progress of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cursor {
    steps: usize,
    /// The step after those, if a part of it was submitted.
    partial: Option<PartialStep>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PartialStep {
    /// Micro-batches of a part, constant throughout the step.
    share: usize,
    /// Submitted micro-batches.
    taken: usize,
}

impl Cursor {
    /// A cursor after `steps` steps.
    pub(crate) fn after(steps: usize) -> Self {
        Self {
            steps,
            partial: None,
        }
    }

    /// Whole steps.
    pub(crate) fn steps(&self) -> usize {
        self.steps
    }

    /// The next part, of a step of `count` micro-batches. A step keeps the number of parts that it began with:
    /// `parts`, or fewer if fewer parts are no larger.
    pub(crate) fn next(&self, count: usize, parts: usize) -> NanoBatch {
        let PartialStep { share, taken } = self.partial.unwrap_or(PartialStep {
            share: share(count, parts),
            taken: 0,
        });
        NanoBatch {
            microbatches: taken..count.min(taken + share),
            number: taken / share + 1,
            of: count.div_ceil(share),
        }
    }

    /// Advances by [`next`](Self::next), and returns it.
    pub(crate) fn advance(&mut self, count: usize, parts: usize) -> NanoBatch {
        let part = self.next(count, parts);
        if part.ends_step() {
            *self = Self::after(self.steps + 1);
        } else {
            let taken = part.microbatches.end;
            let share = self.partial.map_or(taken, |partial| partial.share);
            self.partial = Some(PartialStep { share, taken });
        }
        part
    }

    /// Drops the submitted parts of the step under way.
    pub(crate) fn restart_step(&mut self) {
        self.partial = None;
    }

    /// Most micro-batches of a part from now on, of steps of at most `count`.
    pub(crate) fn largest_share(&self, count: usize, parts: usize) -> usize {
        let now = self.partial.map_or(0, |partial| partial.share);
        now.max(share(count, parts))
    }
}

/// Micro-batches of a part.
fn share(count: usize, parts: usize) -> usize {
    count.div_ceil(parts.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::Cursor;

    /// The micro-batches of every iteration of the next steps.
    fn iterations(cursor: &mut Cursor, steps: &[(usize, usize)]) -> Vec<Vec<usize>> {
        let mut found = Vec::new();
        for (step, &(count, parts)) in (cursor.steps()..).zip(steps) {
            while cursor.steps() == step {
                found.push(cursor.advance(count, parts).microbatches.collect());
            }
        }
        found
    }

    #[test]
    fn every_micro_batch_comes_once_and_in_order() {
        for count in 1..20 {
            for parts in 1..25 {
                let mut cursor = Cursor::default();
                let found = iterations(&mut cursor, &[(count, parts)]);
                assert_eq!(found.concat(), (0..count).collect::<Vec<_>>());
                assert!(found.len() <= parts, "{count} in {parts}");
                let largest = found.iter().map(Vec::len).max();
                assert_eq!(largest, Some(count.div_ceil(parts)), "{count} in {parts}");
                assert_eq!(cursor, Cursor::after(1));
            }
        }
    }

    #[test]
    fn parts_are_numbered() {
        let mut cursor = Cursor::default();
        let parts = (0..3).map(|_| cursor.advance(5, 3));
        let numbers: Vec<_> = parts.map(|part| (part.number, part.of)).collect();
        assert_eq!(numbers, [(1, 3), (2, 3), (3, 3)]);
    }

    /// A step keeps the number of parts that it began with.
    #[test]
    fn other_parts_begin_with_the_next_step() {
        let mut cursor = Cursor::default();
        assert_eq!(cursor.advance(4, 4).microbatches, 0..1);
        assert_eq!(cursor.largest_share(4, 2), 2);
        assert_eq!(cursor.advance(4, 1).microbatches, 1..2);
        assert_eq!(cursor.advance(4, 2).microbatches, 2..3);
        assert_eq!(cursor.advance(4, 2).microbatches, 3..4);
        assert_eq!(cursor.steps(), 1);
        assert_eq!(cursor.advance(4, 2).microbatches, 0..2);
    }

    #[test]
    fn a_step_begins_again() {
        let mut cursor = Cursor::after(7);
        cursor.advance(4, 2);
        cursor.restart_step();
        assert_eq!(cursor, Cursor::after(7));
        assert_eq!(cursor.next(4, 4).microbatches, 0..1);
    }
}
