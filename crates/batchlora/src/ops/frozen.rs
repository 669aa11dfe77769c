use std::ops::Range;

use burn::{
    backend::{
        Backend, ExtensionType, TensorMetadata,
        autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy},
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{FloatDType, Shape, Slice},
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
    /// The same weight, dense if its copy is made in one part, so that several products share it.
    pub(super) fn opened(self) -> Self {
        match self {
            Self::Nf4 { layout, .. } if layout.parts().len() == 1 => {
                Self::Dense(B::float_transpose(self.part(0..layout.shape[0])))
            }
            _ => self,
        }
    }

    /// Rows of the transpose of a weight in NF4, or the transpose of a dense one.
    fn part(&self, rows: Range<usize>) -> FloatTensor<B> {
        match self {
            Self::Dense(weight) => B::float_transpose(weight.clone()),
            Self::Nf4 {
                codes,
                scales,
                layout,
            } => B::nf4_dequantize(codes.clone(), scales.clone(), *layout, rows),
        }
    }

    /// x `[rows, d_in]` times the weight, `[rows, d_out]`.
    pub(super) fn multiply(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        match self {
            Self::Dense(weight) => B::frozen_matmul(x, weight.clone()),
            Self::Nf4 { layout, .. } => {
                let product = |part| {
                    let weight = B::float_transpose(self.part(part));
                    B::frozen_matmul(x.clone(), weight)
                };
                let mut products: Vec<_> = layout.parts().map(product).collect();
                match products.len() {
                    1 => products.remove(0),
                    _ => B::float_cat(products, 1),
                }
            }
        }
    }

    /// Adds the product with x to the rows of `out` from `first` on.
    pub(super) fn multiply_add(
        &self,
        out: FloatTensor<B>,
        x: FloatTensor<B>,
        first: usize,
    ) -> FloatTensor<B> {
        if let Self::Dense(weight) = self {
            return B::frozen_matmul_add(out, x, weight.clone(), first);
        }
        let place = [(first..first + x.shape()[0]).into(), Slice::full()];
        let product = self.multiply(x);
        let sum = B::float_add(B::float_slice(out.clone(), &place), product);
        B::float_slice_assign(out, &place, sum)
    }

    /// A gradient `[rows, d_out]` times the transpose, `[rows, d_in]`.
    pub(super) fn multiply_transposed(&self, gradient: FloatTensor<B>) -> FloatTensor<B> {
        match self {
            Self::Dense(weight) => B::frozen_matmul(gradient, B::float_transpose(weight.clone())),
            Self::Nf4 { layout, .. } if layout.parts().len() == 1 => {
                B::frozen_matmul(gradient, self.part(0..layout.shape[0]))
            }
            Self::Nf4 { layout, .. } => {
                let dtype = gradient.dtype().into();
                let shape = Shape::new([gradient.shape()[0], layout.shape[1]]);
                let zeros = B::float_zeros(shape, &gradient.device(), FloatDType::F32);
                // Sums of parts in half precision would round once for each.
                let sum = layout.parts().fold(zeros, |sum, part| {
                    let columns = [Slice::full(), part.clone().into()];
                    let gradient = B::float_slice(gradient.clone(), &columns);
                    let product = B::frozen_matmul(gradient, self.part(part));
                    B::float_add(sum, B::float_cast(product, FloatDType::F32))
                });
                B::float_cast(sum, dtype)
            }
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
