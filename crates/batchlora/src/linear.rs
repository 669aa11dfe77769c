use burn::{
    backend::Dispatch,
    tensor::{DType, Tensor},
};

use crate::{BatchLoraError, FrozenWeight, LoraPair, Routing, ops::BatchLoraOps};

/// `H = X W + concat_i( s_i · D_i(x_i) A_i B_i )` for all adapters of a batch, as one node.
///
/// The frozen weight gets no gradient; a and b get theirs, in `float32`, if they require it. Sums
/// are `float32` whatever the type of x.
///
/// # Shapes
/// - x: `[rows, d_in]`, weight: `[d_in, d_out]`, both `float32`, `float16` or `bfloat16`; the weight may be in NF4
/// - a: `[Σr, d_in]`, b: `[Σr, d_out]`, as an [`AdapterBank`](crate::AdapterBank) packs them
/// - output: `[rows, d_out]`, as x
///
/// # Errors
/// [`BatchLoraError::Shape`] if the shapes do not fit each other or the routing,
/// [`BatchLoraError::InvalidConfig`] if x and weight are not of one type that is served, or a and b
/// not `float32`.
pub fn lora_linear(
    x: Tensor<2>,
    weight: impl Into<FrozenWeight>,
    a: Tensor<2>,
    b: Tensor<2>,
    routing: &Routing,
) -> Result<Tensor<2>, BatchLoraError> {
    let weight = weight.into();
    check(&x, &weight, [&a, &b], routing)?;
    if routing.rank_max() == 0 || x.dims()[0] == 0 {
        return Ok(frozen_linear(x, weight));
    }
    Ok(Tensor::from_dispatch(Dispatch::lora_linear(
        x.into_dispatch(),
        weight.into_frozen(),
        a.into_dispatch(),
        b.into_dispatch(),
        routing.clone(),
    )))
}

/// As [`lora_linear`], with the magnitudes of adapters with DoRA and the norms of their weights, `[magnitudes, d_out]`.
///
/// # Errors
/// As [`lora_linear`]'s.
pub(crate) fn dora_linear(
    x: Tensor<2>,
    weight: FrozenWeight,
    LoraPair { a, b, magnitude }: LoraPair,
    norms: Tensor<2>,
    routing: &Routing,
) -> Result<Tensor<2>, BatchLoraError> {
    check(&x, &weight, [&a, &b], routing)?;
    let Some(magnitude) = magnitude else {
        return lora_linear(x, weight, a, b, routing);
    };
    Ok(Tensor::from_dispatch(Dispatch::lora_dora(
        x.into_dispatch(),
        weight.into_frozen(),
        a.into_dispatch(),
        b.into_dispatch(),
        magnitude.into_dispatch(),
        norms.into_dispatch(),
        routing.clone(),
    )))
}

fn check(
    x: &Tensor<2>,
    weight: &FrozenWeight,
    [a, b]: [&Tensor<2>; 2],
    routing: &Routing,
) -> Result<(), BatchLoraError> {
    let ([rows, d_in], [w_in, w_out]) = (x.dims(), weight.dims());
    let ([a_rank, a_in], [b_rank, b_out]) = (a.dims(), b.dims());
    let fits = rows == routing.rows()
        && d_in == w_in
        && (a_in, b_out) == (w_in, w_out)
        && (a_rank, b_rank) == (routing.rank_sum(), routing.rank_sum());
    if !fits {
        return Err(BatchLoraError::Shape(format!(
            "x [{rows}, {d_in}], weight [{w_in}, {w_out}], a [{a_rank}, {a_in}] and b [{b_rank}, \
             {b_out}] for a routing of {} rows over a total rank of {}",
            routing.rows(),
            routing.rank_sum(),
        )));
    }
    let served = [DType::F32, DType::F16, DType::BF16];
    if x.dtype() != weight.dtype() || !served.contains(&x.dtype()) {
        return Err(BatchLoraError::InvalidConfig(format!(
            "x is {:?} and the frozen weight {:?}: both must be one of F32, F16, BF16",
            x.dtype(),
            weight.dtype(),
        )));
    }
    if (a.dtype(), b.dtype()) != (DType::F32, DType::F32) {
        return Err(BatchLoraError::InvalidConfig(format!(
            "a is {:?} and b {:?}: packed adapters are F32",
            a.dtype(),
            b.dtype(),
        )));
    }
    Ok(())
}

/// x `[rows, d_in]` times a frozen weight `[d_in, d_out]`, which gets no gradient; output
/// `[rows, d_out]`. On the CPU a row's bits do not depend on the number of rows.
pub fn frozen_linear(x: Tensor<2>, weight: impl Into<FrozenWeight>) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::frozen_linear(
        x.into_dispatch(),
        weight.into().into_frozen(),
    ))
}

/// The gradient of x, `[rows, d_in]`, for that of [`frozen_linear`]'s output, `[rows, d_out]`.
pub fn frozen_linear_backward(gradient: Tensor<2>, weight: impl Into<FrozenWeight>) -> Tensor<2> {
    Tensor::from_dispatch(Dispatch::frozen_linear_backward(
        gradient.into_dispatch(),
        weight.into().into_frozen(),
    ))
}

/// A scalar whose `backward()` gives `gradient` to `output`, exactly and without computing anything, so that
/// a gradient computed elsewhere enters a graph.
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
