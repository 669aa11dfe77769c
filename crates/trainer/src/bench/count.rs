use burn::tensor::Device;

use super::report::KernelShare;
use crate::TrainerError;

/// What one pass put on a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Kernels launched.
    pub(super) launches: u64,
    /// Bytes that the operands and results of batchlora's own launches hold.
    pub(super) bytes_moved: u64,
}

/// Counts what `work` launches; `None` on the CPU, which launches nothing. Counts are the
/// process's: work that was never run before also counts what compiles and tunes it.
#[cfg(feature = "cubecl")]
pub(super) fn count(
    device: &Device,
    work: impl FnOnce() -> Result<(), TrainerError>,
) -> Result<Option<Counts>, TrainerError> {
    if *device == Device::flex() {
        return Ok(None);
    }
    super::measure::sync(device)?;
    let count = batchlora::LaunchCount::start();
    work()?;
    super::measure::sync(device)?;
    Ok(Some(Counts {
        launches: count.launches(),
        bytes_moved: count.bytes_moved(),
    }))
}

/// This build has no device that launches kernels.
#[cfg(not(feature = "cubecl"))]
#[expect(clippy::unnecessary_wraps, reason = "a GPU can fail")]
pub(super) fn count(
    _device: &Device,
    _work: impl FnOnce() -> Result<(), TrainerError>,
) -> Result<Option<Counts>, TrainerError> {
    Ok(None)
}

/// The device's time of each kernel that `work` launches, longest first; none on the CPU.
#[cfg(feature = "cubecl")]
pub(super) fn profile(
    device: &Device,
    work: impl FnOnce() -> Result<(), TrainerError>,
) -> Result<Vec<KernelShare>, TrainerError> {
    if *device == Device::flex() {
        return Ok(Vec::new());
    }
    super::measure::sync(device)?;
    let profile = batchlora::KernelProfile::start();
    work()?;
    super::measure::sync(device)?;
    let shares = profile.finish(device).into_iter().map(|time| KernelShare {
        kernel: time.name,
        launches: time.launches,
        milliseconds: 1e3 * time.seconds,
        bytes_moved: time.bytes,
    });
    Ok(shares.collect())
}

/// This build has no device that launches kernels.
#[cfg(not(feature = "cubecl"))]
#[expect(clippy::unnecessary_wraps, reason = "a GPU can fail")]
pub(super) fn profile(
    _device: &Device,
    _work: impl FnOnce() -> Result<(), TrainerError>,
) -> Result<Vec<KernelShare>, TrainerError> {
    Ok(Vec::new())
}
