use burn::{backend::Dispatch, tensor::Tensor};

use crate::{Routing, ops::BatchLoraOps};

/// `H = X W + concat_i( s_i · D_i(x_i) A_i B_i )` for all adapters of a batch, as one node.
///
/// The frozen weight gets no gradient; a and b get theirs if they require it. Where x is of
/// another type than the adapters, the adapters are cast to it for the product (their gradients
/// come back in their own type).
///
/// # Shapes
/// - x: `[rows, d_in]`, weight: `[d_in, d_out]`
/// - a: `[Σr, d_in]`, b: `[Σr, d_out]`, as an [`AdapterBank`](crate::AdapterBank) packs them
/// - output: `[rows, d_out]`
///
/// # Panics
/// If the shapes do not fit each other or the routing.
pub fn lora_linear(
    x: Tensor<2>,
    weight: Tensor<2>,
    a: Tensor<2>,
    b: Tensor<2>,
    routing: &Routing,
) -> Tensor<2> {
    let ([rows, d_in], [w_in, w_out]) = (x.dims(), weight.dims());
    let ([a_rank, a_in], [b_rank, b_out]) = (a.dims(), b.dims());
    assert!(
        rows == routing.rows()
            && d_in == w_in
            && (a_in, b_out) == (w_in, w_out)
            && (a_rank, b_rank) == (routing.rank_sum(), routing.rank_sum()),
        "lora_linear: x [{rows}, {d_in}], weight [{w_in}, {w_out}], a [{a_rank}, {a_in}] and b \
         [{b_rank}, {b_out}] do not fit a routing of {} rows over a total rank of {}",
        routing.rows(),
        routing.rank_sum(),
    );
    if routing.rank_max() == 0 {
        return frozen_linear(x, weight);
    }
    let dtype = x.dtype();
    let (a, b) = if a.dtype() == dtype {
        (a, b)
    } else {
        (a.cast(dtype), b.cast(dtype))
    };
    Tensor::from_dispatch(Dispatch::lora_linear(
        x.into_dispatch(),
        weight.into_dispatch(),
        a.into_dispatch(),
        b.into_dispatch(),
        routing.clone(),
    ))
}

/// x `[rows, d_in]` times a frozen weight `[d_in, d_out]`, which gets no gradient; output
/// `[rows, d_out]`. On the CPU a row's bits do not depend on the number of rows.
pub fn frozen_linear(x: Tensor<2>, weight: Tensor<2>) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::frozen_matmul(
        x.into_dispatch(),
        weight.into_dispatch(),
    ))
}

/// A scalar whose `backward()` gives `gradient` to `output`, exactly and without computing
/// anything: how a gradient that was computed elsewhere enters a graph.
///
/// # Shapes
/// - output, gradient: `[rows, d_model]`
/// - returns: `[1]`
///
/// # Panics
/// If the two shapes differ.
pub fn seed_gradient(output: Tensor<2>, gradient: Tensor<2>) -> Tensor<1> {
    assert_eq!(
        output.dims(),
        gradient.dims(),
        "seed_gradient: one gradient per element"
    );
    Tensor::from_dispatch(Dispatch::seed_gradient(
        output.into_dispatch(),
        gradient.into_dispatch(),
    ))
}
