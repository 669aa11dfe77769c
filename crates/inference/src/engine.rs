use std::collections::VecDeque;

use batchlora::{Segment, Segments};
use loraloom_model::{BLOCK_TOKENS, BlockTable, BlockTables, LogProbs, Sequences, Targets};
use loraloom_pipeline::{Caches, Microbatch, Pipeline};

use crate::{
    InferenceError, Request, RequestId, Token,
    blocks::BlockPool,
    sequence::{Rotation, Sequence},
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
/// Requests run in the order of their arrival. A request starts when there are blocks for its whole prompt.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    caches: Caches,
    pool: BlockPool,
    rotation: Rotation,
    /// Longest sequence of the model.
    context: usize,
    vocabulary: usize,
    waiting: VecDeque<Sequence>,
    /// In the order of their start.
    running: Vec<Sequence>,
    next_id: u64,
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
            vocabulary: model.vocab_size,
            waiting: VecDeque::new(),
            running: Vec::new(),
            next_id: 0,
        }
    }

    /// Enqueues a request.
    ///
    /// # Errors
    /// If its prompt is empty, fills the context, or would not fit in the blocks with its answer.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, InferenceError> {
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
        self.waiting.push_back(Sequence::new(id, request));
        Ok(id)
    }

    /// Ends a request without further tokens; `false` if there is none of this number.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let waiting = self.waiting.len();
        self.waiting.retain(|sequence| sequence.id != id);
        if let Some(index) = self.running.iter().position(|sequence| sequence.id == id) {
            self.running.remove(index).release(&mut self.pool);
            return true;
        }
        self.waiting.len() < waiting
    }

    /// Requests that run or wait.
    pub fn requests(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    /// Blocks that no sequence holds.
    pub fn free_blocks(&self) -> usize {
        self.pool.free()
    }

    /// Computes the next tokens of running requests, and returns those that were picked. A request has no tokens in
    /// steps that compute parts of its prompt.
    ///
    /// # Errors
    /// If a pass fails. The requests are as they were before it.
    pub fn step(&mut self, pipeline: &Pipeline) -> Result<Vec<Token>, InferenceError> {
        let counts = self.schedule();
        let mut parts: Vec<(usize, usize)> = counts.into_iter().enumerate().collect();
        parts.retain(|&(_, count)| count > 0);
        // Rows of one adapter follow each other.
        parts.sort_by_key(|&(index, _)| self.running[index].request.adapter);
        let mut tokens = Vec::new();
        let group = |&(index, _): &(usize, usize)| self.running[index].request.adapter.group;
        let groups: Vec<&[(usize, usize)]> = parts.chunk_by(|a, b| group(a) == group(b)).collect();
        for parts in groups {
            self.compute(pipeline, parts, &mut tokens)?;
        }
        self.running.retain(|sequence| !sequence.blocks.is_empty());
        Ok(tokens)
    }

    /// The number of tokens that each running sequence computes next. All have blocks for them.
    fn schedule(&mut self) -> Vec<usize> {
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
        let mut index = 0;
        let mut is_full = false;
        while index < counts.len() {
            if self.running[index].grow(counts[index], &mut self.pool) {
                index += 1;
                continue;
            }
            // The newest gives its blocks up, which may be this one.
            is_full = true;
            left += counts.pop().unwrap_or(0);
            if let Some(mut newest) = self.running.pop() {
                newest.release(&mut self.pool);
                self.waiting.push_front(newest);
            }
        }
        while !is_full && left > 0 && self.running.len() < self.config.max_sequences.max(1) {
            let Some(mut sequence) = self.waiting.pop_front() else {
                break;
            };
            sequence.find(&mut self.pool, self.rotation);
            let needed = sequence.tokens.len().div_ceil(BLOCK_TOKENS) - sequence.blocks.len();
            if needed > self.pool.free() {
                sequence.release(&mut self.pool);
                self.waiting.push_front(sequence);
                break;
            }
            let count = sequence.next(left, self.rotation);
            sequence.grow(count, &mut self.pool);
            left -= count;
            counts.push(count);
            self.running.push(sequence);
        }
        counts
    }

    /// Computes parts of sequences of one group, and picks tokens where a sequence is complete.
    fn compute(
        &mut self,
        pipeline: &Pipeline,
        parts: &[(usize, usize)],
        tokens: &mut Vec<Token>,
    ) -> Result<(), InferenceError> {
        let running = &self.running;
        let sequences = parts.iter().map(|&(index, count)| (&running[index], count));
        let layout = Sequences::from_lengths(parts.iter().map(|&(_, count)| count));
        let microbatch = Microbatch {
            ids: sequences
                .clone()
                .flat_map(|(sequence, count)| &sequence.tokens[sequence.computed..][..count])
                .copied()
                .collect(),
            cached: Some(BlockTables::new(
                sequences
                    .clone()
                    .map(|(sequence, _)| BlockTable {
                        past: sequence.computed,
                        blocks: sequence.blocks.clone(),
                    })
                    .collect(),
            )),
            rope_lengths: sequences
                .clone()
                .map(|(sequence, _)| sequence.rope_length())
                .collect(),
            segments: Segments::new(
                layout.rows(),
                segments(
                    layout.iter().zip(
                        sequences
                            .clone()
                            .map(|(sequence, _)| sequence.request.adapter.slot),
                    ),
                ),
            )?,
            sequences: layout.clone(),
            draws: None,
            targets: Targets::default(),
        };
        let is_complete = |(sequence, count): (&Sequence, usize)| {
            sequence.computed + count == sequence.tokens.len()
        };
        let complete = layout.iter().zip(sequences.clone().map(is_complete));
        let rows: Vec<usize> = complete
            .filter(|(_, is)| *is)
            .map(|(rows, _)| rows.end - 1)
            .collect();
        let group = parts
            .first()
            .map_or(0, |&(index, _)| running[index].request.adapter.group);
        let logits = pipeline.next_logits(group, &microbatch, &mut self.caches, &rows)?;
        let mut logits = logits.chunks_exact(self.vocabulary);
        for &(index, count) in parts {
            let sequence = &mut self.running[index];
            sequence.advance(count, &mut self.pool, self.rotation);
            if sequence.computed < sequence.tokens.len() {
                continue;
            }
            let Some(logits) = logits.next() else {
                break;
            };
            tokens.push(self.pick(index, logits));
        }
        Ok(())
    }

    fn pick(&mut self, index: usize, logits: &[f32]) -> Token {
        let sequence = &mut self.running[index];
        let (answer, request) = (sequence.answer(), &sequence.request);
        let id = request.sampling.pick(logits, &sequence.tokens, answer);
        let log_probs = LogProbs::new(logits);
        let mut token = Token {
            request: sequence.id,
            id,
            log_prob: log_probs.of(logits[id as usize]),
            top: likeliest(logits, request.top_log_probs, &log_probs),
            finish: None,
        };
        token.finish = sequence.push(id, self.context, self.rotation);
        if token.finish.is_some() {
            // Without blocks it leaves the running sequences.
            sequence.release(&mut self.pool);
        }
        token
    }
}

/// Rows of each slot, those that follow each other as one segment.
fn segments(rows: impl Iterator<Item = (std::ops::Range<usize>, Option<usize>)>) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for (rows, slot) in rows {
        let Some(slot) = slot else {
            continue;
        };
        match segments.last_mut() {
            Some(last) if last.slot == slot && last.rows.end == rows.start => {
                last.rows.end = rows.end;
            }
            _ => segments.push(Segment { rows, slot }),
        }
    }
    segments
}

fn likeliest(logits: &[f32], count: usize, log_probs: &LogProbs) -> Vec<(u32, f32)> {
    if count == 0 {
        return Vec::new();
    }
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let likelier = |a: &u32, b: &u32| {
        logits[*b as usize]
            .total_cmp(&logits[*a as usize])
            .then(a.cmp(b))
    };
    if count < order.len() {
        order.select_nth_unstable_by(count - 1, likelier);
        order.truncate(count);
    }
    order.sort_unstable_by(likelier);
    let pair = |token: u32| (token, log_probs.of(logits[token as usize]));
    order.into_iter().map(pair).collect()
}
