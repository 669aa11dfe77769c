use multiversion::multiversion;
use rayon::prelude::*;

use super::{
    super::{
        Rotation,
        activation::{Activation, GELU_CUBE, GELU_SLOPE},
    },
    numerics::{exp, sum},
};

/// Elements that one thread takes at a time.
const BLOCK: usize = 1 << 14;

/// Whole rows of this width that make about a [`BLOCK`].
fn block_of_rows(width: usize) -> usize {
    (BLOCK / width).max(1) * width
}

/// `x / rms(x) · weight`: x `[rows, width]`, weight `[width]`.
pub(super) fn rms_norm(x: &[f32], weight: &[f32], epsilon: f64) -> Vec<f32> {
    let mut out = vec![0f32; x.len()];
    let block = block_of_rows(weight.len());
    out.par_chunks_mut(block)
        .zip(x.par_chunks(block))
        .for_each(|(out, x)| {
            rms_norm_rows(x, weight, epsilon as f32, out);
        });
    out
}

#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn rms_norm_rows(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let width = weight.len();
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let mean = sum(width, |i| x[i] * x[i]) / width as f32;
        let inverse = 1.0 / (mean + epsilon).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * inverse * weight;
        }
    }
}

/// The gradient of x.
pub(super) fn rms_norm_backward(
    x: &[f32],
    weight: &[f32],
    gradient: &[f32],
    epsilon: f64,
) -> Vec<f32> {
    let mut dx = vec![0f32; x.len()];
    let block = block_of_rows(weight.len());
    dx.par_chunks_mut(block)
        .zip(x.par_chunks(block))
        .zip(gradient.par_chunks(block))
        .for_each(|((dx, x), gradient)| {
            rms_norm_backward_rows(x, weight, gradient, epsilon as f32, dx);
        });
    dx
}

#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn rms_norm_backward_rows(
    x: &[f32],
    weight: &[f32],
    gradient: &[f32],
    epsilon: f32,
    dx: &mut [f32],
) {
    let width = weight.len();
    let rows = x.chunks_exact(width).zip(gradient.chunks_exact(width));
    for ((x, gradient), dx) in rows.zip(dx.chunks_exact_mut(width)) {
        let mean = sum(width, |i| x[i] * x[i]) / width as f32;
        let inverse = 1.0 / (mean + epsilon).sqrt();
        let along = sum(width, |i| gradient[i] * weight[i] * x[i]) / width as f32;
        let along = along * inverse * inverse;
        for (((dx, x), gradient), weight) in dx.iter_mut().zip(x).zip(gradient).zip(weight) {
            *dx = (gradient * weight - x * along) * inverse;
        }
    }
}

/// `act(gate) · up`.
pub(super) fn glu(gate: &[f32], up: &[f32], activation: Activation) -> Vec<f32> {
    let block = match activation {
        Activation::Silu => swiglu_block,
        Activation::GeluTanh => geglu_block,
    };
    let mut out = vec![0f32; gate.len()];
    out.par_chunks_mut(BLOCK)
        .zip(gate.par_chunks(BLOCK))
        .zip(up.par_chunks(BLOCK))
        .for_each(|((out, gate), up)| {
            block(gate, up, out);
        });
    out
}

#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn swiglu_block(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, &gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = gate / (1.0 + exp(-gate)) * up;
    }
}

#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn geglu_block(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, &gate), up) in out.iter_mut().zip(gate).zip(up) {
        let argument = gate * (GELU_SLOPE + GELU_CUBE * gate * gate);
        *out = gate / (1.0 + exp(-argument)) * up;
    }
}

/// The gradients of gate and up.
pub(super) fn glu_backward(
    gate: &[f32],
    up: &[f32],
    gradient: &[f32],
    activation: Activation,
) -> (Vec<f32>, Vec<f32>) {
    let block = match activation {
        Activation::Silu => swiglu_backward_block,
        Activation::GeluTanh => geglu_backward_block,
    };
    let (mut d_gate, mut d_up) = (vec![0f32; gate.len()], vec![0f32; gate.len()]);
    d_gate
        .par_chunks_mut(BLOCK)
        .zip(d_up.par_chunks_mut(BLOCK))
        .zip(gate.par_chunks(BLOCK))
        .zip(up.par_chunks(BLOCK))
        .zip(gradient.par_chunks(BLOCK))
        .for_each(|((((d_gate, d_up), gate), up), gradient)| {
            block(gate, up, gradient, d_gate, d_up);
        });
    (d_gate, d_up)
}

#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn swiglu_backward_block(
    gate: &[f32],
    up: &[f32],
    gradient: &[f32],
    d_gate: &mut [f32],
    d_up: &mut [f32],
) {
    let inputs = gate.iter().zip(up).zip(gradient);
    for (((&gate, up), gradient), (d_gate, d_up)) in inputs.zip(d_gate.iter_mut().zip(d_up)) {
        let sigmoid = 1.0 / (1.0 + exp(-gate));
        *d_up = gradient * gate * sigmoid;
        *d_gate = gradient * up * sigmoid * (1.0 + gate * (1.0 - sigmoid));
    }
}

/// With act(z) = z·σ(s(z)), act'(z) = σ(s)·(1 + z·(1 - σ(s))·s').
#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn geglu_backward_block(
    gate: &[f32],
    up: &[f32],
    gradient: &[f32],
    d_gate: &mut [f32],
    d_up: &mut [f32],
) {
    let inputs = gate.iter().zip(up).zip(gradient);
    for (((&gate, up), gradient), (d_gate, d_up)) in inputs.zip(d_gate.iter_mut().zip(d_up)) {
        let cube = GELU_CUBE * gate * gate;
        let sigmoid = 1.0 / (1.0 + exp(-gate * (GELU_SLOPE + cube)));
        let slope = GELU_SLOPE + 3.0 * cube;
        *d_up = gradient * gate * sigmoid;
        *d_gate = gradient * up * sigmoid * (1.0 + gate * (1.0 - sigmoid) * slope);
    }
}

/// Rotary embedding of rows `[width]`, heads of twice `half`.
pub(super) fn rotate(
    x: &[f32],
    cos: &[f32],
    sin: &[f32],
    [width, half]: [usize; 2],
    rotation: Rotation,
) -> Vec<f32> {
    let mut out = vec![0f32; x.len()];
    let rows = (BLOCK / width).max(1);
    let sign = if rotation == Rotation::Back {
        -1.0
    } else {
        1.0
    };
    out.par_chunks_mut(rows * width)
        .zip(x.par_chunks(rows * width))
        .zip(cos.par_chunks(rows * half).zip(sin.par_chunks(rows * half)))
        .for_each(|((out, x), (cos, sin))| rotate_rows(x, cos, sin, [width, half], sign, out));
    out
}

#[multiversion(targets("x86_64+avx512f+avx512dq", "x86_64+avx2"))]
fn rotate_rows(
    x: &[f32],
    cos: &[f32],
    sin: &[f32],
    [width, half]: [usize; 2],
    sign: f32,
    out: &mut [f32],
) {
    let tables = cos.chunks_exact(half).zip(sin.chunks_exact(half));
    let rows = x.chunks_exact(width).zip(out.chunks_exact_mut(width));
    for ((x, out), (cos, sin)) in rows.zip(tables) {
        for (x, out) in x.chunks_exact(2 * half).zip(out.chunks_exact_mut(2 * half)) {
            let (x_first, x_second) = x.split_at(half);
            let (first, second) = out.split_at_mut(half);
            for i in 0..half {
                let (cos, sin) = (cos[i], sin[i] * sign);
                first[i] = x_first[i] * cos - x_second[i] * sin;
                second[i] = x_second[i] * cos + x_first[i] * sin;
            }
        }
    }
}
