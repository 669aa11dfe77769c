use burn::tensor::Tensor;

use crate::{
    AttentionShape,
    ops::{cached_attention, self_attention},
};

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
        let (count, tokens) = (shape.sequences.len(), shape.sequences.longest());
        let (heads, width) = (shape.num_kv_heads, shape.head_dim);
        assert_eq!(
            shape.sequences.rows(),
            count * tokens,
            "cached sequences advance together"
        );
        let split = |x: Tensor<2>| x.reshape([count, tokens, heads, width]).swap_dims(1, 2);
        let new = [split(k.clone()), split(v.clone())];
        let Some([past_k, past_v]) = self.past.take() else {
            self.past = Some(new);
            return self_attention(q, k, v, shape);
        };
        let [new_k, new_v] = new;
        let all = [vec![past_k, new_k], vec![past_v, new_v]].map(|parts| Tensor::cat(parts, 2));
        let total = all[0].dims()[2];
        self.past = Some(all.clone());
        let [k, v] = all.map(|x| x.reshape([count * heads, total, width]));
        cached_attention(q, k, v, shape)
    }

    /// Tokens in the cache.
    pub fn len(&self) -> usize {
        self.past.as_ref().map_or(0, |[k, _]| k.dims()[2])
    }

    /// True before the first tokens.
    pub fn is_empty(&self) -> bool {
        self.past.is_none()
    }
}
