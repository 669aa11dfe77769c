//! Operands as cuBLAS reads them.

use std::ffi::{c_int, c_longlong};

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;

/// Layout of the matrices of a batch.
#[derive(Clone, Copy)]
pub(super) struct Matrices {
    /// Neighbours in memory belong to one column.
    pub(super) transposed: bool,
    /// Elements from one row, or column, to the next.
    pub(super) leading: c_int,
    /// Elements from one matrix to the next.
    pub(super) apart: c_longlong,
}

impl Matrices {
    /// Of a tensor `[rows, columns]` or `[batch, rows, columns]`; `None` if cuBLAS cannot read it in place.
    pub(super) fn of(tensor: &CubeTensor) -> Option<Self> {
        let dims = tensor.meta.num_dims();
        if !(2..=3).contains(&dims) || tensor.meta.is_tiled() {
            return None;
        }
        let (shape, strides) = (tensor.meta.shape(), tensor.meta.strides());
        let [rows, columns] = [shape[dims - 2], shape[dims - 1]];
        let [down, along] = [strides[dims - 2], strides[dims - 1]];
        let (transposed, lines, length, leading) = if along == 1 || columns == 1 {
            (false, rows, columns, down)
        } else if down == 1 || rows == 1 {
            (true, columns, rows, along)
        } else {
            return None;
        };
        if length == 0 || lines == 0 || lines > 1 && leading < length {
            return None;
        }
        Some(Self {
            transposed,
            leading: leading.max(length).try_into().ok()?,
            apart: match shape[0] {
                batch if dims == 3 && batch > 1 => strides[0] as c_longlong,
                _ => 0,
            },
        })
    }
}

pub(super) struct Product {
    pub(super) m: c_int,
    pub(super) n: c_int,
    pub(super) k: c_int,
    pub(super) batch: c_int,
    pub(super) left: Matrices,
    pub(super) right: Matrices,
    pub(super) out: Matrices,
    /// Bytes before the first line of the result.
    pub(super) offset: u64,
    /// Adds the product to the output instead of replacing it.
    pub(super) add: bool,
    /// `cudaDataType` of the factors and of the result.
    pub(super) types: [c_int; 2],
}

/// `cudaDataType` of factors and result; `None` if cuBLAS does not multiply them with `float32` sums.
pub(super) fn types(factors: DType, result: DType) -> Option<[c_int; 2]> {
    let of = |dtype| match dtype {
        DType::F32 => Some(0),
        DType::F16 => Some(2),
        DType::BF16 => Some(14),
        _ => None,
    };
    (result == factors || result == DType::F32).then_some([of(factors)?, of(result)?])
}
