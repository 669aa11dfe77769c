use burn::backend::{
    Backend, ExtensionType,
    autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy},
    tensor::{FloatTensor, IntTensor},
};

use super::BatchLoraOps;
use crate::nf4::Nf4Layout;

/// A [`FrozenWeight`](crate::FrozenWeight) of a backend.
#[derive(Debug, Clone, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub(crate) enum Frozen<B: Backend> {
    /// `[d_in, d_out]`.
    Dense(FloatTensor<B>),
    /// See [`Nf4Layout`].
    Nf4 {
        codes: IntTensor<B>,
        scales: FloatTensor<B>,
        layout: Nf4Layout,
    },
}

impl<B: BatchLoraOps> Frozen<B> {
    /// The weight in floating point, `[d_in, d_out]`.
    pub(super) fn dense(self) -> FloatTensor<B> {
        match self {
            Self::Dense(weight) => weight,
            Self::Nf4 {
                codes,
                scales,
                layout,
            } => B::float_transpose(B::nf4_dequantize(codes, scales, layout)),
        }
    }
}

impl<B: Backend, C: CheckpointStrategy> Frozen<Autodiff<B, C>> {
    /// The weight without a graph: it gets no gradient.
    pub(super) fn into_primitive(self) -> Frozen<B> {
        match self {
            Self::Dense(weight) => Frozen::Dense(weight.into_primitive()),
            Self::Nf4 {
                codes,
                scales,
                layout,
            } => Frozen::Nf4 {
                codes,
                scales: scales.into_primitive(),
                layout,
            },
        }
    }
}
