/// A module that adapters adapt: a linear layer of a decoder layer, the embedding or the output projection. No model
/// has all: Phi-3 has one for queries, keys and values, and one for gate and up-projection.
///
/// The embedding belongs to the first decoder layer, the output projection to the last: a stage with the layer has the
/// projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Projection {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Attention output.
    O,
    /// Gate of the MLP.
    Gate,
    /// Up-projection of the MLP.
    Up,
    /// Down-projection of the MLP.
    Down,
    /// Queries, keys and values in one (Phi-3).
    Qkv,
    /// Gate and up-projection in one (Phi-3).
    GateUp,
    /// The embedding.
    EmbedTokens,
    /// The output projection.
    LmHead,
}

impl Projection {
    /// Number of them.
    pub const COUNT: usize = 11;

    /// All of them.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Q,
        Self::K,
        Self::V,
        Self::O,
        Self::Gate,
        Self::Up,
        Self::Down,
        Self::Qkv,
        Self::GateUp,
        Self::EmbedTokens,
        Self::LmHead,
    ];

    /// Those outside of decoder layers.
    pub const ENDS: [Self; 2] = [Self::EmbedTokens, Self::LmHead];

    /// Those of a model's decoder layers, in the order they are applied: `all-linear`.
    pub fn applied(fused: bool) -> &'static [Self] {
        if fused {
            &[Self::Qkv, Self::O, Self::GateUp, Self::Down]
        } else {
            Self::ALL.split_at(7).0
        }
    }

    /// The name used in `target_modules`, such as `q_proj`.
    pub fn name(self) -> &'static str {
        self.path()
            .rsplit_once('.')
            .map_or(self.path(), |(_, name)| name)
    }

    /// True if the projection is in decoder layer `layer` of a model of `layers`, or belongs to it.
    pub fn is_at(self, layer: usize, layers: usize) -> bool {
        match self {
            Self::EmbedTokens => layer == 0,
            Self::LmHead => layer + 1 == layers,
            _ => true,
        }
    }

    /// The path within a decoder layer, such as `self_attn.q_proj`, or within the model.
    pub fn path(self) -> &'static str {
        match self {
            Self::Q => "self_attn.q_proj",
            Self::K => "self_attn.k_proj",
            Self::V => "self_attn.v_proj",
            Self::O => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
            Self::Qkv => "self_attn.qkv_proj",
            Self::GateUp => "mlp.gate_up_proj",
            Self::EmbedTokens => "model.embed_tokens",
            Self::LmHead => "lm_head",
        }
    }

    /// The path within the model, as PEFT's keys have it: `model.layers.3.self_attn.q_proj`.
    pub fn module(self, layer: usize) -> String {
        match self {
            Self::EmbedTokens | Self::LmHead => self.path().to_owned(),
            _ => format!("model.layers.{layer}.{}", self.path()),
        }
    }

    /// The layer's coordinate in the dropout counter, distinct over the model.
    pub fn number(self, layer: usize) -> u32 {
        // Seven a layer, as a model has at most: one that is in place of several has the first's.
        let within = match self {
            Self::Qkv => Self::Q,
            Self::GateUp => Self::Gate,
            // The first of the layer that would follow the last.
            Self::LmHead => return ((layer + 1) * 7) as u32,
            Self::EmbedTokens => return u32::MAX,
            other => other,
        };
        (layer * 7 + within as usize) as u32
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Projection;

    /// Fused projections are in place of others, and no model has both.
    #[test]
    fn numbers_are_distinct_over_a_model() {
        const LAYERS: usize = 5;
        for fused in [false, true] {
            let modules = Projection::applied(fused).iter().chain(&Projection::ENDS);
            let modules = modules.flat_map(|&one| (0..LAYERS).map(move |layer| (one, layer)));
            let modules = modules.filter(|(one, layer)| one.is_at(*layer, LAYERS));
            let numbers: Vec<u32> = modules.map(|(one, layer)| one.number(layer)).collect();
            let distinct: BTreeSet<&u32> = numbers.iter().collect();
            assert_eq!(distinct.len(), numbers.len(), "{numbers:?}");
        }
    }
}
