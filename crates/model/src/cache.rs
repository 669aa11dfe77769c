use burn::tensor::{Bool, Tensor, TensorData, activation::softmax};

use crate::AttentionShape;

/// Keys and values of one layer's past tokens, for generation.
#[derive(Debug, Clone, Default)]
pub struct LayerCache {
    /// Keys and values, `[sequences, kv_heads, past, head_dim]`.
    past: Option<[Tensor<4>; 2]>,
}

impl LayerCache {
    /// Appends k and v `[sequences · tokens, kv_heads · head_dim]` and attends with q
    /// `[sequences · tokens, heads · head_dim]` over everything so far; output as q.
    ///
    /// # Panics
    /// If the sequences are not all of the same length.
    pub fn attend(
        &mut self,
        q: Tensor<2>,
        k: Tensor<2>,
        v: Tensor<2>,
        shape: &AttentionShape,
    ) -> Tensor<2> {
        let AttentionShape {
            sequences,
            num_heads,
            num_kv_heads,
            head_dim,
            ..
        } = shape;
        let (count, tokens) = (sequences.len(), sequences.longest());
        assert_eq!(
            sequences.rows(),
            count * tokens,
            "cached sequences advance together"
        );
        let split = |x: Tensor<2>, heads: usize| {
            x.reshape([count, tokens, heads, *head_dim]).swap_dims(1, 2)
        };
        let new = [split(k, *num_kv_heads), split(v, *num_kv_heads)];
        let [k, v] = match self.past.take() {
            Some([k, v]) => {
                let [new_k, new_v] = new;
                [
                    Tensor::cat(vec![k, new_k], 2),
                    Tensor::cat(vec![v, new_v], 2),
                ]
            }
            None => new,
        };
        self.past = Some([k.clone(), v.clone()]);

        let total = k.dims()[2];
        let group = num_heads / num_kv_heads;
        let q = split(q, *num_heads).reshape([count, *num_kv_heads, group, tokens, *head_dim]);
        let k = k.reshape([count, *num_kv_heads, 1, total, *head_dim]);
        let v = v.reshape([count, *num_kv_heads, 1, total, *head_dim]);
        let scores = q.matmul(k.swap_dims(3, 4)).mul_scalar(shape.scale());
        let hidden: Vec<bool> = (total - tokens..total)
            .flat_map(|query| {
                let seen = shape.first_key(query)..=query;
                (0..total).map(move |key| !seen.contains(&key))
            })
            .collect();
        let hidden = TensorData::new(hidden, [1, 1, 1, tokens, total]);
        let hidden = Tensor::<5, Bool>::from_data(hidden, &scores.device());
        let hidden = hidden.expand(scores.dims());
        let probabilities = softmax(scores.mask_fill(hidden, f32::NEG_INFINITY), 4);
        let out = probabilities
            .matmul(v)
            .reshape([count, *num_heads, tokens, *head_dim]);
        out.swap_dims(1, 2)
            .reshape([count * tokens, num_heads * head_dim])
    }

    /// Tokens in the cache.
    pub fn len(&self) -> usize {
        self.past.as_ref().map_or(0, |[k, _]| k.dims()[2])
    }

    /// Whether nothing was cached yet.
    pub fn is_empty(&self) -> bool {
        self.past.is_none()
    }
}
