//! Layouts that no fixture has, on weights of a few elements.

use safetensors::{Dtype, serialize_to_file, tensor::TensorView};

use crate::{Checkpoint, LlamaConfig, StoredFormat, TensorDtype};

type Stored = (&'static str, Dtype, Vec<usize>, Vec<u8>);

fn floats(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn format() -> StoredFormat {
    StoredFormat {
        name: "test",
        is_nf4: false,
        block: None,
        group_sizes: Vec::new(),
        has_listed_groups: false,
        has_zero_points: false,
    }
}

fn checkpoint(tensors: &[Stored]) -> (tempfile::TempDir, Checkpoint) {
    let directory = tempfile::tempdir().expect("a directory");
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        let view = TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor");
        (format!("m.{name}"), view)
    });
    let path = directory.path().join("model.safetensors");
    serialize_to_file(views, None, &path).expect("written");
    let checkpoint = Checkpoint::open(directory.path()).expect("a checkpoint");
    (directory, checkpoint)
}

/// The weight of some tensors, in a model of this type.
fn dense(
    stored: StoredFormat,
    dtype: Option<TensorDtype>,
    shape: [usize; 2],
    tensors: &[Stored],
) -> Result<(TensorDtype, Vec<f32>), String> {
    let mut config = LlamaConfig::named("micro").expect("a shape");
    (config.stored, config.dtype) = (Some(stored), dtype);
    let (_directory, checkpoint) = checkpoint(tensors);
    let weight = checkpoint.dense("m.weight", shape, &config);
    let weight = weight.map_err(|error| error.to_string())?;
    let host = weight.host();
    Ok((host.dtype, host.to_f32()))
}

/// 1 in FP8.
const ONE: u8 = 0x38;

#[test]
fn blocks_need_be_neither_square_nor_whole() {
    let stored = StoredFormat {
        block: Some([2, 3]),
        ..format()
    };
    let scales = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let tensors = [
        ("weight", Dtype::F8_E4M3, vec![5, 4], vec![ONE; 20]),
        ("weight_scale_inv", Dtype::F32, vec![3, 2], floats(&scales)),
    ];
    let (dtype, values) = dense(stored, Some(TensorDtype::Float32), [5, 4], &tensors).unwrap();
    assert_eq!(dtype, TensorDtype::Float32);
    let row = |a: f32, b: f32| [a, a, a, b];
    let expected = [
        row(1., 2.),
        row(1., 2.),
        row(3., 4.),
        row(3., 4.),
        row(5., 6.),
    ];
    assert_eq!(values, expected.concat());
}

/// In `float32` scales the type of the model decides, and bfloat16 without one; in others theirs.
#[test]
fn values_have_the_type_of_scales_or_of_the_model() {
    let tensors = |dtype, bytes| {
        [
            ("weight", Dtype::I8, vec![1, 2], vec![1, 255]),
            ("weight_scale", dtype, vec![1], bytes),
        ]
    };
    let third = 1.0f32 / 3.0;
    for (of_model, of_values) in [
        (None, TensorDtype::Bfloat16),
        (Some(TensorDtype::Float16), TensorDtype::Float16),
        (Some(TensorDtype::Float32), TensorDtype::Float32),
    ] {
        let tensors = tensors(Dtype::F32, floats(&[third]));
        let (dtype, values) = dense(format(), of_model, [1, 2], &tensors).unwrap();
        let expected = match of_values {
            TensorDtype::Bfloat16 => half::bf16::from_f32(third).to_f32(),
            TensorDtype::Float16 => half::f16::from_f32(third).to_f32(),
            TensorDtype::Float32 => third,
        };
        assert_eq!((dtype, values), (of_values, vec![expected, -expected]));
    }
    let half = half::f16::from_f32(third);
    let tensors = tensors(Dtype::F16, half.to_le_bytes().to_vec());
    let model = Some(TensorDtype::Float32);
    let (dtype, values) = dense(format(), model, [1, 2], &tensors).unwrap();
    assert_eq!((dtype, values[0]), (TensorDtype::Float16, half.to_f32()));
}

#[test]
fn every_code_of_fp8_has_its_value() {
    let codes = vec![0x00, 0x01, 0x07, 0x08, 0x38, 0x7e, 0x7f, 0x80, 0xb8, 0xff];
    let tensors = [
        ("weight", Dtype::F8_E4M3, vec![1, 10], codes),
        ("weight_scale", Dtype::F32, vec![], floats(&[1.0])),
    ];
    let model = Some(TensorDtype::Float32);
    let (_, values) = dense(format(), model, [1, 10], &tensors).unwrap();
    let smallest = 2f32.powi(-9);
    assert_eq!(
        values[..6],
        [0.0, smallest, 7.0 * smallest, 2f32.powi(-6), 1.0, 448.0]
    );
    assert!(values[6].is_nan() && values[9].is_nan(), "{values:?}");
    assert!(values[7].is_sign_negative() && values[7].abs() <= 0.0);
    assert_eq!(values[8..9], [-1.0]);
}

/// GPTQ stores each word of zero points less a word of ones: a zero point of 0 takes one from its neighbour.
#[test]
fn gptq_zero_points_of_zero_borrow() {
    for (bits, ones) in [(4, 0x1111_1111u32), (8, 0x0101_0101)] {
        let per_word = 32 / bits;
        let zeros: u32 = (0..per_word).map(|at| (at % 3) << (at * bits)).sum();
        let d_out = per_word as usize;
        let tensors = [
            (
                "qweight",
                Dtype::I32,
                vec![1, d_out],
                words(&vec![0; d_out]),
            ),
            (
                "qzeros",
                Dtype::I32,
                vec![1, 1],
                words(&[zeros.wrapping_sub(ones)]),
            ),
            (
                "scales",
                Dtype::F32,
                vec![1, d_out],
                floats(&vec![1.0; d_out]),
            ),
        ];
        let model = Some(TensorDtype::Float32);
        let (_, values) = dense(format(), model, [d_out, d_out], &tensors).unwrap();
        for (row, values) in values.chunks(d_out).enumerate() {
            let expected = -((row % 3) as f32);
            assert!(
                values.iter().all(|value| (value - expected).abs() <= 0.0),
                "{row}: {values:?}"
            );
        }
    }
}

/// The last group may be smaller, if the file says how large the others are.
#[test]
fn groups_are_of_the_size_that_the_file_names() {
    let tensors = |groups: usize| {
        let scales: Vec<f32> = (0..groups).map(|group| group as f32 + 1.0).collect();
        [
            ("weight", Dtype::I8, vec![1, 8], vec![1; 8]),
            ("weight_scale", Dtype::F32, vec![1, groups], floats(&scales)),
        ]
    };
    let of = |group_sizes: &[usize], groups| {
        let stored = StoredFormat {
            group_sizes: group_sizes.to_vec(),
            ..format()
        };
        let model = Some(TensorDtype::Float32);
        dense(stored, model, [1, 8], &tensors(groups)).map(|(_, values)| values)
    };
    let ([a, b, c], each) = ([1.0, 2.0, 3.0], |values: Vec<f32>| Ok(values));
    assert_eq!(of(&[3], 3), each(vec![a, a, a, b, b, b, c, c]));
    assert_eq!(of(&[4, 3], 3), each(vec![a, a, a, b, b, b, c, c]));
    assert_eq!(of(&[], 2), each(vec![a, a, a, a, b, b, b, b]));
    assert_eq!(of(&[], 1), each(vec![a; 8]));
    for (sizes, groups) in [(&[][..], 3), (&[4], 3), (&[], 0)] {
        let error = of(sizes, groups).unwrap_err();
        assert!(error.contains("8 columns are not"), "{error}");
    }
}

/// Zero points of 8 bits stand in words down the rows.
#[test]
fn zero_points_of_compressed_tensors() {
    let zeros = words(&[0x8483_8281, 0x85]);
    let shape = [5i64, 8].map(i64::to_le_bytes).concat();
    let codes = words(&[[0x8483_8281, 0x8887_8685]; 5].concat());
    let scales = floats(&[1.0, 0.5, 1.0, 1.0, 1.0]);
    let tensors = [
        ("weight_shape", Dtype::I64, vec![2], shape),
        ("weight_packed", Dtype::I32, vec![5, 2], codes),
        ("weight_zero_point", Dtype::I32, vec![2, 1], zeros),
        ("weight_scale", Dtype::F32, vec![5, 1], scales),
    ];
    let model = Some(TensorDtype::Float32);
    let (_, values) = dense(format(), model, [5, 8], &tensors).unwrap();
    for (row, values) in (0i16..).zip(values.chunks(8)) {
        let scale = if row == 1 { 0.5 } else { 1.0 };
        let expected: Vec<f32> = (0..8).map(|at| scale * f32::from(at - row)).collect();
        assert_eq!(values, expected, "{row}");
    }

    let mut of_weight = tensors;
    of_weight[3] = ("weight_scale", Dtype::F32, vec![1], floats(&[1.0]));
    let error = dense(format(), model, [5, 8], &of_weight).unwrap_err();
    assert!(
        error.contains("zero points without a scale for each row"),
        "{error}"
    );
}

#[test]
fn tiles_of_llm_int8_are_refused() {
    let tensors = |tiles| {
        [
            ("weight", Dtype::I8, vec![1, 1], vec![127]),
            ("SCB", Dtype::F32, vec![1], floats(&[2.0])),
            ("weight_format", Dtype::U8, vec![], vec![tiles]),
        ]
    };
    let (_, values) = dense(format(), None, [1, 1], &tensors(0)).unwrap();
    assert_eq!(values, [2.0]);
    let error = dense(format(), None, [1, 1], &tensors(1)).unwrap_err();
    assert!(error.contains("`weight_format` is [1]"), "{error}");
}

/// Scales are no weights.
#[test]
fn the_type_of_a_checkpoint_is_that_of_its_weights() {
    let (_directory, checkpoint) = checkpoint(&[
        ("weight", Dtype::F8_E4M3, vec![4, 4], vec![ONE; 16]),
        ("weight_scale", Dtype::F32, vec![4, 4], floats(&[1.0; 16])),
        ("norm.weight", Dtype::BF16, vec![4], vec![0; 8]),
    ]);
    assert_eq!(checkpoint.dtype(), Some(TensorDtype::Bfloat16));
}
