//! The primitives in plain tensor operations, computed in `float32`: the oracle of the others, and the
//! implementation of backends without one.

use burn::{
    backend::{Backend, TensorMetadata, tensor::FloatTensor},
    tensor::{DType, FloatDType, Shape, Slice, TensorData},
};

use super::{BatchLoraOps, ScaledRanks, Side};
use crate::{RoutedSegment, Routing};

fn to_dtype<B: Backend>(tensor: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    if tensor.dtype() == dtype {
        tensor
    } else {
        B::float_cast(tensor, FloatDType::from(dtype))
    }
}

/// The place of a segment in a wide operand.
fn rows(segment: &RoutedSegment) -> [Slice; 2] {
    [segment.rows.clone().into(), Slice::full()]
}

/// The place of a segment in a narrow operand.
fn narrow(segment: &RoutedSegment) -> [Slice; 2] {
    [segment.rows.clone().into(), (0..segment.ranks.len()).into()]
}

/// The place of a segment's adapter in a packed weight.
fn ranks(segment: &RoutedSegment) -> [Slice; 2] {
    [segment.ranks.clone().into(), Slice::full()]
}

/// A part of a tensor in `float32`.
fn part<B: Backend>(tensor: &FloatTensor<B>, place: [Slice; 2]) -> FloatTensor<B> {
    to_dtype::<B>(B::float_slice(tensor.clone(), &place), DType::F32)
}

fn zeros<B: Backend>(shape: [usize; 2], like: &FloatTensor<B>) -> FloatTensor<B> {
    B::float_zeros(Shape::new(shape), &like.device(), FloatDType::F32)
}

fn masked<B: Backend>(
    tensor: FloatTensor<B>,
    routing: &Routing,
    segment: &RoutedSegment,
    side: Side,
) -> FloatTensor<B> {
    match (side, segment.dropout) {
        (Side::Input, Some(dropout)) => {
            let shape = tensor.shape();
            let mask = dropout.mask(routing.dropout_rows(segment.rows.clone()), shape[1]);
            let mask = TensorData::new(mask, shape).convert_dtype(tensor.dtype());
            B::float_mul(tensor.clone(), B::float_from_data(mask, &tensor.device()))
        }
        _ => tensor,
    }
}

fn scaled<B: Backend>(
    tensor: FloatTensor<B>,
    segment: &RoutedSegment,
    side: Side,
) -> FloatTensor<B> {
    match side {
        Side::Input => tensor,
        Side::Output => B::float_mul_scalar(tensor, segment.scale.into()),
    }
}

pub(crate) fn shrink<B: Backend>(
    wide: FloatTensor<B>,
    weight: FloatTensor<B>,
    routing: &Routing,
    side: Side,
) -> FloatTensor<B> {
    let mut out = zeros::<B>([wide.shape()[0], routing.rank_max()], &wide);
    for segment in routing.segments() {
        let x = masked::<B>(part::<B>(&wide, rows(segment)), routing, segment, side);
        let weight = part::<B>(&weight, ranks(segment));
        let product = B::float_matmul(x, B::float_transpose(weight));
        let product = scaled::<B>(product, segment, side);
        out = B::float_slice_assign(out, &narrow(segment), product);
    }
    out
}

pub(crate) fn expand_add<B: Backend>(
    wide: FloatTensor<B>,
    compact: FloatTensor<B>,
    weight: FloatTensor<B>,
    routing: &Routing,
    side: Side,
) -> FloatTensor<B> {
    let dtype = wide.dtype();
    let mut out = wide;
    for segment in routing.segments() {
        let compact = part::<B>(&compact, narrow(segment));
        let product = B::float_matmul(compact, part::<B>(&weight, ranks(segment)));
        let product = scaled::<B>(masked::<B>(product, routing, segment, side), segment, side);
        let sum = B::float_add(part::<B>(&out, rows(segment)), product);
        out = B::float_slice_assign(out, &rows(segment), to_dtype::<B>(sum, dtype));
    }
    out
}

pub(crate) fn weight_grad<B: Backend>(
    wide: FloatTensor<B>,
    compact: FloatTensor<B>,
    routing: &Routing,
    side: Side,
) -> FloatTensor<B> {
    let mut out = zeros::<B>([routing.rank_sum(), wide.shape()[1]], &wide);
    for segment in routing.segments() {
        if side == Side::Input && segment.freeze_a {
            continue;
        }
        let x = masked::<B>(part::<B>(&wide, rows(segment)), routing, segment, side);
        let compact = part::<B>(&compact, narrow(segment));
        let product = B::float_matmul(B::float_transpose(compact), x);
        let product = B::float_mul_scalar(product, segment.gradient_factor(side).into());
        // A slot may have several segments: its gradient is their sum.
        let sum = B::float_add(part::<B>(&out, ranks(segment)), product);
        out = B::float_slice_assign(out, &ranks(segment), sum);
    }
    out
}

/// The row of scales of a segment's adapter, for the columns of its rows.
fn scale_row(magnitude: usize) -> [Slice; 2] {
    [(magnitude..magnitude + 1).into(), Slice::full()]
}

pub(crate) fn scale_columns<B: Backend>(
    wide: FloatTensor<B>,
    scales: FloatTensor<B>,
    routing: &Routing,
) -> FloatTensor<B> {
    let dtype = wide.dtype();
    let mut out = wide;
    for segment in routing.segments() {
        let Some(magnitude) = segment.magnitude else {
            continue;
        };
        let scale = part::<B>(&scales, scale_row(magnitude));
        let scaled = B::float_mul(part::<B>(&out, rows(segment)), scale);
        out = B::float_slice_assign(out, &rows(segment), to_dtype::<B>(scaled, dtype));
    }
    out
}

pub(crate) fn scale_grad<B: Backend>(
    wide: FloatTensor<B>,
    gradient: FloatTensor<B>,
    routing: &Routing,
) -> FloatTensor<B> {
    let mut out = zeros::<B>([routing.magnitudes(), wide.shape()[1]], &wide);
    for segment in routing.segments() {
        let Some(magnitude) = segment.magnitude else {
            continue;
        };
        let [wide, gradient] = [&wide, &gradient].map(|t| part::<B>(t, rows(segment)));
        let sum = B::float_sum_dim(B::float_mul(wide, gradient), 0);
        let sum = B::float_mul_scalar(sum, (1.0 / segment.loss_scale).into());
        let place = scale_row(magnitude);
        let sum = B::float_add(part::<B>(&out, place), sum);
        out = B::float_slice_assign(out, &place, sum);
    }
    out
}

/// The place of a segment's rows in a part that begins with row `first`.
fn rows_from(segment: &RoutedSegment, first: usize) -> [Slice; 2] {
    let rows = segment.rows.start - first..segment.rows.end - first;
    [rows.into(), Slice::full()]
}

pub(crate) fn split_dropped<B: Backend>(
    x: FloatTensor<B>,
    routing: &Routing,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let dtype = x.dtype();
    let mut rest = B::float_zeros(x.shape(), &x.device(), dtype.into());
    let mut kept = x;
    for segment in routing.segments().iter().filter(|s| s.drops_all()) {
        let x = part::<B>(&kept, rows(segment));
        let masked = masked::<B>(x.clone(), routing, segment, Side::Input);
        let dropped = to_dtype::<B>(B::float_sub(x, masked.clone()), dtype);
        rest = B::float_slice_assign(rest, &rows(segment), dropped);
        kept = B::float_slice_assign(kept, &rows(segment), to_dtype::<B>(masked, dtype));
    }
    (kept, rest)
}

pub(crate) fn join_dropped<B: Backend>(
    of_masked: FloatTensor<B>,
    rest: FloatTensor<B>,
    routing: &Routing,
    first: usize,
) -> FloatTensor<B> {
    let (dtype, end) = (of_masked.dtype(), first + rest.shape()[0]);
    let mut out = of_masked;
    let segments = routing.segments().iter();
    for segment in segments.filter(|s| first <= s.rows.start && s.rows.end <= end) {
        let through = part::<B>(&out, rows(segment));
        let through = masked::<B>(through, routing, segment, Side::Input);
        let beside = part::<B>(&rest, rows_from(segment, first));
        let dropped = masked::<B>(beside.clone(), routing, segment, Side::Input);
        let sum = B::float_add(through, B::float_sub(beside, dropped));
        out = B::float_slice_assign(out, &rows(segment), to_dtype::<B>(sum, dtype));
    }
    out
}

/// `‖w + s·Aᵀb‖² = ‖w‖² + s·Σ b ∘ (2·A w + s·A Aᵀ b)` for each column w of the weight and b of B.
pub(crate) fn dora_norms<B: BatchLoraOps>(
    squares: &FloatTensor<B>,
    packed: [&FloatTensor<B>; 3],
    adapters: &[ScaledRanks],
) -> FloatTensor<B> {
    let norms = adapters.iter().map(|ScaledRanks { ranks, scale }| {
        let [products, a, b] =
            packed.map(|t| B::float_slice(t.clone(), &[ranks.clone().into(), Slice::full()]));
        let among = B::frozen_matmul(a.clone(), B::float_transpose(a));
        let among = B::float_mul_scalar(B::frozen_matmul(among, b.clone()), (*scale).into());
        let sum = B::float_add(B::float_mul_scalar(products, 2.0.into()), among);
        let sum = B::float_sum_dim(B::float_mul(b, sum), 0);
        let sum = B::float_mul_scalar(sum, (*scale).into());
        // A column of zeros would have a scale of 0 / 0, and rounding may make a square negative.
        let square = B::float_add(squares.clone(), sum);
        let square = B::float_clamp_min(square, f32::MIN_POSITIVE.into());
        B::float_sqrt(square)
    });
    B::float_cat(norms.collect(), 0)
}

pub(crate) fn scalar_root<B: Backend>(like: &FloatTensor<B>) -> FloatTensor<B> {
    B::float_zeros(Shape::new([1]), &like.device(), like.dtype().into())
}

/// The tests of the operator run the backend's own primitives; these compare the reference with them.
#[cfg(test)]
mod tests {
    use burn::backend::{Flex, ops::FloatTensorOps};

    use super::*;
    use crate::{
        AdapterBank, AdapterState, DropoutDraw, LoraSpec, Segment, Segments, dropout::philox,
    };

    const SHAPE: [usize; 2] = [37, 21];

    fn random(shape: [usize; 2], seed: u32) -> FloatTensor<Flex> {
        let words = (0..).flat_map(|block| philox([block, seed, 0, 0], [0; 2]));
        let values = words.map(|word| word as f32 / 2f32.powi(31) - 1.0);
        let values: Vec<f32> = values.take(shape[0] * shape[1]).collect();
        burn_flex::FlexTensor::from_data(TensorData::new(values, shape))
    }

    /// Two adapters, one of them in two segments, an empty slot, and base rows.
    fn routing(dropout: f64) -> Routing {
        let device = burn::tensor::Device::flex();
        let mut bank = AdapterBank::new(SHAPE[0], SHAPE[1], 4, &device);
        for r in [Some(5), None, Some(64)] {
            let adapter = r.map(|r| {
                let spec = LoraSpec::new(r, 3.0).with_lora_dropout(dropout);
                // One with a magnitude, in two segments.
                let spec = spec.with_use_dora(r == 64);
                let weight = burn::tensor::Tensor::zeros(SHAPE, &device);
                let state = AdapterState::init(spec, SHAPE, 0, 0, &device).unwrap();
                state.with_norms_of(&weight)
            });
            bank.push(adapter).unwrap();
        }
        let parts = [(0..150, 2), (153..154, 0), (154..160, 1), (160..171, 2)];
        let segments = parts.map(|(rows, slot)| Segment { rows, slot });
        let segments = Segments::new(175, segments.to_vec()).unwrap();
        let draws = [DropoutDraw { seed: 3, step: 8 }; 3];
        bank.route(&segments, Some(&draws)).unwrap()
    }

    fn assert_close(what: &str, found: FloatTensor<Flex>, expected: FloatTensor<Flex>) {
        assert_eq!(found.shape(), expected.shape(), "{what}");
        let [found, expected] = [found, expected].map(|tensor| tensor.to_contiguous());
        let (found, expected) = (
            found.as_slice::<f32>().unwrap(),
            expected.as_slice().unwrap(),
        );
        let largest = expected
            .iter()
            .fold(0f32, |max, value: &f32| max.max(value.abs()));
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (found - expected).abs();
            assert!(
                error <= 1e-5 * largest,
                "{what}[{index}]: {found} {expected}"
            );
        }
    }

    #[test]
    fn the_reference_agrees_with_the_backend() {
        for (dropout, (side, width)) in [0.0, 0.3].into_iter().flat_map(|dropout| {
            [(Side::Input, SHAPE[0]), (Side::Output, SHAPE[1])].map(|side| (dropout, side))
        }) {
            let routing = routing(dropout);
            let (rows, rank_sum, rank_max) = (175, 69, 64);
            let wide = random([rows, width], 1);
            let narrow = random([rows, rank_max], 2);
            let weight = random([rank_sum, width], 3);
            let what = format!("{side:?}, dropout {dropout}");
            assert_close(
                &format!("shrink, {what}"),
                shrink::<Flex>(wide.clone(), weight.clone(), &routing, side),
                Flex::lora_shrink(wide.clone(), weight.clone(), routing.clone(), side),
            );
            assert_close(
                &format!("weight_grad, {what}"),
                weight_grad::<Flex>(wide.clone(), narrow.clone(), &routing, side),
                Flex::lora_weight_grad(wide.clone(), narrow.clone(), routing.clone(), side),
            );
            let scales = random([1, width], 4);
            let scale_columns = [
                scale_columns::<Flex>(wide.clone(), scales.clone(), &routing),
                Flex::lora_scale_columns(wide.clone(), scales, routing.clone()),
            ];
            let scale_grad = [
                scale_grad::<Flex>(wide.clone(), wide.clone(), &routing),
                Flex::lora_scale_grad(wide.clone(), wide.clone(), routing.clone()),
            ];
            let (kept, rest) = split_dropped::<Flex>(wide.clone(), &routing);
            let (backend_kept, backend_rest) =
                Flex::lora_split_dropped(wide.clone(), routing.clone());
            let part = <Flex as FloatTensorOps<Flex>>::float_slice(
                wide.clone(),
                &[(0..150).into(), Slice::full()],
            );
            let join_dropped = [
                join_dropped::<Flex>(wide.clone(), part.clone(), &routing, 0),
                Flex::lora_join_dropped(wide.clone(), part, routing.clone(), 0),
            ];
            for (op, [expected, found]) in [
                ("scale_columns", scale_columns),
                ("scale_grad", scale_grad),
                ("the masked input", [kept, backend_kept]),
                ("the rest of the input", [rest, backend_rest]),
                ("join_dropped", join_dropped),
            ] {
                assert_close(&format!("{op}, {what}"), expected, found);
            }
            assert_close(
                &format!("expand_add, {what}"),
                expand_add::<Flex>(wide.clone(), narrow.clone(), weight.clone(), &routing, side),
                Flex::lora_expand_add(wide, narrow, weight, routing, side),
            );
        }
    }
}
