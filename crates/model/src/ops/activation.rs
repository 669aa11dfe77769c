/// Activation of the gate of a feed-forward block. Both are `z · σ(s(z))`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `z · σ(z)`: `silu` in transformers.
    Silu,
    /// `z / 2 · (1 + tanh(√(2/π) (z + 0.044715 z³)))`: `gelu_pytorch_tanh` in transformers. As
    /// `(1 + tanh u) / 2 = σ(2u)`, it is `z · σ(z (GELU_SLOPE + GELU_CUBE z²))`.
    GeluTanh,
}

/// `2 √(2/π)`.
pub(super) const GELU_SLOPE: f32 = 1.595_769;
/// `2 √(2/π) · 0.044715`.
pub(super) const GELU_CUBE: f32 = 0.071_354_814;
