//! The device under test, random numbers and comparisons.

use batchlora::{AdapterBank, AdapterState, LoraPair, LoraSpec};
use burn::tensor::{Device, Tensor, TensorData};

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

/// `SplitMix64`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in ±1.
    pub(crate) fn values(&mut self, count: usize) -> Vec<f32> {
        (0..count)
            .map(|_| (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
            .collect()
    }

    pub(crate) fn tensor(&mut self, shape: [usize; 2], device: &Device) -> Tensor<2> {
        tensor(self.values(shape[0] * shape[1]), shape, device)
    }

    pub(crate) fn pair(&mut self, rank: usize, shape: [usize; 2], device: &Device) -> LoraPair {
        LoraPair {
            a: self.tensor([rank, shape[0]], device),
            b: self.tensor([rank, shape[1]], device),
            magnitude: None,
        }
    }

    /// An adapter in mid-training: nothing of it is zero, second moments are not negative.
    pub(crate) fn adapter(
        &mut self,
        spec: LoraSpec,
        shape: [usize; 2],
        device: &Device,
    ) -> AdapterState {
        let mut pair = || {
            let pair = self.pair(spec.r, shape, device);
            let magnitude = (spec.use_dora).then(|| self.tensor([1, shape[1]], device));
            LoraPair { magnitude, ..pair }
        };
        let (weights, first_moment, second) = (pair(), pair(), pair());
        AdapterState {
            first_moment,
            second_moment: second.map(Tensor::abs),
            ..AdapterState::new(spec, weights).expect("a valid adapter")
        }
    }

    pub(crate) fn bank(
        &mut self,
        slots: &[Option<LoraSpec>],
        shape: [usize; 2],
        module: u32,
        device: &Device,
    ) -> AdapterBank {
        let mut bank = AdapterBank::new(shape[0], shape[1], module, device);
        for spec in slots {
            let adapter = spec.map(|spec| self.adapter(spec, shape, device));
            bank.push(adapter).expect("of the bank's shape");
        }
        bank
    }
}

pub(crate) fn tensor(values: Vec<f32>, shape: [usize; 2], device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

pub(crate) fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor
        .into_data()
        .convert::<f32>()
        .try_into_vec()
        .expect("float32")
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The bits of weights and moments.
pub(crate) fn state_bits(state: &AdapterState) -> Vec<Vec<u32>> {
    [&state.weights, &state.first_moment, &state.second_moment]
        .into_iter()
        .flat_map(|pair| [&pair.a, &pair.b].into_iter().chain(&pair.magnitude))
        .cloned()
        .map(|tensor| bits(&host(tensor)))
        .collect()
}

/// Within `tolerance` of the largest magnitude expected; where all is zero, exactly zero.
#[track_caller]
pub(crate) fn assert_close(what: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}: number of elements");
    let largest = expected
        .iter()
        .fold(0f64, |max, value| max.max(value.abs()));
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        assert!(
            error <= tolerance * largest,
            "{what}[{index}] is {found}, expected {expected}: off by {error:.2e}, which is {:.2e} \
             of the largest",
            error / largest
        );
    }
}

pub(crate) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}
