use std::collections::{BTreeSet, HashMap};

use loraloom_model::BLOCK_TOKENS;

/// The context of a block: its keys and values depend on it and on the block's own tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Parent {
    /// It is the first of a sequence, computed with these weights.
    Generation(u64),
    /// Contents of the block before it.
    Contents(u64),
}

type Contents = (Parent, [u32; BLOCK_TOKENS]);

/// The blocks of the caches: held by sequences, or free. A full block keeps its contents until it is needed for others,
/// so that a sequence that begins alike can hold it, too.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    /// Free blocks by the time that they were last held; those without contents have none.
    free: BTreeSet<(u64, u32)>,
    /// Full blocks by their contents.
    kept: HashMap<Contents, u32>,
    clock: u64,
}

#[derive(Debug, Clone, Default)]
struct Block {
    holders: u32,
    last_held: u64,
    /// Its contents, and their number, which is never used again.
    contents: Option<(Contents, u64)>,
}

impl BlockPool {
    pub(crate) fn new(blocks: usize) -> Self {
        Self {
            blocks: vec![Block::default(); blocks],
            free: (0..blocks as u32).map(|block| (0, block)).collect(),
            kept: HashMap::new(),
            clock: 0,
        }
    }

    pub(crate) fn all(&self) -> usize {
        self.blocks.len()
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// A block to write to: an empty one, or the one that was held longest ago.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let (_, index) = self.free.pop_first()?;
        let block = &mut self.blocks[index as usize];
        if let Some((contents, _)) = block.contents.take() {
            self.kept.remove(&contents);
        }
        block.holders = 1;
        Some(index)
    }

    /// Gives up a sequence's blocks, in their order.
    pub(crate) fn release(&mut self, blocks: &[u32]) {
        // A block is of no use to others without those before it: the last is written to first.
        for &index in blocks.iter().rev() {
            self.clock += 1;
            let block = &mut self.blocks[index as usize];
            block.holders -= 1;
            if block.holders == 0 {
                block.last_held = match block.contents {
                    Some(_) => self.clock,
                    None => 0,
                };
                self.free.insert((block.last_held, index));
            }
        }
    }

    /// Holds the blocks with the first tokens of a sequence, as far as there are any; at most so many tokens.
    pub(crate) fn hold(
        &mut self,
        generation: u64,
        tokens: &[u32],
        most: usize,
    ) -> (Vec<u32>, Parent) {
        let (mut parent, mut found) = (Parent::Generation(generation), Vec::new());
        for tokens in tokens[..most.min(tokens.len())].chunks_exact(BLOCK_TOKENS) {
            let mut contents = (parent, [0; BLOCK_TOKENS]);
            contents.1.copy_from_slice(tokens);
            let Some(&index) = self.kept.get(&contents) else {
                break;
            };
            let block = &mut self.blocks[index as usize];
            if block.holders == 0 {
                self.free.remove(&(block.last_held, index));
            }
            block.holders += 1;
            if let Some((_, number)) = block.contents {
                parent = Parent::Contents(number);
            }
            found.push(index);
        }
        (found, parent)
    }

    /// Notes the contents of a full block, and returns what the next one depends on.
    pub(crate) fn keep(&mut self, index: u32, parent: Parent, tokens: &[u32]) -> Parent {
        let mut contents = (parent, [0; BLOCK_TOKENS]);
        contents.1.copy_from_slice(tokens);
        if let Some(&same) = self.kept.get(&contents)
            && let Some((_, number)) = self.blocks[same as usize].contents
        {
            return Parent::Contents(number);
        }
        self.clock += 1;
        let number = self.clock;
        self.kept.insert(contents, index);
        self.blocks[index as usize].contents = Some((contents, number));
        Parent::Contents(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(from: u32, count: usize) -> Vec<u32> {
        (from..from + count as u32).collect()
    }

    /// Fills blocks with tokens as a sequence does.
    fn fill(pool: &mut BlockPool, generation: u64, tokens: &[u32]) -> Vec<u32> {
        let mut parent = Parent::Generation(generation);
        let chunks = tokens.chunks(BLOCK_TOKENS).map(|chunk| {
            let block = pool.take().expect("a free block");
            if chunk.len() == BLOCK_TOKENS {
                parent = pool.keep(block, parent, chunk);
            }
            block
        });
        chunks.collect()
    }

    #[test]
    fn sequences_that_begin_alike_share_full_blocks_of_a_generation() {
        let mut pool = BlockPool::new(6);
        let text = tokens(0, 40);
        let blocks = fill(&mut pool, 7, &text);
        assert_eq!((blocks.len(), pool.free()), (3, 3));
        let (shared, _) = pool.hold(7, &text, 39);
        assert_eq!(shared, blocks[..2]);
        // At most so many tokens, only the same ones, and only the same weights.
        assert_eq!(pool.hold(7, &text, 31).0, blocks[..1]);
        let other: Vec<u32> = text
            .iter()
            .map(|token| token + u32::from(*token == 20))
            .collect();
        assert_eq!(pool.hold(7, &other, 40).0, blocks[..1]);
        assert!(pool.hold(8, &text, 40).0.is_empty());
        // The same tokens after others are not the same block.
        let later = [tokens(50, 16), text[16..32].to_vec()].concat();
        assert!(pool.hold(7, &later, 32).0.is_empty());
        let held: u32 = pool.blocks.iter().map(|block| block.holders).sum();
        assert_eq!(held, 3 + 2 + 1 + 1);
    }

    #[test]
    fn free_blocks_keep_their_contents_until_they_are_needed() {
        let mut pool = BlockPool::new(3);
        let text = tokens(0, 33);
        let blocks = fill(&mut pool, 1, &text);
        pool.release(&blocks);
        assert_eq!(pool.free(), 3);
        // The block without contents goes first, then the second of the text, which is of no use without the first.
        assert_eq!(pool.take(), Some(blocks[2]));
        assert_eq!(pool.hold(1, &text, 33).0, blocks[..2]);
        pool.release(&blocks[..2]);
        assert_eq!(pool.take(), Some(blocks[1]));
        assert_eq!(pool.hold(1, &text, 33).0, blocks[..1]);
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn a_block_that_is_written_again_is_not_found_for_its_old_contents() {
        let mut pool = BlockPool::new(2);
        let (old, new) = (tokens(0, 32), tokens(100, 32));
        let blocks = fill(&mut pool, 1, &old);
        pool.release(&blocks);
        let blocks = fill(&mut pool, 1, &new);
        assert!(pool.hold(1, &old, 32).0.is_empty());
        pool.release(&blocks);
        assert_eq!(pool.hold(1, &new, 32).0, blocks);
    }
}
