//! The kernel of both gradients at the output against the two kernels it stands for.

use batchlora::{
    LoraSpec, Routing,
    primitives::{Side, output_grads, shrink, weight_grad},
};
use burn::tensor::{Device, Tensor};
use proptest::prelude::*;

use crate::{
    case::{Case, case, config, mixed},
    operator::{ROUNDING, TOLERANCE},
    oracle::Problem,
    support::{Random, device, host, tensor},
};

/// dS where it is specified, row after row, and dB.
type Gradients = [Vec<f32>; 2];

/// dH, S and B.
#[derive(Clone)]
struct Operands([Vec<f32>; 3]);

impl Operands {
    fn of(problem: &Problem, seed: u64) -> Self {
        let narrow = problem.rows() * problem.routing.rank_max();
        let narrow = Random::new(seed).values(narrow);
        Self([problem.gradient.clone(), narrow, problem.b.clone()])
    }

    fn absolute(&self) -> Self {
        let absolute = |values: &Vec<f32>| values.iter().map(|value| value.abs()).collect();
        Self([0, 1, 2].map(|index| absolute(&self.0[index])))
    }

    fn upload(&self, problem: &Problem, device: &Device) -> [Tensor<2>; 3] {
        let (routing, width) = (&problem.routing, problem.d_out);
        let [gradient, narrow, weight] = self.0.clone();
        [
            tensor(gradient, [routing.rows(), width], device),
            tensor(narrow, [routing.rows(), routing.rank_max()], device),
            tensor(weight, [routing.rank_sum(), width], device),
        ]
    }
}

fn specified(narrow: &[f32], routing: &Routing) -> Vec<f32> {
    let rows = routing.segments().iter().flat_map(|segment| {
        let ranks = segment.ranks.len();
        segment.rows.clone().map(move |row| (row, ranks))
    });
    rows.flat_map(|(row, ranks)| &narrow[row * routing.rank_max()..][..ranks])
        .copied()
        .collect()
}

fn at_once(operands: &Operands, problem: &Problem, device: &Device) -> Gradients {
    let [gradient, narrow, weight] = operands.upload(problem, device);
    let (ds, db) = output_grads(gradient, narrow, weight, &problem.routing);
    [specified(&host(ds), &problem.routing), host(db)]
}

fn one_by_one(operands: &Operands, problem: &Problem, device: &Device) -> Gradients {
    let [gradient, narrow, weight] = operands.upload(problem, device);
    let ds = shrink(gradient.clone(), weight, &problem.routing, Side::Output);
    let db = weight_grad(gradient, narrow, &problem.routing, Side::Output);
    [specified(&host(ds), &problem.routing), host(db)]
}

/// As the operator's results: within the tolerance of the largest element, or of what rounding the
/// terms may do where they cancel.
fn assert_same_gradients(problem: &Problem, seed: u64) {
    let operands = Operands::of(problem, seed);
    let found = at_once(&operands, problem, &device());
    let expected = one_by_one(&operands, problem, &device());
    let terms = one_by_one(&operands.absolute(), problem, &Device::flex());
    for (index, name) in ["dS", "dB"].into_iter().enumerate() {
        let (found, expected) = (&found[index], &expected[index]);
        assert_eq!(found.len(), expected.len(), "{name}: number of elements");
        let largest = expected.iter().fold(0f32, |max, v| max.max(v.abs()));
        for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
            let error = f64::from((found - expected).abs());
            let rounding = ROUNDING * f64::from(terms[index][at].abs());
            assert!(
                error <= (TOLERANCE * f64::from(largest)).max(rounding),
                "{name}[{at}] is {found}, expected {expected}: off by {error:.2e}; the largest is \
                 {largest:.2e}"
            );
        }
    }
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn both_gradients_at_once_are_those_of_two_kernels(case in case(), seed in any::<u64>()) {
        let problem = case.problem();
        prop_assume!(problem.rows() > 0 && problem.routing.rank_max() > 0);
        assert_same_gradients(&problem, seed);
    }
}

/// Several blocks of columns, of either size, with columns left over; several blocks of rows; ranks
/// that are no multiple of anything, more than a cube takes at once, and an adapter without rows.
#[test]
fn wide_outputs_in_several_blocks() {
    for (d_out, ranks) in [
        (1100, [3, 70, 16, 8]),
        (4100, [16, 1, 33, 8]),
        (1027, [5, 256, 64, 8]),
    ] {
        let spec = |r| Some(LoraSpec::new(r, 8.0));
        let problem = Case {
            d_in: 3,
            d_out,
            slots: ranks.map(spec).to_vec(),
            parts: vec![(2, 0, 517), (0, 1, 3), (1, 2, 30), (0, 3, 0), (0, 0, 1)],
            ..mixed()
        }
        .problem();
        assert_same_gradients(&problem, d_out as u64);
    }
}
