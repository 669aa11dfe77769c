use burn::tensor::Device;
use loraloom_pipeline::PipelineError;
use serde::Serialize;

/// All launches of one kernel in a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KernelShare {
    /// Name of the kernel, or sizes of a product by cuBLAS.
    pub kernel: String,
    /// Number of launches.
    pub launches: usize,
    /// Their total time on the device.
    pub milliseconds: f64,
    /// Bytes of their operands and results; 0 for Burn's own kernels.
    pub bytes_moved: u64,
}

/// Kernel launches of one pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launches {
    pub(crate) count: u64,
    /// Bytes of the operands and results of batchlora's own kernels.
    pub(crate) bytes_moved: u64,
}

/// Counts the launches of `work`; `None` on the CPU. All launches of the process are counted, and those
/// that compile and tune a kernel on its first run.
#[cfg_attr(
    not(feature = "cubecl"),
    expect(clippy::unnecessary_wraps, reason = "a GPU can fail")
)]
pub(crate) fn count(
    device: &Device,
    work: impl FnOnce() -> Result<(), PipelineError>,
) -> Result<Option<Launches>, PipelineError> {
    #[cfg(feature = "cubecl")]
    if *device != Device::flex() {
        crate::timing::sync(device)?;
        let count = batchlora::LaunchCount::start();
        work()?;
        crate::timing::sync(device)?;
        return Ok(Some(Launches {
            count: count.launches(),
            bytes_moved: count.bytes_moved(),
        }));
    }
    let _ = (device, work);
    Ok(None)
}

/// Times every kernel that `work` launches, longest first; empty on the CPU.
#[cfg_attr(
    not(feature = "cubecl"),
    expect(clippy::unnecessary_wraps, reason = "a GPU can fail")
)]
pub(crate) fn profile(
    device: &Device,
    work: impl FnOnce() -> Result<(), PipelineError>,
) -> Result<Vec<KernelShare>, PipelineError> {
    #[cfg(feature = "cubecl")]
    if *device != Device::flex() {
        crate::timing::sync(device)?;
        let profile = batchlora::KernelProfile::start();
        work()?;
        crate::timing::sync(device)?;
        let shares = profile.finish(device).into_iter().map(|time| KernelShare {
            kernel: time.name,
            launches: time.launches,
            milliseconds: 1e3 * time.seconds,
            bytes_moved: time.bytes,
        });
        return Ok(shares.collect());
    }
    let _ = (device, work);
    Ok(Vec::new())
}
