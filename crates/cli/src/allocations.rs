//! Counts the allocations of this process. The backend of CPU stages does not report its memory.

use loraloom_pipeline::HostMemory;
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Tells stages how allocations are counted.
pub(crate) fn count() {
    let memory = HostMemory {
        in_use: || ALLOCATOR.current_usage() as u64,
        peak: || ALLOCATOR.peak_usage() as u64,
        take_peak: || {
            let peak = ALLOCATOR.peak_usage();
            ALLOCATOR.reset_peak_usage();
            peak as u64
        },
    };
    memory.count_with();
}
