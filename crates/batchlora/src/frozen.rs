use burn::{
    backend::Dispatch,
    module::{Module, Param, ParamId},
    tensor::{DType, Device, FloatDType, Int, Tensor, TensorData},
};

use crate::{
    nf4::{Nf4, Nf4Layout},
    ops::{BatchLoraOps, Frozen},
};

/// A weight `[d_in, d_out]` that is not trained.
#[derive(Module, Debug)]
pub enum FrozenWeight {
    /// In floating point.
    Dense(Param<Tensor<2>>),
    /// In NF4. Every use makes a dense copy in the type of the operands and drops it.
    Nf4(Nf4Weight),
}

/// A weight in NF4 on a device.
#[derive(Module, Debug)]
pub struct Nf4Weight {
    codes: Param<Tensor<1, Int>>,
    scales: Param<Tensor<1>>,
    #[module(skip)]
    layout: Nf4Layout,
}

impl FrozenWeight {
    /// The transpose of a weight `[d_out, d_in]`, for operands of type `dtype`.
    pub fn from_nf4(weight: &Nf4, dtype: FloatDType, device: &Device) -> Self {
        let (codes, scales) = (weight.code_words(), weight.scale_words());
        let (of_codes, of_scales) = ([codes.len()], [scales.len()]);
        let codes = TensorData::new(codes, of_codes);
        let scales = TensorData::new(scales, of_scales);
        let scales = Tensor::from_data(scales, (device, DType::F32));
        Self::Nf4(Nf4Weight {
            codes: Param::initialized(
                ParamId::new(),
                Tensor::from_data(codes, (device, DType::U32)),
            ),
            scales: Param::initialized(ParamId::new(), scales).set_require_grad(false),
            layout: weight.layout(dtype),
        })
    }

    /// A weight in NF4 that is made dense in parts of its outputs, each of at most `most` elements and up to 64 outputs
    /// more. They cost a copy of the output; for weights whose dense copy is large beside everything else.
    #[must_use]
    pub fn in_parts(mut self, most: usize) -> Self {
        if let Self::Nf4(weight) = &mut self {
            weight.layout.part = most;
        }
        self
    }

    /// `[d_in, d_out]`.
    pub fn dims(&self) -> [usize; 2] {
        match self {
            Self::Dense(weight) => weight.dims(),
            Self::Nf4(weight) => {
                let [d_out, d_in] = weight.layout.shape;
                [d_in, d_out]
            }
        }
    }

    /// The type of operands.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Dense(weight) => weight.dtype(),
            Self::Nf4(weight) => weight.layout.dtype.into(),
        }
    }

    /// The weight in floating point, `[d_in, d_out]`.
    pub fn dense(&self) -> Tensor<2> {
        match self {
            Self::Dense(weight) => weight.val(),
            Self::Nf4(weight) => Tensor::<2>::from_dispatch(Dispatch::nf4_dequantize(
                weight.codes.val().into_dispatch(),
                weight.scales.val().into_dispatch(),
                weight.layout,
                0..weight.layout.shape[0],
            ))
            .transpose(),
        }
    }

    pub(crate) fn into_frozen(self) -> Frozen<Dispatch> {
        match self {
            Self::Dense(weight) => Frozen::Dense(weight.val().into_dispatch()),
            Self::Nf4(weight) => Frozen::Nf4 {
                codes: weight.codes.val().into_dispatch(),
                scales: weight.scales.val().into_dispatch(),
                layout: weight.layout,
            },
        }
    }
}

impl From<Tensor<2>> for FrozenWeight {
    fn from(weight: Tensor<2>) -> Self {
        Self::Dense(Param::initialized(ParamId::new(), weight))
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, FloatDType};

    use super::FrozenWeight;
    use crate::Nf4;

    #[test]
    fn parts_are_whole_blocks_and_all_of_a_weight() {
        let weight = Nf4::random([199, 20], FloatDType::F32, true);
        let weight = FrozenWeight::from_nf4(&weight, FloatDType::F32, &Device::flex());
        let parts = |weight: FrozenWeight| match weight {
            FrozenWeight::Nf4(weight) => weight.layout.parts().collect::<Vec<_>>(),
            FrozenWeight::Dense(_) => Vec::new(),
        };
        assert_eq!(parts(weight.clone()), vec![0..199; 1]);
        let expected = [0..64, 64..128, 128..192, 192..199];
        assert_eq!(parts(weight.in_parts(64 * 20)), expected);
    }
}
