//! The loss and its gradient against Burn's softmax.

use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData, activation};
use loraloom_model::cross_entropy;

use crate::decoder::{
    ops::TOLERANCE,
    support::{Random, assert_close, assert_close_values, device, host},
};

fn targets(random: &mut Random, rows: usize, vocabulary: usize) -> Vec<i32> {
    (0..rows).map(|_| random.below(vocabulary) as i32).collect()
}

fn integers(values: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), device)
}

#[test]
fn cross_entropy_is_the_gathered_log_softmax() {
    for ([rows, vocabulary], spread) in [
        ([1, 1], 1.0),
        ([1, 5], 3.0),
        ([17, 384], 4.0),
        ([40, 1031], 50.0),
        ([3, 64], 1e4),
        ([5, 32_003], 5.0),
        ([70_000, 2], 1.0),
    ] {
        let inputs = |device: &Device| {
            let mut random = Random::new(rows as u64);
            let logits: Tensor<2> = random.tensor([rows, vocabulary], device);
            let ids = integers(&targets(&mut random, rows, vocabulary), device);
            let weights: Tensor<1> = random.tensor([rows], device);
            (logits.mul_scalar(spread), ids, weights)
        };
        let (logits, ids, weights) = inputs(&Device::flex().autodiff());
        let logits = logits.detach().require_grad();
        let expected = activation::log_softmax(logits.clone(), 1)
            .gather(1, ids.clone().reshape([rows, 1]))
            .neg()
            .reshape([rows]);
        let gradients = (expected.clone() * weights.clone()).sum().backward();
        let gradient = logits.grad(&gradients).expect("a gradient");

        // Once held by this test and once by nobody else, when they may be overwritten.
        let (logits, ids, weights) = inputs(&device());
        let values = host(logits.clone());
        let held = cross_entropy(logits.clone(), ids.clone(), weights.clone());
        assert_eq!(host(logits.clone()), values);
        let own = cross_entropy(logits, ids, weights);
        for (losses, found) in [held, own] {
            let what = format!("[{rows}, {vocabulary}], spread {spread}");
            assert_close(&what, losses, expected.clone().inner(), TOLERANCE);
            assert_close(
                &format!("{what}, gradient"),
                found,
                gradient.clone(),
                TOLERANCE,
            );
        }
    }
}

#[test]
fn a_target_of_no_weight_has_a_loss_and_no_gradient() {
    let device = device();
    let logits = Random::new(1).tensor([2, 9], &device);
    let weights = Tensor::from_data(TensorData::new(vec![0.0f32, 0.5], [2]), &device);
    let (losses, gradient) = cross_entropy(logits, integers(&[3, 4], &device), weights);
    assert!(host(losses).iter().all(|&loss| loss > 0.0));
    let gradient = host(gradient);
    assert!(gradient[..9].iter().all(|&value| value == 0.0));
    assert!(gradient[9..].iter().all(|&value| value != 0.0));
}

#[test]
fn cross_entropy_in_half_precision_is_rounded_float32() {
    let device = device();
    for (dtype, tolerance) in [(FloatDType::F16, 2e-3), (FloatDType::BF16, 2e-2)] {
        if !device.supports_dtype(DType::from(dtype)) {
            continue;
        }
        let mut random = Random::new(8);
        let logits = random.tensor::<2>([19, 1030], &device).mul_scalar(6.0);
        let ids = integers(&targets(&mut random, 19, 1030), &device);
        let weights: Tensor<1> = random.tensor([19], &device);
        let logits = logits.cast(dtype);
        let run = |with: FloatDType| {
            let logits = logits.clone().cast(with);
            let (losses, gradient) = cross_entropy(logits, ids.clone(), weights.clone());
            assert_eq!(losses.dtype(), DType::F32);
            assert_eq!(gradient.dtype(), DType::from(with));
            [host(losses), host(gradient)]
        };
        for (found, expected) in run(dtype).iter().zip(run(FloatDType::F32)) {
            assert_close_values(&format!("{dtype:?}"), found, &expected, tolerance);
        }
    }
}
