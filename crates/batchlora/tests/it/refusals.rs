//! What `lora_linear` and `seed_gradient` do not take, and devices that cannot do it.

use batchlora::{
    BatchLoraError, LoraSpec, Segment, Segments, check_device, lora_linear, seed_gradient,
};
use burn::tensor::{FloatDType, Tensor};

use crate::support::{Random, device};

#[test]
#[should_panic(expected = "one gradient per element")]
fn a_seed_of_another_shape_is_refused() {
    let device = device().autodiff();
    let zeros = |shape| Tensor::<2>::zeros(shape, &device);
    let _ = seed_gradient(zeros([2, 3]), zeros([3, 2]));
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let device = device();
    let bank = Random::new(0).bank(&[Some(LoraSpec::new(1, 1.0))], [2, 4], 0, &device);
    let rows = |rows| vec![Segment { rows, slot: 0 }];
    let segments = Segments::new(3, rows(0..3)).expect("in order");
    let routing = bank.route(&segments, None).expect("slot 0 exists");
    let zeros = |shape| Tensor::<2>::zeros(shape, &device);
    let operator = |x: Tensor<2>, weight, a: Tensor<2>, b| {
        lora_linear(x, weight, a, b, &routing)
            .expect_err("operands that do not fit")
            .to_string()
    };
    let [x, weight, a, b] = [[3, 2], [2, 4], [1, 2], [1, 4]].map(zeros);
    assert_eq!(
        operator(x.clone(), weight.clone(), a.clone(), zeros([1, 5])),
        "shapes do not fit: x [3, 2], weight [2, 4], a [1, 2] and b [1, 5] for a routing of 3 rows \
         over a total rank of 1"
    );
    // Segments that do not cover the rows of x.
    assert!(operator(zeros([4, 2]), weight.clone(), a.clone(), b.clone()).contains("x [4, 2]"));
    let half = |tensor: &Tensor<2>| tensor.clone().cast(FloatDType::BF16);
    assert_eq!(
        operator(half(&x), weight.clone(), a.clone(), b.clone()),
        "invalid LoRA configuration: x is BF16 and the frozen weight F32: both must be one of F32, \
         F16, BF16"
    );
    assert_eq!(
        operator(x, weight, half(&a), b),
        "invalid LoRA configuration: a is BF16 and b F32: packed adapters are F32"
    );
    assert!(Segments::new(3, rows(0..4)).is_err());
}

#[test]
fn the_device_under_test_passes_the_check() {
    for dtype in [FloatDType::F32, FloatDType::F16, FloatDType::BF16] {
        let supported = device().supports_dtype(dtype);
        let found = check_device(&device(), dtype);
        assert!(
            match &found {
                Ok(_) => supported,
                Err(BatchLoraError::Unavailable { .. }) => !supported,
                Err(_) => false,
            },
            "{dtype:?}: {found:?}"
        );
    }
}
