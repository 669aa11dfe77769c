//! Operations of a group's step, by layer: what the products take, in the model and in the adapters.
//! Norms, activations, rotations and the optimizer take memory traffic rather than operations and
//! are not counted.

use loraloom_model::LlamaConfig;

use super::{parameters::Ranks, workload::Workload};

/// A task's part in a group.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member<'a> {
    pub(super) load: &'a Workload,
    pub(super) ranks: &'a Ranks,
}

/// Operations of forward and backward passes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Operations {
    pub(super) forward: f64,
    pub(super) backward: f64,
}

impl Operations {
    /// Both together.
    pub(super) fn total(self) -> f64 {
        self.forward + self.backward
    }

    pub(super) fn add(self, other: Self) -> Self {
        Self {
            forward: self.forward + other.forward,
            backward: self.backward + other.backward,
        }
    }
}

/// One layer over a step of some tasks. A product with a frozen weight takes two operations a weight
/// and token, and two more for the gradient of its input; attention two products forward and five
/// backward, where scores are computed again; an adapter as many again for each of its factors'
/// gradients.
pub(super) fn layer(
    model: &LlamaConfig,
    layer: usize,
    members: &[Member<'_>],
    gradient_checkpointing: bool,
) -> Operations {
    let weights: usize = model.linears().iter().map(|l| l.d_in * l.d_out).sum();
    let width = (model.num_attention_heads * model.head_dim) as f64;
    let mut sum = Operations::default();
    for Member { load, ranks } in members {
        let frozen = 2.0 * weights as f64 * load.tokens();
        let product = 2.0 * width * load.attention_pairs(model.sliding_window[layer]);
        let adapter = 2.0 * ranks.parameters(model, layer) as f64 * load.tokens();
        let forward = frozen + 2.0 * product + adapter;
        let again = if gradient_checkpointing { forward } else { 0.0 };
        sum = sum.add(Operations {
            forward,
            backward: frozen + 5.0 * product + 2.0 * adapter + again,
        });
    }
    sum
}

/// The output projection over the targets, and the gradient of its input.
pub(super) fn head(model: &LlamaConfig, members: &[Member<'_>]) -> Operations {
    let targets: f64 = members.iter().map(|member| member.load.targets()).sum();
    let product = 2.0 * (model.vocab_size * model.d_model) as f64 * targets;
    Operations {
        forward: product,
        backward: product,
    }
}

/// The look-up of the tokens' rows: an element copied counts as an operation.
pub(super) fn embedding(model: &LlamaConfig, members: &[Member<'_>]) -> Operations {
    let tokens: f64 = members.iter().map(|member| member.load.tokens()).sum();
    Operations {
        forward: model.d_model as f64 * tokens,
        backward: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use loraloom_data::Sample;
    use loraloom_model::LlamaConfig;

    use super::{
        super::{parameters::Ranks, workload::Workload},
        Member, embedding, head, layer,
    };

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
        model.sliding_window[1] = Some(1);
        // Five tokens, each but the first a target: four are put through the model.
        let sample = Sample {
            ids: vec![0; 5],
            is_target: vec![false, true, true, true, true],
        };
        let load = Workload::of(1, 1, &[sample]);
        let ranks = Ranks::uniform(4, &["q_proj"], &model);
        let member = Member {
            load: &load,
            ranks: &ranks,
        };
        let weights = 2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24;
        let frozen = f64::from(2 * weights * 4);
        let adapter = f64::from(2 * 4 * (16 + 16) * 4);
        for (index, pairs) in [(0, 10), (1, 4)] {
            let product = f64::from(2 * 16 * pairs);
            let found = layer(&model, index, &[member], false);
            assert_eq!(found.forward, frozen + 2.0 * product + adapter);
            assert_eq!(found.backward, frozen + 5.0 * product + 2.0 * adapter);
            let again = layer(&model, index, &[member, member], true);
            assert_eq!(again.forward, 2.0 * found.forward);
            assert_eq!(again.backward, 2.0 * (found.backward + found.forward));
        }
        let found = head(&model, &[member]);
        assert_eq!((found.forward, found.backward), (5120.0, 5120.0));
        let found = embedding(&model, &[member]);
        assert_eq!((found.forward, found.backward), (64.0, 0.0));
    }
}
