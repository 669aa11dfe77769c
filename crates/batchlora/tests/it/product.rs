//! The product with the frozen weight against sums in double precision.

use batchlora::frozen_linear;
use burn::tensor::Tensor;
use proptest::prelude::*;

use crate::{
    case::config,
    operator::ROUNDING,
    support::{Random, device, host, tensor},
};

/// How an operand lies in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Layout {
    Rows,
    Columns,
    /// Rows, each with something else behind it.
    PartOfRows,
    /// One row that is all of them.
    OneRow,
}

fn layout() -> impl Strategy<Value = Layout> {
    prop_oneof![
        Just(Layout::Rows),
        Just(Layout::Columns),
        Just(Layout::PartOfRows),
        Just(Layout::OneRow)
    ]
}

/// Lengths on both sides of every tile's.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![1..9usize, 9..66usize, 66..200usize]
}

fn operand(values: &[f32], [rows, columns]: [usize; 2], layout: Layout) -> Tensor<2> {
    let device = device();
    match layout {
        Layout::Rows => tensor(values.to_vec(), [rows, columns], &device),
        Layout::Columns => {
            let turned = (0..columns).flat_map(|c| (0..rows).map(move |r| values[r * columns + c]));
            tensor(turned.collect(), [columns, rows], &device).transpose()
        }
        Layout::PartOfRows => {
            let longer = values.chunks(columns).flat_map(|row| {
                let rest = [f32::NAN; 3];
                row.iter().copied().chain(rest)
            });
            let longer = tensor(longer.collect(), [rows, columns + 3], &device);
            longer.narrow(1, 0, columns)
        }
        Layout::OneRow => {
            let row = tensor(values[..columns].to_vec(), [1, columns], &device);
            row.expand([rows, columns])
        }
    }
}

proptest! {
    #![proptest_config(config(96))]

    /// Of any size, however the operands lie in memory.
    #[test]
    fn every_element_is_its_sum(
        (rows, d_in, d_out) in (length(), length(), length()),
        (x_layout, weight_layout) in (layout(), layout()),
        seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        let (mut x, mut weight) = (random.values(rows * d_in), random.values(d_in * d_out));
        for (values, columns, layout) in [(&mut x, d_in, x_layout), (&mut weight, d_out, weight_layout)] {
            if layout == Layout::OneRow {
                let row = values[..columns].to_vec();
                *values = row.repeat(values.len() / columns);
            }
        }
        let found = host(frozen_linear(
            operand(&x, [rows, d_in], x_layout),
            operand(&weight, [d_in, d_out], weight_layout),
        ));
        assert_eq!(found.len(), rows * d_out);
        for (at, found) in found.into_iter().enumerate() {
            let (row, column) = (at / d_out, at % d_out);
            let terms = (0..d_in).map(|step| {
                f64::from(x[row * d_in + step]) * f64::from(weight[step * d_out + column])
            });
            let expected: f64 = terms.clone().sum();
            let error = (f64::from(found) - expected).abs();
            let rounding = ROUNDING * terms.map(f64::abs).sum::<f64>();
            assert!(error <= rounding, "[{row}, {column}] is {found}, expected {expected}");
        }
    }
}
