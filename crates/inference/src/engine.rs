use std::sync::Arc;

use batchlora::{Segment, Segments};
use loraloom_model::{
    BLOCK_TOKENS, BlockTable, BlockTables, Sampled, SampledRow, Sequences, Targets,
};
use loraloom_pipeline::{Caches, Microbatch, Pipeline};

use crate::{
    BankSlot, BankSlots, EngineRequest, Generation, InferenceError, Neighbour, RequestId, Token,
    blocks::BlockPool,
    sequence::{Rotation, Sequence},
    waiting::Waiting,
};

/// Limits of an [`Engine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineConfig {
    /// Blocks of keys and values, [`BLOCK_TOKENS`] tokens each.
    pub blocks: usize,
    /// Most tokens that are computed in a step. Prompts that have more are computed in parts.
    pub batch_tokens: usize,
    /// Most sequences that run at a time.
    pub max_sequences: usize,
}

/// Answers requests in continuous batches (Yu et al., Orca, OSDI'22).
///
/// Of the tenants that wait the one with the least service is next, and of its requests the oldest whose weights are in
/// the pipeline; it starts when there are blocks for its whole prompt.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    caches: Caches,
    pool: BlockPool,
    rotation: Rotation,
    /// Longest sequence of the model.
    context: usize,
    waiting: Waiting,
    neighbour: Option<Arc<Neighbour>>,
    /// In the order of their start.
    running: Vec<Sequence>,
    /// Tokens that were picked in a step that then failed.
    picked: Vec<Token>,
    next_id: u64,
    preemptions: u64,
}

impl Engine {
    /// An engine with empty caches on the devices of a pipeline. Its steps are passes of the same pipeline.
    pub fn new(pipeline: &Pipeline, config: EngineConfig) -> Self {
        let model = pipeline.config();
        Self {
            config,
            caches: pipeline.caches(config.blocks),
            pool: BlockPool::new(config.blocks),
            rotation: Rotation {
                follows_length: model.rope.follows_length(),
                changes_after: model.rope.changes_after(),
            },
            context: model.max_position_embeddings,
            waiting: Waiting::default(),
            neighbour: None,
            running: Vec::new(),
            picked: Vec::new(),
            next_id: 0,
            preemptions: 0,
        }
    }

    /// Enqueues a request.
    ///
    /// # Errors
    /// If its prompt is empty, fills the context, or would not fit in the blocks with its answer.
    pub fn submit(&mut self, request: EngineRequest) -> Result<RequestId, InferenceError> {
        let (prompt, context) = (request.prompt.len(), self.context);
        if prompt == 0 {
            return Err(InferenceError::EmptyPrompt);
        }
        if prompt >= context {
            return Err(InferenceError::PromptTooLong { prompt, context });
        }
        let answer = request.max_tokens.min(context - prompt);
        // The last token of an answer has no keys and values.
        let tokens = self.pool.all() * BLOCK_TOKENS;
        if prompt + answer.saturating_sub(1) > tokens {
            return Err(InferenceError::TooLarge {
                prompt,
                answer,
                tokens,
            });
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.waiting.push(Sequence::new(id, request));
        Ok(id)
    }

    /// Ends a request without further tokens; `false` if there is none of this number.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        if let Some(index) = self.running.iter().position(|sequence| sequence.id == id) {
            self.running.remove(index).release(&mut self.pool);
            return true;
        }
        self.waiting.remove(id)
    }

    /// Requests that run or wait.
    pub fn requests(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    /// True if a request has no token yet.
    pub fn awaits_first_token(&self) -> bool {
        let mut all = self.running.iter().chain(self.waiting.iter());
        all.any(|sequence| sequence.answer() == 0)
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How often a request gave its blocks up for an older one.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// The weights of running requests, which must stay in their places.
    pub fn in_use(&self) -> impl Iterator<Item = Generation> {
        let running = self.running.iter();
        running.map(|sequence| sequence.request.generation)
    }

    /// The weights that waiting requests need, in the order in which these are to start.
    pub fn needed(&self) -> impl Iterator<Item = Generation> {
        self.waiting.needed()
    }

    /// Charges tenants together with training.
    pub(crate) fn share_accounts(&mut self, neighbour: Arc<Neighbour>) {
        self.neighbour = Some(neighbour);
    }

    fn charge(&mut self, tenant: &str, cost: f64) {
        self.waiting.charge(tenant, cost);
        if let Some(neighbour) = &self.neighbour {
            neighbour.answered(tenant, cost);
        }
    }

    /// Blocks that no sequence holds.
    pub fn free_blocks(&self) -> usize {
        self.pool.free()
    }

    /// Computes the next tokens of running requests, and returns those that were picked. A request has no tokens in
    /// steps that compute parts of its prompt. Requests for weights without a place wait.
    ///
    /// # Errors
    /// If a pass fails. Its requests are as they were before it.
    pub fn step(
        &mut self,
        pipeline: &Pipeline,
        places: &BankSlots,
    ) -> Result<Vec<Token>, InferenceError> {
        self.running.retain(|sequence| !sequence.is_finished);
        let counts = self.schedule(places);
        let mut parts = Vec::new();
        for (index, count) in counts
            .into_iter()
            .enumerate()
            .filter(|(_, count)| *count > 0)
        {
            let place = places.get(&self.running[index].request.generation);
            let place = *place.ok_or(InferenceError::Removed)?;
            parts.push(Part {
                place,
                index,
                count,
            });
        }
        // Rows of one adapter follow each other.
        parts.sort_by_key(|part| part.place);
        for parts in parts.chunk_by(|a, b| a.place.group == b.place.group) {
            self.compute(pipeline, parts)?;
        }
        self.running.retain(|sequence| !sequence.is_finished);
        Ok(std::mem::take(&mut self.picked))
    }

    /// The number of tokens that each running sequence computes next. All have blocks for them.
    fn schedule(&mut self, places: &BankSlots) -> Vec<usize> {
        let mut left = self.config.batch_tokens.max(1);
        let mut counts = vec![0; self.running.len()];
        // Decoding goes before prompts, so that a long prompt does not hold answers up.
        for decoding in [true, false] {
            for (count, sequence) in counts.iter_mut().zip(&self.running) {
                if sequence.is_decoding() == decoding {
                    *count = sequence.next(left, self.rotation);
                    left -= *count;
                }
            }
        }
        let preempted = self.preemptions;
        let mut index = 0;
        while index < counts.len() {
            if self.running[index].grow(counts[index], &mut self.pool) {
                index += 1;
                continue;
            }
            // The newest gives its blocks up, which may be this one.
            counts.pop();
            if let Some(mut newest) = self.running.pop() {
                newest.release(&mut self.pool);
                self.waiting.push_front(newest);
                self.preemptions += 1;
            }
        }
        if self.preemptions == preempted {
            self.admit(places, &mut counts, left);
        }
        counts
    }

    /// Starts waiting requests with `left` tokens.
    fn admit(&mut self, places: &BankSlots, counts: &mut Vec<usize>, mut left: usize) {
        let neighbour = self.neighbour.clone();
        for (tenant, cost) in neighbour.map(|one| one.take_trained()).unwrap_or_default() {
            self.waiting.charge(&tenant, cost);
        }
        while left > 0 && self.running.len() < self.config.max_sequences.max(1) {
            let (pool, rotation) = (&mut self.pool, self.rotation);
            let next = self.waiting.next(places, |sequence| {
                sequence.find(pool, rotation);
                let needed = sequence.tokens.len().div_ceil(BLOCK_TOKENS) - sequence.blocks.len();
                let fits = needed <= pool.free();
                if !fits {
                    sequence.release(pool);
                }
                fits
            });
            let Some(mut sequence) = next else {
                break;
            };
            let count = sequence.next(left, self.rotation);
            sequence.grow(count, &mut self.pool);
            left -= count;
            counts.push(count);
            let (tenant, cost) = (
                sequence.request.tenant.clone(),
                Waiting::prompt_cost(&sequence),
            );
            sequence.has_begun = true;
            self.running.push(sequence);
            self.charge(&tenant, cost);
        }
    }

    /// Computes parts of sequences of one group, and picks tokens where a sequence is complete.
    fn compute(&mut self, pipeline: &Pipeline, parts: &[Part]) -> Result<(), InferenceError> {
        let (microbatch, rows) = self.microbatch(parts)?;
        let group = parts.first().map_or(0, |part| part.place.group);
        let complete = parts.iter().map(|part| (part, &self.running[part.index]));
        let complete = complete
            .filter(|(part, sequence)| sequence.computed + part.count == sequence.tokens.len());
        let complete: Vec<_> = complete
            .map(|(part, sequence)| (part.index, sequence.row()))
            .collect();
        let (complete, sampled): (Vec<usize>, Vec<SampledRow>) = complete.into_iter().unzip();
        let caches = &mut self.caches;
        let picked = pipeline.next_tokens(group, &microbatch, caches, &rows, &sampled)?;
        for &Part { index, count, .. } in parts {
            self.running[index].advance(count, &mut self.pool, self.rotation);
        }
        for (index, sampled) in complete.into_iter().zip(picked) {
            let tenant = self.running[index].request.tenant.clone();
            let token = self.take(index, sampled);
            self.picked.push(token);
            self.charge(&tenant, Waiting::answer_cost());
        }
        Ok(())
    }

    /// The batch of these parts, and the last rows of sequences that are then complete.
    fn microbatch(&self, parts: &[Part]) -> Result<(Microbatch, Vec<usize>), InferenceError> {
        let sequences = Sequences::from_lengths(parts.iter().map(|part| part.count));
        let (mut ids, mut tables, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        let (mut segments, mut complete): (Vec<Segment>, _) = (Vec::new(), Vec::new());
        for (part, rows) in parts.iter().zip(sequences.iter()) {
            let sequence = &self.running[part.index];
            let end = sequence.computed + part.count;
            ids.extend_from_slice(&sequence.tokens[sequence.computed..end]);
            tables.push(BlockTable {
                past: sequence.computed,
                blocks: sequence.blocks.clone(),
            });
            lengths.push(sequence.rope_length());
            if end == sequence.tokens.len() {
                complete.push(rows.end - 1);
            }
            let Some(slot) = part.place.slot else {
                continue;
            };
            match segments.last_mut() {
                Some(last) if last.slot == slot => last.rows.end = rows.end,
                _ => segments.push(Segment { rows, slot }),
            }
        }
        let microbatch = Microbatch {
            ids,
            cached: Some(BlockTables::new(tables)),
            rope_lengths: lengths,
            segments: Segments::new(sequences.rows(), segments)?,
            sequences,
            draws: None,
            targets: Targets::default(),
        };
        Ok((microbatch, complete))
    }

    fn take(&mut self, index: usize, sampled: Sampled) -> Token {
        let sequence = &mut self.running[index];
        let finish = sequence.push(sampled.id, self.context, self.rotation);
        if finish.is_some() {
            sequence.is_finished = true;
            sequence.release(&mut self.pool);
        }
        Token {
            request: sequence.id,
            id: sampled.id,
            log_prob: sampled.log_prob,
            top: sampled.top,
            finish,
        }
    }
}

/// The next tokens of a running sequence.
#[derive(Debug, Clone, Copy)]
struct Part {
    place: BankSlot,
    index: usize,
    count: usize,
}
