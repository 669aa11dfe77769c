//! Adapters of an embedding, against loops in double precision.

use batchlora::{AdapterState, LoraSpec, Segment, Segments};
use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData};

use crate::support::{Random, assert_close, bits, device, host, wide};

const VOCABULARY: usize = 7;
const WIDTH: usize = 5;
/// The third token occurs in several rows of an adapter.
const IDS: [usize; 12] = [2, 6, 2, 2, 0, 1, 2, 3, 2, 5, 6, 4];

#[test]
fn rows_and_gradients_are_those_of_loops() {
    let device = device();
    let mut random = Random::new(3);
    let specs = [
        Some(LoraSpec::new(3, 4.0)),
        None,
        Some(LoraSpec::new(1, 9.0)),
        Some(LoraSpec::new(2, 1.0).with_use_rslora(true)),
        Some(LoraSpec::new(2, 1.0)),
    ];
    let bank = random.bank(&specs, [VOCABULARY, WIDTH], 0, &device);
    // Rows 3 and 11 have no adapter; slots 2 and 4 have no row, and slot 3 two segments.
    let segments = [(0..3, 3), (4..7, 0), (7..8, 1), (8..11, 3)];
    let segments = segments.map(|(rows, slot)| Segment { rows, slot });
    let loss_scales = [8.0, 2.0, 1.0, 8.0];
    let laid_out = Segments::new(IDS.len(), segments.to_vec())
        .and_then(|segments| segments.with_loss_scales(loss_scales.to_vec()));
    let laid_out = laid_out.expect("in order");
    let lora = bank.attach(&laid_out, None).expect("slots").expect("rows");
    let ids = IDS.map(|id| id as i32).to_vec();
    let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [IDS.len()]), &device);
    let embedded = random.tensor([IDS.len(), WIDTH], &device);
    let gradient = random.tensor([IDS.len(), WIDTH], &device);

    let mut expected = wide(&host(embedded.clone()));
    let g = wide(&host(gradient.clone()));
    let weights = bank.weights().expect("adapters");
    let (a, b) = (wide(&host(weights.a)), wide(&host(weights.b)));
    let (mut of_a, mut of_b) = (vec![0.0; a.len()], vec![0.0; b.len()]);
    let first_rank = [0, 3, 3, 4];
    for (segment, loss_scale) in segments.into_iter().zip(loss_scales) {
        let Some(spec) = specs[segment.slot] else {
            continue;
        };
        for row in segment.rows {
            for rank in (0..spec.r).map(|rank| first_rank[segment.slot] + rank) {
                let of_token = rank * VOCABULARY + IDS[row];
                for column in 0..WIDTH {
                    let (at, within) = (row * WIDTH + column, rank * WIDTH + column);
                    let factor = spec.scale() / f64::from(loss_scale) * g[at];
                    expected[at] += spec.scale() * a[of_token] * b[within];
                    of_a[of_token] += factor * b[within];
                    of_b[within] += factor * a[of_token];
                }
            }
        }
    }
    let found = lora.add_embedded(embedded, &ids);
    assert_close("rows", &host(found), &expected, 1e-6);
    let found = lora.embedded_gradient(&gradient, &ids);
    assert_close("A", &host(found.a), &of_a, 1e-6);
    assert_close("B", &host(found.b), &of_b, 1e-6);
}

/// Rows of half the width come out as they are, and gradients are those of the same rows in `float32`: also where a
/// step has so many targets that `float16` cannot hold what is divided by the loss scale.
#[test]
fn half_precision_rows_of_an_embedding_have_gradients_in_float32() {
    let device = device();
    let mut random = Random::new(5);
    let specs = [Some(LoraSpec::new(3, 1.0))];
    let bank = random.bank(&specs, [VOCABULARY, WIDTH], 0, &device);
    let rows = 0..IDS.len();
    let laid_out = Segments::new(IDS.len(), vec![Segment { rows, slot: 0 }])
        .and_then(|segments| segments.with_loss_scales(vec![1_048_576.0]));
    let laid_out = laid_out.expect("in order");
    let lora = bank.attach(&laid_out, None).expect("slots").expect("rows");
    let ids = IDS.map(|id| id as i32).to_vec();
    let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [IDS.len()]), &device);
    let values = random.tensor([IDS.len(), WIDTH], &device);
    for dtype in [FloatDType::F16, FloatDType::BF16] {
        if !device.supports_dtype(DType::from(dtype)) {
            continue;
        }
        let half = values.clone().cast(dtype);
        let single = half.clone().cast(FloatDType::F32);
        let found = lora.add_embedded(half.clone(), &ids);
        assert_eq!(found.dtype(), DType::from(dtype));
        let expected = wide(&host(lora.add_embedded(single.clone(), &ids)));
        assert_close("rows", &host(found), &expected, 1e-2);
        let found = lora.embedded_gradient(&half, &ids);
        let expected = lora.embedded_gradient(&single, &ids);
        for (found, expected) in [(found.a, expected.a), (found.b, expected.b)] {
            assert_eq!(bits(&host(found)), bits(&host(expected)), "{dtype:?}");
        }
    }
}

/// PEFT's `reset_lora_parameters` for an embedding.
#[test]
fn a_fresh_adapter_has_zeros_in_a_and_a_standard_normal_b() {
    let make = |seed| {
        let spec = LoraSpec::new(16, 16.0);
        AdapterState::init_embedding(spec, [40, 4001], seed, 9, &device()).expect("a valid adapter")
    };
    let state = make(5);
    assert_eq!(state.weights.a.dims(), [16, 40]);
    assert!(host(state.weights.a).iter().all(|&value| value == 0.0));
    let values = wide(&host(state.weights.b.clone()));
    let count = values.len() as f64;
    assert_eq!(values.len(), 16 * 4001);
    let moment = |power| values.iter().map(|value| value.powi(power)).sum::<f64>() / count;
    // Five deviations of the mean of each power.
    for (power, expected, variance) in
        [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)]
    {
        let off = (moment(power) - expected).abs();
        assert!(
            off < 5.0 * f64::sqrt(variance / count),
            "moment {power} is off by {off}"
        );
    }
    assert_eq!(host(make(5).weights.b), host(state.weights.b.clone()));
    assert_ne!(host(make(6).weights.b), host(state.weights.b));
    for (row, other) in (0..16).flat_map(|row| (0..row).map(move |other| (row, other))) {
        assert_ne!(values[row * 4001..][..4001], values[other * 4001..][..4001]);
    }
}
