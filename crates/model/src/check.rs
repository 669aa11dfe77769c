use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};

use batchlora::{FrozenWeight, Nf4, seed_gradient};

use crate::{
    Activation, AttentionShape, ModelError, Sampling, Sequences, cross_entropy, glu, rms_norm,
    rotate, sample, self_attention, to_host,
};

/// Lengths around that of a part of attention.
const LENGTHS: [usize; 5] = [300, 17, 64, 1, 257];
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const VOCABULARY: usize = 4099;
/// Rows that give a token.
const SAMPLED: usize = 8;

/// The difference of an operation's results on a device from the CPU's.
#[derive(Debug, Clone, PartialEq)]
pub struct Deviation {
    /// The operation and the result.
    pub operation: String,
    /// The largest difference, as a share of the largest element of the CPU's result in `float32`.
    pub found: f32,
    /// The largest difference that rounding explains.
    pub allowed: f32,
}

impl Deviation {
    /// True if the result is right; NaN never is.
    pub fn is_small(&self) -> bool {
        self.found <= self.allowed
    }
}

/// Runs every operation of the decoder on a device, forward and backward, on activations of this type,
/// and on the CPU in `float32` on the same values.
///
/// # Errors
/// [`ModelError::Device`] if a result cannot be read.
///
/// # Panics
/// Burn panics where a kernel cannot be compiled.
pub fn check_operations(device: &Device, dtype: FloatDType) -> Result<Vec<Deviation>, ModelError> {
    let allowed = match dtype {
        FloatDType::BF16 => 2e-2,
        FloatDType::F16 => 4e-3,
        _ => 2e-5,
    };
    let found = run(device, dtype, dtype)?;
    let expected = run(&Device::flex(), dtype, FloatDType::F32)?;
    let pairs = found.into_iter().zip(expected);
    let deviations = pairs.map(|((operation, found), (_, expected))| Deviation {
        operation,
        found: difference(&found, &expected),
        allowed,
    });
    Ok(deviations.collect())
}

type Operation<'a> = Box<dyn Fn(&[Tensor<2>]) -> Tensor<2> + 'a>;

/// Results by name, of inputs that are rounded to one type and computed with in another.
fn run(
    device: &Device,
    rounded: FloatDType,
    dtype: FloatDType,
) -> Result<Vec<(String, Vec<f32>)>, ModelError> {
    let device = &device.clone().without_autodiff();
    let autodiff = device.clone().autodiff();
    let rows: usize = LENGTHS.iter().sum();
    let input = |seed: u32, width: usize, device: &Device| {
        let values = uniform(seed, [rows, width], device);
        values.cast(rounded).cast(dtype)
    };
    let table = |seed| uniform(seed, [rows, HEAD_DIM / 2], device);
    let gamma = uniform(9, [1, HEADS * HEAD_DIM], device).reshape([HEADS * HEAD_DIM]);
    let gamma = gamma.cast(rounded).cast(dtype);
    let (wide, narrow) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    let attend = |window, softcap| -> Operation<'_> {
        let shape = AttentionShape {
            sequences: Sequences::from_lengths(LENGTHS),
            num_heads: HEADS,
            num_kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            window,
            score_scale: None,
            softcap,
        };
        Box::new(move |x| self_attention(x[0].clone(), x[1].clone(), x[2].clone(), &shape))
    };
    let gated = |activation| -> Operation<'_> {
        Box::new(move |x| glu(x[0].clone(), x[1].clone(), activation))
    };
    let operations: [(&str, &[usize], Operation<'_>); 7] = [
        (
            "rms_norm",
            &[wide],
            Box::new(|x| rms_norm(x[0].clone(), gamma.clone(), 1e-5)),
        ),
        ("swiglu", &[wide, wide], gated(Activation::Silu)),
        ("geglu", &[wide, wide], gated(Activation::GeluTanh)),
        (
            "rotate",
            &[wide],
            Box::new(|x| rotate(x[0].clone(), table(7), table(8))),
        ),
        ("attention", &[wide, narrow, narrow], attend(None, None)),
        (
            "attention in a window",
            &[wide, narrow, narrow],
            attend(Some(100), None),
        ),
        (
            "attention with a softcap",
            &[wide, narrow, narrow],
            attend(None, Some(0.5)),
        ),
    ];
    let mut results = Vec::new();
    for (name, widths, operation) in operations {
        let leaves: Vec<_> = widths
            .iter()
            .zip(0..)
            .map(|(&width, seed)| input(seed, width, &autodiff).detach().require_grad())
            .collect();
        let y = operation(&leaves);
        let gradients = seed_gradient(y.clone(), input(5, wide, device)).backward();
        results.push((name.to_owned(), to_host(y.without_autodiff())?));
        for (index, leaf) in leaves.iter().enumerate() {
            let gradient = leaf.grad(&gradients).ok_or_else(|| ModelError::Device {
                reason: format!("{name} has no gradient {index}"),
            })?;
            results.push((format!("{name}, gradient {index}"), to_host(gradient)?));
        }
    }
    let logits = uniform(6, [rows, VOCABULARY], device).mul_scalar(4.0);
    let targets: Vec<i32> = (0..rows)
        .map(|row| (row * 37 % VOCABULARY) as i32)
        .collect();
    let targets = Tensor::<1, Int>::from_data(TensorData::new(targets, [rows]), device);
    let weights = Tensor::<1>::full([rows], 0.5, (device, DType::F32));
    let logits = logits.cast(rounded).cast(dtype);
    results.push(("sample".to_owned(), sampled(&logits)?));
    let (losses, gradient) = cross_entropy(logits, targets, weights);
    let losses = losses.reshape([1, rows]);
    results.push(("cross_entropy".to_owned(), to_host(losses)?));
    results.push(("cross_entropy, gradient".to_owned(), to_host(gradient)?));
    let weight = Nf4::random([wide, HEAD_DIM], rounded, true);
    let weight = FrozenWeight::from_nf4(&weight, dtype, device);
    results.push(("nf4".to_owned(), to_host(weight.dense())?));
    Ok(results)
}

/// Log-probabilities of tokens that are picked with all options, and of the likeliest.
fn sampled(logits: &Tensor<2>) -> Result<Vec<f32>, ModelError> {
    let drawn = Sampling {
        temperature: 0.7,
        top_k: 40,
        top_p: 0.9,
        min_p: 0.01,
        repetition_penalty: 1.1,
        seed: 3,
    };
    let sampled = (0..SAMPLED).map(|place| drawn.row(&[1, 7], place, place));
    let sampled = sample(
        logits.clone().narrow(0, 0, SAMPLED),
        &sampled.collect::<Vec<_>>(),
    )?;
    let log_probs = sampled.iter().flat_map(|found| {
        let top = found.top.iter().map(|(_, log_prob)| *log_prob);
        top.chain([found.log_prob])
    });
    Ok(log_probs.collect())
}

/// Values in ±1, the same on every device.
fn uniform(seed: u32, shape: [usize; 2], device: &Device) -> Tensor<2> {
    let value = |at: u32| {
        let mixed = (at ^ seed.wrapping_mul(0x9E37_79B9)).wrapping_mul(0x85EB_CA6B);
        let mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xC2B2_AE35);
        (mixed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..(shape[0] * shape[1]) as u32).map(value).collect();
    Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
}

fn difference(found: &[f32], expected: &[f32]) -> f32 {
    let largest = expected
        .iter()
        .fold(0f32, |most, value| most.max(value.abs()));
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let most = differences.fold(0f32, |most, difference| {
        // Treat NaN as infinitely wrong.
        if difference.is_nan() {
            f32::INFINITY
        } else {
            most.max(difference)
        }
    });
    if found.len() == expected.len() {
        most / largest
    } else {
        f32::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, FloatDType};

    use super::{Deviation, check_operations, difference, run};

    #[test]
    fn the_cpu_is_itself() {
        let found = check_operations(&Device::flex(), FloatDType::F32).expect("readable results");
        assert_eq!(found.len(), 26);
        for deviation in found {
            assert!(deviation.found <= 0.0, "{deviation:?}");
            assert!(deviation.is_small());
        }
    }

    /// For example, the window is shorter than the sequences.
    #[test]
    fn every_result_is_another() {
        let results = run(&Device::flex(), FloatDType::F32, FloatDType::F32).expect("results");
        for (at, (name, values)) in results.iter().enumerate() {
            for (other, same) in &results[..at] {
                assert!(values != same, "{name} is {other}");
            }
        }
    }

    #[test]
    fn what_is_off_or_no_number_is_found() {
        let off = |found: &[f32]| Deviation {
            operation: String::new(),
            found: difference(found, &[1.0, -2.0]),
            allowed: 0.1,
        };
        assert!(off(&[1.0, -2.1]).is_small());
        let found = check_operations(&Device::flex(), FloatDType::F32).expect("readable results");
        assert!(found.iter().all(|deviation| deviation.allowed <= 2e-5));
        for wrong in [&[1.0, -2.3][..], &[f32::NAN, -2.0], &[1.0]] {
            assert!(!off(wrong).is_small(), "{wrong:?}");
        }
    }
}
