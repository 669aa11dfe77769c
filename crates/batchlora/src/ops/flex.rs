//! The primitives on the CPU: products written in place, segments and blocks of rows in parallel,
//! dropout masks drawn a block at a time. No block spans two segments, so that a
//! segment's numbers do not depend on its neighbours.

use std::{cmp::Reverse, ops::Range};

use batchlora_kernels::matrix::{Matrix, MatrixMut, Output, multiply, multiply_parallel};
use burn::{
    backend::{
        Flex, TensorMetadata,
        ops::FloatTensorOps,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{DType, Element, FloatDType, Shape, Slice, TensorData},
};
use burn_flex::FlexTensor;
use half::{bf16, f16};
use rayon::prelude::*;

use super::{BatchLoraOps, Frozen, Side, reference};
use crate::{
    RoutedSegment, Routing,
    nf4::{self, Nf4Layout},
};

/// Rows that one thread takes at a time.
const BLOCK: usize = 128;
/// Blocks of one adapter whose products are held at a time.
const WAVE: usize = 16;

/// `gemm` (0.19, `gemm-common/src/gemm.rs`) sums products of at most this many elements, and of a single row,
/// in another order.
const SMALL_PRODUCT: usize = 256;

impl BatchLoraOps for Flex {
    /// A row has the same bits in any batch. `multiply_parallel` sees to it for weights in `f32` that are stored
    /// `[d_out, d_in]`; other small products are padded with rows of zeros.
    fn frozen_matmul(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        let ([rows, d_in], d_out) = (x.shape().dims::<2>(), weight.shape()[1]);
        let transposed = Self::float_transpose(weight.clone());
        let x_rows = x.to_contiguous();
        if let (Some(x), Some(weight)) = (x_rows.as_slice::<f32>(), transposed.as_slice::<f32>()) {
            let mut out = vec![0f32; rows * d_out];
            multiply_parallel(
                MatrixMut::new(&mut out, rows, d_out, d_out),
                Matrix::new(x, rows, d_in, d_in),
                Matrix::new(weight, d_out, d_in, d_in).transposed(),
            );
            return tensor(out, [rows, d_out]);
        }
        let least = (SMALL_PRODUCT / d_out.max(1) + 1).max(2);
        if rows >= least || rows == 0 {
            return Self::float_matmul(x, weight);
        }
        let shape = Shape::new([least - rows, d_in]);
        let zeros = Self::float_zeros(shape, &x.device(), x.dtype().into());
        let padded = Self::float_matmul(Self::float_cat(vec![x, zeros], 0), weight);
        Self::float_slice(padded, &[Slice::from(0..rows), Slice::full()])
    }

    fn nf4_dequantize(
        codes: IntTensor<Self>,
        scales: FloatTensor<Self>,
        layout: Nf4Layout,
        rows: Range<usize>,
    ) -> FloatTensor<Self> {
        let (codes, scales) = (codes.to_contiguous(), scales.to_contiguous());
        let (codes, scales): (&[u32], &[f32]) = (codes.storage(), scales.storage());
        match layout.dtype {
            FloatDType::F16 => dequantized(codes, scales, layout, rows, f16::from_f32),
            FloatDType::BF16 => dequantized(codes, scales, layout, rows, bf16::from_f32),
            _ => dequantized(codes, scales, layout, rows, |value| value),
        }
    }

    fn lora_shrink(
        wide: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        routing: Routing,
        side: Side,
    ) -> FloatTensor<Self> {
        let (wide, weight) = (wide.to_contiguous(), weight.to_contiguous());
        let (Some(x), Some(w)) = (wide.as_slice::<f32>(), weight.as_slice::<f32>()) else {
            return reference::shrink::<Self>(wide, weight, &routing, side);
        };
        let (width, rank_max) = (wide.shape()[1], routing.rank_max());
        let mut out = vec![0f32; routing.rows() * rank_max];
        longest_first(blocks(&mut out, rank_max, &routing)).for_each(|(segment, rows, out)| {
            let x = &x[rows.start * width..rows.end * width];
            let masked = masked(x, width, &routing, segment, rows.clone(), side);
            let x = masked.as_deref().unwrap_or(x);
            let rank = segment.ranks.len();
            multiply(
                MatrixMut::new(out, rows.len(), rank, rank_max),
                Output::Replace,
                scale(segment, side),
                Matrix::new(x, rows.len(), width, width),
                Matrix::new(&w[segment.ranks.start * width..], rank, width, width).transposed(),
            );
        });
        tensor(out, [routing.rows(), rank_max])
    }

    fn lora_expand_add(
        wide: FloatTensor<Self>,
        narrow: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        routing: Routing,
        side: Side,
    ) -> FloatTensor<Self> {
        let (narrow, weight) = (narrow.to_contiguous(), weight.to_contiguous());
        let (Some(s), Some(w)) = (narrow.as_slice::<f32>(), weight.as_slice::<f32>()) else {
            return reference::expand_add::<Self>(wide, narrow, weight, &routing, side);
        };
        if wide.dtype() != DType::F32 {
            return reference::expand_add::<Self>(wide, narrow, weight, &routing, side);
        }
        let (width, rank_max) = (wide.shape()[1], narrow.shape()[1]);
        let mut wide = whole(wide);
        let out = wide.storage_mut::<f32>();
        longest_first(blocks(out, width, &routing)).for_each(|(segment, rows, out)| {
            let rank = segment.ranks.len();
            let s = Matrix::new(&s[rows.start * rank_max..], rows.len(), rank, rank_max);
            let w = Matrix::new(&w[segment.ranks.start * width..], rank, width, width);
            if side == Side::Input && segment.dropout.is_some() {
                let mut product = vec![0f32; out.len()];
                let into = MatrixMut::new(&mut product, rows.len(), width, width);
                multiply(into, Output::Replace, scale(segment, side), s, w);
                let masked = masked(&product, width, &routing, segment, rows, side);
                add(out, masked.as_deref().unwrap_or(&product));
            } else {
                let into = MatrixMut::new(out, rows.len(), width, width);
                multiply(into, Output::Add, scale(segment, side), s, w);
            }
        });
        wide
    }

    /// The base's product and the shrink do not need each other: while one thread packs x for the base, others multiply.
    fn lora_forward(
        x: FloatTensor<Self>,
        weight: Frozen<Self>,
        a: FloatTensor<Self>,
        b: FloatTensor<Self>,
        routing: Routing,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (h, s) = rayon::join(
            || weight.multiply(x.clone()),
            || Self::lora_shrink(x.clone(), a, routing.clone(), Side::Input),
        );
        let h = Self::lora_expand_add(h, s.clone(), b, routing, Side::Output);
        (h, s)
    }

    fn lora_weight_grad(
        wide: FloatTensor<Self>,
        narrow: FloatTensor<Self>,
        routing: Routing,
        side: Side,
    ) -> FloatTensor<Self> {
        let (wide, narrow) = (wide.to_contiguous(), narrow.to_contiguous());
        let (Some(x), Some(s)) = (wide.as_slice::<f32>(), narrow.as_slice::<f32>()) else {
            return reference::weight_grad::<Self>(wide, narrow, &routing, side);
        };
        let (width, rank_max) = (wide.shape()[1], routing.rank_max());
        let mut out = vec![0f32; routing.rank_sum() * width];
        let product = |segment: &RoutedSegment, rows: Range<usize>| {
            let x = &x[rows.start * width..rows.end * width];
            let masked = masked(x, width, &routing, segment, rows.clone(), side);
            let x = masked.as_deref().unwrap_or(x);
            let rank = segment.ranks.len();
            let mut product = vec![0f32; rank * width];
            multiply(
                MatrixMut::new(&mut product, rank, width, width),
                Output::Replace,
                segment.gradient_factor(side),
                Matrix::new(&s[rows.start * rank_max..], rows.len(), rank, rank_max).transposed(),
                Matrix::new(x, rows.len(), width, width),
            );
            product
        };
        by_ranks(&mut out, width, &routing)
            .into_par_iter()
            .filter(|(segments, _)| side == Side::Output || !segments[0].freeze_a)
            .for_each(|(segments, out)| {
                let blocks: Vec<_> = segments
                    .iter()
                    .flat_map(|segment| row_blocks(&segment.rows).map(move |rows| (segment, rows)))
                    .collect();
                // Waves limit the products held; they are added in order, so that the sum is always the same.
                for wave in blocks.chunks(WAVE) {
                    let products: Vec<_> = wave
                        .par_iter()
                        .map(|(segment, rows)| product(segment, rows.clone()))
                        .collect();
                    for product in &products {
                        add(out, product);
                    }
                }
            });
        tensor(out, [routing.rank_sum(), width])
    }

    fn lora_scale_columns(
        wide: FloatTensor<Self>,
        scales: FloatTensor<Self>,
        routing: Routing,
    ) -> FloatTensor<Self> {
        let scales = scales.to_contiguous();
        if (wide.dtype(), scales.dtype()) != (DType::F32, DType::F32) {
            return reference::scale_columns::<Self>(wide, scales, &routing);
        }
        let [rows, width] = wide.shape().dims();
        let factors: &[f32] = scales.storage();
        let factors = &factors[scales.layout().start_offset()..];
        let mut of_rows = vec![None; rows];
        for segment in routing.segments() {
            let factors = |magnitude| &factors[magnitude * width..][..width];
            of_rows[segment.rows.clone()].fill(segment.magnitude.map(factors));
        }
        if wide.is_unique() {
            let mut wide = whole(wide);
            let values = wide.storage_mut::<f32>().par_chunks_mut(width);
            let values = values.with_min_len(BLOCK).zip(&of_rows);
            values.for_each(|(row, factors)| {
                let pairs = row.iter_mut().zip(factors.unwrap_or_default());
                pairs.for_each(|(value, factor)| *value *= factor);
            });
            return wide;
        }
        // A copy that is scaled afterwards passes through memory twice.
        let wide = wide.to_contiguous();
        let values = wide.storage::<f32>()[wide.layout().start_offset()..].par_chunks(width);
        let mut out = vec![0f32; rows * width];
        let of_out = out.par_chunks_mut(width).with_min_len(BLOCK);
        of_out
            .zip(values)
            .zip(&of_rows)
            .for_each(|((out, row), factors)| match factors {
                Some(factors) => {
                    let pairs = out.iter_mut().zip(row.iter().zip(*factors));
                    pairs.for_each(|(out, (value, factor))| *out = value * factor);
                }
                None => out.copy_from_slice(row),
            });
        tensor(out, [rows, width])
    }

    fn lora_scale_grad(
        wide: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        routing: Routing,
    ) -> FloatTensor<Self> {
        let (wide, gradient) = (wide.to_contiguous(), gradient.to_contiguous());
        let (Some(x), Some(g)) = (wide.as_slice::<f32>(), gradient.as_slice::<f32>()) else {
            return reference::scale_grad::<Self>(wide, gradient, &routing);
        };
        let width = wide.shape()[1];
        let parts: Vec<_> = (routing.segments().iter())
            .flat_map(|segment| row_blocks(&segment.rows).map(move |rows| (segment, rows)))
            .collect();
        let sums = parts.into_par_iter().filter_map(|(segment, rows)| {
            let magnitude = segment.magnitude?;
            let place = rows.start * width..rows.end * width;
            let mut sums = vec![0f64; width];
            for (x, g) in x[place.clone()].chunks(width).zip(g[place].chunks(width)) {
                add_products(&mut sums, x, g);
            }
            Some((segment, magnitude, sums))
        });
        of_scales(&sums.collect::<Vec<_>>(), width, &routing)
    }

    /// One pass over the gradient, in place: memory takes longer than arithmetic.
    fn lora_scale_backward(
        wide: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        scales: FloatTensor<Self>,
        routing: Routing,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (wide, scales) = (wide.to_contiguous(), scales.to_contiguous());
        let slices = (wide.as_slice::<f32>(), scales.as_slice::<f32>());
        let (Some(x), Some(c), DType::F32) = (slices.0, slices.1, gradient.dtype()) else {
            let of_scales = Self::lora_scale_grad(wide, gradient.clone(), routing.clone());
            let scaled = Self::lora_scale_columns(gradient, scales, routing);
            return (scaled, of_scales);
        };
        let (width, mut gradient) = (wide.shape()[1], whole(gradient));
        let parts = blocks(gradient.storage_mut::<f32>(), width, &routing).into_par_iter();
        let sums = parts.filter_map(|(segment, rows, g)| {
            let magnitude = segment.magnitude?;
            let factors = &c[magnitude * width..][..width];
            let mut sums = vec![0f64; width];
            for (x, g) in x[rows.start * width..]
                .chunks(width)
                .zip(g.chunks_mut(width))
            {
                add_products(&mut sums, x, g);
                let pairs = g.iter_mut().zip(factors);
                pairs.for_each(|(g, factor)| *g *= factor);
            }
            Some((segment, magnitude, sums))
        });
        let sums = of_scales(&sums.collect::<Vec<_>>(), width, &routing);
        (gradient, sums)
    }

    fn lora_split_dropped(
        x: FloatTensor<Self>,
        routing: Routing,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        if x.dtype() != DType::F32 {
            return reference::split_dropped::<Self>(x, &routing);
        }
        let (shape, width, mut x) = (x.shape().dims(), x.shape()[1], whole(x));
        let values = x.storage_mut::<f32>();
        let mut rest = vec![0f32; values.len()];
        let both = blocks(values, width, &routing)
            .into_par_iter()
            .zip(blocks(&mut rest, width, &routing));
        both.for_each(|((segment, rows, values), (_, _, rest))| {
            let Some(mask) = mask_of_all(&routing, segment, rows, width) else {
                return;
            };
            for ((value, rest), mask) in values.iter_mut().zip(rest).zip(mask) {
                *rest = *value - *value * mask;
                *value *= mask;
            }
        });
        (x, tensor(rest, shape))
    }

    fn lora_join_dropped(
        masked: FloatTensor<Self>,
        rest: FloatTensor<Self>,
        routing: Routing,
        first: usize,
    ) -> FloatTensor<Self> {
        let rest = rest.to_contiguous();
        let (DType::F32, Some(others)) = (masked.dtype(), rest.as_slice::<f32>()) else {
            return reference::join_dropped::<Self>(masked, rest, &routing, first);
        };
        let (width, end, mut masked) = (masked.shape()[1], first + rest.shape()[0], whole(masked));
        let blocks = blocks(masked.storage_mut::<f32>(), width, &routing).into_par_iter();
        let within = blocks.filter(|(_, rows, _)| first <= rows.start && rows.end <= end);
        within.for_each(|(segment, rows, values)| {
            let others = &others[(rows.start - first) * width..];
            let Some(mask) = mask_of_all(&routing, segment, rows, width) else {
                return;
            };
            for ((value, other), mask) in values.iter_mut().zip(others).zip(mask) {
                *value = *value * mask + (other - other * mask);
            }
        });
        masked
    }

    fn seed_gradient(output: FloatTensor<Self>, _gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        reference::scalar_root::<Self>(&output)
    }
}

/// Rows of a weight in NF4, blocks in parallel.
fn dequantized<T: Element + Default>(
    codes: &[u32],
    scales: &[f32],
    layout: Nf4Layout,
    rows: Range<usize>,
    of: impl Fn(f32) -> T + Sync,
) -> FlexTensor {
    let [_, d_in] = layout.shape;
    let first = rows.start * d_in / nf4::BLOCK;
    let mut out = vec![T::default(); rows.len() * d_in];
    let blocks = out.par_chunks_mut(nf4::BLOCK).with_min_len(BLOCK);
    blocks.enumerate().for_each(|(block, out)| {
        let block = first + block;
        let scale = layout.scale(codes, scales, block);
        let table = nf4::TABLE.map(|value| of(nf4::round(value * scale, layout.rounding)));
        let codes = &codes[block * nf4::BLOCK / nf4::CODES..];
        for (out, word) in out.chunks_mut(nf4::CODES).zip(codes) {
            // A byte has its first code in the upper half.
            for (out, shift) in out.iter_mut().zip([4, 0, 12, 8, 20, 16, 28, 24]) {
                *out = table[(word >> shift & 15) as usize];
            }
        }
    });
    FlexTensor::from_data(TensorData::new(out, [rows.len(), d_in]))
}

fn add(out: &mut [f32], product: &[f32]) {
    let pairs = out.iter_mut().zip(product);
    pairs.for_each(|(out, product)| *out += product);
}

fn add_products(sums: &mut [f64], x: &[f32], g: &[f32]) {
    let pairs = sums.iter_mut().zip(x.iter().zip(g));
    pairs.for_each(|(sum, (x, g))| *sum += f64::from(*x) * f64::from(*g));
}

/// The gradient of the scales, from sums over blocks of rows in their order.
fn of_scales(
    sums: &[(&RoutedSegment, usize, Vec<f64>)],
    width: usize,
    routing: &Routing,
) -> FlexTensor {
    let mut out = vec![0f32; routing.magnitudes() * width];
    for blocks in sums.chunk_by(|(a, ..), (b, ..)| std::ptr::eq(*a, *b)) {
        let (segment, magnitude, _) = blocks[0];
        let factor = 1.0 / f64::from(segment.loss_scale);
        let of_adapter = out[magnitude * width..][..width].iter_mut();
        for (column, out) in of_adapter.enumerate() {
            let sum: f64 = blocks.iter().map(|(_, _, sums)| sums[column]).sum();
            *out += (sum * factor) as f32;
        }
    }
    tensor(out, [routing.magnitudes(), width])
}

fn scale(segment: &RoutedSegment, side: Side) -> f32 {
    match side {
        Side::Input => 1.0,
        Side::Output => segment.scale,
    }
}

fn tensor(data: Vec<f32>, shape: [usize; 2]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(data, shape))
}

/// The tensor as the only contents of its storage.
pub(crate) fn whole(tensor: FlexTensor) -> FlexTensor {
    let contiguous = tensor.to_contiguous();
    let elements = contiguous.shape().num_elements();
    if contiguous.layout().start_offset() == 0 && contiguous.storage::<f32>().len() == elements {
        drop(tensor);
        return contiguous;
    }
    FlexTensor::from_data(contiguous.into_data())
}

/// The rows times their mask; `None` where there is none.
fn masked(
    x: &[f32],
    width: usize,
    routing: &Routing,
    segment: &RoutedSegment,
    rows: Range<usize>,
    side: Side,
) -> Option<Vec<f32>> {
    let dropout = segment.dropout.filter(|_| side == Side::Input)?;
    let mut mask = dropout.mask(routing.dropout_rows(rows), width);
    mask.iter_mut().zip(x).for_each(|(mask, x)| *mask *= x);
    Some(mask)
}

/// The mask of rows whose dropout is that of the base's input, too; `None` for others.
fn mask_of_all(
    routing: &Routing,
    segment: &RoutedSegment,
    rows: Range<usize>,
    width: usize,
) -> Option<Vec<f32>> {
    let dropout = segment.dropout.filter(|_| segment.drops_all())?;
    Some(dropout.mask(routing.dropout_rows(rows), width))
}

/// Some rows of a segment, and what is written for them.
type RowBlock<'a, 'r> = (&'r RoutedSegment, Range<usize>, &'a mut [f32]);

/// Each block as a job, the longest first: Rayon's threads start with a half each and steal what the others have begun last.
fn longest_first<'a, 'r>(
    mut blocks: Vec<RowBlock<'a, 'r>>,
) -> impl ParallelIterator<Item = RowBlock<'a, 'r>> {
    blocks.sort_by_key(|(segment, rows, _)| Reverse(segment.ranks.len() * rows.len()));
    blocks.into_par_iter().with_max_len(1)
}

/// A segment's rows, at most [`BLOCK`] at a time.
fn row_blocks(rows: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.clone()
        .step_by(BLOCK)
        .map(move |start| start..(start + BLOCK).min(end))
}

/// Cuts `out`, `[rows, columns]`, into blocks of rows that each belong to one segment.
fn blocks<'a, 'r>(
    mut out: &'a mut [f32],
    columns: usize,
    routing: &'r Routing,
) -> Vec<RowBlock<'a, 'r>> {
    let (mut blocks, mut at) = (Vec::new(), 0);
    for segment in routing.segments() {
        for rows in row_blocks(&segment.rows) {
            let (_, rest) = out.split_at_mut((rows.start - at) * columns);
            let (block, rest) = rest.split_at_mut(rows.len() * columns);
            (out, at) = (rest, rows.end);
            blocks.push((segment, rows, block));
        }
    }
    blocks
}

/// Cuts `out`, `[Σr, columns]`, by adapter, each with its segments in row order.
fn by_ranks<'a, 'r>(
    mut out: &'a mut [f32],
    columns: usize,
    routing: &'r Routing,
) -> Vec<(Vec<&'r RoutedSegment>, &'a mut [f32])> {
    let mut segments: Vec<&RoutedSegment> = routing.segments().iter().collect();
    // Stable: segments of one adapter stay in row order.
    segments.sort_by_key(|segment| segment.ranks.start);
    let (mut parts, mut at) = (Vec::new(), 0);
    for group in segments.chunk_by(|a, b| a.ranks == b.ranks) {
        let ranks = &group[0].ranks;
        let (_, rest) = out.split_at_mut((ranks.start - at) * columns);
        let (part, rest) = rest.split_at_mut(ranks.len() * columns);
        (out, at) = (rest, ranks.end);
        parts.push((group.to_vec(), part));
    }
    parts
}
