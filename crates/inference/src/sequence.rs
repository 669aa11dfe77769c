use loraloom_model::{BLOCK_TOKENS, SampledRow};

use crate::{
    EngineRequest, Finish, RequestId,
    blocks::{BlockPool, Parent},
};

/// A prompt and its answer so far.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    pub(crate) request: EngineRequest,
    /// The prompt's tokens, then the answer's.
    pub(crate) tokens: Vec<u32>,
    /// Tokens whose keys and values are in blocks.
    pub(crate) computed: usize,
    pub(crate) blocks: Vec<u32>,
    /// Full blocks whose contents others may use.
    kept: usize,
    /// The context of the next block.
    parent: Parent,
    /// Tokens that are rotated as one text: with dynamic scaling later ones are rotated for their own lengths, as if
    /// each had come alone.
    text: usize,
    /// Its last token was picked.
    pub(crate) is_finished: bool,
    /// Its prompt was charged.
    pub(crate) has_begun: bool,
    /// Requests that came later and began before it.
    pub(crate) passed: usize,
}

/// How keys depend on the length of a sequence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rotation {
    /// True if frequencies depend on the length.
    pub(crate) follows_length: bool,
    /// The length beyond which all keys are computed again.
    pub(crate) changes_after: Option<usize>,
}

impl Sequence {
    pub(crate) fn new(id: RequestId, request: EngineRequest) -> Self {
        Self {
            id,
            tokens: request.prompt.clone(),
            computed: 0,
            blocks: Vec::new(),
            kept: 0,
            parent: Parent::Generation(request.generation.0),
            text: request.prompt.len(),
            is_finished: false,
            has_begun: false,
            passed: 0,
            request,
        }
    }

    /// Options and random number of its next token.
    pub(crate) fn row(&self) -> SampledRow {
        let EngineRequest {
            sampling,
            top_log_probs,
            ..
        } = &self.request;
        sampling.row(&self.tokens, self.answer(), *top_log_probs)
    }

    /// Tokens of the answer so far.
    pub(crate) fn answer(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }

    /// True if all tokens but the newest are computed.
    pub(crate) fn is_decoding(&self) -> bool {
        self.tokens.len() == self.computed + 1
    }

    /// Tokens to compute next, at most so many.
    pub(crate) fn next(&self, most: usize, rotation: Rotation) -> usize {
        let left = self.tokens.len() - self.computed;
        let together = if !rotation.follows_length {
            left
        } else if self.computed < self.text {
            self.text - self.computed
        } else {
            1
        };
        left.min(together).min(most)
    }

    /// The length that the next tokens are rotated for.
    pub(crate) fn rope_length(&self) -> usize {
        if self.computed < self.text {
            self.text
        } else {
            self.computed + 1
        }
    }

    /// Takes blocks for the next tokens. `false` if there are too few; then nothing changes.
    pub(crate) fn grow(&mut self, count: usize, pool: &mut BlockPool) -> bool {
        let needed = (self.computed + count).div_ceil(BLOCK_TOKENS);
        let missing = needed.saturating_sub(self.blocks.len());
        if missing > pool.free() {
            return false;
        }
        self.blocks.extend((0..missing).filter_map(|_| pool.take()));
        true
    }

    /// Holds the blocks of earlier sequences that begin alike. One token is left to compute, whose logits are needed.
    pub(crate) fn find(&mut self, pool: &mut BlockPool, rotation: Rotation) {
        if rotation.follows_length {
            return;
        }
        let most = self.tokens.len() - 1;
        let generation = self.request.generation.0;
        (self.blocks, self.parent) = pool.hold(generation, &self.tokens, most);
        self.kept = self.blocks.len();
        self.computed = self.kept * BLOCK_TOKENS;
    }

    /// Gives all blocks up: everything is computed again.
    pub(crate) fn release(&mut self, pool: &mut BlockPool) {
        pool.release(&self.blocks);
        self.blocks.clear();
        (self.computed, self.kept) = (0, 0);
        self.parent = Parent::Generation(self.request.generation.0);
    }

    /// Notes that tokens were computed.
    pub(crate) fn advance(&mut self, count: usize, pool: &mut BlockPool, rotation: Rotation) {
        self.computed += count;
        if rotation.follows_length {
            return;
        }
        for index in self.kept..self.computed / BLOCK_TOKENS {
            let tokens = &self.tokens[index * BLOCK_TOKENS..][..BLOCK_TOKENS];
            self.parent = pool.keep(self.blocks[index], self.parent, tokens);
            self.kept += 1;
        }
    }

    /// Adds a token to the answer, and says why it ends if it does.
    pub(crate) fn push(
        &mut self,
        token: u32,
        context: usize,
        rotation: Rotation,
    ) -> Option<Finish> {
        self.tokens.push(token);
        if self.request.stop.contains(&token) {
            return Some(Finish::Stop);
        }
        if self.answer() >= self.request.max_tokens || self.tokens.len() >= context {
            return Some(Finish::Length);
        }
        let changes = rotation.changes_after;
        if changes.is_some_and(|length| self.tokens.len() == length + 1) {
            (self.computed, self.text) = (0, self.tokens.len());
        }
        None
    }
}
