use std::ops::Range;

use batchlora::{
    AdapterBank, BatchLora, BatchLoraError, DropoutDraw, FrozenWeight, LoraPair, Segment, Segments,
    frozen_linear, frozen_linear_backward, seed_gradient,
};
use burn::{
    module::Module,
    nn::RmsNorm,
    tensor::{Bool, DType, Device, FloatDType, IndexingUpdateOp, Int, Tensor, TensorData},
};

use crate::{
    LlamaConfig, Targets,
    layer::{normalise, scaled},
    ops::{cross_entropy, rms_norm_backward},
    smoothing::{SmoothedRows, in_chunk, smoothed_cross_entropy},
};

/// Bytes of logits that are held at a time on the CPU, so that they stay in its caches.
const HOST_LOGITS: usize = 64 << 20;
/// Bytes of logits on other devices: 2,093 rows in `bfloat16` at a vocabulary of 128,256. A chunk reads all
/// weights of the projection twice, and should keep a whole device busy.
const DEVICE_LOGITS: usize = 512 << 20;
/// Even chunks begin at multiples of this many rows, where a slice of one number a row is a view, not a copy.
const CHUNK_ROWS: usize = 128;

/// Elements of an output projection in NF4 that are made dense at a time: 128 MiB in half precision, about as much as a
/// projection of a layer.
pub(crate) const HEAD_PART: usize = 1 << 26;

/// Adapters of the output projection, and the rows of a batch that they serve.
#[derive(Debug, Clone, Copy)]
pub struct HeadAdapters<'a> {
    /// Their weights.
    pub bank: &'a AdapterBank,
    /// Rows of each slot.
    pub segments: &'a Segments,
    /// Position of each slot in its dropout counter; `None` is evaluation, without dropout.
    pub draws: Option<&'a [DropoutDraw]>,
}

impl HeadAdapters<'_> {
    /// True for rows that have an adapter, `[rows]`, of rows given in order.
    fn have(&self, rows: &[usize], device: &Device) -> Tensor<1, Bool> {
        let mut have = vec![false; rows.len()];
        for segment in self.segments.iter() {
            if self.bank.rank(segment.slot) > 0 {
                let within = |row: usize| rows.partition_point(|&other| other < row);
                have[within(segment.rows.start)..within(segment.rows.end)].fill(true);
            }
        }
        let count = have.len();
        Tensor::from_data(TensorData::new(have, [count]), device)
    }

    /// The adapters of some of the batch's rows, given in order; `None` if none has one.
    fn of_rows(&self, rows: &[usize]) -> Result<Option<BatchLora>, BatchLoraError> {
        let within = |row: usize| rows.partition_point(|&other| other < row);
        let segments = self.segments.iter().map(|segment| Segment {
            rows: within(segment.rows.start)..within(segment.rows.end),
            slot: segment.slot,
        });
        let dropout_rows = self.segments.dropout_rows();
        let dropout_rows = rows.iter().map(|&row| dropout_rows[row]);
        let segments = Segments::new(rows.len(), segments.collect())?
            .with_dropout_rows(dropout_rows.collect())?
            .with_loss_scales(self.segments.loss_scales().to_vec())?;
        self.bank.attach(&segments, self.draws)
    }
}

/// A loss and its gradients.
#[derive(Debug)]
pub struct HeadLoss {
    /// Cross-entropy of every target in the order given, with label smoothing if it has any, then the loss of each of [`Targets::paraphrases`].
    pub losses: Tensor<1>,
    /// The gradient of `Σ weight · loss` for the hidden states, `[rows, d_model]`.
    pub gradient: Tensor<2>,
    /// Its gradient for the adapters of the output projection, if there are any.
    pub adapters: Option<LoraPair>,
}

/// The end of the model: final norm and output projection, and the loss fused with them.
#[derive(Module, Debug)]
pub struct LanguageModelHead {
    pub(crate) norm: RmsNorm,
    /// The output projection, `[d_model, vocabulary]`: with tied embeddings a view of the embedding.
    pub(crate) weight: FrozenWeight,
    /// Factor of the logits. The hidden states are multiplied by it, which are smaller than the logits.
    #[module(skip)]
    pub(crate) multiplier: Option<f64>,
    /// Bound of the logits.
    #[module(skip)]
    pub(crate) softcap: Option<f32>,
}

impl LanguageModelHead {
    /// Logits `[rows, vocabulary]` of hidden states `[rows, d_model]`.
    ///
    /// # Errors
    /// If the adapters' segments do not fit the rows.
    pub fn logits(
        &self,
        hidden: Tensor<2>,
        adapters: Option<HeadAdapters<'_>>,
    ) -> Result<Tensor<2>, BatchLoraError> {
        let attach =
            |adapters: HeadAdapters<'_>| adapters.bank.attach(adapters.segments, adapters.draws);
        let lora = adapters.map(attach).transpose()?.flatten();
        let logits = self.project(self.normal(hidden), lora.as_ref())?;
        Ok(self.bounded(logits))
    }

    /// The cross-entropy of every target, and the gradients of `Σ weight · loss`. Hidden states are
    /// `[rows, d_model]`, targets in the order of their rows.
    ///
    /// Only rows that predict a target are projected, a chunk at a time: the logits are never held at once.
    ///
    /// # Errors
    /// If the adapters' segments do not fit the rows.
    pub fn loss(
        &self,
        hidden: Tensor<2>,
        targets: &Targets,
        adapters: Option<HeadAdapters<'_>>,
    ) -> Result<HeadLoss, BatchLoraError> {
        let (device, [rows, d_model]) = (hidden.device(), hidden.dims());
        if targets.rows.is_empty() {
            return Ok(HeadLoss {
                losses: no_values(&device, [0]),
                gradient: hidden.zeros_like(),
                adapters: None,
            });
        }
        let selected = hidden.select(0, integers(&targets.rows, &device));
        let adapters = adapters.filter(|adapters| adapters.bank.rank_sum() > 0);
        let mut weights = weights_of(targets, &device);
        let mut factors = None;
        // The gradient of an adapter is a sum over targets, which no factor of a target can scale afterwards.
        if let Some(adapters) = adapters
            && !targets.preferences.is_empty()
        {
            let losses = self.losses(selected.clone(), targets, adapters)?;
            let all = targets.factors(&losses);
            let before = adapters.have(&targets.rows, &device);
            weights = weights
                .clone()
                .mask_where(before.clone(), weights * all.clone());
            factors = Some(all.mask_fill(before, 1.0));
        }
        let (mut gradients, mut of_adapters) = (Vec::new(), None::<LoraPair>);
        let losses = self.by_chunk(selected.clone(), targets, weights, adapters, |chunk| {
            let Chunk { rows, lora, .. } = chunk;
            let (rows, lora) = match lora {
                Some(lora) => (rows.autodiff().require_grad(), Some(lora.require_grad())),
                None => (rows, None),
            };
            let projected = self.project(rows.clone(), lora.as_ref())?;
            let logits = self.bounded(projected.clone().without_autodiff());
            let slope = self.slope(&logits);
            let (ids, weights) = (chunk.ids, chunk.weights);
            let (loss, gradient) = smoothed_cross_entropy(logits, ids, weights, &chunk.smoothed);
            let gradient = match slope {
                Some(slope) => gradient * slope,
                None => gradient,
            };
            let Some(lora) = lora else {
                gradients.push(frozen_linear_backward(gradient, self.weight.clone()));
                return Ok(loss);
            };
            let mut found = seed_gradient(projected, gradient).backward();
            gradients.extend(rows.grad_remove(&mut found));
            if let Some(part) = lora.take_gradient(&mut found) {
                of_adapters = Some(match of_adapters.take() {
                    Some(sum) => sum.zip_with(part, |sum, part| sum + part),
                    None => part,
                });
            }
            Ok(loss)
        })?;
        let mut losses = joined(losses, 0);
        let (gamma, epsilon) = (self.norm.gamma.val(), self.norm.epsilon);
        let mut gradient = scaled(joined(gradients, 0), self.multiplier);
        if !targets.preferences.is_empty() {
            let factors = factors.unwrap_or_else(|| targets.factors(&losses));
            let factors = factors.unsqueeze_dim::<2>(1).cast(gradient.dtype());
            gradient = gradient * factors;
        }
        if !targets.paraphrases.is_empty() {
            (losses, gradient) = self.contrast(&selected, targets, losses, gradient);
        }
        let gradient = rms_norm_backward(selected, gamma, gradient, epsilon);
        // Every row gathers a target's gradient; rows that predict nothing are then masked, as a product
        // with zero would keep NaN.
        let mut target_of = vec![0; rows];
        let mut idle = vec![true; rows];
        for (target, &row) in targets.rows.iter().enumerate() {
            debug_assert!(idle[row], "row {row} predicts two tokens");
            target_of[row] = target;
            idle[row] = false;
        }
        let gradient = gradient.select(0, integers(&target_of, &device));
        let idle = Tensor::<2, Bool>::from_data(TensorData::new(idle, [rows, 1]), &device);
        Ok(HeadLoss {
            losses,
            gradient: gradient.mask_fill(idle.expand([rows, d_model]), 0.0),
            adapters: of_adapters,
        })
    }

    /// Appends the losses over paraphrases, and adds their gradients to that of the normal hidden states, both in the
    /// order of the targets.
    fn contrast(
        &self,
        selected: &Tensor<2>,
        targets: &Targets,
        losses: Tensor<1>,
        mut gradient: Tensor<2>,
    ) -> (Tensor<1>, Tensor<2>) {
        let mut all = vec![losses.clone()];
        for paraphrases in &targets.paraphrases {
            let ends = integers(&paraphrases.ends(), &losses.device());
            let states = normalise(selected.clone().select(0, ends.clone()), &self.norm);
            let (loss, part) = paraphrases.loss(states, &losses);
            let part = part.cast(gradient.dtype());
            gradient = gradient.select_assign(0, ends, part, IndexingUpdateOp::Add);
            all.push(loss);
        }
        (joined(all, 0), gradient)
    }

    /// Scores of every target, `[2, targets]` in `float32`: the losses of [`loss`](Self::loss), and 1
    /// where the target has the largest logit, otherwise 0. Of equal logits the first token's counts.
    ///
    /// # Errors
    /// As [`loss`](Self::loss)'s.
    pub fn target_scores(
        &self,
        hidden: Tensor<2>,
        targets: &Targets,
        adapters: Option<HeadAdapters<'_>>,
    ) -> Result<Tensor<2>, BatchLoraError> {
        let device = hidden.device();
        if targets.rows.is_empty() {
            return Ok(no_values(&device, [2, 0]));
        }
        let selected = hidden.select(0, integers(&targets.rows, &device));
        let weights = weights_of(targets, &device);
        let scores = self.by_chunk(selected, targets, weights, adapters, |chunk| {
            let logits = self.bounded(self.project(chunk.rows, chunk.lora.as_ref())?);
            let likeliest = logits.clone().argmax(1).reshape([-1]);
            let correct = likeliest.equal(chunk.ids.clone()).float();
            let (losses, _) =
                smoothed_cross_entropy(logits, chunk.ids, chunk.weights, &chunk.smoothed);
            let correct = correct.cast(losses.dtype());
            Ok(Tensor::<1>::stack::<2>(vec![losses, correct], 0))
        })?;
        Ok(joined(scores, 1))
    }

    /// The cross-entropy of every target, `[targets]`.
    fn losses(
        &self,
        selected: Tensor<2>,
        targets: &Targets,
        adapters: HeadAdapters<'_>,
    ) -> Result<Tensor<1>, BatchLoraError> {
        let weights = weights_of(targets, &selected.device());
        let losses = self.by_chunk(selected, targets, weights, Some(adapters), |chunk| {
            let logits = self.bounded(self.project(chunk.rows, chunk.lora.as_ref())?);
            Ok(cross_entropy(logits, chunk.ids, chunk.weights).0)
        })?;
        Ok(joined(losses, 0))
    }

    /// The product of normal rows with the output projection, with their adapters.
    fn project(
        &self,
        rows: Tensor<2>,
        lora: Option<&BatchLora>,
    ) -> Result<Tensor<2>, BatchLoraError> {
        let weight = self.weight.clone();
        match lora {
            Some(lora) => lora.forward(rows, weight),
            None => Ok(frozen_linear(rows, weight)),
        }
    }

    /// `softcap · tanh(logits / softcap)`, if they are bounded.
    fn bounded(&self, logits: Tensor<2>) -> Tensor<2> {
        match self.softcap {
            Some(cap) => logits.div_scalar(cap).tanh().mul_scalar(cap),
            None => logits,
        }
    }

    /// The slope of the bound at bounded logits, `1 - tanh²`.
    fn slope(&self, bounded: &Tensor<2>) -> Option<Tensor<2>> {
        let tangent = bounded.clone().div_scalar(self.softcap?);
        Some(tangent.powi_scalar(2).neg().add_scalar(1.0))
    }

    /// The input of the output projection, `[rows, d_model]`, of hidden states.
    pub fn normal(&self, hidden: Tensor<2>) -> Tensor<2> {
        scaled(normalise(hidden, &self.norm), self.multiplier)
    }

    /// What `of` makes of every chunk of hidden states already selected, `[targets, d_model]`.
    fn by_chunk<T>(
        &self,
        selected: Tensor<2>,
        targets: &Targets,
        weights: Tensor<1>,
        adapters: Option<HeadAdapters<'_>>,
        mut of: impl FnMut(Chunk) -> Result<T, BatchLoraError>,
    ) -> Result<Vec<T>, BatchLoraError> {
        let (device, [count, d_model]) = (selected.device(), selected.dims());
        let ids = integers(&targets.ids, &device);
        let normal = self.normal(selected);
        let [_, vocabulary] = self.weight.dims();
        let bytes = row_bytes(vocabulary, normal.dtype().size(), self.softcap.is_some());
        let most = logits_held(device == Device::flex()) / bytes;
        let adapters = adapters.filter(|adapters| adapters.bank.rank_sum() > 0);
        let chunks = match adapters {
            Some(adapters) => chunks_by_segment(&targets.rows, adapters.segments, most),
            None => even_chunks(0..count, most),
        };
        let chunks = chunks.into_iter().map(|Range { start, end }| {
            of(Chunk {
                rows: normal.clone().slice([start..end, 0..d_model]),
                ids: ids.clone().narrow(0, start, end - start),
                weights: weights.clone().narrow(0, start, end - start),
                smoothed: in_chunk(&targets.smoothed, &(start..end)),
                lora: match adapters {
                    Some(adapters) => adapters.of_rows(&targets.rows[start..end])?,
                    None => None,
                },
            })
        });
        chunks.collect()
    }
}

fn weights_of(targets: &Targets, device: &Device) -> Tensor<1> {
    let weights = TensorData::new(targets.weights.clone(), [targets.weights.len()]);
    Tensor::from_data(weights, (device, DType::from(FloatDType::F32)))
}

/// Rows that predict targets.
struct Chunk {
    /// Normal hidden states, `[targets, d_model]`.
    rows: Tensor<2>,
    ids: Tensor<1, Int>,
    weights: Tensor<1>,
    smoothed: SmoothedRows,
    lora: Option<BatchLora>,
}

/// Chunks of targets that are even and of `most` or few more.
fn even_chunks(targets: Range<usize>, most: usize) -> Vec<Range<usize>> {
    let chunk = chunk_rows(targets.len(), most);
    let starts = targets.clone().step_by(chunk.max(1));
    let chunks = starts.map(|start| start..(start + chunk).min(targets.end));
    chunks.collect()
}

/// Chunks of targets that cut a segment only if it has more than `most` by itself: the gradient of an adapter is a
/// sum over its chunks, so other segments must not move their ends.
fn chunks_by_segment(rows: &[usize], segments: &Segments, most: usize) -> Vec<Range<usize>> {
    let within = |row: usize| rows.partition_point(|&other| other < row);
    let ends = segments
        .iter()
        .flat_map(|segment| [within(segment.rows.start), within(segment.rows.end)]);
    let (mut chunks, mut begin) = (Vec::new(), 0);
    let mut last = 0;
    for end in ends.chain([rows.len()]) {
        if end == last {
            continue;
        }
        if end - begin > most && begin < last {
            chunks.push(begin..last);
            begin = last;
        }
        if end - begin > most {
            chunks.extend(even_chunks(begin..end, most));
            begin = end;
        }
        last = end;
    }
    if begin < last {
        chunks.push(begin..last);
    }
    chunks
}

/// Bytes of the buffers of [`LanguageModelHead::loss`] over this many targets: the logits of a chunk and their gradient,
/// and the targets' hidden states, normalised and not. With adapters of the output projection, which have these ranks,
/// also the batch's hidden states, their gradient, the rank-r products with theirs, and the packed adapters.
pub fn loss_bytes(
    model: &LlamaConfig,
    targets: usize,
    ranks: &[usize],
    element_bytes: usize,
    on_host: bool,
) -> usize {
    if targets == 0 {
        return 0;
    }
    let hidden = targets * model.d_model * element_bytes;
    let largest = ranks.iter().copied().max().unwrap_or(0);
    let adapters = if largest > 0 {
        let packed = ranks.iter().sum::<usize>() * (model.d_model + model.vocab_size);
        2 * (hidden + targets * largest * size_of::<f32>()) + packed * size_of::<f32>()
    } else {
        0
    };
    let row = row_bytes(
        model.vocab_size,
        element_bytes,
        model.logit_softcap.is_some(),
    );
    let chunk = chunk_rows(targets, logits_held(on_host) / row).min(targets);
    2 * (chunk * row + hidden) + adapters
}

/// Bytes of a row's logits, with the slope of their bound, which is as large.
fn row_bytes(vocabulary: usize, element_bytes: usize, bounded: bool) -> usize {
    vocabulary * element_bytes * if bounded { 2 } else { 1 }
}

/// Most bytes of a chunk's logits.
fn logits_held(on_host: bool) -> usize {
    if on_host { HOST_LOGITS } else { DEVICE_LOGITS }
}

/// Rows of a chunk: chunks are even and have `most` rows or few more.
fn chunk_rows(count: usize, most: usize) -> usize {
    let chunks = count.div_ceil(most.max(1));
    count.div_ceil(chunks).next_multiple_of(CHUNK_ROWS)
}

pub(crate) fn joined<const D: usize>(mut parts: Vec<Tensor<D>>, dimension: usize) -> Tensor<D> {
    match parts.len() {
        1 => parts.remove(0),
        _ => Tensor::cat(parts, dimension),
    }
}

fn no_values<const D: usize>(device: &Device, shape: [usize; D]) -> Tensor<D> {
    Tensor::zeros(shape, (device, DType::from(FloatDType::F32)))
}

fn integers<T: Copy + TryInto<i32>>(values: &[T], device: &Device) -> Tensor<1, Int> {
    // Rows and tokens of a batch are far below 2^31.
    let values = values.iter().map(|&v| v.try_into().unwrap_or(i32::MAX));
    let values: Vec<i32> = values.collect();
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}

#[cfg(test)]
mod tests {
    use super::{chunk_rows, loss_bytes};
    use crate::LlamaConfig;

    #[test]
    fn a_loss_has_two_buffers_as_large_as_a_chunk_of_logits() {
        let mut model = LlamaConfig::named("micro").unwrap();
        (model.vocab_size, model.d_model) = (1000, 16);
        let bytes = |model: &LlamaConfig, targets| loss_bytes(model, targets, &[0], 4, true);
        assert_eq!(bytes(&model, 0), 0);
        assert_eq!(bytes(&model, 200), 2 * 200 * (1000 + 16) * 4);
        assert_eq!(
            loss_bytes(&model, 200, &[8, 0, 2], 4, true),
            2 * 200 * (1000 + 16 + 16 + 8) * 4 + (8 + 2) * (1000 + 16) * 4
        );
        model.logit_softcap = Some(30.0);
        assert_eq!(bytes(&model, 200), 2 * 200 * (2000 + 16) * 4);
        // Of so many targets a chunk holds 64 MiB of logits at most, up to a vector of rows.
        model.logit_softcap = None;
        let rows = chunk_rows(100_000, (64 << 20) / 4000);
        assert!(rows < 16_800, "{rows}");
        assert_eq!(bytes(&model, 100_000), 2 * (rows * 1000 + 100_000 * 16) * 4);
    }

    #[test]
    fn chunks_are_even_and_of_whole_vectors_of_rows() {
        // At a vocabulary of 128,256 in bfloat16.
        for (on_host, expected) in [(false, 2_048), (true, 384)] {
            let rows = chunk_rows(16_384, super::logits_held(on_host) / (128_256 * 2));
            assert_eq!(rows, expected);
        }
        for (count, most, expected) in [
            (1, 1, 128),
            (5, 100, 128),
            (1000, 100, 128),
            (300, 299, 256),
        ] {
            assert_eq!(chunk_rows(count, most), expected, "{count} of {most}");
        }
    }
}
