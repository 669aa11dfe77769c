use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

#[cfg(feature = "cuda")]
use burn::backend::DispatchDevice;
use burn::tensor::Device;
use burn_cubecl::cubecl::{
    future::block_on,
    logging::{LaunchObservation, LaunchObserver, TimingRequest},
    profile::ProfileDuration,
};

use crate::count;

/// Launches of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelTime {
    /// The kernel's name, or the sizes of a product by cuBLAS.
    pub name: String,
    /// Number of launches.
    pub launches: usize,
    /// Seconds on the device, of all launches.
    pub seconds: f64,
    /// Bytes of operands and results of all launches; 0 for Burn's own kernels.
    pub bytes: u64,
}

/// Times every launch of the process from [`start`](Self::start) on. Launches take longer to issue; their
/// order does not change.
pub struct KernelProfile {
    kept: Arc<Kept>,
    _observation: LaunchObservation,
}

#[derive(Default)]
struct Kept(Mutex<Vec<(&'static str, u64, ProfileDuration)>>);

impl LaunchObserver for Kept {
    fn launched(&self, _kernel: &'static str) {}

    fn timing(&self) -> TimingRequest {
        TimingRequest::Deferred
    }

    fn profiled(&self, kernel: &'static str, profile: ProfileDuration) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push((kernel, count::take_moved(), profile));
    }
}

impl KernelProfile {
    /// Starts timing.
    pub fn start() -> Self {
        count::begin();
        // Drops bytes counted before the first timed launch.
        let _ = count::take_moved();
        #[cfg(feature = "cuda")]
        crate::product::cublas::time_products(true);
        let kept = Arc::new(Kept::default());
        Self {
            kept: kept.clone(),
            _observation: LaunchObservation::new(kept),
        }
    }

    /// Waits for the device and returns its launches by name, the longest total time first.
    pub fn finish(self, device: &Device) -> Vec<KernelTime> {
        let mut by_name = BTreeMap::<String, KernelTime>::new();
        let mut add = |name: String, seconds: f64, bytes| {
            let time = by_name.entry(name).or_insert_with_key(|name| KernelTime {
                name: name.clone(),
                launches: 0,
                seconds: 0.0,
                bytes: 0,
            });
            time.launches += 1;
            time.seconds += seconds;
            time.bytes += bytes;
        };
        let kept = std::mem::take(&mut *self.kept.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (name, bytes, profile) in kept {
            if let Some(ticks) = block_on(profile.resolve()) {
                add(short(name), ticks.duration().as_secs_f64(), bytes);
            }
        }
        for (name, seconds, bytes) in products(device) {
            add(name, seconds, bytes);
        }
        let mut times: Vec<_> = by_name.into_values().collect();
        times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        times
    }
}

impl Drop for KernelProfile {
    fn drop(&mut self) {
        #[cfg(feature = "cuda")]
        crate::product::cublas::time_products(false);
        count::end();
    }
}

impl fmt::Debug for KernelProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelProfile").finish_non_exhaustive()
    }
}

/// Names, seconds and bytes of the products by cuBLAS.
#[cfg(feature = "cuda")]
fn products(device: &Device) -> Vec<(String, f64, u64)> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => crate::product::cublas::take_times(&device.client()),
        _ => Vec::new(),
    }
}

#[cfg(not(feature = "cuda"))]
fn products(_device: &Device) -> Vec<(String, f64, u64)> {
    Vec::new()
}

/// A kernel's name without its path and types.
fn short(name: &str) -> String {
    let name = name.split('<').next().unwrap_or(name);
    name.rsplit("::").next().unwrap_or(name).to_owned()
}
