//! The units of a cube over rows, and reductions over a row.

use batchlora_kernels::launch::cubes;
use burn::tensor::DType;
use burn_cubecl::{cubecl, kernel::cast, tensor::CubeTensor};
use cubecl::prelude::*;

/// Units of a cube.
pub(super) const UNITS: usize = 256;
/// Vectors of a row that one unit takes before a row gets more units.
pub(super) const VECTORS_PER_UNIT: usize = 4;
/// Below every score and logit: the initial value of a maximum.
pub(super) const LOWEST: f32 = -3.0e38;

/// The units of a cube over rows.
pub(super) struct RowLayout {
    /// Units on one row, a power of two.
    pub(super) lanes: usize,
    /// Rows of a cube.
    pub(super) rows: usize,
}

impl RowLayout {
    pub(super) fn new(vectors: usize) -> Self {
        let lanes = vectors.div_ceil(VECTORS_PER_UNIT).next_power_of_two();
        let lanes = lanes.min(UNITS);
        Self {
            lanes,
            rows: UNITS / lanes,
        }
    }

    /// Cubes for this number of rows.
    pub(super) fn cubes(&self, rows: usize) -> CubeCount {
        cubes(rows.div_ceil(self.rows))
    }
}

pub(super) fn float32(tensor: CubeTensor) -> CubeTensor {
    if tensor.dtype == DType::F32 {
        return tensor;
    }
    cast(tensor, DType::F32)
}

/// The sum over the lanes of a row, returned to each of them. Every unit of the cube must call this.
#[cube]
pub(super) fn row_sum(value: f32, #[comptime] lanes: usize) -> f32 {
    let unit = UNIT_POS as usize;
    let lane = UNIT_POS_X as usize;
    let mut sums = Shared::<[f32]>::new_slice(comptime!(UNITS));
    sums[unit] = value;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(lanes.ilog2()) {
        let half = comptime!(lanes >> (step + 1));
        if lane < half {
            let sum = sums[unit] + sums[unit + half];
            sums[unit] = sum;
        }
        sync_cube();
    }
    let total = sums[unit - lane];
    // Later code may use the same shared memory.
    sync_cube();
    total
}

/// The maximum over the lanes of a row, returned to each of them. Every unit of the cube must call this.
#[cube]
pub(super) fn row_max(value: f32, #[comptime] lanes: usize) -> f32 {
    let unit = UNIT_POS as usize;
    let lane = UNIT_POS_X as usize;
    let mut largest = Shared::<[f32]>::new_slice(comptime!(UNITS));
    largest[unit] = value;
    sync_cube();
    #[unroll]
    for step in 0..comptime!(lanes.ilog2()) {
        let half = comptime!(lanes >> (step + 1));
        if lane < half {
            let other = largest[unit + half];
            if other > largest[unit] {
                largest[unit] = other;
            }
        }
        sync_cube();
    }
    let found = largest[unit - lane];
    // Later code may use the same shared memory.
    sync_cube();
    found
}

/// The sum of a vector's elements.
#[cube]
pub(super) fn element_sum<N: Size>(value: Vector<f32, N>) -> f32 {
    let size = N::value();
    let mut sum = value.extract(0usize);
    #[unroll]
    for index in 1..size {
        sum += value.extract(index);
    }
    sum
}

/// The maximum of a vector's elements.
#[cube]
pub(super) fn element_max<N: Size>(value: Vector<f32, N>) -> f32 {
    let size = N::value();
    let mut largest = value.extract(0usize);
    #[unroll]
    for index in 1..size {
        let element = value.extract(index);
        if element > largest {
            largest = element;
        }
    }
    largest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cube_is_full_whatever_the_width() {
        for vectors in [1, 3, 32, 100, 1024, 1025, 100_000] {
            let RowLayout { lanes, rows } = RowLayout::new(vectors);
            assert!(lanes.is_power_of_two() && lanes * rows == UNITS);
        }
    }
}
