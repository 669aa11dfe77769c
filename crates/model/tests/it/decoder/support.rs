//! The device under test, fixtures, random numbers and comparisons.

use std::path::{Path, PathBuf};

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use loraloom_model::{Backbone, Checkpoint, LlamaConfig};

pub(crate) fn device() -> Device {
    match std::env::var("LORALOOM_TEST_DEVICE").as_deref() {
        Err(_) | Ok("flex") => Device::flex(),
        #[cfg(feature = "wgpu")]
        Ok("wgpu") => Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
        #[cfg(feature = "cuda")]
        Ok("cuda") => Device::cuda(0),
        Ok(other) => panic!("LORALOOM_TEST_DEVICE: this build has no device {other}"),
    }
}

pub(crate) fn fixture(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures")
        .join(model)
}

pub(crate) fn config(model: &str) -> LlamaConfig {
    LlamaConfig::from_directory(&fixture(model)).expect("a configuration")
}

pub(crate) fn backbone(model: &str, layers: std::ops::Range<usize>) -> Backbone {
    backbone_on(model, layers, &device())
}

pub(crate) fn backbone_on(
    model: &str,
    layers: std::ops::Range<usize>,
    device: &Device,
) -> Backbone {
    let checkpoint = Checkpoint::open(&fixture(model)).expect("a checkpoint");
    let dtype = FloatDType::F32;
    Backbone::load(&checkpoint, &config(model), layers, dtype, device).expect("a backbone")
}

pub(crate) fn whole(model: &str) -> Backbone {
    backbone(model, 0..config(model).num_hidden_layers)
}

/// `SplitMix64`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Uniform in ±1.
    pub(crate) fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count)
            .map(|_| (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
            .collect()
    }

    pub(crate) fn tensor<const D: usize>(
        &mut self,
        shape: [usize; D],
        device: &Device,
    ) -> Tensor<D> {
        let values = self.values(shape.iter().product());
        Tensor::from_data(TensorData::new(values, shape), device)
    }
}

pub(crate) fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    loraloom_model::to_host(tensor).expect("a value")
}

/// Within `tolerance` of the largest magnitude expected; where all is zero, exactly zero.
#[track_caller]
pub(crate) fn assert_close<const D: usize>(
    what: &str,
    found: Tensor<D>,
    expected: Tensor<D>,
    tolerance: f32,
) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    assert_close_values(what, &host(found), &host(expected), tolerance);
}

#[track_caller]
pub(crate) fn assert_close_values(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}: number of elements");
    let largest = expected
        .iter()
        .fold(0f32, |max, value| max.max(value.abs()));
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(
            error <= tolerance * largest,
            "{what}[{index}] is {found}, expected {expected}: off by {error:.2e}, which is {:.2e} \
             of the largest",
            error / largest
        );
    }
}
