use loraloom_model::LlamaConfig;

use crate::{PartCosts, simulate::PassCosts};

/// An estimate of what one token costs each part of a model in a step, before anything is measured:
/// floating-point operations, forward and backward together.
///
/// Frozen weights cost two operations forward and two for the gradient of their input, causal
/// attention `6 · width · length`; adapters and everything elementwise are left out. Looking up an
/// embedding costs nothing beside that.
#[derive(Debug, Clone, PartialEq)]
pub struct PassWork {
    /// Of every decoder layer.
    pub layers: Vec<f64>,
    /// Of the embedding.
    pub embedding: f64,
    /// Of the head, if every token predicts another.
    pub head: f64,
}

impl PassWork {
    /// Estimates for sequences of so many tokens.
    pub fn of(model: &LlamaConfig, length: usize) -> Self {
        let linears = model.linears().map(|linear| linear.d_in * linear.d_out);
        let weights: usize = linears.iter().sum();
        let attention = 6 * model.num_attention_heads * model.head_dim * length;
        let layer = (4 * weights + attention) as f64;
        Self {
            layers: vec![layer; model.num_hidden_layers],
            embedding: 0.0,
            head: (4 * model.vocab_size * model.d_model) as f64,
        }
    }

    /// The work as costs: half of a layer's is its backward pass, the head's is all done in the forward
    /// pass.
    pub fn costs(&self) -> PartCosts {
        let passes = |forward, backward| PassCosts {
            forward,
            backward,
            step: 0.0,
        };
        let layers = self.layers.iter();
        PartCosts {
            layers: layers.map(|&work| passes(work / 2.0, work / 2.0)).collect(),
            embedding: passes(self.embedding, 0.0),
            head: passes(self.head, 0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use loraloom_model::LlamaConfig;

    use super::PassWork;

    #[test]
    fn work_is_that_of_the_products() {
        let mut model = LlamaConfig::named("micro").unwrap();
        (model.vocab_size, model.d_model, model.d_ffn) = (40, 16, 24);
        (
            model.num_attention_heads,
            model.num_key_value_heads,
            model.head_dim,
        ) = (2, 1, 8);
        let weights = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24;
        let work = PassWork::of(&model, 4);
        assert_eq!(work.layers, vec![f64::from(4 * weights + 6 * 16 * 4); 8]);
        assert_eq!((work.embedding, work.head), (0.0, 4.0 * 640.0));
    }
}
