use std::{iter::Sum, ops::Add};

use crate::LlamaConfig;

/// Floating-point operations of the forward and the backward pass. Products are counted; norms,
/// activations, rotations and the optimizer, which are bound by memory traffic, are not.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Operations {
    /// Of the forward pass.
    pub forward: f64,
    /// Of the backward pass, with what gradient checkpointing computes again.
    pub backward: f64,
}

impl Operations {
    /// Both passes together.
    pub fn total(self) -> f64 {
        self.forward + self.backward
    }
}

impl Add for Operations {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            forward: self.forward + other.forward,
            backward: self.backward + other.backward,
        }
    }
}

impl Sum for Operations {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::add)
    }
}

/// The work of one adapter's rows in a decoder layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerWork {
    /// Rows that pass through it.
    pub tokens: f64,
    /// Pairs of a query and a key that it sees; see [`attention_pairs`].
    pub attention_pairs: f64,
    /// Parameters of the adapter in this layer.
    pub adapter_parameters: usize,
}

/// Operations of one decoder layer. A frozen weight takes two operations a token, and two for the
/// gradient of its input. Attention takes two products forward and five backward, where the scores are
/// computed again, and once more if they are bounded. An adapter's factors take two operations a parameter and token, two for the
/// gradient of their input and two for their own.
pub fn layer_operations(
    model: &LlamaConfig,
    work: LayerWork,
    gradient_checkpointing: bool,
) -> Operations {
    let weights: usize = model
        .linears()
        .iter()
        .map(|linear| linear.d_in * linear.d_out)
        .sum();
    let width = model.num_attention_heads * model.head_dim;
    let frozen = 2.0 * weights as f64 * work.tokens;
    let product = 2.0 * width as f64 * work.attention_pairs;
    let adapter = 2.0 * work.adapter_parameters as f64 * work.tokens;
    let forward = frozen + 2.0 * product + adapter;
    let backward_products = if model.attention_softcap.is_some() {
        6.0
    } else {
        5.0
    };
    let again = if gradient_checkpointing { forward } else { 0.0 };
    Operations {
        forward,
        backward: frozen + backward_products * product + 2.0 * adapter + again,
    }
}

/// Operations of the output projection over target tokens, and of the gradient of its input, which is
/// computed with the losses.
pub fn head_operations(model: &LlamaConfig, targets: f64) -> Operations {
    let product = 2.0 * (model.vocab_size * model.d_model) as f64 * targets;
    Operations {
        forward: 2.0 * product,
        backward: 0.0,
    }
}

/// The look-up of embedding rows; a copied element counts as one operation.
pub fn embedding_operations(model: &LlamaConfig, tokens: f64) -> Operations {
    Operations {
        forward: model.d_model as f64 * tokens,
        backward: 0.0,
    }
}

/// Pairs of a query and a key that it sees in a sequence of `length` tokens: each token sees itself
/// and those before it, at most `window` in all.
pub fn attention_pairs(length: usize, window: Option<usize>) -> usize {
    let seen = window.map_or(length, |window| window.min(length));
    seen * (seen + 1) / 2 + (length - seen) * seen
}

#[cfg(test)]
mod tests {
    use super::{
        LayerWork, attention_pairs, embedding_operations, head_operations, layer_operations,
    };
    use crate::LlamaConfig;

    #[test]
    #[expect(
        clippy::float_cmp,
        reason = "products of small whole numbers are exact"
    )]
    fn operations_are_those_of_the_products() {
        let mut model = LlamaConfig::named("micro").unwrap();
        (model.vocab_size, model.d_model, model.d_ffn) = (40, 16, 24);
        (
            model.num_attention_heads,
            model.num_key_value_heads,
            model.head_dim,
        ) = (2, 1, 8);
        let weights = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24;
        let frozen = f64::from(2 * weights * 4);
        let parameters = 4 * (16 + 16);
        let adapter = f64::from(2 * 4 * (16 + 16) * 4);
        for pairs in [10, 4] {
            let work = LayerWork {
                tokens: 4.0,
                attention_pairs: f64::from(pairs),
                adapter_parameters: parameters,
            };
            let product = f64::from(2 * 16 * pairs);
            let found = layer_operations(&model, work, false);
            assert_eq!(found.forward, frozen + 2.0 * product + adapter);
            assert_eq!(found.backward, frozen + 5.0 * product + 2.0 * adapter);
            let again = layer_operations(&model, work, true);
            assert_eq!(again.forward, found.forward);
            assert_eq!(again.backward, found.total());
        }
        model.attention_softcap = Some(50.0);
        let work = LayerWork {
            tokens: 4.0,
            attention_pairs: 10.0,
            adapter_parameters: parameters,
        };
        let bounded = layer_operations(&model, work, false).backward;
        assert_eq!(
            bounded,
            frozen + 6.0 * f64::from(2 * 16 * 10) + 2.0 * adapter
        );
        let found = head_operations(&model, 4.0);
        assert_eq!((found.forward, found.backward), (10240.0, 0.0));
        let found = embedding_operations(&model, 4.0);
        assert_eq!((found.forward, found.backward), (64.0, 0.0));
    }

    #[test]
    fn pairs_are_counted_one_by_one() {
        for length in [1, 2, 6, 9] {
            for window in [None, Some(1), Some(3), Some(6), Some(100)] {
                let seen = |query: usize| window.map_or(query + 1, |window| window.min(query + 1));
                let expected: usize = (0..length).map(seen).sum();
                assert_eq!(attention_pairs(length, window), expected, "{window:?}");
            }
        }
    }
}
