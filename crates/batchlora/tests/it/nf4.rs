//! Products with a weight in NF4 that is made dense in parts, against products with its values.

use batchlora::{
    DropoutDraw, FrozenWeight, LoraSpec, Nf4, Segment, Segments, frozen_linear,
    frozen_linear_backward,
};
use burn::tensor::{FloatDType, Tensor};

use crate::support::{Random, device, host, tensor};

const ROWS: usize = 6;
const D_IN: usize = 20;
/// Rows of four parts, of which the last is the shortest and no whole number of blocks.
const D_OUT: usize = 3 * 64 + 7;
const PART: usize = 64 * D_IN;

/// Values of every block are of another size.
fn weight(double_quant: bool) -> Nf4 {
    let values = (0..D_IN * D_OUT).map(|at| {
        let size = 1.0 + (at / 64 % 97) as f32;
        let value = ((at * 2_654_435_761) >> 7) % 2001;
        (value as f32 / 1000.0 - 1.0) * size / 500.0
    });
    let values: Vec<f32> = values.collect();
    Nf4::quantize(&values, [D_OUT, D_IN], FloatDType::F32, double_quant)
}

fn assert_near(what: &str, found: &Tensor<2>, expected: &Tensor<2>) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    let difference = (found.clone() - expected.clone()).abs().max();
    let largest = expected.clone().abs().max();
    let [difference, largest] = [difference, largest].map(|tensor| host(tensor)[0]);
    assert!(largest > 0.1, "{what}: {largest}");
    assert!(
        difference <= 1e-5 * largest,
        "{what}: {difference} of {largest}"
    );
}

#[test]
fn products_in_parts_are_those_with_the_values() {
    assert_eq!(Nf4::part_elements([D_OUT, D_IN], PART), PART);
    assert_eq!(Nf4::part_elements([D_OUT, D_IN], usize::MAX), D_IN * D_OUT);
    let device = device();
    let mut random = Random::new(11);
    let x = random.tensor([ROWS, D_IN], &device);
    let gradient = random.tensor([ROWS, D_OUT], &device);
    for double_quant in [false, true] {
        let quantized = weight(double_quant);
        let values = tensor(quantized.dequantize(), [D_OUT, D_IN], &device);
        let dense = FrozenWeight::from(values.transpose());
        let nf4 = FrozenWeight::from_nf4(&quantized, FloatDType::F32, &device);
        let nf4 = nf4.in_parts(PART);
        let found = frozen_linear(x.clone(), nf4.clone());
        let expected = frozen_linear(x.clone(), dense.clone());
        assert_near("output", &found, &expected);
        let found = frozen_linear_backward(gradient.clone(), nf4.clone());
        let expected = frozen_linear_backward(gradient.clone(), dense.clone());
        assert_near("gradient", &found, &expected);

        for use_dora in [false, true] {
            let spec = LoraSpec::new(4, 8.0).with_lora_dropout(0.3);
            let spec = spec.with_use_dora(use_dora);
            let bank = Random::new(5).bank(&[Some(spec)], [D_IN, D_OUT], 0, &device);
            let segment = Segment {
                rows: 1..5,
                slot: 0,
            };
            let segments = Segments::new(ROWS, vec![segment]).expect("in order");
            let draws = [DropoutDraw { seed: 1, step: 2 }];
            let run = |weight: &FrozenWeight| {
                let lora = bank.attach(&segments, Some(&draws)).expect("slots exist");
                let lora = lora.expect("an adapter").require_grad();
                let x = x.clone().autodiff().require_grad();
                let y = lora
                    .forward(x.clone(), weight.clone())
                    .expect("of its shape");
                let mut found = batchlora::seed_gradient(y.clone(), gradient.clone()).backward();
                let of_x = x.grad_remove(&mut found).expect("a gradient");
                let of_b = lora.take_gradient(&mut found).expect("a gradient").b;
                [y.without_autodiff(), of_x, of_b]
            };
            let (found, expected) = (run(&nf4), run(&dense));
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let name = ["output", "gradient of x", "gradient of B"][at];
                assert_near(&format!("{name}, dora {use_dora}"), found, expected);
            }
        }
    }
}

/// The sum over parts is rounded once.
#[test]
fn parts_of_a_gradient_are_added_in_single_precision() {
    let device = device();
    if !device.supports_dtype(FloatDType::F16) {
        return;
    }
    let quantized = Nf4::random([D_OUT, D_IN], FloatDType::F32, false);
    let weight = FrozenWeight::from_nf4(&quantized, FloatDType::F16, &device).in_parts(PART);
    // In half precision a number added to 2048 times one like it is lost in part, each time.
    let mut values = vec![0.0; D_OUT];
    for (row, value) in [(0, 2048.0), (D_OUT / 2, 1.0), (D_OUT - 1, 1.0)] {
        values[row] = value;
    }
    let gradient = tensor(values, [1, D_OUT], &device).cast(FloatDType::F16);
    let found = host(frozen_linear_backward(gradient, weight));
    let all = quantized.dequantize();
    let round = |value: f32| half::f16::from_f32(value).to_f32();
    let value = |row: usize, column| round(all[row * D_IN + column]);
    for (column, found) in found.into_iter().enumerate() {
        let [first, middle, last] = [0, D_OUT / 2, D_OUT - 1].map(|row| value(row, column));
        let expected = round(2048.0 * first + middle + last);
        assert_eq!(found.to_bits(), expected.to_bits(), "{column}");
    }
}
