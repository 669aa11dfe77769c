//! The optimizer in plain tensor operations: the oracle of the others, and the implementation of
//! backends without one.

use burn::{
    backend::{
        Backend, TensorMetadata, get_or_init_device_settings,
        tensor::{FloatTensor, IntTensor},
    },
    tensor::{IndexingUpdateOp, Shape, Slice},
};

use super::slot_update::{CLIP_EPSILON, column};

pub(super) fn add_squares<B: Backend>(
    sums: FloatTensor<B>,
    a: FloatTensor<B>,
    b: FloatTensor<B>,
    slots: IntTensor<B>,
) -> FloatTensor<B> {
    let of_rows =
        |matrix: FloatTensor<B>| B::float_sum_dim(B::float_mul(matrix.clone(), matrix), 1);
    let squares = B::float_add(of_rows(a), of_rows(b));
    let first_share = [Slice::full(), Slice::from(0..1)];
    let share = B::float_slice(sums.clone(), &first_share);
    let share = B::float_select_assign(share, 0, slots, squares, IndexingUpdateOp::Add);
    B::float_slice_assign(sums, &first_share, share)
}

pub(super) fn total_squares<B: Backend>(sums: FloatTensor<B>) -> FloatTensor<B> {
    let slots = sums.shape()[0];
    B::float_reshape(B::float_sum_dim(sums, 1), Shape::new([slots]))
}

pub(super) fn adamw<B: Backend>(
    [weight, first, second]: [FloatTensor<B>; 3],
    gradient: FloatTensor<B>,
    table: FloatTensor<B>,
    slots: IntTensor<B>,
    squared_norms: FloatTensor<B>,
) -> [FloatTensor<B>; 3] {
    let shape = weight.shape();
    let table = B::float_select(table, 0, slots.clone());
    let squared_norms = B::float_select(squared_norms, 0, slots);
    let squared_norms = B::float_reshape(squared_norms, Shape::new([shape[0], 1]));
    let column = |index| {
        let place = [Slice::full(), Slice::from(index..index + 1)];
        B::float_slice(table.clone(), &place)
    };

    let norms = B::float_add_scalar(B::float_sqrt(squared_norms.clone()), CLIP_EPSILON.into());
    let clip = B::float_div(column(column::MAX_GRAD_NORM), norms);
    let gradient = B::float_mul(gradient, B::float_clamp_max(clip, 1.0.into()));

    let difference = B::float_sub(gradient.clone(), first.clone());
    let step = B::float_mul(difference, column(column::ONE_MINUS_BETA1));
    let next_first = B::float_add(first.clone(), step);
    let squares = B::float_mul(gradient.clone(), gradient);
    let next_second = B::float_add(
        B::float_mul(second.clone(), column(column::BETA2)),
        B::float_mul(squares, column(column::ONE_MINUS_BETA2)),
    );
    let root = B::float_sqrt(next_second.clone());
    let root = B::float_div(root, column(column::ROOT_BIAS_CORRECTION2));
    let denominator = B::float_add(root, column(column::EPSILON));
    let direction = B::float_div(next_first.clone(), denominator);
    let next = B::float_sub(
        B::float_mul(weight.clone(), column(column::DECAY)),
        B::float_mul(direction, column(column::STEP_SIZE)),
    );

    let dtype = get_or_init_device_settings::<B>(&weight.device()).bool_dtype;
    let idle = B::float_equal_elem(column(column::ACTIVE), 0.0.into(), dtype);
    let not_finite = B::bool_or(
        B::float_is_nan(squared_norms.clone(), dtype),
        B::float_is_inf(squared_norms, dtype),
    );
    let keep = B::bool_expand(B::bool_or(idle, not_finite), shape);
    [
        B::float_mask_where(next, keep.clone(), weight),
        B::float_mask_where(next_first, keep.clone(), first),
        B::float_mask_where(next_second, keep, second),
    ]
}

/// The tests of the optimizer run the backend's own; these compare the reference with it.
#[cfg(test)]
mod tests {
    use burn::{
        backend::{Flex, ops::FloatTensorOps},
        tensor::TensorData,
    };
    use burn_flex::FlexTensor;

    use super::*;
    use crate::{
        SlotUpdate,
        dropout::philox,
        optimizer::{OptimizerOps, gradient_norms::SHARES, slot_update::table},
    };

    const RANKS: [usize; 5] = [3, 0, 17, 1, 8];
    const WIDTHS: [usize; 2] = [37, 5];

    fn random(shape: [usize; 2], seed: u32) -> FlexTensor {
        let words = (0..).flat_map(|block| philox([block, seed, 0, 0], [0; 2]));
        let values = words.map(|word| word as f32 / 2f32.powi(31) - 1.0);
        let values: Vec<f32> = values.take(shape[0] * shape[1]).collect();
        FlexTensor::from_data(TensorData::new(values, shape))
    }

    fn integers(values: Vec<i32>) -> FlexTensor {
        let length = values.len();
        FlexTensor::from_data(TensorData::new(values, [length]))
    }

    fn slots() -> FlexTensor {
        let slots = RANKS.into_iter().enumerate();
        integers(slots.flat_map(|(slot, r)| vec![slot as i32; r]).collect())
    }

    fn starts() -> FlexTensor {
        let starts = (0..=RANKS.len()).map(|slot| RANKS[..slot].iter().sum::<usize>() as i32);
        integers(starts.collect())
    }

    fn assert_close(what: &str, found: FlexTensor, expected: FlexTensor) {
        assert_eq!(found.shape(), expected.shape(), "{what}");
        let [found, expected] = [found, expected].map(|tensor| tensor.to_contiguous());
        let (found, expected) = (
            found.as_slice::<f32>().unwrap(),
            expected.as_slice().unwrap(),
        );
        let largest = expected
            .iter()
            .fold(0f32, |max, value: &f32| max.max(value.abs()));
        assert!(largest > 0.0, "{what}: all zero");
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (found - expected).abs() / largest;
            assert!(error <= 1e-6, "{what}[{index}]: {found} {expected}");
        }
    }

    #[test]
    fn the_reference_agrees_with_the_backend() {
        let rank_sum = RANKS.iter().sum();
        let [a, b] = WIDTHS.map(|width| random([rank_sum, width], width as u32));
        let sums = random([RANKS.len(), SHARES], 1);
        let expected = add_squares::<Flex>(sums.clone(), a.clone(), b.clone(), slots());
        let found = Flex::add_squares(sums, a.clone(), b, slots(), starts());
        assert_close("sums", found.clone(), expected.clone());
        let (found, expected) = (
            Flex::total_squares(found),
            total_squares::<Flex>(expected.clone()),
        );
        assert_close("totals", found, expected.clone());

        let update = |slot: usize| SlotUpdate {
            learning_rates: (0.1 / (slot + 1) as f64).into(),
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-8,
            weight_decay: 0.1 * slot as f64,
            max_grad_norm: [0.0, 1.0, 0.5, 1e-3, 100.0][slot],
            step: 1 + slot as u64,
        };
        // One slot has no update, and one a norm that is not finite.
        for (idle, bad) in [(4, f32::NAN), (3, f32::INFINITY)] {
            let mut updates: Vec<_> = (0..RANKS.len()).map(|slot| Some(update(slot))).collect();
            updates[idle] = None;
            let table = TensorData::new(
                table(&updates, |rates| rates.a),
                [RANKS.len(), column::COUNT],
            );
            let table = FlexTensor::from_data(table);
            let mut norms = expected.as_slice::<f32>().unwrap().to_vec();
            norms[0] = bad;
            let norms = FlexTensor::from_data(TensorData::new(norms, [RANKS.len()]));
            let shape = [rank_sum, WIDTHS[0]];
            let second = Flex::float_abs(random(shape, 5));
            let state = [random(shape, 3), random(shape, 4), second];
            let [weight, first, second] = state.clone();
            let found = Flex::adamw(
                weight,
                first,
                second,
                a.clone(),
                table.clone(),
                slots(),
                norms.clone(),
            );
            let expected = adamw::<Flex>(state, a.clone(), table, slots(), norms);
            let [weight, first, second] = expected;
            assert_close("weight", found.0, weight);
            assert_close("first moment", found.1, first);
            assert_close("second moment", found.2, second);
        }
    }
}
