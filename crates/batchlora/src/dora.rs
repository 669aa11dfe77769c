//! DoRA (Liu et al. 2024, arXiv 2402.09353, Eq. 5): the output of an adapted layer, column by column times
//! `m / ‖W + s·A B‖`. As in section 4.3 of the paper, and in PEFT, no gradient passes through the norm.

use std::ops::Range;

use burn::{
    backend::Dispatch,
    tensor::{DType, Tensor},
};

use crate::{
    BatchLoraError, LoraPair, LoraSpec, frozen_linear,
    ops::{BatchLoraOps, ScaledRanks},
};

/// Elements of a weight in half precision that are held in `float32` at a time.
const HELD: usize = 1 << 24;

/// The squared norms of the columns of a weight `[d_in, d_out]`: `[1, d_out]` in `float32`.
pub(crate) fn squared_norms(weight: &Tensor<2>) -> Tensor<2> {
    by_columns(weight, HELD, |part| part.square().sum_dim(0))
}

/// The norms of the columns of `W + s·A B` for each packed adapter with DoRA, `[adapters, d_out]` in `float32`. `squares`
/// are those of [`squared_norms`], `specs` those of all packed adapters.
pub(crate) fn adapted_norms(
    weight: &Tensor<2>,
    squares: &Tensor<2>,
    adapters: &LoraPair,
    specs: &[LoraSpec],
) -> Tensor<2> {
    let (mut start, mut end, mut dora, mut rows) = (0, 0, Vec::new(), Vec::new());
    for spec in specs {
        if spec.use_dora {
            rows.push(start..start + spec.r);
            dora.push(ScaledRanks {
                ranks: end..end + spec.r,
                scale: spec.scale(),
            });
            end += spec.r;
        }
        start += spec.r;
    }
    let packed = |t: &Tensor<2>| {
        let t = t.clone().without_autodiff();
        if end == start {
            return t;
        }
        let of_adapter = |rows: &Range<usize>| t.clone().slice_dim(0, rows.clone());
        Tensor::cat(rows.iter().map(of_adapter).collect(), 0)
    };
    let (a, b) = (packed(&adapters.a), packed(&adapters.b));
    let products = by_columns(weight, HELD, |part| frozen_linear(a.clone(), part));
    Tensor::from_dispatch(Dispatch::lora_dora_norms(
        squares.clone().into_dispatch(),
        products.into_dispatch(),
        a.into_dispatch(),
        b.into_dispatch(),
        dora,
    ))
}

/// A function of the columns of a weight `[d_in, d_out]` in `float32`, joined; about `held` elements are cast at a time.
fn by_columns(weight: &Tensor<2>, held: usize, of: impl Fn(Tensor<2>) -> Tensor<2>) -> Tensor<2> {
    let weight = weight.clone().without_autodiff();
    let [d_in, d_out] = weight.dims();
    if weight.dtype() == DType::F32 {
        return of(weight);
    }
    let columns = (held / d_in.max(1)).max(1);
    let parts = (0..d_out).step_by(columns).map(|start| {
        let part = start..(start + columns).min(d_out);
        of(weight.clone().slice_dim(1, part).cast(DType::F32))
    });
    Tensor::cat(parts.collect(), 1)
}

/// Refuses a DoRA adapter without a magnitude.
pub(crate) fn check(spec: &LoraSpec, weights: &LoraPair) -> Result<(), BatchLoraError> {
    if spec.use_dora == weights.magnitude.is_some() {
        return Ok(());
    }
    Err(BatchLoraError::InvalidConfig(format!(
        "use_dora is {}, and the adapter has {} magnitude",
        spec.use_dora,
        if spec.use_dora { "no" } else { "a" }
    )))
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Device, Tensor, TensorData};

    use super::by_columns;

    #[test]
    fn columns_in_parts_are_the_whole() {
        let values: Vec<f32> = (0..13 * 9).map(|value| value as f32).collect();
        let weight = TensorData::new(values.clone(), [13, 9]);
        let weight: Tensor<2> = Tensor::from_data(weight, (&Device::flex(), DType::BF16));
        for held in [1, 4 * 13, 1000] {
            let found = by_columns(&weight, held, |part| part);
            let found: Vec<f32> = found.into_data().try_into_vec().unwrap();
            assert_eq!(found, values, "{held}");
        }
    }
}
