/// The seven linear layers of a decoder layer, in the order of the computation.
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
}

impl Projection {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Q,
        Self::K,
        Self::V,
        Self::O,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// The name used in `target_modules`: `q_proj`, …, `down_proj`.
    pub fn name(self) -> &'static str {
        self.path()
            .rsplit_once('.')
            .map_or(self.path(), |(_, name)| name)
    }

    /// The path within a decoder layer: `self_attn.q_proj`, …, `mlp.down_proj`.
    pub fn path(self) -> &'static str {
        match self {
            Self::Q => "self_attn.q_proj",
            Self::K => "self_attn.k_proj",
            Self::V => "self_attn.v_proj",
            Self::O => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }

    /// The path within the model, as PEFT's keys have it: `model.layers.3.self_attn.q_proj`.
    pub fn module(self, layer: usize) -> String {
        format!("model.layers.{layer}.{}", self.path())
    }

    /// The layer's coordinate in the dropout counter, distinct over the model.
    pub fn number(self, layer: usize) -> u32 {
        (layer * Self::ALL.len() + self as usize) as u32
    }
}
