use std::collections::BTreeMap;

use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};

use crate::{BatchLora, LoraPair, RoutedSegment, frozen_linear};

/// An embedding's adapters: A is `[Σr, num_embeddings]`, B is `[Σr, embedding_dim]`. As in PEFT, dropout does not
/// apply. Gradients are computed without a graph. The products are those of frozen weights, which GPUs do not round.
impl BatchLora {
    /// `embedded + s · A[:, ids]ᵀ B` in every row of an adapter.
    ///
    /// # Shapes
    /// - embedded, output: `[rows, embedding_dim]`
    /// - ids: `[rows]`, below `num_embeddings`
    pub fn add_embedded(&self, embedded: Tensor<2>, ids: &Tensor<1, Int>) -> Tensor<2> {
        let [rows, width] = embedded.dims();
        let (mut parts, mut end) = (Vec::new(), 0);
        for segment in self.routing().segments() {
            let (begin, after) = (segment.rows.start, segment.rows.end);
            if end < begin {
                parts.push(embedded.clone().slice([end..begin, 0..width]));
            }
            let b = self.rank_rows(segment).b;
            let product = frozen_linear(self.columns(segment, ids).transpose(), b);
            let product = product.mul_scalar(segment.scale).cast(embedded.dtype());
            parts.push(embedded.clone().slice([begin..after, 0..width]) + product);
            end = after;
        }
        if end < rows {
            parts.push(embedded.slice([end..rows, 0..width]));
        }
        Tensor::cat(parts, 0)
    }

    /// The gradients of A and B for that of [`add_embedded`](Self::add_embedded)'s output, `[rows, embedding_dim]`.
    pub fn embedded_gradient(&self, gradient: &Tensor<2>, ids: &Tensor<1, Int>) -> LoraPair {
        let weights = self.weights();
        let ([rank_sum, vocabulary], [_, width]) = (weights.a.dims(), weights.b.dims());
        let device = weights.a.device().without_autodiff();
        let zeros = |rows, columns| Tensor::zeros([rows, columns], (&device, DType::F32));
        // By the first of a slot's rows in the packed weights.
        let mut of_slots: BTreeMap<usize, LoraPair> = BTreeMap::new();
        for segment in self.routing().segments() {
            let rows = segment.rows.clone();
            let gradient = gradient.clone().slice([rows.clone(), 0..width]);
            let factor = segment.scale / segment.loss_scale;
            let gradient = gradient.cast(DType::F32).mul_scalar(factor);
            let b = frozen_linear(self.columns(segment, ids), gradient.clone());
            let columns = frozen_linear(self.rank_rows(segment).b, gradient.transpose());
            let ids = ids.clone().slice([rows]);
            let a = zeros(segment.ranks.len(), vocabulary);
            let a = if segment.freeze_a {
                a
            } else {
                a.select_assign(1, ids, columns, IndexingUpdateOp::Add)
            };
            let pair = LoraPair::new(a, b);
            let pair = match of_slots.remove(&segment.ranks.start) {
                Some(sum) => sum.zip_with(pair, |sum, part| sum + part),
                None => pair,
            };
            of_slots.insert(segment.ranks.start, pair);
        }
        let (mut a, mut b, mut end) = (Vec::new(), Vec::new(), 0);
        for (start, pair) in of_slots {
            if end < start {
                a.push(zeros(start - end, vocabulary));
                b.push(zeros(start - end, width));
            }
            end = start + pair.a.dims()[0];
            a.push(pair.a);
            b.push(pair.b);
        }
        if end < rank_sum {
            a.push(zeros(rank_sum - end, vocabulary));
            b.push(zeros(rank_sum - end, width));
        }
        LoraPair::new(Tensor::cat(a, 0), Tensor::cat(b, 0))
    }

    /// The segment's columns of A, `[r, rows]`.
    fn columns(&self, segment: &RoutedSegment, ids: &Tensor<1, Int>) -> Tensor<2> {
        let ids = ids.clone().slice([segment.rows.clone()]);
        self.rank_rows(segment).a.select(1, ids)
    }

    /// The segment's rows of A and B, outside of any graph.
    fn rank_rows(&self, segment: &RoutedSegment) -> LoraPair {
        let rows = |t: Tensor<2>| t.without_autodiff().slice_dim(0, segment.ranks.clone());
        self.weights().map(rows)
    }
}
