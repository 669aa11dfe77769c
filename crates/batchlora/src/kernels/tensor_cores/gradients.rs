//! `dS`, `dA` and `dB` in four launches: dS, the partial sums of dA and of dB, and the sums of both.

use batchlora_kernels::launch::{by_rows, cube_dim, empty, record, vector_size};
use burn::{backend::TensorMetadata, tensor::DType};
use burn_cubecl::{cubecl, tensor::CubeTensor};
use cubecl::prelude::*;

use super::partial_sums;
use crate::{
    Routing,
    kernels::{
        shrink::shrink,
        weight_grad::{LANES, sum_row},
    },
    ops::Side,
};

/// `(dS, dA, dB)`.
pub(in crate::kernels) fn gradients(
    x: CubeTensor,
    gradient: CubeTensor,
    narrow: CubeTensor,
    weight: CubeTensor,
    routing: &Routing,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [x, gradient, narrow] = [x, gradient, narrow].map(by_rows);
    let tables = routing.tables(&x.client, &x.device);
    let ds = shrink(gradient.clone(), weight, routing, Side::Output);
    let widths = [x.shape()[1], gradient.shape()[1]];
    let [da, db] = widths.map(|width| empty(&x, [routing.rank_sum(), width], DType::F32));
    if routing.rank_sum() == 0 {
        return (ds, da, db);
    }
    let partials = widths.map(|width| empty(&x, [tables.partial_rows.max(1), width], DType::F32));
    if tables.block_count > 0 {
        let [of_a, of_b] = &partials;
        partial_sums(x, by_rows(ds.clone()), of_a, &tables, routing, Side::Input);
        partial_sums(gradient, narrow, of_b, &tables, routing, Side::Output);
    }
    let [of_a, of_b] = partials;
    let size = vector_size(&[&of_a, &of_b, &da, &db]);
    let vectors = widths.map(|width| width / size);
    record(&[&of_a, &of_b], &[&da, &db]);
    sum_both_kernel::launch(
        &da.client,
        CubeCount::Static(
            routing.rank_sum() as u32,
            vectors[0].max(vectors[1]).div_ceil(LANES) as u32,
            2,
        ),
        cube_dim(LANES, 1),
        size,
        of_a.into_tensor_arg(),
        of_b.into_tensor_arg(),
        tables.sums.into_buffer_arg(),
        da.clone().into_tensor_arg(),
        db.clone().into_tensor_arg(),
    );
    (ds, da, db)
}

/// The first cubes along z add the partial sums of packed rows of dA, the others those of dB.
#[cube(launch)]
fn sum_both_kernel<N: Size>(
    of_a: &Tensor<Vector<f32, N>>,
    of_b: &Tensor<Vector<f32, N>>,
    sums: &[u32],
    da: &mut Tensor<Vector<f32, N>>,
    db: &mut Tensor<Vector<f32, N>>,
) {
    let row = CUBE_POS_X as usize;
    let column = CUBE_POS_Y as usize * LANES + UNIT_POS_X as usize;
    if CUBE_POS_Z == 0 {
        sum_row::<N>(of_a, sums, row, column, da, 0u32);
    } else {
        sum_row::<N>(of_b, sums, row, column, db, 1u32);
    }
}
